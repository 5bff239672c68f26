//! Delivered against offered load, far beyond saturation, with and without the gate.
//!
//! Each queue's interrupt is masked while it has work (`gate = "queue"`), as on KNET's card, or
//! never (`gate = "none"`). Without the mask an application is preempted by every packet, so that
//! it makes ever less progress beyond saturation: receive livelock. Both take turns at every
//! offered load.
//!
//! In the sim world the paper's machine is modelled (`testbeds/piii.rs`). On the host the borrowed
//! core also generates the packets, which limits the offered load.
//!
//! Source: KNET, "Receive Livelock"; Mogul and Ramakrishnan, "Eliminating Receive Livelock in an
//! Interrupt-driven Kernel", 1997.

use super::cards::{CardRun, within};
use super::modelled::{Curve, along, on_machine};
use super::testbeds::piii;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Offered load in multiples of one queue's capacity; host only
    pub multiples: Vec<f64>,
    /// Work of the application for a packet, in nanoseconds; host only
    pub application_ns: u32,
    /// Milliseconds that each load is offered [default: 300]. Host only
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            profile: None,
            multiples: vec![0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0],
            application_ns: 2_000,
            milliseconds: None,
        }
    }
}

impl Settings {
    /// Packets per second that an application and its driver can process.
    fn capacity_pps(&self) -> f64 {
        1e9 / f64::from(self.application_ns)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        within("application_ns", f64::from(self.application_ns), 100.0, 1e6)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)?;
        if self.multiples.is_empty() {
            return Err(ConfigError::new("multiples", "missing, expected one or more"));
        }
        self.multiples.iter().try_for_each(|&multiple| within("multiples", multiple, 0.01, 100.0))
    }
}

/// The experiment.
#[derive(Debug)]
pub struct KnetLivelock(Settings);

impl Component for KnetLivelock {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "knet-livelock";
    const HELP: &'static str = "delivered by offered load, with and without each queue's gate";

    fn example(_: &Path) -> Option<String> {
        Some("world = \"host\"\nmultiples = [0.5, 10.0]\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(KnetLivelock(settings))))
    }
}

impl Reproduces for KnetLivelock {
    const PAPER: Row = row(
        "KNET (after Mogul and Ramakrishnan)",
        "delivered against offered load past saturation",
        &[
            words("with the gate, delivered does not fall past saturation", "yes")
                .ours("least_share_of_peak_gate_queue")
                .at_least(0.9, "share of the peak")
                .modelled(piii::livelock_with_gate),
            words("without the gate, it falls", "yes")
                .ours("least_share_of_peak_gate_none")
                .at_most(0.5, "share of the peak")
                .modelled(piii::livelock_without),
        ],
    )
    .on("piii", 5);
}

const CURVE: Curve = Curve {
    series: "loads",
    points: |profile, effort| {
        let [none, queue] = SIDES.map(|gate| piii::delivered(profile, gate, effort));
        let points = along("offered_pps", "none_delivered_pps", none?).into_iter().zip(queue?);
        let with = |(point, (_, delivered)): (Point, (f64, f64))| {
            point.with(Figure::one("queue_delivered_pps", delivered))
        };
        Ok(points.map(with).collect())
    },
    plot: || plot("offered_pps"),
};

/// Delivered by offered load.
fn plot(load: &str) -> Plot {
    let title = "delivered by offered load";
    Plot::lines(title, "loads", load, "none_delivered_pps").and("queue_delivered_pps")
}

/// The side compared against comes first.
const SIDES: [&str; 2] = ["none", "queue"];

impl Experiment for KnetLivelock {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |&multiple: &f64| {
            let spec = Spec::at("offered_ratio", multiple).sides(&SIDES);
            spec.measured(effort.repeats())
        };
        self.0.multiples.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let rate_pps = (settings.capacity_pps() * point.number("offered_ratio")).round();
        let text = format!(
            "[[wire]]\nport = \"generator\"\nflows = 256\nburst = 16\nframes = \"reuse\"\n\
             rate_pps = {rate_pps}\n[host]\nattachment = \"app\"\nqueues = 1\ncost_ns = {}\n\
             [interrupt]\nrx_usecs = 0\ngate = \"{side}\"\n",
            settings.application_ns
        );
        let usual = run.effort.of(100, 300, 1000);
        let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
        let card = CardRun::of(World::Host, &text, run.seed, time);
        let passed = CardRun { warm_up: time / 2, ..card }.run()?;
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("offered_pps", passed.offered_pps));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::with_settings(Source::Measured, settings);
        let median = |found: &MeasuredPoint, side: usize| {
            picnic_lab::compare::median(&found.values(side, "delivered_pps"))
        };
        for (side, gate) in SIDES.into_iter().enumerate() {
            let most = points.iter().map(|found| median(found, side)).fold(0.0, f64::max);
            let past = points.iter().filter(|found| found.spec.number("offered_ratio") > 1.0);
            let least = past.map(|found| median(found, side) / most).fold(f64::NAN, f64::min);
            let figure = Figure::one(&format!("least_share_of_peak_gate_{gate}"), least);
            outcome.add(
                figure.called(&format!(
                    "beyond saturation, minimum as share of the peak, gate {gate}"
                )),
            );
        }
        for found in points {
            let of = |side: usize, key: &str| found.values(side, key);
            let [none, queue] = [0, 1].map(|side| (SIDES[side], of(side, "delivered_pps")));
            let mut point = Point::with_labels(found.spec.labels.clone())
                .with(Figure::of("offered_pps", of(1, "offered_pps")).called("offered"))
                .comparing(Comparison::of("delivered_pps", none, queue));
            for (side, gate) in SIDES.into_iter().enumerate() {
                let key = format!("{gate}_interrupts_per_second");
                let interrupts = of(side, "interrupts_per_second");
                point = point.with(Figure::of(&key, interrupts).in_detail());
            }
            outcome.series("loads").push(point);
        }
        outcome.note(format!(
            "offered: multiples of {:.0} packets/s, the capacity of an application of {} ns per packet; \
             ratio: gate \"queue\" to \"none\"",
            settings.capacity_pps(),
            settings.application_ns
        ));
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![plot("offered_ratio")]
    }
}
