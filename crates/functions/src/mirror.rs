//! `mirror`: sends copies of selected packets to a queue or a wire.
//!
//! ```toml
//! [[rx]]
//! function = "mirror"
//! queue = 3                # or wire = 1
//! mark = 7                 # only packets with this mark, for example from a flow-director rule
//! every = 10               # one in ten of these
//! truncate = 128           # the first 128 bytes of each
//! ```
//!
//! Packets are copied in their state at this place in the chain; with `every` at 1, all selected
//! ones. The packets themselves continue in order. A copy counts as a packet made, and as in; it
//! has the metadata of its packet, but a truncated copy requests no checksum and no segmentation.
//! Copies missing for lack of a buffer are counted.
//!
//! Guarantees: continuing packets are neither changed nor delayed; copies keep the order of their
//! packets. Source: SPAN and port mirroring in switches; RFC 5475 for the selection.

use crate::choice::Choice;
use crate::settings::check_queue;
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::layers::Layers;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Copies selected packets.
#[derive(Debug)]
pub struct Mirror {
    to: To,
    mark: Option<u32>,
    from: Option<u8>,
    choice: Choice,
    truncate: Option<u16>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
enum To {
    Queue(u16),
    Wire(u8),
}

/// The keys of `mirror`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The queue for copies; this or `wire` is mandatory.
    pub queue: Option<u16>,
    /// The wire for copies.
    pub wire: Option<u8>,
    /// Only packets with this mark; default: all.
    pub mark: Option<u32>,
    /// Only packets of this wire; default: all.
    pub from_wire: Option<u8>,
    /// Copy one in this many of these.
    #[schemars(range(min = 1))]
    pub every: u32,
    /// Whether to select at random, from the run's seed, instead of every Nth.
    pub random: bool,
    /// Bytes of a packet to copy; default: all.
    #[schemars(range(min = 14))]
    pub truncate: Option<u16>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            queue: None,
            wire: None,
            mark: None,
            from_wire: None,
            every: 1,
            random: false,
            truncate: None,
        }
    }
}

/// Counters of a `mirror`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Copies taken.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Copies not taken for lack of a buffer.
    pub lost_copies: u64,
}

impl Inspect for Mirror {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

fn check_wire(key: &str, found: u8, wires: u8) -> Result<(), ConfigError> {
    if found < wires {
        return Ok(());
    }
    let last = wires.saturating_sub(1);
    Err(ConfigError::new(key, format!("found wire {found}, allowed: 0 to {last}")))
}

impl Component for Mirror {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "mirror";
    const HELP: &'static str = "copy selected packets to a queue or a wire";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Mirror>>()];

    fn example(_: &std::path::Path) -> Option<String> {
        // For packets that another function has marked: packets of a test have no mark.
        Some("queue = 0\nmark = 7\n".into())
    }

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let Config { queue, wire, mark, from_wire, every, random, truncate } = config;
        let to = match (queue, wire) {
            (Some(queue), None) => {
                check_queue("queue", queue, context.queues)?;
                To::Queue(queue)
            }
            (None, Some(wire)) => {
                check_wire("wire", wire, context.wires)?;
                To::Wire(wire)
            }
            (None, None) => {
                return Err(ConfigError::new("queue", "missing, expected a queue or a wire"));
            }
            (Some(_), Some(_)) => {
                let message = "found together with a queue, allowed: one of the two";
                return Err(ConfigError::new("wire", message));
            }
        };
        if let Some(from) = from_wire {
            check_wire("from_wire", from, context.wires)?;
        }
        let choice = Choice::new(every, random, context);
        let counts = Counts::default();
        Ok(Box::new(Mirror { to, mark, from: from_wire, choice, truncate, counts }))
    }
}

impl Mirror {
    fn is_chosen(&mut self, packet: &Descriptor) -> bool {
        self.mark.is_none_or(|mark| packet.mark == mark)
            && self.from.is_none_or(|wire| packet.wire == wire)
            && self.choice.take()
    }

    /// The copy of a packet, truncated if configured.
    fn copy(&self, packet: &Descriptor, out: &mut Out<'_>) -> Option<Descriptor> {
        let length = packet.length();
        let Some(cut) = self.truncate.filter(|&cut| u32::from(cut) < length) else {
            return out.copy(packet);
        };
        let mut left = usize::from(cut);
        let pieces = packet.segments().map_while(|piece| {
            let taken = piece.get(..left.min(piece.len()))?;
            left -= taken.len();
            (!taken.is_empty() || left != 0).then_some(taken)
        });
        let mut copy = out.gather(cut.into(), pieces)?;
        copy.copy_metadata(packet);
        copy.set_layers(&Layers::default());
        copy.set_checksum(ChecksumState::Unknown);
        copy.set_gso(GsoType::None, 0);
        Some(copy)
    }
}

impl Function for Mirror {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.as_slice() {
            if !self.is_chosen(packet) {
                continue;
            }
            let Some(mut copy) = self.copy(packet, out) else {
                self.counts.lost_copies += 1;
                continue;
            };
            self.counts.copies += 1;
            self.counts.copied_bytes += u64::from(copy.length());
            // The copy belongs to the card, for any origin of the packet.
            copy.clear_tx_queue();
            match self.to {
                To::Queue(queue) => out.steer(copy, queue),
                To::Wire(wire) => out.transmit(copy, wire),
            }
        }
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
