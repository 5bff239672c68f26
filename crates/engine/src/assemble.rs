//! Connects the parts of a card: the rings, gates, doorbells and counters between them.
//!
//! Everything that can fail comes before the card exists; on failure, started parts are stopped.

use crate::build::{BuildError, Parts};
use crate::chain::Chain;
use crate::handover::Share;
use crate::poll::{self, Card, Phase};
use crate::swap::{self, Controller};
use crate::target::{Pacing, QueueState, TargetQueue};
use crate::tx::{TxRing, TxRings};
use crate::view::{ClassView, Functions, QueueView, View, WireView};
use picnic_core::backlog::{Backlog, Limits};
use picnic_core::config::{CardFile, GateMode};
use picnic_core::doorbell::Doorbell;
use picnic_core::fill;
use picnic_core::hook::HookPoint;
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::out::{Doors, TargetRing};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::Pool;
use picnic_core::port::Transmitter;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::Moderation;
use picnic_core::ring::spsc;
use picnic_core::stats::{SteerCounters, TargetCounters, WireCounters};
use std::collections::VecDeque;
use std::sync::Arc;

/// A card with both its sides, ready for a world to poll.
pub struct Assembled {
    /// The borrowed core's part.
    pub card: Card,
    /// The target queues, by number.
    pub queues: Vec<TargetQueue>,
    /// Changes it while it runs.
    pub controller: Controller,
    /// Reads it while it runs.
    pub view: View,
}

/// Connects a card's parts. `doorbells[q]` wakes queue `q`'s target core, `card_doorbell` the
/// borrowed core.
///
/// # Errors
/// There is no memory for the buffers, or the host side could not be opened.
pub fn assemble(
    file: &CardFile,
    parts: Parts,
    doorbells: &[Arc<dyn Doorbell>],
    card_doorbell: Arc<dyn Doorbell>,
) -> Result<Assembled, BuildError> {
    let warnings = parts.warnings();
    let Parts { mut wires, rx, tx, mut attachment, resident, guard, hooks, classes, .. } = parts;
    let (mut pool, returns) = Pool::new(&file.pool, doorbells.len())?;
    let ledger = Arc::new(Ledger::new(doorbells.len()));
    let card_gate = Arc::new(Gate::new());
    let (mut targets, mut tx_rings) = (Vec::new(), Vec::new());
    let (mut queues, mut queue_views) = (Vec::new(), Vec::new());
    // All fill rings together take at most a quarter of the pool: the wires need buffers too.
    let most = file.pool.buffers as usize / 4 / doorbells.len().max(1);
    let fill_depth = match attachment.wants_buffers() {
        0 => 0,
        wanted => 1 << wanted.min(most).max(1).ilog2(),
    };
    let offline = wires.iter().all(|(_, wire)| wire.capabilities.patient);
    let mut fill_rings = Vec::new();
    let pacing = Arc::new(Pacing::new(&file.interrupt));
    let gates: Vec<_> = doorbells.iter().map(|_| Arc::new(Gate::new())).collect();
    let shares = Share::all(file.host.system, &gates, doorbells);
    let parts = doorbells.iter().zip(gates).zip(returns).zip(shares);
    for (index, (((doorbell, gate), returns), share)) in parts.enumerate() {
        let index = index as u16;
        let section = &file.host.section;
        let host = attachment.open_queue(index).map_err(|error| section.locate(error))?;
        let (ring, ring_consumer) = spsc::channel(file.host.ring_size);
        let (tx_producer, tx_ring) = spsc::channel(file.host.tx_ring_size);
        let steer = Arc::new(SteerCounters::default());
        let counters = Arc::new(TargetCounters::default());
        let moderation = Moderation::new(file.interrupt.moderation());
        targets.push(TargetRing::new(
            ring,
            gate.clone(),
            doorbell.clone(),
            moderation,
            steer.clone(),
        ));
        tx_rings.push(TxRing::new(tx_ring, steer.clone()));
        queue_views.push(QueueView {
            target: counters.clone(),
            steer,
            ring_size: file.host.ring_size,
        });
        let fill = (fill_depth != 0).then(|| {
            let (sender, receiver) = fill::channel(fill_depth);
            fill_rings.push(sender);
            receiver
        });
        let guests = attachment.guests();
        let guest = guests.iter().find(|guest| guest.queues().contains(&index));
        let guest = guest.map(|guest| guest.name());
        let mut observers = hooks.observers(&HookPoint::Queue { index, guest });
        if offline {
            observers.may_wait();
        }
        queues.push(TargetQueue {
            index,
            ring: ring_consumer,
            gate,
            returns,
            tx: tx_producer,
            fill,
            host,
            guard: guard.as_ref().and_then(|guard| guard.queue(index)),
            observers,
            screen: guard.as_ref().and_then(|guard| guard.screen(index)),
            counters,
            ledger: ledger.clone(),
            card_gate: card_gate.clone(),
            card_doorbell: card_doorbell.clone(),
            share,
            pacing: pacing.clone(),
            offline,
            state: QueueState::new(file.interrupt.gate == GateMode::None),
        });
    }
    // Last of the steps that can fail: an opened wire has buffers, which the pool needs back.
    for (index, (_, wire)) in wires.iter_mut().enumerate() {
        if let Err(error) = wire.port.start(&mut pool) {
            let (mut none, counters) = (VecDeque::new(), WireCounters::default());
            let mut tx = Transmitter::new(&mut pool, &mut none, &counters, &ledger.card);
            wires[..index].iter_mut().for_each(|(_, wire)| drop(wire.port.stop(&mut tx)));
            return Err(BuildError::Config(file.wires[index].port.locate(error)));
        }
    }
    let (names, mut wires): (Vec<_>, Vec<_>) = wires.into_iter().unzip();
    if offline {
        wires.iter_mut().for_each(|wire| wire.observers.may_wait());
    }
    let mut view = View {
        name: file.card.name.clone(),
        wires: names
            .into_iter()
            .zip(&wires)
            .map(|(name, wire)| WireView {
                name,
                capabilities: wire.capabilities,
                counters: wire.counters.clone(),
            })
            .collect(),
        queues: queue_views,
        guests: attachment.guests(),
        functions: Functions::new(&rx, &tx),
        ledger: ledger.clone(),
        warnings,
        poll: None,
        classes: Vec::new(),
        groups: guard.as_ref().and_then(|guard| guard.groups()),
    };
    let functions = view.functions.clone();
    let mut doors = Doors::new(pool, targets, wires.len(), file.card.wire_backlog, ledger);
    doors.default_queue = file.card.default_queue;
    doors.set_unmasked(file.interrupt.gate == GateMode::None);
    let (controller, mailbox) = swap::channel(card_gate.clone(), card_doorbell.clone(), functions);
    if let Some(resident) = &resident {
        resident.attention().connect(card_gate.clone(), card_doorbell);
    }
    let limits =
        Limits { packets: file.card.wire_backlog, bytes: file.host.tx_bytes_in_flight.into() };
    let counters = view.queues.iter().map(|queue| queue.steer.clone()).collect();
    doors.backlog = Backlog::new(wires.len(), counters, limits);
    if let Some(classes) = classes {
        doors.backlog = doors.backlog.classified(classes);
        for (index, wire) in view.wires.iter().enumerate() {
            let counters = doors.backlog.class_counters(index).into_iter();
            view.classes.extend(counters.map(|(name, counters)| ClassView {
                wire: wire.name.clone(),
                name,
                counters,
            }));
        }
    }
    for (index, wire) in wires.iter().enumerate() {
        doors.backlog.set_super_frames(index, wire.capabilities.super_frames);
    }
    let head = |stage| guard.as_ref().and_then(|guard| guard.function(stage));
    let card = Card {
        wires,
        rx: Chain::new(Stage::Rx, rx).offline(offline).behind(head(Stage::Rx)),
        tx: Chain::new(Stage::Tx, tx).offline(offline).behind(head(Stage::Tx)),
        tx_rings: TxRings::new(tx_rings),
        fill_rings,
        is_short: false,
        doors,
        attachment,
        mailbox,
        gate: card_gate,
        pacing,
        burst_limit: file.card.burst,
        offline,
        burst: Burst::new(),
        turn: 0,
        receiving: true,
        held: 0,
        ended: 0,
        made: 0,
        completions: poll::Completions {
            mode: file.interrupt.tx_complete,
            hosts: view.queues.iter().map(|queue| queue.target.clone()).collect(),
        },
        resident: resident.map(poll::Resident::new),
        phase: Phase::Packets,
        unpublished: None,
    };
    Ok(Assembled { card, queues, controller, view })
}
