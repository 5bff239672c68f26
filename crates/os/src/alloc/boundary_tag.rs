//! The boundary tag method: every block stores its own size and the size of the previous block.
//!
//! ```text
//!  | size, used | size before | next free | free before |  payload ...
//!    4 bytes      4             4           4              a multiple of 16
//! ```
//!
//! With the tags of both neighbours, a freed block is merged with free ones in constant time. Free
//! blocks are in lists by the power of two of their size; a request takes the first that fits from
//! the lowest list that may have one.
//!
//! Guarantees: two free blocks are never neighbours; the tags cover the arena
//! without a gap; freeing a place that was not allocated is refused.
//!
//! Source: NICOS 4.1; Knuth, "The Art of Computer Programming", vol. 1, section
//! 2.5, algorithms A and C.

use super::{Allocator, Figures};

/// Unit of sizes and places: bytes of a tag, and the least alignment.
const UNIT: usize = 16;
/// Units of the smallest block: a tag and one unit.
const SMALLEST: u32 = 2;
const NONE: u32 = u32::MAX;
const USED: u32 = 1 << 31;
/// Lists by power of two: arenas of up to 2^31 units.
const LISTS: usize = 31;

// Words of a tag.
const SIZE: usize = 0;
const BEFORE: usize = 1;
const NEXT: usize = 2;
const PREVIOUS: usize = 3;

/// The allocator.
#[derive(Clone, Debug)]
pub struct BoundaryTag {
    /// Units of the arena.
    units: u32,
    /// First free block of each list.
    lists: [u32; LISTS],
    used: u32,
    high_water: u32,
    blocks: usize,
    free_blocks: usize,
    failures: u64,
}

impl Default for BoundaryTag {
    fn default() -> Self {
        BoundaryTag {
            units: 0,
            lists: [NONE; LISTS],
            used: 0,
            high_water: 0,
            blocks: 0,
            free_blocks: 0,
            failures: 0,
        }
    }
}

fn word(arena: &[u8], block: u32, index: usize) -> u32 {
    let at = block as usize * UNIT + index * 4;
    u32::from_le_bytes([arena[at], arena[at + 1], arena[at + 2], arena[at + 3]])
}

fn set_word(arena: &mut [u8], block: u32, index: usize, value: u32) {
    let at = block as usize * UNIT + index * 4;
    arena[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Units of a block.
fn size(arena: &[u8], block: u32) -> u32 {
    word(arena, block, SIZE) & !USED
}

fn is_used(arena: &[u8], block: u32) -> bool {
    word(arena, block, SIZE) & USED != 0
}

/// The content of a used block's free links, to recognise allocated places.
fn mark(block: u32) -> u32 {
    block.wrapping_mul(0x9e37_79b1) ^ 0x5049_434e
}

fn list_of(size: u32) -> usize {
    size.max(1).ilog2() as usize
}

impl BoundaryTag {
    fn link(&mut self, arena: &mut [u8], block: u32) {
        let list = list_of(size(arena, block));
        let first = self.lists[list];
        set_word(arena, block, NEXT, first);
        set_word(arena, block, PREVIOUS, NONE);
        if first != NONE {
            set_word(arena, first, PREVIOUS, block);
        }
        self.lists[list] = block;
        self.free_blocks += 1;
    }

    fn unlink(&mut self, arena: &mut [u8], block: u32) {
        let (next, previous) = (word(arena, block, NEXT), word(arena, block, PREVIOUS));
        if next != NONE {
            set_word(arena, next, PREVIOUS, previous);
        }
        match previous {
            NONE => self.lists[list_of(size(arena, block))] = next,
            previous => set_word(arena, previous, NEXT, next),
        }
        self.free_blocks -= 1;
    }

    /// Sets a block's size, in its tag and in the next one.
    fn tag(&self, arena: &mut [u8], block: u32, size: u32, used: u32) {
        set_word(arena, block, SIZE, size | used);
        if block + size < self.units {
            set_word(arena, block + size, BEFORE, size);
        }
    }

    /// Units to leave free before it, for the payload's alignment; none if it does not fit.
    fn front(arena: &[u8], block: u32, need: u32, align: u32) -> Option<u32> {
        let mut front = (block + 1).next_multiple_of(align) - (block + 1);
        // The rest before it must be a separate block.
        while front != 0 && front < SMALLEST {
            front += align;
        }
        (front + need <= size(arena, block)).then_some(front)
    }

    fn find(&self, arena: &[u8], need: u32, align: u32) -> Option<(u32, u32)> {
        for list in list_of(need)..LISTS {
            let mut block = self.lists[list];
            while block != NONE {
                if let Some(front) = Self::front(arena, block, need, align) {
                    return Some((block, front));
                }
                block = word(arena, block, NEXT);
            }
        }
        None
    }

    /// Checks the consistency of the tags; for tests.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, arena: &[u8]) -> Result<(), String> {
        let (mut block, mut before, mut was_free) = (0, 0, false);
        let (mut used, mut blocks, mut free) = (0, 0, 0);
        while block < self.units {
            let size = size(arena, block);
            if size < SMALLEST || block + size > self.units {
                return Err(format!("block {block} has {size} units"));
            }
            if word(arena, block, BEFORE) != before {
                return Err(format!("block {block} has lost the size of the one before"));
            }
            match is_used(arena, block) {
                true => (used, blocks, was_free) = (used + size, blocks + 1, false),
                false if was_free => return Err(format!("block {block} was not merged")),
                false => (free, was_free) = (free + 1, true),
            }
            (before, block) = (size, block + size);
        }
        let linked: usize = (0..LISTS)
            .map(|list| {
                let first = Some(self.lists[list]).filter(|&block| block != NONE);
                let next = |&block: &u32| Some(word(arena, block, NEXT)).filter(|&it| it != NONE);
                std::iter::successors(first, next).take(self.units as usize + 1).count()
            })
            .sum();
        let counted = (self.used, self.blocks, self.free_blocks, linked);
        match counted == (used, blocks, free, free) {
            true => Ok(()),
            false => Err(format!("counted {counted:?}, found {:?}", (used, blocks, free))),
        }
    }
}

impl Allocator for BoundaryTag {
    fn reset(&mut self, arena: &mut [u8]) {
        let units = (arena.len() / UNIT).min(USED as usize - 1) as u32;
        *self = BoundaryTag { units, ..BoundaryTag::default() };
        if units >= SMALLEST {
            self.tag(arena, 0, units, 0);
            set_word(arena, 0, BEFORE, 0);
            self.link(arena, 0);
        }
    }

    fn allocate(&mut self, arena: &mut [u8], bytes: usize, align: usize) -> Option<usize> {
        let units = bytes.div_ceil(UNIT).max(1) + 1;
        let align = align.max(UNIT).next_power_of_two() / UNIT;
        let found = match (u32::try_from(units), u32::try_from(align)) {
            (Ok(need), Ok(align)) if need <= self.units && align <= self.units => {
                self.find(arena, need, align).map(|found| (found, need))
            }
            _ => None,
        };
        let Some(((mut block, front), need)) = found else {
            self.failures += 1;
            return None;
        };
        self.unlink(arena, block);
        let mut whole = size(arena, block);
        if front != 0 {
            self.tag(arena, block, front, 0);
            self.link(arena, block);
            block += front;
            whole -= front;
        }
        let rest = whole - need;
        let taken = if rest >= SMALLEST { need } else { whole };
        self.tag(arena, block, taken, USED);
        if taken != whole {
            self.tag(arena, block + taken, rest, 0);
            self.link(arena, block + taken);
        }
        set_word(arena, block, NEXT, mark(block));
        self.used += taken;
        self.high_water = self.high_water.max(self.used);
        self.blocks += 1;
        Some((block as usize + 1) * UNIT)
    }

    fn free(&mut self, arena: &mut [u8], place: usize) -> bool {
        if !place.is_multiple_of(UNIT) || place < UNIT || place >= self.units as usize * UNIT {
            return false;
        }
        let mut block = (place / UNIT - 1) as u32;
        if !is_used(arena, block) || word(arena, block, NEXT) != mark(block) {
            return false;
        }
        let mut whole = size(arena, block);
        self.used -= whole;
        self.blocks -= 1;
        set_word(arena, block, NEXT, NONE);
        let behind = block + whole;
        if behind < self.units && !is_used(arena, behind) {
            self.unlink(arena, behind);
            whole += size(arena, behind);
        }
        let before = word(arena, block, BEFORE);
        if before != 0 && !is_used(arena, block - before) {
            block -= before;
            self.unlink(arena, block);
            whole += before;
        }
        self.tag(arena, block, whole, 0);
        self.link(arena, block);
        true
    }

    fn figures(&self, arena: &[u8]) -> Figures {
        let mut largest = 0;
        // The largest is in the highest nonempty list.
        if let Some(list) = (0..LISTS).rev().find(|&list| self.lists[list] != NONE) {
            let mut block = self.lists[list];
            while block != NONE {
                largest = largest.max(size(arena, block) - 1);
                block = word(arena, block, NEXT);
            }
        }
        Figures {
            arena_bytes: self.units as usize * UNIT,
            used_bytes: self.used as usize * UNIT,
            high_water_bytes: self.high_water as usize * UNIT,
            free_bytes: (self.units - self.used) as usize * UNIT - self.free_blocks * UNIT,
            largest_free_bytes: largest as usize * UNIT,
            blocks: self.blocks,
            free_blocks: self.free_blocks,
            failures: self.failures,
        }
    }
}
