//! Filters of tasks: installed by a task, and removed when it ends.
//!
//! ```
//! # use picnic_os::context::Nic;
//! # use picnic_filter::{Action, Filter, FilterError, FiveTuple, FilterCode, Protocol};
//! async fn count_pings(nic: Nic) -> Result<(), FilterError> {
//!     let icmp = FiveTuple { protocol: Some(Protocol::ICMP), ..FiveTuple::default() };
//!     let Ok((sender, mut pings)) = nic.mailbox(64) else { return Ok(()) };
//!     nic.add_filter(Filter::new("pings", icmp, Action::Deliver), sender).await?;
//!     while let Some(ping) = pings.receive().await {
//!         ping.steer(0); // continues
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Guarantees: the borrowed core never waits for other threads that change filters: it tries again
//! in the task's next segment; a task's filters are removed when it ends for any reason.
//!
//! Source: NICOS 4.4.

use crate::context::Nic;
use crate::memory::Kind;
use crate::shared::{Shared, lock};
use crate::task::TaskId;
use picnic_filter::filters::FilterChange;
use picnic_filter::{Filter, FilterCode, FilterError, FilterId, Filters};
use std::sync::{Mutex, OnceLock};

/// The card's filters, and which of them tasks have installed.
#[derive(Default)]
pub(crate) struct Installed {
    pub(crate) filters: OnceLock<Filters>,
    owned: Mutex<Vec<(TaskId, FilterId)>>,
}

impl Installed {
    /// A task has ended: its filters must be removed.
    pub(crate) fn take(&self, task: TaskId, orphans: &mut Vec<FilterId>) {
        lock(&self.owned).retain(|&(owner, filter)| {
            if owner == task {
                orphans.push(filter);
            }
            owner != task
        });
    }

    /// Removes filters, unless another thread changes some at this moment.
    pub(crate) fn remove(&self, orphans: &mut Vec<FilterId>) {
        let Some(filters) = self.filters.get() else { return orphans.clear() };
        orphans.retain(|&filter| {
            let removed = filters.try_apply(vec![FilterChange::Remove(filter)]);
            matches!(removed, Err((FilterError::Busy, _)))
        });
    }

    /// Removes filters, waiting for other threads that change some: when the card stops, since
    /// there is no next time.
    pub(crate) fn remove_at_last(&self, orphans: &mut Vec<FilterId>) {
        for filter in orphans.drain(..) {
            if let Some(filters) = self.filters.get() {
                // It may have been removed manually.
                let _ = filters.apply(vec![FilterChange::Remove(filter)]);
            }
        }
    }
}

impl Nic {
    /// Installs a filter with its code: `FilterCode::default()` for none. It is removed when this
    /// task ends.
    ///
    /// # Errors
    /// The fault.
    pub async fn add_filter(
        &self,
        filter: Filter,
        code: impl Into<FilterCode>,
    ) -> Result<FilterId, FilterError> {
        let mut code = code.into();
        if let Err(error) = self.charge_filter(&filter, &mut code) {
            self.yield_now().await;
            return Err(error);
        }
        let added = self.apply(FilterChange::Add(filter, code)).await?;
        let Some(&id) = added.first() else { return Err(FilterError::Absent) };
        lock(&self.installed().owned).push((self.id(), id));
        Ok(id)
    }

    /// Replaces a filter; its code stays.
    ///
    /// # Errors
    /// The fault, or its absence.
    pub async fn change_filter(&self, id: FilterId, filter: Filter) -> Result<(), FilterError> {
        self.apply(FilterChange::Set(id, filter, FilterCode::default())).await.map(drop)
    }

    /// Removes a filter.
    ///
    /// # Errors
    /// There is none.
    pub async fn remove_filter(&self, id: FilterId) -> Result<(), FilterError> {
        self.apply(FilterChange::Remove(id)).await?;
        lock(&self.installed().owned).retain(|&(_, filter)| filter != id);
        Ok(())
    }

    /// The card's filters, for reading; none on a card without filters. Its own calls wait for
    /// other threads that change some: tasks change filters by this type's calls instead.
    pub fn filters(&self) -> Option<&Filters> {
        self.installed().filters.get()
    }

    /// Reserves the filter's bytes in card memory, until it is removed.
    fn charge_filter(&self, filter: &Filter, code: &mut FilterCode) -> Result<(), FilterError> {
        let Some(filters) = self.filters() else { return Err(FilterError::Absent) };
        let charge = self.charge(Kind::Filter, filters.bytes_of(filter, code));
        let charge = charge.map_err(|error| FilterError::NoMemory(error.to_string()))?;
        code.kept = Some(Box::new(charge));
        Ok(())
    }

    fn installed(&self) -> &Installed {
        let shared: &Shared = &self.cell.shared;
        &shared.installed
    }

    async fn apply(&self, change: FilterChange) -> Result<Vec<FilterId>, FilterError> {
        let mut changes = vec![change];
        loop {
            self.yield_now().await;
            let Some(filters) = self.filters() else { return Err(FilterError::Absent) };
            match filters.try_apply(changes) {
                Ok(added) => return Ok(added),
                Err((FilterError::Busy, again)) => changes = again,
                Err((error, _)) => return Err(error),
            }
        }
    }
}
