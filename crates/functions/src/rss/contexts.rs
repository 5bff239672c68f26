//! Contexts of `rss`: separate tables for packets with a mark.
//!
//! Guarantees: a look-up takes at most as many steps as there are contexts; changes neither
//! allocate nor free.
//!
//! Source: the RSS contexts of `ethtool -X ... context new`, which a flow rule selects.

use picnic_hash::IndirectionTable;

/// Most contexts.
pub const MAX_CONTEXTS: usize = 16;

/// Tables by mark.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Filled from the first on.
    all: [Option<(u32, Box<IndirectionTable>)>; MAX_CONTEXTS],
}

/// There is no room for another context.
#[derive(Debug)]
pub(super) struct Full;

impl Contexts {
    /// Marks and tables.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &IndirectionTable)> {
        self.all.iter().map_while(Option::as_ref).map(|(mark, table)| (*mark, &**table))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all[0].is_none()
    }

    /// The table of packets with a mark.
    #[inline]
    pub(super) fn of(&self, mark: u32) -> Option<&IndirectionTable> {
        self.iter().find(|context| context.0 == mark).map(|(_, table)| table)
    }

    /// Replaces the table of a mark; none removes the context. Returns the old one.
    pub(super) fn exchange(
        &mut self,
        mark: u32,
        table: &mut Option<Box<IndirectionTable>>,
    ) -> Result<(), Full> {
        let is_its = |context: &Option<(u32, _)>| context.as_ref().is_some_and(|c| c.0 == mark);
        let place = self.all.iter().position(is_its);
        let place = place.or_else(|| self.all.iter().position(Option::is_none)).ok_or(Full)?;
        let new = table.take().map(|table| (mark, table));
        *table = std::mem::replace(&mut self.all[place], new).map(|(_, table)| table);
        // Keeps the list without gaps.
        if self.all[place].is_none() {
            self.all[place..].rotate_left(1);
        }
        Ok(())
    }
}
