//! The dirty log: a bit for each page of a guest that the card has written to, for live migration.
//!
//! Guarantees: a bit is set after its page was written, by an atomic OR that orders both; a page
//! that is read after its bit was cleared is read with all writes that the bit stood for. The log
//! covers all memory of its guest, which is checked once.
//!
//! Source: QEMU, docs/interop/vhost-user.rst, "Migration".

use super::memory::{Watch, map};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use vhost::vhost_user::Result;
use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

/// Bytes of a page of the log, whatever those of the processor are.
pub(super) const PAGE: u64 = 4096;

/// A log that a front end shares.
#[derive(Debug)]
pub struct Log {
    bits: MmapRegion<Watch>,
}

impl Log {
    /// The log in `bytes` of a file from `offset` on.
    ///
    /// # Errors
    /// It is no file, or a shorter one.
    pub(super) fn new(file: File, offset: u64, bytes: u64, bell: &Arc<OwnedFd>) -> Result<Self> {
        Ok(Log { bits: map(FileOffset::new(file, offset), bytes, bell, None)? })
    }

    /// Whether it has a bit for each page before this guest address.
    pub(super) fn covers(&self, end: u64) -> bool {
        end.div_ceil(PAGE) <= 8 * self.bits.size() as u64
    }

    fn byte(&self, page: u64) -> Option<&AtomicU8> {
        self.bits.get_atomic_ref((page / 8) as usize).ok()
    }

    fn mark(&self, address: u64, length: usize) {
        if length == 0 {
            return;
        }
        let last = address.saturating_add(length as u64 - 1) / PAGE;
        for page in address / PAGE..=last {
            if let Some(byte) = self.byte(page) {
                byte.fetch_or(1 << (page % 8), Ordering::SeqCst);
            }
        }
    }
}

/// Marks the pages of a piece of memory, if a log is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks<'m> {
    log: Option<&'m Log>,
    /// Guest address of the piece.
    start: u64,
}

impl<'m> Marks<'m> {
    pub(super) fn new(log: &'m Log, start: u64) -> Self {
        Marks { log: Some(log), start }
    }
}

impl WithBitmapSlice<'_> for Marks<'_> {
    type S = Self;
}

impl BitmapSlice for Marks<'_> {}

impl Bitmap for Marks<'_> {
    #[inline]
    fn mark_dirty(&self, offset: usize, length: usize) {
        if let Some(log) = self.log {
            log.mark(self.start.wrapping_add(offset as u64), length);
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let page = self.start.wrapping_add(offset as u64) / PAGE;
        let byte = self.log.and_then(|log| log.byte(page));
        byte.is_some_and(|byte| byte.load(Ordering::SeqCst) & 1 << (page % 8) != 0)
    }

    #[inline]
    fn slice_at(&self, offset: usize) -> Self {
        Marks { start: self.start.wrapping_add(offset as u64), ..*self }
    }
}
