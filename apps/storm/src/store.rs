//! The messages of one sender that a member keeps: a window of bytes.
//!
//! A sender's messages form a stream. A message starts at a *position*, counted in
//! units of [`UNIT`] bytes, and takes one unit for its header plus its payload,
//! rounded up. The next message starts where it ends. So a position is a sequence
//! number, and every member keeps a message at the same place of its window,
//! regardless of the order of arrival.
//!
//! ```text
//!   base          read             edge            high          base + window
//!    │ kept for    │ to be delivered │ some missing   │ free          │
//!    │ repeats     │                 │                │               │
//! ```
//!
//! Guarantees: nothing is allocated after [`Store::new`]; a message never overlaps
//! another; positions from outside are checked against the window.

use std::hash::{Hash, Hasher};
use std::ops::Range;

/// Bytes of a unit of positions.
pub const UNIT: usize = 16;

/// Units that a message with this many bytes of payload takes.
pub const fn units(payload: usize) -> u64 {
    1 + payload.div_ceil(UNIT) as u64
}

/// A stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Where it starts.
    pub position: u64,
    /// Its Lamport time.
    pub timestamp: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// Where the next message starts.
    pub fn end(&self) -> u64 {
        self.position + units(self.payload.len())
    }
}

/// The fate of a message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// Everything up to it is here: the edge moved.
    Advanced,
    /// It is kept; messages before it are missing.
    Kept,
    /// It was here already.
    Duplicate,
    /// It is outside the window, or overlaps another message.
    Refused,
}

/// The messages of one sender, within a window.
#[derive(Clone, Debug)]
pub struct Store {
    /// The window, and room after it for the longest message, so that no message wraps.
    bytes: Box<[u8]>,
    /// One bit for each unit: a message starts there.
    starts: Box<[u64]>,
    longest: usize,
    base: u64,
    read: u64,
    edge: u64,
    high: u64,
}

impl Store {
    /// A store for `window` units (a power of two, at least 64) and payloads of up to `longest`
    /// bytes.
    pub fn new(window: u64, longest: usize) -> Self {
        debug_assert!(window.is_power_of_two() && window >= 64);
        let bytes = (window + units(longest)) as usize * UNIT;
        Store {
            bytes: vec![0; bytes].into(),
            starts: vec![0; window as usize / 64].into(),
            longest,
            base: 0,
            read: 0,
            edge: 0,
            high: 0,
        }
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.starts.len() * 8
    }

    /// Units of the window.
    pub fn window(&self) -> u64 {
        self.starts.len() as u64 * 64
    }

    /// The oldest message kept.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The next message to deliver.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// The first message that has not arrived.
    pub fn edge(&self) -> u64 {
        self.edge
    }

    /// The end of the last message that has arrived.
    pub fn high(&self) -> u64 {
        self.high
    }

    /// The end of the window: no message may end after it, even if all are delivered.
    pub fn limit(&self) -> u64 {
        self.read + self.window()
    }

    /// Whether a message of this many bytes fits after the last one without dropping any.
    pub fn fits(&self, payload: usize) -> bool {
        self.high + units(payload) <= self.base + self.window()
    }

    /// Keeps a message that starts at `position`. If the window is full, delivered messages make
    /// room: their sender continues only when every member has delivered them.
    pub fn insert(&mut self, position: u64, timestamp: u64, payload: &[u8]) -> Inserted {
        if position < self.edge {
            return Inserted::Duplicate;
        }
        let size = units(payload.len());
        if payload.len() > self.longest || position > self.limit() - size {
            return Inserted::Refused;
        }
        let end = position + size;
        if position < self.high {
            if self.is_start(position) {
                return Inserted::Duplicate;
            }
            if self.overlaps(position, end) {
                return Inserted::Refused;
            }
        }
        while end > self.base + self.window() {
            self.release_oldest();
        }
        let at = self.place(position);
        self.bytes[at..at + 8].copy_from_slice(&timestamp.to_le_bytes());
        self.bytes[at + 8..at + 10].copy_from_slice(&(payload.len() as u16).to_le_bytes());
        self.bytes[at + UNIT..at + UNIT + payload.len()].copy_from_slice(payload);
        self.set_start(position, true);
        self.high = self.high.max(end);
        if position != self.edge {
            return Inserted::Kept;
        }
        self.edge = end;
        while let Some(next) = self.at(self.edge) {
            self.edge = next.end();
        }
        Inserted::Advanced
    }

    /// The message that starts at `position`, if it is kept.
    pub fn at(&self, position: u64) -> Option<Message<'_>> {
        if position < self.base || position >= self.high || !self.is_start(position) {
            return None;
        }
        let at = self.place(position);
        let header = self.bytes.get(at..at + UNIT)?;
        let timestamp = u64::from_le_bytes(header[..8].try_into().ok()?);
        let length = usize::from(u16::from_le_bytes([header[8], header[9]]));
        Some(Message {
            position,
            timestamp,
            payload: self.bytes.get(at + UNIT..at + UNIT + length)?,
        })
    }

    /// The first message that starts at `position` or later.
    pub fn from(&self, position: u64) -> Option<Message<'_>> {
        self.at(self.next_start(position.max(self.base))?)
    }

    /// The oldest message that is complete and not delivered.
    pub fn head(&self) -> Option<Message<'_>> {
        if self.read == self.edge { None } else { self.at(self.read) }
    }

    /// Takes the head as delivered. It stays in the window.
    pub fn take(&mut self) -> Option<Message<'_>> {
        let (position, end) = self.head().map(|head| (head.position, head.end()))?;
        self.read = end;
        self.at(position)
    }

    /// Releases delivered messages older than `timestamp`.
    pub fn release_below(&mut self, timestamp: u64) {
        while self.base < self.read && self.at(self.base).is_none_or(|m| m.timestamp < timestamp) {
            self.release_oldest();
        }
    }

    /// Calls `missing` with each range of missing positions from `from` to `to`, until it returns
    /// false.
    pub fn gaps(&self, from: u64, to: u64, mut missing: impl FnMut(Range<u64>) -> bool) {
        let mut at = from.max(self.edge);
        while at < to {
            let next = self.next_start(at).unwrap_or(to).min(to);
            if next > at && !missing(at..next) {
                return;
            }
            at = self.at(next).map_or(to, |message| message.end());
        }
    }

    /// Forgets all messages: the stream continues at `position`.
    pub fn restart(&mut self, position: u64) {
        self.starts.fill(0);
        (self.base, self.read, self.edge, self.high) = (position, position, position, position);
    }

    /// Forgets messages from `position` on.
    pub fn truncate(&mut self, position: u64) {
        let mut next = self.from(position).map(|message| message.position);
        while let Some(at) = next {
            self.set_start(at, false);
            next = self.from(at).map(|message| message.position);
        }
        self.edge = self.edge.min(position);
        self.high = self.edge;
        self.read = self.read.min(self.edge);
        self.base = self.base.min(self.edge);
    }

    /// Forgets messages before `position`, which is the start of a message or the edge. False,
    /// and nothing changes, if it is neither.
    pub fn keep_from(&mut self, position: u64) -> bool {
        if position != self.edge && self.at(position).is_none() {
            return false;
        }
        while self.base < position {
            self.release_oldest();
        }
        self.read = position;
        true
    }

    /// Gives all messages new timestamps after `clock`, and returns the last one.
    pub fn restamp(&mut self, mut clock: u64) -> u64 {
        let mut next = self.base;
        while let Some(end) = self.at(next).map(|message| message.end()) {
            clock += 1;
            let at = self.place(next);
            self.bytes[at..at + 8].copy_from_slice(&clock.to_le_bytes());
            next = end;
        }
        clock
    }

    fn release_oldest(&mut self) {
        let end = self.at(self.base).map_or(self.read, |message| message.end());
        self.set_start(self.base, false);
        self.base = end;
    }

    /// Whether another message has units between `position` and `end`.
    fn overlaps(&self, position: u64, end: u64) -> bool {
        if self.next_start(position).is_some_and(|start| start < end) {
            return true;
        }
        let before = self.last_start_before(position);
        before.and_then(|at| self.at(at)).is_some_and(|message| message.end() > position)
    }

    /// The last start between the edge and `position`.
    fn last_start_before(&self, position: u64) -> Option<u64> {
        let mut end = position;
        while end > self.edge {
            let (last, words) = (end - 1, self.starts.len() as u64);
            let word = self.starts[(last / 64 % words) as usize] << (63 - last % 64);
            if word != 0 {
                return last.checked_sub(word.leading_zeros().into()).filter(|at| *at >= self.edge);
            }
            end = last - last % 64;
        }
        None
    }

    /// The first start at `position` or later.
    fn next_start(&self, position: u64) -> Option<u64> {
        let mut at = position;
        while at < self.high {
            let (bit, words) = (at % 64, self.starts.len() as u64);
            let word = self.starts[(at / 64 % words) as usize] >> bit;
            if word != 0 {
                return Some(at + u64::from(word.trailing_zeros())).filter(|at| *at < self.high);
            }
            at += 64 - bit;
        }
        None
    }

    fn place(&self, position: u64) -> usize {
        (position % self.window()) as usize * UNIT
    }

    fn is_start(&self, position: u64) -> bool {
        let unit = position % self.window();
        self.starts[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }

    fn set_start(&mut self, position: u64, is_start: bool) {
        let unit = position % self.window();
        let (word, bit) = (&mut self.starts[(unit / 64) as usize], 1 << (unit % 64));
        if is_start { *word |= bit } else { *word &= !bit }
    }
}

/// The hash covers stored messages; empty places do not matter.
impl Hash for Store {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.base, self.read, self.edge, self.high).hash(state);
        let mut next = self.from(self.base);
        while let Some(message) = next {
            (message.position, message.timestamp, message.payload).hash(state);
            next = self.from(message.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        Store::new(64, 100)
    }

    #[test]
    fn messages_in_any_order_form_the_same_stream() {
        let payloads: Vec<Vec<u8>> = (0..6u8).map(|n| vec![n; usize::from(n) * 13]).collect();
        let mut positions = vec![0];
        payloads.iter().for_each(|p| positions.push(positions.last().unwrap() + units(p.len())));
        for order in [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 1, 0, 5, 2, 4]] {
            let mut store = store();
            for n in order {
                let inserted = store.insert(positions[n], n as u64, &payloads[n]);
                assert!(matches!(inserted, Inserted::Advanced | Inserted::Kept));
                assert_eq!(store.insert(positions[n], 9, &payloads[n]), Inserted::Duplicate);
            }
            assert_eq!((store.edge(), store.high()), (positions[6], positions[6]));
            for (n, payload) in payloads.iter().enumerate() {
                let message = store.take().unwrap();
                assert_eq!((message.timestamp, message.payload), (n as u64, payload.as_slice()));
            }
            assert_eq!(store.take(), None);
        }
    }

    #[test]
    fn gaps_are_the_positions_between_messages() {
        let mut store = store();
        let _ = (store.insert(2, 1, &[0; 16]), store.insert(8, 2, &[]));
        let mut found = Vec::new();
        store.gaps(0, 12, |gap| {
            found.push(gap);
            true
        });
        assert_eq!(found, [0..2, 4..8, 9..12]);
    }

    #[test]
    fn overlapping_messages_are_refused() {
        let mut store = store();
        assert_eq!(store.insert(10, 1, &[0; 32]), Inserted::Kept);
        for (position, payload) in [(9, 16), (11, 0), (12, 0), (8, 100)] {
            let inserted = store.insert(position, 2, &vec![0; payload]);
            assert_eq!(inserted, Inserted::Refused, "{position} {payload}");
        }
        assert_eq!(store.insert(9, 2, &[]), Inserted::Kept);
        assert_eq!(store.insert(13, 2, &[]), Inserted::Kept);
    }

    #[test]
    fn stream_is_cut_after_and_before_a_message_and_restamped() {
        let mut store = store();
        (0..6).for_each(|n| assert_eq!(store.insert(2 * n, n, &[n as u8; 9]), Inserted::Advanced));
        assert_eq!(store.insert(14, 7, &[]), Inserted::Kept);
        store.truncate(8);
        assert_eq!((store.edge(), store.high()), (8, 8));
        assert_eq!(store.insert(8, 20, &[]), Inserted::Advanced);
        assert!(!store.keep_from(3), "no message starts there");
        assert!(store.keep_from(4));
        assert_eq!(store.restamp(100), 103);
        let stamps = std::iter::from_fn(|| store.take().map(|m| (m.position, m.timestamp)));
        assert_eq!(stamps.collect::<Vec<_>>(), [(4, 101), (6, 102), (8, 103)]);
        assert!(store.keep_from(9), "the edge");
        // What it cuts off may have been released.
        store.truncate(2);
        assert_eq!((store.base(), store.read(), store.edge(), store.high()), (2, 2, 2, 2));
        assert_eq!(store.insert(2, 200, &[7]), Inserted::Advanced);
        assert_eq!(store.take().map(|message| message.payload), Some(&[7][..]));
    }

    #[test]
    fn the_window_bounds_positions() {
        let mut store = store();
        let last = 64 - units(100);
        for position in [last + 1, 64, 65, 1 << 40, u64::MAX] {
            assert_eq!(store.insert(position, 1, &[0; 100]), Inserted::Refused, "{position}");
        }
        assert_eq!(store.insert(last, 1, &[0; 100]), Inserted::Kept);
        assert_eq!(store.insert(0, 1, &[0; 101]), Inserted::Refused);
    }

    #[test]
    fn delivered_messages_stay_until_room_is_needed_or_they_are_released() {
        let mut store = store();
        for lap in 0..200u64 {
            assert_eq!(store.insert(lap * 2, lap, &lap.to_le_bytes()), Inserted::Advanced);
            assert_eq!(store.take().unwrap().payload, lap.to_le_bytes());
        }
        assert_eq!(store.base(), 2 * 200 - 64);
        assert_eq!(store.at(store.base()).unwrap().timestamp, 168);
        store.release_below(190);
        assert_eq!(store.base(), 2 * 190);
        assert!(!store.fits(1100) && store.fits(100));
    }
}
