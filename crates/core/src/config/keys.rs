//! The sections of a card file that belong to the card itself: keys, defaults.
//!
//! Every key has a default, so an empty file is a card. The doc comment of a key
//! is its help.

use super::section::{Names, SectionConfig, Shape, from_json};
use super::sections::SectionEntry;
use crate::classes::ClassSection;
use crate::device::DeviceSection;
use crate::error::{ConfigError, PoolError, allowed};
use crate::json::InvalidValue;
use crate::packet::pool::PoolConfig;
use crate::ring::moderation::ModerationMode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value as Json};
use std::fmt;

/// The sections that the engine reads.
pub(super) const SECTIONS: &[SectionEntry] = &[
    SectionEntry::of::<CardSection>(),
    SectionEntry::of::<PoolConfig>(),
    SectionEntry::of::<WireSection>(),
    SectionEntry::of::<RxSection>(),
    SectionEntry::of::<TxSection>(),
    SectionEntry::of::<ClassSection>(),
    SectionEntry::of::<HostSection>(),
    SectionEntry::of::<InterruptSection>(),
    SectionEntry::of::<DeviceSection>(),
];

/// `[card]`: the card as a whole.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CardSection {
    /// Name of the card.
    pub name: String,
    /// What runs the chain: "poll" (the borrowed core, in user space), "kernel" (XDP), or "hybrid":
    /// the kernel, except for packets that a filter with action = "poll" selects.
    pub engine: String,
    /// Core of the card: "auto" (the highest-numbered) or a number.
    pub borrowed_core: CoreChoice,
    /// What the borrowed core does when idle: "spin", "adaptive" or "block".
    pub idle: Idle,
    /// Packets taken from one wire at a time.
    #[schemars(range(min = 1, max = 64))]
    pub burst: usize,
    /// Queue for packets that no function steers.
    pub default_queue: u16,
    /// Packets that may wait for wires: per tx ring, and per wire for packets of functions.
    #[schemars(range(min = 64, max = 65536), extend("x-advanced" = true))]
    pub wire_backlog: usize,
    /// Required receive time of packets: "any", or "arrival", which refuses wires that only know
    /// when the card took a packet and so hide earlier waiting times.
    #[schemars(extend("x-advanced" = true))]
    pub stamp: StampDemand,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for CardSection {
    fn default() -> Self {
        CardSection {
            name: "picnic0".into(),
            engine: "poll".into(),
            borrowed_core: CoreChoice::Auto,
            idle: Idle::Adaptive,
            burst: 64,
            default_queue: 0,
            wire_backlog: 1024,
            stamp: StampDemand::Any,
            seed: 1,
        }
    }
}

impl SectionConfig for CardSection {
    const NAME: &'static str = "card";
    const HELP: &'static str = "The card as a whole.";
}

impl SectionConfig for PoolConfig {
    const NAME: &'static str = "pool";
    const HELP: &'static str = "The buffers that hold packets.";

    fn check(&self) -> Result<(), ConfigError> {
        self.validate().map_err(|error| match error {
            PoolError::OutOfRange { key, found, low, high, step } => {
                let allowed = allowed(low, high, step);
                ConfigError::new(key, format!("found {found}, allowed: {allowed}"))
            }
            error @ PoolError::TooLarge { .. } => ConfigError::new("buffers", error.to_string()),
            error => ConfigError::new("", error.to_string()),
        })
    }
}

/// Behaviour of a core without work.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Polls again at once, for the shortest latency.
    Spin,
    /// Spins, then pauses, then blocks.
    #[default]
    Adaptive,
    /// Blocks at once.
    Block,
}

/// The required receive time of packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum StampDemand {
    /// The time of arrival or of taking, whichever each wire knows.
    #[default]
    Any,
    /// The time of arrival.
    Arrival,
}

/// `[[wire]]`: the keys common to all ports.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WireSection {
    /// Name of the wire in output; by default wire0, wire1 and so on.
    pub name: Option<String>,
    /// The link that the wire is held to.
    pub link: Option<Inner>,
    /// The fault injector between wire and card.
    pub fault: Option<Inner>,
}

/// A section inside another, read by its owner.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Inner {}

impl JsonSchema for Inner {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "section".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "section" })
    }
    fn inline_schema() -> bool {
        true
    }
}

impl SectionConfig for WireSection {
    const NAME: &'static str = "wire";
    const HELP: &'static str = "The wires that packets come from: one or more [[wire]] sections, aggregated. See `picnic ports`.";
    // They are numbered by a byte.
    const SHAPE: Shape = Shape::List { least: 1, most: 255, built_in: true };
    const NAMES: Option<Names> =
        Some(Names { key: "port", default: Some("generator"), example: "generator" });
}

const FUNCTIONS: Option<Names> = Some(Names { key: "function", default: None, example: "rss" });

/// `[[rx]]`: a function of the rx chain; all keys are the function's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RxSection {}

impl SectionConfig for RxSection {
    const NAME: &'static str = "rx";
    const HELP: &'static str = "The rx chain: what the borrowed core does with received packets, \
                                in order. See `picnic functions`.";
    const SHAPE: Shape = Shape::List { least: 0, most: 64, built_in: true };
    const NAMES: Option<Names> = FUNCTIONS;
}

/// `[[tx]]`: a function of the tx chain; all keys are the function's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TxSection {}

impl SectionConfig for TxSection {
    const NAME: &'static str = "tx";
    const HELP: &'static str = "The tx chain: the same for packets that the host sends.";
    const SHAPE: Shape = Shape::List { least: 0, most: 64, built_in: false };
    const NAMES: Option<Names> = FUNCTIONS;
}

/// How the target cores' threads are scheduled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// As the attachment wants.
    #[default]
    Auto,
    /// As any other thread.
    Normal,
    /// Ahead of all ordinary threads, as an interrupt, for at most 2 ms at a time.
    RealTime,
}

/// What assigns flows to target cores: KNET's three systems.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// The card: its functions steer packets to queues, each with its own core and gate.
    #[default]
    Knet,
    /// The first target core, by interrupts: it identifies flows in software and hands packets to
    /// the cores of their flows, which do the rest.
    Clas,
    /// The first target core, by polling: it does the driver's and the stack's work for all and
    /// hands packets to the applications on all cores.
    Napi,
}

/// `[host]`: the target side, without the keys of its attachment.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSection {
    /// Target queues.
    #[schemars(range(min = 1, max = 256))]
    pub queues: u16,
    /// The core of each queue: "auto", or one number per queue.
    pub target_cores: TargetCores,
    /// What assigns flows to target cores (KNET's three systems): "knet", the card's functions;
    /// "clas", the first target core in software, which hands packets to the cores of their flows
    /// through locked queues and wakes them; "napi", the same after the stack's work (`stack_ns` of
    /// app). With clas and napi the card's functions have a single queue.
    #[schemars(extend("x-advanced" = true))]
    pub system: System,
    /// Descriptors in each target ring.
    #[schemars(range(min = 64, max = 65536), extend("powerOfTwo" = true))]
    pub ring_size: usize,
    /// Descriptors in each tx ring.
    #[schemars(range(min = 64, max = 65536), extend("x-advanced" = true, "powerOfTwo" = true))]
    pub tx_ring_size: usize,
    /// Bytes of each tx ring that may be in flight to the wires; the rest waits with the host, as
    /// with the kernel's byte queue limits.
    #[schemars(range(min = 1514, max = 1073741824), extend("x-advanced" = true))]
    pub tx_bytes_in_flight: u32,
    /// Scheduling of the target cores' threads: "real-time" (preempts as an interrupt does, for at
    /// most 2 ms at a time), "normal", or "auto": "real-time" for tap, "normal" for app.
    pub priority: Priority,
    /// Milliseconds that a target core's thread with `interrupt.gate = "none"` may preempt its core
    /// without a pause. It then continues as an ordinary thread, with a note. The kernel itself
    /// ends it after 950 ms.
    #[schemars(range(min = 1, max = 900), extend("x-advanced" = true))]
    pub watchdog_ms: u32,
}

impl Default for HostSection {
    fn default() -> Self {
        HostSection {
            queues: 4,
            target_cores: TargetCores::Auto,
            system: System::Knet,
            ring_size: 1024,
            tx_ring_size: 1024,
            tx_bytes_in_flight: 262_144,
            priority: Priority::Auto,
            watchdog_ms: 500,
        }
    }
}

impl HostSection {
    /// Target queues that the card's functions and filters can steer to.
    pub fn card_queues(&self) -> u16 {
        if self.system == System::Knet { self.queues } else { 1 }
    }
}

impl SectionConfig for HostSection {
    const NAME: &'static str = "host";
    const HELP: &'static str = "Where packets go. See `picnic attachments`.";
    const NAMES: Option<Names> =
        Some(Names { key: "attachment", default: Some("app"), example: "app" });

    fn check(&self) -> Result<(), ConfigError> {
        if self.system == System::Clas && self.queues == 1 {
            let message = "found 1 with system = \"clas\", allowed: 2 or more";
            return Err(ConfigError::new("queues", message));
        }
        match &self.target_cores {
            TargetCores::Chosen(cores) if cores.len() != usize::from(self.queues) => {
                let (found, queues) = (cores.len(), self.queues);
                let allowed = "allowed: one core for each queue, or \"auto\"";
                let message = format!("found {found} cores for {queues} queues, {allowed}");
                Err(ConfigError::new("target_cores", message))
            }
            _ => Ok(()),
        }
    }
}

/// Which interrupts a target core accepts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum GateMode {
    /// Those of idle queues: a busy queue is polled (KNET; Mogul and Ramakrishnan).
    #[default]
    Queue,
    /// All: a busy queue is interrupted again, as by a device that cannot be masked.
    None,
}

/// Whether a waiting host is notified of room to send.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TxComplete {
    /// It checks again after 100 µs.
    #[default]
    Off,
    /// At once.
    Interrupt,
    /// Moderated by rx_usecs, rx_frames and adaptive, as received packets are.
    Moderated,
}

/// `[interrupt]`: gate and moderation of all queues. The control protocol has the same keys.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct InterruptSection {
    /// Microseconds a packet may wait for others before its queue is interrupted; with adaptive,
    /// the upper limit. 0: each packet interrupts.
    #[schemars(range(max = 1000000))]
    pub rx_usecs: u32,
    /// Packets that may wait; 0 for no limit by count. Not with adaptive.
    pub rx_frames: u32,
    /// Adjust the delay to the packet rate, up to rx_usecs.
    pub adaptive: bool,
    /// Move each packet separately and interrupt for each (PICNIC 3.2.2): rx_usecs and rx_frames do
    /// not apply.
    #[schemars(extend("x-advanced" = true))]
    pub per_packet: bool,
    /// When a target is interrupted: "queue", only while the queue is idle, or "none", also while
    /// it is busy; interrupts then preempt an app's work.
    #[schemars(extend("x-advanced" = true))]
    pub gate: GateMode,
    /// Minimum microseconds between two interrupts of a wire, as the physical NIC would moderate
    /// them: the borrowed core polls a wire only then and takes all packets that have arrived. 0:
    /// it polls in each turn.
    #[schemars(range(max = 1000000), extend("x-advanced" = true))]
    pub wire_usecs: u32,
    /// Frames waiting at a wire that interrupt early. 0 for no limit by count. For wires that
    /// report how many wait (generator, packet, pcap, xdp).
    #[schemars(range(max = 65536), extend("x-advanced" = true))]
    pub wire_frames: u32,
    /// Whether a target is interrupted when its waiting host has room to send: "off", "interrupt"
    /// (at once) or "moderated" (as received packets). For hosts that send on their own (tap).
    #[schemars(extend("x-advanced" = true))]
    pub tx_complete: TxComplete,
    /// Microseconds a target keeps polling without packets before it waits for an interrupt. In the
    /// kernel engine, how long a wire is polled, once per wire_usecs.
    #[schemars(range(max = 1000000))]
    pub poll_usecs: u32,
    /// Microseconds packets of the host may wait for others while it keeps sending: the first wakes
    /// its target core, the next poll follows after this time. 0: each packet wakes it. For hosts
    /// that send on their own (tap).
    #[schemars(range(max = 1000000), extend("x-advanced" = true))]
    pub tx_usecs: u32,
}

impl SectionConfig for InterruptSection {
    const NAME: &'static str = "interrupt";
    const HELP: &'static str = "When target cores are interrupted.";

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, message: String| Err(ConfigError::new(key, message));
        let default_frames = InterruptSection::default().rx_frames;
        if self.per_packet && ![0, default_frames].contains(&self.rx_frames) {
            let found = self.rx_frames;
            let message = format!("found {found} with per_packet = true, allowed: 0 or no key");
            return wrong("rx_frames", message);
        }
        if self.per_packet && self.adaptive {
            return wrong("adaptive", "found true with per_packet = true, allowed: false".into());
        }
        if self.wire_frames != 0 && self.wire_usecs == 0 {
            let found = self.wire_frames;
            let message = format!("found {found} without wire_usecs, allowed: 0, or a time");
            return wrong("wire_frames", message);
        }
        if self.gate == GateMode::None && self.poll_usecs != 0 {
            let found = self.poll_usecs;
            let message = format!("found {found} with gate = \"none\", allowed: 0");
            return wrong("poll_usecs", message);
        }
        Ok(())
    }
}

impl Default for InterruptSection {
    fn default() -> Self {
        InterruptSection {
            rx_usecs: 20,
            rx_frames: 64,
            adaptive: false,
            per_packet: false,
            gate: GateMode::Queue,
            wire_usecs: 0,
            wire_frames: 0,
            tx_complete: TxComplete::Off,
            poll_usecs: 0,
            tx_usecs: 50,
        }
    }
}

impl InterruptSection {
    /// These keys, changed by the keys of a JSON object.
    ///
    /// # Errors
    /// An unknown key, a wrong type, a value out of range, or an empty object.
    pub fn changed(&self, change: &Map<String, Json>) -> Result<Self, InvalidValue> {
        let Ok(Json::Object(mut keys)) = serde_json::to_value(self) else {
            return Ok(self.clone());
        };
        if change.is_empty() {
            let known: Vec<_> = keys.keys().map(String::as_str).collect();
            let message = format!("found none, allowed: {}", known.join(", "));
            return Err(InvalidValue::new("", message));
        }
        keys.extend(change.clone());
        from_json(&Json::Object(keys))
    }

    /// The moderation that the keys specify.
    pub fn moderation(&self) -> ModerationMode {
        match self {
            InterruptSection { per_packet: true, .. } => ModerationMode::PerPacket,
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

macro_rules! auto_or {
    ($(#[$meta:meta])* $name:ident($($value:tt)+), $expecting:literal) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            /// Chosen by the program.
            #[default]
            Auto,
            /// Chosen by the user.
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
    (@visit $name:ident, u64) => {
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<$name, E> {
            u64::try_from(number)
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
    /// An amount: determined by the program, or given.
    Amount(u64), "\"auto\" or a number"
}
auto_or! {
    /// The cores of the target queues.
    TargetCores(Vec<usize>), "\"auto\" or a list of core numbers"
}
