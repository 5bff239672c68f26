//! Packets that wait for wires: one lane per tx queue and wire, served round robin.
//!
//! ```text
//! tx queue 0 ─▶ lane 0 ─┐ deficit round robin
//! tx queue 1 ─▶ lane 1 ─┼──▶ ready ─▶ wire          and the same for every other wire
//! functions  ─▶ lane n ─┘   (a burst)
//! ```
//!
//! * *Fair*: lanes share a wire by bytes, for packets of any size
//!   ([`crate::turns`]). While no lane has to wait, packets are offered to the wire in order of
//!   arrival, up to a burst.
//! * *Bounded*: [`Limits`] bound what may wait for wires per tx queue. They are checked before a
//!   packet is taken from its tx ring ([`Backlog::admits`]), so the excess waits with the host,
//!   as with the kernel's byte queue limits.
//! * *Isolated*: a wire that takes nothing fills its own lanes and blocks only the queues that
//!   send to it. If the card has several wires, one that has taken nothing for [`STALL_NS`] is
//!   *stalled*: packets waiting for it no longer count against their queues, which can then send
//!   to the other wires; packets beyond the limits are dropped as `wire_full`.
//!
//! * *Classified*: a card with traffic classes ([`crate::classes`]) has these lanes once for each
//!   class, and the mark of a packet chooses. Classes share a wire by priority and weight, and the
//!   lanes of a class as above. The mark is known only after the chain, so a queue is not held
//!   back for one class: packets beyond the limits of a class's lane are dropped as `wire_full`.
//!   Priorities do not overtake the burst that was offered to the wire.
//!
//! Guarantees: order within a lane is kept; memory is bounded and allocated at the start. Packets
//! that functions send on their own (hairpins) have a separate lane and are not delayed,
//! but dropped once its limit of packets is reached.
//!
//! Source: byte queue limits, linux/Documentation/ABI/testing/sysfs-class-net-queues;
//! `docs/decisions/010-lanes-between-tx-rings-and-wires.md`, `docs/decisions/065-traffic-classes.md`.

use crate::classes::{ClassCounters, Classes, Level};
use crate::ledger::DropReason;
use crate::out::WireProgress;
use crate::packet::burst::BURST;
use crate::packet::desc::{Descriptor, GsoType};
use crate::stats::SteerCounters;
use crate::time::Time;
use crate::turns::{TurnEnd, Turns};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Nanoseconds without progress after which a wire with waiting packets is stalled.
pub const STALL_NS: u64 = 20_000_000;

/// How much of one tx queue may wait for wires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets; also the limit for packets sent by functions, per wire.
    pub packets: usize,
    /// Bytes. A single longer packet may wait.
    pub bytes: u64,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    packets: usize,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    fn remove(&mut self, other: Amount) {
        self.packets -= other.packets;
        self.bytes -= other.bytes;
    }

    /// Whether `more` fits on top of this.
    #[inline]
    fn admits(self, more: Amount, limits: Limits) -> bool {
        self.packets == 0
            || (self.packets + more.packets <= limits.packets
                && self.bytes + more.bytes <= limits.bytes)
    }
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<Descriptor>,
    /// Packets waiting here and in `ready`.
    waiting: Amount,
}

/// The lanes of one class.
#[derive(Debug)]
struct ClassLanes {
    /// Its packets in lanes.
    in_lanes: usize,
    turns: Turns,
    counters: Arc<ClassCounters>,
}

/// The classes of one priority.
#[derive(Debug)]
struct Priority {
    /// Their numbers.
    classes: Range<usize>,
    turns: Turns,
}

/// Packets waiting for one wire.
#[derive(Debug)]
struct WireLanes {
    /// By tx queue; the last is for packets of functions. As many for each class.
    lanes: Vec<Lane>,
    /// Lanes of a class.
    width: usize,
    /// One without traffic classes.
    classes: Vec<ClassLanes>,
    /// Highest first; none without traffic classes.
    priorities: Vec<Priority>,
    /// Packets offered to the wire, oldest first.
    ready: VecDeque<Descriptor>,
    /// The lane and bytes of each of those.
    tags: VecDeque<(u16, u32)>,
    waiting: usize,
    takes_super_frames: bool,
    stalled: bool,
    /// When it last took a packet, or had none to take.
    progress: Time,
}

/// One tx queue.
#[derive(Debug)]
struct TxQueue {
    /// Its packets that wait for wires that are not stalled.
    charged: Amount,
    counters: Arc<SteerCounters>,
}

/// All packets that wait for wires.
#[derive(Debug)]
pub struct Backlog {
    wires: Vec<WireLanes>,
    queues: Vec<TxQueue>,
    limits: Limits,
    waiting: usize,
    classes: Option<Classes>,
    /// The lane of packets of functions and residents that are not marked: the watched ones.
    own: usize,
}

impl Backlog {
    /// An empty backlog of `wires` wires, for the tx queues of these counters.
    pub fn new(wires: usize, queues: Vec<Arc<SteerCounters>>, limits: Limits) -> Self {
        let lane = || Lane { packets: VecDeque::with_capacity(limits.packets), ..Lane::default() };
        let lanes = queues.len() + 1;
        let wire = || WireLanes {
            lanes: (0..lanes).map(|_| lane()).collect(),
            width: lanes,
            classes: vec![ClassLanes::new(lanes)],
            priorities: Vec::new(),
            ready: VecDeque::with_capacity(BURST),
            tags: VecDeque::with_capacity(BURST),
            waiting: 0,
            takes_super_frames: true,
            stalled: false,
            progress: Time::ZERO,
        };
        let queue = |counters| TxQueue { charged: Amount::default(), counters };
        Backlog {
            wires: (0..wires).map(|_| wire()).collect(),
            queues: queues.into_iter().map(queue).collect(),
            limits,
            waiting: 0,
            classes: None,
            own: lanes - 1,
        }
    }

    /// Gives an empty backlog the lanes of traffic classes.
    #[must_use]
    pub fn classified(mut self, classes: Classes) -> Self {
        for wire in &mut self.wires {
            let packets = self.limits.packets;
            let lane = || Lane { packets: VecDeque::with_capacity(packets), ..Lane::default() };
            wire.lanes = (0..classes.count() * wire.width).map(|_| lane()).collect();
            wire.classes = (0..classes.count()).map(|_| ClassLanes::new(wire.width)).collect();
            let priority = |level: Level| Priority {
                turns: Turns::weighted(&level.quanta),
                classes: level.classes,
            };
            wire.priorities = classes.levels().into_iter().map(priority).collect();
        }
        let width = self.queues.len() + 1;
        self.own = classes.class_of(0) * width + width - 1;
        self.classes = Some(classes);
        self
    }

    /// The counters of each class at a wire, with its name; none without traffic classes.
    pub fn class_counters(&self, wire: usize) -> Vec<(String, Arc<ClassCounters>)> {
        let (Some(classes), Some(wire)) = (&self.classes, self.wires.get(wire)) else {
            return Vec::new();
        };
        let counters = wire.classes.iter().map(|class| class.counters.clone());
        classes.names().map(str::to_owned).zip(counters).collect()
    }

    /// Limit of waiting bytes of one tx queue, over all its lanes.
    #[inline]
    fn queue_limits(&self) -> Limits {
        match &self.classes {
            None => self.limits,
            Some(classes) => Limits {
                packets: self.limits.packets.saturating_mul(classes.count()),
                bytes: self.limits.bytes.saturating_mul(classes.count() as u64),
            },
        }
    }

    /// Sets whether a wire takes super-frames or they are dropped.
    pub fn set_super_frames(&mut self, wire: usize, taken: bool) {
        if let Some(wire) = self.wires.get_mut(wire) {
            wire.takes_super_frames = taken;
        }
    }

    /// Number of wires.
    pub fn wires(&self) -> usize {
        self.wires.len()
    }

    /// Packets that wait, for all wires.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether packets wait for a wire.
    #[inline]
    pub fn is_waiting_for(&self, wire: usize) -> bool {
        self.wires.get(wire).is_some_and(|wire| wire.waiting != 0)
    }

    /// The packets that wait for a wire: those offered to it, then lane by lane.
    pub fn waiting_for(&self, wire: usize) -> impl Iterator<Item = &Descriptor> {
        let wire = self.wires.get(wire).into_iter();
        wire.flat_map(|wire| {
            wire.ready.iter().chain(wire.lanes.iter().flat_map(|lane| &lane.packets))
        })
    }

    /// Whether a tx queue may send another packet of `bytes` bytes, given `packets` packets of
    /// `taken` bytes that were taken from its ring and are not queued here yet.
    #[inline]
    pub fn admits(&self, queue: usize, packets: usize, taken: u64, bytes: u32) -> bool {
        let Some(queue) = self.queues.get(queue) else { return true };
        let mut waiting = queue.charged;
        waiting.add(Amount { packets, bytes: taken });
        waiting.admits(Amount { packets: 1, bytes: bytes.into() }, self.queue_limits())
    }

    /// Puts a packet on the lane of its tx queue at a wire.
    ///
    /// # Errors
    /// The packet, and why it cannot wait.
    #[inline]
    pub fn push(&mut self, packet: Descriptor, wire: u8) -> Result<(), (Descriptor, DropReason)> {
        let Some(wire) = self.wires.get_mut(usize::from(wire)) else {
            return Err((packet, DropReason::NoSuchWire));
        };
        if !wire.takes_super_frames && packet.gso_type() != GsoType::None {
            return Err((packet, DropReason::SuperFrame));
        }
        let own = wire.width - 1;
        let queue = packet.tx_queue().map_or(own, |queue| usize::from(queue).min(own));
        let class = self.classes.as_ref().map_or(0, |classes| classes.class_of(packet.mark));
        let index = class * wire.width + queue;
        let is_direct = wire.in_lanes() == 0 && wire.ready.len() < BURST;
        let lane = &mut wire.lanes[index];
        let amount = Amount { packets: 1, bytes: packet.length().into() };
        if lane.waiting.packets >= self.limits.packets
            || ((wire.stalled || self.classes.is_some())
                && !lane.waiting.admits(amount, self.limits))
        {
            wire.classes[class].counters.dropped.add(1);
            return Err((packet, DropReason::WireFull));
        }
        // If no lane waits for its turn, this packet need not either.
        if is_direct {
            wire.ready.push_back(packet);
            wire.tags.push_back((index as u16, amount.bytes as u32));
        } else {
            lane.packets.push_back(packet);
            wire.classes[class].in_lanes += 1;
        }
        lane.waiting.add(amount);
        wire.waiting += 1;
        self.waiting += 1;
        if !wire.stalled
            && let Some(queue) = self.queues.get_mut(queue)
        {
            queue.charge(amount);
        }
        Ok(())
    }

    /// Whether functions may send `packets` more on their own, to any wire.
    #[inline]
    pub fn own_has_room(&self, packets: usize) -> bool {
        self.wires.iter().all(|wire| {
            let own = wire.lanes.iter().skip(wire.width - 1).step_by(wire.width);
            let most = own.map(|lane| lane.waiting.packets).max().unwrap_or(0);
            most == 0 || most + packets <= self.limits.packets
        })
    }

    /// Unmarked packets of functions and residents that wait for a wire.
    pub(crate) fn own_waiting(&self, wire: usize) -> usize {
        let lane = self.wires.get(wire).and_then(|wire| wire.lanes.get(self.own));
        lane.map_or(0, |lane| lane.waiting.packets)
    }

    /// Makes a packet unmarked, which puts it among those that can be watched.
    pub(crate) fn unmark(&self, packet: &mut Descriptor) {
        if self.classes.is_some() {
            packet.mark = 0;
        }
    }

    /// Offers a wire its packets, a burst at a time, until it leaves some or has taken all.
    /// `transmit` takes packets from the front, as many as it likes, and returns which of those it
    /// dropped: bit 0 is the first. Packets that leave the functions' lane are recorded in
    /// `progress`. A wire without packets is called only if it `keeps` some given to it before.
    /// Returns the number of packets taken, if it was called.
    #[inline]
    pub fn serve(
        &mut self,
        wire: usize,
        now: Time,
        keeps: bool,
        progress: &mut WireProgress,
        transmit: impl FnMut(&mut VecDeque<Descriptor>) -> u64,
    ) -> Option<usize> {
        let lanes = &mut self.wires[wire];
        if lanes.waiting == 0 {
            lanes.progress = now;
            if !keeps {
                return None;
            }
        }
        Some(self.serve_waiting(wire, now, progress, transmit))
    }

    fn serve_waiting(
        &mut self,
        index: usize,
        now: Time,
        progress: &mut WireProgress,
        mut transmit: impl FnMut(&mut VecDeque<Descriptor>) -> u64,
    ) -> usize {
        // A wire that only keeps packets is not stalled.
        let (mut taken, idle) = (0, self.wires[index].waiting == 0);
        loop {
            let wire = &mut self.wires[index];
            wire.make_ready();
            let before = wire.ready.len();
            let dropped = transmit(&mut wire.ready);
            let gone = before - wire.ready.len();
            taken += gone;
            self.complete(index, gone, dropped, progress);
            let wire = &mut self.wires[index];
            if gone == before {
                wire.ready.clear();
                wire.tags.clear();
            }
            if gone < before || wire.waiting == 0 {
                break;
            }
        }
        self.note_progress(index, now, taken != 0 || idle);
        taken
    }

    /// The oldest `gone` packets offered to a wire have left.
    fn complete(&mut self, index: usize, gone: usize, dropped: u64, progress: &mut WireProgress) {
        let (own, is_classified) = (self.own, self.classes.is_some());
        let Backlog { wires, queues, .. } = self;
        let wire = &mut wires[index];
        // Consecutive packets are mostly of one lane: accounts are settled once per run.
        let (mut run_of, mut run) = (own, Amount::default());
        let mut settle_run = |lanes: &mut [Lane], lane: usize, run: Amount| {
            let queue = if is_classified { lane % wire.width } else { lane };
            settle(&mut lanes[lane], queues.get_mut(queue), run, wire.stalled);
            if is_classified && run.packets != 0 {
                let counters = &wire.classes[lane / wire.width].counters;
                counters.packets.add(run.packets as u64);
                counters.bytes.add(run.bytes);
            }
        };
        for (place, (lane, bytes)) in wire.tags.drain(..gone).enumerate() {
            let lane = usize::from(lane);
            if lane != run_of {
                settle_run(&mut wire.lanes, run_of, run);
                (run_of, run) = (lane, Amount::default());
            }
            run.add(Amount { packets: 1, bytes: bytes.into() });
            if lane == own {
                progress.advance(dropped >> place & 1 != 0);
            }
        }
        settle_run(&mut wire.lanes, run_of, run);
        wire.waiting -= gone;
        self.waiting -= gone;
    }

    /// Updates whether a wire is stalled.
    fn note_progress(&mut self, index: usize, now: Time, progress: bool) {
        // With a single wire there is no other to serve: packets wait with the host.
        let several = self.wires.len() > 1;
        let wire = &mut self.wires[index];
        let stalls = !progress && several && (wire.stalled || now.since(wire.progress) >= STALL_NS);
        if progress {
            wire.progress = now;
        }
        if stalls == wire.stalled {
            return;
        }
        wire.stalled = stalls;
        for lanes in wire.lanes.chunks(wire.width) {
            for (lane, queue) in lanes.iter().zip(&mut self.queues) {
                if stalls {
                    queue.discharge(lane.waiting);
                } else {
                    queue.charge(lane.waiting);
                }
            }
        }
    }

    /// Removes any waiting packet.
    pub fn take(&mut self) -> Option<Descriptor> {
        let index = self.wires.iter().position(|wire| wire.waiting != 0)?;
        let wire = &mut self.wires[index];
        wire.make_ready();
        let packet = wire.ready.pop_front();
        // Nobody asks for its fate any more.
        self.complete(index, 1, 0, &mut WireProgress::default());
        packet
    }
}

/// Removes an amount from a lane; its tx queue has that much more room.
#[inline]
fn settle(lane: &mut Lane, queue: Option<&mut TxQueue>, amount: Amount, stalled: bool) {
    if amount.packets == 0 {
        return;
    }
    lane.waiting.remove(amount);
    let Some(queue) = queue else { return };
    if !stalled {
        queue.discharge(amount);
    }
    queue.counters.tx_completed.add(amount.packets as u64);
    queue.counters.tx_completed_bytes.add(amount.bytes);
}

impl TxQueue {
    #[inline]
    fn charge(&mut self, amount: Amount) {
        self.charged.add(amount);
        self.counters.tx_in_flight_bytes.set(self.charged.bytes);
    }

    #[inline]
    fn discharge(&mut self, amount: Amount) {
        self.charged.remove(amount);
        self.counters.tx_in_flight_bytes.set(self.charged.bytes);
    }
}

impl WireLanes {
    /// Packets that wait for their lane's turn.
    fn in_lanes(&self) -> usize {
        self.waiting - self.ready.len()
    }

    /// Refills the packets offered to the wire.
    fn make_ready(&mut self) {
        if self.in_lanes() == 0 || self.ready.len() == BURST {
            return;
        }
        let WireLanes { lanes, width, classes, priorities, ready, tags, .. } = self;
        if priorities.is_empty() {
            let mut unlimited = u32::MAX;
            classes[0].fill(0, lanes, &mut unlimited, ready, tags);
            return;
        }
        for Priority { classes: numbers, turns } in priorities {
            let first = numbers.start;
            let earns = |class: &mut ClassLanes| class.in_lanes != 0;
            turns.serve(&mut classes[numbers.clone()], earns, |place, class, credit| {
                let start = (first + place) * *width;
                class.fill(start, &mut lanes[start..start + *width], credit, ready, tags)
            });
            if ready.len() == BURST {
                return;
            }
        }
    }
}

impl ClassLanes {
    fn new(lanes: usize) -> Self {
        ClassLanes { in_lanes: 0, turns: Turns::new(lanes), counters: Arc::default() }
    }

    /// Offers packets to the wire, lane by lane, a quantum of bytes each, within the credit of the
    /// class. `start` is the number of its first lane.
    #[inline]
    fn fill(
        &mut self,
        start: usize,
        lanes: &mut [Lane],
        credit: &mut u32,
        ready: &mut VecDeque<Descriptor>,
        tags: &mut VecDeque<(u16, u32)>,
    ) -> TurnEnd {
        let mut end = TurnEnd::Empty;
        let in_lanes = &mut self.in_lanes;
        let earns = |lane: &mut Lane| !lane.packets.is_empty();
        self.turns.serve(lanes, earns, |index, lane, deficit| {
            while let Some(packet) = lane.packets.front() {
                let length = packet.length();
                if length > *deficit {
                    return TurnEnd::Spent;
                }
                if ready.len() == BURST {
                    end = TurnEnd::Full;
                    return TurnEnd::Full;
                }
                if length > *credit {
                    end = TurnEnd::Spent;
                    // The lane continues with its deficit at the class's next turn.
                    return TurnEnd::Full;
                }
                *deficit -= length;
                *credit -= length;
                if let Some(packet) = lane.packets.pop_front() {
                    *in_lanes -= 1;
                    ready.push_back(packet);
                    tags.push_back(((start + index) as u16, length));
                }
            }
            // Restart where the memory is warm.
            lane.packets.clear();
            TurnEnd::Empty
        });
        end
    }
}
