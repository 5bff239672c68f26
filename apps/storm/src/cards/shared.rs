//! Several cards that share one borrowed core: a thread polls them in turn, another one their
//! programs.
//!
//! With fewer than two cores per card, separate threads would mostly measure how the
//! system switches between them. Here a core takes the cards one after another, as it takes the
//! wires of one card. The borrowed core spins while messages are under way; the programs' thread
//! sleeps until a card wakes it.

use super::{Ended, ON_CORES, failed, run_programs, wakeups};
use crate::bench::BenchError;
use crate::card::load::Side;
use crate::card::program::Program;
use picnic_control::Launch;
use picnic_control::launch::Built;
use picnic_core::config::CardFile;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::poll::Card;
use picnic_engine::view::View;
use picnic_host::doorbell::FutexDoorbell;
use picnic_machine::threads::spawn_pinned;
use picnic_os::channel::Channels;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Turns without work after which the borrowed core lets other threads run.
const IDLE_TURNS: u32 = 2_000;

fn now(clock: Instant) -> Time {
    Time::from_nanos(clock.elapsed().as_nanos() as u64)
}

/// Runs these cards and their programs until `is_over`, on the cores `borrowed` and `target`. Their
/// time is that of `clock`. The first card has the time of the borrowed core for all of them.
pub(super) fn run(
    files: &[CardFile],
    sides: &[Arc<Side>],
    (borrowed, target): (usize, usize),
    clock: Instant,
    mut is_over: impl FnMut() -> bool,
) -> Result<Vec<Ended>, BenchError> {
    let bell = Arc::new(FutexDoorbell::default());
    let (mut cards, mut queues_of_all) = (Vec::new(), Vec::new());
    let (mut views, mut all_channels, mut programs) = (Vec::new(), Vec::new(), Vec::new());
    for (file, side) in files.iter().zip(sides) {
        let built = Launch::new(file, *ON_CORES).build().map_err(|error| failed(&error))?;
        let Built { parts, os, .. } = built;
        let channels = os.map(|os| os.factory.channels().clone()).unwrap_or_default();
        let doorbells: [Arc<dyn Doorbell>; 1] = [Arc::new(NoDoorbell)];
        let assembled = assemble(file, parts, &doorbells, Arc::new(NoDoorbell));
        let Assembled { card, queues, view, .. } = assembled.map_err(|error| failed(&error))?;
        cards.push(card);
        // Nothing is steered to them: the members' hosts have channels.
        queues_of_all.push(queues);
        views.push(view);
        programs.push(Program::new(side.clone(), channels.clone(), bell.clone()));
        all_channels.push(channels);
    }
    let (stopping, ending) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_asked, is_end) = (stopping.clone(), ending.clone());
    let of_hosts = bell.clone();
    let hosts = move || run_programs(programs, &of_hosts, clock, &is_end);
    let no_thread = |error| failed(&error);
    let hosts = spawn_pinned("storm-hosts".into(), target, hosts).map_err(no_thread)?;
    let body = move || run_cards(cards, clock, &is_asked);
    let core = spawn_pinned("storm-cards".into(), borrowed, body).map_err(no_thread)?;
    while !is_over() && !core.is_finished() && !hosts.is_finished() {
        std::thread::sleep(Duration::from_millis(2));
    }
    ending.store(true, Ordering::Release);
    bell.ring();
    hosts.join().map_err(|_| failed(&"the hosts' thread panicked"))?;
    stopping.store(true, Ordering::Release);
    let ((mut cards, busy_ns), _) =
        core.join().map_err(|_| failed(&"the borrowed core panicked"))?;
    let mut ended = Vec::new();
    for ((card, view), channels) in cards.iter_mut().zip(&views).zip(&all_channels) {
        let busy_ns = if ended.is_empty() { busy_ns } else { 0 };
        ended.push(end(card, view, channels, busy_ns, now(clock)));
    }
    Ok(ended)
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

fn end(card: &mut Card, view: &View, channels: &Channels, busy_ns: u64, now: Time) -> Ended {
    let missing = card.finish(now);
    Ended {
        ledger: view.ledger.read(),
        missing,
        wakeups: wakeups(&channels.list()),
        busy_ns,
        tx_packets: view.wires.iter().map(|wire| wire.counters.tx_packets.get()).sum(),
        tx_bytes: view.wires.iter().map(|wire| wire.counters.tx_bytes.get()).sum(),
    }
}
