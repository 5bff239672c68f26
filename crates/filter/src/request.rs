//! What `picnic ctl filter` asks of a running card, and what it is told.
//!
//! Guarantees: a request is answered whole or refused; what is wrong is said in words for the
//! user.

use super::config::Keys;
use super::filters::{FilterChange, FilterError, FilterId, Filters, Listing};
use super::hook::Hooks;
use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "filter", rename_all = "snake_case", deny_unknown_fields)]
pub enum FilterRequest {
    /// All filters, or those of one group.
    List {
        /// The group; all if there is none.
        #[serde(default)]
        group: Option<String>,
    },
    /// One filter.
    Show {
        /// Its number.
        id: FilterId,
    },
    /// A filter more.
    Add {
        /// What it is.
        keys: Box<Keys>,
    },
    /// Another filter in place of one.
    Change {
        /// Its number.
        id: FilterId,
        /// What it is from now on.
        keys: Box<Keys>,
    },
    /// A filter less.
    Remove {
        /// Its number.
        id: FilterId,
    },
    /// These in place of all filters of the groups that they name, and of `groups`. Filters that
    /// are the same as before keep their numbers and counters.
    Reload {
        /// Groups to be emptied even if no filter names them.
        #[serde(default)]
        groups: Vec<String>,
        /// The filters.
        filters: Vec<Keys>,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum FilterAnswer {
    /// Filters with their counters: of `list`.
    Filters {
        /// In order.
        filters: Vec<Listing>,
    },
    /// A filter with its counters: of `show`, `add` and `change` as it is, of `remove` as it was.
    Filter(Box<Listing>),
    /// Of `reload`.
    Reloaded(Reloaded),
}

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
    /// Does what a request asks for.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub fn answer(&self, request: FilterRequest) -> Result<FilterAnswer, FilterError> {
        let one = |id: FilterId| {
            let none = || FilterError::NoSuchFilter(id.to_string());
            self.get(id).map(|listing| FilterAnswer::Filter(Box::new(listing))).ok_or_else(none)
        };
        match request {
            FilterRequest::List { group } => {
                let mut filters = self.list();
                filters.retain(|listing| {
                    group.as_ref().is_none_or(|group| *group == listing.filter.group)
                });
                Ok(FilterAnswer::Filters { filters })
            }
            FilterRequest::Show { id } => one(id),
            FilterRequest::Add { keys } => one(self.add(keys.filter()?)?),
            FilterRequest::Change { id, keys } => {
                self.set(id, keys.filter()?)?;
                one(id)
            }
            FilterRequest::Remove { id } => Ok(FilterAnswer::Filter(Box::new(self.remove(id)?))),
            FilterRequest::Reload { mut groups, filters } => {
                let filters: Result<Vec<_>, _> = filters.iter().map(Keys::filter).collect();
                let filters = filters?;
                groups.extend(filters.iter().map(|filter| filter.group.clone()));
                let groups: Vec<_> = groups.iter().map(String::as_str).collect();
                self.replace(&groups, filters).map(FilterAnswer::Reloaded)
            }
        }
    }

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
                changes.push(FilterChange::Set(id, filter, Hooks::default()));
            }
            None => {
                done.added += 1;
                changes.push(FilterChange::Add(filter, Hooks::default()));
            }
        }
    }
    let mut gone: Vec<_> = known.into_values().flatten().map(|(id, _)| id).collect();
    gone.sort_unstable();
    done.removed = gone.len();
    changes.extend(gone.into_iter().map(FilterChange::Remove));
    (changes, done)
}
