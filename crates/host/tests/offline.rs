//! An offline card: files at both ends, flat out, and nothing is lost on the way.

use picnic_core::config::CardFile;
use picnic_core::hook::Hooks;
use picnic_control::instrument::Tracing;
use picnic_core::direction::Direction;
use picnic_host::run::start_with;
use picnic_ports::pcap::CaptureFile;
use picnic_ports::pcapng::Writer;
use std::path::Path;
use std::time::{Duration, Instant};

const PACKETS: u32 = 20_000;

/// A capture of packets between two hosts, numbered in the payload.
fn write_capture(path: &Path) {
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    let interface = writer.add_interface("x", 0).unwrap();
    for number in 0..PACKETS {
        let mut frame = vec![0; 1000];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..16].copy_from_slice(&[0x45, 0]);
        frame[16..18].copy_from_slice(&986_u16.to_be_bytes());
        frame[23] = 17;
        // Flows differ by a port, so they spread over the queues.
        frame[34..36].copy_from_slice(&(number as u16 % 256).to_be_bytes());
        frame[38..40].copy_from_slice(&966_u16.to_be_bytes());
        frame[42..46].copy_from_slice(&number.to_be_bytes());
        writer.packet(interface, u64::from(number), &frame, 1000, Some(Direction::Rx)).unwrap();
    }
    std::fs::write(path, writer.into_inner()).unwrap();
}

fn numbers(path: &Path) -> Vec<u32> {
    let file = CaptureFile::load(path).unwrap();
    let number = |index| {
        let (data, _) = file.packet(index).unwrap();
        u32::from_be_bytes(data[42..46].try_into().unwrap())
    };
    let mut numbers: Vec<_> = (0..file.len()).map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn every_packet_of_a_capture_comes_back_and_is_in_output_and_trace() {
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\noutput = \"out.pcapng\"\n\
                [[rx]]\nfunction = \"rss\"\n[pool]\nbuffers = 2048\n\
                [host]\nqueues = 2\nmode = \"echo\"\nring_size = 256\ntx_ring_size = 64\n\
                [trace]\npath = \"trace.pcapng\"\nstages = [\"queue\"]\nbuffer_bytes = 262144\n";
    let mut card = CardFile::parse(text, None).unwrap();
    card.directory = folder.path().into();
    let tracing = Tracing::of(&card).unwrap();
    let running = start_with(&card, &Hooks::none().with(tracing.clone())).unwrap();
    let give_up = Instant::now() + Duration::from_secs(60);
    while !running.is_finished() && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(5));
    }
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    assert_eq!(report.ledger.transmitted, u64::from(PACKETS));
    let trace = tracing.finish().unwrap();
    assert_eq!((trace.packets_written, trace.packets_lost), (u64::from(PACKETS), 0));
    let all: Vec<_> = (0..PACKETS).collect();
    assert!(numbers(&folder.path().join("out.pcapng")) == all, "{:?}", report.notes);
    assert!(numbers(&folder.path().join("trace.pcapng")) == all);
}
