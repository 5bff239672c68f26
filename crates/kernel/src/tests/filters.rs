//! The same packets and filters in both engines: verdict, queue, bytes and counters are equal.

use super::differential::{DROPPED, Fate, POLLED, QUEUES, can_be_skb, of_frame, of_skb};
use super::functions::{Card, Door, Packet};
use super::{HANDOVERS, can_load, launch, parse};
use crate::object::Object;
use crate::plan::{Plan, plan};
use crate::rules::{Rules, room};
use crate::tables::Switch;
use address::hidden::{Outcome, outcome, reasons, rules};
use address::{address, frame, wide};
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::Stage;
use picnic_core::registry::BuildContext;
use picnic_filter::filters::FilterChange;
use picnic_filter::image::Judge;
use picnic_filter::{
    Action, Filter, FilterCode, FilterId, Filters, FiveTuple, Match, PortRange, Prefix, Protocol,
    Unreadable,
};
use picnic_forms::Handover;
use picnic_machine::relay::Relay;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[path = "../../../filter/tests/frames/mod.rs"]
#[allow(unreachable_pub)]
mod address;

/// The filters in the poll engine.
struct Polled {
    filters: Filters,
    function: Box<dyn Function>,
    card: Card,
    /// Packets so far, which number them.
    packets: usize,
}

impl Polled {
    fn new() -> Self {
        let filters = Filters::new(QUEUES);
        let function = filters.function(Stage::Rx).unwrap();
        let context = BuildContext { queues: QUEUES, wires: 1, ..BuildContext::default() };
        Polled { filters, function, card: Card::new(&context), packets: 0 }
    }

    fn run(&mut self, frames: &[Vec<u8>]) -> Vec<Fate> {
        let mut fates = vec![DROPPED; frames.len()];
        for frames in frames.chunks(32) {
            let packets: Vec<_> = frames.iter().map(|data| Packet((0, data.clone()))).collect();
            for seen in self.card.run(&mut *self.function, &packets) {
                let queue = match seen.door {
                    Door::Queue(queue) => queue,
                    _ => 0,
                };
                fates[seen.number - self.packets] =
                    Fate { queue: Some(queue), hash: (0, 0, 0), data: seen.data };
            }
        }
        self.packets += frames.len();
        fates
    }
}

/// The filters in the kernel.
struct Loaded {
    filters: Filters,
    rules: Rules,
    object: Object,
    plan: Plan,
    /// Keeps one of both ways open.
    _switch: Switch,
}

impl Loaded {
    fn new(handover: &str, filters: usize) -> Self {
        let card = parse(&format!(
            "[card]\nengine = \"kernel\"\n[[wire]]\nport = \"xdp\"\ninterface = \"k0\"\n\
             [[rx]]\nfunction = \"pass\"\n[host]\nattachment = \"stack\"\nqueues = {QUEUES}\n\
             target_cores = [0, 1]\nhandover = \"{handover}\"\n"
        ));
        let (mut plan, placement) = plan(&launch(&card)).unwrap();
        plan.room = room(filters);
        // Only XDP programs can hand packets to the poll engine.
        plan.is_hybrid = plan.handover == Handover::Cpumap;
        let mut object = Object::load(&plan, &placement.target_cores, true).unwrap();
        let filters = Filters::new(QUEUES);
        let judge = if plan.is_hybrid { Judge::Hybrid } else { Judge::Kernel };
        filters.write_only(plan.room, judge);
        let rules = Rules::new(&filters, object.filters().unwrap(), plan.room).unwrap();
        let relay = Relay { name: "k1".into(), index: 1, of: 1, network: 0 };
        let mut switch = object.ways(&[relay]).unwrap();
        switch.set(true).unwrap();
        Loaded { filters, rules, object, plan, _switch: switch }
    }

    fn run(&mut self, frames: &[Vec<u8>]) -> Vec<Fate> {
        self.rules.follow().unwrap();
        let fates = match self.plan.handover {
            Handover::Cpumap => {
                let program = self.object.wire(0).unwrap();
                frames.iter().map(|frame| of_frame(program, frame)).collect()
            }
            Handover::Skb => {
                let program = self.object.tc("steer_0").unwrap();
                frames.iter().map(|frame| of_skb(program, frame)).collect()
            }
        };
        self.rules.follow().unwrap();
        fates
    }
}

/// Both engines, with the same changes.
struct Both {
    polled: Polled,
    loaded: Loaded,
    ids: Vec<FilterId>,
    /// Packets handed to the poll engine so far.
    handed: usize,
}

impl Both {
    fn change(&mut self, remove: usize, add: &[Filter]) {
        let gone = self.ids.drain(..remove.min(self.ids.len())).collect::<Vec<_>>();
        let changes = || {
            let remove = gone.iter().map(|&id| FilterChange::Remove(id));
            let add = add.iter().cloned().map(|filter| match filter.action {
                Action::Poll if !self.loaded.plan.is_hybrid => {
                    Filter { action: Action::Accept, ..filter }
                }
                _ => filter,
            });
            remove
                .chain(add.map(|filter| FilterChange::Add(filter, FilterCode::default())))
                .collect()
        };
        let added = self.polled.filters.apply(changes()).unwrap();
        assert_eq!(self.loaded.filters.apply(changes()).unwrap(), added);
        self.ids.extend(added);
    }

    /// Packets that filters of the poll engine passed to it.
    fn met_by_poll(&self) -> u64 {
        let listed = self.polled.filters.list().into_iter();
        let polls = listed.filter(|listing| listing.filter.action == Action::Poll);
        polls.map(|listing| listing.packets).sum()
    }

    fn compare(&mut self, frames: &[Vec<u8>]) -> usize {
        let before = self.met_by_poll();
        let (polled, mut loaded) = (self.polled.run(frames), self.loaded.run(frames));
        // Packets handed over by the kernel pass the poll engine's filters at once.
        let handed: Vec<_> = loaded.iter_mut().filter(|fate| fate.queue == Some(POLLED)).collect();
        self.handed += handed.len();
        assert_eq!(handed.len() as u64, self.met_by_poll() - before);
        handed.into_iter().for_each(|fate| fate.queue = Some(0));
        for ((frame, polled), loaded) in frames.iter().zip(&polled).zip(&loaded) {
            if polled != loaded {
                let listed = self.polled.filters.list();
                let listed: Vec<_> = listed.iter().map(|listing| &listing.filter).collect();
                panic!("{polled:?}, in the kernel {loaded:?}: {frame:02x?} by {listed:#?}");
            }
        }
        let counts = |filters: &Filters| {
            let listed = filters.list().into_iter();
            listed
                .map(|found| (found.id, found.packets, found.bytes, found.unreadable_packets))
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(&self.polled.filters), counts(&self.loaded.filters));
        polled.iter().filter(|fate| fate.queue.is_none()).count()
    }
}

fn filter() -> impl Strategy<Value = Filter> {
    let lengths = prop_oneof![Just(0), Just(8), Just(16), Just(24), Just(31), Just(32)];
    let prefix = || proptest::option::weighted(0.7, (address(), lengths.clone()));
    let ports = || {
        prop_oneof![
            4 => Just(PortRange::ANY),
            2 => (0..8_u16).prop_map(PortRange::one),
            1 => (0..5_u16).prop_map(|low| PortRange::new(low, low + 3).unwrap()),
        ]
    };
    let protocol = prop_oneof![
        4 => Just(None),
        2 => Just(Some(6)),
        2 => Just(Some(17)),
        1 => prop::sample::select(vec![1_u8, 51, 58, 60, 135]).prop_map(Some),
    ];
    let action = prop_oneof![
        3 => Just(Action::Drop),
        2 => Just(Action::Accept),
        1 => Just(Action::Count),
        1 => (0..QUEUES).prop_map(Action::Steer),
        1 => Just(Action::Poll),
    ];
    let tuple = (prefix(), prefix(), ports(), ports(), protocol, any::<bool>());
    let place = (0..3_u8, 98..102_i32, prop::bool::weighted(0.8), prop::bool::weighted(0.05));
    (tuple, action, place).prop_map(|(tuple, action, (group, priority, stops, every))| {
        let (source, destination, source_ports, destination_ports, protocol, is_v6) = tuple;
        let prefix = |found: Option<(std::net::Ipv4Addr, u8)>| {
            let (address, length) = found?;
            match is_v6 {
                true => Prefix::new(wide(address), length),
                false => Prefix::new(address, length),
            }
        };
        let has_ports = source_ports != PortRange::ANY || destination_ports != PortRange::ANY;
        let tuple = FiveTuple {
            protocol: protocol
                .filter(|number| !has_ports || [6, 17].contains(number))
                .map(Protocol),
            source: prefix(source),
            destination: prefix(destination),
            source_ports,
            destination_ports,
        };
        let matching = if every { Match::Any } else { Match::FiveTuple(tuple) };
        let unreadable = if stops { Unreadable::Drop } else { Unreadable::Accept };
        let drops = action == Action::Drop;
        let filter = Filter::new("rule", matching, action)
            .in_group(format!("group-{group}"))
            .with_priority(priority);
        if drops { filter.with_unreadable(unreadable) } else { filter }
    })
}

fn draw<T: std::fmt::Debug>(runner: &mut TestRunner, from: &impl Strategy<Value = T>) -> T {
    from.new_tree(runner).unwrap().current()
}

/// Fragments, extension headers, tags, options: of all kinds, truncated anywhere.
fn frames(runner: &mut TestRunner) -> Vec<Vec<u8>> {
    let mut frames = super::frames::frames();
    frames.truncate(400);
    frames.extend(super::frames::captured());
    frames.extend((0..400).map(|_| draw(runner, &frame())));
    // IPv4 options: routes that end here, that continue, and nonsense.
    for options in [
        vec![131, 7, 4, 1, 2, 3, 4, 0],
        vec![1, 137, 7, 8, 1, 2, 3, 4],
        vec![1, 1, 1, 137, 7, 4, 9, 9],
        vec![7, 3, 4, 131, 3, 4, 0, 0],
        vec![7, 1, 131, 3],
        vec![131, 3, 4, 0],
        vec![0, 131, 7, 4],
    ] {
        let mut frame = address::Frame::default().bytes();
        frame[14] += options.len() as u8 / 4;
        frame[17] += options.len() as u8;
        frame.splice(34..34, options);
        frames.push(frame);
    }
    frames.retain(|frame| frame.len() >= 14 && can_be_skb(frame));
    frames
}

/// The flow of an IPv4 packet without options, if it is whole and has ports.
fn plain(frame: &[u8]) -> Option<FiveTuple> {
    let is_plain = frame.len() >= 38
        && frame[12..15] == [8, 0, 0x45]
        && [6, 17].contains(&frame[23])
        && frame[20] & 0x3f == 0
        && frame[21] == 0;
    let address = |at: usize| {
        let octets: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        Prefix::new(octets, 32)
    };
    is_plain.then(|| FiveTuple {
        protocol: Some(Protocol(frame[23])),
        source: address(26),
        destination: address(30),
        destination_ports: PortRange::one(u16::from_be_bytes([frame[36], frame[37]])),
        ..FiveTuple::default()
    })
}

#[test]
fn filters_judge_the_same_in_both_engines() {
    if !can_load("filters_judge_the_same_in_both_engines") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return picnic_testing::skip(
            "filters_judge_the_same_in_both_engines",
            "it needs two cores",
        );
    }
    let mut runner = TestRunner::deterministic();
    let frames = frames(&mut runner);
    for handover in HANDOVERS {
        let (polled, loaded) = (Polled::new(), Loaded::new(handover, 4096));
        let is_hybrid = loaded.plan.is_hybrid;
        let mut both = Both { polled, loaded, ids: Vec::new(), handed: 0 };
        let mut dropped = both.compare(&frames);
        assert_eq!(dropped, 0, "there is no filter");
        let mut any = |count| (0..count).map(|_| draw(&mut runner, &filter())).collect::<Vec<_>>();
        // Few, one more, one less, others: made in place and compiled again.
        for (remove, add) in [(0, 1), (0, 1), (1, 3), (0, 20), (10, 5), (30, 40)].repeat(3) {
            both.change(remove, &any(add));
            dropped += both.compare(&frames);
        }
        both.change(1000, &any(4000));
        dropped += both.compare(&frames);
        both.change(1, &any(1));
        dropped += both.compare(&frames);
        both.change(4000, &[]);
        assert_eq!(both.compare(&frames), 0);
        assert!(dropped > 3 * frames.len(), "{dropped} say little");
        assert_eq!(both.handed > frames.len(), is_hybrid, "{} say little", both.handed);
        // Rules for hash tables, with packets that are judged in registers.
        let mut runner = TestRunner::deterministic();
        let flows: Vec<_> = frames.iter().filter_map(|frame| plain(frame)).collect();
        assert!(flows.len() > 50, "{} flows say little", flows.len());
        for (turn, count) in [1, 3, 20, 100, 300].repeat(3).into_iter().enumerate() {
            let tuples = flows.iter().cycle().skip(turn * 37);
            let filters = tuples.take(count).map(|tuple| {
                let filter = draw(&mut runner, &filter());
                let is_any = filter.matching == Match::Any;
                let matching = if is_any { Match::Any } else { Match::FiveTuple(*tuple) };
                Filter { matching, ..filter }
            });
            both.change(1000, &filters.collect::<Vec<_>>());
            both.compare(&frames);
        }
    }
}

/// The table that checks the poll engine's reading of hidden parts.
#[test]
fn kernel_judges_every_protocol_with_every_hidden_part() {
    if !can_load("kernel_judges_every_protocol_with_every_hidden_part") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return picnic_testing::skip(
            "kernel_judges_every_protocol_with_every_hidden_part",
            "it needs two cores",
        );
    }
    let mut reasons = reasons();
    reasons.retain(|reason| can_be_skb(&reason.frame));
    let frames: Vec<_> = reasons.iter().map(|reason| reason.frame.clone()).collect();
    for handover in HANDOVERS {
        let mut loaded = Loaded::new(handover, 64);
        for rule in rules() {
            for unreadable in [Unreadable::Drop, Unreadable::Accept] {
                let rule = rule.clone().with_unreadable(unreadable);
                let id = loaded.filters.add(rule.clone()).unwrap();
                let fates = loaded.run(&frames);
                let mut stopped = 0;
                for (reason, fate) in reasons.iter().zip(fates) {
                    let expected = outcome(reason, &rule);
                    let passes = expected == Outcome::Passes;
                    assert_eq!(fate.queue.is_some(), passes, "{} by {rule:?}", reason.name);
                    stopped += u64::from(expected == Outcome::Unreadable);
                }
                let removed = loaded.filters.remove(id).unwrap();
                assert_eq!(removed.unreadable_packets, stopped, "{rule:?}");
            }
        }
    }
}
