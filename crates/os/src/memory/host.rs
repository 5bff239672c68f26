//! Host memory: its bytes, its budget, and the duration of transfers.

use super::MemoryError;
use crate::shared::lock;
use picnic_channel::Region;
use std::fmt;
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

/// Bytes at the host that the card reaches by transfers: memory of this process, or a mapping
/// shared with another.
///
/// Transfers run on the borrowed core, so both methods must be short and must not wait. Another
/// process may write to the bytes at any time: implementations copy, and lend nothing.
#[allow(clippy::len_without_is_empty)]
pub trait HostBytes: Send + Sync + fmt::Debug {
    /// Number of bytes; it never changes.
    fn len(&self) -> usize;

    /// Copies bytes out, from `at` on. The caller has checked that they exist.
    fn read(&self, at: usize, into: &mut [u8]);

    /// Copies bytes in, from `at` on. The caller has checked that they exist.
    fn write(&self, at: usize, from: &[u8]);
}

/// The accounting of host memory in use by tasks.
#[derive(Debug)]
pub(super) struct HostBudget {
    most: u64,
    used: AtomicU64,
    high_water: AtomicU64,
}

impl HostBudget {
    pub(super) fn new(most: u64) -> Self {
        HostBudget { most, used: AtomicU64::new(0), high_water: AtomicU64::new(0) }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn high_water(&self) -> u64 {
        self.high_water.load(Ordering::Relaxed)
    }

    /// Takes bytes of the budget, until the result is dropped.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reserved, MemoryError> {
        let wanted = bytes as u64;
        let take = |used: u64| used.checked_add(wanted).filter(|&sum| sum <= self.most);
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.map_err(|used| MemoryError::HostExhausted {
            wanted: bytes,
            left: self.most.saturating_sub(used) as usize,
        })?;
        self.high_water.fetch_max(before + wanted, Ordering::Relaxed);
        Ok(Reserved { bytes: wanted, budget: self.clone() })
    }

    /// Memory of this process, zeroed.
    pub(super) fn allocate(
        self: &Arc<Self>,
        bytes: usize,
    ) -> Result<Arc<dyn HostBytes>, MemoryError> {
        let reserved = self.reserve(bytes)?;
        let zeros = Mutex::new(vec![0; bytes].into_boxed_slice());
        Ok(Arc::new(HostMemory { bytes: zeros, length: bytes, _reserved: reserved }))
    }
}

/// Host memory taken from the budget, until dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    bytes: u64,
    budget: Arc<HostBudget>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory shared with another process.
impl HostBytes for Region {
    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (byte, shared) in into.iter_mut().zip(&self.bytes()[at..]) {
            *byte = shared.load(Ordering::Relaxed);
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (shared, byte) in self.bytes()[at..].iter().zip(from) {
            shared.store(*byte, Ordering::Relaxed);
        }
    }
}

/// Memory of this process.
#[derive(Debug)]
struct HostMemory {
    bytes: Mutex<Box<[u8]>>,
    length: usize,
    _reserved: Reserved,
}

impl HostBytes for HostMemory {
    fn len(&self) -> usize {
        self.length
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&lock(&self.bytes)[at..at + into.len()]);
    }

    fn write(&self, at: usize, from: &[u8]) {
        lock(&self.bytes)[at..at + from.len()].copy_from_slice(from);
    }
}
