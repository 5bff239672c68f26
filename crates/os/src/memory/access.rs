//! Blocks, on the card or at the host, and a task's calls for them.

use super::arena::{Memory, Name};
use super::region::Listed;
use super::{Charge, GATHER_BYTES, HostBytes, Kind, MemoryError, MemoryReport, check_range};
use crate::alloc::Allocator;
use crate::context::Nic;
use crate::shared::{Shared, lock};
use crate::task::TaskId;
use picnic_filter::code::{AllocatorCode, FilterCode};
use picnic_filter::{Filter, FilterError, FilterId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The place of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "MemoryTarget")]
pub enum Target {
    /// The arena.
    #[default]
    Card,
    /// The host, reached by transfers.
    Host,
}

/// Memory of a task; freed when dropped.
pub struct Block {
    shared: Arc<Shared>,
    /// On the card: its bytes, or for a host block those that gather writes.
    name: Name,
    length: usize,
    host: Option<HostSide>,
}

/// The part of a block that is at the host.
struct HostSide {
    bytes: Arc<dyn HostBytes>,
    /// The gathered writes, which are not yet at the host.
    gathered: Range<usize>,
}

impl Block {
    fn on_card(
        shared: &Arc<Shared>,
        owner: TaskId,
        bytes: usize,
        align: usize,
    ) -> Result<Self, MemoryError> {
        let name = lock(&shared.memory).allocate(owner, Kind::Block, bytes, align)?;
        Ok(Block { shared: shared.clone(), name, length: bytes, host: None })
    }

    fn at_host(
        shared: &Arc<Shared>,
        owner: TaskId,
        bytes: Arc<dyn HostBytes>,
    ) -> Result<Self, MemoryError> {
        let name = lock(&shared.memory).allocate(owner, Kind::Block, GATHER_BYTES, 16)?;
        let length = bytes.len();
        let host = Some(HostSide { bytes, gathered: 0..0 });
        Ok(Block { shared: shared.clone(), name, length, host })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Its place.
    pub fn target(&self) -> Target {
        if self.host.is_some() { Target::Host } else { Target::Card }
    }

    /// The same bytes for code of the host; `None` for a block on the card. Gathered writes are not
    /// there before [`Nic::flush`].
    pub fn host_side(&self) -> Option<Arc<dyn HostBytes>> {
        self.host.as_ref().map(|host| host.bytes.clone())
    }

    /// Accesses all bytes of a block on the card in place, without a pause. No memory may be
    /// requested meanwhile: `body` must be short and call nothing of the card.
    ///
    /// # Errors
    /// It has been released, or is at the host.
    pub fn with<R>(&mut self, body: impl FnOnce(&mut [u8]) -> R) -> Result<R, MemoryError> {
        if self.host.is_some() {
            return Err(MemoryError::AtHost);
        }
        let mut memory = lock(&self.shared.memory);
        Ok(body(memory.bytes(self.name, self.length, 0..self.length)?))
    }

    /// Checks a range of the block, and that the block exists.
    fn check(&self, memory: &mut Memory, at: usize, bytes: usize) -> Result<(), MemoryError> {
        check_range(&(at..at.saturating_add(bytes)), self.length)?;
        memory.bytes(self.name, 0, 0..0).map(drop)
    }

    /// Writes gathered bytes to the host; returns how many.
    fn flush(&mut self, memory: &mut Memory) -> usize {
        let Some(host) = &mut self.host else { return 0 };
        let gathered = std::mem::take(&mut host.gathered);
        if let Ok(bytes) = memory.bytes(self.name, GATHER_BYTES, 0..gathered.len()) {
            host.bytes.write(gathered.start, bytes);
        }
        gathered.len()
    }

    /// Adds a write to the gathered ones; false if it does not continue them.
    fn gather(&mut self, memory: &mut Memory, at: usize, from: &[u8]) -> bool {
        let Some(host) = &mut self.host else { return false };
        let length = host.gathered.len();
        let continues = host.gathered.is_empty() || host.gathered.end == at;
        if !continues || length + from.len() >= GATHER_BYTES {
            return false;
        }
        let room = memory.bytes(self.name, GATHER_BYTES, length..length + from.len());
        let Ok(room) = room else { return false };
        room.copy_from_slice(from);
        let start = if length == 0 { at } else { host.gathered.start };
        host.gathered = start..at + from.len();
        memory.gathered_writes += 1;
        true
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let mut memory = lock(&shared.memory);
        let gathered = self.flush(&mut memory);
        if gathered != 0 {
            memory.count_transfer(gathered);
        }
        memory.free(self.name);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, length) = (self.target(), self.length);
        f.debug_struct("Block")
            .field("target", &target)
            .field("length", &length)
            .finish_non_exhaustive()
    }
}

/// An operation that is begun, and its duration; 0 for none at the host.
type Begun = Result<u64, MemoryError>;

impl Nic {
    /// Memory on the card, aligned to 16 bytes.
    ///
    /// # Errors
    /// There is no room.
    pub fn allocate(&self, bytes: usize) -> Result<Block, MemoryError> {
        self.allocate_on(Target::Card, bytes)
    }

    /// Memory at the host, zeroed. For set-up: the system may take its time.
    ///
    /// # Errors
    /// All host memory for tasks is in use, or the card has no room to gather writes.
    pub fn allocate_host(&self, bytes: usize) -> Result<Block, MemoryError> {
        self.allocate_on(Target::Host, bytes)
    }

    /// Memory at a place that a setting gives.
    ///
    /// # Errors
    /// As [`Nic::allocate`] and [`Nic::allocate_host`].
    pub fn allocate_on(&self, target: Target, bytes: usize) -> Result<Block, MemoryError> {
        match target {
            Target::Card => self.allocate_aligned(bytes, 16),
            Target::Host => {
                let budget = lock(&self.cell.shared.memory).host.clone();
                self.map_host(budget.allocate(bytes)?)
            }
        }
    }

    /// Memory on the card, aligned to a power of two up to 4096.
    ///
    /// # Errors
    /// There is no room, or the alignment is invalid.
    pub fn allocate_aligned(&self, bytes: usize, align: usize) -> Result<Block, MemoryError> {
        Block::on_card(&self.cell.shared, self.cell.id, bytes, align)
    }

    /// A block over bytes at the host that exist already, such as a mapping shared with a host
    /// process. They do not count as host memory of tasks.
    ///
    /// # Errors
    /// The card has no room to gather writes.
    pub fn map_host(&self, bytes: Arc<dyn HostBytes>) -> Result<Block, MemoryError> {
        Block::at_host(&self.cell.shared, self.cell.id, bytes)
    }

    /// Reserves card memory for an object of this size that lives elsewhere.
    ///
    /// # Errors
    /// There is no room.
    pub fn charge(&self, kind: Kind, bytes: usize) -> Result<Charge, MemoryError> {
        lock(&self.cell.shared.memory).charge(self.cell.id, kind, bytes)
    }

    /// Copies bytes out of a block, from `at` on. From the host, it takes the time of a transfer,
    /// during which others run. Gathered writes of the block are written first.
    ///
    /// # Errors
    /// The bytes exceed the block, or it has been released.
    pub async fn read(
        &self,
        block: &mut Block,
        at: usize,
        into: &mut [u8],
    ) -> Result<(), MemoryError> {
        self.take(self.begin(block, at, into.len())).await?;
        let mut memory = lock(&self.cell.shared.memory);
        block.check(&mut memory, at, into.len())?;
        match &block.host {
            Some(host) => host.bytes.read(at, into),
            None => {
                let bytes = memory.bytes(block.name, block.length, at..at + into.len())?;
                into.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Copies bytes into a block, from `at` on. To the host, it takes the time of a transfer. Short
    /// writes to consecutive places only pause; they are gathered, and the host sees them after a
    /// write elsewhere, a read, [`Nic::flush`], or the block's drop.
    ///
    /// # Errors
    /// The bytes exceed the block, or it has been released.
    pub async fn write(
        &self,
        block: &mut Block,
        at: usize,
        from: &[u8],
    ) -> Result<(), MemoryError> {
        let begun = self.begin_write(block, at, from);
        let is_gathered = begun == Ok(None);
        self.take(begun.map(Option::unwrap_or_default)).await?;
        if is_gathered {
            return Ok(());
        }
        let mut memory = lock(&self.cell.shared.memory);
        block.check(&mut memory, at, from.len())?;
        match &block.host {
            // The start of the next ones; too long, or alone.
            Some(host) if from.len() >= GATHER_BYTES => host.bytes.write(at, from),
            Some(_) => _ = block.gather(&mut memory, at, from),
            None => {
                let bytes = memory.bytes(block.name, block.length, at..at + from.len())?;
                bytes.copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Makes the host see all writes to a block.
    ///
    /// # Errors
    /// The block has been released.
    pub async fn flush(&self, block: &mut Block) -> Result<(), MemoryError> {
        self.take(self.begin(block, 0, 0)).await
    }

    /// Copies bytes from one block to another, from `at` on; each may be on the card or at the
    /// host. It takes the time of a transfer if one is at the host.
    ///
    /// # Errors
    /// The bytes exceed a block, or one has been released.
    pub async fn copy(
        &self,
        from: &mut Block,
        range: Range<usize>,
        to: &mut Block,
        at: usize,
    ) -> Result<(), MemoryError> {
        let begun = check_range(&range, from.length).and_then(|()| {
            let bytes = range.len();
            let mut memory = lock(&self.cell.shared.memory);
            from.check(&mut memory, range.start, bytes)?;
            to.check(&mut memory, at, bytes)?;
            let gathered = from.flush(&mut memory) + to.flush(&mut memory);
            let is_transfer = from.host.is_some() || to.host.is_some();
            Ok(if is_transfer { memory.count_transfer(bytes + gathered) } else { 0 })
        });
        self.take(begun).await?;
        let mut memory = lock(&self.cell.shared.memory);
        from.check(&mut memory, range.start, range.len())?;
        to.check(&mut memory, at, range.len())?;
        match (&from.host, &to.host) {
            (None, None) => memory.copy((from.name, range), (to.name, at)),
            (None, Some(host)) => {
                host.bytes.write(at, memory.bytes(from.name, from.length, range)?)
            }
            (Some(host), None) => {
                let end = at + range.len();
                host.bytes.read(range.start, memory.bytes(to.name, to.length, at..end)?);
            }
            (Some(source), Some(target)) => {
                let piece = memory.bytes(to.name, GATHER_BYTES, 0..GATHER_BYTES)?;
                for start in range.clone().step_by(GATHER_BYTES) {
                    let count = GATHER_BYTES.min(range.end - start);
                    source.bytes.read(start, &mut piece[..count]);
                    target.bytes.write(at + start - range.start, &piece[..count]);
                }
            }
        }
        Ok(())
    }

    /// Begins an access to bytes of a block. Gathered writes are part of the same transfer.
    fn begin(&self, block: &mut Block, at: usize, bytes: usize) -> Begun {
        let mut memory = lock(&self.cell.shared.memory);
        block.check(&mut memory, at, bytes)?;
        let transferred = block.flush(&mut memory) + bytes;
        let is_transfer = block.host.is_some() && transferred != 0;
        Ok(if is_transfer { memory.count_transfer(transferred) } else { 0 })
    }

    /// Begins a write; `None` if it was gathered.
    fn begin_write(
        &self,
        block: &mut Block,
        at: usize,
        from: &[u8],
    ) -> Result<Option<u64>, MemoryError> {
        let mut memory = lock(&self.cell.shared.memory);
        block.check(&mut memory, at, from.len())?;
        if block.host.is_some() {
            if block.gather(&mut memory, at, from) {
                return Ok(None);
            }
            let own = if from.len() >= GATHER_BYTES { from.len() } else { 0 };
            let transferred = block.flush(&mut memory) + own;
            return Ok(Some(memory.count_transfer(transferred)));
        }
        Ok(Some(0))
    }

    /// Pauses for the duration of an operation.
    async fn take(&self, begun: Begun) -> Result<(), MemoryError> {
        match begun {
            Ok(0) | Err(_) => self.yield_now().await,
            Ok(time_ns) => self.sleep_ns(time_ns).await,
        }
        begun.map(drop)
    }

    /// Gives `bytes` bytes of the arena to an allocator of the task's own: the code of a filter with
    /// [`Action::Allocate`](picnic_filter::Action). Once that filter is added, the allocator serves
    /// all requests of the card, until the filter is removed or this task ends.
    ///
    /// # Errors
    /// There is no room, or the allocator panicked when it took over its bytes.
    pub fn allocator(
        &self,
        bytes: usize,
        allocator: Box<dyn Allocator>,
    ) -> Result<FilterCode, MemoryError> {
        let listed = Arc::new(Listed::default());
        let owner = self.cell.id;
        lock(&self.cell.shared.memory).install(owner, bytes, allocator, listed.clone())?;
        Ok(AllocatorCode::new(listed).into())
    }

    /// Installs an allocator as a filter with this name: [`Nic::allocator`] and
    /// [`Nic::add_filter`] in one call. Remove it with [`Nic::remove_filter`].
    ///
    /// # Errors
    /// As those.
    pub async fn install_allocator(
        &self,
        name: &str,
        bytes: usize,
        allocator: Box<dyn Allocator>,
    ) -> Result<FilterId, FilterError> {
        let code = self.allocator(bytes, allocator);
        match code {
            Ok(code) => self.add_filter(Filter::allocator(name), code).await,
            Err(error) => {
                self.yield_now().await;
                Err(FilterError::NoMemory(error.to_string()))
            }
        }
    }

    /// The state of memory.
    pub fn memory(&self) -> MemoryReport {
        lock(&self.cell.shared.memory).report()
    }
}
