//! A driver of a ring of either format, in this process.

use super::super::memory::GuestMemoryMmap;
use super::super::ring::Layout;
use super::Shared;
use crate::virtio::{HEADER_BYTES, Header};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of a guest.
pub(super) const MEMORY: u64 = 0x40_0000;
/// Its second region: another mapping, after the first.
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
    /// Of a packed ring: chains in use, the oldest first.
    order: VecDeque<u16>,
    /// Of a packed ring: places of the next available and the next used descriptor, with their
    /// wrap counters; the places that the last chain took.
    places: [(u16, bool); 2],
    last_places: u16,
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
            order: VecDeque::new(),
            places: [(layout.base & 0x7fff, layout.base >> 15 == 1); 2],
            last_places: 0,
            next_buffer: 0,
            buffer: BUFFER,
        };
        if layout.is_packed {
            // The pass before: neither available nor used.
            let (start, wrap) = driver.places[0];
            for index in 0..layout.size {
                let is_odd = wrap != (index < start);
                driver.write16(driver.at(index) + 14, if is_odd { 0 } else { 0x8080 });
            }
        } else {
            driver.write16(layout.available + 2, layout.base);
            driver.write16(layout.used + 2, layout.base);
        }
        driver
    }

    fn write16(&self, address: u64, value: u16) {
        self.memory.write_obj(value, GuestAddress(address)).unwrap();
    }

    fn read16(&self, address: u64) -> u16 {
        self.memory.read_obj(GuestAddress(address)).unwrap()
    }

    fn read32(&self, address: u64) -> u32 {
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

    /// Where a descriptor is.
    fn at(&self, index: u16) -> u64 {
        self.layout.descriptors + u64::from(index) * 16
    }

    /// Takes `count` places, of side 0 or 1; the first.
    fn step(&mut self, side: usize, count: usize) -> (u16, bool) {
        let first = self.places[side];
        for _ in 0..count {
            let (index, wrap) = self.places[side];
            let is_last = index + 1 == self.layout.size;
            self.places[side] = if is_last { (0, !wrap) } else { (index + 1, wrap) };
        }
        first
    }

    /// Makes descriptors of a packed ring available, the first one last.
    fn show_packed(&mut self, id: u16, descriptors: &[(u64, u32, u16)]) {
        let (first, mut first_flags) = (self.at(self.places[0].0), 0);
        self.order.push_back(id);
        self.last_places = descriptors.len() as u16;
        for (place, &(address, length, flags)) in descriptors.iter().enumerate() {
            let (index, wrap) = self.step(0, 1);
            let mut flags = flags | if wrap { 1 << 7 } else { 1 << 15 };
            if place == 0 {
                first_flags = std::mem::replace(&mut flags, self.read16(first + 14));
            }
            // Only the last one's number counts.
            let id = if place + 1 == descriptors.len() { id } else { !id };
            self.put(self.at(index), &[(address, length, id, flags)]);
        }
        self.write16(first + 14, first_flags);
    }

    fn show(&mut self, head: u16) {
        let slot = u64::from(self.available & (self.layout.size - 1));
        self.write16(self.layout.available + 4 + 2 * slot, head);
        self.available = self.available.wrapping_add(1);
        self.write16(self.layout.available + 2, self.available);
    }

    /// Makes these descriptors available as they are, from the first on; the ring is unused.
    pub(super) fn make(&mut self, chain: &[(u64, u32, u16, u16)]) {
        if self.layout.is_packed {
            // One after the other.
            let ids = self.free.split_off(self.free.len() - chain.len());
            self.chains.insert(0, (ids, Vec::new()));
            let list: Vec<_> =
                chain.iter().map(|&(at, length, flags, _)| (at, length, flags)).collect();
            self.show_packed(0, &list);
        } else {
            self.put(self.layout.descriptors, chain);
            self.show(0);
        }
    }

    fn buffers(&self) -> u64 {
        (MEMORY - PACKETS) / self.buffer - 1
    }

    /// A buffer that no other chain in use has; some lie across the two regions.
    fn buffer(&mut self) -> u64 {
        self.next_buffer = (self.next_buffer + 1) % self.buffers();
        PACKETS + self.next_buffer * self.buffer - 100
    }

    /// Makes a chain available that holds `bytes`, which are there before the device can see it.
    fn chain(&mut self, pieces: Pieces, bytes: &[u8], flags: u16, indirect: bool) -> Option<u16> {
        let wanted = if indirect { 1 } else { pieces.len() };
        if self.free.len() < wanted
            || self.chains.len() as u64 >= self.buffers() - 1
            || pieces.len() > self.layout.size.into()
        {
            return None;
        }
        self.memory.write_slice(bytes, GuestAddress(pieces[0].0)).unwrap();
        let indices = self.free.split_off(self.free.len() - wanted);
        let head = indices[0];
        let table = TABLES + u64::from(head) * 256;
        let last = pieces.len() - 1;
        let more = |place| flags | if place == last { 0 } else { 1 };
        let is_packed = self.layout.is_packed;
        for (place, &(address, length)) in pieces.iter().enumerate() {
            let entry = table + place as u64 * 16;
            match (indirect, is_packed) {
                (true, true) => self.put(entry, &[(address, length, !head, flags)]),
                (true, false) => {
                    self.put(entry, &[(address, length, more(place), place as u16 + 1)]);
                }
                (false, true) => {}
                (false, false) => {
                    let next = indices.get(place + 1).copied().unwrap_or(0);
                    let at = self.at(indices[place]);
                    self.put(at, &[(address, length, more(place), next)]);
                }
            }
        }
        let table = (table, pieces.len() as u32 * 16, 4);
        match (indirect, is_packed) {
            (true, true) => self.show_packed(head, &[table]),
            (true, false) => self.put(self.at(head), &[(table.0, table.1, table.2, 0)]),
            (false, true) => {
                let list = pieces.iter().enumerate();
                let list: Vec<_> =
                    list.map(|(place, &(at, length))| (at, length, more(place))).collect();
                self.show_packed(head, &list);
            }
            (false, false) => {}
        }
        if !is_packed {
            self.show(head);
        }
        self.chains.insert(head, (indices, pieces));
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
        self.chain(cut, bytes, 0, indirect)
    }

    /// Makes a buffer for a packet available, if there is room.
    pub(super) fn post(&mut self, room: u32, pieces: usize, indirect: bool) -> Option<u16> {
        let address = self.buffer();
        self.chain(Driver::cut(address, room, pieces), &[], 2, indirect)
    }

    /// Chains that the device has returned: head, and bytes written.
    pub(super) fn reclaim(&mut self) -> Vec<(u16, u32)> {
        self.returned().into_iter().map(|(head, length, _)| (head, length)).collect()
    }

    pub(super) fn returned(&mut self) -> Vec<(u16, u32, Pieces)> {
        let mut returned = Vec::new();
        while self.layout.is_packed {
            let (index, wrap) = self.places[1];
            let (at, wanted) = (self.at(index), if wrap { 0x8080 } else { 0 });
            let flags = self.read16(at + 14);
            if flags & 0x8080 != wanted {
                return returned;
            }
            let (head, length) = (self.read16(at + 12), self.read32(at + 8));
            assert_eq!(flags & 2 != 0, length != 0);
            // In order, it stands for those before it, if the driver does not need their lengths.
            let last = self.order.iter().position(|&it| it == head).expect("a chain in use");
            let first = if self.layout.in_order { 0 } else { last };
            assert!(first == last || length == 0);
            for chain in self.order.drain(first..=last).collect::<Vec<_>>() {
                let (indices, pieces) = self.chains.remove(&chain).unwrap();
                self.step(1, indices.len());
                self.free.extend(indices);
                returned.push((chain, length, pieces));
            }
        }
        while self.used != self.read16(self.layout.used + 2) {
            let slot = u64::from(self.used & (self.layout.size - 1));
            let entry = self.layout.used + 4 + 8 * slot;
            let head = self.read16(entry);
            let length = self.read32(entry + 4);
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
        let head = match self.layout.is_packed {
            true => self.read16(self.at(self.places[1].0) + 12),
            false => self.read16(self.layout.used + 4 + 8 * slot),
        };
        let (_, pieces) = self.chains.get(&head)?;
        Some(Header::from_bytes(self.read(pieces, HEADER_BYTES as u32)[..].first_chunk()?))
    }

    /// Whether the driver kicks for the chain that it made available last.
    pub(super) fn kicks(&self) -> bool {
        let Layout { size, used, event_idx, is_packed, .. } = self.layout;
        match (is_packed, event_idx) {
            (true, _) => {
                let wish = self.read32(used);
                let event = ((wish & 0x7fff) as u16, wish & 0x8000 != 0);
                // The places of that chain.
                let (index, wrap) = self.places[0];
                let start = (index + size - self.last_places) % size;
                let mut places = (0..self.last_places).map(|place| {
                    let at = start + place;
                    (at % size, wrap != ((at >= size) != (start + self.last_places >= size)))
                });
                match wish >> 16 {
                    0 => true,
                    1 => false,
                    _ => places.any(|place| place == event),
                }
            }
            (false, true) => {
                self.read16(used + 4 + 8 * u64::from(size)) == self.available.wrapping_sub(1)
            }
            (false, false) => self.read16(used) & 1 == 0,
        }
    }

    /// Wishes an interrupt for what is returned after `places` more places (packed) or chains
    /// (split), or none for a long time.
    pub(super) fn wish_interrupt(&self, places: Option<u16>) {
        let Layout { size, available, event_idx, is_packed, .. } = self.layout;
        match (is_packed, event_idx) {
            (true, true) => {
                // If none, the place before the next: passed, until the ring has wrapped.
                let (index, wrap) = self.places[1];
                let further = index + places.unwrap_or(2 * size - 1);
                let wraps = further / size % 2 == 1;
                let (index, wrap) = (further % size, wrap != wraps);
                self.write16(available, index | u16::from(wrap) << 15);
                self.write16(available + 2, 2);
            }
            (true, false) => self.write16(available + 2, u16::from(places.is_none())),
            (false, true) => {
                let at = self.used.wrapping_add(places.unwrap_or(1000));
                self.write16(available + 4 + 2 * u64::from(size), at);
            }
            (false, false) => self.write16(available, u16::from(places.is_none())),
        }
    }
}
