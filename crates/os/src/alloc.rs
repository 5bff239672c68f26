//! Allocators for the bytes of an arena: one trait, one method per file.
//!
//! ```
//! use picnic_os::alloc::{Allocator, boundary_tag::BoundaryTag};
//! let mut arena = vec![0; 4096];
//! let mut allocator = BoundaryTag::default();
//! allocator.reset(&mut arena);
//! let place = allocator.allocate(&mut arena, 100, 64).unwrap();
//! assert_eq!(place % 64, 0);
//! assert!(allocator.free(&mut arena, place));
//! ```
//!
//! An allocator works on a slice of bytes and returns places as offsets from its start; it may keep
//! its data in free bytes. So it needs no pointer, and accesses out of bounds are caught.
//!
//! Source: NICOS 4.1.

pub mod boundary_tag;
pub mod slots;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Allocates the bytes of an arena.
pub trait Allocator: Send {
    /// Takes over an arena; all earlier allocations end. The arena's first byte is aligned to 4096.
    fn reset(&mut self, arena: &mut [u8]);

    /// Allocates `bytes` bytes, aligned to `align` (a power of two, at most 4096); `None` if there
    /// is no room. NIC OS requests multiples of 16 bytes, aligned to at least 16.
    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize>;

    /// Frees the allocation at `place`. False, and no change, if there is none.
    fn free(&mut self, arena: &mut [u8], place: usize) -> bool;

    /// The state of the arena.
    fn figures(&self, arena: &[u8]) -> Figures;
}

/// The state of an arena. All in bytes, except counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ArenaFigures")]
pub struct Figures {
    /// Size of the arena.
    pub arena_bytes: usize,
    /// Allocated, including the allocator's overhead.
    pub used_bytes: usize,
    /// The maximum ever allocated.
    pub high_water_bytes: usize,
    /// Free.
    pub free_bytes: usize,
    /// Size of the largest free piece.
    pub largest_free_bytes: usize,
    /// Number of allocations.
    pub blocks: usize,
    /// Number of free pieces.
    pub free_blocks: usize,
    /// Failed requests.
    pub failures: u64,
}

impl Figures {
    /// Fragmentation of the free bytes: 0 if they are one piece, towards 1 if they are many small
    /// ones.
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes as f64 / free as f64,
        }
    }
}
