//! A driver of a split ring, in this process.

use super::super::memory::GuestMemoryMmap;
use super::super::ring::Layout;
use super::Shared;
use crate::virtio::{HEADER_BYTES, Header};
use std::collections::BTreeMap;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of a guest.
pub(super) const MEMORY: u64 = 0x40_0000;
/// Its second region: another mapping, behind the first.
pub(super) const SECOND: u64 = 0x20_0000;
/// Where packets are.
pub(super) const PACKETS: u64 = 0x10_0000;
/// Where tables are.
const TABLES: u64 = 0xa_0000;
/// Bytes of a chain's buffer: enough for a super-frame.
const BUFFER: u64 = 0x2_0000;

pub(super) fn memory() -> Shared {
    let regions = [(GuestAddress(0), SECOND as usize), (GuestAddress(SECOND), 0x20_0000)];
    Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap())
}

/// Addresses and lengths.
type Pieces = Vec<(u64, u32)>;

/// A driver, with what it made available.
pub(super) struct Driver {
    pub(super) memory: Shared,
    pub(super) layout: Layout,
    free: Vec<u16>,
    available: u16,
    used: u16,
    /// Chains in use: their descriptors and pieces.
    chains: BTreeMap<u16, (Vec<u16>, Pieces)>,
    next_buffer: u64,
    /// Bytes of a buffer.
    pub(super) buffer: u64,
}

impl Driver {
    pub(super) fn new(layout: Layout) -> Self {
        Driver::over(memory(), layout)
    }

    pub(super) fn over(memory: Shared, layout: Layout) -> Self {
        let driver = Driver {
            memory,
            layout,
            free: (0..layout.size).rev().collect(),
            available: layout.base,
            used: layout.base,
            chains: BTreeMap::new(),
            next_buffer: 0,
            buffer: BUFFER,
        };
        driver.write16(layout.available + 2, layout.base);
        driver.write16(layout.used + 2, layout.base);
        driver
    }

    fn write16(&self, address: u64, value: u16) {
        self.memory.write_obj(value, GuestAddress(address)).unwrap();
    }

    fn read16(&self, address: u64) -> u16 {
        self.memory.read_obj(GuestAddress(address)).unwrap()
    }

    /// Writes descriptors.
    pub(super) fn put(&self, mut address: u64, descriptors: &[(u64, u32, u16, u16)]) {
        for &(at, length, flags, next) in descriptors {
            self.memory.write_obj(at, GuestAddress(address)).unwrap();
            self.memory.write_obj(length, GuestAddress(address + 8)).unwrap();
            self.write16(address + 12, flags);
            self.write16(address + 14, next);
            address += 16;
        }
    }

    fn show(&mut self, head: u16) {
        let slot = u64::from(self.available & (self.layout.size - 1));
        self.write16(self.layout.available + 4 + 2 * slot, head);
        self.available = self.available.wrapping_add(1);
        self.write16(self.layout.available + 2, self.available);
    }

    /// Makes these descriptors available as they are, from the first on; the ring is unused.
    pub(super) fn make(&mut self, chain: &[(u64, u32, u16, u16)]) {
        self.put(self.layout.descriptors, chain);
        self.show(0);
    }

    fn buffers(&self) -> u64 {
        (MEMORY - PACKETS) / self.buffer - 1
    }

    /// A buffer that no other chain in use has; some lie across the two regions.
    fn buffer(&mut self) -> u64 {
        self.next_buffer = (self.next_buffer + 1) % self.buffers();
        PACKETS + self.next_buffer * self.buffer - 100
    }

    fn chain(&mut self, pieces: Vec<(u64, u32)>, flags: u16, indirect: bool) -> Option<u16> {
        let wanted = if indirect { 1 } else { pieces.len() };
        if self.free.len() < wanted
            || self.chains.len() as u64 >= self.buffers() - 1
            || pieces.len() > self.layout.size.into()
        {
            return None;
        }
        let indices = self.free.split_off(self.free.len() - wanted);
        let head = indices[0];
        let last = pieces.len() - 1;
        let at = |index: u16| self.layout.descriptors + u64::from(index) * 16;
        for (place, &(address, length)) in pieces.iter().enumerate() {
            let more = if place == last { 0 } else { 1 };
            match indirect {
                true => {
                    let table = TABLES + u64::from(head) * 256 + place as u64 * 16;
                    self.put(table, &[(address, length, flags | more, place as u16 + 1)]);
                }
                false => {
                    let next = indices.get(place + 1).copied().unwrap_or(0);
                    self.put(at(indices[place]), &[(address, length, flags | more, next)]);
                }
            }
        }
        if indirect {
            let table = TABLES + u64::from(head) * 256;
            self.put(at(head), &[(table, pieces.len() as u32 * 16, 4, 0)]);
        }
        self.chains.insert(head, (indices, pieces));
        self.show(head);
        Some(head)
    }

    /// Cuts `length` bytes at `address` into pieces.
    fn cut(address: u64, length: u32, pieces: usize) -> Vec<(u64, u32)> {
        let (mut at, mut left) = (address, length);
        let mut cut = Vec::new();
        for index in (1..=pieces as u32).rev() {
            let part = if index == 1 { left } else { left / (index + 1) };
            cut.push((at, part));
            at += u64::from(part);
            left -= part;
        }
        cut
    }

    /// Sends a packet with its header, if there is room.
    pub(super) fn send(&mut self, bytes: &[u8], pieces: usize, indirect: bool) -> Option<u16> {
        let address = self.buffer();
        let cut = Driver::cut(address, bytes.len() as u32, pieces);
        let head = self.chain(cut, 0, indirect)?;
        self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
        Some(head)
    }

    /// Makes a buffer for a packet available, if there is room.
    pub(super) fn post(&mut self, room: u32, pieces: usize, indirect: bool) -> Option<u16> {
        let address = self.buffer();
        self.chain(Driver::cut(address, room, pieces), 2, indirect)
    }

    /// Chains that the device has returned: head, and bytes written.
    pub(super) fn reclaim(&mut self) -> Vec<(u16, u32)> {
        self.returned().into_iter().map(|(head, length, _)| (head, length)).collect()
    }

    pub(super) fn returned(&mut self) -> Vec<(u16, u32, Pieces)> {
        let mut returned = Vec::new();
        while self.used != self.read16(self.layout.used + 2) {
            let slot = u64::from(self.used & (self.layout.size - 1));
            let entry = self.layout.used + 4 + 8 * slot;
            let head = self.read16(entry);
            let length = self.memory.read_obj(GuestAddress(entry + 4)).unwrap();
            let (indices, pieces) = self.chains.remove(&head).unwrap_or_default();
            self.free.extend(indices);
            returned.push((head, length, pieces));
            self.used = self.used.wrapping_add(1);
        }
        returned
    }

    /// The packets that the device has put into returned chains.
    pub(super) fn received(&mut self, mergeable: bool) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let mut chains = self.returned().into_iter().filter(|&(_, length, _)| length != 0);
        while let Some(first) = chains.next() {
            let mut bytes = self.read(&first.2, first.1);
            let count = u16::from_le_bytes([bytes[HEADER_BYTES], bytes[HEADER_BYTES + 1]]);
            assert!(mergeable || count == 1);
            for _ in 1..count {
                let next = chains.next().unwrap();
                bytes.extend(self.read(&next.2, next.1));
            }
            packets.push(bytes.split_off(HEADER_BYTES + 2));
        }
        packets
    }

    fn read(&self, pieces: &[(u64, u32)], mut length: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(address, room) in pieces {
            let mut part = vec![0; room.min(length) as usize];
            self.memory.read_slice(&mut part, GuestAddress(address)).unwrap();
            length -= part.len() as u32;
            bytes.extend(part);
        }
        assert_eq!(length, 0, "the device wrote more than there was room for");
        bytes
    }

    /// The header of the packet in the next chain to be returned.
    pub(super) fn last_header(&self) -> Option<Header> {
        let slot = u64::from(self.used & (self.layout.size - 1));
        let head = self.read16(self.layout.used + 4 + 8 * slot);
        let (_, pieces) = self.chains.get(&head)?;
        Some(Header::from_bytes(self.read(pieces, HEADER_BYTES as u32)[..].first_chunk()?))
    }

    /// Whether the driver kicks for the chain that it made available last.
    pub(super) fn kicks(&self) -> bool {
        let Layout { size, used, event_idx, .. } = self.layout;
        match event_idx {
            true => self.read16(used + 4 + 8 * u64::from(size)) == self.available.wrapping_sub(1),
            false => self.read16(used) & 1 == 0,
        }
    }

    /// Wishes an interrupt for the next returned chain, or none for a long time.
    pub(super) fn wish_interrupt(&self, wish: bool) {
        let Layout { size, available, event_idx, .. } = self.layout;
        if event_idx {
            let at = if wish { self.used } else { self.used.wrapping_add(1000) };
            self.write16(available + 4 + 2 * u64::from(size), at);
        } else {
            self.write16(available, u16::from(!wish));
        }
    }
}
