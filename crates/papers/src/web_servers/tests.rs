//! Points, settings and judgements of the web servers' experiments.

use super::*;
use crate::gains::SHARED;
use picnic_lab::compare::Finding;
use picnic_lab::outcome::Figure;
use picnic_lab::runner;
use serde_json::Value;

fn host() -> Settings {
    Settings { world: Some(World::Host), ..Settings::default() }
}

fn run<C>(settings: Settings) -> Option<Outcome>
where
    C: Component<Product = Box<dyn Experiment>, Config = Settings>,
{
    let experiment = C::build(settings, &BuildContext::default()).unwrap();
    match runner::outcome(C::NAME, &*experiment, Effort::Quick, &mut |_, _| {}) {
        Ok(outcome) => Some(outcome),
        Err(error) if error.to_string().contains("unavailable") => {
            picnic_testing::skip(C::NAME, &error.to_string());
            None
        }
        Err(error) => panic!("{}: {error}", C::NAME),
    }
}

#[test]
fn queues_and_systems_are_compared() {
    let for_seconds = |seconds| Settings { seconds: Some(seconds), ..host() };
    let settings = for_seconds(0.3);
    let is_carried = |outcome: &Outcome| {
        let fields = outcome.fields();
        let payload = |row: &Value| row["payload_bps"].as_f64();
        let rows = fields["payload"].as_array().unwrap();
        rows.iter().all(|row| payload(row) > Some(1e6))
    };
    let mut bulk = run::<RssBulk>(settings.clone());
    if bulk.as_ref().is_some_and(|outcome| !is_carried(outcome)) {
        // A busy machine may give a side no time in all its repeats: again, for longer.
        bulk = run::<RssBulk>(for_seconds(5.0));
    }
    if let Some(outcome) = bulk {
        let fields = outcome.fields();
        assert!(is_carried(&outcome), "{fields:#?}");
        assert!(fields.contains_key("2_over_1_queues_gain"));
        // Results with shared cores are not compared with a paper's figure.
        let is_shared = fields.contains_key("shared_cores_2_over_1_queues_gain");
        assert_eq!(
            fields["2_over_1_queues_gain"] == serde_json::Value::Null,
            is_shared,
            "{fields:#?}"
        );
    }
    if let Some(outcome) = run::<KnetSendfile>(Settings { loads: Some(Vec::new()), ..settings }) {
        let fields = outcome.fields();
        for key in ["knet_over_napi_gain", "clas_over_napi_gain", "nginx_copy_knet_over_clas_gain"]
        {
            assert!(fields.contains_key(key), "{key}: {fields:#?}");
        }
    }
}

/// A side with these figures.
fn side(figures: &[(&str, Option<f64>)]) -> Outcome {
    let mut outcome = Outcome::of(Source::Measured);
    figures.iter().for_each(|(key, value)| outcome.add(Figure::one(key, *value)));
    outcome
}

/// Answers per second of each of KNET's systems, and whether its client was at its limit.
fn answered(sides: [(f64, f64); 3]) -> MeasuredPoint {
    let spec = Spec::at("server", "apache").sides(&SYSTEMS);
    let sides = sides.map(|(rate, at_limit)| {
        side(&[("requests_per_second", Some(rate)), ("client_limit_share", Some(at_limit))])
    });
    MeasuredPoint { spec, sides: sides.into() }
}

#[test]
fn a_client_at_its_limit_voids_the_point() {
    let build = KnetApache::build(host(), &BuildContext::default());
    let conclude = |found| build.as_ref().unwrap().conclude(&[found]);
    let note = "server=apache, knet: void, the client or the borrowed core is at its limit";
    let is_told = |outcome: &Outcome| outcome.notes.iter().any(|own| own == note);
    let outcome = conclude(answered([(1200.0, 0.0), (1000.0, 0.0), (800.0, 0.0)]));
    assert!(!is_told(&outcome), "{:?}", outcome.notes);
    assert!((outcome.median("knet_over_clas_gain").unwrap() - 0.2).abs() < 1e-9);
    let outcome = conclude(answered([(1200.0, 1.0), (1000.0, 0.0), (800.0, 0.0)]));
    let fields = outcome.fields();
    assert!(is_told(&outcome), "{:?}", outcome.notes);
    for withheld in ["knet_over_clas_gain", "knet_over_napi_gain"] {
        assert_eq!(fields[withheld], serde_json::Value::Null, "{fields:#?}");
    }
    assert!((outcome.median("clas_over_napi_gain").unwrap() - 0.25).abs() < 1e-9);
    // No answers give no rate to compare with, either.
    let outcome = conclude(answered([(1200.0, 0.0), (0.0, 0.0), (800.0, 0.0)]));
    let note = "server=apache, clas: void, nothing was answered";
    assert!(outcome.notes.iter().any(|own| own == note), "{:?}", outcome.notes);
    assert_eq!(outcome.fields()["knet_over_clas_gain"], serde_json::Value::Null);
    assert!((outcome.median("knet_over_napi_gain").unwrap() - 0.5).abs() < 1e-9);
}

#[test]
fn queues_and_hashes_take_turns() {
    let build = RssWeb::build(host(), &BuildContext::default());
    let experiment = build.unwrap();
    let sides = |effort| {
        let points = experiment.points(effort);
        let [point] = &points[..] else { panic!("{points:?}") };
        (point.sides.clone(), point.repeats)
    };
    let (usual, repeats) = sides(Effort::Usual);
    assert_eq!((usual.len(), repeats), (12, 10));
    let all: Vec<_> = usual.iter().map(|side| of_side(side)).collect();
    let queues = |hash| (1..=6).map(move |queues| (hash, queues));
    assert!(all.into_iter().eq(queues("toeplitz").chain(queues("jhash"))));
    let quick = ["toeplitz-1", "toeplitz-2", "jhash-1", "jhash-2"].map(String::from).to_vec();
    assert_eq!(sides(Effort::Quick), (quick, 1));
    let build = KnetWebfs::build(host(), &BuildContext::default());
    let points = build.unwrap().points(Effort::Usual);
    let repeats = |load| points.iter().find(|point| point.number("offered_ratio") == load);
    let of = [0.0, 0.5, 1.0, 2.0, 3.0].map(|load| repeats(load).unwrap().repeats);
    assert_eq!(of, [10, 3, 5, 5, 3]);
}

#[test]
fn queues_are_judged_by_pairs_of_repeats() {
    let build = RssBulk::build(host(), &BuildContext::default());
    let conclude = |shared: f64| {
        let of = |factor: f64| {
            let mut outcome = Outcome::of(Source::Measured);
            // The machine becomes faster by half: the ratio of each pair stays.
            let speed = |n: u32| 1e9 * factor * (1.0 + f64::from(n) / 20.0);
            outcome.add(Figure::of("payload_bps", (0..10).map(speed).collect()));
            outcome.add(Figure::of("requests_per_second", vec![100.0; 10]));
            outcome.add(Figure::of(SHARED, vec![shared; 10]));
            outcome
        };
        let sides = [1, 2, 4].map(|queues| side_of("toeplitz", queues)).to_vec();
        let spec = Spec { sides, ..Spec::default() };
        let found = MeasuredPoint { spec, sides: vec![of(1.0), of(1.18), of(1.05)] };
        build.as_ref().unwrap().conclude(&[found])
    };
    let row = RssBulk::PAPER;
    let judged = |outcome: &Outcome, key: &str| {
        let ours =
            |own: &&picnic_lab::paper::PaperFigure| own.ours.is_some_and(|own| key.ends_with(own));
        let paper = row.figures.iter().find(ours).unwrap();
        paper.judge(&outcome.whole.figure(key).unwrap()).unwrap().finding
    };
    let outcome = conclude(0.0);
    assert_eq!(judged(&outcome, "2_over_1_queues_gain"), Finding::Reproduced);
    assert_eq!(judged(&outcome, "4_over_1_queues_gain"), Finding::NotReproduced);
    assert_eq!(outcome.fields()["verdict_2_over_1_queues_gain"], "better");
    let outcome = conclude(1.0);
    assert_eq!(judged(&outcome, "2_over_1_queues_gain"), Finding::NotMeasurableHere);
    let shared = "shared_cores_2_over_1_queues_gain";
    assert_eq!(judged(&outcome, shared), Finding::NotMeasurableHere);
    assert_eq!(outcome.whole.figure(shared).unwrap().text(), "+18.0 %");
}

#[test]
fn cache_misses_are_shown_or_unavailable() {
    let build = RssWeb::build(host(), &BuildContext::default());
    let key = "server_cores_cache_misses_per_request";
    let of = |misses| {
        let spec = Spec::default().sides(&["toeplitz-1", "jhash-1"]);
        let sides = vec![side(&[(key, misses)]), side(&[(key, misses)])];
        let outcome = build.as_ref().unwrap().conclude(&[MeasuredPoint { spec, sides }]);
        outcome.fields()["cores"][0][key].clone()
    };
    assert_eq!(of(Some(1200.0)), 1200.0);
    assert_eq!(of(None), serde_json::Value::Null);
}

#[test]
fn webfs_runs_back_to_back_and_by_load() {
    let entry = crate::registry::experiment("knet-webfs").expect("an entry");
    let loads = [("loads", "0.5,3"), ("world", "host")].map(|(k, v)| (k.into(), v.into()));
    let experiment = picnic_lab::registry::build(entry, &loads).unwrap();
    let points = experiment.points(Effort::Quick);
    let names: Vec<_> = points.iter().map(Spec::name).collect();
    let by_load = |load| format!("server=webfs,offered_ratio={load}");
    let capacity = "server=webfs,part=capacity".to_owned();
    assert_eq!(names, ["server=webfs", &capacity, &by_load("0.5"), &by_load("3.0")]);
    let follow: Vec<_> = points.iter().map(|point| point.follows.as_ref()).collect();
    assert_eq!(follow, [None, None, Some(&capacity), Some(&capacity)]);
    assert!(points.iter().all(|point| point.sides == SYSTEMS && experiment.cores(point) == 2));
    assert_eq!(Workload::parse(KnetWebfs::PRESET.workload).unwrap().file[0].bytes, 20_000);
    assert_eq!(Workload::parse(RssBulk::PRESET.workload).unwrap().send_bytes, 4096);
}

#[test]
fn loads_are_multiples_of_the_best_back_to_back_rate() {
    let rates = |rates: [&[f64]; 3]| {
        let side = |rates: &&[f64]| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("requests_per_second", rates.to_vec()));
            outcome
        };
        let spec = Spec::at("server", "apache").and(PART, "capacity").sides(&SYSTEMS);
        MeasuredPoint { spec, sides: rates.iter().map(side).collect() }
    };
    let found = rates([&[900.0, 1000.0, 5000.0], &[800.0], &[0.0]]);
    assert_eq!(capacity(&found), Some(1000.0));
    assert_eq!(capacity(&rates([&[0.0]; 3])), None);
    let build = KnetApache::build(host(), &BuildContext::default());
    let experiment = build.unwrap();
    let point = Spec::at("server", "apache").and("offered_ratio", 2.0);
    let error = experiment.measure(&point, "knet", &mut Run::new(Effort::Quick, 1, |_, _| {}));
    let wanted = "nothing was answered back to back to derive a load from";
    assert_eq!(error.unwrap_err().to_string(), wanted);
    // That point, with few repeats and the paper's server too, has no ratio.
    let alone = answered([(1200.0, 0.0), (1000.0, 0.0), (800.0, 0.0)]);
    let outcome = experiment.conclude(&[alone, found]);
    assert!((outcome.median("knet_over_clas_gain").unwrap() - 0.2).abs() < 1e-9);
    let requests = outcome.series.iter().find(|series| series.name == "requests").unwrap();
    assert_eq!(requests.points.len(), 1);
}

#[test]
fn wrong_settings_name_allowed_values() {
    let refused = |error: Option<ConfigError>| error.unwrap().to_string();
    let none = Settings { queues: Some(vec![]), ..host() };
    let build = RssWeb::build(none.clone(), &BuildContext::default());
    assert!(refused(build.err()).contains("queues: missing, expected one or more"));
    let build = KnetApache::build(none, &BuildContext::default());
    assert!(refused(build.err()).contains("queues: found queues, allowed with rss-web"));
    let loads = |loads| Settings { loads: Some(loads), ..host() };
    let build = RssWeb::build(loads(vec![1.0]), &BuildContext::default());
    assert!(refused(build.err()).contains("loads: found loads, allowed with knet-webfs"));
    let build = KnetApache::build(loads(vec![0.0]), &BuildContext::default());
    assert!(refused(build.err()).contains("loads: found 0, allowed: 0.01 to 100"));
    let long = Settings { seconds: Some(0.0), ..host() };
    let build = RssBulk::build(long, &BuildContext::default());
    assert!(refused(build.err()).contains("seconds: found 0, allowed: 0.1 to 3600"));
}
