//! Detects loops in the network by the card's own frames, which return too often.
//!
//! A frame to a group that a host has sent leaves on one wire or on all. If several wires are in
//! one segment, each copy returns on the others once, so at most as often as the square of the
//! number of wires. A frame that returns more often is in a loop. The wire that returns it is
//! blocked: nothing is sent on it and all its packets are dropped, until it has returned no frame
//! of the card's own hosts to a group for a time.
//!
//! Guarantees: a bounded table, no allocation. Both chains run on the borrowed core, which writes.

use super::once::frame_hash;
use picnic_core::packet::desc::{ChecksumState, Descriptor};
use picnic_core::time::Time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PLACES: usize = 256;
/// How long a frame is remembered.
const WINDOW_NS: u64 = 1_000_000_000;
/// How long a wire is blocked.
pub(super) const BLOCK_NS: u64 = 10_000_000_000;

/// Frames sent to groups, and blocked wires.
#[derive(Debug)]
pub(super) struct Loops {
    frames: Box<[Frame]>,
    /// By wire, the end of its block; zero if not blocked.
    blocked: Box<[AtomicU64]>,
    /// Number of blocks and unblocks.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Frame {
    /// Zero if free.
    hash: AtomicU64,
    since: AtomicU64,
    sent: AtomicU64,
    returned: AtomicU64,
}

impl Loops {
    pub(super) fn new(wires: u8) -> Loops {
        Loops {
            frames: (0..PLACES).map(|_| Frame::default()).collect(),
            blocked: (0..wires).map(|_| AtomicU64::new(0)).collect(),
            changes: AtomicU64::new(0),
        }
    }

    fn place(&self, hash: u64) -> &Frame {
        &self.frames[hash as usize % PLACES]
    }

    /// Notes a frame that a host sends to a group. A frame with a partial checksum will look
    /// different when it returns, and is not tracked.
    pub(super) fn note_sent(&self, packet: &Descriptor, now: Time) {
        if packet.checksum() == ChecksumState::Partial {
            return;
        }
        let (hash, now) = (frame_hash(packet), now.as_nanos());
        let place = self.place(hash);
        if place.hash.load(Relaxed) == hash && now - place.since.load(Relaxed) < WINDOW_NS {
            place.sent.store(place.sent.load(Relaxed) + 1, Relaxed);
            return;
        }
        place.hash.store(hash, Relaxed);
        place.since.store(now, Relaxed);
        place.sent.store(1, Relaxed);
        place.returned.store(0, Relaxed);
    }

    /// Notes a frame to a group from one of the card's hosts that arrived on `wire`; returns
    /// whether that shows a loop.
    pub(super) fn note_returned(&self, packet: &Descriptor, now: Time) -> bool {
        let hash = frame_hash(packet);
        let place = self.place(hash);
        let is_old = now.as_nanos() - place.since.load(Relaxed) >= WINDOW_NS;
        if place.hash.load(Relaxed) != hash || is_old {
            return false;
        }
        let returned = place.returned.load(Relaxed) + 1;
        place.returned.store(returned, Relaxed);
        let wires = self.blocked.len() as u64;
        if returned <= place.sent.load(Relaxed) * wires * wires {
            return false;
        }
        self.block(packet.wire, now)
    }

    /// Blocks a wire from now on; returns whether it was free.
    pub(super) fn block(&self, wire: u8, now: Time) -> bool {
        let Some(until) = self.blocked.get(usize::from(wire)) else { return false };
        let was_free = until.swap((now + BLOCK_NS).as_nanos(), Relaxed) == 0;
        self.changes.store(self.changes.load(Relaxed) + u64::from(was_free), Relaxed);
        was_free
    }

    /// Whether a wire is blocked.
    #[inline]
    pub(super) fn is_blocked(&self, wire: u8) -> bool {
        self.blocked.get(usize::from(wire)).is_some_and(|until| until.load(Relaxed) != 0)
    }

    /// Unblocks the wires whose time has passed; returns the number of blocks and unblocks.
    #[inline]
    pub(super) fn follow(&self, now: Time) -> u64 {
        for until in &self.blocked {
            let found = until.load(Relaxed);
            if found != 0 && found <= now.as_nanos() {
                until.store(0, Relaxed);
                self.changes.store(self.changes.load(Relaxed) + 1, Relaxed);
            }
        }
        self.changes.load(Relaxed)
    }

    /// When the next wire is unblocked; none if none is blocked.
    pub(super) fn next_free(&self) -> Option<Time> {
        let blocked = self.blocked.iter().map(|until| until.load(Relaxed));
        blocked.filter(|&until| until != 0).min().map(Time::from_nanos)
    }

    /// Number of blocked wires.
    pub(super) fn count(&self) -> usize {
        (0..self.blocked.len()).filter(|&wire| self.is_blocked(wire as u8)).count()
    }
}
