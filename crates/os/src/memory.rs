//! Memory for tasks: on the card, or at the host, reached by explicit transfers.
//!
//! ```
//! # use picnic_os::{context::Nic, memory::MemoryError};
//! async fn keep(nic: Nic) -> Result<(), MemoryError> {
//!     let mut card = nic.allocate(256)?;
//!     card.write(0, b"seen on the card")?;
//!     let host = nic.allocate_host(1 << 20)?;
//!     nic.copy_to_host(&card, 0..16, &host, 0).await?; // others run meanwhile
//!     Ok(())
//! } // both are freed here, or when the task is killed
//! ```
//!
//! Card memory is one arena of fixed size. It is allocated by the boundary tag method, until a task
//! installs its own allocator, which gets a piece of the arena and is used from then on. Host
//! memory is the process's; a task reaches it only by transfers, which take the time of a DMA
//! engine with the given latency and rate: modelled, and marked as such, in both worlds.
//!
//! Guarantees: a block is released once, by its owner's drop or its task's end, and a handle to it
//! is refused from then on; no access leaves its block; a failed allocation is an error, never a
//! panic.
//!
//! Source: NICOS 4.1.

mod host;

pub(crate) use host::Transfer;
pub use host::{HostBlock, HostMemory, TransferCost};

use crate::alloc::boundary_tag::BoundaryTag;
use crate::alloc::{Allocator, Figures};
use crate::shared::{Shared, lock};
use crate::task::TaskId;
use host::HostBudget;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest alignment, and that of the arena.
const MOST_ALIGN: usize = 4096;

/// Why memory was not allocated or not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No piece of the arena is large enough.
    #[error("found no room for {wanted} bytes: {free} are free, {largest} in one piece")]
    Exhausted {
        /// Bytes requested.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes of the largest free piece.
        largest: usize,
    },
    /// Not an alignment.
    #[error("found an alignment of {0}, allowed: a power of two up to {MOST_ALIGN}")]
    Alignment(usize),
    /// All host memory for tasks is in use.
    #[error("found no room for {wanted} bytes at the host: {left} are left (os.host_bytes)")]
    HostExhausted {
        /// Bytes requested.
        wanted: usize,
        /// Bytes left.
        left: usize,
    },
    /// The range leaves the block.
    #[error("found bytes {start} to {end}, but the block has {length}")]
    Range {
        /// Where it starts.
        start: usize,
        /// Where it ends.
        end: usize,
        /// Bytes of the block.
        length: usize,
    },
    /// Source and target of a transfer differ in length, or the task that had the block ended.
    #[error("the block has been released")]
    Released,
}

/// A piece of the arena with its allocator.
struct Region {
    /// Its place in the arena.
    bytes: Range<usize>,
    allocator: Box<dyn Allocator>,
    blocks: usize,
    /// The task that installed it; none for the arena itself.
    owner: Option<TaskId>,
    /// Nothing more is allocated from it.
    retired: bool,
    /// The region has ended, its bytes are returned.
    gone: bool,
}

impl Region {
    fn new(bytes: Range<usize>, allocator: Box<dyn Allocator>, owner: Option<TaskId>) -> Self {
        Region { bytes, allocator, blocks: 0, owner, retired: false, gone: false }
    }
}

/// An allocated block.
struct Live {
    serial: u64,
    region: usize,
    /// Within its region.
    place: usize,
    bytes: usize,
    owner: TaskId,
}

/// The card's memory, and the accounting of the host's.
pub(crate) struct Memory {
    arena: Vec<u8>,
    /// The first region is the whole arena.
    regions: Vec<Region>,
    live: Vec<Option<Live>>,
    vacant: Vec<u32>,
    serial: u64,
    host: Arc<HostBudget>,
    transfer: TransferCost,
    transfers: u64,
    transferred_bytes: u64,
    transfer_ns: u64,
}

/// The figures of a NIC OS's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    /// The arena, from its own allocator.
    pub arena: Figures,
    /// Fragmentation of the arena's free bytes, 0 to 1.
    pub fragmentation: f64,
    /// Allocators that tasks have installed and that still exist.
    pub installed_allocators: usize,
    /// Blocks that tasks have, from any allocator.
    pub blocks: usize,
    /// Host memory in use by tasks.
    pub host_used_bytes: u64,
    /// The maximum in use.
    pub host_high_water_bytes: u64,
    /// Transfers between card and host.
    pub transfers: u64,
    /// Their bytes.
    pub transferred_bytes: u64,
    /// The time they took: modelled.
    pub transfer_modelled_ns: u64,
}

/// A block's handle: its place in the table, and a unique number.
#[derive(Clone, Copy, Debug)]
struct Name {
    index: u32,
    serial: u64,
}

impl Memory {
    pub(crate) fn new(arena_bytes: usize, host_bytes: usize, transfer: TransferCost) -> Self {
        let mut arena = vec![0; arena_bytes + MOST_ALIGN];
        let start = arena.as_ptr().align_offset(MOST_ALIGN).min(MOST_ALIGN);
        let bytes = start..start + arena_bytes;
        let mut allocator: Box<dyn Allocator> = Box::<BoundaryTag>::default();
        allocator.reset(&mut arena[bytes.clone()]);
        let whole = Region::new(bytes, allocator, None);
        let host = HostBudget {
            most: host_bytes as u64,
            used: AtomicU64::new(0),
            high_water: AtomicU64::new(0),
        };
        Memory {
            arena,
            regions: vec![whole],
            live: Vec::new(),
            vacant: Vec::new(),
            serial: 0,
            host: Arc::new(host),
            transfer,
            transfers: 0,
            transferred_bytes: 0,
            transfer_ns: 0,
        }
    }

    fn allocate(&mut self, owner: TaskId, bytes: usize, align: usize) -> Result<Name, MemoryError> {
        // The last installed one is used; there is no fallback.
        let region = self.regions.iter().rposition(|region| !region.retired).unwrap_or(0);
        self.allocate_in(region, owner, bytes, align)
    }

    fn allocate_in(
        &mut self,
        index: usize,
        owner: TaskId,
        bytes: usize,
        align: usize,
    ) -> Result<Name, MemoryError> {
        if !align.is_power_of_two() || align > MOST_ALIGN {
            return Err(MemoryError::Alignment(align));
        }
        let region = &mut self.regions[index];
        let arena = &mut self.arena[region.bytes.clone()];
        let place = region.allocator.allocate(arena, bytes, align);
        // An allocator is user code: its results are checked.
        let room = arena.len();
        let sound = place.filter(|&place| place.checked_add(bytes).is_some_and(|end| end <= room));
        let Some(place) = sound else {
            let figures = region.allocator.figures(arena);
            let (free, largest) = (figures.free_bytes, figures.largest_free_bytes);
            return Err(MemoryError::Exhausted { wanted: bytes, free, largest });
        };
        region.blocks += 1;
        self.serial += 1;
        let serial = self.serial;
        let live = Some(Live { serial, region: index, place, bytes, owner });
        let index = self.vacant.pop().unwrap_or(self.live.len() as u32);
        match self.live.get_mut(index as usize) {
            Some(vacant) => *vacant = live,
            None => self.live.push(live),
        }
        Ok(Name { index, serial })
    }

    fn find(&self, name: Name) -> Option<&Live> {
        self.live.get(name.index as usize)?.as_ref().filter(|live| live.serial == name.serial)
    }

    fn free(&mut self, name: Name) {
        if self.find(name).is_none() {
            return;
        }
        let Some(live) = self.live[name.index as usize].take() else { return };
        self.vacant.push(name.index);
        let region = &mut self.regions[live.region];
        region.allocator.free(&mut self.arena[region.bytes.clone()], live.place);
        region.blocks -= 1;
        self.clear_regions();
    }

    /// Returns the bytes of retired regions whose last block was freed.
    fn clear_regions(&mut self) {
        let (whole, installed) = self.regions.split_at_mut(1);
        for region in installed {
            if region.retired && region.blocks == 0 && !region.gone {
                region.gone = true;
                let place = region.bytes.start - whole[0].bytes.start;
                whole[0].allocator.free(&mut self.arena[whole[0].bytes.clone()], place);
            }
        }
        // The arena's own never ends.
        while self.regions.last().is_some_and(|region| region.gone) {
            self.regions.pop();
        }
    }

    fn install(
        &mut self,
        owner: TaskId,
        bytes: usize,
        mut allocator: Box<dyn Allocator>,
    ) -> Result<(), MemoryError> {
        let whole = &mut self.regions[0];
        let arena = &mut self.arena[whole.bytes.clone()];
        let Some(place) = whole.allocator.allocate(arena, bytes, MOST_ALIGN) else {
            let figures = whole.allocator.figures(arena);
            let (free, largest) = (figures.free_bytes, figures.largest_free_bytes);
            return Err(MemoryError::Exhausted { wanted: bytes, free, largest });
        };
        let start = whole.bytes.start + place;
        let bytes = start..start + bytes;
        allocator.reset(&mut self.arena[bytes.clone()]);
        self.regions.push(Region::new(bytes, allocator, Some(owner)));
        Ok(())
    }

    /// Retires the allocator that this task installed last; whether there was one.
    fn uninstall(&mut self, owner: TaskId) -> bool {
        let mine = |region: &&mut Region| region.owner == Some(owner) && !region.retired;
        let Some(region) = self.regions.iter_mut().rev().find(mine) else { return false };
        region.retired = true;
        self.clear_regions();
        true
    }

    /// A task has ended: all its blocks and allocators are released.
    pub(crate) fn release_all(&mut self, task: TaskId) {
        for index in 0..self.live.len() {
            let Some(live) = &self.live[index] else { continue };
            if live.owner == task {
                let name = Name { index: index as u32, serial: live.serial };
                self.free(name);
            }
        }
        while self.uninstall(task) {}
    }

    /// The bytes of a block, in part.
    fn bytes(&mut self, name: Name, range: Range<usize>) -> Result<&mut [u8], MemoryError> {
        let live = self.find(name).ok_or(MemoryError::Released)?;
        check_range(&range, live.bytes)?;
        let start = self.regions[live.region].bytes.start + live.place;
        Ok(&mut self.arena[start + range.start..start + range.end])
    }

    pub(crate) fn report(&self) -> MemoryReport {
        let whole = &self.regions[0];
        let arena = whole.allocator.figures(&self.arena[whole.bytes.clone()]);
        MemoryReport {
            arena,
            fragmentation: arena.fragmentation(),
            installed_allocators: self.regions.iter().skip(1).filter(|it| !it.gone).count(),
            blocks: self.live.iter().flatten().count(),
            host_used_bytes: self.host.used.load(Ordering::Relaxed),
            host_high_water_bytes: self.host.high_water.load(Ordering::Relaxed),
            transfers: self.transfers,
            transferred_bytes: self.transferred_bytes,
            transfer_modelled_ns: self.transfer_ns,
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("report", &self.report()).finish_non_exhaustive()
    }
}

fn check_range(range: &Range<usize>, length: usize) -> Result<(), MemoryError> {
    let (start, end) = (range.start, range.end);
    if start <= end && end <= length {
        return Ok(());
    }
    Err(MemoryError::Range { start, end, length })
}

/// Memory on the card; freed when dropped.
pub struct Block {
    shared: Arc<Shared>,
    name: Name,
    length: usize,
}

impl Block {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        owner: TaskId,
        bytes: usize,
        align: usize,
    ) -> Result<Self, MemoryError> {
        let name = lock(&shared.memory).allocate(owner, bytes, align)?;
        Ok(Block { shared: shared.clone(), name, length: bytes })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    /// They exceed the block, or it has been released.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        let mut memory = lock(&self.shared.memory);
        into.copy_from_slice(memory.bytes(self.name, at..at.saturating_add(into.len()))?);
        Ok(())
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Errors
    /// They exceed the block, or it has been released.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<(), MemoryError> {
        let mut memory = lock(&self.shared.memory);
        memory.bytes(self.name, at..at.saturating_add(from.len()))?.copy_from_slice(from);
        Ok(())
    }

    /// Accesses all its bytes in place. No memory may be requested meanwhile: `body` must be short
    /// and call nothing of the card.
    ///
    /// # Errors
    /// It has been released.
    pub fn with<R>(&mut self, body: impl FnOnce(&mut [u8]) -> R) -> Result<R, MemoryError> {
        let mut memory = lock(&self.shared.memory);
        Ok(body(memory.bytes(self.name, 0..self.length)?))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.shared.memory).free(self.name);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Installs a task's own allocator; see `Nic::install_allocator`.
pub(crate) fn install(
    shared: &Shared,
    owner: TaskId,
    bytes: usize,
    allocator: Box<dyn Allocator>,
) -> Result<(), MemoryError> {
    lock(&shared.memory).install(owner, bytes, allocator)
}

/// Removes it; see `Nic::uninstall_allocator`.
pub(crate) fn uninstall(shared: &Shared, owner: TaskId) -> bool {
    lock(&shared.memory).uninstall(owner)
}
