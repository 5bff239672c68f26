//! `tso`: cuts super-frames into segments, as a NIC with segmentation offload does.
//!
//! ```toml
//! [[tx]]
//! function = "tso"
//! mtu = 1500               # default: segments are as long as the super-frame requests
//! ```
//!
//! A super-frame is a packet whose descriptor requests segmentation: TCP over IPv4 or IPv6, or UDP
//! (USO). Each segment gets the super-frame's headers and the next `gso_size` bytes of its payload;
//! the last gets the rest. These header fields change:
//!
//! | field                          | in segment *n*, from 0                             |
//! |--------------------------------|----------------------------------------------------|
//! | IPv4 total length, IPv6 payload length, UDP length | its own                        |
//! | IPv4 identification            | the super-frame's, plus *n*                        |
//! | TCP sequence number            | the super-frame's, plus the payload before it      |
//! | FIN, PSH                       | in the last only                                   |
//! | CWR                            | in the first only                                  |
//! | IPv4 header, TCP, UDP checksum | right; a UDP checksum of zero over IPv4 stays, unless it was left unfinished |
//!
//! Everything else is as in the super-frame: options, flags, metadata. A jumbo payload option (RFC
//! 2675), which Linux puts into super-frames of more than 65,535 bytes, is removed: segments are
//! not jumbograms. Other packets pass. With `tso` in the tx chain, hosts may send super-frames even
//! if a wire takes none.
//!
//! Guarantees: order is kept. A super-frame is cut whole or dropped whole: as pool_exhausted
//! without buffers for all segments, as malformed if its headers are inconsistent, or a segment has
//! no room for payload. Segments count as made, the super-frame as consumed.
//!
//! Source: RFC 9293 3.7.1, RFC 3168 6.1.2 (CWR), RFC 6864 (identification), virtio 1.2 5.1.6
//! (VIRTIO_NET_HDR_GSO_TCPV4, TCPV6, UDP_L4); what Linux's `tcp_gso_segment` does.

use crate::bytes::{get, get_u16, put, put_u16};
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::offload::pseudo_header;
use picnic_core::packet::wire::checksum::{self, Pieces};
use picnic_core::packet::wire::{IpProtocol, Ipv6, JUMBO_OPTION, Udp};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

const FIN: u16 = 0x01;
pub(crate) const PSH: u8 = 0x08;
const CWR: u16 = 0x80;

/// Cuts super-frames.
#[derive(Debug)]
pub struct Tso {
    mtu: usize,
    counts: Counts,
}

/// The keys of `tso`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Longest IP packet of a segment in bytes; default: as the super-frame requests.
    #[schemars(range(min = 576))]
    pub mtu: Option<u16>,
}

/// Counters of `tso`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Super-frames cut.
    pub super_frames: u64,
    /// Segments made from them.
    pub segments: u64,
    /// Super-frames dropped for inconsistent headers.
    pub malformed: u64,
    /// Super-frames dropped for lack of buffers.
    pub pool_exhausted: u64,
}

impl Component for Tso {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "tso";
    const HELP: &'static str = "cut TCP and UDP super-frames into segments";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Tso>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let mtu = usize::from(config.mtu.unwrap_or(u16::MAX));
        Ok(Box::new(Tso { mtu, counts: Counts::default() }))
    }
}

/// The plan for cutting a super-frame.
struct Plan {
    is_ipv4: bool,
    protocol: IpProtocol,
    l3: usize,
    l4: usize,
    /// Bytes of headers.
    headers: usize,
    payload: usize,
    /// Payload bytes of each segment except the last.
    size: usize,
    identification: u16,
    sequence: u32,
    /// TCP's header length and flags, in one word.
    flags: u16,
    has_checksum: bool,
    /// Sum of an IPv4 header without the fields that vary between segments.
    constant_l3: u16,
    /// The same for the TCP or UDP header, with the pseudo-header's addresses and protocol.
    constant_l4: u16,
}

impl Plan {
    /// `None` if the packet contradicts its descriptor.
    fn of(packet: &mut Descriptor, mtu: usize) -> Option<Plan> {
        let mut layers = packet.parse();
        if layers.packet_type.is_ipv6() && take_out_jumbo(packet, layers.l3_offset.into()) {
            layers = packet.parse();
        }
        let kind = layers.packet_type;
        let data = packet.data();
        let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
        let (is_ipv4, is_tcp) = (kind.is_ipv4(), kind.is_tcp());
        let fits = match packet.gso_type() {
            GsoType::Tcp4 => is_ipv4 && is_tcp,
            GsoType::Tcp6 => kind.is_ipv6() && is_tcp,
            GsoType::Udp => kind.is_udp(),
            GsoType::None => false,
        };
        if !fits || kind.is_malformed() || l4 == 0 {
            return None;
        }
        let length = packet.ip_length(&layers)?;
        let headers = match is_tcp {
            true => l4 + usize::from(data.get(l4 + 12)? >> 4) * 4,
            false => l4 + Udp::HEADER_LENGTH,
        };
        let payload = (l3 + length).checked_sub(headers)?;
        let size = usize::from(packet.gso_size()).min(mtu.checked_sub(headers - l3)?);
        if size == 0 || headers > data.len() {
            return None;
        }
        let unfinished = packet.checksum() == ChecksumState::Partial;
        let protocol = if is_tcp { IpProtocol::TCP } else { IpProtocol::UDP };
        // Sequence number, flags and checksum; length and checksum.
        let of_segments: &[usize] = if is_tcp { &[4, 6, 12, 16] } else { &[4, 6] };
        let constant_l4 = sum_without(data, l4..headers, of_segments)?;
        let pseudo = match pseudo_header(data, &layers) {
            Some(pseudo) => pseudo.sum(protocol, 0),
            // With a route of a kind that only its sender knows: the sender has summed the
            // pseudo-header.
            None if unfinished => {
                let field = get_u16(data, l4 + if is_tcp { 16 } else { 6 })?;
                let length = (l3 + length - l4) as u32;
                checksum::add(field, !checksum::add((length >> 16) as u16, length as u16))
            }
            None => return None,
        };
        Some(Plan {
            is_ipv4,
            protocol,
            l3,
            l4,
            headers,
            payload,
            size,
            identification: get_u16(data, l3 + 4)?,
            sequence: u32::from_be_bytes(get(data, l4 + 4)?),
            flags: if is_tcp { get_u16(data, l4 + 12)? } else { 0 },
            has_checksum: is_tcp || !is_ipv4 || unfinished || get_u16(data, l4 + 6)? != 0,
            // Length, identification, checksum.
            constant_l3: if is_ipv4 { sum_without(data, l3..l4, &[2, 4, 10])? } else { 0 },
            constant_l4: checksum::add(pseudo, constant_l4),
        })
    }

    fn segments(&self) -> usize {
        self.payload.div_ceil(self.size).max(1)
    }

    /// Writes the headers of the segment that begins `before` bytes into the payload and has
    /// `length` bytes of it, with this sum.
    ///
    /// Reads nothing: the bytes have just been written, and reading them in other portions while
    /// they move to the cache would stall.
    #[inline]
    fn finish(&self, data: &mut [u8], before: usize, length: usize, payload: u16) {
        let &Plan { l3, l4, headers, .. } = self;
        let is_last = before + length == self.payload;
        let packet_length = (headers + length - l3) as u16;
        if self.is_ipv4 {
            let identification = self.identification.wrapping_add((before / self.size) as u16);
            put_u16(data, l3 + 2, packet_length);
            put_u16(data, l3 + 4, identification);
            let sum = checksum::add(packet_length, identification);
            put_u16(data, l3 + 10, !checksum::add(self.constant_l3, sum));
        } else {
            put_u16(data, l3 + 4, packet_length - Ipv6::HEADER_LENGTH as u16);
        }
        let l4_length = (headers + length - l4) as u16;
        let sum = checksum::add(checksum::add(self.constant_l4, l4_length), payload);
        if self.protocol == IpProtocol::TCP {
            let sequence = self.sequence.wrapping_add(before as u32);
            let not_last = if is_last { 0 } else { FIN | u16::from(PSH) };
            let not_first = if before == 0 { 0 } else { CWR };
            let flags = self.flags & !not_last & !not_first;
            put(data, l4 + 4, sequence.to_be_bytes());
            put_u16(data, l4 + 12, flags);
            let sequence = checksum::add((sequence >> 16) as u16, sequence as u16);
            put_u16(data, l4 + 16, !checksum::add(sum, checksum::add(sequence, flags)));
        } else {
            put_u16(data, l4 + 4, l4_length);
            // Zero means none.
            let value = match !checksum::add(sum, l4_length) {
                0 => 0xffff,
                value => value,
            };
            put_u16(data, l4 + 6, if self.has_checksum { value } else { 0 });
        }
    }
}

/// Removes the jumbo payload option from the hop-by-hop options of a super-frame, and the whole
/// header if it has no others; returns whether anything changed.
#[inline]
fn take_out_jumbo(packet: &mut Descriptor, l3: usize) -> bool {
    const PAD_1: u8 = 0;
    const PAD_N: u8 = 1;
    let options = l3 + Ipv6::HEADER_LENGTH;
    let data = packet.data_mut();
    let Some([0, 0, next]) = get(data, l3 + 4) else { return false };
    if IpProtocol(next) != IpProtocol::HOP_BY_HOP {
        return false;
    }
    let Some([next, units]) = get(data, options) else { return false };
    if units == 0 && get(data, options + 2) == Some([JUMBO_OPTION, 4]) {
        put(data, l3 + 6, [next]);
        data.copy_within(..options, 8);
        packet.pull_front(8);
        return true;
    }
    // Among others, which all stay in place.
    let (mut at, end) = (options + 2, options + usize::from(units) * 8 + 8);
    while at < end {
        at += match get(data, at) {
            Some([JUMBO_OPTION, 4]) => {
                put(data, at, [PAD_N, 4, 0, 0, 0, 0]);
                return true;
            }
            Some([PAD_1, _]) => 1,
            Some([_, length]) => 2 + usize::from(length),
            None => return false,
        };
    }
    false
}

/// The sum of the bytes in `range`, without the words at these places.
fn sum_without(data: &[u8], range: Range<usize>, places: &[usize]) -> Option<u16> {
    let header = data.get(range)?;
    places.iter().try_fold(checksum::sum(header), |sum, &place| {
        // The complement subtracts.
        Some(checksum::add(sum, !get_u16(header, place)?))
    })
}

/// Fills in the checksum of the IPv4 header from `l3` to `l4`.
#[inline]
pub(crate) fn fill_ipv4_checksum(data: &mut [u8], l3: usize, l4: usize) {
    put_u16(data, l3 + 10, 0);
    let value = checksum::checksum(data.get(l3..l4).unwrap_or_default());
    put_u16(data, l3 + 10, value);
}

/// A packet's payload, taken from the front.
struct Payload<'a, I> {
    piece: &'a [u8],
    pieces: I,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Payload<'a, I> {
    /// The next `length` bytes, in the pieces in which they are stored.
    #[inline]
    fn take(&mut self, mut length: usize) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || {
            if length == 0 {
                return None;
            }
            while self.piece.is_empty() {
                self.piece = self.pieces.next()?;
            }
            let (taken, left) = self.piece.split_at(length.min(self.piece.len()));
            self.piece = left;
            length -= taken.len();
            Some(taken)
        })
    }
}

impl Tso {
    fn cut(&mut self, mut packet: Descriptor, out: &mut Out<'_>) {
        let Some(plan) =
            Plan::of(&mut packet, self.mtu).filter(|plan| plan.headers <= out.buffer_size())
        else {
            self.counts.malformed += 1;
            return out.drop(packet, DropReason::Malformed);
        };
        let (segments, headers) = (plan.segments(), plan.headers);
        let longest = headers + plan.size.min(plan.payload);
        if !out.has_buffers(segments * longest.div_ceil(out.buffer_size())) {
            self.counts.pool_exhausted += 1;
            return out.drop(packet, DropReason::PoolExhausted);
        }
        let mut pieces = packet.segments();
        let (head, piece) =
            pieces.next().and_then(|first| first.split_at_checked(headers)).unwrap_or_default();
        let mut payload = Payload { piece, pieces };
        let mut before = 0;
        for _ in 0..segments {
            let length = plan.size.min(plan.payload - before);
            // Summed in place, before they are copied from there.
            let mut summed = Pieces::default();
            let pieces = payload.take(length).inspect(|piece| {
                if plan.has_checksum {
                    summed.add(piece);
                }
            });
            let bytes = std::iter::once(head).chain(pieces);
            // There are buffers: that was checked.
            let Some(mut segment) = out.gather(headers + length, bytes) else { break };
            segment.copy_metadata(&packet);
            // Before the bytes: a descriptor that was just written is slow to move.
            segment.set_gso(GsoType::None, 0);
            segment.set_checksum(ChecksumState::Good);
            plan.finish(segment.data_mut(), before, length, summed.sum());
            before += length;
            out.next(segment);
        }
        drop(payload);
        if before != plan.payload {
            return out.drop(packet, DropReason::PoolExhausted);
        }
        self.counts.super_frames += 1;
        self.counts.segments += segments as u64;
        out.consume(packet);
    }
}

impl Inspect for Tso {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Tso {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let is_whole = |packet: &Descriptor| packet.gso_type() == GsoType::None;
        if burst.as_slice().iter().all(is_whole) {
            return;
        }
        // Packets left in the burst come after those passed on, so all must be passed on.
        for packet in burst.drain() {
            if is_whole(&packet) {
                out.next(packet);
            } else {
                self.cut(packet, out);
            }
        }
    }

    fn cuts_super_frames(&self) -> bool {
        true
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
