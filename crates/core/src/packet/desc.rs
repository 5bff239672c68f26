//! The descriptor: 32 bytes that represent one packet and own its buffer.
//!
//! Descriptors move through rings by value; the bytes stay in place. Two of them share a cache
//! line: between two cores the cost of a packet is the number of lines transferred, so this record
//! is as small as consumers allow (see `docs/decisions/002-descriptor-of-32-bytes.md`).
//!
//! Guarantees: a descriptor is the only access to its bytes, so `&mut Descriptor` is exclusive
//! access to them. It has no `Drop`: it returns to its pool through a door (`Out`, `QueueOut`,
//! `Pool::free`), and a lost one shows in the ledger and keeps its pool's memory mapped.

mod metadata;

pub use metadata::{ChecksumState, GsoType, RssFunction, RssType, VlanTag};

use super::layers::{self, Layers, PacketType};
use super::pool::MAX_PACKET_BYTES;
use super::space::{self, SEGMENT_HEADER_BYTES};
use crate::time::Time;
use std::fmt;
use std::mem::offset_of;

/// One packet: the place of its bytes and its metadata.
///
/// Lengths and offsets in bytes; see the accessors for units.
#[repr(C, align(32))]
#[must_use = "a descriptor owns a buffer: send it through a door, or free it"]
pub struct Descriptor {
    /// The buffer's place, in units of 64 bytes from the start of the buffer space.
    pub(super) buffer: u32,
    /// From the start of the buffer to the first byte of the packet.
    pub(super) offset: u16,
    /// Bytes of the packet in this buffer.
    pub(super) length: u16,
    time_low: u32,
    time_high: u16,
    /// The wire of arrival, or to leave by.
    pub wire: u8,
    /// Meaningful if the flag `FROM_HOST` is set.
    tx_queue: u8,
    /// The RSS hash; meaningful if `rss_type` is not `None`.
    pub rss_hash: u32,
    /// A value passed on by functions (the kernel's skb mark).
    pub mark: u32,
    packet_type: PacketType,
    /// L3 header length in units of four bytes; zero if there is no L4 header.
    l3_words: u8,
    flags: u16,
    /// Control information of the tag kept aside; without one, of the outer tag in the packet.
    vlan_tci: u16,
    /// Payload bytes per segment of a super-frame; with the flag `INNER`, the offset of a tunnel's
    /// inner IP header.
    gso_size: u16,
}

const _: () = assert!(size_of::<Descriptor>() == 32);
// The data path writes descriptors by whole words and relies on these offsets. A narrow store
// followed by a wider load of the same bytes stalls the processor until the store has left its
// buffer, which waits for every store before it: here, for frames written to lines that another
// core holds.
const _: () = {
    assert!(offset_of!(Descriptor, buffer) == 0);
    assert!(offset_of!(Descriptor, offset) == 4);
    assert!(offset_of!(Descriptor, length) == 6);
    assert!(offset_of!(Descriptor, time_low) == ORIGIN * 8);
    assert!(offset_of!(Descriptor, time_high) == ORIGIN * 8 + 4);
    assert!(offset_of!(Descriptor, wire) == ORIGIN * 8 + 6);
    assert!(offset_of!(Descriptor, tx_queue) == ORIGIN * 8 + 7);
    assert!(offset_of!(Descriptor, rss_hash) == HASH * 8);
    assert!(offset_of!(Descriptor, mark) == HASH * 8 + 4);
    assert!(offset_of!(Descriptor, packet_type) == KIND * 8);
    assert!(offset_of!(Descriptor, l3_words) == KIND * 8 + 1);
    assert!(offset_of!(Descriptor, flags) == KIND * 8 + 2);
    assert!(offset_of!(Descriptor, vlan_tci) == KIND * 8 + 4);
    assert!(offset_of!(Descriptor, gso_size) == KIND * 8 + 6);
};

/// The words of a descriptor: place (0), time and wire of arrival, hash and mark, kind of packet.
const PLACE: usize = 0;
const ORIGIN: usize = 1;
const HASH: usize = 2;
const KIND: usize = 3;

// flags: bit 0 chained · 1-2 checksum · 3-4 GSO type · 5-6 VLAN count · 7 parsed · 8-10 RSS type
//        11 RSS hash is Jenkins' · 12 from host · 13 VLAN tag aside · 14 which is a service tag · 15 inner header known
const CHAINED: u16 = 1;
const CHECKSUM_SHIFT: u16 = 1;
const GSO_SHIFT: u16 = 3;
const VLAN_SHIFT: u16 = 5;
const PARSED: u16 = 1 << 7;
const RSS_SHIFT: u16 = 8;
const JENKINS: u16 = 1 << 11;
const FROM_HOST: u16 = 1 << 12;
const TAG_ASIDE: u16 = 1 << 13;
const SERVICE_TAG: u16 = 1 << 14;
const INNER: u16 = 1 << 15;

impl Descriptor {
    /// The packet's bytes; for a chained packet, those of its first segment.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        space::bytes(self)
    }

    /// The packet's bytes, mutable; for a chained packet, those of its first segment.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        space::bytes_mut(self)
    }

    /// The whole packet's length in bytes, over all its segments.
    #[inline(always)]
    pub fn length(&self) -> u32 {
        if self.is_chained() { space::chain_length(self) } else { u32::from(self.length) }
    }

    /// Whether the packet continues in further buffers.
    #[inline(always)]
    pub fn is_chained(&self) -> bool {
        self.flags & CHAINED != 0
    }

    pub(super) fn set_chained(&mut self, chained: bool) {
        let word = &mut space::words_mut(self)[KIND];
        *word = *word & !(u64::from(CHAINED) << 16) | u64::from(chained) << 16;
    }

    /// The packet's segments, first to last.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        space::segments(self)
    }

    /// The `count` bytes before the packet, with any content; none if its headroom has fewer.
    #[inline(always)]
    pub fn in_front(&self, count: u16) -> Option<&[u8]> {
        space::in_front(self, count)
    }

    /// Bytes that can be added before the packet without moving it.
    #[inline]
    pub fn headroom(&self) -> u16 {
        self.offset - SEGMENT_HEADER_BYTES
    }

    /// Bytes that can be appended without moving it; none to a chained packet.
    #[inline]
    pub fn tailroom(&self) -> u16 {
        if self.is_chained() {
            return 0;
        }
        let end = u32::from(self.offset) + u32::from(self.length);
        let room = space::capacity(self).saturating_sub(end);
        u16::try_from(room).unwrap_or(u16::MAX).min(u16::MAX - self.length)
    }

    /// Makes room for `count` bytes before the packet; false, and no change, if there is too little
    /// room.
    ///
    /// The new bytes have any content. Layer offsets are forgotten.
    #[inline]
    pub fn push_front(&mut self, count: u16) -> bool {
        if count > self.headroom() || self.length.checked_add(count).is_none() {
            return false;
        }
        let inner = self.inner_l3().and_then(|offset| offset.checked_add(count));
        self.set_extent(self.offset - count, self.length + count);
        self.grow_chain(i32::from(count));
        self.forget_layers();
        self.move_inner_l3(inner);
        true
    }

    /// Removes `count` bytes from the front; false (and nothing done) if the segment has fewer.
    #[inline]
    pub fn pull_front(&mut self, count: u16) -> bool {
        if count > self.length {
            return false;
        }
        let inner = self.inner_l3().and_then(|offset| offset.checked_sub(count));
        self.set_extent(self.offset + count, self.length - count);
        self.grow_chain(-i32::from(count));
        self.forget_layers();
        self.move_inner_l3(inner);
        true
    }

    /// Makes room for `count` bytes at the end; false (and nothing done) if there is too little or
    /// the packet is chained. The new bytes have any content.
    #[inline]
    pub fn push_back(&mut self, count: u16) -> bool {
        let Some(length) = self.length.checked_add(count) else { return false };
        let end = u32::from(self.offset) + u32::from(length);
        if self.is_chained() || end > space::capacity(self) {
            return false;
        }
        self.set_extent(self.offset, length);
        true
    }

    /// Sets where the packet begins in its buffer, and its length there.
    #[inline(always)]
    fn set_extent(&mut self, offset: u16, length: u16) {
        let word = &mut space::words_mut(self)[PLACE];
        *word = *word << 32 >> 32 | u64::from(offset) << 32 | u64::from(length) << 48;
    }

    /// Appends the bytes of `part`, which stay in place; the metadata of `part` is dropped.
    ///
    /// # Errors
    /// `part` again, and nothing done, if the result would be longer than [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn append(&mut self, part: Descriptor) -> Result<(), Descriptor> {
        self.append_behind(part, 0)
    }

    /// The same, without the first `skip` bytes of `part`: its headers.
    ///
    /// # Errors
    /// As [`Self::append`]; and if the first segment of `part` is shorter than `skip`.
    #[inline(always)]
    pub fn append_behind(&mut self, part: Descriptor, skip: u16) -> Result<(), Descriptor> {
        space::append(self, part, skip, MAX_PACKET_BYTES as u32)
    }

    fn grow_chain(&mut self, difference: i32) {
        if self.is_chained() {
            space::add_chain_length(self, difference);
        }
    }

    /// Truncates the packet to `length` bytes; no effect if it is shorter.
    ///
    /// A chained packet keeps its segments: `length` is honoured only for a packet in one buffer.
    #[inline]
    pub fn truncate(&mut self, length: u16) {
        if !self.is_chained() && length < self.length {
            self.set_extent(self.offset, length);
        }
    }

    /// When the packet arrived at its wire; when it was taken, if the wire does not know.
    #[inline(always)]
    pub fn received_at(&self) -> Time {
        Time::from_nanos(u64::from(self.time_high) << 32 | u64::from(self.time_low))
    }

    /// Nanoseconds from arrival to `now`. Arrival is kept in 48 bits (78 hours, then it wraps).
    #[inline(always)]
    pub fn age(&self, now: Time) -> u64 {
        now.as_nanos().wrapping_sub(self.received_at().as_nanos()) & ((1 << 48) - 1)
    }

    /// Sets the receive time.
    #[inline(always)]
    pub fn set_received_at(&mut self, now: Time) {
        let word = &mut space::words_mut(self)[ORIGIN];
        *word = *word >> 48 << 48 | now.as_nanos() & ((1 << 48) - 1);
    }

    /// Sets the wire and the time of arrival, both in one store.
    #[inline(always)]
    pub fn set_arrival(&mut self, wire: u8, now: Time) {
        let word = &mut space::words_mut(self)[ORIGIN];
        let time = now.as_nanos() & ((1 << 48) - 1);
        *word = *word >> 56 << 56 | u64::from(wire) << 48 | time;
    }

    /// The tx ring that the packet was last taken from, if any.
    #[inline]
    pub fn tx_queue(&self) -> Option<u8> {
        (self.flags & FROM_HOST != 0).then_some(self.tx_queue)
    }

    /// Marks the packet as the card's own.
    #[inline]
    pub fn clear_tx_queue(&mut self) {
        space::words_mut(self)[KIND] &= !(u64::from(FROM_HOST) << 16);
    }

    /// Records that the packet was taken from the tx ring of this queue.
    #[inline]
    pub fn set_tx_queue(&mut self, queue: u8) {
        let words = space::words_mut(self);
        words[ORIGIN] = words[ORIGIN] << 8 >> 8 | u64::from(queue) << 56;
        words[KIND] |= u64::from(FROM_HOST) << 16;
    }

    /// Parses the packet's headers and keeps the result in the descriptor.
    ///
    /// Headers that continue in further buffers are moved into the first (see
    /// [`Self::gather_front`]), so that [`Self::data`] has them.
    #[inline(always)]
    pub fn parse(&mut self) -> Layers {
        let layers =
            if self.is_chained() { self.parse_chained() } else { layers::parse(self.data()) };
        self.set_layers(&layers);
        layers
    }

    /// Moves headers that continue in further buffers into the first, as far as it has room; no
    /// effect on a packet in one buffer.
    #[inline(always)]
    pub fn gather_headers(&mut self) {
        if self.is_chained() {
            self.parse_chained();
        }
    }

    #[cold]
    #[inline(never)]
    fn parse_chained(&mut self) -> Layers {
        let total = self.length() as usize;
        let found = layers::parse_of(self.data(), total);
        if !found.packet_type.is_malformed() || self.data().len() >= layers::LONGEST_HEADERS {
            return found;
        }
        let mut first = [0; layers::LONGEST_HEADERS];
        let first = self.copy_front(&mut first);
        let whole = layers::parse_of(first, total);
        // If malformed: the longest possible headers.
        let end = match whole.packet_type.is_malformed() {
            true => first.len(),
            false => whole.headers_length(first),
        };
        self.gather_front(end as u16);
        layers::parse_of(self.data(), total)
    }

    /// The packet's first bytes, contiguous: all of them, or as many as fit.
    pub(super) fn copy_front<'a>(&self, to: &'a mut [u8]) -> &'a [u8] {
        let mut length = 0;
        for segment in self.segments() {
            let taken = segment.len().min(to.len() - length);
            to[length..length + taken].copy_from_slice(&segment[..taken]);
            length += taken;
            if length == to.len() {
                break;
            }
        }
        &to[..length]
    }

    /// Moves bytes of further buffers into the first until it has `count` bytes of the packet, is
    /// full, or has all of them. Emptied buffers stay.
    #[inline]
    pub fn gather_front(&mut self, count: u16) {
        if self.is_chained() && count > self.length {
            // Only for as many bytes as there are.
            space::gather_front(self, self.length().min(count.into()) as u16);
        }
    }

    /// Keeps the result of a parse.
    #[inline(always)]
    pub fn set_layers(&mut self, layers: &Layers) {
        // Never above 255: a parse does not find headers farther away.
        let words =
            u64::from((layers.l4_offset.saturating_sub(u16::from(layers.l3_offset)) / 4) & 0xff);
        let parsed = if layers.l3_offset == 0 { 0 } else { PARSED };
        let flags = u64::from(parsed | u16::from(layers.vlan_count & 3) << VLAN_SHIFT);
        const KEPT: u64 = (!(PARSED | 3 << VLAN_SHIFT) as u64) << 16 | 0xffff << 48;
        let word = &mut space::words_mut(self)[KIND];
        // The field of the packet's own tag is used for a tag kept aside.
        let aside = (*word >> (16 + 13) & 1).wrapping_neg() & 0xffff << 32;
        *word = *word & (KEPT | aside)
            | u64::from(layers.packet_type.bits())
            | words << 8
            | flags << 16
            | u64::from(layers.vlan_tci) << 32 & !aside;
    }

    /// The result of the last parse, without `protocol` and, if a VLAN tag is kept aside, without
    /// the control information of a tag within.
    #[inline(always)]
    pub fn layers(&self) -> Layers {
        let vlan_count = self.vlan_count();
        // Ethernet's header and the tags: nothing else precedes L3.
        let l3_offset = if self.flags & PARSED == 0 { 0 } else { 14 + 4 * vlan_count };
        let l4_offset = match self.l3_words {
            0 => 0,
            words => u16::from(l3_offset) + u16::from(words) * 4,
        };
        Layers {
            l3_offset,
            vlan_count,
            l4_offset,
            packet_type: self.packet_type,
            // Known to a parse and not kept in a descriptor.
            protocol: 0,
            vlan_tci: if self.flags & TAG_ASIDE == 0 { self.vlan_tci } else { 0 },
        }
    }

    /// Whether another packet has the same metadata, apart from place, length and receive time:
    /// wire and tx queue, mark, hash, layers, VLAN tag kept aside, checksums, segmentation.
    #[inline]
    pub fn knows_the_same(&self, other: &Descriptor) -> bool {
        const OWN: u64 = (CHAINED as u64) << 16;
        let kind = |of: &Descriptor| {
            let word = space::words(of)[KIND] & !OWN;
            let has_number = of.flags & INNER != 0 || of.gso_type() != GsoType::None;
            if has_number { word } else { word << 16 >> 16 }
        };
        self.wire == other.wire
            && self.mark == other.mark
            && self.tx_queue() == other.tx_queue()
            && kind(self) == kind(other)
            && (self.rss_hash == other.rss_hash || self.rss_type() == RssType::None)
    }

    /// L3 and L4 protocols, as the last parse found them.
    #[inline(always)]
    pub fn packet_type(&self) -> PacketType {
        self.packet_type
    }

    /// The VLAN tag that was removed from the packet, or will be inserted.
    #[inline]
    pub fn vlan_aside(&self) -> Option<VlanTag> {
        (self.flags & TAG_ASIDE != 0)
            .then_some(VlanTag { tci: self.vlan_tci, service: self.flags & SERVICE_TAG != 0 })
    }

    /// Keeps a VLAN tag beside the packet, or none. Layer offsets are forgotten.
    #[inline]
    pub fn set_vlan_aside(&mut self, tag: Option<VlanTag>) {
        space::words_mut(self)[KIND] &= !(u64::from(TAG_ASIDE | SERVICE_TAG) << 16);
        self.forget_layers();
        if let Some(VlanTag { tci, service }) = tag {
            let flags = TAG_ASIDE | if service { SERVICE_TAG } else { 0 };
            let word = &mut space::words_mut(self)[KIND];
            *word = *word & !(0xffff << 32) | u64::from(flags) << 16 | u64::from(tci) << 32;
        }
    }

    /// Payload bytes per segment of a super-frame; meaningful if `gso_type` is not `None`.
    #[inline]
    pub fn gso_size(&self) -> u16 {
        self.gso_size
    }

    /// Offset of the IP header inside a tunnel, if a function has found one. It follows bytes that
    /// are put before the packet or removed, and is never set for a super-frame.
    #[inline(always)]
    pub fn inner_l3(&self) -> Option<u16> {
        (self.flags & INNER != 0).then_some(self.gso_size)
    }

    /// Sets the offset of the IP header inside a tunnel; ignored for a super-frame.
    #[inline]
    pub fn set_inner_l3(&mut self, offset: u16) {
        if self.gso_type() == GsoType::None {
            self.flags |= INNER;
            self.gso_size = offset;
        }
    }

    /// Forgets the IP header inside a tunnel: the tunnel was removed, or another added.
    #[inline]
    pub fn forget_inner_l3(&mut self) {
        space::words_mut(self)[KIND] &= !(u64::from(INNER) << 16);
    }

    #[inline]
    fn move_inner_l3(&mut self, inner: Option<u16>) {
        self.forget_inner_l3();
        if let Some(offset) = inner {
            self.set_inner_l3(offset);
        }
    }

    #[inline]
    fn forget_layers(&mut self) {
        self.set_layers(&Layers::default());
    }

    /// VLAN tags on the packet, 0 to 2.
    #[inline(always)]
    pub fn vlan_count(&self) -> u8 {
        (self.flags >> VLAN_SHIFT & 3) as u8
    }

    /// The input of the hash.
    #[inline(always)]
    pub fn rss_type(&self) -> RssType {
        match self.flags >> RSS_SHIFT & 7 {
            1 => RssType::Ipv4,
            2 => RssType::Ipv4Tcp,
            3 => RssType::Ipv4Udp,
            4 => RssType::Ipv6,
            5 => RssType::Ipv6Tcp,
            6 => RssType::Ipv6Udp,
            _ => RssType::None,
        }
    }

    /// Sets the RSS hash; its type is set already. One word, for the data path.
    #[inline(always)]
    pub fn set_rss_hash(&mut self, hash: u32) {
        let word = &mut space::words_mut(self)[HASH];
        *word = *word >> 32 << 32 | u64::from(hash);
    }

    /// The function that made the hash.
    #[inline]
    pub fn rss_function(&self) -> RssFunction {
        if self.flags & JENKINS == 0 { RssFunction::Toeplitz } else { RssFunction::Jenkins }
    }

    /// Sets the function that made the hash.
    #[inline]
    pub fn set_rss_function(&mut self, function: RssFunction) {
        let word = &mut space::words_mut(self)[KIND];
        *word = *word & !(u64::from(JENKINS) << 16) | u64::from(JENKINS * function as u16) << 16;
    }

    /// Sets the RSS hash and its type; Toeplitz unless set otherwise.
    #[inline(always)]
    pub fn set_rss(&mut self, hash: u32, over: RssType) {
        self.set_rss_hash(hash);
        self.set_rss_type(over);
    }

    /// Sets the type of a hash that will follow; see [`Self::set_rss`].
    #[inline(always)]
    pub fn set_rss_type(&mut self, over: RssType) {
        let word = &mut space::words_mut(self)[KIND];
        *word = *word & !(15 << (16 + RSS_SHIFT)) | (over as u64) << (16 + RSS_SHIFT);
    }

    /// The state of the checksums.
    #[inline]
    pub fn checksum(&self) -> ChecksumState {
        match self.flags >> CHECKSUM_SHIFT & 3 {
            1 => ChecksumState::Good,
            2 => ChecksumState::Bad,
            3 => ChecksumState::Partial,
            _ => ChecksumState::Unknown,
        }
    }

    /// Sets the state of the checksums.
    #[inline]
    pub fn set_checksum(&mut self, state: ChecksumState) {
        let word = &mut space::words_mut(self)[KIND];
        *word = *word & !(3 << (16 + CHECKSUM_SHIFT)) | (state as u64) << (16 + CHECKSUM_SHIFT);
    }

    /// The segmentation requested.
    #[inline]
    pub fn gso_type(&self) -> GsoType {
        match self.flags >> GSO_SHIFT & 3 {
            1 => GsoType::Tcp4,
            2 => GsoType::Tcp6,
            3 => GsoType::Udp,
            _ => GsoType::None,
        }
    }

    /// Requests segmentation into `gso_size` bytes of payload each.
    #[inline]
    pub fn set_gso(&mut self, gso_type: GsoType, gso_size: u16) {
        const KEPT: u64 = !(((3 << GSO_SHIFT | INNER) as u64) << 16 | 0xffff << 48);
        let word = &mut space::words_mut(self)[KIND];
        *word = *word & KEPT | (gso_type as u64) << (16 + GSO_SHIFT) | u64::from(gso_size) << 48;
    }

    /// Copies the metadata of another packet (not its bytes): for clones and segments.
    #[inline]
    pub fn copy_metadata(&mut self, other: &Descriptor) {
        const OWN: u64 = (CHAINED as u64) << 16;
        let (to, from) = (space::words_mut(self), space::words(other));
        to[ORIGIN] = from[ORIGIN];
        to[HASH] = from[HASH];
        to[KIND] = to[KIND] & OWN | from[KIND] & !OWN;
    }

    /// Asks the processor to fetch the first line of the packet's bytes.
    #[inline(always)]
    pub fn prefetch(&self) {
        space::prefetch(self);
    }

    /// The same for all lines of the packet's first segment, before its payload is read.
    #[inline(always)]
    pub fn prefetch_all(&self) {
        space::prefetch_all(self);
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("buffer", &self.buffer)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .field("wire", &self.wire)
            .field("packet_type", &self.packet_type)
            .field("rss_hash", &format_args!("{:#010x}", self.rss_hash))
            .field("mark", &self.mark)
            .field("chained", &self.is_chained())
            .finish_non_exhaustive()
    }
}
