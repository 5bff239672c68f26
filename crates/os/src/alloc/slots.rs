//! Slots of one size: every request takes the same time, for tasks that must bound it.
//!
//! A list through the free slots, and one bit for each allocated slot.
//!
//! Guarantees: allocating and freeing take constant time, and the arena does not fragment. A
//! request larger than a slot fails.

use super::{Allocator, Figures};

/// The allocator.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    slot_bytes: usize,
    slots: usize,
    /// Free slots; the last is allocated next.
    free: Vec<u32>,
    used: Vec<u64>,
    high_water: usize,
    failures: u64,
}

impl Slots {
    /// Slots of `bytes` bytes, rounded up to a power of two of at least 16: so each is aligned
    /// to its size, up to 4096.
    pub fn of(bytes: usize) -> Self {
        Slots { slot_bytes: bytes.max(16).next_power_of_two(), ..Slots::default() }
    }
}

impl Allocator for Slots {
    fn reset(&mut self, arena: &mut [u8]) {
        self.slot_bytes = self.slot_bytes.max(16);
        self.slots = (arena.len() / self.slot_bytes).min(u32::MAX as usize);
        self.free = (0..self.slots as u32).rev().collect();
        self.used = vec![0; self.slots.div_ceil(64)];
        (self.high_water, self.failures) = (0, 0);
    }

    fn allocate(&mut self, _: &mut [u8], bytes: usize, align: usize) -> Option<usize> {
        let fits = bytes <= self.slot_bytes && align <= self.slot_bytes.min(4096);
        let Some(slot) = self.free.pop_if(|_| fits) else {
            self.failures += 1;
            return None;
        };
        let slot = slot as usize;
        self.used[slot / 64] |= 1 << (slot % 64);
        self.high_water = self.high_water.max(self.slots - self.free.len());
        Some(slot * self.slot_bytes)
    }

    fn free(&mut self, _: &mut [u8], place: usize) -> bool {
        let slot = place / self.slot_bytes;
        let is_used = self.used.get(slot / 64).is_some_and(|word| word & 1 << (slot % 64) != 0);
        if !place.is_multiple_of(self.slot_bytes) || !is_used {
            return false;
        }
        self.used[slot / 64] &= !(1 << (slot % 64));
        self.free.push(slot as u32);
        true
    }

    fn figures(&self, _: &[u8]) -> Figures {
        let blocks = self.slots - self.free.len();
        Figures {
            arena_bytes: self.slots * self.slot_bytes,
            used_bytes: blocks * self.slot_bytes,
            high_water_bytes: self.high_water * self.slot_bytes,
            free_bytes: self.free.len() * self.slot_bytes,
            largest_free_bytes: if self.free.is_empty() { 0 } else { self.slot_bytes },
            blocks,
            free_blocks: self.free.len(),
            failures: self.failures,
        }
    }
}
