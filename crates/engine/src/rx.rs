//! The rx path: wire, chain, target rings, doorbells. Read it top to bottom.
//!
//! 1. Take a burst from the wire. Without buffers the wire sheds packets: overload is
//!    dropped before work is spent on it.
//! 2. Take it through the rx chain; the functions steer descriptors to rings.
//! 3. Publish the rings, one release store each, and interrupt the queues whose
//!    moderation is due.
//!
//! A patient wire (a file, a generator without a rate) can wait, so it is polled only while every
//! target ring, and every wire's queue for packets of functions, has room for a burst. A card with
//! only patient wires is *offline*: its targets wait for room on their tx rings, and its outputs
//! for the disk, so no packet is lost.

use crate::chain::Chain;
use picnic_core::error::ConfigError;
use picnic_core::hook::Observers;
use picnic_core::ledger::Stage;
use picnic_core::out::Doors;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Capabilities, Clocks, Receiver, Status, WirePort};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use std::sync::Arc;

/// A wire of the card.
pub struct Wire {
    /// Its port.
    pub port: Box<dyn WirePort>,
    /// The port's own abilities.
    pub capabilities: Capabilities,
    /// Its counters.
    pub counters: Arc<WireCounters>,
    /// Lines for the user that the port returned at its end.
    pub notes: Vec<String>,
    pub(crate) observers: Observers,
    /// Readings of other clocks at the card's time zero, if known.
    pub(crate) clocks: Option<Clocks>,
    /// Packets until the next recorded wait.
    sample_in: u32,
    /// The physical NIC's own moderation, if requested.
    pub(crate) throttle: Option<Throttle>,
}

/// A NIC that interrupts at most once per interval, as an e1000 does: the first packet after a
/// pause interrupts at once, later ones at the end of the interval. Packets that have arrived by
/// then are taken; packets that arrive meanwhile wait for the next interrupt. Otherwise a slow
/// handler would wait less per packet as the rate grows, which PICNIC's figure 5 contradicts.
#[derive(Debug)]
pub(crate) struct Throttle {
    every_ns: u64,
    /// This many waiting frames interrupt at once; 0: no limit.
    frames: usize,
    /// Earliest time of the next interrupt.
    next: Time,
    /// Time of the interrupt being handled.
    began: Option<Time>,
    /// Packets of that interrupt yet to be taken; none for a wire that cannot count them, from
    /// which all available packets are taken.
    left: Option<usize>,
}

impl Throttle {
    fn new(now: Time, every_ns: u64, frames: usize) -> Self {
        Throttle { every_ns, frames, next: now, began: None, left: None }
    }

    /// How many packets may be taken at `now`, up to `limit`; zero while the NIC is quiet.
    fn share(&mut self, now: Time, limit: usize, port: &mut dyn WirePort) -> usize {
        if self.began.is_none() {
            if now < self.next && (self.frames == 0 || !port.holds(now, self.frames)) {
                return 0;
            }
            self.left = waiting(now, port);
        }
        self.left.map_or(limit, |left| left.min(limit))
    }

    /// Notes that the wire was asked for up to `limit` packets at `now` and gave those in `burst`.
    /// Returns the time of their interrupt.
    fn looked(
        &mut self,
        now: Time,
        burst: &Burst,
        limit: usize,
        port: &mut dyn WirePort,
        counters: &WireCounters,
    ) -> Time {
        if let (Some(first), None) = (burst.as_slice().first(), self.began) {
            // The NIC does not wait for the borrowed core.
            let mut late_ns = first.age(now).min(now.since(self.next));
            if let Some(last) = self.frames.checked_sub(1).and_then(|n| burst.as_slice().get(n)) {
                late_ns = late_ns.max(last.age(now));
            }
            self.began = Some(now - late_ns);
            counters.interrupts.add(1);
        }
        let Some(began) = self.began else { return now };
        let is_done = match &mut self.left {
            Some(left) => {
                *left = left.saturating_sub(burst.len());
                *left == 0 || !port.holds(now, 1)
            }
            None => burst.len() < limit,
        };
        if is_done {
            self.next = began + self.every_ns;
            self.began = None;
        }
        began
    }

    /// When to poll the wire of `port`, which may have packets at `due`.
    pub(crate) fn defer(&self, due: Time, wire: &Status<'_>) -> Time {
        if self.began.is_some() || due >= self.next {
            due
        } else if self.frames == 0 {
            self.next
        } else {
            // One more packet may complete the number of frames.
            self.next.min(wire.next_arrival.unwrap_or(due))
        }
    }
}

/// An interrupt covers fewer packets than this. Ports have shorter queues; a port that claims to
/// hold any number must not cause an endless search.
const TOO_MANY: usize = 1 << 16;

/// The number of packets waiting at a port, if it can tell; found by bisection.
fn waiting(now: Time, port: &mut dyn WirePort) -> Option<usize> {
    let mut beyond = 1;
    while beyond < TOO_MANY && port.holds(now, beyond) {
        beyond *= 2;
    }
    let mut some = beyond / 2;
    while beyond - some > 1 {
        let middle = some.midpoint(beyond);
        *if port.holds(now, middle) { &mut some } else { &mut beyond } = middle;
    }
    (some != 0).then_some(some)
}

/// Checks whether a wire can interrupt at most every `usecs` microseconds, 0 for no limit, or when
/// `frames` frames wait, 0 for no limit.
///
/// # Errors
/// The wire is patient and does not interrupt; or it cannot count waiting frames.
pub fn check_throttle(wire: Capabilities, usecs: u32, frames: u32) -> Result<(), ConfigError> {
    if usecs != 0 && wire.patient {
        let message = format!(
            "found {usecs} with a wire that waits until it is polled (a generator without rate_pps, \
             a capture flat out), allowed: 0"
        );
        return Err(ConfigError::new("interrupt.wire_usecs", message));
    }
    if frames != 0 && !wire.tells_waiting {
        let message = format!(
            "found {frames} with a wire that cannot tell how many frames wait (tap, any with a \
             link), allowed: 0, or wires that can (generator, packet, pcap, xdp)"
        );
        return Err(ConfigError::new("interrupt.wire_frames", message));
    }
    Ok(())
}

/// One packet in this many has its latency recorded, at the wire and at the target routine.
pub(crate) const LATENCY_SAMPLE: u32 = 16;

impl Wire {
    /// A wire with counters at zero; `observers` see its packets.
    pub(crate) fn new(port: Box<dyn WirePort>, observers: Observers) -> Self {
        let capabilities = port.describe().capabilities;
        Wire {
            port,
            capabilities,
            counters: Arc::default(),
            notes: Vec::new(),
            observers,
            clocks: None,
            sample_in: 0,
            throttle: None,
        }
    }

    /// Limits its interrupts to one every `usecs` microseconds, 0 for no limit, or to when `frames`
    /// frames wait, 0 for no limit; packets waiting at `now` interrupt at once. Call
    /// [`check_throttle`] first. Returns the previous limits.
    pub(crate) fn throttle(&mut self, now: Time, usecs: u32, frames: u32) -> (u32, u32) {
        let throttle = || Throttle::new(now, u64::from(usecs) * 1000, frames as usize);
        let old = std::mem::replace(&mut self.throttle, (usecs != 0).then(throttle));
        old.map_or((0, 0), |old| ((old.every_ns / 1000) as u32, old.frames as u32))
    }

    /// Records the waits of packets whose interrupt was at `interrupt`.
    fn sample_waits(&mut self, now: Time, interrupt: Time, burst: &Burst) {
        let mut index = self.sample_in as usize;
        let (mut waited_ns, mut held_ns, mut packets) = (0, 0, 0);
        let late_ns = now.since(interrupt);
        while let Some(packet) = burst.as_slice().get(index) {
            let age_ns = packet.age(now);
            waited_ns += age_ns;
            held_ns += age_ns.saturating_sub(late_ns);
            packets += 1;
            index += LATENCY_SAMPLE as usize;
        }
        self.sample_in = (index - burst.len()) as u32;
        if packets != 0 {
            self.counters.waited_ns.add(waited_ns);
            self.counters.waited_packets.add(packets);
            if self.throttle.is_some() {
                self.counters.held_ns.add(held_ns);
            }
        }
    }
}

/// Moves one burst from a wire to the target rings; returns packets received.
#[inline]
pub fn receive(
    now: Time,
    wire: &mut Wire,
    index: u8,
    limit: usize,
    burst: &mut Burst,
    chain: &mut Chain,
    doors: &mut Doors,
) -> usize {
    if wire.capabilities.patient && !doors.have_room(limit) {
        return 0;
    }
    let limit = match &mut wire.throttle {
        Some(throttle) => throttle.share(now, limit, &mut *wire.port),
        None => limit,
    };
    if limit == 0 {
        return 0;
    }
    let card = &doors.ledger.card;
    let mut receiver =
        Receiver::new(&mut doors.pool, burst, &wire.counters, card, now, index, limit)
            .with_clocks(wire.clocks);
    wire.port.receive(now, &mut receiver);
    drop(receiver);
    doors.set_wire_up(index, wire.port.status().is_up);
    let received = burst.len();
    let interrupt = match &mut wire.throttle {
        Some(throttle) => throttle.looked(now, burst, limit, &mut *wire.port, &wire.counters),
        None => now,
    };
    if received != 0 {
        if wire.capabilities.arrival {
            wire.sample_waits(now, interrupt, burst);
        }
        wire.observers.show(now, Stage::Wire, burst.as_slice());
        chain.run(now, burst, doors);
    }
    received
}
