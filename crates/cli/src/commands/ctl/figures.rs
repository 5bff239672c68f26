//! `picnic ctl stats` and `latency`: figures of a running card, since the start or of a window.
//!
//! A window of some seconds is the difference of two reports, computed here. The card itself
//! computes the window since `--reset`: every client sees the same, and counters continue.

use crate::control::Connection;
use crate::output::{self, count, nanoseconds};
use crate::summary;
use anyhow::Context;
use clap::Args;
use picnic_control::latency::{self, merged};
use picnic_control::report::Report;
use picnic_machine::signals;
use serde_json::{Value, json};
use std::time::Duration;

/// The time window.
#[derive(Debug, Args)]
pub(super) struct WindowArgs {
    /// Over the next seconds, 0.001 to 86400 [default: since the start]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "since_reset")]
    over: Option<Duration>,
    /// Since the last `picnic ctl stats --reset`
    #[arg(long)]
    since_reset: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatsArgs {
    #[command(flatten)]
    window: WindowArgs,
    /// Let the card remember its current figures, for --since-reset
    #[arg(long, conflicts_with_all = ["over", "since_reset"])]
    reset: bool,
}

#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    window: WindowArgs,
    /// Only this queue
    #[arg(long, value_name = "NUMBER")]
    queue: Option<u16>,
    /// The percentiles in the format of HdrHistogram's tools, in nanoseconds
    #[arg(long)]
    hgrm: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let allowed = "allowed: a number of seconds, 0.001 to 86400";
    let seconds: f64 = text.parse().map_err(|_| allowed)?;
    match (0.001..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(allowed.into()),
    }
}

/// The figures of a running card, with its latencies and its functions' own counters.
pub(crate) fn report(connection: &mut Connection, since_reset: bool) -> anyhow::Result<Report> {
    let params = json!({ "latencies": true, "counters": true, "since_reset": since_reset });
    let stats = connection.call("card.stats", params)?;
    serde_json::from_value(stats).context("the card runs another version with other figures")
}

impl WindowArgs {
    fn report(&self, connection: &mut Connection) -> anyhow::Result<Report> {
        let first = report(connection, self.since_reset)?;
        let Some(over) = self.over else { return Ok(first) };
        signals::stop_flag()?;
        signals::sleep(over)?;
        Ok(report(connection, false)?.since(&first))
    }

    fn in_words(&self, name: &str) -> String {
        match self.over {
            Some(over) => format!("{name}, {} s of it", over.as_secs_f64()),
            None if self.since_reset => format!("{name}, since its figures were reset"),
            None => name.to_owned(),
        }
    }
}

pub(super) fn stats(
    args: &StatsArgs,
    connection: &mut Connection,
) -> anyhow::Result<(Value, String)> {
    if args.reset {
        let result = connection.call("card.reset", json!({}))?;
        let text = "figures reset; `picnic ctl stats --since-reset` shows them\n";
        return Ok((result, text.into()));
    }
    let mut report = args.window.report(connection)?;
    let name = report.about.as_ref().map_or("card", |about| &about.card);
    let text = summary::text(&args.window.in_words(name), &report);
    report.latencies = None;
    Ok((serde_json::to_value(&report)?, text))
}

pub(super) fn latencies(
    args: &LatencyArgs,
    connection: &mut Connection,
) -> anyhow::Result<(Value, String)> {
    let report = args.window.report(connection)?;
    let mut parts = report.latencies.unwrap_or_default();
    if let Some(queue) = args.queue {
        let queues = parts.len();
        parts.retain(|part| part.queue == queue);
        anyhow::ensure!(
            !parts.is_empty(),
            "--queue: found {queue}, allowed: 0 to {}",
            queues.saturating_sub(1)
        );
    }
    let result = json!({
        "about": report.about, "times": report.times, "duration_s": report.duration_s,
        "latencies": parts,
    });
    if args.hgrm {
        return Ok((result, latency::text(&merged(&parts))));
    }
    let row = |name: String, histogram: &_| {
        let report = picnic_control::report::LatencyReport::of(histogram);
        let values = [report.p50, report.p99, report.p999, report.mean].map(nanoseconds);
        [vec![name, count(histogram.len())], values.to_vec()].concat()
    };
    let mut rows: Vec<_> =
        parts.iter().map(|part| row(part.queue.to_string(), &part.histogram())).collect();
    if parts.len() > 1 {
        rows.push(row("all".into(), &merged(&parts)));
    }
    let columns = output::columns("queue|#recorded|#p50|#p99|#p999|#mean");
    let hint = "\nFrom wire to target routine, one packet in 16.\n";
    Ok((result, output::table(&columns, rows) + hint))
}
