//! Messages that crate `vhost` does not know.

use super::super::pair::bits;
use super::packet;
use super::protocol::{Guest, Machine, WANTED, assert_passes, start};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};

const ALL: &[usize] = &[0, 1, 2, 3, 4, 5];

/// A front end, and the stream beside it for messages that it does not know, or does not send.
fn pair(machine: &Machine) -> (Frontend, UnixStream) {
    let stream = UnixStream::connect(&machine.socket).unwrap();
    stream.set_read_timeout(Some(picnic_testing::PATIENCE)).unwrap();
    let front = Frontend::from_stream(stream.try_clone().unwrap(), 8);
    front.set_owner().unwrap();
    front.get_features().unwrap();
    front.set_features(WANTED | bits::PROTOCOL_FEATURES).unwrap();
    (front, stream)
}

pub(super) fn with_features(machine: &Machine) -> (Frontend, UnixStream) {
    let (mut front, stream) = pair(machine);
    let features = front.get_protocol_features().unwrap();
    front.set_protocol_features(features).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    (front, stream)
}

fn send(stream: &mut UnixStream, request: u32, flags: u32, body: &[u8]) {
    let header = [request, flags, body.len() as u32].map(u32::to_le_bytes);
    // The connection may be over.
    let _ = stream.write_all(&[header.as_flattened(), body].concat());
}

/// The answer's value; none if the connection is over.
fn answer(stream: &mut UnixStream, request: u32) -> Option<u64> {
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).ok()?;
    let header = [request, 5, 8].map(u32::to_le_bytes);
    assert_eq!(reply[..12], *header.as_flattened());
    Some(u64::from_le_bytes(*reply[12..].first_chunk().unwrap()))
}

fn ask(stream: &mut UnixStream, request: u32, value: u64) -> Option<u64> {
    send(stream, request, 9, &value.to_le_bytes());
    answer(stream, request)
}

#[test]
fn the_mtu_of_the_front_end_holds() {
    let machine = Machine::new("mtu = 2000");
    let (mut front, mut stream) = with_features(&machine);
    let mut guest = Guest::new();
    start(&mut front, &guest, ALL);
    let longest = |guest: &mut Guest, length: usize| {
        guest.tx.send(&[vec![0; 12], packet(1, length)].concat(), 1, false).unwrap();
        picnic_testing::wait_until("the chain returns", || !guest.tx.reclaim().is_empty());
        let seen = machine.look();
        let lengths: Vec<_> = seen.sent.iter().map(Vec::len).collect();
        assert!(lengths.is_empty() || lengths == [length], "{lengths:?} {:?}", seen.state);
        !lengths.is_empty()
    };
    // Besides the Ethernet header and two tags.
    assert!(longest(&mut guest, 2022));
    assert!(!longest(&mut guest, 2023));
    assert_eq!(ask(&mut stream, 20, 1500), Some(0));
    assert!(longest(&mut guest, 1522));
    assert!(!longest(&mut guest, 1523));
    assert_eq!(ask(&mut stream, 20, 2000), Some(0));
    assert!(longest(&mut guest, 2022));
    drop((front, stream));
    for wrong in [67, 2001, 1 << 33] {
        let (_front, mut stream) = with_features(&machine);
        assert_eq!(ask(&mut stream, 20, wrong), Some(1), "{wrong}");
        assert_eq!(ask(&mut stream, 20, 1500), None, "{wrong}");
    }
    let report = machine.end().state.faults.join("\n");
    assert!(report.contains("the MTU is below 68, or above the card file's"), "{report}");
}

#[test]
fn the_status_is_kept_and_zero_is_a_reset() {
    let machine = Machine::new("");
    let (mut front, mut stream) = with_features(&machine);
    let mut guest = Guest::new();
    send(&mut stream, 40, 1, &[]);
    assert_eq!(answer(&mut stream, 40), Some(0));
    start(&mut front, &guest, ALL);
    for status in [1, 3, 11, 15] {
        assert_eq!(ask(&mut stream, 39, status), Some(0));
        send(&mut stream, 40, 1, &[]);
        assert_eq!(answer(&mut stream, 40), Some(status));
    }
    assert_passes(&machine, &mut guest, 1);
    assert_eq!(ask(&mut stream, 39, 0), Some(0));
    assert_eq!(machine.deliver(&[packet(0, 60)]).disabled, 1);
    // Where its rings stopped, it may be asked now, too.
    assert!((0..2).all(|ring| front.get_vring_base(ring).unwrap() > 0));
    // A driver that starts again, in the memory that the card still has.
    let mut guest = Guest::new();
    front.set_features(WANTED | bits::PROTOCOL_FEATURES).unwrap();
    start(&mut front, &guest, ALL);
    assert_passes(&machine, &mut guest, 5);
    assert_eq!(ask(&mut stream, 39, 256), Some(1));
    machine.end();
}

#[test]
fn a_guest_that_moved_is_announced_once() {
    let machine = Machine::new("");
    let (mut front, mut stream) = with_features(&machine);
    let mut guest = Guest::new();
    // It waits until the rings work.
    let address = [0x52, 0x54, 0, 1, 2, 3];
    let value = u64::from_le_bytes([0x52, 0x54, 0, 1, 2, 3, 0, 0]);
    assert_eq!(ask(&mut stream, 19, value), Some(0));
    assert!(machine.look().sent.is_empty());
    start(&mut front, &guest, ALL);
    let is_rarp = |frame: &[u8]| {
        let parsed = etherparse::Ethernet2Header::from_slice(frame).unwrap().0;
        assert_eq!((parsed.destination, parsed.source), ([0xff; 6], address));
        let fields = [&[0, 1, 8, 0, 6, 4, 0, 3], &address[..], &[0; 4], &address, &[0; 4]].concat();
        parsed.ether_type.0 == 0x8035 && frame.len() == 60 && frame[14..42] == fields
    };
    let mut sent = Vec::new();
    picnic_testing::wait_until("the announcement", || {
        sent.extend(machine.look().sent);
        !sent.is_empty()
    });
    assert!(sent.len() == 1 && is_rarp(&sent[0]), "{sent:?}");
    assert_passes(&machine, &mut guest, 1);
    assert_eq!(ask(&mut stream, 19, value), Some(0));
    let mut sent = Vec::new();
    picnic_testing::wait_until("another", || {
        sent.extend(machine.look().sent);
        !sent.is_empty()
    });
    assert!(sent.len() == 1 && is_rarp(&sent[0]), "{sent:?}");
    machine.end();
}

#[test]
fn messages_need_their_feature_their_length_and_their_version() {
    let machine = Machine::new("");
    for (request, flags, bytes) in [(19, 1, 8), (20, 1, 8), (39, 1, 8), (40, 1, 0)] {
        let (_front, mut stream) = pair(&machine);
        send(&mut stream, request, flags, &vec![0; bytes]);
        assert_eq!(answer(&mut stream, request), None, "{request} without its feature");
    }
    for (request, flags, bytes) in [
        (7, 1, 8),
        (18, 1, 4),
        (19, 1, 0),
        (20, 2, 8),
        (39, 5, 8),
        (40, 1, 8),
        (41, 1, 0),
        (u32::MAX, 1, 0),
    ] {
        let (_front, mut stream) = with_features(&machine);
        send(&mut stream, request, flags, &vec![0; bytes]);
        assert_eq!(answer(&mut stream, request), None, "{request} {flags} {bytes}");
    }
    // A descriptor for signals about the log is taken, and closed.
    let (mut front, _stream) = with_features(&machine);
    let event = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
    front.set_log_fd(std::os::fd::AsRawFd::as_raw_fd(&event)).unwrap();
    let mut guest = Guest::new();
    start(&mut front, &guest, ALL);
    assert_passes(&machine, &mut guest, 1);
    machine.end();
}
