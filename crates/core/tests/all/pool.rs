//! The pool and its descriptors against a model that knows every byte.

use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{MAX_PACKET_BYTES, Pool, PoolConfig, ReturnSender};
use proptest::prelude::*;
use std::collections::BTreeSet;

const QUEUES: usize = 2;
/// The header of every buffer, never part of a packet.
const HEADER: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(usize),
    Packet(usize),
    Copy(usize),
    Free(usize),
    GiveBack(usize, usize),
    Publish(usize),
    Collect,
    Ensure(usize),
    PushFront(usize, u16),
    PullFront(usize, u16),
    PushBack(usize, u16),
    Truncate(usize, u16),
    CopyMetadata(usize, usize),
    Rewrite(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let which = || any::<usize>();
    let count =
        || prop_oneof![6 => 0..200_u16, 1 => any::<u16>(), 1 => Just(u16::MAX), 1 => Just(0_u16)];
    prop_oneof![
        4 => (0..3000_usize).prop_map(Op::Allocate),
        6 => (0..6000_usize).prop_map(Op::Packet),
        1 => (131_000..131_100_usize).prop_map(Op::Packet),
        3 => which().prop_map(Op::Copy),
        4 => which().prop_map(Op::Free),
        4 => (which(), 0..QUEUES).prop_map(|(packet, queue)| Op::GiveBack(packet, queue)),
        2 => (0..QUEUES).prop_map(Op::Publish),
        1 => Just(Op::Collect),
        1 => (0..80_usize).prop_map(Op::Ensure),
        4 => (which(), count()).prop_map(|(packet, count)| Op::PushFront(packet, count)),
        4 => (which(), count()).prop_map(|(packet, count)| Op::PullFront(packet, count)),
        4 => (which(), count()).prop_map(|(packet, count)| Op::PushBack(packet, count)),
        4 => (which(), count()).prop_map(|(packet, count)| Op::Truncate(packet, count)),
        2 => (which(), which()).prop_map(|(packet, other)| Op::CopyMetadata(packet, other)),
        3 => which().prop_map(Op::Rewrite),
    ]
}

/// A packet and the bytes it must hold, by segment.
struct Live {
    packet: Descriptor,
    segments: Vec<Vec<u8>>,
}

impl Live {
    /// Fills the first segment with a pattern.
    fn rewrite(&mut self, pattern: &mut u8) {
        *pattern = pattern.wrapping_mul(5).wrapping_add(17);
        let length = self.packet.data().len();
        self.segments[0].resize(length, 0);
        for (place, byte) in self.packet.data_mut().iter_mut().enumerate() {
            *byte = pattern.wrapping_add(place as u8);
            self.segments[0][place] = *byte;
        }
    }

    fn buffers(&self) -> usize {
        self.segments.len()
    }
}

struct Model {
    pool: Pool,
    returns: Vec<ReturnSender>,
    live: Vec<Live>,
    /// Free buffers, and those given back by each queue without and with publishing.
    home: usize,
    unpublished: [usize; QUEUES],
    published: [usize; QUEUES],
    exhausted: u64,
    /// Address of the first buffer, bytes from one to the next, headroom.
    base: usize,
    stride: usize,
    headroom: usize,
    pattern: u8,
}

impl Model {
    fn new(config: &PoolConfig) -> Self {
        let (mut pool, returns) = Pool::new(config, QUEUES).unwrap();
        // Buffers are handed out in any order; their numbers follow their addresses.
        let mut all: Vec<_> = std::iter::from_fn(|| pool.allocate(0)).collect();
        all.sort_by_key(|packet| pool.buffer_index(packet));
        let places: Vec<_> = all.iter().map(|packet| packet.data().as_ptr() as usize).collect();
        let (base, stride) = (places[0] - HEADER - config.headroom as usize, places[1] - places[0]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == stride));
        assert_eq!(places.len(), config.buffers as usize);
        // The same offset in all buffers must not map to the same cache sets.
        assert_eq!(stride / 64 % 2, 1);
        assert!(stride >= HEADER + (config.headroom + config.buffer_size) as usize);
        assert!(pool.mapped_bytes() >= stride * config.buffers as usize);
        all.into_iter().for_each(|packet| pool.free(packet));
        Model {
            home: pool.buffers(),
            pool,
            returns,
            live: Vec::new(),
            unpublished: [0; QUEUES],
            published: [0; QUEUES],
            // The look for one more.
            exhausted: 1,
            base,
            stride,
            headroom: config.headroom as usize,
            pattern: 0,
        }
    }

    fn collect(&mut self) {
        self.home += std::mem::take(&mut self.published).iter().sum::<usize>();
    }

    /// Whether `count` buffers are available, as the pool must see it.
    fn ensure(&mut self, count: usize) -> bool {
        if self.home < count {
            self.collect();
        }
        self.home >= count
    }

    fn take(&mut self, index: usize) -> Option<Live> {
        (!self.live.is_empty()).then(|| self.live.swap_remove(index % self.live.len()))
    }

    fn pick(&mut self, index: usize) -> Option<&mut Live> {
        let count = self.live.len().max(1);
        self.live.get_mut(index % count)
    }

    fn packet(&mut self, length: usize) {
        let data: Vec<u8> = (0..length).map(|place| self.pattern ^ (place * 7) as u8).collect();
        self.pattern = self.pattern.wrapping_add(31);
        self.take_in(&data, |pool| pool.packet(&data));
    }

    /// A copy has its own buffers, like a new packet of the same bytes.
    fn copy(&mut self, index: usize) {
        if let Some(live) = self.take(index) {
            let data = live.segments.concat();
            self.take_in(&data, |pool| pool.copy(&live.packet));
            self.live.push(live);
        }
    }

    fn take_in(&mut self, data: &[u8], make: impl FnOnce(&mut Pool) -> Option<Descriptor>) {
        let (length, size) = (data.len(), self.pool.buffer_size());
        let needed = length.div_ceil(size).max(1);
        let possible = length <= MAX_PACKET_BYTES && self.ensure(needed);
        if length <= MAX_PACKET_BYTES && !possible {
            self.exhausted += 1;
        }
        let packet = make(&mut self.pool);
        assert_eq!(packet.is_some(), possible);
        let Some(packet) = packet else { return };
        self.home -= needed;
        assert_eq!(packet.is_chained(), needed > 1);
        assert_eq!(usize::from(packet.headroom()), self.headroom);
        let segments = match length {
            0 => vec![Vec::new()],
            _ => data.chunks(size).map(<[u8]>::to_vec).collect(),
        };
        self.live.push(Live { packet, segments });
    }

    fn allocate(&mut self, length: usize) {
        let fits = length <= self.pool.buffer_size();
        let possible = fits && self.ensure(1);
        self.exhausted += u64::from(fits && !possible);
        let packet = self.pool.allocate(length);
        assert_eq!(packet.is_some(), possible);
        let Some(packet) = packet else { return };
        self.home -= 1;
        assert_eq!(packet.data().len(), length);
        let mut live = Live { packet, segments: vec![Vec::new()] };
        live.rewrite(&mut self.pattern);
        self.live.push(live);
    }

    /// Bytes from the end of the packet's first segment to the end of its buffer.
    fn tailroom(&self, live: &Live) -> usize {
        let range = live.packet.data().as_ptr_range();
        let buffer = self.base + self.pool.buffer_index(&live.packet) * self.stride;
        buffer + self.stride - range.end as usize
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Allocate(length) => self.allocate(length),
            Op::Packet(length) => self.packet(length),
            Op::Copy(index) => self.copy(index),
            Op::Free(index) => {
                if let Some(live) = self.take(index) {
                    self.home += live.buffers();
                    self.pool.free(live.packet);
                }
            }
            Op::GiveBack(index, queue) => {
                if let Some(live) = self.take(index) {
                    self.unpublished[queue] += live.buffers();
                    self.returns[queue].give_back(live.packet);
                }
            }
            Op::Publish(queue) => {
                self.returns[queue].publish();
                self.published[queue] += std::mem::take(&mut self.unpublished[queue]);
            }
            Op::Collect => {
                self.pool.collect();
                self.collect();
            }
            Op::Ensure(count) => {
                let expected = self.ensure(count);
                assert_eq!(self.pool.ensure(count), expected);
            }
            Op::PushFront(index, count) => {
                let mut pattern = self.pattern;
                let Some(live) = self.pick(index) else { return };
                let room = live.packet.headroom();
                assert_eq!(live.packet.in_front(count).is_some(), count <= room);
                assert_eq!(live.packet.push_front(count), count <= room);
                if count <= room {
                    assert_eq!(live.packet.headroom(), room - count);
                    live.segments[0].splice(0..0, (0..count).map(|_| 0));
                    // The previous content follows the new bytes.
                    let kept = usize::from(count);
                    assert_eq!(live.packet.data()[kept..], live.segments[0][kept..]);
                    live.rewrite(&mut pattern);
                }
                self.pattern = pattern;
            }
            Op::PullFront(index, count) => {
                let Some(live) = self.pick(index) else { return };
                let (room, length) = (live.packet.headroom(), live.segments[0].len());
                assert_eq!(live.packet.pull_front(count), usize::from(count) <= length);
                if usize::from(count) <= length {
                    assert_eq!(live.packet.headroom(), room + count);
                    let gone: Vec<_> = live.segments[0].drain(..usize::from(count)).collect();
                    assert_eq!(live.packet.in_front(count), Some(&gone[..]));
                }
            }
            Op::PushBack(index, count) => {
                if self.live.is_empty() {
                    return;
                }
                let index = index % self.live.len();
                let room = self.tailroom(&self.live[index]);
                let (mut pattern, live) = (self.pattern, &mut self.live[index]);
                let possible = usize::from(count) <= room && !live.packet.is_chained();
                assert_eq!(live.packet.push_back(count), possible);
                if possible {
                    let kept = live.segments[0].len();
                    assert_eq!(live.packet.data().len(), kept + usize::from(count));
                    assert_eq!(live.packet.data()[..kept], live.segments[0]);
                    live.rewrite(&mut pattern);
                }
                self.pattern = pattern;
            }
            Op::Truncate(index, length) => {
                let Some(live) = self.pick(index) else { return };
                live.packet.truncate(length);
                if !live.packet.is_chained() {
                    live.segments[0].truncate(usize::from(length));
                }
            }
            Op::CopyMetadata(index, other) => {
                if let Some(mut live) = self.take(index) {
                    if let Some(other) = self.pick(other) {
                        live.packet.copy_metadata(&other.packet);
                        assert_eq!(live.packet.mark, other.packet.mark);
                    }
                    self.live.push(live);
                }
            }
            Op::Rewrite(index) => {
                let mut pattern = self.pattern;
                if let Some(live) = self.pick(index) {
                    live.rewrite(&mut pattern);
                    live.packet.mark = u32::from(pattern);
                }
                self.pattern = pattern;
            }
        }
    }

    /// Every live packet holds its bytes, in its own buffers.
    fn check(&mut self) {
        let mut buffers = BTreeSet::new();
        for live in &self.live {
            let segments: Vec<&[u8]> = live.packet.segments().collect();
            assert_eq!(segments, live.segments);
            assert_eq!(live.packet.data(), live.segments[0]);
            assert_eq!(live.packet.is_chained(), segments.len() > 1);
            let total: usize = segments.iter().map(|segment| segment.len()).sum();
            assert_eq!(live.packet.length() as usize, total);
            for segment in segments {
                let range = segment.as_ptr_range();
                // An empty segment may be at the very end of its buffer.
                let inside = range.start as usize - usize::from(segment.is_empty());
                let buffer = (inside - self.base) / self.stride;
                let start = self.base + buffer * self.stride;
                assert!(buffer < self.pool.buffers());
                assert!(range.start as usize >= start + HEADER);
                assert!(range.end as usize <= start + self.stride);
                assert!(buffers.insert(buffer), "buffer {buffer} belongs to two packets");
            }
        }
        assert_eq!(self.pool.available(), self.home);
        assert_eq!(self.pool.exhausted(), self.exhausted);
    }
}

fn config() -> impl Strategy<Value = PoolConfig> {
    let size = prop_oneof![Just(64_u32), Just(2048), 64..3000_u32];
    (64..100_u32, size, 0..=16_u32).prop_map(|(buffers, buffer_size, lines)| PoolConfig {
        buffers,
        buffer_size,
        headroom: lines * 64,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn buffers_have_one_owner_and_keep_their_bytes(
        config in config(),
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let mut model = Model::new(&config);
        for op in ops {
            model.step(op);
            model.check();
        }
        // All have returned: nothing is lost or duplicated.
        while let Some(live) = model.take(0) {
            if model.live.len().is_multiple_of(2) {
                model.pool.free(live.packet);
            } else {
                model.returns[model.live.len() % QUEUES].give_back(live.packet);
            }
        }
        model.returns.iter_mut().for_each(ReturnSender::publish);
        prop_assert_eq!(model.pool.outstanding(), 0);
        let all: Vec<_> = std::iter::from_fn(|| model.pool.allocate(1)).collect();
        let indices: BTreeSet<_> = all.iter().map(|p| model.pool.buffer_index(p)).collect();
        prop_assert_eq!(all.len(), model.pool.buffers());
        prop_assert_eq!(indices.len(), model.pool.buffers());
        prop_assert!(indices.last() < Some(&model.pool.buffers()));
        all.into_iter().for_each(|packet| model.pool.free(packet));
    }

    #[test]
    fn largest_buffers_stay_in_bounds(counts in prop::collection::vec(any::<u16>(), 1..40)) {
        // Offset plus length comes closest to 16 bits here.
        let mut model =
            Model::new(&PoolConfig { buffers: 64, buffer_size: 61_440, headroom: 1024 });
        model.allocate(61_440);
        model.packet(100_000);
        for (turn, count) in counts.into_iter().enumerate() {
            let packet = turn / 4 % 2;
            model.step(match turn % 4 {
                0 => Op::PullFront(packet, count),
                1 => Op::PushFront(packet, count),
                2 => Op::PushBack(packet, count % 3000),
                _ => Op::Truncate(packet, count),
            });
            model.check();
        }
        while let Some(live) = model.take(0) {
            model.pool.free(live.packet);
        }
    }
}

fn small() -> PoolConfig {
    PoolConfig { buffers: 64, buffer_size: 128, headroom: 64 }
}

#[test]
fn sizes_out_of_range_are_reported() {
    let message = |config: PoolConfig| Pool::new(&config, 1).unwrap_err().to_string();
    let fine = PoolConfig::default();
    for (config, expected) in [
        (PoolConfig { buffers: 63, ..fine }, "buffers is 63, allowed: 64 to 1048576"),
        (PoolConfig { buffers: 0, ..fine }, "buffers is 0, allowed: 64 to 1048576"),
        (PoolConfig { buffers: 1 << 21, ..fine }, "buffers is 2097152, allowed: 64 to 1048576"),
        (PoolConfig { buffer_size: 63, ..fine }, "buffer_size is 63, allowed: 64 to 61440"),
        (PoolConfig { buffer_size: 61_441, ..fine }, "buffer_size is 61441, allowed: 64 to 61440"),
        (
            PoolConfig { headroom: 100, ..fine },
            "headroom is 100, allowed: 0 to 1024 in steps of 64",
        ),
        (
            PoolConfig { headroom: 1088, ..fine },
            "headroom is 1088, allowed: 0 to 1024 in steps of 64",
        ),
        (
            PoolConfig { headroom: u32::MAX, ..fine },
            "headroom is 4294967295, allowed: 0 to 1024 in steps of 64",
        ),
    ] {
        assert_eq!(message(config), expected);
    }
    // Sixty gigabytes in total: refused before any memory is requested.
    let message = message(PoolConfig { buffers: 1 << 20, buffer_size: 61_440, headroom: 0 });
    let allowed = "allowed: 34359738368 bytes, 558658 buffers";
    assert!(message.ends_with(allowed), "{message}");
}

#[test]
fn exhaustion_is_a_value_and_temporary() {
    let (mut pool, mut returns) = Pool::new(&small(), 1).unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| pool.packet(b"x")).collect();
    assert_eq!((all.len(), pool.exhausted()), (64, 1));
    assert!(!pool.ensure(1));
    assert!(pool.packet(&[0; 500]).is_none());
    assert_eq!(pool.exhausted(), 2);
    returns[0].give_back(all.pop().unwrap());
    assert!(pool.allocate(0).is_none(), "not yet published");
    returns[0].publish();
    let packet = pool.allocate(0).expect("one came home");
    pool.free(packet);
    all.into_iter().for_each(|packet| pool.free(packet));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn chains_without_enough_buffers_take_none() {
    let (mut pool, _) = Pool::new(&small(), 0).unwrap();
    let held: Vec<_> = (0..61).map(|_| pool.packet(b"x").unwrap()).collect();
    assert!(pool.packet(&[0; 128 * 4]).is_none());
    assert_eq!(pool.available(), 3);
    let chain = pool.packet(&[7; 128 * 3]).expect("three buffers are home");
    assert_eq!(chain.segments().count(), 3);
    pool.free(chain);
    held.into_iter().for_each(|packet| pool.free(packet));
    // A buffer that was part of a chain is reused on its own.
    let all: Vec<_> = std::iter::from_fn(|| pool.packet(b"y")).collect();
    assert_eq!(all.len(), 64);
    assert!(all.iter().all(|packet| !packet.is_chained() && packet.segments().count() == 1));
    all.into_iter().for_each(|packet| pool.free(packet));
}

#[test]
fn several_pools_do_not_mix() {
    let shapes = [small(), PoolConfig { buffer_size: 4000, ..small() }, small()];
    let mut pools: Vec<_> = shapes.iter().map(|shape| Pool::new(shape, 0).unwrap().0).collect();
    let mut packets: Vec<Vec<_>> = Vec::new();
    for (number, pool) in pools.iter_mut().enumerate() {
        let fill = [number as u8 + 1; 100];
        packets.push(std::iter::from_fn(|| pool.packet(&fill)).collect());
    }
    for (number, (pool, packets)) in pools.iter_mut().zip(packets).enumerate() {
        assert_eq!(packets.len(), 64);
        for packet in packets {
            assert!(packet.data().iter().all(|&byte| byte == number as u8 + 1));
            pool.free(packet);
        }
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn bytes_outlive_their_pool() {
    let (mut pool, mut returns) = Pool::new(&small(), 1).unwrap();
    let (mut one, chain) = (pool.packet(b"one").unwrap(), pool.packet(&[9; 300]).unwrap());
    returns[0].give_back(pool.packet(b"home").unwrap());
    drop(pool);
    // A new pool must not be placed where packets still are.
    let (mut other, _) = Pool::new(&small(), 0).unwrap();
    let others: Vec<_> = std::iter::from_fn(|| other.packet(&[1; 128])).collect();
    assert_eq!(one.data(), b"one");
    assert_eq!(chain.segments().flatten().filter(|&&byte| byte == 9).count(), 300);
    one.data_mut().copy_from_slice(b"two");
    assert_eq!(one.data(), b"two");
    // The return ring outlives the pool too.
    returns[0].give_back(one);
    returns[0].give_back(chain);
    returns[0].publish();
    others.into_iter().for_each(|packet| other.free(packet));
}

#[test]
fn freeing_into_another_pool_is_harmless() {
    // A mistake of the caller, but without unsafe code: no packet may lose its bytes by it and no
    // buffer may get two owners.
    let (mut first, mut first_returns) = Pool::new(&small(), 1).unwrap();
    let (mut second, mut second_returns) = Pool::new(&small(), 1).unwrap();
    let kept = second.packet(b"kept").unwrap();
    let strays = [first.packet(b"a").unwrap(), first.packet(&[2; 300]).unwrap()];
    for stray in strays {
        second.free(stray);
    }
    first_returns[0].give_back(second.packet(b"b").unwrap());
    first_returns[0].publish();
    second_returns[0].give_back(first.packet(b"c").unwrap());
    second_returns[0].publish();
    // Missing in their own pool, and not taken in by the other.
    assert_eq!(first.outstanding(), 5);
    assert_eq!(second.outstanding(), 2);
    let all: Vec<_> = std::iter::from_fn(|| second.allocate(1)).collect();
    assert_eq!(all.len(), 62);
    all.into_iter().for_each(|packet| second.free(packet));
    drop(second);
    drop(first);
    let (_other, _) = Pool::new(&small(), 0).unwrap();
    assert_eq!(kept.data(), b"kept");
}

#[test]
fn reserved_huge_pages_are_used() {
    let (pool, _) = Pool::new(&small(), 0).unwrap();
    assert_eq!(pool.mapped_bytes() % (2 << 20), 0);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"))
        .and_then(|count| count.trim().parse::<usize>().ok());
    if free == Some(0) {
        assert!(!pool.huge_pages());
    }
}

#[test]
fn packets_cross_threads_and_return() {
    const PACKETS: usize = 200_000;
    let (mut pool, returns) = Pool::new(&small(), 2).unwrap();
    let mut senders = Vec::new();
    let threads: Vec<_> = returns
        .into_iter()
        .map(|mut returns| {
            let (producer, mut consumer) = picnic_core::ring::spsc::channel::<Descriptor>(32);
            senders.push(producer);
            std::thread::spawn(move || {
                let mut seen = 0_u32;
                while seen < (PACKETS / 2) as u32 {
                    while let Some(packet) = consumer.pop() {
                        assert_eq!(packet.mark, seen);
                        assert!(packet.segments().flatten().all(|&byte| byte == seen as u8));
                        returns.give_back(packet);
                        seen += 1;
                    }
                    consumer.release();
                    returns.publish();
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    for number in 0..PACKETS {
        let (ring, mark) = (number % 2, (number / 2) as u32);
        // Some in one buffer, some in two.
        let data = [mark as u8; 200];
        let length = if mark.is_multiple_of(16) { 200 } else { 60 };
        let mut packet = loop {
            match pool.packet(&data[..length]) {
                Some(packet) => break packet,
                None => std::thread::yield_now(),
            }
        };
        packet.mark = mark;
        while let Err(back) = senders[ring].push(packet) {
            packet = back;
            std::thread::yield_now();
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pool.outstanding(), 0);
}
