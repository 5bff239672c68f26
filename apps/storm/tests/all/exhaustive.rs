//! Three members and four messages: every interleaving. One sender's messages are also tried with
//! every single loss; with messages of all members, that is some twenty million states, too many
//! for a test.
//!
//! A step is the submission of a member's next message, the arrival of the first packet of one of
//! the six links, or its loss if none was lost before. After each step, the member delivers due
//! messages and sends its packets. Timers fire when nothing is under way: a group that needs them
//! earlier would not finish. States with the same hash are examined once.

use picnic_core::time::Time;
use picnic_storm::{Member, Settings, To};
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const MEMBERS: usize = 3;
const MESSAGES: usize = 4;

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
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn logs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.nodes.iter().map(|node| &node.0.0.log)
    }

    /// Calls `visit` with each state that one step leads to.
    fn steps(&self, mut visit: impl FnMut(State)) {
        let mut is_quiet = true;
        for (place, node) in self.nodes.iter().enumerate() {
            let to_submit = node.0.0.to_submit;
            if to_submit > 0 {
                visit(self.with(place, |node| {
                    node.to_submit -= 1;
                    node.member.submit(&[(place * MESSAGES + to_submit) as u8]).unwrap();
                }));
            }
            for receiver in 0..MEMBERS {
                let mut next = self.clone();
                let Some(packet) = next.links[place][receiver].pop_front() else { continue };
                is_quiet = false;
                visit(next.with(receiver, |node| {
                    node.member.receive(self.now, &packet.0.0).unwrap();
                }));
                if self.may_lose {
                    visit(State { may_lose: false, ..next });
                }
            }
        }
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

/// Goes through every state: how many there are, and how many ends.
fn explore(to_submit: [usize; MEMBERS], may_lose: bool) -> (usize, usize) {
    assert_eq!(to_submit.iter().sum::<usize>(), MESSAGES);
    let first = State::new(to_submit, may_lose);
    let (mut seen, mut ends) = (HashSet::from([first.hash_of()]), 0);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        state.check();
        let mut is_end = true;
        state.steps(|next| {
            is_end = false;
            if seen.insert(next.hash_of()) {
                open.push(next);
            }
        });
        if is_end {
            ends += 1;
            assert!(state.logs().all(|log| log.len() == MESSAGES), "a message is lost");
        }
    }
    (seen.len(), ends)
}

#[test]
fn every_interleaving_and_every_single_loss_of_one_senders_messages_gives_one_order() {
    let (states, ends) = explore([4, 0, 0], true);
    assert!(states > 100_000 && ends > 1, "found {states} states, {ends} ends");
}

#[test]
fn every_interleaving_of_messages_of_all_members_gives_one_order() {
    let (states, ends) = explore([2, 1, 1], false);
    assert!(states > 500_000 && ends > 1, "found {states} states, {ends} ends");
}
