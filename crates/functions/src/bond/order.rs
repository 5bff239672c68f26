//! Restores the order of TCP flows that arrive on several wires: waits for late segments, or counts
//! them.
//!
//! A segment ahead of its flow waits until the missing ones have arrived, but only for a time, and
//! only up to a number of segments per flow. Segments that waited in vain continue in the order of
//! their numbers. All other packets continue at once.
//!
//! Guarantees: a bounded table and bounded waiting, no allocation. A flow that meets another in its
//! place of the table ends that one's wait.

use crate::bytes::get;
use picnic_core::out::Out;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::collections::VecDeque;

/// Most tracked flows.
const FLOWS: usize = 256;
/// A segment further ahead than this belongs to a new connection.
const FURTHEST_BYTES: u32 = 1 << 20;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// The flows and their waiting segments.
#[derive(Debug)]
pub(super) struct Order {
    /// How long a segment waits; 0 if late ones are only counted.
    wait_ns: u64,
    /// Most waiting segments of a flow.
    most: usize,
    flows: Vec<Flow>,
    /// Flows with waiting segments, by the end of their wait, each with its number at that time.
    due: VecDeque<(usize, u64, Time)>,
    number: u64,
    held: usize,
    pub(super) counts: Counts,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Segments that arrived after a later one of their flow.
    pub(super) late: u64,
    /// Segments that waited until the missing ones arrived.
    pub(super) restored: u64,
    /// Segments that waited in vain.
    pub(super) given_up: u64,
}

#[derive(Debug)]
struct Flow {
    /// Its hash; none if nothing is known.
    flow: Option<u32>,
    /// The number after the last segment that continued.
    next: u32,
    /// Number of the current wait.
    number: u64,
    /// Ahead of `next`, lowest first.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    packet: Descriptor,
    begin: u32,
    end: u32,
}

/// A TCP segment's numbers in its flow.
struct Segment {
    begin: u32,
    end: u32,
    flags: u8,
}

impl Segment {
    /// None for packets other than TCP segments that can be ordered.
    #[inline]
    fn of(packet: &mut Descriptor) -> Option<Segment> {
        let layers = packet.parse();
        let kind = layers.packet_type;
        // A truncated segment has its numbers all the same.
        if !kind.is_tcp() || !packet.is_readable(&layers) {
            return None;
        }
        let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
        let data = packet.data();
        let length = packet.ip_length(&layers)?;
        let begin = u32::from_be_bytes(get(data, l4 + 4)?);
        let [words, flags] = get(data, l4 + 12)?;
        let payload = (l3 + length).checked_sub(l4 + usize::from(words >> 4) * 4)?;
        let bits = (flags & SYN != 0) as u32 + (flags & FIN != 0) as u32;
        let end = begin.wrapping_add(payload as u32).wrapping_add(bits);
        (end != begin || flags & RST != 0).then_some(Segment { begin, end, flags })
    }
}

/// How far a number is ahead of another; negative if it is behind.
#[inline]
fn ahead(number: u32, of: u32) -> i32 {
    number.wrapping_sub(of) as i32
}

impl Order {
    pub(super) fn new(wait_ns: u64, most: usize) -> Order {
        let most = if wait_ns == 0 { 0 } else { most };
        let flow =
            || Flow { flow: None, next: 0, number: 0, waiting: Vec::with_capacity(most + 1) };
        Order {
            wait_ns,
            most,
            flows: (0..FLOWS).map(|_| flow()).collect(),
            due: VecDeque::with_capacity(2 * FLOWS),
            number: 0,
            held: 0,
            counts: Counts::default(),
        }
    }

    /// Whether segments wait for missing ones.
    pub(super) fn waits(&self) -> bool {
        self.wait_ns != 0
    }

    /// Number of waiting packets.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// End of the first wait.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let is_on = |&&(place, number, _): &&(usize, u64, Time)| self.is_on(place, number);
        self.due.iter().find(is_on).map(|&(_, _, due)| due)
    }

    fn is_on(&self, place: usize, number: u64) -> bool {
        let flow = &self.flows[place];
        flow.number == number && !flow.waiting.is_empty()
    }

    /// Lets a packet of this flow continue, or wait.
    #[inline]
    pub(super) fn take(&mut self, mut packet: Descriptor, hash: u32, now: Time, out: &mut Out<'_>) {
        let Some(segment) = Segment::of(&mut packet) else { return out.next(packet) };
        let place = hash as usize % FLOWS;
        let flow = &self.flows[place];
        if flow.flow != Some(hash) || segment.flags & (SYN | RST) != 0 {
            self.give_up(place, out);
            let flow = &mut self.flows[place];
            (flow.flow, flow.next) = (Some(hash), segment.begin);
        }
        let flow = &mut self.flows[place];
        let distance = ahead(segment.begin, flow.next);
        self.counts.late += u64::from(distance < 0);
        if distance <= 0 || self.wait_ns == 0 {
            if ahead(segment.end, flow.next) > 0 {
                flow.next = segment.end;
            }
            out.next(packet);
            if !flow.waiting.is_empty() {
                self.go_on(place, out);
            }
        } else {
            self.hold(place, packet, &segment, now);
            let flow = &self.flows[place];
            if flow.waiting.len() > self.most || distance as u32 > FURTHEST_BYTES {
                self.give_up(place, out);
            }
        }
    }

    fn hold(&mut self, place: usize, packet: Descriptor, segment: &Segment, now: Time) {
        if self.flows[place].waiting.is_empty() {
            if self.due.len() == self.due.capacity() {
                // Full of ended waits: at most one per flow is active.
                let flows = &self.flows;
                self.due.retain(|&(place, number, _)| {
                    flows[place].number == number && !flows[place].waiting.is_empty()
                });
            }
            self.number += 1;
            self.flows[place].number = self.number;
            self.due.push_back((place, self.number, now + self.wait_ns));
        }
        let Segment { begin, end, .. } = *segment;
        let flow = &mut self.flows[place];
        let behind = flow.waiting.partition_point(|other| ahead(other.begin, begin) <= 0);
        flow.waiting.insert(behind, Waiting { packet, begin, end });
        self.held += 1;
    }

    /// Releases the segments without a gap before them.
    fn go_on(&mut self, place: usize, out: &mut Out<'_>) {
        let flow = &mut self.flows[place];
        let mut ready = 0;
        for waiting in &flow.waiting {
            if ahead(waiting.begin, flow.next) > 0 {
                break;
            }
            if ahead(waiting.end, flow.next) > 0 {
                flow.next = waiting.end;
            }
            ready += 1;
        }
        self.held -= ready;
        self.counts.restored += ready as u64;
        flow.waiting.drain(..ready).for_each(|waiting| out.next(waiting.packet));
    }

    /// Releases all waiting segments of a flow.
    fn give_up(&mut self, place: usize, out: &mut Out<'_>) {
        let flow = &mut self.flows[place];
        if let Some(last) = flow.waiting.last() {
            flow.next = last.end;
        }
        self.held -= flow.waiting.len();
        self.counts.given_up += flow.waiting.len() as u64;
        flow.waiting.drain(..).for_each(|waiting| out.next(waiting.packet));
    }

    /// Releases segments that have waited long enough.
    pub(super) fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        while let Some(&(place, number, due)) = self.due.front() {
            let is_on = self.is_on(place, number);
            if is_on && due > now {
                return;
            }
            self.due.pop_front();
            if is_on {
                self.give_up(place, out);
            }
        }
    }
}
