//! The event queue: events by time, and in a seeded order if simultaneous.
//!
//! Guarantees: events are taken by time; the order of simultaneous ones depends only on the seed;
//! every order is possible under some seed.

use picnic_core::random::Random;
use picnic_core::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An actor of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Actor {
    /// The card, on the borrowed core.
    Card,
    /// The target routine at this place of the list.
    Target(usize),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An actor's turn, unless it was rescheduled since.
    Turn { actor: Actor, epoch: u64 },
    /// The work of the card's turn is done and becomes visible to others.
    Publish,
    /// The running work of this core of a modelled machine ends, unless preempted.
    Work { core: usize, epoch: u64 },
    /// The queues at this place of the targets may have room again.
    Room(usize),
    /// A doorbell reaches an actor.
    Arrival(Actor),
    /// Frames from another card are at the wires.
    Frames,
    /// The command of this number is sent.
    Command(u64),
    /// The process of this number is called.
    Process(usize),
}

#[derive(Debug)]
struct Entry {
    key: Reverse<(Time, u64, u64)>,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Future events, ordered by time, then by a random number, then by age.
#[derive(Debug)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Entry>,
    ties: Random,
    sequence: u64,
}

impl EventQueue {
    /// An empty queue; `ties` decides the order of simultaneous events.
    pub(crate) fn new(ties: Random) -> Self {
        EventQueue { heap: BinaryHeap::new(), ties, sequence: 0 }
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.heap.push(Entry { key: Reverse((time, self.ties.next(), self.sequence)), event });
    }

    /// The time of the next event.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.key.0.0)
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|entry| (entry.key.0.0, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<(Time, Event)> {
        let mut queue = EventQueue::new(Random::new(seed, 0));
        for (index, nanoseconds) in [5, 3, 3, 3, 3, 9, 1].into_iter().enumerate() {
            queue.push(Time::from_nanos(nanoseconds), Event::Command(index as u64));
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn events_are_ordered_by_time_then_seed() {
        let orders: Vec<_> = (0..64).map(order).collect();
        for order in &orders {
            assert!(order.is_sorted_by_key(|(time, _)| *time));
        }
        assert_eq!(order(7), order(7));
        let mut firsts: Vec<_> = orders.iter().map(|order| format!("{:?}", order[1])).collect();
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts.len(), 4, "each of the four events of one moment comes first somewhere");
    }
}
