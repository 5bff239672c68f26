//! Front ends that mean harm: their guest is lost, the card and the other guests go on.

use super::super::pair::bits;
use super::packet;
use super::protocol::{self, Guest, MEMORY, Machine, USER, WANTED, assert_passes, connect, start};
use picnic_testing::wait_until;
use rustix::fs::ftruncate;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
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
            let report = machine.look().report.join("\n");
            let is_gone = !report.contains("connected at the end");
            is_gone && report.contains("its memory was taken away")
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

#[test]
fn hostile_messages_in_any_order_harm_no_other_guest() {
    let machine = Machine::new("[[guest]]\nsocket = \"other\"");
    let other = machine.socket.with_file_name("other");
    let (event, pipe) = (protocol::event(), std::io::pipe().unwrap());
    let zero = File::open("/dev/zero").unwrap();
    let others = [event.as_raw_fd(), event.as_raw_fd(), pipe.0.as_raw_fd(), zero.as_raw_fd()];
    for round in 0..60 {
        let mut random = Random(round + 1);
        // The other guest has no target core; the attacked one of every second round has.
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
            let stream = UnixStream::connect(attacked).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            // Most connections agree on features first.
            let agreed = [(2_u32, WANTED | bits::PROTOCOL_FEATURES), (16, 0x1_b01f)];
            for (request, value) in agreed.into_iter().filter(|_| random.below(4) != 0) {
                let header = [request, 1, 8].map(u32::to_le_bytes);
                let bytes = [header.as_flattened(), &value.to_le_bytes()].concat();
                let _ = stream.send_with_fds(&[&bytes[..]], &[]);
            }
            for step in 0..30 {
                let (mut bytes, files) = message(&mut random, &harmed, &others);
                // The connection ends within a message.
                let is_cut = step == 29;
                if is_cut {
                    bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
                }
                if stream.send_with_fds(&[&bytes[..]], &files).is_err() {
                    break;
                }
            }
            if good.is_some() {
                assert_passes(&machine, &mut guest, round);
            }
        }
    }
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 9);
    // The messages reached far: they failed for many reasons.
    let report = machine.end().report;
    let ended = report.iter().filter(|line| line.contains("the connection was ended")).count();
    assert!(ended >= 8, "{report:#?}");
}
