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
//! With `learn = true` in both chains, TCP flows are learnt from what hosts send: what no rule
//! matches goes to the queue that has sent the last packet of its flow, so that packets end where
//! their application runs. Up to 16384 flows are known, each until nothing of it was sent for
//! `learn_secs`.
//!
//! Guarantees: a rule with ports matches no fragment, so a flow with fragments is told by
//! addresses alone. Order within a flow is kept, save for flows that a change of rules, or of the
//! queue that sends them, sends elsewhere; the latter are counted. No bytes are written.
//!
//! Source: Intel 82599 datasheet, section 7.1.2.7 (Flow Director: perfect-match filters);
//! `ethtool(8)`, `--config-nfc` (the fields); tuple-space search as in `flow_director/table.rs`.

pub mod commands;
mod learnt;
mod rule;
mod table;

pub use learnt::MAX_FLOWS;
pub use rule::Rule;
pub use table::{MAX_MASKS, MAX_RULES, Refusal};

use crate::bytes::prefetch_ahead;
use learnt::{Learnt, Noted, Way, flow_of};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{FlowRule, InKernel, KernelCounts, KernelForm};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use rule::{Key, WrongRule};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use table::{DROP, NONE, ONWARD, Table};

/// Rules that there is room for unless a card file says otherwise.
const CAPACITY: usize = 8192;

/// Sends chosen flows to chosen queues.
pub struct FlowDirector {
    table: Box<Table>,
    counters: Arc<Counters>,
    /// Of a burst: keys, the places of the rules that decide.
    keys: [Key; BURST],
    found: [u32; BURST],
    learning: Option<Box<Learning>>,
}

/// What is learnt from packets that are sent.
struct Learning {
    learnt: Arc<Learnt>,
    age_ns: u64,
    seed: u32,
}

/// What a `flow-director` counts beside the ledger. On lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets that matched a rule.
    pub matched: Counter,
    /// Packets that no rule matched.
    pub unmatched: Counter,
    /// Those of them that went to the queue that sends their flow.
    pub followed: Counter,
    /// Flows learnt: packets that came before may be overtaken.
    pub learnt: Counter,
    /// Flows that another queue sends than before: the same.
    pub moved: Counter,
    /// Flows forgotten before their time, for want of a place.
    pub replaced: Counter,
}

/// The keys of `flow-director`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The rules at the start: each fields to match, and a queue, a mark or drop = true.
    pub rules: Vec<Rule>,
    /// Rules that there is room for, 1 to 65536; 72 to 80 bytes of memory each.
    #[schemars(range(min = 1, max = 65536))]
    pub capacity: usize,
    /// Whether TCP flows go to the queue whose host sends them, unless a rule says otherwise: in
    /// the tx chain they are learnt, in the rx chain looked for. To be set in both.
    pub learn: bool,
    /// Seconds after which a flow is forgotten if nothing of it was sent, 1 to 1000000.
    pub learn_secs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { rules: Vec::new(), capacity: CAPACITY, learn: false, learn_secs: 60 }
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
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["rules", "capacity"],
        beside: &[],
        commands: &["get", "add", "remove", "list", "replace"],
        form: |config, context| Ok(FlowDirector::new(config, context)?.by_rules()),
    });

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
            let message = format!("found {}, allowed: 1 to {MAX_RULES}", config.capacity);
            return Err(ConfigError::new("capacity", message));
        }
        let table = table_of(&config.rules, config.capacity, context)
            .map_err(|(place, wrong)| wrong.in_config(&format!("rules[{place}]")))?;
        if !(1..=1_000_000).contains(&config.learn_secs) {
            let message = format!("found {}, allowed: 1 to 1000000", config.learn_secs);
            return Err(ConfigError::new("learn_secs", message));
        }
        let learning = config.learn.then(|| {
            Box::new(Learning {
                learnt: context.shared.get_or_make(Learnt::new),
                age_ns: u64::from(config.learn_secs) * 1_000_000_000,
                seed: context.seed as u32,
            })
        });
        Ok(FlowDirector {
            table: Box::new(table),
            counters: Arc::default(),
            keys: [[0; 5]; BURST],
            found: [NONE; BURST],
            learning,
        })
    }

    /// What it counts; to be read from any thread.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn by_rules(&self) -> KernelForm {
        let rules = self.table.rules(1).map(|(number, rule, _)| {
            let (key, mask) = rule.words();
            FlowRule { number, key, mask, priority: rule.priority, queue: rule.action.queue }
        });
        // As many as a command can ask for.
        KernelForm::ByRules { rules: rules.collect(), room: self.table.capacity().max(CAPACITY) }
    }
}

impl Learning {
    /// The flow of a packet that has been parsed.
    fn flow_of(&self, packet: &Descriptor, way: Way) -> Option<u64> {
        let flow = flow_of(&packet.layers(), packet.data(), way, self.seed);
        (flow != 0).then_some(flow)
    }

    /// Learns the flow of a packet that is sent.
    fn note(&self, packet: &Descriptor, now: Time, counters: &Counters) {
        let Some(flow) = self.flow_of(packet, Way::Sent) else { return };
        let Some(queue) = packet.tx_queue() else { return };
        match self.learnt.note(flow, queue, now, self.age_ns) {
            Noted::Known => {}
            Noted::New => counters.learnt.add(1),
            Noted::Moved => counters.moved.add(1),
            Noted::Replaced => {
                counters.learnt.add(1);
                counters.replaced.add(1);
            }
        }
    }

    /// The queue that sends the flow of a packet that was received.
    fn queue_of(&self, packet: &Descriptor, now: Time) -> Option<u16> {
        let flow = self.flow_of(packet, Way::Received)?;
        self.learnt.queue_of(flow, now, self.age_ns).map(u16::from)
    }
}

impl Function for FlowDirector {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let packets = burst.as_mut_slice();
        let count = packets.len();
        for place in 0..count {
            prefetch_ahead(packets, place);
            let packet = &mut packets[place];
            rule::parse(packet, &mut self.keys[place % BURST]);
        }
        self.table.find(&self.keys, count, &mut self.found);
        let (mut matched, mut is_steered) = (0, true);
        let mut queues = [ONWARD; BURST];
        for (place, packet) in burst.as_mut_slice().iter_mut().enumerate() {
            let place = place % BURST;
            let at = self.found[place];
            let Some(rule) = self.table.rule_mut(at) else {
                is_steered = false;
                continue;
            };
            matched += 1;
            rule.packets += 1;
            queues[place] = rule.to;
            is_steered &= queues[place] < DROP;
            if rule.has_mark {
                packet.mark = self.table.mark_of(at);
            }
        }
        if let Some(learning) = &self.learning {
            let packets = burst.as_slice().iter();
            if out.stage() == Stage::Tx {
                packets.for_each(|packet| learning.note(packet, now, &self.counters));
            } else {
                let places = self.found.iter().zip(&mut queues);
                for (packet, (_, queue)) in packets.zip(places).filter(|(_, at)| *at.0 == NONE) {
                    if let Some(sends) = learning.queue_of(packet, now) {
                        self.counters.followed.add(1);
                        *queue = sends;
                    }
                }
                is_steered = queues.iter().take(count).all(|&queue| queue < DROP);
            }
        }
        if is_steered {
            out.steer_burst(burst, &queues);
        } else {
            let mut queues = queues.into_iter();
            burst.retain(|packet| match queues.next() {
                Some(ONWARD) | None => Some(packet),
                Some(DROP) => {
                    out.drop(packet, DropReason::Filtered);
                    None
                }
                Some(queue) => {
                    out.steer(packet, queue);
                    None
                }
            });
        }
        self.counters.matched.add(matched);
        self.counters.unmatched.add(count as u64 - matched);
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        Some(self.by_rules())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        // What it lets go on no rule has matched, as none only marks.
        let matched = counts.steered + counts.dropped;
        self.counters.matched.set(matched);
        // The counts are not of one moment: those that matched may be ahead.
        let unmatched = counts.packets.saturating_sub(matched);
        self.counters.unmatched.set(unmatched.max(self.counters.unmatched.get()));
        counts.rules.iter().for_each(|&(number, packets)| self.table.count(number, packets));
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
