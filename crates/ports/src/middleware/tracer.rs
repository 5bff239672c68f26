//! Tracer: writes the packets at any stage of the card to one pcapng file.
//!
//! ```toml
//! [trace]
//! path = "trace.pcapng"       # relative to the card file
//! stages = ["wire", "queue"]  # wire | rx | queue | tx
//! ```
//!
//! One interface per wire (both directions, told apart by the packet's flags), per target queue,
//! and per function (the packets that enter it). A wire's received packets are those that the card
//! took; shed packets have no bytes to show. A stage that is not traced has no observer.
//!
//! Guarantees: as in [`crate::capture`]. The data path only copies a packet
//! into memory; copies that do not fit are counted.
//! Packets of one interface are in order; over all of them, order is by
//! timestamp only.

#[cfg(test)]
mod tests;

use crate::capture::{Capture, CaptureOptions, CaptureReport, MAX_BUFFER_BYTES, MIN_BUFFER_BYTES};
use picnic_core::config::{SectionConfig, Shape};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::registry::BuildContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A stage that can be traced.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TraceStage {
    /// At each wire, in both directions.
    Wire,
    /// Before each function of the rx chain.
    Rx,
    /// At each target queue, as the host gets them.
    Queue,
    /// Before each function of the tx chain.
    Tx,
}

impl TraceStage {
    /// All of them.
    pub const ALL: [TraceStage; 4] =
        [TraceStage::Wire, TraceStage::Rx, TraceStage::Queue, TraceStage::Tx];

    /// Its name in card files.
    pub fn name(self) -> &'static str {
        match self {
            TraceStage::Wire => "wire",
            TraceStage::Rx => "rx",
            TraceStage::Queue => "queue",
            TraceStage::Tx => "tx",
        }
    }

    /// The stage of a point, and its interface in a capture: the wire's name, or for example
    /// `queue0`, `queue0 vm0` for a queue of guest `vm0`, or `rx[0] rss`.
    pub fn interface(point: &HookPoint<'_>) -> (TraceStage, String) {
        match *point {
            HookPoint::Wire { name, .. } => (TraceStage::Wire, name.into()),
            HookPoint::Queue { index, guest } => {
                let guest = guest.map(|guest| format!(" {guest}")).unwrap_or_default();
                (TraceStage::Queue, format!("queue{index}{guest}"))
            }
            HookPoint::Function { direction, position, name } => {
                let stage = match direction {
                    Direction::Rx => TraceStage::Rx,
                    Direction::Tx => TraceStage::Tx,
                };
                (stage, format!("{}[{position}] {name}", stage.name()))
            }
        }
    }
}

impl TraceStage {
    /// The stage of an interface with this name, and its position there: the inverse of
    /// [`TraceStage::interface`].
    pub(crate) fn of_interface(name: &str) -> (TraceStage, &str) {
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        for stage in [TraceStage::Rx, TraceStage::Tx] {
            let rest = name.strip_prefix(stage.name()).and_then(|rest| rest.strip_prefix('['));
            if let Some((position, _)) = rest.and_then(|rest| rest.split_once("] "))
                && is_number(position)
            {
                return (stage, position);
            }
        }
        match name.strip_prefix(TraceStage::Queue.name()) {
            Some(rest) if is_number(rest.split(' ').next().unwrap_or(rest)) => {
                (TraceStage::Queue, "")
            }
            _ => (TraceStage::Wire, ""),
        }
    }
}

/// `[trace]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceConfig {
    /// The pcapng file to write; mandatory.
    pub path: Option<PathBuf>,
    /// Stages to trace.
    pub stages: Vec<TraceStage>,
    /// Bytes of each packet to keep.
    #[schemars(range(min = 1, max = 262_144))]
    pub snaplen: u32,
    /// Buffer memory per interface, in bytes.
    #[schemars(range(min = MIN_BUFFER_BYTES, max = MAX_BUFFER_BYTES), extend("x-advanced" = true))]
    pub buffer_bytes: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        let CaptureOptions { snaplen, buffer_bytes, .. } = CaptureOptions::default();
        TraceConfig { path: None, stages: vec![TraceStage::Wire], snaplen, buffer_bytes }
    }
}

impl SectionConfig for TraceConfig {
    const NAME: &'static str = "trace";
    const HELP: &'static str = "A pcapng file of the packets at some stages.";
    const SHAPE: Shape = Shape::Optional;

    fn check(&self) -> Result<(), ConfigError> {
        if self.path.is_none() {
            let message = "missing, expected the name of a file to write";
            return Err(ConfigError::new("path", message));
        }
        Ok(())
    }
}

/// A trace being written: a hook of a card. Finish it after the card has stopped.
#[derive(Debug)]
pub struct Tracer {
    capture: Capture,
    stages: Vec<TraceStage>,
    name: String,
}

impl Tracer {
    /// Starts a trace with the world's own timestamps, from 1970 on.
    ///
    /// # Errors
    /// A wrong key of `[trace]`.
    pub fn start(config: &TraceConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        Tracer::start_at(config, context, 0)
    }

    /// Starts a trace in a world that began `epoch_ns` nanoseconds after 1970.
    ///
    /// # Errors
    /// A wrong key of `[trace]`.
    pub fn start_at(
        config: &TraceConfig,
        context: &BuildContext,
        epoch_ns: u64,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let TraceConfig { snaplen, buffer_bytes, .. } = *config;
        let path = config.path.as_deref().unwrap_or(Path::new(""));
        let path = context.directory.join(path);
        let name = path.display().to_string();
        let options =
            CaptureOptions { snaplen, buffer_bytes, epoch_ns, ..CaptureOptions::default() };
        let capture = Capture::create(&path, options, &context.stop).map_err(|error| {
            ConfigError::new("path", format!("{name}: cannot be created: {error}"))
        })?;
        Ok(Tracer { capture, stages: config.stages.clone(), name })
    }

    /// Whether a stage is traced.
    pub fn traces(&self, stage: TraceStage) -> bool {
        self.stages.contains(&stage)
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its result so far.
    pub fn report(&self) -> CaptureReport {
        self.capture.report()
    }

    /// Writes the remaining packets, and closes the file.
    pub fn finish(mut self) -> CaptureReport {
        self.capture.finish()
    }
}

/// A function swapped in later has its own interface.
impl Hook for Tracer {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let (stage, interface) = TraceStage::interface(point);
        self.traces(stage).then(|| Box::new(self.capture.point(&interface)) as _)
    }
}
