//! User code of a filter: predicate, callback, receiver of packets, allocator.
//!
//! ```
//! use picnic_filter::{Action, Callback, Filter, Filters, Match, CallbackVerdict};
//! let filters = Filters::new(1);
//! let mut seen = 0_u64;
//! let thin_out = Callback::new(move |_packet| {
//!     seen += 1;
//!     if seen % 2 == 0 { CallbackVerdict::Drop } else { CallbackVerdict::Next }
//! });
//! filters.add_with(Filter::new("every-other", Match::Any, Action::Callback), thin_out)?;
//! # Ok::<(), picnic_filter::FilterError>(())
//! ```
//!
//! Guarantees: code that panics is not called again; the filter then matches nothing and is
//! shown as `broken`. The card continues.

use picnic_core::function::PacketMut;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::fmt;
use std::sync::Arc;

/// The decision of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackVerdict {
    /// Continue with the next filter.
    Next,
    /// The packet leaves this group.
    Accept,
    /// Drop it.
    Drop,
    /// Steer it to a target queue; as `Next` where steering is impossible.
    Steer(u16),
}

/// The code of a predicate.
pub(super) type Judge = dyn FnMut(&PacketMut<'_>) -> bool + Send;
/// The code of a callback.
pub(super) type Handle = dyn FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Send;

/// Decides whether a packet matches.
pub struct Predicate(pub(super) Source<Judge>);

/// Handles a packet that matched.
pub struct Callback(pub(super) Source<Handle>);

/// Code for one core, or copied for any number of cores.
pub(super) enum Source<T: ?Sized> {
    One(Box<T>),
    Each(Box<dyn FnMut() -> Box<T> + Send>),
}

impl<T: ?Sized> Source<T> {
    /// Bytes of one copy of the code. Code that makes copies holds one.
    fn bytes(&self) -> usize {
        match self {
            Source::One(code) => size_of_val(&**code),
            Source::Each(make) => size_of_val(&**make),
        }
    }

    /// Code for each of `count` cores; `None` if it cannot be copied.
    pub(super) fn into_copies(self, count: usize) -> Option<Vec<Box<T>>> {
        match self {
            Source::One(code) if count == 1 => Some(vec![code]),
            Source::One(_) => None,
            Source::Each(mut make) => Some((0..count).map(|_| make()).collect()),
        }
    }
}

impl Predicate {
    /// A predicate of a filter at the card.
    pub fn new(judge: impl FnMut(&PacketMut<'_>) -> bool + Send + 'static) -> Self {
        Predicate(Source::One(Box::new(judge)))
    }

    /// A predicate that is copied to each target core.
    pub fn copied(judge: impl FnMut(&PacketMut<'_>) -> bool + Clone + Send + 'static) -> Self {
        Predicate(Source::Each(Box::new(move || Box::new(judge.clone()))))
    }
}

impl Callback {
    /// A callback of a filter at the card.
    pub fn new(handle: impl FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Send + 'static) -> Self {
        Callback(Source::One(Box::new(handle)))
    }

    /// A callback that is copied to each target core.
    pub fn copied(
        handle: impl FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Clone + Send + 'static,
    ) -> Self {
        Callback(Source::Each(Box::new(move || Box::new(handle.clone()))))
    }
}

/// Tells a receiver, from any thread, that no more packets will arrive.
pub type Closer = Box<dyn FnOnce() + Send>;

/// Receives packets from a filter at the card, on the borrowed core: for example, a task's mailbox.
pub trait Handover: Send {
    /// Takes a packet; a full receiver returns it, and it is dropped and counted.
    fn hand_over(&mut self, now: Time, packet: Descriptor) -> Result<(), Descriptor>;

    /// Ends a burst: the packets may be shown to a waiting task.
    fn end_burst(&mut self) {}

    /// Tells the receiver that no more packets will arrive, as soon as the filter is removed: the
    /// core drops this object only at its next packet, which may never arrive. Packets handed over
    /// meanwhile are returned.
    fn closer(&self) -> Option<Closer> {
        None
    }

    /// Packets taken and unfinished that are not in the ledger otherwise.
    fn held(&self) -> usize {
        0
    }
}

/// The card's side of an allocator that is listed as a filter.
pub trait AllocatorHandle: Send + Sync {
    /// The filter was added: the allocator serves requests from now on.
    fn install(&self);

    /// The filter was removed, by any thread: the allocator serves no further requests.
    fn uninstall(&self);

    /// Its counts.
    fn counts(&self) -> AllocatorCounts;
}

/// The counts of an allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorCounts {
    /// Allocations.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// It panicked or gave a wrong answer, and is no longer in use.
    pub broken: bool,
}

/// An allocator of card memory, for a filter with `Action::Allocate`. Dropped, it is uninstalled.
pub struct AllocatorCode(Arc<dyn AllocatorHandle>);

impl AllocatorCode {
    /// An allocator with this handle.
    pub fn new(handle: Arc<dyn AllocatorHandle>) -> Self {
        AllocatorCode(handle)
    }

    pub(super) fn install(&self) {
        self.0.install();
    }

    pub(super) fn counts(&self) -> AllocatorCounts {
        self.0.counts()
    }
}

impl Drop for AllocatorCode {
    fn drop(&mut self) {
        self.0.uninstall();
    }
}

/// The code that a filter needs beside its data.
#[derive(Default)]
pub struct FilterCode {
    /// For `Match::Predicate`.
    pub predicate: Option<Predicate>,
    /// For `Action::Callback`.
    pub callback: Option<Callback>,
    /// For `Action::Deliver`.
    pub handover: Option<Box<dyn Handover>>,
    /// For `Action::Allocate`.
    pub allocator: Option<AllocatorCode>,
    /// Kept while the filter exists, and dropped with it by the thread that removes it.
    pub kept: Option<Box<dyn Send>>,
}

impl From<AllocatorCode> for FilterCode {
    fn from(allocator: AllocatorCode) -> Self {
        FilterCode { allocator: Some(allocator), ..FilterCode::default() }
    }
}

impl From<Predicate> for FilterCode {
    fn from(predicate: Predicate) -> Self {
        FilterCode { predicate: Some(predicate), ..FilterCode::default() }
    }
}

impl From<Callback> for FilterCode {
    fn from(callback: Callback) -> Self {
        FilterCode { callback: Some(callback), ..FilterCode::default() }
    }
}

impl From<Box<dyn Handover>> for FilterCode {
    fn from(handover: Box<dyn Handover>) -> Self {
        FilterCode { handover: Some(handover), ..FilterCode::default() }
    }
}

/// The code of one filter on one core.
#[derive(Default)]
pub(super) struct CoreCode {
    pub(super) predicate: Option<Box<Judge>>,
    pub(super) callback: Option<Box<Handle>>,
    pub(super) handover: Option<Box<dyn Handover>>,
}

impl FilterCode {
    /// No code.
    pub const NONE: FilterCode =
        FilterCode { predicate: None, callback: None, handover: None, allocator: None, kept: None };

    /// Whether there is no code.
    pub(super) fn is_empty(&self) -> bool {
        self.predicate.is_none()
            && self.callback.is_none()
            && self.handover.is_none()
            && self.allocator.is_none()
    }

    /// Bytes of the code on one core.
    pub(super) fn bytes_per_core(&self) -> usize {
        let predicate = self.predicate.as_ref().map_or(0, |code| code.0.bytes());
        let callback = self.callback.as_ref().map_or(0, |code| code.0.bytes());
        let handover = self.handover.as_ref().map_or(0, |handover| size_of_val(&**handover));
        predicate + callback + handover
    }

    /// The code for each of `cores`; an error names the code that cannot be copied.
    pub(super) fn spread(self, cores: usize) -> Result<Vec<CoreCode>, &'static str> {
        let mut spread: Vec<_> = (0..cores).map(|_| CoreCode::default()).collect();
        if let Some(Predicate(source)) = self.predicate {
            let copies = source.into_copies(cores).ok_or("predicate")?;
            spread.iter_mut().zip(copies).for_each(|(core, code)| core.predicate = Some(code));
        }
        if let Some(Callback(source)) = self.callback {
            let copies = source.into_copies(cores).ok_or("callback")?;
            spread.iter_mut().zip(copies).for_each(|(core, code)| core.callback = Some(code));
        }
        match (self.handover, &mut *spread) {
            (None, _) => {}
            (Some(handover), [core]) => core.handover = Some(handover),
            (Some(_), _) => return Err("handover"),
        }
        Ok(spread)
    }
}

macro_rules! opaque {
    ($($name:ident),+) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}

opaque!(Predicate, Callback, AllocatorCode, FilterCode, CoreCode);
