//! A landing: buffers for a packet whose length is known only once it is there.
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
//! What reads from the kernel reads a small packet into the first buffer and a super-frame into
//! as many as it takes; the others stay for the next. No byte is moved twice.
//!
//! Guarantees: order is kept; no allocation once it has been filled.

use super::desc::Descriptor;
use super::space;

/// Empty buffers in the order they are written in, each as long as its pool makes them.
#[derive(Debug)]
pub struct Landing {
    /// The first to be written is the last here.
    buffers: Vec<Descriptor>,
}

impl Landing {
    /// A landing with room for `count` buffers, none of them there yet.
    pub fn new(count: usize) -> Self {
        Landing { buffers: Vec::with_capacity(count) }
    }

    /// Buffers there.
    #[inline]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Adds what `take` gives until `count` buffers are there; false if it gives too few.
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

    /// The packet of `length` bytes that was written, in as many buffers as it takes; `None` if
    /// those there are too few for it.
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

    /// Takes a buffer away.
    #[inline]
    pub fn take(&mut self) -> Option<Descriptor> {
        self.buffers.pop()
    }

    /// Puts a buffer back that was taken away and is as long as it was.
    #[inline]
    pub fn keep(&mut self, buffer: Descriptor) {
        self.buffers.push(buffer);
    }
}
