//! The filters of a card, in its programs' maps.
//!
//! The list is kept twice: one is in use, the other is written, then a single word selects it. Hits
//! are counted by place in each list, and added to the filters.
//!
//! Guarantees: a change takes effect for all packets at once; none is judged by half of it. A
//! filter that stays in the list keeps its counters.

use crate::object::{refused, settle};
use aya::maps::{Array, MapData, MapError};
use picnic_control::error::RunError;
use picnic_filter::image::{FilterHits, OffloadedFilters, PAGE, RetiredList, most_words};
use picnic_filter::{Filters, MOST_FILTERS};

/// Filters that fit in any card: some are added while it runs.
const LEAST_ROOM: usize = 1024;

/// `struct page` and `struct met`.
pub(crate) type Page = [u64; PAGE];
pub(crate) type MetWords = [u64; 3];

/// Number of filters that fit in a card that starts with `filters`.
pub(crate) fn room(filters: usize) -> usize {
    (2 * filters).clamp(LEAST_ROOM, MOST_FILTERS)
}

/// Pages of one of both lists.
pub(crate) fn pages(room: usize) -> u32 {
    most_words(room).div_ceil(PAGE) as u32
}

/// The maps with the list.
pub(crate) struct Maps {
    /// The list in use, counted from one; zero without filters.
    pub(crate) now: Array<MapData, u32>,
    pub(crate) pages: Array<MapData, Page>,
    pub(crate) met: Array<MapData, MetWords>,
}

/// Filters, with their maps.
pub(crate) struct Rules {
    list: OffloadedFilters,
    maps: Maps,
    room: usize,
    /// The list in use, and its hits so far.
    half: usize,
    met: Vec<MetWords>,
}

impl Rules {
    /// Starts with the current filters. Changes that do not fit are refused.
    pub(crate) fn new(filters: &Filters, maps: Maps, room: usize) -> Result<Self, RunError> {
        let list = filters.elsewhere();
        let mut rules = Rules { list, maps, room, half: 0, met: Vec::new() };
        rules.follow().map_err(|error| refused("filled", &error))?;
        Ok(rules)
    }

    /// Adds new hits to the filters, then activates the newest list, if there is one.
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
        // Packets may still be judged by the previous list, whose half is written next.
        settle();
        self.count(Some(&left))?;
        self.half = half;
        self.met = vec![[0; 3]; self.list.len()];
        Ok(())
    }

    /// Adds hits to the filters of the current list, or of the previous one.
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
