//! Twenty tasks under EDF, and under EDF with its slack filled segment by segment.
//!
//! Task sets are random, about half of the tasks periodic. Each set runs under every scheduler with
//! the same work: the time of segment `s` of a task's `n`th invocation depends only on (set, task,
//! n, s). An aperiodic task thinks for a while after each invocation, then is ready again.
//!
//! - `edf`: a task runs to completion, so an aperiodic one runs if all of it fits before the   next
//!   release.
//! - `edf-plus` with each slack policy: it runs by segments, if they fit.
//! - `edf-background`: it runs whenever no periodic task is ready, whether it fits or not. Its
//!   gain, and the deadlines it misses, show the purpose of tickets.
//! - `event`: all tasks run in the order in which they became ready, each to completion.
//!
//! Then the same with *tight* sets, whose periods are shorter by `tight`: there an invocation of an
//! aperiodic task lasts about as long as the shortest period, and filling the slack without
//! checking tickets delays others. And with *matched* sets, which do under EDF what the paper's did:
//! `matched.rs`. Only these give figures to compare with the paper's.
//!
//! "Response" has two readings in the paper, and both are given: from ready to the end of the
//! invocation, and the time between the starts of two invocations ("response times, in-between
//! invocations").
//!
//! Sets are drawn again if admission refuses them under EDF, or if a task runs fewer than `fewest`
//! times in 10 s under EDF, since its response time would be meaningless. Both are counted. Both
//! favour EDF, and `edf-background` too: if a whole invocation often fits a gap, it is short
//! against every period, and careless scheduling misses few deadlines. Tight sets are not drawn
//! again for a starved task.
//!
//! Source: NICOS 4.6, "`<EDF>`++ Evaluation", figures 2 and 3. The paper gives neither periods nor
//! bounds; those here are ours, chosen so that plain EDF leaves about as much idle time as the
//! paper's did; each is a setting. `event` is the dispatcher of 4.5.

mod background;
mod draw;
mod matched;
mod processor;
mod sums;

use background::EdfBackground;
use draw::TaskSet;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::Moments;
use picnic_lab::experiment::{
    Effort, Experiment, LabError, MeasuredPoint, Run as LabRun, Spec, World,
};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::paper::{Row, number, row};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_os::admission::{Order, admit};
use picnic_os::path::PacketPath;
use picnic_os::schedulers::edf::Edf;
use picnic_os::schedulers::event::Event;
use picnic_os::schedulers::plus::Plus;
use picnic_os::schedulers::slack::Choice;
use picnic_os::schedulers::{Discipline, Scheduler};
use processor::{Real, Run, Virtual};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use sums::{Drawn, Sum, raw};

/// Virtual time that a set runs under EDF to find starved tasks, in milliseconds.
const JUDGED_MS: u64 = 10_000;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Seed of all random choices
    pub seed: u64,
    /// Task sets [default: 200 in the sim world, 3 on the host; fewer for --quick]
    pub sets: Option<u32>,
    /// Duration of each set under each scheduler, in milliseconds [default: 10000 and 1000]
    pub milliseconds: Option<u64>,
    /// Tasks of a set
    pub tasks: u32,
    /// Lowest share of the processor that the periodic tasks' bounds take
    pub periodic_load_low: f64,
    /// Highest share of the processor that the periodic tasks' bounds take
    pub periodic_load_high: f64,
    /// Shortest period, in microseconds
    pub period_low_us: u64,
    /// Longest period, in microseconds
    pub period_high_us: u64,
    /// Fewest segments in an invocation of an aperiodic task
    pub segments_low: u32,
    /// Most segments in an invocation of an aperiodic task
    pub segments_high: u32,
    /// Shortest bound of such a segment, in microseconds
    pub segment_low_us: u64,
    /// Longest bound of such a segment, in microseconds
    pub segment_high_us: u64,
    /// Mean think time of a task between invocations, in microseconds
    pub think_us: u64,
    /// Invocations under EDF below which a task counts as starved, and its set is drawn again
    pub fewest: u64,
    /// Least share of its bound that a segment takes; the most is all of it
    pub least_share: f64,
    /// Divisor of the periods for tight sets, a quarter as many; 0: none
    pub tight: f64,
    /// Sets fitted to the paper's under EDF; 0: none [default: 20 in the sim world, else 0]
    pub matched: Option<u32>,
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
            matched: None,
        }
    }
}

impl Settings {
    fn sets(&self, effort: Effort) -> u32 {
        let usual = match self.world {
            World::Sim => effort.of(50, 200, 1000),
            World::Host => effort.of(1, 3, 10),
        };
        self.sets.unwrap_or(usual)
    }

    fn matched(&self, effort: Effort) -> u32 {
        let usual = if self.world == World::Sim { effort.of(5, 20, 100) } else { 0 };
        self.matched.unwrap_or(usual)
    }

    /// Sets of a point.
    fn block(&self) -> u32 {
        if self.world == World::Sim { 10 } else { 1 }
    }

    fn milliseconds(&self) -> u64 {
        self.milliseconds.unwrap_or(if self.world == World::Sim { 10_000 } else { 1_000 })
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let range = |key: &str, found: f64, low: f64, high: f64| {
            if (low..=high).contains(&found) {
                return Ok(());
            }
            Err(ConfigError::new(key, format!("found {found}, allowed: {low} to {high}")))
        };
        range("sets", f64::from(self.sets.unwrap_or(1)), 1.0, 100_000.0)?;
        range("matched", f64::from(self.matched.unwrap_or(0)), 0.0, 100_000.0)?;
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

    /// The settings of tight sets; none if none are run.
    fn tightened(&self) -> Option<Settings> {
        let shorter = |period_us: u64| (period_us as f64 / self.tight).round() as u64;
        (self.tight != 0.0).then(|| Settings {
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
        Some("sets = 3\nmilliseconds = 500\nmatched = 1".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(NicosEdf(settings)))
    }
}

impl Reproduces for NicosEdf {
    const PAPER: Row = row(
        "NICOS figs. 2, 3",
        "20 tasks, about half periodic: EDF against EDF++",
        &[
            number("idle under EDF", 0.286, Unit::Fraction).ours("matched_edf_idle_fraction"),
            number("between invocations under EDF, task A", 22.9, Unit::Milliseconds)
                .ours("matched_edf_a_between_ms"),
            number("between invocations under EDF, task B", 26.0, Unit::Milliseconds)
                .ours("matched_edf_b_between_ms"),
            number("idle under EDF++", 0.147, Unit::Fraction).ours("matched_idle_fraction"),
            number("throughput", 0.20, Unit::Change).ours("matched_throughput_gain"),
            number("between invocations, task A", -0.53, Unit::Change)
                .ours("matched_a_between_change"),
            number("between invocations, task B", -0.57, Unit::Change)
                .ours("matched_b_between_change"),
            number("from ready to end, task A", -0.53, Unit::Change)
                .ours("matched_a_response_change"),
            number("from ready to end, task B", -0.57, Unit::Change)
                .ours("matched_b_response_change"),
            number("from ready to end, periodic tasks", 0.03, Unit::Change)
                .ours("matched_periodic_response_change"),
        ],
    )
    .corrected(
        "\"response\" reads as time between invocations; both readings are predicted. A task that \
     starts as regularly as B cannot start twice as often",
    );
}

/// A scheduler under test.
#[derive(Clone, Copy, Debug)]
struct Contender {
    scheduler: &'static str,
    slack: Option<Choice>,
}

/// EDF first: the others are compared with it. The second determines the overall figures.
const CONTENDERS: [Contender; 6] = [
    Contender { scheduler: "edf", slack: None },
    Contender { scheduler: "edf-plus", slack: Some(Choice::FirstFit) },
    Contender { scheduler: "edf-plus", slack: Some(Choice::BestFit) },
    Contender { scheduler: "edf-plus", slack: Some(Choice::Lookahead) },
    Contender { scheduler: "event", slack: None },
    Contender { scheduler: "edf-background", slack: None },
];

impl Contender {
    fn point(self) -> Point {
        Point::at("scheduler", self.scheduler).and("slack", self.slack.map(Choice::name))
    }

    /// In words.
    fn name(self) -> String {
        [self.scheduler]
            .into_iter()
            .chain(self.slack.map(Choice::name))
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn make(self) -> Box<dyn Scheduler> {
        match (self.scheduler, self.slack) {
            ("edf-background", _) => Box::new(EdfBackground),
            ("event", _) => Box::new(Event),
            (_, Some(choice)) => Box::new(Plus::new(Edf, choice.policy())),
            _ => Box::new(Edf),
        }
    }
}

/// Periods as in the settings, or tight; or fitted to the paper's sets.
const KINDS: [&str; 3] = ["usual", "tight", "matched"];

impl Experiment for NicosEdf {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let settings = &self.0;
        let sets = settings.sets(effort);
        let tight = if settings.tight == 0.0 { 0 } else { sets.div_ceil(4) };
        let mut points = Vec::new();
        for (kind, sets) in KINDS.into_iter().zip([sets, tight, settings.matched(effort)]) {
            for first in (0..sets).step_by(settings.block() as usize) {
                let count = settings.block().min(sets - first);
                points.push(Spec::at("sets", kind).and("first", first).and("count", count));
            }
        }
        points
    }

    fn measure(&self, point: &Spec, _: &str, lab: &mut LabRun<'_>) -> Result<Outcome, LabError> {
        let tight = (point.word("sets") == KINDS[1]).then(|| self.0.tightened()).flatten();
        let settings = tight.as_ref().unwrap_or(&self.0);
        let milliseconds = settings.milliseconds();
        if settings.world == World::Sim {
            let run = &mut |who, set: &_| in_virtual_time(who, set, milliseconds);
            return drawn(settings, point, run, lab);
        }
        // An unpinned thread would be moved, and a thread that shares its core would be delayed.
        let core = picnic_machine::topology::cores().last().copied().unwrap_or(0);
        let run = &mut |contender: Contender, set: &Arc<TaskSet>| {
            let set = set.clone();
            let body =
                move || processor::run(&mut Real::new(), contender.make(), &set, milliseconds);
            let thread = picnic_machine::threads::spawn_pinned("nicos-edf".into(), core, body);
            let joined = thread.map_err(|error| LabError::Failed(error.to_string()))?.join();
            let panicked = |_| LabError::Failed("the executor's thread panicked".into());
            joined.map_err(panicked)?.0
        };
        drawn(settings, point, run, lab)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut kinds: [Drawn; KINDS.len()] = Default::default();
        for found in points {
            let kind = KINDS.iter().position(|kind| *kind == found.spec.word("sets"));
            kinds[kind.unwrap_or(0)].add(found);
        }
        outcome(&self.0, kinds)
    }

    fn plots(&self) -> Vec<Plot> {
        let gain = Plot::bars("throughput gained", "matched_schedulers", "throughput_gain");
        let gain = gain.marked("paper: +20 %", None, 0.20);
        [gain].into_iter().chain(matched::plots()).collect()
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

/// Runs a point's sets. A value of each figure per set.
fn drawn(
    settings: &Settings,
    point: &Spec,
    run: &mut RunOn<'_>,
    lab: &mut LabRun<'_>,
) -> Result<Outcome, LabError> {
    let count = point.number("count") as usize;
    let is_matched = point.word("sets") == KINDS[2];
    let (mut refused, mut starved, mut unlike, mut draw) = (0u64, 0u64, 0u64, 0u64);
    let mut tasks = Vec::new();
    // Points use distant seeds, so that their draws are independent.
    let first = (point.number("first") as u64) << 24;
    let mut runs: [Vec<Run>; CONTENDERS.len()] = Default::default();
    while runs[0].len() < count {
        lab.progress(runs[0].len() as f64 / count as f64, "task sets");
        if draw > 1000 + 100 * count as u64 {
            return Err(LabError::Failed(format!(
                "of {draw} sets drawn, admission refused {refused}, {starved} left a task \
                 starved under EDF and {unlike} were unlike the paper's: lower the load, or \
                 shorten the segments"
            )));
        }
        let mut set = Arc::new(TaskSet::draw(settings, first + draw));
        draw += 1;
        let path = PacketPath::default();
        let demands = set.demands();
        let order = Order::EarliestDeadline;
        if admit(&demands, &path, order, Discipline::Completion).is_err() {
            refused += 1;
            continue;
        }
        // Checked in virtual time, so that both worlds run the same sets.
        let judge = &mut |set: &_| in_virtual_time(CONTENDERS[0], set, JUDGED_MS);
        if is_matched {
            let Some(fitted) = matched::fit((*set).clone(), judge)? else {
                unlike += 1;
                continue;
            };
            set = fitted.set;
            tasks.push(fitted.tasks);
        } else if judge(&set)?.fewest_of_others < settings.fewest {
            starved += 1;
            continue;
        }
        for (contender, runs) in CONTENDERS.iter().zip(&mut runs) {
            runs.push(run(*contender, &set)?);
        }
    }
    let mut outcome = Outcome::of(settings.world.source());
    outcome.add(Figure::count("sets_drawn", draw));
    outcome.add(Figure::count("sets_refused", refused));
    outcome.add(Figure::count("sets_starved", starved));
    outcome.add(Figure::count("sets_unlike", unlike));
    let mut series = outcome.series("schedulers");
    for (contender, runs) in CONTENDERS.iter().zip(&runs) {
        series.push(raw(contender.point(), runs));
    }
    if is_matched {
        matched::add(&mut outcome, &runs, &tasks, point.number("first") == 0.0);
    }
    Ok(outcome)
}

/// Reports the results of sets of one kind: each scheduler's gain and cost, and the starts of
/// invocations, which are the other reading of the response. Returns the figures of the whole run,
/// for the second of [`CONTENDERS`]. For fitted sets these are predictions.
fn judge(outcome: &mut Outcome, sums: [Sum; CONTENDERS.len()], kind: &str) -> Vec<Figure> {
    let mut whole = Vec::new();
    for (index, (contender, sum)) in CONTENDERS.iter().zip(sums).enumerate() {
        let gain = Figure::of("throughput_gain", sum.gains).called("gain");
        let change = Figure::of("response_change", sum.changes).called("change");
        let between_change =
            Figure::of("between_invocations_change", sum.between_changes).called("change");
        if kind == "matched_" && index < 2 {
            let idle = Figure::of("idle_fraction", sum.idles);
            let periodic = Figure::of("periodic_response_change", sum.periodic_changes);
            if index == 0 {
                let keyed = idle.keyed("matched_edf_idle_fraction");
                whole.push(matched::fitted(keyed, "idle under EDF", "time that all others think"));
            } else {
                for (figure, label) in
                    [(idle, "idle"), (gain.clone(), "throughput"), (periodic, "periodic")]
                {
                    let keyed = format!("matched_{}", figure.key);
                    whole.push(matched::predicted(figure.keyed(&keyed), label));
                }
            }
        } else if index == 1 {
            whole.push(gain.clone().called("throughput, edf-plus"));
            whole.push(change.clone().called("mean response, edf-plus"));
            whole.push(between_change.clone().in_detail());
        }
        let count = |key: &str, count: u64| Figure::count(key, count).in_detail();
        let gained = contender
            .point()
            .with(Figure::one("idle_fraction", sum.idle.mean()).in_detail())
            .with(Figure::one("busy_fraction", sum.busy.mean()).called("busy"))
            .with(gain);
        let gained = with_moments(gained, "response", "response", sum.response).with(change);
        let gained = with_moments(gained, "periodic_response", "periodic", sum.periodic_response)
            .with(Figure::count("deadline_misses", sum.misses).called("missed"))
            .with(count("deadline_misses_that_edf_kept", sum.missed_that_edf_kept))
            .with(count("overruns", sum.overruns))
            .with(count("invocations", sum.invocations));
        let starts = contender.point();
        let starts = with_moments(starts, "between_invocations", "between", sum.between)
            .with(between_change)
            .with(Figure::one("release_jitter_mean_ms", sum.jitter.mean()).called("jitter"))
            .with(Figure::one("release_jitter_max_ms", sum.longest_jitter_ms).called("longest"));
        outcome.series(&format!("{kind}schedulers")).push(gained);
        outcome.series(&format!("{kind}invocation_starts")).push(starts);
    }
    whole
}

/// With mean and standard deviation of a time.
fn with_moments(point: Point, key: &str, label: &str, of: Moments) -> Point {
    let deviation = Figure::one(&format!("{key}_stddev_ms"), of.standard_deviation());
    let mean = Figure::one(&format!("{key}_mean_ms"), of.mean()).called(label);
    point.with(mean).with(deviation.in_detail())
}

fn outcome(settings: &Settings, [usual, tight, matched]: [Drawn; KINDS.len()]) -> Outcome {
    let mut outcome = Outcome::with_settings(settings.world.source(), settings);
    let Drawn { sums, sets, draw, refused, starved, .. } = usual;
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
        sets,
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
    if let Some(kind) = settings.tightened().filter(|_| tight.sets != 0) {
        judge(&mut outcome, tight.sums, "tight_");
        outcome.add(Figure::count("tight_sets_drawn", tight.draw).in_detail());
        outcome.add(Figure::count("tight_sets_refused", tight.refused).in_detail());
        outcome.note(format!(
            "tight: {} sets with periods from {} to {} ms, while an invocation of a task that is \
             not periodic takes up to {:.1} ms",
            tight.sets,
            kind.period_low_us as f64 / 1e3,
            kind.period_high_us as f64 / 1e3,
            f64::from(kind.segments_high) * kind.segment_high_us as f64 / 1e3
        ));
    }
    if matched.sets != 0 {
        for figure in judge(&mut outcome, matched.sums, "matched_") {
            outcome.add(figure);
        }
        matched::conclude(&mut outcome, &matched.tasks);
        outcome.add(Figure::count("matched_sets", matched.sets).in_detail());
        outcome.add(Figure::count("matched_sets_unlike", matched.unlike).in_detail());
        outcome.note(format!("matched: {} sets drawn, {} of them fit", matched.draw, matched.sets));
    }
    outcome.note(
        "the paper: idle 28.6 % to 14.7 %, throughput +20 %, response -53 % and -57 % (it reads as \
         time between invocations), periodic +3 %",
    );
    outcome
}
