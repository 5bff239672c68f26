//! A borrowed core for tests: real pool, rings and doors around one function.
//!
//! Every run checks conservation: each packet has exactly one fate, all buffers return, and no
//! memory is allocated.

#![allow(dead_code)] // each test binary uses a part of it

pub(crate) mod build;
pub(crate) mod frames;

use picnic_core::doorbell::NoDoorbell;
use picnic_core::function::Function;
use picnic_core::ledger::{CardLedger, DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out, TargetRing};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{
    ChecksumState, Descriptor, GsoType, RssFunction, RssType, VlanTag,
};
use picnic_core::packet::layers::PacketType;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::{BuildContext, find};
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::{self, Consumer};
use picnic_core::stats::SteerCounters;
use picnic_core::time::Time;
use picnic_core::{config::Section, error::ConfigError};
use picnic_engine::trial::conformance;
use picnic_functions::registry::FUNCTIONS;
use std::sync::Arc;

/// Builds the component that a section of a card file names.
pub(crate) fn build(text: &str, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
    let section = Section::from_text("function", text)?;
    find(FUNCTIONS, &section)?.build(&section, context)
}

/// The message of a section that is refused.
pub(crate) fn refusal(text: &str) -> String {
    match build(text, &BuildContext { wires: 2, ..BuildContext::default() }) {
        Ok(_) => format!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Door {
    Next,
    Queue(u16),
    Wire(u8),
}

/// A packet that came out by a door that can be looked behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its number among all packets that went in, from 0.
    pub(crate) number: usize,
    pub(crate) door: Door,
    /// Its descriptor's destination, and the tx queue it came from.
    pub(crate) wire: u8,
    pub(crate) tx_queue: Option<u8>,
    pub(crate) hash: u32,
    pub(crate) over: RssType,
    pub(crate) by: RssFunction,
    pub(crate) packet_type: PacketType,
    pub(crate) mark: u32,
    pub(crate) checksum: ChecksumState,
    pub(crate) gso: (GsoType, u16),
    pub(crate) aside: Option<VlanTag>,
    /// The offset of the IP header inside a tunnel.
    pub(crate) inner: Option<u16>,
    /// Bytes in each of its buffers.
    pub(crate) segments: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Seen {
    fn of(packet: &Descriptor, door: Door) -> Seen {
        let data: Vec<u8> = packet.segments().flatten().copied().collect();
        if let Err(error) = conformance::keeps_its_layers(packet) {
            panic!("{error}");
        }
        Seen {
            number: packet.received_at().as_nanos() as usize,
            door,
            wire: packet.wire,
            tx_queue: packet.tx_queue(),
            hash: packet.rss_hash,
            over: packet.rss_type(),
            by: packet.rss_function(),
            packet_type: packet.packet_type(),
            mark: packet.mark,
            checksum: packet.checksum(),
            gso: (packet.gso_type(), packet.gso_size()),
            aside: packet.vlan_aside(),
            inner: packet.inner_l3(),
            segments: packet.segments().map(<[u8]>::len).collect(),
            data,
        }
    }
}

/// One borrowed core, one function's surroundings.
pub(crate) struct Card {
    doors: Doors,
    rings: Vec<Consumer<Descriptor>>,
    given: usize,
    drops: u64,
    /// The chain of functions, and their time.
    pub(crate) stage: Stage,
    pub(crate) now: Time,
}

/// The data path neither allocates nor frees (design promise 3).
fn without_allocating(work: impl FnOnce()) {
    let memory = allocation_counter::measure(work);
    assert_eq!(memory, allocation_counter::AllocationInfo::default(), "on the data path");
}

#[derive(Default)]
struct Collector(Vec<Descriptor>);

impl Onward for Collector {
    fn carry_on(&mut self, _now: Time, burst: &mut Burst, _doors: &mut Doors) {
        self.0.extend(burst.drain());
    }
}

/// The same packets in full bursts.
fn bursts_of(packets: Vec<Descriptor>) -> Vec<Burst> {
    let mut bursts = Vec::new();
    let mut packets = packets.into_iter();
    while packets.len() != 0 {
        let mut burst = Burst::new();
        packets.by_ref().take(64).for_each(|packet| burst.push(packet).unwrap());
        bursts.push(burst);
    }
    bursts
}

impl Card {
    pub(crate) fn new(context: &BuildContext) -> Card {
        let queues = usize::from(context.queues);
        let config = PoolConfig {
            buffers: 512,
            buffer_size: context.buffer_size as u32,
            ..PoolConfig::default()
        };
        let (pool, _) = Pool::new(&config, queues).unwrap();
        let (targets, rings) = (0..queues)
            .map(|_| {
                let (producer, consumer) = spsc::channel(64);
                let target = TargetRing::new(
                    producer,
                    Arc::new(Gate::new()),
                    Arc::new(NoDoorbell),
                    Moderation::new(ModerationMode::None),
                    Arc::new(SteerCounters::default()),
                );
                (target, consumer)
            })
            .unzip();
        let ledger = Arc::new(Ledger::new(queues));
        let doors = Doors::new(pool, targets, context.wires.into(), 64, ledger);
        Card { doors, rings, given: 0, drops: 0, stage: Stage::Rx, now: Time::ZERO }
    }

    /// Drops counted for `reason` in the chain, over all runs.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.doors.ledger.card.drops.get(reason, self.stage)
    }

    /// Has a wire go down or come back.
    pub(crate) fn set_wire_up(&mut self, wire: u8, is_up: bool) {
        self.doors.set_wire_up(wire, is_up);
    }

    /// Packets that functions have made and consumed, over all runs.
    pub(crate) fn made_and_consumed(&self) -> (u64, u64) {
        let card = &self.doors.ledger.card;
        (card.made.get(), card.consumed.get())
    }

    /// Runs a function over one burst of at most 64 packets: each a wire and bytes.
    pub(crate) fn run<P>(&mut self, function: &mut dyn Function, packets: &[P]) -> Vec<Seen>
    where
        P: AsRef<(u8, Vec<u8>)>,
    {
        self.run_with(function, packets, |_, _| ())
    }

    /// The same; `prepare` sets the metadata of each packet by its place in the burst.
    pub(crate) fn run_with<P>(
        &mut self,
        function: &mut dyn Function,
        packets: &[P],
        prepare: impl FnMut(usize, &mut Descriptor),
    ) -> Vec<Seen>
    where
        P: AsRef<(u8, Vec<u8>)>,
    {
        let mut burst = self.burst(packets, prepare);
        let now = self.now;
        self.step(function, packets.len(), |function, out| {
            without_allocating(|| function.process(now, &mut burst, out));
            std::mem::take(&mut burst)
        })
    }

    /// Runs bursts through one function, which then releases its held packets, and its output
    /// through another: returns the packets between them and at the end.
    pub(crate) fn pipe<P>(
        &mut self,
        first: &mut dyn Function,
        second: &mut dyn Function,
        bursts: &[Vec<P>],
    ) -> (Vec<Seen>, Vec<Seen>)
    where
        P: AsRef<(u8, Vec<u8>)>,
    {
        let bursts = bursts.iter().map(|packets| self.burst(packets, |_, _| ())).collect();
        let between = self.pass(first, bursts);
        let seen = between.iter().map(|packet| Seen::of(packet, Door::Next)).collect();
        let end = self.pass(second, bursts_of(between));
        (seen, self.end(end).0)
    }

    /// Runs bursts through a chain of functions; each function releases its held packets before the
    /// next begins: returns the packets after the last. `prepare` sets the metadata of each packet
    /// by its place among all.
    pub(crate) fn through<P>(
        &mut self,
        functions: &mut [Box<dyn Function>],
        bursts: &[Vec<P>],
        mut prepare: impl FnMut(usize, &mut Descriptor),
    ) -> Vec<Seen>
    where
        P: AsRef<(u8, Vec<u8>)>,
    {
        let mut first = 0;
        let mut all = Vec::new();
        for packets in bursts {
            all.push(self.burst(packets, |place, packet| prepare(first + place, packet)));
            first += packets.len();
        }
        let mut packets: Vec<_> = all.iter_mut().flat_map(Burst::drain).collect();
        let card = &self.doors.ledger.card;
        let ended = |card: &CardLedger| card.drops.total() + card.consumed.get();
        let (made, ended_before) = (card.made.get(), ended(card));
        for function in functions {
            packets = self.pass(function.as_mut(), bursts_of(packets));
        }
        let card = &self.doors.ledger.card;
        let (given, left) = (first as u64 + card.made.get() - made, packets.len() as u64);
        let steered = given - left - (ended(card) - ended_before);
        let (seen, found) = self.end(packets);
        assert_eq!(found, steered, "a packet has no fate, or two");
        seen
    }

    /// The packets that continue after a function that gets these bursts and then releases its held
    /// packets.
    fn pass(&mut self, function: &mut dyn Function, bursts: Vec<Burst>) -> Vec<Descriptor> {
        let mut onward = Collector::default();
        for mut burst in bursts {
            let mut out = Out::new(self.now, self.stage, &mut self.doors, &mut onward);
            function.process(self.now, &mut burst, &mut out);
            out.finish();
            onward.0.extend(burst.drain());
        }
        let mut out = Out::new(self.now, self.stage, &mut self.doors, &mut onward);
        function.flush(Time::MAX, &mut out);
        out.finish();
        assert_eq!(function.held(), 0, "held back after a flush");
        onward.0
    }

    /// The packets, whose buffers return, and how many were steered to queues.
    fn end(&mut self, packets: Vec<Descriptor>) -> (Vec<Seen>, u64) {
        let seen = packets.iter().map(|packet| Seen::of(packet, Door::Next)).collect();
        packets.into_iter().for_each(|packet| self.doors.pool.free(packet));
        self.doors.publish(self.now);
        let mut steered = 0;
        for ring in &mut self.rings {
            while let Some(packet) = ring.pop() {
                self.doors.pool.free(packet);
                steered += 1;
            }
            ring.release();
        }
        assert_eq!(self.doors.pool.outstanding(), 0, "buffers did not come home");
        self.drops = self.doors.ledger.card.drops.total();
        (seen, steered)
    }

    fn burst<P>(&mut self, packets: &[P], mut prepare: impl FnMut(usize, &mut Descriptor)) -> Burst
    where
        P: AsRef<(u8, Vec<u8>)>,
    {
        let mut burst = Burst::new();
        for (place, packet) in packets.iter().enumerate() {
            let (wire, data) = packet.as_ref();
            let mut packet = self.doors.pool.packet(data).unwrap();
            packet.wire = *wire;
            // Results of earlier functions must not count as this one's work.
            packet.set_rss(0xdead_dead, RssType::Ipv6Udp);
            packet.set_received_at(Time::from_nanos(self.given as u64));
            self.given += 1;
            prepare(place, &mut packet);
            burst.push(packet).unwrap();
        }
        burst
    }

    /// Makes a function release the packets that are due.
    pub(crate) fn flush_due(&mut self, function: &mut dyn Function) -> Vec<Seen> {
        let now = self.now;
        self.step(function, 0, |function, out| {
            without_allocating(|| function.flush(now, out));
            Burst::new()
        })
    }

    /// Makes a function release its held packets.
    pub(crate) fn flush(&mut self, function: &mut dyn Function) -> Vec<Seen> {
        let seen = self.step(function, 0, |function, out| {
            without_allocating(|| function.flush(Time::MAX, out));
            Burst::new()
        });
        assert_eq!(function.held(), 0, "held back after a flush");
        seen
    }

    fn step(
        &mut self,
        function: &mut dyn Function,
        packets: usize,
        body: impl FnOnce(&mut dyn Function, &mut Out<'_>) -> Burst,
    ) -> Vec<Seen> {
        let held_before = function.held();
        let made_before = self.doors.ledger.card.made.get();
        let consumed_before = self.doors.ledger.card.consumed.get();
        // Room for all that may come, so that only a function could allocate.
        let mut onward = Collector(Vec::with_capacity(1 << 14));
        let mut out = Out::new(self.now, self.stage, &mut self.doors, &mut onward);
        let mut left = body(function, &mut out);
        out.finish();
        onward.carry_on(self.now, &mut left, &mut self.doors);
        self.doors.publish(self.now);

        let mut seen = Vec::new();
        let mut see = |doors: &mut Doors, packet: Descriptor, door: Door| {
            seen.push(Seen::of(&packet, door));
            doors.pool.free(packet);
        };
        for packet in onward.0 {
            see(&mut self.doors, packet, Door::Next);
        }
        for (queue, ring) in self.rings.iter_mut().enumerate() {
            while let Some(packet) = ring.pop() {
                see(&mut self.doors, packet, Door::Queue(queue as u16));
            }
            ring.release();
        }
        while let Some(packet) = self.doors.backlog.take() {
            let wire = packet.wire;
            see(&mut self.doors, packet, Door::Wire(wire));
        }

        let card = &self.doors.ledger.card;
        let drops = card.drops.total() - std::mem::replace(&mut self.drops, card.drops.total());
        let consumed = card.consumed.get() - consumed_before;
        let made = card.made.get() - made_before;
        assert_eq!(
            packets + held_before + made as usize,
            seen.len() + (drops + consumed) as usize + function.held(),
            "a packet has no fate, or two"
        );
        // A held packet may lie in several buffers.
        let (outstanding, held) = (self.doors.pool.outstanding(), function.held());
        assert!(outstanding >= held && (held != 0 || outstanding == 0), "buffers are missing");
        seen
    }
}

/// A packet to put in: wire and bytes.
#[derive(Clone, Debug)]
pub(crate) struct Packet(pub(crate) (u8, Vec<u8>));

impl AsRef<(u8, Vec<u8>)> for Packet {
    fn as_ref(&self) -> &(u8, Vec<u8>) {
        &self.0
    }
}

/// Packets of these bytes, from wire 0.
pub(crate) fn from_wire_0(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
    frames.into_iter().map(|data| Packet((0, data))).collect()
}
