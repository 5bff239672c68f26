//! Results of web server runs: gains by pair, curves by load, and void points.

use super::PART;
use super::systems::SYSTEMS;
use crate::columns::{self, Column, Shares, shown};
use crate::gains::{self, Gain, PointSide, SHARED, is_shared};
use crate::workloads::run::WorkloadResult;
use picnic_lab::experiment::MeasuredPoint;
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use std::collections::BTreeMap;

/// Why the kernel's own counts give no shares.
const NO_SHARES: &str = "shares of driver and locks: unavailable, the kernel counts time in softirqs as a \
     whole, with the stack; world = \"sim\" predicts them";
/// A core that works for more than this share of the time is full.
const FULL: f64 = 0.98;

/// The figures of a run.
pub(super) fn figures(ran: &WorkloadResult) -> Outcome {
    let mut outcome = Outcome::of(Source::Measured);
    let (client, card) = (&ran.client, &ran.card);
    let seconds = client.seconds.max(1e-6);
    outcome.add(Figure::one("requests_per_second", client.per_second()));
    outcome.add(Figure::one("offered_per_second", client.offered as f64 / seconds));
    outcome.add(Figure::count("client_full", client.client_full));
    outcome.add(Figure::count("client_late", client.client_late));
    outcome.add(Figure::one("client_limit_share", f64::from(u8::from(client.is_at_limit()))));
    outcome.add(Figure::one("payload_bps", client.bytes as f64 * 8.0 / seconds));
    outcome.add(Figure::one("request_p50_ns", client.p50_ns as f64));
    outcome.add(Figure::one("acknowledgements_share", ran.acknowledgements_share));
    outcome.add(Figure::one("out_to_in_ratio", ran.out_to_in));
    outcome.add(Figure::one("client_busy_fraction", client.busy_fraction));
    outcome.add(Figure::one("borrowed_busy_fraction", card.borrowed_core.busy_fraction));
    let interrupts: u64 = card.queues.iter().map(|queue| queue.interrupts).sum();
    let each = card.ledger.delivered as f64 / interrupts.max(1) as f64;
    outcome.add(Figure::one("packets_per_interrupt", each));
    let per_second = |count: Option<u64>| count.map(|count| count as f64 / seconds);
    outcome.add(Figure::one("server_migrations_per_second", per_second(ran.migrations)));
    outcome.add(Figure::one("server_remote_wakeups_per_second", per_second(ran.remote_wakeups)));
    let answered = (client.answered != 0).then_some(client.answered as f64);
    let each = ran.cache_misses.zip(answered).map(|(misses, answered)| misses as f64 / answered);
    outcome.add(Figure::one("server_cores_cache_misses_per_request", each));
    outcome.add(Figure::count("errors", client.errors()));
    let targets = card.target_cores.len();
    let shared = ran.programs_cores <= targets || card.queues.len() > targets;
    outcome.add(Figure::one(SHARED, f64::from(u8::from(shared))));
    outcome
}

/// Sides that differ by hash and number of queues, by name.
pub(super) fn side_of(hash: &str, queues: u16) -> String {
    format!("{hash}-{queues}")
}

/// Hash and number of queues of such a side.
pub(super) fn of_side(side: &str) -> (&str, u16) {
    let (hash, queues) = side.rsplit_once('-').unwrap_or((side, ""));
    (hash, queues.parse().unwrap_or(1))
}

/// Why a repeat of a side is void: the client was at its limit, it or the borrowed core was
/// saturated, or nothing was answered.
fn why_void((found, side): PointSide<'_>, repeat: usize) -> Option<&'static str> {
    let of = |key| found.values(side, key).get(repeat).copied();
    let is_above = |key, most| of(key).is_some_and(|value| value > most);
    if of("requests_per_second") == Some(0.0) {
        Some("nothing was answered")
    } else if is_above("client_limit_share", 0.0)
        || ["client_busy_fraction", "borrowed_busy_fraction"].iter().any(|key| is_above(key, FULL))
    {
        Some("the client or the borrowed core is at its limit")
    } else {
        None
    }
}

fn is_void(side: PointSide<'_>, repeat: usize) -> bool {
    why_void(side, repeat).is_some()
}

/// Columns of experiments by queues.
const PAYLOAD: [Column; 6] = [
    shown("payload_bps", "payload"),
    shown("requests_per_second", "requests"),
    shown("acknowledgements_share", "ACKs in"),
    shown("out_to_in_ratio", "ratio of bytes out to in"),
    shown("borrowed_busy_fraction", "borrowed core"),
    shown("client_busy_fraction", "client's busiest thread"),
];
const CORES: [Column; 4] = [
    shown("server_migrations_per_second", "migrations"),
    shown("server_remote_wakeups_per_second", "wake-ups by other cores"),
    shown("server_cores_cache_misses_per_request", "cache misses per request"),
    shown("packets_per_interrupt", "packets per interrupt"),
];

pub(super) fn by_queues(outcome: &mut Outcome, found: &MeasuredPoint, hashes: &[&str]) {
    let side = |hash: &str, queues| {
        let side = found.spec.sides.iter().position(|side| *side == side_of(hash, queues))?;
        Some((found, side))
    };
    let Some(&first) = hashes.first() else { return };
    for queues in [1, 2, 4] {
        if let Some((found, side)) = side(first, queues) {
            let plural = if queues == 1 { "queue" } else { "queues" };
            let (key, label) =
                (format!("payload_{queues}_{plural}_bps"), format!("payload, {queues} {plural}"));
            let payload = Figure::of(&key, found.values(side, "payload_bps")).called(&label);
            gains::add(outcome, is_shared((found, side)), payload);
        }
    }
    let rate = "payload_bps";
    for (more, fewer) in [(2, 1), (4, 1), (6, 1), (6, 2)] {
        let (Some(one), Some(other)) = (side(first, more), side(first, fewer)) else { continue };
        let key = &format!("{more}_over_{fewer}_queues_gain");
        let label = &format!("{more} queues over {fewer}");
        Gain { key, label, rate }.add(outcome, &[[one, other]], is_void);
    }
    if let &[toeplitz, jhash] = hashes {
        let queues =
            (0..=256).filter_map(|queues| Some([side(jhash, queues)?, side(toeplitz, queues)?]));
        let (key, label) = ("jhash_over_toeplitz_change", "JHash over Toeplitz");
        Gain { key, label, rate }.add(outcome, &queues.collect::<Vec<_>>(), is_void);
    }
    for (side, name) in found.spec.sides.iter().enumerate() {
        let (hash, queues) = of_side(name);
        for (series, columns) in [("payload", &PAYLOAD[..]), ("cores", &CORES[..])] {
            let point = Point::at("hash", hash).and("queues", queues);
            outcome.series(series).push(columns::row(point, (found, side), columns));
        }
    }
    outcome.note(
        "migrations, wake-ups by other cores: of the server's threads, per second; wake-ups need the \
         kernel's kernel.sched_schedstats. Cache misses: of all that runs on the cores of client and \
         server; they need hardware counters",
    );
}

pub(super) fn by_system(outcome: &mut Outcome, points: &[MeasuredPoint]) {
    let of_ratios = points.iter().filter(|found| found.spec.word(PART).is_empty());
    let (by_load, alone): (Vec<_>, Vec<_>) =
        of_ratios.partition(|found| found.spec.number("offered_ratio") > 0.0);
    let systems = Shares(&SYSTEMS);
    for found in by_load {
        let labelled = || Point::at("offered_ratio", found.spec.number("offered_ratio"));
        let offered = Figure::of("offered_per_second", found.values(0, "offered_per_second"));
        let point = labelled().with(offered.called("offered"));
        outcome.series("by load").push(systems.row(point, found, "requests_per_second"));
        outcome.series("answered by load").push(systems.row(labelled(), found, "request_p50_ns"));
    }
    // The last of the servers is the paper's.
    for &found in &alone {
        let server = found.spec.word("server").replace('-', "_");
        let is_last = alone.last().is_some_and(|last| last.spec == found.spec);
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let name = format!("{}_over_{}_gain", SYSTEMS[one], SYSTEMS[other]);
            let key = &if is_last { name } else { format!("{server}_{name}") };
            let label = &format!("{server}: {} over {}", SYSTEMS[one], SYSTEMS[other]);
            let gain = Gain { key, label, rate: "requests_per_second" };
            gain.add(outcome, &[[(found, one), (found, other)]], is_void);
        }
        if is_last {
            counted_beside_papers(outcome, found);
        }
        for (series, key) in [
            ("requests", "requests_per_second"),
            ("packets_an_interrupt", "packets_per_interrupt"),
            ("answered_after", "request_p50_ns"),
            ("client_busy", "client_busy_fraction"),
        ] {
            let point = Point::with_labels(found.spec.labels.clone());
            outcome.series(series).push(systems.row(point, found, key));
        }
    }
}

/// The paper's other figures of each system. Shares of driver and locks are not available.
fn counted_beside_papers(outcome: &mut Outcome, found: &MeasuredPoint) {
    for (side, name) in SYSTEMS.into_iter().enumerate() {
        let values = found.values(side, "packets_per_interrupt");
        let counted = Figure::of(&format!("{name}_packets_per_interrupt"), values)
            .called(&format!("packets per interrupt, {name}"));
        gains::add(outcome, is_shared((found, side)), counted.in_detail());
        for (key, label) in [("driver_share", "driver's share"), ("handover_share", "locks' share")]
        {
            let none = Figure::one(&format!("{name}_{key}"), None);
            outcome.add(none.called(&format!("{label}, {name}")).in_detail());
        }
    }
    outcome.note(NO_SHARES);
}

/// Notes on void or shared points, and others.
pub(super) fn mark(outcome: &mut Outcome, points: &[MeasuredPoint]) {
    let mut shared = false;
    for found in points {
        for (side, name) in found.spec.sides.iter().enumerate() {
            shared |= is_shared((found, side));
            let of = if found.spec.labels.is_empty() { None } else { Some(found.spec.name()) };
            let of = of.into_iter().chain([name.clone()]).collect::<Vec<_>>().join(", ");
            let repeats = found.values(side, "requests_per_second").len();
            let mut void: BTreeMap<&str, usize> = BTreeMap::new();
            let all = (0..repeats).filter_map(|repeat| why_void((found, side), repeat));
            all.for_each(|why| *void.entry(why).or_default() += 1);
            for (why, count) in void {
                outcome.note(match count == repeats {
                    true => format!("{of}: void, {why}"),
                    false => format!("{of}: {count} of {repeats} repeats are void, {why}"),
                });
            }
            let errors: f64 = found.values(side, "errors").iter().sum();
            if errors > 0.0 {
                outcome.note(format!("{of}: {errors} requests failed"));
            }
        }
    }
    if shared {
        outcome.note(
            "shared: client, server and target queues use the same cores, so that more queues add no cores. \
             These ratios are of this machine and say nothing of the paper's, whose server has a core \
             for each queue",
        );
    }
    outcome
        .note("payload is without headers; client and server have all cores but the borrowed one");
}
