//! The sections of a card file that belong to the card itself: keys, defaults.
//!
//! Every key has a default, so an empty file is a card. The doc comment of a key
//! is its help.

use super::section::Section;
use crate::ring::moderation::ModerationMode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;

/// `[card]`: the card as a whole.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CardSection {
    /// Name of the card.
    pub name: String,
    /// What runs the chain: "poll" (the borrowed core, in user space).
    pub engine: Engine,
    /// The core the card runs on: "auto" (the highest-numbered), or a number.
    pub borrowed_core: CoreChoice,
    /// What the borrowed core does without work: "spin", "adaptive" or "block".
    pub idle: Idle,
    /// Packets taken from one wire at a time, 1 to 64.
    pub burst: usize,
    /// Queue of packets that no function steers.
    pub default_queue: u16,
    /// Packets of each tx ring, and of functions for each wire, that may wait for wires, 64 to
    /// 65536.
    pub wire_backlog: usize,
    /// Seed of everything that draws random numbers.
    pub seed: u64,
}

impl Default for CardSection {
    fn default() -> Self {
        CardSection {
            name: "picnic0".into(),
            engine: Engine::Poll,
            borrowed_core: CoreChoice::Auto,
            idle: Idle::Adaptive,
            burst: 64,
            default_queue: 0,
            wire_backlog: 1024,
            seed: 1,
        }
    }
}

/// What runs the chain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The borrowed core, in user space.
    #[default]
    Poll,
}

/// What a core does without work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Looks again at once, for the shortest latency.
    Spin,
    /// Spins, then pauses, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Block,
}

/// `[[wire]]`: what is common to all ports.
#[derive(Debug)]
pub struct WireSection {
    /// Name of the wire, for output.
    pub name: String,
    /// The port and its own keys.
    pub port: Section,
    /// `[wire.fault]`: the fault injector between wire and card, if there is one.
    pub fault: Option<Section>,
}

/// `[host]`: the target side.
#[derive(Debug)]
pub struct HostSection {
    /// Target queues, 1 to 256.
    pub queues: u16,
    /// The core of each queue.
    pub target_cores: TargetCores,
    /// Descriptors in each target ring, a power of two, 64 to 65536.
    pub ring_size: usize,
    /// Descriptors in each tx ring, a power of two, 64 to 65536.
    pub tx_ring_size: usize,
    /// Bytes of each tx ring that may wait for wires, 1514 to 1073741824.
    pub tx_bytes_in_flight: u32,
    /// How the target cores' threads are scheduled.
    pub priority: Priority,
    /// The attachment and its own keys.
    pub attachment: Section,
}

/// How the target cores' threads are scheduled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// As the attachment wants it.
    #[default]
    Auto,
    /// As any other thread.
    Normal,
    /// Ahead of all ordinary threads, as an interrupt, for 2 ms at a stretch.
    RealTime,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HostKeys {
    /// Target queues, 1 to 256.
    pub(super) queues: u16,
    /// The core of each queue: "auto", or one number per queue.
    pub(super) target_cores: TargetCores,
    /// Descriptors in each target ring, a power of two, 64 to 65536.
    pub(super) ring_size: usize,
    /// Descriptors in each tx ring, a power of two, 64 to 65536.
    pub(super) tx_ring_size: usize,
    /// Bytes of each tx ring that may be on their way to the wires, 1514 to 1073741824; what is
    /// beyond waits with the host, as with the kernel's byte queue limits.
    pub(super) tx_bytes_in_flight: u32,
    /// Of the target cores' threads: "real-time" (preempts as an interrupt does, for 2 ms at a
    /// stretch), "normal", or "auto": "real-time" for tap, "normal" for app.
    pub(super) priority: Priority,
}

impl Default for HostKeys {
    fn default() -> Self {
        HostKeys {
            queues: 4,
            target_cores: TargetCores::Auto,
            ring_size: 1024,
            tx_ring_size: 1024,
            tx_bytes_in_flight: 262_144,
            priority: Priority::Auto,
        }
    }
}

/// `[interrupt]`: gate and moderation of all queues.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InterruptSection {
    /// Microseconds a packet may wait for others before its queue is interrupted, up to 1000000.
    pub rx_usecs: u32,
    /// Packets that may wait; 0 for no limit by count.
    pub rx_frames: u32,
    /// Let the delay follow the packet rate, up to rx_usecs.
    pub adaptive: bool,
    /// Microseconds a target polls on without packets before it waits for an interrupt.
    pub poll_usecs: u32,
    /// Microseconds packets of the host may wait for others while it keeps sending, up to
    /// 1000000: the first wakes its target core, the next ones are looked for after this time. 0:
    /// each wakes it. For hosts that send by themselves (tap).
    pub tx_usecs: u32,
}

impl Default for InterruptSection {
    fn default() -> Self {
        InterruptSection {
            rx_usecs: 20,
            rx_frames: 64,
            adaptive: false,
            poll_usecs: 0,
            tx_usecs: 50,
        }
    }
}

impl InterruptSection {
    /// The moderation that the keys ask for.
    pub fn moderation(&self) -> ModerationMode {
        match self {
            InterruptSection { adaptive: true, rx_usecs, .. } => {
                ModerationMode::Adaptive { max_usecs: *rx_usecs }
            }
            InterruptSection { rx_usecs: 0, .. } => ModerationMode::None,
            InterruptSection { rx_usecs, rx_frames, .. } => {
                ModerationMode::Static { usecs: *rx_usecs, frames: *rx_frames }
            }
        }
    }
}

/// `[isolation]`: what is kept away from the borrowed core.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationSection {
    /// While the card runs, keep interrupts and other processes off the borrowed core; needs root.
    pub apply: bool,
    /// What target cores do not share with the borrowed core: "none", "smt", "l2" or "llc".
    pub level: IsolationLevel,
    /// How processes are kept off: "auto", "cpuset" (a partition) or "affinity" (one by one).
    pub method: IsolationMethod,
}

/// What target cores do not share with the borrowed core; each level holds those before it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum IsolationLevel {
    /// They may share all.
    None,
    /// No core: SMT siblings are left out.
    Smt,
    /// No L2 cache.
    #[default]
    L2,
    /// No last-level cache, as in the paper.
    Llc,
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationLevel::None => "none",
            IsolationLevel::Smt => "smt",
            IsolationLevel::L2 => "l2",
            IsolationLevel::Llc => "llc",
        })
    }
}

/// How processes are kept off the borrowed core.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum IsolationMethod {
    /// By a cpuset partition where there can be one, else by affinity.
    #[default]
    Auto,
    /// By a cpuset partition of control groups, version 2.
    Cpuset,
    /// By setting the affinity of every thread.
    Affinity,
}

macro_rules! auto_or {
    ($(#[$meta:meta])* $name:ident($($value:tt)+), $expecting:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            /// The program chooses.
            #[default]
            Auto,
            /// The user has chosen.
            Chosen($($value)+),
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> de::Visitor<'de> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        match text {
                            "auto" => Ok($name::Auto),
                            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                        }
                    }
                    auto_or!(@visit $name, $($value)+);
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": $expecting, "default": "auto" })
            }
            fn inline_schema() -> bool {
                true
            }
        }
    };
    (@visit $name:ident, usize) => {
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
            usize::try_from(number)
                .map($name::Chosen)
                .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
        }
    };
    (@visit $name:ident, Vec<usize>) => {
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut numbers: A) -> Result<$name, A::Error> {
            let mut list = Vec::new();
            while let Some(number) = numbers.next_element()? {
                list.push(number);
            }
            Ok($name::Chosen(list))
        }
    };
}

auto_or! {
    /// A core: chosen by the program, or by number.
    CoreChoice(usize), "\"auto\" or a core number"
}
auto_or! {
    /// The cores of the target queues.
    TargetCores(Vec<usize>), "\"auto\" or a list of core numbers"
}
