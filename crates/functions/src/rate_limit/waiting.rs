//! Packets that wait for credit: a queue for each bucket, and their deadlines.
//!
//! Guarantees: all memory is allocated at the start; packets of a bucket leave in the order of
//! arrival.

use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

struct Waiter {
    packet: Option<Descriptor>,
    next: u32,
}

/// First and last place of a queue.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// Waiting packets, by bucket.
pub(super) struct Waiting {
    places: Box<[Waiter]>,
    /// The first free place.
    free: u32,
    queues: Box<[Ends]>,
    held: usize,
    /// When each non-empty queue is due.
    due: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Waiting {
    pub(super) fn new(buckets: usize, packets: usize) -> Waiting {
        let next = |place: usize| if place + 1 == packets { NONE } else { place as u32 + 1 };
        Waiting {
            places: (0..packets).map(|at| Waiter { packet: None, next: next(at) }).collect(),
            free: if packets == 0 { NONE } else { 0 },
            queues: vec![Ends { first: NONE, last: NONE }; buckets].into(),
            held: 0,
            due: BinaryHeap::with_capacity(buckets.min(packets)),
        }
    }

    /// Number of waiting packets.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether packets of this bucket wait.
    #[inline]
    pub(super) fn has(&self, bucket: usize) -> bool {
        self.queues.get(bucket).is_some_and(|queue| queue.first != NONE)
    }

    /// Adds a packet to its bucket's queue; returns it if there is no place.
    pub(super) fn push(&mut self, bucket: usize, packet: Descriptor) -> Result<(), Descriptor> {
        let at = self.free;
        let (Some(place), Some(queue)) =
            (self.places.get_mut(at as usize), self.queues.get_mut(bucket))
        else {
            return Err(packet);
        };
        self.free = std::mem::replace(place, Waiter { packet: Some(packet), next: NONE }).next;
        let before = std::mem::replace(&mut queue.last, at);
        match self.places.get_mut(before as usize) {
            Some(last) => last.next = at,
            None => queue.first = at,
        }
        self.held += 1;
        Ok(())
    }

    /// Length of the first packet in a bucket's queue.
    pub(super) fn first_length(&self, bucket: usize) -> Option<u32> {
        let place = self.places.get(self.queues.get(bucket)?.first as usize)?;
        place.packet.as_ref().map(Descriptor::length)
    }

    /// Takes the next packet out of a bucket's queue.
    pub(super) fn pop(&mut self, bucket: usize) -> Option<Descriptor> {
        let queue = self.queues.get_mut(bucket)?;
        let at = queue.first;
        let place = self.places.get_mut(at as usize)?;
        let packet = place.packet.take()?;
        queue.first = std::mem::replace(&mut place.next, self.free);
        if queue.first == NONE {
            queue.last = NONE;
        }
        self.free = at;
        self.held -= 1;
        Some(packet)
    }

    /// Sets the bucket's deadline; once each time its queue becomes non-empty.
    pub(super) fn schedule(&mut self, bucket: usize, when: Time) {
        // Never grows: a queue is in it once, and a waiting queue holds a packet.
        self.due.push(Reverse((when, bucket as u32)));
    }

    /// The first deadline.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((when, _))| *when)
    }

    /// Takes the bucket that is due first, if no later than `until`.
    pub(super) fn take_due(&mut self, until: Time) -> Option<usize> {
        if self.next_due()? > until {
            return None;
        }
        self.due.pop().map(|Reverse((_, bucket))| bucket as usize)
    }

    /// Makes all waiting buckets due at `now`, to be judged again.
    pub(super) fn reschedule(&mut self, now: Time) {
        let mut due = std::mem::take(&mut self.due).into_vec();
        due.iter_mut().for_each(|Reverse((when, _))| *when = now);
        self.due = BinaryHeap::from(due);
    }
}
