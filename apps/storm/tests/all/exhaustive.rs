//! Three members and four messages: every interleaving and every single loss.
//!
//! A step is the submission of a member's next message, the arrival of the first packet of one of
//! the six links, or its loss. Behind each step the member delivers what is due and sends what it
//! has. Timers fire when nothing is under way: a group that needs them earlier would not come to its
//! end. States with one hash are looked at once.
//!
//! Steps of different members commute: each changes its member, takes from the front of links to it
//! and adds behind links from it. So a search need not try all of their orders (persistent sets,
//! Godefroid 1996). If no link from other members to some members is empty, these members' steps are
//! enough: nobody else can add one that comes first. Losses do not commute, since only one packet is
//! lost: as long as one may be, all steps are tried. Such a search reaches every end that the full one
//! does; what is checked holds in all states if it does at the ends, because logs only grow
//! (decision 070).

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

#[derive(Clone, Hash)]
struct State {
    nodes: [Hashed<Node>; MEMBERS],
    /// Packets under way from the first member to the second.
    links: [[VecDeque<Hashed<Vec<u8>>>; MEMBERS]; MEMBERS],
    /// Any packet may be lost; afterwards, no other.
    may_lose: bool,
    now: Time,
}

impl State {
    fn new(to_submit: [usize; MEMBERS], may_lose: bool) -> Self {
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
        State { nodes: [0, 1, 2].map(node), links: Default::default(), may_lose, now: Time::ZERO }
    }

    /// The state in which `change` has happened to a member, which then delivered and sent.
    fn with(mut self, place: usize, change: impl FnOnce(&mut Node)) -> State {
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
                    self.links[place][receiver].push_back(packet.clone());
                }
            }
        }
        self.nodes[place] = Hashed::new(node);
        self
    }

    fn hash_of(&self) -> u64 {
        hash_of(self)
    }

    /// Identifies a state without packets under way, whether or not one was lost.
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
                visit(self.clone().with(place, |node| {
                    node.to_submit -= 1;
                    node.member.submit(&[(place * MESSAGES + to_submit) as u8]).unwrap();
                }));
            }
            for from in (0..MEMBERS).filter(|from| *from != place) {
                let mut next = self.clone();
                let Some(packet) = next.links[from][place].pop_front() else { continue };
                if self.may_lose {
                    visit(State { may_lose: false, ..next.clone() });
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
    /// Goes through the states: all of them, or those that are enough to reach every end.
    fn explore(to_submit: [usize; MEMBERS], may_lose: bool, is_full: bool) -> Self {
        let messages: usize = to_submit.iter().sum();
        let mut found = Found::default();
        let mut open = vec![State::new(to_submit, may_lose)];
        found.seen.insert(open[0].hash_of());
        while let Some(state) = open.pop() {
            state.check();
            let is_full = is_full || state.may_lose;
            let members = if is_full { [true; MEMBERS] } else { state.persistent() };
            let mut is_end = true;
            state.steps(members, |next| {
                is_end = false;
                if found.seen.insert(next.hash_of()) {
                    open.push(next);
                }
            });
            if is_end {
                found.ends.insert(state.end());
                assert!(state.logs().all(|log| log.len() == messages), "a message is lost");
            }
        }
        let (states, ends) = (found.seen.len(), found.ends.len());
        println!("{to_submit:?}: {states} states, {ends} ends");
        found
    }
}

#[test]
fn a_reduced_search_reaches_the_ends_of_a_full_one() {
    for (to_submit, may_lose) in [([4, 0, 0], true), ([1, 1, 1], true), ([2, 1, 1], false)] {
        let full = Found::explore(to_submit, may_lose, true);
        let reduced = Found::explore(to_submit, may_lose, false);
        assert!(full.ends.len() > 1 && reduced.ends == full.ends, "{to_submit:?}");
    }
}

#[test]
fn every_interleaving_and_every_single_loss_of_two_members_messages_gives_one_order() {
    assert!(Found::explore([3, 1, 0], true, false).seen.len() > 1_000_000);
}

#[test]
fn every_interleaving_and_every_single_loss_of_all_members_messages_gives_one_order() {
    assert!(Found::explore([2, 1, 1], true, false).seen.len() > 5_000_000);
}
