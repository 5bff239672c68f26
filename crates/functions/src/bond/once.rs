//! Finds frames to a group that arrive on several wires of one segment.
//!
//! A frame is identified by a 64-bit hash over its first buffer and its length. It is a repetition
//! if the same arrived on another wire less than a second ago; on the same wire it is another
//! frame.
//!
//! Guarantees: a bounded table, no allocation. If two frames share a place, the older is forgotten,
//! and a copy of it would pass.

use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_hash::lookup3;

const PLACES: usize = 1024;
const WINDOW_NS: u64 = 1_000_000_000;

/// Frames passed recently.
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

/// The identity of a frame: never zero.
pub(super) fn frame_hash(packet: &Descriptor) -> u64 {
    let data = packet.data();
    let half = lookup3(data, packet.length());
    (u64::from(half) << 32 | u64::from(lookup3(data, !half))).max(1)
}

impl Once {
    /// Whether a frame has passed already; if not, it is recorded.
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
