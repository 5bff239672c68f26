//! `[device]`: each access is paid once, on the core of the driver that makes it.

use crate::common::waits::Waits;
use crate::common::{end, end_traced, micros, quick, simulation, step_through};
use crate::machine::{free, machine_with, profile};
use picnic_sim::Simulation;
use picnic_sim::machine::{Component, Cost, Distance, Profile};

fn machine(text: &str, profile: &Profile) -> Simulation {
    machine_with(text, 1, profile, None::<Waits>)
}

/// Packets far apart for two queues on cores 0 and 1.
fn far_apart(device: &str) -> String {
    format!(
        "[card]\nborrowed_core = 2\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\n\
         rate_pps = 2000\npackets = 400\n[[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\n\
         target_cores = [0, 1]\n[interrupt]\nrx_usecs = 0\n{device}"
    )
}

const DEVICE: &str = "[device]\nregister_read_ns = 1000\nregister_write_ns = 10\n\
    reads_per_interrupt = 3\nwrites_per_interrupt = 2\nrx_writes_per_burst = 5\n\
    rx_reads_per_packet = 1\n";

#[test]
fn accesses_are_paid_once_on_the_core_that_makes_them() {
    let mut simulation = machine(&far_apart(DEVICE), &free());
    simulation.run_until(micros(300_000));
    let accounts = [0, 1].map(|core| simulation.accounts(core).unwrap());
    for (accounts, queue) in accounts.iter().zip(&simulation.view().queues) {
        let (interrupts, packets) = (queue.target.interrupts.get(), queue.target.packets.get());
        assert!(packets > 100 && interrupts == packets, "{interrupts} for {packets}");
        let wanted = interrupts * (3 * 1000 + 2 * 10) + packets * (5 * 10 + 1000);
        assert_eq!(accounts[Component::Registers], wanted);
        assert_eq!(accounts.total(), simulation.now().as_nanos());
    }
    end_traced(simulation);
}

#[test]
fn the_same_is_paid_without_a_machine() {
    let busy = |device: &str| {
        let (mut simulation, _) = simulation(&far_apart(device), 1, quick());
        step_through(&mut simulation, None);
        let (of, queue) = (simulation.busy_ns(0), &simulation.view().queues[0].target);
        let counts = (queue.interrupts.get(), queue.packets.get());
        end(simulation);
        (of, counts)
    };
    let (ideal, counts) = busy("");
    let (with, (interrupts, packets)) = busy(DEVICE);
    assert_eq!(counts, (interrupts, packets));
    assert_eq!(with - ideal, interrupts * 3020 + packets * 1050);
}

#[test]
fn an_ideal_device_changes_nothing() {
    let trace = |device: &str| {
        let mut simulation = machine(&far_apart(device), &profile("x5355"));
        simulation.run_until(micros(300_000));
        end_traced(simulation).1
    };
    let ideal = trace("[device]\nkind = \"ideal\"\n");
    assert_eq!(ideal, trace(""));
    assert_ne!(ideal.hash(), trace("[device]\nkind = \"integrated\"\n").hash());
}

#[test]
fn echoes_pay_for_their_doorbell() {
    let text = far_apart(
        "mode = \"echo\"\n[device]\nregister_write_ns = 100\ntx_writes_per_burst = 1\n\
         tx_writes_per_packet = 2\n",
    )
    .replace(
        "[interrupt]\nrx_usecs = 0\nmode = \"echo\"\n",
        "mode = \"echo\"\n[interrupt]\nrx_usecs = 0\n",
    );
    let mut simulation = machine(&text, &free());
    simulation.run_until(micros(300_000));
    for core in [0, 1] {
        let sent = simulation.view().queues[core].target.transmitted.get();
        assert!(sent > 100);
        assert_eq!(simulation.accounts(core).unwrap()[Component::Registers], sent * 300);
    }
    end_traced(simulation);
}

#[test]
fn a_bus_delays_interrupts() {
    let latency = |device: &str| {
        let (mut simulation, _) = simulation(&far_apart(device), 1, quick());
        step_through(&mut simulation, None);
        let bounds = simulation.latency(0).map(|of| (of.min(), of.max())).unwrap();
        end(simulation);
        bounds
    };
    let ((least, most), (later, latest)) = (latency(""), latency("[device]\nbus_ns = 50000\n"));
    // The histogram has two significant digits.
    assert!(later.abs_diff(least + 50_000) < 1_000, "{least} and {later}");
    assert!(latest.abs_diff(most + 50_000) < 1_000, "{most} and {latest}");
}

#[test]
fn host_pays_for_sent_packets_and_reads_from_their_place() {
    let text = |device: &str| {
        format!(
            "[card]\nborrowed_core = 2\nidle = \"spin\"\n[[wire]]\nport = \"peers\"\n\
             workload = \"send\"\nconnections = 1\nsegments_per_second = 1000.0\n[host]\n\
             attachment = \"model\"\nqueues = 1\n[interrupt]\nrx_usecs = 0\n{device}"
        )
    };
    let mut profile = free();
    profile.costs.set(Cost::HeaderLines, 2.0);
    profile.costs.set(Cost::SequenceLine, 100.0);
    let sends = "[device]\nregister_write_ns = 100\ntx_writes_per_burst = 1\n";
    for (keys, from) in
        [(sends, Distance::Memory), ("[device]\ndma = \"cache\"\n", Distance::SharedCache)]
    {
        let mut simulation = machine(&text(keys), &profile);
        simulation.run_until(micros(500_000));
        let figures = simulation.host_figures().unwrap();
        let segments = figures.bytes_read / 1448;
        assert!(segments > 400, "{segments}");
        let accounts = simulation.accounts(0).unwrap();
        let (sent, lines) = (simulation.view().wires[0].counters.tx_packets.get(), segments * 23);
        if from == Distance::Memory {
            assert!(sent > 200);
            assert_eq!(accounts[Component::Registers], sent * 100);
            assert_eq!(accounts[Component::Copy], lines * 100);
        }
        // Two lines of headers, and the payload once it is read.
        assert!((figures.moved[from] - (lines + 2 * segments) as f64).abs() <= 25.0, "{figures:?}");
        assert_eq!(accounts.total(), simulation.now().as_nanos());
        end_traced(simulation);
    }
}

#[test]
fn threads_of_a_pipeline_slow_each_other_but_not_their_stalls() {
    // Two cores of one pipeline, each half busy at any time, or never at the same time.
    let text = |cost_ns: u64, device: &str| {
        format!(
            "[card]\nborrowed_core = 2\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\n\
             rate_pps = 1000000\n[[rx]]\nfunction = \"rss\"\n[host]\nqueues = 2\n\
             target_cores = [0, 1]\ncost_ns = {cost_ns}\nring_size = 64\n[interrupt]\n\
             rx_usecs = 0\n{device}"
        )
    };
    let delivered = |share: f64, cost_ns: u64, device: &str| {
        let mut profile = free();
        profile.threads_per_pipeline = 2;
        profile.costs.set(Cost::PipelineShare, share);
        let mut simulation = machine(&text(cost_ns, device), &profile);
        simulation.run_until(micros(100_000));
        let delivered = simulation.ledger().delivered as f64;
        end_traced(simulation);
        delivered
    };
    // Overloaded: both always compute, and together want a whole pipeline each, or half of one.
    let (alone, shared) = (delivered(0.0, 10_000, ""), delivered(1.0, 10_000, ""));
    assert!((shared / alone - 0.5).abs() < 0.02, "{alone} and {shared}");
    let half = delivered(0.5, 10_000, "");
    assert!((half / alone - 1.0).abs() < 0.02, "{alone} and {half}");
    let stalls = "[device]\nregister_read_ns = 10000\nrx_reads_per_packet = 1\n";
    let (alone, shared) = (delivered(0.0, 1, stalls), delivered(1.0, 1, stalls));
    assert!((shared / alone - 1.0).abs() < 0.02, "{alone} and {shared}");
}
