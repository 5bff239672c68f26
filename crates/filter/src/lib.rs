//! Filters: packets matched and dealt with, first-class values, changed at will.
//!
//! ```
//! use picnic_filter::{Action, Direction, Filters, Filter, FiveTuple, Protocol};
//! // Program 1 of the paper: drop all pings, both ways.
//! let filters = Filters::new(4);
//! let icmp = FiveTuple { protocol: Some(Protocol::ICMP), ..FiveTuple::default() };
//! let rx = filters.add(Filter::new("ping-drop-rx", icmp, Action::Drop))?;
//! let tx = filters.add(Filter::new("ping-drop-tx", icmp, Action::Drop).on(Direction::Tx))?;
//! assert_eq!(filters.list().len(), 2);
//! filters.remove(rx)?;
//! # assert!(filters.get(tx).is_some());
//! # Ok::<(), picnic_filter::FilterError>(())
//! ```
//!
//! Filters stand in ordered groups, by priority inside a group, on rx or on tx, at the card
//! (`nic`) or at the target core (`driver`): four lists. A packet meets the filters of a list in
//! order. `count` and `mark` let it go on to the next filter; `accept` ends its way through the
//! group, and the next group looks at it; `drop`, `steer` and `deliver` end its way, and so does
//! `poll`, behind which the poll engine's functions have the packet. A callback says which of these
//! it is to be. A packet that no filter stopped goes on.
//!
//! A filter whose conditions were all read decides. One that may keep packets from the host (`drop`,
//! `deliver`, a callback) also stops those that it cannot read and that could match it: they are
//! dropped, and counted as `unreadable`. Told to accept them, it lets them go on. Any other filter
//! lets them go on.
//!
//! * [`matching`]: what a filter looks at: five-tuple, static pattern, predicate;
//! * [`hidden`]: what of a packet cannot be read, and what becomes of it then;
//! * [`classifier`]: the compiled form of many five-tuples;
//! * [`table`]: one list, compiled; immutable;
//! * [`reader`]: the data path's end: takes a new table between two bursts;
//! * [`filters`]: the handle: add, list, get, change, remove, from any thread;
//! * [`image`]: the list at the card as words, for the kernel engine;
//! * [`function`], [`queue`]: filters at the card, filters at the driver;
//! * [`config`]: `[[filter]]` of the card file, and the same keys as text.
//!
//! Guarantees: the data path allocates, frees and locks nothing per packet; a change is whole or
//! not made at all, and seen between two bursts; a compiled list gives the verdict of the list
//! read from the top, always.
//!
//! Source: NICOS 4.4.

#![forbid(unsafe_code)]

pub mod classifier;
pub mod code;
pub mod config;
mod exchange;
pub mod filters;
pub mod function;
pub mod hidden;
pub mod image;
pub mod matching;
pub mod queue;
pub mod reader;
pub mod reload;
mod stops;
pub mod table;
mod text;

pub use code::{Callback, CallbackVerdict, FilterCode, Handover, Predicate};
pub use filters::{FilterError, FilterId, Filters, Listing};
pub use hidden::{Headers, Hidden};
pub use matching::{Base, FiveTuple, Match, Pattern, PortRange, Prefix, Protocol};
pub use text::Reason;

pub use picnic_core::direction::Direction;
use serde::{Deserialize, Serialize};

/// The group of filters that name none: the paper's `GENERAL_PURPOSE_FILTERS_GROUP`.
pub const GENERAL: &str = "general";
/// The priority of filters that name none.
pub const PRIORITY: i32 = 100;
/// Filters that one list may hold.
pub const MOST_FILTERS: usize = 65_000;
/// Groups that a card's filters may stand in, ever: a name once given keeps its place.
pub const MOST_GROUPS: usize = 65_000;

/// Where the filter runs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the borrowed core, at the head of the chain.
    #[default]
    Nic,
    /// On the target core: before the host sees the packet, or before it is on the tx ring.
    Driver,
}

/// What is done with a packet that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It ends here, counted as filtered.
    Drop,
    /// It is through this group.
    Accept,
    /// To a target queue; at the card, on rx.
    Steer(u16),
    /// It gets this mark and goes on to the next filter.
    Mark(u32),
    /// It is counted and goes on to the next filter, as every filter counts.
    Count,
    /// The filter's callback says.
    Callback,
    /// To the filter's hand-over, as a rule a task's mailbox; at the card.
    Deliver,
    /// Past all other filters to the functions of the poll engine, where the kernel has the card's
    /// packets as well; at the card, on rx.
    Poll,
}

/// What a filter does with a packet that it could match but cannot read, if it may keep packets
/// from the host; see [`hidden`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Unreadable {
    /// Drops it.
    #[default]
    Drop,
    /// Lets it go on to the next filter.
    Accept,
}

/// A filter, as it is asked for and as it is read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// What people call it; several filters may have one name.
    pub name: String,
    /// The group it stands in. Groups are in the order in which they were first named.
    pub group: String,
    /// Its place in the group: lower numbers first; among equals, the older filter first.
    pub priority: i32,
    /// Rx or tx.
    pub direction: Direction,
    /// At the card or at the driver.
    pub place: Place,
    /// Which packets.
    pub matching: Match,
    /// What is done with them.
    pub action: Action,
    /// What is done with those that it cannot read.
    pub unreadable: Unreadable,
}

impl Filter {
    /// A filter of the general group, at the card, on rx.
    pub fn new(name: impl Into<String>, matching: impl Into<Match>, action: Action) -> Self {
        Filter {
            name: name.into(),
            group: GENERAL.into(),
            priority: PRIORITY,
            direction: Direction::Rx,
            place: Place::Nic,
            matching: matching.into(),
            action,
            unreadable: Unreadable::Drop,
        }
    }

    /// Whether it has code of the user's to call.
    pub(crate) fn calls(&self) -> bool {
        self.matching == Match::Predicate
            || matches!(self.action, Action::Callback | Action::Deliver)
    }

    /// Whether a packet may end at it without reaching the host.
    pub(crate) fn keeps_from_host(&self) -> bool {
        matches!(self.action, Action::Drop | Action::Callback | Action::Deliver)
    }

    /// Whether it drops what it could match and cannot read.
    pub(crate) fn stops_unreadable(&self) -> bool {
        self.keeps_from_host() && self.unreadable == Unreadable::Drop
    }

    /// The same, on rx or on tx.
    #[must_use]
    pub fn on(self, direction: Direction) -> Self {
        Filter { direction, ..self }
    }

    /// The same, at the card or at the driver.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Filter { place, ..self }
    }

    /// The same, in a group.
    #[must_use]
    pub fn in_group(self, group: impl Into<String>) -> Self {
        Filter { group: group.into(), ..self }
    }

    /// The same, doing this with packets that it cannot read.
    #[must_use]
    pub fn with_unreadable(self, unreadable: Unreadable) -> Self {
        Filter { unreadable, ..self }
    }

    /// The same, with a priority.
    #[must_use]
    pub fn with_priority(self, priority: i32) -> Self {
        Filter { priority, ..self }
    }
}
