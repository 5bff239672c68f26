//! The filters' classifier: nanoseconds per packet, and the time of one change.
//!
//! Rules and packets are the same as in the DPDK peer; `bench/peers/compare_classifier.py` runs
//! both.

pub(crate) mod rules;

use super::{all_within, measured, time_per_packet};
use picnic_core::error::ConfigError;
use picnic_filter::classifier::{BURST, Classifier, Key, NONE};
use picnic_filter::matching::Tuple;
use picnic_filter::{
    Action, Filter, Filters, FiveTuple, Hidden, Protocol, code::FilterCode, filters::FilterChange,
};
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use rules::{Family, Packet, Set};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Classifying {
    /// Numbers of rules, each up to 65000
    rules: Vec<u64>,
    /// Families of rules
    families: Vec<Family>,
    /// Packets per call
    #[schemars(range(min = 1, max = 64))]
    burst: u16,
    /// Different packets
    #[schemars(range(min = 64, max = 1_048_576))]
    packets: u32,
    /// Seconds of one repeat
    seconds: f64,
    /// Repeats for each number of rules, interleaved
    #[schemars(range(min = 1, max = 1000))]
    repeats: u32,
    /// Rules to replace and time, for each number of rules; three passes
    #[schemars(range(min = 1, max = 100_000))]
    changes: usize,
    /// Seed of rules and packets
    seed: u64,
}

impl Default for Classifying {
    fn default() -> Self {
        Classifying {
            rules: vec![16, 64, 256, 1024, 4096],
            families: vec![Family::Random],
            burst: 32,
            packets: 4096,
            seconds: 0.2,
            repeats: 5,
            changes: 200,
            seed: 1,
        }
    }
}

impl Benchmark for Classifying {
    const NAME: &'static str = "classifier";
    const HELP: &'static str = "the filters' classifier: time per packet and per change";
    const QUICK: &'static str = "rules = [16]\nseconds = 0.001\nrepeats = 2\nchanges = 4";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("rules", &self.rules, 1, 65_000)?;
        if usize::from(self.burst) > BURST {
            let message = format!("found {}, allowed: 1 to {BURST}", self.burst);
            return Err(ConfigError::new("burst", message));
        }
        if (0.001..=60.0).contains(&self.seconds) {
            return Ok(());
        }
        let message = format!("found {}, allowed: 0.001 to 60", self.seconds);
        Err(ConfigError::new("seconds", message))
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure_all(self, run)
    }
}

/// Passes over the same changes, to exclude interruptions.
const CHANGE_PASSES: usize = 3;

struct Size {
    set: Set,
    classifier: Classifier<u64>,
    keys: Vec<Key<u64>>,
    build_ms: f64,
    matching: usize,
    verdicts: u64,
    changes: Changes,
    times: Vec<f64>,
}

fn measure_all(args: &Classifying, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let burst = usize::from(args.burst);
    let numbers = || args.rules.iter().map(|&number| number as usize);
    let sets = args.families.iter().flat_map(|&family| numbers().map(move |n| (family, n)));
    let sizes: anyhow::Result<Vec<_>> = sets.map(|(family, n)| size(args, family, n)).collect();
    let mut sizes = sizes?;
    for round in 0..args.repeats {
        run.round(round.into(), args.repeats.into());
        for size in &mut sizes {
            size.times.push(measure(size, burst, args.seconds));
        }
    }
    let mut outcome = measured();
    let mut series = outcome.series("sizes");
    for Size { set, classifier, keys, build_ms, matching, verdicts, changes, times } in sizes {
        let detail = |key: &str, value: f64| Figure::one(key, value).in_detail();
        let longest = |times: &[f64]| times.iter().copied().fold(f64::NAN, f64::max);
        let point = Point::at("family", set.family.name())
            .and("rules", set.rules.len())
            .with(Figure::of("ns_per_packet", times).called("a packet"))
            .with(Figure::one("change_us", median(&changes.all)))
            .with(Figure::one("max_change_us", longest(&changes.all)).called("longest change"))
            .with(detail("max_least_change_us", longest(&changes.least)))
            .with(Figure::one("build_ms", build_ms))
            .with(Figure::count("tables", classifier.tables() as u64))
            .with(detail("in_vectors", classifier.in_vectors() as f64))
            .with(detail("longest_slot", classifier.longest_slot() as f64))
            .with(detail("matching_fraction", matching as f64 / keys.len() as f64))
            .told("form", classifier.form())
            .told("fingerprint", format!("{:016x}", set.fingerprint))
            .told("verdicts", format!("{verdicts:016x}"));
        series.push(point);
    }
    Ok(outcome)
}

fn size(args: &Classifying, family: Family, count: usize) -> anyhow::Result<Size> {
    anyhow::ensure!((1..=65_000).contains(&count), "--rules: found {count}, allowed: 1 to 65000");
    let set = Set::new(family, args.seed, count, args.packets as usize);
    let places = || (0_u16..).zip(&set.rules);
    let start = Instant::now();
    let classifier = Classifier::build(places());
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let keys: Vec<_> = set.packets.iter().filter_map(key).collect();
    let (mut matching, mut verdicts) = (0, rules::HASH);
    // The same answer without tables, to check the measured one.
    for (key, packet) in keys.iter().zip(&set.packets) {
        let tuple = tuple(packet);
        let linear = set.rules.iter().position(|rule| rule.matches(&tuple));
        let found = classifier.find_from(key, 0);
        let mut places = [NONE; BURST];
        classifier.classify(std::slice::from_ref(key), &mut places);
        let wanted = linear.map_or(NONE, |place| place as u16);
        anyhow::ensure!(found == wanted && places[0] == wanted, "wrong rule for {packet:?}");
        matching += usize::from(linear.is_some());
        verdicts = rules::hash(verdicts, linear.map_or(0, |place| place as u32 + 1));
    }
    let changes = changes(args, &set)?;
    Ok(Size { set, classifier, keys, build_ms, matching, verdicts, changes, times: Vec::new() })
}

/// Durations of changes to one rule, in microseconds.
struct Changes {
    all: Vec<f64>,
    /// The shortest time of each change over all passes: its cost without interruptions.
    least: Vec<f64>,
}

/// Changes one rule of a card's filters at a time, with copying and publishing the table:
/// alternately removes one and adds another in its place. All passes make the same changes.
fn changes(args: &Classifying, set: &Set) -> anyhow::Result<Changes> {
    let others = Set::new(set.family, args.seed.wrapping_add(1), set.rules.len(), 0);
    let filter = |place: usize, rules: &[FiveTuple]| {
        let filter = Filter::new("rule", rules[place], Action::Drop);
        // A gap between two, so that a rule can take another's place.
        filter.with_priority(place as i32)
    };
    let mut changes = Changes { all: Vec::new(), least: Vec::new() };
    for _ in 0..CHANGE_PASSES {
        let filters = Filters::new(1);
        let all = (0..set.rules.len())
            .map(|n| FilterChange::Add(filter(n, &set.rules), FilterCode::default()));
        let mut ids = filters.apply(all.collect())?;
        let mut times = Vec::new();
        for change in 0..args.changes.max(1) {
            let place = change.wrapping_mul(2_654_435_761) % ids.len();
            let start = Instant::now();
            filters.remove(ids[place])?;
            let removed = start.elapsed();
            ids[place] = filters.add(filter(place, &others.rules))?;
            let added = start.elapsed() - removed;
            times.extend([removed, added].map(|time| time.as_secs_f64() * 1e6));
        }
        if changes.least.is_empty() {
            changes.least.clone_from(&times);
        }
        changes.least.iter_mut().zip(&times).for_each(|(least, time)| *least = least.min(*time));
        changes.all.extend(times);
    }
    Ok(changes)
}

fn measure(size: &Size, burst: usize, seconds: f64) -> f64 {
    let mut places = [NONE; BURST];
    let mut pass = || {
        let mut matching = 0;
        for keys in size.keys.chunks_exact(burst) {
            size.classifier.classify(keys, &mut places);
            matching += places[..keys.len()].iter().filter(|&&place| place != NONE).count();
        }
        black_box(matching);
    };
    let packets = size.keys.len() / burst * burst;
    let once = time_per_packet(packets, &mut pass);
    let passes = (seconds * 1e9 / (once * packets as f64)).clamp(1.0, 1e6) as usize;
    time_per_packet(packets * passes, || (0..passes).for_each(|_| pass()))
}

fn tuple(packet: &Packet) -> Tuple {
    Tuple {
        source: IpAddr::V4(Ipv4Addr::from(packet.source)),
        destination: IpAddr::V4(Ipv4Addr::from(packet.destination)),
        protocol: Protocol(packet.protocol),
        ports: Some((packet.ports[0], packet.ports[1])),
        hidden: Hidden::Nothing,
        authenticated: false,
    }
}

fn key(packet: &Packet) -> Option<Key<u64>> {
    let Tuple { source, destination, protocol, ports, .. } = tuple(packet);
    Key::new(source, destination, protocol.0, ports)
}
