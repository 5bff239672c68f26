//! The wire port: the source and destination of a card's packets.
//!
//! A port is polled by the borrowed core and never blocks. It counts packets that it cannot take;
//! it never panics on any input.

mod transmitter;

pub use transmitter::Transmitter;

use crate::command::Prepared;
use crate::error::ConfigError;
use crate::ledger::{CardLedger, DropReason, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::packet::pool::Pool;
use crate::stats::WireCounters;
use crate::time::Time;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// The capabilities of a port, which relieve the card; queried once, when the card is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Packets wait without loss until the card takes them (a file, a generator at full speed), and
    /// the card takes everything offered. It is not polled while a target ring is short of room.
    pub patient: bool,
    /// Packets with partial checksums may be handed to [`WirePort::transmit`]. For other wires they
    /// are completed before.
    pub partial_checksums: bool,
    /// Super-frames (see [`Descriptor::gso_type`]) may be handed to [`WirePort::transmit`]. For
    /// other wires they are dropped as `super_frame`.
    pub super_frames: bool,
    /// It knows when packets arrived, and reports it ([`Receiver::arrived_at`]). Packets of other
    /// wires are stamped when they are taken: earlier waiting times are not seen.
    pub arrival: bool,
    /// It can count waiting frames without taking them ([`WirePort::holds`]).
    pub tells_waiting: bool,
}

/// The maximum packet rate of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The wire does not report one.
    #[default]
    Untold,
    /// Packets wait until they are taken: as fast as that.
    Asked,
    /// Packets per second.
    Pps(u64),
}

/// The maximum arrivals at a wire, and how many may wait there: determines how long the
/// wire can be left unpolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// The packet rate.
    pub rate: Rate,
    /// Packets that may arrive together, at any rate.
    pub burst: u64,
    /// Packets that wait without loss; `u64::MAX` for any number, none if the wire does not report
    /// it.
    pub room: Option<u64>,
    /// The source of the rate, for people; or the reason for no rate.
    pub origin: String,
    /// The source of the room.
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
    /// The arrivals of an Ethernet with this rate in Mb/s in the shortest frames, each 84 bytes
    /// with preamble and gap; none if its driver does not report a rate.
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

/// Properties of a wire, reported by its port before it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// The maximum arrivals.
    pub arrivals: Arrivals,
    /// Conditions that keep the wire from working at present, each with its remedy.
    pub warnings: Vec<String>,
    /// Other facts that `picnic check` shows.
    pub notes: Vec<String>,
}

/// The state of a wire between two polls.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// When the port has something to do next by time alone, if it knows.
    pub next_deadline: Option<Time>,
    /// When the next frame arrives after those already waiting, if the port knows.
    pub next_arrival: Option<Time>,
    /// When the port takes packets again, if it knows; used while packets wait for it. If the port
    /// does not know, the card retries repeatedly.
    pub next_room: Option<Time>,
    /// Whether packets sent now can leave.
    pub is_up: bool,
    /// Whether the port will never hand over another packet.
    pub is_finished: bool,
    /// A descriptor that becomes readable when packets arrive; used to sleep on.
    pub readiness: Option<BorrowedFd<'a>>,
}

impl Default for Status<'_> {
    /// A wire that is up, without further information.
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
    /// Describes the wire at present; called while the card is built.
    fn describe(&self) -> Description {
        Description::default()
    }

    /// Starts the wire: called once, before the card runs and after all else was found valid.
    /// `pool` is the card's.
    ///
    /// # Errors
    /// The key that cannot be met, and the system's error.
    fn start(&mut self, _pool: &mut Pool) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns buffers that the port has taken ahead of need or lent, and ends the packets that it
    /// keeps ([`Transmitter::left`], [`Transmitter::lose`]): called once, at the end. Returns lines
    /// for the user, for example about unusual input.
    fn stop(&mut self, _tx: &mut Transmitter<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Hands over packets that have arrived by `now`, as far as `rx` has room.
    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>);

    /// Whether at least `frames` frames have arrived by `now` and wait to be taken; false if the
    /// port cannot tell ([`Capabilities::tells_waiting`]).
    fn holds(&mut self, _now: Time, _frames: usize) -> bool {
        false
    }

    /// Sends packets, oldest first, as many as it can: [`Transmitter::next`] gives one,
    /// [`Transmitter::sent`] or [`Transmitter::drop`] ends it. Packets not taken stay queued.
    ///
    /// A port whose packets leave later lends their buffers and calls [`Transmitter::keep`], then
    /// [`Transmitter::left`]. It is called while packets wait or it keeps some.
    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>);

    /// The card is about to sleep on [`Status::readiness`]; false if packets wait. For ports that
    /// signal their arrivals only to a card that sleeps; the next call of `receive` ends the sleep.
    fn arm(&mut self) -> bool {
        true
    }

    /// Applies an order made by one of its commands, between bursts; see `Function::obey`.
    fn obey(&mut self, _order: &mut Prepared, _now: Time) -> bool {
        false
    }

    /// The wire's state; queried after each poll of the wire and before the card sleeps.
    fn status(&self) -> Status<'_> {
        Status::default()
    }
}

/// Other clocks at the card's time zero, in nanoseconds: for wires whose packets are stamped by
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The machine's real-time clock, as set now.
    pub realtime_ns: u64,
    /// The machine's monotonic clock.
    pub monotonic_ns: u64,
}

/// Takes in a wire's packets: gives buffers, counts, stamps.
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

    /// The same receiver, with other clocks known.
    #[must_use]
    #[inline(always)]
    pub fn with_clocks(mut self, clocks: Option<Clocks>) -> Self {
        self.clocks = clocks;
        self
    }

    /// Other clocks at the card's time zero, if known.
    #[inline(always)]
    pub fn clocks(&self) -> Option<Clocks> {
        self.clocks
    }

    /// Sets the arrival time of the packets taken in from now on. A time in the future is counted
    /// (`stamps_ahead`) and replaced by the present.
    #[inline(always)]
    pub fn arrived_at(&mut self, time: Time) {
        self.arrival = time.min(self.now);
        if time > self.now {
            self.count_stamps_ahead(1);
        }
    }

    /// Sets the arrival time of the packets taken in from now on, by the real-time clock in
    /// nanoseconds. If that clock is unknown, they arrived now.
    #[inline(always)]
    pub fn arrived_at_realtime(&mut self, ns: u64) {
        if let Some(Clocks { realtime_ns, .. }) = self.clocks {
            self.arrived_at(Time::from_nanos(ns.saturating_sub(realtime_ns)));
        }
    }

    /// Sets the arrival time of the packets taken in from now on, by the monotonic clock in
    /// nanoseconds. Without a time, or if that clock is unknown, they arrived now.
    #[inline(always)]
    pub fn arrived_at_monotonic(&mut self, ns: Option<u64>) {
        self.arrival = self.now;
        if let (Some(ns), Some(Clocks { monotonic_ns, .. })) = (ns, self.clocks) {
            self.arrived_at(Time::from_nanos(ns.saturating_sub(monotonic_ns)));
        }
    }

    /// Sets the arrival times of the packets taken in so far, from number `first` on.
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

    /// Counts stamps in the future: for a wire that this one wraps, for example.
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

    /// The current time.
    #[inline(always)]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Packets that it still takes.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.limit - (self.burst.len() - self.first)
    }

    /// The packets taken in so far through this receiver, oldest first.
    #[inline]
    pub fn pushed(&self) -> &[Descriptor] {
        &self.burst.as_slice()[self.first..]
    }

    /// A packet of `length` bytes arrives: lends it out, in its place in the burst, to be filled
    /// in. `None` without room, without buffers, or if `length` exceeds one buffer.
    ///
    /// The fastest way to add packets: nothing is moved.
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
    /// As [`Receiver::place`], with the common work done once.
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

    /// A packet has arrived. Without room it is counted and returned to its pool.
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

    /// The oldest `count` packets of a queue have arrived, at their receive times, by this wire:
    /// takes them in as far as there is room.
    #[inline]
    pub fn push_arrived(&mut self, from: &mut VecDeque<Descriptor>, count: usize) {
        let start = self.burst.len();
        self.burst.move_from(from, count.min(self.room()));
        let pushed = &self.burst.as_slice()[start..];
        self.bytes += pushed.iter().map(|packet| u64::from(packet.length())).sum::<u64>();
    }

    /// A packet of these bytes has arrived: takes buffers, copies, pushes. Without buffers, or if
    /// it is too long, it is shed and counted.
    #[inline]
    pub fn push_bytes(&mut self, data: &[u8]) {
        match self.pool.packet(data) {
            Some(packet) => self.push(packet),
            None => self.shed(self.pool.refusal(data.len()), 1),
        }
    }

    /// Packets arrived that could not be taken: counted as in, and dropped at the wire.
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
