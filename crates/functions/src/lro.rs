//! `lro`: merges consecutive TCP segments into one packet.
//!
//! ```toml
//! [[rx]]
//! function = "lro"
//! timeout_usecs = 20       # the longest that a segment waits for the next
//! ```
//!
//! A segment begins a super-frame, or continues the one of its flow, by the rules of a careful NIC,
//! so that [`tso`](crate::tso) can restore the original bytes:
//!
//! - TCP over IPv4 without options or IPv6 without extension headers, in one buffer, no fragment,
//!   no padding after it, all checksums right. Unverified checksums are verified here;
//!   partial ones are not merged.
//! - Payload, and no flags but ACK and, on the last, PSH. A segment continues if it starts where
//!   the last ended, is no longer than the first, and, over IPv4, has the next identification.
//! - All else in its headers is equal: MAC addresses, VLAN tags, traffic class with ECN bits, hop
//!   limit, flow label, acknowledgment, window, options with their timestamps. So is its metadata:
//!   wire and tx queue, mark, hash, a stripped VLAN tag. A super-frame keeps this metadata.
//!
//! A shorter segment, or one with PSH, ends the super-frame; so does any packet of the flow that
//! cannot continue it, and leaves after it; so do the limits on bytes, segments and time. A segment
//! without a successor leaves unchanged.
//!
//! A super-frame is a chain of the buffers that its segments were received in: headers are cut off,
//! no byte is moved. Its descriptor has the segments' size, for a host that takes super-frames and
//! for `tso`; its TCP checksum is partial, as hosts expect. A wire that takes no super-frames needs
//! `tso` before it.
//!
//! Guarantees: order within a flow is kept, fragments' too. A flow that meets another in its place
//! of the table ends that one's super-frame. Each merged segment counts as consumed. Source:
//! Linux's `tcp_gro_receive`; RFC 9293, RFC 7323 (timestamps), RFC 3168 (ECN).

use crate::bytes::{get, get_u16, prefetch_ahead, put_u16};
use crate::checksum::verify;
use crate::tso::{PSH, fill_ipv4_checksum};
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::layers::Layers;
use picnic_core::packet::offload::pseudo_header;
use picnic_core::packet::wire::{IpProtocol, Ipv6};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;

const ACK: u8 = 0x10;
const NANOSECONDS_PER_MICROSECOND: u64 = 1000;

/// Merges TCP segments.
#[derive(Debug)]
pub struct Lro {
    /// One flow each, by a hash of its addresses and ports: a power of two of them.
    slots: Vec<Option<Held>>,
    /// Slots in the order of their deadlines, each with its number at that time; a slot with
    /// another number has been released before.
    due: VecDeque<(u32, u64)>,
    /// The number of the last super-frame begun.
    number: u64,
    held: usize,
    timeout: u64,
    max_bytes: u32,
    max_segments: u32,
    counts: Counts,
}

/// The keys of `lro`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Flows merged at a time.
    #[schemars(range(min = 1, max = 65_536), extend("powerOfTwo" = true))]
    pub flows: u32,
    /// Longest IP packet of a super-frame in bytes.
    #[schemars(range(min = 1500))]
    pub max_bytes: u16,
    /// Most segments of a super-frame.
    #[schemars(range(min = 2, max = 1024))]
    pub max_segments: u32,
    /// Longest wait of a segment in microseconds; 0: to the end of its burst.
    #[schemars(range(max = 10_000))]
    pub timeout_usecs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { flows: 256, max_bytes: 65_535, max_segments: 64, timeout_usecs: 20 }
    }
}

/// Counters of `lro`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Super-frames made, of two segments or more.
    pub super_frames: u64,
    /// Segments in them.
    pub merged: u64,
    /// Packets passed unchanged.
    pub single: u64,
    /// Super-frames and waiting segments released by timeout.
    pub timed_out: u64,
    /// Super-frames and waiting segments displaced by another flow.
    pub displaced: u64,
}

/// A super-frame under construction, or a segment that waits for the next.
#[derive(Debug)]
struct Held {
    packet: Descriptor,
    number: u64,
    due: Time,
    headers: Headers,
    segments: u32,
    /// Bytes of its IP packet.
    length: u32,
    /// Payload bytes of the first segment, which no other may exceed.
    size: u16,
    /// Expected in the next segment.
    sequence: u32,
    identification: u16,
}

/// Offsets of the headers of a packet that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Headers {
    is_ipv4: bool,
    l3: u8,
    l4: u8,
    end: u8,
}

/// A packet that may be merged.
struct Segment {
    headers: Headers,
    payload: u16,
    sequence: u32,
    identification: u16,
    pushed: bool,
}

impl Component for Lro {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "lro";
    const HELP: &'static str = "merge consecutive TCP segments";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Lro>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let Config { flows, max_bytes, max_segments, timeout_usecs } = config;
        Ok(Box::new(Lro {
            slots: (0..flows).map(|_| None).collect(),
            due: VecDeque::with_capacity(2 * flows as usize),
            number: 0,
            held: 0,
            timeout: u64::from(timeout_usecs) * NANOSECONDS_PER_MICROSECOND,
            max_bytes: max_bytes.into(),
            max_segments,
            counts: Counts::default(),
        }))
    }
}

impl Segment {
    /// `None` if the packet may not be merged.
    #[inline]
    fn of(packet: &mut Descriptor, layers: &Layers) -> Option<Segment> {
        let kind = layers.packet_type;
        let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
        let plain = kind.is_tcp() && !kind.is_malformed() && layers.is_plain();
        if !plain || packet.is_chained() || packet.gso_type() != GsoType::None {
            return None;
        }
        let data = packet.data();
        let is_ipv4 = kind.is_ipv4();
        let length = match is_ipv4 {
            true => usize::from(get_u16(data, l3 + 2)?),
            false => Ipv6::HEADER_LENGTH + usize::from(get_u16(data, l3 + 4)?),
        };
        let [offset, flags] = get(data, l4 + 12)?;
        let end = l4 + usize::from(offset >> 4) * 4;
        let payload = data.len().checked_sub(end)?;
        // 0xffff stands for zero, and would be restored as zero.
        let canonical =
            get_u16(data, l4 + 16)? != 0xffff && (!is_ipv4 || get_u16(data, l3 + 10)? != 0xffff);
        let fits = l3 + length == data.len() && payload != 0 && flags & !PSH == ACK && canonical;
        if !fits {
            return None;
        }
        let sequence = u32::from_be_bytes(get(data, l4 + 4)?);
        let identification = if is_ipv4 { get_u16(data, l3 + 4)? } else { 0 };
        match packet.checksum() {
            ChecksumState::Good => {}
            ChecksumState::Unknown => {
                let state = verify(packet);
                packet.set_checksum(state);
                if state != ChecksumState::Good {
                    return None;
                }
            }
            ChecksumState::Bad | ChecksumState::Partial => return None,
        }
        Some(Segment {
            // Two tags, IPv6 and the longest TCP header are 122 bytes.
            headers: Headers { is_ipv4, l3: l3 as u8, l4: l4 as u8, end: end as u8 },
            payload: payload as u16,
            sequence,
            identification,
            pushed: flags & PSH != 0,
        })
    }
}

impl Headers {
    /// The header bytes that are equal in all segments of a super-frame: all except lengths,
    /// identification, sequence number, flags, checksums.
    #[inline]
    fn constant(self) -> [Range<usize>; 6] {
        let (l3, l4, end) = (usize::from(self.l3), usize::from(self.l4), usize::from(self.end));
        let [a, b] = match self.is_ipv4 {
            // Up to the length; fragment, hop limit, protocol. The checksum, then addresses.
            true => [0..l3 + 2, l3 + 6..l3 + 10],
            false => [0..l3 + 4, l3 + 6..l3 + 8],
        };
        let addresses = if self.is_ipv4 { l3 + 12 } else { l3 + 8 };
        // Ports; acknowledgment and header length; window; urgent pointer and options.
        [a, b, addresses..l4 + 4, l4 + 8..l4 + 13, l4 + 14..l4 + 16, l4 + 18..end]
    }
}

/// Bytes of the headers of most segments: Ethernet without a tag, IPv4, TCP with timestamps.
const USUAL: usize = 66;

/// Of these the bits that [`Headers::constant`] covers.
const USUAL_CONSTANT: [u8; USUAL] = {
    const L3: usize = 14;
    const L4: usize = L3 + 20;
    let mut mask = [0xff; USUAL];
    // Length and identification; checksum; sequence number; flags; checksum.
    let others = [
        (L3 + 2, L3 + 6),
        (L3 + 10, L3 + 12),
        (L4 + 4, L4 + 8),
        (L4 + 13, L4 + 14),
        (L4 + 16, L4 + 18),
    ];
    let mut range = 0;
    while range < others.len() {
        let (mut at, end) = others[range];
        while at < end {
            mask[at] = 0;
            at += 1;
        }
        range += 1;
    }
    mask
};

impl Headers {
    /// Whether two packets with these headers are equal where [`Headers::constant`] requires.
    #[inline(always)]
    fn are_equal(self, a: &[u8], b: &[u8]) -> bool {
        let is_usual = self.is_ipv4 && self.l3 == 14 && usize::from(self.end) == USUAL;
        if is_usual && let (Some(a), Some(b)) = (a.first_chunk(), b.first_chunk()) {
            return are_equal_usual(a, b);
        }
        self.constant().into_iter().all(|range| a.get(range.clone()) == b.get(range))
    }
}

/// The same for usual headers: all bytes, without a branch, vectorised.
#[inline(always)]
fn are_equal_usual(a: &[u8; USUAL], b: &[u8; USUAL]) -> bool {
    let (mut differ, mut at) = (0, 0);
    while at < USUAL {
        differ |= (a[at] ^ b[at]) & USUAL_CONSTANT[at];
        at += 1;
    }
    differ == 0
}

impl Held {
    /// Whether a segment continues this one.
    #[inline]
    fn goes_on(&self, packet: &Descriptor, segment: &Segment, max_bytes: u32) -> bool {
        self.headers == segment.headers
            && self.sequence == segment.sequence
            && self.identification == segment.identification
            && segment.payload <= self.size
            && self.length + u32::from(segment.payload) <= max_bytes
            && self.packet.knows_the_same(packet)
            && self.headers.are_equal(self.packet.data(), packet.data())
    }

    /// The packet to send on.
    fn finish(self) -> Descriptor {
        let Held { mut packet, headers, segments, length, size, .. } = self;
        if segments == 1 {
            return packet;
        }
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        let length = length as usize;
        let layers = packet.layers();
        let data = packet.data_mut();
        if headers.is_ipv4 {
            put_u16(data, l3 + 2, length as u16);
            fill_ipv4_checksum(data, l3, l4);
        } else {
            put_u16(data, l3 + 4, (length - Ipv6::HEADER_LENGTH) as u16);
        }
        let pseudo = pseudo_header(data, &layers);
        let pseudo = pseudo.map_or(0, |pseudo| pseudo.sum(IpProtocol::TCP, length - (l4 - l3)));
        put_u16(data, l4 + 16, pseudo);
        packet.set_checksum(ChecksumState::Partial);
        let kind = if headers.is_ipv4 { GsoType::Tcp4 } else { GsoType::Tcp6 };
        packet.set_gso(kind, size);
        packet
    }
}

/// The place of a flow, by its addresses and ports; `None` if it is not TCP.
#[inline]
fn place_of(layers: &Layers, data: &[u8], places: usize) -> Option<usize> {
    if !layers.packet_type.is_tcp() {
        return None;
    }
    let mix =
        |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = match layers.ipv4_addresses(data) {
        Some((source, destination)) => mix(0, u64::from(source) << 32 | u64::from(destination)),
        None => {
            let (words, _) = layers.ipv6_addresses(data)?.as_chunks::<8>();
            words.iter().fold(0, |hash, word| mix(hash, u64::from_ne_bytes(*word)))
        }
    };
    let hash = mix(hash, layers.ports(data)?.into());
    Some((hash >> 20) as usize & (places - 1))
}

/// Whether two packets are of one TCP flow.
#[inline]
fn same_flow(a: &Descriptor, b: &Descriptor) -> bool {
    let of = |packet: &Descriptor| {
        let (layers, data) = (packet.layers(), packet.data());
        (layers.flow_v4(data), layers.flow_v6(data))
    };
    of(a) == of(b)
}

impl Lro {
    #[inline]
    fn take(&mut self, mut packet: Descriptor, layers: Layers, now: Time, out: &mut Out<'_>) {
        let Some(place) = place_of(&layers, packet.data(), self.slots.len()) else {
            if layers.packet_type.is_fragment() {
                // It may belong to any flow, and must not overtake it.
                self.release_until(Time::MAX, out);
            }
            self.counts.single += 1;
            return out.next(packet);
        };
        let segment = Segment::of(&mut packet, &layers);
        if let Some(held) = &self.slots[place] {
            match &segment {
                Some(segment) if held.goes_on(&packet, segment, self.max_bytes) => {
                    return self.merge(place, packet, segment, out);
                }
                Some(_) => {
                    self.counts.displaced += u64::from(!same_flow(&held.packet, &packet));
                    self.release(place, out);
                }
                None if same_flow(&held.packet, &packet) => self.release(place, out),
                None => {}
            }
        }
        match segment {
            Some(segment) if !segment.pushed => self.hold(place, packet, &segment, now),
            _ => {
                self.counts.single += 1;
                out.next(packet);
            }
        }
    }

    /// Makes a segment wait for the next.
    #[inline]
    fn hold(&mut self, place: usize, packet: Descriptor, segment: &Segment, now: Time) {
        if self.due.len() == self.due.capacity() {
            // Full of released entries: at most one per slot is active.
            let slots = &self.slots;
            self.due.retain(|&(place, number)| {
                slots[place as usize].as_ref().is_some_and(|held| held.number == number)
            });
        }
        let length = packet.length() - u32::from(segment.headers.l3);
        self.number += 1;
        self.due.push_back((place as u32, self.number));
        self.held += 1;
        self.slots[place] = Some(Held {
            packet,
            number: self.number,
            due: now + self.timeout,
            headers: segment.headers,
            segments: 1,
            length,
            size: segment.payload,
            sequence: segment.sequence.wrapping_add(segment.payload.into()),
            identification: segment.identification.wrapping_add(u16::from(segment.headers.is_ipv4)),
        });
    }

    /// Appends a segment to the super-frame at `place`.
    #[inline]
    fn merge(&mut self, place: usize, packet: Descriptor, segment: &Segment, out: &mut Out<'_>) {
        let (max_bytes, max_segments) = (self.max_bytes, self.max_segments);
        let Some(held) = &mut self.slots[place] else { return out.next(packet) };
        let size = held.size;
        if let Err(packet) = out.merge(&mut held.packet, packet, segment.headers.end.into()) {
            // Longer than a packet may be, which `max_bytes` is far below.
            self.release(place, out);
            return out.next(packet);
        }
        held.segments += 1;
        held.length += u32::from(segment.payload);
        held.sequence = held.sequence.wrapping_add(segment.payload.into());
        held.identification = held.identification.wrapping_add(u16::from(segment.headers.is_ipv4));
        if segment.pushed
            && let Some(flags) =
                held.packet.data_mut().get_mut(usize::from(segment.headers.l4) + 13)
        {
            *flags |= PSH;
        }
        let full = held.segments >= max_segments || held.length + u32::from(size) > max_bytes;
        if full || segment.pushed || segment.payload < size {
            self.release(place, out);
        }
    }

    /// Releases the packet at `place`.
    #[inline]
    fn release(&mut self, place: usize, out: &mut Out<'_>) {
        if let Some(held) = self.slots[place].take() {
            self.held -= 1;
            match held.segments {
                1 => self.counts.single += 1,
                segments => {
                    self.counts.super_frames += 1;
                    self.counts.merged += u64::from(segments);
                }
            }
            out.next(held.finish());
        }
    }

    /// The held packet at `place`, if it still has this number.
    #[inline]
    fn held_as(&self, place: u32, number: u64) -> Option<&Held> {
        self.slots[place as usize].as_ref().filter(|held| held.number == number)
    }

    /// Releases everything due by `now`.
    fn release_until(&mut self, now: Time, out: &mut Out<'_>) {
        while let Some(&(place, number)) = self.due.front() {
            let held = self.held_as(place, number);
            if held.is_some_and(|held| held.due > now) {
                return;
            }
            let is_held = held.is_some();
            self.due.pop_front();
            if is_held {
                self.release(place as usize, out);
            }
        }
    }
}

impl Inspect for Lro {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Lro {
    fn needs_order(&self) -> bool {
        true
    }

    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        // Parsed in place, and moved later: a descriptor that was just written is slow to move.
        let mut layers = [Layers::default(); BURST];
        let packets = burst.as_mut_slice();
        for place in 0..packets.len() {
            prefetch_ahead(packets, place);
            layers[place % BURST] = packets[place].parse();
        }
        for (place, packet) in burst.drain().enumerate() {
            self.take(packet, layers[place % BURST], now, out);
        }
        if self.timeout == 0 {
            self.release_until(Time::MAX, out);
        }
        // So that the first is due next.
        while let Some(&(place, number)) = self.due.front()
            && self.held_as(place, number).is_none()
        {
            self.due.pop_front();
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let held = |&(place, number): &(u32, u64)| self.held_as(place, number);
        self.due.iter().find_map(held).map(|held| held.due)
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        let before = self.held;
        self.release_until(now, out);
        self.counts.timed_out += (before - self.held) as u64;
    }

    fn held(&self) -> usize {
        self.held
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
