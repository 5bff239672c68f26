//! Order of sides, failed points, resumed runs and shards, with an invented experiment.

use super::*;
use crate::outcome::Figure;
use std::sync::{Arc, Mutex};

/// Points that record their measurements. The fourth of each seven fails, the fifth panics, the
/// sixth needs more cores than there are.
struct Counting {
    points: u32,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Experiment for Counting {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |number| {
            let spec = Spec::at("number", number).sides(&["a", "b"]).measured(effort.repeats());
            Spec { limit: if number == 6 { Duration::ZERO } else { spec.limit }, ..spec }
        };
        (0..self.points).map(spec).collect()
    }

    fn cores(&self, spec: &Spec) -> usize {
        if spec.number("number") == 5.0 { 100_000 } else { 1 }
    }

    fn measure(&self, spec: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut calls = self.calls.lock().unwrap();
        calls.push(format!("{}{side}", spec.number("number")));
        match spec.number("number") as u32 {
            3 => return Err(anyhow::anyhow!("no space").context("wrk").into()),
            4 => {
                drop(calls);
                panic!("as a test wants it");
            }
            _ => {}
        }
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("seed_low", (run.seed % 1000) as f64));
        outcome.add(Figure::count("call", calls.len() as u64));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::count("points", points.len() as u64));
        outcome
    }
}

fn job(points: u32) -> (Job, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::default();
    let experiment = Box::new(Counting { points, calls: Arc::clone(&calls) });
    (Job { kind: Kind::Experiment, name: "counting".into(), experiment }, calls)
}

fn run_with(points: u32, shard: &str, there: &[Record]) -> (Vec<Record>, Vec<String>) {
    run_within(None, points, shard, there)
}

fn run_within(
    limit: Option<Duration>,
    points: u32,
    shard: &str,
    there: &[Record],
) -> (Vec<Record>, Vec<String>) {
    let (job, calls) = job(points);
    let shard = shard.parse().unwrap();
    let options = Options { effort: Effort::Quick, shard, limit, revision: "r", timelines: None };
    let (mut records, mut last) = (Vec::new(), 0.0);
    let mut keep = |record| {
        records.push(record);
        Ok(())
    };
    let mut watch = |share: f64, what: &str| {
        assert!(share >= last && share <= 1.0 && !what.is_empty(), "{share} {what}");
        last = share;
    };
    run(&[job], &options, there, &mut keep, &mut watch).unwrap();
    assert_eq!(last, 1.0);
    let calls = calls.lock().unwrap().clone();
    (records, calls)
}

#[test]
fn sides_take_turns_in_alternating_order() {
    let (records, calls) = run_with(1, "1/1", &[]);
    assert_eq!(calls, ["0b", "0a", "0a", "0b", "0b", "0a", "0a", "0b"]);
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.repeats, record.sides.len()), (3, 2));
    let values = |side: usize| record.sides[side].outcome.whole.figures[1].values.clone();
    assert_eq!((values(0), values(1)), (vec![3.0, 6.0, 7.0], vec![4.0, 5.0, 8.0]));
}

#[test]
fn values_in_the_same_place_are_of_the_same_round() {
    let side = |round: u32, is_given: bool| {
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("cost_ns", is_given.then(|| f64::from(round))));
        outcome.add(Figure::count("round", round.into()));
        outcome
    };
    // The first side lacks its cost in round 1, the second in round 3.
    let round = |round| vec![side(round, round != 1), side(round, round != 3)];
    let sides = in_step((0..5).map(round).collect());
    let values = |side: usize, key: &str| {
        let figure = sides[side].whole.figures.iter().find(|figure| figure.key == key);
        figure.unwrap().values.clone()
    };
    assert_eq!(
        (values(0, "cost_ns"), values(1, "cost_ns")),
        (vec![0.0, 2.0, 4.0], vec![0.0, 2.0, 4.0])
    );
    assert_eq!(values(0, "round"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    // A figure that a side never has is not missing there.
    let sides =
        in_step(vec![vec![side(0, true), side(0, false)], vec![side(1, true), side(1, false)]]);
    assert_eq!(sides[0].whole.figures[0].values, [0.0, 1.0]);
    assert!(in_step(Vec::new()).is_empty());
}

#[test]
fn failed_points_have_a_reason_and_others_continue() {
    let (records, calls) = run_with(7, "1/1", &[]);
    let reason = |index: usize| records[index].failure.clone().map(|failure| failure.reason);
    assert_eq!((records.len(), reason(2), reason(6)), (7, None, None));
    assert_eq!(reason(3).unwrap(), "wrk: no space");
    assert_eq!(reason(4).unwrap(), "it panicked: a bug");
    assert!(reason(5).unwrap().starts_with("needs 100000 cores, this machine has "));
    assert!(records[5].failure.as_ref().unwrap().unavailable);
    assert!(!calls.contains(&"5a".to_owned()));
    // Its time is up at once: measured once after the warm-up, and reported.
    assert_eq!(records[6].repeats, 1);
    assert_eq!(records[6].cut.as_deref(), Some("1 of 3 repeats: time was up"));
    // A limit of the run is one of each point.
    let (limited, _) = run_within(Some(Duration::ZERO), 2, "1/1", &[]);
    assert_eq!(limited.iter().map(|record| record.repeats).collect::<Vec<_>>(), [1, 1]);
    let document = conclude(&job(7).0, Effort::Quick, &records).unwrap();
    assert_eq!(document.outcome.fields()["points"], 4);
    let notes = document.outcome.notes.join("\n");
    assert!(notes.contains("not measured: number=3: wrk: no space"), "{notes}");
    assert!(notes.contains("cut short: number=6: 1 of 3 repeats"), "{notes}");
    assert_eq!(conclude(&job(7).0, Effort::Quick, &records[3..6]), None);
}

#[test]
fn only_missing_and_failed_points_are_measured_again() {
    let (first, _) = run_with(7, "1/1", &[]);
    let (again, calls) = run_with(7, "1/1", &first[1..]);
    let points: Vec<_> = again.iter().map(|record| record.point.as_str()).collect();
    assert_eq!(points, ["number=0", "number=3", "number=4", "number=5"]);
    assert_eq!(calls.iter().filter(|call| call.starts_with('0')).count(), 8);
    assert!(!calls.iter().any(|call| call.starts_with(['1', '2', '6'])), "{calls:?}");
}

#[test]
fn shards_measure_each_point_once() {
    let (whole, _) = run_with(3, "1/1", &[]);
    let parts = ["1/2", "2/2"].map(|shard| run_with(3, shard, &[]).0);
    assert_eq!(parts.each_ref().map(Vec::len), [2, 1]);
    let seeds = |records: &[Record]| -> BTreeSet<_> {
        records.iter().map(|record| (record.point.clone(), record.seed)).collect()
    };
    assert_eq!(seeds(&whole), seeds(&parts.concat()));
    assert_eq!(seeds(&whole).len(), 3);
    for wrong in ["0/2", "3/2", "1", "a/b", "1/0"] {
        assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
    }
}

/// A point, and two that double its result. Each measurement gives another number.
struct Doubling(Arc<Mutex<Vec<String>>>, bool);

impl Experiment for Doubling {
    fn points(&self, _: Effort) -> Vec<Spec> {
        let behind =
            |number| Spec { follows: Some("part=first".into()), ..Spec::at("number", number) };
        vec![Spec::at("part", "first"), behind(1), behind(2)]
    }

    fn measure(&self, spec: &Spec, _: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut calls = self.0.lock().unwrap();
        calls.push(spec.name());
        if self.1 {
            return Err(LabError::Unavailable("no server".into()));
        }
        let first = run.followed.map(|found| found.values(0, "value")[0] * 2.0);
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("value", first.unwrap_or(calls.len() as f64 + 10.0)));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        let values = points.iter().map(|found| found.values(0, "value")[0]).collect();
        outcome.add(Figure::of("values", values));
        outcome
    }
}

fn doubled(shard: &str, there: &[Record], fails: bool) -> (Vec<Record>, Vec<String>) {
    let calls = Arc::default();
    let experiment = Box::new(Doubling(Arc::clone(&calls), fails));
    let job = Job { kind: Kind::Experiment, name: "doubling".into(), experiment };
    let shard = shard.parse().unwrap();
    let options =
        Options { effort: Effort::Quick, shard, limit: None, revision: "r", timelines: None };
    let mut records = Vec::new();
    let mut keep = |record| {
        records.push(record);
        Ok(())
    };
    run(&[job], &options, there, &mut keep, &mut |_, _| {}).unwrap();
    let calls = calls.lock().unwrap().clone();
    (records, calls)
}

fn value(record: &Record) -> f64 {
    record.sides[0].outcome.median("value").unwrap()
}

#[test]
fn followed_points_are_reused_from_an_interrupted_run() {
    let (whole, _) = doubled("1/1", &[], false);
    assert_eq!(whole.iter().map(value).collect::<Vec<_>>(), [11.0, 22.0, 22.0]);
    let (rest, calls) = doubled("1/1", &whole[..2], false);
    assert_eq!(calls, ["number=2"]);
    assert_eq!(value(&rest[0]), 22.0);
    // On another machine the result differs, so it is measured there again.
    let mut other = whole[..2].to_vec();
    other.iter_mut().for_each(|record| record.facts.machine += "-other");
    assert_eq!(doubled("1/1", &other, false).1, ["part=first", "number=2"]);
    // Even then, only if something is missing.
    let mut all = whole.clone();
    all.iter_mut().for_each(|record| record.facts.machine += "-other");
    assert!(doubled("1/1", &all, false).1.is_empty());
    let experiment = Doubling(Arc::default(), false);
    let found = outcome("doubling", &experiment, Effort::Quick, &mut |_, _| {}).unwrap();
    assert_eq!(found.whole.figures[0].values, [11.0, 22.0, 22.0]);
}

#[test]
fn shards_measure_followed_points() {
    let calls = ["1/3", "2/3", "3/3"].map(|shard| doubled(shard, &[], false).1);
    assert_eq!(calls[0], ["part=first"]);
    assert_eq!(calls[1], ["part=first", "number=1"]);
    assert_eq!(calls[2], ["part=first", "number=2"]);
}

#[test]
fn followers_of_failed_points_are_not_measured() {
    let (records, calls) = doubled("1/1", &[], true);
    assert_eq!(calls, ["part=first"]);
    let reasons: Vec<_> =
        records.iter().map(|record| record.failure.as_ref().unwrap().reason.as_str()).collect();
    let wanted = "it follows part=first, which was not measured";
    assert_eq!(reasons, ["no server", wanted, wanted]);
    // Both are tried again.
    let (again, _) = doubled("1/1", &records, false);
    assert_eq!(again.iter().map(value).collect::<Vec<_>>(), [11.0, 22.0, 22.0]);
}
