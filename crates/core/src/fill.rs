//! The fill ring: empty buffers for a host that transmits.
//!
//! ```
//! use picnic_core::{fill, packet::pool::{Pool, PoolConfig}};
//! let (mut pool, mut returns) = Pool::new(&PoolConfig::default(), 1).unwrap();
//! let (mut sender, mut receiver) = fill::channel(64);
//! assert_eq!(sender.top_up(&mut pool), 64); // on the borrowed core
//! let buffer = receiver.take().unwrap(); // on the target core
//! assert_eq!(buffer.data().len(), pool.buffer_size());
//! receiver.keep(buffer);
//! receiver.empty(&mut returns[0]);
//! assert_eq!(pool.outstanding(), 0);
//! ```
//!
//! Like the fill ring of AF_XDP: the borrowed core owns the pool, so it hands out buffers
//! ahead of need, and the target core fills them with packets of the host.
//!
//! Guarantees: never more buffers out than the ring's depth and the landing; they are
//! not packets, so the ledger does not count them.

use crate::packet::desc::Descriptor;
use crate::packet::landing::Landing;
use crate::packet::pool::{Pool, ReturnSender};
use crate::ring::spsc::{self, Consumer, Producer};

/// The two ends of a fill ring of `depth` buffers, rounded up to a power of two.
///
/// # Panics
/// If `depth` is zero. Set-up code only.
pub fn channel(depth: usize) -> (FillSender, FillReceiver) {
    let (producer, consumer) = spsc::channel(depth);
    let landing = Landing::new(depth);
    (FillSender { ring: producer }, FillReceiver { ring: consumer, landing })
}

/// The borrowed core's end.
#[derive(Debug)]
pub struct FillSender {
    ring: Producer<Descriptor>,
}

impl FillSender {
    /// Refills the ring once half of it is used, as far as the pool has buffers; returns how many
    /// were added.
    #[inline]
    pub fn top_up(&mut self, pool: &mut Pool) -> usize {
        if !self.ring.has_room(self.ring.capacity().div_ceil(2)) {
            return 0;
        }
        let size = pool.buffer_size();
        while self.ring.has_room(1) {
            let Some(buffer) = pool.allocate(size) else { break };
            if let Err(buffer) = self.ring.stage(buffer) {
                pool.free(buffer);
                break;
            }
        }
        self.ring.publish()
    }

    /// Whether half of the ring is used: [`FillSender::top_up`] fills it as soon as the pool has
    /// buffers.
    pub fn is_short(&self) -> bool {
        self.ring.occupancy() <= self.ring.capacity() / 2
    }
}

/// The target core's end.
#[derive(Debug)]
pub struct FillReceiver {
    ring: Consumer<Descriptor>,
    /// Buffers that were taken and not used yet.
    landing: Landing,
}

impl FillReceiver {
    /// An empty buffer of the pool's size.
    #[inline]
    pub fn take(&mut self) -> Option<Descriptor> {
        self.landing.take().or_else(|| self.ring.pop())
    }

    /// Keeps an unneeded buffer for the next [`FillReceiver::take`].
    #[inline]
    pub fn keep(&mut self, buffer: Descriptor) {
        self.landing.keep(buffer);
    }

    /// A landing of at least `count` buffers; `None` while there are fewer.
    #[inline]
    pub fn landing(&mut self, count: usize) -> Option<&mut Landing> {
        let ring = &mut self.ring;
        self.landing.fill(count, || ring.pop()).then_some(&mut self.landing)
    }

    /// Whether `count` buffers are available.
    pub fn has(&mut self, count: usize) -> bool {
        self.landing.len() + self.ring.refresh() >= count
    }

    /// Returns used slots to the borrowed core; whether there were any.
    #[inline]
    pub fn release(&mut self) -> bool {
        self.ring.release()
    }

    /// Returns all buffers to the pool.
    pub fn empty(&mut self, returns: &mut ReturnSender) {
        self.ring.refresh();
        while let Some(buffer) = self.take() {
            returns.give_back(buffer);
        }
        self.ring.release();
        returns.publish();
    }
}
