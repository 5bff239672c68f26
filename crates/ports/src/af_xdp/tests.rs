//! The `xdp` port between two namespaces, without a card; cards are tested in `picnic-host`.

use super::*;
use crate::af_packet::tests::runs;
use crate::af_packet::{PacketConfig, PacketPort};
use crate::harness::Bench;
use picnic_core::config::Section;
use picnic_core::ledger::Stage;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::PoolConfig;
use picnic_testing::{skip, wait_for, wait_until};
use std::collections::VecDeque;

fn build(keys: &str) -> Result<Box<dyn WirePort>, ConfigError> {
    let section = Section::from_text("port", &format!("port = \"xdp\"\n{keys}")).unwrap();
    let entry = picnic_core::registry::find(crate::registry::WIRES, &section).unwrap();
    entry.build(&section, &BuildContext::default())
}

#[test]
fn errors_name_the_wrong_part() {
    for (keys, key, part) in [
        ("", "interface", "missing, expected the name of an interface"),
        ("interface = \"a-name-that-is-too-long\"", "interface", "1 to 15 bytes"),
        ("interface = \"lo\"\nrx_ring = 1000", "rx_ring", "a power of two, 64 to 32768"),
        ("interface = \"lo\"\ntx_ring = 32", "tx_ring", "a power of two, 64 to 32768"),
        ("interface = \"lo\"\nbusy_poll = 1025", "busy_poll", "0 to 1024"),
        (
            "interface = \"lo\"\nqueues = \"some\"",
            "queues",
            "\"all\", a number of queues, or a list",
        ),
        ("interface = \"lo\"\nqueues = -1", "queues", "\"all\", a number of queues, or a list"),
        ("interface = \"lo\"\nmode = \"best\"", "mode", "allowed: auto, native, generic"),
        (
            "interface = \"lo\"\nmode = \"generic\"\ncopy_mode = \"zero-copy\"",
            "copy_mode",
            "needs mode \"native\" or \"auto\"",
        ),
        ("interface = \"lo\"\nnamespace = \"no-such\"", "namespace", "does not exist"),
    ] {
        let error = build(keys).map(drop).unwrap_err();
        assert!(error.key == key && error.message.contains(part), "{keys}: {error}");
    }
}

#[test]
fn queues_must_exist() {
    let queues = |queues, there| XdpConfig { queues, ..XdpConfig::default() }.queues(there);
    assert_eq!(queues(Queues::All, 3), Ok(vec![0, 1, 2]));
    assert_eq!(queues(Queues::Count(2), 3), Ok(vec![0, 1]));
    assert_eq!(queues(Queues::List(vec![2, 0]), 3), Ok(vec![0, 2]));
    for wrong in [0, 4] {
        assert!(queues(Queues::Count(wrong), 3).unwrap_err().message.contains("has 3"));
    }
    for (list, part) in [(vec![], "each once"), (vec![1, 1], "each once"), (vec![3], "0 to 2")] {
        assert!(queues(Queues::List(list), 3).unwrap_err().message.contains(part));
    }
}

#[test]
fn pools_must_suit_af_xdp() {
    let wanted = |pool: PoolConfig, config: XdpConfig, queues: u32| {
        let (pool, _) = Pool::new(&pool, 0).unwrap();
        let queues = (0..queues).collect();
        config.wanted(queues, &pool.memory(), pool.buffers() / 2, 1500)
    };
    let pool = |buffers, buffer_size| PoolConfig { buffers, buffer_size, ..PoolConfig::default() };
    let config = XdpConfig::default;
    // As many as the pool allows, up to a bound.
    for (buffers, queues, slots) in [(8192, 1, 2048), (8192, 4, 1024), (8192, 5, 512), (128, 1, 64)]
    {
        let found = wanted(pool(buffers, 2048), config(), queues).unwrap();
        assert_eq!((found.rx_slots, found.longest), (slots, 1522), "{buffers} {queues}");
    }
    let error = wanted(pool(128, 2048), config(), 2).unwrap_err();
    assert!(error.key == "queues" && error.message.contains("more buffers in [pool]"), "{error}");
    let greedy = XdpConfig { rx_ring: Some(4096), ..config() };
    let error = wanted(pool(8191, 2048), greedy, 1).unwrap_err();
    assert!(error.key == "rx_ring" && error.message.contains("4096 buffers"), "{error}");
    // 1856 and its headroom of 128 fill just a line too few.
    wanted(pool(64, 1920).clone(), XdpConfig { rx_ring: None, ..config() }, 1).unwrap_err();
    let error = wanted(pool(1024, 1700), config(), 1).unwrap_err();
    assert!(error.message.contains("raise buffer_size in [pool]"), "{error}");
    let direct = XdpConfig { copy_mode: CopyMode::ZeroCopy, ..config() };
    match wanted(pool(1024, 2048), direct, 1) {
        Ok(wanted) => assert_eq!(wanted.zero_copy, Some(true)), // this machine has huge pages
        Err(error) => assert!(error.message.contains("vm.nr_hugepages=2\""), "{error}"),
    }
}

// ---------------------------------------------------------------- through the kernel

/// Both ends of a veth pair with two queues, each in a separate namespace. Removed when dropped.
struct Pair(String);

impl Pair {
    /// None if this machine allows none; prints the reason.
    fn new(test: &str) -> Option<Pair> {
        let pair = Pair(format!("picnic-{}-{test}", std::process::id()));
        let name = &pair.0;
        for command in [
            format!("ip netns add {name}-a"),
            format!("ip netns add {name}-b"),
            format!("ip netns exec {name}-a sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
            format!("ip netns exec {name}-b sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
            format!(
                "ip -n {name}-a link add a0 numrxqueues 2 numtxqueues 2 type veth peer name b0 \
                 netns {name}-b numrxqueues 2 numtxqueues 2"
            ),
            format!("ip -n {name}-a link set a0 up"),
            format!("ip -n {name}-b link set b0 up"),
        ] {
            if !pair.run(&command) {
                skip(test, &format!("it needs root and iproute2: \"{command}\" failed"));
                return None;
            }
        }
        for side in ["a", "b"] {
            wait_until("packets pass", || runs(&format!("{name}-{side}"), &format!("{side}0")));
        }
        Some(pair)
    }

    fn run(&self, command: &str) -> bool {
        let words: Vec<_> = command.split_whitespace().collect();
        let output = std::process::Command::new(words[0]).args(&words[1..]).output();
        output.is_ok_and(|output| output.status.success())
    }

    fn config(&self, side: &str) -> XdpConfig {
        XdpConfig {
            interface: Some(format!("{side}0")),
            namespace: Some(format!("{}-{side}", self.0)),
            ..XdpConfig::default()
        }
    }

    fn open(&self, side: &str, pool: &mut Pool, change: impl FnOnce(&mut XdpConfig)) -> XdpPort {
        let mut config = self.config(side);
        change(&mut config);
        let context = BuildContext { wires: 2, ..BuildContext::default() };
        let mut port = XdpPort::open(&config, &context).unwrap();
        port.start(pool).unwrap();
        port
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.run(&format!("ip netns delete {}-a", self.0));
        self.run(&format!("ip netns delete {}-b", self.0));
    }
}

impl Bench {
    /// Ends the wire; all buffers must have returned.
    fn end(&mut self, mut wire: XdpPort) -> Vec<String> {
        self.stop(&mut wire)
    }

    /// Receives until `count` packets have come.
    fn await_packets(&mut self, wire: &mut XdpPort, count: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        wait_until("all packets", || {
            packets.extend(self.receive(wire, 1, 7));
            packets.len() >= count
        });
        packets
    }
}

/// Not IP, so it is not parsed.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length).map(|at| (at as u32 * 7 + number) as u8).collect();
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

#[test]
fn packets_pass_unchanged_and_buffers_return() {
    let Some(pair) = Pair::new("xdp-as-they-are") else { return };
    for (mode, need_wakeup) in [(Mode::Native, true), (Mode::Generic, true), (Mode::Auto, false)] {
        let mut bench = Bench::with_pool(2048, 2048);
        let change = |config: &mut XdpConfig| {
            (config.mode, config.need_wakeup) = (mode, need_wakeup);
            config.rx_ring = Some(128);
        };
        let mut a = pair.open("a", &mut bench.pool, change);
        let mut b = pair.open("b", &mut bench.pool, change);
        let mut number = 0;
        for round in 0..40 {
            let sizes = [60, 61, 128, 999, 1500, 1514, 1516, 1518];
            let frames: Vec<_> = (0..32)
                .map(|index| frame(number + index, sizes[(index + round) as usize % 8]))
                .collect();
            bench.transmit(&mut a, 0, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let received = bench.await_packets(&mut b, frames.len());
            assert!(received == frames, "{mode:?} {round}: {} packets", received.len());
            number += 32;
        }
        assert_eq!(bench.counters.tx_kept.get(), 0);
        assert_eq!(bench.ledger.transmitted.get(), u64::from(number));
        // An end does not receive its own packets.
        assert_eq!(bench.receive(&mut a, 0, 64), Vec::<Vec<u8>>::new());
        assert_eq!(bench.end(a), Vec::<String>::new());
        assert_eq!(bench.end(b), Vec::<String>::new());
        bench.assert_conserved();
    }
}

#[test]
fn packets_longer_than_a_buffer_pass_in_pieces() {
    let Some(pair) = Pair::new("xdp-pieces") else { return };
    pair.run(&format!("ip -n {}-a link set a0 mtu 9000", pair.0));
    pair.run(&format!("ip -n {}-b link set b0 mtu 9000", pair.0));
    // Chained to be sent, and in one buffer that is larger than a chunk.
    for buffer_size in [2048, 16_000] {
        let mut bench = Bench::with_pool(2048, buffer_size);
        let mut a = pair.open("a", &mut bench.pool, |_| ());
        let mut b = pair.open("b", &mut bench.pool, |_| ());
        let sizes = [60, 1920, 1921, 2048, 2049, 3840, 3841, 4096, 4097, 8192, 9000, 9014, 9018];
        for round in 0..10 {
            let frames: Vec<_> = sizes.iter().map(|&size| frame(round, size)).collect();
            bench.transmit(&mut a, 0, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let received = bench.await_packets(&mut b, frames.len());
            let lengths: Vec<_> = received.iter().map(Vec::len).collect();
            assert_eq!(lengths, sizes, "{buffer_size}");
            assert!(received == frames, "{buffer_size}");
        }
        assert_eq!(bench.end(a), Vec::<String>::new());
        assert_eq!(bench.end(b), Vec::<String>::new());
        bench.assert_conserved();
    }
}

#[test]
fn packets_without_buffers_are_counted_and_unsendable_dropped() {
    let Some(pair) = Pair::new("xdp-no-buffer") else { return };
    let mut bench = Bench::with_pool(1024, 2048);
    let few = |config: &mut XdpConfig| config.rx_ring = Some(64);
    let mut a = pair.open("a", &mut bench.pool, few);
    let mut b = pair.open("b", &mut bench.pool, few);
    let frames: Vec<_> = (0..100).map(|number| frame(number, 100)).collect();
    bench.transmit(&mut a, 0, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
    // None returns a buffer before all have met their fate.
    wait_until("they are sent, and those with buffers are there", || {
        bench.transmit(&mut a, 0, &[]);
        a.umem.as_ref().unwrap().unsent() == 0 && b.holds(Time::ZERO, 64)
    });
    // The first 64 have buffers, the rest were lost; nothing arrives twice.
    let (mut received, mut now) = (Vec::new(), 0);
    wait_until("each is received or lost", || {
        now += 50_000_000;
        received.extend(bench.receive(&mut b, now, 64));
        received.len() as u64 + bench.dropped(DropReason::WireOverrun) == 100
    });
    assert_eq!(bench.dropped(DropReason::WireOverrun), 36);
    assert!(received == frames[..64]);
    bench.transmit(&mut a, 0, &[&frames[0], &[1; 5], &frames[1], &[2; 1600], &frames[2]]);
    let mut packets: VecDeque<_> = (0..3).map(|_| bench.pool.packet(&frames[5]).unwrap()).collect();
    packets[0].set_checksum(ChecksumState::Partial); // of nothing that has one
    packets[1].set_gso(GsoType::Tcp4, 1000);
    let Bench { pool, ledger, counters, .. } = &mut bench;
    a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut packets, counters, ledger));
    assert!(packets.is_empty());
    bench.sent += 3;
    let dropped = |reason| bench.ledger.drops.get(reason, Stage::WireTx);
    assert_eq!((dropped(DropReason::Malformed), dropped(DropReason::Oversize)), (2, 1));
    assert_eq!(dropped(DropReason::SuperFrame), 1);
    assert_eq!(bench.await_packets(&mut b, 4).len(), 4);
    let notes = bench.end(a).join("\n");
    assert!(notes.contains("1 packets had checksums"), "{notes}");
    assert_eq!(bench.end(b), ["b0: 36 packets found no empty buffer"]);
    bench.assert_conserved();
}

/// TCP over IPv4 with the pseudo-header's sum for a checksum.
fn unfinished(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1000, 80, 1, 1000);
    builder.write(&mut frame, &vec![0x55; payload]).unwrap();
    let length = 20 + payload as u32;
    let sum = 2 * 0x0a00 + 0x0001 + 0x0002 + 6 + length;
    frame[50..52].copy_from_slice(&(sum as u16).to_be_bytes());
    frame
}

#[test]
fn partial_checksums_of_veth_are_found_and_completed() {
    let Some(pair) = Pair::new("xdp-checksums") else { return };
    let mut bench = Bench::with_pool(2048, 2048);
    for (checksums, mended) in
        [(Checksums::Auto, true), (Checksums::Mend, true), (Checksums::Trust, false)]
    {
        let mut b = pair.open("b", &mut bench.pool, |config| config.checksums = checksums);
        // As the kernel's TCP sends it over veth.
        let config = PacketConfig {
            interface: Some("a0".into()),
            namespace: Some(format!("{}-a", pair.0)),
            ..PacketConfig::default()
        };
        let mut a = PacketPort::open(&config).unwrap();
        let mut packet = bench.pool.packet(&unfinished(100)).unwrap();
        packet.set_checksum(ChecksumState::Partial);
        let mut queue = VecDeque::from([packet]);
        let Bench { pool, ledger, counters, .. } = &mut bench;
        a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
        let mut burst = Burst::new();
        let packet = wait_for("the packet", || {
            bench.fill(&mut b, 0, 64, &mut burst);
            burst.pop()
        });
        assert!(packet.data() == unfinished(100));
        assert_eq!(packet.checksum() == ChecksumState::Partial, mended, "{checksums:?}");
        drop(a);
        // The other direction: partial checksums leave complete.
        let mut queue = VecDeque::from([packet]);
        let Bench { pool, ledger, counters, .. } = &mut bench;
        let mut tx = Transmitter::new(pool, &mut queue, counters, ledger).finishing_checksums(true);
        let mut a = pair.open("a", tx.pool(), |config| config.checksums = checksums);
        b.transmit(Time::ZERO, &mut tx);
        let received = bench.await_packets(&mut a, 1);
        let correct = etherparse::PacketHeaders::from_ethernet_slice(&received[0]).unwrap();
        let (ip, tcp) = (correct.net.unwrap(), correct.transport.unwrap().tcp().unwrap());
        let etherparse::NetHeaders::Ipv4(ip, _) = ip else { panic!() };
        let expected = tcp.calc_checksum_ipv4(&ip, &[0x55; 100]).unwrap();
        assert_eq!(tcp.checksum == expected, mended, "{checksums:?}");
        bench.end(a);
        bench.end(b);
        assert_eq!(bench.pool.outstanding(), 0);
    }
}
