//! Pools are made and dropped beside the mappings of other threads, and never over them.
#![allow(unsafe_code)]

use picnic_core::packet::pool::{Pool, PoolConfig};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: usize = 1 << 20;
const MAPPINGS: u64 = 32;

/// Maps memory at the kernel's choice, writes to it, reads it back later.
fn map_and_check(round: u64) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let map = |number| {
        // SAFETY: a fresh mapping of the kernel's choosing, of which the first word is written.
        unsafe {
            let place = mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE);
            let place = place.ok()?.cast::<u64>();
            place.write_volatile(round * MAPPINGS + number);
            Some((number, place))
        }
    };
    let mapped: Vec<_> = (0..MAPPINGS).filter_map(map).collect();
    let whole = mapped.into_iter().map(|(number, place)| {
        // SAFETY: mapped above, and unmapped here, once.
        unsafe {
            let found = place.read_volatile();
            munmap(place.cast(), BYTES).is_ok() && found == round * MAPPINGS + number
        }
    });
    // All of them, so that all are unmapped.
    whole.filter(|&whole| !whole).count() == 0
}

#[test]
fn pools_never_overwrite_other_mappings() {
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mapper =
            scope.spawn(|| (1..).take_while(|_| !done.load(Ordering::Relaxed)).all(map_and_check));
        for _ in 0..2000 {
            let (mut pool, _) = Pool::new(&config, 0).unwrap();
            let packet = pool.packet(b"x").unwrap();
            pool.free(packet);
        }
        done.store(true, Ordering::Relaxed);
        assert!(mapper.join().unwrap(), "a pool was put where another thread had memory");
    });
}
