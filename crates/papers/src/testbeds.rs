//! The papers' machines and the figures measured on them: fitted to few, predicting the rest.
//!
//! A machine is a profile (`crates/sim/profiles/*.toml`) and a file here that runs the papers'
//! workloads on it. Rows of the papers' table name their machine, and figures name their run.
//! `picnic lab fit NAME` fits and predicts.
//!
//! Guarantee: our card's own code runs; the same profile and effort give the same figures.

pub(crate) mod core2;
pub(crate) mod netburst;
pub(crate) mod niagara2;
pub(crate) mod piii;
mod runs;
pub(crate) mod x5355;

use crate::registry::PAPERS;
use picnic_lab::fit::{Measure, Testbed};
use picnic_sim::machine::{Profile, ProfileError};

/// The machine of this name, with all figures of the papers that were measured on it.
///
/// # Errors
/// There is no such profile; the message lists those that there are.
pub fn testbed(name: &str) -> Result<Testbed, ProfileError> {
    let profile = Profile::named(name)?;
    let is_here = |paper: &&picnic_lab::registry::PaperEntry| {
        paper.row.machine.is_some_and(|machine| machine.profile == name)
    };
    let measures = PAPERS.iter().filter(is_here).flat_map(|paper| {
        let modelled = paper.row.figures.iter().filter(|figure| figure.model.is_some());
        modelled.map(|figure| Measure { experiment: paper.row.name, figure: *figure })
    });
    let measures = measures.collect();
    Ok(Testbed { profile, measures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::compare::Finding;
    use picnic_lab::experiment::Effort;
    use picnic_lab::unit::Unit;
    use picnic_sim::machine::{Cost, PROFILES, Source};

    #[test]
    fn every_profile_has_its_fit_points_and_every_figure_its_unit() {
        for (name, _) in PROFILES {
            let Testbed { profile, measures } = testbed(name).unwrap();
            assert!(!measures.is_empty(), "{name}");
            for (cost, point) in profile.fitted() {
                let is_known = measures.iter().any(|measure| measure.name() == point);
                assert!(is_known, "{name}: {}: {point}", cost.key());
            }
            for measure in measures {
                let key = measure.figure.ours.unwrap_or_else(|| panic!("{}", measure.name()));
                assert_eq!(measure.figure.unit(), Unit::of_key(key), "{}", measure.name());
                assert!(measure.figure.judge_value(0.0).is_some(), "{}", measure.name());
            }
        }
        assert!(testbed("netbrust").unwrap_err().to_string().contains("netburst"));
    }

    /// A fit that begins there has nothing to do.
    #[test]
    fn profiles_hold_fitted_values() {
        for (name, _) in PROFILES {
            let Testbed { profile, measures } = testbed(name).unwrap();
            for (cost, point) in profile.fitted() {
                let measure = measures.iter().find(|measure| measure.name() == point).unwrap();
                let off = measure.off(measure.run(&profile, Effort::Quick).unwrap());
                assert!(off.abs() < 0.03, "{name}: {}: {point}: off by {off}", cost.key());
            }
        }
    }

    /// The paper's 19 us, from the rate that saturates its core.
    #[test]
    fn latency_follows_from_the_rate_of_a_saturated_core() {
        let mut testbed = testbed("netburst").unwrap();
        testbed.measures.retain(|measure| measure.experiment == "picnic-latency");
        testbed.measures.retain(|measure| !measure.figure.what.starts_with("straight"));
        // Costs without influence on the figure are not varied here.
        let is_met = [Cost::CardPacket, Cost::InterruptWay].map(Cost::key);
        testbed
            .profile
            .figures
            .retain(|of| of.source != Source::Assumed || is_met.contains(&of.key.as_str()));
        // The fit finds the cost from any start.
        testbed.profile.costs.set(Cost::CardPacket, 1_500.0);
        let predict = || testbed.predict(None, Effort::Quick, &mut |_, _| {}).unwrap();
        let fit = predict();
        assert!((2_750.0..2_950.0).contains(&fit.fitted[0].value), "{fit:#?}");
        let [extra] = &fit.predictions[..] else { panic!("{fit:#?}") };
        let figure = extra.figure();
        assert_eq!(figure.source.label(), "predicted");
        let verdict = testbed.measures[1].figure.judge(&figure).unwrap();
        assert_eq!(verdict.finding, Finding::Reproduced, "{fit:#?}");
        assert!((extra.ours / extra.formula.unwrap() - 1.0).abs() < 0.1, "{fit:#?}");
        assert_eq!(predict().predictions[0].ours, extra.ours);
    }

    #[test]
    fn latency_vanishes_without_nic_moderation() {
        let mut profile = Profile::named("netburst").unwrap();
        profile.costs.set(Cost::NicGap, 0.0);
        let extra = netburst::extra_ns(&profile, Effort::Quick).unwrap();
        assert!((4_000.0..6_500.0).contains(&extra), "{extra}");
    }

    #[test]
    fn without_an_interrupt_a_packet_the_card_costs_less() {
        let profile = Profile::named("netburst").unwrap();
        let [without, with, moderated] = netburst::loads(&profile, Effort::Quick).unwrap();
        assert!(with > without * 1.05, "{with} and {without}");
        assert!(moderated < with * 0.95, "{moderated} and {with}");
    }

    #[test]
    fn more_queues_have_diminishing_gains() {
        let profile = Profile::named("x5355").unwrap();
        let two = x5355::web_1_to_2(&profile, Effort::Quick).unwrap();
        let six = x5355::web_2_to_6(&profile, Effort::Quick).unwrap();
        assert!(two > 0.15 && six > 0.02 && six < two / 2.0, "{two}, {six}");
    }
}
