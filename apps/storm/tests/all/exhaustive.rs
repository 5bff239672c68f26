//! Three members and four messages: every interleaving, and with messages of one or two members
//! every single loss. Of all three, four messages with every loss take too long (decision 070).
//!
//! A step is the submission of a member's next message, the arrival of the first packet of one of
//! the six links, or its loss. Behind each step the member delivers what is due and sends what it
//! has. Timers fire when nothing is under way: a group that needs them earlier would not come to its
//! end. States with one hash are looked at once.
//!
//! Steps of different members commute: each changes its member, takes from the front of links to it
//! and adds behind links from it. So a search need not try all of their orders (persistent sets,
//! Godefroid 1996). If no link from other members to some members is empty, these members' steps are
//! enough: nobody else can add one that comes first. The lost packet is chosen before, one search
//! each, since two losses would not commute. Such a search reaches every end that the full one does;
//! what is checked holds in all states if it does at the ends, because logs only grow.

use picnic_core::time::Time;
use picnic_storm::{Member, Settings, To};
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const MEMBERS: usize = 3;
const MESSAGES: usize = 4;
const LINKS: [(usize, usize); 6] = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];

/// A value and its hash, computed once.
#[derive(Clone)]
struct Hashed<T>(Rc<(T, u64)>);

impl<T: Hash> Hashed<T> {
    fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Hashed(Rc::new((value, hasher.finish())))
    }
}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.1.hash(state);
    }
}

/// A member, the messages that it has still to submit, and those that it has delivered.
#[derive(Clone, Hash)]
struct Node {
    member: Member,
    to_submit: usize,
    log: Vec<u8>,
}

/// Which packet is lost.
#[derive(Clone, Copy, Hash)]
enum Loss {
    None,
    /// Any one.
    Any,
    /// The packet of this number on the link from the first member to the second.
    At(usize, usize, usize),
}

#[derive(Clone, Hash)]
struct State {
    nodes: [Hashed<Node>; MEMBERS],
    /// Packets under way from the first member to the second.
    links: [[VecDeque<Hashed<Vec<u8>>>; MEMBERS]; MEMBERS],
    loss: Loss,
    now: Time,
}

impl State {
    fn new(to_submit: [usize; MEMBERS], loss: Loss) -> Self {
        let settings = Settings {
            members: ["a", "b", "c"].map(String::from).into(),
            window_bytes: 1024,
            payload_bytes: 1,
            packet_bytes: 128,
            ..Settings::default()
        };
        let node = |me| {
            let member = Member::new(Settings { me, ..settings.clone() }).unwrap();
            Hashed::new(Node { member, to_submit: to_submit[usize::from(me)], log: Vec::new() })
        };
        State { nodes: [0, 1, 2].map(node), links: Default::default(), loss, now: Time::ZERO }
    }

    /// The state in which `change` has happened to a member, which then delivered and sent.
    fn with(&self, place: usize, change: impl FnOnce(&mut Node)) -> State {
        let mut next = self.clone();
        let mut node = self.nodes[place].0.0.clone();
        change(&mut node);
        while let Some(delivery) = node.member.deliver() {
            node.log.push(delivery.payload[0]);
        }
        let mut buffer = [0; 128];
        while let Some((to, length)) = node.member.transmit(self.now, &mut buffer) {
            let packet = Hashed::new(buffer[..length].to_vec());
            for receiver in 0..MEMBERS {
                if receiver != place && (to == To::All || to == To::One(receiver as u8)) {
                    next.links[place][receiver].push_back(packet.clone());
                }
            }
        }
        next.nodes[place] = Hashed::new(node);
        next
    }

    fn hash_of(&self) -> u64 {
        hash_of(self)
    }

    /// Identifies a state without packets under way, whichever loss was still to come.
    fn end(&self) -> u64 {
        hash_of(&(&self.nodes, self.now))
    }

    /// Steps of a member that are possible now.
    fn possible(&self, place: usize) -> usize {
        let links = self.links.iter().filter(|links| !links[place].is_empty()).count();
        links + usize::from(self.nodes[place].0.0.to_submit > 0)
    }

    /// Members whose steps are enough, as few steps as possible.
    fn persistent(&self) -> [bool; MEMBERS] {
        let from = |first: usize| {
            let mut set = [false; MEMBERS];
            set[first] = true;
            for _ in 1..MEMBERS {
                for (from, to) in LINKS {
                    // Whoever can be first on an empty link counts, too.
                    set[from] |= set[to] && self.links[from][to].is_empty();
                }
            }
            set
        };
        let steps = |set: &[bool; MEMBERS]| -> usize {
            (0..MEMBERS).filter(|place| set[*place]).map(|place| self.possible(place)).sum()
        };
        let sets = (0..MEMBERS).map(from).filter(|set| steps(set) > 0);
        sets.min_by_key(steps).unwrap_or([true; MEMBERS])
    }

    fn logs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.nodes.iter().map(|node| &node.0.0.log)
    }

    /// Calls `visit` with each state that one step of these members leads to.
    fn steps(&self, members: [bool; MEMBERS], mut visit: impl FnMut(State)) {
        for place in (0..MEMBERS).filter(|place| members[*place]) {
            let to_submit = self.nodes[place].0.0.to_submit;
            if to_submit > 0 {
                visit(self.with(place, |node| {
                    node.to_submit -= 1;
                    node.member.submit(&[(place * MESSAGES + to_submit) as u8]).unwrap();
                }));
            }
            for from in (0..MEMBERS).filter(|from| *from != place) {
                let mut next = self.clone();
                let Some(packet) = next.links[from][place].pop_front() else { continue };
                match self.loss {
                    Loss::At(lost_from, lost_to, before)
                        if (lost_from, lost_to) == (from, place) =>
                    {
                        let Some(before) = before.checked_sub(1) else {
                            visit(State { loss: Loss::None, ..next });
                            continue;
                        };
                        next.loss = Loss::At(from, place, before);
                    }
                    Loss::Any => visit(State { loss: Loss::None, ..next.clone() }),
                    _ => {}
                }
                visit(next.with(place, |node| {
                    node.member.receive(self.now, &packet.0.0).unwrap();
                }));
            }
        }
        let is_quiet = LINKS.iter().all(|(from, to)| self.links[*from][*to].is_empty());
        let deadlines = self.nodes.iter().map(|node| node.0.0.member.next_deadline());
        let (deadline, late) = deadlines.zip(0..).min().unwrap();
        if is_quiet && deadline < Time::MAX {
            let later = State { now: self.now.max(deadline), ..self.clone() };
            visit(later.with(late, |_| {}));
        }
    }

    /// Holds in every state.
    fn check(&self) {
        let longest = self.logs().max_by_key(|log| log.len()).unwrap();
        for log in self.logs() {
            assert_eq!(log[..], longest[..log.len()], "two orders");
        }
        for sender in 0..MEMBERS {
            let own =
                longest.iter().filter(|number| usize::from(**number - 1) / MESSAGES == sender);
            assert!(own.is_sorted_by(|a, b| a > b), "a sender's messages out of order, or twice");
        }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What searches have found.
#[derive(Default)]
struct Found {
    seen: HashSet<u64>,
    ends: HashSet<u64>,
}

impl Found {
    /// Goes through the states: all of them, or those that are enough to reach every end. Whether a
    /// chosen packet was lost.
    fn explore(&mut self, to_submit: [usize; MEMBERS], loss: Loss, is_full: bool) -> bool {
        let messages: usize = to_submit.iter().sum();
        let mut any_lost = false;
        let mut open = vec![State::new(to_submit, loss)];
        self.seen.insert(open[0].hash_of());
        while let Some(state) = open.pop() {
            state.check();
            let members = if is_full { [true; MEMBERS] } else { state.persistent() };
            let mut is_end = true;
            state.steps(members, |next| {
                is_end = false;
                any_lost |= matches!((state.loss, next.loss), (Loss::At(..), Loss::None));
                if self.seen.insert(next.hash_of()) {
                    open.push(next);
                }
            });
            if is_end {
                self.ends.insert(state.end());
                assert!(state.logs().all(|log| log.len() == messages), "a message is lost");
            }
        }
        any_lost
    }

    /// Every interleaving with no loss and with every single one, by persistent sets.
    fn explore_losses(&mut self, to_submit: [usize; MEMBERS]) {
        self.explore(to_submit, Loss::None, false);
        for (from, to) in LINKS {
            let mut before = 0;
            while self.explore(to_submit, Loss::At(from, to, before), false) {
                before += 1;
            }
        }
    }
}

#[test]
fn every_interleaving_and_every_single_loss_of_one_senders_messages_gives_one_order() {
    let (mut full, mut reduced) = (Found::default(), Found::default());
    full.explore([4, 0, 0], Loss::Any, true);
    assert!(full.seen.len() > 100_000 && full.ends.len() > 1, "found {} states", full.seen.len());
    reduced.explore_losses([4, 0, 0]);
    println!("{} of {} states", reduced.seen.len(), full.seen.len());
    assert_eq!(reduced.ends, full.ends, "a reduced search reaches the same ends");
}

#[test]
fn every_interleaving_of_messages_of_all_members_gives_one_order() {
    let (mut full, mut reduced) = (Found::default(), Found::default());
    full.explore([2, 1, 1], Loss::None, true);
    let (states, ends) = (full.seen.len(), full.ends.len());
    assert!(states > 500_000 && ends > 1, "found {states} states, {ends} ends");
    reduced.explore([2, 1, 1], Loss::None, false);
    println!("{} of {states} states", reduced.seen.len());
    assert_eq!(reduced.ends, full.ends, "a reduced search reaches the same ends");
}

#[test]
fn every_interleaving_and_every_single_loss_of_several_senders_gives_one_order() {
    for (to_submit, least) in [([1, 1, 1], 100_000), ([3, 1, 0], 1_000_000)] {
        let mut found = Found::default();
        found.explore_losses(to_submit);
        let (states, ends) = (found.seen.len(), found.ends.len());
        println!("{to_submit:?}: {states} states, {ends} ends");
        assert!(states > least && ends > 1, "{to_submit:?}: found {states} states, {ends} ends");
    }
}
