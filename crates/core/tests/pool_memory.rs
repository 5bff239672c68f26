//! A dropped pool returns its memory; in a separate process, to be measurable.

use picnic_core::packet::pool::{Pool, PoolConfig};

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Bytes of memory mapped for reading and writing.
fn writable() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter(|line| line.contains(" rw-p "));
    ranges
        .map(|line| {
            let (low, high) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            usize::from_str_radix(high, 16).unwrap() - usize::from_str_radix(low, 16).unwrap()
        })
        .sum()
}

#[test]
fn dropped_pools_return_their_memory() {
    let config = PoolConfig { buffers: 4096, ..PoolConfig::default() };
    let make = || Pool::new(&config, 1).unwrap().0;
    let place = |pool: &mut Pool| {
        let packet = pool.packet(b"x").unwrap();
        let place = packet.data().as_ptr() as usize;
        pool.free(packet);
        place
    };
    let first = place(&mut make());
    let (resident_before, writable_before) = (resident(), writable());

    let mut pool = make();
    assert!(writable() >= writable_before + pool.mapped_bytes());
    let bytes = pool.mapped_bytes();
    // Reserved huge pages are not counted as resident.
    let touched = resident() > resident_before + bytes / 2;
    assert!(touched || pool.huge_pages(), "headers touch every page");
    assert_eq!(place(&mut pool), first);
    drop(pool);

    // A page or two, not a 2 MiB page, which would be cleared first.
    let few = PoolConfig { buffers: 64, buffer_size: 64, headroom: 0 };
    let resident_before = resident();
    let pool = Pool::new(&few, 0).unwrap().0;
    assert!(resident() < resident_before + (1 << 20), "a small pool takes a huge page");
    drop(pool);

    // Many times more than the buffer space could hold at once.
    for _ in 0..100 {
        let mut pools = [make(), make(), make()];
        // The same addresses again: the range was returned, for any order of dropping.
        assert_eq!(place(&mut pools[0]), first);
        pools.reverse();
    }
    assert!(writable() < writable_before + bytes, "mappings are left");
    assert!(resident() < resident_before + bytes, "memory is left");

    // One packet outstanding: the mapping stays, and its addresses are not used again.
    let mut pool = make();
    let packet = pool.packet(b"still here").unwrap();
    drop(pool);
    assert!(writable() >= writable_before + bytes);
    let mut other = make();
    assert_ne!(place(&mut other), first);
    assert_eq!(packet.data(), b"still here");
}
