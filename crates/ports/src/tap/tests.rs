use super::*;
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::fill;
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::ring::spsc;
use picnic_core::stats::TargetCounters;
use picnic_core::stats::WireCounters;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A queue whose other end is a socket: packet by packet, as a TAP is.
fn queue() -> (TapQueue, OwnedFd) {
    let (queue, kernel) = bare(&BuildContext { buffers: 64, ..BuildContext::default() });
    (TapQueue { queue, wire: 1, index: 0 }, kernel)
}

fn bare(context: &BuildContext) -> (Queue, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (queue, kernel) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let wanted = TapWireConfig::default().read(context, 1).unwrap();
    (Queue::new(queue, None, None, Arc::new(wanted)), kernel)
}

/// An Ethernet header, IPv4 of 20 bytes and TCP of 20, and `payload` bytes.
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 80, 1, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|index| index as u8));
    frame
}

fn message(header: Header, frame: &[u8]) -> Vec<u8> {
    [&header.to_bytes(), frame].concat()
}

#[test]
fn host_packets_keep_offloads_and_buffers_return() {
    let (mut queue, kernel) = queue();
    let (mut pool, mut returns) = Pool::new(&PoolConfig::default(), 1).unwrap();
    let (mut sender, mut receiver) = fill::channel(16);
    let (mut tx, mut sent) = spsc::channel(4);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    let partial = Header { flags: 1, checksum_start: 34, checksum_offset: 16, ..Header::default() };
    let write = |bytes: &[u8]| assert_eq!(rustix::io::write(&kernel, bytes), Ok(bytes.len()));
    write(&message(partial, &tcp(100)));
    write(&message(Header::default(), &tcp(5)));
    write(&[0; HEADER_BYTES]); // no packet at all
    write(&message(Header::default(), &vec![0; 2049])); // more than a buffer holds
    write(&message(Header::default(), &vec![7; 2048])); // just as much
    for _ in 0..3 {
        write(&message(Header::default(), &tcp(1)));
    }
    sender.top_up(&mut pool);
    for (round, submitted) in [4, 0, 2].into_iter().enumerate() {
        let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, &ledger.queues[0])
            .with_fill(&mut receiver);
        assert_eq!(queue.transmit(Time::from_nanos(5), &mut out), submitted, "round {round}");
        // Held up by the full tx ring, and at last by nothing to read.
        assert_eq!(out.is_starved(), round < 2);
        drop(out);
        if round == 1 {
            sent.refresh();
            let packet = sent.pop().unwrap();
            assert_eq!((packet.checksum(), packet.wire), (ChecksumState::Partial, 1));
            assert_eq!((packet.data(), packet.received_at()), (&tcp(100)[..], Time::from_nanos(5)));
            pool.free(packet);
            let packet = sent.pop().unwrap();
            assert_eq!((packet.checksum(), packet.data()), (ChecksumState::Unknown, &tcp(5)[..]));
            pool.free(packet);
            let packet = sent.pop().unwrap();
            assert_eq!(packet.data(), [7; 2048]);
            pool.free(packet);
            sent.pop().into_iter().for_each(|packet| pool.free(packet));
            sent.release();
        }
    }
    let part = &ledger.queues[0];
    assert_eq!((part.made.get(), part.submitted.get(), part.drops.total()), (8, 6, 2));
    sent.refresh();
    while let Some(packet) = sent.pop() {
        pool.free(packet);
    }
    receiver.empty(&mut returns[0]);
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn hosts_get_whole_packets_with_offloads() {
    let (mut queue, kernel) = queue();
    let config = PoolConfig { buffer_size: 256, ..PoolConfig::default() };
    let (mut pool, mut returns) = Pool::new(&config, 1).unwrap();
    let (mut tx, _sent) = spsc::channel(4);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    let mut burst = Burst::new();
    let mut add = |frame: &[u8], change: fn(&mut Descriptor)| {
        let mut packet = pool.packet(frame).unwrap();
        change(&mut packet);
        burst.push(packet).unwrap();
    };
    add(&tcp(10), |packet| packet.set_checksum(ChecksumState::Partial));
    add(&tcp(4000), |packet| {
        packet.set_checksum(ChecksumState::Partial);
        packet.set_gso(GsoType::Tcp4, 1460);
    });
    add(&tcp(30_000), |_| {}); // more segments than one write takes
    add(&[9; 60], |packet| packet.set_gso(GsoType::Tcp6, 1000)); // asks for the impossible
    let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, &ledger.queues[0]);
    queue.deliver(Time::ZERO, &mut burst, &mut out);
    drop(out);
    let read = || {
        let mut bytes = vec![0; 70_000];
        let length = rustix::io::read(&kernel, &mut bytes).unwrap();
        bytes.truncate(length);
        let header = Header::from_bytes(bytes.first_chunk().unwrap());
        (header, bytes.split_off(HEADER_BYTES))
    };
    let (header, bytes) = read();
    assert_eq!((header.flags, header.checksum_start, header.checksum_offset), (1, 34, 16));
    assert_eq!((header.gso_type, bytes), (0, tcp(10)));
    let (header, bytes) = read();
    assert_eq!((header.gso_type, header.gso_size, header.header_length), (1, 1460, 54));
    assert_eq!(bytes, tcp(4000));
    let (header, bytes) = read();
    assert_eq!((header, bytes), (Header::default(), tcp(30_000)));
    let part = &ledger.queues[0];
    assert_eq!((part.delivered.get(), part.drops.total()), (3, 1));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn kernel_super_frames_land_in_several_buffers() {
    let (queue, kernel) = bare(&BuildContext::default());
    let config = PoolConfig { buffers: 256, ..PoolConfig::default() };
    let (mut pool, _) = Pool::new(&config, 0).unwrap();
    let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
    let mut wire = TapWire::of(queue);
    let write = |bytes: &[u8]| assert_eq!(rustix::io::write(&kernel, bytes), Ok(bytes.len()));
    let partial = Header { flags: 1, checksum_start: 34, checksum_offset: 16, ..Header::default() };
    let large = Header { gso_type: 1, gso_size: 1448, header_length: 54, ..partial };
    let sizes = [65_000, 1, 2048 - 54, 2049 - 54, 30_000, 5, 65_535 - 40];
    let mut burst = Burst::new();
    for round in 0..20 {
        for &payload in &sizes {
            let header = if payload > 1500 { large } else { partial };
            write(&message(header, &tcp(payload)));
        }
        let mut rx =
            Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, Time::ZERO, 3, 64);
        wire.receive(Time::ZERO, &mut rx);
        drop(rx);
        assert_eq!(burst.len(), sizes.len(), "round {round}");
        for (packet, payload) in burst.drain().zip(sizes) {
            let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
            assert!(bytes == tcp(payload), "round {round}: {payload}");
            assert_eq!(packet.length() as usize, 54 + payload);
            assert_eq!((packet.wire, packet.checksum()), (3, ChecksumState::Partial));
            let gso = if payload > 1500 { (GsoType::Tcp4, 1448) } else { (GsoType::None, 0) };
            assert_eq!((packet.gso_type(), packet.gso_size()), gso);
            pool.free(packet);
        }
    }
    // More than fits: shed, and the next is whole.
    write(&message(large, &tcp(70_000)));
    write(&message(partial, &tcp(9)));
    let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, Time::ZERO, 3, 64);
    wire.receive(Time::ZERO, &mut rx);
    drop(rx);
    assert_eq!((burst.len(), ledger.card.drops.total()), (1, 1));
    assert_eq!(ledger.card.drops.get(DropReason::Oversize, Stage::Wire), 1);
    burst.drain().for_each(|packet| pool.free(packet));
    let came_in = (counters.rx_packets.get(), counters.rx_shed.get());
    assert_eq!(came_in, (20 * sizes.len() as u64 + 1, 1));
    let mut none = VecDeque::new();
    let mut tx = Transmitter::new(&mut pool, &mut none, &counters, &ledger.card);
    let report = wire.stop(&mut tx).join("\n");
    // With the keys that mend it.
    assert!(report.contains(" gso_max_size 65536 gro_max_size 65536"), "{report}");
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn wires_without_buffers_leave_packets_in_the_kernel() {
    let (queue, kernel) = bare(&BuildContext::default());
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    let (mut pool, _) = Pool::new(&config, 0).unwrap();
    let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
    let mut wire = TapWire::of(queue);
    let mut held: Vec<_> = (0..40).map(|_| pool.allocate(60).unwrap()).collect();
    rustix::io::write(&kernel, &message(Header::default(), &tcp(9))).unwrap();
    let mut burst = Burst::new();
    for expected in [0, 1] {
        let mut rx =
            Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, Time::ZERO, 0, 64);
        wire.receive(Time::ZERO, &mut rx);
        drop(rx);
        assert_eq!(burst.len(), expected);
        held.drain(..).for_each(|packet| pool.free(packet));
    }
    assert_eq!(ledger.card.drops.total(), 0);
    burst.drain().for_each(|packet| pool.free(packet));
    let mut none = VecDeque::new();
    wire.stop(&mut Transmitter::new(&mut pool, &mut none, &counters, &ledger.card));
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn every_kernel_error_has_a_fate() {
    use super::queue::{Written, refusal};
    use rustix::io::Errno;
    for (answer, fate) in [
        (Errno::IO, Written::Down),
        (Errno::BADFD, Written::Down),
        (Errno::NOBUFS, Written::Full),
        (Errno::NOMEM, Written::Full),
        (Errno::INVAL, Written::Refused),
    ] {
        assert_eq!(refusal(answer), fate, "{answer}");
    }
}
