//! A packet, lent to a function for the length of a call.

use crate::abi;
use crate::object::{bytes, bytes_mut};
use picnic_core::packet::headers::Front;
use picnic_core::packet::wire::{Ipv4, Ipv6, Tcp, Udp};
use picnic_core::time::Time;

/// A packet; the table of [`picnic_core::packet::headers`] lists the packets its accessors parse.
#[derive(Debug)]
pub struct Packet<'a>(pub(crate) &'a mut abi::Packet);

impl Packet<'_> {
    /// The bytes in its first buffer: all bytes, unless it is longer than a buffer.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        bytes(self.0)
    }

    /// Like `data`, mutable.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        bytes_mut(self.0)
    }

    /// Length of the whole packet in bytes.
    // The descriptor's length; `data` gives the length in the first buffer.
    #[allow(clippy::misnamed_getters)]
    #[inline(always)]
    pub fn length(&self) -> u32 {
        self.0.total_length
    }

    #[inline(always)]
    fn front(&self) -> Front<'_> {
        Front::of(self.data(), self.0.total_length as usize)
    }

    /// The IPv4 header and the available part of its payload.
    #[inline]
    pub fn ipv4(&self) -> Option<Ipv4<&[u8]>> {
        self.front().ipv4()
    }

    /// The IPv6 header and the available part of its payload, with extension headers.
    #[inline]
    pub fn ipv6(&self) -> Option<Ipv6<&[u8]>> {
        self.front().ipv6()
    }

    /// The TCP header and the available part of its data.
    #[inline]
    pub fn tcp(&self) -> Option<Tcp<&[u8]>> {
        self.front().tcp()
    }

    /// The UDP header and the available part of its data.
    #[inline]
    pub fn udp(&self) -> Option<Udp<&[u8]>> {
        self.front().udp()
    }

    /// Source and destination port of TCP or UDP.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.front().ports()
    }

    /// The wire it arrived on, or will leave on.
    #[inline(always)]
    pub fn wire(&self) -> u8 {
        self.0.wire
    }

    /// Its receive time.
    #[inline(always)]
    pub fn received_at(&self) -> Time {
        Time::from_nanos(self.0.received_ns)
    }

    /// The mark, for later functions.
    #[inline(always)]
    pub fn mark(&mut self) -> &mut u32 {
        &mut self.0.mark
    }

    /// The RSS hash, for later functions.
    #[inline(always)]
    pub fn rss_hash(&mut self) -> &mut u32 {
        &mut self.0.rss_hash
    }

    /// Bytes that fit before the packet.
    #[inline(always)]
    pub fn headroom(&self) -> u16 {
        self.0.headroom
    }

    /// Adds `count` bytes before the packet, with arbitrary contents; false, and no change, without
    /// room.
    #[inline]
    pub fn push_front(&mut self, count: u16) -> bool {
        let Some(left) = self.0.headroom.checked_sub(count) else { return false };
        self.0.headroom = left;
        self.0.data = self.0.data.wrapping_sub(count.into());
        self.0.length += u32::from(count);
        self.0.total_length += u32::from(count);
        true
    }

    /// Removes the first `count` bytes; false, and no change, if no byte would be left.
    #[inline]
    pub fn pull_front(&mut self, count: u16) -> bool {
        if u32::from(count) >= self.0.length {
            return false;
        }
        self.0.headroom = self.0.headroom.saturating_add(count);
        self.0.data = self.0.data.wrapping_add(count.into());
        self.0.length -= u32::from(count);
        self.0.total_length -= u32::from(count);
        true
    }

    /// Cuts a single-buffer packet to `length` bytes; false, and no change, if it is not longer, if
    /// nothing would be left, or if it continues in other buffers.
    #[inline]
    pub fn truncate(&mut self, length: u32) -> bool {
        if length == 0 || length >= self.0.length || self.0.length != self.0.total_length {
            return false;
        }
        (self.0.length, self.0.total_length) = (length, length);
        true
    }
}
