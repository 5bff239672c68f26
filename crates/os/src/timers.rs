//! Timers: one per task, earliest first, in memory of fixed size.
//!
//! A binary heap that knows each task's position, so that a timer can be moved or removed.
//!
//! Guarantees: setting, clearing and taking cost the logarithm of the number set; nothing is
//! allocated after construction; timers of the same time are taken in the order of their tasks'
//! places.

use picnic_core::time::Time;

/// No place in the heap.
const NONE: u32 = u32::MAX;

/// The timers of up to a fixed number of tasks, identified by place.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    heap: Vec<(Time, u32)>,
    /// The position of each task's timer in the heap.
    places: Vec<u32>,
}

impl Timers {
    /// Timers for `tasks` tasks, none set.
    pub(crate) fn new(tasks: usize) -> Self {
        Timers { heap: Vec::with_capacity(tasks), places: vec![NONE; tasks] }
    }

    /// Sets a task's timer, replacing an earlier one.
    pub(crate) fn set(&mut self, task: usize, at: Time) {
        let entry = (at, task as u32);
        match self.places[task] {
            NONE => {
                self.heap.push(entry);
                self.rise(self.heap.len() - 1);
            }
            place => {
                let place = place as usize;
                let before = std::mem::replace(&mut self.heap[place], entry);
                if entry < before { self.rise(place) } else { self.sink(place) }
            }
        }
    }

    /// Removes a task's timer.
    pub(crate) fn clear(&mut self, task: usize) {
        let place = std::mem::replace(&mut self.places[task], NONE);
        if place == NONE {
            return;
        }
        let place = place as usize;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sink(place);
            self.rise(place);
        }
    }

    /// The earliest timer's time.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.first().map(|&(time, _)| time)
    }

    /// Takes the earliest timer if its time has come: the task, and the time.
    #[inline]
    pub(crate) fn take_due(&mut self, now: Time) -> Option<(usize, Time)> {
        let &(time, task) = self.heap.first().filter(|(time, _)| *time <= now)?;
        self.clear(task as usize);
        Some((task as usize, time))
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let least = children.min_by_key(|&child| self.heap[child]);
            match least {
                Some(child) if self.heap[child] < self.heap[place] => {
                    self.heap.swap(place, child);
                    self.note(place);
                    place = child;
                }
                _ => break,
            }
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        self.places[self.heap[place].1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Any sequence of sets and clears gives the same as a sorted map.
        #[test]
        fn timers_agree_with_a_sorted_map(
            steps in prop::collection::vec((0usize..40, prop::option::of(0u64..40), any::<bool>()), 1..400)
        ) {
            let mut timers = Timers::new(40);
            let mut model = BTreeMap::new();
            for (task, at, take) in steps {
                match at {
                    Some(at) => {
                        timers.set(task, Time::from_nanos(at));
                        model.insert(task, at);
                    }
                    None => {
                        timers.clear(task);
                        model.remove(&task);
                    }
                }
                let first = model.iter().map(|(&task, &at)| (at, task)).min();
                prop_assert_eq!(timers.next().map(Time::as_nanos), first.map(|(at, _)| at));
                if take {
                    let due = first.filter(|&(at, _)| at <= 20);
                    let taken = timers.take_due(Time::from_nanos(20));
                    prop_assert_eq!(taken.map(|(task, at)| (at.as_nanos(), task)), due);
                    if let Some((_, task)) = due {
                        model.remove(&task);
                    }
                }
            }
        }
    }
}
