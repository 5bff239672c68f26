//! Delivered against offered load, far past saturation, with and without the gate.
//!
//! Each queue's interrupt is masked while it has work (`gate = "queue"`), as KNET's card does, or
//! never (`gate = "none"`). Without the mask an application behind the driver is preempted by
//! every packet that comes, so that past saturation it gets to work less and less: receive
//! livelock. Both take turns at every offered load.
//!
//! In the sim world an interrupt and the driver's part of a packet have costs of their own
//! (settings). On the host the driver's part costs what it costs, and the generator's work is done
//! by the borrowed core, which bounds what can be offered.
//!
//! Source: KNET, "Receive Livelock"; Mogul and Ramakrishnan, "Eliminating Receive Livelock in an
//! Interrupt-driven Kernel", 1997.

use super::cards::{CardRun, repeated, run_time, within};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Offered load in multiples of what one queue can take
    pub multiples: Vec<f64>,
    /// Work of the application for a packet, in nanoseconds
    pub application_ns: u32,
    /// Work of the driver for a packet, in nanoseconds; sim only
    pub driver_ns: u64,
    /// Taking an interrupt, in nanoseconds; sim only
    pub interrupt_ns: u64,
    /// How long each load is offered, in milliseconds; 20 in the sim world and 300 on the host, if
    /// not said
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            multiples: vec![0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0],
            application_ns: 2_000,
            driver_ns: 1_000,
            interrupt_ns: 2_000,
            milliseconds: None,
        }
    }
}

impl Settings {
    /// What an application and its driver can take, packets in a row.
    fn capacity_pps(&self) -> f64 {
        let driver_ns = if self.world == World::Sim { self.driver_ns } else { 0 };
        1e9 / (f64::from(self.application_ns) + driver_ns as f64)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        within("application_ns", f64::from(self.application_ns), 100.0, 1e6)?;
        within("driver_ns", self.driver_ns as f64, 0.0, 1e6)?;
        within("interrupt_ns", self.interrupt_ns as f64, 0.0, 1e6)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)?;
        if self.multiples.is_empty() {
            return Err(ConfigError::new("multiples", "found none, allowed: one or more"));
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
    const HELP: &'static str = "delivered by offered load, with each queue's gate and without";

    fn example(_: &Path) -> Option<String> {
        Some("multiples = [0.5, 10.0]\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(KnetLivelock(settings)))
    }
}

impl Reproduces for KnetLivelock {
    const PAPER: Row = row(
        "KNET (after Mogul and Ramakrishnan)",
        "delivered against offered load past saturation",
        &[
            words("with the gate, delivered does not fall past saturation", "yes")
                .ours("least_share_of_peak_gate_queue")
                .at_least(0.9, "share of the peak"),
            words("without the gate, it falls", "yes")
                .ours("least_share_of_peak_gate_none")
                .at_most(0.5, "share of the peak"),
        ],
    );
}

/// What is compared with first.
const SIDES: [&str; 2] = ["none", "queue"];

impl Experiment for KnetLivelock {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |&multiple: &f64| {
            let spec = Spec::at("offered_ratio", multiple).sides(&SIDES);
            repeated(spec, self.0.world, effort.repeats())
        };
        self.0.multiples.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { 2 } else { 1 }
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
        let host = run.effort.of(100, 300, 1000);
        let time = run_time(settings.milliseconds, settings.world, 20, host);
        let costs = CostModel {
            interrupt_ns: settings.interrupt_ns,
            target_packet_ns: settings.driver_ns,
            doorbell_send_ns: 100,
            ..CostModel::default()
        };
        let card = CardRun::of(settings.world, &text, run.seed, time);
        let passed = CardRun { costs, warm_up: time / 2, ..card }.run()?;
        let mut outcome = Outcome::of(settings.world.source());
        outcome.add(Figure::one("offered_pps", passed.offered_pps));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let median = |found: &MeasuredPoint, side: usize| {
            picnic_lab::compare::median(&found.values(side, "delivered_pps"))
        };
        for (side, gate) in SIDES.into_iter().enumerate() {
            let most = points.iter().map(|found| median(found, side)).fold(0.0, f64::max);
            let past = points.iter().filter(|found| found.spec.number("offered_ratio") > 1.0);
            let least = past.map(|found| median(found, side) / most).fold(f64::NAN, f64::min);
            let figure = Figure::one(&format!("least_share_of_peak_gate_{gate}"), least);
            outcome.add(figure.called(&format!("past saturation, least of peak, gate {gate}")));
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
            "offered: multiples of {:.0} packets/s, what an application of {} ns a packet takes; \
             ratio: gate \"queue\" to \"none\"",
            settings.capacity_pps(),
            settings.application_ns
        ));
        if settings.world == World::Sim {
            outcome.note(format!(
                "modelled: {} ns for an interrupt, {} ns a packet for the driver",
                settings.interrupt_ns, settings.driver_ns
            ));
        }
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        let plot = Plot::lines(
            "delivered by offered load",
            "loads",
            "offered_ratio",
            "none_delivered_pps",
        );
        vec![plot.and("queue_delivered_pps")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::runner;

    #[test]
    fn without_a_gate_what_is_delivered_falls_from_the_peak_on() {
        let experiment = KnetLivelock::build(Settings::default(), &BuildContext::default());
        let experiment = experiment.unwrap();
        let name = KnetLivelock::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        let fields = outcome.fields();
        let loads = fields["loads"].as_array().unwrap().iter();
        let curve = |key: &str| -> Vec<f64> {
            loads.clone().map(|load| load[key].as_f64().unwrap()).collect()
        };
        let (none, queue) = (curve("none_delivered_pps"), curve("queue_delivered_pps"));
        let peak = (0..none.len()).max_by(|&a, &b| none[a].total_cmp(&none[b])).unwrap();
        assert!(none[..=peak].is_sorted(), "{none:?}");
        assert!(none[peak..].iter().rev().is_sorted(), "{none:?}");
        assert!(queue.windows(2).all(|pair| pair[1] > 0.98 * pair[0]), "{queue:?}");
    }

    #[test]
    fn without_a_gate_it_livelocks_and_with_one_it_does_not() {
        let settings = Settings { multiples: vec![1.0, 2.0, 10.0], ..Settings::default() };
        let experiment = KnetLivelock::build(settings, &BuildContext::default()).unwrap();
        let outcome =
            runner::outcome(KnetLivelock::NAME, &*experiment, Effort::Usual, &mut |_, _| {})
                .unwrap();
        let share =
            |gate: &str| outcome.median(&format!("least_share_of_peak_gate_{gate}")).unwrap();
        assert!(share("none") < 0.05, "{}", share("none"));
        assert!(share("queue") > 0.95, "{}", share("queue"));
    }
}
