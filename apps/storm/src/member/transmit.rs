//! The packets that a member sends, and when.
//!
//! In this order: new messages, repeats, requests, the clock. A data packet carries the clock
//! and, if there is room, the edges, so a member that sends messages announces nothing else.

use super::{MOST_RANGES, Member, Peer, Phase, Set};
use crate::wire::{DATA, Header, Kind, MESSAGE, Writer};
use picnic_core::time::Time;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// To every other member of the group.
    All,
    /// To one.
    One(u8),
}

impl Member {
    /// Writes the next packet into `buffer`: its receiver and its bytes. `None` if there is
    /// nothing to send now.
    pub fn transmit(&mut self, now: Time, buffer: &mut [u8]) -> Option<(To, usize)> {
        let longest = buffer.len().min(self.settings.packet_bytes.into());
        let buffer = &mut buffer[..longest];
        if !self.views.are_fixed() {
            self.tick(now);
        }
        let is_running = self.views.phase == Phase::Running;
        if is_running {
            self.release();
            self.fire(now);
        }
        let packet = self
            .membership(buffer)
            .or_else(|| if is_running { self.new_messages(buffer) } else { None })
            .or_else(|| self.repeats(buffer))
            .or_else(|| self.requests(buffer))
            .or_else(|| if is_running { self.announcement(now, buffer) } else { None });
        match packet {
            Some((to, bytes)) => {
                self.counts.packets_sent += 1;
                self.counts.bytes_sent += bytes as u64;
                if to == To::All {
                    self.views.spoke(now);
                }
            }
            None if is_running => self.arm(now),
            None => {}
        }
        packet
    }

    /// When [`Member::transmit`] may have something to send, if nothing is received or submitted
    /// before. `Time::MAX` if never.
    pub fn next_deadline(&self) -> Time {
        let views = self.views_deadline();
        if self.views.phase != Phase::Running {
            return views;
        }
        self.announce_at.min(self.hint_at).min(self.retry_at).min(views)
    }

    /// Does what is due: requests after a hint, and requests and questions about outstanding
    /// messages outstanding and already were at the last check.
    fn fire(&mut self, now: Time) {
        if now >= self.hint_at {
            self.hint_at = Time::MAX;
            for stream in self.others() {
                self.request |= Set::from(self.is_missing(stream)) << stream;
            }
        }
        if now < self.retry_at {
            return;
        }
        self.retry_at = Time::MAX;
        let now = self.outstanding();
        let then = std::mem::replace(&mut self.stuck, now);
        for member in self.others() {
            let is_missing = self.is_missing(member);
            let peer = &mut self.peers[usize::from(member)];
            let edge = peer.store.edge();
            let edge_then = std::mem::replace(&mut peer.edge_then, edge);
            if edge == edge_then && is_missing {
                peer.requested = edge;
                self.request |= 1 << member;
            }
        }
        if now.0 == then.0 {
            self.ask |= self.late_for_head();
        }
        if now.1 == then.1 {
            self.ask |= self.late_for_base();
        }
    }

    /// Schedules [`Member::fire`] if something is outstanding.
    fn arm(&mut self, now: Time) {
        if !self.is_any_missing() && self.outstanding() == (u64::MAX, u64::MAX) {
            self.retry_at = Time::MAX;
        } else if self.retry_at == Time::MAX {
            self.retry_at = now + self.settings.repeat_after_ns;
        }
    }

    /// Whether messages of a stream exist that have not arrived.
    fn is_missing(&self, stream: u8) -> bool {
        let stream = usize::from(stream);
        self.known_end(stream) > self.peers[stream].store.edge()
    }

    pub(super) fn is_any_missing(&self) -> bool {
        self.others().any(|member| self.is_missing(member))
    }

    /// The timestamp of the head of the order, and the start of the window if it is more than half
    /// full. `u64::MAX` for none.
    fn outstanding(&self) -> (u64, u64) {
        let own = &self.peers[self.me].store;
        let is_filling = own.high() - own.base() > own.window() / 2;
        let base = if is_filling { own.base() } else { u64::MAX };
        (self.head().map_or(u64::MAX, |(timestamp, _)| timestamp), base)
    }

    /// The members that keep the head of the order from being delivered.
    fn late_for_head(&self) -> Set {
        let Some((timestamp, sender)) = self.head() else { return 0 };
        let end = self.peers[sender].store.head().map_or(0, |message| message.end());
        let is_short = self.holders(sender, end) <= self.peers.len() / 2;
        self.late(|peer| peer.horizon < timestamp || (is_short && peer.edges[sender] < end))
    }

    /// The members that keep the oldest own message in the window.
    fn late_for_base(&self) -> Set {
        let own = &self.peers[self.me].store;
        let Some(oldest) = own.at(own.base()) else { return 0 };
        self.late(|peer| peer.delivered <= oldest.timestamp)
    }

    fn late(&self, is_late: impl Fn(&Peer) -> bool) -> Set {
        let late = self.others().filter(|member| is_late(&self.peers[usize::from(*member)]));
        late.fold(0, |set, member| set | 1 << member)
    }

    /// The other members of the view.
    pub(super) fn others(&self) -> impl Iterator<Item = u8> + use<> {
        let me = self.settings.me;
        self.members().filter(move |member| *member != me)
    }

    fn header(&self, kind: Kind, origin: u8) -> Header {
        Header {
            kind,
            answer: false,
            group: self.settings.group,
            digest: self.digest,
            view: self.view,
            sender: self.settings.me,
            origin,
            incarnation: self.settings.incarnation,
            clock: self.clock,
            last: self.peers[self.me].store.high(),
            delivered: self.told_delivered,
        }
    }

    fn membership(&mut self, buffer: &mut [u8]) -> Option<(To, usize)> {
        let (to, agreement) = self.agreement()?;
        let mut writer = Writer::new(buffer, &self.header(Kind::Membership, 0))?;
        agreement.write(&mut writer)?;
        Some((to, writer.finish()))
    }

    /// New messages, as many as fit.
    fn new_messages(&mut self, buffer: &mut [u8]) -> Option<(To, usize)> {
        if self.is_untold() {
            self.tell_delivered();
        }
        let first = self.peers[self.me].store.at(self.sent)?;
        // Edges, unless they leave no room for the first message.
        let edges = 8 * self.peers.len();
        let has_edges = DATA + edges + MESSAGE + first.payload.len() <= buffer.len();
        let mut header = self.header(Kind::Data, self.settings.me);
        let (bytes, end) = self.data(buffer, &mut header, self.sent..u64::MAX, has_edges)?;
        self.sent = end;
        if has_edges {
            self.announce_at = Time::MAX;
        }
        Some((To::All, bytes))
    }

    /// A packet with messages of the stream `header.origin` that start in `range`, as many as fit:
    /// its bytes, and the end of the last message.
    fn data(
        &self,
        buffer: &mut [u8],
        header: &mut Header,
        range: std::ops::Range<u64>,
        has_edges: bool,
    ) -> Option<(usize, u64)> {
        let store = &self.peers[usize::from(header.origin)].store;
        let edges = if has_edges { 8 * self.peers.len() } else { 0 };
        let (mut room, mut end, mut newest) =
            (buffer.len().checked_sub(DATA + edges)?, range.start, 0);
        while let Some(message) = store.at(end).filter(|message| message.position < range.end)
            && let Some(left) = room.checked_sub(MESSAGE + message.payload.len())
        {
            (room, end, newest) = (left, message.end(), message.timestamp);
        }
        if end == range.start {
            return None;
        }
        if usize::from(header.origin) == self.me && header.last > end.max(self.sent) {
            // More messages will follow, so this packet promises only its own messages.
            header.last = end.max(self.sent);
            header.clock = newest.max(1);
            header.delivered = header.delivered.min(header.clock + 1);
        }
        let mut writer = Writer::new(buffer, header)?;
        if has_edges {
            writer.edges(self.peers[self.me].edges.iter().copied())?;
        }
        writer.number(range.start)?;
        let mut at = range.start;
        while at < end {
            let message = store.at(at)?;
            writer.message(message.timestamp, message.payload)?;
            at = message.end();
        }
        Some((writer.finish(), end))
    }

    /// Repeats for the first member that asked for some.
    fn repeats(&mut self, buffer: &mut [u8]) -> Option<(To, usize)> {
        for member in 0..self.peers.len() {
            while let Some((from, to)) = self.peers[member].wanted.pop() {
                let origin = self.peers[member].wanted_of;
                let Some(first) = self.peers[usize::from(origin)].store.from(from) else {
                    continue;
                };
                let range = first.position..to;
                let mut header = self.header(Kind::Data, origin);
                let Some((bytes, end)) = self.data(buffer, &mut header, range, false) else {
                    continue;
                };
                self.counts.repeats_sent += 1;
                if end < to {
                    self.peers[member].wanted.push((end, to));
                }
                return Some((To::One(member as u8), bytes));
            }
        }
        None
    }

    /// A request for the missing messages of one stream: to its sender, or to the member that has
    /// it all if a view ends.
    fn requests(&mut self, buffer: &mut [u8]) -> Option<(To, usize)> {
        while self.request != 0 {
            let stream = self.request.trailing_zeros() as u8;
            self.request &= self.request - 1;
            let peer = &self.peers[usize::from(stream)];
            let to_sender = (self.known_end(stream.into()), stream);
            let (to, holder) = self.fetched(stream).unwrap_or(to_sender);
            let from = peer.requested.max(peer.store.edge());
            let mut writer = Writer::new(buffer, &self.header(Kind::Request, stream))?;
            let (mut ranges, mut requested) = (0, to);
            peer.store.gaps(from, to, |gap| {
                if ranges == MOST_RANGES || writer.room() < 16 {
                    requested = gap.start;
                    return false;
                }
                ranges += 1;
                writer.number(gap.start).and_then(|()| writer.number(gap.end)).is_some()
            });
            let bytes = writer.finish();
            self.peers[usize::from(stream)].requested = requested;
            if ranges > 0 {
                self.counts.requests_sent += 1;
                return Some((To::One(holder), bytes));
            }
        }
        None
    }

    /// The clock: to all members if there is news, otherwise to a member that asked or is asked.
    fn announcement(&mut self, now: Time, buffer: &mut [u8]) -> Option<(To, usize)> {
        let (to, answer) = if now >= self.announce_at || self.is_untold() {
            if self.is_untold() {
                self.tell_delivered();
            }
            self.announce_at = Time::MAX;
            (To::All, false)
        } else if self.answer != 0 {
            let member = self.answer.trailing_zeros() as u8;
            self.answer &= self.answer - 1;
            self.tell_delivered();
            (To::One(member), false)
        } else if self.ask != 0 {
            let member = self.ask.trailing_zeros() as u8;
            self.ask &= self.ask - 1;
            (To::One(member), true)
        } else {
            return None;
        };
        let header = Header { answer, ..self.header(Kind::Clock, 0) };
        let mut writer = Writer::new(buffer, &header)?;
        writer.edges(self.peers[self.me].edges.iter().copied())?;
        self.counts.clocks_sent += 1;
        Some((to, writer.finish()))
    }

    /// Whether a quarter of the window was delivered without being announced.
    fn is_untold(&self) -> bool {
        self.untold >= self.settings.window() / 4
    }

    fn tell_delivered(&mut self) {
        self.untold = 0;
        self.told_delivered = self.peers[self.me].delivered;
    }
}
