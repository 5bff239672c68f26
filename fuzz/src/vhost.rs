//! A guest: any bytes in its memory cost packets of its own, and nothing else.

use picnic_core::attachment::QueueOut;
use picnic_core::fill;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::ring::spsc;
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
use picnic_ports::vhost_user::memory::GuestMemoryMmap;
use picnic_ports::vhost_user::pair::{Pair, Ring, Terms};
use picnic_ports::vhost_user::ring::{Layout, Queue};
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of the guest's two regions, one after the other.
const REGION: u64 = 0x1_0000;
/// Most descriptors of a ring.
const SIZE: u16 = 16;
/// The input's first bytes: features, base, flags with the size in the upper half.
const HEAD: usize = 11;
const EVENT_IDX: u8 = 1;
const NO_TABLES: u8 = 2;
const DISABLED: u8 = 4;
const PACKED: u8 = 8;
/// Addresses of writes count these bytes, so that they reach all of the memory.
const UNIT: u64 = 2;
/// A write: address, length, and the bytes.
const WRITE: usize = 3;

/// Bytes: features, then writes to the guest's memory, after each of which the card works.
pub fn run(data: &[u8]) {
    let Some((head, mut writes)) = data.split_at_checked(HEAD) else { return };
    let features = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    let base = u16::from_le_bytes([head[8], head[9]]);
    let regions = [(GuestAddress(0), REGION as usize), (GuestAddress(REGION), REGION as usize)];
    let memory = GuestMemoryMmap::from_ranges(&regions).expect("memory");
    let ring = |at: u64| {
        let (descriptors, available, used) = (at, at + 0x200, at + 0x400);
        let event_idx = head[10] & EVENT_IDX != 0;
        let indirect = head[10] & NO_TABLES == 0;
        let is_packed = head[10] & PACKED != 0;
        let in_order = features & 1 << 35 != 0;
        let size = SIZE - u16::from(head[10] >> 4);
        // That of a split ring is a power of two.
        let size = if is_packed { size } else { size.next_power_of_two() };
        let place = ((base & 0x7fff) % size) | (base & 0x8000);
        let base = if is_packed { place } else { base };
        let layout = Layout {
            is_packed,
            size,
            descriptors,
            available,
            used,
            base,
            event_idx,
            indirect,
            in_order,
        };
        let queue = Queue::new(layout, &memory).expect("a ring in the memory");
        Some(Ring::new(queue, head[10] & DISABLED == 0))
    };
    let (rx, tx) = (ring(0), ring(0x1000));
    let memory = Arc::new(memory);
    let terms = Terms { features, wire: 0, buffer_size: 256, mtu: 1500 };
    let mut pair = Pair::new(terms, memory.clone(), rx, tx);
    let config = PoolConfig { buffers: 512, buffer_size: 256, ..PoolConfig::default() };
    let (mut pool, mut returns) = Pool::new(&config, 1).expect("a pool");
    let (mut sender, mut receiver) = fill::channel(64);
    let (mut tx, mut sent) = spsc::channel(64);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    let mut given = 0;
    while let Some(([low, high, length], rest)) = writes.split_first_chunk::<WRITE>() {
        let length = usize::from(*length).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        let address = GuestAddress(UNIT * u64::from(u16::from_le_bytes([*low, *high])));
        // The last addresses leave no room for all of it.
        let _ = memory.write(bytes, address);
        writes = rest;
        sender.top_up(&mut pool);
        let part = &ledger.queues[0];
        let mut out =
            QueueOut::new(&mut returns[0], &mut tx, &counters, part).with_fill(&mut receiver);
        let mut burst = Burst::new();
        for length in [60, 700] {
            if let Some(packet) = pool.packet(&[7; 700][..length]) {
                given += u64::from(burst.push(packet).is_ok());
            }
        }
        pair.deliver(&mut burst, &mut out);
        pair.transmit(Time::ZERO, &mut out);
        drop(out);
        sent.refresh();
        while let Some(packet) = sent.pop() {
            pool.free(packet);
        }
        sent.release();
    }
    let part = &ledger.queues[0];
    let out = part.delivered.get() + part.submitted.get() + part.drops.total();
    assert_eq!(given + part.made.get(), out, "a packet has no fate, or two");
    receiver.empty(&mut returns[0]);
    assert_eq!(pool.outstanding(), 0, "buffers are missing");
}

/// A chain's descriptors, in both formats: address, length, flags, and the one that follows.
type Chain<'c> = &'c [(u64, u32, u16, u16)];

/// A guest that makes one chain available on each ring, then again and again.
fn guest(features: u64, flags: u8, rx: Chain<'_>, tx: Chain<'_>, header: [u8; 12]) -> Vec<u8> {
    let base: u16 = if flags & PACKED != 0 { 0x8000 } else { 0 };
    let mut seed = [&features.to_le_bytes()[..], &base.to_le_bytes(), &[flags]].concat();
    let mut write = |address: u64, bytes: &[u8]| {
        seed.extend(((address / UNIT) as u16).to_le_bytes());
        seed.push(bytes.len() as u8);
        seed.extend(bytes);
    };
    let bytes = |chain: Chain<'_>, is_table: bool| {
        let mut bytes = Vec::new();
        for &(address, length, kind, next) in chain {
            bytes.extend(address.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            // A packed descriptor has a number, and says by its flags that it is available.
            let available = if is_table { kind } else { kind | 1 << 7 };
            let words = if flags & PACKED != 0 { [7, available] } else { [kind, next] };
            bytes.extend(words.map(u16::to_le_bytes).as_flattened());
        }
        bytes
    };
    // A table that tables in chains name.
    write(TABLE, &bytes(&[(0x4000, 40, 0, 1), (0x4100, 60, 0, 0)], true));
    write(0x4000, &header);
    write(0, &bytes(rx, false));
    write(0x1000, &bytes(tx, false));
    if flags & PACKED == 0 {
        for index in 1..4_u16 {
            for ring in [0x200, 0x1200] {
                write(ring, &[[0, 0], index.to_le_bytes(), [0, 0], [0, 0]].concat());
            }
        }
    }
    // The driver's wishes, and another pass.
    write(0x1200, &[3, 0x80, 2, 0]);
    write(0x1000, &bytes(tx, false));
    seed
}

/// Where the table is.
const TABLE: u64 = 0x5000;

/// Honest guests, and those that break each rule.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = 1 << 32 | 1 << 15 | 0x3fff;
    let rx: Chain<'_> = &[(0x8000, 100, 3, 1), (0x9000, 2000, 2, 0)];
    let tx: Chain<'_> = &[(0x4000, 40, 1, 1), (0x4100, 60, 0, 0)];
    let none = [0; 12];
    let lies = [1, 1, 0xff, 0xff, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let guests: [(u64, u8, Chain<'_>, Chain<'_>, [u8; 12]); 14] = [
        (all, 0, rx, tx, none),
        (0, 0, rx, tx, none),
        (1 << 32, DISABLED, rx, tx, none),
        (all, EVENT_IDX, rx, &[(TABLE, 32, 4, 0)], none),
        (all, NO_TABLES, rx, &[(TABLE, 32, 4, 0)], none),
        // A table in itself, and one of half an entry.
        (all, 0, rx, &[(0x1000, 16, 4, 0)], none),
        (all, 0, rx, &[(TABLE, 24, 4, 0)], none),
        // A runt; memory across both regions, beyond the end, and at no address.
        (all, 0, &[(0x8000, 11, 2, 0)], tx, none),
        (all, 0, &[(0xfff0, 2000, 2, 0)], &[(0xffe0, 600, 0, 0)], none),
        (all, 0, &[(0x1_fff0, 2000, 2, 0)], &[(u64::MAX - 8, 600, 0, 0)], none),
        // Loops.
        (all, 0, &[(0x8000, 10, 3, 0)], &[(0x4000, 40, 1, 1), (0x4100, 60, 1, 0)], none),
        // A header that lies, and one for a super-frame.
        (all, EVENT_IDX, rx, tx, lies),
        (all, 0, rx, tx, [1, 1, 54, 0, 100, 0, 34, 0, 16, 0, 0, 0]),
        (0, 0xf0, &[(0x8000, 2000, 2, 0)], &[(0x4000, 100, 0, 0)], none),
    ];
    let formats = [0, PACKED];
    let all_guests = guests.iter().flat_map(|guest| formats.map(|format| (guest, format)));
    let seed = |(&(features, flags, rx, tx, header), format): (&(_, u8, _, _, _), u8)| {
        guest(features, flags | format, rx, tx, header)
    };
    all_guests.map(seed).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
