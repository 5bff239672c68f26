//! heartbeat: sends a numbered frame on a wire at every release.
//!
//! ```toml
//! [[task]]
//! task = "heartbeat"
//! period_us = 10000
//! wire = 0
//! ```
//!
//! The frame is Ethernet with a local experimental type (IEEE 802, 0x88b5): six
//! bytes of target address, six of source, the type, `PICN`, and a number of eight
//! bytes, big-endian, that grows by one; zeroes up to the length. Its bounds are
//! the bounds of `#[task]` under the card's cost profile: `picnic wcet show heartbeat`.
//!
//! While it runs, `picnic ctl heartbeat` shows the number of frames sent, and
//! `picnic ctl heartbeat wire 1` switches to another wire.

use crate::bounds;
use crate::graphs::{Task, Trial};
use picnic_core::command::{CommandEntry, CommandError, ComponentChange, Get, Inspect, Set};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::task::{TaskSpec, program};
use picnic_wcet::{bounded, task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The task.
#[derive(Debug)]
pub struct Heartbeat;

/// Its keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Number of the wire to send on.
    pub wire: u8,
    /// Frame length in bytes.
    #[schemars(range(min = SHORTEST, max = LONGEST))]
    pub size: u16,
    /// Continue only after the wire has taken the frame.
    pub wait: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { wire: 0, size: 60, wait: false }
    }
}

const SHORTEST: u16 = 26;
const LONGEST: u16 = 1514;
/// Bytes before the number.
const HEADER: [u8; 18] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // broadcast
    0x02, 0x50, 0x49, 0x43, 0x4e, 0x00, // locally administered
    0x88, 0xb5, b'P', b'I', b'C', b'N',
];

/// Offset of the number.
const NUMBER: usize = HEADER.len();

impl Component for Heartbeat {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "heartbeat";
    const HELP: &'static str = "send a numbered frame on a wire at every release";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<Arc<HeartbeatCounters>>>(), CommandEntry::of::<Set<NewWire>>()];

    fn build(config: Config, context: &BuildContext) -> Result<Setup, ConfigError> {
        let longest = LONGEST.min(u16::try_from(context.buffer_size).unwrap_or(LONGEST));
        if !(SHORTEST..=longest).contains(&config.size) {
            let message = format!("found {}, allowed: {SHORTEST} to {longest}", config.size);
            return Err(ConfigError::new("size", message));
        }
        check_wire(config.wire, context).map_err(|message| ConfigError::new("wire", message))?;
        let spec = TaskSpec::new(Self::NAME).periodic(1_000_000);
        let spec = bounds::bounded(spec, &heartbeat::GRAPH, context)?;
        let Config { wire, wait, .. } = config;
        let (frame, beats) = (first_frame(config.size), Arc::new(HeartbeatCounters::by(wire)));
        let shown = beats.clone();
        let program = program(move |nic| heartbeat(nic, beats, wait, frame)).obeying(shown);
        Ok(Setup { spec, program })
    }
}

fn check_wire(wire: u8, context: &BuildContext) -> Result<(), String> {
    if wire < context.wires {
        return Ok(());
    }
    Err(format!("found {wire}, allowed: 0 to {}", context.wires - 1))
}

/// State that a heartbeat shares with its commands.
#[derive(Debug, Default)]
pub struct HeartbeatCounters {
    wire: Counter,
    sent: Counter,
    missing: Counter,
}

impl HeartbeatCounters {
    /// Counters of a heartbeat on this wire.
    fn by(wire: u8) -> Self {
        let beats = HeartbeatCounters::default();
        beats.wire.set(wire.into());
        beats
    }
}

/// State of a heartbeat.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct State {
    /// Number of its wire (before the change, for `set`).
    pub wire: u64,
    /// Frames that the card took (with `wait`, the wire).
    pub sent_frames: u64,
    /// Frames that could not be sent; their numbers are skipped.
    pub missing_frames: u64,
}

impl Inspect for HeartbeatCounters {
    type State = State;
    const HELP: &'static str = "its wire and the number of frames sent";

    fn inspect(&self) -> State {
        State {
            wire: self.wire.get(),
            sent_frames: self.sent.get(),
            missing_frames: self.missing.get(),
        }
    }
}

/// The arguments of `heartbeat.set`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWire {
    /// Number of the wire to send on, from the next frame on.
    pub wire: u8,
}

impl ComponentChange for NewWire {
    const HELP: &'static str = "change the wire; the result has the state before";
    const EXAMPLE: &'static str = r#"{"wire": 0}"#;
    type Of = Arc<HeartbeatCounters>;
    type New = u8;

    fn prepare(self, context: &BuildContext) -> Result<u8, CommandError> {
        check_wire(self.wire, context)
            .map_err(|message| CommandError::argument("wire", message))?;
        Ok(self.wire)
    }

    fn apply(wire: &mut u8, beats: &mut Arc<HeartbeatCounters>, _now: Time) -> bool {
        beats.wire.set((*wire).into());
        true
    }
}

impl Task for Heartbeat {
    const GRAPH: Option<Trial> = Some((&heartbeat::GRAPH, || {
        program(|nic| heartbeat(nic, Arc::default(), true, first_frame(LONGEST)))
    }));
}

/// The frame, without its number.
fn first_frame(size: u16) -> Vec<u8> {
    let mut frame = vec![0; usize::from(size.max(SHORTEST))];
    frame[..HEADER.len()].copy_from_slice(&HEADER);
    frame
}

/// Writes the number after the header.
#[bounded]
fn write_number(frame: &mut [u8], number: u64) {
    let bytes = number.to_be_bytes();
    for (place, byte) in frame[NUMBER..].iter_mut().zip(&bytes).take(8) {
        *place = *byte;
    }
}

/// Sends `frame` at each release, numbered from zero on.
#[task]
pub async fn heartbeat(nic: Nic, beats: Arc<HeartbeatCounters>, wait: bool, mut frame: Vec<u8>) {
    let mut number: u64 = 0;
    loop {
        write_number(&mut frame, number);
        number = number.wrapping_add(1);
        let wire = beats.wire.get() as u8;
        let sent = if wait {
            nic.send(wire, &frame).await.is_ok()
        } else {
            nic.post(wire, &frame).is_ok()
        };
        // A frame that cannot be sent leaves a gap in the numbers.
        let count = if sent { &beats.sent } else { &beats.missing };
        count.set(count.get().wrapping_add(1));
        nic.next_release().await;
    }
}
