//! Numbers, listings and changes of filters, and the errors of changes.

use crate::Filter;
use crate::code::FilterCode;
use crate::config::Keys;
use crate::text::Reason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A filter's number; the card never reuses it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct FilterId(pub u64);

impl fmt::Display for FilterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Reason why a change failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A part of the filter is wrong.
    #[error("{key}: {reason}")]
    Invalid {
        /// The part, as the card file calls it.
        key: &'static str,
        /// The value found and the values allowed.
        reason: Reason,
    },
    /// There is no such filter.
    #[error("found no filter {0}")]
    NoSuchFilter(String),
    /// Two changes of a set concern the same filter.
    #[error("found two changes to filter {0} at once, allowed: one")]
    ChangedTwice(FilterId),
    /// A list is full.
    #[error("found {0} filters in the list, allowed: no more")]
    TooMany(usize),
    /// There is no room for another group.
    #[error("found {0} groups, allowed: no more")]
    TooManyGroups(usize),
    /// The card has no filters; only for tasks.
    #[error("the card has no filters")]
    Absent,
    /// Card memory has no room for it; only for tasks. The text has the sizes.
    #[error("{0} (os.arena_bytes)")]
    NoMemory(String),
    /// Another thread is making a change; only from [`try_apply`](super::Filters::try_apply).
    #[error("filters are being changed by another thread")]
    Busy,
}

impl FilterError {
    pub(crate) fn invalid(key: &'static str, found: impl Into<String>, allowed: &str) -> Self {
        FilterError::Invalid { key, reason: Reason::new(found, allowed) }
    }
}

/// A filter with its counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// Its number.
    pub id: FilterId,
    /// The filter.
    pub filter: Filter,
    /// Packets that matched; for an allocator, its allocations.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that ended before its pattern did.
    pub short_packets: u64,
    /// Packets that were dropped because they could match but could not be read.
    pub unreadable_packets: u64,
    /// Its predicate or callback panicked on a core and is no longer called there. An allocator
    /// panicked or gave a wrong answer, and is no longer in use.
    pub broken: bool,
}

impl Serialize for Listing {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat {
            id: FilterId,
            #[serde(flatten)]
            keys: Keys,
            packets: u64,
            bytes: u64,
            short_packets: u64,
            unreadable_packets: u64,
            broken: bool,
        }
        let &Listing { id, packets, bytes, short_packets, unreadable_packets, broken, .. } = self;
        let keys = Keys::of(&self.filter);
        Flat { id, keys, packets, bytes, short_packets, unreadable_packets, broken }
            .serialize(serializer)
    }
}

/// One change of a set.
#[derive(Debug)]
pub enum FilterChange {
    /// Adds a filter, with its code.
    Add(Filter, FilterCode),
    /// Replaces a filter. Its code stays unless new code is given.
    Set(FilterId, Filter, FilterCode),
    /// Removes a filter.
    Remove(FilterId),
}

impl FilterChange {
    /// The group of the new filter.
    pub(super) fn group(&self) -> Option<&str> {
        match self {
            FilterChange::Add(filter, _) | FilterChange::Set(_, filter, _) => Some(&filter.group),
            FilterChange::Remove(_) => None,
        }
    }
}
