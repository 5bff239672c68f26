//! Wire port `pcap`: replays a capture, at full speed or as recorded.
//!
//! ```toml
//! [[wire]]
//! port = "pcap"
//! path = "web.pcap"     # pcap or pcapng, relative to the card file
//! pace = "recorded"     # flat-out (default) | recorded
//! speed = 2.0           # recorded: twice as fast
//! max_gap_ms = 1000     # recorded: cuts longer gaps
//! loops = 0             # without end
//! output = "out.pcapng" # transmitted packets, renamed at the end
//! interface = "wire0"   # of a pcapng with several: its packets alone, or "all"
//! ```
//!
//! Of a trace, which has a copy of each packet at every stage, only the packets of the first stage
//! are replayed, as the wires received them, unless `interface` selects others.
//!
//! Guarantees: the file is read, checked and indexed before anything starts, so the data path makes
//! no system call. At full speed the wire is patient: it gives as many packets as there are
//! buffers, and loses nothing. If all wires of the card are (files flat out, generators without a
//! rate), the card is *offline*: its host waits for room to echo, and `output` for the disk, so
//! every packet ends in the file. Otherwise packets that the disk is too slow for are dropped as
//! `wire_full`. As recorded, a packet is due at its time after the first call, and that is its
//! receive time; a late card gets all due packets, and those without a buffer are shed. Empty and
//! too long packets count as in, and are dropped at the wire.

mod choice;
mod commands;
mod file;
#[cfg(test)]
mod tests;

pub use file::{CaptureFile, Gap, InvalidCapture, MAX_FILE_BYTES};

use crate::capture::{Capture, CaptureOptions, Point};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::pool::MAX_PACKET_BYTES;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Rate, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const NS_PER_MS: u64 = 1_000_000;
/// A replay warns about longer gaps, since a card that is silent for so long looks stuck.
const LONG_GAP_NS: u64 = 10_000_000_000;

/// Timing of the packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// As fast as the card takes them.
    #[default]
    FlatOut,
    /// By their timestamps.
    Recorded,
}

/// Keys of the `pcap` port.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PcapConfig {
    /// The capture to replay, pcap or pcapng of Ethernet, up to 1 GiB; mandatory.
    pub path: Option<PathBuf>,
    /// Timing of packets: as fast as the card takes them, or by their timestamps.
    pub pace: Pace,
    /// With pace "recorded": speed relative to the recording.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub speed: f64,
    /// With pace "recorded": longest gap between packets in milliseconds, as recorded. A
    /// longer gap is cut to that, and later packets move forward by as much; likewise for a clock
    /// that jumps back by more. Default: as recorded.
    #[schemars(range(min = 1))]
    pub max_gap_ms: Option<u64>,
    /// Number of times the capture is replayed; 0: unlimited.
    pub loops: u64,
    /// Transmitted packets are written to this pcapng file.
    pub output: Option<PathBuf>,
    /// Of a capture with several interfaces, the name of the one to replay, or "all"; default: all,
    /// without the copies of each packet that a trace of a card has.
    pub interface: Option<String>,
}

impl Default for PcapConfig {
    fn default() -> Self {
        PcapConfig {
            path: None,
            pace: Pace::FlatOut,
            speed: 1.0,
            max_gap_ms: None,
            loops: 1,
            output: None,
            interface: None,
        }
    }
}

/// The registry entry.
#[derive(Debug)]
pub struct Pcap;

impl Component for Pcap {
    type Product = Box<dyn WirePort>;
    type Config = PcapConfig;
    const NAME: &'static str = "pcap";
    const HELP: &'static str = "replay a capture (pcap, pcapng): flat out, as recorded, in loops";
    const IN_VIRTUAL_TIME: bool = true;
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;

    fn example(directory: &Path) -> Option<String> {
        // One frame of 60 bytes, over and over.
        let mut capture = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 60, 60] {
            capture.extend(word.to_le_bytes());
        }
        capture.resize(capture.len() + 60, 0x02);
        std::fs::write(directory.join("example.pcap"), capture).ok()?;
        Some("path = \"example.pcap\"".into())
    }

    fn build(config: PcapConfig, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        Ok(Box::new(PcapPort::build(&config, context)?))
    }
}

/// A capture being replayed.
#[derive(Debug)]
pub struct PcapPort {
    file: CaptureFile,
    name: String,
    pace: Pace,
    speed: f64,
    max_gap_ns: Option<u64>,
    /// Passes after this one; `None`: unlimited.
    passes_left: Option<u64>,
    /// Next packet of this pass.
    next: usize,
    /// Recorded: time of the first packet.
    start: Option<Time>,
    /// Recorded: duration of earlier passes, in nanoseconds of the capture.
    passed_ns: u64,
    output: Option<Output>,
}

#[derive(Debug)]
struct Output {
    name: String,
    capture: Capture,
    point: Point,
}

impl PcapPort {
    /// Reads the capture and prepares to replay it.
    ///
    /// # Errors
    /// A key is wrong, or the file that it names.
    pub fn build(config: &PcapConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        let path = config.path.as_ref().ok_or_else(|| {
            ConfigError::new("path", "missing, expected the name of a pcap or pcapng file")
        })?;
        let path = context.directory.join(path);
        let name = path.display().to_string();
        context.files.read("path", &path)?;
        let wrong = |key: &str, message| ConfigError::new(key, format!("{name}: {message}"));
        let max_gap_ns = config.max_gap_ms.map(|ms| ms.saturating_mul(NS_PER_MS));
        let file = CaptureFile::load_chosen(&path, config.interface.as_deref(), max_gap_ns)
            .map_err(|message| wrong("path", message))?
            .map_err(|message| wrong("interface", message))?;
        let output = match &config.output {
            Some(output) => {
                let output = context.directory.join(output);
                context.files.write("output", &output)?;
                Some(Output::build(&output, &context.stop)?)
            }
            None => None,
        };
        Ok(PcapPort {
            file,
            name,
            pace: config.pace,
            speed: config.speed,
            max_gap_ns,
            passes_left: config.loops.checked_sub(1),
            next: 0,
            start: None,
            passed_ns: 0,
            output,
        })
    }

    /// Nanoseconds of the capture from one pass to the next: its duration plus one mean gap.
    fn period_ns(&self) -> u64 {
        let duration = self.file.duration_ns();
        let gaps = self.file.len().saturating_sub(1).max(1) as u64;
        duration.saturating_add(duration / gaps)
    }

    /// Begins the next pass, if there is one.
    fn rewind(&mut self) -> bool {
        if self.file.is_empty() {
            return false;
        }
        match &mut self.passes_left {
            Some(0) => return false,
            Some(left) => *left -= 1,
            None => {}
        }
        self.next = 0;
        self.passed_ns = self.passed_ns.saturating_add(self.period_ns());
        true
    }

    /// When a packet recorded at `time_ns` of this pass is due.
    fn due(&self, start: Time, time_ns: u64) -> Time {
        start + self.scaled(self.passed_ns.saturating_add(time_ns))
    }

    /// Nanoseconds of replay for this many nanoseconds of the capture.
    fn scaled(&self, recorded: u64) -> u64 {
        // The division would round times past 2^53 ns.
        if self.speed == 1.0 { recorded } else { (recorded as f64 / self.speed) as u64 }
    }

    /// The longest gap of the replay, if it is by recorded times.
    fn gap(&self) -> Option<Gap> {
        let gap = self.file.largest_gap();
        let ns = self.max_gap_ns.map_or(gap.ns, |most| gap.ns.min(most));
        (self.pace == Pace::Recorded).then_some(Gap { ns: self.scaled(ns), ..gap })
    }

    fn is_finished(&self) -> bool {
        self.next == self.file.len() && (self.file.is_empty() || self.passes_left == Some(0))
    }
}

impl WirePort for PcapPort {
    fn describe(&self) -> Description {
        let is_recorded = self.pace == Pace::Recorded;
        // Sent packets go nowhere, so super-frames need not be segmented.
        let capabilities = Capabilities {
            patient: !is_recorded,
            super_frames: true,
            arrival: is_recorded,
            tells_waiting: is_recorded,
            ..Capabilities::default()
        };
        // Packets not taken in time wait in the file.
        let room = Some(u64::MAX);
        let (rate, origin) = match self.pace {
            Pace::FlatOut => (Rate::Asked, "it waits until it is asked"),
            Pace::Recorded => (Rate::Untold, "a capture does not report a rate"),
        };
        let arrivals = Arrivals { rate, room, origin: origin.into(), ..Arrivals::default() };
        let long = self.gap().filter(|gap| gap.ns >= LONG_GAP_NS);
        let warning = long.map(|Gap { ns, before }| {
            format!(
                "{}: no packet for {} before packet {} of {}; max_gap_ms bounds such gaps",
                self.name,
                seconds(ns),
                before + 1,
                self.file.len()
            )
        });
        let note = self.gap().map(|Gap { ns, before }| {
            let duration = seconds(self.scaled(self.file.duration_ns()));
            let bounded = match self.file.bounded() {
                0 => String::new(),
                count => format!(", {count} bounded by max_gap_ms"),
            };
            format!(
                "{}: a pass takes {duration}; its largest gap is {}, before packet {}{bounded}",
                self.name,
                seconds(ns),
                before + 1
            )
        });
        Description {
            capabilities,
            arrivals,
            warnings: warning.into_iter().collect(),
            notes: note.into_iter().collect(),
        }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let start = *self.start.get_or_insert(now);
        if let Some(output) = &mut self.output {
            // The first call has the file made, even if nothing is ever transmitted.
            output.point.publish();
        }
        // A budget, since packets that are shed take no room.
        for _ in 0..rx.room() {
            if self.next == self.file.len() && !self.rewind() {
                return;
            }
            let Some((data, time_ns)) = self.file.packet(self.next) else { return };
            if self.pace == Pace::Recorded {
                let due = self.due(start, time_ns);
                if due > now {
                    return;
                }
                rx.arrived_at(due);
            }
            let pool = rx.pool();
            let needed = data.len().div_ceil(pool.buffer_size());
            if data.is_empty() {
                rx.shed(DropReason::Malformed, 1);
            } else if data.len() > MAX_PACKET_BYTES || needed > pool.buffers() {
                rx.shed(DropReason::Oversize, 1);
            } else if self.pace == Pace::FlatOut && !pool.ensure(needed) {
                return;
            } else {
                rx.push_bytes(data);
            }
            self.next += 1;
        }
    }

    fn holds(&mut self, now: Time, frames: usize) -> bool {
        let start = *self.start.get_or_insert(now);
        // The first packet after a restart of the file is not sought: it waits for its time.
        let last = self.file.packet(self.next + frames.saturating_sub(1));
        last.is_some_and(|(_, time_ns)| self.due(start, time_ns) <= now)
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        let Some(output) = &mut self.output else {
            while let Some(packet) = tx.next() {
                tx.sent(packet);
            }
            return;
        };
        output.point.wait_for_room(tx.may_wait());
        while let Some(packet) = tx.next() {
            if output.point.record(now, &packet, Some(Direction::Tx)) {
                tx.sent(packet);
            } else {
                tx.drop(packet, DropReason::WireFull);
            }
        }
        output.point.publish();
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }

    fn status(&self) -> Status<'_> {
        if self.is_finished() {
            return Status { is_finished: true, ..Status::default() };
        }
        let next_deadline = match (self.pace, self.start) {
            (Pace::Recorded, Some(start)) => Some(match self.file.packet(self.next) {
                Some((_, time_ns)) => self.due(start, time_ns),
                None => self.due(start, self.period_ns()),
            }),
            // Whenever it is asked.
            _ => Some(Time::ZERO),
        };
        Status { next_deadline, ..Status::default() }
    }

    fn stop(&mut self, _tx: &mut Transmitter<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        let name = &self.name;
        if let Some(InvalidCapture { offset, reason }) = self.file.broken() {
            let good = self.file.len();
            lines.push(format!(
                "{name}: at byte {offset}, {reason}; the {good} packets before it are used"
            ));
        } else if self.file.is_empty() {
            lines.push(format!("{name}: holds no packets"));
        }
        if let Some(left_out) = self.file.left_out() {
            lines.push(format!("{name}: {left_out}"));
        }
        if self.file.cut_short() != 0 {
            let count = self.file.cut_short();
            lines.push(format!("{name}: {count} packets were captured in part, and are used so"));
        }
        if self.file.back_in_time() != 0 {
            let count = self.file.back_in_time();
            lines.push(format!(
                "{name}: {count} packets have timestamps before earlier packets; the file's order is kept"
            ));
        }
        if let Some(output) = &mut self.output {
            lines.push(format!("{}: {}", output.name, output.capture.finish().summary()));
        }
        lines
    }
}

/// A time in seconds, to the millisecond.
fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

impl Output {
    /// Prepares an output file; it is created when the wire is first used.
    fn build(path: &Path, stop: &Stop) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let capture = Capture::create_when_used(path, CaptureOptions::default(), stop)
            .map_err(|error| ConfigError::new("output", format!("{name}: {error}")))?;
        let point = capture.point("tx");
        Ok(Output { name, capture, point })
    }
}
