//! A map of BPF programs, read and written as bytes, with any keys and values.
//!
//! Guarantees: the kernel gets room for as much as it writes, according to its own description of
//! the map.
//!
//! Source: bpf(2); kernel/bpf/syscall.c, `bpf_map_value_size`.

use super::bpf::bpf;
use rustix::fd::{AsRawFd, OwnedFd};
use std::io;

const LOOKUP: libc::c_long = 1;
const UPDATE: libc::c_long = 2;
const DELETE: libc::c_long = 3;
const NEXT_KEY: libc::c_long = 4;
const INFO_BY_FD: libc::c_long = 15;

/// Types that have a value for each processor.
const BY_PROCESSOR: &[u32] = &[5, 6, 10, 21];
/// The longest key or value that is dealt with, in bytes: the kernel's own bound for keys is less.
const LONGEST: u32 = 1 << 20;

/// Whether an entry may or must be there before it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// It may.
    #[default]
    Any,
    /// It must not.
    New,
    /// It must.
    Present,
}

/// A map.
#[derive(Debug)]
pub struct BpfMap {
    fd: OwnedFd,
    info: Info,
    /// Number of values of each entry, and their distance.
    values: usize,
    stride: usize,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
struct Element {
    fd: u32,
    padding: u32,
    key: u64,
    /// Of `NEXT_KEY` the next one.
    value: u64,
    flags: u64,
}

impl BpfMap {
    /// Of a descriptor.
    ///
    /// # Errors
    /// It is not a map, or the kernel's description of it is out of bounds.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if link.as_os_str() != "anon_inode:bpf-map" {
            return Err(io::Error::other("not the descriptor of a map"));
        }
        let mut info = Info::default();
        let attributes = InfoByFd {
            fd: fd.as_raw_fd() as u32,
            length: size_of::<Info>() as u32,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the kernel writes at most the stated number of bytes.
        unsafe { bpf(INFO_BY_FD, &attributes)? };
        if info.key_size > LONGEST || info.value_size > LONGEST {
            return Err(io::Error::other("its keys or values are too long"));
        }
        let values = if BY_PROCESSOR.contains(&info.kind) { processors()? } else { 1 };
        // Maps of maps and the like write four bytes, even if they report fewer.
        let stride = (info.value_size as usize).next_multiple_of(8).max(8);
        Ok(BpfMap { fd, info, values, stride })
    }

    /// Its name, which the kernel keeps 15 bytes of.
    pub fn name(&self) -> String {
        let end = self.info.name.iter().position(|&byte| byte == 0).unwrap_or(16);
        String::from_utf8_lossy(&self.info.name[..end]).into_owned()
    }

    /// Its number in the kernel.
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// Its type, `enum bpf_map_type`.
    pub fn kind(&self) -> u32 {
        self.info.kind
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> usize {
        self.info.key_size as usize
    }

    /// Bytes of a value.
    pub fn value_size(&self) -> usize {
        self.info.value_size as usize
    }

    /// Entries that there may be.
    pub fn max_entries(&self) -> u32 {
        self.info.max_entries
    }

    /// The values of a key, one or one for each processor; none if there is no such entry.
    ///
    /// # Errors
    /// The key is of another length; the map cannot be read so.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        self.check_key(key)?;
        let mut found = vec![0; self.values * self.stride];
        let element = self.element(key, found.as_mut_ptr() as u64, 0);
        // SAFETY: the key is as long as the map's; of values the kernel writes `values` of `stride`
        // bytes, or one of `value_size`, which is less.
        match unsafe { bpf(LOOKUP, &element) } {
            Ok(_) => {
                let values = found.chunks(self.stride);
                Ok(Some(values.map(|value| value[..self.value_size()].to_vec()).collect()))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes an entry, with the same value for all processors.
    ///
    /// # Errors
    /// Key or value is of another length; the kernel refuses it.
    pub fn update(&self, key: &[u8], value: &[u8], entry: Entry) -> io::Result<()> {
        self.check_key(key)?;
        if value.len() != self.value_size() {
            return Err(io::Error::other("the value is of another length"));
        }
        let mut values = vec![0; self.values * self.stride];
        values
            .chunks_mut(self.stride)
            .for_each(|place| place[..value.len()].copy_from_slice(value));
        let flags = match entry {
            Entry::Any => 0,
            Entry::New => 1,
            Entry::Present => 2,
        };
        let element = self.element(key, values.as_ptr() as u64, flags);
        // SAFETY: the key is as long as the map's; of values there is as much as the kernel reads.
        unsafe { bpf(UPDATE, &element) }.map(drop)
    }

    /// Takes an entry out; false if it is not there.
    ///
    /// # Errors
    /// The key is of another length; this kind of map keeps its entries.
    pub fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.check_key(key)?;
        // SAFETY: the key is as long as the map's.
        match unsafe { bpf(DELETE, &self.element(key, 0, 0)) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The key after this one; the first key without an argument, or if the key no longer exists.
    ///
    /// # Errors
    /// The key is of another length; this kind of map has no order.
    pub fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        key.map_or(Ok(()), |key| self.check_key(key))?;
        let mut next = vec![0; self.key_size()];
        let element = self.element(key.unwrap_or_default(), next.as_mut_ptr() as u64, 0);
        let element = Element { key: key.map_or(0, |_| element.key), ..element };
        // SAFETY: the key, if there is one, and the room for the next are as long as the map's.
        match unsafe { bpf(NEXT_KEY, &element) } {
            Ok(_) => Ok(Some(next)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn check_key(&self, key: &[u8]) -> io::Result<()> {
        match key.len() == self.key_size() {
            true => Ok(()),
            false => Err(io::Error::other("the key is of another length")),
        }
    }

    fn element(&self, key: &[u8], value: u64, flags: u64) -> Element {
        Element {
            fd: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: key.as_ptr() as u64,
            value,
            flags,
        }
    }
}

/// Processors that there may be: the kernel writes a value for each.
fn processors() -> io::Result<usize> {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = listed.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("unknown number of processors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_descriptors_are_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(BpfMap::new(file.into()).is_err());
        assert!(processors().unwrap() >= std::thread::available_parallelism().unwrap().get());
    }
}
