//! `picnic advise cores`: which core to borrow, and which cores to interrupt.
//!
//! Of all placements only those that can differ are tried: for each distance between the borrowed
//! core and the target cores one representative, with the queues on one core and spread over all
//! of that distance. The card file's own placement is the baseline. On this machine they are compared
//! as by `picnic lab ab`, with its rules for noise; on a modelled machine there is none.

use crate::ab::{Allowed, Candidates, ComparedFigure, Progress, Question, Side, Workload};
use crate::compare::{LEAST_PAIRS, Verdict};
use crate::experiment::LabError;
use crate::window::Window;
use anyhow::Context;
use picnic_control::{Launch, Registries};
use picnic_core::config::{CardFile, Sections};
use picnic_core::error::ConfigError;
use picnic_machine::topology::{Cache, CacheKind, Core, CoreSet, Distance, Topology};
use picnic_sim::machine::Profile;
use serde::Serialize;
use std::time::Duration;

/// A placement of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The borrowed core.
    pub borrowed_core: usize,
    /// The core of each queue.
    pub target_cores: Vec<usize>,
    /// What the target cores share with the borrowed core.
    pub shares: String,
}

impl Placement {
    /// As keys of a card file.
    pub fn settings(&self) -> [String; 2] {
        let Placement { borrowed_core, target_cores, .. } = self;
        [
            format!("card.borrowed_core={borrowed_core}"),
            format!("host.target_cores={target_cores:?}"),
        ]
    }

    /// For people.
    pub fn text(&self) -> String {
        let Placement { borrowed_core, target_cores, shares } = self;
        format!("borrowed_core = {borrowed_core}, target_cores = {target_cores:?} ({shares})")
    }
}

/// What a placement gave.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// The placement.
    #[serde(flatten)]
    pub placement: Placement,
    /// The figure; null if it could not be measured.
    pub value: Option<f64>,
    /// The figure divided by that of the card file's own placement.
    pub ratio: Option<f64>,
    /// Its 95 % confidence interval; null in a model, which has no noise.
    pub interval: Option<[f64; 2]>,
    /// The verdict against the card file's own placement.
    pub verdict: Verdict,
}

/// The advice.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// `measured` or `modelled`.
    pub source: &'static str,
    /// The figure that was compared.
    pub figure: String,
    /// The card file's own placement.
    pub baseline: Placement,
    /// The others.
    pub tried: Vec<Tried>,
    /// The best of those that are better than the baseline; null if none is.
    pub best: Option<Tried>,
}

impl Advice {
    fn new(
        source: &'static str,
        figure: &str,
        baseline: Placement,
        tried: Vec<Tried>,
        more_is_better: bool,
    ) -> Self {
        let rank = |tried: &Tried| {
            let ratio = tried.ratio.unwrap_or(1.0);
            if more_is_better { ratio } else { 1.0 / ratio }
        };
        let better = tried.iter().filter(|tried| tried.verdict == Verdict::Better);
        let best = better.max_by(|a, b| rank(a).total_cmp(&rank(b))).cloned();
        Advice { source, figure: figure.into(), baseline, tried, best }
    }

    /// The conclusion in a sentence.
    pub fn text(&self) -> String {
        let own = self.baseline.text();
        let Some(best) = &self.best else {
            let noisy =
                self.tried.iter().filter(|tried| tried.verdict == Verdict::TooNoisy).count();
            return match (self.tried.len(), noisy) {
                (0, _) => format!("there is no other placement than {own}"),
                (_, 0) => format!("it makes no difference: keep {own}"),
                (all, noisy) => format!(
                    "no placement was better than {own}; {noisy} of {all} were too noisy to tell: use a \
                     quieter machine, or more --pairs"
                ),
            };
        };
        let percent = (best.ratio.unwrap_or(1.0) - 1.0) * 100.0;
        let margin = match best.interval {
            Some([low, high]) => format!(
                "{percent:+.1} % ({:+.1} to {:+.1} %, 95 % confidence)",
                (low - 1.0) * 100.0,
                (high - 1.0) * 100.0
            ),
            None => format!("{percent:+.1} %, modelled"),
        };
        format!("best: {}: {} {margin} against {own}", best.placement.text(), self.figure)
    }
}

/// The placements that can differ on a machine with these cores, for a card with `queues` queues that
/// borrows one of `borrowed`.
pub fn placements(
    topology: &Topology,
    cores: &[usize],
    borrowed: &[usize],
    queues: usize,
) -> Vec<Placement> {
    let mut found: Vec<Placement> = Vec::new();
    for &borrowed_core in borrowed {
        let at = |distance: Option<Distance>| -> Vec<usize> {
            let others = cores.iter().copied().filter(|core| *core != borrowed_core);
            others.filter(|core| topology.distance(borrowed_core, *core) == distance).collect()
        };
        let classes = Distance::ALL.into_iter().map(Some).chain([None]);
        for (distance, near) in classes.map(|distance| (distance, at(distance))) {
            let Some(&first) = near.first() else { continue };
            let shares = distance.map_or("unknown distance", Distance::name).to_owned();
            let spread: Vec<usize> = near.iter().copied().cycle().take(queues).collect();
            for target_cores in [vec![first; queues], spread] {
                let placement = Placement { borrowed_core, target_cores, shares: shares.clone() };
                if !found.contains(&placement) {
                    found.push(placement);
                }
            }
        }
    }
    found
}

/// The topology of a modelled machine.
fn topology_of(profile: &Profile) -> Topology {
    let threads = profile.threads_per_pipeline.max(1);
    let mut topology = Topology::default();
    for (package, caches) in profile.packages.iter().enumerate() {
        for cache in caches {
            let shared: CoreSet = cache.iter().copied().collect();
            for &core in cache {
                let first = core / threads * threads;
                let siblings =
                    (first..first + threads).filter(|core| shared.contains(*core)).collect();
                let (kind, size_bytes) = (CacheKind::Unified, None);
                let caches = vec![Cache { level: 2, kind, shared: shared.clone(), size_bytes }];
                topology.cores.insert(core, Core { package: Some(package), siblings, caches });
            }
        }
    }
    topology.online = topology.cores.keys().copied().collect();
    topology
}

/// What is asked on this machine.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The card.
    pub side: Side,
    /// The traffic through it; none for the card alone.
    pub workload: Option<Workload>,
    /// The figure.
    pub figure: ComparedFigure,
    /// The smallest relevant effect, as a share.
    pub effect: f64,
    /// Pairs of each placement.
    pub pairs: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// Limits within which a pair counts.
    pub allowed: Allowed,
    /// Seed of the order.
    pub seed: u64,
}

impl Asked {
    /// Measures all placements of this machine; `own` is that of the card file.
    ///
    /// # Errors
    /// As for [`Question::run`].
    pub fn run(
        self,
        own: Placement,
        others: Vec<Placement>,
        registries: Registries,
        sections: &Sections,
        progress: &mut Progress<'_>,
    ) -> Result<Advice, LabError> {
        let others: Vec<_> = others.into_iter().filter(|other| !is_same(other, &own)).collect();
        let figure = self.figure.key().to_owned();
        let more_is_better = self.figure.more_is_better();
        if others.is_empty() {
            return Ok(Advice::new("measured", &figure, own, Vec::new(), more_is_better));
        }
        let side = |placement: &Placement| {
            let [borrowed, targets] = placement.settings();
            let set = [&self.side.set[..], &[borrowed, targets]].concat();
            Side { name: placement.text(), set, path: self.side.path.clone() }
        };
        let sides = others.iter().map(|other| (other.text(), side(other))).collect();
        let question = Question {
            baseline: Side { name: "the card file's".into(), ..side(&own) },
            plain: false,
            apart: false,
            candidates: Candidates::Sweep { key: "placement".into(), sides },
            workload: self.workload,
            figure: self.figure,
            more_is_better,
            effect: self.effect,
            pairs: self.pairs.max(LEAST_PAIRS),
            most_pairs: self.pairs.max(LEAST_PAIRS) * 2,
            seconds: self.seconds,
            allowed: self.allowed,
            wire_frames: false,
            seed: self.seed,
            cost: false,
            timelines: None,
        };
        let outcome = question.run(registries, sections, progress)?;
        let series = outcome.series.iter().find(|series| series.name == "sweep");
        let points = series.context("no placement was measured").map_err(LabError::from)?;
        let tried = others.into_iter().zip(&points.points).filter_map(|(placement, point)| {
            let comparison = point.comparisons.first()?;
            let judged = comparison.judgement()?;
            let estimate = comparison.estimate();
            Some(Tried {
                placement,
                value: estimate.map(|estimate| estimate.candidate),
                ratio: judged.interval.map(|of| of.ratio),
                interval: judged.interval.map(|of| [of.low, of.high]),
                verdict: judged.verdict,
            })
        });
        Ok(Advice::new("measured", &figure, own, tried.collect(), more_is_better))
    }
}

fn is_same(one: &Placement, other: &Placement) -> bool {
    (one.borrowed_core, &one.target_cores) == (other.borrowed_core, &other.target_cores)
}

/// Answers for a machine that one need not have; `load` reads the card with more settings.
///
/// # Errors
/// The card is wrong, or the machine has too few cores.
pub fn modelled(
    profile: &Profile,
    registries: Registries,
    figure: &ComparedFigure,
    (seconds, effect): (f64, f64),
    load: impl Fn(&[String]) -> Result<CardFile, ConfigError>,
    progress: &mut Progress<'_>,
) -> anyhow::Result<Advice> {
    let registries = picnic_sim::on_machine(registries, profile.clone());
    let run = |settings: &[String]| -> anyhow::Result<(f64, Window)> {
        let file = load(settings)?;
        let launch = Launch::new(&file, registries);
        launch.check()?;
        let time = Duration::from_secs_f64(seconds);
        let window = Window::of(launch.start_alone()?, time / 4, time)?;
        Ok((figure.read(Some(&window), "").context("the card gave no such figure")?, window))
    };
    let (base, window) = run(&[])?;
    let (topology, queues) = (topology_of(profile), window.report.queues.len());
    let own = Placement {
        borrowed_core: window.report.borrowed_core.core,
        target_cores: window.report.queues.iter().map(|queue| queue.core).collect(),
        shares: "the card file's".into(),
    };
    let cores: Vec<usize> = topology.online.iter().collect();
    // The model's host has the cores below the borrowed one.
    let last = cores.last().copied().into_iter().collect::<Vec<_>>();
    let all = placements(&topology, &cores, &last, queues);
    let all: Vec<_> = all.into_iter().filter(|other| !is_same(other, &own)).collect();
    let total = all.len() as f64 + 1.0;
    let mut values = Vec::new();
    for (place, placement) in all.into_iter().enumerate() {
        progress((place as f64 + 1.0) / total, &placement.text());
        let (value, _) = run(&placement.settings())?;
        values.push((placement, value));
    }
    let more_is_better = figure.more_is_better();
    let tried = values.into_iter().map(|(placement, value)| {
        let ratio = value / base;
        let gain = if more_is_better { ratio } else { 1.0 / ratio };
        let verdict = match gain {
            gain if gain >= 1.0 + effect => Verdict::Better,
            gain if gain <= 1.0 / (1.0 + effect) => Verdict::Worse,
            _ => Verdict::NoDifference,
        };
        Tried { placement, value: Some(value), ratio: Some(ratio), interval: None, verdict }
    });
    Ok(Advice::new("modelled", figure.key(), own, tried.collect(), more_is_better))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distance_is_tried_once_packed_and_once_spread() {
        let topology = topology_of(&Profile::named("x5355").unwrap());
        let cores: Vec<usize> = topology.online.iter().collect();
        let found = placements(&topology, &cores, &[7], 2);
        let of: Vec<_> = found.iter().map(|of| (of.target_cores.clone(), &*of.shares)).collect();
        assert_eq!(
            of,
            [
                (vec![6, 6], "shared L2"),
                (vec![4, 4], "same package"),
                (vec![4, 5], "same package"),
                (vec![0, 0], "another package"),
                (vec![0, 1], "another package"),
            ]
        );
        // Two cores of which nothing is known: each may be the borrowed one.
        let found = placements(&Topology::default(), &[0, 1], &[1, 0], 1);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].settings(), ["card.borrowed_core=0", "host.target_cores=[1]"]);
        assert!(placements(&Topology::default(), &[0], &[0], 1).is_empty());
    }

    fn advise(text: &'static str, figure: &str) -> anyhow::Result<Advice> {
        let load = |settings: &[String]| {
            let set = settings.iter().map(|text| picnic_core::config::Setting::parse(text));
            let set =
                set.collect::<Result<Vec<_>, _>>().map_err(|why| ConfigError::new("set", why))?;
            crate::card::changed(&picnic_host::sections(), text, None, set, &[])
        };
        let profile = Profile::named("x5355").unwrap();
        let figure = ComparedFigure::of_card(figure).unwrap();
        let registries = picnic_host::registries();
        modelled(&profile, registries, &figure, (0.02, 0.02), load, &mut |_, _| {})
    }

    #[test]
    fn a_model_advises_to_spread_queues_that_fill_a_core() {
        let text = "[[wire]]\nport = \"generator\"\nrate_pps = 300000\nflows = 64\n[[rx]]\nfunction = \
            \"rss\"\n[host]\nqueues = 2\ncost_ns = 4000\ntarget_cores = [0, 0]\n";
        let advice = advise(text, "delivered_pps").unwrap();
        let best = advice.best.as_ref().unwrap();
        assert!(best.ratio.unwrap() > 1.2, "{advice:#?}");
        assert_ne!(best.placement.target_cores[0], best.placement.target_cores[1]);
        assert!(advice.text().contains("modelled against borrowed_core = "), "{}", advice.text());
        let idle = "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[host]\nqueues = 1\n";
        let advice = advise(idle, "delivered_pps").unwrap();
        assert!(advice.best.is_none() && advice.text().contains("no difference"), "{advice:#?}");
    }
}
