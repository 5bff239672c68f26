//! Four TCP connections on four links, with protocol and application on various cores.
//!
//! In the sim world the paper's machine is modelled. On the host, links are veth pairs: one core
//! processes the packets of all links, one core has the application, and each sender has a core of
//! its own, so that eight cores are needed. At full speed one connection is measured as well.
//!
//! Source: PLACEMENT, "Multiconnection Experiments". "Performance of the Same Core scenario is 15%
//! less in these tests" can be read against the best scenario, or against its own single connection:
//! both are given.

use crate::cards::within;
use crate::modelled::{Curve, on_machine};
use crate::placement::{self, FLAT_OUT, Pair, medians, rate, reached};
use crate::testbeds::core2;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Source};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The paper's connections, each on its own link.
const CONNECTIONS: usize = 4;
/// The label of their number.
const LINKS: &str = "connections";

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim"; the paper's if not said
    pub profile: Option<String>,
    /// Whether predictions are repeated with each assumed cost at ±25 %; sim only
    pub vary: bool,
    /// Bit rates of each connection, in Mb/s; 0 means the maximum. Host only
    pub rates_mbps: Vec<u64>,
    /// Duration of each measurement, in milliseconds [default: 1000; less for --quick]. Host only
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        let (rates_mbps, milliseconds) = (vec![80, 400, FLAT_OUT], None);
        Settings { world: World::Sim, profile: None, vary: true, rates_mbps, milliseconds }
    }
}

/// The experiment on the host.
#[derive(Debug)]
pub struct PlacementMulti(Settings);

impl Component for PlacementMulti {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "placement-multi";
    const HELP: &'static str = "four TCP connections by cores of protocol and application";

    fn example(_: &Path) -> Option<String> {
        Some("vary = false".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        if settings.rates_mbps.is_empty() {
            return Err(ConfigError::new("rates_mbps", "missing, expected one or more"));
        }
        let rates = &settings.rates_mbps;
        rates.iter().try_for_each(|&rate| within("rates_mbps", rate as f64, 0.0, 400_000.0))?;
        within("milliseconds", settings.milliseconds.unwrap_or(100) as f64, 100.0, 60_000.0)?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(PlacementMulti(settings))))
    }
}

impl Reproduces for PlacementMulti {
    const PAPER: Row = row(
        "PLACEMENT",
        "one connection per NIC, four NICs",
        &[
            number("same core, to the best", -0.15, Unit::Change)
                .ours("same_core_change")
                .modelled(core2::same_core),
            number("same core, to its single connection", -0.15, Unit::Change)
                .ours("same_core_to_single_change")
                .modelled(core2::same_core_to_single),
            words("the wrong cores lose over 40 %", "yes")
                .ours("worst_pair_change")
                .at_most(-0.4, "worst pair")
                .modelled(core2::multi_worst),
            words("a shared L2 is best at high rates", "yes")
                .ours("same_die_change")
                .at_least(0.0, "to the best other pair")
                .modelled(core2::same_die),
            words("same core is cheapest at low rates", "yes")
                .ours("same_core_cpu_change")
                .at_most(0.0, "its CPU, to the best other pair")
                .modelled(core2::multi_same_core_cpu),
        ],
    )
    .corrected("\"15 % less\": than the best, or than one connection, it does not say")
    .on("core2", 9);
}

const CURVE: Curve = Curve {
    series: "rates",
    points: core2::multi_by_rate,
    plot: || {
        Plot::lines("received by rate of each link", "rates", "offered_mbytes", "goodput_bps")
            .by("pair")
    },
};

impl Experiment for PlacementMulti {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let at = |rate: u64, connections: usize| {
            let spec = Spec::at("rate_mbps", rate).and(LINKS, connections);
            spec.sides(&Pair::ALL.map(Pair::name)).measured(effort.repeats())
        };
        let rates = self.0.rates_mbps.iter();
        rates.map(|&rate| at(rate, CONNECTIONS)).chain([at(FLAT_OUT, 1)]).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        2 * CONNECTIONS
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let how = (point.number(LINKS) as usize, self.0.milliseconds);
        placement::measure(side, point.number("rate_mbps") as u64, how, run)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        let (alone, all): (Vec<_>, Vec<_>) =
            points.iter().partition(|found| found.spec.number(LINKS) == 1.0);
        let top = all.iter().find(|found| rate(found) == FLAT_OUT).map(|found| reached(found));
        let top = top.unwrap_or_default();
        let low = all.iter().filter(|found| rate(found) != FLAT_OUT).min_by_key(|of| rate(of));
        let low = low.map_or(Vec::new(), |found| medians(found, "both_cores"));
        let alone = alone.first().map_or(Vec::new(), |found| reached(found));
        let of = |values: &[(Pair, f64)], pair| {
            values.iter().find(|(own, _)| *own == pair).map(|(_, value)| *value)
        };
        let to_single = of(&top, Pair::Core).zip(of(&alone, Pair::Core));
        let best = |pair| placement::to_best_other(&top, pair, f64::max);
        for (key, value, label) in [
            ("same_core_change", best(Pair::Core).map(|change| change.min(0.0)), "to the best"),
            (
                "same_core_to_single_change",
                to_single.map(|(four, one)| four / one - 1.0),
                "to its single connection",
            ),
        ] {
            outcome.add(Figure::one(key, value).called(&format!("same core, {label}")));
        }
        let worst = Figure::one("worst_pair_change", placement::worst_to_best(&top));
        outcome.add(worst.called("at full speed, worst pair against the best"));
        let die = Figure::one("same_die_change", best(Pair::Die));
        outcome.add(die.called("shared L2, to the best other pair"));
        let cheap = placement::to_best_other(&low, Pair::Core, f64::min);
        let cheap = Figure::one("same_core_cpu_change", cheap);
        outcome.add(cheap.called("time of cores, same core to the best other"));
        all.iter().for_each(|found| placement::pairs(&mut outcome, found));
        placement::note_missing(&mut outcome, points);
        outcome.note("veth pairs in place of the paper's 1 Gb/s links: the cores limit the rate");
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("received by rate", "rates", "rate_mbps", "goodput_bps").by("pair"),
            Plot::bars("received at full speed", "flat_out", "goodput_bps"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_paper_follow_from_full_speed_and_the_lowest_rate() {
        let found = |rate: u64, connections: usize, goodput: [f64; 3], both: [f64; 3]| {
            let side = |pair: usize| {
                let mut outcome = Outcome::of(Source::Measured);
                outcome.add(Figure::one("goodput_bps", goodput[pair]));
                outcome.add(Figure::one("both_cores", both[pair]));
                outcome
            };
            // Neither SMT siblings nor a second package.
            let missing = || Outcome::of(Source::Measured);
            MeasuredPoint {
                spec: Spec::at("rate_mbps", rate).and(LINKS, connections),
                sides: vec![side(0), missing(), side(1), side(2), missing()],
            }
        };
        let outcome = PlacementMulti(Settings::default()).conclude(&[
            found(80, 4, [3e8; 3], [0.2, 0.25, 0.4]),
            found(FLAT_OUT, 4, [8e9, 10e9, 5e9], [1.0, 2.0, 2.0]),
            found(FLAT_OUT, 1, [16e9, 10e9, 5e9], [1.0, 2.0, 2.0]),
        ]);
        for (key, change) in [
            ("same_core_change", -0.2),
            ("same_core_to_single_change", -0.5),
            ("worst_pair_change", -0.5),
            ("same_die_change", 0.25),
            ("same_core_cpu_change", -0.2),
        ] {
            let found = outcome.median(key).unwrap();
            assert!((found - change).abs() < 1e-9, "{key}: {found}");
        }
    }
}
