//! Tracer: the packets at any stage of the card, in one pcapng file.
//!
//! ```toml
//! [trace]
//! path = "trace.pcapng"       # relative to the card file
//! stages = ["wire", "queue"]  # wire | rx | queue | tx
//! ```
//!
//! One interface per wire (both directions, told apart by the packet's flags),
//! per target queue, and per function (the packets that enter it). A wire's
//! received packets are those that the card took; what was shed has no bytes to
//! show. A wrapper for a stage that is not traced is what it was given.
//!
//! Guarantees: those of [`crate::capture`]. The data path copies a packet into
//! memory and no more; what does not fit there is counted, and goes its way.
//! Packets of one interface are in order; over all of them, order is by
//! timestamp only.

#[cfg(test)]
mod tests;

use crate::capture::{
    Capture, CaptureOptions, CaptureReport, MAX_BUFFER_BYTES, MIN_BUFFER_BYTES, Point,
};
use crate::pcapng::Direction;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Where packets can be traced.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TraceStage {
    /// At each wire, both ways.
    Wire,
    /// Before each function of the rx chain.
    Rx,
    /// At each target queue, as the host gets them.
    Queue,
    /// Before each function of the tx chain.
    Tx,
}

/// `[trace]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceConfig {
    /// The pcapng file to write; must be given.
    pub path: Option<PathBuf>,
    /// Where to trace.
    pub stages: Vec<TraceStage>,
    /// Bytes of each packet to keep, 1 to 262144.
    pub snaplen: u32,
    /// Memory for packets on their way to the file, per interface, 262144 to 1073741824 bytes.
    pub buffer_bytes: usize,
}

impl Default for TraceConfig {
    fn default() -> Self {
        let CaptureOptions { snaplen, buffer_bytes, .. } = CaptureOptions::default();
        TraceConfig { path: None, stages: vec![TraceStage::Wire], snaplen, buffer_bytes }
    }
}

impl TraceConfig {
    /// Checks every value; makes nothing.
    ///
    /// # Errors
    /// What is wrong with a key of `[trace]`.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.path.is_none() {
            let message = "is missing, wanted is the name of a file to write";
            return Err(ConfigError::new("path", message));
        }
        let sizes = [
            ("snaplen", self.snaplen as usize, 1, 262_144),
            ("buffer_bytes", self.buffer_bytes, MIN_BUFFER_BYTES, MAX_BUFFER_BYTES),
        ];
        for (key, found, low, high) in sizes {
            if !(low..=high).contains(&found) {
                let message = format!("found {found}, allowed is {low} to {high}");
                return Err(ConfigError::new(key, message));
            }
        }
        Ok(())
    }
}

/// A trace being written. Wrap first, then let packets flow; finish when the card has stopped.
#[derive(Debug)]
pub struct Tracer {
    capture: Capture,
    stages: Vec<TraceStage>,
    name: String,
}

impl Tracer {
    /// Starts a trace whose timestamps are the world's own, from 1970 on.
    ///
    /// # Errors
    /// What is wrong with a key of `[trace]`.
    pub fn start(config: &TraceConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        Tracer::start_at(config, context, 0)
    }

    /// Starts a trace in a world that began `epoch_ns` nanoseconds after 1970.
    ///
    /// # Errors
    /// What is wrong with a key of `[trace]`.
    pub fn start_at(
        config: &TraceConfig,
        context: &BuildContext,
        epoch_ns: u64,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let TraceConfig { snaplen, buffer_bytes, .. } = *config;
        let path = config.path.as_deref().unwrap_or(Path::new(""));
        let path = context.directory.join(path);
        let name = path.display().to_string();
        let options = CaptureOptions { snaplen, buffer_bytes, epoch_ns };
        let capture = Capture::create(&path, options).map_err(|error| {
            ConfigError::new("path", format!("{name}: cannot be made: {error}"))
        })?;
        Ok(Tracer { capture, stages: config.stages.clone(), name })
    }

    /// Whether a stage is traced.
    pub fn traces(&self, stage: TraceStage) -> bool {
        self.stages.contains(&stage)
    }

    /// Traces a wire, if wires are traced. Its interface has the wire's name.
    pub fn trace_wire(&self, port: Box<dyn WirePort>, name: &str) -> Box<dyn WirePort> {
        if !self.traces(TraceStage::Wire) {
            return port;
        }
        Box::new(TracedWire { port, point: self.capture.point(name) })
    }

    /// Traces a target queue, if queues are traced. Its interface is `queue0`, say.
    pub fn trace_queue(&self, host: Box<dyn HostQueue>, queue: u16) -> Box<dyn HostQueue> {
        if !self.traces(TraceStage::Queue) {
            return host;
        }
        Box::new(TracedQueue { host, point: self.capture.point(&format!("queue{queue}")) })
    }

    /// Traces what enters a function of the rx or tx chain, if that is traced. Its interface
    /// is `rx[0] rss`, say. One that takes its place later has an interface of its own.
    pub fn trace_function(
        &self,
        stage: TraceStage,
        function: Box<dyn Function>,
        name: &str,
        position: usize,
    ) -> Box<dyn Function> {
        let (chain, direction) = match stage {
            TraceStage::Tx => ("tx", Direction::Outbound),
            _ => ("rx", Direction::Inbound),
        };
        if !self.traces(stage) {
            return function;
        }
        let point = self.capture.point(&format!("{chain}[{position}] {name}"));
        Box::new(TracedFunction { function, point, direction })
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What became of it so far.
    pub fn report(&self) -> CaptureReport {
        self.capture.report()
    }

    /// Writes what is left, and closes the file.
    pub fn finish(mut self) -> CaptureReport {
        self.capture.finish()
    }
}

struct TracedWire {
    port: Box<dyn WirePort>,
    point: Point,
}

impl WirePort for TracedWire {
    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let before = rx.pushed().len();
        self.port.receive(now, rx);
        let received = &rx.pushed()[before..];
        if !received.is_empty() {
            for packet in received {
                self.point.record(now, packet, Some(Direction::Inbound));
            }
            self.point.publish();
        }
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        if tx.peek().is_none() {
            return self.port.transmit(now, tx);
        }
        let point = &mut self.point;
        let mut record = |packet: &Descriptor| point.record(now, packet, Some(Direction::Outbound));
        self.port.transmit(now, &mut tx.observed(&mut record));
        self.point.publish();
    }

    fn is_patient(&self) -> bool {
        self.port.is_patient()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.port.next_deadline()
    }

    fn is_finished(&self) -> bool {
        self.port.is_finished()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    fn takes_partial_checksums(&self) -> bool {
        self.port.takes_partial_checksums()
    }

    fn takes_super_frames(&self) -> bool {
        self.port.takes_super_frames()
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        self.port.start(pool)
    }

    fn stop(&mut self, pool: &mut Pool) {
        self.port.stop(pool);
    }

    fn report(&self) -> Vec<String> {
        self.port.report()
    }
}

struct TracedQueue {
    host: Box<dyn HostQueue>,
    point: Point,
}

impl HostQueue for TracedQueue {
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        for packet in burst.as_slice() {
            self.point.record(now, packet, Some(Direction::Inbound));
        }
        self.point.publish();
        self.host.deliver(now, burst, out)
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        self.host.transmit(now, out)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.host.readiness()
    }

    fn report(&self) -> Vec<String> {
        self.host.report()
    }
}

struct TracedFunction {
    function: Box<dyn Function>,
    point: Point,
    direction: Direction,
}

impl Function for TracedFunction {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.as_slice() {
            self.point.record(now, packet, Some(self.direction));
        }
        self.point.publish();
        self.function.process(now, burst, out);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.function.next_deadline()
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        self.function.flush(now, out);
    }

    fn held(&self) -> usize {
        self.function.held()
    }

    fn control(&mut self, message: &mut (dyn Any + Send)) -> bool {
        self.function.control(message)
    }
}
