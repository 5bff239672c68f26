//! Captures of a running card: started and stopped by clients, at any stage.
//!
//! The card is built with probes at its stages ([`Captures`] is a [`Hook`]); the control thread
//! uses them.
//!
//! Guarantees: a probe without a capture costs a load per burst. A capture's file is the client's,
//! opened with the client's rights; a full file or a slow reader costs only packets of the capture,
//! which are counted. Functions swapped in during a capture are captured too.

use crate::protocol::{LIMIT, REFUSED, RpcError};
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::stop::Stop;
use picnic_ports::capture::{
    Capture, CaptureOptions, CaptureReport, MAX_BUFFER_BYTES, MIN_BUFFER_BYTES,
};
use picnic_ports::middleware::probe::{Handle, MOST, Probe};
use picnic_ports::middleware::tracer::TraceStage;
use picnic_ports::stream::Stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Ended captures whose outcome is kept.
const REMEMBERED: usize = 16;
/// Most bytes kept of a packet.
const MOST_SNAP: u32 = 262_144;

/// Parameters of `capture.start`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureRequest {
    /// Stages to capture, as in `[trace]`.
    pub stages: Vec<TraceStage>,
    /// Guests whose queues to capture, by name, with the stage `queue`; default: all queues.
    pub guests: Vec<String>,
    /// Bytes of each packet to keep, 1 to 262144.
    pub snap_bytes: u32,
    /// Number of packets after which it ends.
    pub packets: Option<u64>,
    /// File size in bytes at which it ends, at a packet boundary.
    pub bytes: Option<u64>,
    /// Buffer memory per interface, in bytes.
    pub buffer_bytes: usize,
    /// Whether it ends with the connection.
    pub attached: bool,
}

impl Default for CaptureRequest {
    fn default() -> Self {
        let CaptureOptions { snaplen, buffer_bytes, .. } = CaptureOptions::default();
        CaptureRequest {
            stages: vec![TraceStage::Wire],
            guests: Vec::new(),
            snap_bytes: snaplen,
            packets: None,
            bytes: None,
            buffer_bytes,
            attached: false,
        }
    }
}

impl CaptureRequest {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The value found and the values allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.stages.is_empty() {
            let all = TraceStage::ALL.map(TraceStage::name).join(", ");
            return Err(format!("stages: found an empty list, allowed: one or more of {all}"));
        }
        if !self.guests.is_empty() && !self.stages.contains(&TraceStage::Queue) {
            let found = self.guests.join(", ");
            return Err(format!("guests: found {found}, allowed with the stage queue"));
        }
        if !(1..=MOST_SNAP).contains(&self.snap_bytes) {
            let found = self.snap_bytes;
            return Err(format!("snap_bytes: found {found}, allowed: 1 to {MOST_SNAP}"));
        }
        if !(MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES).contains(&self.buffer_bytes) {
            let found = self.buffer_bytes;
            let allowed = format!("{MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}");
            return Err(format!("buffer_bytes: found {found}, allowed: {allowed}"));
        }
        for (key, limit) in [("packets", self.packets), ("bytes", self.bytes)] {
            if limit == Some(0) {
                return Err(format!("{key}: found 0, allowed: 1 or more"));
            }
        }
        Ok(())
    }
}

/// A place where packets can be captured.
#[derive(Debug)]
struct CapturePoint {
    stage: TraceStage,
    /// The guest of its queue.
    guest: Option<String>,
    /// Its interface in a capture.
    name: String,
    handle: Handle,
}

/// A capture that runs, or is about to end.
#[derive(Debug)]
struct Active {
    number: u32,
    wanted: CaptureRequest,
    capture: Capture,
    /// Set to stop waiting for the file's reader.
    stop: Stop,
    /// The connection that it ends with.
    owner: Option<u64>,
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<CapturePoint>,
    /// By the number that probes use.
    active: [Option<Active>; MOST],
    ended: VecDeque<(u32, Value)>,
    last_number: u32,
}

/// The probes of a card and the captures that use them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Captures(Arc<Mutex<State>>);

impl Captures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A probe for a place, with the running captures of that stage.
    fn probe(&self, point: &HookPoint<'_>) -> Probe {
        let (stage, name) = TraceStage::interface(point);
        let guest = match *point {
            HookPoint::Queue { guest, .. } => guest.map(Into::into),
            _ => None,
        };
        let (probe, handle) = Probe::new();
        let place = CapturePoint { stage, guest, name, handle };
        let mut state = self.lock();
        state.places.retain(|place| !place.handle.is_orphaned());
        for (index, active) in state.active.iter().enumerate() {
            if let Some(active) = active.as_ref().filter(|active| place.is_in(&active.wanted)) {
                place.handle.put(index, active.capture.point(&place.name));
            }
        }
        state.places.push(place);
        probe
    }

    /// Starts a capture into `file`. `now` is the time since the card started, `owner` the
    /// connection.
    pub(super) fn start(
        &self,
        wanted: CaptureRequest,
        file: Option<OwnedFd>,
        now: Duration,
        owner: u64,
    ) -> Result<Value, RpcError> {
        let file = file.ok_or_else(|| {
            let message = "missing, expected an open file, sent with the call (SCM_RIGHTS)";
            RpcError::new(REFUSED, message)
        })?;
        let mut state = self.lock();
        let state = &mut *state;
        let Some(index) = state.active.iter().position(Option::is_none) else {
            return Err(RpcError::new(LIMIT, format!("{MOST} captures run, which is the limit")));
        };
        state.places.retain(|place| !place.handle.is_orphaned());
        state.know(&wanted.guests)?;
        let places = || state.places.iter().filter(|place| place.is_in(&wanted));
        if places().next().is_none() {
            let stages: Vec<_> = wanted.stages.iter().map(|stage| stage.name()).collect();
            let message = format!("nothing can be captured at {}", stages.join(", "));
            let hint = match state.places.is_empty() {
                true => ": the card was built without probes",
                false => ": the chain has no functions",
            };
            return Err(RpcError::new(REFUSED, message + hint));
        }
        let stop = Stop::default();
        let sink = Stream::new(file, stop.clone()).map_err(|message| {
            RpcError::new(REFUSED, format!("the file sent with the call {message}"))
        })?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let options = CaptureOptions {
            snaplen: wanted.snap_bytes,
            buffer_bytes: wanted.buffer_bytes,
            epoch_ns: since_1970.saturating_sub(now).as_nanos() as u64,
            packets: wanted.packets.unwrap_or(0),
            bytes: wanted.bytes.unwrap_or(0),
        };
        let capture = Capture::to_writer(sink, options)
            .map_err(|error| RpcError::new(REFUSED, format!("cannot start a thread: {error}")))?;
        let mut names = Vec::new();
        for place in places() {
            place.handle.put(index, capture.point(&place.name));
            names.push(place.name.clone());
        }
        state.last_number += 1;
        let number = state.last_number;
        let owner = wanted.attached.then_some(owner);
        let since = Instant::now();
        state.active[index] = Some(Active { number, wanted, capture, stop, owner, since });
        Ok(json!({ "capture": number, "interfaces": names }))
    }

    /// Requests the end of a capture; [`Captures::outcome`] has the result.
    pub(super) fn stop(&self, number: u32) -> Result<(), RpcError> {
        let mut state = self.lock();
        let mut active = state.active.iter_mut().flatten();
        if let Some(active) = active.find(|active| active.number == number) {
            active.stop();
            return Ok(());
        }
        state.known(number)
    }

    /// Checks that the capture exists or existed.
    pub(super) fn known(&self, number: u32) -> Result<(), RpcError> {
        self.lock().known(number)
    }

    /// Ends the captures that belong to a connection.
    pub(super) fn client_has_gone(&self, client: u64) {
        let mut state = self.lock();
        let of_client = |active: &&mut Active| active.owner == Some(client);
        state.active.iter_mut().flatten().filter(of_client).for_each(Active::stop);
    }

    /// Ends all.
    pub(super) fn stop_all(&self) {
        self.lock().active.iter_mut().flatten().for_each(Active::stop);
    }

    /// Whether a capture runs.
    pub(super) fn are_any(&self) -> bool {
        self.lock().active.iter().any(Option::is_some)
    }

    /// Collects captures that have ended.
    pub(super) fn tick(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        for (index, slot) in state.active.iter_mut().enumerate() {
            let Some(mut active) = slot.take_if(|active| active.capture.has_ended()) else {
                continue;
            };
            for place in &state.places {
                place.handle.take(index);
            }
            let report = active.capture.finish();
            let outcome = outcome(&active, &report);
            state.ended.push_back((active.number, outcome));
            if state.ended.len() > REMEMBERED {
                state.ended.pop_front();
            }
        }
    }

    /// The result of a capture; none while it runs.
    pub(super) fn outcome(&self, number: u32) -> Option<Value> {
        let state = self.lock();
        let found = state.ended.iter().find(|(ended, _)| *ended == number);
        found.map(|(_, outcome)| outcome.clone())
    }

    /// The running captures.
    pub(super) fn list(&self) -> Value {
        let state = self.lock();
        let captures = state.active.iter().flatten().map(|active| {
            let report = active.capture.report();
            let mut value = figures(active, &report);
            value["elapsed_s"] = active.since.elapsed().as_secs_f64().into();
            value["attached"] = active.owner.is_some().into();
            value
        });
        json!({ "captures": captures.collect::<Vec<_>>() })
    }
}

impl CapturePoint {
    fn is_in(&self, wanted: &CaptureRequest) -> bool {
        let is_its = |guest: &String| wanted.guests.contains(guest);
        let is_narrowed = self.stage == TraceStage::Queue && !wanted.guests.is_empty();
        wanted.stages.contains(&self.stage)
            && (!is_narrowed || self.guest.as_ref().is_some_and(is_its))
    }
}

impl State {
    /// Checks that the card has these guests.
    fn know(&self, wanted: &[String]) -> Result<(), RpcError> {
        let mut guests: Vec<_> =
            self.places.iter().filter_map(|place| place.guest.as_deref()).collect();
        guests.dedup();
        let Some(unknown) = wanted.iter().find(|guest| !guests.contains(&guest.as_str())) else {
            return Ok(());
        };
        let allowed = match guests.is_empty() {
            true => "none: the card has no guests".to_owned(),
            false => guests.join(", "),
        };
        let message = format!("guests: found {unknown}, allowed: {allowed}");
        Err(RpcError::new(crate::protocol::INVALID_PARAMS, message))
    }

    fn known(&self, number: u32) -> Result<(), RpcError> {
        let running = self.active.iter().flatten().map(|active| active.number);
        let mut all = running.chain(self.ended.iter().map(|(number, _)| *number));
        if all.any(|known| known == number) {
            return Ok(());
        }
        let running: Vec<_> =
            self.active.iter().flatten().map(|active| active.number.to_string()).collect();
        let running = if running.is_empty() { "none".into() } else { running.join(", ") };
        let message = format!("capture: found {number}, running: {running}");
        Err(RpcError::new(crate::protocol::INVALID_PARAMS, message))
    }
}

impl Active {
    fn stop(&mut self) {
        self.stop.ask();
        self.capture.stop();
    }
}

fn figures(active: &Active, report: &CaptureReport) -> Value {
    let interfaces = report.points.iter().map(|point| {
        json!({
            "name": point.name,
            "seen": point.seen,
            "written": point.written,
            "lost": point.lost,
        })
    });
    json!({
        "capture": active.number,
        "stages": active.wanted.stages,
        "packets_written": report.written(),
        "packets_lost": report.lost(),
        "interfaces": interfaces.collect::<Vec<_>>(),
    })
}

fn outcome(active: &Active, report: &CaptureReport) -> Value {
    let mut value = figures(active, report);
    let ended_by = match (&report.error, report.is_full) {
        (Some(_), _) => "error",
        (None, true) => "limit",
        (None, false) => "stop",
    };
    value["ended_by"] = ended_by.into();
    value["error"] = report.error.clone().into();
    value
}

/// A probe at every point: captures come later.
impl Hook for Captures {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        Some(Box::new(self.probe(point)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::ledger::Stage;
    use picnic_core::packet::pool::{Pool, PoolConfig};
    use picnic_core::time::Time;
    use picnic_ports::stream::PATIENCE;
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
        let start = Instant::now();
        loop {
            captures.tick();
            if let Some(outcome) = captures.outcome(number) {
                return outcome;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
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
        assert_eq!(
            (&outcome["packets_written"], &outcome["ended_by"]),
            (&json!(3), &json!("stop"))
        );
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
        assert_eq!(
            (&outcome["packets_written"], &outcome["ended_by"]),
            (&json!(1), &json!("limit"))
        );
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
        assert_eq!(
            refused(&wire, file(&folder)),
            format!("{MOST} captures run, which is the limit")
        );
        show(&mut probe, Stage::Wire, 3);
        let list = captures.list();
        let first = &list["captures"][0];
        assert_eq!(list["captures"].as_array().map(Vec::len), Some(MOST));
        assert_eq!((&first["capture"], &first["stages"]), (&json!(1), &json!(["wire"])));
        assert!(first["elapsed_s"].as_f64().is_some());
        assert_eq!(
            captures.known(77).unwrap_err().message,
            "capture: found 77, running: 1, 2, 3, 4"
        );
        captures.stop_all();
        for number in 1..=MOST as u32 {
            let outcome = ended(&captures, number);
            assert_eq!(
                (&outcome["packets_written"], &outcome["packets_lost"]),
                (&json!(3), &json!(0))
            );
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
        while ours.write(&[0; 4096]).is_ok() {}
        captures.start(CaptureRequest::default(), Some(ours.into()), Duration::ZERO, 9).unwrap();
        show(&mut probe, Stage::Wire, 3);
        // Longer than the patience for the reader of a stopping capture.
        std::thread::sleep(PATIENCE + PATIENCE / 2);
        captures.tick();
        assert!(captures.are_any(), "{:?}", captures.outcome(1));
        let reader = std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()));
        captures.stop(1).unwrap();
        let outcome = ended(&captures, 1);
        assert_eq!(
            (&outcome["packets_written"], &outcome["ended_by"]),
            (&json!(3), &json!("stop"))
        );
        reader.join().unwrap().unwrap();
    }
}
