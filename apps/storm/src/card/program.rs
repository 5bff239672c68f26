//! A program of the host that measures a group: it opens the channel of its card's member, submits,
//! and receives the ordered messages.
//!
//! On real cores a thread calls it; in virtual time the simulator does, and work takes what
//! [`Costs`] says.

use super::load::{Costs, Plan, Side};
use super::records::{RECORD, Record};
use super::task::CHANNEL;
use crate::bench::SHORTEST;
use picnic_channel::Awaits;
use picnic_core::doorbell::Doorbell;
use picnic_core::time::Time;
use picnic_os::channel::{Channels, HostEnd};
use std::fmt;
use std::sync::Arc;

/// Time until a channel is looked for again, in nanoseconds.
const LOOKS_AGAIN_NS: u64 = 100_000;

/// A program behind a member on a card.
pub struct Program {
    side: Arc<Side>,
    channels: Channels,
    bell: Arc<dyn Doorbell>,
    end: Option<HostEnd>,
    message: Vec<u8>,
    payload: Vec<u8>,
    /// The work so far is done then.
    free_at: Time,
    /// A message is made, and goes out when the work before it is done.
    is_made: bool,
    is_asleep: bool,
    /// The member is in a view.
    is_ready: bool,
}

impl Program {
    /// The program of `side`, on the card with these channels; `bell` wakes it.
    pub fn new(side: Arc<Side>, channels: Channels, bell: Arc<dyn Doorbell>) -> Self {
        let payload = vec![0x5a; side.plan().payload_bytes.max(SHORTEST)];
        Program {
            message: vec![0; RECORD + payload.len()],
            side,
            channels,
            bell,
            end: None,
            payload,
            free_at: Time::ZERO,
            is_made: false,
            is_asleep: false,
            is_ready: false,
        }
    }

    /// Does what is to do; returns when to call it again if its bell does not ring before.
    pub fn turn(&mut self, now: Time) -> Option<Time> {
        if self.side.is_dead() {
            (self.end, self.is_ready, self.is_asleep) = (None, false, false);
            return Some(now + LOOKS_AGAIN_NS);
        }
        let mut end = match self.end.take() {
            Some(end) => end,
            None => match self.channels.open_here(CHANNEL, self.bell.clone()) {
                Ok(end) => end,
                // The task has not made it yet.
                Err(_) => return Some(now + LOOKS_AGAIN_NS),
            },
        };
        let next = self.work(now, &mut end);
        if end.is_closed() {
            // The task has ended; its last messages are here.
            self.receive(&mut end);
            (self.is_ready, self.is_asleep) = (false, false);
            return Some(now + LOOKS_AGAIN_NS);
        }
        self.end = Some(end);
        next
    }

    fn work(&mut self, now: Time, end: &mut HostEnd) -> Option<Time> {
        if self.free_at > now {
            return Some(self.free_at);
        }
        let before = now;
        self.free_at = now;
        if std::mem::take(&mut self.is_asleep) {
            end.wake();
            self.free_at = now + self.side.plan().costs.wake_ns;
        }
        let mut awaits = self.submit(now, end);
        if self.receive(end) {
            awaits = self.submit(now, end);
        }
        self.side.seen().work_ns += self.free_at.since(before);
        if self.free_at > now {
            return Some(self.free_at);
        }
        let plan = self.side.plan();
        let is_early = plan.sends && self.is_ready && now < plan.begins;
        if !end.rest(awaits) {
            return Some(now);
        }
        self.is_asleep = true;
        is_early.then_some(plan.begins)
    }

    /// The time of a sample.
    fn time(&self) -> Time {
        match self.side.plan().clock {
            Some(clock) => Time::from_nanos(clock.elapsed().as_nanos() as u64),
            None => self.free_at,
        }
    }

    /// Takes the card's records; whether there were any.
    fn receive(&mut self, end: &mut HostEnd) -> bool {
        let side = self.side.clone();
        let Costs { message_ns, .. } = side.plan().costs;
        let mut seen = side.seen();
        let mut any = false;
        while let Some(bytes) = end.receive(&mut self.message) {
            any = true;
            match Record::read(&self.message[..bytes]) {
                Some(Record::Delivered(delivery)) => {
                    self.free_at = self.free_at + message_ns;
                    seen.note(side.plan(), &delivery, self.time());
                }
                Some(Record::View { .. }) => self.is_ready = true,
                Some(Record::Submitted(_)) | None => {}
            }
        }
        any
    }

    /// Submits as much as window and channel allow; what to wait for then.
    fn submit(&mut self, now: Time, end: &mut HostEnd) -> Awaits {
        let side = self.side.clone();
        let Plan { window_messages, begins, ends, costs, sends, .. } = *side.plan();
        let is_virtual = side.plan().clock.is_none();
        let mut seen = side.seen();
        while sends
            && self.is_ready
            && (begins..ends).contains(&now)
            && ((seen.submitted - seen.delivered) as usize) < window_messages
        {
            if is_virtual && !std::mem::replace(&mut self.is_made, true) {
                self.free_at = self.free_at + (costs.message_ns + costs.send_ns);
            }
            if is_virtual && self.free_at > now {
                break;
            }
            self.is_made = false;
            let stamp = self.time().as_nanos();
            self.payload[..8].copy_from_slice(&stamp.to_le_bytes());
            self.payload[8..12].copy_from_slice(&seen.submitted.to_le_bytes());
            if end.send(&self.payload).is_err() {
                return Awaits::Any;
            }
            seen.submitted += 1;
        }
        Awaits::Message
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("end", &self.end).finish_non_exhaustive()
    }
}
