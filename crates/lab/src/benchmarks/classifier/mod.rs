//! The filters' classifier: nanoseconds per packet, and the time of one change.
//!
//! Rules and packets are those of the DPDK peer; `bench/peers/compare_classifier.py` runs both.

mod rules;

use super::{median, time_per_packet};
use clap::Args;
use picnic_filter::classifier::{BURST, Classifier, Key, NONE};
use picnic_filter::matching::Tuple;
use picnic_filter::{
    Action, Filter, Filters, FiveTuple, Hidden, Protocol, code::FilterCode, filters::FilterChange,
};
use rules::{Family, Packet, Set};
use serde_json::{Value, json};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct ClassifierArgs {
    /// Numbers of rules, each up to 65000
    #[arg(long, value_delimiter = ',', default_values_t = [16, 64, 256, 1024, 4096])]
    rules: Vec<usize>,
    /// Families of rules
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Family::Random])]
    families: Vec<Family>,
    /// Packets per call
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=BURST as i64))]
    burst: u16,
    /// Different packets
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    packets: u32,
    /// Seconds of one repeat
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    seconds: f64,
    /// Repeats for each number of rules, interleaved
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Rules that are replaced, and timed, for each number of rules; three times over
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// Seed of rules and packets
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let allowed = "allowed is 0.001 to 60";
    let seconds: f64 = text.parse().map_err(|_| format!("no number, {allowed}"))?;
    if (0.001..=60.0).contains(&seconds) { Ok(seconds) } else { Err(allowed.into()) }
}

/// Times that the same changes are made, so that what interrupts one is told from its own time.
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

pub(super) fn run(args: &ClassifierArgs) -> anyhow::Result<Value> {
    let burst = usize::from(args.burst);
    let sets =
        args.families.iter().flat_map(|&family| args.rules.iter().map(move |&n| (family, n)));
    let sizes: anyhow::Result<Vec<_>> = sets.map(|(family, n)| size(args, family, n)).collect();
    let mut sizes = sizes?;
    for _ in 0..args.repeats.max(1) {
        for size in &mut sizes {
            size.times.push(measure(size, burst, args.seconds));
        }
    }
    let sizes = sizes.into_iter().map(|mut size| {
        let ns = median(&mut size.times);
        json!({
            "family": size.set.family.name(),
            "rules": size.set.rules.len(),
            "ns_per_packet": ns,
            "min_ns_per_packet": size.times.first(),
            "tables": size.classifier.tables(),
            "in_vectors": size.classifier.in_vectors(),
            "longest_slot": size.classifier.longest_slot(),
            "matching_fraction": size.matching as f64 / size.keys.len() as f64,
            "build_ms": size.build_ms,
            "change_us": median(&mut size.changes.all),
            "max_change_us": size.changes.all.last(),
            "max_least_change_us": size.changes.least.iter().copied().reduce(f64::max),
            "fingerprint": format!("{:016x}", size.set.fingerprint),
            "verdicts": format!("{:016x}", size.verdicts),
        })
    });
    Ok(json!({
        "benchmark": "classifier",
        "burst": burst,
        "packets": args.packets,
        "seed": args.seed,
        "repeats": args.repeats.max(1),
        "sizes": sizes.collect::<Vec<_>>(),
    }))
}

fn size(args: &ClassifierArgs, family: Family, count: usize) -> anyhow::Result<Size> {
    anyhow::ensure!((1..=65_000).contains(&count), "--rules: found {count}, allowed is 1 to 65000");
    let set = Set::new(family, args.seed, count, args.packets as usize);
    let places = || (0_u16..).zip(&set.rules);
    let start = Instant::now();
    let classifier = Classifier::build(places());
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let keys: Vec<_> = set.packets.iter().filter_map(key).collect();
    let (mut matching, mut verdicts) = (0, rules::HASH);
    // The same answer without tables, to know that the measured one is right.
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

/// Times of changes to one rule, in microseconds.
struct Changes {
    all: Vec<f64>,
    /// Of each change the shortest time of all passes: what it takes where nothing else runs.
    least: Vec<f64>,
}

/// Changes one rule of a card's filters, table copied and published: in turn one less, and one
/// more that is another in its place. Each pass makes the same changes, from the start.
fn changes(args: &ClassifierArgs, set: &Set) -> anyhow::Result<Changes> {
    let others = Set::new(set.family, args.seed.wrapping_add(1), set.rules.len(), 0);
    let filter = |place: usize, rules: &[FiveTuple]| {
        let filter = Filter::new("rule", rules[place], Action::Drop);
        // Room between two, so that a rule can come to where another was.
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
    }
}

fn key(packet: &Packet) -> Option<Key<u64>> {
    let Tuple { source, destination, protocol, ports, .. } = tuple(packet);
    Key::new(source, destination, protocol.0, ports)
}
