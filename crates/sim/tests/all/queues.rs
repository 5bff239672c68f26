//! Queues of a modelled machine against arithmetic: Little's law, M/D/1, M/G/1, livelock.

use crate::common::waits::{Times, Waits};
use crate::common::{end_traced, micros};
use crate::machine::{PER_PACKET, free, machine_with, profile};
use picnic_sim::Simulation;
use picnic_sim::machine::{Component, Cost, Profile};

fn machine(text: &str, seed: u64, profile: &Profile) -> Simulation {
    machine_with(text, seed, profile, None::<Waits>)
}

#[test]
fn every_queue_obeys_littles_law() {
    let udp = |rate_pps: u32, interrupt: &str| {
        format!(
            "[card]\nidle = \"spin\"\nborrowed_core = 3\n[[wire]]\nport = \"generator\"\nflows = 64\n\
             arrivals = \"random\"\nbacklog = 4096\nrate_pps = {rate_pps}\n[[rx]]\n\
             function = \"rss\"\n[host]\nqueues = 2\n[interrupt]\n\
             {interrupt}\n"
        )
    };
    let web = |system: &str, queues: u16| {
        let cores: Vec<_> = (0..queues).collect();
        format!(
            "[card]\nborrowed_core = 4\nidle = \"spin\"\n[pool]\nbuffers = 16384\n[[wire]]\n\
             port = \"peers\"\nconnections = 30\n[[rx]]\nfunction = \"rss\"\n[host]\nsystem = \"{system}\"\nattachment = \"model\"\n\
             queues = {queues}\ntarget_cores = {cores:?}\ncores = 4\n[interrupt]\nrx_usecs = 0\n"
        )
    };
    for (name, machine_name, text, run_us, by_ring) in [
        ("an interrupt a packet", "netburst", udp(250_000, PER_PACKET), 60_000, true),
        ("moderated", "netburst", udp(250_000, "rx_usecs = 60"), 60_000, true),
        ("behind a NIC's interrupts", "netburst", udp(200_000, "wire_usecs = 125"), 60_000, true),
        ("web, interrupts", "x5355", web("knet", 3), 60_000, true),
        ("web, threads", "piii", web("knet", 4), 200_000, true),
        ("web, handed over", "piii", web("clas", 4), 200_000, false),
    ] {
        println!("{name}");
        let waits = Waits::default();
        let machine = machine_with(&text, 3, &profile(machine_name), Some(waits.clone()));
        let mut simulation = machine;
        simulation.run_until(micros(10_000));
        waits.assert_littles_law(&mut simulation, run_us, by_ring);
        end_traced(simulation);
    }
}

#[test]
fn a_target_core_is_a_queue_of_constant_service() {
    let service_ns = 5_000.0;
    let mut profile = free();
    profile.costs.set(Cost::DriverReceive, service_ns);
    for per_ms in [60, 120, 160] {
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\narrivals = \"random\"\n\
             backlog = 4096\nrate_pps = {}\n[host]\nqueues = 1\nring_size = 4096\n[interrupt]\n\
             rx_usecs = 0\n",
            per_ms * 1000
        );
        let times = Times::default();
        let mut simulation = machine_with(&text, 5, &profile, Some(times.clone()));
        simulation.run_until(micros(300_000));
        end_traced(simulation);
        // The routine takes a few at a time, and is done with one after the other.
        let (mut sum, mut count, mut batch) = (0.0, 0.0, (0, 0.0));
        for (arrived, given) in times.take() {
            batch = if batch.0 == given { (given, batch.1 + 1.0) } else { (given, 1.0) };
            sum += (given - arrived) as f64 + batch.1 * service_ns;
            count += 1.0;
        }
        let rho = per_ms as f64 * service_ns / 1e6;
        let wanted = service_ns + rho * service_ns / (2.0 * (1.0 - rho));
        let found = sum / count;
        assert!((found / wanted - 1.0).abs() < 0.06, "{per_ms}/ms: {found} of {wanted}");
    }
}

/// Answers of the peers of a wire, and the mean time of one in microseconds.
fn answers(notes: &[String], wire: usize) -> (f64, f64) {
    let start = format!("peers of wire {wire}: ");
    let note = notes.iter().find_map(|note| note.strip_prefix(&start)).unwrap();
    let numbers: Vec<f64> = note.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn open_loop_requests_come_at_their_rate_and_wait_for_a_core_as_m_g_1() {
    // The application's work is uniform from half to one and a half times its mean.
    let (service_us, seconds) = (100.0, 3.0);
    let mut profile = free();
    profile.costs.set(Cost::Application, service_us * 1000.0);
    for per_second in [3_000.0, 6_000.0] {
        let text = format!(
            "[card]\nborrowed_core = 1\nidle = \"spin\"\n[[wire]]\nport = \"peers\"\n\
             connections = 500\nrequests_per_second = {per_second}.0\nfile_bytes = 100\n\
             request_bytes = 100\nrate_mbps = 100000\ndelay_us = 10\n[host]\n\
             attachment = \"model\"\nqueues = 1\ncores = 1\n[interrupt]\nrx_usecs = 0\n"
        );
        let mut simulation = machine(&text, 2, &profile);
        simulation.run_until(micros((seconds * 1e6) as u64));
        let (report, _) = end_traced(simulation);
        let (count, mean_us) = answers(&report.notes, 0);
        let rate = count / seconds;
        assert!((rate / per_second - 1.0).abs() < 0.03, "{rate} of {per_second} requests/s");
        let rho = per_second * service_us / 1e6;
        let wait_us = rho * service_us * (1.0 + 1.0 / 12.0) / (2.0 * (1.0 - rho));
        let wanted = 20.0 + service_us + wait_us;
        assert!((mean_us / wanted - 1.0).abs() < 0.06, "{mean_us} of {wanted} us");
    }
}

#[test]
fn bulk_goes_both_ways_at_once() {
    let text = "[card]\nborrowed_core = 2\nidle = \"spin\"\n[pool]\nbuffers = 16384\n[[wire]]\n\
        port = \"peers\"\nworkload = \"send\"\nconnections = 4\n[[wire]]\nport = \"peers\"\n\
        connections = 4\nfile_bytes = 100000000\n[host]\nattachment = \"model\"\nqueues = 1\n\
        [interrupt]\nrx_usecs = 0\n";
    // Received and sent, in Gb/s, and the share of the core's time that went to the stack.
    let both = |profile: &Profile| {
        let mut simulation = machine(text, 1, profile);
        let counts = |simulation: &Simulation| {
            let sent = simulation.view().wires[1].counters.tx_bytes.get();
            (simulation.host_figures().unwrap().bytes_read, sent)
        };
        simulation.run_until(micros(20_000));
        let (read, sent) = counts(&simulation);
        let stack = simulation.accounts(0).unwrap()[Component::Stack];
        simulation.run_until(micros(70_000));
        let now = counts(&simulation);
        let stack = simulation.accounts(0).unwrap()[Component::Stack] - stack;
        assert_eq!(end_traced(simulation).0.ledger.dropped, 0);
        let gbps = |bytes: u64| bytes as f64 * 8.0 / 50e6;
        (gbps(now.0 - read), gbps(now.1 - sent), stack as f64 / 50e6)
    };
    let (received, sent, _) = both(&free());
    assert!((received / (1448.0 / 1526.0) - 1.0).abs() < 0.02, "{received} Gb/s received");
    assert!((sent / (1502.0 / 1526.0) - 1.0).abs() < 0.02, "{sent} Gb/s sent");
    // A core that is full with it does less of each.
    let mut slow = free();
    for cost in [Cost::StackReceive, Cost::StackAck, Cost::StackSend, Cost::StackSendAck] {
        slow.costs.set(cost, 10_000.0);
    }
    let (less_received, less_sent, stack) = both(&slow);
    assert!(less_received > 0.05 && less_received < received / 1.5, "{less_received} Gb/s");
    assert!(less_sent > 0.05 && less_sent < sent / 1.5, "{less_sent} Gb/s");
    assert!(stack > 0.95, "{stack}");
}

#[test]
fn overload_starves_the_application_unless_there_is_a_gate() {
    let delivered = |gate: &str, per_ms: u64| {
        let text = format!(
            "[card]\nborrowed_core = 4\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\n\
             rate_pps = {}\n[host]\nqueues = 1\ncost_ns = 6000\n[interrupt]\nrx_usecs = 0\n\
             gate = \"{gate}\"\n",
            per_ms * 1000
        );
        let mut simulation = machine(&text, 1, &profile("piii"));
        simulation.run_until(micros(20_000));
        let before = simulation.ledger().delivered;
        simulation.run_until(micros(80_000));
        let delivered = simulation.ledger().delivered - before;
        end_traced(simulation);
        delivered as f64
    };
    for (gate, falls) in [("queue", false), ("none", true)] {
        let (peak, overload) =
            (delivered(gate, 100).max(delivered(gate, 60)), delivered(gate, 800));
        let share = overload / peak;
        assert!(
            peak > 1_000.0 && if falls { share < 0.1 } else { share > 0.95 },
            "{gate}: {share}"
        );
    }
}
