//! The doors' implementation: the pool, the target rings with gates, moderation and doorbells, the
//! packets that wait for wires, the ledger.
//!
//! Guarantees: order within a door is kept; packets that a door cannot take are dropped and
//! counted.

use crate::backlog::{Backlog, Limits};
use crate::doorbell::Doorbell;
use crate::ledger::{DropReason, Ledger, Stage};
use crate::packet::burst::Burst;
use crate::packet::desc::Descriptor;
use crate::packet::pool::Pool;
use crate::port::Transmitter;
use crate::ring::gate::Gate;
use crate::ring::moderation::{Moderation, ModerationMode};
use crate::ring::spsc::Producer;
use crate::stats::{SteerCounters, WireCounters};
use crate::time::Time;
use std::sync::Arc;

/// The borrowed core's end of one target queue.
pub struct TargetRing {
    ring: Producer<Descriptor>,
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
    counters: Arc<SteerCounters>,
    /// When this queue's packets warrant an interrupt.
    pub moderation: Moderation,
}

impl TargetRing {
    /// A target ring with its gate, doorbell and moderation.
    pub fn new(
        ring: Producer<Descriptor>,
        gate: Arc<Gate>,
        doorbell: Arc<dyn Doorbell>,
        moderation: Moderation,
        counters: Arc<SteerCounters>,
    ) -> Self {
        TargetRing { ring, gate, doorbell, counters, moderation }
    }

    /// The borrowed core's counters of the queue.
    pub fn counters(&self) -> &Arc<SteerCounters> {
        &self.counters
    }

    /// Descriptors in the ring at present.
    pub fn occupancy(&self) -> usize {
        self.ring.occupancy()
    }

    /// Whether at least half of the ring is in use.
    pub fn is_half_full(&self) -> bool {
        self.ring.is_half_full()
    }

    /// Rings through the gate.
    #[inline]
    fn interrupt(&mut self) {
        if self.gate.interrupt() {
            self.counters.doorbells.add(1);
            self.doorbell.ring();
        }
    }

    /// Interrupts for waiting packets if due, once for each packet if configured. Through the gate,
    /// or, with `unmasked`, in any case. False if not due.
    fn interrupt_as_asked(&mut self, now: Time, unmasked: bool) -> bool {
        if !unmasked && !self.gate.is_armed() {
            self.moderation.served();
            return true;
        }
        if !self.moderation.due(now) {
            return false;
        }
        let each = self.moderation.mode() == ModerationMode::PerPacket;
        for _ in 0..if each { self.moderation.waiting() } else { 1 } {
            if unmasked {
                if !self.gate.pend() {
                    self.counters.coalesced.add(1);
                }
                self.counters.doorbells.add(1);
                self.doorbell.ring();
            } else {
                self.interrupt();
            }
        }
        self.moderation.served();
        true
    }
}

/// The fate of a packet that waited for a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It still waits.
    Waiting,
    /// The wire has taken it.
    Sent,
    /// The wire could not send it.
    Dropped,
}

/// Progress of a wire with the card's own packets (of no tx queue) that wait for it. They leave in
/// order, so a packet's number, from when it was queued, tells whether it has left.
#[derive(Debug, Default)]
pub struct WireProgress {
    /// Packets that have left, ever.
    ended: u64,
    /// Numbers being watched, lowest first.
    watched: Vec<u64>,
    /// Those of them whose packets the wire dropped.
    dropped: Vec<u64>,
}

impl WireProgress {
    /// Watches the `ahead`th packet in the queue from now on; its number.
    fn watch(&mut self, ahead: u64) -> u64 {
        let number = self.ended + ahead;
        self.watched.push(number);
        number
    }

    /// The fate of a packet by number.
    pub fn fate(&self, number: u64) -> Fate {
        match number <= self.ended {
            false => Fate::Waiting,
            true if self.dropped.contains(&number) => Fate::Dropped,
            true => Fate::Sent,
        }
    }

    /// Stops watching a number.
    pub fn forget(&mut self, number: u64) {
        self.watched.retain(|&watched| watched != number);
        self.dropped.retain(|&dropped| dropped != number);
    }

    /// Whether anyone watches a packet of this wire.
    #[inline]
    pub fn is_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Packets that have left, ever.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// One more packet has left: sent, or dropped by the wire.
    #[inline]
    pub(crate) fn advance(&mut self, dropped: bool) {
        self.ended += 1;
        if dropped && self.watched.contains(&self.ended) {
            self.dropped.push(self.ended);
        }
    }
}

/// All destinations of a packet on the borrowed core.
pub struct Doors {
    /// The pool of all buffers.
    pub pool: Pool,
    /// The target rings, by queue.
    pub targets: Vec<TargetRing>,
    /// Packets that wait for wires.
    pub backlog: Backlog,
    /// The card's ledger.
    pub ledger: Arc<Ledger>,
    /// The queue of packets that no function steers.
    pub default_queue: u16,
    /// The target rings after they were closed; `targets` is then empty.
    closed: Vec<TargetRing>,
    /// Packets published whose targets have not been interrupted yet.
    moderated: bool,
    /// Targets are interrupted even while they work.
    unmasked: bool,
    /// Each packet is moved separately and interrupts.
    per_packet: bool,
    /// Packets that left by a door other than a target ring, and packets made: for the balance
    /// check of every burst.
    pub(super) ended: u64,
    made: u64,
    /// Packets dropped because their target ring was full.
    ring_full: u64,
    /// The progress of each wire.
    pub progress: Vec<WireProgress>,
    /// By wire; and the number of changes.
    pub(super) wires_up: Vec<bool>,
    pub(super) wire_changes: u64,
}

impl Doors {
    /// The doors of a card without tx queues; `wire_backlog` packets may wait for each of `wires`
    /// wires.
    pub fn new(
        pool: Pool,
        targets: Vec<TargetRing>,
        wires: usize,
        wire_backlog: usize,
        ledger: Arc<Ledger>,
    ) -> Self {
        let per_packet = is_per_packet(&targets);
        Doors {
            pool,
            targets,
            backlog: Backlog::new(
                wires,
                Vec::new(),
                Limits { packets: wire_backlog, bytes: u64::MAX },
            ),
            ledger,
            default_queue: 0,
            closed: Vec::new(),
            moderated: false,
            unmasked: false,
            per_packet,
            ended: 0,
            made: 0,
            ring_full: 0,
            progress: (0..wires).map(|_| WireProgress::default()).collect(),
            wires_up: vec![true; wires],
            wire_changes: 0,
        }
    }

    /// Changes the moderation of all queues; returns the previous ones.
    pub fn moderate(&mut self, mode: ModerationMode) -> ModerationMode {
        let mut old = mode;
        for target in &mut self.targets {
            old = target.moderation.mode();
            target.moderation.set_mode(mode);
        }
        self.per_packet = is_per_packet(&self.targets);
        old
    }

    /// Sets whether targets are interrupted even while they work, or only when they wait; returns
    /// the previous setting.
    pub fn set_unmasked(&mut self, unmasked: bool) -> bool {
        std::mem::replace(&mut self.unmasked, unmasked)
    }

    /// Says whether a wire is up.
    #[inline]
    pub fn set_wire_up(&mut self, wire: u8, is_up: bool) {
        if let Some(was_up) = self.wires_up.get_mut(usize::from(wire))
            && std::mem::replace(was_up, is_up) != is_up
        {
            self.wire_changes += 1;
        }
    }

    /// Whether each packet is moved separately and interrupts.
    #[inline]
    pub fn is_per_packet(&self) -> bool {
        self.per_packet
    }

    /// A queue's host waits for `completions` of its packets: they warrant an interrupt as packets
    /// do, or at once.
    #[cold]
    pub fn complete(&mut self, now: Time, queue: usize, completions: u32, at_once: bool) {
        let Some(target) = self.targets.get_mut(queue) else { return };
        if at_once {
            target.interrupt();
        } else {
            target.moderation.published(now, completions);
            self.moderated = true;
        }
    }

    /// Puts a packet on the queue for a wire; the number returned identifies it in queries of its
    /// [`Fate`]. Numbers count from the start; the holder must call [`WireProgress::forget`] once.
    ///
    /// # Errors
    /// Why the packet was dropped at once, counted.
    pub fn transmit_watched(
        &mut self,
        mut packet: Descriptor,
        wire: u8,
    ) -> Result<u64, DropReason> {
        packet.wire = wire;
        // It now belongs to the card, which counts it under its own numbers.
        packet.clear_tx_queue();
        self.backlog.unmark(&mut packet);
        match self.backlog.push(packet, wire) {
            Ok(()) => {
                self.ended += 1;
                let ahead = self.backlog.own_waiting(wire.into()) as u64;
                Ok(self.progress[usize::from(wire)].watch(ahead))
            }
            Err((packet, reason)) => {
                self.drop(packet, reason, Stage::WireTx);
                Err(reason)
            }
        }
    }

    /// Offers a wire its waiting packets: `transmit` hands them to the port, a burst at a time,
    /// until the port leaves some or has taken all. A port that keeps packets is called in any
    /// case. Returns packets taken, if it was called.
    #[inline]
    pub fn serve_wire(
        &mut self,
        wire: usize,
        now: Time,
        counters: &WireCounters,
        mut transmit: impl FnMut(Transmitter<'_>),
    ) -> Option<usize> {
        let Doors { pool, backlog, ledger, progress, .. } = self;
        let progress = &mut progress[wire];
        let watched = progress.is_watched();
        let keeps = counters.tx_kept.get() != 0;
        backlog.serve(wire, now, keeps, progress, |ready| {
            let mut dropped = 0;
            let transmitter = Transmitter::new(pool, ready, counters, &ledger.card);
            transmit(if watched { transmitter.noting(&mut dropped) } else { transmitter });
            dropped
        })
    }

    /// Whether anyone watches packets that wait for wires.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.progress.iter().any(WireProgress::is_watched)
    }

    /// Counts a packet made on the borrowed core outside of functions, which will now go through a
    /// door.
    #[inline]
    pub fn count_made(&mut self) {
        self.made += 1;
        self.ledger.card.made.add(1);
    }

    /// Whether there is room for `packets` more at every destination of functions: every target
    /// ring, and the way to every wire.
    #[inline]
    pub fn have_room(&mut self, packets: usize) -> bool {
        self.targets.iter_mut().all(|target| target.ring.has_room(packets))
            && self.backlog.own_has_room(packets)
    }

    /// Puts a packet on a target ring, to be published at the end of the burst.
    #[inline(always)]
    pub fn steer(&mut self, packet: Descriptor, queue: u16) {
        let refused = match self.targets.get_mut(usize::from(queue)) {
            Some(target) => target.ring.stage(packet),
            None => Err(packet),
        };
        if let Err(packet) = refused {
            self.refuse(packet, queue);
        }
    }

    /// Puts a burst on the target rings, the `n`th packet on the ring of `queues[n]`: the fastest
    /// way out, from slot to slot. Packets beyond the end of `queues` stay in the burst.
    #[inline]
    pub fn steer_burst(&mut self, burst: &mut Burst, queues: &[u16]) {
        let mut packets = burst.drain();
        loop {
            let refused = packets.scatter(queues, &mut self.targets, |target| &mut target.ring);
            let Some((queue, packet)) = refused else { return };
            self.refuse(packet, queue);
        }
    }

    #[cold]
    fn refuse(&mut self, packet: Descriptor, queue: u16) {
        match self.targets.get(usize::from(queue)) {
            Some(target) => {
                target.counters.ring_full.add(1);
                self.ring_full += 1;
                self.drop(packet, DropReason::RingFull, Stage::Steer);
            }
            None if self.closed.is_empty() => {
                self.drop(packet, DropReason::NoSuchQueue, Stage::Steer);
            }
            None => self.drop(packet, DropReason::Stopped, Stage::Steer),
        }
    }

    /// Closes the way to the targets, which are about to end: packets steered from now on are
    /// dropped as stopped. Packets in the rings stay there.
    pub fn close_targets(&mut self) {
        self.interrupt_all();
        self.closed.append(&mut self.targets);
    }

    /// Queues a packet for a wire.
    #[inline]
    pub fn transmit(&mut self, mut packet: Descriptor, wire: u8) {
        // It is usually set already, and the wider load below would wait for a store here.
        if packet.wire != wire {
            packet.wire = wire;
        }
        match self.backlog.push(packet, wire) {
            Ok(()) => self.ended += 1,
            Err((packet, reason)) => self.drop(packet, reason, Stage::WireTx),
        }
    }

    /// Counts a drop and returns the buffer.
    #[cold]
    pub fn drop(&mut self, packet: Descriptor, reason: DropReason, stage: Stage) {
        self.ended += 1;
        self.ledger.card.drops.add(reason, stage, 1);
        self.pool.free(packet);
    }

    /// Counts a packet that a function keeps for good and returns the buffer.
    #[inline]
    pub fn consume(&mut self, packet: Descriptor) {
        self.ended += 1;
        self.ledger.card.consumed.add(1);
        self.pool.free(packet);
    }

    /// Ends a burst: publishes the rings and interrupts the queues that are due.
    ///
    /// Returns packets published.
    #[inline]
    pub fn publish(&mut self, now: Time) -> usize {
        let published = self.publish_rings(now);
        if self.moderated {
            self.interrupt(now);
        }
        published
    }

    /// Publishes the rings and leaves the interrupts to the next [`Doors::publish`].
    ///
    /// Returns packets published.
    #[inline]
    pub fn publish_rings(&mut self, now: Time) -> usize {
        let mut published = 0;
        for target in &mut self.targets {
            let packets = target.ring.publish();
            if packets != 0 {
                published += packets;
                target.moderation.published(now, packets as u32);
                target.counters.packets.add(packets as u64);
            }
        }
        if published != 0 {
            self.ledger.card.steered.add(published as u64);
            self.moderated = true;
        }
        published
    }

    /// Interrupts targets that sleep while packets are published, as moderation allows.
    fn interrupt(&mut self, now: Time) {
        // One fence for all queues; see `Gate`.
        Gate::order_publish();
        self.moderated = false;
        if self.unmasked || self.per_packet {
            return self.interrupt_as_asked(now);
        }
        for target in &mut self.targets {
            if !target.moderation.is_waiting() {
                continue;
            }
            if !target.gate.is_armed() {
                // Polling, or about to: the target checks the ring again before it sleeps.
                target.moderation.served();
            } else if target.moderation.due(now) {
                target.interrupt();
                target.moderation.served();
            } else {
                self.moderated = true;
            }
        }
    }

    /// As [`Doors::interrupt`], in the unusual modes.
    #[cold]
    fn interrupt_as_asked(&mut self, now: Time) {
        for target in &mut self.targets {
            if target.moderation.is_waiting() {
                self.moderated |= !target.interrupt_as_asked(now, self.unmasked);
            }
        }
    }

    /// Interrupts every target that sleeps while packets are published, regardless of moderation.
    pub fn interrupt_all(&mut self) {
        Gate::order_publish();
        for target in &mut self.targets {
            target.interrupt();
            target.moderation.served();
        }
        self.moderated = false;
    }

    /// Packets that left by a door other than a target ring, ever.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Packets made by functions, ever.
    #[inline]
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Packets dropped because their target ring was full, ever.
    #[inline]
    pub fn ring_full(&self) -> u64 {
        self.ring_full
    }

    /// When a moderated interrupt falls due.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.moderated {
            return None;
        }
        self.targets.iter().filter_map(|target| target.moderation.next_deadline()).min()
    }

    /// Updates the depth gauges; for display, so not per burst.
    pub fn note_depths(&self) {
        for target in self.targets.iter().chain(&self.closed) {
            target.counters.depth.set(target.ring.occupancy() as u64);
        }
    }

    /// Packets that wait for wires.
    pub fn waiting_for_wires(&self) -> usize {
        self.backlog.waiting()
    }
}

fn is_per_packet(targets: &[TargetRing]) -> bool {
    targets.iter().any(|target| target.moderation.mode() == ModerationMode::PerPacket)
}
