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

/// Bytes of the guest's two regions, one behind the other.
const REGION: u64 = 0x1_0000;
/// Descriptors of both rings.
const SIZE: u16 = 16;
/// The input's first bytes: features, base, event_idx.
const HEAD: usize = 11;
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
        let event_idx = head[10] & 1 != 0;
        let indirect = head[10] & 2 == 0;
        let (size, is_packed) = (SIZE, head[10] & 8 != 0);
        let base = if is_packed { base & (1 << 15 | (SIZE - 1)) } else { base };
        let layout =
            Layout { is_packed, size, descriptors, available, used, base, event_idx, indirect };
        let queue = Queue::new(layout, &memory).expect("a ring in the memory");
        Some(Ring::new(queue, head[10] & 4 == 0))
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
        let address = GuestAddress(u16::from_le_bytes([*low, *high]).into());
        memory.write_slice(bytes, address).expect("within the memory");
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

/// An honest guest: a buffer for packets, a packet, and a chain in a table of its own.
pub fn seeds() -> Vec<Vec<u8>> {
    let descriptor = |address: u64, length: u32, flags: u16, next: u16| {
        let numbers = [&address.to_le_bytes()[..], &length.to_le_bytes()].concat();
        [numbers, flags.to_le_bytes().into(), next.to_le_bytes().into()].concat()
    };
    let write = |address: u16, bytes: &[u8]| {
        [&address.to_le_bytes()[..], &[bytes.len() as u8], bytes].concat()
    };
    let seed = |features: u64, flags: u8, table: bool| {
        let mut seed = [&features.to_le_bytes()[..], &[0, 0, flags]].concat();
        let rx = [descriptor(0x8000, 100, 3, 1), descriptor(0xfff0, 2000, 2, 0)].concat();
        let tx = [descriptor(0x4000, 40, 1, 1), descriptor(0x4100, 60, 0, 0)].concat();
        seed.extend(write(0, &rx));
        match table {
            true => {
                seed.extend(write(0x5000, &tx));
                seed.extend(write(0x1000, &descriptor(0x5000, 32, 4, 0)));
            }
            false => seed.extend(write(0x1000, &tx)),
        }
        for ring in [0x200, 0x1200] {
            seed.extend(write(ring, &[0, 0, 1, 0, 0, 0]));
        }
        seed.extend(write(0x8000, &[0]));
        seed
    };
    let all = 1 << 32 | 1 << 15 | 0x3fff;
    vec![seed(all, 0, false), seed(all, 1, true), seed(0, 0, false), seed(1 << 32, 4, true)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
