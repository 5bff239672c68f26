//! Link: limits a wire to the rate, latency and queue of an Ethernet link.
//!
//! ```toml
//! [[wire]]
//! port = "packet"
//! interface = "eth0"
//! [wire.link]
//! rate_mbps = 1000       # the default: a 1 Gb/s NIC
//! latency_us = 0
//! queue_packets = 256
//! ```
//!
//! ```text
//! port ─▶ queue ─▶ line ─▶ latency ─▶ card        and the same towards the port
//! ```
//!
//! Each direction is a separate line. A frame occupies it for the time of its bytes, at least 60,
//! plus 24 for preamble, start, check sequence and gap; it arrives `latency_us` later. So 1 Gb/s
//! carries 81,274 frames of 1514 bytes per second. A super-frame takes as long as the frames it
//! represents. Frames wait for the line in a queue: towards the card, a frame that finds the queue
//! full is dropped as `link_full`; towards the port, it stays with the card, as with a NIC whose
//! ring is full. A patient wire (a generator without `rate_pps`) fills the line.
//!
//! Guarantees: to a nanosecond, a frame begins when the one before it ends, or when it comes; the
//! order is kept; nothing is copied or allocated. Frames towards the card are in buffers of the
//! pool and not received before they arrive; frames towards the port are in flight until the port
//! has sent them. At the end of a run, those still on the way to the card never were, and those on
//! the way to the port are dropped as `stopped`.
//!
//! Source: IEEE 802.3, 3.2 (frame), 4A.4.2 (gap and preamble).

#[cfg(test)]
mod tests;

use super::Inner;
use picnic_core::command::Prepared;
use picnic_core::config::{SectionConfig, Shape};
use picnic_core::error::ConfigError;
use picnic_core::ledger::{CardLedger, DropReason};
use picnic_core::packet::burst::{BURST, move_oldest};
use picnic_core::packet::desc::{Descriptor, GsoType};
use picnic_core::packet::layers::L4Kind;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Capabilities, Description, Rate, Receiver, Status, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::VecDeque;

/// The shortest frame, without its check sequence.
const SHORTEST_BYTES: u64 = 60;
/// Check sequence, preamble with its start, and gap.
const FRAMING_BYTES: u64 = 4 + 8 + 12;
/// A link sends at least one frame of 1514 bytes a second.
const SLOWEST_MBPS: f64 = 0.012_304;
const FASTEST_MBPS: f64 = 1e6;
const LONGEST_QUEUE: u32 = 65_536;
const LONGEST_LATENCY_US: u32 = 1_000_000;
/// Times of a line are in 2^-32 ns.
const FRACTION_BITS: u32 = 32;
const UNITS_PER_NS: f64 = 4_294_967_296.0;

/// `[wire.link]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinkConfig {
    /// Line rate in each direction, in Mbit/s, including Ethernet framing.
    #[schemars(range(min = SLOWEST_MBPS, max = FASTEST_MBPS))]
    pub rate_mbps: f64,
    /// Latency of a frame in microseconds, in addition to its transmission time.
    #[schemars(range(max = LONGEST_LATENCY_US))]
    pub latency_us: u32,
    /// Frames that may wait for the line, including the one being sent.
    #[schemars(range(min = 1, max = LONGEST_QUEUE))]
    pub queue_packets: u32,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig { rate_mbps: 1000.0, latency_us: 0, queue_packets: 256 }
    }
}

impl SectionConfig for LinkConfig {
    const NAME: &'static str = "wire.link";
    const HELP: &'static str = "The link that the wire is held to, in both directions.";
    const SHAPE: Shape = Shape::Optional;
}

/// Puts a link between a wire and the card.
///
/// # Errors
/// A key of `[wire.link]` is wrong.
pub fn link_wire(
    port: Box<dyn WirePort>,
    config: &LinkConfig,
    context: &BuildContext,
) -> Result<Box<dyn WirePort>, ConfigError> {
    let found = config.queue_packets as usize;
    if found > context.buffers {
        let message = format!("found {found}, allowed: 1 to {} (pool.buffers)", context.buffers);
        return Err(ConfigError::new("queue_packets", message));
    }
    let patient = port.describe().capabilities.patient;
    let line = || Line::new(config, context.buffers);
    Ok(Box::new(LinkedWire {
        port,
        patient,
        rate_mbps: config.rate_mbps,
        inner: Inner::default(),
        rx: line(),
        tx: line(),
        far: FarEnd { queue: VecDeque::with_capacity(BURST), ..FarEnd::default() },
    }))
}

/// One direction of a link.
#[derive(Debug)]
struct Line {
    timing: Timing,
    /// Frames in transit, oldest first. The receive time of each frame is its arrival time.
    frames: VecDeque<Descriptor>,
}

/// When frames are on a line.
#[derive(Debug)]
struct Timing {
    /// The time of a byte, in 2^-32 ns.
    byte: u64,
    latency_ns: u64,
    /// When the line is free, in 2^-32 ns.
    free: u128,
    /// For each place of the queue, when the line has done with the frame that had it last: while
    /// that at `oldest` is not done with, all places are taken.
    ends: Box<[Time]>,
    oldest: usize,
}

impl Line {
    fn new(config: &LinkConfig, buffers: usize) -> Self {
        let byte_ns = 8000.0 / config.rate_mbps;
        let latency_ns = u64::from(config.latency_us) * 1000;
        let places = config.queue_packets as usize;
        let shortest_ns = byte_ns * (SHORTEST_BYTES + FRAMING_BYTES) as f64;
        let under_way = (latency_ns as f64 / shortest_ns) as usize;
        let most = (places + under_way).min(buffers) + 2 * BURST;
        let timing = Timing {
            // Rounded down: times that are exact in nanoseconds stay exact.
            byte: (byte_ns * UNITS_PER_NS) as u64,
            latency_ns,
            free: 0,
            ends: vec![Time::ZERO; places].into(),
            oldest: 0,
        };
        Line { timing, frames: VecDeque::with_capacity(most) }
    }

    /// How many of the oldest frames have arrived by `now`, `most` at most.
    #[inline]
    fn arrived(&self, now: Time, most: usize) -> usize {
        let arrived = self.frames.iter().take(most).take_while(|frame| frame.received_at() <= now);
        arrived.count()
    }

    /// When the oldest frame arrives.
    #[inline]
    fn next_arrival(&self) -> Option<Time> {
        self.frames.front().map(Descriptor::received_at)
    }
}

impl Timing {
    /// Whether the queue has room for a frame at `now`.
    #[inline(always)]
    fn has_room(&self, now: Time) -> bool {
        self.ends[self.oldest] <= now
    }

    /// Frames that the queue has room for at `now`, `most` at most.
    #[inline]
    fn room(&self, now: Time, most: usize) -> usize {
        let (newest, oldest) = self.ends.split_at(self.oldest);
        oldest.iter().chain(newest).take(most).take_while(|&&end| end <= now).count()
    }

    /// A frame takes the place that has been free longest, at `when`; its receive time is from
    /// now on when it arrives.
    #[inline(always)]
    fn enter(&mut self, packet: &mut Descriptor, when: Time) {
        let start = self.free.max(u128::from(when.as_nanos()) << FRACTION_BITS);
        self.free = start + u128::from(wire_bytes(packet)) * u128::from(self.byte);
        let ended = (self.free + (1 << FRACTION_BITS) - 1) >> FRACTION_BITS;
        let ended = Time::from_nanos(ended as u64);
        self.ends[self.oldest] = ended;
        self.oldest += 1;
        if self.oldest == self.ends.len() {
            self.oldest = 0;
        }
        packet.set_received_at(ended + self.latency_ns);
    }

    /// When the queue has room; a time that has passed if it has some.
    fn next_room(&self) -> Time {
        self.ends[self.oldest]
    }
}

/// The bytes of a packet on the line, framing included.
#[inline]
fn wire_bytes(packet: &mut Descriptor) -> u64 {
    let tag = if packet.vlan_aside().is_some() { 4 } else { 0 };
    let bytes = u64::from(packet.length()) + tag;
    match packet.gso_type() {
        GsoType::None => bytes.max(SHORTEST_BYTES) + FRAMING_BYTES,
        _ => super_frame_bytes(packet, bytes, tag),
    }
}

/// The bytes of all frames that a super-frame represents.
#[cold]
fn super_frame_bytes(packet: &mut Descriptor, bytes: u64, tag: u64) -> u64 {
    let layers = packet.parse();
    let start = usize::from(layers.l4_offset);
    let l4 = match layers.packet_type.l4() {
        L4Kind::Tcp => {
            packet.data().get(start + 12).map_or(20, |&words| usize::from(words >> 4) * 4)
        }
        _ => 8,
    };
    let headers = (start + l4) as u64 + tag;
    let payload = bytes.saturating_sub(headers);
    let segments = payload.div_ceil(u64::from(packet.gso_size().max(1))).max(1);
    bytes.max(SHORTEST_BYTES) + (segments - 1) * headers + segments * FRAMING_BYTES
}

/// Packets that have crossed the link and wait for the port to send them.
#[derive(Default)]
struct FarEnd {
    queue: VecDeque<Descriptor>,
    counters: WireCounters,
    ledger: CardLedger,
}

impl FarEnd {
    /// Calls the port with the waiting packets, and reports their fate to `tx`.
    fn call<T>(
        &mut self,
        tx: &mut Transmitter<'_>,
        call: impl FnOnce(&mut Transmitter<'_>) -> T,
    ) -> T {
        let FarEnd { queue, counters, ledger } = self;
        let held = |queue: &VecDeque<Descriptor>| queue.len() as u64 + counters.tx_kept.get();
        let before = held(queue);
        let answer = call(&mut Transmitter::new(tx.pool(), queue, counters, ledger));
        let sent = counters.tx_packets.get();
        tx.have_left(sent, counters.tx_bytes.get());
        counters.tx_packets.set(0);
        counters.tx_bytes.set(0);
        if held(queue) + sent != before {
            for (reason, _, packets) in ledger.drops.nonzero() {
                tx.lose(packets, reason);
            }
            *ledger = CardLedger::default();
        }
        answer
    }
}

/// A wrapper, not an observer: it decides when frames come.
struct LinkedWire {
    port: Box<dyn WirePort>,
    /// Whether the port loses nothing by waiting.
    patient: bool,
    rate_mbps: f64,
    inner: Inner,
    rx: Line,
    tx: Line,
    far: FarEnd,
}

impl WirePort for LinkedWire {
    fn describe(&self) -> Description {
        let mut port = self.port.describe();
        let Capabilities { patient, arrival, tells_waiting, .. } = &mut port.capabilities;
        (*patient, *arrival, *tells_waiting) = (false, true, false);
        let shortest_bits = ((SHORTEST_BYTES + FRAMING_BYTES) * 8) as f64;
        let rate = (self.rate_mbps * 1e6 / shortest_bits).ceil() as u64;
        if !matches!(port.arrivals.rate, Rate::Pps(slower) if slower <= rate) {
            let origin = format!("link of {} Mb/s, frames of 64 bytes", self.rate_mbps);
            (port.arrivals.rate, port.arrivals.burst) = (Rate::Pps(rate), 1);
            port.arrivals.origin = origin;
        }
        port
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        self.port.start(pool)
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let LinkedWire { port, patient, inner, rx: line, .. } = self;
        let limit = if *patient { line.timing.room(now, rx.room()) } else { rx.room() };
        if limit != 0 && !port.status().is_finished {
            inner.receive(&mut **port, now, rx, limit);
            let mut is_full = 0_u64;
            for (place, packet) in inner.burst.as_mut_slice().iter_mut().enumerate() {
                let came = packet.received_at();
                match line.timing.has_room(came) {
                    true => line.timing.enter(packet, came),
                    false => is_full |= 1 << place,
                }
            }
            if is_full == 0 {
                inner.burst.move_to(&mut line.frames);
            } else {
                for (place, packet) in inner.burst.drain().enumerate() {
                    if is_full >> place & 1 == 0 {
                        line.frames.push_back(packet);
                    } else {
                        rx.pool().free(packet);
                        rx.shed(DropReason::LinkFull, 1);
                    }
                }
            }
        }
        let arrived = line.arrived(now, rx.room());
        rx.push_arrived(&mut line.frames, arrived);
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        let LinkedWire { port, tx: line, far, .. } = self;
        loop {
            let arrived = line.arrived(now, BURST.saturating_sub(far.queue.len()));
            move_oldest(&mut line.frames, arrived, &mut far.queue);
            if !far.queue.is_empty() || far.counters.tx_kept.get() != 0 {
                far.call(tx, |tx| port.transmit(now, tx));
            }
            if !far.queue.is_empty() {
                // The port takes no more at present, so the line's end is full.
                return;
            }
            if line.next_arrival().is_none_or(|due| due > now) {
                break;
            }
        }
        let Line { timing, frames } = line;
        let under_way = frames.len();
        let room = timing.room(now, tx.waiting().len());
        tx.keep_many(room, frames);
        for packet in frames.range_mut(under_way..) {
            timing.enter(packet, now);
        }
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        for packet in self.rx.frames.drain(..) {
            tx.pool().free(packet);
        }
        let waiting = self.far.queue.drain(..);
        for packet in waiting.chain(self.tx.frames.drain(..)) {
            tx.pool().free(packet);
            tx.lose(1, DropReason::Stopped);
        }
        let port = &mut self.port;
        self.far.call(tx, |tx| port.stop(tx))
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        self.port.obey(order, now)
    }

    fn arm(&mut self) -> bool {
        self.port.arm()
    }

    fn status(&self) -> Status<'_> {
        let port = self.port.status();
        let more = match port.is_finished {
            true => None,
            false if self.patient => Some(self.rx.timing.next_room()),
            false => port.next_deadline,
        };
        let is_clear = self.far.queue.is_empty();
        // Packets that the port does not take are offered again at once.
        let refused = (!is_clear).then_some(Time::ZERO);
        let lines = self.rx.next_arrival().into_iter().chain(self.tx.next_arrival());
        let is_empty = self.rx.frames.is_empty() && self.tx.frames.is_empty() && is_clear;
        Status {
            next_deadline: more.into_iter().chain(refused).chain(lines).min(),
            next_arrival: None,
            // Packets that the port after the line refuses may be taken at any time.
            next_room: is_clear.then(|| self.tx.timing.next_room()),
            is_finished: port.is_finished && is_empty,
            ..port
        }
    }
}
