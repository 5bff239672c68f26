//! Several cards that share one borrowed core: a thread polls the cards in turn, another thread
//! their hosts.
//!
//! With fewer than two cores per card, separate threads would mostly measure how the
//! system switches between them. Here a core takes the cards one after another, as it takes the
//! wires of one card. The borrowed core spins while messages are under way; the hosts' thread sleeps
//! until a card interrupts it.

use super::{Ended, ON_CORES, failed};
use crate::bench::BenchError;
use picnic_control::Launch;
use picnic_control::launch::Built;
use picnic_core::config::CardFile;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::poll::Card;
use picnic_engine::target::Target;
use picnic_engine::view::View;
use picnic_host::doorbell::FutexDoorbell;
use picnic_machine::threads::spawn_pinned;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest sleep of the hosts' thread, in case a doorbell is missed.
const SLEEP: Duration = Duration::from_millis(1);
/// Turns without work after which the borrowed core lets other threads run.
const IDLE_TURNS: u32 = 2_000;

/// The results of several cards on one core.
pub(super) struct Shared {
    pub(super) ended: Vec<Ended>,
    /// Time of the borrowed core in turns with work, in nanoseconds.
    pub(super) busy_ns: u64,
}

fn now(clock: Instant) -> Time {
    Time::from_nanos(clock.elapsed().as_nanos() as u64)
}

/// Runs these cards until `is_over`, on the cores `borrowed` and `target`. Their clock is
/// `clock`.
pub(super) fn run(
    files: &[CardFile],
    (borrowed, target): (usize, usize),
    clock: Instant,
    mut is_over: impl FnMut() -> bool,
) -> Result<Shared, BenchError> {
    let bell = Arc::new(FutexDoorbell::default());
    let (mut cards, mut targets, mut views) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let built = Launch::new(file, *ON_CORES).build().map_err(|error| failed(&error))?;
        let Built { parts, .. } = built;
        let doorbells: [Arc<dyn Doorbell>; 1] = [bell.clone()];
        let assembled = assemble(file, parts, &doorbells, Arc::new(NoDoorbell));
        let Assembled { card, queues, view, .. } = assembled.map_err(|error| failed(&error))?;
        cards.push(card);
        targets.push(Target::new(target, queues));
        views.push(view);
    }
    let (stopping, draining) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let is_asked = stopping.clone();
    let hosts = {
        let (bell, draining) = (bell.clone(), draining.clone());
        move || run_hosts(targets, &bell, clock, &draining)
    };
    let no_thread = |error| failed(&error);
    let hosts = spawn_pinned("storm-hosts".into(), target, hosts).map_err(no_thread)?;
    let body = move || run_cards(cards, clock, &is_asked);
    let core = spawn_pinned("storm-cards".into(), borrowed, body).map_err(no_thread)?;
    while !is_over() && !core.is_finished() && !hosts.is_finished() {
        std::thread::sleep(Duration::from_millis(2));
    }
    stopping.store(true, Ordering::Release);
    let ((mut cards, busy_ns), _) =
        core.join().map_err(|_| failed(&"the borrowed core panicked"))?;
    draining.store(true, Ordering::Release);
    bell.ring();
    hosts.join().map_err(|_| failed(&"the hosts' thread panicked"))?;
    let ended = cards.iter_mut().zip(&views).map(|(card, view)| end(card, view, now(clock)));
    Ok(Shared { ended: ended.collect(), busy_ns })
}

/// Runs the borrowed core. Returns the cards, which receive no more, and the busy time.
fn run_cards(mut cards: Vec<Card>, clock: Instant, stopping: &AtomicBool) -> (Vec<Card>, u64) {
    let (mut busy_ns, mut idle_turns) = (0, 0);
    let mut time = now(clock);
    while !stopping.load(Ordering::Acquire) {
        let mut is_idle = true;
        for card in &mut cards {
            let is_card_idle = card.poll(time).is_idle();
            let after = now(clock);
            if !is_card_idle {
                busy_ns += after.since(time);
                is_idle = false;
            }
            time = after;
        }
        idle_turns = if is_idle { idle_turns + 1 } else { 0 };
        if idle_turns > IDLE_TURNS {
            std::thread::yield_now();
            time = now(clock);
        }
    }
    cards.iter_mut().for_each(|card| card.stop_receiving(now(clock)));
    (cards, busy_ns)
}

fn run_hosts(mut targets: Vec<Target>, bell: &FutexDoorbell, clock: Instant, end: &AtomicBool) {
    loop {
        let is_end = end.load(Ordering::Acquire);
        let time = now(clock);
        let mut any = false;
        for target in &mut targets {
            if is_end {
                target.stop_transmitting();
            }
            let polled = target.poll(time);
            any |= polled.packets + polled.transmitted + polled.moved != 0;
        }
        if any {
            continue;
        }
        if is_end && targets.iter_mut().all(Target::is_empty) {
            return;
        }
        if targets.iter().all(Target::is_resting) {
            let due = targets.iter().filter_map(Target::next_deadline).min();
            let left = due.map_or(SLEEP, |due| Duration::from_nanos(due.since(time)));
            if !left.is_zero() {
                bell.wait(left.min(SLEEP));
            }
        }
    }
}

fn end(card: &mut Card, view: &View, now: Time) -> Ended {
    let missing = card.finish(now);
    Ended {
        ledger: view.ledger.read(),
        missing,
        interrupts: view.queues.iter().map(|queue| queue.target.interrupts.get()).sum(),
        tx_packets: view.wires.iter().map(|wire| wire.counters.tx_packets.get()).sum(),
        tx_bytes: view.wires.iter().map(|wire| wire.counters.tx_bytes.get()).sum(),
    }
}
