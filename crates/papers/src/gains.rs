//! Gains of one side over another, measured alternately, from pairs of repeats.
//!
//! Guarantees: a pair with a void side does not count. A figure measured while client, server and
//! target queues share cores is marked in key and name, so that no report compares it with a
//! paper's figure (docs/decisions/036-judging-a-ratio.md).

use picnic_lab::compare::{Rule, median};
use picnic_lab::experiment::MeasuredPoint;
use picnic_lab::outcome::{Figure, Outcome, Source};
use picnic_lab::paper::SHARED_CORES;

/// The figure for shared cores: 1 if shared.
pub(super) const SHARED: &str = "shared_share";

/// A side of a point.
pub(super) type PointSide<'a> = (&'a MeasuredPoint, usize);

/// Whether client, server and target queues had to share cores.
pub(super) fn is_shared((found, side): PointSide<'_>) -> bool {
    median(&found.values(side, SHARED)) > 0.0
}

/// Adds a figure that a paper also has; marked in key and name if cores were shared.
pub(super) fn add(outcome: &mut Outcome, is_shared: bool, figure: Figure) {
    if !is_shared {
        return outcome.add(figure);
    }
    let (key, label) = (figure.key.clone(), figure.label());
    let shared = figure.keyed(&format!("{SHARED_CORES}{key}"));
    outcome.add(shared.called(&format!("{label}, on shared cores")));
    outcome.add(Figure::one(&key, None).called(&label).in_detail());
}

/// A gain to report.
pub(super) struct Gain<'a> {
    /// Its key if cores are not shared.
    pub(super) key: &'a str,
    /// Its name for people.
    pub(super) label: &'a str,
    /// The compared figure.
    pub(super) rate: &'a str,
}

impl Gain<'_> {
    /// Adds it with its interval and its verdict in words, over all pairs of the two sides.
    /// `is_void` is called for each repeat.
    pub(super) fn add(
        &self,
        outcome: &mut Outcome,
        sides: &[[PointSide<'_>; 2]],
        is_void: impl Fn(PointSide<'_>, usize) -> bool,
    ) {
        let Gain { key, label, rate } = *self;
        let ratios: Vec<f64> = sides.iter().flat_map(|both| ratios(both, rate, &is_void)).collect();
        let is_shared = sides.iter().flatten().any(|side| is_shared(*side));
        if outcome.source() == Source::Measured && !ratios.is_empty() {
            let judged = Rule::default().judge(&ratios).text(ratios.len());
            let shared = if is_shared { ", on shared cores" } else { "" };
            outcome.note(format!("{label}{shared}: {judged}"));
        }
        add(outcome, is_shared, Figure::of_pairs(key, &ratios).called(label));
    }
}

/// One by the other, repeat by repeat.
fn ratios(
    sides: &[PointSide<'_>; 2],
    rate: &str,
    is_void: &impl Fn(PointSide<'_>, usize) -> bool,
) -> Vec<f64> {
    let [one, other] = sides.map(|(found, side)| found.values(side, rate));
    let pairs = one.into_iter().zip(other).enumerate();
    let good = pairs.filter(|(repeat, _)| !sides.iter().any(|side| is_void(*side, *repeat)));
    let ratios = good.map(|(_, (one, other))| one / other);
    ratios.filter(|ratio| ratio.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::experiment::Spec;

    /// A point whose sides have these repeats.
    fn found(sides: &[&[f64]], shared: f64) -> MeasuredPoint {
        let outcome = |values: &&[f64]| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("payload_bps", values.to_vec()));
            outcome.add(Figure::of(SHARED, vec![shared; values.len()]));
            outcome
        };
        MeasuredPoint { spec: Spec::default(), sides: sides.iter().map(outcome).collect() }
    }

    /// The gain of the second side over the first, with these void repeats.
    fn gain(found: &MeasuredPoint, void: &[usize]) -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        let gain = Gain { key: "b_over_a_gain", label: "b over a", rate: "payload_bps" };
        let is_void = |(_, side): PointSide<'_>, repeat: usize| side == 0 && void.contains(&repeat);
        gain.add(&mut outcome, &[[(found, 1), (found, 0)]], is_void);
        outcome
    }

    /// A machine whose speed doubles over the repeats.
    const SPEED: [f64; 10] = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 2.0];

    #[test]
    fn common_drift_does_not_affect_the_ratio() {
        let faster = SPEED.map(|speed| 1.2 * speed);
        let outcome = gain(&found(&[&SPEED, &faster], 0.0), &[]);
        let fields = outcome.fields();
        for key in ["b_over_a_gain", "b_over_a_gain_low_95", "b_over_a_gain_high_95"] {
            assert!((fields[key].as_f64().unwrap() - 0.2).abs() < 1e-9, "{fields:#?}");
        }
        let note = "b over a: better, +20.0 % (95 %: +20.0 % to +20.0 %), from 10 pairs";
        assert_eq!(outcome.notes, [note]);
    }

    #[test]
    fn void_repeats_do_not_count_and_few_pairs_have_no_interval() {
        let mut faster = SPEED.map(|speed| 1.2 * speed);
        faster[3] = 100.0;
        let outcome = gain(&found(&[&SPEED, &faster], 0.0), &[3]);
        assert_eq!(outcome.notes, ["b over a: too noisy, 9 valid pairs, 10 needed"]);
        let fields = outcome.fields();
        assert!((fields["b_over_a_gain_max"].as_f64().unwrap() - 0.2).abs() < 1e-9, "{fields:#?}");
        assert!(!fields.contains_key("b_over_a_gain_low_95"), "{fields:#?}");
        let all: Vec<_> = (0..10).collect();
        assert_eq!(
            gain(&found(&[&SPEED, &faster], 0.0), &all).fields()["b_over_a_gain"],
            serde_json::Value::Null
        );
    }

    #[test]
    fn shared_cores_are_marked_in_key_and_name() {
        let outcome = gain(&found(&[&SPEED, &SPEED], 1.0), &[]);
        let fields = outcome.fields();
        assert_eq!(fields["b_over_a_gain"], serde_json::Value::Null);
        assert_eq!(fields["verdict_shared_cores_b_over_a_gain"], "no_difference");
        let row = ["b over a, on shared cores", "0 %", "95 %: 0 to 0 %"];
        assert_eq!(outcome.tables()[0].rows, [row]);
        assert!(outcome.notes[0].starts_with("b over a, on shared cores: no difference"));
    }

    #[test]
    fn noise_widens_the_interval_and_pairs_of_several_points_are_pooled() {
        let noisy: [f64; 10] = std::array::from_fn(|n| 1.0 + 0.05 * (n as f64 % 3.0 - 1.0));
        let one = found(&[&[1.0; 10], &noisy], 0.0);
        let fields = gain(&one, &[]).fields();
        assert!(fields["b_over_a_gain_low_95"].as_f64().unwrap() < -0.01, "{fields:#?}");
        assert!(fields["b_over_a_gain_high_95"].as_f64().unwrap() > 0.01, "{fields:#?}");
        assert_eq!(fields["verdict_b_over_a_gain"], "too_noisy");
        let mut outcome = Outcome::of(Source::Measured);
        let gain = Gain { key: "change", label: "all", rate: "payload_bps" };
        let both = [(&one, 1), (&one, 0)];
        gain.add(&mut outcome, &[both, both], |_, _| false);
        assert!(outcome.notes[0].ends_with("from 20 pairs"), "{:?}", outcome.notes);
    }
}
