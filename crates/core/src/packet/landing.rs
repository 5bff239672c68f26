//! A landing: buffers for a packet whose length is known only after reading.
//!
//! ```
//! use picnic_core::packet::{landing::Landing, pool::{Pool, PoolConfig}};
//! let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
//! let mut landing = Landing::new(4);
//! assert!(landing.fill(4, || pool.allocate(2048)));
//! // A read scatters a packet over the buffers, here 3000 bytes of it; then it is known.
//! landing.buffers().for_each(|buffer| buffer.fill(7));
//! let packet = landing.land(3000).unwrap();
//! assert_eq!((packet.length(), packet.segments().count(), landing.len()), (3000, 2, 2));
//! pool.free(packet);
//! while let Some(buffer) = landing.take() {
//!     pool.free(buffer);
//! }
//! assert_eq!(pool.outstanding(), 0);
//! ```
//!
//! A read from the kernel puts a small packet into the first buffer and a super-frame into
//! as many as it needs; the others remain for the next read. No byte is moved twice.
//!
//! Guarantees: order is kept; no allocation once it has been filled.

use super::desc::Descriptor;
use super::space;

/// Empty buffers in the order of writing, each as long as its pool makes them.
#[derive(Debug)]
pub struct Landing {
    /// The first to be written is last here.
    buffers: Vec<Descriptor>,
}

impl Landing {
    /// A landing with room for `count` buffers, still empty.
    pub fn new(count: usize) -> Self {
        Landing { buffers: Vec::with_capacity(count) }
    }

    /// Number of buffers.
    #[inline]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Adds buffers from `take` until it has `count`; false if there are too few.
    #[inline]
    pub fn fill(&mut self, count: usize, mut take: impl FnMut() -> Option<Descriptor>) -> bool {
        while self.buffers.len() < count {
            let Some(buffer) = take() else { return false };
            self.buffers.push(buffer);
        }
        true
    }

    /// The bytes to write to, buffer by buffer.
    #[inline]
    pub fn buffers(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.buffers.iter_mut().rev().map(Descriptor::data_mut)
    }

    /// The packet of `length` bytes that was written, in as many buffers as needed; `None` if there
    /// are too few.
    #[inline]
    pub fn land(&mut self, length: usize) -> Option<Descriptor> {
        let mut head = self.buffers.pop()?;
        let first = head.data().len();
        if length <= first {
            head.truncate(length as u16);
            return Some(head);
        }
        let rest: usize = self.buffers.iter().map(|buffer| buffer.data().len()).sum();
        if length > first + rest {
            self.buffers.push(head);
            return None;
        }
        let mut left = length - first;
        let parts = std::iter::from_fn(|| {
            let mut part = if left == 0 { None } else { self.buffers.pop() }?;
            part.truncate(left.min(usize::from(u16::MAX)) as u16);
            left -= part.data().len();
            Some(part)
        });
        Some(space::link(head, parts))
    }

    /// Removes a buffer.
    #[inline]
    pub fn take(&mut self) -> Option<Descriptor> {
        self.buffers.pop()
    }

    /// Returns a removed buffer at its original length.
    #[inline]
    pub fn keep(&mut self, buffer: Descriptor) {
        self.buffers.push(buffer);
    }
}
