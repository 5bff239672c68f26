//! The programs of the members in a measurement: their work, and the messages they received.
//!
//! With [`Place::Card`] the member is a task on the card, and [`super::program`] is its program.
//! With [`Place::Host`] the program is the member, behind a card that only forwards: the same
//! protocol as an ordinary host program, in virtual time. Work is what [`Costs`] says, and a frame
//! is sent when the work before it is done. The program is given to its card by [`Side`], in the
//! shared state of the card file.

use super::carrier::{Arrived, Carrier, HEAD};
use crate::bench::{SHORTEST, Sample};
use crate::member::{Delivery, Member};
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component, NoKeys};
use picnic_core::time::Time;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Longest frame.
const LONGEST: usize = 1514;
/// Buffers that the program keeps available.
const BUFFERS: usize = 64;

/// Where the protocol runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a program on the host.
    #[default]
    Host,
    /// On the card.
    Card,
}

/// Work of the host in virtual time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Receiving a frame, from the driver to the program.
    pub receive_ns: u64,
    /// Sending a frame, from the program to the driver.
    pub send_ns: u64,
    /// Ordering a packet; only if the protocol runs on the host.
    pub packet_ns: u64,
    /// Handling an ordered message.
    pub message_ns: u64,
    /// Copying a byte of a frame.
    pub byte_ns: f64,
    /// Waking up; only where the order runs on the card.
    pub wake_ns: u64,
}

impl Costs {
    fn of_bytes(&self, bytes: usize) -> u64 {
        (self.byte_ns * bytes as f64) as u64
    }
}

/// The task of one card's program.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// This member's number.
    pub me: u8,
    /// Whether it sends.
    pub sends: bool,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Messages submitted and not yet delivered.
    pub window_messages: usize,
    /// Start of the time during which messages are submitted.
    pub begins: Time,
    /// End of that time.
    pub ends: Time,
    /// Work, in virtual time.
    pub costs: Costs,
    /// The clock of all members on real cores; none in virtual time.
    pub clock: Option<Instant>,
}

/// The observations of one card's program.
#[derive(Debug, Default)]
pub struct Seen {
    /// Ordered messages.
    pub samples: Vec<Sample>,
    /// Work in virtual time, in nanoseconds.
    pub work_ns: u64,
    /// Messages submitted.
    pub submitted: u32,
    /// Submitted messages that this member delivered.
    pub delivered: u32,
    /// When something was last delivered.
    pub heard: Time,
    /// Repeats that the member has sent; only if the protocol runs on the host.
    pub repeats: u64,
    /// Packets that it has sent; a packet to all members counts once.
    pub packets: u64,
}

impl Seen {
    /// A message of the order has reached the program of `plan`.
    pub fn note(&mut self, plan: &Plan, delivery: &Delivery<'_>, at: Time) {
        let Some((sent, rest)) = delivery.payload.split_first_chunk::<8>() else { return };
        let Some((number, _)) = rest.split_first_chunk::<4>() else { return };
        let (sent, number) = (u64::from_le_bytes(*sent), u32::from_le_bytes(*number));
        self.delivered += u32::from(delivery.sender == plan.me);
        self.heard = at;
        self.samples.push((delivery.sender, number, sent, at.as_nanos()));
    }
}

/// A card's program: what it does, and what it has seen.
#[derive(Debug, Default)]
pub struct Side {
    plan: Plan,
    member: Mutex<Option<(Member, Carrier)>>,
    seen: Mutex<Seen>,
    is_dead: AtomicBool,
}

impl Side {
    /// A program for a member on the card.
    pub fn behind_card(plan: Plan) -> Self {
        Side { plan, ..Side::default() }
    }

    /// A program that is the member.
    pub fn is_member(plan: Plan, member: Member, carrier: Carrier) -> Self {
        Side { plan, member: Mutex::new(Some((member, carrier))), ..Side::default() }
    }

    /// What it does.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Kills the program, or starts it again: from its next turn on it has no channel open. For a
    /// program behind a card.
    pub fn set_dead(&self, is_dead: bool) {
        self.is_dead.store(is_dead, Ordering::Release);
    }

    /// Whether it has been killed.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// What it has seen so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `attachment = "storm-load"`.
#[derive(Debug)]
pub struct Attachment(Arc<Side>);

impl Component for Attachment {
    type Product = Box<dyn HostAttachment>;
    type Config = NoKeys;
    const NAME: &'static str = "storm-load";
    const HELP: &'static str = "a program that measures a group of STORM";
    const IN_VIRTUAL_TIME: bool = true;

    fn build(_: NoKeys, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        Ok(Box::new(Attachment(context.shared.get_or_make(Side::default))))
    }
}

impl HostAttachment for Attachment {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        let side = self.0.clone();
        let mut member = side.member.lock().unwrap_or_else(PoisonError::into_inner);
        let order = member.take().filter(|_| queue == 0);
        drop(member);
        Ok(Box::new(Program {
            outbox: VecDeque::new(),
            spare: Vec::new(),
            free_at: Time::ZERO,
            payload: vec![0x5a; side.plan.payload_bytes.max(SHORTEST)],
            is_sender: order.is_some() && side.plan.sends,
            order,
            side,
        }))
    }

    fn wants_buffers(&self) -> usize {
        BUFFERS
    }
}

struct Program {
    side: Arc<Side>,
    /// The member; none behind another queue.
    order: Option<(Member, Carrier)>,
    /// Frames to be sent, and when; and buffers for more.
    outbox: VecDeque<(Time, u8, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// When the work so far is done.
    free_at: Time,
    payload: Vec<u8>,
    is_sender: bool,
}

impl Program {
    fn put(&mut self, at: Time, wire: u8, frame: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(LONGEST));
        copy.clear();
        copy.extend_from_slice(frame);
        self.outbox.push_back((at, wire, copy));
    }

    /// Submits as much as the window allows, and makes the frames for it.
    fn work(&mut self, now: Time) {
        let Plan { window_messages, begins, ends, costs, .. } = self.side.plan;
        let side = self.side.clone();
        let mut seen = side.seen();
        let mut free_at = self.free_at.max(now);
        let before = free_at;
        let may_send = self.is_sender && (begins..ends).contains(&free_at);
        while may_send
            && ((seen.submitted - seen.delivered) as usize) < window_messages
            && let Some((member, _)) = &mut self.order
        {
            free_at = free_at + costs.message_ns;
            self.payload[..8].copy_from_slice(&free_at.as_nanos().to_le_bytes());
            self.payload[8..12].copy_from_slice(&seen.submitted.to_le_bytes());
            if member.submit(&self.payload).is_err() {
                break;
            }
            seen.submitted += 1;
        }
        let mut buffer = [0; HEAD + LONGEST];
        while let Some((mut member, mut carrier)) = self.order.take() {
            let made = member.transmit(now, &mut buffer[HEAD..]);
            let counts = *member.counts();
            (seen.repeats, seen.packets) = (counts.repeats_sent, counts.packets_sent);
            let Some((to, length)) = made else {
                self.order = Some((member, carrier));
                break;
            };
            free_at = free_at + costs.packet_ns;
            carrier.send(to, &mut buffer, length, |wire, frame| {
                free_at = free_at + (costs.send_ns + costs.of_bytes(frame.len()));
                self.put(free_at, wire, frame);
            });
            self.order = Some((member, carrier));
        }
        seen.work_ns += free_at.since(before);
        self.free_at = free_at;
    }
}

impl HostQueue for Program {
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        let side = self.side.clone();
        let costs = side.plan.costs;
        let mut seen = side.seen();
        let mut free_at = self.free_at.max(now);
        let before = free_at;
        for packet in burst.drain() {
            let frame = packet.data();
            free_at = free_at + (costs.receive_ns + costs.of_bytes(frame.len()));
            if let Some((member, carrier)) = &mut self.order
                && let Arrived::Packet(bytes) = carrier.arrived(frame)
            {
                free_at = free_at + costs.packet_ns;
                // A refusal is counted.
                let _ = member.receive(now, bytes);
            }
            out.deliver(packet);
        }
        if let Some((member, _)) = &mut self.order {
            while let Some(delivery) = member.deliver() {
                free_at = free_at + costs.message_ns;
                seen.note(&side.plan, &delivery, free_at);
            }
        }
        seen.work_ns += free_at.since(before);
        drop(seen);
        self.free_at = free_at;
        self.work(now);
        self.free_at.since(now)
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        if self.free_at <= now {
            self.work(now);
        }
        let mut sent = 0;
        while let Some((at, ..)) = self.outbox.front()
            && *at <= now
            && let Some(mut buffer) = out.buffer()
            && let Some((_, wire, frame)) = self.outbox.pop_front()
        {
            buffer.truncate(frame.len() as u16);
            buffer.data_mut().copy_from_slice(&frame);
            buffer.wire = wire;
            out.submit(buffer);
            self.spare.push(frame);
            sent += 1;
        }
        sent
    }

    fn next_deadline(&self) -> Option<Time> {
        let plan = &self.side.plan;
        let frame = self.outbox.front().map(|(at, ..)| *at);
        let timer = self.order.as_ref().map(|(member, _)| member.next_deadline());
        let is_first = self.is_sender && self.side.seen().submitted == 0;
        let start = is_first.then_some(plan.begins);
        // Work in virtual time is done before more begins.
        let work = timer.into_iter().chain(start).map(|due| due.max(self.free_at));
        frame.into_iter().chain(work).min().filter(|due| *due < Time::MAX)
    }

    fn is_application(&self) -> bool {
        true
    }
}
