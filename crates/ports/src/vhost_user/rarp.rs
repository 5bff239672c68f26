//! The announcement of a guest that has moved to this card: a RARP broadcast, from which switches
//! learn where its address is.
//!
//! Source: RFC 903; QEMU, docs/interop/vhost-user.rst, `VHOST_USER_SEND_RARP`.

use super::pair::Pair;
use picnic_core::attachment::QueueOut;
use picnic_core::time::Time;

/// Bytes of the shortest Ethernet frame, without its checksum.
const BYTES: usize = 60;

/// The broadcast of this address.
pub(super) fn frame(address: [u8; 6]) -> [u8; BYTES] {
    // Type of the frame; Ethernet, IPv4, bytes of their addresses; a request.
    const FIXED: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];
    let mut frame = [0; BYTES];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&address);
    frame[12..22].copy_from_slice(&FIXED);
    // Sender and target are the same, and no IPv4 address is known.
    frame[22..28].copy_from_slice(&address);
    frame[32..38].copy_from_slice(&address);
    frame
}

/// Sends it for the guest of a pair; whether it did: without a buffer of the card it does so later.
#[cold]
pub(super) fn tell(pair: &mut Pair, now: Time, out: &mut QueueOut<'_>) -> bool {
    let Some(address) = pair.moved else { return false };
    let Some(landing) = out.landing(1) else { return false };
    let mut left = &frame(address)[..];
    for buffer in landing.buffers() {
        let (part, rest) = left.split_at(left.len().min(buffer.len()));
        buffer[..part.len()].copy_from_slice(part);
        left = rest;
    }
    let sent = landing.land(BYTES - left.len());
    pair.moved = None;
    let Some(mut packet) = sent else { return false };
    packet.wire = pair.terms.wire;
    packet.set_received_at(now);
    out.submit(packet);
    true
}
