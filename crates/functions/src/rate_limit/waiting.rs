//! Packets that wait for credit: a queue for each bucket, and which of them is due when.
//!
//! Guarantees: all memory is taken at the start; packets of a bucket leave in the order they came.

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

/// Packets that wait, by bucket.
pub(super) struct Waiting {
    places: Box<[Waiter]>,
    /// The first of the places that are free.
    free: u32,
    queues: Box<[Ends]>,
    held: usize,
    /// When each queue that is not empty is due.
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

    /// Packets that wait.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether packets of this bucket wait.
    #[inline]
    pub(super) fn has(&self, bucket: usize) -> bool {
        self.queues.get(bucket).is_some_and(|queue| queue.first != NONE)
    }

    /// Has a packet wait behind those of its bucket; gives it back if there is no place.
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

    /// Length of the packet that is next in a bucket's queue.
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

    /// The bucket is due at `when`; once for each time that its queue begins to wait.
    pub(super) fn schedule(&mut self, bucket: usize, when: Time) {
        // Never grows: a queue stands in it once, and a queue that waits holds a packet.
        self.due.push(Reverse((when, bucket as u32)));
    }

    /// When the first bucket is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.peek().map(|Reverse((when, _))| *when)
    }

    /// The bucket that is due first, if that is no later than `until`; it is due no more.
    pub(super) fn take_due(&mut self, until: Time) -> Option<usize> {
        if self.next_due()? > until {
            return None;
        }
        self.due.pop().map(|Reverse((_, bucket))| bucket as usize)
    }

    /// All buckets that wait are due at `now`, to be judged anew.
    pub(super) fn reschedule(&mut self, now: Time) {
        let mut due = std::mem::take(&mut self.due).into_vec();
        due.iter_mut().for_each(|Reverse((when, _))| *when = now);
        self.due = BinaryHeap::from(due);
    }
}
