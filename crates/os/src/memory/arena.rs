//! The card's memory: the arena, its allocators, and the owner of each byte.

use super::charge::Charge;
use super::host::{HostBudget, Reserved, TransferCost};
use super::region::{Answer, Listed, Region};
use super::{
    Kind, KindMemory, MOST_ALIGN, MemoryError, MemoryReport, OwnerMemory, UNIT_BYTES, check_range,
};
use crate::alloc::boundary_tag::BoundaryTag;
use crate::alloc::{Allocator, Figures};
use crate::task::TaskId;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The owner of bytes that belong to no task.
pub(crate) const CARD: TaskId = TaskId(0);

/// An allocation's handle: its place in the table, and a unique number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    index: u32,
    serial: u64,
}

/// An allocation.
struct Live {
    serial: u64,
    region: usize,
    /// Within its region.
    place: usize,
    bytes: usize,
    owner: TaskId,
    kind: Kind,
}

/// The card's memory, and the accounting of the host's.
pub(crate) struct Memory {
    arena: Vec<u8>,
    /// The first region is the whole arena.
    regions: Vec<Region>,
    live: Vec<Option<Live>>,
    vacant: Vec<u32>,
    serial: u64,
    /// Dropped charges, from any thread.
    returned: Receiver<Name>,
    returns: Sender<Name>,
    broken: u64,
    pub(super) host: Arc<HostBudget>,
    transfer: TransferCost,
    transfers: u64,
    transferred_bytes: u64,
    transfer_ns: u64,
    pub(super) gathered_writes: u64,
}

impl Memory {
    pub(crate) fn new(arena_bytes: usize, host_bytes: usize, transfer: TransferCost) -> Self {
        let mut arena = vec![0; arena_bytes + MOST_ALIGN];
        let start = arena.as_ptr().align_offset(MOST_ALIGN).min(MOST_ALIGN);
        let bytes = start..start + arena_bytes;
        let allocator = Box::<BoundaryTag>::default();
        let whole = Region::new(&mut arena, bytes, allocator, None, None);
        let (returns, returned) = channel();
        Memory {
            arena,
            // The built-in allocator does not panic.
            regions: whole.into_iter().collect(),
            live: Vec::new(),
            vacant: Vec::new(),
            serial: 0,
            returned,
            returns,
            broken: 0,
            host: Arc::new(HostBudget::new(host_bytes as u64)),
            transfer,
            transfers: 0,
            transferred_bytes: 0,
            transfer_ns: 0,
            gathered_writes: 0,
        }
    }

    /// Frees the bytes of dropped charges, and retires allocators whose filters were removed.
    #[inline]
    fn settle(&mut self) {
        while let Ok(name) = self.returned.try_recv() {
            self.free(name);
        }
        if self.regions.len() > 1 {
            let mut closed = false;
            for region in self.regions.iter_mut().filter(|region| !region.retired) {
                region.retired = region.is_closed();
                closed |= region.retired;
            }
            if closed {
                self.clear_regions();
            }
        }
    }

    /// Allocates bytes by the allocator that was installed last. There is no fallback if it has no
    /// room; if its answer is wrong, it is uninstalled, and the one before is asked.
    pub(crate) fn allocate(
        &mut self,
        owner: TaskId,
        kind: Kind,
        bytes: usize,
        align: usize,
    ) -> Result<Name, MemoryError> {
        self.settle();
        loop {
            let region = self.regions.iter().rposition(Region::serves).unwrap_or(0);
            if let Some(answer) = self.allocate_in(region, owner, kind, bytes, align) {
                return answer;
            }
        }
    }

    /// Allocates in one region; `None` if its allocator's answer was wrong.
    #[inline]
    fn allocate_in(
        &mut self,
        index: usize,
        owner: TaskId,
        kind: Kind,
        wanted: usize,
        align: usize,
    ) -> Option<Result<Name, MemoryError>> {
        if !align.is_power_of_two() || align > MOST_ALIGN {
            return Some(Err(MemoryError::Alignment(align)));
        }
        // Whole units: no two allocations share one.
        let bytes = wanted.max(1).checked_next_multiple_of(UNIT_BYTES);
        let exhausted = |figures: Figures| {
            let (free, largest) = (figures.free_bytes, figures.largest_free_bytes);
            Some(Err(MemoryError::Exhausted { kind, wanted, free, largest }))
        };
        let region = self.regions.get_mut(index);
        let (Some(region), Some(bytes)) = (region, bytes) else {
            return exhausted(Figures::default());
        };
        let place = match region.allocate(&mut self.arena, bytes, align.max(UNIT_BYTES)) {
            Answer::Place(place) => place,
            Answer::Exhausted => return exhausted(region.figures(&self.arena)),
            Answer::Wrong if index == 0 => return exhausted(Figures::default()),
            Answer::Wrong => {
                self.uninstall_broken(index);
                return None;
            }
        };
        self.serial += 1;
        let serial = self.serial;
        let live = Some(Live { serial, region: index, place, bytes, owner, kind });
        let index = self.vacant.pop().unwrap_or(self.live.len() as u32);
        match self.live.get_mut(index as usize) {
            Some(vacant) => *vacant = live,
            None => self.live.push(live),
        }
        Some(Ok(Name { index, serial }))
    }

    /// Reserves bytes for an object that lives elsewhere.
    pub(crate) fn charge(
        &mut self,
        owner: TaskId,
        kind: Kind,
        bytes: usize,
    ) -> Result<Charge, MemoryError> {
        let name = self.allocate(owner, kind, bytes, UNIT_BYTES)?;
        Ok(Charge::new(name, self.returns.clone()))
    }

    /// Takes bytes of host memory from the budget, until the result is dropped.
    pub(crate) fn reserve_host(&self, bytes: usize) -> Result<Reserved, MemoryError> {
        self.host.reserve(bytes)
    }

    fn find(&self, name: Name) -> Option<&Live> {
        self.live.get(name.index as usize)?.as_ref().filter(|live| live.serial == name.serial)
    }

    pub(crate) fn free(&mut self, name: Name) {
        if self.find(name).is_none() {
            return;
        }
        let Some(live) = self.live[name.index as usize].take() else { return };
        self.vacant.push(name.index);
        let region = &mut self.regions[live.region];
        if !region.free(&mut self.arena, live.place, live.bytes) && live.region != 0 {
            self.uninstall_broken(live.region);
        } else if region.retired && region.blocks == 0 {
            self.clear_regions();
        }
    }

    fn uninstall_broken(&mut self, index: usize) {
        self.broken += 1;
        self.regions[index].retire_broken();
        self.clear_regions();
    }

    /// Returns the bytes of retired regions whose last block was freed.
    fn clear_regions(&mut self) {
        for index in 1..self.regions.len() {
            let region = &mut self.regions[index];
            if region.retired && region.blocks == 0 && !region.gone {
                region.gone = true;
                let (start, length) = (region.bytes.start, region.bytes.len());
                self.return_region(start, length);
            }
        }
        // The arena's own never ends.
        while self.regions.last().is_some_and(|region| region.gone) {
            self.regions.pop();
        }
    }

    /// Frees the allocation that holds a region.
    fn return_region(&mut self, start: usize, length: usize) {
        let place = start - self.regions[0].bytes.start;
        let holds = |live: &Live| {
            live.region == 0 && live.place == place && live.bytes == length && live.is_region()
        };
        let index = self.live.iter().position(|live| live.as_ref().is_some_and(holds));
        let Some(index) = index else { return };
        if let Some(live) = &self.live[index] {
            self.free(Name { index: index as u32, serial: live.serial });
        }
    }

    /// Gives a task's allocator a piece of the arena. It serves once its filter is in the list.
    pub(super) fn install(
        &mut self,
        owner: TaskId,
        bytes: usize,
        allocator: Box<dyn Allocator>,
        listed: Arc<Listed>,
    ) -> Result<(), MemoryError> {
        self.settle();
        let answer = self.allocate_in(0, owner, Kind::Allocator, bytes, MOST_ALIGN);
        let name = answer.unwrap_or(Err(MemoryError::Broken))?;
        let piece = self.bytes_of(name).ok_or(MemoryError::Broken)?;
        let region = Region::new(&mut self.arena, piece, allocator, Some(owner), Some(listed));
        let Some(region) = region else {
            self.broken += 1;
            self.free(name);
            return Err(MemoryError::Broken);
        };
        self.regions.push(region);
        Ok(())
    }

    /// A task has ended: its blocks and allocators are released. Its charges return with the
    /// objects that they are for.
    pub(crate) fn release_all(&mut self, task: TaskId) {
        for index in 0..self.live.len() {
            let Some(live) = &self.live[index] else { continue };
            if live.owner == task && live.kind == Kind::Block {
                let name = Name { index: index as u32, serial: live.serial };
                self.free(name);
            }
        }
        for region in &mut self.regions {
            region.retired |= region.owner == Some(task);
        }
        self.clear_regions();
        self.settle();
    }

    /// The place of an allocation in the arena.
    fn bytes_of(&self, name: Name) -> Option<Range<usize>> {
        let live = self.find(name)?;
        let start = self.regions[live.region].bytes.start + live.place;
        Some(start..start + live.bytes)
    }

    /// The place of a part of a block of this length in the arena.
    fn part(
        &self,
        name: Name,
        length: usize,
        range: &Range<usize>,
    ) -> Result<Range<usize>, MemoryError> {
        let whole = self.bytes_of(name).ok_or(MemoryError::Released)?;
        check_range(range, length)?;
        Ok(whole.start + range.start..whole.start + range.end)
    }

    /// The bytes of a block of this length, in part.
    pub(super) fn bytes(
        &mut self,
        name: Name,
        length: usize,
        range: Range<usize>,
    ) -> Result<&mut [u8], MemoryError> {
        let part = self.part(name, length, &range)?;
        Ok(&mut self.arena[part])
    }

    /// Copies between two allocations, which the caller has checked.
    pub(super) fn copy(&mut self, from: (Name, Range<usize>), to: (Name, usize)) {
        let ends = (self.bytes_of(from.0), self.bytes_of(to.0));
        if let (Some(source), Some(target)) = ends {
            let source = source.start + from.1.start..source.start + from.1.end;
            self.arena.copy_within(source, target.start + to.1);
        }
    }

    /// Counts a transfer; returns its duration in nanoseconds.
    pub(super) fn count_transfer(&mut self, bytes: usize) -> u64 {
        let time_ns = self.transfer.of(bytes);
        self.transfers += 1;
        self.transferred_bytes += bytes as u64;
        self.transfer_ns = self.transfer_ns.saturating_add(time_ns);
        time_ns
    }

    pub(crate) fn report(&mut self) -> MemoryReport {
        self.settle();
        let whole = &self.regions[0];
        let arena = whole.figures(&self.arena);
        let live = || self.live.iter().flatten();
        let kinds = Kind::ALL.into_iter().filter_map(|kind| {
            let these = || live().filter(move |live| live.kind == kind);
            let allocations = these().count();
            let bytes = these().map(|live| live.bytes).sum();
            (allocations != 0).then_some(KindMemory { kind, allocations, bytes })
        });
        let mut owners = BTreeMap::<u64, (usize, usize)>::new();
        for live in live() {
            let owner = owners.entry(live.owner.0).or_default();
            *owner = (owner.0 + 1, owner.1 + live.bytes);
        }
        let owners = owners.into_iter();
        MemoryReport {
            arena,
            fragmentation: arena.fragmentation(),
            installed_allocators: self.regions.iter().skip(1).filter(|it| !it.gone).count(),
            broken_allocators: self.broken,
            blocks: live().filter(|live| live.kind == Kind::Block).count(),
            kinds: kinds.collect(),
            owners: owners
                .map(|(task, (allocations, bytes))| OwnerMemory { task, allocations, bytes })
                .collect(),
            host_used_bytes: self.host.used(),
            host_high_water_bytes: self.host.high_water(),
            transfers: self.transfers,
            transferred_bytes: self.transferred_bytes,
            gathered_writes: self.gathered_writes,
            transfer_modelled_ns: self.transfer_ns,
        }
    }
}

impl Live {
    /// Whether it holds the bytes of an installed allocator.
    fn is_region(&self) -> bool {
        self.kind == Kind::Allocator
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.live.iter().flatten().count();
        f.debug_struct("Memory").field("blocks", &blocks).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
