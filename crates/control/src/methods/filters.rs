//! `filter.*`: lists, reads and changes filters.

use super::{Methods, value};
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::request::Reference;
use picnic_core::error::not_among;
use picnic_filter::config::Keys;
use picnic_filter::{Filter, FilterError, FilterId};
use serde_json::{Value, json};
use std::collections::BTreeSet;

impl Methods {
    /// The filters of a group, or all.
    pub(super) fn filter_list(&self, group: Option<&str>) -> Result<Value, RpcError> {
        let mut filters = self.filters.list();
        filters.retain(|listing| group.is_none_or(|group| *group == *listing.filter.group));
        Ok(json!({ "filters": value(&filters)? }))
    }

    pub(super) fn filter_show(&self, filter: &Reference) -> Result<Value, RpcError> {
        self.filter(self.meant(filter)?)
    }

    /// The filter with this number or name.
    fn meant(&self, filter: &Reference) -> Result<FilterId, RpcError> {
        let name = match filter {
            Reference::Number(number) => return Ok(FilterId(*number)),
            Reference::Name(name) => name,
        };
        let filters = self.filters.list();
        let named: Vec<_> = filters.iter().filter(|other| other.filter.name == *name).collect();
        match &named[..] {
            [one] => Ok(one.id),
            [] => {
                let names: BTreeSet<_> = filters.iter().map(|other| &*other.filter.name).collect();
                let message = not_among("filter ", name, names.into_iter());
                Err(RpcError::new(REFUSED, message))
            }
            several => {
                let numbers: Vec<_> = several.iter().map(|other| other.id.to_string()).collect();
                let numbers = numbers.join(", ");
                let message = format!("found {filter}, use a number: {numbers}");
                Err(RpcError::new(REFUSED, message))
            }
        }
    }

    fn filter(&self, id: FilterId) -> Result<Value, RpcError> {
        let listing = self.filters.get(id);
        value(&listing.ok_or_else(|| refused(FilterError::NoSuchFilter(id.to_string())))?)
    }

    pub(super) fn filter_add(&self, keys: &Keys) -> Result<Value, RpcError> {
        let id = keys.filter().and_then(|filter| self.filters.add(filter)).map_err(refused)?;
        self.filter(id)
    }

    pub(super) fn filter_change(&self, filter: &Reference, keys: &Keys) -> Result<Value, RpcError> {
        let id = self.meant(filter)?;
        keys.filter().and_then(|filter| self.filters.set(id, filter)).map_err(refused)?;
        self.filter(id)
    }

    pub(super) fn filter_remove(&self, filter: &Reference) -> Result<Value, RpcError> {
        value(&self.filters.remove(self.meant(filter)?).map_err(refused)?)
    }

    /// Replaces all filters of the groups that these name, and of `groups`.
    pub(super) fn filter_reload(
        &self,
        groups: Vec<String>,
        filters: &[Keys],
    ) -> Result<Value, RpcError> {
        let filters: Result<Vec<Filter>, _> = filters.iter().map(Keys::filter).collect();
        let filters = filters.map_err(refused)?;
        let named = filters.iter().map(|filter| filter.group.clone());
        let groups: Vec<_> = groups.into_iter().chain(named).collect();
        let groups: Vec<_> = groups.iter().map(String::as_str).collect();
        value(&self.filters.replace(&groups, filters).map_err(refused)?)
    }
}

fn refused(error: FilterError) -> RpcError {
    let code = match error {
        FilterError::Invalid { .. } => INVALID_PARAMS,
        _ => REFUSED,
    };
    RpcError::new(code, error.to_string())
}
