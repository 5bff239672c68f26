//! Captures built byte by byte, cut everywhere, damaged at random; pace and loops.

use super::*;
use crate::harness::Bench;
use crate::pcapng::{Packet, Writer};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};
use picnic_core::config::Section;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::find;
use proptest::prelude::*;
use std::process::Command;

#[derive(Clone, Copy, Debug)]
struct Kind {
    big: bool,
    nanos: bool,
}

const KINDS: [Kind; 4] = [
    Kind { big: false, nanos: false },
    Kind { big: true, nanos: false },
    Kind { big: false, nanos: true },
    Kind { big: true, nanos: true },
];

/// Numbers in one byte order.
struct Bytes {
    big: bool,
    bytes: Vec<u8>,
}

impl Bytes {
    fn new(big: bool) -> Self {
        Bytes { big, bytes: Vec::new() }
    }
    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&if self.big { value.to_be_bytes() } else { value.to_le_bytes() })
    }
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
    fn padded(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0xee);
        self
    }
    fn block(&mut self, block_type: u32, body: impl FnOnce(&mut Bytes)) -> &mut Self {
        let mut inner = Bytes::new(self.big);
        body(&mut inner);
        let length = inner.bytes.len() as u32 + 12;
        self.u32(block_type).u32(length).raw(&inner.bytes).u32(length)
    }
    fn section(&mut self) -> &mut Self {
        self.block(0x0a0d_0d0a, |b| {
            b.u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        })
    }
    fn interface(&mut self, link: u16, snaplen: u32, options: &[(u16, &[u8])]) -> &mut Self {
        self.block(1, |b| {
            b.u16(link).u16(0).u32(snaplen);
            for (code, value) in options {
                b.u16(*code).u16(value.len() as u16).padded(value);
            }
            b.u32(0);
        })
    }
    fn enhanced(&mut self, interface: u32, time: u64, data: &[u8], original: u32) -> &mut Self {
        self.block(6, |b| {
            b.u32(interface).u32((time >> 32) as u32).u32(time as u32);
            b.u32(data.len() as u32).u32(original).padded(data);
        })
    }
    fn simple(&mut self, data: &[u8], original: u32) -> &mut Self {
        self.block(3, |b| {
            b.u32(original).padded(data);
        })
    }
    fn obsolete(&mut self, interface: u16, time: u64, data: &[u8]) -> &mut Self {
        self.block(2, |b| {
            b.u16(interface).u16(7).u32((time >> 32) as u32).u32(time as u32);
            b.u32(data.len() as u32).u32(data.len() as u32).padded(data);
        })
    }
}

/// A pcap; packets as (nanoseconds, bytes, original length).
fn pcap(kind: Kind, packets: &[(u64, &[u8], u32)]) -> Vec<u8> {
    let mut file = Bytes::new(kind.big);
    let magic = if kind.nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    file.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(262_144).u32(1);
    for (time, data, original) in packets {
        let fraction = (time % 1_000_000_000) / if kind.nanos { 1 } else { 1000 };
        file.u32((time / 1_000_000_000) as u32).u32(fraction as u32);
        file.u32(data.len() as u32).u32(*original).raw(data);
    }
    file.bytes
}

fn parsed(bytes: &[u8]) -> (Vec<(Vec<u8>, u64)>, CaptureFile) {
    let file = CaptureFile::parse(bytes.to_vec()).unwrap();
    let packets = (0..file.len()).map(|index| {
        let (data, time) = file.packet(index).unwrap();
        (data.to_vec(), time)
    });
    (packets.collect(), file)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(bytes: &[u8]) -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        std::fs::write(folder.path("in.pcap"), bytes).unwrap();
        folder
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn context(&self) -> BuildContext {
        BuildContext { directory: self.0.path().into(), ..BuildContext::default() }
    }
    fn port(&self, config: PcapConfig) -> PcapPort {
        self.try_port(config).unwrap()
    }
    fn try_port(&self, config: PcapConfig) -> Result<PcapPort, ConfigError> {
        let config = PcapConfig { path: Some("in.pcap".into()), ..config };
        PcapPort::build(&config, &self.context())
    }
    /// The message for `in.pcap`, its name taken off.
    fn error(&self) -> String {
        let error = self.try_port(PcapConfig::default()).unwrap_err();
        assert_eq!(error.key, "path");
        let name = format!("{}: ", self.path("in.pcap").display());
        error.message.strip_prefix(&name).unwrap().to_owned()
    }
}

fn numbered(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![number; 14 + usize::from(number)]).collect()
}

/// A second apart.
fn numbered_pcap(count: u8) -> Vec<u8> {
    let packets = numbered(count);
    let packets: Vec<_> = packets
        .iter()
        .enumerate()
        .map(|(at, data)| (at as u64 * 1_000_000_000, &data[..], data.len() as u32))
        .collect();
    pcap(KINDS[0], &packets)
}

// ---------------------------------------------------------------- formats

#[test]
fn pcap_of_both_orders_and_resolutions() {
    for kind in KINDS {
        let file = pcap(kind, &[(5_000_001_000, b"one", 3), (7_123_456_000, b"second", 90)]);
        let (packets, file) = parsed(&file);
        assert_eq!(packets, [(b"one".to_vec(), 0), (b"second".to_vec(), 2_123_455_000)]);
        assert_eq!((file.cut_short(), file.back_in_time(), file.broken()), (1, 0, None));
    }
    let (packets, _) = parsed(&pcap(KINDS[3], &[(1, b"a", 1), (4, b"b", 1)]));
    assert_eq!(packets[1].1, 3, "nanoseconds count");
}

#[test]
fn pcapng_with_interfaces_resolutions_sections_and_odd_blocks() {
    for big in [false, true] {
        let offset = if big { 10_i64.to_be_bytes() } else { 10_i64.to_le_bytes() };
        let mut file = Bytes::new(big);
        file.section()
            .interface(1, 5, &[(2, b"eth0")])
            .interface(1, 0, &[(9, &[9]), (14, &offset)])
            .interface(1, 0, &[(9, &[0x80 | 10])])
            .interface(113, 0, &[])
            .enhanced(0, 20_000_000, b"micro", 5)
            .enhanced(1, 10_000_000_500, b"nano!x", 6)
            .block(0xbad, |b| {
                b.u32(1);
            })
            .enhanced(2, 21 * 1024, b"binary", 60)
            .simple(b"simplepa", 9)
            .obsolete(1, 11_500_000_000, b"obsolete")
            .block(5, |b| {
                b.u32(0).u32(0).u32(0).u32(0);
            });
        let mut second = Bytes::new(!big);
        second.section().interface(1, 0, &[]).enhanced(0, 30_000_000, b"other order", 11);
        file.raw(&second.bytes);
        let (packets, file) = parsed(&file.bytes);
        let expected: [(&[u8], u64); 6] = [
            (b"micro", 0),
            (b"nano!x", 500),
            (b"binary", 1_000_000_000),
            // Cut to the interface's snaplen of five, padding left out.
            (b"simpl", 1_000_000_000),
            (b"obsolete", 1_500_000_000),
            (b"other order", 10_000_000_000),
        ];
        assert_eq!(packets.len(), expected.len());
        for ((data, time), (wanted, wanted_time)) in packets.iter().zip(expected) {
            assert_eq!((data.as_slice(), *time), (wanted, wanted_time));
        }
        assert_eq!((file.cut_short(), file.broken()), (2, None));
    }
}

#[test]
fn timestamps_that_run_backwards_are_counted_and_held_up() {
    let (packets, file) = parsed(&pcap(
        KINDS[2],
        &[(50, b"a", 1), (70, b"b", 1), (60, b"c", 1), (40, b"d", 1), (90, b"e", 1)],
    ));
    let times: Vec<_> = packets.iter().map(|packet| packet.1).collect();
    assert_eq!(times, [0, 20, 20, 20, 40]);
    assert_eq!(file.back_in_time(), 2);
}

#[test]
fn absurd_resolutions_and_offsets_do_not_overflow() {
    for resolution in 0..=255 {
        for offset in [i64::MIN, -1, 0, i64::MAX] {
            let mut file = Bytes::new(false);
            file.section().interface(1, 0, &[(9, &[resolution]), (14, &offset.to_le_bytes())]);
            file.enhanced(0, 0, b"a", 1).enhanced(0, u64::MAX, b"b", 1).enhanced(0, 1, b"c", 1);
            let (packets, _) = parsed(&file.bytes);
            assert_eq!(packets.len(), 3);
            assert!(packets[0].1 <= packets[1].1 && packets[1].1 <= packets[2].1);
        }
    }
}

// ---------------------------------------------------------------- cuts and damage

#[test]
fn a_pcap_cut_at_every_byte_gives_the_packets_before_the_cut() {
    for kind in KINDS {
        let whole =
            pcap(kind, &[(1_000, b"first", 5), (2_000, b"", 0), (3_000, b"third packet", 12)]);
        let ends = [24 + 16 + 5, 24 + 16 + 5 + 16, whole.len()];
        for cut in 0..=whole.len() {
            let good = ends.iter().filter(|&&end| end <= cut).count();
            match CaptureFile::parse(whole[..cut].to_vec()) {
                Ok(file) => {
                    assert_eq!(file.len(), good, "cut at {cut}");
                    let clean = cut == 24 || ends.contains(&cut);
                    assert_eq!(file.broken().is_none(), clean, "cut at {cut}");
                    if let Some(broken) = file.broken() {
                        assert_eq!(broken.offset, ends[good - 1]);
                    }
                }
                Err(_) => assert!(good == 0 && cut != 24, "cut at {cut}"),
            }
        }
    }
}

#[test]
fn a_pcapng_cut_at_every_byte_gives_the_packets_before_the_cut() {
    for big in [false, true] {
        let mut file = Bytes::new(big);
        let mut starts = vec![0];
        file.section();
        starts.push(file.bytes.len());
        file.interface(1, 0, &[(2, b"wire"), (9, &[9])]);
        starts.push(file.bytes.len());
        let headers = starts.len();
        for data in [b"first".as_slice(), b"", b"third packet"] {
            file.enhanced(0, 7, data, data.len() as u32);
            starts.push(file.bytes.len());
        }
        let whole = file.bytes;
        for cut in 0..=whole.len() {
            let good = starts[headers..].iter().filter(|&&end| end <= cut).count();
            match CaptureFile::parse(whole[..cut].to_vec()) {
                Ok(file) => {
                    assert_eq!(file.len(), good, "cut at {cut}");
                    let last_start = *starts.iter().rfind(|&&start| start <= cut).unwrap();
                    assert_eq!(
                        file.broken().map(|broken| broken.offset),
                        (last_start != cut).then_some(last_start)
                    );
                }
                Err(_) => assert!(good == 0 && !starts[1..].contains(&cut), "cut at {cut}"),
            }
        }
    }
}

#[test]
fn malformed_blocks_end_the_file() {
    let mut good = Bytes::new(false);
    good.section().interface(1, 0, &[]).enhanced(0, 1, b"good", 4);
    let offset = good.bytes.len();
    type Damage = fn(&mut Bytes);
    let cases: [(Damage, &str); 7] = [
        (
            |b| {
                b.u32(6).u32(13).raw(&[0; 32]);
            },
            "a block has length 13",
        ),
        (
            |b| {
                b.u32(6).u32(0).raw(&[0; 32]);
            },
            "a block has length 0",
        ),
        (
            |b| {
                b.u32(6).u32(4000).raw(&[0; 32]);
            },
            "a block is truncated: 40 bytes are left",
        ),
        (
            |b| {
                b.u32(9).u32(16).u32(0).u32(20);
            },
            "a block has length 16 and then 20",
        ),
        (
            |b| {
                b.enhanced(4, 1, b"x", 1);
            },
            "a packet names interface 4, but 1 are described",
        ),
        (
            |b| {
                b.u32(6).u32(36).raw(&[0; 12]).u32(99).u32(99).raw(&[0; 4]).u32(36);
            },
            "a block of type 0x6 is malformed",
        ),
        (
            |b| {
                b.u32(0x0a0d_0d0a).u32(28).u32(0x0102_0304).raw(&[0; 12]).u32(28);
            },
            "a section of byte order [04, 03, 02, 01] starts",
        ),
    ];
    for (damage, reason) in cases {
        let mut file = Bytes { big: false, bytes: good.bytes.clone() };
        damage(&mut file);
        file.enhanced(0, 1, b"never seen", 10);
        let (packets, file) = parsed(&file.bytes);
        assert_eq!(packets.len(), 1);
        assert_eq!(file.broken().unwrap().offset, offset);
        let found = &file.broken().unwrap().reason;
        assert!(
            found == reason || reason.contains("truncated") && found.contains("truncated"),
            "{found}"
        );
    }
}

fn base_file(choice: usize) -> Vec<u8> {
    match choice {
        0..4 => pcap(KINDS[choice], &[(1, b"first", 5), (2, &[7; 100], 200), (3, b"", 0)]),
        _ => {
            let mut file = Bytes::new(choice == 4);
            file.section().interface(1, 96, &[(9, &[9]), (14, &[0; 8]), (2, b"name")]);
            file.enhanced(0, 5, b"first", 5).simple(&[1; 40], 40).obsolete(0, 9, b"old");
            file.section().interface(1, 0, &[]).enhanced(0, 5, &[3; 33], 33);
            file.bytes
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn damaged_files_never_panic(
        choice in 0usize..6,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        insert in prop::collection::vec(any::<u8>(), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = base_file(choice);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let place = cut.index(bytes.len());
        bytes.splice(place..place, insert);
        let length = bytes.len();
        if let Ok(file) = CaptureFile::parse(bytes) {
            let mut latest = 0;
            for index in 0..file.len() {
                let (data, time) = file.packet(index).unwrap();
                prop_assert!(data.len() <= length && time >= latest);
                latest = time;
            }
            prop_assert!(file.broken().is_none_or(|broken| broken.offset < length));
        }
    }

    #[test]
    fn written_files_are_read_by_both_readers(
        packets in prop::collection::vec(
            (0u32..3, 0u64..1 << 62, prop::collection::vec(any::<u8>(), 0..200), 0u32..100), 0..20),
    ) {
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        for name in ["wire0", "queue0", ""] {
            writer.add_interface(name, 0).unwrap();
        }
        for (at, (interface, time, data, more)) in packets.iter().enumerate() {
            let direction = [None, Some(Direction::Rx), Some(Direction::Tx)][at % 3];
            let original_length = data.len() as u32 + more;
            let packet = Packet { original_length, direction, ..Packet::whole(*time, data) };
            writer.packet(*interface, &packet).unwrap();
        }
        writer.statistics(1, 5, 9, 3).unwrap();
        let bytes = writer.into_inner();

        let (ours, file) = parsed(&bytes);
        prop_assert_eq!(ours.len(), packets.len());
        prop_assert!(file.broken().is_none());
        let first = packets.first().map_or(0, |packet| packet.1);
        let mut latest = 0;
        for ((data, time), wanted) in ours.iter().zip(&packets) {
            latest = latest.max(wanted.1.saturating_sub(first));
            prop_assert_eq!((data, *time), (&wanted.2, latest));
        }

        let mut theirs = Vec::new();
        let mut reader = PcapNGReader::new(1 << 16, &bytes[..]).unwrap();
        loop {
            match reader.next() {
                Ok((length, PcapBlockOwned::NG(Block::EnhancedPacket(packet)))) => {
                    let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    let flags = packet.options.first().map(|flags| flags.as_u32_le().unwrap());
                    theirs.push((packet.if_id, time, packet.packet_data().to_vec(), packet.origlen, flags));
                    reader.consume(length);
                }
                Ok((length, _)) => reader.consume(length),
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        let wanted = packets.into_iter().enumerate().map(|(at, (interface, time, data, more))| {
            let original = data.len() as u32 + more;
            (interface, time, data, original, [None, Some(1), Some(2)][at % 3])
        });
        prop_assert_eq!(theirs, wanted.collect::<Vec<_>>());
    }
}

#[test]
fn other_programs_read_written_files() {
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    writer.add_interface("wire0", 0).unwrap();
    writer.add_interface("queue1", 0).unwrap();
    let mut frame = [0u8; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    for packet in 0..5 {
        frame[20] = packet as u8;
        let told = Packet {
            original_length: 90,
            direction: Some(Direction::Rx),
            toeplitz: Some(0x5165_9d0c + packet),
            ..Packet::whole(1_700_000_000_000_000_007, &frame)
        };
        writer.packet(packet % 2, &told).unwrap();
    }
    writer.statistics(0, 1_700_000_000_000_000_007, 5, 2).unwrap();
    let folder = Folder::with(&writer.into_inner());
    let path = folder.path("in.pcap");
    for (program, arguments) in [
        ("tcpdump", &["-nn", "--nano", "-tt", "-r"][..]),
        (
            "tshark",
            &["-n", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.time_epoch", "-r"],
        ),
        ("capinfos", &["-M"]),
    ] {
        match Command::new(program).args(arguments).arg(&path).output() {
            Err(error) => picnic_testing::skip(
                &format!("other_programs_read_written_files ({program})"),
                &format!("it cannot be run: {error}"),
            ),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(
                    output.status.success(),
                    "{program}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                if program == "capinfos" {
                    assert!(text.contains("Number of packets:   5"), "{text}");
                } else {
                    assert_eq!(text.matches("1700000000.000000007").count(), 5, "{text}");
                }
                if program == "tshark" {
                    assert_eq!(text.matches("queue1").count(), 2, "{text}");
                }
            }
        }
    }
}

// ---------------------------------------------------------------- messages

#[test]
fn capture_errors_are_exact() {
    const ALLOWED: &str = "allowed: a pcap or pcapng capture of Ethernet";
    let raw_ip = {
        let mut bytes = pcap(KINDS[1], &[(1, b"x", 1)]);
        bytes[20..24].copy_from_slice(&101_u32.to_be_bytes());
        bytes
    };
    let wifi = {
        let mut file = Bytes::new(true);
        file.section().interface(105, 0, &[]).enhanced(0, 1, b"x", 1);
        file.bytes
    };
    let user = {
        let mut file = Bytes::new(false);
        file.section().interface(147, 0, &[]).enhanced(0, 1, b"x", 1);
        file.bytes
    };
    let version = {
        let mut bytes = pcap(KINDS[0], &[(1, b"x", 1)]);
        bytes[4] = 9;
        bytes
    };
    let half = pcap(KINDS[0], &[(1, b"longer packet", 13)]);
    let cases: [(&[u8], String); 9] = [
        (b"", format!("found an empty file, {ALLOWED}")),
        (b"abc", format!("found a file of 3 bytes, {ALLOWED}")),
        (b"PK\x03\x04 and more", format!("found a file starting 50 4b 03 04, {ALLOWED}")),
        (b"\x1f\x8b\x08\x00", format!("found a file starting 1f 8b 08 00 (gzip), {ALLOWED}")),
        (&half[..20], format!("found a pcap header truncated after 20 of 24 bytes, {ALLOWED}")),
        (
            &half[..45],
            "found no complete packet: at byte 24, a packet is truncated: 21 bytes are left".into(),
        ),
        (&raw_ip, "found link type 101 (RAW), allowed: 1 (ETHERNET)".into()),
        (&wifi, "found link type 105 (IEEE802_11), allowed: 1 (ETHERNET)".into()),
        (&user, "found link type 147, allowed: 1 (ETHERNET)".into()),
    ];
    for (bytes, message) in cases {
        assert_eq!(Folder::with(bytes).error(), message);
    }
    assert_eq!(Folder::with(&version).error(), "found pcap version 9.4, allowed: 2.x");

    let folder = Folder::with(b"");
    std::fs::remove_file(folder.path("in.pcap")).unwrap();
    assert_eq!(folder.error(), "cannot be read: No such file or directory (os error 2)");
    std::fs::create_dir(folder.path("in.pcap")).unwrap();
    assert_eq!(folder.error(), "cannot be read: found a folder, allowed: a file");

    let folder = Folder::with(b"");
    let sparse = std::fs::OpenOptions::new().write(true).open(folder.path("in.pcap")).unwrap();
    sparse.set_len(MAX_FILE_BYTES + 5).unwrap();
    assert_eq!(folder.error(), "found 1073741829 bytes, allowed: up to 1073741824");
}

#[test]
fn keys_are_checked_and_errors_have_their_line() {
    let folder = Folder::with(&numbered_pcap(3));
    let build = |text: &str| {
        let section = Section::from_text("port", text).unwrap();
        let entry = find(crate::registry::WIRES, &section).unwrap();
        entry.build(&section, &folder.context()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(
        build("port = \"pcap\""),
        Err("card: path: missing, expected the name of a pcap or pcapng file".into())
    );
    let with = |more: &str| build(&format!("port = \"pcap\"\npath = \"in.pcap\"\n{more}"));
    assert_eq!(with("pace = \"recorded\"\nspeed = 2\nloops = 3"), Ok(()));
    let refused = |keys: &str, message: &str| assert_eq!(with(keys), Err(message.into()));
    refused("speed = 0", "card:3: speed: found 0, allowed: above 0");
    refused("speed = nan", "card:3: speed: found NaN, allowed: above 0");
    refused("max_gap_ms = 0", "card:3: max_gap_ms: found 0, allowed: 1 or more");
    assert!(
        with("pace = \"fast\"")
            .unwrap_err()
            .starts_with("card:3: pace: found \"fast\", allowed: flat-out, recorded")
    );
    assert!(with("loops = -1").unwrap_err().starts_with("card:3: loops: "));
    let error = with("output = \"nowhere/out.pcapng\"").unwrap_err();
    assert!(
        error.starts_with("card:3: output: ")
            && error.ends_with("out.pcapng: cannot be created: its folder does not exist"),
        "{error}"
    );
    let error = with("output = \"./in.pcap\"").unwrap_err();
    assert!(error.ends_with("which is read as path; allowed: another file"), "{error}");
    let error = with("output = \".\"").unwrap_err();
    assert!(error.ends_with("found a folder, allowed: a file"), "{error}");
}

// ---------------------------------------------------------------- the wire

#[test]
fn flat_out_replays_everything_in_order_and_loops() {
    let folder = Folder::with(&numbered_pcap(100));
    for limit in [1, 7, 64] {
        let mut port = folder.port(PcapConfig { loops: 3, ..PcapConfig::default() });
        assert!(port.describe().capabilities.patient && !port.status().is_finished);
        let mut bench = Bench::new();
        let packets = bench.receive_all(&mut port, limit);
        assert_eq!(packets, [numbered(100), numbered(100), numbered(100)].concat());
        assert!(bench.receive(&mut port, 9, 64).is_empty());
        assert_eq!(port.status().next_deadline, None);
        assert!(bench.stop(&mut port).is_empty());
        bench.assert_conserved();
    }
    let mut endless = folder.port(PcapConfig { loops: 0, ..PcapConfig::default() });
    let mut bench = Bench::new();
    let received: usize = (0..100).map(|_| bench.receive(&mut endless, 0, 64).len()).sum();
    assert!(received == 6400 && !endless.status().is_finished);
}

#[test]
fn flat_out_waits_for_buffers_and_loses_nothing() {
    let folder = Folder::with(&numbered_pcap(200));
    let mut port = folder.port(PcapConfig::default());
    let mut bench = Bench::with_pool(64, 128);
    let (mut got, mut round) = (Vec::new(), 0);
    while !port.status().is_finished {
        round += 1;
        // Something else has most of the pool.
        let away: Vec<_> = (0..64 - round % 5).map(|_| bench.pool.allocate(1).unwrap()).collect();
        got.extend(bench.receive(&mut port, 0, 64));
        away.into_iter().for_each(|packet| bench.pool.free(packet));
    }
    assert_eq!(got, numbered(200));
    assert_eq!(bench.ledger.drops.total(), 0);
    bench.assert_conserved();
}

#[test]
fn packets_of_all_lengths() {
    let long: Vec<_> = [0, 1, 2048, 2049, 65_536, MAX_PACKET_BYTES, MAX_PACKET_BYTES + 1, 0, 60]
        .iter()
        .map(|&length| (0..length).map(|at| (at / 7) as u8).collect::<Vec<_>>())
        .collect();
    let packets: Vec<_> = long.iter().map(|data| (1, &data[..], data.len() as u32)).collect();
    let folder = Folder::with(&pcap(KINDS[0], &packets));
    let mut port = folder.port(PcapConfig::default());
    let mut bench = Bench::new();
    let got = bench.receive_all(&mut port, 64);
    assert_eq!(got, [&long[1..6], &long[8..]].concat());
    assert_eq!((bench.dropped(DropReason::Malformed), bench.dropped(DropReason::Oversize)), (2, 1));
    bench.assert_conserved();

    // A pool that could never hold the longest must not stop the rest.
    let mut port = folder.port(PcapConfig::default());
    let mut bench = Bench::with_pool(64, 64);
    assert_eq!(bench.receive_all(&mut port, 64), [&long[1..4], &long[8..]].concat());
    assert_eq!(bench.dropped(DropReason::Oversize), 3);
    bench.assert_conserved();
}

#[test]
fn endless_empty_packets_do_not_hang() {
    let folder = Folder::with(&pcap(KINDS[0], &[(0, b"", 0)]));
    let mut port = folder.port(PcapConfig { loops: 0, ..PcapConfig::default() });
    let mut bench = Bench::new();
    assert!(bench.receive(&mut port, 0, 64).is_empty());
    assert_eq!(bench.dropped(DropReason::Malformed), 64);
    let empty = Folder::with(&pcap(KINDS[0], &[]));
    let mut port = empty.port(PcapConfig { loops: 0, ..PcapConfig::default() });
    assert!(port.status().is_finished && bench.receive(&mut port, 0, 64).is_empty());
    assert!(bench.stop(&mut port)[0].ends_with("holds no packets"));
}

const SECOND: u64 = 1_000_000_000;

fn recorded(speed: f64, loops: u64) -> PcapConfig {
    PcapConfig { pace: Pace::Recorded, speed, loops, ..PcapConfig::default() }
}

#[test]
fn recorded_pace_follows_the_timestamps() {
    let folder = Folder::with(&numbered_pcap(4));
    for (speed, gap) in [(1.0, SECOND), (2.0, SECOND / 2), (0.25, 4 * SECOND)] {
        let mut port = folder.port(recorded(speed, 2));
        let mut bench = Bench::new();
        assert!(!port.describe().capabilities.patient);
        assert_eq!(port.status().next_deadline, Some(Time::ZERO));
        let start = 77 * SECOND;
        let mut now = start;
        let mut times = Vec::new();
        // Sleep from deadline to deadline, as a card would; a moment early finds nothing.
        while !port.status().is_finished {
            if now != start {
                assert!(bench.receive(&mut port, now - 1, 64).is_empty());
            }
            let packets = bench.receive(&mut port, now, 64);
            assert_eq!(packets, [numbered(4)[times.len() % 4].clone()]);
            times.push(now - start);
            now = port.status().next_deadline.map_or(now, Time::as_nanos);
        }
        // The second pass begins one mean gap after the first has ended.
        assert_eq!(times, (0..8).map(|at| at * gap).collect::<Vec<_>>());
        assert_eq!(port.status().next_deadline, None);
        bench.assert_conserved();
    }
}

#[test]
fn recorded_packets_are_stamped_with_their_due_time() {
    let folder = Folder::with(&numbered_pcap(4));
    let mut port = folder.port(recorded(1.0, 1));
    assert!(
        port.describe().capabilities.arrival
            && !folder.port(PcapConfig::default()).describe().capabilities.arrival
    );
    let (mut bench, mut burst) = (Bench::new(), Burst::new());
    bench.fill(&mut port, 5 * SECOND, 64, &mut burst);
    // The card comes back two and a half packets late.
    bench.fill(&mut port, 8 * SECOND + 500, 64, &mut burst);
    let stamps: Vec<_> = burst.as_slice().iter().map(|p| p.received_at().as_nanos()).collect();
    assert_eq!(stamps, [5 * SECOND, 6 * SECOND, 7 * SECOND, 8 * SECOND]);
    bench.taken += 4;
    burst.drain().for_each(|packet| bench.pool.free(packet));
    bench.assert_conserved();
}

#[test]
fn late_cards_get_all_due_packets_and_shed_without_buffers() {
    let folder = Folder::with(&numbered_pcap(100));
    let mut port = folder.port(recorded(1.0, 1));
    let mut bench = Bench::with_pool(64, 128);
    assert_eq!(bench.receive(&mut port, 0, 64).len(), 1);
    assert_eq!(bench.receive(&mut port, 20 * SECOND, 8).len(), 8);
    assert_eq!(bench.receive(&mut port, 20 * SECOND, 64).len(), 12);
    let away: Vec<_> = (0..60).map(|_| bench.pool.allocate(1).unwrap()).collect();
    assert_eq!(bench.receive(&mut port, 30 * SECOND, 64).len(), 4);
    assert_eq!(bench.dropped(DropReason::PoolExhausted), 6);
    away.into_iter().for_each(|packet| bench.pool.free(packet));
    assert_eq!(bench.receive(&mut port, 31 * SECOND, 64), [numbered(100)[31].clone()]);
    bench.assert_conserved();
}

#[test]
fn traces_replay_the_wires_packets_by_default() {
    use crate::pcapng::{Packet, Writer};
    let trace = |application: &str| {
        let mut writer = Writer::new(Vec::new(), application).unwrap();
        let names = ["rx[0] rss", "rx[1] pass", "wire0", "wire1", "queue0", "queue1 vm0"];
        let ids = names.map(|name| writer.add_interface(name, 0).unwrap());
        for number in 0..10_u8 {
            let [rss, pass, wire0, wire1, queue0, queue1] = ids;
            let (wire, queue) = if number % 2 == 0 { (wire0, queue0) } else { (wire1, queue1) };
            // On its way: in by a wire, through the chain, to a queue, and out again.
            for (step, (interface, direction)) in [
                (wire, Some(Direction::Rx)),
                (rss, None),
                (pass, None),
                (queue, None),
                (wire, Some(Direction::Tx)),
            ]
            .into_iter()
            .enumerate()
            {
                let time = 100 * u64::from(number) + step as u64;
                let frame = [number, step as u8, 0, 0];
                let packet = Packet { direction, ..Packet::whole(time, &frame) };
                writer.packet(interface, &packet).unwrap();
            }
        }
        writer.into_inner()
    };
    let replay = |bytes: &[u8], interface: Option<&str>| {
        let folder = Folder::with(bytes);
        let interface = interface.map(Into::into);
        let mut port = folder.try_port(PcapConfig { interface, ..PcapConfig::default() })?;
        let mut bench = Bench::new();
        let packets = bench.receive_all(&mut port, 64);
        bench.assert_conserved();
        let packets: Vec<_> = packets.iter().map(|data| (data[0], data[1])).collect();
        Ok::<_, ConfigError>((packets, bench.stop(&mut port)))
    };
    let ours = trace("picnic 1.2.3");
    let (packets, report) = replay(&ours, None).unwrap();
    assert_eq!(packets, (0..10).map(|number| (number, 0)).collect::<Vec<_>>());
    assert!(
        report[0].ends_with(
            "omits 40 packets and uses those of wire0, wire1. interface = \"all\" uses all"
        ),
        "{report:?}"
    );
    let (packets, _) = replay(&ours, Some("queue1 vm0")).unwrap();
    assert_eq!(packets, (0..5).map(|number| (2 * number + 1, 3)).collect::<Vec<_>>());
    assert_eq!(replay(&ours, Some("wire0")).unwrap().0.len(), 5);
    let (packets, report) = replay(&ours, Some("all")).unwrap();
    assert_eq!((packets.len(), report.len()), (50, 0));
    let error = replay(&ours, Some("wire2")).unwrap_err();
    assert_eq!(error.key, "interface");
    assert!(
        error.to_string().contains(
            "found \"wire2\", allowed: \"all\", \"queue0\", \"queue1 vm0\", \"rx[0] rss\""
        ),
        "{error}"
    );
    // Of others, interfaces are places of their own.
    assert_eq!(replay(&trace("Dumpcap"), None).unwrap().0.len(), 50);
    // Times count from the first packet that is replayed.
    let folder = Folder::with(&ours);
    let file = CaptureFile::load_chosen(&folder.path("in.pcap"), Some("queue0"), None);
    let file = file.unwrap().unwrap();
    assert_eq!((file.packet(0).unwrap().1, file.duration_ns()), (0, 800));
    // A classic capture has no names to choose by.
    let classic = numbered_pcap(3);
    assert_eq!(replay(&classic, Some("all")).unwrap().0.len(), 3);
    assert!(replay(&classic, Some("eth0")).unwrap_err().to_string().ends_with("allowed: \"all\""));
}

/// The link type of an interface is asked for if its packets are used.
#[test]
fn unused_packets_may_have_any_link_type() {
    for big in [false, true] {
        let mut file = Bytes::new(big);
        file.section()
            .interface(113, 0, &[(2, b"any")])
            .interface(1, 0, &[(2, b"eth0")])
            .interface(276, 0, &[(2, b"unused")])
            .enhanced(0, 1_000_000, b"cooked", 6)
            .simple(b"simple", 6)
            .obsolete(0, 2_000_000, b"obsolete")
            .enhanced(1, 5_000_000, b"ethernet 1", 10)
            .enhanced(0, 9_000_000, b"cooked", 6)
            .enhanced(1, 7_000_000, b"ethernet 2", 10);
        // In another section, an interface of the same name is a different one.
        file.section().interface(113, 0, &[(2, b"any")]).enhanced(0, 1, b"cooked", 6);
        let folder = Folder::with(&file.bytes);
        let with = |interface: &str| {
            folder
                .try_port(PcapConfig { interface: Some(interface.into()), ..PcapConfig::default() })
        };
        let port = with("eth0").unwrap();
        let packets: Vec<_> = (0..2).map(|place| port.file.packet(place).unwrap()).collect();
        assert_eq!(packets, [(&b"ethernet 1"[..], 0), (&b"ethernet 2"[..], 2 * SECOND)]);
        assert_eq!((port.file.len(), port.file.back_in_time()), (2, 0));
        let error = with("any").unwrap_err();
        assert_eq!(error.key, "interface");
        assert!(error.message.contains("found link type 113"), "{error}");
        for error in [with("all").unwrap_err().message, folder.error()] {
            assert!(
                error.ends_with(
                    "interface \"any\": found link type 113 (LINUX_SLL), allowed: 1 (ETHERNET); \
                     try: interface = \"eth0\""
                ),
                "{error}"
            );
        }
    }
}

/// Packets at these times, in milliseconds.
fn at(times_ms: &[u64]) -> Vec<u8> {
    let packets: Vec<_> =
        times_ms.iter().map(|time| (time * 1_000_000, &b"fourteen bytes"[..], 14)).collect();
    pcap(KINDS[2], &packets)
}

/// When packets are due, in milliseconds from the first.
fn due_ms(port: &PcapPort) -> Vec<u64> {
    let times = (0..port.file.len()).map(|place| port.file.packet(place).unwrap().1);
    times.map(|time| port.due(Time::ZERO, time).as_nanos() / 1_000_000).collect()
}

#[test]
fn long_gaps_are_cut_and_later_packets_keep_their_distances() {
    let day = 24 * 3600 * 1000;
    for (times, bounded, expected) in [
        // One packet of another time, ahead and behind.
        (vec![0, 100, 65_536_000, 300, 400], 2, vec![0, 100, 1100, 1100, 1200]),
        (vec![day, day + 100, 5, day + 300, day + 400], 2, vec![0, 100, 100, 1100, 1200]),
        // The first, in the same way.
        (vec![day, 100, 200, 300], 1, vec![0, 0, 100, 200]),
        (vec![0, day, day + 100, day + 300], 1, vec![0, 1000, 1100, 1300]),
        // A clock that is set while packets are recorded.
        (vec![0, 100, day, day + 100, day + 5100], 2, vec![0, 100, 1100, 1200, 2200]),
        // Within the bound, including slightly reordered packets.
        (vec![0, 1000, 900, 1100, 2100], 0, vec![0, 1000, 1000, 1100, 2100]),
    ] {
        let folder = Folder::with(&at(&times));
        let port = folder.port(PcapConfig { max_gap_ms: Some(1000), ..recorded(1.0, 1) });
        assert_eq!((due_ms(&port), port.file.bounded()), (expected, bounded), "{times:?}");
        assert_eq!(port.describe().warnings, [""; 0]);
        let port = folder.port(PcapConfig { max_gap_ms: Some(1000), ..recorded(2.0, 1) });
        assert!(due_ms(&port).windows(2).all(|pair| pair[1] - pair[0] <= 500));
    }
}

#[test]
fn duration_and_long_gaps_are_reported() {
    let folder = Folder::with(&at(&[0, 100, 65_536_000, 65_536_200]));
    let name = folder.path("in.pcap").display().to_string();
    let port = folder.port(recorded(1.0, 1));
    assert_eq!(
        port.describe().notes,
        [format!(
            "{name}: a pass takes 65536.200 s; its largest gap is 65535.900 s, before packet 3"
        )]
    );
    assert_eq!(
        port.describe().warnings,
        [format!(
            "{name}: no packet for 65535.900 s before packet 3 of 4; max_gap_ms bounds such gaps"
        )]
    );
    let port = folder.port(PcapConfig { max_gap_ms: Some(500), ..recorded(1.0, 1) });
    assert_eq!(
        (port.describe().notes, port.describe().warnings),
        (
            vec![format!(
                "{name}: a pass takes 0.800 s; its largest gap is 0.500 s, before packet 3, \
                 1 bounded by max_gap_ms"
            )],
            vec![]
        )
    );
    // As fast as it is replayed; nothing where timestamps do not count.
    assert_eq!(folder.port(recorded(10_000.0, 1)).describe().warnings, [""; 0]);
    assert_eq!(folder.port(recorded(0.5, 1)).describe().warnings.len(), 1);
    let flat_out = folder.port(PcapConfig::default());
    assert_eq!((flat_out.describe().notes, flat_out.describe().warnings), (vec![], vec![]));
    assert_eq!(Folder::with(&at(&[0, 9_000])).port(recorded(1.0, 1)).describe().warnings, [""; 0]);
}

#[test]
fn oddities_of_a_file_are_reported() {
    let mut bytes = pcap(KINDS[0], &[(9000, b"first", 5), (5000, b"cut", 90), (12000, b"last", 4)]);
    bytes.truncate(bytes.len() - 1);
    let folder = Folder::with(&bytes);
    let mut port = folder.port(PcapConfig::default());
    let name = folder.path("in.pcap").display().to_string();
    assert_eq!(
        Bench::new().stop(&mut port),
        [
            format!(
                "{name}: at byte 64, a packet is truncated: 19 bytes are left; the 2 packets before it are used"
            ),
            format!("{name}: 1 packets were captured in part, and are used so"),
            format!(
                "{name}: 1 packets have timestamps before earlier packets; the file's order is kept"
            ),
        ]
    );
}

#[test]
fn output_has_the_transmitted_packets() {
    let folder = Folder::with(&numbered_pcap(1));
    let config = PcapConfig { output: Some("out.pcapng".into()), ..PcapConfig::default() };
    drop(folder.port(config.clone()));
    assert!(!folder.path("out.pcapng").exists(), "a card that is only checked writes nothing");

    let mut port = folder.port(config);
    let mut bench = Bench::new();
    bench.receive(&mut port, 0, 64);
    let long = vec![9; 70_000];
    bench.transmit(&mut port, 1000, &[b"one", &long]);
    bench.transmit(&mut port, 3000, &[b"two"]);
    let name = folder.path("out.pcapng").display().to_string();
    assert!(!folder.path("out.pcapng").exists(), "it is put there when it is whole");
    assert_eq!(bench.stop(&mut port), [format!("{name}: 3 packets written")]);
    drop(port);
    let (packets, file) = parsed(&std::fs::read(folder.path("out.pcapng")).unwrap());
    assert_eq!(packets, [(b"one".to_vec(), 0), (long, 0), (b"two".to_vec(), 2000)]);
    assert!(file.broken().is_none());
    assert_eq!((bench.ledger.transmitted.get(), bench.pool.outstanding()), (3, 0));
}
