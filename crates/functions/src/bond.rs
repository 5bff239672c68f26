//! `bond`: uses several wires as one, and chooses the wire of each packet that hosts send.
//!
//! ```toml
//! [[rx]]
//! function = "bond"        # with mode = "learn": sees which station is on which wire
//!
//! [[tx]]
//! function = "bond"
//! mode = "learn"           # the default; flow, queue, round-robin, active-backup
//! ```
//!
//! | mode            | wire |
//! |-----------------|------|
//! | `learn`         | the one on which the destination's MAC address was last seen as a source |
//! | `flow`          | by a hash of the flow, as in `rss`: TCP by addresses and ports, all else by addresses |
//! | `queue`         | tx queue modulo wires |
//! | `round-robin`   | each packet the next one; packets of a flow may overtake each other |
//! | `active-backup` | `wire`; while it is down, the next that is up |
//!
//! With `learn`, frames to a group or to an unknown address leave on all wires that are up, in
//! copies that count as made, or with `flood = false` on `wire`. `bond` must also be in the rx
//! chain, before functions that steer. Up to 8192 addresses are known, each until it was not seen
//! for `age_secs`; VLANs are not distinguished. With `weights`, wires have unequal shares of flows,
//! queues or packets.
//!
//! The others take over the traffic of a wire that is down, from the first burst after its port
//! notices (`packet` and `xdp` check every 20 ms); it is used again `up_delay_ms` after it returns.
//! Moved parts of the traffic are counted: packets that still wait for the old wire may be
//! overtaken. While no wire is up, packets stay on their usual wire and are dropped there.
//!
//! In the rx chain, `once` passes a broadcast or multicast only once if it arrives on several wires
//! of one segment, and `drop_returned` drops frames that one of the card's own hosts has sent.
//! `order_usecs` restores the order of TCP segments if their sender alternates between wires. With
//! `break_loops`, in both chains, a wire that returns the card's own broadcasts repeatedly is
//! blocked until 10 seconds after the last of them.
//!
//! Guarantees: order within a flow is kept, except with `round-robin` and for moves; a function
//! that needs order (`lro`) is refused after `round-robin`. A card with one wire pays nothing.
//!
//! Source: PICNIC, sections 3.3 and 4.3 (several NICs as one); IEEE 802.1Q-2018, 8.7 and 8.8
//! (learning, ageing); the modes of Linux's bonding driver; IEEE 802.1AX (a flow keeps its link).

mod commands;
mod flows;
mod learnt;
mod loops;
mod once;
mod order;
mod slots;

pub use commands::{Address, Addresses, Clear, Cleared, ForgetOrder, Known, Lookup};
pub use learnt::MAX_ADDRESSES;

use flows::Flows;
use learnt::{GROUP, Learned, Learnt, numbers_of};
use loops::Loops;
use once::Once;
use order::Order;
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::function::{Disorder, Function};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slots::Slots;
use std::sync::Arc;

/// Flows whose last wire is remembered, to count flows that change it.
const FLOWS: usize = 4096;

/// Chooses the wire of each packet.
pub struct Bond {
    mode: Mode,
    flood: bool,
    wires: u8,
    slots: Slots,
    learnt: Arc<Learnt>,
    /// Destinations of the burst being sent.
    destinations: Box<[u64; BURST]>,
    age_ns: u64,
    once: Option<Box<Once>>,
    drop_returned: bool,
    loops: Option<Arc<Loops>>,
    order: Option<Box<Order>>,
    flows: Box<Flows>,
    /// The next part in round robin.
    next: usize,
    /// The last wire of a flow plus one, by its hash; zero if none.
    last: Box<[u16; FLOWS]>,
    counts: Counts,
}

/// The keys of `bond`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How the wire is chosen.
    pub mode: Mode,
    /// With "learn": whether frames to groups and to unknown addresses leave on all wires;
    /// otherwise on `wire`.
    pub flood: bool,
    /// With "learn" and no flood: the wire of frames to groups and to unknown addresses. With
    /// "active-backup": the wire that is used while it is up.
    pub wire: u8,
    /// With "flow", "queue", "round-robin": the weight of each wire; default: all equal.
    pub weights: Option<Vec<u32>>,
    /// With "learn": seconds after which an address that is not seen is forgotten.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub age_secs: u32,
    /// Milliseconds that a wire must have been up again before it is used.
    pub up_delay_ms: u32,
    /// In the rx chain: whether a frame to a group that arrives on several wires within a second is
    /// passed only once.
    #[schemars(extend("x-advanced" = true))]
    pub once: bool,
    /// In the rx chain: whether frames from an address that one of the card's own hosts sends from
    /// are dropped. Not for hosts that echo packets unchanged.
    #[schemars(extend("x-advanced" = true))]
    pub drop_returned: bool,
    /// In the rx chain: microseconds that a TCP segment waits for missing earlier ones;
    /// with 0, late segments are only counted.
    #[schemars(range(max = 10_000), extend("x-advanced" = true))]
    pub order_usecs: Option<u32>,
    /// With `order_usecs`: segments of one flow that may wait.
    #[schemars(range(min = 1, max = 4096), extend("x-advanced" = true))]
    pub order_packets: u32,
    /// In both chains: whether to block a wire that repeatedly returns frames of the card's own
    /// hosts to groups.
    #[schemars(extend("x-advanced" = true))]
    pub break_loops: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Learn,
            flood: true,
            wire: 0,
            weights: None,
            age_secs: 300,
            up_delay_ms: 0,
            once: false,
            drop_returned: false,
            order_usecs: None,
            order_packets: 64,
            break_loops: false,
        }
    }
}

/// How the wire of a packet is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The wire on which the destination was last seen as a source.
    Learn,
    /// By a hash of the flow.
    Flow,
    /// By the tx queue.
    Queue,
    /// Packet by packet.
    RoundRobin,
    /// One wire, or another while it is down.
    ActiveBackup,
}

/// Counters of `bond`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Packets for which a wire was chosen.
    pub sent: u64,
    /// Packets sent where their destination was last seen.
    pub known: u64,
    /// Packets whose destination's wire is down, sent as if it were unknown.
    pub diverted: u64,
    /// Packets sent on all wires.
    pub flooded: u64,
    /// Copies made for that.
    pub copies: u64,
    /// Copies not made for lack of a buffer.
    pub lost_copies: u64,
    /// Addresses learnt.
    pub learnt: u64,
    /// Addresses that were seen on another wire than before.
    pub moved_addresses: u64,
    /// Addresses evicted for new ones, after nothing had been sent to them.
    pub replaced: u64,
    /// Addresses not learnt, as all addresses in their place are in use.
    pub refused: u64,
    /// Parts of the traffic that moved to another wire, as theirs went down or returned.
    pub moved_parts: u64,
    /// Packets sent on another wire than the previous packet of their flow: with round robin, those
    /// that may overtake.
    pub spread: u64,
    /// Frames to groups that had already arrived on another wire, dropped.
    pub duplicates: u64,
    /// Frames of the card's own hosts that arrived, dropped.
    pub returned: u64,
    /// TCP segments that arrived after a later one of their flow, sent again or overtaken.
    pub late: u64,
    /// TCP segments that waited until the missing earlier ones arrived.
    pub restored: u64,
    /// TCP segments that waited in vain.
    pub given_up: u64,
    /// Times that a wire was found to lead into a loop, and blocked.
    pub loops: u64,
    /// Packets from blocked wires, dropped.
    pub blocked: u64,
    /// Wires blocked now.
    #[schemars(extend("x-gauge" = true))]
    pub wires_blocked: u64,
    /// Wires used now.
    #[schemars(extend("x-gauge" = true))]
    pub wires_used: u64,
}

impl Component for Bond {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "bond";
    const HELP: &'static str = "use several wires as one: choose the wire of each packet";
    const COMMANDS: &'static [CommandEntry] = &[
        CommandEntry::of::<Get<Bond>>(),
        CommandEntry::of::<Addresses>(),
        CommandEntry::of::<Clear>(),
    ];

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let wires = context.wires.max(1);
        let last = wires - 1;
        if config.wire > last {
            let message = format!("found {}, allowed: 0 to {last}", config.wire);
            return Err(ConfigError::new("wire", message));
        }
        let is_weighted = matches!(config.mode, Mode::Flow | Mode::Queue | Mode::RoundRobin);
        let up_delay_ns = u64::from(config.up_delay_ms) * 1_000_000;
        let slots = match &config.weights {
            Some(_) if !is_weighted => {
                let message = "found weights, allowed only with mode = \"flow\", \"queue\" or \
                               \"round-robin\"";
                return Err(ConfigError::new("weights", message));
            }
            Some(weights) if weights.len() != usize::from(wires) => {
                let found = weights.len();
                let message =
                    format!("found {found}, allowed: one weight for each of {wires} wires");
                return Err(ConfigError::new("weights", message));
            }
            None if !is_weighted => Slots::at_one(config.wire, wires.into(), up_delay_ns),
            weights => {
                let equal = vec![1; wires.into()];
                Slots::weighted(weights.as_ref().unwrap_or(&equal), up_delay_ns)
                    .map_err(|error| ConfigError::new("weights", error.to_string()))?
            }
        };
        Ok(Box::new(Bond {
            mode: config.mode,
            flood: config.flood,
            wires,
            slots,
            learnt: context.shared.get_or_make(|| Learnt::new(context.seed)),
            destinations: Box::new([0; BURST]),
            age_ns: u64::from(config.age_secs) * 1_000_000_000,
            once: config.once.then(Box::default),
            drop_returned: config.drop_returned,
            loops: (config.break_loops && wires > 1)
                .then(|| context.shared.get_or_make(|| Loops::new(wires))),
            order: config.order_usecs.map(|usecs| {
                Box::new(Order::new(u64::from(usecs) * 1000, config.order_packets as usize))
            }),
            flows: Box::default(),
            next: 0,
            last: Box::new([0; FLOWS]),
            counts: Counts::default(),
        }))
    }
}

impl Bond {
    /// Learns the packet's source; false if it shall be dropped.
    #[inline]
    fn receive(&mut self, packet: &Descriptor, now: Time) -> bool {
        let Some((_, source)) = packet.data().first_chunk().map(numbers_of) else { return true };
        if source & GROUP != 0 || source == 0 {
            return true;
        }
        if self.loops.is_some() && self.is_looped(packet, source, now) {
            self.counts.blocked += 1;
            return false;
        }
        if self.drop_returned && self.learnt.is_own(source) {
            self.counts.returned += 1;
            return false;
        }
        if self.mode == Mode::Learn {
            match self.learnt.see(source, packet.wire, now, self.age_ns) {
                Learned::Known => {}
                Learned::New => self.counts.learnt += 1,
                Learned::Moved => self.counts.moved_addresses += 1,
                Learned::Refused => self.counts.refused += 1,
                Learned::Replaced => {
                    self.counts.learnt += 1;
                    self.counts.replaced += 1;
                }
            }
        }
        if let Some(once) = &mut self.once
            && packet.data()[0] & 1 != 0
            && once.is_repeated(packet, now)
        {
            self.counts.duplicates += 1;
            return false;
        }
        true
    }

    /// Whether a packet came on a wire that leads into a loop.
    fn is_looped(&mut self, packet: &Descriptor, source: u64, now: Time) -> bool {
        let Some(loops) = &self.loops else { return false };
        let is_own = packet.data()[0] & 1 != 0 && self.learnt.is_own(source);
        if !is_own {
            return loops.is_blocked(packet.wire);
        }
        if loops.is_blocked(packet.wire) {
            // It still loops.
            loops.block(packet.wire, now);
        } else if loops.note_returned(packet, now) {
            self.counts.loops += 1;
        }
        loops.is_blocked(packet.wire)
    }

    /// Notes a frame that a host sends to a group.
    #[inline]
    fn note_sent(&self, packet: &Descriptor, now: Time) {
        let (Some(loops), Some(addresses)) = (&self.loops, packet.data().first_chunk()) else {
            return;
        };
        let (destination, source) = numbers_of(addresses);
        if destination & GROUP != 0 {
            self.learnt.note_own(source);
            loops.note_sent(packet, now);
        }
    }

    /// Handles packets of the rx chain.
    fn receive_all(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        if let Some(loops) = &self.loops {
            loops.follow(now);
        }
        let mut refused = 0_u64;
        for (place, packet) in burst.as_slice().iter().enumerate() {
            refused |= u64::from(!self.receive(packet, now)) << (place % BURST);
        }
        let mut order = self.order.take();
        // Mostly all stay in the burst.
        if refused != 0 || order.is_some() {
            burst.retain(|mut packet| {
                let is_refused = refused & 1 != 0;
                refused >>= 1;
                if is_refused {
                    out.drop(packet, DropReason::Filtered);
                } else if let Some(order) = &mut order {
                    let flow = self.flows.of(&mut packet);
                    order.take(packet, flow, now, out);
                } else {
                    return Some(packet);
                }
                None
            });
        }
        self.order = order;
    }

    /// Sends frames to the wires of their destinations.
    #[inline]
    fn send_learnt(&mut self, packets: &mut [Descriptor], now: Time, out: &mut Out<'_>) {
        // All headers first, so that later ones are fetched while one is waited for.
        let mut own = 0;
        for (packet, to) in packets.iter().zip(&mut *self.destinations) {
            *to = GROUP;
            // A frame shorter than its addresses counts as one to a group.
            if let Some(addresses) = packet.data().first_chunk() {
                let (destination, source) = numbers_of(addresses);
                *to = destination;
                if source != own {
                    self.learnt.note_own(source);
                    own = source;
                }
            }
        }
        let Bond { learnt, slots, .. } = self;
        let all_used = slots.all_used();
        let mut others = 0_u64;
        for (place, packet) in packets.iter_mut().enumerate() {
            let wire = learnt.wire_of(self.destinations[place % BURST], now, self.age_ns);
            match wire.filter(|&wire| all_used || slots.is_used(wire)) {
                Some(wire) => packet.wire = wire,
                None => {
                    self.counts.diverted += u64::from(wire.is_some());
                    others |= 1 << (place % BURST);
                }
            }
        }
        self.counts.known += packets.len() as u64 - u64::from(others.count_ones());
        while others != 0 {
            self.send_to_all(&mut packets[others.trailing_zeros() as usize], out);
            others &= others - 1;
        }
    }

    /// Sends a frame to a group or an unknown address.
    #[cold]
    fn send_to_all(&mut self, packet: &mut Descriptor, out: &mut Out<'_>) {
        packet.wire = self.slots.wire(0);
        if !self.flood {
            return;
        }
        self.counts.flooded += 1;
        for wire in self.slots.used().filter(|&wire| wire != packet.wire) {
            match out.copy(packet) {
                Some(mut copy) => {
                    // Its tx queue has sent one packet, not several.
                    copy.clear_tx_queue();
                    copy.wire = wire;
                    self.counts.copies += 1;
                    out.next(copy);
                }
                None => self.counts.lost_copies += 1,
            }
        }
    }

    /// Sends each packet on the wire of its flow.
    #[inline]
    fn send_by_flow(&mut self, packets: &mut [Descriptor]) {
        let hashes = self.flows.of_all(packets);
        for (packet, &hash) in packets.iter_mut().zip(hashes) {
            packet.wire = self.slots.wire_of_hash(hash);
        }
    }

    /// Sends each packet on the next wire, and counts those whose flow changes its wire.
    #[inline]
    fn send_in_turn(&mut self, packets: &mut [Descriptor]) {
        let hashes = self.flows.of_all(packets);
        for (packet, &hash) in packets.iter_mut().zip(hashes) {
            packet.wire = self.slots.wire(self.next);
            self.next += 1;
            if self.next == self.slots.len() {
                self.next = 0;
            }
            let wire = u16::from(packet.wire) + 1;
            let before = std::mem::replace(&mut self.last[hash as usize % FLOWS], wire);
            self.counts.spread += u64::from(before != 0 && before != wire);
        }
    }
}

impl Inspect for Bond {
    type State = Counts;

    fn inspect(&self) -> Counts {
        let order = self.order.as_ref().map(|order| order.counts).unwrap_or_default();
        Counts {
            wires_used: self.slots.used().count() as u64,
            wires_blocked: self.loops.as_ref().map_or(0, |loops| loops.count() as u64),
            late: order.late,
            restored: order.restored,
            given_up: order.given_up,
            ..self.counts
        }
    }
}

impl Function for Bond {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        if self.wires == 1 {
            return;
        }
        if out.stage() == Stage::Rx {
            return self.receive_all(now, burst, out);
        }
        self.counts.moved_parts += self.slots.follow(now, out, self.loops.as_deref()) as u64;
        self.counts.sent += burst.len() as u64;
        let packets = burst.as_mut_slice();
        if self.loops.is_some() {
            packets.iter().for_each(|packet| self.note_sent(packet, now));
        }
        match self.mode {
            Mode::Learn => self.send_learnt(packets, now, out),
            Mode::Flow => self.send_by_flow(packets),
            Mode::Queue => {
                for packet in packets {
                    packet.wire = self.slots.wire(packet.tx_queue().unwrap_or(0).into());
                }
            }
            Mode::RoundRobin => self.send_in_turn(packets),
            Mode::ActiveBackup => {
                let wire = self.slots.wire(0);
                packets.iter_mut().for_each(|packet| packet.wire = wire);
            }
        }
    }

    fn breaks_order(&self, direction: Direction) -> Option<Disorder> {
        // Received segments also use several wires in turn, and are put in order again with
        // `order_usecs`.
        let restores = || self.order.as_ref().is_some_and(|order| order.waits());
        let breaks = self.mode == Mode::RoundRobin
            && self.wires > 1
            && (direction == Direction::Tx || !restores());
        let allowed = match direction {
            Direction::Rx => "order_usecs above 0, or another mode",
            Direction::Tx => "another mode",
        };
        breaks.then_some(Disorder { key: "mode", found: "round-robin", allowed })
    }

    fn next_deadline(&self) -> Option<Time> {
        let order = self.order.as_ref().and_then(|order| order.next_deadline());
        let free = self.loops.as_ref().and_then(|loops| loops.next_free());
        order.into_iter().chain(free).min()
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        if let Some(order) = &mut self.order {
            order.flush(now, out);
        }
        // At the end of time this function ends; the other chain's may stay.
        if let Some(loops) = self.loops.as_ref().filter(|_| now != Time::MAX) {
            loops.follow(now);
        }
    }

    fn held(&self) -> usize {
        self.order.as_ref().map_or(0, |order| order.held())
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
