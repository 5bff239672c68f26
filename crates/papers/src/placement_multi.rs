//! Four TCP connections on four links, with protocol and application on various cores.
//!
//! Source: PLACEMENT, "Multiconnection Experiments". "Performance of the Same Core scenario is 15%
//! less in these tests" can be read against the best scenario, or against its own single connection:
//! both are given.

use crate::inic::Settings;
use crate::modelled::{Curve, on_machine};
use crate::testbeds::core2;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Experiment, World};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use std::path::Path;

/// The experiment.
#[derive(Debug)]
pub struct PlacementMulti;

impl Component for PlacementMulti {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "placement-multi";
    const HELP: &'static str = "four TCP connections by cores of protocol and application";

    fn example(_: &Path) -> Option<String> {
        Some("vary = false".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        let profile = settings.profile.as_deref();
        let built = on_machine::<Self>(World::Sim, profile, &settings, Some(CURVE))?;
        built.ok_or_else(|| ConfigError::new("profile", "found none, expected a modelled machine"))
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
