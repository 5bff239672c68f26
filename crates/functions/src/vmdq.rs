//! `vmdq`: queues in pools, one for each virtual machine, and a switch between them.
//!
//! ```toml
//! [[rx]]
//! function = "vmdq"
//! pools = [
//!     { macs = ["02:00:00:00:00:01"], queues = [0, 1] },
//!     { macs = ["02:00:00:00:00:02"], vlans = [10], queues = [2, 3] },
//! ]
//!
//! [[tx]]
//! function = "vmdq"        # with the same pools: switches packets from hosts
//! pools = [ ... ]
//! ```
//!
//! In the rx chain, a frame goes to the pool that has its destination address and admits its VLAN;
//! inside the pool, a hash (the default of `rss`) selects the queue. Broadcasts and multicasts go
//! to every pool that admits the VLAN, in copies that count as made. Other frames go to
//! `default_pool` or continue in the chain.
//!
//! In the tx chain, the sending queue determines the pool. A frame from an address or on a VLAN
//! that the pool does not have is dropped as `spoofed`. A frame for another pool goes there, and to
//! no wire; broadcasts and multicasts go to the other pools and to the wire; a frame for the pool
//! that sent it is dropped as filtered, as by a bridge; all others continue to the wire. A pool
//! without `vlans` admits all frames, tagged or not; VLAN 0 means untagged. Frames of queues
//! without a pool are left alone.
//!
//! The kernel engine does not copy packets, so at most one of the pools that admit a VLAN may get
//! broadcasts and multicasts; it has no tx chain, so nothing is switched between pools.
//!
//! Guarantees: order within a flow is kept, on each side of a switch; copies missing for lack of a
//! buffer are counted.
//!
//! Source: Intel 82599 datasheet, sections 7.10.3 (packet switching: VMDq and virtualisation)
//! and 7.10.3.9 (security features: anti-spoofing); IEEE 802.1Q, section 8.6 (forwarding).

mod switch;

pub use switch::{MAX_MACS, MAX_POOLS};

use crate::bytes::prefetch_ahead;
use crate::rss::HashType;
use crate::rss::flow::{Family, Hash, Types, family, hash_of, tuple_v4};
use crate::settings::vlan_of;
use picnic_core::command::{Command, CommandEntry, CommandError, Get, Inspect, Order, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, InKernel, KernelCounts};
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{Descriptor, RssType};
use picnic_core::packet::layers::{self, L3Kind, Layers};
use picnic_core::packet::wire::{Ethernet, MacAddress};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::{KernelForm, Pools};
use picnic_hash::{Key, Toeplitz, V4Tuple};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use switch::Switch;

/// Queues in pools.
pub struct Vmdq {
    switch: Box<Switch>,
    default_pool: Option<u8>,
    mac_anti_spoofing: bool,
    vlan_anti_spoofing: bool,
    hash: Hash,
    types: Types,
    counts: Counts,
    found: Box<BurstScratch>,
}

/// State of the packets of a burst.
struct BurstScratch {
    /// The pool of each packet for a single one, as most are; otherwise [`NO_POOL`].
    pools: [u8; BURST],
    /// The hash input of those over IPv4, and the hashes of all.
    tuples: [V4Tuple; BURST],
    hashes: [u32; BURST],
    queues: [u16; BURST],
}

const NO_POOL: u8 = u8::MAX;
const _: () = assert!(MAX_POOLS <= NO_POOL as usize);

/// A pool: its addresses, VLANs and queues.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pool {
    /// Its MAC addresses, such as "02:00:00:00:00:01".
    pub macs: Vec<String>,
    /// The VLANs that it admits, 0 for untagged; default: all.
    #[schemars(inner(range(max = 4095)))]
    pub vlans: Option<Vec<u16>>,
    /// Its queues, which no other pool may have.
    pub queues: Vec<u16>,
    /// Whether it gets broadcasts and multicasts.
    pub broadcast: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Pool { macs: Vec::new(), vlans: None, queues: Vec::new(), broadcast: true }
    }
}

/// The keys of `vmdq`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The pools, up to 64, numbered from 0: each has macs, vlans, queues and broadcast.
    pub pools: Vec<Pool>,
    /// The pool of frames from wires for no pool; default: they continue in the chain.
    pub default_pool: Option<u8>,
    /// Whether frames that a pool sends from a foreign address are dropped.
    pub mac_anti_spoofing: bool,
    /// Whether frames that a pool sends on a foreign VLAN are dropped.
    pub vlan_anti_spoofing: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            pools: Vec::new(),
            default_pool: None,
            mac_anti_spoofing: true,
            vlan_anti_spoofing: true,
        }
    }
}

/// Counters of a `vmdq`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Frames from wires to a pool, including copies.
    pub received_packets: u64,
    /// Frames from a pool to another, including copies.
    pub switched_packets: u64,
    /// Copies made of broadcasts and multicasts.
    pub copies: u64,
    /// Copies not made for lack of a buffer.
    pub lost_copies: u64,
    /// Frames dropped for their sender's address or VLAN.
    pub spoofed_packets: u64,
}

impl Inspect for Vmdq {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Component for Vmdq {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "vmdq";
    const HELP: &'static str = "sort frames into pools of queues by MAC and VLAN, and switch";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<Vmdq>>(), CommandEntry::of::<Replace>()];
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["pools", "default_pool"],
        beside: &[],
        commands: &["get", "replace"],
        form: |config, context| {
            Ok(KernelForm::ByPool(Box::new(Vmdq::new(config, context)?.by_pool())).into())
        },
    });

    fn example(_: &std::path::Path) -> Option<String> {
        Some(
            "pools = [{ macs = [\"04:04:04:04:04:04\"], queues = [1, 2] }, { queues = [0] }]\n"
                .into(),
        )
    }

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Vmdq::new(&config, context)?))
    }
}

impl Vmdq {
    /// A `vmdq` with these settings.
    ///
    /// # Errors
    /// The wrong key, the value found and the values allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<Vmdq, ConfigError> {
        let switch = Switch::new(&config.pools, context)?;
        if let Some(pool) = config.default_pool
            && usize::from(pool) >= config.pools.len()
        {
            let message = format!("found {pool}, allowed: the number of a pool");
            return Err(ConfigError::new("default_pool", message));
        }
        Ok(Vmdq {
            switch: Box::new(switch),
            default_pool: config.default_pool,
            mac_anti_spoofing: config.mac_anti_spoofing,
            vlan_anti_spoofing: config.vlan_anti_spoofing,
            hash: Hash::Toeplitz(Box::new(Toeplitz::new(&Key::MICROSOFT))),
            types: Types::new(|hash_type| HashType::DEFAULT.contains(&hash_type)),
            counts: Counts::default(),
            found: Box::new(BurstScratch {
                pools: [NO_POOL; BURST],
                tuples: [V4Tuple::default(); BURST],
                hashes: [0; BURST],
                queues: [0; BURST],
            }),
        })
    }

    /// The kernel form: the current pools.
    fn by_pool(&self) -> Pools {
        let switch = &*self.switch;
        Pools {
            stations: switch.stations().collect(),
            vlans: switch.vlans.clone(),
            groups: switch.groups,
            others: self.default_pool.map_or(0, |pool| 1 << pool),
            queues: switch.pools.iter().map(|pool| pool.0.to_vec()).collect(),
            hash: self.hash.in_kernel(),
            ipv4: self.types.in_kernel(L3Kind::Ipv4),
            ipv6: self.types.in_kernel(L3Kind::Ipv6),
        }
    }

    /// Sends copies to all of `pools` except the last, which gets the packet itself unless it
    /// continues.
    fn replicate(
        &mut self,
        packet: Descriptor,
        hash: u32,
        pools: u64,
        goes_on: bool,
        out: &mut Out<'_>,
    ) -> Option<Descriptor> {
        let mut left = pools;
        while left != 0 {
            let pool = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(queues) = self.switch.pools.get(pool) else { break };
            let queue = queues.of(hash);
            if left == 0 && !goes_on {
                out.steer(packet, queue);
                return None;
            }
            match out.copy(&packet) {
                Some(mut copy) => {
                    copy.clear_tx_queue();
                    self.counts.copies += 1;
                    out.steer(copy, queue);
                }
                None => self.counts.lost_copies += 1,
            }
        }
        Some(packet)
    }

    /// The pool of a frame from a wire for a single pool, as most are; `None` for others.
    #[inline(always)]
    fn single_pool(&self, packet: &Descriptor, layers: &Layers) -> Option<u8> {
        if packet.tx_queue().is_some() {
            return None;
        }
        // A frame shorter than its header belongs to no pool.
        let header: &[u8; Ethernet::HEADER_LENGTH] = packet.data().first_chunk()?;
        let destination = MacAddress(*header.first_chunk()?);
        let vlan = vlan_of(packet, layers).unwrap_or(0);
        let pools = self.switch.pools_of_vlan(vlan) & self.switch.pools_of_mac(destination);
        // No pool has a group's address: `Switch` refuses it.
        pools.is_power_of_two().then_some(pools.trailing_zeros() as u8)
    }

    /// Finds the queues of the frames for a single pool, and counts them; true if all are.
    #[inline(always)]
    fn find(&mut self, packets: &mut [Descriptor]) -> bool {
        let count = packets.len().min(BURST);
        let mut single = 0;
        // A bit for each that is not hashed with the others.
        let mut others = 0_u64;
        for place in 0..count {
            prefetch_ahead(packets, place);
            let packet = &mut packets[place];
            let (pool, over) = match layers::plain_v4(packet.data()) {
                Some(plain) => {
                    let (over, tuple) = self.types.of_plain_v4(&plain);
                    self.found.tuples[place] = tuple;
                    let layers = plain.layers();
                    packet.set_layers(&layers);
                    (self.single_pool(packet, &layers), over)
                }
                None => self.find_other(packet, place),
            };
            self.found.pools[place] = pool.unwrap_or(NO_POOL);
            if pool.is_some() {
                single += 1;
                others |= u64::from(!matches!(family(over), Family::V4)) << place;
                packet.set_rss_type(over);
            }
        }
        self.counts.received_packets += single as u64;
        let BurstScratch { pools, tuples, hashes, queues } = &mut *self.found;
        self.hash.hash_v4(&tuples[..count], &mut hashes[..count]);
        while others != 0 {
            let place = others.trailing_zeros() as usize;
            others &= others - 1;
            let packet = &packets[place];
            let (layers, data) = (packet.layers(), packet.data());
            hashes[place] = hash_of(&self.hash, &self.types, &layers, data).0;
        }
        for (place, packet) in packets.iter_mut().enumerate().take(count) {
            if let Some(pool) = self.switch.pools.get(usize::from(pools[place])) {
                queues[place] = pool.of(hashes[place]);
                packet.set_rss_hash(hashes[place]);
            }
        }
        single == count
    }

    /// The pool of a frame of any kind, if it is a single one, and its hash input. Separate from
    /// the loop above, so that the fast path has the registers to itself.
    #[inline(never)]
    fn find_other(&mut self, packet: &mut Descriptor, place: usize) -> (Option<u8>, RssType) {
        let layers = packet.parse();
        let over = self.types.of(layers.packet_type);
        if matches!(family(over), Family::V4) {
            self.found.tuples[place % BURST] = tuple_v4(&layers, packet.data(), over);
        }
        (self.single_pool(packet, &layers), over)
    }

    /// Returns the packet if it continues.
    #[inline]
    fn switch(&mut self, mut packet: Descriptor, out: &mut Out<'_>) -> Option<Descriptor> {
        let layers = packet.parse();
        let Ok(ethernet) = Ethernet::new_checked(packet.data()) else { return Some(packet) };
        let (destination, source) = (ethernet.destination(), ethernet.source());
        let vlan = vlan_of(&packet, &layers).unwrap_or(0);
        let admitted = self.switch.pools_of_vlan(vlan);
        let is_group = destination.is_multicast();
        let mut pools = admitted
            & if is_group { self.switch.groups } else { self.switch.pools_of_mac(destination) };
        let sender = match packet.tx_queue() {
            None => None,
            Some(queue) => match self.switch.pool_of(queue) {
                Some(pool) => Some(1_u64 << pool),
                None => return Some(packet),
            },
        };
        if let Some(own) = sender {
            let is_false = |has: u64| has & own == 0;
            if self.mac_anti_spoofing && is_false(self.switch.pools_of_mac(source))
                || self.vlan_anti_spoofing && is_false(admitted)
            {
                self.counts.spoofed_packets += 1;
                out.drop(packet, DropReason::Spoofed);
                return None;
            }
            if !is_group && pools & own != 0 {
                out.drop(packet, DropReason::Filtered);
                return None;
            }
            pools &= !own;
        } else if pools == 0 {
            pools = self.default_pool.map_or(0, |pool| 1 << pool);
        }
        if pools == 0 {
            return Some(packet);
        }
        let (hash, over) = hash_of(&self.hash, &self.types, &layers, packet.data());
        packet.set_rss(hash, over);
        let goes_on = sender.is_some() && is_group;
        let counted = match sender {
            None => &mut self.counts.received_packets,
            Some(_) => &mut self.counts.switched_packets,
        };
        *counted += u64::from(pools.count_ones());
        if sender.is_some() && !goes_on {
            // It belongs to the pool from here on, not to its sender.
            packet.clear_tx_queue();
        }
        self.replicate(packet, hash, pools, goes_on, out)
    }
}

impl Function for Vmdq {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        if self.find(burst.as_mut_slice()) {
            return out.steer_burst(burst, &self.found.queues);
        }
        let mut places = 0..BURST;
        burst.retain(|packet| {
            let place = places.next()?;
            if self.found.pools[place] == NO_POOL {
                return self.switch(packet, out);
            }
            out.steer(packet, self.found.queues[place]);
            None
        });
    }

    fn kernel_form(&self) -> Option<Form> {
        Some(KernelForm::ByPool(Box::new(self.by_pool())).into())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        self.counts.received_packets = counts.steered;
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// The arguments of `vmdq.replace`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The new pools, each with macs, vlans, queues and broadcast.
    pub pools: Vec<Pool>,
}

/// The result of `vmdq.replace`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Replaced {
    /// Number of pools now.
    pub pools: usize,
    /// Number of pools before.
    pub replaced: usize,
}

/// A new switch, then the replaced one.
pub struct SwitchChange {
    switch: Box<Switch>,
    pools: usize,
    is_done: bool,
}

impl Order for SwitchChange {
    type Target = Vmdq;

    fn apply(&mut self, vmdq: &mut Vmdq, _now: Time) -> bool {
        std::mem::swap(&mut self.switch, &mut vmdq.switch);
        if vmdq.default_pool.is_some_and(|pool| usize::from(pool) >= self.pools) {
            vmdq.default_pool = None;
        }
        self.is_done = true;
        true
    }
}

impl Command for Replace {
    const NAME: &'static str = "replace";
    const HELP: &'static str = "replace all pools at once";
    const EXAMPLE: &'static str = r#"{"pools":[{"macs":["02:00:00:00:00:07"],"queues":[0,3]}]}"#;
    type Order = SwitchChange;
    type Reply = Replaced;

    fn prepare(self, context: &BuildContext) -> Result<SwitchChange, CommandError> {
        let switch = Switch::new(&self.pools, context)
            .map_err(|error| CommandError::argument(error.key, error.message))?;
        Ok(SwitchChange { switch: Box::new(switch), pools: self.pools.len(), is_done: false })
    }

    fn reply(order: SwitchChange) -> Result<Replaced, CommandError> {
        if !order.is_done {
            return Err(CommandError::Refused("the function there is not vmdq".into()));
        }
        Ok(Replaced { pools: order.pools, replaced: order.switch.pools.len() })
    }

    fn text(reply: &Replaced, _: &str) -> String {
        format!("{} pools replaced {}\n", reply.pools, reply.replaced)
    }
}
