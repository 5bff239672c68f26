//! Host memory, and transfers to and from the card: modelled as a DMA engine's.

use super::{Block, MemoryError, check_range};
use crate::shared::{Shared, lock};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The duration of a transfer between card and host: modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferCost {
    /// Nanoseconds until the first byte arrives.
    pub latency_ns: u64,
    /// Bytes per microsecond from then on.
    pub bytes_per_us: u64,
}

impl Default for TransferCost {
    /// The order of magnitude of a DMA engine on PCIe: 1 µs, and 8 GB/s.
    fn default() -> Self {
        TransferCost { latency_ns: 1_000, bytes_per_us: 8_000 }
    }
}

impl TransferCost {
    /// Nanoseconds for this many bytes.
    pub fn of(&self, bytes: usize) -> u64 {
        let rate = u128::from(self.bytes_per_us.max(1));
        let time_ns = (bytes as u128 * 1_000).div_ceil(rate);
        self.latency_ns.saturating_add(u64::try_from(time_ns).unwrap_or(u64::MAX))
    }
}

/// The accounting of host memory in use by tasks.
#[derive(Debug)]
pub(super) struct HostBudget {
    pub(super) most: u64,
    pub(super) used: AtomicU64,
    pub(super) high_water: AtomicU64,
}

/// Memory at the host, for code of the host. Cheap to clone; any thread may use it.
#[derive(Clone, Debug)]
pub struct HostMemory(Arc<HostBytes>);

#[derive(Debug)]
struct HostBytes {
    bytes: Mutex<Box<[u8]>>,
    length: usize,
    budget: Arc<HostBudget>,
}

impl HostMemory {
    /// Accesses its bytes. Transfers wait meanwhile, and with them the borrowed core: `body` must
    /// be short.
    pub fn with<R>(&self, body: impl FnOnce(&mut [u8]) -> R) -> R {
        body(&mut lock(&self.0.bytes))
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.length as u64, Ordering::Relaxed);
    }
}

/// Memory at the host, for a task: reached only by transfers.
#[derive(Debug)]
pub struct HostBlock(HostMemory);

impl HostBlock {
    pub(crate) fn new(shared: &Shared, bytes: usize) -> Result<Self, MemoryError> {
        let budget = lock(&shared.memory).host.clone();
        let wanted = bytes as u64;
        let take = |used: u64| used.checked_add(wanted).filter(|&sum| sum <= budget.most);
        let before = budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.map_err(|used| MemoryError::HostExhausted {
            wanted: bytes,
            left: budget.most.saturating_sub(used) as usize,
        })?;
        budget.high_water.fetch_max(before + wanted, Ordering::Relaxed);
        let memory = HostBytes {
            bytes: Mutex::new(vec![0; bytes].into_boxed_slice()),
            length: bytes,
            budget,
        };
        Ok(HostBlock(HostMemory(Arc::new(memory))))
    }

    /// The same memory for code of the host.
    pub fn host_side(&self) -> HostMemory {
        self.0.clone()
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.0.length
    }
}

/// A checked transfer: its duration, and then the copy.
pub(crate) struct Transfer<'a> {
    pub(crate) card: &'a Block,
    pub(crate) range: Range<usize>,
    pub(crate) host: &'a HostBlock,
    pub(crate) at: usize,
}

impl Transfer<'_> {
    /// Checks it and accounts for it; returns its duration in nanoseconds.
    pub(crate) fn begin(&self) -> Result<u64, MemoryError> {
        let bytes = self.range.len();
        check_range(&(self.at..self.at.saturating_add(bytes)), self.host.len())?;
        let mut memory = lock(&self.card.shared.memory);
        memory.bytes(self.card.name, self.range.clone())?;
        let time_ns = memory.transfer.of(bytes);
        memory.transfers += 1;
        memory.transferred_bytes += bytes as u64;
        memory.transfer_ns = memory.transfer_ns.saturating_add(time_ns);
        Ok(time_ns)
    }

    /// Copies, in either direction.
    pub(crate) fn end(&self, to_host: bool) -> Result<(), MemoryError> {
        let mut memory = lock(&self.card.shared.memory);
        let card = memory.bytes(self.card.name, self.range.clone())?;
        self.host.0.with(|host| {
            let host = &mut host[self.at..self.at + card.len()];
            match to_host {
                true => host.copy_from_slice(card),
                false => card.copy_from_slice(host),
            }
        });
        Ok(())
    }
}
