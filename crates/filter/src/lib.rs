//! Filters: rules that match and handle packets, changeable while the card runs.
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
//! Filters are in ordered groups, by priority inside a group, on rx or on tx, at the card (`nic`)
//! or at the target core (`driver`): four lists. A packet meets the filters of a list in order.
//! After `count` and `mark` it continues with the next filter; after `accept` with the next group;
//! `drop`, `steer` and `deliver` end its way, and `poll` passes it to the poll engine's functions.
//! A callback chooses one of these. A packet that no filter stopped continues.
//!
//! A filter with the action `allocate` is special: its code allocates and frees card memory, and it
//! is listed, shown and removed like the others.
//!
//! A filter decides if all its conditions could be read. A filter that may keep packets from the
//! host (`drop`, `deliver`, a callback) also drops packets that could match but cannot be read, and
//! counts them as `unreadable`, unless it is set to accept them. Any other filter passes them.
//!
//! * [`matching`]: the condition of a filter: five-tuple, static pattern, predicate;
//! * [`hidden`]: packets that cannot be read in full, and their fate;
//! * [`classifier`]: the compiled form of many five-tuples;
//! * [`table`]: one list, compiled; immutable;
//! * [`reader`]: the data path's side: takes a new table between two bursts;
//! * [`filters`]: the handle: add, list, get, change, remove, from any thread;
//! * [`image`]: the list at the card as words, for the kernel engine;
//! * [`function`], [`queue`]: filters at the card, filters at the driver;
//! * [`config`]: `[[filter]]` of the card file, and the same keys as text.
//!
//! Guarantees: the data path allocates, frees and locks nothing per packet; a change is made whole
//! or not at all, and takes effect between two bursts; a compiled list always gives the verdict of
//! the list read from the top.
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

/// The default group: the paper's `GENERAL_PURPOSE_FILTERS_GROUP`.
pub const GENERAL: &str = "general";
/// The group of allocators.
pub const MEMORY: &str = "memory";
/// The default priority.
pub const PRIORITY: i32 = 100;
/// Most filters in one list.
pub const MOST_FILTERS: usize = 65_000;
/// Most groups over the life of a card: a group, once named, keeps its place.
pub const MOST_GROUPS: usize = 65_000;

/// The place of the filter.
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

/// The action on a matching packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drops it, counted as filtered.
    Drop,
    /// Ends its way through this group.
    Accept,
    /// Steers it to a target queue; at the card, on rx.
    Steer(u16),
    /// Sets this mark and continues with the next filter.
    Mark(u32),
    /// Counts it, as every filter does, and continues with the next filter.
    Count,
    /// Calls the filter's callback, which decides.
    Callback,
    /// Hands it to the filter's receiver, usually a task's mailbox; at the card.
    Deliver,
    /// Skips all other filters and passes it to the functions of the poll engine, if the kernel
    /// also handles packets of the card; at the card, on rx.
    Poll,
    /// Allocates and frees card memory by the filter's code; it sees no packets.
    Allocate,
}

/// The treatment of packets that could match but cannot be read, for filters that may keep packets
/// from the host; see [`hidden`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Unreadable {
    /// Drops it.
    #[default]
    Drop,
    /// Passes it to the next filter.
    Accept,
}

/// A filter, as given and as read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// Its name for people; several filters may share one.
    pub name: String,
    /// Its group. Groups are ordered by their first mention.
    pub group: String,
    /// Its place in the group: lower numbers first; among equals, the older filter first.
    pub priority: i32,
    /// Rx or tx.
    pub direction: Direction,
    /// At the card or at the driver.
    pub place: Place,
    /// The condition.
    pub matching: Match,
    /// The action.
    pub action: Action,
    /// The treatment of packets that could match but cannot be read.
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

    /// An allocator of card memory, in a separate group.
    pub fn allocator(name: impl Into<String>) -> Self {
        Filter::new(name, Match::Any, Action::Allocate).in_group(MEMORY)
    }

    /// Whether it allocates memory and sees no packets.
    pub fn is_allocator(&self) -> bool {
        self.action == Action::Allocate
    }

    /// Bytes of its strings and patterns.
    pub(crate) fn text_bytes(&self) -> usize {
        let pattern = match &self.matching {
            Match::Pattern(pattern) => pattern.mask().len() * (1 + pattern.values().count()),
            _ => 0,
        };
        self.name.len() + self.group.len() + pattern
    }

    /// Whether it calls user code.
    pub(crate) fn calls(&self) -> bool {
        self.matching == Match::Predicate
            || matches!(self.action, Action::Callback | Action::Deliver)
    }

    /// Whether it can keep a packet from the host.
    pub(crate) fn keeps_from_host(&self) -> bool {
        matches!(self.action, Action::Drop | Action::Callback | Action::Deliver)
    }

    /// Whether it drops packets that could match but cannot be read.
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

    /// The same, with this treatment of packets that cannot be read.
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
