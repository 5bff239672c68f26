//! Fits of small invented profiles, and their predictions.

use super::*;
use crate::paper::number;

fn profile(fitted: &[(&str, &str)]) -> Profile {
    let mut text = String::from("help = \"x\"\n[topology]\npackages = [[[0]]]\n[costs]\n");
    for (key, point) in fitted {
        text += &format!(
            "{key} = {{ value = 1000, unit = \"ns\", source = \"fitted\", from = \"x\", \
                 point = \"{point}\" }}\n"
        );
    }
    text += "wake_ns = { value = 100, unit = \"ns\", source = \"assumed\", from = \"x\" }\n";
    text += "free_ns = { value = 100, unit = \"ns\", source = \"datasheet\", from = \"x\" }\n";
    Profile::parse("x", "x.toml", &text).unwrap()
}

fn get(profile: &Profile, cost: Cost) -> f64 {
    profile.costs.get(cost)
}

const fn measure(
    what: &'static str,
    paper: f64,
    unit: Unit,
    run: fn(&Profile, Effort) -> Result<f64, String>,
) -> Measure {
    let figure = number(what, paper, unit).ours(what).modelled(run);
    Measure { experiment: "x", figure }
}

fn predict(profile: Profile, measures: &[Measure]) -> Result<Fit, String> {
    let testbed = Testbed { profile, measures: measures.to_vec() };
    testbed.predict(None, Effort::Quick, &mut |_, _| {})
}

/// A service rate, and a latency of 20 services and a wake-up.
const RATE: Measure = measure("rate", 350e3, Unit::PerSecond, rate);
const LATENCY: Measure = measure("latency", 57_143.0, Unit::Nanoseconds, |profile, _| {
    Ok(20.0 * (get(profile, Cost::CardPacket) + get(profile, Cost::Wake)))
});
const WAKE: Measure =
    measure("wake", 100.0, Unit::Nanoseconds, |profile, _| Ok(get(profile, Cost::Wake)));
const NEVER: Measure =
    measure("never", 7.0, Unit::Count, |profile, _| Ok(get(profile, Cost::Free)));

fn rate(profile: &Profile, _: Effort) -> Result<f64, String> {
    Ok(1e9 / (get(profile, Cost::CardPacket) + get(profile, Cost::Wake)))
}

#[test]
fn one_cost_is_fitted_and_the_rest_predicted_with_dependencies() {
    let profile = profile(&[("card_packet_ns", "x: rate")]);
    let fit = predict(profile, &[RATE, LATENCY, WAKE]).unwrap();
    let wanted = 1e9 / 350e3 - 100.0;
    assert!((fit.fitted[0].value / wanted - 1.0).abs() < 0.02, "{:?}", fit.fitted);
    // The point itself is no prediction, and has no verdict.
    let names: Vec<_> = fit.predictions.iter().map(|prediction| &prediction.name).collect();
    assert_eq!(names, ["x: latency", "x: wake"]);
    let point = RATE.figure.judge(&fit.fitted[0].figure()).unwrap();
    assert_eq!(point.to_string(), "fitted: card_packet_ns was chosen for it");
    let [latency, wake] = &fit.predictions[..] else { panic!("{fit:#?}") };
    // It follows from the fit: changing a cost that the fit compensates has no effect.
    assert_eq!(latency.finding(), "reproduced", "{latency:#?}");
    assert_eq!(LATENCY.figure.judge(&latency.figure()), latency.verdict);
    assert_eq!(wake.finding(), "depends on wake_ns");
    let verdict = WAKE.figure.judge(&wake.figure()).unwrap();
    assert_eq!(verdict.finding, Finding::DependsOnWhatWasFitted);
    assert_eq!(
        verdict.why,
        "wake_ns (x 0.75: 75.0 ns, not reproduced, x 1.25: 125 ns, not reproduced)"
    );
}

#[test]
fn a_sketch_alone_is_no_dependence() {
    // Its sketches follow a cost, its whole runs do not.
    let sketchy = measure("sketchy", 100.0, Unit::Nanoseconds, |profile, effort| {
        Ok(if effort == Effort::Sketch { get(profile, Cost::Wake) } else { 100.0 })
    });
    let fit = predict(profile(&[]), &[sketchy, WAKE]).unwrap();
    let found: Vec<_> = fit.predictions.iter().map(Prediction::finding).collect();
    assert_eq!(found, ["reproduced", "depends on wake_ns"]);
}

#[test]
fn impossible_fit_names_its_point() {
    let error = predict(profile(&[("card_packet_ns", "x: never")]), &[RATE, NEVER]);
    let error = error.unwrap_err();
    assert!(error.starts_with("the fit does not converge: card_packet_ns"), "{error}");
    let error = predict(profile(&[("card_packet_ns", "nothing")]), &[RATE, NEVER]);
    let wanted = "card_packet_ns: found point nothing, allowed: x: rate; x: never";
    assert_eq!(error.unwrap_err(), wanted);
}

#[test]
fn two_points_of_one_figure_pull_apart() {
    let other = measure("other", 700e3, Unit::PerSecond, rate);
    let both = profile(&[("card_packet_ns", "x: rate"), ("switch_ns", "x: other")]);
    let error = predict(both, &[RATE, other]).unwrap_err();
    assert!(error.starts_with("these points pull apart: x: rate; x: other: "), "{error}");
    assert!(error.contains("does not converge: switch_ns"), "{error}");
    let faster = measure("faster", 700e3, Unit::PerSecond, |profile, _| {
        Ok(1e9 / (get(profile, Cost::CardPacket) + 0.5 * get(profile, Cost::Switch)))
    });
    let slower = measure("slower", 350e3, Unit::PerSecond, |profile, _| {
        Ok(1e9 / (get(profile, Cost::CardPacket) + 0.499 * get(profile, Cost::Switch)))
    });
    let both = profile(&[("card_packet_ns", "x: faster"), ("switch_ns", "x: slower")]);
    let error = predict(both, &[faster, slower]).unwrap_err();
    assert!(error.starts_with("these points pull apart: x: faster; x: slower: "), "{error}");
}

#[test]
fn results_of_parallel_work_are_in_order() {
    let items: Vec<_> = (0..100).collect();
    let mut most = 0;
    let results = in_parallel(&items, |item| item * 2, &mut |done| most = done);
    assert_eq!(results.unwrap(), (0..200).step_by(2).collect::<Vec<_>>());
    assert_eq!(most, 100);
}
