//! The wire port: where a card's packets come from and leave by.
//!
//! A port is polled by the borrowed core and never blocks. It counts what it
//! cannot take; it never panics, whatever comes in.

use crate::command::Prepared;
use crate::error::ConfigError;
use crate::hook::Observers;
use crate::ledger::{CardLedger, DropReason, Stage};
use crate::packet::burst::{Burst, move_oldest};
use crate::packet::desc::Descriptor;
use crate::packet::offload;
use crate::packet::pool::Pool;
use crate::stats::WireCounters;
use crate::time::Time;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;

/// What a port can do by itself, so that the card need not; asked once, when the card is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Packets wait at no loss until the card asks for them (a file, a generator running flat
    /// out), and it takes all that it is offered. It is not asked while a target ring is short
    /// of room.
    pub patient: bool,
    /// Packets with partial checksums may be handed to [`WirePort::transmit`]. Those of other
    /// wires get them finished before.
    pub partial_checksums: bool,
    /// Super-frames (see [`Descriptor::gso_type`]) may be handed to [`WirePort::transmit`].
    /// Those for other wires are dropped as `super_frame`.
    pub super_frames: bool,
    /// It knows when packets arrived, and says so ([`Receiver::arrived_at`]). Packets of other
    /// wires are stamped when they are taken: what they waited before shows nowhere.
    pub arrival: bool,
    /// It can tell how many frames wait without taking them ([`WirePort::holds`]).
    pub tells_waiting: bool,
}

/// How fast packets come in by a wire, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The wire tells none.
    #[default]
    Untold,
    /// It waits until it is asked for packets: as fast as they are taken.
    Asked,
    /// Packets per second.
    Pps(u64),
}

/// What comes in by a wire at most, and how much of it may wait there: for those who must know how
/// long the wire can be left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// How fast packets come.
    pub rate: Rate,
    /// Packets that may come together, whatever the rate.
    pub burst: u64,
    /// Packets that wait without loss; `u64::MAX` if all do, none if the wire does not report it.
    pub room: Option<u64>,
    /// Where the rate comes from, for people; why there is none.
    pub origin: String,
    /// Where the room comes from.
    pub room_origin: &'static str,
}

impl Default for Arrivals {
    /// A wire that reports no rate.
    fn default() -> Self {
        Arrivals {
            rate: Rate::Untold,
            burst: 0,
            room: None,
            origin: "this kind of wire does not report a rate".into(),
            room_origin: "",
        }
    }
}

impl Arrivals {
    /// Those of an Ethernet of so many Mb/s in the shortest frames, each 84 bytes with preamble and
    /// gap; none if its driver does not tell.
    pub fn ethernet(megabits: Option<u32>) -> Self {
        match megabits {
            Some(megabits) => Arrivals {
                rate: Rate::Pps((u64::from(megabits) * 1_000_000).div_ceil(84 * 8)),
                burst: 1,
                origin: format!("{megabits} Mb/s, frames of 64 bytes"),
                ..Arrivals::default()
            },
            None => Arrivals {
                origin: "its driver does not report its speed".into(),
                ..Arrivals::default()
            },
        }
    }
}

/// What a wire is, as its port tells before it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// What it can do by itself.
    pub capabilities: Capabilities,
    /// What comes in at most.
    pub arrivals: Arrivals,
    /// What keeps the wire from working at present, each with what mends it.
    pub warnings: Vec<String>,
    /// Other facts that `picnic check` shows.
    pub notes: Vec<String>,
}

/// The state of a wire between two looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// When the port next has something by time alone, if it knows.
    pub next_deadline: Option<Time>,
    /// When the next frame arrives after those that wait already, if the port knows.
    pub next_arrival: Option<Time>,
    /// When the port takes packets again, if it knows; used while packets wait for it. If the port
    /// does not know, the card offers the packets again and again.
    pub next_room: Option<Time>,
    /// Whether packets that are sent now have somewhere to go.
    pub is_up: bool,
    /// Whether the port will never hand over another packet.
    pub is_finished: bool,
    /// A descriptor that becomes readable when packets arrive, to sleep on.
    pub readiness: Option<BorrowedFd<'a>>,
}

impl Default for Status<'_> {
    /// A wire that is up and knows nothing.
    fn default() -> Self {
        Status {
            next_deadline: None,
            next_arrival: None,
            next_room: None,
            is_up: true,
            is_finished: false,
            readiness: None,
        }
    }
}

/// One wire of a card.
pub trait WirePort: Send {
    /// Describes the wire as it is at present; asked while the card is built.
    fn describe(&self) -> Description {
        Description::default()
    }

    /// Takes the wire up: called once, before the card runs and after all else was found good.
    /// `pool` is the card's.
    ///
    /// # Errors
    /// The key that cannot be met, and what the system says.
    fn start(&mut self, _pool: &mut Pool) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Gives buffers back that the port has taken ahead of need or lent out, and ends the packets
    /// that it keeps ([`Transmitter::left`], [`Transmitter::lose`]): called once, at the end.
    /// Returns lines for the user, about odd input for example.
    fn stop(&mut self, _tx: &mut Transmitter<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Hands over what has arrived by `now`, as much as `rx` has room for.
    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>);

    /// Whether at least `frames` frames have arrived by `now` and wait to be taken; false of a port
    /// that cannot tell ([`Capabilities::tells_waiting`]).
    fn holds(&mut self, _now: Time, _frames: usize) -> bool {
        false
    }

    /// Sends packets, oldest first, as many as it can: [`Transmitter::next`] gives one,
    /// [`Transmitter::sent`] or [`Transmitter::drop`] ends it. What is not taken stays queued.
    ///
    /// A port whose packets leave later lends their buffers out and says [`Transmitter::keep`],
    /// then [`Transmitter::left`]. It is called while packets wait or it keeps some.
    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>);

    /// Obeys an order that one of its commands has made, between bursts; as `Function::obey`.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }

    /// The wire's state; asked after each look at the wire and before the card sleeps.
    fn status(&self) -> Status<'_> {
        Status::default()
    }
}

/// What other clocks showed at the card's time zero, in nanoseconds: for wires whose packets are
/// stamped by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The machine's clock of real time, as it is set now.
    pub realtime_ns: u64,
    /// The machine's monotonic clock.
    pub monotonic_ns: u64,
}

/// Takes a wire's packets in: gives out buffers, counts, stamps.
#[derive(Debug)]
pub struct Receiver<'a> {
    pool: &'a mut Pool,
    burst: &'a mut Burst,
    counters: &'a WireCounters,
    ledger: &'a CardLedger,
    now: Time,
    /// The receive time of the packets taken in next.
    arrival: Time,
    clocks: Option<Clocks>,
    wire: u8,
    limit: usize,
    bytes: u64,
    first: usize,
}

impl<'a> Receiver<'a> {
    /// A receiver for wire number `wire` that takes up to `limit` packets into `burst`.
    pub fn new(
        pool: &'a mut Pool,
        burst: &'a mut Burst,
        counters: &'a WireCounters,
        ledger: &'a CardLedger,
        now: Time,
        wire: u8,
        limit: usize,
    ) -> Self {
        let limit = limit.min(burst.room());
        let first = burst.len();
        let (arrival, clocks) = (now, None);
        Receiver {
            pool,
            burst,
            counters,
            ledger,
            now,
            arrival,
            clocks,
            wire,
            limit,
            bytes: 0,
            first,
        }
    }

    /// The same receiver, which knows other clocks.
    #[must_use]
    #[inline(always)]
    pub fn with_clocks(mut self, clocks: Option<Clocks>) -> Self {
        self.clocks = clocks;
        self
    }

    /// What other clocks showed at the card's time zero, if known.
    #[inline(always)]
    pub fn clocks(&self) -> Option<Clocks> {
        self.clocks
    }

    /// The packets taken in from now on arrived at `time`. A time that is yet to come is counted
    /// (`stamps_ahead`) and taken for the present.
    #[inline(always)]
    pub fn arrived_at(&mut self, time: Time) {
        self.arrival = time.min(self.now);
        if time > self.now {
            self.count_stamps_ahead(1);
        }
    }

    /// The packets taken in from now on arrived when the clock of real time showed `ns`
    /// nanoseconds. Where that clock is not known, they arrived now.
    #[inline(always)]
    pub fn arrived_at_realtime(&mut self, ns: u64) {
        if let Some(Clocks { realtime_ns, .. }) = self.clocks {
            self.arrived_at(Time::from_nanos(ns.saturating_sub(realtime_ns)));
        }
    }

    /// The packets taken in from now on arrived when the monotonic clock showed `ns` nanoseconds.
    /// Without that, or where that clock is not known, they arrived now.
    #[inline(always)]
    pub fn arrived_at_monotonic(&mut self, ns: Option<u64>) {
        self.arrival = self.now;
        if let (Some(ns), Some(Clocks { monotonic_ns, .. })) = (ns, self.clocks) {
            self.arrived_at(Time::from_nanos(ns.saturating_sub(monotonic_ns)));
        }
    }

    /// Gives the packets taken in so far, from number `first` on, the times at which they
    /// arrived, one each.
    #[inline]
    pub fn stamp(&mut self, first: usize, mut arrival: impl FnMut() -> Time) {
        let (now, mut ahead) = (self.now, 0);
        for packet in &mut self.burst.as_mut_slice()[self.first + first..] {
            let time = arrival();
            ahead += u64::from(time > now);
            packet.set_received_at(time.min(now));
        }
        self.count_stamps_ahead(ahead);
    }

    /// Counts stamps that were ahead of the time: at a wire that this one wraps, say.
    #[inline]
    pub fn count_stamps_ahead(&mut self, count: u64) {
        self.counters.stamps_ahead.add(count);
    }

    /// The packets taken in so far through this receiver, oldest first, to be changed.
    #[inline]
    pub fn pushed_mut(&mut self) -> &mut [Descriptor] {
        &mut self.burst.as_mut_slice()[self.first..]
    }

    /// The number of the wire.
    #[inline(always)]
    pub fn wire(&self) -> u8 {
        self.wire
    }

    /// When it is.
    #[inline(always)]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Packets it still takes.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.limit - (self.burst.len() - self.first)
    }

    /// The packets taken in so far through this receiver, oldest first.
    #[inline]
    pub fn pushed(&self) -> &[Descriptor] {
        &self.burst.as_slice()[self.first..]
    }

    /// A packet of `length` bytes arrives: lends it out, in its place in the burst, to be
    /// filled in. `None` without room, without buffers, or if `length` exceeds one buffer.
    ///
    /// The fastest way in: nothing is moved.
    #[inline(always)]
    pub fn place(&mut self, length: usize) -> Option<&mut Descriptor> {
        if self.room() == 0 {
            return None;
        }
        let (pool, arrival, wire) = (&mut *self.pool, self.arrival, self.wire);
        let packet = self.burst.push_with(|| pool.allocate_at(length, arrival, wire))?;
        self.bytes += length as u64;
        Some(packet)
    }

    /// Up to `count` packets of `length` bytes arrive: lends them out, in their places in the
    /// burst, to be filled in. Fewer without room or buffers; none if `length` exceeds one buffer.
    ///
    /// As [`Receiver::place`], with what is the same for all of them done once.
    #[inline(always)]
    pub fn place_many(&mut self, count: usize, length: usize) -> &mut [Descriptor] {
        let start = self.burst.len();
        let count = count.min(self.room());
        self.burst.extend(self.pool.allocate_many(count, length, self.arrival, self.wire));
        self.bytes += ((self.burst.len() - start) * length) as u64;
        &mut self.burst.as_mut_slice()[start..]
    }

    /// A buffer for a packet of `length` bytes, for [`Receiver::push`]; see [`Pool::allocate`].
    #[inline(always)]
    pub fn allocate(&mut self, length: usize) -> Option<Descriptor> {
        self.pool.allocate(length)
    }

    /// The pool, for ports that need more than one buffer at a time.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        self.pool
    }

    /// A packet has arrived. Without room it goes back to its pool, counted.
    #[inline(always)]
    pub fn push(&mut self, mut packet: Descriptor) {
        packet.wire = self.wire;
        packet.set_received_at(self.arrival);
        self.bytes += u64::from(packet.length());
        if self.room() == 0 {
            self.overflow(packet);
        } else if let Err(packet) = self.burst.push(packet) {
            self.overflow(packet);
        }
    }

    #[cold]
    fn overflow(&mut self, packet: Descriptor) {
        self.bytes -= u64::from(packet.length());
        self.pool.free(packet);
        self.shed(DropReason::BurstFull, 1);
    }

    /// The oldest `count` packets of a queue have arrived, at their receive times and by this wire:
    /// takes them in as far as there is room.
    #[inline]
    pub fn push_arrived(&mut self, from: &mut VecDeque<Descriptor>, count: usize) {
        let start = self.burst.len();
        self.burst.move_from(from, count.min(self.room()));
        let pushed = &self.burst.as_slice()[start..];
        self.bytes += pushed.iter().map(|packet| u64::from(packet.length())).sum::<u64>();
    }

    /// A packet of these bytes has arrived: takes buffers, copies, pushes. Without buffers,
    /// or if it is longer than a packet may be, it is shed and counted.
    #[inline]
    pub fn push_bytes(&mut self, data: &[u8]) {
        match self.pool.packet(data) {
            Some(packet) => self.push(packet),
            None => self.shed(self.pool.refusal(data.len()), 1),
        }
    }

    /// Packets arrived that could not be taken: in, and dropped at the wire.
    #[cold]
    pub fn shed(&mut self, reason: DropReason, packets: u64) {
        self.ledger.received.add(packets);
        self.counters.rx_shed.add(packets);
        self.ledger.drops.add(reason, Stage::Wire, packets);
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        let packets = (self.burst.len() - self.first) as u64;
        self.counters.rx_packets.add(packets);
        self.counters.rx_bytes.add(self.bytes);
        self.ledger.received.add(packets);
    }
}

/// Hands packets to a wire: the queue of those waiting for it, oldest first.
pub struct Transmitter<'a> {
    pool: &'a mut Pool,
    queue: &'a mut VecDeque<Descriptor>,
    counters: &'a WireCounters,
    ledger: &'a CardLedger,
    finish_checksums: bool,
    may_wait: bool,
    observers: Option<(&'a mut Observers, Time)>,
    notes: Option<DropNotes<'a>>,
}

/// Which packets of a call are dropped, for those who watch theirs.
struct DropNotes<'a> {
    /// Packets the wire had taken before this call.
    taken: u64,
    /// Bit 0 stands for the first packet taken.
    dropped: &'a mut u64,
}

impl DropNotes<'_> {
    /// The packet behind all that have been taken or dropped in this call is dropped.
    fn note(&mut self, taken: u64) {
        let place = taken.wrapping_sub(self.taken) as u32 + self.dropped.count_ones();
        *self.dropped |= 1_u64.checked_shl(place).unwrap_or(0);
    }
}

impl<'a> Transmitter<'a> {
    /// A transmitter over a wire's queue.
    pub fn new(
        pool: &'a mut Pool,
        queue: &'a mut VecDeque<Descriptor>,
        counters: &'a WireCounters,
        ledger: &'a CardLedger,
    ) -> Self {
        Transmitter {
            pool,
            queue,
            counters,
            ledger,
            finish_checksums: false,
            may_wait: false,
            observers: None,
            notes: None,
        }
    }

    /// The same transmitter, which finishes partial checksums if `finish` says so.
    #[must_use]
    pub fn finishing_checksums(mut self, finish: bool) -> Self {
        self.finish_checksums = finish;
        self
    }

    /// The same transmitter, whose packets wait for the wire at no loss if `may_wait` says so.
    #[must_use]
    pub fn waiting_for_room(mut self, may_wait: bool) -> Self {
        self.may_wait = may_wait;
        self
    }

    /// Whether every wire of the card waits until it is asked, so that nobody loses anything if
    /// the port waits here for what it writes to. Elsewhere it drops, counted.
    #[inline]
    pub fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// The same transmitter, which notes in `dropped` what is dropped: bit 0 stands for the first
    /// packet taken.
    #[must_use]
    pub(crate) fn noting(mut self, dropped: &'a mut u64) -> Self {
        self.notes = Some(DropNotes { taken: self.taken(), dropped });
        self
    }

    /// Packets that the wire has taken and not lost, ever: sent at once, kept, or kept and sent.
    fn taken(&self) -> u64 {
        self.counters.tx_packets.get() + self.counters.tx_kept.get()
    }

    /// The same transmitter, which shows every packet that the wire takes to `observers`.
    #[must_use]
    pub fn observed(mut self, observers: &'a mut Observers, now: Time) -> Self {
        self.observers = Some((observers, now));
        self
    }

    /// The oldest packet, left in the queue.
    #[inline]
    pub fn peek(&self) -> Option<&Descriptor> {
        self.queue.front()
    }

    /// The packets that wait, oldest first, left in the queue: for ports that send many at once
    /// and only then know how many were taken.
    #[inline]
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Descriptor> {
        self.queue.iter()
    }

    /// Takes the oldest packet. It must end in [`Transmitter::sent`] or [`Transmitter::drop`].
    // Not an iterator: between two packets the port calls the other methods.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Option<Descriptor> {
        let mut packet = self.queue.pop_front()?;
        if self.finish_checksums {
            offload::finish_checksum(&mut packet);
        }
        Some(packet)
    }

    #[inline(always)]
    fn show(&mut self, packet: &Descriptor) {
        if let Some((observers, now)) = &mut self.observers {
            observers.observe(*now, Stage::WireTx, std::slice::from_ref(packet));
        }
    }

    /// The wire has the packet's bytes: counts it and takes the buffer back.
    #[inline]
    pub fn sent(&mut self, packet: Descriptor) {
        self.show(&packet);
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(u64::from(packet.length()));
        self.ledger.transmitted.add(1);
        self.pool.free(packet);
    }

    /// The pool, for ports that lend buffers out.
    #[inline(always)]
    pub fn pool(&mut self) -> &mut Pool {
        self.pool
    }

    /// The wire has this packet, whose buffers are about to be lent out: in flight until
    /// [`Transmitter::left`].
    #[inline]
    pub fn keep(&mut self, packet: &Descriptor) {
        self.show(packet);
        self.counters.tx_kept.add(1);
    }

    /// The wire has the oldest packets, `most` at most, each as by [`Transmitter::next`] and
    /// [`Transmitter::keep`]; they go behind those of `kept`.
    #[inline]
    pub fn keep_many(&mut self, most: usize, kept: &mut VecDeque<Descriptor>) {
        let count = most.min(self.queue.len());
        let before = kept.len();
        move_oldest(self.queue, count, kept);
        if self.finish_checksums {
            kept.range_mut(before..).for_each(offload::finish_checksum);
        }
        if self.observers.is_some() {
            kept.range(before..).for_each(|packet| self.show(packet));
        }
        self.counters.tx_kept.add(count as u64);
    }

    /// A packet of `bytes` bytes that was kept has been sent, and its buffers are back: counts it.
    #[inline]
    pub fn left(&mut self, bytes: u32) {
        self.have_left(1, bytes.into());
    }

    /// As [`Transmitter::left`], for packets of so many bytes in all.
    #[inline]
    pub fn have_left(&mut self, packets: u64, bytes: u64) {
        self.counters.tx_kept.set(self.counters.tx_kept.get().saturating_sub(packets));
        self.counters.tx_packets.add(packets);
        self.counters.tx_bytes.add(bytes);
        self.ledger.transmitted.add(packets);
    }

    /// Packets that were kept will never be sent, and their buffers are back: counts them.
    #[cold]
    pub fn lose(&mut self, packets: u64, reason: DropReason) {
        if let Some(notes) = &mut self.notes {
            // They were taken in an earlier call.
            notes.taken = notes.taken.wrapping_sub(packets);
        }
        self.counters.tx_kept.set(self.counters.tx_kept.get().saturating_sub(packets));
        self.ledger.drops.add(reason, Stage::WireTx, packets);
    }

    /// The wire cannot send this packet: counts it and takes the buffer back.
    #[inline]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason) {
        let taken = self.taken();
        if let Some(notes) = &mut self.notes {
            notes.note(taken);
        }
        self.ledger.drops.add(reason, Stage::WireTx, 1);
        self.pool.free(packet);
    }
}

impl fmt::Debug for Transmitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transmitter").field("queue", &self.queue).finish_non_exhaustive()
    }
}
