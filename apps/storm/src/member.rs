//! A member of a group: messages in, packets out, and messages delivered in one order.
//!
//! ```
//! use picnic_core::time::Time;
//! use picnic_storm::{Member, Settings};
//!
//! let members: Vec<String> = ["a", "b"].map(String::from).into();
//! let mut group: Vec<Member> = (0..2)
//!     .map(|me| Member::new(Settings { members: members.clone(), me, ..Settings::default() }).unwrap())
//!     .collect();
//! group[0].submit(b"hello").unwrap();
//! let mut packet = [0; 1472];
//! for _ in 0..3 {
//!     for from in 0..2 {
//!         while let Some((_to, length)) = group[from].transmit(Time::ZERO, &mut packet) {
//!             group[1 - from].receive(Time::ZERO, &packet[..length]).unwrap();
//!         }
//!     }
//! }
//! for member in &mut group {
//!     assert_eq!(member.deliver().unwrap().payload, b"hello");
//! }
//! ```
//!
//! A message gets the sender's next Lamport time. The order is by (timestamp, sender). A
//! member delivers the first undelivered message when two conditions hold. No member can still
//! send an earlier one: each has announced a clock as late, and nothing is missing up to that
//! clock. And a majority of the group has the message, so that no majority that continues
//! without this member lacks the message.
//!
//! The caller of a member calls [`Member::receive`] for each packet of a batch, then
//! [`Member::deliver`] until it returns `None`, then [`Member::transmit`] until it returns
//! `None`, and again at [`Member::next_deadline`].
//!
//! Guarantees: nothing is allocated after [`Member::new`]; no clock is read; a packet is taken
//! as a whole or refused and counted; memory is bounded by the window.
//!
//! Source: NICOS 4.7; Lamport, "Time, clocks, and the ordering of events in a distributed system",
//! Commun. ACM 21(7), 1978. Lamport's algorithm assumes channels that lose nothing and members that
//! do not fail. Sequence numbers and repeats satisfy the first assumption; the majority condition
//! prepares for failures.

mod transmit;
mod views;

pub use transmit::To;
pub use views::State;

use crate::settings::{Fault, Settings};
use crate::store::{Inserted, Store};
use crate::wire::{self, Kind, Malformed, Packet};
use picnic_core::time::Time;
use serde::Serialize;
use std::hash::{Hash, Hasher};
use views::{Phase, Views};

/// Largest lead of another clock over this member's: twelve days at a million messages a second.
const MOST_AHEAD: u64 = 1 << 40;
/// Ranges of a repeat request.
const MOST_RANGES: usize = 32;

/// A message in its place of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Number of the member that sent it.
    pub sender: u8,
    /// Its position in the sender's stream: its sequence number.
    pub position: u64,
    /// Its Lamport time.
    pub timestamp: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Reasons for which a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The window is full: the slowest member has not delivered enough.
    #[error("the window is full: the slowest member has not delivered yet")]
    Full,
    /// The member is in no view, or a view change is under way.
    #[error("the member is in no view")]
    NoView,
    /// The payload is too long.
    #[error("the payload has {found} bytes, allowed: {allowed} (payload_bytes)")]
    TooLong {
        /// Its bytes.
        found: usize,
        /// Bytes allowed.
        allowed: u16,
    },
}

/// Reasons for which a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its bytes are wrong, or it is not of this group.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It has this member's number: two members have the same name, or a packet returned.
    #[error("a packet that claims to be from this member: two members have the same name")]
    Twin,
    /// It is of an earlier view, or of an earlier run of its sender.
    #[error("a packet of an earlier view")]
    OldView,
    /// It is of a later view.
    #[error("a packet of a later view")]
    FutureView,
    /// Its clock is too far ahead.
    #[error("a clock more than 2^40 ahead")]
    Ahead,
    /// It names messages outside the window.
    #[error("a sequence number outside the window")]
    Far,
}

/// Counts of a member, from its start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// Messages submitted.
    pub submitted: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Submissions refused because the window was full.
    pub window_full: u64,
    /// Packets taken.
    pub packets_received: u64,
    /// Packets made. A packet to all counts once.
    pub packets_sent: u64,
    /// Bytes of the packets made.
    pub bytes_sent: u64,
    /// Packets with only a clock.
    pub clocks_sent: u64,
    /// Requests for repeats sent.
    pub requests_sent: u64,
    /// Packets with repeats sent.
    pub repeats_sent: u64,
    /// Messages that arrived more than once.
    pub duplicates: u64,
    /// Packets refused: not of this protocol, cut, or with impossible fields.
    pub malformed: u64,
    /// Packets refused: of another group, or with another member list or window.
    pub foreign: u64,
    /// Packets refused: with this member's own number.
    pub twins: u64,
    /// Packets refused: of an earlier view.
    pub old_view: u64,
    /// Packets refused: of a later view.
    pub future_view: u64,
    /// Views entered, the first one among them.
    pub views: u64,
    /// Packets and messages refused: timestamp or sequence number out of bounds.
    pub out_of_range: u64,
}

/// Counts do not influence a member: members that differ only in counts are in the same state.
impl Hash for Counts {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Counts {
    fn count(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Malformed(Malformed::Bytes) => &mut self.malformed,
            Refusal::Malformed(Malformed::Group | Malformed::Settings) => &mut self.foreign,
            Refusal::Malformed(Malformed::Timestamp) | Refusal::Ahead | Refusal::Far => {
                &mut self.out_of_range
            }
            Refusal::Twin => &mut self.twins,
            Refusal::OldView => &mut self.old_view,
            Refusal::FutureView => &mut self.future_view,
        } += 1;
    }
}

/// The state of a member as known to another, or to itself.
#[derive(Clone, Debug, Hash)]
struct Peer {
    /// Its stream.
    store: Store,
    /// The latest clock it announced, and the end of its stream at that clock.
    promise: (u64, u64),
    /// Every message that may still arrive from it has a later timestamp.
    horizon: u64,
    /// It has delivered every message with an earlier timestamp.
    delivered: u64,
    /// How far it has each stream.
    edges: Vec<u64>,
    /// Repeats requested up to here.
    requested: u64,
    /// The edge when the timer last fired.
    edge_then: u64,
    /// Ranges of `wanted_of` to repeat for it, the last one first.
    wanted: Vec<(u64, u64)>,
    wanted_of: u8,
}

impl Peer {
    fn new(settings: &Settings) -> Self {
        Peer {
            store: Store::new(settings.window(), settings.payload_bytes.into()),
            promise: (0, 0),
            horizon: 0,
            delivered: 0,
            edges: vec![0; settings.members.len()],
            requested: 0,
            edge_then: 0,
            wanted: Vec::with_capacity(MOST_RANGES),
            wanted_of: 0,
        }
    }

    /// The end of its stream, as last announced.
    fn said_end(&self) -> u64 {
        self.promise.1.max(self.store.high())
    }

    /// Applies its promise, if nothing up to it is missing.
    fn settle(&mut self) {
        if self.store.edge() >= self.promise.1 {
            self.horizon = self.horizon.max(self.promise.0);
        }
    }
}

/// A set of members, one bit each.
type Set = u16;

/// A member of a group. Its hash covers its state: two members with the same hash behave alike.
#[derive(Clone, Debug, Hash)]
pub struct Member {
    settings: Settings,
    digest: u16,
    me: usize,
    view: u32,
    /// The members of the view.
    members: Set,
    views: Views,
    /// The Lamport clock.
    clock: u64,
    peers: Vec<Peer>,
    /// The end of this member's stream that has been sent.
    sent: u64,
    /// When to announce news that no packet has announced yet.
    announce_at: Time,
    /// The announced state of this member's deliveries: see [`Peer::delivered`]. It lags, so that a
    /// packet more often says the same as another.
    told_delivered: u64,
    /// Units delivered since then.
    untold: u64,
    /// Another member has messages that this one lacks: when to request them, if they are not on
    /// their way.
    hint_at: Time,
    /// When to check whether something is stuck; `Time::MAX` if nothing is under way.
    retry_at: Time,
    /// The head of the order and this member's base at the last check.
    stuck: (u64, u64),
    /// Members that need a clock, members to ask for theirs, and members to ask for repeats.
    answer: Set,
    ask: Set,
    request: Set,
    counts: Counts,
}

impl Member {
    /// A member of a group. If the group is fixed, it is in the view of all members from the start.
    ///
    /// # Errors
    /// All settings with values that are not allowed.
    pub fn new(settings: Settings) -> Result<Self, Vec<Fault>> {
        let faults = settings.faults();
        if !faults.is_empty() {
            return Err(faults);
        }
        let count = settings.members.len();
        Ok(Member {
            digest: settings.digest(),
            me: settings.me.into(),
            view: u32::from(settings.suspect_after_ns == 0),
            views: Views::new(count, settings.suspect_after_ns),
            members: (u32::MAX >> (32 - count)) as Set,
            clock: 0,
            peers: (0..count).map(|_| Peer::new(&settings)).collect(),
            sent: 0,
            announce_at: Time::MAX,
            told_delivered: 0,
            untold: 0,
            hint_at: Time::MAX,
            retry_at: Time::MAX,
            stuck: (0, 0),
            answer: 0,
            ask: 0,
            request: 0,
            counts: Counts::default(),
            settings,
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Bytes of the messages that it can keep.
    pub fn bytes(&self) -> usize {
        self.peers.iter().map(|peer| peer.store.bytes()).sum()
    }

    /// Its counts.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Its Lamport clock.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Numbers of the members of the view.
    pub fn members(&self) -> impl Iterator<Item = u8> + use<> {
        let members = self.members;
        (0..wire::MOST_MEMBERS as u8).filter(move |member| members >> member & 1 != 0)
    }

    /// Submits a message; its position in this member's stream. It is sent by the next
    /// [`Member::transmit`].
    ///
    /// # Errors
    /// It cannot be sent. Nothing of it is kept.
    pub fn submit(&mut self, payload: &[u8]) -> Result<u64, SubmitError> {
        if payload.len() > self.settings.payload_bytes.into() {
            let allowed = self.settings.payload_bytes;
            return Err(SubmitError::TooLong { found: payload.len(), allowed });
        }
        if self.views.phase != Phase::Running {
            return Err(SubmitError::NoView);
        }
        let own = &mut self.peers[self.me];
        if !own.store.fits(payload.len()) {
            self.counts.window_full += 1;
            return Err(SubmitError::Full);
        }
        self.clock += 1;
        let position = own.store.edge();
        own.store.insert(position, self.clock, payload);
        own.edges[self.me] = own.store.edge();
        own.promise.1 = own.store.edge();
        self.counts.submitted += 1;
        Ok(position)
    }

    /// Takes a packet.
    ///
    /// # Errors
    /// It was refused. It is counted, and nothing else changes.
    pub fn receive(&mut self, now: Time, bytes: &[u8]) -> Result<(), Refusal> {
        let result = self.take(now, bytes);
        match result {
            Ok(()) => self.counts.packets_received += 1,
            Err(refusal) => self.counts.count(refusal),
        }
        result
    }

    fn take(&mut self, now: Time, bytes: &[u8]) -> Result<(), Refusal> {
        let count = self.peers.len() as u8;
        let packet = wire::parse(bytes, self.settings.group, self.digest, count)?;
        let header = packet.header;
        let sender = usize::from(header.sender);
        if sender == self.me {
            return Err(Refusal::Twin);
        }
        if let Some(said) = packet.agreement(self.peers.len()) {
            if header.view >= self.view {
                self.heard(now, sender);
            }
            self.take_agreement(now, &header, said);
            return Ok(());
        }
        if self.views.phase != Phase::Running || header.view != self.view {
            return self.take_between_views(now, &packet);
        }
        if self.is_of_another_life(&header) {
            return Err(Refusal::OldView);
        }
        self.check_bounds(&packet)?;
        self.heard(now, sender);

        self.clock = self.clock.max(header.clock);
        match header.kind {
            Kind::Data => self.take_messages(now, &packet),
            Kind::Request => self.take_request(&packet),
            Kind::Clock | Kind::Membership => {}
        }
        if packet.edges().zip(&self.peers).any(|(edge, peer)| edge > peer.store.edge()) {
            self.hint_at = self.hint_at.min(now + self.settings.repeat_after_ns / 4);
        }
        let peer = &mut self.peers[sender];
        if header.clock > peer.promise.0 {
            peer.promise = (header.clock, header.last.max(peer.promise.1));
        }
        peer.settle();
        peer.delivered = peer.delivered.max(header.delivered);
        for (known, edge) in peer.edges.iter_mut().zip(packet.edges()) {
            *known = edge.max(*known);
        }
        peer.edges[sender] = peer.edges[sender].max(header.last);
        if header.answer {
            self.answer |= 1 << sender;
        }
        for stream in [sender, usize::from(header.origin)] {
            let peer = &self.peers[stream];
            if peer.said_end() > peer.requested.max(peer.store.edge()) && stream != self.me {
                self.request |= 1 << stream;
            }
        }
        self.release();
        Ok(())
    }

    /// Takes a packet of another view, or while a view changes: requests for messages of the old
    /// view, and messages that this member requested.
    fn take_between_views(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), Refusal> {
        let header = &packet.header;
        let is_next = header.view == self.view || header.view == self.view + 1;
        match header.kind {
            Kind::Request if header.view == self.view || header.view + 1 == self.view => {
                self.take_request(packet);
                return Ok(());
            }
            Kind::Data if is_next && let Some((end, _)) = self.fetched(header.origin) => {
                let store = &mut self.peers[usize::from(header.origin)].store;
                for message in packet.messages().filter(|message| message.end() <= end) {
                    store.insert(message.position, message.timestamp, message.payload);
                }
                self.progress_if_complete(now, header.origin);
            }
            _ => {}
        }
        if header.view > self.view {
            self.fall_behind(now, header.sender);
            return Err(Refusal::FutureView);
        }
        if header.view < self.view {
            return Err(Refusal::OldView);
        }
        self.heard(now, header.sender.into());
        Ok(())
    }

    /// Refuses clocks and sequence numbers that no member of the group can have.
    fn check_bounds(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let header = &packet.header;
        let newest = packet.messages().last().map_or(header.clock, |last| last.timestamp);
        if header.clock.max(newest) > self.clock + MOST_AHEAD {
            return Err(Refusal::Ahead);
        }
        let mut edges = packet.edges().zip(&self.peers);
        let is_far = edges.any(|(edge, peer)| edge > peer.store.limit());
        if is_far || header.last > self.peers[usize::from(header.sender)].store.limit() {
            return Err(Refusal::Far);
        }
        Ok(())
    }

    fn take_messages(&mut self, now: Time, packet: &Packet<'_>) {
        let origin = usize::from(packet.header.origin);
        if origin == self.me {
            return;
        }
        let Member { peers, counts, clock, .. } = self;
        let before = peers[origin].store.edge();
        for message in packet.messages() {
            match peers[origin].store.insert(message.position, message.timestamp, message.payload) {
                Inserted::Advanced | Inserted::Kept => *clock = message.timestamp.max(*clock),
                Inserted::Duplicate => counts.duplicates += 1,
                Inserted::Refused => counts.out_of_range += 1,
            }
        }
        let edge = peers[origin].store.edge();
        if edge == before {
            return;
        }
        peers[self.me].edges[origin] = edge;
        let peer = &mut peers[origin];
        peer.edges[origin] = peer.edges[origin].max(edge);
        // The timestamp of the last message before the edge is a promise of the later ones'.
        let mut at = before;
        while let Some(message) = peer.store.at(at).filter(|message| message.position < edge) {
            peer.horizon = peer.horizon.max(message.timestamp);
            at = message.end();
        }
        peer.settle();
        self.announce_at = self.announce_at.min(now + self.settings.announce_after_ns);
        if !self.is_any_missing() {
            self.hint_at = Time::MAX;
        }
    }

    fn take_request(&mut self, packet: &Packet<'_>) {
        let peer = &mut self.peers[usize::from(packet.header.sender)];
        peer.wanted.clear();
        peer.wanted_of = packet.header.origin;
        peer.wanted.extend(packet.ranges().take(MOST_RANGES));
        peer.wanted.reverse();
    }

    /// The next message of the order, if it is its turn. It counts as delivered.
    pub fn deliver(&mut self) -> Option<Delivery<'_>> {
        if self.views.phase != Phase::Running {
            return None;
        }
        let (timestamp, sender) = self.head()?;
        if !self.is_due(timestamp, sender) {
            return None;
        }
        let message = self.peers[sender].store.take()?;
        self.untold += message.end() - message.position;
        self.counts.delivered += 1;
        let sender = sender as u8;
        Some(Delivery { sender, position: message.position, timestamp, payload: message.payload })
    }

    /// The first message of the order that is here: its timestamp and sender.
    fn head(&self) -> Option<(u64, usize)> {
        let heads = self.peers.iter().enumerate();
        heads.filter_map(|(sender, peer)| Some((peer.store.head()?.timestamp, sender))).min()
    }

    /// Whether no earlier message can arrive, and a majority has this one.
    fn is_due(&self, timestamp: u64, sender: usize) -> bool {
        if timestamp <= self.views.clock {
            return true; // of an earlier view, whose end is agreed
        }
        let end = self.peers[sender].store.head().map_or(u64::MAX, |message| message.end());
        timestamp <= self.least_horizon() && self.holders(sender, end) >= self.majority()
    }

    /// Every message that may still come has a later timestamp.
    fn least_horizon(&self) -> u64 {
        let horizon = |member: u8| match usize::from(member) {
            me if me == self.me => self.clock,
            other => self.peers[other].horizon,
        };
        self.members().map(horizon).min().unwrap_or(0)
    }

    /// The end of a stream, as last announced by any member.
    fn known_end(&self, stream: usize) -> u64 {
        let edges = self.peers.iter().map(|peer| peer.edges[stream]);
        edges.fold(self.peers[stream].said_end(), u64::max)
    }

    /// Number of members that have a stream up to `end`.
    fn holders(&self, stream: usize, end: u64) -> usize {
        self.members()
            .filter(|member| self.peers[usize::from(*member)].edges[stream] >= end)
            .count()
    }

    /// Timestamp below which this member has delivered every message.
    fn delivered_below(&self) -> u64 {
        let head = self.head().map_or(u64::MAX, |(timestamp, _)| timestamp);
        head.min(self.least_horizon() + 1)
    }

    /// Releases the messages that all members have delivered.
    fn release(&mut self) {
        let own = self.delivered_below();
        self.peers[self.me].delivered = own;
        let everywhere =
            self.members().map(|member| self.peers[usize::from(member)].delivered).min();
        for peer in &mut self.peers {
            peer.store.release_below(everywhere.unwrap_or(0));
        }
    }
}
