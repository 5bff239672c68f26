//! The members of the group and the messages of the old view, agreed by a majority.
//!
//! A view is a number and a set of members. Silence makes a member suspect. Then, or if a member
//! wants to join, the first unsuspected member starts an attempt (the others do if nothing
//! happens):
//!
//! ```text
//! coordinator   Prepare ─▶ members of the old view stop delivering and taking messages
//!               ◀─ Promise   each member's position in every stream
//!               Accept ─▶    the new members, and the end of each stream: the furthest position
//!               ◀─ Accepted  once a member has all messages up to these ends
//!               Install ─▶   once a majority of the group has
//! ```
//!
//! This is Paxos for one value, the view that follows a view. A member that installs a view first
//! delivers the old view's messages up to their ends. A message that any member has delivered is
//! held by a majority, and so by a member that promises: it is before the end.
//!
//! A member outside asks to join until it is installed. Its messages of an earlier view that the
//! group does not have get new timestamps.
//!
//! Guarantees: members of two consecutive views deliver the same messages of the first; a minority
//! delivers nothing more. If a majority fails at the same time, the group ends, because nothing
//! is kept on disk.
//!
//! Source: Lamport's paper leaves failures out. Views: Birman and Joseph, "Exploiting virtual
//! synchrony in distributed systems", SOSP 1987; agreement: Lamport, "Paxos made simple", 2001.

mod enter;

use super::{Member, Set};
use crate::agreement::{Agreement, Entry, Proposal, Step};
use crate::member::To;
use crate::wire::Header;
use picnic_core::time::Time;
use std::collections::VecDeque;

/// Whether a member is in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It sends and delivers.
    Running,
    /// A view change is under way, or cannot finish: nothing is sent or delivered.
    Changing {
        /// Members of the old view that answered.
        answered: usize,
        /// Members that must answer.
        needed: usize,
    },
    /// It is in no view and asks to join.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Running,
    Frozen,
    Outside,
}

/// An attempt at a view that this member coordinates.
#[derive(Clone, Debug, Hash)]
struct Attempt {
    ballot: u64,
    promises: Vec<Option<(Agreement, u32)>>,
    proposal: Option<Proposal>,
    accepted: Set,
    until: Time,
}

/// A proposal that this member accepts or installs once it has everything.
#[derive(Clone, Debug, Hash)]
struct Pending {
    ballot: u64,
    proposal: Proposal,
    is_decided: bool,
}

/// The state of a member's views.
#[derive(Clone, Debug, Hash)]
pub(super) struct Views {
    suspect_after_ns: u64,
    pub(super) phase: Phase,
    /// Messages with timestamps up to this belong to earlier views, and all of them are here.
    pub(super) clock: u64,
    incarnations: Vec<u32>,
    heard: Vec<Time>,
    suspected: Set,
    joiners: Vec<Option<u32>>,
    promised: u64,
    accepted: Option<(u64, Proposal)>,
    pending: Option<Pending>,
    attempt: Option<Attempt>,
    installed: Proposal,
    outbox: VecDeque<(To, Agreement)>,
    is_started: bool,
    /// When to act next; `Time::MAX` if there is no reason.
    act_at: Time,
    /// When a frozen member starts its own attempt.
    frozen_until: Time,
    /// When this member may ask again for the later view that others are in.
    ask_at: Time,
    /// When to send something, so that no member suspects this one.
    speak_at: Time,
}

impl Views {
    pub(super) fn new(members: usize, suspect_after_ns: u64) -> Self {
        Views {
            suspect_after_ns,
            phase: if suspect_after_ns == 0 { Phase::Running } else { Phase::Frozen },
            clock: 0,
            incarnations: vec![0; members],
            heard: vec![Time::ZERO; members],
            suspected: 0,
            joiners: vec![None; members],
            promised: 0,
            accepted: None,
            pending: None,
            attempt: None,
            installed: Proposal::default(),
            outbox: VecDeque::new(),
            is_started: false,
            act_at: Time::MAX,
            frozen_until: Time::MAX,
            ask_at: Time::ZERO,
            speak_at: Time::MAX,
        }
    }

    pub(super) fn are_fixed(&self) -> bool {
        self.suspect_after_ns == 0
    }

    /// A packet was sent to all.
    pub(super) fn spoke(&mut self, now: Time) {
        if !self.are_fixed() {
            self.speak_at = now + self.suspect_after_ns / 4;
        }
    }
}

impl Member {
    /// Number of the view.
    pub fn view(&self) -> u32 {
        self.view
    }

    /// Whether this member is in a view; if not, the condition it waits for.
    pub fn state(&self) -> State {
        match self.views.phase {
            Phase::Running => State::Running,
            Phase::Outside => State::Outside,
            Phase::Frozen => {
                let attempt = self.views.attempt.as_ref();
                let answered =
                    attempt.map_or(0, |attempt| attempt.promises.iter().flatten().count());
                State::Changing { answered, needed: self.majority() }
            }
        }
    }

    pub(super) fn majority(&self) -> usize {
        self.peers.len() / 2 + 1
    }

    fn is_member(&self, member: usize) -> bool {
        self.members >> member & 1 != 0
    }

    /// This member's place among unsuspected members: the first one acts first.
    fn rank(&self) -> u64 {
        let suspected = self.views.suspected;
        let before = self.members().filter(|member| usize::from(*member) < self.me);
        before.filter(|member| suspected >> member & 1 == 0).count() as u64
    }

    pub(super) fn views_deadline(&self) -> Time {
        if self.views.are_fixed() {
            return Time::MAX;
        }
        let views = &self.views;
        if !views.is_started || !views.outbox.is_empty() {
            return Time::ZERO;
        }
        if views.phase != Phase::Running {
            return views.act_at;
        }
        let fresh = self.others().filter(|member| views.suspected >> member & 1 == 0);
        let silence = fresh.map(|member| views.heard[usize::from(member)]).min();
        let silence = silence.map_or(Time::MAX, |heard| heard + (views.suspect_after_ns + 1));
        silence.min(views.act_at).min(views.speak_at)
    }

    /// Suspects silent members, sends a sign of life, and continues a change of view.
    pub(super) fn tick(&mut self, now: Time) {
        let patience = self.views.suspect_after_ns;
        if !self.views.is_started {
            self.views.is_started = true;
            self.views.heard.fill(now);
            self.views.act_at = now;
            self.views.frozen_until = now + patience * (1 + self.rank());
        }
        match self.views.phase {
            Phase::Running => self.watch(now),
            _ if now < self.views.act_at => {}
            Phase::Frozen => {
                self.views.act_at = now + patience / 4;
                if self.view == 0 {
                    self.say(To::All, Step::Join, 0, Proposal::default());
                }
                self.retry_change(now);
            }
            Phase::Outside => {
                self.views.act_at = now + patience / 2;
                self.say(To::All, Step::Join, 0, Proposal::default());
            }
        }
    }

    fn watch(&mut self, now: Time) {
        let patience = self.views.suspect_after_ns;
        if now >= self.views.speak_at {
            self.announce_at = self.announce_at.min(now);
        }
        for member in self.others() {
            if now.since(self.views.heard[usize::from(member)]) > patience {
                self.views.suspected |= 1 << member;
            }
        }
        if self.views.suspected == 0 && self.views.joiners.iter().all(Option::is_none) {
            self.views.act_at = Time::MAX;
        } else if self.views.act_at == Time::MAX && self.rank() > 0 {
            self.views.act_at = now + patience * self.rank();
        } else if self.views.act_at == Time::MAX || now >= self.views.act_at {
            self.start_attempt(now);
        }
    }

    fn retry_change(&mut self, now: Time) {
        let Some(attempt) = &self.views.attempt else {
            if now >= self.views.frozen_until {
                self.start_attempt(now);
            }
            return self.progress(now);
        };
        let (ballot, is_late) = (attempt.ballot, now >= attempt.until);
        match attempt.proposal.clone() {
            None if is_late => {
                if !self.propose(now) {
                    self.start_attempt(now);
                }
            }
            None => self.say(To::All, Step::Prepare, ballot, Proposal::default()),
            Some(_) if is_late => self.start_attempt(now),
            Some(proposal) => {
                self.say(To::All, Step::Accept, ballot, proposal);
                self.progress(now);
            }
        }
    }

    fn say(&mut self, to: To, step: Step, ballot: u64, mut proposal: Proposal) {
        proposal.entries.resize(self.peers.len(), Entry::default());
        let message = (to, Agreement { step, ballot, accepted: 0, proposal });
        if !self.views.outbox.contains(&message) {
            self.views.outbox.push_back(message);
        }
    }

    /// The next membership packet.
    pub(super) fn agreement(&mut self) -> Option<(To, Agreement)> {
        self.views.outbox.pop_front()
    }

    fn freeze(&mut self, now: Time, ballot: u64) {
        let patience = self.views.suspect_after_ns;
        self.views.promised = ballot;
        self.views.phase = Phase::Frozen;
        self.views.act_at = now + patience / 4;
        self.views.frozen_until = now + patience * (1 + self.rank());
    }

    fn start_attempt(&mut self, now: Time) {
        let ballot = ((self.views.promised >> 8) + 1) << 8 | self.me as u64;
        self.freeze(now, ballot);
        let mut promises = vec![None; self.peers.len()];
        promises[self.me] = Some((self.promise(ballot), self.settings.incarnation));
        let until = now + self.views.suspect_after_ns / 2;
        self.views.pending = None;
        self.views.attempt = Some(Attempt { ballot, promises, proposal: None, accepted: 0, until });
        self.say(To::All, Step::Prepare, ballot, Proposal::default());
        self.propose_if_all(now);
    }

    /// The streams that this member has, and the proposal that it has accepted.
    fn promise(&self, ballot: u64) -> Agreement {
        let own = Proposal {
            members: self.members,
            clock: self.clock,
            entries: vec![Entry::default(); self.peers.len()],
        };
        let (accepted, mut proposal) = self.views.accepted.clone().unwrap_or((0, own));
        if accepted == 0 {
            for (entry, peer) in proposal.entries.iter_mut().zip(&self.peers) {
                entry.position = peer.store.edge();
            }
        }
        Agreement { step: Step::Promise, ballot, accepted, proposal }
    }

    fn propose_if_all(&mut self, now: Time) {
        let Some(attempt) = &self.views.attempt else { return };
        let suspected = self.views.suspected;
        let mut expected = self.members().filter(|member| suspected >> member & 1 == 0);
        if attempt.proposal.is_none()
            && expected.all(|member| attempt.promises[usize::from(member)].is_some())
        {
            self.propose(now);
        }
    }

    /// Proposes a view of the members that promised and those that ask to join. False if they are
    /// too few.
    fn propose(&mut self, now: Time) -> bool {
        let Some(mut attempt) = self.views.attempt.take() else { return false };
        let is_enough = attempt.promises.iter().flatten().count() >= self.majority();
        if is_enough {
            let promises = attempt.promises.iter().enumerate();
            let promises =
                promises.filter_map(|(member, promise)| Some((member, &promise.as_ref()?.0)));
            let accepted = promises.filter(|(_, promise)| promise.accepted > 0);
            let newest = accepted.max_by_key(|(_, promise)| promise.accepted);
            let proposal = match newest {
                // Every member that accepted it has everything.
                Some((holder, promise)) => promise.proposal.clone().held_by(holder as u8),
                None => self.new_proposal(&attempt.promises),
            };
            self.say(To::All, Step::Accept, attempt.ballot, proposal.clone());
            let ballot = attempt.ballot;
            attempt.until = now + self.views.suspect_after_ns;
            attempt.proposal = Some(proposal.clone());
            self.views.pending = Some(Pending { ballot, proposal, is_decided: false });
        }
        self.views.attempt = Some(attempt);
        if is_enough {
            self.progress(now);
        }
        is_enough
    }

    fn new_proposal(&self, promises: &[Option<(Agreement, u32)>]) -> Proposal {
        let mut new = Proposal { members: 0, clock: self.clock, entries: Vec::new() };
        for (member, joiner) in self.views.joiners.iter().enumerate() {
            let mut entry = Entry::default();
            let promise = promises[member].as_ref();
            if let Some(incarnation) = promise.map(|(_, incarnation)| *incarnation).or(*joiner) {
                new.members |= 1 << member;
                entry.incarnation = incarnation;
            }
            for (holder, promise) in promises.iter().enumerate() {
                let Some((promise, _)) = promise else { continue };
                let position = promise.proposal.entries[member].position;
                if position > entry.position {
                    (entry.position, entry.holder) = (position, holder as u8);
                }
                new.clock = new.clock.max(promise.proposal.clock);
            }
            new.entries.push(entry);
        }
        new
    }

    /// Takes a membership packet.
    pub(super) fn take_agreement(&mut self, now: Time, header: &Header, said: Agreement) {
        if self.views.are_fixed() || !self.views.is_started {
            return;
        }
        let sender = usize::from(header.sender);
        let is_known = self.view == 0 || self.views.incarnations[sender] == header.incarnation;
        let is_peer = header.view == self.view && self.is_member(sender) && is_known;
        match said.step {
            Step::Join => self.take_join(header, is_known),
            Step::Install => self.take_install(now, header.view, said.proposal),
            _ if header.view > self.view => self.fall_behind(now, header.sender),
            _ if header.view < self.view => self.send_installed(header.sender),
            _ if !is_peer || self.views.phase == Phase::Outside => {}
            Step::Prepare => {
                if said.ballot > self.views.promised {
                    self.views.attempt = None;
                    self.views.pending = None;
                    self.freeze(now, said.ballot);
                }
                if said.ballot == self.views.promised {
                    let promise = self.promise(said.ballot);
                    self.views.outbox.push_back((To::One(header.sender), promise));
                }
            }
            Step::Promise => {
                let Some(attempt) = &mut self.views.attempt else { return };
                if attempt.ballot == said.ballot && attempt.proposal.is_none() {
                    attempt.promises[sender] = Some((said, header.incarnation));
                    self.propose_if_all(now);
                }
            }
            Step::Accept => {
                if said.ballot >= self.views.promised {
                    if said.ballot > self.views.promised {
                        self.views.attempt = None;
                    }
                    self.freeze(now, said.ballot);
                    let Agreement { ballot, proposal, .. } = said;
                    self.views.pending = Some(Pending { ballot, proposal, is_decided: false });
                    self.progress(now);
                }
            }
            Step::Accepted => self.take_accepted(now, said.ballot, sender),
        }
    }

    fn take_join(&mut self, header: &Header, is_known: bool) {
        let sender = usize::from(header.sender);
        if self.view == 0 || self.views.phase == Phase::Outside {
            return;
        }
        if self.is_member(sender) && is_known {
            self.send_installed(header.sender);
            return;
        }
        self.views.joiners[sender] = Some(header.incarnation);
        if self.is_member(sender) {
            // It has restarted: its earlier run has ended.
            self.views.suspected |= 1 << sender;
        }
    }

    fn send_installed(&mut self, to: u8) {
        if self.view > 0 && self.views.phase != Phase::Outside {
            let installed = self.views.installed.clone();
            self.say(To::One(to), Step::Install, 0, installed);
        }
    }

    fn take_accepted(&mut self, now: Time, ballot: u64, sender: usize) {
        let majority = self.majority();
        let Some(attempt) = &mut self.views.attempt else { return };
        if attempt.ballot != ballot {
            return;
        }
        attempt.accepted |= 1 << sender;
        if attempt.accepted.count_ones() as usize >= majority
            && let Some(proposal) = attempt.proposal.clone()
            && attempt.accepted >> self.me & 1 != 0
        {
            self.install(now, self.view + 1, proposal.clone());
            self.say(To::All, Step::Install, ballot, proposal);
        }
    }

    /// A packet of this member has arrived.
    pub(super) fn heard(&mut self, now: Time, sender: usize) {
        self.views.heard[sender] = now;
    }

    /// Whether a packet is from another run of its sender than the view's.
    pub(super) fn is_of_another_life(&self, header: &Header) -> bool {
        let known = self.views.incarnations[usize::from(header.sender)];
        !self.views.are_fixed() && self.view > 0 && known != header.incarnation
    }
}
