//! Filters in place of all those of some groups: what stays, what goes.
//!
//! Guarantees: a filter that is the same as before, but for its priority, keeps its number and
//! its counters.

use super::code::FilterCode;
use super::config::Keys;
use super::filters::{FilterChange, FilterError, FilterId, Filters};
use serde::Serialize;

/// What a reload changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Filters that are as before.
    pub kept: usize,
    /// Filters that were not there before.
    pub added: usize,
    /// Filters that are gone.
    pub removed: usize,
}

impl Filters {
    /// Puts filters in place of all those of some groups, at once. One that is the same as
    /// before, but for its priority, keeps its number and its counters.
    ///
    /// # Errors
    /// What is wrong with the first that is; nothing is changed then.
    pub fn replace(
        &self,
        groups: &[&str],
        filters: Vec<super::Filter>,
    ) -> Result<Reloaded, FilterError> {
        self.replace_as(groups, filters)
    }
}

/// The changes that make one list of filters of another.
pub(super) fn difference(
    old: Vec<(FilterId, super::Filter)>,
    new: Vec<super::Filter>,
) -> (Vec<FilterChange>, Reloaded) {
    use std::collections::HashMap;
    // What makes a filter the same: all but its priority. Equal ones are matched in order.
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
