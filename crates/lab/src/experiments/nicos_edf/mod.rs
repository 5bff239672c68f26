//! Twenty tasks under EDF, and under EDF with its slack filled segment by segment.
//!
//! Task sets are drawn at random, about half of the tasks periodic. Each set runs
//! under every scheduler with the same work: the time that segment `s` of a task's
//! `n`th invocation takes is drawn from (set, task, n, s) alone. A task that is not
//! periodic thinks for a while after each invocation, then is ready again.
//!
//! - `edf`: a task runs to completion, so one that is not periodic runs if all of it
//!   fits before the next release.
//! - `edf-plus` with each slack policy: it runs by segments, those that fit.
//! - `edf-background`: it runs whenever no periodic task is ready, fit or not. What this
//!   gains, and what deadlines it costs, shows what the tickets are for.
//!
//! Then the same with *tight* sets, whose periods are shorter by `tight`: there an invocation
//! of a task that is not periodic lasts about as long as the shortest period, and filling the
//! slack without a look at tickets makes others late.
//!
//! "Response" has two readings in the paper, and both are given: from ready to the end of the
//! invocation, and the time between the starts of two invocations ("response times, in-between
//! invocations").
//!
//! Sets are drawn again if admission refuses them under EDF, or if a task gets to run
//! fewer than `fewest` times in 10 s under EDF: its response time would say nothing. Both are
//! counted. Both favour EDF, and `edf-background` too: where a whole invocation often fits
//! a gap, it is short against every period, and its carelessness costs few deadlines. Tight sets
//! are not drawn again for a task that starves.
//!
//! Source: NICOS 4.6, "`<EDF>`++ Evaluation", figures 2 and 3. The paper gives neither
//! periods nor bounds; those here are ours, chosen so that plain EDF leaves about as much idle
//! as the paper's did, and every one of them is a setting.

mod background;
mod draw;
mod processor;

use crate::compare::Moments;
use crate::experiment::{Experiment, LabError, Run as LabRun, World};
use crate::outcome::{Figure, Outcome, Point};
use background::EdfBackground;
use draw::TaskSet;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_os::admission::{Order, admit};
use picnic_os::path::PacketPath;
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::plus::Plus;
use picnic_os::schedulers::slack::Choice;
use picnic_os::schedulers::{Discipline, Scheduler};
use processor::{Real, Run, Virtual};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// How long a set runs in virtual time to see which tasks get to run under EDF, in milliseconds.
const JUDGED_MS: u64 = 10_000;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Seed of all that is drawn
    pub seed: u64,
    /// Task sets; 200 in the sim world and 3 on the host, if not said
    pub sets: Option<u32>,
    /// How long each set runs under each scheduler, in milliseconds; 10000 and 1000, if not said
    pub milliseconds: Option<u64>,
    /// Tasks of a set
    pub tasks: u32,
    /// Share of the processor the periodic tasks' bounds take, lowest
    pub periodic_load_low: f64,
    /// Share of the processor the periodic tasks' bounds take, highest
    pub periodic_load_high: f64,
    /// Shortest period, in microseconds
    pub period_low_us: u64,
    /// Longest period, in microseconds
    pub period_high_us: u64,
    /// Fewest segments in an invocation of a task that is not periodic
    pub segments_low: u32,
    /// Most segments in an invocation of a task that is not periodic
    pub segments_high: u32,
    /// Shortest bound of such a segment, in microseconds
    pub segment_low_us: u64,
    /// Longest bound of such a segment, in microseconds
    pub segment_high_us: u64,
    /// Mean of the time a task thinks between invocations, in microseconds
    pub think_us: u64,
    /// Invocations under EDF below which a task counts as starved, and its set is drawn again
    pub fewest: u64,
    /// Least share of its bound that a segment takes; the most is all of it
    pub least_share: f64,
    /// By what the periods of tight sets are divided, of which a quarter as many are run; 0: none
    pub tight: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            seed: 1,
            sets: None,
            milliseconds: None,
            tasks: 20,
            periodic_load_low: 0.4,
            periodic_load_high: 0.6,
            period_low_us: 10_000,
            period_high_us: 100_000,
            segments_low: 2,
            segments_high: 8,
            segment_low_us: 200,
            segment_high_us: 1_200,
            think_us: 40_000,
            fewest: 10,
            least_share: 0.5,
            tight: 2.5,
        }
    }
}

impl Settings {
    fn sets(&self) -> u32 {
        self.sets.unwrap_or(if self.world == World::Sim { 200 } else { 3 })
    }

    fn milliseconds(&self) -> u64 {
        self.milliseconds.unwrap_or(if self.world == World::Sim { 10_000 } else { 1_000 })
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let range = |key: &str, found: f64, low: f64, high: f64| {
            if (low..=high).contains(&found) {
                return Ok(());
            }
            Err(ConfigError::new(key, format!("found {found}, allowed is {low} to {high}")))
        };
        range("sets", f64::from(self.sets()), 1.0, 100_000.0)?;
        range("milliseconds", self.milliseconds() as f64, 10.0, 1e7)?;
        range("tasks", f64::from(self.tasks), 2.0, 64.0)?;
        range("periodic_load_low", self.periodic_load_low, 0.0, 1.0)?;
        range("periodic_load_high", self.periodic_load_high, self.periodic_load_low, 1.0)?;
        range("period_low_us", self.period_low_us as f64, 10.0, 1e8)?;
        range("period_high_us", self.period_high_us as f64, self.period_low_us as f64, 1e8)?;
        range("segments_low", f64::from(self.segments_low), 1.0, 64.0)?;
        range("segments_high", f64::from(self.segments_high), f64::from(self.segments_low), 64.0)?;
        range("segment_low_us", self.segment_low_us as f64, 1.0, 1e7)?;
        range("segment_high_us", self.segment_high_us as f64, self.segment_low_us as f64, 1e7)?;
        range("think_us", self.think_us as f64, 0.0, 1e9)?;
        range("least_share", self.least_share, 0.0, 1.0)?;
        range("tight", self.tight, 0.0, 100.0)?;
        if self.tight != 0.0 {
            let shortest_us = self.period_low_us as f64 / self.tight;
            range("period_low_us / tight", shortest_us, 10.0, 1e8)?;
        }
        Ok(())
    }

    /// Those of tight sets; none if none are to be run.
    fn tightened(&self) -> Option<Settings> {
        let shorter = |period_us: u64| (period_us as f64 / self.tight).round() as u64;
        (self.tight != 0.0).then(|| Settings {
            sets: Some(self.sets().div_ceil(4)),
            period_low_us: shorter(self.period_low_us),
            period_high_us: shorter(self.period_high_us),
            fewest: 0,
            ..self.clone()
        })
    }
}

/// The experiment.
#[derive(Debug)]
pub struct NicosEdf(Settings);

impl Component for NicosEdf {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "nicos-edf";
    const HELP: &'static str = "20 tasks: EDF against EDF++ and its slack policies";

    fn example(_: &Path) -> Option<String> {
        Some("sets = 3\nmilliseconds = 500".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(NicosEdf(settings)))
    }
}

/// A scheduler under test.
#[derive(Clone, Copy, Debug)]
struct Contender {
    scheduler: &'static str,
    slack: Option<Choice>,
}

/// EDF first: the others are compared with it. Then the one that the overall figures are of.
const CONTENDERS: [Contender; 5] = [
    Contender { scheduler: "edf", slack: None },
    Contender { scheduler: "edf-plus", slack: Some(Choice::FirstFit) },
    Contender { scheduler: "edf-plus", slack: Some(Choice::BestFit) },
    Contender { scheduler: "edf-plus", slack: Some(Choice::Lookahead) },
    Contender { scheduler: "edf-background", slack: None },
];

impl Contender {
    fn make(self) -> Box<dyn Scheduler> {
        match (self.scheduler, self.slack) {
            ("edf-background", _) => Box::new(EdfBackground),
            (_, Some(choice)) => Box::new(Plus::new(Edf, choice.policy())),
            _ => Box::new(Edf),
        }
    }
}

/// The figures of one scheduler over all sets.
#[derive(Default)]
struct Sum {
    busy: Moments,
    idle: Moments,
    response: Moments,
    between: Moments,
    periodic_response: Moments,
    jitter: Moments,
    longest_jitter_ms: f64,
    misses: u64,
    missed_that_edf_kept: u64,
    overruns: u64,
    invocations: u64,
    gains: Vec<f64>,
    changes: Vec<f64>,
    between_changes: Vec<f64>,
}

/// The figures of sets of one kind.
struct Drawn {
    sums: [Sum; CONTENDERS.len()],
    draw: u64,
    refused: u64,
    starved: u64,
}

impl Experiment for NicosEdf {
    fn run(&self, lab: &mut LabRun<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let milliseconds = settings.milliseconds();
        if settings.world == World::Sim {
            return self.run_on(&mut |who, set| in_virtual_time(who, set, milliseconds), lab);
        }
        // One that is not pinned would be moved about, and one that is not alone held up.
        let core = picnic_machine::topology::cores().last().copied().unwrap_or(0);
        self.run_on(
            &mut |contender, set| {
                let set = set.clone();
                let body =
                    move || processor::run(&mut Real::new(), contender.make(), &set, milliseconds);
                let thread = picnic_machine::threads::spawn_pinned("nicos-edf".into(), core, body);
                let joined = thread.map_err(|error| LabError::Failed(error.to_string()))?.join();
                let panicked = |_| LabError::Failed("the executor's thread panicked".into());
                joined.map_err(panicked)?.0
            },
            lab,
        )
    }
}

fn in_virtual_time(
    contender: Contender,
    set: &Arc<TaskSet>,
    milliseconds: u64,
) -> Result<Run, LabError> {
    processor::run(&mut Virtual::default(), contender.make(), set, milliseconds)
}

/// Runs a set under a scheduler, in one of the worlds.
type RunOn<'a> = dyn FnMut(Contender, &Arc<TaskSet>) -> Result<Run, LabError> + 'a;

impl NicosEdf {
    fn run_on(&self, run: &mut RunOn<'_>, lab: &mut LabRun<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let tight = settings.tightened();
        let all = f64::from(settings.sets() + tight.as_ref().map_or(0, Settings::sets));
        let usual =
            drawn(settings, run, &mut |done| lab.progress(f64::from(done) / all, "task sets"))?;
        let tight = match tight {
            Some(kind) => {
                let found = drawn(&kind, run, &mut |done| {
                    lab.progress(f64::from(settings.sets() + done) / all, "tight task sets");
                })?;
                Some((kind, found))
            }
            None => None,
        };
        lab.progress(1.0, "task sets");
        Ok(outcome(settings, usual, tight))
    }
}

/// Runs the sets of these settings; `progress` is told how many are done.
fn drawn(
    settings: &Settings,
    run: &mut RunOn<'_>,
    progress: &mut dyn FnMut(u32),
) -> Result<Drawn, LabError> {
    let mut sums: [Sum; CONTENDERS.len()] = Default::default();
    let (mut refused, mut starved, mut draw) = (0u64, 0u64, 0u64);
    let mut done = 0;
    while done < settings.sets() {
        progress(done);
        if draw > 1000 + 100 * u64::from(settings.sets()) {
            return Err(LabError::Failed(format!(
                "of {draw} sets drawn, admission refused {refused} and {starved} left a \
                 task starved under EDF: lower the load, or shorten the segments"
            )));
        }
        let set = Arc::new(TaskSet::draw(settings, draw));
        draw += 1;
        let path = PacketPath::default();
        let demands = set.demands();
        let order = Order::EarliestDeadline;
        if admit(&demands, &path, order, Discipline::Completion).is_err() {
            refused += 1;
            continue;
        }
        // Judged in virtual time, so that both worlds run the same sets.
        let judged = in_virtual_time(CONTENDERS[0], &set, JUDGED_MS)?;
        if judged.fewest_of_others < settings.fewest {
            starved += 1;
            continue;
        }
        let plain = run(CONTENDERS[0], &set)?;
        for (contender, sum) in CONTENDERS[1..].iter().zip(&mut sums[1..]) {
            sum.add(&run(*contender, &set)?, &plain);
        }
        sums[0].add(&plain, &plain);
        done += 1;
    }
    Ok(Drawn { sums, draw, refused, starved })
}

impl Sum {
    fn add(&mut self, run: &Run, plain: &Run) {
        self.busy.add(run.busy_fraction);
        self.idle.add(1.0 - run.busy_fraction);
        self.misses += run.misses;
        self.missed_that_edf_kept += run.misses.saturating_sub(plain.misses);
        self.overruns += run.overruns;
        self.invocations += run.invocations;
        self.response.merge(run.response_ms);
        self.between.merge(run.between_ms);
        self.jitter.merge(run.jitter_ms);
        self.longest_jitter_ms = self.longest_jitter_ms.max(run.longest_jitter_ms);
        self.periodic_response.merge(run.periodic_response_ms);
        self.gains.push(run.busy_fraction / plain.busy_fraction - 1.0);
        // Under EDF nothing may have run at all: then there is nothing to compare with.
        if let (Some(mean), Some(plain)) = (run.response_ms.mean(), plain.response_ms.mean()) {
            self.changes.push(mean / plain - 1.0);
        }
        if let (Some(mean), Some(plain)) = (run.between_ms.mean(), plain.between_ms.mean()) {
            self.between_changes.push(mean / plain - 1.0);
        }
    }
}

/// Tells what sets of one kind came to: of each scheduler what it gains and what that costs, and
/// when invocations start, which is the other reading of the response. Gives the figures of the
/// whole run, which are those of [`CONTENDERS`]' second.
fn judge(outcome: &mut Outcome, sums: [Sum; CONTENDERS.len()], kind: &str) -> Vec<Figure> {
    let mut whole = Vec::new();
    for (index, (contender, sum)) in CONTENDERS.iter().zip(sums).enumerate() {
        let gain = Figure::of("throughput_gain", sum.gains).called("gain");
        let change = Figure::of("response_change", sum.changes).called("change");
        let between_change =
            Figure::of("between_invocations_change", sum.between_changes).called("change");
        if index == 1 {
            whole.push(gain.clone().called("throughput, edf-plus"));
            whole.push(change.clone().called("mean response, edf-plus"));
            whole.push(between_change.clone().in_detail());
        }
        let one = |key: &str, value: Option<f64>| Figure::one(key, value);
        let point = || {
            let slack = contender.slack.map(Choice::name);
            Point::at("scheduler", contender.scheduler).and("slack", slack)
        };
        let (periodic, between) = (sum.periodic_response, sum.between);
        let gained = point()
            .with(one("idle_fraction", sum.idle.mean()).in_detail())
            .with(one("busy_fraction", sum.busy.mean()).called("busy"))
            .with(gain)
            .with(one("response_mean_ms", sum.response.mean()).called("response"))
            .with(one("response_stddev_ms", sum.response.standard_deviation()).in_detail())
            .with(change)
            .with(one("periodic_response_mean_ms", periodic.mean()).called("periodic"))
            .with(one("periodic_response_stddev_ms", periodic.standard_deviation()).in_detail())
            .with(Figure::count("deadline_misses", sum.misses).called("missed"))
            .with(
                Figure::count("deadline_misses_that_edf_kept", sum.missed_that_edf_kept)
                    .in_detail(),
            )
            .with(Figure::count("overruns", sum.overruns).in_detail())
            .with(Figure::count("invocations", sum.invocations).in_detail());
        let starts = point()
            .with(one("between_invocations_mean_ms", between.mean()).called("between"))
            .with(one("between_invocations_stddev_ms", between.standard_deviation()).in_detail())
            .with(between_change)
            .with(one("release_jitter_mean_ms", sum.jitter.mean()).called("jitter"))
            .with(Figure::one("release_jitter_max_ms", sum.longest_jitter_ms).called("longest"));
        outcome.series(&format!("{kind}schedulers")).push(gained);
        outcome.series(&format!("{kind}invocation_starts")).push(starts);
    }
    whole
}

fn outcome(settings: &Settings, usual: Drawn, tight: Option<(Settings, Drawn)>) -> Outcome {
    let mut outcome = Outcome::of(settings.world.source());
    outcome.settings = serde_json::to_value(settings).unwrap_or_default();
    let Drawn { sums, draw, refused, starved } = usual;
    for figure in judge(&mut outcome, sums, "") {
        outcome.add(figure);
    }
    outcome.add(Figure::count("sets_drawn", draw).in_detail());
    outcome.add(Figure::count("sets_refused", refused).in_detail());
    outcome.add(Figure::count("sets_starved", starved).in_detail());
    outcome.note(format!(
        "{}: {} sets of {} tasks, {} ms each; gain in throughput and change of the mean response \
         are medians over sets, against edf",
        settings.world.source().label(),
        settings.sets(),
        settings.tasks,
        settings.milliseconds()
    ));
    outcome.note(format!(
        "{draw} sets drawn: {refused} refused by admission under edf, {starved} drawn again \
         because a task ran fewer than {} times in 10 s under edf",
        settings.fewest
    ));
    outcome.note(
        "response: from ready to the end of the invocation; between: from the start of an \
         invocation to that of the next; tasks that are not periodic",
    );
    outcome.note(
        "periodic: response of those that are; jitter, longest: from their release to their start",
    );
    if let Some((kind, tight)) = tight {
        judge(&mut outcome, tight.sums, "tight_");
        outcome.add(Figure::count("tight_sets_drawn", tight.draw).in_detail());
        outcome.add(Figure::count("tight_sets_refused", tight.refused).in_detail());
        outcome.note(format!(
            "tight: {} sets with periods from {} to {} ms, while an invocation of a task that is \
             not periodic takes up to {:.1} ms",
            kind.sets(),
            kind.period_low_us as f64 / 1e3,
            kind.period_high_us as f64 / 1e3,
            f64::from(kind.segments_high) * kind.segment_high_us as f64 / 1e3
        ));
    }
    outcome.note(
        "the paper: idle 28.6 % to 14.7 %, throughput +20 %, response -53 % and -57 % (it reads as \
         time between invocations), periodic +3 %",
    );
    outcome
}
