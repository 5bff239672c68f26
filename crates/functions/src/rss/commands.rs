//! The commands of `rss`: show its state; change indirection table, key and contexts.
//!
//! ```sh
//! picnic ctl rss
//! picnic ctl rss table 0,0,1,2
//! picnic ctl rss set --key symmetric --table-size 64
//! picnic ctl rss context 7 --weights 0,0,1,1
//! ```
//!
//! Guarantees: a change takes effect between bursts, completely or not at all; nothing is
//! allocated or freed on the borrowed core, as old and new change places.

use super::contexts::MAX_CONTEXTS;
use super::{Hash, HashName, Rss};
use picnic_core::command::{Command, CommandEntry, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_hash::{IndirectionTable, Key, Toeplitz};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get>(), CommandEntry::of::<Set>(), CommandEntry::of::<SetContext>()];

/// The arguments of `rss.get`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Get {}

/// The result of `rss.get`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct InForce {
    /// The hash.
    pub hash: HashName,
    /// The Toeplitz key in hex; null with another hash.
    pub key: Option<String>,
    /// Whether the key gives both directions of a flow the same hash.
    pub symmetric: bool,
    /// Initial value of jhash and lookup2; null with Toeplitz.
    #[schemars(extend("x-gauge" = true))]
    pub jhash_init: Option<u32>,
    /// Queues of the card.
    #[schemars(extend("x-gauge" = true))]
    pub queues: u16,
    /// The queue of each entry of the indirection table.
    pub table: Vec<u16>,
    /// The tables for packets with marks.
    pub contexts: Vec<ContextInForce>,
    /// Packets without a hash: not IP, or their type is off.
    pub unhashed: u64,
    /// Table entries whose flows may have been overtaken when they moved to another queue, for any
    /// reason.
    pub moved_entries: u64,
    /// Table entries moved by rebalancing.
    pub rebalanced_entries: u64,
}

/// A table for packets with a mark.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct ContextInForce {
    /// The mark.
    pub mark: u32,
    /// The queue of each entry.
    pub table: Vec<u16>,
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "current hash, key and indirection table";
    type Order = Show;
    type Reply = InForce;

    fn prepare(self, _: &BuildContext) -> Result<Show, CommandError> {
        Ok(Show::default())
    }

    fn reply(order: Show) -> Result<InForce, CommandError> {
        let key = order.key;
        Ok(InForce {
            hash: order.hash,
            key: key.map(|key| key.to_string()),
            symmetric: key.is_some_and(|key| key == Key::symmetric()),
            jhash_init: key.is_none().then_some(order.init),
            queues: order.queues,
            table: order.table().to_vec(),
            contexts: order
                .contexts
                .iter()
                .map(|(mark, table)| ContextInForce {
                    mark: *mark,
                    table: table.entries().to_vec(),
                })
                .collect(),
            unhashed: order.counts[0],
            moved_entries: order.counts[1],
            rebalanced_entries: order.counts[2],
        })
    }

    fn text(reply: &InForce, place: &str) -> String {
        let mut text = format!("{place}: hash {}\n", format!("{:?}", reply.hash).to_lowercase());
        match &reply.key {
            Some(key) => {
                let note = if reply.symmetric { " (symmetric)" } else { "" };
                text += &format!("key {key}{note}\n");
            }
            None => text += &format!("initial value {}\n", reply.jhash_init.unwrap_or(0)),
        }
        let entries = reply.table.len();
        text += &format!("table of {entries} entries, {} queues\n", reply.queues);
        put_table(&mut text, &reply.table);
        for context in &reply.contexts {
            let entries = context.table.len();
            text += &format!("packets with mark {}: table of {entries} entries\n", context.mark);
            put_table(&mut text, &context.table);
        }
        let InForce { unhashed, moved_entries, rebalanced_entries, .. } = reply;
        text += &format!("{unhashed} packets without a hash\n");
        text += &format!("{moved_entries} entries moved, {rebalanced_entries} by rebalancing\n");
        text
    }
}

fn put_table(text: &mut String, table: &[u16]) {
    let table: Vec<_> = table.iter().map(u16::to_string).collect();
    let width = table.iter().map(String::len).max().unwrap_or(1);
    for (row, entries) in table.chunks(16).enumerate() {
        *text += &format!("{:>5}:", row * 16);
        entries.iter().for_each(|entry| *text += &format!(" {entry:>width$}"));
        text.push('\n');
    }
}

/// The arguments of `rss.set`: one of them, or `key` and a table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Set {
    /// Toeplitz key: 40 to 64 bytes in hex, or "symmetric".
    pub key: Option<String>,
    /// The queue of each entry of the indirection table, 1 to 4096 of them.
    pub table: Option<Vec<u16>>,
    /// Indirection-table size, filled round-robin over all queues; instead of `table`.
    #[schemars(extend("aliases" = ["uniform"]))]
    pub table_size: Option<usize>,
    /// The weight of each queue: its share of `table_size` entries, or of 128.
    pub weights: Option<Vec<u32>>,
}

/// The arguments of `rss.context`: a mark, and a table or `remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetContext {
    /// The mark of its packets.
    #[schemars(range(min = 1))]
    pub mark: u32,
    /// The queue of each entry of its table, 1 to 4096 of them.
    #[serde(default)]
    pub table: Option<Vec<u16>>,
    /// Indirection-table size, filled round-robin over all queues; instead of `table`.
    #[serde(default)]
    pub table_size: Option<usize>,
    /// The weight of each queue: its share of `table_size` entries, or of 128.
    #[serde(default)]
    pub weights: Option<Vec<u32>>,
    /// Remove the context: its packets then use the main table.
    #[serde(default)]
    pub remove: bool,
}

/// The result of `rss.set`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Moved {
    /// Table entries whose flows may now go to another queue. Only in these flows may packets from
    /// before and after the change overtake each other.
    pub moved_entries: usize,
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change key and indirection table together";
    const EXAMPLE: &'static str = r#"{"key": "symmetric", "table_size": 64}"#;
    type Order = TableChange;
    type Reply = Moved;

    fn prepare(self, context: &BuildContext) -> Result<TableChange, CommandError> {
        let queues = context.queues;
        let key = match self.key.as_deref() {
            None => None,
            Some("symmetric") => Some(Key::symmetric()),
            Some(text) => {
                Some(text.parse::<Key>().map_err(|error| CommandError::argument("key", error))?)
            }
        };
        let table = table_of(&self.table, self.table_size, &self.weights, queues)?;
        if table.is_none() && key.is_none() {
            let message = "found none, allowed: key, table, table_size, weights";
            return Err(CommandError::argument("params", message));
        }
        Ok(TableChange {
            mark: None,
            table: table.map(Box::new),
            key: key.map(|key| Box::new(Toeplitz::new(&key))),
            outcome: None,
        })
    }

    fn reply(order: TableChange) -> Result<Moved, CommandError> {
        match order.outcome {
            Some(Ok(moved_entries)) => Ok(Moved { moved_entries }),
            Some(Err(refusal @ Refusal::NoKey)) => Err(CommandError::argument("key", refusal)),
            Some(Err(refusal @ Refusal::Queues { .. })) => {
                Err(CommandError::argument("table", refusal))
            }
            Some(Err(refusal)) => Err(CommandError::argument("mark", refusal)),
            None => Err(CommandError::Refused("the function there is not rss".into())),
        }
    }

    fn text(reply: &Moved, _: &str) -> String {
        format!("{} entries of the table moved\n", reply.moved_entries)
    }
}

/// The table given by the arguments, if any.
fn table_of(
    table: &Option<Vec<u16>>,
    size: Option<usize>,
    weights: &Option<Vec<u32>>,
    queues: u16,
) -> Result<Option<IndirectionTable>, CommandError> {
    let (argument, made) = match (table, size, weights) {
        (None, None, None) => return Ok(None),
        (Some(_), Some(_), _) => {
            let message = "found with table, allowed: one of them";
            return Err(CommandError::argument("table_size", message));
        }
        (Some(_), _, Some(_)) => {
            let message = "found with table, allowed: one of them";
            return Err(CommandError::argument("weights", message));
        }
        (Some(entries), ..) => ("table", IndirectionTable::from_entries(entries, queues)),
        (None, Some(size), None) => ("table_size", IndirectionTable::uniform(size, queues)),
        (None, size, Some(weights)) => {
            let size = size.unwrap_or(IndirectionTable::DEFAULT_ENTRIES);
            ("weights", IndirectionTable::weighted(size, weights, queues))
        }
    };
    made.map(Some).map_err(|error| CommandError::argument(argument, error))
}

impl Command for SetContext {
    const NAME: &'static str = "context";
    const HELP: &'static str = "add, change or remove the table for packets with a mark";
    const EXAMPLE: &'static str = r#"{"mark": 7, "table_size": 64}"#;
    type Order = TableChange;
    type Reply = Moved;

    fn prepare(self, context: &BuildContext) -> Result<TableChange, CommandError> {
        let table = table_of(&self.table, self.table_size, &self.weights, context.queues)?;
        if table.is_some() == self.remove {
            let message = "allowed: remove, a table";
            return Err(CommandError::argument("remove", message));
        }
        let table = table.map(Box::new);
        Ok(TableChange { mark: Some(self.mark), table, ..TableChange::default() })
    }

    fn reply(order: TableChange) -> Result<Moved, CommandError> {
        Set::reply(order)
    }

    fn text(reply: &Moved, place: &str) -> String {
        Set::text(reply, place)
    }
}

/// A change of a running `rss`, and its result.
#[derive(Debug, Default)]
pub struct TableChange {
    /// The mark of the changed context, which is removed if there is no table; `None`: the main
    /// table or the key changes.
    pub mark: Option<u32>,
    /// The indirection table, for as many queues as the card has; after the change, the replaced
    /// one.
    pub table: Option<Box<IndirectionTable>>,
    /// The prepared Toeplitz key; after the change, the replaced one.
    pub key: Option<Box<Toeplitz>>,
    /// Table entries whose flows may have moved to another queue, or the reason of the refusal.
    /// `None` until an `rss` has seen it.
    pub outcome: Option<Result<usize, Refusal>>,
}

/// Room for the state of an `rss`.
#[derive(Clone, Debug)]
pub struct Show {
    /// The hash.
    pub hash: HashName,
    /// The Toeplitz key; none with another hash.
    pub key: Option<Key>,
    /// Initial value of jhash and lookup2.
    pub init: u32,
    /// Number of queues of the table.
    pub queues: u16,
    /// Packets without a hash, entries moved, entries moved by rebalancing.
    counts: [u64; 3],
    contexts: Vec<(u32, Entries)>,
    /// Room for further tables.
    room: Vec<Entries>,
    table: Entries,
}

/// Room for a table's entries.
#[derive(Clone, Debug)]
struct Entries {
    entries: Box<[u16; IndirectionTable::MAX_ENTRIES]>,
    length: usize,
}

impl Default for Entries {
    fn default() -> Self {
        Entries { entries: Box::new([0; IndirectionTable::MAX_ENTRIES]), length: 0 }
    }
}

impl Entries {
    fn set(&mut self, table: &IndirectionTable) {
        self.length = table.len();
        self.entries[..self.length].copy_from_slice(table.entries());
    }

    fn entries(&self) -> &[u16] {
        &self.entries[..self.length]
    }
}

impl Default for Show {
    fn default() -> Self {
        Show {
            hash: HashName::Toeplitz,
            key: None,
            init: 0,
            queues: 0,
            counts: [0; 3],
            contexts: Vec::with_capacity(MAX_CONTEXTS),
            room: vec![Entries::default(); MAX_CONTEXTS],
            table: Entries::default(),
        }
    }
}

impl Show {
    /// The queue of each entry of the indirection table.
    pub fn table(&self) -> &[u16] {
        self.table.entries()
    }
}

/// The reason why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table is for another number of queues.
    Queues {
        /// Queues the table is for.
        found: u16,
        /// Queues the card has.
        allowed: u16,
    },
    /// The hash in use has no key.
    NoKey,
    /// There is no context with this mark.
    NoContext {
        /// The mark.
        mark: u32,
    },
    /// There is no room for another context.
    Contexts,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Queues { found, allowed } => {
                write!(f, "found a table for {found} queues, allowed: a table for {allowed}")
            }
            Refusal::NoContext { mark } => write!(f, "found {mark}, but no context has this mark"),
            Refusal::Contexts => {
                write!(f, "found one more context, allowed: 0 to {MAX_CONTEXTS}")
            }
            Refusal::NoKey => f.write_str("found a key, allowed only with hash = \"toeplitz\""),
        }
    }
}

impl std::error::Error for Refusal {}

impl TableChange {
    /// Of the indirection table.
    pub fn table(table: IndirectionTable) -> Self {
        TableChange { table: Some(Box::new(table)), ..TableChange::default() }
    }

    /// Of the Toeplitz key.
    pub fn key(key: &Key) -> Self {
        TableChange { key: Some(Box::new(Toeplitz::new(key))), ..TableChange::default() }
    }

    fn make(&mut self, rss: &mut Rss) -> Result<usize, Refusal> {
        // Everything is checked before anything changes.
        if let Some(table) = &self.table {
            let (found, allowed) = (table.queues(), rss.table.queues());
            if found != allowed {
                return Err(Refusal::Queues { found, allowed });
            }
        }
        if self.key.is_some() && !matches!(rss.hash, Hash::Toeplitz(_)) {
            return Err(Refusal::NoKey);
        }
        let mut moved = 0;
        if let Some(mark) = self.mark {
            return self.change_context(mark, rss);
        }
        if let Some(table) = &mut self.table {
            std::mem::swap(&mut rss.table, table);
            if let Some(balance) = &mut rss.balance {
                balance.restart(&rss.table);
            }
            rss.counters.tables_replaced.add(1);
            moved += moved_entries(&rss.table, table);
        }
        if let (Some(toeplitz), Hash::Toeplitz(in_use)) = (&mut self.key, &mut rss.hash) {
            std::mem::swap(in_use, toeplitz);
            rss.counters.keys_replaced.add(1);
            let one_queue = rss.table.entries().windows(2).all(|pair| pair[0] == pair[1]);
            let same = one_queue || in_use.key() == toeplitz.key();
            moved += if same { 0 } else { rss.table.len() };
        }
        rss.counters.moved_entries.add(moved as u64);
        Ok(moved)
    }
}

impl TableChange {
    fn change_context(&mut self, mark: u32, rss: &mut Rss) -> Result<usize, Refusal> {
        let before = rss.contexts.of(mark);
        if self.table.is_none() && before.is_none() {
            return Err(Refusal::NoContext { mark });
        }
        // Without a context, packets with the mark use the main table.
        let after = self.table.as_deref().unwrap_or(&rss.table);
        let moved = moved_entries(before.unwrap_or(&rss.table), after);
        rss.contexts.exchange(mark, &mut self.table).map_err(|_| Refusal::Contexts)?;
        rss.counters.tables_replaced.add(1);
        rss.counters.moved_entries.add(moved as u64);
        Ok(moved)
    }
}

impl Order for TableChange {
    type Target = Rss;

    fn apply(&mut self, rss: &mut Rss, _now: Time) -> bool {
        let outcome = self.make(rss);
        self.outcome = Some(outcome);
        outcome.is_ok()
    }
}

impl Order for Show {
    type Target = Rss;

    /// Writes the current state into existing memory.
    fn apply(&mut self, rss: &mut Rss, _now: Time) -> bool {
        (self.hash, self.key, self.init) = match &rss.hash {
            Hash::Toeplitz(toeplitz) => (HashName::Toeplitz, Some(*toeplitz.key()), 0),
            Hash::Lookup3(init) => (HashName::Jhash, None, *init),
            Hash::Lookup2(init) => (HashName::Lookup2, None, *init),
        };
        self.queues = rss.table.queues();
        self.table.set(&rss.table);
        for (mark, table) in rss.contexts.iter() {
            if let Some(mut entries) = self.room.pop() {
                entries.set(table);
                self.contexts.push((mark, entries));
            }
        }
        let counters = &rss.counters;
        self.counts = [&counters.unhashed, &counters.moved_entries, &counters.rebalanced_entries]
            .map(Counter::get);
        true
    }
}

/// Counters of an `rss` besides the ledger; on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets without a hash: not IP, or their type is off.
    pub unhashed: Counter,
    /// Indirection tables replaced.
    pub tables_replaced: Counter,
    /// Keys replaced.
    pub keys_replaced: Counter,
    /// Table entries whose queue (or, with a key, whose flows) changed: only for these flows may
    /// packets from before and after the change overtake each other.
    pub moved_entries: Counter,
    /// Table entries moved by rebalancing.
    pub rebalanced_entries: Counter,
}

/// Entries, of the longer of two tables, for which the other sends some hashes elsewhere.
fn moved_entries(a: &IndirectionTable, b: &IndirectionTable) -> usize {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    // A hash with remainder r for one length can have any remainder for the other that is equal
    // modulo the lengths' greatest common divisor, and no other.
    let step = greatest_common_divisor(short.len(), long.len());
    (0..step)
        .map(|r| {
            let mut targets = short.entries().iter().skip(r).step_by(step);
            let first = targets.next();
            let agree = targets.all(|queue| Some(queue) == first);
            let entries = long.entries().iter().skip(r).step_by(step);
            entries.filter(|&queue| !agree || Some(queue) != first).count()
        })
        .sum()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
