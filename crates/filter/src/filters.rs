//! The handle: adds, lists, changes and removes filters, from any thread.
//!
//! Every change makes a new list and publishes it; the cores take it between two bursts. A single
//! change alters a copy of the compiled list; larger changes compile all again.
//!
//! Guarantees: a change, or a set of changes ([`Filters::apply`]), is made completely or not at
//! all. A filter keeps its counters while it stays in its list.
//!
//! With thousands of filters a call may take milliseconds, and it waits for other threads' calls.
//! On the borrowed core use [`Filters::try_apply`], which does not wait.

mod change;
mod checks;
mod list;

pub use change::{FilterChange, FilterError, FilterId, Listing};

use super::code::{AllocatorCode, Closer, FilterCode};
use super::exchange::Exchange;
use super::function::FilterFunction;
use super::image::{Judge, unwritable};
use super::queue::{FilterQueue, FilterScreen};
use super::reader::Reader;
use super::table::{FilterCounters, NO_CODE, Row};
use super::{Direction, Filter, MOST_FILTERS, MOST_GROUPS, Place};
use checks::{check, check_kind, check_name};
use indexmap::IndexSet;
use list::List;
use picnic_core::function::Function;
use picnic_core::guard::{GroupCounts, Groups, Guard, QueueGuard, Screen};
use picnic_core::ledger::Stage;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A list is compiled again if a set has more changes than this, and than a fraction of its
/// filters.
const MANY: usize = 24;
const MANY_PART: usize = 16;

/// The filters of a card. Clones are the same filters.
#[derive(Clone)]
pub struct Filters {
    inner: Arc<Mutex<Inner>>,
    queues: u16,
}

struct Stored {
    filter: Filter,
    counters: u32,
    slot: u16,
}

struct Inner {
    queues: u16,
    groups: IndexSet<String>,
    filters: BTreeMap<FilterId, Stored>,
    next: u64,
    lists: [List; 4],
    /// For each filter that hands packets over: the closer of its receiver.
    closers: BTreeMap<FilterId, Closer>,
    /// Objects that live as long as their filters.
    kept: BTreeMap<FilterId, Box<dyn Send>>,
    /// Allocators of card memory, which see no packets.
    allocators: BTreeMap<FilterId, (Filter, AllocatorCode)>,
    /// For a card whose lists are written out: the most filters in a list, and the judge.
    most_written: Option<(usize, Judge)>,
}

fn list_of(filter: &Filter) -> usize {
    usize::from(filter.direction == Direction::Tx) + 2 * usize::from(filter.place == Place::Driver)
}

impl Filters {
    /// No filters yet, for a card with `queues` target queues.
    pub fn new(queues: u16) -> Self {
        let list = |cores| List::new((0..cores).map(|_| Arc::new(Exchange::default())).collect());
        let queue_cores = usize::from(queues);
        let inner = Inner {
            queues,
            groups: IndexSet::new(),
            filters: BTreeMap::new(),
            next: 1,
            closers: BTreeMap::new(),
            kept: BTreeMap::new(),
            allocators: BTreeMap::new(),
            most_written: None,
            lists: [list(1), list(1), list(queue_cores), list(queue_cores)],
        };
        Filters { inner: Arc::new(Mutex::new(inner)), queues }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No operation under the lock leaves half a change.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.lists.iter().for_each(List::reclaim);
        inner
    }

    /// The filters at the card, for the head of a chain; one for each direction.
    pub fn head(&self, direction: Direction) -> FilterFunction {
        let inner = self.lock();
        let list = usize::from(direction == Direction::Tx);
        FilterFunction(Reader::new(inner.lists[list].exchange(0), direction == Direction::Rx))
    }

    /// From now on accepts only filters that an [`image`](crate::image) can express, and at most
    /// `most` of them.
    pub fn write_only(&self, most: usize, judge: Judge) {
        self.lock().most_written = Some((most, judge));
    }

    pub(super) fn exchange_at_card(&self, direction: Direction) -> Arc<Exchange> {
        self.lock().lists[usize::from(direction == Direction::Tx)].exchange(0)
    }

    /// The filters at the driver of a queue, if the card has it.
    fn at_driver(&self, direction: Direction, queue: u16) -> Option<Reader> {
        let inner = self.lock();
        let list = 2 + usize::from(direction == Direction::Tx);
        let known = queue < inner.queues;
        known.then(|| Reader::new(inner.lists[list].exchange(usize::from(queue)), false))
    }

    /// Adds a filter after the filters of its group with the same priority.
    ///
    /// # Errors
    /// The filter is invalid.
    pub fn add(&self, filter: Filter) -> Result<FilterId, FilterError> {
        self.add_with(filter, FilterCode::default())
    }

    /// Adds a filter with its predicate, callback or receiver.
    ///
    /// # Errors
    /// The filter is invalid.
    pub fn add_with(
        &self,
        filter: Filter,
        code: impl Into<FilterCode>,
    ) -> Result<FilterId, FilterError> {
        let added = self.apply(vec![FilterChange::Add(filter, code.into())])?;
        added.first().copied().ok_or(FilterError::Busy)
    }

    /// Replaces a filter; it keeps its number, and its counters if it stays in its list.
    ///
    /// # Errors
    /// The filter is invalid or does not exist.
    pub fn set(&self, id: FilterId, filter: Filter) -> Result<(), FilterError> {
        self.apply(vec![FilterChange::Set(id, filter, FilterCode::default())]).map(|_| ())
    }

    /// Removes a filter; returns it with its counters.
    ///
    /// # Errors
    /// There is no such filter.
    pub fn remove(&self, id: FilterId) -> Result<Listing, FilterError> {
        let mut inner = self.lock();
        let listing = inner.listing(id).ok_or_else(|| FilterError::NoSuchFilter(id.to_string()))?;
        inner.apply(vec![FilterChange::Remove(id)])?;
        Ok(listing)
    }

    /// Makes a set of changes at once; returns the numbers of the added filters, in order.
    ///
    /// # Errors
    /// The first invalid change; then none is made.
    pub fn apply(&self, changes: Vec<FilterChange>) -> Result<Vec<FilterId>, FilterError> {
        self.lock().apply(changes)
    }

    /// Like [`Filters::apply`], without waiting for another thread.
    ///
    /// # Errors
    /// As [`Filters::apply`], or `Busy`, with the changes to try again.
    pub fn try_apply(
        &self,
        changes: Vec<FilterChange>,
    ) -> Result<Vec<FilterId>, (FilterError, Vec<FilterChange>)> {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err((FilterError::Busy, changes)),
        };
        inner.lists.iter().for_each(List::reclaim);
        inner.apply(changes).map_err(|error| (error, Vec::new()))
    }

    /// Checks a filter without code, without adding it.
    ///
    /// # Errors
    /// The filter is invalid.
    pub fn check(&self, filter: &Filter) -> Result<(), FilterError> {
        let inner = self.lock();
        inner.check_writable(filter)?;
        check(filter, &FilterCode::default(), None, inner.queues)
    }

    pub(super) fn replace_as(
        &self,
        groups: &[&str],
        filters: Vec<Filter>,
    ) -> Result<super::reload::Reloaded, FilterError> {
        let mut inner = self.lock();
        if let Some(filter) = filters.iter().find(|filter| !groups.contains(&&*filter.group)) {
            let found = format!("\"{}\"", filter.group);
            return Err(FilterError::invalid("group", found, &groups.join(", ")));
        }
        let ids = inner.lists.iter().flat_map(List::ids);
        let stored = ids.filter_map(|id| Some((id, inner.filters.get(&id)?.filter.clone())));
        let old = stored.filter(|(_, filter)| groups.contains(&&*filter.group)).collect();
        let (changes, done) = super::reload::difference(old, filters);
        inner.apply(changes)?;
        Ok(done)
    }

    /// Bytes that a filter takes: its record, and its counters and code on each core. The compiled
    /// form is shared by all filters and not included.
    pub fn bytes_of(&self, filter: &Filter, code: &FilterCode) -> usize {
        let cores = match (filter.is_allocator(), filter.place) {
            (true, _) => 0,
            (false, Place::Nic) => 1,
            (false, Place::Driver) => usize::from(self.queues),
        };
        let record = size_of::<Stored>() + filter.text_bytes() + size_of::<Row>();
        record + cores * (size_of::<FilterCounters>() + code.bytes_per_core())
    }

    /// A filter with its counters.
    pub fn get(&self, id: FilterId) -> Option<Listing> {
        self.lock().listing(id)
    }

    /// All filters: rx before tx, the card before the driver, each list in its order; then
    /// allocators.
    pub fn list(&self) -> Vec<Listing> {
        let inner = self.lock();
        let ids = inner.lists.iter().flat_map(List::ids);
        ids.chain(inner.allocators.keys().copied()).filter_map(|id| inner.listing(id)).collect()
    }

    /// The groups, in order.
    pub fn groups(&self) -> Vec<String> {
        self.lock().groups.iter().cloned().collect()
    }

    /// Names groups, which follow the existing groups in this order.
    ///
    /// # Errors
    /// There are too many, or a name is invalid; then none is defined.
    pub fn define_groups(&self, names: &[&str]) -> Result<(), FilterError> {
        let mut inner = self.lock();
        names.iter().try_for_each(|name| check_name("group", name))?;
        inner.check_groups(names.iter().copied())?;
        for name in names {
            inner.group(name);
        }
        Ok(())
    }

    /// Whether every core uses the newest lists. A core without packets since the last change takes
    /// the list with its next packet.
    pub fn is_taken(&self) -> bool {
        self.lock().lists.iter().all(List::is_taken)
    }
}

impl Guard for Filters {
    fn function(&self, stage: Stage) -> Option<Box<dyn Function>> {
        let direction = if stage == Stage::Tx { Direction::Tx } else { Direction::Rx };
        Some(Box::new(self.head(direction)))
    }

    fn queue(&self, queue: u16) -> Option<Box<dyn QueueGuard>> {
        Some(Box::new(FilterQueue(self.at_driver(Direction::Rx, queue)?)))
    }

    fn screen(&self, queue: u16) -> Option<Box<dyn Screen>> {
        Some(Box::new(FilterScreen(self.at_driver(Direction::Tx, queue)?)))
    }

    fn groups(&self) -> Option<Arc<dyn Groups>> {
        Some(Arc::new(self.clone()))
    }
}

impl Groups for Filters {
    fn counts(&self) -> Vec<GroupCounts> {
        let inner = self.lock();
        let group = |name: &String| GroupCounts { name: name.clone(), ..GroupCounts::default() };
        let mut groups: Vec<_> = inner.groups.iter().map(group).collect();
        let packets = inner.filters.values().map(|stored| {
            let counts = inner.lists[list_of(&stored.filter)].counts(stored.counters);
            (&stored.filter.group, counts[0], counts[1], counts[4])
        });
        let allocators = inner.allocators.values().map(|(filter, code)| {
            let counts = code.counts();
            (&filter.group, counts.requests, counts.bytes, 0)
        });
        for (name, packets, bytes, unreadable) in packets.chain(allocators) {
            let Some(place) = inner.groups.get_index_of(name) else { continue };
            let group = &mut groups[place];
            group.filters += 1;
            group.packets += packets;
            group.bytes += bytes;
            group.unreadable_packets += unreadable;
        }
        // Groups keep their place when their filters are gone.
        groups.retain(|group| group.filters != 0);
        groups
    }
}

impl Inner {
    fn listing(&self, id: FilterId) -> Option<Listing> {
        if let Some((filter, code)) = self.allocators.get(&id) {
            let counts = code.counts();
            return Some(Listing {
                id,
                filter: filter.clone(),
                packets: counts.requests,
                bytes: counts.bytes,
                short_packets: 0,
                unreadable_packets: 0,
                broken: counts.broken,
            });
        }
        let stored = self.filters.get(&id)?;
        let counts = self.lists[list_of(&stored.filter)].counts(stored.counters);
        Some(Listing {
            id,
            filter: stored.filter.clone(),
            packets: counts[0],
            bytes: counts[1],
            short_packets: counts[2],
            unreadable_packets: counts[4],
            broken: counts[3] != 0,
        })
    }

    fn known(&self, id: FilterId) -> Option<&Filter> {
        let packets = self.filters.get(&id).map(|stored| &stored.filter);
        packets.or_else(|| self.allocators.get(&id).map(|(filter, _)| filter))
    }

    fn group(&mut self, name: &str) -> u16 {
        let known = self.groups.get_index_of(name);
        known.unwrap_or_else(|| self.groups.insert_full(name.to_owned()).0) as u16
    }

    fn apply(&mut self, changes: Vec<FilterChange>) -> Result<Vec<FilterId>, FilterError> {
        let (changes, counts) = self.check(changes)?;
        let mut added = Vec::new();
        let mut closed = Vec::new();
        let many =
            std::array::from_fn(|list| counts[list] > MANY.max(self.lists[list].len() / MANY_PART));
        for change in changes {
            match change {
                Checked::Add(filter, code, kept) => {
                    let id = FilterId(self.next);
                    self.next += 1;
                    self.put(id, filter, None, code, &many);
                    self.kept.extend(kept.map(|kept| (id, kept)));
                    added.push(id);
                }
                Checked::Install(filter, code, kept) => {
                    let id = FilterId(self.next);
                    self.next += 1;
                    code.install();
                    self.group(&filter.group);
                    self.allocators.insert(id, (filter, code));
                    self.kept.extend(kept.map(|kept| (id, kept)));
                    added.push(id);
                }
                Checked::Rename(id, filter) => {
                    self.group(&filter.group);
                    if let Some(allocator) = self.allocators.get_mut(&id) {
                        allocator.0 = filter;
                    }
                }
                Checked::Set(id, filter, code) => {
                    let old = self.take(id, &many, Some(&filter));
                    let keeps = code.is_none() && old.is_some_and(|(_, slot)| slot != NO_CODE);
                    if !keeps {
                        closed.extend(self.closers.remove(&id));
                    }
                    self.put(id, filter, old, code, &many);
                }
                Checked::Remove(id) => {
                    closed.extend(self.closers.remove(&id));
                    self.kept.remove(&id);
                    // Dropping its code uninstalls an allocator.
                    if self.allocators.remove(&id).is_none() {
                        self.take(id, &many, None);
                    }
                }
            }
        }
        let groups = self.groups.len();
        for (index, list) in self.lists.iter_mut().enumerate() {
            if counts[index] != 0 {
                if many[index] {
                    list.compile(|id| self.filters.get(&id).map(|stored| &stored.filter));
                }
                list.publish(groups);
            }
        }
        closed.into_iter().for_each(|close| close());
        Ok(added)
    }

    /// Puts a filter into its list; an existing filter keeps counters and code.
    fn put(
        &mut self,
        id: FilterId,
        filter: Filter,
        old: Option<(u32, u16)>,
        code: Option<Vec<super::code::CoreCode>>,
        many: &[bool; 4],
    ) {
        let group = self.group(&filter.group);
        let index = list_of(&filter);
        let handovers = code.iter().flatten().filter_map(|core| core.handover.as_ref());
        if let Some(closer) = handovers.filter_map(|handover| handover.closer()).next() {
            self.closers.insert(id, closer);
        }
        let list = &mut self.lists[index];
        let (counters, slot) = list.insert(id, group, &filter, old, code, many[index]);
        self.filters.insert(id, Stored { filter, counters, slot });
    }

    /// Takes a filter out of its list. Its counters and code are returned if `new` puts it back
    /// there.
    fn take(&mut self, id: FilterId, many: &[bool; 4], new: Option<&Filter>) -> Option<(u32, u16)> {
        let stored = self.filters.remove(&id)?;
        let group = self.group(&stored.filter.group);
        let index = list_of(&stored.filter);
        let list = &mut self.lists[index];
        list.remove(id, group, &stored.filter, many[index]);
        let Some(new) = new.filter(|new| list_of(new) == index) else {
            list.free_code(stored.slot);
            list.retire(stored.counters);
            return None;
        };
        if new.calls() {
            return Some((stored.counters, stored.slot));
        }
        list.free_code(stored.slot);
        Some((stored.counters, NO_CODE))
    }

    /// Checks a filter for a card whose lists are written out.
    fn check_writable(&self, filter: &Filter) -> Result<(), FilterError> {
        let Some((_, judge)) = self.most_written else { return Ok(()) };
        unwritable(filter, judge).map_or(Ok(()), |(key, found, allowed)| {
            let allowed = format!("{allowed} (engine = \"{}\")", judge.terms().0);
            Err(FilterError::invalid(key, found, &allowed))
        })
    }

    /// Checks that there is room for the new groups.
    fn check_groups<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<(), FilterError> {
        let new = names.filter(|name| !self.groups.contains(*name)).collect::<BTreeSet<_>>();
        if self.groups.len() + new.len() > MOST_GROUPS {
            return Err(FilterError::TooManyGroups(MOST_GROUPS));
        }
        Ok(())
    }

    /// Checks all changes, and counts the changes of each list.
    fn check(&self, changes: Vec<FilterChange>) -> Result<(Vec<Checked>, [usize; 4]), FilterError> {
        let mut sizes: [usize; 4] = std::array::from_fn(|list| self.lists[list].len());
        let mut counts = [0; 4];
        let mut touched = BTreeSet::new();
        let mut checked = Vec::new();
        self.check_groups(changes.iter().filter_map(FilterChange::group))?;
        for change in changes {
            let old = match &change {
                FilterChange::Add(..) => None,
                FilterChange::Set(id, ..) | FilterChange::Remove(id) => {
                    let none = || FilterError::NoSuchFilter(id.to_string());
                    let filter = self.known(*id).ok_or_else(none)?;
                    if !touched.insert(*id) {
                        return Err(FilterError::ChangedTwice(*id));
                    }
                    if !filter.is_allocator() {
                        sizes[list_of(filter)] -= 1;
                        counts[list_of(filter)] += 1;
                    }
                    Some(filter)
                }
            };
            if let FilterChange::Add(filter, code) | FilterChange::Set(_, filter, code) = &change {
                let list = list_of(filter);
                // Code can stay only in its own list.
                let keeps = old.filter(|old| list_of(old) == list);
                old.map_or(Ok(()), |old| check_kind(old, filter))?;
                check(filter, code, keeps, self.queues)?;
            }
            if let FilterChange::Add(filter, _) | FilterChange::Set(_, filter, _) = &change
                && !filter.is_allocator()
            {
                let list = list_of(filter);
                self.check_writable(filter)?;
                sizes[list] += 1;
                counts[list] += 1;
                let most =
                    self.most_written.map_or(MOST_FILTERS, |(most, _)| most.min(MOST_FILTERS));
                if sizes[list] > most {
                    return Err(FilterError::TooMany(most));
                }
            }
            let spread = |filter: &Filter, code: FilterCode| {
                let cores = self.lists[list_of(filter)].cores();
                if code.is_empty() {
                    return Ok(None);
                }
                code.spread(cores).map(Some).map_err(|key| {
                    let allowed = "code that can be copied, as there are several target cores";
                    FilterError::invalid(key, "code for a single core", allowed)
                })
            };
            checked.push(match change {
                FilterChange::Add(filter, mut code) => {
                    let kept = code.kept.take();
                    match code.allocator.take() {
                        Some(code) => Checked::Install(filter, code, kept),
                        None => {
                            let code = spread(&filter, code)?;
                            Checked::Add(filter, code, kept)
                        }
                    }
                }
                FilterChange::Set(id, filter, _) if filter.is_allocator() => {
                    Checked::Rename(id, filter)
                }
                FilterChange::Set(id, filter, code) => {
                    let code = spread(&filter, code)?;
                    Checked::Set(id, filter, code)
                }
                FilterChange::Remove(id) => Checked::Remove(id),
            });
        }
        Ok((checked, counts))
    }
}

enum Checked {
    Add(Filter, Option<Vec<super::code::CoreCode>>, Option<Box<dyn Send>>),
    Install(Filter, AllocatorCode, Option<Box<dyn Send>>),
    Rename(FilterId, Filter),
    Set(FilterId, Filter, Option<Vec<super::code::CoreCode>>),
    Remove(FilterId),
}

impl fmt::Debug for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filters").finish_non_exhaustive()
    }
}
