//! Tracer: the packets captured at each stage, and their order.

use super::*;
use crate::capture::Point;
use crate::harness::Bench;
use crate::pcap::CaptureFile;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};
use picnic_core::config::from_json;
use picnic_core::hook::Observers;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::packet::desc::{RssFunction, RssType};
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::time::Time;
use serde_json::json;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver as Gate, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One traced packet: interface, time, bytes, original length, flags.
type Traced = (u32, u64, Vec<u8>, u32, u32);

#[derive(Debug, Default)]
struct Read {
    interfaces: Vec<String>,
    packets: Vec<Traced>,
    /// Of each interface: received, dropped.
    statistics: Vec<(u64, u64)>,
}

fn read(bytes: &[u8]) -> Read {
    let mut read = Read::default();
    let mut reader = PcapNGReader::new(1 << 20, bytes).unwrap();
    loop {
        match reader.next() {
            Ok((length, PcapBlockOwned::NG(block))) => {
                match block {
                    Block::InterfaceDescription(b) => {
                        assert_eq!((b.if_tsresol, b.linktype.0), (9, 1));
                        read.interfaces.push(b.if_name().unwrap().unwrap().to_owned());
                    }
                    Block::EnhancedPacket(b) => read.packets.push((
                        b.if_id,
                        u64::from(b.ts_high) << 32 | u64::from(b.ts_low),
                        b.packet_data().to_vec(),
                        b.origlen,
                        b.options.first().map_or(0, |flags| flags.as_u32_le().unwrap()),
                    )),
                    Block::InterfaceStatistics(b) => {
                        let count = |at: usize| b.options[at].as_u64_le().unwrap();
                        assert_eq!((b.options[0].code.0, b.options[1].code.0), (4, 5));
                        read.statistics.push((count(0), count(1)));
                    }
                    _ => {}
                }
                reader.consume(length);
            }
            Ok((length, _)) => reader.consume(length),
            Err(PcapError::Eof) => return read,
            Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn context(&self) -> BuildContext {
        BuildContext { directory: self.0.path().into(), ..BuildContext::default() }
    }
    fn tracer(&self, stages: &[TraceStage]) -> Tracer {
        let config = TraceConfig {
            path: Some("trace.pcapng".into()),
            stages: stages.to_vec(),
            ..TraceConfig::default()
        };
        Tracer::start_at(&config, &self.context(), 1_000_000).unwrap()
    }
    fn read(&self) -> Read {
        let bytes = std::fs::read(self.0.path().join("trace.pcapng")).unwrap();
        assert!(CaptureFile::parse(bytes.clone()).unwrap().broken().is_none());
        read(&bytes)
    }
}

/// Hands over its packets, and accepts every second packet for transmission.
struct Wire(Vec<Vec<u8>>, u32);

impl WirePort for Wire {
    fn receive(&mut self, _now: Time, rx: &mut Receiver<'_>) {
        self.0.drain(..).for_each(|bytes| rx.push_bytes(&bytes));
    }
    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            self.1 += 1;
            if self.1.is_multiple_of(2) {
                tx.drop(packet, DropReason::Oversize);
            } else {
                tx.sent(packet);
            }
        }
    }
}

/// The observers of a traced card at a point.
fn at(tracer: &Tracer, point: &HookPoint<'_>) -> Observers {
    tracer.observer(point).into_iter().collect()
}

const WIRE: HookPoint<'static> = HookPoint::Wire { index: 0, name: "wire0" };

#[test]
fn wires_are_traced_both_ways_with_whole_packets() {
    let folder = Folder::new();
    let tracer = folder.tracer(&[TraceStage::Wire]);
    let long: Vec<_> = (0..70_000).map(|at| (at / 3) as u8).collect();
    let rx = vec![b"in".to_vec(), long.clone(), vec![], vec![4; 40], vec![5; 41], vec![6; 104]];
    let mut wire = Wire(rx.clone(), 0);
    let mut bench = Bench { observers: at(&tracer, &WIRE), ..Bench::new() };
    assert_eq!(bench.receive(&mut wire, 5, 64), rx);
    bench.receive(&mut wire, 6, 64);
    bench.transmit(&mut wire, 7, &[b"taken", b"refused", &long]);
    let report = tracer.finish();
    assert_eq!(report.summary(), "8 packets written");
    let read = folder.read();
    let inbound = rx.into_iter().map(|bytes| (1_000_005, bytes, 1));
    let outbound = [b"taken".to_vec(), long].map(|bytes| (1_000_007, bytes, 2));
    let expected = inbound.chain(outbound);
    let expected =
        expected.map(|(time, bytes, flags)| (0, time, bytes.clone(), bytes.len() as u32, flags));
    assert_eq!(read.packets, expected.collect::<Vec<_>>());
    assert_eq!((read.interfaces, read.statistics), (vec!["wire0".into()], vec![(8, 0)]));
    assert_eq!(bench.ledger.drops.get(DropReason::Oversize, Stage::WireTx), 1);
    assert_eq!(bench.pool.outstanding(), 0);
}

#[test]
fn queues_and_functions_have_their_own_interfaces() {
    let folder = Folder::new();
    let tracer = folder.tracer(&[TraceStage::Queue, TraceStage::Tx]);
    let mut bench = Bench::new();
    let mut show = |observers: &mut Observers, now, stage, packets: &[[u8; 2]]| {
        let packets: Vec<_> =
            packets.iter().map(|bytes| bench.pool.packet(bytes).unwrap()).collect();
        observers.show(Time::from_nanos(now), stage, &packets);
        packets.into_iter().for_each(|packet| bench.pool.free(packet));
    };
    let queue = |index, guest| at(&tracer, &HookPoint::Queue { index, guest });
    let mut queues = [queue(0, None), queue(1, Some("vm0"))];
    for round in 0..40_u8 {
        let packets = [0, 1, 2].map(|packet| [round, packet]);
        show(&mut queues[usize::from(round % 2)], round.into(), Stage::Target, &packets);
    }
    let function =
        |direction, position, name| at(&tracer, &HookPoint::Function { direction, position, name });
    assert!(function(Direction::Rx, 0, "pass").is_empty());
    let mut traced = function(Direction::Tx, 1, "odd");
    show(&mut traced, 0, Stage::Tx, &[0, 1, 2, 3, 4].map(|number| [number, 0]));

    let report = tracer.finish();
    assert_eq!(report.written(), 125);
    let read = folder.read();
    assert_eq!(read.interfaces, ["queue0", "queue1 vm0", "tx[1] odd"]);
    assert_eq!(read.statistics, [(60, 0), (60, 0), (5, 0)]);
    for interface in 0..2 {
        let bytes: Vec<_> = read
            .packets
            .iter()
            .filter(|packet| packet.0 == interface)
            .map(|packet| packet.2.clone())
            .collect();
        let rounds = (0..40).filter(|round| u32::from(round % 2) == interface);
        let expected: Vec<_> =
            rounds.flat_map(|round: u8| (0..3).map(move |packet| vec![round, packet])).collect();
        assert_eq!(bytes, expected, "order within an interface");
    }
    let outbound = read.packets.iter().filter(|packet| packet.0 == 2);
    assert!(outbound.clone().count() == 5 && outbound.clone().all(|packet| packet.4 == 2));
    assert_eq!(bench.pool.outstanding(), 0);
}

/// The option `epb_hash` of each packet of the only file in a folder.
fn hashes(folder: &Folder) -> Vec<Option<Vec<u8>>> {
    const EPB_HASH: u16 = 3;
    let bytes = std::fs::read(folder.0.path().join("trace.pcapng")).unwrap();
    let mut reader = PcapNGReader::new(1 << 20, &bytes[..]).unwrap();
    let mut hashes = Vec::new();
    while let Ok((length, block)) = reader.next() {
        if let PcapBlockOwned::NG(Block::EnhancedPacket(b)) = block {
            let hash = b.options.iter().find(|option| option.code.0 == EPB_HASH);
            hashes.push(hash.map(|hash| hash.value[..usize::from(hash.len)].to_vec()));
        }
        reader.consume(length);
    }
    hashes
}

/// A file names Toeplitz's algorithm and none of Jenkins'; a host's packets are not the hashed
/// ones.
#[test]
fn toeplitz_hashes_are_recorded() {
    let folder = Folder::new();
    let tracer = folder.tracer(&[TraceStage::Queue, TraceStage::Tx]);
    let mut bench = Bench::new();
    let packets: Vec<_> = (0..4_u32)
        .map(|number| {
            let mut packet = bench.pool.packet(&[7; 60]).unwrap();
            let over = if number == 0 { RssType::None } else { RssType::Ipv4Tcp };
            packet.set_rss(0x0102_0300 + number, over);
            if number == 2 {
                packet.set_rss_function(RssFunction::Jenkins);
            }
            packet
        })
        .collect();
    let mut queue = at(&tracer, &HookPoint::Queue { index: 0, guest: None });
    queue.show(Time::ZERO, Stage::Target, &packets);
    let (direction, name) = (Direction::Tx, "pass");
    let mut sent = at(&tracer, &HookPoint::Function { direction, position: 0, name });
    sent.show(Time::ZERO, Stage::Tx, &packets);
    packets.into_iter().for_each(|packet| bench.pool.free(packet));
    assert_eq!(tracer.finish().written(), 8);
    assert!(folder.read().packets.iter().all(|packet| packet.2 == [7; 60]));
    let told = |low: u8| Some(vec![5, low, 3, 2, 1]);
    let of_queue = [None, told(1), None, told(3)];
    let of_host = [None, None, None, None];
    assert_eq!(hashes(&folder), [of_queue, of_host].concat());
}

#[test]
fn received_packets_carry_their_arrival_time() {
    let folder = Folder::new();
    let tracer = folder.tracer(&[TraceStage::Wire, TraceStage::Queue]);
    let mut bench = Bench::new();
    // Further from zero than a descriptor's 48 bits reach.
    let now = Time::from_nanos(5 << 48);
    let mut packet = bench.pool.packet(&[7; 60]).unwrap();
    packet.set_received_at(Time::from_nanos(now.as_nanos() - 300));
    let packets = [packet];
    let mut wire = at(&tracer, &WIRE);
    wire.show(now, Stage::Wire, &packets);
    wire.show(now, Stage::WireTx, &packets);
    at(&tracer, &HookPoint::Queue { index: 0, guest: None }).show(now, Stage::Target, &packets);
    packets.into_iter().for_each(|packet| bench.pool.free(packet));
    tracer.finish();
    let times: Vec<_> = folder.read().packets.iter().map(|packet| packet.1).collect();
    let now = now.as_nanos() + 1_000_000;
    assert_eq!(times, [now - 300, now, now]);
}

#[test]
fn snaplen_cuts_the_capture_and_not_the_packet() {
    let folder = Folder::new();
    let config =
        TraceConfig { path: Some("trace.pcapng".into()), snaplen: 50, ..TraceConfig::default() };
    let tracer = Tracer::start(&config, &folder.context()).unwrap();
    let rx = vec![vec![1; 49], vec![2; 50], vec![3; 51], vec![4; 9000]];
    let mut bench = Bench { observers: at(&tracer, &WIRE), ..Bench::new() };
    assert_eq!(bench.receive(&mut Wire(rx.clone(), 0), 0, 64), rx);
    tracer.finish();
    let lengths: Vec<_> =
        folder.read().packets.iter().map(|packet| (packet.2.len(), packet.3)).collect();
    assert_eq!(lengths, [(49, 49), (50, 50), (50, 51), (50, 9000)]);
}

/// A file that accepts nothing until released.
struct Slow {
    open: Mutex<Gate<()>>,
    opened: bool,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Slow {
    fn new() -> (Self, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (sender, gate) = channel();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        (Slow { open: Mutex::new(gate), opened: false, bytes: bytes.clone() }, sender, bytes)
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.opened {
            self.opened = true;
            let _ = self.open.lock().unwrap().recv();
        }
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_queue_loses_captures_and_counts_them_but_no_packets() {
    let (slow, open, bytes) = Slow::new();
    let options = CaptureOptions { buffer_bytes: MIN_BUFFER_BYTES, ..CaptureOptions::default() };
    let mut capture = Capture::to_writer(slow, options).unwrap();
    let mut point = capture.point("wire0");
    let mut bench = Bench::new();
    let mut sent = 0_u32;
    let mut burst = |point: &mut Point, count: u32| {
        for _ in 0..count {
            let mut data = vec![7; 1000];
            data[..4].copy_from_slice(&sent.to_be_bytes());
            let packet = bench.pool.packet(&data).unwrap();
            point.record(Time::from_nanos(sent.into()), &packet, None);
            assert_eq!(packet.data(), data);
            bench.pool.free(packet);
            sent += 1;
        }
        point.publish();
    };
    // 16 cells a packet, 4096 in the ring; the writer may have taken a few blocks already.
    while point.lost() < 100 {
        burst(&mut point, 50);
    }
    let lost = point.lost();
    open.send(()).unwrap();
    assert!(capture.sync(Duration::from_secs(20)));
    burst(&mut point, 20);
    assert_eq!(point.lost(), lost, "there is room again");
    let report = capture.finish();
    burst(&mut point, 5);
    assert_eq!(capture.report(), report, "what comes after the end is no part of it");
    assert_eq!((report.lost(), report.error), (lost, None));
    let read = read(&bytes.lock().unwrap());
    assert_eq!(read.packets.len() as u64, report.points[0].written);
    assert_eq!(read.statistics, [(report.points[0].seen, lost)]);
    assert_eq!(report.points[0].seen, report.points[0].written + lost);
    assert!(read.packets.is_sorted_by_key(|packet| packet.1));
    for packet in &read.packets {
        assert_eq!(u64::from(u32::from_be_bytes(packet.2[..4].try_into().unwrap())), packet.1);
    }
}

/// A disk with limited room.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_disks_end_the_capture_and_are_reported() {
    let mut capture = Capture::to_writer(Full(1 << 20), CaptureOptions::default()).unwrap();
    let mut point = capture.point("wire0");
    let mut bench = Bench::new();
    for round in 0..3 {
        for _ in 0..500 {
            let packet = bench.pool.packet(&[round; 1500]).unwrap();
            point.record(Time::ZERO, &packet, None);
            bench.pool.free(packet);
        }
        point.publish();
        assert!(capture.sync(Duration::from_secs(20)), "an error must not leave anyone waiting");
    }
    let report = capture.finish();
    let point = &report.points[0];
    assert_eq!((point.seen, point.seen), (1500, point.written + point.lost));
    assert!(point.lost > 0 && report.error.as_deref() == Some("no storage space"), "{report:?}");
    assert!(point.written * 1500 <= 1 << 20, "what it does not hold is not written: {report:?}");
    assert!(report.summary().ends_with("; ended by an error: no storage space"));
    assert_eq!(bench.pool.outstanding(), 0);
}

#[test]
fn points_on_several_threads_do_not_interfere() {
    let (slow, open, bytes) = Slow::new();
    open.send(()).unwrap();
    let options = CaptureOptions { buffer_bytes: 16 << 20, ..CaptureOptions::default() };
    let mut capture = Capture::to_writer(slow, options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let mut point = capture.point(&format!("queue{thread}"));
            scope.spawn(move || {
                let mut bench = Bench::new();
                for number in 0..5000_u32 {
                    let length = 5 + number as usize % 300;
                    let mut data = vec![thread; length];
                    data[..4].copy_from_slice(&number.to_be_bytes());
                    let packet = bench.pool.packet(&data).unwrap();
                    point.record(Time::from_nanos(number.into()), &packet, None);
                    bench.pool.free(packet);
                    if number % 7 == 0 {
                        point.publish();
                    }
                }
            });
        }
    });
    // Removed points have published their counts.
    assert_eq!(capture.finish().summary(), "15000 packets written");
    let read = read(&bytes.lock().unwrap());
    for interface in 0..3 {
        let name = &read.interfaces[interface as usize];
        let thread: u8 = name.trim_start_matches("queue").parse().unwrap();
        let packets: Vec<_> = read.packets.iter().filter(|packet| packet.0 == interface).collect();
        assert_eq!(packets.len(), 5000);
        for (number, packet) in packets.iter().enumerate() {
            assert_eq!(packet.2.len(), 5 + number % 300);
            assert_eq!(packet.2[..4], (number as u32).to_be_bytes());
            assert!(packet.2[4..].iter().all(|&byte| byte == thread));
        }
    }
}

#[test]
fn keys_are_checked() {
    let folder = Folder::new();
    let refused =
        |config: TraceConfig| Tracer::start(&config, &folder.context()).unwrap_err().to_string();
    let good = || TraceConfig { path: Some("trace.pcapng".into()), ..TraceConfig::default() };
    assert_eq!(
        refused(TraceConfig { path: None, ..good() }),
        "card: path: missing, expected the name of a file to write"
    );
    for (json, message) in [
        (json!({ "snaplen": 0 }), "snaplen: found 0, allowed: 1 to 262144"),
        (json!({ "buffer_bytes": 5 }), "buffer_bytes: found 5, allowed: 262144 to 1073741824"),
    ] {
        assert_eq!(from_json::<TraceConfig>(&json).unwrap_err().to_string(), message);
    }
    let error = refused(TraceConfig { path: Some("no/trace.pcapng".into()), ..good() });
    assert!(
        error.ends_with("trace.pcapng: cannot be created: No such file or directory (os error 2)"),
        "{error}"
    );
}
