//! Virtual time: moderation to the packet, doorbells to the nanosecond, overload.

use crate::common::{end, end_traced, micros, quick, simulation, step_through};
use picnic_control::report::Times;
use picnic_control::{Launch, Report};
use picnic_core::config::CardFile;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_sim::{CostModel, Simulation, registries};
use std::path::Path;

/// Interrupts for packets at a rate to one queue under these `[interrupt]` keys, at nearly zero
/// costs.
fn interrupts(rate_pps: u64, packets: u64, interrupt: &str) -> Report {
    interrupts_and_latency(rate_pps, packets, interrupt).0
}

/// The same, with the shortest and the longest latency.
fn interrupts_and_latency(rate_pps: u64, packets: u64, interrupt: &str) -> (Report, (u64, u64)) {
    let text = format!(
        "[card]\nidle = \"block\"\n[[wire]]\nport = \"generator\"\nrate_pps = {rate_pps}\n\
         packets = {packets}\n[host]\nqueues = 1\n[interrupt]\n{interrupt}\n"
    );
    let (mut simulation, _) = simulation(&text, 1, quick());
    step_through(&mut simulation, None);
    let latency = simulation.latency(0).unwrap();
    let bounds = (latency.min(), latency.max());
    let outcome = end(simulation);
    assert_eq!(outcome.ledger.delivered, packets);
    (outcome, bounds)
}

#[test]
fn no_moderation_is_an_interrupt_for_every_packet() {
    let outcome = interrupts(100_000, 1000, "rx_usecs = 0");
    assert_eq!(outcome.queues[0].interrupts, 1000);
}

/// Doorbells sent, those that found one pending, and interrupts taken, until all packets are
/// delivered and before the card is stopped, which wakes every target once more.
fn doorbells(rate_pps: u64, packets: u64, interrupt: &str) -> (u64, u64, u64) {
    let text = format!(
        "[card]\nidle = \"block\"\n[[wire]]\nport = \"generator\"\nrate_pps = {rate_pps}\n\
         packets = {packets}\n[host]\nqueues = 1\n[interrupt]\n{interrupt}\n"
    );
    let (mut simulation, _) = simulation(&text, 1, quick());
    step_through(&mut simulation, None);
    assert_eq!(delivered(&simulation), packets);
    let queue = &simulation.view().queues[0];
    let (sent, taken) = (queue.steer.doorbells.get(), queue.target.interrupts.get());
    let coalesced = queue.steer.coalesced.get();
    end(simulation);
    (sent, coalesced, taken)
}

#[test]
fn per_packet_sends_one_interrupt_per_packet() {
    let keys = "per_packet = true\ngate = \"none\"";
    for rate in [100_000, 1_000_000] {
        let (sent, coalesced, taken) = doorbells(rate, 5000, keys);
        assert_eq!((sent, coalesced + taken), (5000, 5000), "{rate} packets/s");
    }
    assert_eq!(doorbells(100_000, 1000, keys), (1000, 0, 1000));
    // A queue that is masked while it works, and waits when each packet arrives.
    assert_eq!(doorbells(100_000, 1000, "per_packet = true"), (1000, 0, 1000));
}

#[test]
fn moderated_wires_interrupt_at_their_interval() {
    // A packet every 10 µs, an interrupt every 100 µs: ten packets wait 0 to 90 µs.
    let (outcome, bounds) = interrupts_and_latency(100_000, 1000, "rx_usecs = 0\nwire_usecs = 100");
    assert!((99..=102).contains(&outcome.wires[0].interrupts), "{:?}", outcome.wires);
    assert!((80_000..110_000).contains(&bounds.1), "{bounds:?}");
    assert!(outcome.latency_ns.at_wire.is_some_and(|ns| (35_000..60_000).contains(&ns)));
}

#[test]
fn moderated_wires_interrupt_at_their_frame_limit() {
    // Ten packets arrive in 100 µs, so that four of them are there first.
    let keys = "rx_usecs = 0\nwire_usecs = 100\nwire_frames = 4";
    let (outcome, _) = interrupts_and_latency(100_000, 1000, keys);
    assert!((249..=252).contains(&outcome.wires[0].interrupts), "{:?}", outcome.wires);
}

#[test]
fn wire_moderation_changes_while_running() {
    let text = "[card]\nidle = \"block\"\n[[wire]]\nport = \"generator\"\nrate_pps = 100_000\n\
                packets = 4000\n[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n\
                wire_usecs = 1000000\n";
    let run = || {
        let (mut simulation, _) = simulation(text, 1, quick());
        // A packet every 10 µs. The first is alone; the rest would have to wait for a second.
        for (at_us, usecs, frames) in
            [(10_000, 100, 0), (20_000, 100, 4), (30_000, 0, 0), (35_000, 100, 0)]
        {
            simulation.at(micros(at_us), Command::Throttle(usecs, frames));
        }
        let mut counts = Vec::new();
        for until_us in [9_995, 19_995, 29_995, 34_995, 39_985] {
            step_through(&mut simulation, Some(micros(until_us)));
            let counters = &simulation.view().wires[0].counters;
            counts.push((counters.interrupts.get(), counters.rx_packets.get()));
        }
        assert!(simulation.answers().iter().all(|(_, answer)| answer.done));
        step_through(&mut simulation, None);
        let (outcome, trace) = end_traced(simulation);
        assert_eq!((outcome.ledger.delivered, outcome.ledger.dropped), (4000, 0));
        (counts, trace)
    };
    let (counts, trace) = run();
    // Interrupts, and packets, of each part.
    let mut parts = vec![counts[0]];
    parts.extend(counts.windows(2).map(|two| (two[1].0 - two[0].0, two[1].1 - two[0].1)));
    assert_eq!(parts[0], (1, 1));
    assert!((99..=102).contains(&parts[1].0) && parts[1].1 > 1980, "{parts:?}");
    assert!((249..=252).contains(&parts[2].0), "{parts:?}");
    // Unmoderated, it causes no counted interrupts.
    assert!(parts[3].0 <= 1 && (499..=505).contains(&parts[3].1), "{parts:?}");
    assert!((48..=51).contains(&parts[4].0), "{parts:?}");
    assert_eq!((counts, trace), run());
}

#[test]
fn frame_limits_need_a_count_and_a_time() {
    let text = "[host]\nqueues = 1\n[interrupt]\nwire_frames = 50\n";
    let error = CardFile::parse(text, None).unwrap_err().to_string();
    let wanted = "4: interrupt.wire_frames: found 50 without wire_usecs, allowed: 0, or a time";
    assert!(error.contains(wanted), "{error}");
}

/// The error in a card file.
fn refused(text: &str) -> String {
    let file = CardFile::parse(text, Some(Path::new("card.toml"))).unwrap();
    Launch::new(&file, registries()).build().map(drop).unwrap_err().to_string()
}

#[test]
fn patient_wires_cause_no_interrupts() {
    let wanted = "card.toml:4: interrupt.wire_usecs: found 50 with a wire that waits until it is polled \
                  (a generator without rate_pps, a capture flat out), allowed: 0";
    assert_eq!(refused("[host]\nqueues = 1\n[interrupt]\nwire_usecs = 50\n"), wanted);
}

#[test]
fn wires_with_links_cannot_count_waiting_frames() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n[wire.link]\nrate_mbps = 100\n\
                [interrupt]\nwire_usecs = 50\nwire_frames = 8\n";
    let wanted = "card.toml:8: interrupt.wire_frames: found 8 with a wire that cannot tell how many \
                  frames wait (tap, any with a link), allowed: 0, or wires that can (generator, \
                  packet, pcap, xdp)";
    assert_eq!(refused(text), wanted);
}

#[test]
fn wires_without_arrival_times_are_refused_on_demand() {
    let paced = "[[wire]]\nport = \"generator\"\nrate_pps = 1000\n";
    let text = format!(
        "[card]\nstamp = \"arrival\"\n{paced}[[wire]]\nport = \"generator\"\nname = \"fast\"\n"
    );
    let wanted = "card.toml:2: card.stamp: found \"arrival\" with fast (generator), which knows only the time of reception, allowed: \"any\", or wires that know when they \
                  arrived (packet, xdp with stamps = true, pcap as it was recorded, generator with \
                  a rate, any with [wire.link])";
    assert_eq!(refused(&text), wanted);
    // A link knows when packets leave it; and a demand is optional.
    for good in [
        format!("{text}[wire.link]\nrate_mbps = 100\n"),
        text.replace("\"arrival\"", "\"any\""),
        text.replace("stamp = \"arrival\"\n", ""),
    ] {
        let file = CardFile::parse(&good, None).unwrap();
        assert!(Launch::new(&file, registries()).build().is_ok(), "{good}");
    }
}

#[test]
fn rx_usecs_gather_packets() {
    // A packet every 10 µs waits 95 µs for nine more; then 1 µs for the doorbell.
    let (outcome, bounds) = interrupts_and_latency(100_000, 1000, "rx_usecs = 95\nrx_frames = 0");
    assert_eq!(outcome.queues[0].interrupts, 100);
    assert!(bounds.0 >= 1_000 && bounds.1 <= 98_000, "{bounds:?}");
}

#[test]
fn rx_frames_end_the_wait_early() {
    let outcome = interrupts(100_000, 1000, "rx_usecs = 900\nrx_frames = 5");
    assert_eq!(outcome.queues[0].interrupts, 200);
}

#[test]
fn the_last_packets_are_not_forgotten() {
    // 7 wait for a frame that never comes; the time limit frees them.
    let outcome = interrupts(100_000, 1007, "rx_usecs = 900\nrx_frames = 50");
    assert_eq!(outcome.queues[0].interrupts, 21);
}

/// A card of 64 buffers whose wire takes 56 of them at once and which then sleeps, without one for
/// the second queue's host; that host answers each packet once it has `landing` buffers. Seeds
/// decide who is first.
#[track_caller]
fn answers_with_few_buffers(landing: usize, tx_complete: &str) {
    let text = format!(
        "[card]\nidle = \"block\"\nburst = 64\n[pool]\nbuffers = 64\n\
         [[wire]]\nport = \"generator\"\npackets = 56\nrate_pps = 0\n\
         [host]\nqueues = 2\nattachment = \"sender\"\nsends = 1\nlanding = {landing}\n\
         [interrupt]\nrx_usecs = 0\ntx_complete = \"{tx_complete}\"\n\
         [[rx]]\nfunction = \"sample\"\nevery = 1\nqueue = 1\n"
    );
    for seed in 0..8 {
        let (mut simulation, _) = simulation(&text, seed, CostModel::default());
        step_through(&mut simulation, None);
        let outcome = end(simulation);
        let queues: Vec<_> = outcome.queues.iter().map(|queue| queue.transmitted).collect();
        assert_eq!((outcome.ledger.delivered, queues), (56, vec![0, 56]), "seed {seed}");
    }
}

#[test]
fn returned_buffers_reach_a_host_of_a_sleeping_card() {
    answers_with_few_buffers(1, "off");
    answers_with_few_buffers(1, "interrupt");
}

/// A fill ring has 8 buffers here, and the host wants 12 before it sends.
#[test]
fn hosts_get_more_buffers_than_the_fill_ring_has() {
    answers_with_few_buffers(12, "off");
    answers_with_few_buffers(12, "interrupt");
}

#[test]
fn adaptive_moderation_follows_the_rate() {
    let slow = interrupts(10_000, 500, "adaptive = true\nrx_usecs = 100");
    assert_eq!(slow.queues[0].interrupts, 500, "a slow stream is not held back");
    let fast = interrupts(1_000_000, 20_000, "adaptive = true\nrx_usecs = 100");
    let per_interrupt = 20_000 / fast.queues[0].interrupts;
    // The first millisecond has no measured rate yet.
    assert!((10..=65).contains(&per_interrupt), "{per_interrupt} packets per interrupt");
}

#[test]
fn polling_on_saves_interrupts() {
    let outcome = interrupts(100_000, 1000, "rx_usecs = 0\npoll_usecs = 15");
    // The queue polls from the start and never sees 15 µs without a packet.
    assert!(outcome.queues[0].interrupts <= 1, "{}", outcome.queues[0].interrupts);
    assert!(outcome.queues[0].empty_polls > 1000);
}

#[test]
fn doorbells_take_their_modelled_time() {
    let text = "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = 5000\n\
                packets = 4000\n[host]\nqueues = 1\n[interrupt]\nrx_usecs = 0\n";
    let costs = CostModel { card_turn_ns: 1, card_packet_ns: 0, ..Default::default() };
    let (mut simulation, _) = simulation(text, 9, costs);
    simulation.run_to_end();
    let latency = simulation.latency(0).unwrap().clone();
    let borrowed = simulation.busy_ns(1);
    let outcome = end(simulation);
    // Two significant digits, and at most the turn itself in addition.
    let (low, high) = (latency.min(), latency.max());
    assert!((10_900..12_500).contains(&low), "{low}");
    assert!((26_500..28_400).contains(&high), "{high}");
    let median = latency.value_at_quantile(0.5);
    assert!((17_500..21_500).contains(&median), "not uniform: {median}");
    // The sender pays for each: 6 µs.
    assert!(borrowed >= 4000 * 6_000, "{borrowed}");
    // The report agrees: times are modelled, and only turns with work count as busy.
    assert_eq!((outcome.times, outcome.borrowed_core.core), (Times::Modelled, 1));
    let busy_ns = outcome.borrowed_core.busy_fraction * outcome.duration_s * 1e9;
    assert!((4000.0 * 6_000.0..borrowed as f64).contains(&busy_ns), "{busy_ns} of {borrowed}");
    assert_eq!(outcome.latency_ns.p50, Some(median));
    let target = &outcome.target_cores[0];
    assert_eq!(target.wakeups, 4000);
    assert!(target.asleep_fraction > 0.9 && target.asleep_fraction < 1.0, "{target:?}");
    // It spins, and so never sleeps.
    assert_eq!(outcome.borrowed_core.wakeups, 0);
}

#[test]
fn queues_on_one_core_share_its_time() {
    let busy = |cores: &str| {
        let text = format!(
            "[[wire]]\nport = \"generator\"\npackets = 4000\nflows = 256\n\
             [host]\nqueues = 4\ncost_ns = 1000\ntarget_cores = {cores}\n"
        );
        let (mut simulation, _) = simulation(&text, 1, CostModel::default());
        simulation.run_to_end();
        end(simulation)
    };
    let (apart, together) = (busy("[0, 1, 2, 3]"), busy("[5, 5, 5, 5]"));
    assert_eq!((apart.ledger.delivered, together.ledger.delivered), (4000, 4000));
    // 4 ms of work: over a millisecond on four cores, all of it on one.
    assert!((1e-3..2.5e-3).contains(&apart.duration_s), "{}", apart.duration_s);
    assert!((4e-3..5e-3).contains(&together.duration_s), "{}", together.duration_s);
    assert_eq!((together.target_cores.len(), together.borrowed_core.core), (1, 6));
}

#[test]
fn targets_on_the_borrowed_core_slow_the_card() {
    let text = "[card]\nborrowed_core = 0\n[[wire]]\nport = \"generator\"\npackets = 2000\n\
                [host]\nqueues = 2\ntarget_cores = [0, 1]\ncost_ns = 500\nmode = \"echo\"\n";
    let (mut simulation, _) = simulation(text, 4, CostModel::default());
    step_through(&mut simulation, None);
    assert_eq!(simulation.ledger().in_flight, 0);
    // No core works longer than the elapsed time.
    let most = simulation.now().as_nanos() + 1_000_000;
    assert!([0, 1].iter().all(|&core| (1..=most).contains(&simulation.busy_ns(core))));
    let outcome = end(simulation);
    assert_eq!((outcome.target_cores.len(), outcome.borrowed_core.core), (2, 0));
    assert_eq!(outcome.ledger.delivered, 2000);
}

// ---------------------------------------------------------------- overload

fn delivered(simulation: &Simulation) -> u64 {
    simulation.view().queues.iter().map(|queue| queue.target.packets.get()).sum()
}

/// Packets delivered in the second half of 20 ms, by offered load.
fn by_load(text: &str, capacity_pps: u64, costs: &CostModel) -> Vec<u64> {
    let rates = [1, 2, 5, 10].map(|factor| factor * capacity_pps);
    let runs = rates.iter().map(|rate| {
        let text = format!(
            "{text}[[wire]]\nport = \"generator\"\nflows = 256\nburst = 16\nrate_pps = {rate}\n"
        );
        let (mut simulation, _) = simulation(&text, 3, costs.clone());
        simulation.run_until(micros(10_000));
        let before = delivered(&simulation);
        simulation.run_until(micros(20_000));
        let delivered = delivered(&simulation) - before;
        let ledger = simulation.ledger();
        assert!(ledger.balanced(), "{ledger:?}");
        end(simulation);
        delivered
    });
    runs.collect()
}

#[track_caller]
fn no_livelock(delivered: &[u64]) {
    let peak = delivered.iter().max().copied().unwrap_or(0);
    assert!(peak > 1000);
    let least = delivered.iter().min().copied().unwrap_or(0);
    assert!(least * 100 >= peak * 95, "delivered by load: {delivered:?}");
}

#[test]
fn overloaded_targets_deliver_at_capacity() {
    // 1 µs of work each on four cores.
    let text = "[host]\nqueues = 4\ncost_ns = 1000\n";
    no_livelock(&by_load(text, 4_000_000, &CostModel::default()));
}

/// One queue: 2 µs for an interrupt, 1 µs per packet for the driver, 2 µs for the application.
fn by_gate(gate: &str) -> Vec<u64> {
    let costs = CostModel {
        interrupt_ns: 2_000,
        target_packet_ns: 1_000,
        doorbell_send_ns: 100,
        ..Default::default()
    };
    let text = format!(
        "[host]\nqueues = 1\ncost_ns = 2000\n[interrupt]\nrx_usecs = 0\ngate = \"{gate}\"\n"
    );
    by_load(&text, 350_000, &costs)
}

#[test]
fn unmasked_interrupts_livelock() {
    let delivered = by_gate("none");
    let (peak, last) = (delivered.iter().max().unwrap(), delivered.last().unwrap());
    assert!(*peak > 1000 && last * 20 < *peak, "delivered by load: {delivered:?}");
}

#[test]
fn masked_queues_do_not_livelock() {
    no_livelock(&by_gate("queue"));
}

#[test]
fn overloaded_cores_with_many_queues_deliver_at_capacity() {
    let text = "[host]\nqueues = 4\ncost_ns = 2000\ntarget_cores = [0, 0, 0, 0]\n\
                [interrupt]\nrx_usecs = 0\n";
    no_livelock(&by_load(text, 500_000, &CostModel::default()));
}

#[test]
fn overloaded_cards_shed_at_the_wire() {
    // The borrowed core is the bottleneck: 500 ns per packet, some 2 million per second.
    let costs = CostModel { card_packet_ns: 500, ..Default::default() };
    no_livelock(&by_load("[host]\nqueues = 4\n", 2_000_000, &costs));
}

#[test]
fn overloaded_echoes_deliver_and_send_at_capacity() {
    let text = "[host]\nqueues = 4\ncost_ns = 1000\nmode = \"echo\"\n";
    no_livelock(&by_load(text, 4_000_000, &CostModel::default()));
}

#[test]
fn few_buffers_starve_no_queue() {
    let text = "[pool]\nbuffers = 128\n[host]\nqueues = 4\ncost_ns = 1000\nring_size = 64\n\
                [[wire]]\nport = \"generator\"\nflows = 256\nrate_pps = 20000000\n";
    let (mut simulation, _) = simulation(text, 2, CostModel::default());
    simulation.run_until(micros(5_000));
    let counts: Vec<_> =
        simulation.view().queues.iter().map(|queue| queue.target.packets.get()).collect();
    assert!(counts.iter().all(|&count| count > 1000), "{counts:?}");
    let outcome = end(simulation);
    assert!(outcome.ledger.drops_by_stage.contains_key("pool_exhausted@wire"));
}

#[test]
fn time_stands_still_between_runs() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 1000000\n[host]\nqueues = 2\n";
    let run = |steps: &[u64]| {
        let (mut simulation, _) = simulation(text, 1, CostModel::default());
        for &step in steps {
            simulation.run_until(micros(step));
            assert_eq!(simulation.now(), micros(step));
        }
        (simulation.trace().clone(), end(simulation).ledger)
    };
    // Splitting a run into pieces makes no difference.
    assert_eq!(run(&[900]), run(&[1, 2, 3, 77, 500, 899, 900]));
    let (mut simulation, _) = simulation(text, 1, CostModel::default());
    simulation.run_until(micros(10));
    simulation.run_until(Time::ZERO);
    assert_eq!(simulation.now(), micros(10), "time does not go back");
    end(simulation);
}

#[test]
fn spinning_cards_send_continuously() {
    // A frame is a whole quantum and a burst is one frame, so every other turn is idle.
    for idle in ["spin", "adaptive", "block"] {
        let text = format!(
            "[card]\nidle = \"{idle}\"\nburst = 1\n[[wire]]\nport = \"generator\"\npackets = 9\n\
             size = 1514\n[host]\nqueues = 1\nmode = \"echo\"\n"
        );
        let (mut simulation, _) = simulation(&text, 0, CostModel::default());
        step_through(&mut simulation, None);
        assert_eq!(simulation.ledger().in_flight, 0, "{idle}");
        assert_eq!(end(simulation).ledger.transmitted, 9);
    }
}
