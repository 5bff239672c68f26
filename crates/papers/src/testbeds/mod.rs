//! The papers' machines and the figures that were measured on them: fitted on few, the rest predicted.
//!
//! A machine is a profile (`crates/sim/profiles/*.toml`), one file here that runs the papers'
//! workloads on it, and its line in [`TESTBEDS`]. `picnic lab fit NAME` fits and predicts.
//!
//! Guarantee: our card's own code runs; the same profile and effort give the same figures.

mod netburst;
mod piii;
mod runs;
mod x5355;

use picnic_lab::fit::{Measure, Testbed, Wanted};
use picnic_lab::unit::Unit;

/// THE LIST.
pub const TESTBEDS: &[Testbed] = &[
    Testbed {
        profile: "netburst",
        measures: &[
            Measure::new(
                "picnic-latency: core full at 350 packets/ms",
                350e3,
                Unit::PerSecond,
                netburst::full_pps,
            ),
            Measure::new(
                "picnic-latency: extra latency at 80 packets/ms",
                19_000.0,
                Unit::Nanoseconds,
                netburst::extra_ns,
            )
            .formula(netburst::extra_formula_ns),
            // R² of a straight line.
            Measure::new(
                "picnic-latency: straight up to 350 packets/ms, where the borrowed core is full",
                0.98,
                Unit::Count,
                netburst::linear,
            )
            .wanted(Wanted::AtLeast),
            Measure::new(
                "picnic-utilization: target core's CPU with the card",
                0.08,
                Unit::Change,
                netburst::load_change,
            ),
            Measure::new(
                "picnic-utilization: the same in points",
                0.08,
                Unit::Fraction,
                netburst::load_points,
            ),
            Measure::new(
                "picnic-utilization: with moderation",
                0.0,
                Unit::Change,
                netburst::moderated_change,
            )
            .wanted(Wanted::AtMost),
        ],
    },
    Testbed {
        profile: "x5355",
        measures: &[
            Measure::new("rss-web: 1 to 2 queues", 0.29, Unit::Change, x5355::web_1_to_2)
                .formula(x5355::web_1_to_2_formula),
            Measure::new("rss-web: 2 to 6 queues", 0.06, Unit::Change, x5355::web_2_to_6),
            Measure::new("rss-web: 1 to 6 queues", 0.37, Unit::Change, x5355::web_1_to_6),
            Measure::new(
                "picnic-scaling: borrowed core with five wires is not full",
                0.99,
                Unit::Fraction,
                x5355::five_wires,
            )
            .wanted(Wanted::AtMost)
            .formula(x5355::five_wires_formula),
        ],
    },
    Testbed {
        profile: "x5355-tx",
        measures: &[
            Measure::new("rss-bulk: 1 queue", 5.090e9, Unit::BitsPerSecond, x5355::bulk_1),
            Measure::new("rss-bulk: 1 to 2 queues", 0.183, Unit::Change, x5355::bulk_1_to_2),
            Measure::new("rss-bulk: 1 to 4 queues", 0.233, Unit::Change, x5355::bulk_1_to_4),
        ],
    },
    Testbed {
        profile: "piii",
        measures: &[
            Measure::new("knet-webfs: KNET over NAPI", 0.17, Unit::Change, piii::webfs_over_napi),
            Measure::new("knet-webfs: KNET over CLAS", 0.12, Unit::Change, piii::webfs_over_clas),
            Measure::new(
                "knet-sendfile: KNET over NAPI",
                0.30,
                Unit::Change,
                piii::sendfile_over_napi,
            ),
            Measure::new(
                "knet-sendfile: KNET over CLAS",
                0.17,
                Unit::Change,
                piii::sendfile_over_clas,
            ),
            Measure::new("knet-apache: KNET over NAPI", 0.27, Unit::Change, piii::apache_over_napi),
            Measure::new("knet-apache: KNET over CLAS", 0.20, Unit::Change, piii::apache_over_clas),
            Measure::new(
                "knet-webfs: packets per interrupt, KNET",
                45.0,
                Unit::Count,
                piii::knet_per_interrupt,
            ),
            Measure::new(
                "knet-webfs: packets per interrupt, CLAS",
                5.6,
                Unit::Count,
                piii::clas_per_interrupt,
            ),
            Measure::new(
                "knet-webfs: packets per interrupt, NAPI",
                40.0,
                Unit::Count,
                piii::napi_per_interrupt,
            ),
            Measure::new("knet-webfs: driver rx, KNET", 0.05, Unit::Fraction, piii::knet_driver),
            Measure::new("knet-webfs: driver rx, CLAS", 0.12, Unit::Fraction, piii::clas_driver),
            Measure::new("knet-webfs: locks, CLAS", 0.06, Unit::Fraction, piii::clas_locks),
            Measure::new(
                "knet-livelock: with the gate, delivered does not fall past saturation",
                0.95,
                Unit::Fraction,
                piii::livelock_with_gate,
            )
            .wanted(Wanted::AtLeast),
            Measure::new(
                "knet-livelock: without the gate, it falls",
                0.5,
                Unit::Fraction,
                piii::livelock_without,
            )
            .wanted(Wanted::AtMost),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::experiment::Effort;
    use picnic_sim::machine::{Cost, PROFILES, Profile};

    #[test]
    fn every_profile_has_a_testbed_with_its_fit_points() {
        for (name, _) in PROFILES {
            let testbed = TESTBEDS.iter().find(|testbed| testbed.profile == *name);
            let measures = testbed.unwrap_or_else(|| panic!("{name}")).measures;
            let profile = Profile::named(name).unwrap();
            for (cost, point) in profile.fitted() {
                let is_known = measures.iter().any(|measure| measure.name == point);
                assert!(is_known, "{name}: {}: {point}", cost.key());
            }
        }
    }

    /// The paper's 19 us, from the rate at which its core is full.
    #[test]
    fn the_latency_at_80_packets_per_ms_follows_from_the_rate_of_a_full_core() {
        // The fit point and the prediction.
        let testbed = Testbed { profile: "netburst", measures: &TESTBEDS[0].measures[..2] };
        let mut profile = Profile::named("netburst").unwrap();
        // The fit finds the cost, wherever it begins.
        profile.costs.set(Cost::CardPacket, 1_500.0);
        let fit = testbed.predict_of(&profile, Effort::Quick).unwrap();
        assert!((2_750.0..2_950.0).contains(&fit.fitted[0].value), "{fit:#?}");
        let [extra] = &fit.predictions[..] else { panic!("{fit:#?}") };
        assert_eq!(extra.finding(), "reproduced", "{fit:#?}");
        assert!((extra.ours / extra.formula.unwrap() - 1.0).abs() < 0.1, "{fit:#?}");
        assert_eq!(testbed.predict_of(&profile, Effort::Quick).unwrap(), fit);
    }

    #[test]
    fn without_the_nics_own_moderation_the_latency_is_gone() {
        let mut profile = Profile::named("netburst").unwrap();
        profile.costs.set(Cost::NicGap, 0.0);
        let extra = netburst::extra_ns(&profile, Effort::Quick).unwrap();
        assert!((4_000.0..6_500.0).contains(&extra), "{extra}");
    }

    #[test]
    fn more_queues_bring_less_and_less() {
        let profile = Profile::named("x5355").unwrap();
        let two = x5355::web_1_to_2(&profile, Effort::Quick).unwrap();
        let six = x5355::web_2_to_6(&profile, Effort::Quick).unwrap();
        assert!(two > 0.15 && six > 0.02 && six < two / 2.0, "{two}, {six}");
    }
}
