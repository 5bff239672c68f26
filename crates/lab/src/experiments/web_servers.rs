//! Web servers behind the card: by RSS queues (PICNIC), and by KNET's three systems.
//!
//! | experiment | workload | varied |
//! |---|---|---|
//! | `rss-web` | support | 1 to 6 queues, Toeplitz against JHash |
//! | `rss-bulk` | 32 connections, files of 1 MB, sends of 4 kB | 1, 2, 4 queues |
//! | `knet-webfs` | files of 20 KB, a connection each, webfs | system |
//! | `knet-sendfile` | the same, nginx without and with `sendfile` | system |
//! | `knet-apache` | webstone | system |
//! | `knet-pages` | pages of 300 KB that PHP makes | system |
//!
//! `rss-web` has four clients, each with a wire for itself, and a card that bonds these.
//! Experiments by system go on with requests that are offered at a rate, whether or not they are
//! answered, in multiples of what was answered back to back: up to saturation and beyond. `knet-pages`
//! goes on to 10 times where client and server share two cores: its server does so much for each
//! request that a client which offers ten times as many has little to do.
//! Client and server have all cores but the borrowed one, in namespaces with the card between them. A
//! repeat in which a client or the borrowed core is full is void, as in the paper. Where queues are
//! more than target cores, or client and targets have the same cores, a side is marked shared: its
//! figures are of this machine, and its ratios say nothing of the paper's.
//!
//! All that a ratio is told of takes turns: numbers of queues and hashes are sides of one point, as
//! are systems.
//!
//! Source: PICNIC, 5.2, 5.3 and figure 8; KNET, "Webfs/Sclient (20K-file)", "Apache/WebStone".

use super::cards::within;
use super::gains::{self, Gain, Of, SHARED, is_shared};
use super::knet_web::{NO_SHARES, SYSTEMS, system_keys};
use crate::experiment::{Effort, Experiment, Found, LabError, Run, Spec};
use crate::outcome::{Figure, Outcome, Point, Source};
use crate::plot::Plot;
use crate::workloads::kind::{ServerKind, Workload};
use crate::workloads::run::{self, Ran, run_with};
use picnic_core::config::Setting;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A core that works for more than this share of the time is full.
const FULL: f64 = 0.98;
/// No repeat begins later than this.
const LIMIT: Duration = Duration::from_secs(3600);
/// Loads that are offered, and connections that may wait for answers then.
const LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 10.0];
const WAITING: u32 = 16_384;
/// PICNIC's sends: 4 kB at a time.
const BULK: &str = "workload = \"bulk\"\nserver = \"nginx-copy\"\nsend_bytes = 4096\n\
                    connections = 32\n[[file]]\nbytes = 1000000\nweight = 1\n";
/// KNET's, by whichever server.
const FILES: &str = "workload = \"files\"\nserver = \"webfs\"\nconnections = 64\n\
                     [[file]]\nbytes = 20000\nweight = 1\n";
const PAGES: &str = "workload = \"pages\"\nserver = \"apache\"\nconnections = 16\n\
                     patience_ms = 1000\n[[file]]\nbytes = 300000\nweight = 1\nphp = true\n";

/// What an experiment varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varied {
    /// Queues, and the hashes that take turns.
    Queues(&'static [u16], &'static [&'static str]),
    /// Servers; the systems take turns.
    Servers(&'static [ServerKind]),
}

/// One of the experiments.
pub trait Case: 'static {
    /// As of all entries.
    const NAME: &'static str;
    /// As of all entries.
    const HELP: &'static str;
    /// The name of a workload, or its text.
    const WORKLOAD: &'static str;
    /// What is varied.
    const VARIED: Varied;
    /// Clients, each with a wire of the card for itself.
    const CLIENTS: u8 = 1;
    /// Loads with --quick.
    const QUICK_LOADS: &'static [f64] = &[0.5, 2.0];
}

/// `rss-web`.
#[derive(Debug)]
pub struct RssWeb;
/// `rss-bulk`.
#[derive(Debug)]
pub struct RssBulk;
/// `knet-webfs`.
#[derive(Debug)]
pub struct KnetWebfs;
/// `knet-sendfile`.
#[derive(Debug)]
pub struct KnetSendfile;
/// `knet-apache`.
#[derive(Debug)]
pub struct KnetApache;
/// `knet-pages`.
#[derive(Debug)]
pub struct KnetPages;

impl Case for RssWeb {
    const NAME: &'static str = "rss-web";
    const HELP: &'static str = "web server throughput by RSS queues (root, apache2, PHP)";
    const WORKLOAD: &'static str = "support";
    const VARIED: Varied = Varied::Queues(&[1, 2, 3, 4, 5, 6], &["toeplitz", "jhash"]);
    const CLIENTS: u8 = 4;
}

impl Case for RssBulk {
    const NAME: &'static str = "rss-bulk";
    const HELP: &'static str = "bulk transmit by RSS queues (root, nginx)";
    const WORKLOAD: &'static str = BULK;
    const VARIED: Varied = Varied::Queues(&[1, 2, 4], &["toeplitz"]);
}

impl Case for KnetWebfs {
    const NAME: &'static str = "knet-webfs";
    const HELP: &'static str = "files of 20 KB from webfs, by KNET's systems (root, webfs)";
    const WORKLOAD: &'static str = FILES;
    const VARIED: Varied = Varied::Servers(&[ServerKind::Webfs]);
}

impl Case for KnetSendfile {
    const NAME: &'static str = "knet-sendfile";
    const HELP: &'static str = "nginx with and without sendfile, by KNET's systems (root)";
    const WORKLOAD: &'static str = FILES;
    const VARIED: Varied = Varied::Servers(&[ServerKind::NginxCopy, ServerKind::Nginx]);
}

impl Case for KnetApache {
    const NAME: &'static str = "knet-apache";
    const HELP: &'static str = "a mix of files from Apache, by KNET's systems (root, apache2)";
    const WORKLOAD: &'static str = "webstone";
    const VARIED: Varied = Varied::Servers(&[ServerKind::Apache]);
}

impl Case for KnetPages {
    const NAME: &'static str = "knet-pages";
    const HELP: &'static str = "PHP pages, offered up to 10 times too many (root, apache2)";
    const WORKLOAD: &'static str = PAGES;
    const VARIED: Varied = Varied::Servers(&[ServerKind::Apache]);
    const QUICK_LOADS: &'static [f64] = &[0.5, 10.0];
}

/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Numbers of queues; with experiments by queue, as the paper if not said: fewer for --quick
    pub queues: Option<Vec<u16>>,
    /// Connections at a time; those of the workload if not said
    pub connections: Option<u32>,
    /// Seconds of each measurement; 3 if not said: fewer for --quick
    pub seconds: Option<u64>,
    /// Requests offered whether or not they are answered, in multiples of what was answered back to
    /// back; with experiments by system, 0.5 to 10 if not said: fewer for --quick
    pub loads: Option<Vec<f64>>,
}

/// One of them with its settings, and what each server has answered back to back, by name.
#[derive(Debug)]
pub struct WebServers<C>(Settings, Mutex<BTreeMap<String, f64>>, PhantomData<C>);

impl<C: Case> WebServers<C> {
    fn queues(&self, effort: Effort) -> Vec<u16> {
        let Varied::Queues(usual, _) = C::VARIED else { return Vec::new() };
        let quick = usual.len().min(2);
        let own = effort.of(&usual[..quick], usual, usual);
        self.0.queues.clone().unwrap_or_else(|| own.to_vec())
    }

    fn loads(&self, effort: Effort) -> Vec<f64> {
        let own = effort.of(C::QUICK_LOADS, &LOADS, &LOADS);
        self.0.loads.clone().unwrap_or_else(|| own.to_vec())
    }

    /// Requests a second that the server has answered back to back, by any of the systems.
    fn capacity(&self, server: &str, seen: Option<f64>) -> Option<f64> {
        let mut all = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = seen {
            let most = all.entry(server.into()).or_default();
            *most = most.max(rate);
        }
        all.get(server).copied().filter(|&rate| rate > 0.0)
    }
}

impl<C: Case> Component for WebServers<C> {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = C::NAME;
    const HELP: &'static str = C::HELP;

    fn example(_: &Path) -> Option<String> {
        let points = match C::VARIED {
            Varied::Queues(..) => "queues = [1]",
            Varied::Servers(_) => "loads = [2.0]",
        };
        Some(format!("{points}\nconnections = 4\nseconds = 1"))
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        if let Some(queues) = &settings.queues {
            if matches!(C::VARIED, Varied::Servers(_)) {
                let message = "found queues, allowed with rss-web and rss-bulk";
                return Err(ConfigError::new("queues", message));
            }
            if queues.is_empty() {
                return Err(ConfigError::new("queues", "found none, allowed: one or more"));
            }
            queues.iter().try_for_each(|&queues| within("queues", queues.into(), 1.0, 256.0))?;
        }
        if let Some(connections) = settings.connections {
            within("connections", connections.into(), 1.0, 50_000.0)?;
        }
        within("seconds", settings.seconds.unwrap_or(1) as f64, 1.0, 3600.0)?;
        if let Some(loads) = &settings.loads {
            if matches!(C::VARIED, Varied::Queues(..)) {
                let message = "found loads, allowed with knet-webfs, knet-sendfile, knet-apache and \
                               knet-pages";
                return Err(ConfigError::new("loads", message));
            }
            loads.iter().try_for_each(|&load| within("loads", load, 0.01, 100.0))?;
        }
        Ok(Box::new(WebServers::<C>(settings, Mutex::default(), PhantomData)))
    }
}

impl<C: Case> Experiment for WebServers<C> {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let warm_up = effort != Effort::Quick;
        // A ratio has ten pairs at least, or no interval; a curve may have fewer.
        let compared = |spec| Spec { warm_up, repeats: effort.of(1, 10, 20), limit: LIMIT, ..spec };
        let curve = |spec| Spec { warm_up, repeats: effort.of(1, 5, 20), limit: LIMIT, ..spec };
        match C::VARIED {
            Varied::Queues(_, hashes) => {
                let queues = self.queues(effort);
                let of =
                    |hash: &'static str| queues.iter().map(move |&queues| side_of(hash, queues));
                let sides = hashes.iter().copied().flat_map(of).collect();
                vec![compared(Spec { sides, ..Spec::default() })]
            }
            Varied::Servers(servers) => {
                let at = |server: &ServerKind| Spec::at("server", server.name()).sides(&SYSTEMS);
                let mut specs: Vec<_> = servers.iter().map(|server| compared(at(server))).collect();
                // The last of the servers is the paper's.
                let last = servers.last().into_iter();
                let loads = self.loads(effort);
                specs.extend(last.flat_map(|last| {
                    loads.iter().map(move |&load| curve(at(last).and("offered_ratio", load)))
                }));
                specs
            }
        }
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut workload = match C::WORKLOAD.contains('\n') {
            true => Workload::parse(C::WORKLOAD)?,
            false => Workload::find(C::WORKLOAD)?,
        };
        workload.connections = self.0.connections.unwrap_or(workload.connections);
        let how = run::Run {
            seconds: self.0.seconds.unwrap_or(run.effort.of(1, 3, 10)),
            seed: run.seed,
            clients: C::CLIENTS,
            ..run::Run::default()
        };
        let ran = match C::VARIED {
            Varied::Queues(..) => {
                let (hash, queues) = of_side(side);
                run_with(&workload, &how, |_, rss_key| {
                    let hash = Setting::text(&rss_key("hash"), hash);
                    Ok(vec![Setting::number("host.queues", queues.into()), hash])
                })?
            }
            Varied::Servers(servers) => {
                let name = point.word("server");
                let found = servers.iter().find(|server| server.name() == name);
                workload.server = found.copied().unwrap_or(workload.server);
                let load = point.number("offered_ratio");
                if load > 0.0 {
                    let Some(capacity) = self.capacity(name, None) else {
                        let why = "nothing was answered back to back that a load could be told by";
                        return Err(LabError::Failed(why.into()));
                    };
                    workload.requests_per_second = capacity * load;
                    workload.connections = WAITING;
                    workload.think_ms = 0;
                    // Beyond saturation most are given up: so soon that there are connections left.
                    let most_ms = f64::from(WAITING) / workload.requests_per_second * 900.0;
                    workload.patience_ms = workload.patience_ms.min(most_ms as u32).max(100);
                }
                let ran = run_with(&workload, &how, |targets, _| system_keys(side, targets))?;
                if load == 0.0 {
                    self.capacity(name, Some(ran.client.per_second()));
                }
                ran
            }
        };
        Ok(figures(&ran))
    }

    fn conclude(&self, points: &[Found]) -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        outcome.settings = serde_json::to_value(&self.0).unwrap_or_default();
        match C::VARIED {
            Varied::Queues(_, hashes) => {
                points.iter().for_each(|found| by_queues(&mut outcome, found, hashes));
            }
            Varied::Servers(_) => by_system(&mut outcome, points),
        }
        mark(&mut outcome, points);
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        match C::VARIED {
            Varied::Queues(..) => {
                vec![
                    Plot::lines("payload by queues", "payload", "queues", "payload_bps").by("hash"),
                ]
            }
            Varied::Servers(_) => {
                let of = |side: usize| format!("{}_requests_per_second", SYSTEMS[side]);
                let lines = Plot::lines("answered by load", "by load", "offered_ratio", &of(0));
                vec![
                    Plot::bars("requests", "requests", &of(0)).and(&of(1)).and(&of(2)),
                    lines.and(&of(1)).and(&of(2)),
                ]
            }
        }
    }
}

/// What a run comes to.
fn figures(ran: &Ran) -> Outcome {
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
fn side_of(hash: &str, queues: u16) -> String {
    format!("{hash}-{queues}")
}

/// Hash and number of queues of such a side.
fn of_side(side: &str) -> (&str, u16) {
    let (hash, queues) = side.rsplit_once('-').unwrap_or((side, ""));
    (hash, queues.parse().unwrap_or(1))
}

/// Why a repeat of a side says nothing of the card: the client was at its limit, it or the borrowed
/// core full, or there was no answer at all.
fn why_void((found, side): Of<'_>, repeat: usize) -> Option<&'static str> {
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

fn is_void(side: Of<'_>, repeat: usize) -> bool {
    why_void(side, repeat).is_some()
}

fn by_queues(outcome: &mut Outcome, found: &Found, hashes: &[&str]) {
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
        let labelled = || Point::at("hash", hash).and("queues", queues);
        let values =
            |key: &str, label: &str| Figure::of(key, found.values(side, key)).called(label);
        let point = labelled()
            .with(values("payload_bps", "payload"))
            .with(values("requests_per_second", "requests"))
            .with(values("acknowledgements_share", "ACKs in"))
            .with(values("out_to_in_ratio", "bytes out to in"))
            .with(values("borrowed_busy_fraction", "borrowed core"))
            .with(values("client_busy_fraction", "client's busiest thread"));
        outcome.series("payload").push(point);
        let point = labelled()
            .with(values("server_migrations_per_second", "migrations"))
            .with(values("server_remote_wakeups_per_second", "wake-ups by other cores"))
            .with(values("server_cores_cache_misses_per_request", "cache misses a request"))
            .with(values("packets_per_interrupt", "packets an interrupt"));
        outcome.series("cores").push(point);
    }
    outcome.note(
        "migrations, wake-ups by other cores: of the server's threads, a second; wake-ups need the \
         kernel's kernel.sched_schedstats. Cache misses: of all that runs on the cores of client and \
         server; they need hardware counters",
    );
}

fn by_system(outcome: &mut Outcome, points: &[Found]) {
    let (by_load, alone): (Vec<_>, Vec<_>) =
        points.iter().partition(|found| found.spec.number("offered_ratio") > 0.0);
    let by_side = |point: Point, found: &Found, key: &str| {
        (0..SYSTEMS.len()).fold(point, |point, side| {
            let name = SYSTEMS[side];
            let figure = Figure::of(&format!("{name}_{key}"), found.values(side, key));
            point.with(figure.called(name))
        })
    };
    for found in by_load {
        let labelled = || Point::at("offered_ratio", found.spec.number("offered_ratio"));
        let offered = Figure::of("offered_per_second", found.values(0, "offered_per_second"));
        let point = labelled().with(offered.called("offered"));
        outcome.series("by load").push(by_side(point, found, "requests_per_second"));
        outcome.series("answered by load").push(by_side(labelled(), found, "request_p50_ns"));
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
            ("interrupts", "packets_per_interrupt"),
            ("answered", "request_p50_ns"),
            ("client", "client_busy_fraction"),
        ] {
            let point = Point::with_labels(found.spec.labels.clone());
            outcome.series(series).push(by_side(point, found, key));
        }
    }
}

/// What the paper has of each system beside its ratios. Shares of driver and locks are not to be had.
fn counted_beside_papers(outcome: &mut Outcome, found: &Found) {
    for (side, name) in SYSTEMS.into_iter().enumerate() {
        let values = found.values(side, "packets_per_interrupt");
        let counted = Figure::of(&format!("{name}_packets_per_interrupt"), values)
            .called(&format!("packets an interrupt, {name}"));
        gains::add(outcome, is_shared((found, side)), counted.in_detail());
        for (key, label) in [("driver_share", "driver's share"), ("handover_share", "locks' share")]
        {
            let none = Figure::one(&format!("{name}_{key}"), None);
            outcome.add(none.called(&format!("{label}, {name}")).in_detail());
        }
    }
    outcome.note(NO_SHARES);
}

/// Says which points are void or shared, and what else there is to know.
fn mark(outcome: &mut Outcome, points: &[Found]) {
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
                outcome.note(format!("{of}: {errors} requests went wrong"));
            }
        }
    }
    if shared {
        outcome.note(
            "shared: client, server and target queues have the same cores, so that queues add none. \
             These ratios are of this machine and say nothing of the paper's, whose server has a core \
             for each queue",
        );
    }
    outcome
        .note("payload is without headers; client and server have all cores but the borrowed one");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Finding;
    use crate::runner;
    use serde_json::Value;

    fn run<C: Case>(settings: Settings) -> Option<Outcome> {
        let experiment = WebServers::<C>::build(settings, &BuildContext::default()).unwrap();
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
        let settings = Settings { seconds: Some(1), ..Settings::default() };
        if let Some(outcome) = run::<RssBulk>(settings.clone()) {
            let fields = outcome.fields();
            let payload = |row: &Value| row["payload_bps"].as_f64().unwrap();
            let rows = fields["payload"].as_array().unwrap();
            assert!(rows.iter().all(|row| payload(row) > 1e6), "{fields:#?}");
            assert!(fields.contains_key("2_over_1_queues_gain"));
            // What shared cores give is not laid beside a paper's figure.
            let is_shared = fields.contains_key("shared_cores_2_over_1_queues_gain");
            assert_eq!(fields["2_over_1_queues_gain"] == "unavailable", is_shared, "{fields:#?}");
        }
        if let Some(outcome) = run::<KnetSendfile>(settings) {
            let fields = outcome.fields();
            for key in
                ["knet_over_napi_gain", "clas_over_napi_gain", "nginx_copy_knet_over_clas_gain"]
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

    /// What each of KNET's systems has answered a second, and whether its client was at its limit.
    fn answered(sides: [(f64, f64); 3]) -> Found {
        let spec = Spec::at("server", "apache").sides(&SYSTEMS);
        let sides = sides.map(|(rate, at_limit)| {
            side(&[("requests_per_second", Some(rate)), ("client_limit_share", Some(at_limit))])
        });
        Found { spec, sides: sides.into() }
    }

    #[test]
    fn a_client_at_its_limit_makes_a_point_void_and_its_gain_is_withheld() {
        let build = WebServers::<KnetApache>::build(Settings::default(), &BuildContext::default());
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
            assert_eq!(fields[withheld], "unavailable", "{fields:#?}");
        }
        assert!((outcome.median("clas_over_napi_gain").unwrap() - 0.25).abs() < 1e-9);
        // Nor is no answer a rate to compare with.
        let outcome = conclude(answered([(1200.0, 0.0), (0.0, 0.0), (800.0, 0.0)]));
        let note = "server=apache, clas: void, nothing was answered";
        assert!(outcome.notes.iter().any(|own| own == note), "{:?}", outcome.notes);
        assert_eq!(outcome.fields()["knet_over_clas_gain"], "unavailable");
        assert!((outcome.median("knet_over_napi_gain").unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn queues_and_hashes_take_turns_ten_times_and_once_when_it_is_to_be_quick() {
        let build = WebServers::<RssWeb>::build(Settings::default(), &BuildContext::default());
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
        let build = WebServers::<KnetWebfs>::build(Settings::default(), &BuildContext::default());
        let points = build.unwrap().points(Effort::Usual);
        let repeats = |load| points.iter().find(|point| point.number("offered_ratio") == load);
        assert_eq!([0.0, 2.0].map(|load| repeats(load).unwrap().repeats), [10, 5]);
    }

    #[test]
    fn more_queues_are_judged_by_the_pairs_of_their_repeats() {
        let build = WebServers::<RssBulk>::build(Settings::default(), &BuildContext::default());
        let conclude = |shared: f64| {
            let of = |factor: f64| {
                let mut outcome = Outcome::of(Source::Measured);
                // The machine gets faster, by half in all: the ratio of each pair stays.
                let speed = |n: u32| 1e9 * factor * (1.0 + f64::from(n) / 20.0);
                outcome.add(Figure::of("payload_bps", (0..10).map(speed).collect()));
                outcome.add(Figure::of("requests_per_second", vec![100.0; 10]));
                outcome.add(Figure::of(SHARED, vec![shared; 10]));
                outcome
            };
            let sides = [1, 2, 4].map(|queues| side_of("toeplitz", queues)).to_vec();
            let spec = Spec { sides, ..Spec::default() };
            let found = Found { spec, sides: vec![of(1.0), of(1.18), of(1.05)] };
            build.as_ref().unwrap().conclude(&[found])
        };
        let row = crate::papers::PAPERS.iter().find(|row| row.name == "rss-bulk").unwrap();
        let judged = |outcome: &Outcome, key: &str| {
            let ours =
                |own: &&crate::papers::PaperFigure| own.ours.is_some_and(|own| key.ends_with(own));
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
    fn cache_misses_stand_beside_migrations_or_are_unavailable() {
        let build = WebServers::<RssWeb>::build(Settings::default(), &BuildContext::default());
        let key = "server_cores_cache_misses_per_request";
        let of = |misses| {
            let spec = Spec::default().sides(&["toeplitz-1", "jhash-1"]);
            let sides = vec![side(&[(key, misses)]), side(&[(key, misses)])];
            let outcome = build.as_ref().unwrap().conclude(&[Found { spec, sides }]);
            outcome.fields()["cores"][0][key].clone()
        };
        assert_eq!(of(Some(1200.0)), 1200.0);
        assert_eq!(of(None), "unavailable");
    }

    #[test]
    fn webfs_is_asked_for_20_kb_back_to_back_and_then_by_load_on_two_cores() {
        let mut entries = crate::registry::EXPERIMENTS.iter();
        let entry = entries.find(|entry| entry.name == "knet-webfs").expect("an entry");
        let loads = [("loads".to_owned(), "0.5,3".to_owned())];
        let experiment = crate::registry::build(entry, &loads).unwrap();
        let points = experiment.points(Effort::Quick);
        let names: Vec<_> = points.iter().map(Spec::name).collect();
        let by_load = |load| format!("server=webfs,offered_ratio={load}");
        assert_eq!(names, ["server=webfs".to_owned(), by_load("0.5"), by_load("3.0")]);
        assert!(points.iter().all(|point| point.sides == SYSTEMS && experiment.cores(point) == 2));
        assert_eq!(Workload::parse(KnetWebfs::WORKLOAD).unwrap().file[0].bytes, 20_000);
        assert_eq!(Workload::parse(RssBulk::WORKLOAD).unwrap().send_bytes, 4096);
    }

    #[test]
    fn wrong_settings_name_what_is_allowed() {
        let refused = |error: Option<ConfigError>| error.unwrap().to_string();
        let none = Settings { queues: Some(vec![]), ..Settings::default() };
        let build = WebServers::<RssWeb>::build(none.clone(), &BuildContext::default());
        assert!(refused(build.err()).contains("queues: found none, allowed: one or more"));
        let build = WebServers::<KnetApache>::build(none, &BuildContext::default());
        assert!(refused(build.err()).contains("queues: found queues, allowed with rss-web"));
        let loads = |loads| Settings { loads: Some(loads), ..Settings::default() };
        let build = WebServers::<RssWeb>::build(loads(vec![1.0]), &BuildContext::default());
        assert!(refused(build.err()).contains("loads: found loads, allowed with knet-webfs"));
        let build = WebServers::<KnetApache>::build(loads(vec![0.0]), &BuildContext::default());
        assert!(refused(build.err()).contains("loads: found 0, allowed: 0.01 to 100"));
        let long = Settings { seconds: Some(0), ..Settings::default() };
        let build = WebServers::<RssBulk>::build(long, &BuildContext::default());
        assert!(refused(build.err()).contains("seconds: found 0, allowed: 1 to 3600"));
    }
}
