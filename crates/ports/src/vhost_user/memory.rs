//! The memory that a front end shares.
//!
//! Guarantees: only files are mapped, and nothing beyond their ends; regions do not overlap.
//! Pages that a front end takes away later end the process, as they would end any other that maps
//! them: see [`crate::vhost_user`].

use rustix::fs::{FileType, fstat};
use std::fs::File;
use std::sync::Arc;
use vhost::vhost_user::{Error, Result};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// Most regions: as many as DIMMs can be plugged into a machine of QEMU.
pub(super) const MAX_REGIONS: usize = 256;

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
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    ranges: Vec<Range>,
    map: Option<Arc<GuestMemoryMmap>>,
}

impl Memory {
    /// All regions, mapped; none if there are none yet.
    pub(super) fn map(&self) -> Option<&Arc<GuestMemoryMmap>> {
        self.map.as_ref()
    }

    /// The same memory with another region.
    ///
    /// # Errors
    /// It is no file, shorter than it should be, or overlaps another.
    pub(super) fn with(&self, range: Range, file: File) -> Result<Self> {
        let bytes = usize::try_from(range.size).map_err(|_| Error::InvalidParam)?;
        let end = range.offset.checked_add(range.size).ok_or(Error::InvalidParam)?;
        let status = fstat(&file).map_err(|error| Error::ReqHandlerError(error.into()))?;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !is_file || u64::try_from(status.st_size).is_ok_and(|size| size < end) {
            return Err(Error::InvalidOperation("the memory is no file, or a shorter one"));
        }
        let is_apart = |other: &Range| {
            let after = |one: u64, size: u64, other: u64| {
                one.checked_add(size).is_some_and(|end| end <= other)
            };
            after(range.user, range.size, other.user) || after(other.user, other.size, range.user)
        };
        if self.ranges.len() == MAX_REGIONS || !self.ranges.iter().all(is_apart) {
            return Err(Error::InvalidOperation("the memory overlaps, or has too many regions"));
        }
        let file = FileOffset::new(file, range.offset);
        let region = GuestRegionMmap::from_range(GuestAddress(range.guest), bytes, Some(file));
        let region = Arc::new(region.map_err(|error| wrong(&error))?);
        let map = match &self.map {
            Some(map) => map.insert_region(region),
            None => GuestMemoryMmap::from_arc_regions(vec![region]),
        };
        let map = Some(Arc::new(map.map_err(|error| wrong(&error))?));
        let ranges = self.ranges.iter().copied().chain([range]).collect();
        Ok(Memory { ranges, map })
    }

    /// The same memory without a region.
    ///
    /// # Errors
    /// There is no such region.
    pub(super) fn without(&self, range: Range) -> Result<Self> {
        let is_it = |other: &Range| {
            (other.guest, other.size, other.user) == (range.guest, range.size, range.user)
        };
        let found = self.ranges.iter().any(is_it);
        let map = self.map.as_ref().filter(|_| found).ok_or(Error::InvalidParam)?;
        let ranges: Vec<_> = self.ranges.iter().copied().filter(|other| !is_it(other)).collect();
        if ranges.is_empty() {
            return Ok(Memory::default());
        }
        let removed = map.remove_region(GuestAddress(range.guest), range.size);
        let (map, _) = removed.map_err(|error| wrong(&error))?;
        Ok(Memory { ranges, map: Some(Arc::new(map)) })
    }

    /// The guest address of an address in the front end's process.
    pub(super) fn guest_address(&self, user: u64) -> Option<u64> {
        self.ranges.iter().find_map(|range| {
            let offset = user.checked_sub(range.user).filter(|&offset| offset < range.size)?;
            range.guest.checked_add(offset)
        })
    }
}

fn wrong(error: &dyn std::fmt::Display) -> Error {
    Error::ReqHandlerError(std::io::Error::other(error.to_string()))
}
