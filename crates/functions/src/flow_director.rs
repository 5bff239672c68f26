//! `flow-director`: sends chosen flows to chosen queues, marks or drops them.
//!
//! ```toml
//! [[rx]]
//! function = "flow-director"
//! rules = [
//!     { protocol = "udp", destination_port = 53, queue = 1 },
//!     { source = "10.1.0.0/16", mark = 7 },
//!     { destination = "10.0.0.9", source = "10.0.0.8", priority = 1, drop = true },
//! ]
//! ```
//!
//! A rule asks for addresses, prefixes, protocol, ports, VLAN and wire; what it does not name
//! it does not look at. Of the rules that match, the one of the highest priority decides, and
//! among equals the one of the lowest number; rules are numbered from 1 in the order in which
//! they were added, and numbers that are free again are given anew. What no rule matches, and
//! what is marked without a queue, goes on in the chain, say to `rss`. Rules come and go while
//! packets flow, by `picnic ctl flow-director add`, `remove` and `replace`.
//!
//! What a packet costs does not depend on the number of rules but on that of their masks, the
//! combinations of fields and prefix lengths in use, of which there may be 64.
//!
//! Guarantees: a rule with ports matches no fragment, so a flow with fragments is told by
//! addresses alone. Order within a flow is kept, save for flows that a change of rules sends
//! elsewhere. Headers are looked for in a packet's first buffer. No bytes are written.
//!
//! Source: Intel 82599 datasheet, section 7.1.2.7 (Flow Director: perfect-match filters);
//! `ethtool(8)`, `--config-nfc` (the fields); tuple-space search as in `flow_director/table.rs`.

pub mod commands;
mod rule;
mod table;

pub use rule::Rule;
pub use table::{MAX_MASKS, MAX_RULES, Refusal};

use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use rule::{Key, WrongRule};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use table::Table;

/// Packets whose bytes are asked for ahead of the one being parsed.
const PREFETCH_AHEAD: usize = 4;

/// Rules that there is room for unless a card file says otherwise.
const CAPACITY: usize = 8192;

/// Sends chosen flows to chosen queues.
pub struct FlowDirector {
    table: Box<Table>,
    counters: Arc<Counters>,
    keys: [Key; BURST],
}

/// What a `flow-director` counts beside the ledger. On lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets that a rule decided on.
    pub matched: Counter,
    /// Packets that no rule matched.
    pub unmatched: Counter,
}

/// The keys of `flow-director`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The rules at the start: each fields to match, and a queue, a mark or drop = true.
    pub rules: Vec<Rule>,
    /// Rules that there is room for, 1 to 65536; 128 to 256 bytes of memory each.
    #[schemars(range(min = 1, max = 65536))]
    pub capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { rules: Vec::new(), capacity: CAPACITY }
    }
}

/// A table of these rules; else the place of the one that is wrong, and what is wrong with it.
fn table_of(
    rules: &[Rule],
    capacity: usize,
    context: &BuildContext,
) -> Result<Table, (usize, WrongRule)> {
    let mut table = Table::new(capacity);
    for (place, rule) in rules.iter().enumerate() {
        let compiled = rule.compile(context).map_err(|wrong| (place, wrong))?;
        table.add(&compiled).map_err(|refusal| {
            // Of the rule as a whole: what it begins with stands for it.
            (place, WrongRule { field: "priority", message: refusal.to_string() })
        })?;
    }
    Ok(table)
}

impl Component for FlowDirector {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "flow-director";
    const HELP: &'static str = "send chosen flows to queues, mark or drop them, by rules";
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;

    fn example(_: &std::path::Path) -> Option<String> {
        Some("rules = [{ protocol = \"udp\", destination_port = 2, queue = 1 }]\n".into())
    }

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(FlowDirector::new(&config, context)?))
    }
}

impl FlowDirector {
    /// A `flow-director` of these settings.
    ///
    /// # Errors
    /// The key that is wrong, what was found and what is allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<FlowDirector, ConfigError> {
        if !(1..=MAX_RULES).contains(&config.capacity) {
            let message = format!("found {}, allowed is 1 to {MAX_RULES}", config.capacity);
            return Err(ConfigError::new("capacity", message));
        }
        let table = table_of(&config.rules, config.capacity, context)
            .map_err(|(place, wrong)| wrong.in_config(&format!("rules[{place}]")))?;
        let keys = [[0; 5]; BURST];
        Ok(FlowDirector { table: Box::new(table), counters: Arc::default(), keys })
    }

    /// What it counts; to be read from any thread.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

impl Function for FlowDirector {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let packets = burst.as_mut_slice();
        let count = packets.len();
        for place in 0..count {
            if let Some(ahead) = packets.get(place + PREFETCH_AHEAD) {
                ahead.prefetch();
            }
            let packet = &mut packets[place];
            let layers = packet.parse();
            self.keys[place % BURST] = rule::key_of(&layers, packet);
        }
        let (mut keys, mut matched) = (self.keys.iter(), 0);
        burst.retain(|mut packet| {
            let Some(rule) = keys.next().and_then(|key| self.table.find(key)) else {
                return Some(packet);
            };
            matched += 1;
            rule.packets += 1;
            let action = rule.action();
            if action.drop {
                out.drop(packet, DropReason::Filtered);
                return None;
            }
            if let Some(mark) = action.mark {
                packet.mark = mark;
            }
            let Some(queue) = action.queue else { return Some(packet) };
            out.steer(packet, queue);
            None
        });
        self.counters.matched.add(matched);
        self.counters.unmatched.add(count as u64 - matched);
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
