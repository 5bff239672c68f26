//! What a component is in the kernel engine: its kernel form, as data.
//!
//! A component that can do its work in the kernel says so with [`Component::KERNEL`]: which of
//! its keys count there, and what becomes of them. The kernel engine makes maps and programs of
//! the forms of a card; a component without one is refused there, by name.
//!
//! ```
//! use picnic_core::kernel::{InKernel, KernelForm};
//! use picnic_core::ledger::DropReason;
//!
//! struct Keys;
//! const KERNEL: Option<InKernel<Keys>> = Some(InKernel {
//!     keys: &[],
//!     beside: &[],
//!     commands: &[],
//!     form: |_, _| Ok(KernelForm::Drop(DropReason::Filtered)),
//! });
//! # let _ = KERNEL;
//! ```
//!
//! Guarantees: a form is passive data, and says all that the component would do; a key that it
//! cannot honour is refused, not passed over.
//!
//! [`Component::KERNEL`]: crate::registry::Component::KERNEL

use crate::error::ConfigError;
use crate::ledger::DropReason;
use crate::registry::BuildContext;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt::Display;
use std::path::PathBuf;

/// How a component comes to be in the kernel.
pub struct InKernel<C> {
    /// The keys of its config that count there; any other that a card file gives is refused.
    pub keys: &'static [&'static str],
    /// Keys that count beside these where the poll engine takes part (`engine = "hybrid"`).
    pub beside: &'static [&'static str],
    /// Its commands that a running one has there, too; it then says how it stands by
    /// [`Function::kernel_form`].
    ///
    /// [`Function::kernel_form`]: crate::function::Function::kernel_form
    pub commands: &'static [&'static str],
    /// Makes the form; an error names the key that it is about.
    pub form: fn(&C, &BuildContext) -> Result<KernelForm, ConfigError>,
}

/// What a component is in the kernel engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelForm {
    /// A function that leaves every packet as it is.
    Next,
    /// A function that drops every packet.
    Drop(DropReason),
    /// A function that steers by the wire a packet came in on: the queue of each wire.
    ByWire(Vec<u16>),
    /// A function that steers by a hash of the packet's flow.
    ByHash(Box<ByHash>),
    /// A function that sorts packets into pools of queues, and steers by a hash inside a pool.
    ByPool(Box<Pools>),
    /// A function that drops tagged packets of other VLANs than these, or untagged ones.
    Vlans {
        /// The VLANs that are let through, a bit each.
        allowed: Box<[u64; 64]>,
        /// Whether packets without a VLAN are.
        untagged: bool,
    },
    /// A function that drops what is over a rate.
    Police {
        /// Whether each wire has a rate of its own.
        per_wire: bool,
        /// Packets per second and in a burst; a rate of zero is none.
        packets: [u64; 2],
        /// Bytes per second and in a burst.
        bytes: [u64; 2],
    },
    /// A function that steers or drops flows by rules.
    ByRules {
        /// The rules in force.
        rules: Vec<FlowRule>,
        /// How many there may be while it runs.
        room: usize,
    },
    /// A function that takes the first of each so many packets.
    Sample {
        /// One packet in this many.
        every: u32,
        /// The queue that it goes to; none if it goes on.
        queue: Option<u16>,
        /// Whether the others are dropped, counted as filtered.
        drop_rest: bool,
    },
    /// A user's own XDP program.
    Object {
        /// The object file.
        path: PathBuf,
        /// The name of the program in it; none for the only one.
        program: Option<String>,
        /// Whether metadata that it puts in front of a packet are queue and mark.
        metadata: bool,
    },
    /// A wire that is an interface of the kernel.
    Interface {
        /// Its name.
        name: String,
        /// The network namespace it is in, a name of `ip netns`; none for the card's own.
        namespace: Option<String>,
        /// Packets of the poll engine get the time in front of them, with `engine = "hybrid"`.
        stamps: bool,
    },
    /// A host that is the kernel's own network stack, by the wire's interface.
    Stack(Handover, Scheduling),
}

/// How the kernel schedules the threads behind the target rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// As other threads: one that wakes soon takes its turn.
    #[default]
    Normal,
    /// One that wakes waits until what runs on its core sleeps or has had its time (`SCHED_BATCH`).
    Batch,
}

/// How packets get from the borrowed core to their target cores: by a cpumap, a ring and a thread for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// As the kernel's socket buffers, merged by GRO, by a relay in front of each ring.
    #[default]
    Skb,
    /// As they came, as frames.
    Cpumap,
}

/// Steering by pool: one at most has a packet's destination and admits its VLAN. Pools are bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Each address, and the pools that have it.
    pub stations: Vec<([u8; 6], u64)>,
    /// The pools that each VLAN is admitted to; 0 is untagged.
    pub vlans: Box<[u64; 4096]>,
    /// The pools that have broadcasts and multicasts: one at most for each VLAN.
    pub groups: u64,
    /// The pool of packets for none; zero if they go on.
    pub others: u64,
    /// The queues of each pool. By a hash, the upper half of `hash * 0x9e3779b1 mod 2^32 * queues`
    /// selects one.
    pub queues: Vec<Vec<u16>>,
    /// That hash.
    pub hash: FlowHash,
    /// What is hashed of IPv4.
    pub ipv4: HashedOver,
    /// What is hashed of IPv6.
    pub ipv6: HashedOver,
}

/// What the form of a function has counted, in packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Packets that came to it.
    pub packets: u64,
    /// Those of them that it has steered.
    pub steered: u64,
    /// Those that it has dropped.
    pub dropped: u64,
    /// Those without a hash.
    pub unhashed: u64,
    /// Those with a VLAN tag.
    pub tagged: u64,
    /// By number, what rules have decided on since they were last told; only those that are new.
    pub rules: Vec<(u32, u64)>,
}

/// A rule for flows: five words are compared of a packet, addresses as they lie in memory, then
/// `wire 8 | ports 1 | family 2 | protocol 8 | tag 1 | VLAN 12 | both ports 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Among rules of one priority the lowest decides.
    pub number: u32,
    /// What the words are to be, zero where the mask is.
    pub key: [u64; 5],
    /// Which bits of them count.
    pub mask: [u64; 5],
    /// Among rules that match the highest decides.
    pub priority: u16,
    /// The queue; none if the packet is dropped.
    pub queue: Option<u16>,
}

/// Steering by hash: which hash, over what, and the queue of each entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHash {
    /// The hash.
    pub hash: FlowHash,
    /// What is hashed of IPv4.
    pub ipv4: HashedOver,
    /// What is hashed of IPv6.
    pub ipv6: HashedOver,
    /// The queue of each entry; the hash modulo the number of entries selects one.
    pub table: Vec<u16>,
    /// The queue of what has no hash; none if it goes on.
    pub default_queue: Option<u16>,
}

/// A hash of addresses and ports, which are zero if they are not hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowHash {
    /// Toeplitz: what each byte of the input adds, by its place.
    Toeplitz(Vec<[u32; 256]>),
    /// Jenkins' lookup3, from this initial value.
    Lookup3(u32),
    /// Jenkins' lookup2, from this initial value.
    Lookup2(u32),
}

/// What is hashed of each kind of packet of one IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashedOver {
    /// Of TCP.
    pub tcp: Hashed,
    /// Of UDP.
    pub udp: Hashed,
    /// Of all else, fragments among it.
    pub other: Hashed,
}

/// What is hashed of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashed {
    /// Nothing: it has no hash.
    #[default]
    Nothing,
    /// Its addresses.
    Addresses,
    /// Its addresses and ports.
    Ports,
}

/// Refuses a value of a key that the kernel form does not have.
pub fn refuse(key: &str, found: impl Display, allowed: impl Display) -> ConfigError {
    let message = format!("found {found}, allowed with engine = \"kernel\": {allowed}");
    ConfigError::new(key, message)
}
