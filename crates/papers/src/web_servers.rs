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
//! In the sim world the paper's machine is modelled (`testbeds/x5355.rs`, `testbeds/piii.rs`), except
//! with `knet-pages`, for which the paper has no figure. On the host servers are real.
//!
//! `rss-web` has four clients, each with its own wire, and a card that bonds these. Experiments by
//! system also send requests at a rate independent of the answers, in multiples of the back-to-back
//! rate: up to saturation and beyond. That rate is found by a separate point on each machine, and
//! the points by load follow it. `knet-pages` goes up to 10 times with client and server on two
//! shared cores: its server does so much per request that a client sending ten times as many has
//! little to do. Client and server have all cores but the borrowed one, in namespaces with the card
//! between them. A repeat in which a client or the borrowed core is saturated is void, as in the
//! paper. If there are more queues than target cores, or client and targets have the same cores, a
//! side is marked shared: its figures are valid for this machine, and its ratios are not comparable
//! with the paper's.
//!
//! All sides of a ratio take turns: numbers of queues and hashes are sides of one point, as are
//! systems.
//!
//! A gain is computed from ten pairs back to back. A point by load has no interval: it is a median
//! of five near saturation, where systems differ, of three elsewhere, and without warm-up, since
//! each measurement starts its card, client and server anew.
//!
//! Source: PICNIC, 5.2, 5.3 and figure 8; KNET, "Webfs/Sclient (20K-file)", "Apache/WebStone".

mod conclude;
mod presets;
mod systems;
#[cfg(test)]
mod tests;

use super::cards::within;
use super::modelled::on_machine;
use crate::workloads::run::{self, run_with};
use conclude::{by_queues, by_system, figures, mark, of_side, side_of};
pub use presets::{KnetApache, KnetPages, KnetSendfile, KnetWebfs, RssBulk, RssWeb};
use presets::{PRESETS, Preset, Variation};
use systems::{SYSTEMS, keys as system_keys};

use picnic_core::config::Setting;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Outcome, Source};
use picnic_lab::paper::Row;
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::workloads::kind::{ClientKind, ServerKind, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

/// No repeat begins later than this.
const LIMIT: Duration = Duration::from_secs(3600);
/// Offered loads, and the largest number of connections that may wait for answers.
const LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.3, 2.0, 3.0, 10.0];
const WAITING: u32 = 16_384;
/// The loads at which systems differ.
const NEAR_SATURATION: RangeInclusive<f64> = 0.8..=2.0;
/// The label for the part of an experiment, which is not part of a ratio.
const PART: &str = "part";
/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs; sim if the paper's machine is modelled, else host
    pub world: Option<World>,
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Numbers of queues, host only, for experiments by queue [default: the paper's; fewer for
    /// --quick]
    pub queues: Option<Vec<u16>>,
    /// Simultaneous connections, host only [default: the workload's]
    pub connections: Option<u32>,
    /// The client for back-to-back requests, host only; wrk counts headers as payload
    pub client: ClientKind,
    /// Seconds of each measurement, host only, whole ones with wrk [default: 3; fewer for --quick]
    pub seconds: Option<f64>,
    /// Offered requests in multiples of the capacity, the rate that is answered back to back; host
    /// only, for experiments by system [default: 0.5 to 10; fewer for --quick]
    pub loads: Option<Vec<f64>>,
}

/// One of them with its settings.
#[derive(Debug)]
pub struct WebServers<const CASE: usize>(Settings);

impl<const CASE: usize> WebServers<CASE> {
    const PRESET: Preset = PRESETS[CASE];

    fn queues(&self, effort: Effort) -> Vec<u16> {
        let Variation::Queues(usual, _) = Self::PRESET.varied else { return Vec::new() };
        let quick = usual.len().min(2);
        let own = effort.of(&usual[..quick], usual, usual);
        self.0.queues.clone().unwrap_or_else(|| own.to_vec())
    }

    /// Answers back to back, and then by load; the last for the paper's server.
    fn curve(&self, effort: Effort, servers: &[ServerKind]) -> Vec<Spec> {
        let own = effort.of(Self::PRESET.quick_loads, &LOADS, &LOADS);
        let loads = self.0.loads.as_deref().unwrap_or(own);
        let (Some(server), false) = (servers.last(), loads.is_empty()) else { return Vec::new() };
        let at = || Spec { limit: LIMIT, ..Spec::at("server", server.name()) }.sides(&SYSTEMS);
        let capacity = Spec { repeats: effort.of(1, 3, 3), ..at().and(PART, "capacity") };
        let by_load = |&load: &f64| {
            let usual = if NEAR_SATURATION.contains(&load) { 5 } else { 3 };
            let repeats = effort.of(1, usual, 20);
            let follows = Some(capacity.name());
            Spec { repeats, follows, ..at().and("offered_ratio", load) }
        };
        let by_load: Vec<_> = loads.iter().map(by_load).collect();
        [vec![capacity], by_load].concat()
    }
}

/// The highest back-to-back rate of answers of any system.
fn capacity(found: &MeasuredPoint) -> Option<f64> {
    let rates = found.sides.iter().filter_map(|side| side.median("requests_per_second"));
    rates.reduce(f64::max).filter(|&rate| rate > 0.0)
}

impl<const CASE: usize> Component for WebServers<CASE> {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = Self::PRESET.name;
    const HELP: &'static str = Self::PRESET.help;

    fn example(_: &Path) -> Option<String> {
        let points = match Self::PRESET.varied {
            Variation::Queues(..) => "queues = [1]".to_owned(),
            Variation::Servers(_) => format!("loads = {}", Self::PRESET.example_loads),
        };
        Some(format!("world = \"host\"\n{points}\nconnections = 4\nseconds = 0.3"))
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        if let Some(queues) = &settings.queues {
            if matches!(Self::PRESET.varied, Variation::Servers(_)) {
                let message = "found queues, allowed with rss-web and rss-bulk";
                return Err(ConfigError::new("queues", message));
            }
            if queues.is_empty() {
                return Err(ConfigError::new("queues", "missing, expected one or more"));
            }
            queues.iter().try_for_each(|&queues| within("queues", queues.into(), 1.0, 256.0))?;
        }
        if let Some(connections) = settings.connections {
            within("connections", connections.into(), 1.0, 50_000.0)?;
        }
        within("seconds", settings.seconds.unwrap_or(1.0), 0.1, 3600.0)?;
        if let Some(loads) = &settings.loads {
            if matches!(Self::PRESET.varied, Variation::Queues(..)) {
                let message = "found loads, allowed with knet-webfs, knet-sendfile, knet-apache and \
                               knet-pages";
                return Err(ConfigError::new("loads", message));
            }
            loads.iter().try_for_each(|&load| within("loads", load, 0.01, 100.0))?;
        }
        let usual = if Self::PRESET.paper.machine.is_some() { World::Sim } else { World::Host };
        let (world, profile) = (settings.world.unwrap_or(usual), settings.profile.as_deref());
        let modelled = on_machine::<Self>(world, profile, &settings, Self::PRESET.curve)?;
        Ok(modelled.unwrap_or_else(|| Box::new(WebServers::<CASE>(settings))))
    }
}

impl<const CASE: usize> Reproduces for WebServers<CASE> {
    const PAPER: Row = Self::PRESET.paper;
}

impl<const CASE: usize> Experiment for WebServers<CASE> {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let warm_up = effort != Effort::Quick;
        // A ratio needs at least ten pairs for an interval.
        let compared = |spec| Spec { warm_up, repeats: effort.of(1, 10, 20), limit: LIMIT, ..spec };
        match Self::PRESET.varied {
            Variation::Queues(_, hashes) => {
                let queues = self.queues(effort);
                let of =
                    |hash: &'static str| queues.iter().map(move |&queues| side_of(hash, queues));
                let sides = hashes.iter().copied().flat_map(of).collect();
                vec![compared(Spec { sides, ..Spec::default() })]
            }
            Variation::Servers(servers) => {
                let at = |server: &ServerKind| Spec::at("server", server.name()).sides(&SYSTEMS);
                let mut specs: Vec<_> = servers.iter().map(|server| compared(at(server))).collect();
                specs.extend(self.curve(effort, servers));
                specs
            }
        }
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut workload = match Self::PRESET.workload.contains('\n') {
            true => Workload::parse(Self::PRESET.workload)?,
            false => Workload::find(Self::PRESET.workload)?,
        };
        workload.connections = self.0.connections.unwrap_or(workload.connections);
        if point.word(PART).is_empty() && point.number("offered_ratio") == 0.0 {
            workload.client = self.0.client;
        }
        let how = run::Run {
            seconds: self.0.seconds.unwrap_or(run.effort.of(1.0, 3.0, 10.0)),
            seed: run.seed,
            clients: Self::PRESET.clients,
            ..run::Run::default()
        };
        let ran = match Self::PRESET.varied {
            Variation::Queues(..) => {
                let (hash, queues) = of_side(side);
                run_with(&workload, &how, |_, rss_key| {
                    let hash = Setting::text(&rss_key("hash"), hash);
                    Ok(vec![Setting::number("host.queues", queues.into()), hash])
                })?
            }
            Variation::Servers(servers) => {
                let name = point.word("server");
                let found = servers.iter().find(|server| server.name() == name);
                workload.server = found.copied().unwrap_or(workload.server);
                let load = point.number("offered_ratio");
                if load > 0.0 {
                    let Some(capacity) = run.followed.and_then(capacity) else {
                        let why = "nothing was answered back to back to derive a load from";
                        return Err(LabError::Failed(why.into()));
                    };
                    workload.requests_per_second = capacity * load;
                    workload.connections = WAITING;
                    workload.think_ms = 0;
                    // Beyond saturation most requests are abandoned: early enough to free
                    // connections.
                    let most_ms = f64::from(WAITING) / workload.requests_per_second * 900.0;
                    workload.patience_ms = workload.patience_ms.min(most_ms as u32).max(100);
                }
                run_with(&workload, &how, |targets, _| system_keys(side, targets))?
            }
        };
        Ok(figures(&ran))
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        match Self::PRESET.varied {
            Variation::Queues(_, hashes) => {
                points.iter().for_each(|found| by_queues(&mut outcome, found, hashes));
            }
            Variation::Servers(_) => by_system(&mut outcome, points),
        }
        mark(&mut outcome, points);
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        match Self::PRESET.varied {
            Variation::Queues(..) => {
                vec![
                    Plot::lines("payload by queues", "payload", "queues", "payload_bps").by("hash"),
                ]
            }
            Variation::Servers(_) => {
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
