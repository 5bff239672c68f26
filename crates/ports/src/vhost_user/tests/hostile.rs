//! Front ends that mean harm: their guest is lost, the card and the other guests go on.

use super::super::pair::bits;
use super::extra::with_features;
use super::packet;
use super::protocol::{
    self, Guest, MEMORY, Machine, USER, WANTED, assert_passes, connect, connect_with, start,
};
use picnic_testing::{PATIENCE, wait_until};
use rustix::fs::ftruncate;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

#[test]
fn memory_that_shrinks_under_traffic_ends_only_its_guest() {
    let machine = Machine::new("");
    for (round, rest) in [0, 4096, MEMORY as u64 / 2, 0x2000].into_iter().enumerate() {
        let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        assert_passes(&machine, &mut guest, round as u64);
        while guest.rx.post(2000, 1, false).is_some() {}
        guest.send(1);
        // The target core polls the ring of the guest's packets all the time, and this deliver
        // reaches the other ring and the buffers of both.
        ftruncate(&guest.file, rest).unwrap();
        machine.deliver(&vec![packet(7, 1000); 20]);
        wait_until("the guest is lost", || {
            let state = machine.look().state;
            !state.is_connected && state.faults.join("\n").contains("its memory was taken away")
        });
        // A message now finds no connection.
        assert!(vhost::VhostBackend::get_features(&front).is_err());
    }
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 9);
    machine.end();
}

/// Numbers that look random, always the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A message with its descriptors: often one that is right, or nearly.
fn message(random: &mut Random, guest: &Guest, others: &[RawFd]) -> (Vec<u8>, Vec<RawFd>) {
    let request = match random.below(8) {
        0 => random.one_of(&[0, 44, 1000, u32::MAX.into()]),
        _ => 1 + random.below(43),
    };
    let ring = random.one_of(&[0, 0, 1, 1, 2, 7, u32::MAX.into()]);
    let address = |random: &mut Random| {
        USER + random.one_of(&[0, 0x1000, 0x2000, 0x4000, 8, MEMORY as u64 - 8, u64::MAX - USER])
    };
    let file = match random.below(4) {
        0 => others[random.below(others.len() as u64) as usize],
        _ => guest.file.as_raw_fd(),
    };
    let size = random.one_of(&[MEMORY as u64, MEMORY as u64, 4096, 0, 5, 1 << 40, u64::MAX]);
    let region =
        [random.one_of(&[0, 4096, 1 << 30]), size, address(random), random.one_of(&[0, 1])];
    let event = others[random.below(2) as usize];
    let whole = [WANTED | bits::PROTOCOL_FEATURES, u64::MAX, 0, random.0];
    let (words, files): (Vec<u64>, Vec<RawFd>) = match request {
        2 => (vec![random.one_of(&whole)], vec![]),
        16 => (vec![random.one_of(&[0x1_8063, 0x1_b01f, 0, u64::MAX])], vec![]),
        5 => {
            let count = random.one_of(&[1, 1, 2, 0, 9, u32::MAX.into()]);
            let regions = (count % 8) as usize;
            ([count].into_iter().chain(region.repeat(regions)).collect(), vec![file; regions])
        }
        6 | 31 => (vec![4096, random.one_of(&[0, 4096]), 64 << 16 | 2], vec![file]),
        32 => (vec![4096, 0, 64 << 16 | 2], vec![file]),
        8 | 10 | 18 => (vec![ring | random.one_of(&[0, 1, 64, 63, 1 << 20]) << 32], vec![]),
        9 => {
            let flags = random.one_of(&[0, 1, 2]) << 32;
            let three = [address(random), address(random), address(random)];
            ([ring | flags].into_iter().chain(three).chain([0]).collect(), vec![])
        }
        11 => (vec![ring], vec![]),
        12..=14 => match random.below(3) {
            0 => (vec![ring & 0xff | 0x100], vec![]),
            _ => (vec![ring & 0xff], vec![event]),
        },
        19 | 20 | 39 => (vec![random.one_of(&[0, 1500, 15, random.0])], vec![]),
        37 | 38 => ([0].into_iter().chain(region).collect(), vec![file]),
        _ => (vec![0; random.below(3) as usize], vec![]),
    };
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if request == 32 || request == 31 {
        body.truncate(20);
    }
    let flags = random.one_of(&[1, 1, 1, 9, 9, 0, 5, 0xff]);
    let length = match random.below(10) {
        0 => random.one_of(&[0, 1, 4096, 5000, u32::MAX.into()]),
        _ => body.len() as u64,
    };
    let header = [request as u32, flags as u32, length as u32].map(u32::to_le_bytes);
    let files = if random.below(12) == 0 { vec![event; 3] } else { files };
    ([header.as_flattened(), &body].concat(), files)
}

/// Some messages of a connection, which ends within the last; most connections agree on features first.
fn send_messages(socket: &Path, random: &mut Random, guest: &Guest, others: &[RawFd]) {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let agreed = [(2_u32, WANTED | bits::PROTOCOL_FEATURES), (16, 0x1_b01f)];
    for (request, value) in agreed.into_iter().filter(|_| random.below(4) != 0) {
        let header = [request, 1, 8].map(u32::to_le_bytes);
        let bytes = [header.as_flattened(), &value.to_le_bytes()].concat();
        let _ = stream.send_with_fds(&[&bytes[..]], &[]);
    }
    for step in 0..30 {
        let (mut bytes, files) = message(random, guest, others);
        if step == 29 {
            bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
        }
        if stream.send_with_fds(&[&bytes[..]], &files).is_err() {
            break;
        }
    }
}

#[test]
fn hostile_messages_in_any_order_harm_no_other_guest() {
    let machine = Machine::new("[[guest]]\nsocket = \"other\"");
    let other = machine.socket.with_file_name("other");
    let (event, pipe) = (protocol::event(), std::io::pipe().unwrap());
    let zero = File::open("/dev/zero").unwrap();
    let others = [event.as_raw_fd(), event.as_raw_fd(), pipe.0.as_raw_fd(), zero.as_raw_fd()];
    for round in 0..60 {
        let mut random = Random(round + 1);
        // The guest that is attacked has another beside it in every second round.
        let (attacked, mut good) = match round % 2 {
            0 => (&other, Some(connect(&machine.socket))),
            _ => (&machine.socket, None),
        };
        let mut guest = Guest::new();
        if let Some(front) = &mut good {
            start(front, &guest, &[0, 1, 2, 3, 4, 5]);
        }
        let harmed = Guest::new();
        for _ in 0..4 {
            send_messages(attacked, &mut random, &harmed, &others);
            if good.is_some() {
                assert_passes(&machine, &mut guest, round);
            }
        }
    }
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 9);
    // The messages reached far: they failed for many reasons.
    let faults = machine.end().state.faults;
    let ended = faults.iter().filter(|line| line.contains("the connection was ended")).count();
    assert!(ended >= 8, "{faults:#?}");
}

/// A write to the rings of a guest, or anywhere in its memory: often nearly right.
fn scribble(random: &mut Random, guest: &Guest) {
    let (ring, place) = (random.one_of(&[0, 0x4000]), random.below(64));
    let any = random.below(1 << 31) << 33 | random.below(1 << 31) << 2;
    let (address, value) = match random.below(6) {
        0 => (ring + 16 * place, any % (2 * MEMORY as u64)),
        // Lengths, flags, successors or numbers.
        1 => (ring + 16 * place + 8, any & 0x3f_8087_0000_2fff),
        2 => (ring + 16 * place + 8, any & 0x8087_003f_0000_2fff),
        3 => (ring + 0x1000, random.below(80) << 16),
        4 => (ring + 0x1004 + 2 * place, any & 0x3f_003f_003f_003f),
        _ => (random.below(MEMORY as u64 / 8) * 8, any),
    };
    guest.memory.write_obj(value, GuestAddress(address)).unwrap();
}

/// Wrong messages, wrong rings and memory that shrinks, in turn. `rounds` are those of a guest that
/// is served by the same target core.
fn attack(socket: &Path, is_packed: bool, rounds: &AtomicU64) {
    let event = protocol::event();
    let (pipe, zero) = (std::io::pipe().unwrap(), File::open("/dev/zero").unwrap());
    let others = [event.as_raw_fd(), event.as_raw_fd(), pipe.0.as_raw_fd(), zero.as_raw_fd()];
    let mut random = Random(7);
    // Its present round, and a whole one: the target core has met the rings as they are now.
    let be_polled = || {
        let wanted = rounds.load(Ordering::Relaxed) + 2;
        wait_until("two more rounds", || rounds.load(Ordering::Relaxed) >= wanted);
    };
    for round in 0..120 {
        let mut guest = Guest::with(is_packed);
        if round % 3 == 0 {
            send_messages(socket, &mut random, &guest, &others);
            continue;
        }
        let packed = if is_packed { bits::RING_PACKED } else { 0 };
        let mut front = connect_with(socket, WANTED | packed);
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        // A packet in memory that the guest lacks, and then anything.
        guest.tx.make(&[(1 << 40, 60, 0, 0)]);
        guest.kicks[1].write(1).unwrap();
        be_polled();
        for _ in 0..4 {
            for _ in 0..10 {
                (0..4).for_each(|_| scribble(&mut random, &guest));
                guest.kicks[1].write(1).unwrap();
            }
            be_polled();
        }
        if round % 6 == 1 {
            ftruncate(&guest.file, random.below(MEMORY as u64)).unwrap();
        }
    }
}

#[test]
fn a_guest_beside_a_hostile_one_loses_nothing() {
    const BURST: u64 = 20;
    for is_packed in [false, true] {
        let keys = format!("[[guest]]\nsocket = \"other\"\npacked = {is_packed}");
        let machine = Machine::new(&keys);
        let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        let attacked = machine.socket.with_file_name("other");
        let rounds = Arc::new(AtomicU64::new(0));
        let count = rounds.clone();
        let attacker = std::thread::spawn(move || attack(&attacked, is_packed, &count));
        let mut next = 0;
        while !attacker.is_finished() {
            let seeds = next..next + BURST;
            seeds.clone().for_each(|seed| guest.send(seed));
            let mut sent = Vec::new();
            wait_until("packets of the guest", || {
                sent.extend(machine.look().sent);
                sent.len() as u64 >= BURST
            });
            assert_eq!(sent, seeds.clone().map(|seed| packet(seed, 100)).collect::<Vec<_>>());
            assert_eq!(guest.tx.reclaim().len() as u64, BURST);
            assert!((0..BURST).all(|_| guest.rx.post(2000, 1, false).is_some()));
            let packets: Vec<_> = seeds.map(|seed| packet(seed, 300)).collect();
            next += BURST;
            assert_eq!(machine.deliver(&packets).delivered, next);
            assert_eq!(guest.rx.received(true), packets);
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        attacker.join().unwrap();
        // Each guest has its own reasons; all packets are accounted for.
        let seen = machine.end();
        assert_eq!((seen.disabled, seen.no_descriptor), (0, 0));
        let faults = &seen.beside.faults;
        let wrong = |part: &str| faults.iter().filter(|line| line.contains(part)).count();
        assert!(seen.bad_beside > 0 && wrong("ring ") >= 1, "{faults:#?}");
        assert!(wrong("the connection was ended at ") >= 4, "{faults:#?}");
        assert_eq!((seen.state.connections, &seen.state.faults[..]), (1, &[][..]));
    }
}

const SIZE: u64 = MEMORY as u64;

/// Asks for memory, by SET_MEM_TABLE or ADD_MEM_REG: guest address, size, address of the front end and
/// offset of each region. Whether the card takes it.
fn is_taken(stream: &UnixStream, request: u32, regions: &[[u64; 4]], files: usize) -> bool {
    let count = if request == 5 { regions.len() as u64 } else { 0 };
    let words: Vec<u64> = [count].into_iter().chain(regions.iter().flatten().copied()).collect();
    let body: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let header = [request, 9, body.len() as u32].map(u32::to_le_bytes);
    let file = Guest::new().file;
    let files = vec![file.as_raw_fd(); files];
    stream.send_with_fds(&[&[header.as_flattened(), &body].concat()[..]], &files).unwrap();
    let mut answer = [0; 20];
    let is_whole = (&mut &*stream).read_exact(&mut answer).is_ok();
    is_whole && answer[12..] == [0; 8]
}

#[test]
fn wrong_memory_is_refused_and_says_why() {
    const FIRST: [u64; 4] = [0, SIZE, USER, 0];
    const PAGE: u64 = 4096;
    let overlaps = "the memory overlaps";
    let (empty, long) = ("a region of memory is empty", "a region of memory is too long");
    // A region beside the first one.
    for (region, why) in [
        ([SIZE - PAGE, SIZE, USER + 2 * SIZE, 0], overlaps),
        ([PAGE, PAGE, USER + 2 * SIZE, 0], overlaps),
        ([2 * SIZE, SIZE, USER + SIZE - PAGE, 0], overlaps),
        ([2 * SIZE, PAGE, USER + PAGE, 0], overlaps),
        ([2 * SIZE, SIZE, USER - PAGE, 0], overlaps),
        ([2 * SIZE, 0, USER + 2 * SIZE, 0], empty),
        ([2 * SIZE, SIZE, USER + 2 * SIZE, PAGE], "no file, or a shorter one"),
        ([2 * SIZE, SIZE - PAGE, USER + 2 * SIZE, 1], "Invalid argument"),
        ([2 * SIZE, SIZE, USER + 2 * SIZE, u64::MAX - PAGE + 1], long),
        ([2 * SIZE, u64::MAX, USER + 2 * SIZE, 0], long),
        ([u64::MAX - PAGE + 1, SIZE, USER + 2 * SIZE, 0], long),
        ([2 * SIZE, SIZE, u64::MAX - PAGE + 1, 0], long),
    ] {
        for request in [5, 37] {
            let machine = Machine::new("");
            let (front, stream) = with_features(&machine);
            let taken = match request {
                5 => is_taken(&stream, 5, &[FIRST, region], 2),
                _ => is_taken(&stream, 37, &[FIRST], 1) && is_taken(&stream, 37, &[region], 1),
            };
            assert!(!taken, "{request} {region:x?}");
            drop((front, stream));
            wait_until("the reason", || !machine.look().state.faults.is_empty());
            let told = machine.end().state.faults.join("\n");
            let name = if request == 5 { "SET_MEM_TABLE" } else { "ADD_MEM_REG" };
            let at = format!("the connection was ended at {name}: ");
            // Crate `vhost` checks the numbers of a table itself.
            let is_checked = request == 5 && [empty, long].contains(&why);
            let is_told =
                |told: &str| told.contains(if is_checked { "invalid message" } else { why });
            let reason = told.split_once(&at).map(|(_, told)| told);
            assert!(reason.is_some_and(is_told), "{region:x?}: {told}");
        }
    }
}

#[test]
fn a_table_has_up_to_32_regions_and_a_file_for_each() {
    let machine = Machine::new("");
    let page = |index: u64| [SIZE + index * 8192, 4096, USER + SIZE + index * 8192, index * 4096];
    for (count, files, is_right) in
        [(9, 9, true), (32, 32, true), (33, 32, false), (9, 8, false), (8, 9, false), (0, 0, false)]
    {
        let (mut front, stream) = with_features(&machine);
        let mut guest = Guest::new();
        let regions: Vec<_> = (0..count)
            .map(|index| if index == 0 { [0, SIZE, USER, 0] } else { page(index) })
            .collect();
        assert_eq!(
            is_taken(&stream, 5, &regions, files),
            is_right,
            "{count} regions, {files} files"
        );
        if is_right {
            start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
            assert_passes(&machine, &mut guest, count);
        }
    }
    machine.end();
}

/// Messages of a front end that uses all that there is, with their descriptors.
fn session(guest: &Guest, event: RawFd) -> Vec<(Vec<u8>, Vec<RawFd>)> {
    let memory = vec![guest.file.as_raw_fd()];
    let region = vec![0, 0, SIZE, USER, 0];
    let ring = |index: u64| {
        let at = USER + 0x4000 * index;
        [
            (8, vec![index | 64 << 32], vec![]),
            (9, vec![index, at, at + 0x2000, at + 0x1000, 0], vec![]),
            (10, vec![index], vec![]),
            (14, vec![index], vec![event]),
            (13, vec![index], vec![event]),
            (12, vec![index], vec![event]),
            (18, vec![index | 1 << 32], vec![]),
        ]
    };
    let first: [(u32, Vec<u64>, Vec<RawFd>); 9] = [
        (3, vec![], vec![]),
        (1, vec![], vec![]),
        (2, vec![WANTED | bits::PROTOCOL_FEATURES | bits::LOG_ALL], vec![]),
        (15, vec![], vec![]),
        (16, vec![0x1_b01f], vec![]),
        (17, vec![], vec![]),
        (36, vec![], vec![]),
        (5, vec![1, 0, SIZE, USER, 0], memory.clone()),
        (39, vec![15], vec![]),
    ];
    let last: [(u32, Vec<u64>, Vec<RawFd>); 10] = [
        (6, vec![4096, 0], memory.clone()),
        (19, vec![0x5452], vec![]),
        (20, vec![1500], vec![]),
        (40, vec![], vec![]),
        (11, vec![0], vec![]),
        (11, vec![1], vec![]),
        (38, region.clone(), vec![]),
        (37, region, memory),
        (39, vec![0], vec![]),
        (34, vec![], vec![]),
    ];
    let all = first.into_iter().chain(ring(0)).chain(ring(1)).chain(last);
    all.map(|(request, words, files)| {
        let body: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let header = [request, 1, body.len() as u32].map(u32::to_le_bytes);
        ([header.as_flattened(), &body].concat(), files)
    })
    .collect()
}

#[test]
fn a_connection_may_end_within_any_message() {
    let machine = Machine::new("[[guest]]\nsocket = \"other\"");
    let attacked = machine.socket.with_file_name("other");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    let (harmed, event) = (Guest::new(), protocol::event());
    let messages = session(&harmed, event.as_raw_fd());
    let is_there = |stream: &UnixStream, (bytes, files): &(Vec<u8>, Vec<RawFd>)| {
        stream.send_with_fds(&[&bytes[..]], files).is_ok_and(|sent| sent == bytes.len())
    };
    let ask = ([1_u32, 1, 0].map(u32::to_le_bytes).as_flattened().to_vec(), vec![]);
    for (last, (bytes, files)) in messages.iter().enumerate() {
        for cut in [1, 6, 11, 12, 12 + (bytes.len() - 12) / 2, bytes.len() - 1, bytes.len()] {
            let stream = UnixStream::connect(&attacked).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            // The messages before are right: the question after them is answered.
            let before = messages[..last].iter().chain([&ask]);
            assert!(before.clone().all(|message| is_there(&stream, message)), "{last}");
            let mut answers = before.filter(|(bytes, _)| bytes[0] == 1).count();
            while answers != 0 {
                let mut header = [0; 12];
                (&mut &stream).read_exact(&mut header).unwrap();
                (&mut &stream).read_exact(&mut vec![0; header[8].into()]).unwrap();
                answers -= usize::from(header[0] == 1);
            }
            let cut = cut.min(bytes.len());
            assert!(is_there(&stream, &(bytes[..cut].to_vec(), files.clone())), "{last}");
        }
        assert_passes(&machine, &mut guest, last as u64);
    }
    // The next one is served.
    let mut front = connect(&attacked);
    start(&mut front, &harmed, &[0, 1, 2, 3, 4, 5]);
    let faults = machine.end().beside.faults;
    assert!(faults.iter().any(|line| line.contains("partial message")), "{faults:#?}");
    assert!(!faults.iter().any(|line| line.contains("ring ")), "{faults:#?}");
}

#[test]
fn a_front_end_may_use_fewer_queues() {
    let machine = Machine::new("");
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    let asked = VhostUserInflight::new(0, 0, 2, 64);
    let (area, file) = front.get_inflight_fd(&asked).unwrap();
    front.set_inflight_fd(&area, file.as_raw_fd()).unwrap();
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    for seed in 0..5 {
        assert_passes(&machine, &mut guest, 2 * seed);
        // What the card steers to the other queue is lost, and counted.
        let before = machine.look().disabled_beside;
        wait_until("packets of the other queue", || machine.look().disabled_beside > before);
    }
    assert_eq!(machine.end().disabled, 0);
}
