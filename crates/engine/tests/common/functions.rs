//! Functions that use every door: hold, multiply, consume, hairpin, steer.

use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::collections::VecDeque;

/// Steers by a number from the packet's bytes.
pub struct SteerBy(pub fn(&[u8]) -> u16);

impl Function for SteerBy {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.drain() {
            let queue = (self.0)(packet.data());
            out.steer(packet, queue);
        }
    }
}

/// Holds every packet for some time; up to `limit` of them, then the oldest leave early.
pub struct Hold {
    pub for_ns: u64,
    pub limit: usize,
    held: VecDeque<(Time, Descriptor)>,
}

impl Hold {
    pub fn new(for_ns: u64, limit: usize) -> Self {
        Hold { for_ns, limit, held: VecDeque::with_capacity(limit + 1) }
    }
}

impl Function for Hold {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.drain() {
            self.held.push_back((now + self.for_ns, packet));
            if self.held.len() > self.limit
                && let Some((_, oldest)) = self.held.pop_front()
            {
                out.next(oldest);
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.held.front().map(|(due, _)| *due)
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        while self.held.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, packet)) = self.held.pop_front()
        {
            out.next(packet);
        }
    }

    fn held(&self) -> usize {
        self.held.len()
    }
}

/// Hands on each packet and `copies - 1` copies of it.
pub struct Multiply {
    pub copies: usize,
    /// Copies for which there was no buffer.
    pub missed: u64,
}

impl Multiply {
    pub fn new(copies: usize) -> Self {
        Multiply { copies, missed: 0 }
    }
}

impl Function for Multiply {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.drain() {
            for _ in 1..self.copies {
                match out.copy(&packet) {
                    Some(copy) => out.next(copy),
                    None => self.missed += 1,
                }
            }
            out.next(packet);
        }
    }
}

/// Sends every `nth` packet through its own door, the others on.
pub struct Every {
    pub nth: u64,
    pub door: Door,
    seen: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Door {
    Consume,
    Drop,
    Hairpin(u8),
    Steer(u16),
    /// Not a door: the descriptor is leaked, which a function must never do.
    Leak,
}

impl Every {
    pub fn new(nth: u64, door: Door) -> Self {
        Every { nth, door, seen: 0 }
    }
}

impl Function for Every {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|packet| {
            self.seen += 1;
            if !self.seen.is_multiple_of(self.nth) {
                return Some(packet);
            }
            match self.door {
                Door::Consume => out.consume(packet),
                Door::Drop => out.drop(packet, DropReason::Filtered),
                Door::Hairpin(wire) => out.transmit(packet, wire),
                Door::Steer(queue) => out.steer(packet, queue),
                #[allow(clippy::forget_non_drop)]
                Door::Leak => std::mem::forget(packet),
            }
            None
        });
    }
}

/// Records the times of its packets.
pub struct Clocked(pub std::sync::Arc<std::sync::Mutex<Vec<Time>>>);

impl Function for Clocked {
    fn process(&mut self, now: Time, _burst: &mut Burst, _out: &mut Out<'_>) {
        if let Ok(mut times) = self.0.lock() {
            times.push(now);
        }
    }
}

/// Records the times of its flushes; its deadline is always the same.
pub struct Flushed {
    pub due: Option<Time>,
    pub calls: std::sync::Arc<std::sync::Mutex<Vec<Time>>>,
}

impl Function for Flushed {
    fn process(&mut self, _now: Time, _burst: &mut Burst, _out: &mut Out<'_>) {}

    fn next_deadline(&self) -> Option<Time> {
        self.due
    }

    fn flush(&mut self, now: Time, _out: &mut Out<'_>) {
        if let Ok(mut calls) = self.calls.lock() {
            calls.push(now);
        }
    }
}
