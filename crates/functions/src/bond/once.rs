//! Frames to a group that several wires of one segment bring: which have been handed up already.
//!
//! A frame is known by a hash of 64 bits over its first buffer and its length. It is repeated if the
//! same came in by another wire less than a second ago; by the same wire it is another frame.
//!
//! Guarantees: a bounded table, no allocation. Of two frames that share a place the older is
//! forgotten, and a copy of it would be handed up.

use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_hash::lookup3;

const PLACES: usize = 1024;
const WINDOW_NS: u64 = 1_000_000_000;

/// Frames handed up lately.
#[derive(Debug)]
pub(super) struct Once([Frame; PLACES]);

#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    hash: u64,
    when: Time,
    wire: u8,
    is_there: bool,
}

impl Default for Once {
    fn default() -> Self {
        Once([Frame::default(); PLACES])
    }
}

/// What tells a frame from others: never zero.
pub(super) fn frame_hash(packet: &Descriptor) -> u64 {
    let data = packet.data();
    let half = lookup3(data, packet.length());
    (u64::from(half) << 32 | u64::from(lookup3(data, !half))).max(1)
}

impl Once {
    /// Whether a frame has been handed up already; if not, it is now.
    pub(super) fn is_repeated(&mut self, packet: &Descriptor, now: Time) -> bool {
        let hash = frame_hash(packet);
        let place = &mut self.0[hash as usize % PLACES];
        let is_recent = place.is_there && now.since(place.when) < WINDOW_NS;
        if is_recent && place.hash == hash && place.wire != packet.wire {
            return true;
        }
        *place = Frame { hash, when: now, wire: packet.wire, is_there: true };
        false
    }
}
