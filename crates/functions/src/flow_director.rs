//! `flow-director`: steers, marks or drops flows by rules.
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
//! A rule has conditions on addresses, prefixes, protocol, ports, VLAN and wire; missing conditions
//! match everything. Of the matching rules, the one with the highest priority decides, and among
//! equals the one with the lowest number. Rules are numbered from 1 in the order of adding; freed
//! numbers are reused. Packets without a matching rule, and packets marked without a queue,
//! continue in the chain, for example to `rss`. Change rules while packets flow with `picnic ctl
//! flow-director add`, `remove` and `replace`.
//!
//! The cost per packet depends not on the number of rules but on the number of masks, the
//! combinations of fields and prefix lengths in use, at most 64.
//!
//! With `learn = true` in both chains, TCP flows are learnt from hosts' packets: a packet without a
//! matching rule goes to the queue that sent the last packet of its flow, so that packets arrive
//! where their application runs. Up to 16384 flows are known, each until it has sent nothing for
//! `learn_secs`.
//!
//! Guarantees: a rule with ports matches no fragment, so use addresses alone for a flow with
//! fragments. Order within a flow is kept, except for flows that move because a rule or their
//! sending queue changes; the latter are counted. No bytes are written.
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
use picnic_core::kernel::{Form, InKernel, KernelCounts};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_forms::{FlowRule, KernelForm};
use rule::{Key, WrongRule};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use table::{DROP, NONE, ONWARD, Table};

/// Default capacity in rules.
const CAPACITY: usize = 8192;

/// Steers flows by rules.
pub struct FlowDirector {
    table: Box<Table>,
    counters: Arc<Counters>,
    /// Of a burst: keys, and places of the deciding rules.
    keys: [Key; BURST],
    found: [u32; BURST],
    learning: Option<Box<Learning>>,
}

/// Learning from sent packets.
struct Learning {
    learnt: Arc<Learnt>,
    age_ns: u64,
    seed: u32,
}

/// Counters of a `flow-director` besides the ledger; on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Packets that matched a rule.
    pub matched: Counter,
    /// Packets without a matching rule.
    pub unmatched: Counter,
    /// Packets steered to the queue that sends their flow.
    pub followed: Counter,
    /// Flows learnt; their earlier packets may be overtaken.
    pub learnt: Counter,
    /// Flows now sent by another queue; their earlier packets may be overtaken.
    pub moved: Counter,
    /// Flows forgotten early, for lack of a place.
    pub replaced: Counter,
}

/// The keys of `flow-director`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The initial rules: each has fields to match, and a queue, a mark or drop = true.
    pub rules: Vec<Rule>,
    /// Capacity in rules; 72 to 80 bytes of memory each.
    #[schemars(range(min = 1, max = MAX_RULES))]
    pub capacity: usize,
    /// Whether TCP flows go to the queue whose host sends them, unless a rule decides: learnt in
    /// the tx chain, used in the rx chain. Set it in both.
    pub learn: bool,
    /// Seconds without a sent packet after which a flow is forgotten.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-advanced" = true))]
    pub learn_secs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { rules: Vec::new(), capacity: CAPACITY, learn: false, learn_secs: 60 }
    }
}

/// A table of these rules; otherwise the place of the wrong rule, and its error.
fn table_of(
    rules: &[Rule],
    capacity: usize,
    context: &BuildContext,
) -> Result<Table, (usize, WrongRule)> {
    let mut table = Table::new(capacity);
    for (place, rule) in rules.iter().enumerate() {
        let compiled = rule.compile(context).map_err(|wrong| (place, wrong))?;
        table.add(&compiled).map_err(|refusal| {
            // An error in the whole rule names its first key.
            (place, WrongRule { field: "priority", message: refusal.to_string() })
        })?;
    }
    Ok(table)
}

impl Component for FlowDirector {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "flow-director";
    const HELP: &'static str = "steer, mark or drop flows by rules";
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["rules", "capacity"],
        beside: &[],
        commands: &["get", "add", "remove", "list", "replace"],
        form: |config, context| Ok(FlowDirector::new(config, context)?.by_rules().into()),
    });

    fn example(_: &std::path::Path) -> Option<String> {
        Some("rules = [{ protocol = \"udp\", destination_port = 2, queue = 1 }]\n".into())
    }

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(FlowDirector::new(&config, context)?))
    }
}

impl FlowDirector {
    /// A `flow-director` with these settings.
    ///
    /// # Errors
    /// The wrong key, the value found and the values allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<FlowDirector, ConfigError> {
        let table = table_of(&config.rules, config.capacity, context)
            .map_err(|(place, wrong)| wrong.in_config(&format!("rules[{place}]")))?;
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

    /// Its counters, readable from any thread.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn by_rules(&self) -> KernelForm {
        let rules = self.table.rules(1).map(|(number, rule, _)| {
            let (key, mask) = rule.words();
            FlowRule { number, key, mask, priority: rule.priority, queue: rule.action.queue }
        });
        // As many as a command can request.
        KernelForm::ByRules { rules: rules.collect(), room: self.table.capacity().max(CAPACITY) }
    }
}

impl Learning {
    /// The flow of a parsed packet.
    fn flow_of(&self, packet: &Descriptor, way: Way) -> Option<u64> {
        let flow = flow_of(&packet.layers(), packet.data(), way, self.seed);
        (flow != 0).then_some(flow)
    }

    /// Learns the flow of a sent packet.
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

    /// The queue that sends the flow of a received packet.
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

    fn kernel_form(&self) -> Option<Form> {
        Some(self.by_rules().into())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        // Continuing packets matched no rule, since none only marks.
        let matched = counts.steered + counts.dropped;
        self.counters.matched.set(matched);
        // The counters are not of one moment: matches may be ahead.
        let unmatched = counts.packets.saturating_sub(matched);
        self.counters.unmatched.set(unmatched.max(self.counters.unmatched.get()));
        counts.rules.iter().for_each(|&(number, packets)| self.table.count(number, packets));
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
