//! Two guests on one card: their figures, captures of one, and traffic between them.

use crate::common::{Client, Served};
use picnic_control::Report;
use picnic_control::report::{GuestPhase, GuestReport};
use picnic_testing::wait_until;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// CSUM, GUEST_CSUM, GUEST_TSO4, HOST_TSO4, MRG_RXBUF, PROTOCOL_FEATURES, VERSION_1.
const FEATURES: u64 = 1 | 1 << 1 | 1 << 7 | 1 << 11 | 1 << 15 | 1 << 30 | 1 << 32;
const MEMORY: u64 = 0x80_0000;
/// Address of the guest's memory in its front end.
const USER: u64 = 0x7f00_0000_0000;
/// Entries of a ring.
const SIZE: u16 = 32;
/// Addresses of both rings' parts and of their buffers.
const RINGS: [u64; 2] = [0, 0x4000];
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: [u64; 2] = [0x10_0000, 0x40_0000];
/// Bytes of a buffer: a super-frame and its header.
const BUFFER: u32 = 0x1_1000;
const HEADER: usize = 12;
/// Packets for the guest, and packets of the guest.
const RX: usize = 0;
const TX: usize = 1;

/// A guest with one pair of split rings, and its front end.
struct Guest {
    /// The guest goes with it.
    _front: Frontend,
    memory: File,
    kicks: [EventFd; 2],
    available: [u16; 2],
    used: [u16; 2],
}

impl Guest {
    fn connect(socket: &Path) -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&memory, MEMORY).unwrap();
        let mut front = Frontend::connect(socket, 2).unwrap();
        front.set_owner().unwrap();
        assert_eq!(front.get_features().unwrap() & FEATURES, FEATURES);
        front.set_features(FEATURES).unwrap();
        front.get_protocol_features().unwrap();
        front.set_protocol_features(VhostUserProtocolFeatures::REPLY_ACK).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        front.set_mem_table(&[region]).unwrap();
        let kicks = [EventFd::new(0).unwrap(), EventFd::new(0).unwrap()];
        for ring in [RX, TX] {
            let at = USER + RINGS[ring];
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: at,
                used_ring_addr: at + USED,
                avail_ring_addr: at + AVAILABLE,
                log_addr: None,
            };
            front.set_vring_num(ring, SIZE).unwrap();
            front.set_vring_addr(ring, &config).unwrap();
            front.set_vring_base(ring, 0).unwrap();
            front.set_vring_kick(ring, &kicks[ring]).unwrap();
            front.set_vring_enable(ring, true).unwrap();
        }
        Guest { _front: front, memory, kicks, available: [0; 2], used: [0; 2] }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap();
    }

    fn read<const BYTES: usize>(&self, address: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    }

    /// Makes a buffer available, which the device may write with flag 2.
    fn make_available(&mut self, ring: usize, length: u32, flags: u16) {
        let index = self.available[ring];
        let slot = u64::from(index % SIZE);
        let address = BUFFERS[ring] + slot * u64::from(BUFFER);
        let mut descriptor = address.to_le_bytes().to_vec();
        descriptor.extend(length.to_le_bytes());
        descriptor.extend([flags, 0].map(u16::to_le_bytes).as_flattened());
        self.write(RINGS[ring] + 16 * slot, &descriptor);
        self.write(RINGS[ring] + AVAILABLE + 4 + 2 * slot, &(slot as u16).to_le_bytes());
        self.available[ring] = index.wrapping_add(1);
        self.write(RINGS[ring] + AVAILABLE + 2, &self.available[ring].to_le_bytes());
        self.kicks[ring].write(1).unwrap();
    }

    fn post(&mut self, buffers: usize) {
        (0..buffers).for_each(|_| self.make_available(RX, BUFFER, 2));
    }

    fn send(&mut self, header: [u8; HEADER], frame: &[u8]) {
        let slot = u64::from(self.available[TX] % SIZE);
        let whole = [&header[..], frame].concat();
        self.write(BUFFERS[TX] + slot * u64::from(BUFFER), &whole);
        self.make_available(TX, whole.len() as u32, 0);
    }

    /// Header and bytes of the packets received since the last call.
    fn received(&mut self) -> Vec<([u8; HEADER], Vec<u8>)> {
        let at = RINGS[RX] + USED;
        let end = u16::from_le_bytes(self.read(at + 2));
        let mut packets = Vec::new();
        while self.used[RX] != end {
            let entry = at + 4 + 8 * u64::from(self.used[RX] % SIZE);
            let [buffer, length] = [0, 4].map(|part| u32::from_le_bytes(self.read(entry + part)));
            let mut bytes = vec![0; length as usize];
            let address = BUFFERS[RX] + u64::from(buffer) * u64::from(BUFFER);
            self.memory.read_exact_at(&mut bytes, address).unwrap();
            let (header, frame) = bytes.split_first_chunk().unwrap();
            packets.push((*header, frame.to_vec()));
            self.used[RX] = self.used[RX].wrapping_add(1);
        }
        packets
    }

    /// A ring that claims to have more entries than fit.
    fn spoil(&mut self, ring: usize) {
        let far = self.available[ring].wrapping_add(2 * SIZE);
        self.write(RINGS[ring] + AVAILABLE + 2, &far.to_le_bytes());
        self.kicks[ring].write(1).unwrap();
    }
}

/// TCP over IPv4 between these guests, with the pseudo-header's sum as checksum.
fn tcp(from: u8, to: u8, payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0, 0x45, 0];
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    frame.extend([0, 80, 1, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0xab, 0xcd, 0, 0]);
    frame.extend((0..payload).map(|index| (index * 7 + index / 251) as u8));
    frame
}

/// A card with a guest in each of two pools, and a wire that brings one frame, for neither.
fn card() -> (Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let guest = |name: &str| {
        let socket = folder.path().join(name).join("vm.sock");
        std::fs::create_dir(folder.path().join(name)).unwrap();
        format!("[[host.guest]]\nsocket = {:?}\n", socket.display().to_string())
    };
    let vmdq = "function = \"vmdq\"\npools = [{ macs = [\"02:00:00:00:00:01\"], queues = [0] }, \
                { macs = [\"02:00:00:00:00:02\"], queues = [1] }]\n";
    let text = format!(
        "[[wire]]\nport = \"generator\"\npackets = 1\n[[rx]]\n{vmdq}[[rx]]\nfunction = \"drop\"\n\
         [[tx]]\n{vmdq}[[tx]]\nfunction = \"tso\"\n\
         [host]\nattachment = \"vhost-user\"\nqueues = 2\n{}{}",
        guest("a"),
        guest("b"),
    );
    (Served::start(&text), folder)
}

/// Names of the guests, whose sockets have the same name in two folders.
const NAMES: [&str; 2] = ["vm", "vm-2"];

fn stats(client: &mut Client) -> Report {
    serde_json::from_value(client.good("card.stats", json!({}))).unwrap()
}

/// Waits for this state of the guests; returns it.
fn guests(
    client: &mut Client,
    what: &str,
    is_reached: impl Fn(&[GuestReport]) -> bool,
) -> Vec<GuestReport> {
    let mut found = Vec::new();
    wait_until(what, || {
        found = stats(client).guests;
        is_reached(&found)
    });
    found
}

fn all_ready(guests: &[GuestReport]) -> bool {
    guests.iter().all(|guest| guest.state == GuestPhase::Ready)
}

/// All counters of a guest.
fn counters(guest: &GuestReport) -> Value {
    let GuestReport { packets, bytes, transmitted, transmitted_bytes, .. } = guest;
    json!([packets, bytes, transmitted, transmitted_bytes, guest.drops, guest.in_packets])
}

/// Whether a guest has these counters, and no packet on its way.
fn has(guest: &GuestReport, wanted: &Value) -> bool {
    counters(guest) == *wanted && guest.in_flight == 0
}

fn is_balanced(report: &Report) -> bool {
    let sum = |count: fn(&GuestReport) -> u64| report.guests.iter().map(count).sum::<u64>();
    let each = report.guests.iter().all(|guest| {
        let left = guest.packets + guest.transmitted + guest.dropped + guest.in_flight;
        guest.in_packets == left && guest.dropped == guest.drops.values().sum::<u64>()
    });
    let of_queues: u64 = report.queues.iter().map(|queue| queue.transmitted).sum();
    let at_target = report.drops_by_stage.iter().filter(|(place, _)| place.ends_with("@target"));
    each && sum(|guest| guest.packets) == report.ledger.delivered
        && sum(|guest| guest.transmitted) == of_queues
        && sum(|guest| guest.dropped) == at_target.map(|(_, packets)| packets).sum::<u64>()
}

#[test]
fn figures_of_a_guest_are_its_own() {
    let (card, folder) = card();
    let mut client = card.client();
    let report = stats(&mut client);
    let of_queues: Vec<_> = report.queues.iter().map(|queue| queue.guest.as_deref()).collect();
    assert_eq!(of_queues, NAMES.map(Some));
    for guest in &report.guests {
        let state = (guest.state, guest.connections, guest.ready_queues, guest.rings.as_deref());
        assert_eq!(state, (GuestPhase::Waiting, 0, 0, None));
    }
    let sockets = ["a", "b"].map(|name| folder.path().join(name).join("vm.sock"));
    let mut first = Guest::connect(&sockets[0]);
    let mut second = Guest::connect(&sockets[1]);
    let ready = guests(&mut client, "both guests are ready", all_ready);
    for (guest, name) in ready.iter().zip(NAMES) {
        assert_eq!((&*guest.guest, guest.ready_queues, guest.queues), (name, 1, 1));
        assert_eq!((guest.rings.as_deref(), guest.mtu_bytes), (Some("split"), 1500));
        let features = guest.features.join(" ");
        assert_eq!(
            features,
            "csum guest_csum guest_tso4 host_tso4 mrg_rxbuf protocol_features version_1"
        );
    }

    // The first sends more than the second has buffers for, while its own queue is captured.
    let (capture, file) = (folder.path().join("vm.pcapng"), |path: &Path| File::create(path));
    let wanted = json!({ "stages": ["queue"], "guests": [NAMES[1]] });
    let started = client.call_with(file(&capture).unwrap(), "capture.start", wanted).unwrap();
    assert_eq!(started["interfaces"], json!(["queue1 vm-2"]));
    second.post(15);
    let frame = tcp(1, 2, 46);
    (0..20).for_each(|_| first.send([0; HEADER], &frame));
    let bytes = frame.len() as u64;
    // Counters are read one after another, while the card may still count.
    let drops = json!({ "no_descriptor": 5 });
    let wanted = [json!([0, 0, 20, 20 * bytes, {}, 20]), json!([15, 15 * bytes, 0, 0, drops, 20])];
    guests(&mut client, &format!("20 packets have left: {wanted:?}"), |guests| {
        guests.iter().zip(&wanted).all(|(guest, wanted)| has(guest, wanted))
    });
    wait_until("the figures add up", || is_balanced(&stats(&mut client)));
    let outcome = client.good("capture.stop", json!({ "capture": started["capture"] }));
    assert_eq!(outcome["packets_written"], 20);

    // The other way; the second guest's drops stay.
    first.post(3);
    (0..3).for_each(|_| second.send([0; HEADER], &tcp(2, 1, 46)));
    let wanted = [
        json!([3, 3 * bytes, 20, 20 * bytes, {}, 23]),
        json!([15, 15 * bytes, 3, 3 * bytes, drops, 23]),
    ];
    let sent = guests(&mut client, &format!("3 packets have left: {wanted:?}"), |guests| {
        guests.iter().zip(&wanted).all(|(guest, wanted)| has(guest, wanted))
    });

    // A guest that goes keeps its figures; packets for it are dropped, and it may return.
    drop(second);
    let is_gone = |guests: &[GuestReport]| guests[1].state == GuestPhase::Waiting;
    let gone = guests(&mut client, "the second guest has gone", is_gone);
    assert_eq!((counters(&gone[1]), gone[1].ready_queues), (counters(&sent[1]), 0));
    assert_eq!(gone[0], sent[0]);
    first.send([0; HEADER], &frame);
    let drops = BTreeMap::from([("no_descriptor".into(), 5), ("ring_disabled".into(), 1)]);
    guests(&mut client, "a packet is lost, as its ring is disabled", |guests| {
        guests[1].in_packets == 24 && guests[1].in_flight == 0 && guests[1].drops == drops
    });
    let mut second = Guest::connect(&sockets[1]);
    let again = guests(&mut client, "the second guest is back", all_ready);
    assert_eq!((again[1].connections, again[1].packets), (2, 15));

    // A wrong ring is named while the guest is there.
    second.spoil(TX);
    let broken = guests(&mut client, "a ring is broken", |guests| {
        guests[1].broken_rings != 0 && !guests[1].faults.is_empty()
    });
    let counts = [&broken[0], &broken[1]].map(|guest| (guest.broken_rings, guest.faults.len()));
    assert_eq!(counts, [(0, 0), (1, 1)]);
    assert!(broken[1].faults[0].starts_with("ring 1: "), "{:?}", broken[1].faults);
    let report = card.stop();
    assert!(is_balanced(&report), "{report:#?}");
    // The state at the end is that before the card closed the connections.
    assert_eq!((report.guests[0].state, report.guests[1].broken_rings), (GuestPhase::Ready, 1));
}

#[test]
fn unknown_guests_cannot_be_captured() {
    let (card, folder) = card();
    let file = File::create(folder.path().join("none.pcapng")).unwrap();
    let wanted = json!({ "stages": ["queue"], "guests": ["vm0"] });
    let refused = card.client().call_with(file, "capture.start", wanted).unwrap_err();
    assert_eq!(refused["message"], "guests: found vm0, allowed: vm, vm-2");
    card.stop();
}

#[test]
fn super_frames_between_guests_stay_whole() {
    let (card, folder) = card();
    let mut client = card.client();
    let [mut first, mut second] =
        ["a", "b"].map(|name| Guest::connect(&folder.path().join(name).join("vm.sock")));
    guests(&mut client, "both guests are ready", all_ready);
    second.post(8);
    // NEEDS_CSUM, start 34, offset 16; TCPV4 in segments of 1448 bytes behind 54.
    let partial = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    let large = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    let sent = [(partial, tcp(1, 2, 900)), (large, tcp(1, 2, 40_000)), (partial, tcp(1, 2, 7))];
    sent.iter().for_each(|(header, frame)| first.send(*header, frame));
    let mut received = Vec::new();
    wait_until("three packets", || {
        received.extend(second.received());
        received.len() >= sent.len()
    });
    for ((header, frame), (sent_header, sent_frame)) in received.iter().zip(&sent) {
        // One buffer each; the rest of the header is the sender's.
        assert_eq!((&header[..10], header[10]), (&sent_header[..10], 1));
        assert!(frame == sent_frame, "{} of {} bytes", frame.len(), sent_frame.len());
    }
    let bytes: usize = sent.iter().map(|(_, frame)| frame.len()).sum();
    guests(&mut client, "they are counted", |guests| {
        let counted = (guests[1].bytes, guests[0].transmitted_bytes);
        guests[1].packets == 3 && counted == (bytes as u64, bytes as u64)
    });
    let report = card.stop();
    assert!(is_balanced(&report), "{report:#?}");
}
