//! Members that crash, start again, come late, and are cut off.

use crate::network::{Delivered, Network, Weather, settings};
use picnic_core::time::Time;
use picnic_storm::{Member, Settings, State};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

const CALM: Weather = Weather { latency_ns: (1000, 500), loss_percent: 0, twice_percent: 0 };
const PATIENCE_NS: u64 = 1_000_000;

/// Deliveries of a member without a gap: a run of the member, or the part of it between two joins.
type Part = Vec<Delivered>;

struct Group {
    network: Network,
    settings: Settings,
    parts: Vec<Part>,
    /// Where each member's current part starts in its log, and the view when that was last seen.
    starts: Vec<(usize, u32)>,
    lives: Vec<u32>,
    /// Payloads submitted in a life that goes on.
    submitted: Vec<BTreeSet<Vec<u8>>>,
    number: u64,
}

impl Group {
    fn new(seed: u64, count: usize, weather: Weather) -> Self {
        let settings =
            Settings { suspect_after_ns: PATIENCE_NS, incarnation: 1, ..settings(count) };
        Group {
            network: Network::new(seed, &settings, weather),
            settings,
            parts: Vec::new(),
            starts: vec![(0, 0); count],
            lives: vec![1; count],
            submitted: vec![BTreeSet::new(); count],
            number: 0,
        }
    }

    fn count(&self) -> usize {
        self.lives.len()
    }

    fn end_part(&mut self, member: usize) {
        let log = &self.network.logs[member];
        self.parts.push(log[self.starts[member].0..].to_vec());
        self.starts[member].0 = log.len();
    }

    /// A view that does not follow the last one begins a part.
    fn look(&mut self, member: usize) {
        let view = self.network.members[member].view();
        let is_outside = self.network.members[member].state() == State::Outside;
        if is_outside || view > self.starts[member].1 + 1 {
            self.end_part(member);
        }
        self.starts[member].1 = view;
    }

    fn run_for(&mut self, nanoseconds: u64) {
        let end = self.network.now + nanoseconds;
        while self.network.now < end && self.network.step() {
            (0..self.count()).for_each(|member| self.look(member));
        }
    }

    fn submit(&mut self, member: usize) {
        self.number += 1;
        let payload = self.number.to_le_bytes().to_vec();
        if self.network.members[member].submit(&payload).is_ok() {
            self.submitted[member].insert(payload);
        }
        self.network.serve(member);
        self.look(member);
    }

    fn crash(&mut self, member: usize) {
        self.network.is_down[member] = true;
        self.end_part(member);
        self.submitted[member].clear();
    }

    fn restart(&mut self, member: usize) {
        self.lives[member] += 1;
        let (me, incarnation) = (member as u8, self.lives[member]);
        let settings = Settings { me, incarnation, ..self.settings.clone() };
        self.network.members[member] = Member::new(settings).unwrap();
        self.network.is_down[member] = false;
        self.starts[member].1 = 0;
    }

    /// The members that run are in one view with each other.
    fn is_together(&self) -> bool {
        let up = (0..self.count()).filter(|member| !self.network.is_down[*member]);
        let members: Vec<_> = up.map(|member| &self.network.members[member]).collect();
        let view = members[0].view();
        let is_in = |member: &&Member| member.state() == State::Running && member.view() == view;
        members.iter().all(is_in) && members[0].members().count() == members.len()
    }

    /// Whether a majority is still in the newest view without this member: if it crashes with too
    /// many others, their messages are lost.
    fn can_lose(&self, member: usize) -> bool {
        let members = &self.network.members;
        let newest = members.iter().map(Member::view).max().unwrap();
        let stays = |other: &usize| {
            let is_up = *other != member && !self.network.is_down[*other];
            is_up && members[*other].view() == newest && members[*other].state() == State::Running
        };
        let staying = (0..self.count()).filter(stays).count();
        !self.network.is_down[member] && staying > self.count() / 2
    }

    /// All parts are parts of one order, and none leaves out what another has between two messages.
    fn check(&mut self, seed: u64) {
        (0..self.count()).for_each(|member| self.end_part(member));
        let mut order = BTreeMap::new();
        let mut stamps = BTreeMap::new();
        for message in self.parts.iter().flatten() {
            let stamp = (message.timestamp, message.sender);
            let other = order.insert(stamp, &message.payload);
            assert!(
                other.is_none_or(|other| *other == message.payload),
                "seed {seed}: two at {stamp:?}"
            );
            let other = stamps.insert(&message.payload, stamp);
            assert!(other.is_none_or(|other| other == stamp), "seed {seed}: one at two places");
        }
        for part in self.parts.iter().filter(|part| !part.is_empty()) {
            let stamp = |message: &Delivered| (message.timestamp, message.sender);
            let (first, last) = (stamp(&part[0]), stamp(&part[part.len() - 1]));
            let expected: Vec<_> = order.range(first..=last).map(|(stamp, _)| *stamp).collect();
            let found: Vec<_> = part.iter().map(stamp).collect();
            assert_eq!(found, expected, "seed {seed}: a part with another order, or a gap");
        }
        for payload in self.submitted.iter().flatten() {
            assert!(
                stamps.contains_key(payload),
                "seed {seed}: {payload:?} of a living sender is lost"
            );
        }
    }
}

/// A run with random failures, then calm: its trace, the number of its last view, and how many
/// messages were delivered at most.
fn run(seed: u64) -> (u64, u32, usize) {
    let weather = Weather {
        latency_ns: (1000, 1000 * (seed % 20)),
        loss_percent: (seed % 4) as u32 * 3,
        twice_percent: (seed % 3) as u32 * 5,
    };
    let mut group = Group::new(seed, 3 + (seed % 3) as usize, weather);
    let count = group.count();
    for _ in 0..40 {
        let member = group.network.random.random_range(0..count);
        match group.network.random.random_range(0..20) {
            0 if group.can_lose(member) => group.crash(member),
            1 | 2 if group.network.is_down[member] => group.restart(member),
            3 => group.network.island[member] ^= 1,
            4 => group.network.island.fill(0),
            5 => group.run_for(5 * PATIENCE_NS),
            _ => {}
        }
        for _ in 0..4 {
            let member = group.network.random.random_range(0..count);
            if !group.network.is_down[member] {
                group.submit(member);
            }
            let time = group.network.random.random_range(0..200_000);
            group.run_for(time);
        }
    }
    group.network.weather = CALM;
    group.network.island.fill(0);
    (0..count)
        .filter(|member| group.network.is_down[*member])
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|member| group.restart(member));
    for round in 0.. {
        group.run_for(PATIENCE_NS);
        if group.is_together() {
            break;
        }
        let states =
            || group.network.members.iter().map(|m| (m.view(), m.state())).collect::<Vec<_>>();
        assert!(round < 200, "seed {seed}: not together again: {:?}", states());
    }
    (0..count).for_each(|member| group.submit(member));
    group.run_for(20 * PATIENCE_NS);
    group.check(seed);
    for log in &group.network.logs {
        let last: BTreeSet<_> =
            log[log.len() - count..].iter().map(|m| m.payload.clone()).collect();
        let fresh = |number| (number as u64).to_le_bytes().to_vec();
        let expected =
            (group.number as usize + 1 - count..=group.number as usize).map(fresh).collect();
        assert_eq!(last, expected, "seed {seed}: the group does not go on");
    }
    let longest = group.network.logs.iter().map(Vec::len).max().unwrap();
    (group.network.trace(), group.network.members[0].view(), longest)
}

#[test]
fn crashes_restarts_and_partitions_leave_one_order() {
    let (mut views, mut messages) = (0, 0);
    for seed in 0..1000 {
        let result = run(seed);
        views += result.1;
        messages += result.2;
        if seed % 20 == 0 {
            assert_eq!(result, run(seed), "seed {seed}: two runs differ");
        }
    }
    assert!(views > 3_000 && messages > 50_000, "found {views} views, {messages} messages");
}

#[test]
fn minority_stops_with_a_reason_and_joins_again() {
    let mut group = Group::new(1, 5, CALM);
    group.run_for(20 * PATIENCE_NS);
    assert!(group.is_together());
    group.network.island = vec![0, 0, 1, 1, 1];
    (0..5).for_each(|member| group.submit(member));
    group.run_for(20 * PATIENCE_NS);
    let state = group.network.members[0].state();
    assert_eq!(state, State::Changing { answered: 2, needed: 3 });
    assert!(group.network.members[0].submit(b"x").is_err());
    for member in 2..5 {
        assert_eq!(group.network.members[member].members().collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(group.network.logs[member].len(), 3);
    }
    assert_eq!(group.network.logs[0].len(), 0);
    group.network.island.fill(0);
    group.run_for(50 * PATIENCE_NS);
    assert!(group.is_together());
    // The messages of the minority are delivered, too: their senders live.
    assert!((0..5).all(|member| group.network.logs[member].len() >= 2));
    group.check(1);
}

/// The coordinator of a view change crashes after each membership packet in turn.
#[test]
fn a_crash_at_every_step_of_a_view_change_leaves_one_order() {
    let mut reached = 0;
    for step in 1..60 {
        for victim in 0..3 {
            let mut group = Group::new(step, 5, CALM);
            group.run_for(20 * PATIENCE_NS);
            (0..5).for_each(|member| group.submit(member));
            group.run_for(1500);
            group.crash(4);
            let before = group.network.membership_packets;
            while group.network.membership_packets - before < step
                && group.network.now < Time::from_nanos(40 * PATIENCE_NS)
            {
                group.run_for(1);
            }
            reached = reached.max(group.network.membership_packets - before);
            group.crash(victim);
            group.run_for(20 * PATIENCE_NS);
            assert!(group.is_together(), "step {step}: three of five do not go on");
            (0..5).filter(|m| *m != victim && *m != 4).for_each(|member| group.submit(member));
            group.run_for(10 * PATIENCE_NS);
            group.restart(4);
            group.restart(victim);
            group.run_for(50 * PATIENCE_NS);
            assert!(group.is_together(), "step {step}: the crashed do not join");
            group.check(step);
        }
    }
    assert!(reached > 12, "a view change has {reached} packets");
}

#[test]
fn duplicate_names_are_counted_and_the_group_continues() {
    let mut group = Group::new(1, 3, CALM);
    group.run_for(20 * PATIENCE_NS);
    assert!(group.is_together());
    // A second process with the name of member 1 has another incarnation: the older one is out.
    let settings = Settings { me: 1, incarnation: 9, ..group.settings.clone() };
    let mut twin = Member::new(settings).unwrap();
    let (mut buffer, now) = ([0; 600], group.network.now);
    while let Some((_, length)) = twin.transmit(now, &mut buffer) {
        let _ = group.network.members[0].receive(now, &buffer[..length]);
        let _ = group.network.members[1].receive(now, &buffer[..length]);
    }
    assert!(group.network.members[1].counts().twins > 0);
    group.run_for(60 * PATIENCE_NS);
    (0..3).for_each(|member| group.submit(member));
    group.run_for(20 * PATIENCE_NS);
    group.check(1);
}
