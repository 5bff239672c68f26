//! Where captures look, what their requests may say, and how long their results are kept.

use super::*;
use picnic_core::ledger::Stage;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::time::Time;
use picnic_ports::stream::PATIENCE;
use picnic_testing::wait_for;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

fn show(observer: &mut Box<dyn Observer>, stage: Stage, packets: usize) {
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let packets: Vec<_> = (0..packets).map(|_| pool.packet(&[7; 60]).unwrap()).collect();
    if observer.begin() {
        observer.observe(Time::ZERO, stage, &packets);
        observer.end();
    }
    packets.into_iter().for_each(|packet| pool.free(packet));
}

/// Waits for the result of a stopping capture.
fn ended(captures: &Captures, number: u32) -> Value {
    wait_for("it ends", || {
        captures.tick();
        captures.outcome(number)
    })
}

#[test]
fn captures_cover_their_stages_and_later_places() {
    let captures = Captures::default();
    let wire = HookPoint::Wire { index: 0, name: "wire0" };
    let mut first = captures.observer(&wire).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = || Some(OwnedFd::from(std::fs::File::create(folder.path().join("x")).unwrap()));
    let started = captures.start(CaptureRequest::default(), file(), Duration::ZERO, 9).unwrap();
    assert_eq!(started, json!({ "capture": 1, "interfaces": ["wire0"] }));
    assert_eq!(captures.list()["captures"][0]["attached"], false);
    let mut second = captures.observer(&wire).unwrap();
    let mut elsewhere = captures.observer(&HookPoint::Queue { index: 0, guest: None }).unwrap();
    show(&mut first, Stage::Wire, 1);
    show(&mut second, Stage::Wire, 2);
    show(&mut elsewhere, Stage::Target, 4);
    captures.client_has_gone(9);
    assert!(captures.are_any(), "it belongs to no connection");
    captures.stop(1).unwrap();
    let outcome = ended(&captures, 1);
    assert_eq!((&outcome["packets_written"], &outcome["ended_by"]), (&json!(3), &json!("stop")));
    assert!(!captures.are_any() && captures.known(1).is_ok() && captures.known(2).is_err());
    assert!(!first.begin(), "bursts are looked at no more");
    // Only the capture of this connection ends with it.
    let attached = CaptureRequest { attached: true, ..CaptureRequest::default() };
    captures.start(attached, file(), Duration::ZERO, 9).unwrap();
    assert_eq!(captures.list()["captures"][0]["attached"], true);
    captures.client_has_gone(8);
    captures.tick();
    assert!(captures.are_any());
    captures.client_has_gone(9);
    assert_eq!(ended(&captures, 2)["capture"], 2);
    let limited = CaptureRequest { packets: Some(1), ..CaptureRequest::default() };
    captures.start(limited, file(), Duration::ZERO, 9).unwrap();
    show(&mut first, Stage::Wire, 5);
    let outcome = ended(&captures, 3);
    assert_eq!((&outcome["packets_written"], &outcome["ended_by"]), (&json!(1), &json!("limit")));
}

#[test]
fn capture_parameters_are_checked() {
    let check = |change: fn(&mut CaptureRequest)| {
        let mut wanted = CaptureRequest::default();
        change(&mut wanted);
        wanted.check().map_err(|error| error.split(',').next().unwrap_or_default().to_owned())
    };
    let found = |text: &str| Err(text.to_owned());
    assert_eq!(check(|_| {}), Ok(()));
    assert_eq!(check(|wanted| wanted.stages.clear()), found("stages: found an empty list"));
    assert_eq!(check(|wanted| wanted.snap_bytes = 0), found("snap_bytes: found 0"));
    assert_eq!(check(|wanted| wanted.snap_bytes = 1), Ok(()));
    assert_eq!(check(|wanted| wanted.snap_bytes = MOST_SNAP), Ok(()));
    assert_eq!(
        check(|wanted| wanted.snap_bytes = MOST_SNAP + 1),
        found("snap_bytes: found 262145")
    );
    for (bytes, fits) in [
        (MIN_BUFFER_BYTES - 1, false),
        (MIN_BUFFER_BYTES, true),
        (MAX_BUFFER_BYTES, true),
        (MAX_BUFFER_BYTES + 1, false),
    ] {
        let wanted = CaptureRequest { buffer_bytes: bytes, ..CaptureRequest::default() };
        assert_eq!(wanted.check().is_ok(), fits, "{bytes}");
    }
    assert_eq!(check(|wanted| wanted.packets = Some(1)), Ok(()));
    assert_eq!(check(|wanted| wanted.packets = Some(0)), found("packets: found 0"));
    assert_eq!(check(|wanted| wanted.bytes = Some(1)), Ok(()));
    assert_eq!(check(|wanted| wanted.bytes = Some(0)), found("bytes: found 0"));
}

#[test]
fn queues_of_a_guest_are_captured_alone() {
    let folder = tempfile::tempdir().unwrap();
    let captures = Captures::default();
    let queue = |index, guest| captures.observer(&HookPoint::Queue { index, guest }).unwrap();
    let wanted = |stages: &[TraceStage], guests: &[&str]| CaptureRequest {
        stages: stages.to_vec(),
        guests: guests.iter().map(|&guest| guest.into()).collect(),
        ..CaptureRequest::default()
    };
    let start = |wanted| captures.start(wanted, file(&folder), Duration::ZERO, 9);
    let _wire = captures.observer(&HookPoint::Wire { index: 0, name: "wire0" }).unwrap();
    let of_none = start(wanted(&[TraceStage::Queue], &["vm0"])).unwrap_err().message;
    assert_eq!(of_none, "guests: found vm0, allowed: none: the card has no guests");
    let mut queues =
        [(0, "vm0"), (1, "vm0"), (2, "vm1")].map(|(index, guest)| queue(index, Some(guest)));
    let stages = [TraceStage::Wire, TraceStage::Queue];
    let unknown = start(wanted(&stages, &["vm1", "vm2"])).unwrap_err().message;
    assert_eq!(unknown, "guests: found vm2, allowed: vm0, vm1");
    let alone = wanted(&[TraceStage::Wire], &["vm1"]).check().unwrap_err();
    assert_eq!(alone, "guests: found vm1, allowed with the stage queue");
    let started = start(wanted(&stages, &["vm1"])).unwrap();
    assert_eq!(started["interfaces"], json!(["wire0", "queue2 vm1"]));
    queues.iter_mut().for_each(|queue| show(queue, Stage::Target, 2));
    captures.stop(1).unwrap();
    assert_eq!(ended(&captures, 1)["packets_written"], 2);
}

fn file(folder: &tempfile::TempDir) -> Option<OwnedFd> {
    Some(OwnedFd::from(std::fs::File::create(folder.path().join("x")).unwrap()))
}

#[test]
fn refused_captures_have_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let captures = Captures::default();
    let refused = |wanted: &CaptureRequest, file| {
        captures.start(wanted.clone(), file, Duration::ZERO, 9).unwrap_err().message
    };
    let wire = CaptureRequest::default();
    assert!(refused(&wire, None).starts_with("missing, expected an open file"));
    assert_eq!(
        refused(&wire, file(&folder)),
        "nothing can be captured at wire: the card was built without probes"
    );
    let mut probe = captures.observer(&HookPoint::Wire { index: 0, name: "wire0" }).unwrap();
    let rx = CaptureRequest { stages: vec![TraceStage::Rx], ..CaptureRequest::default() };
    assert_eq!(
        refused(&rx, file(&folder)),
        "nothing can be captured at rx: the chain has no functions"
    );
    for number in 1..=MOST {
        let started = captures.start(wire.clone(), file(&folder), Duration::ZERO, 9).unwrap();
        assert_eq!(started["capture"], number);
    }
    assert_eq!(refused(&wire, file(&folder)), format!("{MOST} captures run, which is the limit"));
    show(&mut probe, Stage::Wire, 3);
    let list = captures.list();
    let first = &list["captures"][0];
    assert_eq!(list["captures"].as_array().map(Vec::len), Some(MOST));
    assert_eq!((&first["capture"], &first["stages"]), (&json!(1), &json!(["wire"])));
    assert!(first["elapsed_s"].as_f64().is_some());
    assert_eq!(captures.known(77).unwrap_err().message, "capture: found 77, running: 1, 2, 3, 4");
    captures.stop_all();
    for number in 1..=MOST as u32 {
        let outcome = ended(&captures, number);
        assert_eq!((&outcome["packets_written"], &outcome["packets_lost"]), (&json!(3), &json!(0)));
    }
    assert!(!captures.are_any());
    // A place that is gone cannot be captured.
    drop(probe);
    assert_eq!(
        refused(&wire, file(&folder)),
        "nothing can be captured at wire: the card was built without probes"
    );
}

/// Those of functions that are swapped out repeatedly.
#[test]
fn removed_places_are_not_kept() {
    let captures = Captures::default();
    let place = || captures.observer(&HookPoint::Wire { index: 0, name: "wire0" }).unwrap();
    (0..3).for_each(|_| drop(place()));
    let _there = place();
    assert_eq!(captures.lock().places.len(), 1);
}

#[test]
fn results_of_the_last_captures_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let captures = Captures::default();
    let mut probe = captures.observer(&HookPoint::Wire { index: 0, name: "wire0" }).unwrap();
    for number in 1..=REMEMBERED as u32 + 1 {
        captures.start(CaptureRequest::default(), file(&folder), Duration::ZERO, 9).unwrap();
        show(&mut probe, Stage::Wire, 1);
        captures.stop(number).unwrap();
        ended(&captures, number);
        // Stopping an ended capture is not an error.
        captures.stop(number).unwrap();
    }
    assert_eq!(captures.known(1).unwrap_err().message, "capture: found 1, running: none");
    assert!(captures.outcome(1).is_none());
    assert!((2..=REMEMBERED as u32 + 1).all(|number| captures.outcome(number).is_some()));
}

#[test]
fn running_captures_wait_for_their_reader() {
    let captures = Captures::default();
    let mut probe = captures.observer(&HookPoint::Wire { index: 0, name: "wire0" }).unwrap();
    let (mut theirs, mut ours) = UnixStream::pair().unwrap();
    // It is full until somebody reads.
    ours.set_nonblocking(true).unwrap();
    let mut full = 0;
    while let Ok(bytes) = ours.write(&[0; 4096]) {
        full += bytes;
    }
    captures.start(CaptureRequest::default(), Some(ours.into()), Duration::ZERO, 9).unwrap();
    show(&mut probe, Stage::Wire, 3);
    // Longer than the patience for the reader of a stopping capture.
    std::thread::sleep(PATIENCE + PATIENCE / 2);
    captures.tick();
    assert!(captures.are_any(), "{:?}", captures.outcome(1));
    // Now there is room for the rest: a stopping capture needs no reader that might be late.
    theirs.read_exact(&mut vec![0; full]).unwrap();
    captures.stop(1).unwrap();
    let outcome = ended(&captures, 1);
    assert_eq!((&outcome["packets_written"], &outcome["ended_by"]), (&json!(3), &json!("stop")));
}
