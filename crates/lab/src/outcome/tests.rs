//! Tests of figures, comparisons and outcomes.

use super::*;
use crate::compare::{Interval, Verdict};
use serde_json::json;

fn sample() -> Outcome {
    let mut outcome = Outcome::of(Source::Measured);
    outcome.compare(Comparison::of(
        "requests_per_second",
        ("plain", vec![100_000.0, 110_000.0]),
        ("card", vec![54_000.0, 56_100.0]),
    ));
    outcome.add(Figure::of("request_p50_ns", vec![49_123.0, 51_000.0, 48_000.0]));
    outcome.add(Figure::one("missing_ns", None));
    assert_eq!(
        Figure::one("wires", 22.0).within(Some(21.7), Some(22.2)).range_text(),
        "95 %: 21.7 to 22.2"
    );
    outcome.tell("backend", "vector");
    let point = Point::at("rate_pps", 80_000).with(Figure::of("wake_p50_ns", vec![198.4]));
    outcome.series("curve").push(point);
    outcome
}

#[test]
fn fields_are_named_with_their_units_and_hold_medians_and_spread() {
    let fields = sample().fields();
    let expected = json!({
        "figures_are": "measured", "backend": "vector",
        "plain_requests_per_second": 104_880.884_817_015, "plain_requests_per_second_min": 100_000.0,
        "plain_requests_per_second_max": 110_000.0, "card_requests_per_second": 55_039.985_465_114_4,
        "card_requests_per_second_min": 54_000.0, "card_requests_per_second_max": 56_100.0,
        "ratio_requests": 0.524_785_670_536_077, "ratio_requests_min": 0.51, "ratio_requests_max": 0.54,
        "request_p50_ns": 49_123.0, "request_p50_ns_min": 48_000.0,
        "request_p50_ns_max": 51_000.0, "missing_ns": null,
        "curve": [{ "rate_pps": 80_000, "wake_p50_ns": 198.4 }],
    });
    assert_eq!(Value::Object(fields), expected);
}

#[test]
fn tables_have_both_sides_the_ratio_and_units() {
    let tables = sample().tables();
    assert_eq!(tables[0].columns, ["compared", "plain", "card", "ratio"]);
    let row = ["requests", "105 k/s", "55.0 k/s", "0.525 × (0.510 to 0.540)"];
    assert_eq!(tables[0].rows, [row]);
    assert_eq!(tables[1].rows[1], ["request p50", "49.1 µs", "48.0 to 51.0 µs"]);
    assert_eq!(tables[1].rows[2], ["missing", "unavailable", ""]);
    assert_eq!(tables[2].columns, ["rate", "wake p50"]);
    assert_eq!(tables[2].rows, [["80 k/s", "198 ns"]]);
}

#[test]
fn points_with_different_figures_get_separate_columns() {
    let bare = Point::at("way", "without").with(Figure::one("goodput_bps", 2e9));
    let mut compared = Point::at("way", "card").with(Figure::one("goodput_bps", 1e9));
    compared.comparisons.push(Comparison::of("p50_ns", ("a", vec![2.0]), ("b", vec![1.0])));
    let mut series = Series { name: "ways".into(), points: vec![bare, compared] };
    let row = ["card", "2.00 ns", "1.00 ns", "0.500 ×", "1.00 Gb/s"];
    for _ in 0..2 {
        let table = series.table();
        assert_eq!(table.columns, ["way", "a p50", "b p50", "ratio", "goodput"]);
        assert!(table.rows.contains(&row.map(String::from).into()), "{table:?}");
        assert!(
            table.rows.contains(&["without", "", "", "", "2.00 Gb/s"].map(String::from).into())
        );
        series.points.reverse();
    }
}

#[test]
fn enough_pairs_give_an_interval_and_a_verdict() {
    let slower: Vec<f64> = (0..10).map(|n| 54.0 + f64::from(n % 3)).collect();
    let compare = |key| Comparison::of(key, ("a", vec![100.0; 10]), ("b", slower.clone()));
    let of_rates = compare("goodput_bps");
    assert_eq!(of_rates.ratio_text(), "0.549 × (95 %: 0.538 to 0.559), worse");
    assert!(compare("p50_ns").ratio_text().ends_with(", better"));
    let of_counts = compare("packets");
    assert_eq!(of_counts.ratio_text(), "0.549 × (0.540 to 0.560)");
    let mut fields = Map::new();
    of_rates.put(&mut fields);
    assert_eq!(fields["verdict_goodput"], "worse");
    let number = |key: &str| fields[key].as_f64().unwrap();
    assert!(number("ratio_goodput_low_95") <= number("ratio_goodput"));
    assert!(number("ratio_goodput") <= number("ratio_goodput_high_95"));
    assert!(!fields.contains_key("pairs_needed_goodput"));
    of_counts.put(&mut fields);
    assert!(!fields.contains_key("verdict_packets"));
}

#[test]
fn sides_and_ratio_are_one_estimate() {
    // A disturbed run drops its pair's ratio and its sides.
    let baseline: Vec<f64> =
        (0..12).map(|n| if n == 3 { 5.0 } else { 100.0 + f64::from(n) }).collect();
    let candidate: Vec<f64> = (0..12).map(|n| 104.0 + f64::from(n * 7 % 5)).collect();
    let compared = Comparison::of("goodput_bps", ("a", baseline), ("b", candidate));
    let estimate = compared.estimate().unwrap();
    assert!((estimate.candidate / estimate.baseline - estimate.ratio).abs() < 1e-12);
    let interval = compared.judgement().unwrap().interval.unwrap();
    assert!((interval.ratio - estimate.ratio).abs() < 1e-12, "{interval:?} {estimate:?}");
    assert!((100.0..112.0).contains(&estimate.baseline), "{estimate:?}");
    let mut fields = Map::new();
    compared.put(&mut fields);
    let number = |key: &str| fields[key].as_f64().unwrap();
    let ratio = number("b_goodput_bps") / number("a_goodput_bps");
    assert!((ratio - number("ratio_goodput")).abs() < 1e-9, "{fields:?}");
    // Zero has a rank, too.
    let nothing = Comparison::of("goodput_bps", ("a", vec![2.0; 10]), ("b", vec![0.0; 10]));
    let wanted = Estimate { baseline: 2.0, candidate: 0.0, ratio: 0.0 };
    assert_eq!(nothing.estimate(), Some(wanted));
    assert_eq!(Comparison::of("x", ("a", vec![0.0]), ("b", vec![1.0])).estimate(), None);
    // As of a core that did no work in a round.
    let rates = [vec![1.0, f64::NAN, 2.0], vec![f64::INFINITY, 1.0, 4.0]];
    let [none, some] = rates;
    assert_eq!(Comparison::of("x_pps", ("a", none), ("b", some)).ratios(), [2.0]);
}

#[test]
fn a_baseline_that_differs_from_itself_gives_no_verdict() {
    let compare = |again: f64| {
        let steady: Vec<f64> = (0..10).map(|n| 100.0 + f64::from(n % 3)).collect();
        let times = |factor: f64| steady.iter().map(|value| value * factor).collect::<Vec<_>>();
        let sides = (("a", steady.clone()), ("b", times(1.2)));
        Comparison::of("goodput_bps", sides.0, sides.1).beside(times(again))
    };
    let mut fields = Map::new();
    compare(1.0).put(&mut fields);
    assert_eq!(
        (&fields["verdict_goodput"], &fields["itself_ratio_goodput"]),
        (&json!("better"), &json!(1.0))
    );
    let judged = compare(1.1).judgement().unwrap();
    assert_eq!(judged.verdict, Verdict::TooNoisy);
    // However small its own noise, its interval is at least as wide as the baseline's.
    let steady = compare(1.0);
    let noisy: Vec<f64> = (0..10).map(|n| if n % 2 == 0 { 80.0 } else { 125.0 }).collect();
    let interval = steady.beside(noisy).judgement().unwrap().interval.unwrap();
    assert!(interval.low < 1.1 && interval.high > 1.3, "{interval:?}");
}

#[test]
fn measured_changes_of_pairs_have_interval_and_verdict() {
    let ratios: Vec<f64> = (0..10).map(|n| 1.11 + f64::from(n % 3) / 100.0).collect();
    let told = |source, ratios: &[f64]| {
        let mut outcome = Outcome::of(source);
        outcome.add(Figure::of_pairs("knet_gain", ratios).called("knet"));
        (outcome.tables()[0].rows[0][1..].to_vec(), outcome.fields())
    };
    let (row, fields) = told(Source::Measured, &ratios);
    let interval = Interval::of(&ratios, 0.05).unwrap();
    let range = Unit::Change.range(interval.low - 1.0, interval.high - 1.0);
    assert_eq!(row, ["+11.9 %".to_owned(), format!("95 %: {range}")]);
    assert_eq!(fields["verdict_knet_gain"], "better");
    let number = |key: &str| fields[key].as_f64().unwrap();
    assert!(number("knet_gain_low_95") < number("knet_gain"));
    assert!(number("knet_gain") < number("knet_gain_high_95"));
    let (row, fields) = told(Source::Measured, &ratios[..9]);
    assert_eq!(row, ["+12.0 %", "+11.0 to +13.0 %"]);
    assert!(!fields.contains_key("verdict_knet_gain"));
    let (row, fields) = told(Source::Modelled, &ratios);
    assert_eq!(row, ["+12.0 %", "+11.0 to +13.0 %"]);
    assert!(!fields.contains_key("knet_gain_low_95"));
    let level: Vec<f64> = (0..10).map(|n| 1.0 + f64::from(n % 3 - 1) / 1000.0).collect();
    assert_eq!(told(Source::Measured, &level).1["verdict_knet_gain"], "no_difference");
}

#[test]
fn repeats_are_concatenated() {
    let mut outcome = sample();
    let wait = |value| Distribution::of("wait_ns", [(value, 2)]);
    outcome.distribute(wait(5));
    let mut again = sample();
    again.distribute(wait(7));
    outcome.repeat(again);
    assert_eq!(outcome.distributions, [wait(5).and(&wait(7))]);
    assert_eq!(outcome.fields()["wait_ns_distribution"]["p99"], 7);
    assert_eq!(outcome.tables().last().unwrap().rows[0][..2], ["wait", "4"]);
    let ratio = outcome.whole.comparisons[0].ratios();
    assert_eq!(ratio.len(), 4);
    assert_eq!(outcome.whole.figures[0].values.len(), 6);
    let [point] = &outcome.series[0].points[..] else { panic!("{outcome:?}") };
    assert_eq!(point.figures[0].values, [198.4, 198.4]);
}

#[test]
fn outcomes_round_trip() {
    let mut outcome = sample();
    outcome.add(Figure::one("busy_fraction", 0.145_639_805_213_635_07));
    outcome.distribute(Distribution::of("wait_ns", [(1, 2), (u64::MAX, 3)]));
    outcome.add(Figure::one("rate_pps", 2_815_876.101_451_536 / 3.0));
    let text = serde_json::to_string(&outcome).unwrap();
    assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
}
