//! Runs experiments point by point, and says what became of each.
//!
//! Sides of a point take turns, repeat by repeat, and each repeat reverses their order, so that
//! what drifts hits all alike. A point that fails is a line with its reason, and the others go on.
//! A point's seed is of its name alone, so that shards give what one run gives.
//!
//! ```
//! use picnic_lab::experiment::Effort;
//! use picnic_lab::registry::{EXPERIMENTS, build};
//! use picnic_lab::runner;
//! let entry = EXPERIMENTS.iter().find(|entry| entry.name == "nicos-firewall").unwrap();
//! let settings = [("rules", "16"), ("milliseconds", "1")].map(|(k, v)| (k.into(), v.into()));
//! let experiment = build(entry, &settings)?;
//! let outcome = runner::outcome(entry.name, &*experiment, Effort::Usual, &mut |_, _| {})?;
//! assert_eq!(outcome.series[0].points.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::compare::order;
use crate::document::{Document, Kind};
use crate::experiment::{Effort, Experiment, Found, LabError, Run, Spec};
use crate::facts::{Facts, facts};
use crate::meter::{Load, Meter};
use crate::outcome::{Outcome, Source};
use picnic_machine::signals;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::{Instant, SystemTime};

/// An experiment that is to be run.
pub struct Job {
    /// Experiment or benchmark.
    pub kind: Kind,
    /// Its name in the registry.
    pub name: String,
    /// Built from its settings.
    pub experiment: Box<dyn Experiment>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Which part of all points: `2/5` is the second of five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// From 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Shard { number: 1, of: 1 }
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("found \"{text}\", allowed: I/N with I from 1 to N");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let shard = Shard {
            number: number.parse().map_err(|_| wrong())?,
            of: of.parse().map_err(|_| wrong())?,
        };
        if (1..=shard.of).contains(&shard.number) { Ok(shard) } else { Err(wrong()) }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// What one side of a point gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideFound {
    /// Its name.
    pub side: String,
    /// All repeats in each figure.
    pub outcome: Outcome,
}

/// Why a point was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For people.
    pub reason: String,
    /// This machine cannot do it; else it went wrong.
    pub unavailable: bool,
}

/// What became of a point: a line of a run's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The experiment's name.
    pub experiment: String,
    /// The point's name, unique in its experiment.
    pub point: String,
    /// What is varied, by key.
    pub labels: Map<String, Value>,
    /// What it was seeded with.
    pub seed: u64,
    /// What each side gave; empty if it failed.
    pub sides: Vec<SideFound>,
    /// How often each side was measured.
    pub repeats: u32,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Why it was measured less often than asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// When it began, in seconds since 1970.
    pub started_s: u64,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What the machine did meanwhile.
    pub load: Load,
    /// The machine and the build.
    pub facts: Facts,
}

impl Record {
    /// Why its figures say less than they should; none if they do not, or are a model's.
    pub fn noise(&self) -> Option<String> {
        if self.is_measured() { self.load.noise() } else { None }
    }

    /// Whether some of its figures are no model's.
    pub fn is_measured(&self) -> bool {
        self.sides.iter().any(|side| side.outcome.source() == Source::Measured)
    }
}

/// How a run is done.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// How much is spent.
    pub effort: Effort,
    /// Which part.
    pub shard: Shard,
    /// What this program was built from.
    pub revision: &'a str,
}

/// Who is told the share done, and what is at work.
pub type Watch<'a> = dyn FnMut(f64, &str) + 'a;

/// Runs the points of all jobs that are of this shard and not `done` yet, and gives each record to
/// `keep` at once.
///
/// # Errors
/// `keep` failed, or a stop was asked for.
pub fn run(
    jobs: &[Job],
    options: &Options<'_>,
    done: &dyn Fn(&str, &str) -> bool,
    keep: &mut dyn FnMut(Record) -> io::Result<()>,
    watch: &mut Watch<'_>,
) -> anyhow::Result<()> {
    let all = jobs.iter().flat_map(|job| {
        job.experiment.points(options.effort).into_iter().map(move |spec| (job, spec))
    });
    let mine =
        all.enumerate().filter(|(place, _)| place % options.shard.of + 1 == options.shard.number);
    let wanted: Vec<_> =
        mine.map(|(_, point)| point).filter(|(job, spec)| !done(&job.name, &spec.name())).collect();
    let count = wanted.len().max(1) as f64;
    for (index, (job, spec)) in wanted.iter().enumerate() {
        let before = index as f64;
        let name = spec.name();
        let mut tell = |share: f64, what: &str| {
            watch((before + share) / count, &format!("{} {name}: {what}", job.name));
        };
        keep(record(job, spec, options, &mut tell)?)?;
    }
    watch(1.0, "done");
    Ok(())
}

/// Measures a point; only a request to stop is an error.
fn record(
    job: &Job,
    spec: &Spec,
    options: &Options<'_>,
    watch: &mut Watch<'_>,
) -> Result<Record, signals::Interrupted> {
    let seed = seed(&job.name, &spec.name());
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (started, meter) = (Instant::now(), Meter::start());
    let measured = catch_unwind(AssertUnwindSafe(|| {
        measure(&*job.experiment, spec, options.effort, seed, watch)
    }));
    let measured = measured.unwrap_or_else(|_| Err(LabError::Failed("it panicked: a bug".into())));
    let mut record = Record {
        experiment: job.name.clone(),
        point: spec.name(),
        labels: spec.labels.clone(),
        seed,
        sides: Vec::new(),
        repeats: 0,
        failure: None,
        cut: None,
        started_s: since_1970.map_or(0, |time| time.as_secs()),
        took_s: started.elapsed().as_millis() as f64 / 1e3,
        load: meter.stop(),
        facts: facts(options.revision),
    };
    match measured {
        Ok(turns) => {
            let sides = spec.sides.iter().cloned().zip(turns.sides);
            record.sides = sides.map(|(side, outcome)| SideFound { side, outcome }).collect();
            record.repeats = turns.repeats;
            record.cut = (turns.repeats < spec.repeats)
                .then(|| format!("{} of {} repeats: time was up", turns.repeats, spec.repeats));
        }
        Err(error) => {
            if let LabError::Other(error) = &error
                && let Some(interrupted) = error.downcast_ref::<signals::Interrupted>()
            {
                return Err(*interrupted);
            }
            record.failure = Some(failure(&error));
        }
    }
    Ok(record)
}

fn failure(error: &LabError) -> Failure {
    match error {
        LabError::Unavailable(reason) => Failure { reason: reason.clone(), unavailable: true },
        LabError::Other(error) => Failure { reason: format!("{error:#}"), unavailable: false },
        error => Failure { reason: error.to_string(), unavailable: false },
    }
}

/// All sides of a point, and how many turns each had.
struct Turns {
    sides: Vec<Outcome>,
    repeats: u32,
}

/// Measures all sides in turns: 1 2 3, 3 2 1, 1 2 3, ...
fn measure(
    experiment: &dyn Experiment,
    spec: &Spec,
    effort: Effort,
    seed: u64,
    watch: &mut Watch<'_>,
) -> Result<Turns, LabError> {
    let (needed, cores) = (experiment.cores(spec), picnic_machine::topology::cores().len());
    if needed > cores {
        let message = format!("needs {needed} cores, this machine has {cores}");
        return Err(LabError::Unavailable(message));
    }
    let warm_ups = u32::from(spec.warm_up);
    let turns = f64::from(spec.repeats + warm_ups) * spec.sides.len() as f64;
    let mut found: Vec<Option<Outcome>> = vec![None; spec.sides.len()];
    let (start, mut turn, mut repeats) = (Instant::now(), 0.0, 0);
    for round in 0..spec.repeats + warm_ups {
        if repeats != 0 && start.elapsed() > spec.limit {
            break;
        }
        for side in order(round as usize, spec.sides.len()) {
            signals::sleep(std::time::Duration::ZERO).map_err(anyhow::Error::from)?;
            let name = &spec.sides[side];
            watch(turn / turns, name);
            let mut tell = |share: f64, what: &str| watch((turn + share) / turns, what);
            let given = experiment.measure(spec, name, &mut Run::new(effort, seed, &mut tell))?;
            turn += 1.0;
            if round < warm_ups {
                continue;
            }
            match &mut found[side] {
                Some(outcome) => outcome.repeat(given),
                empty => *empty = Some(given),
            }
        }
        repeats += u32::from(round >= warm_ups);
    }
    Ok(Turns { sides: found.into_iter().flatten().collect(), repeats })
}

/// Runs a single experiment, and keeps nothing.
///
/// # Errors
/// The first that a point gives.
pub fn outcome(
    name: &str,
    experiment: &dyn Experiment,
    effort: Effort,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LabError> {
    let specs = experiment.points(effort);
    let count = specs.len().max(1) as f64;
    let mut found = Vec::new();
    for (index, spec) in specs.into_iter().enumerate() {
        let seed = seed(name, &spec.name());
        let mut tell = |share: f64, what: &str| watch((index as f64 + share) / count, what);
        let sides = measure(experiment, &spec, effort, seed, &mut tell)?.sides;
        found.push(Found { spec, sides });
    }
    watch(1.0, "done");
    Ok(experiment.conclude(&found))
}

/// What a job's records come to; none if no point was measured. Says which points are missing,
/// which were cut short, and which are noisy.
pub fn conclude(job: &Job, effort: Effort, records: &[Record]) -> Option<Document> {
    let own: Vec<_> = records.iter().filter(|record| record.experiment == job.name).collect();
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for spec in job.experiment.points(effort) {
        let name = spec.name();
        // The last one counts: what failed may have been tried again.
        match own.iter().rev().find(|record| record.point == name) {
            Some(record) => match &record.failure {
                Some(failure) => missing.push((name, failure.reason.clone())),
                None => {
                    let sides = record.sides.iter().map(|side| side.outcome.clone()).collect();
                    found.push(Found { spec, sides });
                }
            },
            None => missing.push((name, "not measured yet".into())),
        }
    }
    let first = own.iter().find(|record| record.failure.is_none())?;
    let mut outcome = job.experiment.conclude(&found);
    for (names, reason) in by_reason(missing) {
        outcome.note(format!("not measured: {names}: {reason}"));
    }
    for record in own.iter().filter(|record| record.failure.is_none()) {
        let noise = record.noise().map(|noise| format!("noisy: {}: {noise}", record.point));
        let cut = record.cut.as_ref().map(|cut| format!("cut short: {}: {cut}", record.point));
        noise.into_iter().chain(cut).for_each(|note| outcome.note(note));
    }
    Some(Document {
        kind: job.kind,
        name: job.name.clone(),
        outcome,
        took_s: own.iter().map(|record| record.took_s).sum(),
        facts: first.facts.clone(),
    })
}

/// Names of points with the same reason together.
pub fn by_reason(missing: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, reason) in missing {
        match found.iter_mut().find(|(_, other)| *other == reason) {
            Some((names, _)) => *names = format!("{names}; {name}"),
            None => found.push((name, reason)),
        }
    }
    found
}

/// A seed from names: FNV-1a (Fowler, Noll, Vo), which is the same on every machine.
fn seed(experiment: &str, point: &str) -> u64 {
    let bytes = experiment.bytes().chain([0]).chain(point.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Figure;
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// Points that note what is done with them. The fourth of each seven fails, the fifth panics,
    /// the sixth needs more cores than there are.
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

        fn conclude(&self, points: &[Found]) -> Outcome {
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
        let (job, calls) = job(points);
        let shard = shard.parse().unwrap();
        let options = Options { effort: Effort::Quick, shard, revision: "r" };
        let done = |_: &str, point: &str| {
            there.iter().any(|record| record.point == point && record.failure.is_none())
        };
        let (mut records, mut last) = (Vec::new(), 0.0);
        let mut keep = |record| {
            records.push(record);
            Ok(())
        };
        let mut watch = |share: f64, what: &str| {
            assert!(share >= last && share <= 1.0 && !what.is_empty(), "{share} {what}");
            last = share;
        };
        run(&[job], &options, &done, &mut keep, &mut watch).unwrap();
        assert_eq!(last, 1.0);
        let calls = calls.lock().unwrap().clone();
        (records, calls)
    }

    #[test]
    fn sides_take_turns_in_reversed_order_after_a_warm_up() {
        let (records, calls) = run_with(1, "1/1", &[]);
        assert_eq!(calls, ["0a", "0b", "0b", "0a", "0a", "0b", "0b", "0a"]);
        let [record] = &records[..] else { panic!("{records:?}") };
        assert_eq!((record.repeats, record.sides.len()), (3, 2));
        let values = |side: usize| record.sides[side].outcome.whole.figures[1].values.clone();
        assert_eq!((values(0), values(1)), (vec![4.0, 5.0, 8.0], vec![3.0, 6.0, 7.0]));
    }

    #[test]
    fn a_point_that_fails_has_a_reason_and_the_others_go_on() {
        let (records, calls) = run_with(7, "1/1", &[]);
        let reason = |index: usize| records[index].failure.clone().map(|failure| failure.reason);
        assert_eq!((records.len(), reason(2), reason(6)), (7, None, None));
        assert_eq!(reason(3).unwrap(), "wrk: no space");
        assert_eq!(reason(4).unwrap(), "it panicked: a bug");
        assert!(reason(5).unwrap().starts_with("needs 100000 cores, this machine has "));
        assert!(records[5].failure.as_ref().unwrap().unavailable);
        assert!(!calls.contains(&"5a".to_owned()));
        // Its time is up at once: measured once behind the warm-up, and said so.
        assert_eq!(records[6].repeats, 1);
        assert_eq!(records[6].cut.as_deref(), Some("1 of 3 repeats: time was up"));
        let document = conclude(&job(7).0, Effort::Quick, &records).unwrap();
        assert_eq!(document.outcome.fields()["points"], 4);
        let notes = document.outcome.notes.join("\n");
        assert!(notes.contains("not measured: number=3: wrk: no space"), "{notes}");
        assert!(notes.contains("cut short: number=6: 1 of 3 repeats"), "{notes}");
        assert_eq!(conclude(&job(7).0, Effort::Quick, &records[3..6]), None);
    }

    #[test]
    fn only_what_is_missing_or_has_failed_is_measured_again() {
        let (first, _) = run_with(7, "1/1", &[]);
        let (again, calls) = run_with(7, "1/1", &first[1..]);
        let points: Vec<_> = again.iter().map(|record| record.point.as_str()).collect();
        assert_eq!(points, ["number=0", "number=3", "number=4", "number=5"]);
        assert_eq!(calls.iter().filter(|call| call.starts_with('0')).count(), 8);
        assert!(!calls.iter().any(|call| call.starts_with(['1', '2', '6'])), "{calls:?}");
    }

    #[test]
    fn shards_measure_each_point_once_with_the_seed_of_its_name() {
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
}
