//! Wires and their wrappers allocate nothing in steady state.

// The allocator trait is unsafe to implement; this one only counts and passes on.
#![allow(unsafe_code)]

use picnic_core::hook::{Hook, HookPoint, Observers};
use picnic_core::ledger::{CardLedger, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_ports::generator::{Generator, GeneratorConfig, Size};
use picnic_ports::middleware::fault::{FaultConfig, fault_wire};
use picnic_ports::middleware::link::{LinkConfig, link_wire};
use picnic_ports::middleware::tracer::{TraceConfig, Tracer};
use picnic_ports::pcap::{PcapConfig, PcapPort};
use picnic_ports::pcapng::{Packet, Writer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;

thread_local! {
    // Of this thread only: the capture's writer may allocate.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all calls are handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is going away has no counter any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn wires_tracer_and_faults_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let context = BuildContext { directory: folder.path().into(), ..BuildContext::default() };
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    writer.add_interface("wire0", 0).unwrap();
    for number in 0..500 {
        let length = [60, 1514, 300, 9000][number % 4];
        writer.packet(0, &Packet::whole(number as u64 * 1000, &vec![7; length])).unwrap();
    }
    std::fs::write(folder.path().join("in.pcapng"), writer.into_inner()).unwrap();

    let config = PcapConfig {
        path: Some("in.pcapng".into()),
        output: Some("out.pcapng".into()),
        loops: 0,
        ..PcapConfig::default()
    };
    let port = Box::new(PcapPort::build(&config, &context).unwrap());
    let faults = FaultConfig {
        drop: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        corrupt: 0.1,
        truncate: 0.1,
        ..FaultConfig::default()
    };
    let port = fault_wire(port, &faults, &context).unwrap();
    let trace = TraceConfig { path: Some("trace.pcapng".into()), ..TraceConfig::default() };
    let tracer = Tracer::start(&trace, &context).unwrap();
    let point = HookPoint::Wire { index: 0, name: "wire0" };
    let mut observers: Observers = tracer.observer(&point).into_iter().collect();
    let mut wire = port;

    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (counters, ledger) = (WireCounters::default(), CardLedger::default());
    let mut burst = Burst::new();
    let mut queue = VecDeque::with_capacity(64);
    let mut turn = |wire: &mut dyn WirePort, round: u64| {
        let now = Time::from_nanos(round * 1000);
        wire.receive(
            now,
            &mut Receiver::new(&mut pool, &mut burst, &counters, &ledger, now, 0, 64),
        );
        observers.show(now, Stage::Wire, burst.as_slice());
        queue.extend(burst.drain());
        let transmitter = Transmitter::new(&mut pool, &mut queue, &counters, &ledger);
        observers.begin();
        wire.transmit(now, &mut transmitter.observed(&mut observers, now));
        observers.end();
        pool.outstanding()
    };
    // Until the buffers for delayed packets have grown to the longest packet.
    (0..1000).for_each(|round| assert_eq!(turn(&mut *wire, round), 0));
    let before = ALLOCATIONS.get();
    (1000..3000).for_each(|round| assert_eq!(turn(&mut *wire, round), 0));
    assert_eq!(ALLOCATIONS.get(), before);
    // Every burst was full, and each packet has left or, the writer's thread being too slow for it,
    // been dropped: all are counted.
    let (received, dropped) = (ledger.received.get(), ledger.drops.total());
    let transmitted = ledger.transmitted.get();
    assert!(received >= 3000 * 64 && transmitted > 0, "{received} in, {transmitted} out");
    assert_eq!(received, transmitted + dropped);
    assert!(tracer.finish().error.is_none());
}

#[test]
fn a_link_allocates_nothing() {
    let context = BuildContext::default();
    let config = GeneratorConfig { size: Size::Fixed(1514), ..GeneratorConfig::default() };
    let port = Box::new(Generator::new(&config, &context).unwrap());
    let link = LinkConfig { latency_us: 1000, ..LinkConfig::default() };
    let mut wire = link_wire(port, &link, &context).unwrap();
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (counters, ledger) = (WireCounters::default(), CardLedger::default());
    let mut burst = Burst::new();
    let mut queue = VecDeque::with_capacity(1024);
    let mut turn = |round: u64| {
        let now = Time::from_nanos(round * 10_000);
        wire.receive(
            now,
            &mut Receiver::new(&mut pool, &mut burst, &counters, &ledger, now, 0, 64),
        );
        queue.extend(burst.drain());
        wire.transmit(now, &mut Transmitter::new(&mut pool, &mut queue, &counters, &ledger));
    };
    (0..1000).for_each(&mut turn);
    let before = ALLOCATIONS.get();
    (1000..3000).for_each(turn);
    assert_eq!(ALLOCATIONS.get(), before);
    // 30 ms, of which the frames are in transit for one; twice that on the way back.
    assert!((2250..2450).contains(&ledger.received.get()), "{}", ledger.received.get());
    assert!((2200..2400).contains(&ledger.transmitted.get()), "{}", ledger.transmitted.get());
}
