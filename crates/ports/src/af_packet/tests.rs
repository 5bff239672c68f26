//! Tests of the `packet` port without privileges, and with namespaces where available.

use super::retry::{FULL_NS, RETRY_NS};
use super::*;
use crate::harness::Bench;
use picnic_core::config::Section;
use picnic_core::ledger::Stage;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, GsoType};
use picnic_testing::{skip, wait_for, wait_until};
use std::collections::VecDeque;

fn refused(keys: &str) -> ConfigError {
    let section = Section::from_text("port", &format!("port = \"packet\"\n{keys}")).unwrap();
    let entry = picnic_core::registry::find(crate::registry::WIRES, &section).unwrap();
    entry.build(&section, &BuildContext::default()).map(drop).unwrap_err()
}

#[test]
fn errors_name_the_wrong_part() {
    for (keys, key, part) in [
        ("", "interface", "missing, expected the name of an interface"),
        ("interface = \"\"", "interface", "1 to 15 bytes"),
        ("interface = \"a-name-that-is-too-long\"", "interface", "1 to 15 bytes"),
        ("interface = \"a/b\"", "interface", "1 to 15 bytes"),
        ("interface = \"lo\"\nframes = 15", "frames", "16 to 65536"),
        ("interface = \"lo\"\nframe_size = 127", "frame_size", "128 to 131072"),
        ("interface = \"lo\"\nframe_size = 131073", "frame_size", "128 to 131072"),
        ("interface = \"lo\"\nnamespace = \"no-such\"", "namespace", "does not exist"),
        ("interface = \"lo\"\nnamespace = \"/proc/no/such\"", "namespace", "does not exist"),
    ] {
        let error = refused(keys);
        assert!(error.key == key && error.message.contains(part), "{keys}: {error}");
    }
}

#[test]
fn tags_are_inserted_after_the_addresses() {
    // Four bytes of room, the addresses, the rest.
    let mut data: Vec<u8> = (0..40).collect();
    put_tag(&mut data, 0x88a8, 0x2007).unwrap();
    let mut expected: Vec<u8> = (4..16).collect();
    expected.extend([0x88, 0xa8, 0x20, 0x07]);
    expected.extend(16..40);
    assert_eq!(data, expected);
    assert_eq!(put_tag(&mut [0; 15], 0x8100, 1), None);
}

#[test]
fn every_kernel_error_has_a_drop_reason() {
    for (error, reason) in [
        (libc::ENETDOWN, DropReason::WireDown),
        (libc::ENXIO, DropReason::WireDown),
        (libc::EMSGSIZE, DropReason::Oversize),
        (libc::ENOBUFS, DropReason::WireFull),
        (libc::EINVAL, DropReason::Malformed),
    ] {
        assert_eq!(refusal(&io::Error::from_raw_os_error(error)), reason);
    }
}

#[test]
fn refused_packets_are_retried_for_a_while() {
    let at = Time::from_nanos;
    let mut retry = Retry::default();
    assert!(!retry.is_early(Time::ZERO));
    assert!(retry.refused(at(1000)));
    assert!(retry.is_early(at(1000 + RETRY_NS - 1)) && !retry.is_early(at(1000 + RETRY_NS)));
    assert!(retry.refused(at(1000 + FULL_NS - 1)));
    // Taken: the next one has all the time again.
    retry.taken();
    assert!(!retry.is_early(at(1000 + FULL_NS)));
    assert!(retry.refused(at(1000 + FULL_NS)));
    assert!(!retry.refused(at(1000 + 2 * FULL_NS)), "it is dropped");
    assert!(!retry.is_early(at(1000 + 2 * FULL_NS)), "and the next one is offered at once");
    assert!(retry.refused(at(1000 + 2 * FULL_NS)));
}

#[test]
fn downed_wires_are_reported_with_the_fix() {
    let name = format!("picnic-{}-down", std::process::id());
    let commands = [
        format!("ip netns add {name}"),
        format!("ip -n {name} link add a0 type veth peer name b0"),
    ];
    if !commands.iter().all(|command| ip(command)) {
        skip("a_wire_that_is_down", "it needs root and iproute2");
        ip(&format!("ip netns del {name}"));
        return;
    }
    let config = PacketConfig {
        interface: Some("a0".into()),
        namespace: Some(name.clone()),
        ..PacketConfig::default()
    };
    let port = PacketPort::open(&config).unwrap();
    assert_eq!(
        port.describe().warnings,
        [format!("interface a0 is down: ip -n {name} link set a0 up")]
    );
    // The command is correct, and then the other end is missing.
    assert!(ip(&format!("ip -n {name} link set a0 up")));
    let warned = || Some(port.describe().warnings).filter(|warnings| !warnings.is_empty());
    let warnings = wait_for("a0 has no carrier", warned);
    assert!(warnings[0].starts_with("interface a0 has no carrier: "), "{warnings:?}");
    assert!(ip(&format!("ip -n {name} link set b0 up")));
    wait_until("a0 runs", || port.describe().warnings.is_empty());
    drop(port);
    // Super-frames that are too long for a card, and the command that keeps them shorter.
    let long = "gso_max_size 180000 gro_max_size 180000";
    assert!(ip(&format!("ip -n {name} link set a0 {long}")));
    let port = PacketPort::open(&config).unwrap();
    let warnings = port.describe().warnings;
    let told = "interface a0 lets super-frames have 180000 bytes, and the card takes no packet of \
                more than 131072: ";
    let command = warnings[0].strip_prefix(told).expect(&warnings[0]).split(',').next().unwrap();
    assert!(command.ends_with(" link set a0 gso_max_size 65536 gro_max_size 65536"), "{command}");
    drop(port);
    assert!(ip(command));
    assert_eq!(PacketPort::open(&config).unwrap().describe().warnings, [""; 0]);
    assert!(ip(&format!("ip netns del {name}")));
}

// ---------------------------------------------------------------- through the kernel

/// Both ends of a veth pair, each in a separate namespace. Removed when dropped.
struct Pair(String);

impl Pair {
    /// None if this machine allows none; prints the reason.
    fn new(test: &str) -> Option<(Pair, PacketPort, PacketPort)> {
        let pair = Pair(format!("picnic-{}-{test}", std::process::id()));
        let name = &pair.0;
        for command in [
            format!("ip netns add {name}-a"),
            format!("ip netns add {name}-b"),
            format!("ip netns exec {name}-a sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
            format!("ip netns exec {name}-b sysctl -qw net.ipv6.conf.default.disable_ipv6=1"),
            format!("ip -n {name}-a link add a0 type veth peer name b0 netns {name}-b"),
            format!("ip -n {name}-a link set a0 up"),
            format!("ip -n {name}-b link set b0 up"),
        ] {
            if !ip(&command) {
                skip(test, &format!("it needs root and iproute2: \"{command}\" failed"));
                return None;
            }
        }
        for side in ["a", "b"] {
            wait_until("packets pass", || runs(&format!("{name}-{side}"), &format!("{side}0")));
        }
        let open = |side: &str| {
            let config = PacketConfig {
                interface: Some(format!("{side}0")),
                namespace: Some(format!("{name}-{side}")),
                frames: 31,
                ..PacketConfig::default()
            };
            PacketPort::open(&config).unwrap()
        };
        let ends = (open("a"), open("b"));
        Some((pair, ends.0, ends.1))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        ip(&format!("ip netns delete {}-a", self.0));
        ip(&format!("ip netns delete {}-b", self.0));
    }
}

/// Whether an interface passes packets: a moment after both ends of its pair are up.
pub(crate) fn runs(namespace: &str, link: &str) -> bool {
    let show = ["-n", namespace, "link", "show", link];
    let output = std::process::Command::new("ip").args(show).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("state UP")
}

fn ip(command: &str) -> bool {
    let words: Vec<_> = command.split(' ').collect();
    let output = std::process::Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn interfaces_serve_one_wire_only() {
    let Some((pair, first, _)) = Pair::new("twice") else { return };
    let config = PacketConfig {
        interface: Some("a0".into()),
        namespace: Some(format!("{}-a", pair.0)),
        ..PacketConfig::default()
    };
    let refused = PacketPort::open(&config).err().unwrap().to_string();
    assert!(refused.contains("interface: \"a0\" is the wire of a card already"), "{refused}");
    // Nor by another of its names.
    let namespace = format!("{}-a", pair.0);
    if ip(&format!("ip -n {namespace} link property add dev a0 altname picnic-other")) {
        let other = Some("picnic-other".into());
        let refused = PacketPort::open(&PacketConfig { interface: other, ..config.clone() });
        let refused = refused.err().unwrap().to_string();
        assert!(refused.contains("\"picnic-other\" is the wire of a card already"), "{refused}");
    }
    drop(first);
    PacketPort::open(&config).expect("free again");
}

/// TCP over IPv4 with a right header and the pseudo-header's sum for a checksum.
fn super_frame(tags: &[u8], payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1000, 80, 1, 1000);
    builder.write(&mut frame, &vec![0x55; payload]).unwrap();
    frame.splice(12..12, tags.iter().copied());
    frame
}

#[test]
fn packets_pass_the_kernel_unchanged() {
    let Some((_pair, mut a, mut b)) = Pair::new("as-they-are") else { return };
    let mut bench = Bench::with_pool(4096, 2048);
    const TAG: [u8; 4] = [0x81, 0x00, 0x20, 0x07];
    const SERVICE_TAG: [u8; 4] = [0x88, 0xa8, 0x00, 0x09];
    for tags in [vec![], TAG.to_vec(), SERVICE_TAG.to_vec(), [SERVICE_TAG, TAG].concat()] {
        for (payload, gso_size) in [(0, 0), (100, 0), (1400, 0), (20_000, 1400), (64_000, 1448)] {
            let frame = super_frame(&tags, payload);
            for partial in [false, true] {
                if gso_size != 0 && !partial {
                    continue;
                }
                let mut packet = bench.pool.packet(&frame).unwrap();
                if partial {
                    packet.set_checksum(ChecksumState::Partial);
                }
                if gso_size != 0 {
                    packet.set_gso(GsoType::Tcp4, gso_size);
                }
                let mut queue = VecDeque::from([packet]);
                let Bench { pool, ledger, counters, .. } = &mut bench;
                a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
                assert!(queue.is_empty());
                let mut burst = Burst::new();
                let shown = format!("{tags:x?} {payload} {gso_size} {partial}");
                // veth hands packets over in softirq.
                let packet = wait_for(&shown, || {
                    bench.fill(&mut b, 0, 64, &mut burst);
                    burst.pop()
                });
                let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
                assert!(bytes == frame, "{shown}: {:x?}", &bytes[..60]);
                assert_eq!(packet.gso_size(), gso_size, "{shown}");
                let state = if partial { ChecksumState::Partial } else { packet.checksum() };
                assert_eq!(packet.checksum(), state, "{shown}");
                assert_eq!(packet.gso_type() == GsoType::Tcp4, gso_size != 0, "{shown}");
                bench.pool.free(packet);
                bench.taken += 1;
                bench.sent += 1;
            }
        }
    }
    // An end does not receive its own packets.
    assert_eq!(bench.receive(&mut a, 0, 64), Vec::<Vec<u8>>::new());
    assert_eq!(bench.pool.outstanding(), 0);
    assert_eq!((bench.ledger.transmitted.get(), bench.ledger.drops.total()), (bench.sent, 0));
}

#[test]
fn bursts_keep_their_order_and_a_full_ring_is_counted() {
    let Some((_pair, mut a, mut b)) = Pair::new("bursts") else { return };
    let mut bench = Bench::with_pool(1024, 256);
    let frame = |number: u32| {
        let mut frame = super_frame(&[], 40 + number as usize * 37 % 1300);
        frame[54..58].copy_from_slice(&number.to_be_bytes());
        frame
    };
    let mut expected = 0;
    for round in 0..20 {
        let frames: Vec<_> = (round * 20..(round + 1) * 20).map(frame).collect();
        bench.transmit(&mut a, 0, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
        wait_until("all of a round", || {
            for bytes in bench.receive(&mut b, 1, 7) {
                assert_eq!(bytes, frame(expected));
                expected += 1;
            }
            expected == (round + 1) * 20
        });
    }
    // The ring has 32 slots.
    let frames: Vec<_> = (0..100).map(frame).collect();
    bench.transmit(&mut a, 0, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let (mut taken, mut now) = (0, 0);
    wait_until("each is received or lost", || {
        now += 50_000_000;
        taken += bench.receive(&mut b, now, 64).len() as u64;
        taken + bench.dropped(DropReason::WireOverrun) == 100
    });
    assert!((32..100).contains(&taken), "{taken}");
    assert!(bench.stop(&mut b).iter().any(|line| line.contains("found the receive ring full")));
    // Without buffers: shed, and the ring continues.
    let mut held = Vec::new();
    while let Some(buffer) = bench.pool.allocate(1) {
        held.push(buffer);
    }
    let kept = held.pop().unwrap();
    bench.pool.free(kept);
    bench.transmit(&mut a, 0, &[&[3; 60]]);
    let kept = bench.pool.allocate(1).unwrap();
    wait_until("it is shed", || {
        assert_eq!(bench.receive(&mut b, 1, 7), Vec::<Vec<u8>>::new());
        bench.dropped(DropReason::PoolExhausted) != 0
    });
    assert_eq!(bench.dropped(DropReason::PoolExhausted), 1);
    held.into_iter().chain([kept]).for_each(|buffer| bench.pool.free(buffer));
    bench.assert_conserved();
}

#[test]
fn unsendable_packets_are_dropped_by_reason() {
    let Some((_pair, mut a, mut b)) = Pair::new("cannot-be-sent") else { return };
    let mut bench = Bench::with_pool(1024, 2048);
    let good = [7; 60];
    bench.transmit(&mut a, 0, &[&good, &[1; 5], &good, &[2; 9000], &good]);
    let mut nonsense = bench.pool.packet(&[9; 80]).unwrap();
    nonsense.set_checksum(ChecksumState::Partial);
    let last = bench.pool.packet(&good).unwrap();
    let mut queue = VecDeque::from([nonsense, last]);
    let Bench { pool, ledger, counters, .. } = &mut bench;
    a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
    bench.sent += 2;
    let dropped = |bench: &Bench, reason| bench.ledger.drops.get(reason, Stage::WireTx);
    assert_eq!(dropped(&bench, DropReason::Malformed), 2);
    assert_eq!(dropped(&bench, DropReason::Oversize), 1);
    assert_eq!(bench.ledger.transmitted.get(), 4);
    let mut received = 0;
    wait_until("four are received", || {
        received += bench.receive(&mut b, 1, 7).len();
        received >= 4
    });
    assert_eq!(received, 4);
    bench.assert_conserved();
}

#[test]
fn long_and_short_packets_keep_their_order() {
    let Some((_pair, mut a, mut b)) = Pair::new("long-packets") else { return };
    const TAG: [u8; 4] = [0x81, 0x00, 0x20, 0x07];
    let frame = |number: usize| {
        let payload = [60, 64_000, 1400, 3000, 1847, 1848, 20_000][number % 7];
        let mut frame = super_frame(if number.is_multiple_of(3) { &TAG } else { &[] }, payload);
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&(number as u32).to_be_bytes());
        frame
    };
    let packet = |bench: &mut Bench, number| {
        let frame = frame(number);
        let mut packet = bench.pool.packet(&frame).unwrap();
        if frame.len() > 1518 {
            packet.set_checksum(ChecksumState::Partial);
            packet.set_gso(GsoType::Tcp4, 1400);
        }
        packet
    };
    // With buffers that one read can scatter over, and with such as are too many for it.
    for (buffers, buffer_size) in [(1024, 2048), (8192, 300)] {
        let mut bench = Bench::with_pool(buffers, buffer_size);
        let (mut sent, mut expected) = (0, 0);
        for _ in 0..30 {
            let mut queue: VecDeque<_> =
                (0..10).map(|place| packet(&mut bench, sent + place)).collect();
            sent += queue.len();
            let Bench { pool, ledger, counters, .. } = &mut bench;
            a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
            assert!(queue.is_empty());
            wait_until("all are received", || {
                for bytes in bench.receive(&mut b, 1, 7) {
                    assert!(bytes == frame(expected), "{expected}: {} bytes", bytes.len());
                    expected += 1;
                }
                expected == sent
            });
        }
        // Without buffers each is shed, and the next packet is complete again.
        let mut held = Vec::new();
        let mut queue: VecDeque<_> = (0..7).map(|number| packet(&mut bench, number)).collect();
        while let Some(buffer) = bench.pool.allocate(1) {
            held.push(buffer);
        }
        // Sent buffers have returned, and are taken again.
        let Bench { pool, ledger, counters, .. } = &mut bench;
        a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
        while let Some(buffer) = bench.pool.allocate(1) {
            held.push(buffer);
        }
        wait_until("all are shed", || {
            assert_eq!(bench.receive(&mut b, 1, 7), Vec::<Vec<u8>>::new());
            bench.dropped(DropReason::PoolExhausted) == 7
        });
        held.into_iter().for_each(|buffer| bench.pool.free(buffer));
        let mut queue: VecDeque<_> = (0..7).map(|number| packet(&mut bench, number)).collect();
        let Bench { pool, ledger, counters, .. } = &mut bench;
        a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
        let mut received = Vec::new();
        wait_until("all are received", || {
            received.extend(bench.receive(&mut b, 1, 7));
            received.len() >= 7
        });
        assert!(received == (0..7).map(frame).collect::<Vec<_>>());
        bench.stop(&mut b);
        assert_eq!(bench.pool.outstanding(), 0);
    }
}

#[test]
fn long_packets_without_room_are_overruns() {
    let Some((_pair, mut a, mut b)) = Pair::new("no-room") else { return };
    // One is kept, as its socket's memory is not full yet.
    b.socket.set_receive_buffer(1);
    let mut bench = Bench::with_pool(1024, 2048);
    let long = super_frame(&[], 60_000);
    let mut queue = VecDeque::new();
    for _ in 0..5 {
        let mut packet = bench.pool.packet(&long).unwrap();
        packet.set_checksum(ChecksumState::Partial);
        packet.set_gso(GsoType::Tcp4, 1400);
        queue.push_back(packet);
    }
    let Bench { pool, ledger, counters, .. } = &mut bench;
    a.transmit(Time::ZERO, &mut Transmitter::new(pool, &mut queue, counters, ledger));
    let mut received = 0;
    wait_until("each is received or lost", || {
        for bytes in bench.receive(&mut b, 1, 7) {
            assert!(bytes == long);
            received += 1;
        }
        received + bench.dropped(DropReason::WireOverrun) == 5
    });
    assert_eq!((received, bench.dropped(DropReason::WireOverrun)), (1, 4));
    assert!(
        bench
            .stop(&mut b)
            .iter()
            .any(|line| line.contains("4 packets found the receive ring full"))
    );
}
