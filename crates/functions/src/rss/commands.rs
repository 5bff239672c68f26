//! The commands of `rss`: what it works with, another indirection table, another key.
//!
//! ```sh
//! picnic ctl rss
//! picnic ctl rss table 0,0,1,2
//! picnic ctl rss set --key symmetric --table-size 64
//! ```
//!
//! Guarantees: a change is made between bursts, whole or not at all; nothing is
//! allocated or freed on the borrowed core, as old and new change places.

use super::{Hash, HashName, Rss};
use picnic_core::command::{Command, CommandEntry, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_hash::{IndirectionTable, Key, Toeplitz};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) const COMMANDS: &[CommandEntry] =
    &[CommandEntry::of::<Get>(), CommandEntry::of::<Set>()];

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
    /// Whether the key hashes both directions of a flow alike.
    pub symmetric: bool,
    /// What jhash and lookup2 start from; null with Toeplitz.
    pub jhash_init: Option<u32>,
    /// Queues of the card.
    pub queues: u16,
    /// The queue of each entry of the indirection table.
    pub table: Vec<u16>,
}

impl Command for Get {
    const NAME: &'static str = "get";
    const HELP: &'static str = "hash, key and indirection table in force";
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
        let table: Vec<_> = reply.table.iter().map(u16::to_string).collect();
        let width = table.iter().map(String::len).max().unwrap_or(1);
        for (row, entries) in table.chunks(16).enumerate() {
            text += &format!("{:>5}:", row * 16);
            entries.iter().for_each(|entry| text += &format!(" {entry:>width$}"));
            text.push('\n');
        }
        text
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
    /// Entries of the table, spread over all queues in turn, in place of `table`.
    #[schemars(extend("aliases" = ["uniform"]))]
    pub table_size: Option<usize>,
}

/// The result of `rss.set`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Moved {
    /// Entries of the table whose flows may go to another queue now. Of these flows, and only
    /// these, packets from before and after may overtake each other.
    pub moved_entries: usize,
}

impl Command for Set {
    const NAME: &'static str = "set";
    const HELP: &'static str = "change key and indirection table, together";
    const EXAMPLE: &'static str = r#"{"key": "symmetric", "table_size": 64}"#;
    type Order = Change;
    type Reply = Moved;

    fn prepare(self, context: &BuildContext) -> Result<Change, CommandError> {
        let queues = context.queues;
        let key = match self.key.as_deref() {
            None => None,
            Some("symmetric") => Some(Key::symmetric()),
            Some(text) => {
                Some(text.parse::<Key>().map_err(|error| CommandError::argument("key", error))?)
            }
        };
        let table = match (&self.table, self.table_size) {
            (None, None) if key.is_none() => {
                let message = "found none, allowed: key, table, table_size";
                return Err(CommandError::argument("params", message));
            }
            (None, None) => None,
            (Some(_), Some(_)) => {
                let message = "found with table, allowed is one of them";
                return Err(CommandError::argument("table_size", message));
            }
            (Some(entries), None) => {
                let table = IndirectionTable::from_entries(entries, queues);
                Some(table.map_err(|error| CommandError::argument("table", error))?)
            }
            (None, Some(size)) => {
                let table = IndirectionTable::uniform(size, queues);
                Some(table.map_err(|error| CommandError::argument("table_size", error))?)
            }
        };
        Ok(Change {
            table: table.map(Box::new),
            key: key.map(|key| Box::new(Toeplitz::new(&key))),
            outcome: None,
        })
    }

    fn reply(order: Change) -> Result<Moved, CommandError> {
        match order.outcome {
            Some(Ok(moved_entries)) => Ok(Moved { moved_entries }),
            Some(Err(refusal @ Refusal::NoKey)) => Err(CommandError::argument("key", refusal)),
            Some(Err(refusal @ Refusal::Queues { .. })) => {
                Err(CommandError::argument("table", refusal))
            }
            None => Err(CommandError::Refused("the function there is no rss".into())),
        }
    }

    fn text(reply: &Moved, _: &str) -> String {
        format!("{} entries of the table moved\n", reply.moved_entries)
    }
}

/// A change of a running `rss`, and what came of it.
#[derive(Debug, Default)]
pub struct Change {
    /// The indirection table, for as many queues as the card has; once the change is made, the
    /// one that it replaced.
    pub table: Option<Box<IndirectionTable>>,
    /// The Toeplitz key, ready for hashing; once the change is made, the one that it replaced.
    pub key: Option<Box<Toeplitz>>,
    /// Table entries whose flows may have moved to another queue, or why nothing was done.
    /// `None` until an `rss` has seen it.
    pub outcome: Option<Result<usize, Refusal>>,
}

/// Room for what an `rss` works with.
#[derive(Clone, Debug)]
pub struct Show {
    /// The hash.
    pub hash: HashName,
    /// The Toeplitz key; none with another hash.
    pub key: Option<Key>,
    /// What jhash and lookup2 start from.
    pub init: u32,
    /// Queues that the table is for.
    pub queues: u16,
    entries: Box<[u16; IndirectionTable::MAX_ENTRIES]>,
    length: usize,
}

impl Default for Show {
    fn default() -> Self {
        Show {
            hash: HashName::Toeplitz,
            key: None,
            init: 0,
            queues: 0,
            entries: Box::new([0; IndirectionTable::MAX_ENTRIES]),
            length: 0,
        }
    }
}

impl Show {
    /// The queue of each entry of the indirection table.
    pub fn table(&self) -> &[u16] {
        &self.entries[..self.length]
    }
}

/// Why a change was not made.
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
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Queues { found, allowed } => {
                write!(f, "found a table for {found} queues, allowed is one for {allowed}")
            }
            Refusal::NoKey => f.write_str("found a key, allowed with hash = \"toeplitz\" only"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Change {
    /// Of the indirection table.
    pub fn table(table: IndirectionTable) -> Self {
        Change { table: Some(Box::new(table)), ..Change::default() }
    }

    /// Of the Toeplitz key.
    pub fn key(key: &Key) -> Self {
        Change { key: Some(Box::new(Toeplitz::new(key))), ..Change::default() }
    }

    fn make(&mut self, rss: &mut Rss) -> Result<usize, Refusal> {
        // All is checked before anything is changed.
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
        if let Some(table) = &mut self.table {
            std::mem::swap(&mut rss.table, table);
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

impl Order for Change {
    type Target = Rss;

    fn apply(&mut self, rss: &mut Rss, _now: Time) -> bool {
        let outcome = self.make(rss);
        self.outcome = Some(outcome);
        outcome.is_ok()
    }
}

impl Order for Show {
    type Target = Rss;

    /// Writes down what is in force, into memory that is there.
    fn apply(&mut self, rss: &mut Rss, _now: Time) -> bool {
        (self.hash, self.key, self.init) = match &rss.hash {
            Hash::Toeplitz(toeplitz) => (HashName::Toeplitz, Some(*toeplitz.key()), 0),
            Hash::Lookup3(init) => (HashName::Jhash, None, *init),
            Hash::Lookup2(init) => (HashName::Lookup2, None, *init),
        };
        let entries = rss.table.entries();
        self.queues = rss.table.queues();
        self.length = entries.len();
        self.entries[..entries.len()].copy_from_slice(entries);
        true
    }
}

/// What an `rss` counts beside the ledger. On lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets without a hash: not IP, or of a type that is off.
    pub unhashed: Counter,
    /// Indirection tables replaced.
    pub tables_replaced: Counter,
    /// Keys replaced.
    pub keys_replaced: Counter,
    /// Table entries whose queue (or, with a key, whose flows) changed: for these flows,
    /// and only these, packets from before and after the change may overtake each other.
    pub moved_entries: Counter,
}

/// Entries, of the longer of two tables, some of whose hashes the other sends elsewhere.
fn moved_entries(a: &IndirectionTable, b: &IndirectionTable) -> usize {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    // A hash of remainder r by one length can have any remainder by the other that is the
    // same modulo the lengths' greatest common divisor, and no other.
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
