//! The rings of a channel: index protocol, and the places of everything in the memory.
//!
//! ```text
//! words 0..16    header: magic, message bytes, messages; written before the memory is passed on
//!      16, 32    gates of card and host: armed while that side sleeps
//!      48, 64    to the card: tail (host), head (card)
//!      80, 96    to the host: tail (card), head (host)
//!     112, 128   what card and host wait for; 144: whether the card has closed the channel
//!     160..      slots to the card, then slots to the host: length, then the message in words
//! ```
//!
//! Each index has a separate line and one writer. It counts for ever; its slot is the index
//! modulo the number of slots, a power of two.
//!
//! Guarantees: first in, first out, nothing lost or duplicated while both sides keep to the
//! protocol. If the other side does not, `Broken` is the worst that happens: an index is read once
//! and must be at most a ring ahead, a length must be at most a slot's.
//! Checked by loom (`ring/models.rs`), against a queue model and by a fuzz target that writes
//! anywhere in the memory.

use crate::region::{Region, WORD};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(test, loom))]
mod models;

/// Identifies the layout: "PICNCH", and its version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PICNCH\x01\0");
pub(crate) const MESSAGE_BYTES: usize = 1;
pub(crate) const MESSAGES: usize = 2;
/// Indexed by side: card, host.
pub(crate) const GATES: [usize; 2] = [16, 32];
pub(crate) const AWAITED: [usize; 2] = [112, 128];
pub(crate) const CLOSED: usize = 144;
/// Indexed by the receiving side.
const TAILS: [usize; 2] = [48, 80];
const HEADS: [usize; 2] = [64, 96];
const SLOTS: usize = 160;

/// Most bytes of a message.
pub const MOST_BYTES: usize = 64 << 10;
/// Most messages in a ring.
pub const MOST_MESSAGES: usize = 64 << 10;

const RELAXED: Ordering = Ordering::Relaxed;

/// The size of a channel's rings: the same both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    message_bytes: usize,
    messages: usize,
}

impl Shape {
    /// For messages of up to `message_bytes` bytes, `messages` each way, rounded up to a power of
    /// two; none beyond [`MOST_BYTES`] and [`MOST_MESSAGES`], or for zero.
    pub fn new(message_bytes: usize, messages: usize) -> Option<Self> {
        let is_sound =
            (1..=MOST_BYTES).contains(&message_bytes) && (1..=MOST_MESSAGES).contains(&messages);
        is_sound.then(|| Shape { message_bytes, messages: messages.next_power_of_two() })
    }

    /// Bytes of the longest message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Messages that a ring holds.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Words of a slot.
    fn stride(&self) -> usize {
        1 + self.message_bytes.div_ceil(WORD)
    }

    /// Bytes of memory for both rings.
    pub fn bytes(&self) -> usize {
        (SLOTS + 2 * self.messages * self.stride()) * WORD
    }

    /// Writes it into new memory, for the other side.
    pub(crate) fn write(&self, region: &Region) {
        let words = region.words();
        words[MESSAGE_BYTES].store(self.message_bytes as u64, RELAXED);
        words[MESSAGES].store(self.messages as u64, RELAXED);
        words[0].store(MAGIC, Ordering::Release);
    }
}

/// The other side does not keep to the protocol: a wrong index or length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side does not keep to the channel's protocol")]
pub struct Broken;

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The ring is full: the receiver is slow.
    #[error("the channel is full")]
    Full,
    /// It is longer than a slot.
    #[error("found a message of {found} bytes, allowed: up to {most}")]
    TooLong {
        /// Its bytes.
        found: usize,
        /// Bytes of the longest.
        most: usize,
    },
    /// The receiver's index is wrong.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// One direction, in the memory; `to` is the receiving side.
#[derive(Clone, Copy, Debug)]
struct Place {
    to: usize,
    shape: Shape,
}

impl Place {
    /// The words of the slot with this index.
    #[inline(always)]
    fn slot<'r>(&self, region: &'r Region, index: u64) -> &'r [Word] {
        let stride = self.shape.stride();
        let number = self.to * self.shape.messages + (index as usize & (self.shape.messages - 1));
        let start = SLOTS + number * stride;
        &region.words()[start..start + stride]
    }
}

#[cfg(loom)]
type Word = loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
type Word = AtomicU64;

/// A number that only one thread uses at a time.
#[derive(Debug, Default)]
struct Own(AtomicU64);

impl Own {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(RELAXED)
    }

    #[inline(always)]
    fn set(&self, value: u64) {
        self.0.store(value, RELAXED);
    }
}

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct Sender {
    place: Place,
    /// Next slot to write.
    tail: Own,
    /// The tail last made visible.
    published: Own,
    /// The tail that the other side has been woken for.
    announced: Own,
    /// The receiver's head as last read.
    head: Own,
}

impl Sender {
    pub(crate) fn new(shape: Shape, to: usize) -> Self {
        let place = Place { to, shape };
        let [tail, published, announced, head] = Default::default();
        Sender { place, tail, published, announced, head }
    }

    /// Slots to write; reads the receiver's index only if none are known to be free.
    #[inline]
    pub(crate) fn room(&self, region: &Region) -> Result<u64, Broken> {
        let capacity = self.place.shape.messages as u64;
        let used = self.tail.get().wrapping_sub(self.head.get());
        if used < capacity {
            return Ok(capacity - used);
        }
        let head = region.words()[HEADS[self.place.to]].load(Ordering::Acquire);
        let used = self.tail.get().wrapping_sub(head);
        if used > capacity {
            return Err(Broken);
        }
        self.head.set(head);
        Ok(capacity - used)
    }

    /// Writes a message without making it visible yet. If the ring is full, all before it are.
    #[inline]
    pub(crate) fn stage(&self, region: &Region, message: &[u8]) -> Result<(), SendError> {
        let most = self.place.shape.message_bytes;
        if message.len() > most {
            return Err(SendError::TooLong { found: message.len(), most });
        }
        if self.room(region)? == 0 {
            self.publish(region);
            // A full ring is news, also if nobody was to be woken for its messages.
            self.announced.set(self.tail.get().wrapping_sub(1));
            return Err(SendError::Full);
        }
        let slot = self.place.slot(region, self.tail.get());
        slot[0].store(message.len() as u64, RELAXED);
        let (words, rest) = message.as_chunks::<WORD>();
        for (word, bytes) in slot[1..].iter().zip(words) {
            word.store(u64::from_le_bytes(*bytes), RELAXED);
        }
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            slot[1 + words.len()].store(u64::from_le_bytes(last), RELAXED);
        }
        self.tail.set(self.tail.get().wrapping_add(1));
        Ok(())
    }

    /// Writes a message as [`Sender::stage`] does, for which the other side is not to be woken.
    #[inline]
    pub(crate) fn stage_quietly(&self, region: &Region, message: &[u8]) -> Result<(), SendError> {
        let is_first = self.announced.get() == self.tail.get();
        self.stage(region, message)?;
        if is_first {
            self.announced.set(self.tail.get());
        }
        Ok(())
    }

    /// Makes all staged messages visible with one release store.
    #[inline]
    pub(crate) fn publish(&self, region: &Region) {
        let tail = self.tail.get();
        if self.published.get() != tail {
            self.published.set(tail);
            region.words()[TAILS[self.place.to]].store(tail, Ordering::Release);
        }
    }

    /// Messages published since the last call, unless staged quietly; for waking the other side.
    #[inline]
    pub(crate) fn announce(&self) -> u64 {
        let published = self.published.get();
        let count = published.wrapping_sub(self.announced.get());
        self.announced.set(published);
        count
    }

    /// Messages that the receiver has not taken; at most a full ring, for any claim of the
    /// receiver.
    pub(crate) fn waiting(&self, region: &Region) -> u64 {
        let head = region.words()[HEADS[self.place.to]].load(Ordering::Acquire);
        let waiting = self.tail.get().wrapping_sub(head);
        waiting.min(self.place.shape.messages as u64)
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct Receiver {
    place: Place,
    /// Next slot to read.
    head: Own,
    /// The head last made visible.
    released: Own,
    /// The head that the other side has been woken for.
    announced: Own,
    /// The sender's tail as last read.
    tail: Own,
}

impl Receiver {
    pub(crate) fn new(shape: Shape, to: usize) -> Self {
        let place = Place { to, shape };
        let [head, released, announced, tail] = Default::default();
        Receiver { place, head, released, announced, tail }
    }

    /// Messages to read; reads the sender's index only if none are known.
    #[inline]
    pub(crate) fn available(&self, region: &Region) -> Result<u64, Broken> {
        let known = self.tail.get().wrapping_sub(self.head.get());
        if known != 0 {
            return Ok(known);
        }
        let tail = region.words()[TAILS[self.place.to]].load(Ordering::Acquire);
        let known = tail.wrapping_sub(self.head.get());
        if known > self.place.shape.messages as u64 {
            return Err(Broken);
        }
        self.tail.set(tail);
        Ok(known)
    }

    /// Copies the oldest message, up to the length of `into`; returns the copied bytes.
    #[inline]
    pub(crate) fn take(&self, region: &Region, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        if self.available(region)? == 0 {
            return Ok(None);
        }
        let slot = self.place.slot(region, self.head.get());
        let length = slot[0].load(RELAXED);
        if length > self.place.shape.message_bytes as u64 {
            return Err(Broken);
        }
        let length = into.len().min(length as usize);
        let (words, rest) = into[..length].as_chunks_mut::<WORD>();
        let whole = words.len();
        for (bytes, word) in words.iter_mut().zip(&slot[1..]) {
            *bytes = word.load(RELAXED).to_le_bytes();
        }
        if !rest.is_empty() {
            let last = slot[1 + whole].load(RELAXED).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
        let head = self.head.get().wrapping_add(1);
        self.head.set(head);
        // At the end of a batch, and before it in a long one: the sender may wait for room.
        let taken = head.wrapping_sub(self.released.get());
        if head == self.tail.get() || taken * 4 > self.place.shape.messages as u64 {
            self.release(region);
        }
        Ok(Some(length))
    }

    /// Returns the slots of all taken messages with one release store.
    #[inline]
    pub(crate) fn release(&self, region: &Region) {
        let head = self.head.get();
        if self.released.get() != head {
            self.released.set(head);
            region.words()[HEADS[self.place.to]].store(head, Ordering::Release);
        }
    }

    /// Slots released since the last call; for waking the other side.
    #[inline]
    pub(crate) fn announce(&self) -> u64 {
        let released = self.released.get();
        let count = released.wrapping_sub(self.announced.get());
        self.announced.set(released);
        count
    }

    /// Messages that were not taken; at most a full ring, for any claim of the sender.
    pub(crate) fn waiting(&self, region: &Region) -> u64 {
        let tail = region.words()[TAILS[self.place.to]].load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head.get());
        waiting.min(self.place.shape.messages as u64)
    }
}
