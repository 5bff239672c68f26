//! What a user hands to a filter: a predicate, a callback, a place to hand packets over to.
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
//! Guarantees: code that panics is not called again; the filter matches nothing from then on
//! and is shown as `broken`. The card goes on.

use picnic_core::function::PacketMut;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::fmt;

/// What a callback decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackVerdict {
    /// The next filter is to look at the packet.
    Next,
    /// The packet is through this group.
    Accept,
    /// It ends here.
    Drop,
    /// To a target queue; as `Next` where nothing can be steered.
    Steer(u16),
}

/// A predicate's code.
pub(super) type Judge = dyn FnMut(&PacketMut<'_>) -> bool + Send;
/// A callback's code.
pub(super) type Handle = dyn FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Send;

/// Says whether a packet matches.
pub struct Predicate(pub(super) Source<Judge>);

/// Says what is done with a packet that matched.
pub struct Callback(pub(super) Source<Handle>);

/// Code for one core, or for as many as there are.
pub(super) enum Source<T: ?Sized> {
    One(Box<T>),
    Each(Box<dyn FnMut() -> Box<T> + Send>),
}

impl<T: ?Sized> Source<T> {
    /// Code for each of `count` cores; `None` if there is code for one only.
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

    /// A predicate of which each target core gets a copy.
    pub fn copied(judge: impl FnMut(&PacketMut<'_>) -> bool + Clone + Send + 'static) -> Self {
        Predicate(Source::Each(Box::new(move || Box::new(judge.clone()))))
    }
}

impl Callback {
    /// A callback of a filter at the card.
    pub fn new(handle: impl FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Send + 'static) -> Self {
        Callback(Source::One(Box::new(handle)))
    }

    /// A callback of which each target core gets a copy.
    pub fn copied(
        handle: impl FnMut(&mut PacketMut<'_>) -> CallbackVerdict + Clone + Send + 'static,
    ) -> Self {
        Callback(Source::Each(Box::new(move || Box::new(handle.clone()))))
    }
}

/// Tells a receiver, from any thread, that nothing more will come.
pub type Closer = Box<dyn FnOnce() + Send>;

/// Takes the packets that a filter at the card hands over, on the borrowed core: a task's
/// mailbox, say.
pub trait Handover: Send {
    /// Takes a packet; one that is full gives it back, and it is dropped and counted.
    fn hand_over(&mut self, now: Time, packet: Descriptor) -> Result<(), Descriptor>;

    /// The burst is over: what was taken may be shown to whoever waits for it.
    fn end_burst(&mut self) {}

    /// What tells the receiver that nothing more will come, as soon as the filter is removed: the
    /// core lets go of this only with the next packet it sees, and there may be none. Packets
    /// that the core hands over meanwhile are given back.
    fn closer(&self) -> Option<Closer> {
        None
    }

    /// Packets taken and not ended yet that nobody else enters into the ledger as held.
    fn held(&self) -> usize {
        0
    }
}

/// What a filter needs beside its data.
#[derive(Default)]
pub struct FilterCode {
    /// For `Match::Predicate`.
    pub predicate: Option<Predicate>,
    /// For `Action::Callback`.
    pub callback: Option<Callback>,
    /// For `Action::Deliver`.
    pub handover: Option<Box<dyn Handover>>,
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
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.predicate.is_none() && self.callback.is_none() && self.handover.is_none()
    }

    /// The code for each of `cores`; the name of the one that there is for one core only.
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

opaque!(Predicate, Callback, FilterCode, CoreCode);
