//! The poll engine: one turn of the borrowed core.
//!
//! A world calls [`Card::poll`] repeatedly with the time. A turn works, then publishes its results
//! to other cores and wires. A world in which work takes modelled time calls [`Card::work`] and,
//! after that time, [`Card::publish`]. Each turn takes at most one burst from every wire and one
//! from the tx rings, so its length is bounded. If there is a resident ([`picnic_core::resident`]),
//! its turns alternate with these while it has something to run. After a turn in which a wire gave
//! a whole burst, and so may have more, packets go next again, until the resident's patience ends.

mod resident;

use crate::chain::{Chain, ChainFunction, Stopwatch};
use crate::rx::{self, Wire};
use crate::swap::Mailbox;
use crate::target::{LOOKS_AGAIN_NS, Pacing};
use crate::tx::{self, TxRings};
use picnic_core::attachment::HostAttachment;
use picnic_core::backlog::STALL_NS;
use picnic_core::config::TxComplete;
use picnic_core::fill::FillSender;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Doors;
use picnic_core::packet::burst::Burst;
use picnic_core::port::Clocks;
use picnic_core::resident::Segment;
use picnic_core::ring::gate::Gate;
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
pub(crate) use resident::Resident;
use std::sync::Arc;

/// The work of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Packets taken from wires, without those that a wire shed.
    pub received: usize,
    /// Packets taken from tx rings.
    pub submitted: usize,
    /// Packets that the wires took.
    pub transmitted: usize,
    /// A wire other than a patient one gave a whole burst, and so may have more.
    pub is_behind: bool,
    /// The resident wants a turn: poll again at once, with the then current time.
    pub resident_due: bool,
    /// The segment that the resident ran, if this was its turn.
    pub segment: Option<Segment>,
}

impl Activity {
    /// Whether there was nothing to do.
    pub fn is_idle(&self) -> bool {
        self.is_without_packets() && !self.resident_due && self.segment.is_none()
    }

    /// Whether no packet was taken or sent.
    pub fn is_without_packets(&self) -> bool {
        self.received + self.submitted + self.transmitted == 0
    }
}

/// A turn after its work: packets are staged for target rings, and no other core sees them yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    activity: Activity,
    /// Packets published before the turn's end.
    published: usize,
    /// It was the resident's turn.
    is_resident: bool,
}

impl Work {
    /// Packets taken.
    fn taken(&self) -> usize {
        self.activity.received + self.activity.submitted
    }
}

/// Whether waiting hosts get an interrupt when there is room to send.
pub(crate) struct Completions {
    pub(crate) mode: TxComplete,
    /// Counters of each queue's target.
    pub(crate) hosts: Vec<Arc<TargetCounters>>,
}

impl Completions {
    /// Changes the mode; returns the previous one. Hosts that wait for an interrupt check for
    /// themselves, since it may not come.
    pub(crate) fn change(
        &mut self,
        now: Time,
        mode: TxComplete,
        pacing: &Pacing,
        tx_rings: &mut TxRings,
        doors: &mut Doors,
    ) -> TxComplete {
        pacing.tx_complete.set((mode != TxComplete::Off).into());
        // Change the mode, then check who waits; a host does it in the opposite order.
        Gate::order_publish();
        for (queue, host) in self.hosts.iter().enumerate() {
            if host.starved.get() != 0 {
                doors.complete(now, queue, 1, true);
            }
        }
        // Room from before the change is not reported.
        tx_rings.take_room().for_each(drop);
        std::mem::replace(&mut self.mode, mode)
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Packets,
    /// The resident's.
    Resident,
    /// The packets' turn, just after a segment.
    Ended,
}

/// The borrowed core's part of a card.
pub struct Card {
    pub(crate) wires: Vec<Wire>,
    pub(crate) rx: Chain,
    pub(crate) tx: Chain,
    pub(crate) tx_rings: TxRings,
    /// Empty buffers for each queue, if the host sends on its own.
    pub(crate) fill_rings: Vec<FillSender>,
    /// At the last [`Card::next_deadline`], one of them was short of buffers.
    pub(crate) is_short: bool,
    pub(crate) doors: Doors,
    /// For its commands; its queues belong to the target cores.
    pub(crate) attachment: Box<dyn HostAttachment>,
    pub(crate) mailbox: Mailbox,
    /// Armed while the borrowed core sleeps, so that targets with packets to send wake it.
    pub(crate) gate: Arc<Gate>,
    /// How long targets keep polling without packets, in nanoseconds.
    pub(crate) pacing: Arc<Pacing>,
    pub(crate) burst_limit: usize,
    /// Every wire is patient: see [`crate::rx`].
    pub(crate) offline: bool,
    pub(crate) burst: Burst,
    /// The wire to poll first, so that none is favoured when buffers are short.
    pub(crate) turn: usize,
    pub(crate) receiving: bool,
    /// Packets that were inside functions when last counted.
    pub(crate) held: usize,
    /// Packets ended and made at the last check.
    pub(crate) ended: u64,
    pub(crate) made: u64,
    pub(crate) completions: Completions,
    pub(crate) resident: Option<Resident>,
    pub(crate) phase: Phase,
    /// A turn that has worked but is not published.
    pub(crate) unpublished: Option<Work>,
}

impl Card {
    /// One turn: commands, wires, tx rings, deadlines, doorbells, wires again. Between two such
    /// turns, one of the resident's, if the wires are empty.
    pub fn poll(&mut self, now: Time) -> Activity {
        let work = self.begin::<true>(now);
        self.end(now, work)
    }

    /// The first half of a turn: takes packets and runs functions. Nothing is visible to other
    /// cores or leaves on a wire before [`Card::publish`], which must follow.
    pub fn work(&mut self, now: Time) -> Activity {
        let work = self.begin::<false>(now);
        // Staged packets are in flight, but in no ring yet.
        let doors = &self.doors;
        let r#in = work.taken() as u64 + (doors.made() - self.made) + self.held as u64;
        let held = self.held_by_functions() as u64;
        let out = work.published as u64 + (doors.ended() - self.ended) + held;
        self.note_held(held + r#in.saturating_sub(out));
        self.unpublished = Some(work);
        work.activity
    }

    /// The second half of a turn: target rings, doorbells, wires. Returns the activity of the whole
    /// turn; none without [`Card::work`] before.
    pub fn publish(&mut self, now: Time) -> Activity {
        match self.unpublished.take() {
            Some(work) => self.end(now, work),
            None => Activity::default(),
        }
    }

    #[inline(always)]
    fn begin<const AT_ONCE: bool>(&mut self, now: Time) -> Work {
        if self.phase != Phase::Packets
            && let Some(activity) = self.resident_turn(now)
        {
            return Work { activity, published: 0, is_resident: true };
        }
        self.packet_turn::<AT_ONCE>(now)
    }

    #[inline(always)]
    fn end(&mut self, now: Time, work: Work) -> Activity {
        let mut activity = work.activity;
        if work.is_resident {
            // The following packets' turn rings the doorbells: they do not belong to the segment.
            let published = self.doors.publish_rings(now);
            self.check(0, published);
            return activity;
        }
        activity.transmitted = self.publish_packets(now, &work);
        if let Some(resident) = &mut self.resident
            && resident.is_due(now)
        {
            if resident.may_go(now, activity.is_behind) {
                self.phase = Phase::Resident;
            }
            activity.resident_due = true;
        }
        activity
    }

    /// Passes a burst from each wire and one from the tx rings through the chains. `AT_ONCE`
    /// publishes each wire's packets before taking the next wire's.
    #[inline(always)]
    fn packet_turn<const AT_ONCE: bool>(&mut self, now: Time) -> Work {
        if !self.mailbox.is_empty() {
            self.obey(now);
        }
        let mut activity = Activity::default();
        let mut published = 0;
        if self.receiving {
            let limit = if self.doors.is_per_packet() { 1 } else { self.burst_limit };
            let wires = self.wires.len();
            let mut index = self.turn;
            self.turn = if index + 1 == wires { 0 } else { index + 1 };
            for _ in 0..wires {
                let received = rx::receive(
                    now,
                    &mut self.wires[index],
                    index as u8,
                    limit,
                    &mut self.burst,
                    &mut self.rx,
                    &mut self.doors,
                );
                if received != 0 {
                    let is_patient = self.wires[index].capabilities.patient;
                    activity.is_behind |= received == self.burst_limit && !is_patient;
                    activity.received += received;
                    if AT_ONCE {
                        published += self.doors.publish(now);
                    }
                }
                index = if index + 1 == wires { 0 } else { index + 1 };
            }
        }
        activity.submitted = tx::submit(
            now,
            &mut self.tx_rings,
            self.burst_limit,
            &mut self.burst,
            &mut self.tx,
            &mut self.doors,
        );
        self.rx.flush(now, &mut self.doors);
        self.tx.flush(now, &mut self.doors);
        Work { activity, published, is_resident: false }
    }

    /// Publishes a turn's packets, rings doorbells, and lets the wires take waiting packets;
    /// returns the number that the wires took.
    #[inline(always)]
    fn publish_packets(&mut self, now: Time, work: &Work) -> usize {
        let published = work.published + self.doors.publish(now);
        self.check(work.taken(), published);
        let mut transmitted = 0;
        if let Some(packets) = tx::transmit(now, &mut self.wires, self.offline, &mut self.doors) {
            transmitted = packets;
            self.note_held(self.held as u64);
            if let Some(resident) = &self.resident
                && self.doors.is_watched()
            {
                resident.attention.raise_here();
            }
        }
        let mut has_made_room = work.activity.submitted != 0;
        if self.receiving {
            for (index, fill) in self.fill_rings.iter_mut().enumerate() {
                let buffers = fill.top_up(&mut self.doors.pool);
                if buffers != 0 {
                    self.tx_rings.note_room(index, buffers as u32);
                    has_made_room = true;
                }
            }
        }
        if has_made_room && self.completions.mode != TxComplete::Off {
            self.complete(now);
        }
        transmitted
    }

    /// Interrupts hosts that wait for room or buffers, if there are some.
    #[inline]
    fn complete(&mut self, now: Time) {
        // Make room, then check who waits; a host does it in the opposite order.
        Gate::order_publish();
        if self.completions.hosts.iter().any(|host| host.starved.get() != 0) {
            self.tell_hosts(now);
        } else {
            self.tx_rings.take_room().for_each(drop);
        }
    }

    /// Interrupts the hosts that wait, with the available room or buffers.
    #[cold]
    fn tell_hosts(&mut self, now: Time) {
        let Completions { mode, hosts } = &self.completions;
        let at_once = *mode == TxComplete::Interrupt;
        for (queue, (host, room)) in hosts.iter().zip(self.tx_rings.take_room()).enumerate() {
            if room != 0 && host.starved.get() != 0 {
                self.doors.complete(now, queue, room, at_once);
            }
        }
        if !at_once {
            self.doors.publish(now);
        }
    }

    /// Checks the ledger since the last check: packets that entered went through a door or are
    /// held.
    #[inline]
    fn check(&mut self, taken: usize, published: usize) {
        let (ended, made) = (self.ended, self.made);
        (self.ended, self.made) = (self.doors.ended(), self.doors.made());
        let held = self.held_by_functions();
        let r#in = taken as u64 + (self.made - made) + self.held as u64;
        let out = published as u64 + (self.ended - ended) + held as u64;
        if r#in != out {
            self.doors.ledger.card.unbalanced_bursts.add(1);
        }
        self.held = held;
        self.note_held(held as u64);
    }

    /// Packets inside functions and the resident.
    #[inline]
    fn held_by_functions(&self) -> usize {
        let resident = self.resident.as_ref().map_or(0, |resident| resident.attention.held().get());
        self.rx.held() + self.tx.held() + resident as usize
    }

    /// Updates the ledger with the packets `held`, those waiting for wires, and those that wires
    /// keep.
    #[inline]
    fn note_held(&self, held: u64) {
        let waiting = self.doors.waiting_for_wires();
        let kept = self.wires.iter().map(|wire| wire.counters.tx_kept.get()).sum::<u64>();
        self.doors.ledger.card.held.set(held + waiting as u64 + kept);
    }

    fn obey(&mut self, now: Time) {
        while let Some(command) = self.mailbox.next_command() {
            let answer = command.apply(now, self);
            self.mailbox.answer(answer);
        }
        // A replaced chain has released its packets.
        let published = self.doors.publish(now);
        self.check(0, published);
    }

    /// The latest time of the next `poll`, if anything is due by time alone; `now` itself if
    /// packets wait that can be fetched at once.
    pub fn next_deadline(&mut self, now: Time) -> Option<Time> {
        // Targets do not ring when they return buffers.
        self.is_short = self.is_short_of_buffers();
        let buffers = self.is_short.then(|| now + LOOKS_AGAIN_NS);
        let wires = self.wires.iter().filter(|_| self.receiving).filter_map(|wire| {
            let status = wire.port.status();
            if status.is_finished {
                None
            } else if wire.capabilities.patient {
                Some(now)
            } else {
                let defer = |due| wire.throttle.as_ref().map_or(due, |it| it.defer(due, &status));
                status.next_deadline.map(defer)
            }
        });
        // A stalled wire must be noticed in time, too.
        let rooms = self.wires_waited_for().filter_map(|wire| wire.port.status().next_room);
        let rooms = rooms.map(|room| room.min(now + STALL_NS));
        wires
            .chain(rooms)
            .chain(buffers)
            .chain(self.rx.next_deadline())
            .chain(self.tx.next_deadline())
            .chain(self.doors.next_deadline())
            .chain(self.resident_deadline(now))
            .min()
    }

    /// Whether a fill ring needs buffers as soon as some return.
    fn is_short_of_buffers(&self) -> bool {
        self.receiving && self.fill_rings.iter().any(FillSender::is_short)
    }

    /// The wires with waiting packets.
    fn wires_waited_for(&self) -> impl Iterator<Item = &Wire> {
        let wires = self.wires.iter().enumerate();
        let waited_for = wires.filter(|&(index, _)| self.doors.backlog.is_waiting_for(index));
        waited_for.map(|(_, wire)| wire)
    }

    /// Enables the targets' doorbell to this core, before sleeping. False if work has arrived
    /// meanwhile, or if packets wait for a wire that does not know when it takes packets again:
    /// then poll again. [`Card::disarm`] undoes it.
    pub fn arm(&mut self) -> bool {
        if let Some(resident) = &self.resident {
            resident.attention.rest();
        }
        self.gate.rearm();
        if self.tx_rings.may_submit(&self.doors.backlog)
            || !self.mailbox.is_empty()
            || self.is_short_of_buffers() && !self.is_short
            || self.wires_waited_for().any(|wire| wire.port.status().next_room.is_none())
            || self.resident.as_ref().is_some_and(|resident| resident.attention.is_raised())
            || self.receiving && !self.wires.iter_mut().all(|wire| wire.port.arm())
        {
            self.disarm();
            return false;
        }
        true
    }

    /// Disables the targets' doorbell to this core: it is awake.
    pub fn disarm(&mut self) {
        if !self.gate.resume() {
            self.gate.begin();
        }
        if let Some(resident) = &self.resident {
            resident.attention.wake();
        }
    }

    /// Whether every wire has finished receiving.
    pub fn is_finished(&self) -> bool {
        self.wires.iter().all(|wire| wire.port.status().is_finished)
    }

    /// Stops receiving. Functions release their packets, and moderation its delayed interrupts;
    /// `poll` still serves the tx rings but steers nothing more: otherwise a tx chain that sends
    /// packets back to the targets would never end.
    pub fn stop_receiving(&mut self, now: Time) {
        self.publish(now);
        self.receiving = false;
        self.release(now);
        self.stop_resident(now);
        self.doors.close_targets();
    }

    /// Makes functions release all packets; returns their number.
    fn release(&mut self, now: Time) -> usize {
        let held = self.held;
        self.rx.release(now, &mut self.doors);
        self.tx.release(now, &mut self.doors);
        let published = self.doors.publish(now);
        self.check(0, published);
        held.saturating_sub(self.held)
    }

    /// Ends a card whose targets have ended: packets in the tx rings go to the wires, packets that
    /// these do not take are dropped and counted, kept packets end, and every buffer must have
    /// returned. Returns the number of missing buffers.
    pub fn finish(&mut self, now: Time) -> usize {
        self.publish(now);
        self.receiving = false;
        self.stop_resident(now);
        loop {
            while !self.poll(now).is_idle() {}
            // Once more: the wires may take packets that functions held.
            if self.release(now) != 0 {
                continue;
            }
            // Tx rings are not read while a wire's queue is full, or beyond their deficit.
            if self.drop_waiting() == 0 && !self.tx_rings.is_waiting() {
                break;
            }
        }
        tx::stop(&mut self.wires, &mut self.doors);
        self.note_held(self.held as u64);
        self.doors.note_depths();
        self.doors.pool.outstanding()
    }

    /// Whether packets wait for a wire, or are with a wire that has yet to send them.
    pub fn is_transmitting(&mut self) -> bool {
        self.doors.waiting_for_wires() != 0
            || self.tx_rings.is_waiting()
            || self.wires.iter().any(|wire| wire.counters.tx_kept.get() != 0)
    }

    /// Drops packets that wait for wires; returns their number.
    fn drop_waiting(&mut self) -> usize {
        let waiting = self.doors.waiting_for_wires();
        while let Some(packet) = self.doors.backlog.take() {
            self.doors.drop(packet, DropReason::Stopped, Stage::WireTx);
        }
        // They already left through a door when queued, so the check does not count them.
        self.ended = self.doors.ended();
        self.note_held(self.held as u64);
        waiting
    }

    /// Takes both chains' functions out of a finished card, so that another thread can read their
    /// figures and drop them: they may have files to close.
    pub fn take_functions(&mut self) -> [Vec<ChainFunction>; 2] {
        [self.rx.take(), self.tx.take()]
    }

    /// The wires: their descriptors to wait on, and their reports.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// Sets the clocks for timing its functions, of the rx and the tx chain.
    pub fn time_functions_by(&mut self, [rx, tx]: [Box<dyn Stopwatch>; 2]) {
        self.rx.time_by(rx);
        self.tx.time_by(tx);
    }

    /// Sets the readings of other clocks at the card's time zero; repeated now and then, since the
    /// real-time clock may be set.
    pub fn set_clocks(&mut self, clocks: Clocks) {
        self.wires.iter_mut().for_each(|wire| wire.clocks = Some(clocks));
    }

    /// The doors, for gauges.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }
}
