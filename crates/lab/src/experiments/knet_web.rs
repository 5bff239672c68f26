//! KNET's three systems by offered load: what they deliver, and packets for each interrupt.
//!
//! `knet`: the card puts flows on queues, each with a core and a gate of its own. `clas`: all
//! packets come by one queue, whose core finds the core of each flow in software, by interrupts,
//! and hands packets over behind locks, with a wake-up each. `napi`: all packets come by one
//! queue, whose core polls it and does the stack's work for all; the applications have all cores.
//! They take turns at every offered load.
//!
//! A gated queue is interrupted once for each time that it runs empty: the more work stands behind
//! it, the more packets an interrupt has. The core of `clas` does that work where interrupts
//! preempt it, so that its ring is empty soon, and an interrupt has few.
//!
//! A web server is work for each packet here, and a flow stays on its core, whatever its load. In
//! the sim world locks cost time and nobody waits for one; on the host they are real.
//!
//! Source: KNET, "Webfs/Sclient (20K-file)".

use super::cards::{CardRun, repeated, within};
use crate::compare::median;
use crate::experiment::{Effort, Experiment, Found, LabError, Run, Spec, World};
use crate::outcome::{Figure, Outcome, Point};
use crate::plot::Plot;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// A system takes a load whole if it delivers this share of it.
const WHOLE: f64 = 0.99;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Offered load in multiples of what all cores can take where the card puts flows on them
    pub multiples: Vec<f64>,
    /// Target cores
    pub cores: u16,
    /// Work of the application for a packet, in nanoseconds
    pub application_ns: u32,
    /// Work of the kernel's stack for a packet, in nanoseconds
    pub stack_ns: u32,
    /// Work of the driver for a packet, in nanoseconds; sim only
    pub driver_ns: u64,
    /// Finding a packet's core in software and handing it over, in nanoseconds; sim only
    pub handover_ns: u64,
    /// Taking an interrupt, in nanoseconds; sim only
    pub interrupt_ns: u64,
    /// How long each load is offered, in milliseconds; 50 in the sim world and 300 on the host, if
    /// not said
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
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
        if self.multiples.is_empty() {
            return Err(ConfigError::new("multiples", "found none, allowed: one or more"));
        }
        self.multiples.iter().try_for_each(|&multiple| within("multiples", multiple, 0.01, 100.0))
    }

    /// What all cores can take, packets in a row.
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
    const HELP: &'static str = "classes on the card, in the kernel or none, by offered load";

    fn example(_: &Path) -> Option<String> {
        Some("multiples = [0.5, 1.5]\ncores = 2\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(KnetWeb(settings)))
    }
}

const SIDES: [&str; 3] = ["knet", "clas", "napi"];

impl Experiment for KnetWeb {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |&multiple: &f64| {
            let spec = Spec::at("offered_ratio", multiple).sides(&SIDES);
            repeated(spec, self.0.world, effort.repeats())
        };
        self.0.multiples.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { usize::from(self.0.cores) + 1 } else { 1 }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let rate_pps = (settings.capacity_pps() * point.number("offered_ratio")).round();
        // Not frames that are reused: those of a full queue would be so first, again and again.
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 4096\n\
             arrivals = \"random\"\nrate_pps = {rate_pps}\n\
             [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"app\"\nsystem = \"{side}\"\n\
             queues = {}\nstack_ns = {}\ncost_ns = {}\n[interrupt]\nrx_usecs = 0\n",
            settings.cores, settings.stack_ns, settings.application_ns
        );
        let host = run.effort.of(100, 300, 1000);
        let usual = if settings.world == World::Sim { 50 } else { host };
        let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
        let costs = CostModel {
            target_packet_ns: settings.driver_ns,
            handover_ns: settings.handover_ns,
            interrupt_ns: settings.interrupt_ns,
            doorbell_send_ns: 500,
            doorbell_arrive_ns: 1_000..=1_000,
            ..CostModel::default()
        };
        let (world, seed, filters) = (settings.world, run.seed, None);
        let warm_up = time / 5;
        let passed = CardRun { world, text: &text, filters, costs, seed, warm_up, time }.run()?;
        let report = &passed.report;
        // Wake-ups by the core that receives for all are no interrupts of the card's.
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

    fn conclude(&self, points: &[Found]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::of(settings.world.source());
        outcome.settings = serde_json::to_value(settings).unwrap_or_default();
        let of = |found: &Found, side: usize, key: &str| median(&found.values(side, key));
        let peaks: Vec<f64> = (0..SIDES.len())
            .map(|side| {
                let delivered = points.iter().map(|found| of(found, side, "delivered_pps"));
                delivered.fold(0.0, f64::max)
            })
            .collect();
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (name, other_name) = (SIDES[one], SIDES[other]);
            let gain = peaks[one] / peaks[other] - 1.0;
            outcome.add(
                Figure::one(&format!("{name}_over_{other_name}_gain"), gain)
                    .called(&format!("peak, {name} over {other_name}")),
            );
        }
        for (side, name) in SIDES.into_iter().enumerate() {
            let takes_whole = |found: &&Found| {
                of(found, side, "delivered_pps") >= WHOLE * of(found, side, "offered_pps")
            };
            let load = |found: &&Found| found.spec.number("offered_ratio");
            let fullest = points.iter().filter(takes_whole);
            let fullest = fullest.max_by(|a, b| load(a).total_cmp(&load(b)));
            let mut add = |key: &str, label: &str| {
                let values = fullest.map_or(Vec::new(), |found| found.values(side, key));
                let label = format!("{label}, {name}");
                outcome.add(Figure::of(&format!("{name}_{key}"), values).called(&label));
            };
            add("packets_per_interrupt", "packets an interrupt");
            add("driver_share", "driver's share of the cores");
            if side != 0 {
                add("handover_share", "handing over's share of the cores");
            }
            if let Some(found) = fullest {
                outcome
                    .tell(&format!("{name}_takes_whole_ratio"), found.spec.number("offered_ratio"));
            }
        }
        for found in points {
            let figure = |side: usize, key: &str| {
                let name = SIDES[side];
                Figure::of(&format!("{name}_{key}"), found.values(side, key)).called(name)
            };
            let labelled = || Point::with_labels(found.spec.labels.clone());
            let offered = Figure::of("offered_pps", found.values(0, "offered_pps"));
            let delivered = (0..SIDES.len())
                .fold(labelled().with(offered.called("offered")), |point, side| {
                    point.with(figure(side, "delivered_pps"))
                });
            outcome.series("delivered").push(delivered);
            let interrupts = (0..SIDES.len())
                .fold(labelled(), |point, side| point.with(figure(side, "packets_per_interrupt")));
            outcome.series("interrupts").push(interrupts);
        }
        outcome.note(format!(
            "offered: multiples of {:.0} packets/s, what {} cores can take at {} ns a packet in the \
             stack and {} ns in the application",
            settings.capacity_pps(),
            settings.cores,
            settings.stack_ns,
            settings.application_ns
        ));
        outcome.note(
            "packets an interrupt and shares: at the highest load of which 99 % is delivered; \
             behind it a gate opens less and less",
        );
        outcome.note(match settings.world {
            World::Sim => format!(
                "modelled: {} ns for an interrupt, {} ns a packet for the driver, {} ns to find a \
                 core and hand over; nobody waits for a lock",
                settings.interrupt_ns, settings.driver_ns, settings.handover_ns
            ),
            World::Host => "shares of driver and locks: unavailable, a spinning application is \
                            not told from them"
                .into(),
        });
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        let plot = |title: &str, series: &str, key: &str| {
            let of = |side: usize| format!("{}_{key}", SIDES[side]);
            Plot::lines(title, series, "offered_ratio", &of(0)).and(&of(1)).and(&of(2))
        };
        vec![
            plot("delivered by offered load", "delivered", "delivered_pps"),
            plot("packets an interrupt by offered load", "interrupts", "packets_per_interrupt"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner;

    #[test]
    fn the_card_takes_most_and_classes_in_the_kernel_have_few_packets_an_interrupt() {
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
}
