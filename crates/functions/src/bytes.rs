//! Numbers in packets, read and written at any place; places outside the packet are ignored.
//!
//! Guarantees: no panic, for any place.

use picnic_core::packet::desc::Descriptor;

/// Prefetches the first bytes of a packet some places ahead of the current one: memory takes longer
/// than the work of one packet, and less than the work of a few packets.
#[inline(always)]
pub(crate) fn prefetch_ahead(packets: &[Descriptor], place: usize) {
    const AHEAD: usize = 4;
    if let Some(ahead) = packets.get(place + AHEAD) {
        ahead.prefetch();
    }
}

/// The `N` bytes at `place`.
#[inline(always)]
pub(crate) fn get<const N: usize>(data: &[u8], place: usize) -> Option<[u8; N]> {
    data.get(place..)?.first_chunk().copied()
}

/// The 16 bits at `place`, in network order.
#[inline(always)]
pub(crate) fn get_u16(data: &[u8], place: usize) -> Option<u16> {
    get(data, place).map(u16::from_be_bytes)
}

/// Writes bytes at `place` if they fit.
#[inline(always)]
pub(crate) fn put<const N: usize>(data: &mut [u8], place: usize, bytes: [u8; N]) {
    if let Some(there) = data.get_mut(place..).and_then(<[u8]>::first_chunk_mut) {
        *there = bytes;
    }
}

/// Writes 16 bits at `place`, in network order.
#[inline(always)]
pub(crate) fn put_u16(data: &mut [u8], place: usize, number: u16) {
    put(data, place, number.to_be_bytes());
}
