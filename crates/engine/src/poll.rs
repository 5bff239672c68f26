//! The poll engine: one turn of the borrowed core.
//!
//! A world calls [`Card::poll`] again and again with the time. Each turn takes at
//! most one burst from every wire and one from the tx rings, so its length is
//! bounded whatever comes in.

use crate::chain::Chain;
use crate::rx::{self, Wire};
use crate::swap::Mailbox;
use crate::tx::{self, TxRings};
use picnic_core::fill::FillSender;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Doors;
use picnic_core::packet::burst::Burst;
use picnic_core::ring::gate::Gate;
use picnic_core::time::Time;
use std::sync::Arc;

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Packets taken from wires; those a wire shed are not among them.
    pub received: usize,
    /// Packets taken from tx rings.
    pub submitted: usize,
    /// Packets the wires took.
    pub transmitted: usize,
}

impl Activity {
    /// Whether there was nothing to do.
    pub fn is_idle(&self) -> bool {
        self.received + self.submitted + self.transmitted == 0
    }
}

/// The borrowed core's part of a card.
pub struct Card {
    pub(crate) wires: Vec<Wire>,
    pub(crate) rx: Chain,
    pub(crate) tx: Chain,
    pub(crate) tx_rings: TxRings,
    /// Empty buffers for each queue, if the host sends by itself.
    pub(crate) fill_rings: Vec<FillSender>,
    pub(crate) doors: Doors,
    pub(crate) mailbox: Mailbox,
    /// Armed while the borrowed core sleeps, so that targets with packets to send wake it.
    pub(crate) gate: Arc<Gate>,
    pub(crate) burst_limit: usize,
    pub(crate) burst: Burst,
    /// The wire to ask first, so that none is favoured when buffers are short.
    pub(crate) turn: usize,
    pub(crate) receiving: bool,
    /// Packets that were inside functions when last counted.
    pub(crate) held: usize,
}

impl Card {
    /// One turn: commands, wires, tx rings, deadlines, doorbells, wires again.
    pub fn poll(&mut self, now: Time) -> Activity {
        if !self.mailbox.is_empty() {
            self.obey(now);
        }
        let mut activity = Activity::default();
        let mut published = 0;
        let (ended, made) = (self.doors.ended(), self.doors.made());
        if self.receiving {
            let wires = self.wires.len();
            let mut index = self.turn;
            self.turn = if index + 1 == wires { 0 } else { index + 1 };
            for _ in 0..wires {
                let received = rx::receive(
                    now,
                    &mut self.wires[index],
                    index as u8,
                    self.burst_limit,
                    &mut self.burst,
                    &mut self.rx,
                    &mut self.doors,
                );
                if received != 0 {
                    activity.received += received;
                    published += self.doors.publish(now);
                }
                index = if index + 1 == wires { 0 } else { index + 1 };
            }
        }
        activity.submitted = tx::submit(
            now,
            &mut self.tx_rings,
            self.burst_limit,
            &mut self.burst,
            &mut self.tx,
            &mut self.doors,
        );
        self.rx.flush(now, &mut self.doors);
        self.tx.flush(now, &mut self.doors);
        published += self.doors.publish(now);
        self.check(activity.received + activity.submitted, published, ended, made);
        activity.transmitted = tx::transmit(now, &mut self.wires, &mut self.doors);
        if activity.transmitted != 0 {
            self.note_held();
        }
        if self.receiving {
            for fill in &mut self.fill_rings {
                fill.top_up(&mut self.doors.pool);
            }
        }
        activity
    }

    /// The ledger's check of one turn: what came in went through a door or is held.
    #[inline]
    fn check(&mut self, taken: usize, published: usize, ended: u64, made: u64) {
        let held = self.rx.held() + self.tx.held();
        let r#in = taken as u64 + (self.doors.made() - made) + self.held as u64;
        let out = published as u64 + (self.doors.ended() - ended) + held as u64;
        if r#in != out {
            self.doors.ledger.card.unbalanced_bursts.add(1);
        }
        self.held = held;
        self.note_held();
    }

    /// Enters into the ledger what functions hold and what waits for wires.
    #[inline]
    fn note_held(&self) {
        let waiting = self.doors.waiting_for_wires();
        self.doors.ledger.card.held.set((self.held + waiting) as u64);
    }

    fn obey(&mut self, now: Time) {
        let (ended, made) = (self.doors.ended(), self.doors.made());
        while let Some(command) = self.mailbox.next() {
            let answer = command.apply(now, &mut self.rx, &mut self.tx, &mut self.doors);
            self.mailbox.answer(answer);
        }
        // A chain that was replaced has let go of what it held.
        let published = self.doors.publish(now);
        self.check(0, published, ended, made);
    }

    /// The latest time at which `poll` must be called again, if anything is due by time alone.
    /// `now` itself if packets wait that can be fetched at once.
    pub fn next_deadline(&self, now: Time) -> Option<Time> {
        let wires = self.wires.iter().filter(|_| self.receiving).filter_map(|wire| {
            if wire.port.is_finished() {
                None
            } else if wire.port.is_patient() {
                Some(now)
            } else {
                wire.port.next_deadline()
            }
        });
        wires
            .chain(self.rx.next_deadline())
            .chain(self.tx.next_deadline())
            .chain(self.doors.next_deadline())
            .min()
    }

    /// Enables the targets' doorbell to this core, to sleep. False if work has turned up
    /// meanwhile, or packets wait for a wire, which rings no doorbell when it takes packets
    /// again: poll again instead. Undone by [`Card::disarm`].
    pub fn arm(&mut self) -> bool {
        self.gate.rearm();
        if self.tx_rings.is_waiting()
            || !self.mailbox.is_empty()
            || self.doors.waiting_for_wires() != 0
        {
            self.disarm();
            return false;
        }
        true
    }

    /// Disables the targets' doorbell to this core: it is awake.
    pub fn disarm(&mut self) {
        if !self.gate.resume() {
            self.gate.begin();
        }
    }

    /// Whether every wire has said that it will hand over nothing more.
    pub fn is_finished(&self) -> bool {
        self.wires.iter().all(|wire| wire.port.is_finished())
    }

    /// Asks the wires for nothing more. Functions let go of what they hold, and moderation
    /// of what it delays; `poll` goes on serving the tx rings, but nothing more is steered:
    /// a tx chain that sends packets back to the targets would keep them from ever ending.
    pub fn stop_receiving(&mut self, now: Time) {
        self.receiving = false;
        self.release(now);
        self.doors.close_targets();
    }

    /// Has functions let go of all they hold; returns how many packets that was.
    fn release(&mut self, now: Time) -> usize {
        let held = self.held;
        let (ended, made) = (self.doors.ended(), self.doors.made());
        self.rx.release(now, &mut self.doors);
        self.tx.release(now, &mut self.doors);
        let published = self.doors.publish(now);
        self.check(0, published, ended, made);
        held.saturating_sub(self.held)
    }

    /// Ends a card whose targets have ended: what is in the tx rings goes to the wires, what
    /// these do not take is dropped and counted, and every buffer must be home. Returns the
    /// buffers that are not.
    pub fn finish(&mut self, now: Time) -> usize {
        self.receiving = false;
        loop {
            while !self.poll(now).is_idle() {}
            // Once more after that: the wires may take what functions held.
            if self.release(now) != 0 {
                continue;
            }
            // Tx rings are not read while a wire's queue is full, nor ahead of their deficit.
            if self.drop_waiting() == 0 && !self.tx_rings.is_waiting() {
                break;
            }
        }
        self.wires.iter_mut().for_each(|wire| wire.port.stop(&mut self.doors.pool));
        self.doors.note_depths();
        self.doors.pool.outstanding()
    }

    /// Drops what waits for wires; returns packets dropped.
    fn drop_waiting(&mut self) -> usize {
        let waiting = self.doors.waiting_for_wires();
        for index in 0..self.doors.wires.len() {
            while let Some(packet) = self.doors.wires[index].pop_front() {
                self.doors.drop(packet, DropReason::Stopped, Stage::WireTx);
            }
        }
        self.note_held();
        waiting
    }

    /// The wires, for their descriptors to sleep on and their reports.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// The doors, for gauges.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }
}
