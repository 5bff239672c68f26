//! The target core's routine: the second stage of the paper's interrupt routine.
//!
//! ```text
//! doorbell ─▶ begin ─▶ take a burst ─▶ host ─▶ buffers home ─▶ ring empty? ─▶ re-arm
//!                          ▲                                     no │  │ something came
//!                          └────────────────────────────────────────┴──┘ in between
//! ```
//!
//! A queue's interrupt stays off while it has work (KNET); with `gate = "none"` it does not, and
//! interrupts preempt the application (Mogul and Ramakrishnan's livelock). Several queues may
//! share a core; a queue never has two. With `host.system = "clas"` or `"napi"` the first queue's
//! core hands packets to the others (`handover.rs`).

mod queues;

pub use queues::Target;

use crate::handover::Share;
use crate::rx::LATENCY_SAMPLE;
use hdrhistogram::Histogram;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::config::{GateMode, InterruptSection, TxComplete};
use picnic_core::doorbell::Doorbell;
use picnic_core::fill::FillReceiver;
use picnic_core::guard::{QueueGuard, Screen};
use picnic_core::hook::Observers;
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::ReturnSender;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::spsc::{Consumer, Producer};
use picnic_core::stats::{Counter, TargetCounters};
use picnic_core::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;

/// Longer latencies are recorded as this, in nanoseconds.
const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Ages are kept in 48 bits; from here on they are negative.
const RECEIVED_LATER_NS: u64 = 1 << 47;

/// Interval, in nanoseconds, at which a core checks for events that no doorbell announces: a target
/// for buffers or room for its host, the borrowed core for returning buffers.
pub const LOOKS_AGAIN_NS: u64 = 100_000;

/// Most packets waiting for an application that interrupts preempt: the default of Linux
/// (`netdev_max_backlog`).
const APPLICATION_PACKETS: usize = 1000;

/// The work of one poll of the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Interrupts taken.
    pub interrupts: usize,
    /// Packets moved off target rings: the driver's work.
    pub moved: usize,
    /// Packets handed to the cores of their flows in software, including this core.
    pub handed: usize,
    /// Packets handed to the host.
    pub packets: usize,
    /// Packets that the host sent on its own.
    pub transmitted: usize,
    /// Modelled nanoseconds of the host's work, which the world lets pass.
    pub work_ns: u64,
}

/// One target queue, on the target core.
pub struct TargetQueue {
    pub(crate) index: u16,
    pub(crate) ring: Consumer<Descriptor>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) returns: ReturnSender,
    pub(crate) tx: Producer<Descriptor>,
    /// Empty buffers for a host that sends on its own, until it stops.
    pub(crate) fill: Option<FillReceiver>,
    pub(crate) host: Box<dyn HostQueue>,
    /// Judges packets for the host, if installed.
    pub(crate) guard: Option<Box<dyn QueueGuard>>,
    /// Observers of packets for the host.
    pub(crate) observers: Observers,
    /// Judges packets from the host, if installed.
    pub(crate) screen: Option<Box<dyn Screen>>,
    pub(crate) counters: Arc<TargetCounters>,
    pub(crate) ledger: Arc<Ledger>,
    /// Wakes the borrowed core for transmission.
    pub(crate) card_gate: Arc<Gate>,
    pub(crate) card_doorbell: Arc<dyn Doorbell>,
    /// Packets handed to other cores or received from them, if flows are distributed in software.
    pub(crate) share: Option<Share>,
    pub(crate) pacing: Arc<Pacing>,
    /// In an offline card, packets without room on the tx ring stay in the target ring.
    pub(crate) offline: bool,
    pub(crate) state: QueueState,
}

/// Timing of target routines, in nanoseconds; the borrowed core may change it. On separate cache
/// lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Pacing {
    /// How long they keep polling without packets: `interrupt.poll_usecs`.
    pub(crate) poll_ns: Counter,
    /// How long hosts' packets may wait for others: `interrupt.tx_usecs`.
    pub(crate) tx_ns: Counter,
    /// Interrupts are not masked while a queue is busy: `interrupt.gate`.
    pub(crate) unmasked: Counter,
    /// Hosts get an interrupt when there is room to send: `interrupt.tx_complete`.
    pub(crate) tx_complete: Counter,
}

impl Pacing {
    pub(crate) fn new(section: &InterruptSection) -> Self {
        let (poll_ns, tx_ns, unmasked, tx_complete) = Default::default();
        let pacing = Pacing { poll_ns, tx_ns, unmasked, tx_complete };
        pacing.tx_complete.set((section.tx_complete != TxComplete::Off).into());
        pacing.unmasked.set((section.gate == GateMode::None).into());
        pacing.poll_ns.set(u64::from(section.poll_usecs) * 1000);
        pacing.tx_ns.set(u64::from(section.tx_usecs) * 1000);
        pacing
    }
}

/// The routine's state of a queue.
pub(crate) struct QueueState {
    polling: bool,
    /// Most packets taken off the ring in one poll.
    limit: usize,
    /// What this core is handed in software waits for a later look.
    hands_over: bool,
    /// Interrupts are not masked, as of the last interrupt or rest.
    unmasked: bool,
    /// An interrupt was taken and has not yet emptied the ring.
    interrupted: bool,
    /// Packets that an interrupt left for the application; bounded.
    application: VecDeque<Descriptor>,
    /// Room has appeared since the host was refused it.
    retry: bool,
    /// The host had to wait for a buffer or for room on the tx ring.
    starved: bool,
    /// The borrowed core was asked to interrupt when there is some.
    asked: bool,
    /// The host has sent since the core last went to sleep.
    sent: bool,
    last_packet: Time,
    sample_in: u32,
    latency: Histogram<u64>,
}

/// An empty latency histogram: two significant digits, from 1 ns to 100 s.
pub fn latency_histogram() -> Histogram<u64> {
    // The bounds are constants, so this cannot fail, and the fallback is never used.
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 2)
        .unwrap_or_else(|_| Histogram::new(2).unwrap_or_else(|_| unreachable!()))
}

impl QueueState {
    /// The state of a new queue. If interrupts are not masked, this holds from the first packet on:
    /// a queue that is overloaded from the start never rests.
    pub(crate) fn new(unmasked: bool) -> Self {
        QueueState {
            polling: true,
            limit: BURST,
            hands_over: false,
            unmasked,
            interrupted: false,
            application: VecDeque::with_capacity(APPLICATION_PACKETS),
            retry: false,
            starved: false,
            asked: false,
            sent: false,
            last_packet: Time::ZERO,
            sample_in: 0,
            latency: latency_histogram(),
        }
    }
}

impl TargetQueue {
    /// The queue's number.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Latencies from wire to this routine, in nanoseconds; one packet in 16 is recorded.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.state.latency
    }

    /// Its host's report to the user at the end.
    pub fn report(&self) -> Vec<String> {
        self.host.report()
    }

    /// Polls the queue once: takes a pending interrupt, handles a burst, re-arms if the ring is
    /// empty; then the host sends.
    pub fn poll(&mut self, now: Time, burst: &mut Burst) -> Polled {
        self.look(now, burst, true)
    }

    /// Like [`TargetQueue::poll`], but takes an interrupt only if it has `arrived` at the core.
    #[inline(always)]
    fn look(&mut self, now: Time, burst: &mut Burst, arrived: bool) -> Polled {
        let mut polled = self.receive(now, burst, arrived);
        if self.fill.is_some() {
            polled.transmitted = self.transmit(now);
        }
        polled
    }

    #[inline(always)]
    fn receive(&mut self, now: Time, burst: &mut Burst, arrived: bool) -> Polled {
        let mut interrupts = 0;
        if arrived && (!self.state.polling || self.state.unmasked) && self.gate.begin() {
            self.counters.interrupts.add(1);
            interrupts = 1;
            self.state.interrupted = true;
            self.state.polling = true;
            self.state.last_packet = now;
            self.state.unmasked = self.pacing.unmasked.get() != 0;
        }
        if self.share.is_some() {
            return Polled { interrupts, ..self.receive_share(now, burst) };
        }
        if !self.state.polling {
            return Polled::default();
        }
        // Packets waiting for the application go before the ring, in any mode.
        let preempted = self.state.unmasked || !self.state.application.is_empty();
        if preempted && self.host.is_application() {
            return Polled { interrupts, ..self.preempt(now, burst) };
        }
        Polled { interrupts, ..self.take_burst(now, burst) }
    }

    /// An unmasked interrupt: moves packets from the ring to the application's queue. Without an
    /// interrupt, the application handles one packet.
    #[cold]
    fn preempt(&mut self, now: Time, burst: &mut Burst) -> Polled {
        self.counters.polls.add(1);
        let room = APPLICATION_PACKETS - self.state.application.len();
        if self.offline && !self.tx.has_room(1) {
            return Polled::default();
        }
        // Without an interrupt, packets in the ring will cause one. An offline card loses nothing
        // for lack of room.
        if self.state.interrupted && !(self.offline && room < burst.room()) {
            self.ring.refresh();
            burst.fill_from(&mut self.ring);
            self.ring.release();
            self.state.interrupted = self.ring.available() != 0;
            self.sample_latency(now, burst);
            let moved = burst.len();
            let ledger = &self.ledger.queues[usize::from(self.index)];
            for packet in burst.drain() {
                if self.state.application.len() < APPLICATION_PACKETS {
                    self.state.application.push_back(packet);
                } else {
                    ledger.taken.add(1);
                    ledger.drops.add(DropReason::HostRefused, Stage::Target, 1);
                    self.returns.give_back(packet);
                }
            }
            self.returns.publish();
            return Polled { moved, ..Polled::default() };
        }
        match self.state.application.pop_front() {
            Some(packet) => {
                let _ = burst.push(packet);
                self.state.last_packet = now;
                self.handle(now, burst)
            }
            None => {
                self.counters.empty_polls.add(1);
                self.rest();
                // A ring that turns out not to be empty counts as an interrupt's work.
                self.state.interrupted = self.state.polling;
                Polled::default()
            }
        }
    }

    /// Distributes flows in software: hands packets from the ring to the cores of their flows, and
    /// handles this core's share. An interrupt empties the ring first, then handles one packet of
    /// this core's share; a poll finishes the share before it takes more from the ring.
    #[cold]
    fn receive_share(&mut self, now: Time, burst: &mut Burst) -> Polled {
        let Some(share) = &self.share else { return Polled::default() };
        let preempts = share.receives() && share.is_interrupt();
        let own_first = !preempts && share.is_waiting();
        if self.state.polling && !own_first {
            self.counters.polls.add(1);
            // An offline card loses nothing for lack of room.
            if !self.offline || share.has_room(burst.room()) {
                self.ring.refresh();
                self.fill(burst);
                self.ring.release();
            }
            if !burst.is_empty() {
                self.state.last_packet = now;
                return self.hand_over(burst);
            }
            self.counters.empty_polls.add(1);
            if now.since(self.state.last_packet) >= self.pacing.poll_ns.get() {
                self.rest();
            }
        }
        if self.state.hands_over {
            return Polled::default();
        }
        let Some(share) = &self.share else { return Polled::default() };
        let most = if preempts { 1 } else { burst.room() };
        if (self.state.polling || preempts) && (!self.offline || self.tx.has_room(most)) {
            share.take(burst, most);
        }
        if burst.is_empty() {
            return Polled::default();
        }
        let stack_ns = if share.is_behind_stack() { self.host.stack_ns() } else { 0 };
        if !preempts {
            self.state.last_packet = now;
        }
        self.sample_latency(now, burst);
        let stack_ns = stack_ns * burst.len() as u64;
        let polled = self.handle(now, burst);
        Polled { work_ns: polled.work_ns.saturating_sub(stack_ns), ..polled }
    }

    /// Hands the packets of a burst to their cores; packets without room there are lost.
    fn hand_over(&mut self, burst: &mut Burst) -> Polled {
        let Some(share) = &self.share else { return Polled::default() };
        let moved = burst.len();
        let stack_ns = if share.is_behind_stack() { self.host.stack_ns() } else { 0 };
        let mut handed = 0;
        for packet in burst.drain() {
            match share.pass(packet) {
                Ok(()) => handed += 1,
                Err(packet) => self.returns.give_back(packet),
            }
        }
        self.returns.publish();
        if handed != moved {
            // Packets handed over have not reached the host yet.
            let (ledger, lost) = (&self.ledger.queues[usize::from(self.index)], moved - handed);
            ledger.taken.add(lost as u64);
            ledger.drops.add(DropReason::HostRefused, Stage::Target, lost as u64);
        }
        Polled { moved, handed, work_ns: stack_ns * moved as u64, ..Polled::default() }
    }

    /// Whether there is more to do: in the ring, or in this core's share.
    fn has_more(&mut self) -> bool {
        let is_handed =
            |share: &Share| !(share.receives() && share.is_interrupt()) && share.is_waiting();
        self.ring.refresh() != 0 || self.share.as_ref().is_some_and(is_handed)
    }

    #[inline]
    fn take_burst(&mut self, now: Time, burst: &mut Burst) -> Polled {
        self.counters.polls.add(1);
        if self.offline && !self.tx.has_room(burst.room()) {
            return Polled::default();
        }
        // The index is read again if the known packets do not fill a burst.
        if self.ring.available() < burst.room() {
            self.ring.refresh();
        }
        // Cache lines of the borrowed core: requested together, they arrive together.
        let ready = self.ring.available().min(burst.room());
        self.ring.prefetch_slots(ready);
        self.fill(burst);
        if burst.is_empty() {
            self.counters.empty_polls.add(1);
            if now.since(self.state.last_packet) >= self.pacing.poll_ns.get() {
                self.rest();
            }
            return Polled::default();
        }
        self.ring.release();
        self.state.last_packet = now;
        self.sample_latency(now, burst);
        let moved = burst.len();
        Polled { moved, ..self.handle(now, burst) }
    }

    /// Takes as many packets as fit into an empty burst, or as the limit allows.
    #[inline]
    fn fill(&mut self, burst: &mut Burst) {
        if self.state.limit == BURST {
            burst.fill_from(&mut self.ring);
        } else {
            self.take_few(burst);
        }
    }

    #[cold]
    fn take_few(&mut self, burst: &mut Burst) {
        for _ in 0..self.state.limit {
            let Some(packet) = self.ring.pop() else { return };
            // A burst has room for more than the limit.
            let _ = burst.push(packet);
        }
    }

    fn handle(&mut self, now: Time, burst: &mut Burst) -> Polled {
        let packets = burst.len();
        let ledger = &self.ledger.queues[usize::from(self.index)];
        ledger.taken.add(packets as u64);
        let submitted = self.counters.transmitted.get();
        let mut out = QueueOut::new(&mut self.returns, &mut self.tx, &self.counters, ledger)
            .with_screen(self.screen.as_deref_mut());
        if let Some(guard) = &mut self.guard {
            guard.receive(now, burst, &mut out);
        }
        self.observers.show(now, Stage::Target, burst.as_slice());
        let work_ns = if burst.is_empty() { 0 } else { self.host.deliver(now, burst, &mut out) };
        // Packets that the host left in the burst return as delivered.
        for packet in burst.drain() {
            out.deliver(packet);
        }
        drop(out);
        if self.counters.transmitted.get() != submitted {
            self.wake_card();
        }
        Polled { packets, work_ns, ..Polled::default() }
    }

    /// Lets the host send, into empty buffers from the fill ring.
    fn transmit(&mut self, now: Time) -> usize {
        let Some(fill) = &mut self.fill else { return 0 };
        let ledger = &self.ledger.queues[usize::from(self.index)];
        let submitted = self.counters.transmitted.get();
        let mut out = QueueOut::new(&mut self.returns, &mut self.tx, &self.counters, ledger)
            .with_screen(self.screen.as_deref_mut())
            .with_fill(fill);
        let packets = self.host.transmit(now, &mut out);
        let wanted = out.wanted();
        let has_used_up_buffers = out.has_used_up_buffers();
        self.state.starved = wanted != 0;
        self.state.sent |= packets != 0;
        drop(out);
        if has_used_up_buffers || self.counters.transmitted.get() != submitted {
            self.wake_card();
        }
        if self.pacing.tx_complete.get() != 0 {
            self.ask_for_room(wanted);
        } else if self.counters.starved.get() != 0 {
            self.ask_for_room(0);
        }
        packets
    }

    /// Asks the borrowed core to interrupt when there is room, if the host was refused `wanted`
    /// buffers; then checks again, so that no wake-up is lost: whether there is room, and whether
    /// the borrowed core still interrupts.
    fn ask_for_room(&mut self, wanted: usize) {
        self.counters.starved.set((wanted != 0).into());
        (self.state.asked, self.state.retry) = (false, false);
        if wanted != 0
            && let Some(fill) = &mut self.fill
        {
            Gate::order_publish();
            self.state.asked = self.pacing.tx_complete.get() != 0;
            self.state.retry = self.tx.has_room(1) && fill.has(wanted);
        }
    }

    /// Wakes the borrowed core if it sleeps: the host has sent packets, or used up its buffers.
    fn wake_card(&mut self) {
        Gate::order_publish();
        if self.card_gate.interrupt() {
            self.card_doorbell.ring();
        }
    }

    /// Stops the host's sending; its empty buffers return. For use after the borrowed core has
    /// stopped receiving: it then hands out no more buffers.
    pub fn stop_transmitting(&mut self) {
        if let Some(mut fill) = self.fill.take() {
            fill.empty(&mut self.returns);
            self.state.starved = false;
            self.ask_for_room(0);
        }
    }

    fn sample_latency(&mut self, now: Time, burst: &Burst) {
        let mut index = self.state.sample_in as usize;
        let (mut sum_ns, mut packets) = (0, 0);
        while let Some(packet) = burst.as_slice().get(index) {
            // The card may have read its clock after this core did: such a packet is new.
            let age = packet.age(now);
            let age = if age < RECEIVED_LATER_NS { age } else { 0 };
            self.state.latency.saturating_record(age.clamp(1, LATENCY_MAX_NS));
            sum_ns += age;
            packets += 1;
            index += LATENCY_SAMPLE as usize;
        }
        self.state.sample_in = (index - burst.len()) as u32;
        if packets != 0 {
            self.counters.latency_ns.add(sum_ns);
            self.counters.latency_packets.add(packets);
        }
    }

    /// Enables the interrupt, then checks again, so that no wake-up is lost.
    fn rest(&mut self) {
        self.state.unmasked = self.pacing.unmasked.get() != 0;
        if self.state.unmasked {
            // A pending interrupt is taken at the next poll.
            if self.gate.rest() {
                self.state.polling = self.has_more() && self.gate.resume();
            }
            return;
        }
        self.gate.rearm();
        self.state.polling = self.has_more() && self.gate.resume();
    }

    /// Whether the queue waits for its doorbell.
    pub fn is_resting(&self) -> bool {
        // A core that is interrupted to hand over handles its own share without an interrupt.
        let has_share = self.share.as_ref();
        let has_share = has_share.is_some_and(|share| share.receives() && share.is_waiting());
        !self.state.polling && !self.state.retry && !has_share
    }

    /// Whether the ring is empty now, and nothing waits for an application or for this core. For
    /// use after steering has ended; a core that hands packets over then tells the others.
    pub fn is_empty(&mut self) -> bool {
        let is_empty = self.ring.refresh() == 0 && self.state.application.is_empty();
        let Some(share) = &self.share else { return is_empty };
        if is_empty {
            share.end();
        }
        is_empty && share.is_over()
    }
}
