//! Changes to a running card: chains, tables and moderation swapped under traffic.

use crate::common::functions::{Door, Every, Hold, Multiply};
use crate::common::{end, end_traced, links, micros, quick, rss, simulation, step_through};
use picnic_core::command::Prepared;
use picnic_core::config::TxComplete;
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::ring::moderation::ModerationMode;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_functions::rss::TableChange;
use picnic_hash::IndirectionTable;
use picnic_sim::CostModel;
use proptest::prelude::*;

/// At full speed: any loss is the card's.
const PATIENT: &str = "[[wire]]\nport = \"generator\"\nflows = 32\npackets = 6000\nsize = 100\n\
                       sequence_numbers = true\n[host]\nqueues = 4\ncost_ns = 100\n";

fn chain(kind: usize) -> Vec<Box<dyn Function>> {
    let mut functions: Vec<Box<dyn Function>> = match kind % 6 {
        0 => vec![],
        1 => vec![Box::new(Hold::new(3_000, 100))],
        2 => vec![Box::new(Hold::new(1_000_000, 50)), Box::new(Hold::new(400, 200))],
        3 => vec![Box::new(Every::new(7, Door::Consume))],
        4 => vec![Box::new(Every::new(5, Door::Hairpin(0))), Box::new(Hold::new(10_000, 30))],
        _ => vec![Box::new(Multiply::new(100))],
    };
    functions.push(rss(4));
    functions
}

fn swap(kind: usize) -> Command {
    Command::Swap(Direction::Rx, links(chain(kind)))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Chains that hold packets, consume and hairpin, swapped at any times: each packet has one
    /// fate, none is lost, none overtakes another of its flow.
    #[test]
    fn swaps_lose_nothing_and_keep_order(
        swaps in prop::collection::vec((0..400_000u64, 0..5usize), 1..40),
        seed: u64,
    ) {
        let run = || {
            // Rings with room for everything that chains release at once.
            let text = format!("{PATIENT}ring_size = 2048\n");
            let (mut simulation, witness) = simulation(&text, seed, CostModel::default());
            for &(time, kind) in &swaps {
                simulation.at(Time::from_nanos(time), swap(kind));
            }
            step_through(&mut simulation, None);
            let answers = simulation.answers();
            assert_eq!(answers.len(), swaps.len());
            assert!(answers.iter().all(|(_, answer)| answer.done));
            assert_eq!(simulation.ledger().in_flight, 0);
            (end_traced(simulation), witness)
        };
        let ((outcome, trace), witness) = run();
        let ledger = &outcome.ledger;
        prop_assert_eq!(ledger.dropped, 0);
        prop_assert_eq!(ledger.delivered + ledger.transmitted + ledger.consumed, 6000);
        prop_assert_eq!((witness.late(), witness.doubled()), (0, 0));
        prop_assert_eq!(&trace, &run().0.1);
    }

    /// With a chain that makes a hundred packets of each as well, rings may overflow, but
    /// everything is counted; delivered packets are in order.
    #[test]
    fn swaps_of_multiplying_chains_balance(
        swaps in prop::collection::vec((0..400_000u64, 0..6usize), 1..20),
        seed: u64,
        after_us in 0..500u64,
    ) {
        let (mut simulation, witness) = simulation(PATIENT, seed, CostModel::default());
        for &(time, kind) in &swaps {
            simulation.at(Time::from_nanos(time), swap(kind));
        }
        step_through(&mut simulation, Some(micros(after_us)));
        end(simulation);
        prop_assert_eq!(witness.late(), 0);
    }
}

/// A swap every 100 µs at a million packets per second, between chains that hold packets back: the
/// ledger balances at each step, no packet is lost or duplicated, and flows stay in order.
#[test]
fn a_thousand_swaps_at_a_million_packets_a_second() {
    const SWAPS: u64 = 1000;
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\nflows = 64\n\
                packets = 101000\nsize = 100\nsequence_numbers = true\n\
                [host]\nqueues = 4\ncost_ns = 100\n";
    let run = || {
        let (mut simulation, witness) = simulation(text, 11, CostModel::default());
        simulation.at(Time::ZERO, swap(0));
        for number in 1..=SWAPS {
            // Chains that hold packets for 3 µs, for up to a millisecond, and never.
            simulation.at(micros(number * 100), swap(number as usize % 3));
        }
        step_through(&mut simulation, None);
        let answers = simulation.answers();
        assert_eq!(answers.len() as u64, 1 + SWAPS);
        assert!(answers.iter().all(|(_, answer)| answer.done));
        (end_traced(simulation), witness)
    };
    let ((outcome, trace), witness) = run();
    assert_eq!((outcome.ledger.dropped, outcome.ledger.delivered), (0, 101_000));
    assert_eq!((witness.packets(), witness.late(), witness.doubled()), (101_000, 0, 0));
    assert_eq!(trace, run().0.1);
}

#[test]
fn a_hundred_packets_of_each_arrive_in_order() {
    let text = "[[wire]]\nport = \"generator\"\nflows = 8\npackets = 300\nsize = 100\n\
                rate_pps = 50000\nsequence_numbers = true\n[host]\nqueues = 2\nring_size = 16384\n\
                [pool]\nbuffers = 65536\n";
    let (mut simulation, witness) = simulation(text, 5, CostModel::default());
    let functions: Vec<Box<dyn Function>> = vec![Box::new(Multiply::new(100)), rss(2)];
    simulation.at(Time::ZERO, Command::Swap(Direction::Rx, links(functions)));
    step_through(&mut simulation, None);
    let outcome = end(simulation);
    assert_eq!((outcome.ledger.r#in, outcome.ledger.delivered), (30_000, 30_000));
    assert_eq!((witness.late(), witness.doubled()), (0, 30_000 - 300));
}

#[test]
fn swapped_tables_move_flows_at_once() {
    for seed in 0..8 {
        let (mut simulation, witness) = simulation(PATIENT, seed, CostModel::default());
        let table = IndirectionTable::from_entries(&[2], 4).unwrap();
        let message = Prepared::new(TableChange::table(table));
        simulation.at(micros(60), Command::Function(Direction::Rx, 0, message));
        step_through(&mut simulation, Some(micros(60)));
        let mut answers = simulation.answers();
        while answers.is_empty() {
            assert!(simulation.step());
            answers = simulation.answers();
        }
        let steered = |queue: usize| simulation.view().queues[queue].steer.packets.get();
        // From the turn that took the command, everything goes to queue 2.
        let before = [steered(0), steered(1), steered(3)];
        step_through(&mut simulation, None);
        let steered = |queue: usize| simulation.view().queues[queue].steer.packets.get();
        assert!(before.iter().all(|&packets| packets != 0));
        // The turn's own burst was steered after the command.
        assert_eq!(before, [steered(0), steered(1), steered(3)]);
        assert!(steered(2) > 3000, "{}", steered(2));

        let (_, answer) = answers.remove(0);
        assert!(answer.done);
        let Command::Function(Direction::Rx, 0, message) = answer.replaced else { panic!() };
        let control = message.open::<TableChange>().unwrap();
        // 128 entries of four equal queues became one entry.
        assert!(matches!(control.outcome, Some(Ok(moved)) if moved > 0), "{control:?}");
        let outcome = end(simulation);
        assert_eq!((outcome.ledger.dropped, outcome.ledger.delivered), (0, 6000));
        assert_eq!((witness.late(), witness.doubled()), (0, 0));
    }
}

#[test]
fn tables_for_other_queues_are_refused() {
    let (mut simulation, _) = simulation(PATIENT, 1, CostModel::default());
    let table = IndirectionTable::uniform(128, 8).unwrap();
    let message = Prepared::new(TableChange::table(table));
    simulation.at(micros(20), Command::Function(Direction::Rx, 0, message));
    simulation.run_to_end();
    let mut answers = simulation.answers();
    let Command::Function(_, _, message) = answers.remove(0).1.replaced else { panic!() };
    let control = message.open::<TableChange>().unwrap();
    assert!(matches!(control.outcome, Some(Err(_))), "{control:?}");
    let outcome = end(simulation);
    assert!(outcome.queues.iter().all(|queue| queue.packets > 500));
}

#[test]
fn moderation_changes_apply_while_running() {
    // A packet every 10 µs to one queue, for 20 ms.
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 100000\npackets = 2000\n\
                [host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n[card]\nidle = \"block\"\n";
    let (mut simulation, _) = simulation(text, 1, quick());
    let frames = ModerationMode::Static { usecs: 1_000_000, frames: 20 };
    simulation.at(micros(10_000), Command::Moderate(frames));
    simulation.run_until(micros(10_000));
    let interrupts =
        |simulation: &picnic_sim::Simulation| simulation.view().queues[0].target.interrupts.get();
    let first = interrupts(&simulation);
    assert!((999..=1001).contains(&first), "one for each packet, not {first}");
    simulation.run_until(micros(19_990));
    let second = interrupts(&simulation) - first;
    assert!((49..=51).contains(&second), "one for every 20 packets, not {second}");
    let answer = simulation.answers().remove(0).1;
    assert!(matches!(answer.replaced, Command::Moderate(ModerationMode::None)));
    // Back: waiting packets are not forgotten.
    simulation.at(micros(20_500), Command::Moderate(ModerationMode::None));
    simulation.run_to_end();
    assert_eq!(simulation.ledger().in_flight, 0);
    assert_eq!(end(simulation).ledger.delivered, 2000);
}

#[test]
fn polling_changes_apply_from_the_next_interrupt() {
    // A packet every 10 µs to one queue, for 30 ms, each worth an interrupt.
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 100000\npackets = 3000\n\
                [host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n[card]\nidle = \"block\"\n";
    let (mut simulation, _) = simulation(text, 1, quick());
    // Longer than between two packets: no further interrupt is needed. And back.
    simulation.at(micros(10_000), Command::Poll(15_000));
    simulation.at(micros(20_000), Command::Poll(0));
    let queue = simulation.view().queues[0].target.clone();
    let mut figures = Vec::new();
    for until in [10_000, 20_000, 30_000] {
        simulation.run_until(micros(until));
        figures.push((queue.interrupts.get(), queue.empty_polls.get()));
    }
    let [first, second, third] = figures[..] else { unreachable!() };
    assert!((999..=1001).contains(&first.0), "one for each packet: {figures:?}");
    assert!(second.0 - first.0 <= 2, "it polls: {figures:?}");
    assert!(second.1 - first.1 > 10_000, "and finds nothing, mostly: {figures:?}");
    assert!((998..=1001).contains(&(third.0 - second.0)), "one for each again: {figures:?}");
    assert!(third.1 - second.1 < 2_100, "and it rests: {figures:?}");
    let answers: Vec<_> = simulation.answers().into_iter().map(|(_, answer)| answer).collect();
    assert!(matches!(answers[0].replaced, Command::Poll(0)));
    assert!(matches!(answers[1].replaced, Command::Poll(15_000)));
    simulation.run_to_end();
    assert_eq!(end(simulation).ledger.delivered, 3000);
}

#[test]
fn commands_reach_a_card_that_sleeps() {
    let text = "[[wire]]\nport = \"generator\"\npackets = 1\n[card]\nidle = \"block\"\n";
    let (mut simulation, _) = simulation(text, 1, CostModel::default());
    simulation.run_to_end();
    let asleep_since = simulation.now();
    for time in [1000, 2000] {
        simulation.at(micros(time), Command::Moderate(ModerationMode::None));
    }
    // More than may be in progress at a time.
    for _ in 0..200 {
        simulation.at(micros(3000), Command::Moderate(ModerationMode::None));
    }
    assert!(asleep_since < micros(1000));
    simulation.run_to_end();
    let answers = simulation.answers();
    assert_eq!(answers.len(), 202);
    // Not before the doorbell can have reached it.
    assert!(answers[0].0 >= micros(1011) && answers[0].0 <= micros(1029), "{}", answers[0].0);
    end(simulation);
}

#[test]
fn gate_changes_under_load_lose_nothing() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 300000\nflows = 16\npackets = 8000\n\
                size = 128\nsequence_numbers = true\n[[rx]]\nfunction = \"rss\"\n\
                [host]\nqueues = 2\ncost_ns = 3000\n[interrupt]\nrx_usecs = 0\n";
    let costs = CostModel { doorbell_send_ns: 100, interrupt_ns: 500, ..Default::default() };
    let (mut simulation, witness) = simulation(text, 3, costs);
    for step in 1..40 {
        simulation.at(micros(step * 397), Command::Unmask(step % 2 == 1));
    }
    step_through(&mut simulation, None);
    assert_eq!((witness.late(), witness.doubled()), (0, 0));
    let outcome = end(simulation);
    let dropped = outcome.drops.get("host_refused").copied().unwrap_or(0);
    assert_eq!(outcome.ledger.delivered + dropped, 8000, "{:?}", outcome.drops);
    assert!(outcome.queues.iter().any(|queue| queue.doorbells_coalesced != 0));
}

#[test]
fn hosts_waiting_for_room_get_it_in_every_mode() {
    // A wire slower than the hosts, which send forty packets for each received one.
    let text = "[card]\nidle = \"block\"\nwire_backlog = 64\n[[wire]]\nport = \"generator\"\n\
                packets = 100\nrate_pps = 100000\nflows = 16\n[wire.link]\nrate_mbps = 1000\n\
                [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"sender\"\nsends = 40\nqueues = 2\n\
                ring_size = 512\ntx_ring_size = 64\n[interrupt]\nrx_usecs = 0\n\
                tx_complete = \"interrupt\"\n";
    // Notifications end, in one way or another, while hosts wait, or do not yet.
    let modes = [TxComplete::Off, TxComplete::Moderated, TxComplete::Interrupt];
    for (seed, last) in (0..40).flat_map(|seed| modes.map(|mode| (seed, mode))) {
        let (mut simulation, _) = simulation(text, seed, CostModel::default());
        for (mode, at_us) in modes.into_iter().chain([last]).zip(1..) {
            simulation.at(micros(40 + seed * 17 + at_us * 131), Command::Complete(mode));
        }
        step_through(&mut simulation, None);
        let ledger = simulation.ledger();
        assert_eq!((ledger.delivered, ledger.transmitted), (100, 100 * 40), "{last:?} {ledger:?}");
        end(simulation);
    }
}
