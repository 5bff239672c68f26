//! Memory that two processes map: the words and gates of a channel.
//!
//! ```
//! use picnic_channel::Region;
//! use std::os::fd::AsFd;
//! use std::sync::atomic::Ordering;
//!
//! let (region, memory) = Region::create(4096).unwrap();
//! let other = Region::open(memory.as_fd(), 4096).unwrap();
//! region.words()[7].store(1, Ordering::Relaxed);
//! assert_eq!(other.words()[7].load(Ordering::Relaxed), 1);
//! ```
//!
//! Guarantees: all access is atomic, so another process may write at any time; the memory of
//! [`Region::create`] neither shrinks nor grows, and [`Region::open`] refuses other memory, so no
//! access faults.
//!
//! Source: memfd_create(2), F_ADD_SEALS(2const).

#![allow(unsafe_code)]

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
use picnic_core::ring::gate::Gate;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

#[cfg(not(loom))]
mod mapped {
    use super::{AtomicU64, Gate, WORD};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU8;

    /// Shared memory; unmapped when dropped.
    #[derive(Debug)]
    pub struct Region {
        start: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: the mapping belongs to this value alone and is reached only through atomics; any
    // thread may unmap it.
    unsafe impl Send for Region {}
    // SAFETY: as above: shared references give access to atomics only.
    unsafe impl Sync for Region {}

    const PAGE: usize = 4096;

    impl Region {
        /// Memory of this process alone: both sides of a channel are in it.
        ///
        /// # Errors
        /// The system has no memory left.
        pub fn private(bytes: usize) -> io::Result<Self> {
            Region::map(None, bytes)
        }

        /// New memory of at least this many bytes, all zero, and a descriptor for another process.
        ///
        /// # Errors
        /// The system has no memory or descriptors left.
        pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create("picnic-channel", flags)?;
            ftruncate(&memory, whole_pages(bytes) as u64)?;
            fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok((Region::map(Some(memory.as_fd()), bytes)?, memory))
        }

        /// Memory of another process.
        ///
        /// # Errors
        /// It is shorter than this, it could be made so, or the system has no memory left.
        pub fn open(memory: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
            let wrong = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message);
            if !fcntl_get_seals(memory)?.contains(SealFlags::SHRINK) {
                return Err(wrong("the memory is not sealed against shrinking"));
            }
            let size = u64::try_from(fstat(memory)?.st_size).unwrap_or(0);
            if size < whole_pages(bytes) as u64 {
                return Err(wrong("the memory is too short"));
            }
            Region::map(Some(memory), bytes)
        }

        fn map(memory: Option<BorrowedFd<'_>>, bytes: usize) -> io::Result<Self> {
            let bytes = whole_pages(bytes);
            let (any, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: the kernel chooses an unused address, so nothing else is mapped over.
            let start = unsafe {
                match memory {
                    Some(memory) => mmap(any, bytes, access, MapFlags::SHARED, memory, 0)?,
                    None => mmap_anonymous(any, bytes, access, MapFlags::SHARED)?,
                }
            };
            let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Region { start, bytes })
        }

        /// Its words.
        #[inline(always)]
        pub fn words(&self) -> &[AtomicU64] {
            // SAFETY: the mapping has `bytes` bytes, starts at a page and lives as long as this
            // value. Every bit pattern is a number, and others change it at any time only in ways
            // that atomics allow. It cannot shrink (`open`, `create`), so access does not fault.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / WORD) }
        }

        /// Its bytes, in which a word's lowest byte comes first.
        pub fn bytes(&self) -> &[AtomicU8] {
            // SAFETY: as in `words`.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes) }
        }

        /// The gate in the line of 16 words from `word` on.
        ///
        /// # Panics
        /// `word` is not the first of a line in the region.
        pub(crate) fn gate(&self, word: usize) -> &Gate {
            let at = word * WORD;
            assert!(at.is_multiple_of(align_of::<Gate>()) && at + size_of::<Gate>() <= self.bytes);
            // SAFETY: a gate is an atomic number of which every value is valid, at the start of its
            // line (`repr(C)`); the place is aligned and within the mapping, which lives as long as
            // this value.
            unsafe { &*self.start.as_ptr().add(at).cast::<Gate>() }
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: the mapping is this value's own, and no reference outlives it.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }

    /// Bytes that are mapped for this many.
    fn whole_pages(bytes: usize) -> usize {
        bytes.max(1).next_multiple_of(PAGE)
    }
}

#[cfg(not(loom))]
pub use mapped::Region;

/// For models: words that loom schedules; the gates have models of their own.
#[cfg(loom)]
#[derive(Debug)]
pub struct Region {
    words: Box<[AtomicU64]>,
    gate: Gate,
}

#[cfg(loom)]
impl Region {
    /// Memory of this process alone.
    ///
    /// # Errors
    /// None.
    pub fn private(bytes: usize) -> std::io::Result<Self> {
        let words = (0..bytes / WORD).map(|_| AtomicU64::new(0)).collect();
        Ok(Region { words, gate: Gate::new() })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    pub(crate) fn gate(&self, _word: usize) -> &Gate {
        &self.gate
    }
}
