//! `picnic run`: a card, from start to clean stop.

use crate::commands::filter::of_card;
use crate::live::Live;
use crate::registries::{registries, sections};
use crate::{output, summary};
use clap::Args;
use picnic_confine as confine;
use picnic_control::captures::Captures;
use picnic_control::error::RunError;
use picnic_control::instrument::{TraceReport, Tracing};
use picnic_control::report::Report;
use picnic_control::{Doors, Server};
use picnic_core::config::{CardFile, Setting};
use picnic_core::hook::Hooks;
use picnic_host::run::{self, Running};
use picnic_lab::card::CardArgs;
use picnic_machine::isolate;
use picnic_machine::signals;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the built-in card runs unless told otherwise.
const DEMONSTRATION: Duration = Duration::from_secs(5);
/// The shortest time between two looks of the live table.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);
/// The longest time until Ctrl-C or the end of the wires is noticed.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic run                              the built-in demonstration card, five seconds
  picnic run my.toml                      until its wires finish or Ctrl-C
  picnic run my.toml --duration 60 --json
  picnic run --set host.queues=2 --set wire[0].flows=16

Ctrl-C, SIGTERM, SIGQUIT, SIGHUP and a closed terminal stop the card cleanly, all rings flushed;
a second Ctrl-C kills it.
Exit codes: 0 good; 1 failed, also if the ledger does not balance; 2 usage or card file.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    card: CardArgs,
    /// Stop after this long, or when the wires finish before [default: 5 without a card file,
    /// else none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Time between two looks of the live table, 0.05 at least
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    interval: Duration,
    /// Keep interrupts and other processes off the borrowed core meanwhile (root): the same as
    /// --set isolation.apply=true
    #[arg(long)]
    isolate: bool,
    /// No live table
    #[arg(long, short)]
    quiet: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a TraceReport>,
}

/// A time above zero, in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    const ALLOWED: &str = "allowed is a number of seconds, 0.001 to 1000000000";
    let seconds: f64 = text.parse().map_err(|_| ALLOWED)?;
    if (0.001..=1e9).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(ALLOWED.into())
    }
}

pub(crate) fn run(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let isolate = args.isolate.then(|| Setting::switch("isolation.apply", true));
    let card = args.card.load(&sections(), isolate.into_iter().collect())?;
    let duration = args.duration.or_else(|| args.card.path().is_none().then_some(DEMONSTRATION));
    let stop = signals::stop_flag()?;
    // Before any thread is started, all of which inherit it.
    let unforbidden = confine::forbid_new().err();
    confine::ask_for();
    if card.has("trace") {
        // A trace's file is made anew: not for a card that cannot start.
        run::check_from(&card, &registries())?;
    }
    let filters = of_card(&card)?;
    // Before anything is touched: a card of this name may be running.
    let doors = Doors::open(&card)?;
    let tracing = Tracing::of(&card)?;
    let captures = Captures::default();
    let hooks = Hooks::none().with(tracing.clone()).with(doors.are_any().then(|| captures.clone()));
    let mut running = run::start_filtered(&card, &registries(), &hooks, filters)?;
    let server = serve(doors, &mut running, &card, captures)?;
    // Behind its threads, which would inherit it.
    confine::set_up(confine::Role::Main, isolate::needed_to_restore(&card));
    let live = match args.quiet {
        true => None,
        false => Live::new(&running.view, &running.placement, json),
    };
    let interval = args.interval.max(SHORTEST_INTERVAL);
    wait(&running, duration, &stop, server.as_ref(), live, interval);
    if let Some(server) = &server {
        server.card_stops();
    }
    let report = running.stop();
    // Clients see the socket go when the card has stopped.
    drop(server);
    let mut report = report?;
    let trace = tracing.finish();
    report.notes.extend(unforbidden);
    report.notes.extend(confine::notes());
    let printed = match json {
        true => output::print_json(&Figures { report: &report, trace: trace.as_ref() }),
        false => output::print(&summary::text(&card.card.name, &report, trace.as_ref())),
    };
    // Told even if nobody reads the figures.
    summary::verdict(&report, trace.as_ref())?;
    printed
}

/// Serves the card's socket, if its file asks for one.
fn serve(
    doors: Doors,
    running: &mut Running,
    file: &CardFile,
    captures: Captures,
) -> Result<Option<Server>, RunError> {
    if !doors.are_any() {
        return Ok(None);
    }
    let Some(access) = running.access() else { return Ok(None) };
    Server::start(doors, access, file, captures).map(Some)
}

/// Returns when the run is to end.
fn wait(
    running: &Running,
    duration: Option<Duration>,
    stop: &AtomicBool,
    server: Option<&Server>,
    mut live: Option<Live>,
    interval: Duration,
) {
    let mut next_draw = interval;
    loop {
        let elapsed = running.elapsed();
        let is_over = duration.is_some_and(|duration| elapsed >= duration);
        let is_asked = stop.load(Ordering::Acquire) || server.is_some_and(Server::stop_is_asked);
        if is_over || is_asked || running.is_finished() || !running.is_alive() {
            break;
        }
        if let Some(live) = live.as_mut().filter(|_| elapsed >= next_draw) {
            live.draw(elapsed);
            next_draw = elapsed + interval;
        }
        let left = duration.map_or(LOOK, |duration| duration.saturating_sub(elapsed));
        let until_draw = next_draw.saturating_sub(elapsed);
        let until_draw = if live.is_some() { until_draw } else { LOOK };
        std::thread::sleep(LOOK.min(left).min(until_draw));
    }
    if let Some(live) = &mut live {
        live.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_positive_and_not_endless() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["0", "-1", "nan", "inf", "1e10", "soon", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
