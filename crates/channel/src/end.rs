//! One side of a channel: both rings, its gate, and the other side's doorbell.
//!
//! ```
//! use picnic_channel::{End, Region, Shape, Side};
//! use picnic_core::doorbell::NoDoorbell;
//! use std::sync::Arc;
//!
//! let shape = Shape::new(64, 8).unwrap();
//! let region = Arc::new(Region::private(shape.bytes()).unwrap());
//! let end = |side| End::new(region.clone(), shape, side, Arc::new(NoDoorbell));
//! let (card, host) = (end(Side::Card), end(Side::Host));
//! host.stage(b"hello").unwrap(); // written, not yet visible
//! host.flush(); // visible, and the card is woken if it sleeps
//! let mut message = [0; 64];
//! assert_eq!(card.take(&mut message), Ok(Some(5)));
//! ```
//!
//! Waiting takes four steps, so that no message is missed: [`End::rest`] states the awaited event
//! and arms the gate, [`End::has_news`] checks once more, then the caller sleeps until its doorbell
//! rings, and [`End::wake`] disarms the gate. The other side's [`End::flush`] publishes, then reads
//! the gate. The model is the card's own, `crates/core/src/ring/models.rs`.
//!
//! All methods take `&self`, for the several owners of a side; they must be on one thread at a
//! time. Two threads at once would spoil messages, nothing else.

use crate::region::Region;
use crate::ring::{AWAITED, Broken, CLOSED, GATES, Receiver, SendError, Sender, Shape};
use picnic_core::doorbell::Doorbell;
use picnic_core::ring::gate::Gate;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The task on the card.
    Card = 0,
    /// The host process.
    Host = 1,
}

/// The event that a side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// A message.
    Message = 1,
    /// Room for a message.
    Room = 2,
    /// Either.
    Any = 3,
}

impl Awaits {
    fn covers(self, other: Awaits) -> bool {
        self as u64 & other as u64 != 0
    }
}

/// One side of a channel.
pub struct End {
    region: Arc<Region>,
    shape: Shape,
    side: usize,
    other: usize,
    sender: Sender,
    receiver: Receiver,
    bell: Arc<dyn Doorbell>,
}

impl End {
    /// A side of the channel in this memory, of at least [`Shape::bytes`], all zero when the first
    /// side is made; `bell` wakes the other side.
    pub fn new(region: Arc<Region>, shape: Shape, side: Side, bell: Arc<dyn Doorbell>) -> Self {
        let (side, other) = (side as usize, 1 - side as usize);
        if side == Side::Card as usize {
            shape.write(&region);
        }
        let (sender, receiver) = (Sender::new(shape, other), Receiver::new(shape, side));
        let end = End { region, shape, side, other, sender, receiver, bell };
        end.wake();
        end
    }

    /// The size of its rings.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Writes a message, which [`End::flush`] makes visible.
    ///
    /// # Errors
    /// It is too long, or there is no room; then those before it are visible.
    #[inline]
    pub fn stage(&self, message: &[u8]) -> Result<(), SendError> {
        self.sender.stage(&self.region, message)
    }

    /// Writes a message that need not wake the other side: it is visible with the next
    /// [`End::flush`], and is found when that side looks, or when another message wakes it.
    ///
    /// # Errors
    /// As [`End::stage`].
    #[inline]
    pub fn stage_quietly(&self, message: &[u8]) -> Result<(), SendError> {
        self.sender.stage_quietly(&self.region, message)
    }

    /// Copies the oldest message, up to the length of `into`; returns the number of bytes copied.
    ///
    /// # Errors
    /// The other side does not keep to the protocol.
    #[inline]
    pub fn take(&self, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        self.receiver.take(&self.region, into)
    }

    /// Makes staged messages and the room of taken ones visible, and wakes the other side if it
    /// sleeps and waits for one of them; whether it was woken.
    #[inline]
    pub fn flush(&self) -> bool {
        self.sender.publish(&self.region);
        self.receiver.release(&self.region);
        let (messages, room) = (self.sender.announce(), self.receiver.announce());
        if messages == 0 && room == 0 {
            return false;
        }
        // Publish, then read the gate; the other side does it in the opposite order.
        Gate::order_publish();
        let gate = self.region.gate(GATES[self.other]);
        if !gate.is_armed() {
            return false;
        }
        let awaited = self.region.words()[AWAITED[self.other]].load(Ordering::Relaxed);
        let wakes = messages != 0 && awaited & Awaits::Message as u64 != 0
            || room != 0 && awaited & Awaits::Room as u64 != 0;
        let wakes = wakes && gate.interrupt();
        if wakes {
            self.bell.ring();
        }
        wakes
    }

    /// Whether something awaited is there, also if the channel has ended.
    #[inline]
    pub fn has_news(&self, awaits: Awaits) -> bool {
        awaits.covers(Awaits::Message) && self.receiver.available(&self.region) != Ok(0)
            || awaits.covers(Awaits::Room) && self.sender.room(&self.region) != Ok(0)
    }

    /// Arms this side's gate: from now on news rings its doorbell, once. The caller must then check
    /// [`End::has_news`].
    pub fn rest(&self, awaits: Awaits) {
        self.region.words()[AWAITED[self.side]].store(awaits as u64, Ordering::Relaxed);
        self.region.gate(GATES[self.side]).rearm();
    }

    /// Disarms this side's gate: it is awake.
    pub fn wake(&self) {
        let gate = self.region.gate(GATES[self.side]);
        if !gate.resume() {
            gate.begin();
        }
    }

    /// Unread messages: those that the other side has not taken, and those that this side has
    /// not.
    pub fn in_flight(&self) -> u64 {
        self.sender.waiting(&self.region) + self.receiver.waiting(&self.region)
    }

    /// Ends the channel and wakes the other side, which still gets the messages published before.
    pub fn close(&self) {
        self.sender.publish(&self.region);
        self.region.words()[CLOSED].store(1, Ordering::Release);
        self.bell.ring();
    }

    /// Whether the card has ended the channel.
    pub fn is_closed(&self) -> bool {
        self.region.words()[CLOSED].load(Ordering::Acquire) != 0
    }

    /// The memory, for its other owners.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("shape", &self.shape).field("side", &self.side).finish()
    }
}
