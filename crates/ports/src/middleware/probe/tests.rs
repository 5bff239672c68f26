//! Probes: points come and go between bursts, in any order, and none is lost.

use super::*;
use crate::capture::{Capture, CaptureOptions, MIN_BUFFER_BYTES};
use picnic_core::packet::pool::{Pool, PoolConfig};

fn capture() -> Capture {
    let options = CaptureOptions { buffer_bytes: MIN_BUFFER_BYTES, ..CaptureOptions::default() };
    Capture::to_writer(std::io::sink(), options).unwrap()
}

/// Shows the probe some packets, as the card does.
fn burst(probe: &mut Probe, packet: &Descriptor, packets: usize) {
    if probe.begin() {
        for _ in 0..packets {
            probe.observe(Time::ZERO, Stage::Wire, std::slice::from_ref(packet));
        }
        probe.end();
    }
}

#[test]
fn points_change_between_bursts() {
    let (mut pool, _returns) =
        Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 1).unwrap();
    let packet = pool.packet(&[7; 60]).unwrap();
    let (mut probe, handle) = Probe::new();
    burst(&mut probe, &packet, 5);
    let (mut a, mut b) = (capture(), capture());
    handle.put(0, a.point("x"));
    burst(&mut probe, &packet, 5);
    handle.put(3, b.point("x"));
    burst(&mut probe, &packet, 5);
    handle.take(0);
    burst(&mut probe, &packet, 5);
    handle.take(3);
    burst(&mut probe, &packet, 5);
    assert!(!probe.begin());
    handle.collect(0);
    handle.collect(3);
    assert_eq!((a.finish().written(), b.finish().written()), (10, 10));
    assert!(!handle.is_orphaned());
    drop(probe);
    assert!(handle.is_orphaned());
    pool.free(packet);
}

#[test]
fn last_change_between_bursts_wins() {
    let (mut pool, _returns) =
        Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 1).unwrap();
    let packet = pool.packet(&[7; 60]).unwrap();
    let (mut probe, handle) = Probe::new();
    let (mut a, mut b, mut c) = (capture(), capture(), capture());
    // Put and taken away before any burst: never there.
    handle.put(1, a.point("x"));
    handle.take(1);
    burst(&mut probe, &packet, 3);
    // Replaced before any burst has seen the first: the last one it is.
    handle.put(1, b.point("x"));
    handle.take(1);
    handle.put(1, c.point("x"));
    burst(&mut probe, &packet, 3);
    assert_eq!((a.finish().written(), b.finish().written()), (0, 0));
    assert_eq!(c.finish().written(), 3);
    pool.free(packet);
}

#[test]
fn bursts_never_wait_for_the_handle() {
    let (mut probe, handle) = Probe::new();
    let mut a = capture();
    handle.put(0, a.point("x"));
    let held = handle.0.change.lock().unwrap();
    // Would hang if it waited.
    assert!(!probe.begin());
    drop(held);
    assert!(probe.begin());
    a.finish();
}

#[test]
fn captures_change_while_bursts_flow() {
    let (mut pool, _returns) =
        Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 1).unwrap();
    let packet = pool.packet(&[7; 60]).unwrap();
    let (mut probe, handle) = Probe::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                burst(&mut probe, &packet, 4);
            }
        });
        for round in 0..200 {
            let mut capture = capture();
            handle.put(round % MOST, capture.point("x"));
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            handle.take(round % MOST);
            let report = capture.finish();
            assert_eq!(report.error, None);
        }
        stop.store(true, Ordering::Relaxed);
    });
    burst(&mut probe, &packet, 1);
    assert!(!probe.begin(), "a point is left over");
    pool.free(packet);
}
