//! Files at both ends of a card: no packet is lost, and no file is destroyed.

use picnic_control::Launch;
use picnic_control::instrument::{TraceReport, Tracing};
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::stop::Stop;
use picnic_host::{registries, sections};
use picnic_ports::pcap::CaptureFile;
use picnic_ports::pcapng::{Packet, Writer};
use picnic_testing::{machine, wait_until};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

const PACKETS: u32 = 20_000;

/// A capture of packets between two hosts, numbered in the payload.
fn write_capture(path: &Path) {
    write_capture_of(PACKETS, path);
}

fn write_capture_of(packets: u32, path: &Path) {
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    let interface = writer.add_interface("x", 0).unwrap();
    for number in 0..packets {
        let mut frame = vec![0; 1000];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..16].copy_from_slice(&[0x45, 0]);
        frame[16..18].copy_from_slice(&986_u16.to_be_bytes());
        frame[23] = 17;
        // Flows differ by a port, so they spread over the queues.
        frame[34..36].copy_from_slice(&(number as u16 % 256).to_be_bytes());
        frame[38..40].copy_from_slice(&966_u16.to_be_bytes());
        frame[42..46].copy_from_slice(&number.to_be_bytes());
        let direction = Some(Direction::Rx);
        let packet =
            Packet { original_length: 1000, direction, ..Packet::whole(number.into(), &frame) };
        writer.packet(interface, &packet).unwrap();
    }
    std::fs::write(path, writer.into_inner()).unwrap();
}

fn fifo(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
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
fn every_packet_of_a_capture_is_in_output_and_trace() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\noutput = \"out.pcapng\"\n\
                [[rx]]\nfunction = \"rss\"\n[pool]\nbuffers = 2048\n\
                [host]\nqueues = 2\nmode = \"echo\"\nring_size = 256\ntx_ring_size = 64\n\
                [trace]\npath = \"trace.pcapng\"\nstages = [\"queue\"]\nbuffer_bytes = 262144\n";
    let mut card = sections().parse(text, None).unwrap();
    card.directory = folder.path().into();
    let tracing = Tracing::of(&card, &Stop::default()).unwrap();
    let running = Launch::new(&card, registries()).hook(tracing.clone()).start_alone().unwrap();
    wait_until("all has been echoed", || running.is_finished());
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

/// Replays `path` into a file, with all packets echoed; returns the packets that came back.
fn replay(folder: &Path, path: &str) -> Vec<u32> {
    let text = format!(
        "[[wire]]\nport = \"pcap\"\npath = \"{path}\"\noutput = \"again.pcapng\"\n\
         [[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\nmode = \"echo\"\n"
    );
    let mut card = sections().parse(&text, None).unwrap();
    card.directory = folder.into();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    wait_until("all has been echoed", || running.is_finished());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    assert_eq!(report.ledger.dropped, 0, "{report:#?}");
    numbers(&folder.join("again.pcapng"))
}

/// A trace has a packet once per stage; replayed, each comes once, every time.
#[test]
fn a_trace_of_several_stages_is_replayed_packet_by_packet() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\n[[rx]]\nfunction = \"rss\"\n\
                [host]\nqueues = 2\nmode = \"echo\"\n\
                [trace]\npath = \"trace.pcapng\"\nstages = [\"wire\", \"rx\", \"queue\"]\n";
    let mut card = sections().parse(text, None).unwrap();
    card.directory = folder.path().into();
    let tracing = Tracing::of(&card, &Stop::default()).unwrap();
    let running = Launch::new(&card, registries()).hook(tracing.clone()).start_alone().unwrap();
    wait_until("all has been echoed", || running.is_finished());
    assert_eq!(running.stop().unwrap().ledger.dropped, 0);
    let trace = tracing.finish().unwrap();
    assert_eq!((trace.packets_written, trace.packets_lost), (4 * u64::from(PACKETS), 0));
    let all: Vec<_> = (0..PACKETS).collect();
    for _ in 0..3 {
        assert!(replay(folder.path(), "trace.pcapng") == all);
        std::fs::rename(folder.path().join("again.pcapng"), folder.path().join("in.pcapng"))
            .unwrap();
        assert!(replay(folder.path(), "in.pcapng") == all);
    }
}

/// The card waits for the reader of its output, and loses nothing meanwhile.
#[test]
fn late_readers_are_waited_for() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    let fifo = fifo(folder.path(), "out");
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let mut file = std::fs::File::open(fifo).unwrap();
        may_go.recv().unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        bytes
    });
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\noutput = \"out\"\n\
                [[rx]]\nfunction = \"rss\"\n[pool]\nbuffers = 1024\n\
                [host]\nqueues = 2\nmode = \"echo\"\n";
    let mut card = sections().parse(text, None).unwrap();
    card.directory = folder.path().into();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    wait_until("packets are out", || running.view().ledger.read().transmitted > 100);
    // A pipe, a ring and the pool hold fewer than there are.
    assert!(!running.is_finished());
    go.send(()).unwrap();
    wait_until("all has been echoed", || running.is_finished());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    assert_eq!((report.ledger.dropped, report.ledger.transmitted), (0, u64::from(PACKETS)));
    let copy = folder.path().join("copy.pcapng");
    std::fs::write(&copy, reader.join().unwrap()).unwrap();
    assert!(numbers(&copy).into_iter().eq(0..PACKETS));
}

/// A card that echoes all of `in.pcapng` into one file, and traces it into another.
fn echoing(folder: &Path, output: &str, trace: &str) -> CardFile {
    let text = format!(
        "[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\noutput = \"{output}\"\n\
         [[rx]]\nfunction = \"rss\"\n[pool]\nbuffers = 4096\n\
         [host]\nqueues = 2\nmode = \"echo\"\n\
         [trace]\npath = \"{trace}\"\nstages = [\"queue\", \"rx\"]\nbuffer_bytes = 262144\n"
    );
    let mut card = sections().parse(&text, None).unwrap();
    card.directory = folder.into();
    card
}

/// The card waits for slow readers until a stop is requested: on the borrowed core, on target
/// cores, and in the writing threads.
#[test]
fn slow_readers_do_not_delay_a_stop() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    fifo(folder.path(), "unread");
    for (output, trace, has_reader) in [
        ("unread", "/dev/null", false),
        ("/dev/null", "unread", false),
        ("unread", "/dev/null", true),
        ("/dev/null", "unread", true),
    ] {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let reader = has_reader.then(|| options.open(folder.path().join("unread")).unwrap());
        let stop = Stop::default();
        let card = echoing(folder.path(), output, trace);
        let tracing = Tracing::of(&card, &stop).unwrap();
        let launch = Launch::new(&card, registries()).stopped_by(stop).hook(tracing.clone());
        let running = launch.start_alone().unwrap();
        wait_until("packets come", || running.view().ledger.read().r#in > 100);
        assert!(!running.is_finished(), "a pipe and a ring hold fewer than there are");
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{report:#?}");
        assert!(report.ledger.r#in < u64::from(PACKETS), "{report:#?}");
        assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0));
        let traced = tracing.finish().unwrap();
        let seen: u64 = traced.interfaces.iter().map(|point| point.seen).sum();
        assert_eq!(seen, traced.packets_written + traced.packets_lost);
        let notes = report.notes.join("\n");
        let (told, written) = match output {
            "unread" => {
                let note = notes.split_once("unread: ").unwrap().1;
                (notes.clone(), note.split_once(' ').unwrap().0.parse().unwrap())
            }
            _ => (traced.error.unwrap(), traced.packets_written),
        };
        assert!(told.contains("no process reads it"), "{told}");
        let Some(mut reader) = reader else {
            assert_eq!(written, 0);
            continue;
        };
        let mut bytes = vec![0; 1 << 20];
        let length = reader.read(&mut bytes).unwrap();
        let copy = folder.path().join("copy.pcapng");
        std::fs::write(&copy, &bytes[..length]).unwrap();
        assert_eq!(CaptureFile::load(&copy).unwrap().len() as u64, written, "{told}");
    }
}

/// A card whose wires have finished waits for readers of its files, but not after a stop request.
#[test]
fn finished_cards_wait_for_readers_until_stopped() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture_of(10, &folder.path().join("in.pcapng"));
    let paths = ["output", "trace"].map(|name| fifo(folder.path(), name));
    for comes in [true, false] {
        let stop = Stop::default();
        let card = echoing(folder.path(), "output", "trace");
        let tracing = Tracing::of(&card, &stop).unwrap();
        let launch = Launch::new(&card, registries()).stopped_by(stop.clone());
        let running = launch.hook(tracing.clone()).start_alone().unwrap();
        wait_until("the wire has finished", || running.is_finished());
        // Target cores may still have some of it.
        wait_until("all has been echoed", || running.view().ledger.read().transmitted == 10);
        let (report, trace) = std::thread::scope(|scope| {
            // It is stopping, and waits.
            let readers = scope.spawn(|| match comes {
                true => paths.each_ref().map(|path| std::fs::read(path).unwrap().len()).into(),
                false => {
                    stop.ask();
                    None
                }
            });
            let ended = (running.stop().unwrap(), tracing.finish().unwrap());
            assert_eq!(
                readers.join().unwrap().is_some_and(|read: [usize; 2]| !read.contains(&0)),
                comes
            );
            ended
        });
        assert!(report.ledger.balanced());
        assert_eq!((report.ledger.transmitted, report.ledger.dropped), (10, 0));
        let expected = if comes { (20, 0, None) } else { (0, 20, Some("no process reads it")) };
        let TraceReport { packets_written, packets_lost, ref error, .. } = trace;
        assert_eq!((packets_written, packets_lost, error.as_deref()), expected);
    }
}

#[test]
fn outputs_never_overwrite_other_files_of_the_card() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_capture(&at("in.pcapng"));
    std::fs::hard_link(at("in.pcapng"), at("hard.pcapng")).unwrap();
    symlink("in.pcapng", at("soft.pcapng")).unwrap();
    let input = std::fs::read(at("in.pcapng")).unwrap();
    let wire = |path: &str, output: &str| {
        let output = if output.is_empty() { "".into() } else { format!("output = \"{output}\"\n") };
        format!("[[wire]]\nport = \"pcap\"\npath = \"{path}\"\n{output}")
    };
    let trace = |path: &str| format!("[trace]\npath = \"{path}\"\n");
    for (text, key, other) in [
        (wire("in.pcapng", "") + &trace("in.pcapng"), "trace.path", "wire[0].path"),
        (wire("in.pcapng", "") + &trace("soft.pcapng"), "trace.path", "wire[0].path"),
        (wire("in.pcapng", "hard.pcapng"), "wire[0].output", "wire[0].path"),
        (
            wire("in.pcapng", "") + &wire("hard.pcapng", "soft.pcapng"),
            "wire[1].output",
            "wire[0].path",
        ),
        (wire("in.pcapng", "") + &trace("t.toml"), "trace.path", "the card file"),
        (wire("in.pcapng", "./t.toml"), "wire[0].output", "the card file"),
        (wire("in.pcapng", "o") + &wire("in.pcapng", "o"), "wire[1].output", "wire[0].output"),
        (wire("in.pcapng", "o") + &trace("./o"), "trace.path", "wire[0].output"),
    ] {
        std::fs::write(at("t.toml"), &text).unwrap();
        let card = sections().load(&at("t.toml")).unwrap();
        let error = Launch::new(&card, registries()).check().map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!(" {key}: found ")), "{text}{error}");
        assert!(error.contains(&format!(" as {other}; allowed: another file")), "{error}");
        // Even unchecked: the trace's file is made before the wires.
        let card = sections().load(&at("t.toml")).unwrap();
        if let Ok(tracing) = Tracing::of(&card, &Stop::default()) {
            let launch = Launch::new(&card, registries()).hook(tracing.clone());
            assert!(launch.start_alone().is_err(), "{text}");
        }
        assert_eq!(std::fs::read(at("in.pcapng")).unwrap(), input, "{text}");
        assert_eq!(std::fs::read_to_string(at("t.toml")).unwrap(), text);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "{text}");
    }
}

/// Check and start agree about an output, and the check makes nothing.
#[test]
fn check_finds_impossible_outputs() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    write_capture(&folder.path().join("in.pcapng"));
    let long = "a".repeat(300);
    for path in ["", ".", "new/", "nowhere/new", "in.pcapng/new", &long] {
        let wire = "[control]\nsocket = \"off\"\n[[wire]]\nport = \"pcap\"\npath = \"in.pcapng\"\n";
        for (key, text) in [
            ("trace.path", format!("{wire}[trace]\npath = \"{path}\"\n")),
            ("wire[0].output", format!("{wire}output = \"{path}\"\n")),
        ] {
            let mut card = sections().parse(&text, None).unwrap();
            card.directory = folder.path().into();
            let launch = || Launch::new(&card, registries());
            let checked = launch().check().map(drop).unwrap_err().to_string();
            assert!(checked.contains(&format!(" {key}: ")), "{checked}");
            assert_eq!(launch().start().map(drop).unwrap_err().to_string(), checked);
        }
    }
    // The temporary file of an output and the card's socket are files, too.
    let input = folder.path().join("p.part");
    std::fs::rename(folder.path().join("in.pcapng"), &input).unwrap();
    let before = std::fs::read(&input).unwrap();
    let wire = "[[wire]]\nport = \"pcap\"\npath = \"p.part\"\n";
    let off = "[control]\nsocket = \"off\"\n";
    for text in [
        format!("{off}{wire}output = \"p\"\n"),
        format!("{off}{wire}[trace]\npath = \"p\"\n"),
        format!("{off}{wire}output = \"o.part\"\n[trace]\npath = \"o\"\n"),
        format!("[control]\nsocket = \"./o\"\n{wire}output = \"o\"\n"),
        format!("[control]\nsocket = \"./o.part\"\n{wire}output = \"o\"\n"),
        format!("[control]\nsocket = \"./o\"\n{wire}[trace]\npath = \"o\"\n"),
    ] {
        let card = || {
            let mut card = sections().parse(&text, None).unwrap();
            card.directory = folder.path().into();
            card
        };
        let errors = [
            Launch::new(&card(), registries()).check().map(drop),
            Launch::new(&card(), registries()).start().map(drop),
        ];
        for error in errors.map(|started| started.unwrap_err().to_string()) {
            assert!(error.ends_with("; allowed: another file"), "{text}{error}");
        }
        assert_eq!(std::fs::read(&input).unwrap(), before, "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn fifos_are_refused_as_captures() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    fifo(folder.path(), "in.pcap");
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n";
    let mut card = sections().parse(text, None).unwrap();
    card.directory = folder.path().into();
    for error in [
        Launch::new(&card, registries()).check().map(drop),
        Launch::new(&card, registries()).start_alone().map(drop),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("wire[0].path: "), "{error}");
        assert!(error.ends_with("found a FIFO, allowed: a file"), "{error}");
    }
}
