//! KNET's three systems by offered load: delivered load, and packets per interrupt.
//!
//! `knet`: the card assigns flows to queues, each with its own core and gate. `clas`: all packets
//! arrive on one queue, whose core finds the core of each flow in software, by interrupts, and
//! hands packets over through locked queues, with a wake-up each. `napi`: all packets arrive on one
//! queue, whose core polls it and does the stack's work for all; the applications have all cores.
//! They take turns at every offered load.
//!
//! A gated queue is interrupted once for each time that it becomes empty: the more work follows a
//! packet, the more packets an interrupt has. The core of `clas` does that work while interrupts
//! preempt it, so that its ring empties quickly, and an interrupt has few packets.
//!
//! With `attachment = "app"` a web server is work per packet, and a flow stays on its core,
//! whatever its load. In the sim world locks have a cost but no contention; on the host they are
//! real. With `attachment = "tap"` everything is real (`kernel.rs`): webfs with the kernel's stack,
//! by number of connections, since wrk's load follows the answers.
//!
//! Source: KNET, "Webfs/Sclient (20K-file)".

mod kernel;

pub(super) use SIDES as SYSTEMS;
pub(super) use kernel::keys as system_keys;

use super::cards::{CardRun, repeated, run_time, within};
use super::columns::Shares;
use super::gains::{self, Gain, is_shared};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::median;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::paper::{PaperFigure, Row, number, row};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_lab::workloads::kind::{FileKind, ServerKind, Workload};
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The share of a load that must be delivered for it to count as completely delivered.
const WHOLE: f64 = 0.99;

/// The receiver of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Attachment {
    /// Work of fixed length per packet
    App,
    /// The kernel's stack with a web server (root, webfs, wrk); host only
    Tap,
}

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The receiver of the packets: work of fixed length, or the kernel's stack with a web server
    /// (root, webfs, wrk; host only)
    pub attachment: Attachment,
    /// The web server; tap only
    pub server: ServerKind,
    /// Offered load in multiples of the capacity of all cores with flows assigned by the card; app
    /// only
    pub multiples: Vec<f64>,
    /// Connections kept open; tap only
    pub connections: Vec<u64>,
    /// Size of the requested file in bytes; tap only
    pub file_bytes: u64,
    /// Target cores
    pub cores: u16,
    /// Work of the application per packet, in nanoseconds; app only
    pub application_ns: u32,
    /// Work of the kernel's stack per packet, in nanoseconds; app only
    pub stack_ns: u32,
    /// Work of the driver per packet, in nanoseconds; sim only
    pub driver_ns: u64,
    /// Finding a packet's core in software and handing it over, in nanoseconds; sim only
    pub handover_ns: u64,
    /// Taking an interrupt, in nanoseconds; sim only
    pub interrupt_ns: u64,
    /// Duration of each load, in milliseconds [default: 50 in the sim world, 300 on the host, whole
    /// seconds with a tap: 2000]
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            attachment: Attachment::App,
            server: ServerKind::Webfs,
            connections: vec![1, 4, 16, 64, 256, 1024],
            file_bytes: 20_000,
            multiples: vec![0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.2, 1.5, 2.0],
            cores: 4,
            application_ns: 8_500,
            stack_ns: 1_000,
            driver_ns: 500,
            handover_ns: 300,
            interrupt_ns: 1_000,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        within("cores", f64::from(self.cores), 2.0, 64.0)?;
        within("application_ns", f64::from(self.application_ns), 100.0, 1e6)?;
        within("stack_ns", f64::from(self.stack_ns), 0.0, 1e6)?;
        within("driver_ns", self.driver_ns as f64, 0.0, 1e6)?;
        within("handover_ns", self.handover_ns as f64, 0.0, 1e6)?;
        within("interrupt_ns", self.interrupt_ns as f64, 0.0, 1e6)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)?;
        within("file_bytes", self.file_bytes as f64, 1.0, 1e9)?;
        if self.attachment == Attachment::Tap && self.world == World::Sim {
            let message = "found \"tap\" with world = \"sim\", allowed: \"app\"";
            return Err(ConfigError::new("attachment", message));
        }
        if self.connections.is_empty() {
            return Err(ConfigError::new("connections", "missing, expected: one or more"));
        }
        let connections = self.connections.iter().map(|&count| count as f64);
        connections.clone().try_for_each(|count| within("connections", count, 1.0, 50_000.0))?;
        if self.multiples.is_empty() {
            return Err(ConfigError::new("multiples", "missing, expected: one or more"));
        }
        self.multiples.iter().try_for_each(|&multiple| within("multiples", multiple, 0.01, 100.0))
    }

    /// The web server's workload.
    fn workload(&self) -> Workload {
        let file = FileKind { bytes: self.file_bytes, weight: 1.0, php: false };
        Workload { server: self.server, file: vec![file], ..Workload::default() }
    }

    /// The varied quantity, and the figure to maximise.
    fn axes(&self) -> (&'static str, &'static str) {
        match self.attachment {
            Attachment::App => ("offered_ratio", "delivered_pps"),
            Attachment::Tap => ("connections", "requests_per_second"),
        }
    }

    /// Notes that explain the figures.
    fn explain(&self, outcome: &mut Outcome) {
        if self.attachment == Attachment::Tap {
            outcome.note(format!(
                "{} behind {} target cores, a file of {} bytes; client and server have all cores \
                 but the borrowed one",
                self.server.name(),
                self.cores,
                self.file_bytes
            ));
            outcome.note(
                "knet: a queue of the tap for each core; clas: one queue, and the kernel's receive \
                 packet steering; napi: one queue. Packets an interrupt: where most is answered",
            );
            outcome.note(
                "a ratio of peaks is of the repeats at each system's own peak, pair by pair in their \
                 order; where peaks are at different numbers of connections, they took no turns",
            );
            outcome.note(NO_SHARES);
            return;
        }
        outcome.note(format!(
            "offered: multiples of {:.0} packets/s, the capacity of {} cores at {} ns per packet in the \
             stack and {} ns in the application",
            self.capacity_pps(),
            self.cores,
            self.stack_ns,
            self.application_ns
        ));
        outcome.note(
            "packets per interrupt and shares: at the highest load of which 99 % is delivered; \
             behind it a gate opens less and less",
        );
        outcome.note(match self.world {
            World::Sim => format!(
                "modelled: {} ns per interrupt, {} ns per packet for the driver, {} ns to find a \
                 core and hand over; nobody waits for a lock",
                self.interrupt_ns, self.driver_ns, self.handover_ns
            ),
            World::Host => "shares of driver and locks: unavailable, a spinning application is \
                            not told from them"
                .into(),
        });
    }

    /// Packets per second that all cores can process.
    fn capacity_pps(&self) -> f64 {
        let driver_ns = if self.world == World::Sim { self.driver_ns } else { 0 };
        let packet_ns = f64::from(self.application_ns) + f64::from(self.stack_ns);
        f64::from(self.cores) * 1e9 / (packet_ns + driver_ns as f64)
    }
}

/// The experiment.
#[derive(Debug)]
pub struct KnetWeb(Settings);

impl Component for KnetWeb {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "knet-web";
    const HELP: &'static str = "flows classified on the card, in the kernel or not at all, by load";

    fn example(_: &Path) -> Option<String> {
        Some("multiples = [0.5, 1.5]\ncores = 2\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(KnetWeb(settings)))
    }
}

/// KNET's first row of results, with interrupts and time.
pub(super) const WEBFS: &[PaperFigure] = &[
    number("KNET over CLAS", 0.12, Unit::Change).ours("knet_over_clas_gain"),
    number("KNET over NAPI", 0.17, Unit::Change).ours("knet_over_napi_gain"),
    number("CLAS over NAPI", 0.045, Unit::Change).ours("clas_over_napi_gain"),
    number("packets per interrupt, KNET", 45.0, Unit::Count).ours("knet_packets_per_interrupt"),
    number("packets per interrupt, CLAS", 5.6, Unit::Count).ours("clas_packets_per_interrupt"),
    number("packets per interrupt, NAPI", 40.0, Unit::Count).ours("napi_packets_per_interrupt"),
    number("driver rx, KNET", 0.05, Unit::Fraction).ours("knet_driver_share"),
    number("driver rx, CLAS", 0.12, Unit::Fraction).ours("clas_driver_share"),
    number("locks, CLAS", 0.06, Unit::Fraction).ours("clas_handover_share"),
];

impl Reproduces for KnetWeb {
    const PAPER: Row = row(
    "KNET",
    "web server (20 KB files): classes in the NIC (KNET), in the kernel (CLAS), one queue (NAPI)",
    WEBFS,
)
.corrected("CLAS over NAPI is not in the paper: it follows from the other two");
}

/// Figures that the kernel's counts do not include.
pub(super) const NO_SHARES: &str = "shares of driver and locks: unavailable, the kernel tells time in soft \
     interrupts as a whole, the stack with it; with attachment = \"app\" in the sim world they are \
     modelled (knet-web)";

pub(super) const SIDES: [&str; 3] = ["knet", "clas", "napi"];

impl Experiment for KnetWeb {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let (load, _) = self.0.axes();
        let repeats = effort.repeats();
        let spec = |spec: Spec| repeated(spec.sides(&SIDES), self.0.world, repeats);
        match self.0.attachment {
            Attachment::App => {
                self.0.multiples.iter().map(|&value| spec(Spec::at(load, value))).collect()
            }
            Attachment::Tap => {
                self.0.connections.iter().map(|&value| spec(Spec::at(load, value))).collect()
            }
        }
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { usize::from(self.0.cores) + 1 } else { 1 }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        if settings.attachment == Attachment::Tap {
            let usual = run.effort.of(1000, 2000, 5000);
            let seconds = settings.milliseconds.unwrap_or(usual).div_ceil(1000);
            let connections = point.number("connections") as u64;
            return Ok(kernel::measure(settings, side, connections, seconds)?);
        }
        let rate_pps = (settings.capacity_pps() * point.number("offered_ratio")).round();
        // Not frames that are reused: those of a full queue would be reused first, repeatedly.
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 4096\n\
             arrivals = \"random\"\nrate_pps = {rate_pps}\n\
             [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"app\"\nsystem = \"{side}\"\n\
             queues = {}\nstack_ns = {}\ncost_ns = {}\n[interrupt]\nrx_usecs = 0\n",
            settings.cores, settings.stack_ns, settings.application_ns
        );
        let host = run.effort.of(100, 300, 1000);
        let time = run_time(settings.milliseconds, settings.world, 50, host);
        let costs = CostModel {
            target_packet_ns: settings.driver_ns,
            handover_ns: settings.handover_ns,
            interrupt_ns: settings.interrupt_ns,
            doorbell_send_ns: 500,
            doorbell_arrive_ns: 1_000..=1_000,
            ..CostModel::default()
        };
        let card = CardRun::of(settings.world, &text, run.seed, time);
        let passed = CardRun { costs, warm_up: time / 5, ..card }.run()?;
        let report = &passed.report;
        // Wake-ups by the core that receives for all are not interrupts of the card.
        let by_card = if side == SIDES[0] { report.queues.len() } else { 1 };
        let taken = |count: usize| {
            report.queues.iter().take(count).map(|queue| queue.interrupts).sum::<u64>() as f64
        };
        let (packets, interrupts) = (report.ledger.delivered as f64, taken(by_card));
        let mut outcome = Outcome::of(settings.world.source());
        let of_each = (interrupts != 0.0).then(|| packets / interrupts);
        outcome.add(Figure::one("packets_per_interrupt", of_each));
        outcome.add(Figure::one("offered_pps", passed.offered_pps));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::one("target_core_busy_fraction", passed.target_busy()));
        if settings.world == World::Sim {
            let busy_ns =
                passed.target_busy() * f64::from(settings.cores) * report.duration_s * 1e9;
            let all = taken(report.queues.len());
            let driver_ns =
                all * settings.interrupt_ns as f64 + packets * settings.driver_ns as f64;
            outcome.add(Figure::one("driver_share", driver_ns / busy_ns));
            let handed = if side == SIDES[0] { 0.0 } else { packets };
            let handover_ns = handed * settings.handover_ns as f64;
            outcome.add(Figure::one("handover_share", handover_ns / busy_ns));
        }
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let of = |found: &MeasuredPoint, side: usize, key: &str| median(&found.values(side, key));
        let (load, rate) = settings.axes();
        let most = |side: usize| {
            points.iter().max_by(|a, b| of(a, side, rate).total_cmp(&of(b, side, rate)))
        };
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let Some(peaks) = most(one).zip(most(other)) else { continue };
            let (name, other_name) = (SIDES[one], SIDES[other]);
            let key = &format!("{name}_over_{other_name}_gain");
            let label = &format!("peak, {name} over {other_name}");
            let sides = [(peaks.0, one), (peaks.1, other)];
            Gain { key, label, rate }.add(&mut outcome, &[sides], |_, _| false);
        }
        for (side, name) in SIDES.into_iter().enumerate() {
            let takes_whole = |found: &&MeasuredPoint| {
                of(found, side, "delivered_pps") >= WHOLE * of(found, side, "offered_pps")
            };
            let of_load = |found: &&MeasuredPoint| found.spec.number(load);
            let fullest = match settings.attachment {
                Attachment::Tap => most(side),
                Attachment::App => {
                    let whole = points.iter().filter(takes_whole);
                    whole.max_by(|a, b| of_load(a).total_cmp(&of_load(b)))
                }
            };
            let mut add = |key: &str, label: &str| {
                let values = fullest.map_or(Vec::new(), |found| found.values(side, key));
                let figure = Figure::of(&format!("{name}_{key}"), values);
                let is_shared = fullest.is_some_and(|found| is_shared((found, side)));
                gains::add(&mut outcome, is_shared, figure.called(&format!("{label}, {name}")));
            };
            add("packets_per_interrupt", "packets per interrupt");
            add("driver_share", "driver's share of the cores");
            if side != 0 {
                add("handover_share", "hand-over's share of the cores");
            }
            if let Some(found) = fullest.filter(|_| settings.attachment == Attachment::App) {
                outcome.tell(&format!("{name}_takes_whole_ratio"), found.spec.number(load));
            }
        }
        let systems = Shares(&SIDES);
        for found in points {
            let labelled = || Point::with_labels(found.spec.labels.clone());
            match settings.attachment {
                Attachment::App => {
                    let offered = Figure::of("offered_pps", found.values(0, "offered_pps"));
                    let point = labelled().with(offered.called("offered"));
                    outcome.series("delivered").push(systems.row(point, found, rate));
                }
                Attachment::Tap => {
                    outcome.series("requests").push(systems.row(labelled(), found, rate));
                    let answered = systems.row(labelled(), found, "request_p50_ns");
                    outcome.series("answered_after").push(answered);
                    let key = "steering_wakeups_per_packet";
                    let wakeups = Figure::of(&format!("{}_{key}", SIDES[1]), found.values(1, key));
                    outcome.series("steering").push(labelled().with(wakeups.called(SIDES[1])));
                }
            }
            let interrupts = systems.row(labelled(), found, "packets_per_interrupt");
            outcome.series("packets_an_interrupt").push(interrupts);
        }
        settings.explain(&mut outcome);
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        let (load, rate) = self.0.axes();
        let plot = |title: &str, series: &str, key: &str| {
            let of = |side: usize| format!("{}_{key}", SIDES[side]);
            Plot::lines(title, series, load, &of(0)).and(&of(1)).and(&of(2))
        };
        let interrupts = |title: &str| plot(title, "packets_an_interrupt", "packets_per_interrupt");
        match self.0.attachment {
            Attachment::App => vec![
                plot("delivered by offered load", "delivered", rate),
                interrupts("packets per interrupt by offered load"),
            ],
            Attachment::Tap => vec![
                plot("requests by connections", "requests", rate),
                interrupts("packets per interrupt by connections"),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::runner;

    #[test]
    fn the_card_delivers_most_and_clas_has_few_packets_per_interrupt() {
        let settings = Settings {
            multiples: vec![0.3, 0.6, 0.9, 1.2, 1.5],
            milliseconds: Some(20),
            ..Settings::default()
        };
        let experiment = KnetWeb::build(settings, &BuildContext::default()).unwrap();
        let name = KnetWeb::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        let of = |key: &str| outcome.median(key).unwrap();
        assert!(of("knet_over_clas_gain") > 0.0, "{:#?}", outcome.fields());
        assert!(of("knet_over_napi_gain") > of("knet_over_clas_gain"), "{:#?}", outcome.fields());
        let packets = |system: &str| of(&format!("{system}_packets_per_interrupt"));
        assert!(packets("clas") < packets("knet"), "{:#?}", outcome.fields());
        assert!(of("clas_driver_share") > of("knet_driver_share"), "{:#?}", outcome.fields());
        assert!(of("clas_handover_share") > 0.0, "{:#?}", outcome.fields());
    }

    #[test]
    fn wrong_settings_name_what_is_allowed() {
        let host = || Settings { world: World::Host, ..Settings::default() };
        let tap = || Settings { attachment: Attachment::Tap, ..host() };
        for (settings, wanted) in [
            (
                Settings { world: World::Sim, ..tap() },
                "attachment: found \"tap\" with world = \"sim\"",
            ),
            (Settings { connections: vec![], ..tap() }, "connections: found none, allowed: one"),
            (Settings { connections: vec![4, 0], ..tap() }, "connections: found 0, allowed: 1 to"),
            (Settings { file_bytes: 0, ..tap() }, "file_bytes: found 0, allowed: 1 to"),
            (Settings { cores: 1, ..host() }, "cores: found 1, allowed: 2 to 64"),
        ] {
            let error = KnetWeb::build(settings, &BuildContext::default()).err().unwrap();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }

    #[test]
    fn with_the_kernels_stack_one_more_core_is_needed() {
        let settings = Settings {
            world: World::Host,
            attachment: Attachment::Tap,
            connections: vec![1, 8],
            cores: 64,
            ..Settings::default()
        };
        let experiment = KnetWeb::build(settings, &BuildContext::default()).unwrap();
        let points = experiment.points(Effort::Quick);
        let names: Vec<_> = points.iter().map(Spec::name).collect();
        assert_eq!((names.len(), experiment.cores(&points[0])), (2, 65));
        assert_eq!(points[1].number("connections"), 8.0);
        // On machines such as this one: a reason, and no figure.
        let outcome = runner::outcome("knet-web", &*experiment, Effort::Quick, &mut |_, _| {});
        let error = outcome.err().filter(|_| picnic_machine::topology::cores().len() < 65);
        if let Some(error) = error {
            assert!(error.to_string().contains("unavailable: needs 65 cores"), "{error}");
        }
    }
}
