//! One of the four lists, as the handle keeps it: its order, its table, its cores.

use super::FilterId;
use crate::Filter;
use crate::code::CoreCode;
use crate::exchange::{CodeSlot, Delivery, Exchange};
use crate::table::{NO_CODE, PAGE, Page, Row, Table};
use std::sync::Arc;

/// Sort key of filters.
type Rank = (u16, i32, FilterId);

pub(super) struct List {
    /// Filters in order; `table` has a row for each, and is the list to publish.
    ranks: Vec<Rank>,
    table: Table,
    exchanges: Vec<Arc<Exchange>>,
    generation: u64,
    /// Counters, for each core.
    pages: Vec<Vec<Arc<Page>>>,
    counters_made: u32,
    free_counters: Vec<u32>,
    /// Counters of removed filters, and the first generation without them.
    retiring: Vec<(u64, u32)>,
    /// Unpublished code, for each core; published code is `Kept`.
    code: Vec<Vec<CodeSlot>>,
}

impl List {
    pub(super) fn new(exchanges: Vec<Arc<Exchange>>) -> Self {
        let cores = exchanges.len();
        List {
            ranks: Vec::new(),
            table: Table::default(),
            exchanges,
            generation: 0,
            pages: (0..cores).map(|_| Vec::new()).collect(),
            counters_made: 0,
            free_counters: Vec::new(),
            retiring: Vec::new(),
            code: (0..cores).map(|_| Vec::new()).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    pub(super) fn cores(&self) -> usize {
        self.exchanges.len()
    }

    pub(super) fn exchange(&self, core: usize) -> Arc<Exchange> {
        self.exchanges[core].clone()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = FilterId> {
        self.ranks.iter().map(|rank| rank.2)
    }

    /// Frees what the cores returned: code of removed filters, the ends of their mailboxes.
    pub(super) fn reclaim(&self) {
        self.exchanges.iter().for_each(|exchange| exchange.reclaim());
    }

    pub(super) fn is_taken(&self) -> bool {
        self.exchanges.iter().all(|exchange| exchange.taken() == self.generation)
    }

    /// Packets, bytes, short packets, panics and unreadable packets, over all cores.
    pub(super) fn counts(&self, counters: u32) -> [u64; 5] {
        let mut sum = [0; 5];
        for pages in &self.pages {
            let index = counters as usize;
            let Some(counters) = pages.get(index / PAGE).map(|page| &page[index % PAGE]) else {
                continue;
            };
            let counts = counters.all();
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.get());
        }
        sum
    }

    /// Inserts a filter; not into the classifiers if they will be compiled again. Returns its
    /// counters and code slot.
    pub(super) fn insert(
        &mut self,
        id: FilterId,
        group: u16,
        filter: &Filter,
        old: Option<(u32, u16)>,
        code: Option<Vec<CoreCode>>,
        many: bool,
    ) -> (u32, u16) {
        let rank = (group, filter.priority, id);
        let place = self.ranks.partition_point(|other| *other < rank);
        let counters = old.map_or_else(|| self.new_counters(), |(counters, _)| counters);
        let slot = self.place_code(old.map_or(NO_CODE, |(_, slot)| slot), code);
        let row = Row::new(filter, group, slot, counters);
        self.ranks.insert(place, rank);
        self.table.rows.insert(place, row);
        if !many {
            self.table.insert(place as u16, filter);
        }
        (counters, slot)
    }

    /// Removes a filter.
    pub(super) fn remove(&mut self, id: FilterId, group: u16, filter: &Filter, many: bool) {
        let Ok(place) = self.ranks.binary_search(&(group, filter.priority, id)) else { return };
        self.ranks.remove(place);
        self.table.rows.remove(place);
        if !many {
            self.table.remove(place as u16, filter);
        }
    }

    /// Compiles the list from its filters.
    pub(super) fn compile<'f>(&mut self, filter: impl Fn(FilterId) -> Option<&'f Filter>) {
        let ranks = self.ranks.iter().enumerate();
        self.table.compile(ranks.filter_map(|(place, rank)| Some((place as u16, filter(rank.2)?))));
    }

    /// Publishes the list to all cores.
    pub(super) fn publish(&mut self, groups: usize) {
        self.generation += 1;
        self.table.complete(groups);
        let table = Arc::new(self.table.clone());
        for ((exchange, pages), code) in self.exchanges.iter().zip(&self.pages).zip(&mut self.code)
        {
            let send = |place: &mut CodeSlot| match place {
                CodeSlot::Empty => CodeSlot::Empty,
                place => std::mem::replace(place, CodeSlot::Kept),
            };
            exchange.publish(Delivery {
                generation: self.generation,
                table: table.clone(),
                pages: pages.clone(),
                code: code.iter_mut().map(send).collect(),
            });
        }
    }

    /// Counters set to zero on every core.
    fn new_counters(&mut self) -> u32 {
        let (exchanges, pages, free) = (&self.exchanges, &self.pages, &mut self.free_counters);
        self.retiring.retain(|&(generation, counters)| {
            if exchanges.iter().any(|exchange| exchange.taken() < generation) {
                return true;
            }
            // No core has a list that uses these counters.
            let index = counters as usize;
            for counters in pages.iter().filter_map(|pages| pages.get(index / PAGE)) {
                counters[index % PAGE].all().into_iter().for_each(|counter| counter.set(0));
            }
            free.push(counters);
            false
        });
        if let Some(counters) = free.pop() {
            return counters;
        }
        let counters = self.counters_made;
        self.counters_made += 1;
        if counters as usize / PAGE == self.pages.first().map_or(0, Vec::len) {
            let page = || Arc::new(std::array::from_fn(|_| Default::default()));
            self.pages.iter_mut().for_each(|pages| pages.push(page()));
        }
        counters
    }

    fn place_code(&mut self, old: u16, code: Option<Vec<CoreCode>>) -> u16 {
        let Some(code) = code else { return old };
        let place = match old {
            NO_CODE => {
                let first = self.code.first();
                let empty = |place: &CodeSlot| matches!(place, CodeSlot::Empty);
                first.and_then(|code| code.iter().position(empty)).unwrap_or_else(|| {
                    self.code.iter_mut().for_each(|code| code.push(CodeSlot::Empty));
                    self.code.first().map_or(0, |code| code.len() - 1)
                })
            }
            old => usize::from(old),
        };
        for (core, code) in self.code.iter_mut().zip(code) {
            core[place] = CodeSlot::Here(Box::new(code));
        }
        place as u16
    }

    /// Frees counters for reuse once no core uses them.
    pub(super) fn retire(&mut self, counters: u32) {
        self.retiring.push((self.generation + 1, counters));
    }

    /// Frees code that is no longer called.
    pub(super) fn free_code(&mut self, slot: u16) {
        for code in &mut self.code {
            if let Some(place) = code.get_mut(usize::from(slot)) {
                *place = CodeSlot::Empty;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Delivery;
    use crate::{Action, Direction, Filters, Match};

    #[test]
    fn counters_are_reused_once_no_core_uses_them() {
        let exchange = Arc::<Exchange>::default();
        let (mut list, mut core) = (List::new(vec![exchange.clone()]), Delivery::default());
        let filter = Filter::new("f", Match::Any, Action::Count);
        let add = |list: &mut List, id| list.insert(FilterId(id), 0, &filter, None, None, false).0;
        assert!(list.is_taken());
        assert_eq!([add(&mut list, 1), add(&mut list, 2)], [0, 1]);
        list.publish(1);
        exchange.refresh(&mut core);
        list.remove(FilterId(1), 0, &filter, false);
        list.retire(0);
        list.publish(1);
        assert!(!list.is_taken());
        assert_eq!(add(&mut list, 3), 2, "the core goes by the list before still");
        exchange.refresh(&mut core);
        assert!(list.is_taken());
        assert_eq!([add(&mut list, 4), add(&mut list, 5)], [0, 3]);
    }

    #[test]
    fn counters_grow_with_simultaneous_filters_only() {
        let filters = Filters::new(1);
        let mut core = filters.elsewhere();
        let filter = Filter::new("f", Match::Any, Action::Count);
        for _ in 0..50 {
            let (removed, moved) = (filters.add(filter.clone()), filters.add(filter.clone()));
            core.refresh();
            filters.remove(removed.unwrap()).unwrap();
            filters.set(moved.unwrap(), filter.clone().on(Direction::Tx)).unwrap();
            core.refresh();
        }
        assert_eq!(filters.lock().lists[0].counters_made, 2);
    }
}
