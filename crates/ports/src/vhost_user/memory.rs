//! The memory that a front end shares.
//!
//! Guarantees: only files are mapped, and nothing beyond their ends; regions do not overlap. A front
//! end that takes pages away later loses its guest, whose memory is zeros from then on; the card
//! goes on. Every write to the memory marks its pages in the dirty log, if one is kept.

use super::dirty::{Log, Marks};
use crate::sys::fault::Guard;
use rustix::fs::{FileType, fstat};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use vhost::vhost_user::{Error, Result};
use vm_memory::bitmap::{Bitmap, NewBitmap, WithBitmapSlice};
use vm_memory::mmap::{MmapRegion, MmapRegionBuilder};
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

/// Most regions: as many as DIMMs can be plugged into a machine of QEMU.
pub(super) const MAX_REGIONS: usize = 256;
/// Most regions that are added again: all of them, by each of 16 pairs of rings.
const MAX_REPEATS: usize = 16 * MAX_REGIONS;

/// The memory of a guest, mapped.
pub type GuestMemoryMmap = vm_memory::GuestMemoryMmap<Watch>;
/// One of its mappings.
pub type Region = GuestRegionMmap<Watch>;
/// A piece of it.
pub type VolatileSlice<'s> = vm_memory::VolatileSlice<'s, Marks<'s>>;

/// What is kept beside a mapping.
#[derive(Debug, Default)]
pub struct Watch {
    guard: OnceLock<Guard>,
    /// The log of its pages, and the guest address of its start.
    log: Option<(Arc<Log>, u64)>,
}

impl<'a> WithBitmapSlice<'a> for Watch {
    type S = Marks<'a>;
}

impl Bitmap for Watch {
    #[inline]
    fn mark_dirty(&self, offset: usize, length: usize) {
        self.slice_at(0).mark_dirty(offset, length);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.slice_at(0).dirty_at(offset)
    }

    #[inline]
    fn slice_at(&self, offset: usize) -> Marks<'_> {
        match &self.log {
            None => Marks::default(),
            Some((log, start)) => Marks::new(log, start.wrapping_add(offset as u64)),
        }
    }
}

impl NewBitmap for Watch {
    fn with_len(_: usize) -> Self {
        Watch::default()
    }
}

/// Maps a part of a file that another process has, too.
///
/// # Errors
/// It is no file, or a shorter one.
pub(super) fn map(
    file: FileOffset,
    bytes: u64,
    bell: &Arc<OwnedFd>,
    log: Option<(Arc<Log>, u64)>,
) -> Result<MmapRegion<Watch>> {
    let length = usize::try_from(bytes).map_err(|_| Error::InvalidParam)?;
    let end = file.start().checked_add(bytes).ok_or(Error::InvalidParam)?;
    let status = fstat(file.file()).map_err(|error| wrong(&error))?;
    let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    if !is_file || u64::try_from(status.st_size).is_ok_and(|size| size < end) {
        return Err(Error::InvalidOperation("the memory is no file, or a shorter one"));
    }
    let region = MmapRegionBuilder::new_with_bitmap(length, Watch { guard: OnceLock::new(), log })
        .with_file_offset(file.clone())
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_NORESERVE | libc::MAP_SHARED);
    let region = region.build().map_err(|error| wrong(&error))?;
    let guard = Guard::over(&region, file.file(), bell).map_err(|error| wrong(&error))?;
    let _ = region.bitmap().guard.set(guard);
    Ok(region)
}

/// A region, as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) guest: u64,
    pub(super) size: u64,
    /// Its address in the front end's process.
    pub(super) user: u64,
    pub(super) offset: u64,
}

/// The regions in use, and their addresses in the front end's process.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    ranges: Vec<(Range, Arc<File>)>,
    /// Regions that were added again: QEMU 7.2 adds and removes each once per pair of rings.
    repeats: Vec<Range>,
    map: Option<Arc<GuestMemoryMmap>>,
    /// The log of all pages.
    log: Option<Arc<Log>>,
    /// Rings when memory is lost.
    bell: Arc<OwnedFd>,
}

impl Memory {
    /// No memory.
    pub(super) fn new(bell: Arc<OwnedFd>) -> Self {
        Memory { ranges: Vec::new(), repeats: Vec::new(), map: None, log: None, bell }
    }

    /// All regions, mapped; none if there are none yet.
    pub(super) fn map(&self) -> Option<&Arc<GuestMemoryMmap>> {
        self.map.as_ref()
    }

    /// No regions, with the same log.
    pub(super) fn emptied(&self) -> Self {
        Memory { ranges: Vec::new(), repeats: Vec::new(), map: None, ..self.clone() }
    }

    /// The same memory with another region.
    ///
    /// # Errors
    /// It is no file, shorter than it should be, overlaps another, or is beyond the log.
    pub(super) fn with(&self, range: Range, file: Arc<File>) -> Result<Self> {
        let ends =
            [range.guest, range.user, range.offset].map(|start| start.checked_add(range.size));
        let [Some(end), Some(_), Some(_)] = ends else {
            return Err(Error::InvalidOperation("a region of memory is too long"));
        };
        if range.size == 0 {
            return Err(Error::InvalidOperation("a region of memory is empty"));
        }
        // Their ends are in range, as those of this one.
        let are_apart = |one, two, other: u64| one + range.size <= two || two + other <= one;
        let is_apart = |(other, _): &(Range, Arc<File>)| {
            are_apart(range.guest, other.guest, other.size)
                && are_apart(range.user, other.user, other.size)
        };
        if self.ranges.len() == MAX_REGIONS {
            return Err(Error::InvalidOperation("the memory has more than 256 regions"));
        }
        if !self.ranges.iter().all(is_apart) {
            return Err(Error::InvalidOperation("the memory overlaps"));
        }
        if self.log.as_ref().is_some_and(|log| !log.covers(end)) {
            return Err(Error::InvalidOperation("the dirty log is too short for the memory"));
        }
        let log = self.log.clone().map(|log| (log, range.guest));
        let part = FileOffset::from_arc(file.clone(), range.offset);
        let region = map(part, range.size, &self.bell, log)?;
        let region = GuestRegionMmap::new(region, GuestAddress(range.guest));
        let region = Arc::new(region.ok_or(Error::InvalidParam)?);
        let map = match &self.map {
            Some(map) => map.insert_region(region),
            None => GuestMemoryMmap::from_arc_regions(vec![region]),
        };
        let map = Some(Arc::new(map.map_err(|error| wrong(&error))?));
        let ranges = self.ranges.iter().cloned().chain([(range, file)]).collect();
        Ok(Memory { ranges, map, ..self.clone() })
    }

    /// The same memory, if this region of this file is mapped already.
    pub(super) fn repeat(&self, range: Range, file: &File) -> Option<Self> {
        let (_, mapped) = self.ranges.iter().find(|(other, _)| *other == range)?;
        let (mapped, given) = (fstat(mapped).ok()?, fstat(file).ok()?);
        let is_same = (mapped.st_dev, mapped.st_ino) == (given.st_dev, given.st_ino);
        if !is_same || self.repeats.len() == MAX_REPEATS {
            return None;
        }
        let repeats = self.repeats.iter().copied().chain([range]).collect();
        Some(Memory { repeats, ..self.clone() })
    }

    /// The same memory without a region.
    ///
    /// # Errors
    /// There is no such region.
    pub(super) fn without(&self, range: Range) -> Result<Self> {
        let is_same = |other: &Range| {
            (other.guest, other.size, other.user) == (range.guest, range.size, range.user)
        };
        let is_it = |(other, _): &(Range, Arc<File>)| is_same(other);
        let found = self.ranges.iter().any(is_it);
        if let (false, Some(index)) = (found, self.repeats.iter().position(is_same)) {
            let mut same = self.clone();
            same.repeats.swap_remove(index);
            return Ok(same);
        }
        let map = self.map.as_ref().filter(|_| found).ok_or(Error::InvalidParam)?;
        let ranges: Vec<_> = self.ranges.iter().filter(|other| !is_it(other)).cloned().collect();
        if ranges.is_empty() {
            return Ok(Memory { repeats: self.repeats.clone(), ..self.emptied() });
        }
        let removed = map.remove_region(GuestAddress(range.guest), range.size);
        let (map, _) = removed.map_err(|error| wrong(&error))?;
        Ok(Memory { ranges, map: Some(Arc::new(map)), ..self.clone() })
    }

    /// The same memory, mapped anew, with this log of its pages or none.
    ///
    /// # Errors
    /// The log is too short, or the memory cannot be mapped again.
    pub(super) fn logged(&self, log: Option<Arc<Log>>) -> Result<Self> {
        if self.log.as_ref().map(Arc::as_ptr) == log.as_ref().map(Arc::as_ptr) {
            return Ok(self.clone());
        }
        let mut memory = Memory { log, repeats: self.repeats.clone(), ..self.emptied() };
        for (range, file) in &self.ranges {
            memory = memory.with(*range, file.clone())?;
        }
        Ok(memory)
    }

    /// The guest address of an address in the front end's process.
    pub(super) fn guest_address(&self, user: u64) -> Option<u64> {
        self.ranges.iter().find_map(|(range, _)| {
            let offset = user.checked_sub(range.user).filter(|&offset| offset < range.size)?;
            range.guest.checked_add(offset)
        })
    }
}

pub(super) fn wrong(error: &dyn std::fmt::Display) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error.to_string()))
}
