//! Allocators: who gives out the bytes of an arena. One trait, one method per file.
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
//! An allocator works on a slice of bytes and gives out places in it, counted from
//! its start; it may keep what it needs to know in the bytes that nobody has. So
//! it needs no pointer, and whoever writes out of bounds is stopped.
//!
//! Source: NICOS 4.1.

pub mod boundary_tag;
pub mod slots;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gives out the bytes of an arena.
pub trait Allocator: Send {
    /// Takes an arena over; whatever was given out before is no more. The arena's first byte is
    /// aligned to 4096.
    fn reset(&mut self, arena: &mut [u8]);

    /// The place of `bytes` bytes, aligned to `align` (a power of two, 4096 at most). `None` if
    /// there is no room.
    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize>;

    /// Takes back what was given out at `place`. False if nothing was: then nothing is done.
    fn free(&mut self, arena: &mut [u8], place: usize) -> bool;

    /// How the arena stands.
    fn figures(&self, arena: &[u8]) -> Figures;
}

/// How an arena stands. All in bytes, but the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ArenaFigures")]
pub struct Figures {
    /// Of the arena.
    pub arena_bytes: usize,
    /// Given out, with what the allocator needs beside them.
    pub used_bytes: usize,
    /// The most that ever were.
    pub high_water_bytes: usize,
    /// Free.
    pub free_bytes: usize,
    /// In the largest piece that is free.
    pub largest_free_bytes: usize,
    /// Pieces given out.
    pub blocks: usize,
    /// Pieces that are free.
    pub free_blocks: usize,
    /// Times there was no room.
    pub failures: u64,
}

impl Figures {
    /// How far the free bytes are from being in one piece: 0 if they are, towards 1 if they lie
    /// about in crumbs.
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes as f64 / free as f64,
        }
    }
}
