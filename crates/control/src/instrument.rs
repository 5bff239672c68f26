//! The `[trace]` section: the tracer at the stages of a card.
//!
//! ```no_run
//! # use picnic_core::config::Sections;
//! # use picnic_control::instrument::Tracing;
//! let sections = Sections::core().with(picnic_ports::registry::SECTIONS);
//! let card = sections.parse("[trace]\npath = \"all.pcapng\"\n", None)?;
//! let tracing = Tracing::of(&card, &picnic_core::stop::Stop::default())?;
//! let hooks = picnic_core::hook::Hooks::none().with(tracing.clone());
//! // The card is built with these, runs, and stops.
//! let trace = tracing.finish();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Guarantees: a card without `[trace]` gets no observer at all. Timestamps are the
//! wall-clock time of the start plus the card's own clock: they never step back.

use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::registry::BuildContext;
use picnic_core::stop::Stop;
use picnic_ports::middleware::tracer::{TraceConfig, Tracer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// A card's tracer; none if its file has no `[trace]`. Clones are the same tracer: one is a hook of
/// the card, the other ends it.
#[derive(Clone, Debug)]
pub struct Tracing {
    tracer: Arc<Mutex<Option<Tracer>>>,
}

/// The result of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceReport {
    /// The pcapng file.
    pub path: String,
    /// Packets in the file.
    pub packets_written: u64,
    /// Packets that passed and are not in the file.
    pub packets_lost: u64,
    /// By interface.
    pub interfaces: Vec<InterfaceReport>,
    /// Why the trace ended early, if it did.
    pub error: Option<String>,
}

/// The trace's result for one interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceReport {
    /// Its name in the pcapng file.
    pub name: String,
    /// Packets that passed.
    pub seen: u64,
    /// Packets in the file.
    pub written: u64,
    /// Packets not in the file.
    pub lost: u64,
}

/// Checks that the trace, if there is one, has a file to itself; makes nothing.
///
/// # Errors
/// Another key of the card names the file.
pub fn check(file: &CardFile) -> Result<(), ConfigError> {
    for config in file.given::<TraceConfig>() {
        let path = config.path.as_deref().unwrap_or(Path::new(""));
        let claimed = config.section.files().write("path", &file.directory.join(path));
        claimed.map_err(|error| config.section.locate(error))?;
    }
    Ok(())
}

impl Tracing {
    /// Starts the trace of the card file; its file is created. `stop` tells when the card shall
    /// stop.
    ///
    /// # Errors
    /// A key of `[trace]` is wrong; this includes a file that cannot be created.
    pub fn of(file: &CardFile, stop: &Stop) -> Result<Self, ConfigError> {
        check(file)?;
        let given = file.given::<TraceConfig>().into_iter().next();
        let Some(config) = given else { return Ok(Tracing { tracer: Arc::default() }) };
        let context = BuildContext {
            directory: file.directory.clone(),
            stop: stop.clone(),
            ..BuildContext::default()
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch_ns = since_1970.as_nanos() as u64;
        let tracer = Tracer::start_at(&config, &context, epoch_ns)
            .map_err(|error| config.section.locate(error))?;
        Ok(Tracing { tracer: Arc::new(Mutex::new(Some(tracer))) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tracer>> {
        self.tracer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Writes the remaining packets, closes the file, and returns the result.
    pub fn finish(self) -> Option<TraceReport> {
        let tracer = self.lock().take()?;
        let path = tracer.name().to_owned();
        let report = tracer.finish();
        let (packets_written, packets_lost) = (report.written(), report.lost());
        let interfaces = report.points.into_iter().map(|point| InterfaceReport {
            name: point.name,
            seen: point.seen,
            written: point.written,
            lost: point.lost,
        });
        Some(TraceReport {
            path,
            packets_written,
            packets_lost,
            interfaces: interfaces.collect(),
            error: report.error,
        })
    }
}

impl Hook for Tracing {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        self.lock().as_ref()?.observer(point)
    }
}
