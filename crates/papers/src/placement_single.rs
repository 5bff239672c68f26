//! One TCP connection by bit rate, with protocol and application on various cores.
//!
//! Messages of 1448 bytes go over a veth with an MTU of 1500, one packet each. The receiver's
//! protocol processing has a fixed core, set by the kernel's receive packet steering; the receiving
//! application is on the same core, or on one that shares with it an L2 cache, the processor, or
//! only the computer. All take turns at each rate. The sender has a separate core, as far away as
//! possible: without it a pair cannot be measured, nor can a pair that this machine does not have.
//!
//! For each pair the goodput and the time of both cores are reported, from the kernel's counts; at
//! full speed also the loss of the worst pair against the best. The sender's core is reported as
//! well: if it is saturated, it limits the rate.
//!
//! Source: PLACEMENT, "Single connection": same core, same die (a shared L2), same processor, same
//! computer; all reach the same rate at first, and over 40 % are lost at the top by the wrong pair.

use super::cards::within;
use super::modelled::{Curve, on_machine};
use super::placement::{self, FLAT_OUT, Pair, rate, reached};
use super::testbeds::core2;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Source};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Bit rates of the connection, in Mb/s; 0 means the maximum. Host only
    pub rates_mbps: Vec<u64>,
    /// Duration of each measurement, in milliseconds [default: 1000; less for --quick]. Host only
    pub milliseconds: Option<u64>,
    /// Measurements of each [default: 10; fewer for --quick]. Host only
    pub repeats: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        let rates_mbps = vec![100, 500, 1000, 2000, FLAT_OUT];
        let (milliseconds, repeats, profile) = (None, None, None);
        Settings { world: World::Sim, profile, rates_mbps, milliseconds, repeats }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        if self.rates_mbps.is_empty() {
            return Err(ConfigError::new("rates_mbps", "missing, expected one or more"));
        }
        self.rates_mbps
            .iter()
            .try_for_each(|&rate| within("rates_mbps", rate as f64, 0.0, 400_000.0))?;
        within("repeats", f64::from(self.repeats.unwrap_or(1)), 1.0, 1000.0)?;
        within("milliseconds", self.milliseconds.unwrap_or(100) as f64, 100.0, 60_000.0)
    }
}

/// The experiment.
#[derive(Debug)]
pub struct PlacementSingle(Settings);

impl Component for PlacementSingle {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "placement-single";
    const HELP: &'static str = "a TCP connection by rate, protocol's and application's core";

    fn example(_: &Path) -> Option<String> {
        Some("world = \"host\"\nrates_mbps = [10]\nmilliseconds = 100\nrepeats = 1".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(PlacementSingle(settings))))
    }
}

impl Reproduces for PlacementSingle {
    const PAPER: Row = row(
        "PLACEMENT",
        "one TCP connection by bit rate, protocol and application on the same core, die, processor \
     or computer",
        &[
            words("all pairs of cores reach low rates", "yes")
                .ours("least_share_of_lowest_rate")
                .at_least(0.95, "reached by the worst")
                .modelled(core2::least_share),
            words("they differ in CPU", "yes")
                .ours("cpu_spread_change")
                .at_least(0.1, "dearest to cheapest")
                .modelled(core2::cpu_spread),
            words("CPU drops near 75 MB/s", "yes")
                .ours("cpu_at_drop_change")
                .at_most(0.0, "CPU from 50 to 75 MB/s")
                .modelled(core2::cpu_drop),
            words("same core is cheapest at low rates", "yes")
                .ours("same_core_cpu_change")
                .at_most(0.0, "its CPU, to the best other pair")
                .modelled(core2::same_core_cpu),
            words("flat out, the wrong pair loses over 40 %", "yes")
                .ours("worst_pair_change")
                .at_most(-0.4, "worst pair")
                .modelled(core2::single_worst),
        ],
    )
    .on("core2", 9);
}

const CURVE: Curve = Curve {
    series: "rates",
    points: core2::single_by_rate,
    plot: || {
        Plot::lines("time of all cores by rate", "rates", "offered_mbytes", "both_cores").by("pair")
    },
};

impl Experiment for PlacementSingle {
    /// All pairs are sides of each point, on any machine, so that points of several machines have
    /// the same sides.
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let repeats = self.0.repeats.unwrap_or(effort.repeats());
        let spec = |&rate: &u64| {
            let spec = Spec::at("rate_mbps", rate).sides(&Pair::ALL.map(Pair::name));
            spec.measured(repeats)
        };
        self.0.rates_mbps.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let how = (1, self.0.milliseconds);
        placement::measure(side, point.number("rate_mbps") as u64, how, run)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        let least = points.iter().filter(|found| rate(found) != FLAT_OUT).min_by_key(|of| rate(of));
        let share = least.and_then(|found| {
            let worst = reached(found).into_iter().map(|(_, rate)| rate).reduce(f64::min)?;
            Some(worst / (found.spec.number("rate_mbps") * 1e6))
        });
        let lowest = Figure::one("least_share_of_lowest_rate", share);
        outcome.add(lowest.called("reached of the lowest rate, by the worst pair"));
        let top = points.iter().find(|found| rate(found) == FLAT_OUT).map(reached);
        let loss = top.and_then(|rates| placement::worst_to_best(&rates));
        let loss = Figure::one("worst_pair_change", loss);
        outcome.add(loss.called("at full speed, worst pair against the best"));
        let low = least.map(|found| placement::medians(found, "both_cores"));
        let low = low.and_then(|low| placement::to_best_other(&low, Pair::Core, f64::min));
        let low = Figure::one("same_core_cpu_change", low);
        outcome.add(low.called("time of cores, same core to the best other"));
        points.iter().for_each(|found| placement::pairs(&mut outcome, found));
        placement::note_missing(&mut outcome, points);
        outcome.note("a veth in place of the paper's 2 Gb/s link: the cores limit the rate");
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("time of both cores by rate", "rates", "rate_mbps", "both_cores")
                .by("pair"),
            Plot::lines("received by rate", "rates", "rate_mbps", "goodput_bps").by("pair"),
            Plot::bars("received at full speed", "flat_out", "goodput_bps"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::MISSING;

    #[test]
    fn missing_pairs_are_reported_and_the_worst_loses() {
        let experiment = PlacementSingle(Settings::default());
        let side = |goodput_bps: Option<f64>| {
            let mut outcome = Outcome::of(Source::Measured);
            match goodput_bps {
                Some(rate) => outcome.add(Figure::one("goodput_bps", rate)),
                None => outcome.tell(MISSING, "this machine has no such pair of cores"),
            }
            outcome
        };
        let found = |rate: u64, goodput: [Option<f64>; 5]| MeasuredPoint {
            spec: Spec::at("rate_mbps", rate),
            sides: goodput.map(side).to_vec(),
        };
        let outcome = experiment.conclude(&[
            found(100, [Some(1e8), None, Some(0.99e8), Some(1e8), None]),
            found(FLAT_OUT, [Some(8e9), None, Some(10e9), Some(6e9), None]),
        ]);
        let fields = outcome.fields();
        assert_eq!(fields["least_share_of_lowest_rate"], 0.99);
        assert_eq!(fields["worst_pair_change"], -0.4);
        for series in ["rates", "flat_out"] {
            assert_eq!(fields[series].as_array().map(Vec::len), Some(3), "{series}");
        }
        let note = "same-computer: this machine has no such pair of cores";
        assert!(outcome.notes.iter().any(|found| found == note), "{:?}", outcome.notes);
    }
}
