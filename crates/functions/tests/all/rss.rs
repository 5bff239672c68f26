//! `rss` against a slow oracle, published vectors, and changes while it runs.

use crate::common::frames::{
    Network, Spec, Upper, any_spec, every_kind, published, published_key, rss_input,
};
use crate::common::{Card, Door, Seen, from_wire_0};
use picnic_core::command::{Order, Prepared};
use picnic_core::function::Function;
use picnic_core::packet::desc::{RssFunction, RssType};
use picnic_core::packet::layers;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_functions::rss::{
    Config, Context, HashName, HashType, MAX_CONTEXTS, Refusal, Rss, Show, TableChange,
};
use picnic_hash::{IndirectionTable, Key, lookup2, lookup3, reference};
use proptest::prelude::*;

fn context(queues: u16) -> BuildContext {
    BuildContext { queues, ..BuildContext::default() }
}

fn rss(config: &Config, queues: u16) -> Rss {
    Rss::new(config, &context(queues)).unwrap()
}

fn over_of(hash_type: HashType) -> RssType {
    match hash_type {
        HashType::Ipv4 => RssType::Ipv4,
        HashType::TcpIpv4 => RssType::Ipv4Tcp,
        HashType::UdpIpv4 => RssType::Ipv4Udp,
        HashType::Ipv6 => RssType::Ipv6,
        HashType::TcpIpv6 => RssType::Ipv6Tcp,
        HashType::UdpIpv6 => RssType::Ipv6Udp,
    }
}

/// The expected result for a packet: hash, type, door.
fn oracle(config: &Config, queues: u16, data: &[u8]) -> (u32, RssType, Door) {
    let is_on = |over| config.types.iter().any(|&hash_type| over_of(hash_type) == over);
    let (mut input, over) = rss_input(data, is_on);
    if over == RssType::None {
        return (0, over, config.default_queue.map_or(Door::Next, Door::Queue));
    }
    let init = config.jhash_init.unwrap_or(0);
    // The jhash of only addresses uses ports of zero.
    let full = if input.len() < 16 { 12 } else { 36 };
    let hash = match config.hash {
        HashName::Toeplitz => {
            let key = match &config.key {
                Some(text) => text.parse().unwrap(),
                None if config.symmetric => Key::symmetric(),
                None => Key::MICROSOFT,
            };
            reference(&key, &input)
        }
        HashName::Jhash => {
            input.resize(full, 0);
            lookup3(&input, init)
        }
        HashName::Lookup2 => {
            input.resize(full, 0);
            lookup2(&input, init)
        }
    };
    let queue = match &config.table {
        Some(table) => table[hash as usize % table.len()],
        None => (hash as usize % config.table_size % usize::from(queues)) as u16,
    };
    (hash, over, Door::Queue(queue))
}

fn any_config(queues: u16) -> impl Strategy<Value = Config> {
    let hash =
        prop_oneof![Just(HashName::Toeplitz), Just(HashName::Jhash), Just(HashName::Lookup2)];
    let key = prop::option::of(prop::collection::vec(any::<u8>(), 40..=64));
    let table = prop::option::of(prop::collection::vec(0..queues, 1..300));
    let types = prop::sample::subsequence(HashType::ALL.to_vec(), 0..=6);
    let types = prop_oneof![Just(HashType::ALL.to_vec()), types];
    let default_queue = prop::option::of(0..queues);
    (hash, key, any::<bool>(), any::<u32>(), table, 1..=4096usize, types, default_queue).prop_map(
        |(hash, key, symmetric, init, table, table_size, types, default_queue)| {
            let is_toeplitz = hash == HashName::Toeplitz;
            let key = key.filter(|_| is_toeplitz);
            Config {
                hash,
                symmetric: symmetric && is_toeplitz && key.is_none(),
                key: key.map(|key| key.iter().map(|byte| format!("{byte:02x}")).collect()),
                jhash_init: (!is_toeplitz).then_some(init),
                table_size: if table.is_some() { 128 } else { table_size },
                table,
                types,
                default_queue,
                ..Config::default()
            }
        },
    )
}

fn check(config: &Config, queues: u16, frames: &[Vec<u8>], seen: &[Seen], first: usize) {
    assert_eq!(seen.len(), frames.len());
    for packet in seen {
        let data = &frames[packet.number - first];
        let expected = oracle(config, queues, data);
        assert_eq!((packet.hash, packet.over, packet.door), expected, "{config:?} {data:02x?}");
        let by = match config.hash {
            HashName::Toeplitz => RssFunction::Toeplitz,
            HashName::Jhash | HashName::Lookup2 => RssFunction::Jenkins,
        };
        assert_eq!(packet.by, by);
        assert_eq!(&packet.data, data);
        assert_eq!(packet.packet_type, layers::parse(data).packet_type);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_packet_matches_the_oracle(
        (queues, config) in (1..9u16).prop_flat_map(|queues| (Just(queues), any_config(queues))),
        bursts in prop::collection::vec(prop::collection::vec(any_spec(), 0..=64), 1..4),
    ) {
        let mut rss = rss(&config, queues);
        let mut card = Card::new(&context(queues));
        let (mut first, mut unhashed) = (0, 0);
        for burst in &bursts {
            let frames: Vec<_> = burst.iter().map(Spec::build).collect();
            let seen = card.run(&mut rss, &from_wire_0(frames.clone()));
            check(&config, queues, &frames, &seen, first);
            first += frames.len();
            unhashed += seen.iter().filter(|packet| packet.over == RssType::None).count();
            for packet in &seen {
                let classified = rss.classify(&packet.data);
                prop_assert_eq!((classified.hash, classified.over), (packet.hash, packet.over));
                prop_assert_eq!(classified.queue.map_or(Door::Next, Door::Queue), packet.door);
            }
        }
        prop_assert_eq!(rss.counters().unhashed.get(), unhashed as u64);
    }

    #[test]
    fn bursts_of_ipv4_alone_too(
        config in any_config(4),
        specs in prop::collection::vec(any_spec(), 0..=64),
    ) {
        let frames: Vec<_> =
            specs.into_iter().map(|spec| Spec { network: Network::V4, ..spec }.build()).collect();
        let mut rss = rss(&config, 4);
        let seen = Card::new(&context(4)).run(&mut rss, &from_wire_0(frames.clone()));
        check(&config, 4, &frames, &seen, 0);
    }

    #[test]
    fn both_directions_of_a_connection_meet_under_the_symmetric_key(spec in any_spec()) {
        let config = Config { symmetric: true, ..Config::default() };
        let rss = rss(&config, 7);
        let back = Spec {
            source: spec.source,
            destination: spec.destination,
            ports: (spec.ports.1, spec.ports.0),
            ..spec.clone()
        };
        // Frame builder and oracle agree on addresses; swap them in the bytes.
        let (there, back) = (spec.build(), swap_addresses(&back));
        prop_assert_eq!(rss.classify(&there), rss.classify(&back));
    }
}

fn swap_addresses(spec: &Spec) -> Vec<u8> {
    let mut frame = spec.build();
    let l3 = 14 + 4 * usize::from(spec.tags);
    let (start, length) = match spec.network {
        Network::V4 => (l3 + 12, 4),
        Network::V6 => (l3 + 8, 16),
        _ => return frame,
    };
    let (source, destination) = frame[start..start + 2 * length].split_at_mut(length);
    source.swap_with_slice(destination);
    frame
}

#[test]
fn microsofts_key_does_not_meet() {
    let spec = Spec::plain(Network::V4, Upper::Tcp);
    let back = swap_addresses(&Spec { ports: (spec.ports.1, spec.ports.0), ..spec.clone() });
    let rss = rss(&Config::default(), 4);
    assert_ne!(rss.classify(&spec.build()).hash, rss.classify(&back).hash);
}

#[test]
fn every_kind_of_frame_with_each_type_switched_off() {
    let frames: Vec<_> = every_kind().iter().map(Spec::build).collect();
    for off in HashType::ALL {
        let types = HashType::ALL.into_iter().filter(|&hash_type| hash_type != off).collect();
        let config = Config { types, default_queue: Some(3), ..Config::default() };
        let mut rss = rss(&config, 4);
        let mut card = Card::new(&context(4));
        for (index, burst) in frames.chunks(64).enumerate() {
            let seen = card.run(&mut rss, &from_wire_0(burst.to_vec()));
            check(&config, 4, burst, &seen, index * 64);
            assert!(seen.iter().all(|packet| packet.over != over_of(off)));
        }
    }
}

#[test]
fn udp_flows_with_fragments_stay_on_one_queue_by_default() {
    for network in [Network::V4, Network::V6] {
        for tags in 0..3 {
            let whole = Spec { tags, ..Spec::plain(network, Upper::Udp) };
            let fragment = Spec { upper: Upper::LastFragment, ..whole.clone() };
            let door_of = |config: &Config, spec: &Spec| rss(config, 64).classify(&spec.build());
            let by_default = Config::default();
            assert_eq!(door_of(&by_default, &whole), door_of(&by_default, &fragment));
            // With the ports it does not: why this is not the default.
            let with_ports = Config { types: HashType::ALL.to_vec(), ..Config::default() };
            assert_ne!(door_of(&with_ports, &whole).queue, door_of(&with_ports, &fragment).queue);
            // TCP is hashed with its ports.
            let tcp = Spec { upper: Upper::Tcp, ..whole };
            let classified = door_of(&by_default, &tcp);
            assert!(matches!(classified.over, RssType::Ipv4Tcp | RssType::Ipv6Tcp));
        }
    }
}

#[test]
fn published_vectors_as_packets() {
    let all = Config { key: Some(published_key()), ..Config::default() };
    let two = Config { types: vec![HashType::Ipv4, HashType::Ipv6], ..all.clone() };
    for (config, over) in [(all, 0), (two, 1)] {
        let mut rss = rss(&config, 4);
        let (frames, hashes): (Vec<_>, Vec<_>) = published().unzip();
        for packet in Card::new(&context(4)).run(&mut rss, &from_wire_0(frames)) {
            let expected = hashes[packet.number][over];
            assert_eq!(packet.hash, expected, "vector {}", packet.number);
            assert_eq!(packet.door, Door::Queue((expected % 128 % 4) as u16));
        }
    }
}

/// Sixty-four TCP flows over both families.
fn flows() -> Vec<Vec<u8>> {
    (0..64u16)
        .map(|port| {
            let network = if port % 4 == 3 { Network::V6 } else { Network::V4 };
            Spec { ports: (port * 7, 80), ..Spec::plain(network, Upper::Tcp) }.build()
        })
        .collect()
}

fn obeys(rss: &mut Rss, change: &mut TableChange) -> bool {
    change.apply(rss, Time::ZERO)
}

#[test]
fn a_table_is_swapped_between_bursts() {
    let mut config = Config { table: Some(vec![0, 1, 2, 3, 0, 1, 2, 3]), ..Config::default() };
    let mut rss = rss(&config, 4);
    let mut card = Card::new(&context(4));
    let frames = flows();
    let seen = card.run(&mut rss, &from_wire_0(frames.clone()));
    check(&config, 4, &frames, &seen, 0);

    let after = vec![0, 1, 2, 3, 0, 1, 3, 2];
    let mut message = TableChange::table(IndirectionTable::from_entries(&after, 4).unwrap());
    assert!(obeys(&mut rss, &mut message));
    assert_eq!(message.outcome, Some(Ok(2)));
    let replaced = message.table.unwrap();
    assert_eq!(replaced.entries(), config.table.as_ref().unwrap());
    config.table = Some(after);
    let seen = card.run(&mut rss, &from_wire_0(frames.clone()));
    check(&config, 4, &frames, &seen, 64);

    let counters = rss.counters();
    assert_eq!((counters.tables_replaced.get(), counters.moved_entries.get()), (1, 2));
}

#[test]
fn tables_for_other_queues_are_refused_and_returned() {
    let config = Config::default();
    let mut rss = rss(&config, 4);
    let mut card = Card::new(&context(4));
    for queues in [3, 5] {
        let table = IndirectionTable::uniform(16, queues).unwrap();
        let mut message = TableChange::table(table.clone());
        assert!(!obeys(&mut rss, &mut message));
        let refusal = Refusal::Queues { found: queues, allowed: 4 };
        assert_eq!(message.outcome, Some(Err(refusal)));
        let text = format!("found a table for {queues} queues, allowed: a table for 4");
        assert_eq!(refusal.to_string(), text);
        assert_eq!(*message.table.unwrap(), table);
    }
    let frames = flows();
    let seen = card.run(&mut rss, &from_wire_0(frames.clone()));
    check(&config, 4, &frames, &seen, 0);
    assert_eq!(rss.counters().moved_entries.get(), 0);
}

#[test]
fn a_key_is_swapped_between_bursts() {
    let mut config = Config::default();
    let mut rss = rss(&config, 4);
    let mut card = Card::new(&context(4));
    let mut message = TableChange::key(&Key::symmetric());
    assert!(obeys(&mut rss, &mut message));
    assert_eq!(message.outcome, Some(Ok(128)));
    assert_eq!(*message.key.unwrap().key(), Key::MICROSOFT);
    config.symmetric = true;
    let frames = flows();
    let seen = card.run(&mut rss, &from_wire_0(frames.clone()));
    check(&config, 4, &frames, &seen, 0);
    // The same key once more moves nothing.
    let mut message = TableChange::key(&Key::symmetric());
    assert!(obeys(&mut rss, &mut message));
    assert_eq!(message.outcome, Some(Ok(0)));
    let counters = rss.counters();
    assert_eq!((counters.keys_replaced.get(), counters.moved_entries.get()), (2, 128));
}

#[test]
fn rss_state_can_be_read() {
    let settings = |rss: &mut Rss| {
        let mut show = Show::default();
        assert!(show.apply(rss, Time::ZERO));
        show
    };
    let table = vec![3, 1, 2, 0, 3];
    let mut toeplitz = rss(&Config { table: Some(table.clone()), ..Config::default() }, 4);
    let shown = settings(&mut toeplitz);
    assert_eq!((shown.hash, shown.key), (HashName::Toeplitz, Some(Key::MICROSOFT)));
    assert_eq!(shown.table(), table);
    assert!(obeys(&mut toeplitz, &mut TableChange::key(&Key::symmetric())));
    assert!(obeys(
        &mut toeplitz,
        &mut TableChange::table(IndirectionTable::uniform(4096, 4).unwrap())
    ));
    let shown = settings(&mut toeplitz);
    assert_eq!(shown.key, Some(Key::symmetric()));
    assert_eq!(shown.table().len(), 4096);
    let jhash = Config { hash: HashName::Jhash, jhash_init: Some(9), ..Config::default() };
    let shown = settings(&mut rss(&jhash, 4));
    assert_eq!((shown.hash, shown.key, shown.init), (HashName::Jhash, None, 9));
    let counters = toeplitz.counters();
    assert_eq!((counters.tables_replaced.get(), counters.keys_replaced.get()), (1, 1));
}

struct Other;

impl Order for Other {
    type Target = u32;
    fn apply(&mut self, _: &mut u32, _: Time) -> bool {
        panic!("it is not for rss")
    }
}

#[test]
fn key_and_table_change_together_or_not_at_all() {
    let table = |queues| Some(Box::new(IndirectionTable::uniform(64, queues).unwrap()));
    let key = || TableChange::key(&Key::symmetric());
    let mut toeplitz = rss(&Config::default(), 4);
    let counters = toeplitz.counters();
    let replaced = || (counters.tables_replaced.get(), counters.keys_replaced.get());
    assert!(!obeys(&mut toeplitz, &mut TableChange { table: table(3), ..key() }));
    assert_eq!(replaced(), (0, 0));
    assert!(obeys(&mut toeplitz, &mut TableChange { table: table(4), ..key() }));
    assert_eq!(replaced(), (1, 1));
    let mut jhash = rss(&Config { hash: HashName::Jhash, ..Config::default() }, 4);
    assert!(!obeys(&mut jhash, &mut TableChange { table: table(4), ..key() }));
    assert_eq!(jhash.counters().tables_replaced.get(), 0);
}

#[test]
fn keys_for_jhash_and_foreign_orders_are_refused() {
    let mut rss = rss(&Config { hash: HashName::Jhash, ..Config::default() }, 4);
    let mut message = TableChange::key(&Key::symmetric());
    assert!(!obeys(&mut rss, &mut message));
    assert_eq!(message.outcome, Some(Err(Refusal::NoKey)));
    // It ignores an order for another function.
    assert!(!rss.obey(&mut Prepared::new(Other), Time::ZERO));
}

#[test]
fn moved_entries_count_rerouted_hashes() {
    // Against every hash that the two lengths can tell apart.
    let lengths = [1, 2, 3, 4, 6, 8, 12];
    for (seed, (a, b)) in lengths.iter().flat_map(|a| lengths.map(|b| (*a, b))).enumerate() {
        let table = |length: usize, salt: usize| {
            let entry = |i: usize| ((i * 7 + seed * salt) % 5 / 2) as u16;
            (0..length).map(entry).collect::<Vec<_>>()
        };
        let (before, after) = (table(a, 3), table(b, 1));
        let mut rss = rss(&Config { table: Some(before.clone()), ..Config::default() }, 4);
        let mut message = TableChange::table(IndirectionTable::from_entries(&after, 4).unwrap());
        assert!(obeys(&mut rss, &mut message));
        let long = a.max(b);
        let moves = |hash: usize| before[hash % a] != after[hash % b];
        let moved = (0..long).filter(|r| (*r..a * b).step_by(long).any(moves)).count();
        assert_eq!(message.outcome, Some(Ok(moved)), "{before:?} to {after:?}");
    }
}

/// A packet in several buffers is judged as a whole, alone and among packets of other kinds.
#[test]
fn chained_packets_are_not_malformed() {
    let context = BuildContext { buffer_size: 256, ..context(4) };
    let mut rss = rss(&Config::default(), 4);
    let frames: Vec<_> =
        every_kind().into_iter().map(|spec| Spec { payload: 600, ..spec }.build()).collect();
    let bursts = frames.iter().map(std::slice::from_ref).chain(frames.chunks(64));
    for burst in bursts {
        let seen = Card::new(&context).run(&mut rss, &from_wire_0(burst.iter().cloned()));
        assert_eq!(seen.len(), burst.len());
        for packet in seen {
            let whole = layers::parse(&packet.data).packet_type;
            assert_eq!(packet.packet_type, whole);
            assert!(!whole.is_malformed());
        }
    }
}

// ---------------------------------------------------------------- weights, contexts, balance

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each queue has its weight's part, to within one entry; equal weights are no weights.
    #[test]
    fn weighted_tables_have_each_queues_share(
        weights in prop::collection::vec(prop_oneof![Just(0_u32), 1..20_u32, any::<u32>()], 1..20),
        size in 1..=4096_usize,
    ) {
        let queues = weights.len() as u16;
        let made = IndirectionTable::weighted(size, &weights, queues);
        let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let Ok(table) = made else {
            prop_assert_eq!(sum, 0.0);
            return Ok(());
        };
        for (count, &weight) in table.counts().into_iter().zip(&weights) {
            let part = size as f64 * f64::from(weight) / sum;
            prop_assert!((count as f64 - part).abs() < 1.5, "{count} in place of {part}");
            prop_assert!(weight != 0 || count == 0);
        }
        let equal = IndirectionTable::weighted(size, &vec![7; weights.len()], queues).unwrap();
        prop_assert_eq!(equal, IndirectionTable::uniform(size, queues).unwrap());
    }

    /// Packets of each mark go by the table of its context, all others by the one for all.
    #[test]
    fn contexts_are_chosen_by_mark(
        bursts in prop::collection::vec(
            prop::collection::vec((any_spec(), 0..5_u32), 1..=64), 1..4,
        ),
        removed in 1..4_u32,
    ) {
        let table_of = |mark: u32| vec![mark as u16, mark as u16 + 1, 5];
        let contexts = (1..4).map(|mark| Context {
            mark, table: Some(table_of(mark)), ..Context::default()
        });
        let config = Config { contexts: contexts.collect(), ..Config::default() };
        let mut rss = rss(&config, 8);
        let mut card = Card::new(&context(8));
        let mut first = 0;
        for (round, burst) in bursts.iter().enumerate() {
            if round == 1 {
                let mut change = TableChange { mark: Some(removed), ..TableChange::default() };
                prop_assert!(obeys(&mut rss, &mut change));
                let was = change.table.unwrap();
                prop_assert_eq!(was.entries(), table_of(removed));
            }
            let packets = from_wire_0(burst.iter().map(|(spec, _)| spec.build()));
            let mark = |place: usize, packet: &mut picnic_core::packet::desc::Descriptor| {
                packet.mark = burst[place].1;
            };
            for seen in card.run_with(&mut rss, &packets, mark) {
                let (spec, mark) = &burst[seen.number - first];
                let has_table = (1..4).contains(mark) && (round == 0 || *mark != removed);
                let table = has_table.then(|| table_of(*mark));
                let expected = Config { table, ..Config::default() };
                prop_assert_eq!(
                    (seen.hash, seen.over, seen.door), oracle(&expected, 8, &spec.build())
                );
            }
            first += burst.len();
        }
    }
}

#[test]
fn contexts_change_while_running_and_are_limited() {
    let mut rss = rss(&Config::default(), 4);
    let table = || Some(Box::new(IndirectionTable::uniform(4, 4).unwrap()));
    let mut outcome = |mark: usize, table| {
        let mut change = TableChange { mark: Some(mark as u32), table, ..TableChange::default() };
        obeys(&mut rss, &mut change);
        change.outcome.unwrap()
    };
    // The same queues for every hash: 128 entries and 4 agree.
    assert_eq!(outcome(9, None), Err(Refusal::NoContext { mark: 9 }));
    for mark in 1..=MAX_CONTEXTS {
        assert_eq!(outcome(mark, table()), Ok(0));
    }
    assert_eq!(outcome(99, table()), Err(Refusal::Contexts));
    assert_eq!(outcome(3, None), Ok(0));
    let other = IndirectionTable::from_entries(&[0, 1, 3, 2], 4).unwrap();
    assert_eq!(outcome(99, Some(Box::new(other))), Ok(64));
    let mut show = Show::default();
    assert!(show.apply(&mut rss, Time::ZERO));
    let shown = <picnic_functions::rss::Get as picnic_core::command::Command>::reply(show).unwrap();
    assert_eq!(shown.contexts.len(), MAX_CONTEXTS);
    let last = &shown.contexts[MAX_CONTEXTS - 1];
    assert_eq!((last.mark, &last.table[..]), (99, &[0, 1, 3, 2][..]));
    assert_eq!((shown.moved_entries, shown.rebalanced_entries), (64, 0));
}

/// The load of each queue over some intervals of flows, each with its number of packets.
fn loads(
    rss: &mut Rss,
    card: &mut Card,
    flows: &[(u16, usize)],
    intervals: usize,
) -> Vec<Vec<u64>> {
    let frame = |port| Spec { ports: (port, 80), ..Spec::plain(Network::V4, Upper::Tcp) }.build();
    let packets: Vec<_> =
        flows.iter().flat_map(|&(port, count)| std::iter::repeat_n(frame(port), count)).collect();
    (0..intervals)
        .map(|_| {
            let mut loads = vec![0; 4];
            for burst in packets.chunks(64) {
                for seen in card.run(rss, &from_wire_0(burst.iter().cloned())) {
                    let Door::Queue(queue) = seen.door else { panic!("{seen:?}") };
                    loads[usize::from(queue)] += 1;
                }
            }
            card.now = card.now + 1_000_000;
            loads
        })
        .collect()
}

#[test]
fn load_is_balanced_with_few_moves_then_stable() {
    let config = Config { rebalance_usecs: 1000, rebalance_moves: 2, ..Config::default() };
    let mut rss = rss(&config, 4);
    let mut card = Card::new(&context(4));
    // Forty flows; those of queue 0 send eight times as much.
    let flows: Vec<_> = (0..40)
        .map(|port| {
            let spec = Spec { ports: (port, 80), ..Spec::plain(Network::V4, Upper::Tcp) };
            let is_busy = rss.classify(&spec.build()).queue == Some(0);
            (port, if is_busy { 80 } else { 10 })
        })
        .collect();
    let mut moved = vec![0];
    let mut all = Vec::new();
    for _ in 0..30 {
        all.extend(loads(&mut rss, &mut card, &flows, 1));
        moved.push(rss.counters().rebalanced_entries.get());
    }
    assert!(moved.windows(2).all(|pair| pair[1] - pair[0] <= 2), "{moved:?}");
    let (first, last) = (&all[0], &all[29]);
    let (total, most) = (last.iter().sum::<u64>(), *last.iter().max().unwrap());
    assert!(first[0] * 4 > total * 2, "uneven at first: {first:?}");
    assert!(most * 4 * 100 <= total * 120, "{last:?}");
    assert_eq!(moved[15], moved[30], "what is in balance stays: {moved:?}");
    assert!(moved[30] > 0);
    assert_eq!(rss.counters().moved_entries.get(), moved[30]);
    // A table that is set is a new start, and its parts are the queues' shares.
    let mut change = TableChange::table(IndirectionTable::from_entries(&[3], 4).unwrap());
    assert!(obeys(&mut rss, &mut change));
    let after = loads(&mut rss, &mut card, &flows, 5);
    assert_eq!(after[4], [0, 0, 0, total]);
}

#[test]
fn single_large_flows_and_light_traffic_move_nothing() {
    let config =
        Config { rebalance_usecs: 1000, weights: Some(vec![1, 1, 2, 0]), ..Config::default() };
    let mut rss = rss(&config, 4);
    let mut card = Card::new(&context(4));
    let one = loads(&mut rss, &mut card, &[(1, 1000)], 5);
    assert!(one.windows(2).all(|pair| pair[0] == pair[1]), "{one:?}");
    // Fewer than 256 packets in an interval.
    loads(&mut rss, &mut card, &[(1, 100), (2, 20)], 5);
    assert_eq!(rss.counters().moved_entries.get(), 0);
    // Weights are kept: the third queue has half of all, the last none.
    let flows: Vec<_> = (0..400).map(|port| (port, 3)).collect();
    let even = loads(&mut rss, &mut card, &flows, 10);
    let shares: Vec<_> = even[9].iter().map(|&load| load * 100 / 1200).collect();
    assert!((19..=31).contains(&shares[0]) && (19..=31).contains(&shares[1]), "{shares:?}");
    assert!((44..=61).contains(&shares[2]) && shares[3] == 0, "{shares:?}");
}

#[test]
fn wrong_weights_contexts_and_rebalancing_are_refused() {
    let refused = |keys: &str, what: &str| {
        let message = crate::common::refusal(&format!("function = \"rss\"\n{keys}"));
        assert!(message.contains(what), "{keys}: {message}");
    };
    refused("weights = [1, 2]", "weights: found 2 weights, allowed: one for each of 4 queues");
    refused("weights = [0, 0, 0, 0]", "weights: found only weights of zero");
    refused("weights = [1, 1, 1, 1]\ntable = [0]", "weights: found together with a table");
    refused("contexts = [{}]", "contexts[0].mark: found 0");
    refused("contexts = [{ mark = 1 }, { mark = 1 }]", "contexts[1].mark: found 1");
    refused("contexts = [{ mark = 1, table = [4] }]", "contexts[0].table[0]: found queue 4");
    let many: Vec<_> = (1..=17).map(|mark| format!("{{ mark = {mark} }}")).collect();
    refused(&format!("contexts = [{}]", many.join(", ")), "contexts: found 17, allowed: 0 to 16");
    refused("rebalance_usecs = 999", "rebalance_usecs: found 999");
    refused("rebalance_moves = 0", "rebalance_moves: found 0, allowed: 1 to 64");
    refused("rebalance_percent = 1001", "rebalance_percent: found 1001, allowed: 1 to 1000");
}
