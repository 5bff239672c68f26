//! Entering a view: everything of the old view first, then the new members.
//!
//! A member that takes part fetches its missing messages of the old view, up to the agreed ends,
//! from a member that has them. A member from outside starts after these ends.

use super::{Pending, Phase};
use crate::agreement::{Entry, Proposal, Step};
use crate::member::{Member, Peer, Set, To};
use picnic_core::time::Time;

impl Member {
    pub(super) fn take_install(&mut self, now: Time, view: u32, proposal: Proposal) {
        if view <= self.view {
            return;
        }
        let own = proposal.entries[self.me].incarnation == self.settings.incarnation;
        if proposal.members >> self.me & 1 == 0 || !own {
            self.view = view;
            self.leave(now);
        } else if view == self.view + 1 && self.views.phase != Phase::Outside {
            self.freeze(now, self.views.promised);
            self.views.attempt = None;
            self.views.pending = Some(Pending { ballot: 0, proposal, is_decided: true });
            self.progress(now);
        } else {
            self.join(now, view, proposal);
        }
    }

    /// Others are in a later view: asks them for it.
    pub(in crate::member) fn fall_behind(&mut self, now: Time, sender: u8) {
        if self.views.is_started && now >= self.views.ask_at {
            self.views.ask_at = now + self.views.suspect_after_ns / 4;
            self.say(To::One(sender), Step::Join, 0, Proposal::default());
        }
    }

    fn leave(&mut self, now: Time) {
        self.views.phase = Phase::Outside;
        self.views.pending = None;
        self.views.attempt = None;
        self.views.act_at = now;
    }

    /// Accepts or installs the pending proposal if everything is here; otherwise requests the rest.
    pub(in crate::member) fn progress(&mut self, now: Time) {
        let Some(pending) = &self.views.pending else { return };
        let missing = |(peer, entry): (&Peer, &Entry)| peer.store.edge() < entry.position;
        let entries = self.peers.iter().zip(&pending.proposal.entries);
        let incomplete = entries.enumerate().filter(|(_, pair)| missing(*pair));
        let incomplete = incomplete.fold(0, |set: Set, (stream, _)| set | 1 << stream);
        if incomplete != 0 {
            self.request |= incomplete;
            self.peers.iter_mut().for_each(|peer| peer.requested = peer.store.edge());
        } else if pending.is_decided {
            let proposal = pending.proposal.clone();
            self.install(now, self.view + 1, proposal);
        } else {
            let (ballot, proposal) = (pending.ballot, pending.proposal.clone());
            self.views.accepted = Some((ballot, proposal));
            let coordinator = (ballot & 0xff) as u8;
            match usize::from(coordinator) == self.me {
                true => self.take_accepted(now, ballot, self.me),
                false => {
                    self.say(To::One(coordinator), Step::Accepted, ballot, Proposal::default())
                }
            }
        }
    }

    /// A stream that was fetched may be complete.
    pub(in crate::member) fn progress_if_complete(&mut self, now: Time, stream: u8) {
        let edge = self.peers[usize::from(stream)].store.edge();
        if self.fetched(stream).is_some_and(|(end, _)| edge >= end) {
            self.progress(now);
        }
    }

    /// The end of a stream that is fetched for the pending proposal, and a member that has it.
    pub(in crate::member) fn fetched(&self, stream: u8) -> Option<(u64, u8)> {
        let pending = self.views.pending.as_ref()?;
        let entry = pending.proposal.entries[usize::from(stream)];
        Some((entry.position, entry.holder))
    }

    /// Goes from one view to the next, with all messages of the first.
    pub(super) fn install(&mut self, now: Time, view: u32, proposal: Proposal) {
        if proposal.members >> self.me & 1 == 0 {
            self.view = view;
            return self.leave(now);
        }
        let old = self.members;
        for (member, (peer, entry)) in self.peers.iter_mut().zip(&proposal.entries).enumerate() {
            peer.store.truncate(entry.position);
            let stayed = old >> member & 1 != 0
                && (self.view == 0 || self.views.incarnations[member] == entry.incarnation);
            if !stayed {
                peer.delivered = proposal.clock + 1;
            }
        }
        self.sent = proposal.entries[self.me].position;
        self.enter(now, view, proposal);
    }

    /// Enters a view from outside: begins with its messages.
    fn join(&mut self, now: Time, view: u32, proposal: Proposal) {
        for (member, (peer, entry)) in self.peers.iter_mut().zip(&proposal.entries).enumerate() {
            if member != self.me || !peer.store.keep_from(entry.position) {
                peer.store.restart(entry.position);
            }
            peer.delivered = proposal.clock + 1;
        }
        self.clock = self.clock.max(proposal.clock);
        let own = &mut self.peers[self.me];
        self.sent = own.store.base();
        self.clock = own.store.restamp(self.clock);
        self.enter(now, view, proposal);
    }

    fn enter(&mut self, now: Time, view: u32, proposal: Proposal) {
        self.view = view;
        self.members = proposal.members;
        self.clock = self.clock.max(proposal.clock);
        let ends: Vec<u64> = proposal.entries.iter().map(|entry| entry.position).collect();
        for (peer, end) in self.peers.iter_mut().zip(&ends) {
            peer.edges.copy_from_slice(&ends);
            peer.promise = (proposal.clock, *end);
            peer.horizon = proposal.clock;
            peer.requested = *end;
            peer.wanted.clear();
        }
        let own = self.peers[self.me].store.edge();
        self.peers[self.me].edges[self.me] = own;
        self.peers[self.me].promise.1 = own;
        (self.request, self.ask, self.answer) = (0, 0, 0);
        (self.hint_at, self.retry_at) = (Time::MAX, Time::MAX);
        self.announce_at = now;
        self.untold = 0;
        let views = &mut self.views;
        views.phase = Phase::Running;
        views.clock = proposal.clock;
        for (member, entry) in proposal.entries.iter().enumerate() {
            if proposal.members >> member & 1 != 0 {
                views.incarnations[member] = entry.incarnation;
            }
        }
        views.heard.fill(now);
        views.joiners.fill(None);
        (views.suspected, views.promised) = (0, 0);
        (views.accepted, views.pending, views.attempt) = (None, None, None);
        views.outbox.clear();
        views.act_at = Time::MAX;
        views.installed = proposal;
        self.counts.views += 1;
    }
}
