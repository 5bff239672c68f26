//! Looking packets up.

use super::{Address, BURST, Classifier, Key, NONE, Rule, Table};

impl<A: Address> Classifier<A> {
    /// For each of up to [`BURST`] keys the place in the list of the first rule that matches, or
    /// [`NONE`].
    #[inline]
    pub fn classify(&self, keys: &[Key<A>], places: &mut [u16; BURST]) {
        *places = [NONE; BURST];
        let keys = &keys[..keys.len().min(BURST)];
        for (index, table) in self.tables.iter().enumerate() {
            // No later table has a rule that stands before this one's first.
            if index != 0 && places[..keys.len()].iter().all(|&place| place < table.first) {
                break;
            }
            table.search(&self.entries, keys, places);
        }
        if self.vectors.len() != 0 {
            self.vectors.search(keys, places);
        }
    }

    /// The place of the first rule from `from` on that matches, or [`NONE`].
    pub fn find_from(&self, key: &Key<A>, from: u16) -> u16 {
        let mut best = NONE;
        for table in &self.tables {
            if table.first >= best {
                break;
            }
            let found = self
                .chain(table.slots[table.slot_of(table.key.hash(key))])
                .find(|entry| entry.position >= from && entry.matches(key));
            best = best.min(found.map_or(NONE, |entry| entry.position));
        }
        self.vectors.first(key, from, best)
    }
}

impl<A: Address> Table<A> {
    #[inline(always)]
    pub(super) fn slot_of(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    #[inline(always)]
    fn search(&self, entries: &[Rule<A>], keys: &[Key<A>], places: &mut [u16; BURST]) {
        let mut heads = [0_u16; BURST];
        for (head, key) in heads.iter_mut().zip(keys) {
            *head = self.slots[self.slot_of(self.key.hash(key))];
        }
        // Those to be compared with the next entry of their slot.
        let mut waiting = [0_u8; BURST];
        let mut count = 0;
        for (index, (key, head)) in keys.iter().zip(&mut heads).enumerate() {
            let entry = &entries[usize::from(*head)];
            let matches = entry.matches(key);
            let place = if matches { entry.position } else { NONE };
            places[index] = places[index].min(place);
            *head = entry.next;
            waiting[count % BURST] = index as u8;
            count += usize::from(!matches & (entry.next != 0));
        }
        for &index in &waiting[..count.min(BURST)] {
            let index = usize::from(index) % BURST;
            let (key, best) = (&keys[index], &mut places[index]);
            let mut next = heads[index];
            while next != 0 {
                let entry = &entries[usize::from(next)];
                // In the order of the list: later entries cannot be better.
                if entry.position >= *best {
                    break;
                }
                if entry.matches(key) {
                    *best = entry.position;
                    break;
                }
                next = entry.next;
            }
        }
    }
}
