//! `picnic run`: a card, from start to clean stop.

use super::net;
use crate::live::Live;
use crate::neighbours;
use crate::registries::sections;
use crate::timeline::{Recording, timeline};
use crate::wcet::first;
use crate::world::{SeedArgs, WorldArgs};
use crate::{output, summary};
use clap::{Args, ValueEnum};
use picnic_control::watch::Watch;
use picnic_control::{Launch, ServedCard};
use picnic_core::config::Setting;
use picnic_core::stop::Stop;
use picnic_lab::card::CardArgs;
use picnic_machine::signals;
use picnic_os::config::TaskProgress;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Default duration of the built-in card.
const DEMONSTRATION: Duration = Duration::from_secs(5);
/// Shortest interval of the live table.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
/// Longest delay until Ctrl-C or the end of the wires is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// How long tasks may continue after the wires have finished before they are named.
const HOLDUP: Duration = Duration::from_millis(500);

/// When a run stops on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Until {
    /// The wires have finished and no task has anything to run
    Idle,
    /// The wires have finished; tasks that still run are stopped
    Wires,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic run                              the built-in demonstration card, five seconds
  picnic run my.toml                      until its wires and tasks finish, or Ctrl-C
  picnic run my.toml --until wires        stop tasks that run when the wires finish
  picnic run my.toml --duration 60 --json
  picnic run my.toml --watch              reload a function when it is rebuilt
  picnic run --set host.queues=2 --set wire[0].flows=16
  picnic run my.toml --engine kernel
  picnic run my.toml --world sim --seed 7 --duration 0.01 --trace events.txt
  picnic run my.toml --duration 0.2 --timeline run.json    open it at ui.perfetto.dev

Ctrl-C, SIGTERM, SIGQUIT, SIGHUP and a closed terminal stop the card cleanly, all rings flushed;
a second Ctrl-C kills it.
Exit codes: 0 good; 1 failed, also if the ledger does not balance; 2 usage or card file.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    card: CardArgs,
    #[command(flatten)]
    world: WorldArgs,
    #[command(flatten)]
    seed: SeedArgs,
    /// Stop after this time, unless wires and tasks finish first [default: 5 for the built-in card,
    /// otherwise none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// When to stop without a signal or a duration
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Until::Idle)]
    until: Until,
    /// Refresh interval of the live table, 0.05 or more
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    interval: Duration,
    /// Keep interrupts and other processes off the borrowed core (root): same as --set
    /// isolation.apply=true
    #[arg(long)]
    isolate: bool,
    /// Apply changes of the card file's chains and their shared objects while the card runs
    #[arg(long, requires = "card")]
    watch: bool,
    /// Record what each core does, for a trace viewer such as Perfetto
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Do not show the live table
    #[arg(long, short)]
    quiet: bool,
}

/// A time above zero, in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    const ALLOWED: &str = "allowed: a number of seconds, 0.001 to 1000000000";
    let seconds: f64 = text.parse().map_err(|_| ALLOWED)?;
    if (0.001..=1e9).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(ALLOWED.into())
    }
}

pub(crate) fn run(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let isolate = args.isolate.then(|| Setting::switch("isolation.apply", true));
    let settings: Vec<_> = isolate.into_iter().chain(args.seed.setting()).collect();
    let (mut card, mut faults) = args.card.examine(&sections(), settings.clone())?;
    let (mut measured, mut built_in) = (None, None);
    if faults.is_empty() && args.world.is_host() && first::is_wanted(&card) {
        let profile;
        (profile, measured) = first::kept_or_measured();
        let settings = settings.into_iter().chain(profile).collect();
        let under_profile;
        (under_profile, faults) = args.card.examine(&sections(), settings)?;
        built_in = Some(std::mem::replace(&mut card, under_profile));
    }
    let duration = args.duration.or_else(|| args.card.path().is_none().then_some(DEMONSTRATION));
    let launch = Launch::new(&card, args.world.registries());
    launch.judge(faults)?;
    if launch.executor()?.is_served() {
        net::enter(&card)?;
    }
    let stop = signals::stop_flag()?;
    let mut launch = args.world.launch(&card)?.stopped_by(Stop::by(stop.clone()));
    if args.watch {
        if !launch.executor()?.is_served() {
            return Err(args.world.refuse("--watch", &launch));
        }
        let card = args.card.clone();
        launch = launch.watched(Watch::new(move || card.load(&sections(), Vec::new())));
    }
    args.seed.claim_events(&args.world, &launch)?;
    let timeline = args.timeline.as_ref().map(|_| timeline());
    if let (Some(path), Some(timeline)) = (&args.timeline, &timeline) {
        args.world.claim_timeline(path, &launch)?;
        launch = launch.recorded(timeline);
    }
    let shared = match launch.executor()?.place(&launch) {
        Ok(placement) => neighbours::warnings(&launch, &placement, None)?,
        // The start reports it.
        Err(_) => Vec::new(),
    };
    let mut running = launch.start().map_err(|error| {
        let built_in = built_in.as_ref().map(|card| Launch::new(card, args.world.registries()));
        first::hinted(net::hinted(error, &card), built_in.as_ref())
    })?;
    if let Some(text) = measured {
        output::tell(format_args!("{text}"));
    }
    for warning in running.view().warnings.iter().chain(&shared) {
        output::tell(format_args!("picnic: warning: {warning}"));
    }
    // Only now: a card that cannot start has not overwritten anything.
    if let Some(events) = args.seed.events(Stop::by(stop.clone()))? {
        running.tell_events(events);
    }
    let recording = match (&args.timeline, timeline) {
        (Some(path), Some(timeline)) => Some(Recording::create(path, timeline)?),
        _ => None,
    };
    let live = match args.quiet {
        true => None,
        false => Live::new(running.monitor(), json),
    };
    let interval = args.interval.max(SHORTEST_INTERVAL);
    wait(&mut running, &Ending { duration, until: args.until, stop: &stop }, live, interval);
    let mut report = running.stop()?;
    report.notes.extend(shared);
    let recorded = recording.map_or(Ok(None), Recording::write);
    report.notes.extend(recorded.as_ref().ok().cloned().flatten());
    // For a running card, `picnic ctl latency` has them.
    report.latencies = None;
    let printed = output::show(&report, json, || summary::text(&card.card.name, &report));
    // Reported even if no one reads the figures.
    summary::verdict(&report)?;
    recorded?;
    printed
}

/// The end of a run.
struct Ending<'a> {
    duration: Option<Duration>,
    until: Until,
    stop: &'a AtomicBool,
}

/// Returns when the run is to end.
fn wait(running: &mut ServedCard, ending: &Ending<'_>, mut live: Option<Live>, interval: Duration) {
    let Ending { duration, until, stop } = *ending;
    let mut next_draw = interval;
    let mut holdup = Holdup::default();
    loop {
        let elapsed = running.elapsed();
        let is_time = duration.is_some_and(|duration| elapsed >= duration);
        let wires_are_finished = running.wires_are_finished();
        let is_enough = until == Until::Wires && wires_are_finished;
        if is_time || is_enough || stop.load(Ordering::Acquire) || running.is_over() {
            break;
        }
        tell(running, live.as_mut());
        if wires_are_finished && let Some(line) = holdup.look(elapsed, running.tasks()) {
            say(live.as_mut(), &line);
        }
        if let Some(live) = live.as_mut().filter(|_| elapsed >= next_draw) {
            live.draw(elapsed);
            next_draw = elapsed + interval;
        }
        let left = duration.map_or(LOOK, |duration| duration.saturating_sub(elapsed));
        let until_draw = next_draw.saturating_sub(elapsed);
        let until_draw = if live.is_some() { until_draw } else { LOOK };
        running.pass(LOOK.min(left).min(until_draw));
    }
    if let Some(live) = &mut live {
        live.erase();
    }
    tell(running, None);
}

/// Finds the tasks that keep a card running after its wires have finished.
#[derive(Debug, Default)]
struct Holdup {
    /// When the wires were first seen finished, and the tasks' progress then.
    first: Option<(Duration, Vec<TaskProgress>)>,
    is_told: bool,
}

impl Holdup {
    /// Checks the tasks of a card whose wires have finished; names the running ones once.
    fn look(&mut self, elapsed: Duration, tasks: Vec<TaskProgress>) -> Option<String> {
        let Some((since, first)) = &self.first else {
            self.first = Some((elapsed, tasks));
            return None;
        };
        if self.is_told || elapsed < *since + HOLDUP {
            return None;
        }
        self.is_told = true;
        let goes_on = |(now, was): &(&TaskProgress, &TaskProgress)| now.segments > was.segments;
        let going: Vec<_> = tasks.iter().zip(first).filter(goes_on).map(|(now, _)| now).collect();
        // Only a task that never waits keeps the core on its own.
        let endless = going.iter().filter(|task| !task.is_periodic);
        let named = match endless.clone().count() {
            0 => names(going.iter().copied()),
            _ => names(endless.copied()),
        };
        Some(format!(
            "the wires have finished, but {named} to run: Ctrl-C stops the card; next time: \
             --until wires"
        ))
    }
}

/// These tasks with their verb.
fn names<'t>(tasks: impl Iterator<Item = &'t TaskProgress>) -> String {
    let names: Vec<_> = tasks.map(|task| format!("\"{}\"", task.name)).collect();
    match &*names {
        [] => "a task that was created later continues".into(),
        [name] => format!("task {name} continues"),
        names => format!("tasks {} continue", names.join(", ")),
    }
}

/// Prints messages about watched files.
fn tell(running: &ServedCard, mut live: Option<&mut Live>) {
    running.said().iter().for_each(|line| say(live.as_deref_mut(), line));
}

/// Prints a line instead of the live table.
fn say(live: Option<&mut Live>, line: &str) {
    if let Some(live) = live {
        live.erase();
    }
    output::tell(format_args!("picnic: {line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_running_after_the_wires_are_named_once() {
        let task = |name: &str, is_periodic, segments| TaskProgress {
            name: name.into(),
            is_periodic,
            segments,
        };
        let at = Duration::from_millis;
        let mut holdup = Holdup::default();
        let look = |holdup: &mut Holdup, ms, [beat, load, rest]: [u64; 3]| {
            let tasks = vec![
                task("beat", true, beat),
                task("load", false, load),
                task("rest", false, rest),
            ];
            holdup.look(at(ms), tasks)
        };
        assert_eq!(look(&mut holdup, 100, [1, 1, 5]), None);
        assert_eq!(look(&mut holdup, 500, [2, 90, 5]), None);
        let told = look(&mut holdup, 600, [3, 99, 5]).unwrap();
        assert!(told.contains("but task \"load\" continues to run"), "{told}");
        assert!(told.ends_with("--until wires"), "{told}");
        assert_eq!(look(&mut holdup, 900, [3, 99, 5]), None);

        let mut holdup = Holdup::default();
        assert_eq!(look(&mut holdup, 0, [1, 1, 5]), None);
        let told = look(&mut holdup, 600, [3, 1, 5]).unwrap();
        assert!(told.contains("task \"beat\" continues"), "{told}");
    }

    #[test]
    fn times_are_positive_and_not_endless() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["0", "-1", "nan", "inf", "1e10", "soon", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
