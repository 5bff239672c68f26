//! The filters of a card, in the maps of its programs.
//!
//! The list is there twice: one is in force, the other is written, then a single word changes
//! which. What packets meet is counted by place in each, and brought to the filters.
//!
//! Guarantees: a change is in force for all packets at once, and none is judged by half of one. A
//! filter that stays in the list keeps what it has counted.

use crate::object::{refused, settle};
use aya::maps::{Array, MapData, MapError};
use picnic_control::error::RunError;
use picnic_filter::image::{FilterHits, OffloadedFilters, PAGE, RetiredList, most_words};
use picnic_filter::{Filters, MOST_FILTERS};

/// Filters that any card has room for: some are added while it runs.
const LEAST_ROOM: usize = 1024;

/// `struct page` and `struct met`.
pub(crate) type Page = [u64; PAGE];
pub(crate) type MetWords = [u64; 3];

/// How many filters a card has room for that starts with so many.
pub(crate) fn room(filters: usize) -> usize {
    (2 * filters).clamp(LEAST_ROOM, MOST_FILTERS)
}

/// Pages of one of both lists.
pub(crate) fn pages(room: usize) -> u32 {
    most_words(room).div_ceil(PAGE) as u32
}

/// The maps with the list.
pub(crate) struct Maps {
    /// Which list is in force, from one on; zero without filters.
    pub(crate) now: Array<MapData, u32>,
    pub(crate) pages: Array<MapData, Page>,
    pub(crate) met: Array<MapData, MetWords>,
}

/// Filters and the maps that they are in.
pub(crate) struct Rules {
    list: OffloadedFilters,
    maps: Maps,
    room: usize,
    /// The list in force, and what its filters have met so far.
    half: usize,
    met: Vec<MetWords>,
}

impl Rules {
    /// With the filters as they are now in force. No change to them is taken that there is no room
    /// for.
    pub(crate) fn new(filters: &Filters, maps: Maps, room: usize) -> Result<Self, RunError> {
        let list = filters.elsewhere();
        let mut rules = Rules { list, maps, room, half: 0, met: Vec::new() };
        rules.follow().map_err(|error| refused("filled", &error))?;
        Ok(rules)
    }

    /// Brings what packets have met to the filters, then the newest list into force, if there is
    /// one.
    pub(crate) fn follow(&mut self) -> Result<(), MapError> {
        self.count(None)?;
        let Some(left) = self.list.refresh() else { return Ok(()) };
        let half = self.half ^ 1;
        let pages = pages(self.room) as usize;
        let base = half * pages * PAGE;
        let image = self.list.image(base, pages * PAGE);
        for (page, words) in (half * pages..).zip(image.chunks(PAGE)) {
            let mut whole = [0; PAGE];
            whole[..words.len()].copy_from_slice(words);
            self.maps.pages.set(page as u32, whole, 0)?;
        }
        for place in 0..self.list.len() {
            self.maps.met.set((half * self.room + place) as u32, [0; 3], 0)?;
        }
        let now = if self.list.is_empty() { 0 } else { half as u32 + 1 };
        self.maps.now.set(0, now, 0)?;
        // Packets are being judged by the list before, whose half is written next.
        settle();
        self.count(Some(&left))?;
        self.half = half;
        self.met = vec![[0; 3]; self.list.len()];
        Ok(())
    }

    /// Brings what packets have met to the filters of the list, or of the one before.
    fn count(&mut self, left: Option<&RetiredList>) -> Result<(), MapError> {
        for (place, before) in self.met.iter_mut().enumerate() {
            let met = self.maps.met.get(&((self.half * self.room + place) as u32), 0)?;
            if met == *before {
                continue;
            }
            let more = |n: usize| met[n].wrapping_sub(before[n]);
            let more = FilterHits { packets: more(0), bytes: more(1), unreadable: more(2) };
            *before = met;
            match left {
                None => self.list.count(place, more),
                Some(left) => self.list.count_late(left, place, more),
            }
        }
        Ok(())
    }
}
