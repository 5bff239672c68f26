//! Kernel forms: what functions, wires and hosts are in the kernel engine, as data.
//!
//! A component makes its form in [`InKernel::form`]; the kernel engine makes maps and programs of it.
//!
//! Guarantee: a form is passive data, and says all that the component would do.
//!
//! [`InKernel::form`]: picnic_core::kernel::InKernel::form

#![forbid(unsafe_code)]

use picnic_core::kernel::Form;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

impl From<KernelForm> for Form {
    fn from(form: KernelForm) -> Self {
        Form::new("kernel form", form)
    }
}

/// A component in the kernel engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelForm {
    /// A function that leaves every packet unchanged.
    Next,
    /// A function that drops every packet, counted as filtered.
    Drop,
    /// A function that steers by the wire of arrival: the queue of each wire.
    ByWire(Vec<u16>),
    /// A function that steers by a hash of the packet's flow.
    ByHash(Box<ByHash>),
    /// A function that sorts packets into pools of queues, and steers by a hash inside a pool.
    ByPool(Box<Pools>),
    /// A function that drops packets by VLAN.
    Vlans {
        /// The VLANs let through, a bit each.
        allowed: Box<[u64; 64]>,
        /// Whether packets without a VLAN are let through.
        untagged: bool,
    },
    /// A function that drops packets over a rate.
    Police {
        /// Whether each wire has its own rate.
        per_wire: bool,
        /// Packets per second and in a burst; a rate of zero means no limit.
        packets: [u64; 2],
        /// Bytes per second and in a burst; zero: unlimited.
        bytes: [u64; 2],
    },
    /// A function that steers or drops flows by rules.
    ByRules {
        /// The current rules.
        rules: Vec<FlowRule>,
        /// The largest number of rules while running.
        room: usize,
    },
    /// A function that samples one packet in `every`.
    Sample {
        /// One packet in this many.
        every: u32,
        /// The queue of sampled packets; none if they continue.
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
        /// Whether the metadata that it puts before a packet is queue and mark.
        metadata: bool,
    },
    /// A wire that is an interface of the kernel.
    Interface {
        /// Its name.
        name: String,
        /// The network namespace it is in, a name of `ip netns`; none for the card's own.
        namespace: Option<String>,
        /// Whether a time precedes packets for the poll engine, with `engine = "hybrid"`.
        stamps: bool,
    },
    /// A host that is the kernel's own network stack, by the wire's interface.
    Stack(Handover, Scheduling),
}

/// How the kernel schedules the threads of the target rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheduling {
    /// As other threads: a thread that wakes is scheduled soon.
    #[default]
    Normal,
    /// A thread that wakes waits until the running one sleeps or has used its time slice
    /// (`SCHED_BATCH`).
    Batch,
}

/// How packets get from the borrowed core to their target cores: by a cpumap, with a ring and a
/// thread for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Handover {
    /// As the kernel's socket buffers, merged by GRO, through a relay ahead of each ring.
    #[default]
    Skb,
    /// As frames, unchanged.
    Cpumap,
}

/// Steering by pool: at most one has a packet's destination and admits its VLAN. Pools are bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Each address, and the pools that have it.
    pub stations: Vec<([u8; 6], u64)>,
    /// The pools that admit each VLAN; 0 is untagged.
    pub vlans: Box<[u64; 4096]>,
    /// The pools that receive broadcasts and multicasts: at most one per VLAN.
    pub groups: u64,
    /// The pool of packets for no other; zero if those continue.
    pub others: u64,
    /// The queues of each pool. The upper half of `hash * 0x9e3779b1 mod 2^32 * queues` selects
    /// one.
    pub queues: Vec<Vec<u16>>,
    /// That hash.
    pub hash: FlowHash,
    /// The hashed fields of IPv4.
    pub ipv4: HashedOver,
    /// The hashed fields of IPv6.
    pub ipv6: HashedOver,
}

/// A rule for flows: five words of a packet are compared, addresses as they lie in memory, then
/// `wire 8 | ports 1 | family 2 | protocol 8 | tag 1 | VLAN 12 | both ports 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Among rules of one priority, the lowest decides.
    pub number: u32,
    /// The values of the words, zero outside the mask.
    pub key: [u64; 5],
    /// The bits that are compared.
    pub mask: [u64; 5],
    /// Among rules that match, the highest decides.
    pub priority: u16,
    /// The queue; none if the packet is dropped.
    pub queue: Option<u16>,
}

/// Steering by hash: which hash, over what, and the queue of each entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHash {
    /// The hash.
    pub hash: FlowHash,
    /// The hashed fields of IPv4.
    pub ipv4: HashedOver,
    /// The hashed fields of IPv6.
    pub ipv6: HashedOver,
    /// The queue of each entry; the hash modulo the number of entries selects one.
    pub table: Vec<u16>,
    /// The queue of packets without a hash; none if they continue.
    pub default_queue: Option<u16>,
}

/// A hash of addresses and ports; ports are zero if not hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowHash {
    /// Toeplitz: the contribution of each byte of the input, by position.
    Toeplitz(Vec<[u32; 256]>),
    /// Jenkins' lookup3, from this initial value.
    Lookup3(u32),
    /// Jenkins' lookup2, from this initial value.
    Lookup2(u32),
}

/// The hashed fields of each kind of packet of one IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashedOver {
    /// Of TCP.
    pub tcp: Hashed,
    /// Of UDP.
    pub udp: Hashed,
    /// Of all others, including fragments.
    pub other: Hashed,
}

/// The hashed fields of a packet.
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
