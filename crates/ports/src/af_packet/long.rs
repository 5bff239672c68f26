//! Packets longer than a slot of the ring: the kernel keeps them whole, and a system call reads
//! each.
//!
//! Mostly super-frames. The slot of such a packet has its start and a mark; the packet itself waits
//! on the socket and is read directly into buffers. So its bytes are copied once, not twice, and
//! slots can be as small as ordinary packets.
//!
//! Guarantees: marks and packets stay in step for any fate of a packet; no allocation.
//!
//! Source: packet(7), PACKET_COPY_THRESH; net/packet/af_packet.c, `tpacket_rcv`.

use super::{ADDRESSES_BYTES, TAG_BYTES, put_tag};
use crate::sys::packet::Socket;
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::ledger::DropReason;
use picnic_core::packet::landing::Landing;
use picnic_core::packet::pool::{MAX_PACKET_BYTES, Pool};
use picnic_core::port::Receiver;
use std::io::IoSliceMut;

/// Buffers that one read scatters a packet over; one of more goes through `gathered`.
const BUFFERS: usize = 64;
/// A read's parts: virtio header, addresses, and the buffers.
const PARTS: usize = BUFFERS + 2;

/// A VLAN tag: protocol and control information.
type Tag = Option<(u16, u16)>;

/// Reads long packets.
#[derive(Debug)]
pub(super) struct LongPackets {
    /// Empty buffers; none are left in it but by a read that failed.
    landing: Landing,
    /// Room for a packet of very small buffers, and for the tag before it.
    gathered: Box<[u8]>,
}

impl LongPackets {
    pub(super) fn new() -> Self {
        let gathered = vec![0; TAG_BYTES + MAX_PACKET_BYTES].into_boxed_slice();
        LongPackets { landing: Landing::new(BUFFERS), gathered }
    }

    /// Reads the oldest packet waiting on the socket, with the length and tag from its slot.
    #[inline]
    pub(super) fn take(
        &mut self,
        socket: &Socket,
        length: usize,
        tag: Tag,
        rx: &mut Receiver<'_>,
    ) -> Result<(), DropReason> {
        let pool = rx.pool();
        let size = pool.buffer_size();
        let inserted = if tag.is_some() { TAG_BYTES } else { 0 };
        let buffers = (length + inserted).div_ceil(size);
        if length + inserted > MAX_PACKET_BYTES || buffers > pool.buffers() {
            discard(socket);
            return Err(DropReason::Oversize);
        }
        if buffers > BUFFERS {
            return self.take_gathered(socket, length, tag, rx);
        }
        if !self.landing.fill(buffers, || pool.allocate(size)) {
            discard(socket);
            return Err(DropReason::PoolExhausted);
        }
        let mut header = [0; HEADER_BYTES];
        let mut parts: [_; PARTS] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        parts[0] = IoSliceMut::new(&mut header);
        let mut count = 1;
        for buffer in self.landing.buffers().take(buffers) {
            let mut buffer = buffer;
            if tag.is_some() && count == 1 {
                // Between addresses and the rest goes the tag.
                let (addresses, rest) = buffer.split_at_mut(ADDRESSES_BYTES.min(buffer.len()));
                parts[count] = IoSliceMut::new(addresses);
                count += 1;
                buffer = rest.get_mut(TAG_BYTES..).unwrap_or_default();
            }
            parts[count] = IoSliceMut::new(buffer);
            count += 1;
        }
        let read = socket.read(&mut parts[..count]);
        if read.ok() != Some(HEADER_BYTES + length) {
            return Err(DropReason::Malformed);
        }
        let mut packet = self.landing.land(length + inserted).ok_or(DropReason::Malformed)?;
        if let Some((protocol, control)) = tag {
            let place = packet.data_mut().get_mut(ADDRESSES_BYTES..);
            if let Some(place) = place.and_then(|rest| rest.first_chunk_mut::<TAG_BYTES>()) {
                place[..2].copy_from_slice(&protocol.to_be_bytes());
                place[2..].copy_from_slice(&control.to_be_bytes());
            }
        }
        if Header::from_bytes(&header).apply(&mut packet, inserted as u16).is_err() {
            pool.free(packet);
            return Err(DropReason::Malformed);
        }
        rx.push(packet);
        Ok(())
    }

    /// Like `take`, with one more copy: for cards with very small buffers.
    #[cold]
    fn take_gathered(
        &mut self,
        socket: &Socket,
        length: usize,
        tag: Tag,
        rx: &mut Receiver<'_>,
    ) -> Result<(), DropReason> {
        let mut header = [0; HEADER_BYTES];
        let bytes = self.gathered.get_mut(TAG_BYTES..TAG_BYTES + length);
        let bytes = bytes.ok_or(DropReason::Oversize)?;
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(bytes)];
        if socket.read(&mut parts).ok() != Some(HEADER_BYTES + length) {
            return Err(DropReason::Malformed);
        }
        let start = if tag.is_some() { 0 } else { TAG_BYTES };
        let data = &mut self.gathered[start..TAG_BYTES + length];
        if let Some((protocol, control)) = tag {
            put_tag(data, protocol, control).ok_or(DropReason::Malformed)?;
        }
        let pool = rx.pool();
        let mut packet = pool.packet(data).ok_or(DropReason::PoolExhausted)?;
        let inserted = (TAG_BYTES - start) as u16;
        if Header::from_bytes(&header).apply(&mut packet, inserted).is_err() {
            pool.free(packet);
            return Err(DropReason::Malformed);
        }
        rx.push(packet);
        Ok(())
    }

    /// Returns the buffers of a failed read.
    pub(super) fn stop(&mut self, pool: &mut Pool) {
        while let Some(buffer) = self.landing.take() {
            pool.free(buffer);
        }
    }
}

/// Discards the oldest packet waiting on the socket.
#[cold]
fn discard(socket: &Socket) {
    // The rest of a packet that does not fit is dropped with it.
    let _ = socket.read(&mut [IoSliceMut::new(&mut [0; HEADER_BYTES])]);
}
