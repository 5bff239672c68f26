//! Replaces all filters of some groups, keeping those that stay the same.
//!
//! Guarantees: a filter that differs at most in its priority keeps its number and its counters.

use super::code::FilterCode;
use super::config::Keys;
use super::filters::{FilterChange, FilterError, FilterId, Filters};
use serde::Serialize;

/// Result of a reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Number of unchanged filters.
    pub kept: usize,
    /// Number of new filters.
    pub added: usize,
    /// Number of removed filters.
    pub removed: usize,
}

impl Filters {
    /// Replaces all filters of some groups at once. A filter that differs at most in its priority
    /// keeps its number and its counters.
    ///
    /// # Errors
    /// The first invalid filter; then nothing is changed.
    pub fn replace(
        &self,
        groups: &[&str],
        filters: Vec<super::Filter>,
    ) -> Result<Reloaded, FilterError> {
        self.replace_as(groups, filters)
    }
}

/// The changes that turn one list of filters into another.
pub(super) fn difference(
    old: Vec<(FilterId, super::Filter)>,
    new: Vec<super::Filter>,
) -> (Vec<FilterChange>, Reloaded) {
    use std::collections::HashMap;
    // The identity of a filter: everything but its priority. Equal ones are paired in order.
    let face = |filter: &super::Filter| {
        let keys = Keys { priority: 0, ..Keys::of(filter) };
        format!("{keys:?}")
    };
    let mut known: HashMap<String, std::collections::VecDeque<(FilterId, i32)>> = HashMap::new();
    for (id, filter) in &old {
        known.entry(face(filter)).or_default().push_back((*id, filter.priority));
    }
    let mut changes = Vec::new();
    let mut done = Reloaded::default();
    for filter in new {
        match known.get_mut(&face(&filter)).and_then(|same| same.pop_front()) {
            Some((_, priority)) if priority == filter.priority => done.kept += 1,
            Some((id, _)) => {
                done.kept += 1;
                changes.push(FilterChange::Set(id, filter, FilterCode::default()));
            }
            None => {
                done.added += 1;
                changes.push(FilterChange::Add(filter, FilterCode::default()));
            }
        }
    }
    let mut gone: Vec<_> = known.into_values().flatten().map(|(id, _)| id).collect();
    gone.sort_unstable();
    done.removed = gone.len();
    changes.extend(gone.into_iter().map(FilterChange::Remove));
    (changes, done)
}
