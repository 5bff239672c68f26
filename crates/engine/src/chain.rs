//! The chain: passes a burst through the functions, in order, and out at the end.
//!
//! A function leaves continuing packets in the burst and sends the others through the doors.
//! Packets that a function makes (`Out::next`) pass the rest of the chain first, depth first, so
//! their number is not limited by a burst. Packets that no function steers end at the default queue
//! (rx) or at their wire (tx).

use picnic_core::command::Prepared;
use picnic_core::direction::Direction;
use picnic_core::function::{Disorder, Function};
use picnic_core::hook::Observers;
use picnic_core::ledger::Stage;
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use std::sync::Arc;

/// Counters of one function, written by the borrowed core.
#[derive(Debug, Default)]
pub struct FunctionCounters {
    /// Packets that entered it.
    pub packets: Counter,
    /// Packets it dropped.
    pub dropped: Counter,
    /// Nanoseconds of the timed bursts.
    pub timed_ns: Counter,
    /// Packets of the timed bursts.
    pub timed_packets: Counter,
}

/// One burst in this many has its functions timed, if there is a clock: two readings per function,
/// some 100 ns if a reading takes 25 ns, so on average less than one reading per burst.
pub const TIMED_BURSTS: u32 = 256;

/// A function's work on a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedBurst {
    /// The chain's stage.
    pub stage: Stage,
    /// The function's position in the chain.
    pub position: usize,
    /// Packets that entered it.
    pub packets: usize,
    /// The time before.
    pub start: Time,
    /// The time after.
    pub end: Time,
}

/// A clock for timing functions, provided by the world.
pub trait Stopwatch: Send {
    /// The time.
    fn now(&self) -> Time;

    /// One burst in this many is timed.
    fn bursts(&self) -> u32 {
        TIMED_BURSTS
    }

    /// A burst was timed at one function.
    fn timed(&mut self, _burst: &TimedBurst) {}
}

impl<C: Fn() -> Time + Send> Stopwatch for C {
    fn now(&self) -> Time {
        self()
    }
}

/// A function at its place in the chain.
pub struct ChainFunction {
    /// Its name in the card file.
    pub name: String,
    /// Its counts.
    pub counters: Arc<FunctionCounters>,
    function: Box<dyn Function>,
    observers: Observers,
}

impl ChainFunction {
    /// A function with counters at zero and no observers.
    pub fn new(name: impl Into<String>, function: Box<dyn Function>) -> Self {
        let observers = Observers::default();
        ChainFunction { name: name.into(), counters: Arc::default(), function, observers }
    }

    /// Whether its function cuts super-frames.
    pub(crate) fn cuts_super_frames(&self) -> bool {
        self.function.cuts_super_frames()
    }

    /// Whether its function needs packets of a flow in order.
    pub(crate) fn needs_order(&self) -> bool {
        self.function.needs_order()
    }

    /// The property by which its function breaks the order of flows in this chain, if any.
    pub(crate) fn breaks_order(&self, direction: Direction) -> Option<Disorder> {
        self.function.breaks_order(direction)
    }

    /// Sends an order to its function, after it was removed from its chain.
    pub fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        self.function.obey(order, now)
    }

    /// The same function with these observers of incoming packets.
    #[must_use]
    pub fn observed(mut self, observers: Observers) -> Self {
        self.observers = observers;
        self
    }
}

/// The functions of one direction.
pub struct Chain {
    /// The guard: comes first, and is not replaced with the functions.
    head: Option<ChainFunction>,
    links: Vec<ChainFunction>,
    stage: Stage,
    /// Observers may block, including observers of functions added later.
    offline: bool,
    /// A function has observers: checked once per burst rather than at each function.
    observed: bool,
    stopwatch: Option<Box<dyn Stopwatch>>,
    /// Bursts until the next timed one; never zero without a clock.
    timed_in: u32,
}

impl Chain {
    /// A chain for `Stage::Rx` or `Stage::Tx`.
    pub fn new(stage: Stage, links: Vec<ChainFunction>) -> Self {
        let observed = is_observed(&links);
        let stopwatch = None;
        Chain { head: None, links, stage, offline: false, observed, stopwatch, timed_in: u32::MAX }
    }

    /// From now on functions are timed with this clock, on one burst in [`Stopwatch::bursts`].
    pub(crate) fn time_by(&mut self, stopwatch: Box<dyn Stopwatch>) {
        (self.stopwatch, self.timed_in) = (Some(stopwatch), 1);
    }

    /// The same chain after a guard.
    #[must_use]
    pub fn behind(mut self, head: Option<Box<dyn Function>>) -> Self {
        self.head = head.map(|head| ChainFunction::new("guard", head));
        self
    }

    /// The same chain, in an offline card or not.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        let links = std::mem::take(&mut self.links);
        self.replace(links);
        self
    }

    /// Passes a burst through all functions; leaves it empty.
    #[inline]
    pub fn run(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors) {
        self.timed_in -= 1;
        if self.timed_in == 0 {
            self.run_timed(now, burst, doors);
        } else if self.observed {
            self.run_as::<true>(now, burst, doors);
        } else {
            self.run_as::<false>(now, burst, doors);
        }
    }

    /// Like [`Chain::run`], reading the clock before and after each function. Packets that a
    /// function makes count towards its time.
    #[cold]
    fn run_timed(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors) {
        let Some(stopwatch) = &mut self.stopwatch else {
            self.timed_in = u32::MAX;
            return self.run_as::<true>(now, burst, doors);
        };
        self.timed_in = stopwatch.bursts();
        if let Some(head) = &mut self.head {
            step::<true>(head, &mut self.links, self.stage, now, burst, doors);
        }
        let mut links = &mut self.links[..];
        let mut position = 0;
        while let Some((link, rest)) = links.split_first_mut()
            && !burst.is_empty()
        {
            let (start, packets) = (stopwatch.now(), burst.len());
            step::<true>(link, rest, self.stage, now, burst, doors);
            let end = stopwatch.now();
            link.counters.timed_ns.add(end.since(start));
            link.counters.timed_packets.add(packets as u64);
            stopwatch.timed(&TimedBurst { stage: self.stage, position, packets, start, end });
            position += 1;
            links = rest;
        }
        if !burst.is_empty() {
            end(self.stage, burst, doors);
        }
    }

    #[inline(always)]
    fn run_as<const OBSERVED: bool>(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors) {
        if let Some(head) = &mut self.head {
            step::<OBSERVED>(head, &mut self.links, self.stage, now, burst, doors);
        }
        run::<OBSERVED>(&mut self.links, self.stage, now, burst, doors);
    }

    /// Flushes every function whose deadline has passed.
    #[inline]
    pub fn flush(&mut self, now: Time, doors: &mut Doors) {
        self.flush_until(now, now, doors);
    }

    /// Makes every function release all packets; for later functions the time stays `now`.
    pub fn release(&mut self, now: Time, doors: &mut Doors) {
        self.flush_until(now, Time::MAX, doors);
    }

    fn flush_until(&mut self, now: Time, until: Time, doors: &mut Doors) {
        for index in 0..self.links.len() {
            let Some((link, rest)) = self.links[index..].split_first_mut() else { return };
            if until == Time::MAX || link.function.next_deadline().is_some_and(|due| due <= until) {
                // Bursts are rare here, so observers may be checked each time.
                let mut rest = RemainingChain::<true> { links: rest, stage: self.stage };
                let mut out = Out::new(now, self.stage, doors, &mut rest);
                link.function.flush(until, &mut out);
                link.counters.dropped.add(u64::from(out.finish()));
            }
        }
    }

    /// The earliest deadline of a function.
    pub fn next_deadline(&self) -> Option<Time> {
        self.links.iter().filter_map(|link| link.function.next_deadline()).min()
    }

    /// Packets held by functions.
    pub fn held(&self) -> usize {
        self.head.iter().chain(&self.links).map(|link| link.function.held()).sum()
    }

    /// The functions, in order.
    pub fn links(&self) -> &[ChainFunction] {
        &self.links
    }

    /// The function at `position`.
    pub fn function_mut(&mut self, position: usize) -> Option<&mut dyn Function> {
        self.links.get_mut(position).map(|link| &mut *link.function as &mut dyn Function)
    }

    /// Takes all functions out, except the guard.
    pub(crate) fn take(&mut self) -> Vec<ChainFunction> {
        std::mem::take(&mut self.links)
    }

    /// Replaces the functions; returns the old ones.
    pub fn replace(&mut self, mut links: Vec<ChainFunction>) -> Vec<ChainFunction> {
        if self.offline {
            links.iter_mut().for_each(|link| link.observers.may_wait());
        }
        self.observed = is_observed(&links);
        std::mem::replace(&mut self.links, links)
    }
}

fn is_observed(links: &[ChainFunction]) -> bool {
    links.iter().any(|link| !link.observers.is_empty())
}

/// Passes a burst through these functions and out at the end.
fn run<const OBSERVED: bool>(
    mut links: &mut [ChainFunction],
    stage: Stage,
    now: Time,
    burst: &mut Burst,
    doors: &mut Doors,
) {
    while let Some((link, rest)) = links.split_first_mut() {
        if burst.is_empty() {
            return;
        }
        step::<OBSERVED>(link, rest, stage, now, burst, doors);
        links = rest;
    }
    end(stage, burst, doors);
}

/// Passes a burst through one function.
#[inline(always)]
fn step<const OBSERVED: bool>(
    link: &mut ChainFunction,
    rest: &mut [ChainFunction],
    stage: Stage,
    now: Time,
    burst: &mut Burst,
    doors: &mut Doors,
) {
    link.counters.packets.add(burst.len() as u64);
    if OBSERVED {
        link.observers.show(now, stage, burst.as_slice());
    }
    let mut onward = RemainingChain::<OBSERVED> { links: rest, stage };
    let mut out = Out::new(now, stage, doors, &mut onward);
    link.function.process(now, burst, &mut out);
    let dropped = out.finish();
    if dropped != 0 {
        link.counters.dropped.add(u64::from(dropped));
    }
}

/// Ends the packets that no function sent anywhere.
fn end(stage: Stage, burst: &mut Burst, doors: &mut Doors) {
    if stage == Stage::Tx {
        for packet in burst.drain() {
            let wire = packet.wire;
            doors.transmit(packet, wire);
        }
    } else {
        let queues = [doors.default_queue; BURST];
        doors.steer_burst(burst, &queues);
    }
}

/// The functions after the running one.
struct RemainingChain<'a, const OBSERVED: bool> {
    links: &'a mut [ChainFunction],
    stage: Stage,
}

impl<const OBSERVED: bool> Onward for RemainingChain<'_, OBSERVED> {
    fn carry_on(&mut self, now: Time, burst: &mut Burst, doors: &mut Doors) {
        run::<OBSERVED>(self.links, self.stage, now, burst, doors);
    }
}
