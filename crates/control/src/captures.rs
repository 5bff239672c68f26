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
mod tests;
