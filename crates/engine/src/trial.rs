//! Tries one function alone: passes it single packets and shows the fate of each.
//!
//! ```
//! use picnic_core::function::{Verdict, per_packet};
//! use picnic_core::{direction::Direction, registry::BuildContext, time::Time};
//! use picnic_engine::trial::{Fate, Trial};
//!
//! let mut function = per_packet(|packet| match packet.data().len() {
//!     0..=60 => Verdict::Steer(1),
//!     _ => Verdict::Next,
//! });
//! let mut trial = Trial::new(&BuildContext::default(), Direction::Rx).unwrap();
//! let outcomes = trial.give(&mut function, Time::ZERO, 0, &[0; 60]).unwrap();
//! assert_eq!(outcomes[0].fate, Fate::Queue(1));
//! assert_eq!(trial.end(&mut function), Ok(vec![]));
//! ```
//!
//! The pool, doors and rings are those of a card; after each door, the packet is examined and its
//! buffer returned. For tests of functions, and for `picnic try`.
//!
//! Guarantees: each step balances or returns an error: for a packet without a fate or with two, for
//! a descriptor whose layers differ from its bytes, and at the end for a missing buffer.
//! [`conformance`] has the tests for every function.

use picnic_core::direction::Direction;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::error::PoolError;
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out, TargetRing};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::BuildContext;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::{self, Consumer};
use picnic_core::stats::SteerCounters;
use picnic_core::time::Time;
use std::collections::HashMap;
use std::sync::Arc;

pub mod conformance;
pub mod frames;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// To the next function.
    Next,
    /// To a target queue.
    Queue(u16),
    /// Out on a wire.
    Wire(u8),
    /// Dropped, with the reason.
    Dropped(DropReason),
    /// Kept by the function for good.
    Consumed,
}

/// A packet that the function released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its number among the given packets, from 0; none if the function made it.
    pub number: Option<usize>,
    /// Its fate.
    pub fate: Fate,
    /// The wire in its descriptor as it left; 0 if it did not leave.
    pub wire: u8,
    /// Its bytes as it left; none if it did not leave.
    pub data: Vec<u8>,
    /// Its mark as it left; 0 if it did not leave.
    pub mark: u32,
    /// Its RSS hash as it left; 0 if it did not leave.
    pub rss_hash: u32,
}

/// The environment of one function.
pub struct Trial {
    doors: Doors,
    rings: Vec<Consumer<Descriptor>>,
    stage: Stage,
    given: usize,
    /// Packets inside the function, by buffer.
    inside: HashMap<usize, usize>,
    /// Drops by reason at the last check, and packets consumed and made.
    seen: (Vec<u64>, u64, u64),
}

#[derive(Default)]
struct Collector(Vec<Descriptor>);

impl Onward for Collector {
    fn carry_on(&mut self, _now: Time, burst: &mut Burst, _doors: &mut Doors) {
        self.0.extend(burst.drain());
    }
}

/// Slots of each ring: more than a function makes from one packet, or releases at once.
const RING: usize = 4096;

impl Trial {
    /// An environment like a card's.
    ///
    /// # Errors
    /// There is no memory for the buffers.
    pub fn new(context: &BuildContext, direction: Direction) -> Result<Self, PoolError> {
        let queues = usize::from(context.queues);
        let config = PoolConfig {
            buffers: context.buffers as u32,
            buffer_size: context.buffer_size as u32,
            ..PoolConfig::default()
        };
        let (pool, _) = Pool::new(&config, queues)?;
        let ring = |_| {
            let (producer, consumer) = spsc::channel(RING);
            let moderation = Moderation::new(ModerationMode::None);
            let counters = Arc::new(SteerCounters::default());
            let gate = Arc::new(Gate::new());
            let bell: Arc<dyn Doorbell> = Arc::new(NoDoorbell);
            (TargetRing::new(producer, gate, bell, moderation, counters), consumer)
        };
        let (targets, rings) = (0..queues).map(ring).unzip();
        let ledger = Arc::new(Ledger::new(queues));
        let doors = Doors::new(pool, targets, context.wires.into(), RING, ledger);
        let stage = match direction {
            Direction::Rx => Stage::Rx,
            Direction::Tx => Stage::Tx,
        };
        let seen = (vec![0; DropReason::ALL.len()], 0, 0);
        Ok(Trial { doors, rings, stage, given: 0, inside: HashMap::new(), seen })
    }

    /// Sets a wire's link state.
    pub fn set_wire_up(&mut self, wire: u8, is_up: bool) {
        self.doors.set_wire_up(wire, is_up);
    }

    /// Passes one packet to a function, after a flush that is due by then. Returns the packets
    /// released by both, in the order of the doors.
    ///
    /// # Errors
    /// A packet without a fate, or with two.
    pub fn give(
        &mut self,
        function: &mut dyn Function,
        now: Time,
        wire: u8,
        data: &[u8],
    ) -> Result<Vec<Released>, String> {
        self.give_known(function, now, wire, data, |_| {})
    }

    /// Like [`Trial::give`], for a packet with metadata: `tell` writes it into the descriptor.
    ///
    /// # Errors
    /// A packet without a fate, or with two.
    pub fn give_known(
        &mut self,
        function: &mut dyn Function,
        now: Time,
        wire: u8,
        data: &[u8],
        tell: impl FnOnce(&mut Descriptor),
    ) -> Result<Vec<Released>, String> {
        self.give_pieces(function, now, wire, &[data], tell)
    }

    /// Like [`Trial::give_known`], with each piece of the packet in its own buffer.
    ///
    /// # Errors
    /// A packet without a fate, or with two.
    pub fn give_pieces(
        &mut self,
        function: &mut dyn Function,
        now: Time,
        wire: u8,
        pieces: &[&[u8]],
        tell: impl FnOnce(&mut Descriptor),
    ) -> Result<Vec<Released>, String> {
        let mut outcomes = Vec::new();
        if function.next_deadline().is_some_and(|due| due <= now) {
            outcomes = self.step(function, None, |function, out| function.flush(now, out), now)?;
        }
        let number = self.given;
        self.given += 1;
        let Some(mut packet) = self.packet(pieces) else {
            return Err(format!("packet {number}: no free buffers"));
        };
        packet.wire = wire;
        packet.set_received_at(now);
        tell(&mut packet);
        self.inside.insert(self.doors.pool.buffer_index(&packet), number);
        let mut burst = Burst::new();
        if burst.push(packet).is_err() {
            return Err("a burst without room".into());
        }
        let process = |function: &mut dyn Function, out: &mut Out<'_>| {
            function.process(now, &mut burst, out);
            for packet in burst.drain() {
                out.next(packet);
            }
        };
        outcomes.extend(self.step(function, Some(number), process, now)?);
        Ok(outcomes)
    }

    fn packet(&mut self, pieces: &[&[u8]]) -> Option<Descriptor> {
        let (first, others) = pieces.split_first()?;
        let mut packet = self.doors.pool.packet(first)?;
        for piece in others {
            let segment = self.doors.pool.packet(piece)?;
            packet.append(segment).ok()?;
        }
        Some(packet)
    }

    /// Makes the function release all packets.
    ///
    /// # Errors
    /// It keeps some, or a buffer is missing.
    pub fn end(&mut self, function: &mut dyn Function) -> Result<Vec<Released>, String> {
        let flush = |function: &mut dyn Function, out: &mut Out<'_>| function.flush(Time::MAX, out);
        let outcomes = self.step(function, None, flush, Time::MAX)?;
        match (function.held(), self.doors.pool.outstanding()) {
            (0, 0) => Ok(outcomes),
            (0, missing) => Err(format!("{missing} buffers are missing")),
            (held, _) => Err(format!("{held} packets are still held after the last flush")),
        }
    }

    fn step(
        &mut self,
        function: &mut dyn Function,
        given: Option<usize>,
        body: impl FnOnce(&mut dyn Function, &mut Out<'_>),
        now: Time,
    ) -> Result<Vec<Released>, String> {
        let before = function.held() + usize::from(given.is_some());
        let mut onward = Collector::default();
        let mut out = Out::new(now, self.stage, &mut self.doors, &mut onward);
        body(function, &mut out);
        out.finish();
        self.doors.publish(now);
        let mut outcomes = Vec::new();
        let mut stale = None;
        let mut checked = |packet: &Descriptor| {
            if let Err(error) = conformance::keeps_its_layers(packet) {
                stale.get_or_insert(error);
            }
        };
        for packet in onward.0 {
            checked(&packet);
            self.look(packet, Fate::Next, &mut outcomes);
        }
        for queue in 0..self.rings.len() {
            while let Some(packet) = self.rings[queue].pop() {
                checked(&packet);
                self.look(packet, Fate::Queue(queue as u16), &mut outcomes);
            }
            self.rings[queue].release();
        }
        while let Some(packet) = self.doors.backlog.take() {
            let wire = packet.wire;
            checked(&packet);
            self.look(packet, Fate::Wire(wire), &mut outcomes);
        }
        if let Some(error) = stale {
            return Err(format!("a released packet: {error}"));
        }
        let ended = self.ended();
        let made = self.doors.ledger.card.made.get();
        let made = made - std::mem::replace(&mut self.seen.2, made);
        let after = outcomes.len() + ended.len() + function.held();
        if before + made as usize != after {
            return Err(format!(
                "{before} packets in and {made} made, but {} released, {} dropped or consumed \
                 and {} held",
                outcomes.len(),
                ended.len(),
                function.held()
            ));
        }
        // The door of such a packet reports no number. Usually it is the given packet.
        let mut numbers: Vec<_> = self.inside.values().copied().collect();
        numbers.sort_unstable_by_key(|&number| (Some(number) != given, number));
        for (fate, number) in
            ended.into_iter().zip(numbers.into_iter().map(Some).chain(std::iter::repeat(None)))
        {
            self.inside.retain(|_, inside| Some(*inside) != number);
            outcomes.push(Released {
                number,
                fate,
                wire: 0,
                data: Vec::new(),
                mark: 0,
                rss_hash: 0,
            });
        }
        Ok(outcomes)
    }

    fn look(&mut self, packet: Descriptor, fate: Fate, outcomes: &mut Vec<Released>) {
        let number = self.inside.remove(&self.doors.pool.buffer_index(&packet));
        let data = packet.segments().flatten().copied().collect();
        let Descriptor { wire, mark, rss_hash, .. } = packet;
        outcomes.push(Released { number, fate, wire, data, mark, rss_hash });
        self.doors.pool.free(packet);
    }

    /// Packets dropped and consumed since the last check.
    fn ended(&mut self) -> Vec<Fate> {
        let card = &self.doors.ledger.card;
        let mut ended = Vec::new();
        for (&reason, seen) in DropReason::ALL.iter().zip(&mut self.seen.0) {
            let stages = Stage::ALL.iter().map(|&stage| card.drops.get(reason, stage));
            let dropped: u64 = stages.sum();
            ended.extend((*seen..dropped).map(|_| Fate::Dropped(reason)));
            *seen = dropped;
        }
        let consumed = card.consumed.get();
        ended.extend((self.seen.1..consumed).map(|_| Fate::Consumed));
        self.seen.1 = consumed;
        ended
    }
}
