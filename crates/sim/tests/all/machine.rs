//! A card in a modelled machine: conservation, determinism, and each mechanism against arithmetic.

use crate::common::waits::Waits;
use crate::common::{end_traced, micros, step_through};
use picnic_control::{Launch, Running};
use picnic_core::config::CardFile;
use picnic_core::hook::Hook;
use picnic_sim::machine::{Component, Cost, Interrupts, Placement, Profile, Routine};
use picnic_sim::{Simulation, Trace, registries};
use std::time::Duration;

fn machine(text: &str, seed: u64, profile: &Profile) -> Simulation {
    machine_with(text, seed, profile, None::<Waits>)
}

pub(crate) fn machine_with(
    text: &str,
    seed: u64,
    profile: &Profile,
    hook: Option<impl Hook + 'static>,
) -> Simulation {
    let file = CardFile::parse(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let launch = Launch::new(&file, registries()).hook(hook);
    Simulation::on_machine(launch, seed, profile).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn profile(name: &str) -> Profile {
    Profile::named(name).unwrap()
}

/// A profile without a single cost.
pub(crate) fn free() -> Profile {
    let mut profile = profile("x5355");
    for cost in Cost::ALL {
        profile.costs.set(*cost, 0.0);
    }
    profile.costs.set(Cost::Chunk, 20_000.0);
    profile.costs.set(Cost::Slice, 1e7);
    profile.costs.set(Cost::SoftirqMost, 2e6);
    profile
}

// ---------------------------------------------------------------- the borrowed core

/// Mean latency, in nanoseconds, of single packets at random times.
fn latency(per_ms: u64, gap_us: u64, profile: &Profile) -> f64 {
    let packets = 40_000;
    let text = format!(
        "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\narrivals = \"random\"\n\
         backlog = 4096\nrate_pps = {}\npackets = {packets}\n[host]\nqueues = 1\n[interrupt]\n\
         per_packet = true\ngate = \"none\"\nwire_usecs = {gap_us}\n",
        per_ms * 1000
    );
    let mut simulation = machine(&text, 5, profile);
    simulation.run_until(micros(packets * 1000 / per_ms));
    let (report, _) = end_traced(simulation);
    assert_eq!(report.ledger.dropped, 0);
    let held = report.latency_ns.held_at_wire.unwrap_or(0);
    report.latency_ns.mean.unwrap() as f64 - held as f64
}

#[test]
fn borrowed_core_is_a_queue_with_constant_service() {
    // M/D/1: c + rho c / (2 (1 - rho)), then the interrupt's travel time, and entering it.
    let profile = profile("netburst");
    let c = profile.costs.get(Cost::CardPacket);
    let rest = profile.costs.get(Cost::InterruptWay);
    for per_ms in [50, 150, 250] {
        let rho = per_ms as f64 * c / 1e6;
        let wanted = c + rho * c / (2.0 * (1.0 - rho)) + rest;
        let found = latency(per_ms, 0, &profile);
        assert!((found / wanted - 1.0).abs() < 0.08, "{per_ms}/ms: {found} of {wanted}");
    }
}

#[test]
fn packets_wait_for_others_of_their_interrupt() {
    // rho T / 2 + c + way.
    let profile = profile("netburst");
    let c = profile.costs.get(Cost::CardPacket);
    let rest = profile.costs.get(Cost::InterruptWay);
    for per_ms in [80, 150, 250] {
        let wanted = per_ms as f64 * c / 1e6 * 125_000.0 / 2.0 + c + rest;
        let found = latency(per_ms, 125, &profile);
        assert!((found / wanted - 1.0).abs() < 0.08, "{per_ms}/ms: {found} of {wanted}");
    }
}

// ---------------------------------------------------------------- links and peers

fn bulk(profile: &Profile, rate_mbps: u32, run_us: u64) -> (f64, Simulation) {
    let text = format!(
        "[card]\nborrowed_core = 6\nidle = \"spin\"\n[[wire]]\nport = \"peers\"\n\
         workload = \"send\"\nconnections = 4\nrate_mbps = {rate_mbps}\nwindow_bytes = 65536\n\
         [host]\nattachment = \"model\"\nqueues = 1\n[interrupt]\nrx_usecs = 0\n"
    );
    let mut simulation = machine(&text, 3, profile);
    simulation.run_until(micros(10_000));
    let before = simulation.ledger().delivered;
    simulation.run_until(micros(10_000 + run_us));
    let segments = simulation.ledger().delivered - before;
    // A saturated core's softirqs leave its reader little time: waiting data counts as well.
    (segments as f64 * 1448.0 * 8e3 / run_us as f64 / 1e6, simulation)
}

#[test]
fn links_at_full_rate_carry_payload_without_headers() {
    let (gbps, simulation) = bulk(&free(), 1000, 50_000);
    let wanted = 1448.0 / (1448.0 + 54.0 + 24.0);
    assert!((gbps / wanted - 1.0).abs() < 0.01, "{gbps} of {wanted} Gb/s");
    assert_eq!(end_traced(simulation).0.ledger.dropped, 0);
}

#[test]
fn saturated_cores_limit_the_link() {
    let mut slow = free();
    slow.costs.set(Cost::StackReceive, 10_000.0);
    // 10 us for each of 1448 bytes.
    let (gbps, mut simulation) = bulk(&slow, 10_000, 50_000);
    assert!((gbps / (1448.0 * 8.0 / 10_000.0) - 1.0).abs() < 0.02, "{gbps} Gb/s");
    let accounts = simulation.accounts(0).unwrap();
    assert!(accounts[Component::Stack] * 100 > accounts.total() * 95, "{accounts:?}");
    assert_eq!(accounts.total(), simulation.now().as_nanos());
    end_traced(simulation);
}

#[test]
fn lost_frames_are_retransmitted() {
    // A ring of 16 frames ahead of a slow core loses some.
    let mut slow = free();
    slow.costs.set(Cost::CardPacket, 20_000.0);
    let text = "[card]\nborrowed_core = 6\nidle = \"spin\"\n[[wire]]\nport = \"peers\"\n\
        workload = \"send\"\nconnections = 2\nring = 16\nwindow_bytes = 65536\ntimeout_us = 2000\n\
        [host]\nattachment = \"model\"\nqueues = 1\n";
    let mut simulation = machine(text, 1, &slow);
    simulation.run_until(micros(200_000));
    let read = simulation.host_figures().unwrap().bytes_read;
    let (report, _) = end_traced(simulation);
    assert!(report.ledger.dropped > 10, "{:?}", report.ledger);
    assert!(read > 1_000_000, "{read}");
}

// ---------------------------------------------------------------- a web server

struct Web {
    rps: f64,
    switches: f64,
    colocated: f64,
}

fn web_text(queues: u16, keys: &str) -> String {
    let cores: Vec<_> = (0..queues).collect();
    let wire = "[[wire]]\nport = \"peers\"\nconnections = 25\nfile_bytes = 65160\ndelay_us = 75\n\
        window_bytes = 65536\n";
    format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 16384\n{}\
         [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"model\"\nqueues = {queues}\n\
         target_cores = {cores:?}\ncores = 6\n[interrupt]\n{keys}\n",
        wire.repeat(4)
    )
}

fn web(queues: u16, profile: &Profile, keys: &str, run_us: u64) -> Web {
    let mut simulation = machine(&web_text(queues, keys), 1, profile);
    simulation.run_until(micros(30_000));
    let before = simulation.host_figures().unwrap();
    simulation.run_until(micros(30_000 + run_us));
    let after = simulation.host_figures().unwrap();
    for core in 0..6 {
        assert_eq!(simulation.accounts(core).unwrap().total(), simulation.now().as_nanos());
    }
    assert!(simulation.ledger().balanced(), "{:?}", simulation.ledger());
    let count = |of: fn(&picnic_sim::HostFigures) -> u64| (of(&after) - of(&before)) as f64;
    let found = Web {
        rps: count(|figures| figures.answers) / (run_us as f64 / 1e6),
        switches: count(|figures| figures.switches) / count(|figures| figures.answers),
        colocated: count(|figures| figures.colocated) / count(|figures| figures.acknowledgements),
    };
    end_traced(simulation);
    found
}

pub(crate) const PER_PACKET: &str = "per_packet = true\ngate = \"none\"";

#[test]
fn a_seed_gives_one_trace_and_the_ledger_balances_at_every_step() {
    let run = |seed: u64| -> Trace {
        let mut simulation = machine(&web_text(3, PER_PACKET), seed, &profile("x5355"));
        step_through(&mut simulation, Some(micros(6_000)));
        let (report, trace) = end_traced(simulation);
        assert!(report.ledger.delivered > 500, "{:?}", report.ledger);
        trace
    };
    let trace = run(7);
    assert_eq!(trace, run(7));
    assert_ne!(trace.hash(), run(8).hash());
}

#[test]
fn queues_remove_the_bottleneck_of_one_core() {
    let profile = profile("x5355");
    let rps = |queues| web(queues, &profile, PER_PACKET, 100_000).rps;
    let (one, six) = (rps(1), rps(6));
    assert!(six > 1.2 * one, "{one} and {six} requests/s");
}

#[test]
fn wake_ups_near_the_waker_follow_packets() {
    let near = web(6, &profile("x5355"), PER_PACKET, 60_000);
    let mut stay = profile("x5355");
    stay.placement = Placement::Stay;
    let stay = web(6, &stay, PER_PACKET, 60_000);
    assert!(near.colocated > 0.6 && stay.colocated < 0.4, "{}, {}", near.colocated, stay.colocated);
    assert!(near.switches > 0.0);
}

#[test]
fn without_distances_placement_makes_no_difference() {
    let mut flat = profile("x5355");
    for cost in [Cost::SharedCacheLine, Cost::PackageLine, Cost::RemoteLine, Cost::MemoryLine] {
        flat.costs.set(cost, 0.0);
    }
    let near = web(6, &flat, PER_PACKET, 100_000).rps;
    flat.placement = Placement::Stay;
    let stay = web(6, &flat, PER_PACKET, 100_000).rps;
    assert!((near / stay - 1.0).abs() < 0.03, "{near} and {stay} requests/s");
}

/// What four slow cores do, with packets put on them by a system.
struct Knet {
    rps: f64,
    /// Shares of the first core's time.
    applications: f64,
    locks: f64,
}

fn knet(system: &str, profile: &Profile, run_us: u64) -> Knet {
    let queues = if system == "napi" { 1 } else { 4 };
    let key = if system == "clas" { "system = \"clas\"\n" } else { "" };
    let cores: Vec<_> = (0..queues).collect();
    let text = format!(
        "[card]\nborrowed_core = 4\nidle = \"spin\"\n[[wire]]\nport = \"peers\"\n\
         connections = 24\nfile_bytes = 20272\ncontrol_frames = 4\nrate_mbps = 2000\n\
         delay_us = 100\n[[rx]]\nfunction = \"rss\"\n[host]\n{key}attachment = \"model\"\n\
         queues = {queues}\ntarget_cores = {cores:?}\ncores = 4\n\
         first_window = 2\nsend_window = 14\nring_size = 8192\n[interrupt]\nrx_usecs = 0\n"
    );
    let mut profile = profile.clone();
    if system == "napi" {
        profile.routine = Routine::Softirq;
    }
    let mut simulation = machine(&text, 1, &profile);
    let mut answers = 0;
    for part in 1..=4 {
        simulation.run_until(micros(run_us * part / 4));
        let now = simulation.host_figures().unwrap().answers;
        assert!(now > answers, "{system}: no answer within {} us", run_us / 4);
        answers = now;
    }
    let accounts = simulation.accounts(0).unwrap();
    let share = |component| accounts[component] as f64 / accounts.total() as f64;
    let (applications, locks) = (share(Component::Application), share(Component::Lock));
    end_traced(simulation);
    Knet { rps: answers as f64 / (run_us as f64 / 1e6), applications, locks }
}

#[test]
fn interrupts_during_the_last_poll_are_not_lost() {
    let mut slow = profile("piii");
    slow.costs.set(Cost::Application, 1_200_000.0);
    knet("napi", &slow, 200_000);
}

/// Gain of the NIC's classes over classes in the kernel.
fn over_clas(profile: &Profile) -> f64 {
    knet("knet", profile, 300_000).rps / knet("clas", profile, 300_000).rps - 1.0
}

#[test]
fn without_locks_classes_in_the_kernel_lose_a_third_of_their_handicap() {
    let mut free = profile("piii");
    free.costs.set(Cost::LockHold, 0.0);
    free.costs.set(Cost::LockHandOver, 0.0);
    assert!(knet("clas", &profile("piii"), 100_000).locks > 0.03);
    assert!(knet("clas", &free, 100_000).locks < 1e-6);
    let (with, without) = (over_clas(&profile("piii")), over_clas(&free));
    assert!(with > 0.08 && without < with * 2.0 / 3.0, "{with} with, {without} without");
}

#[test]
fn without_locks_lines_and_classifying_they_lose_most_of_it() {
    let mut free = profile("piii");
    for cost in [Cost::LockHold, Cost::LockHandOver, Cost::Classify, Cost::HeaderLines] {
        free.costs.set(cost, 0.0);
    }
    for cost in [Cost::PackageLine, Cost::RemoteLine, Cost::MemoryLine] {
        free.costs.set(cost, 0.0);
    }
    let (with, without) = (over_clas(&profile("piii")), over_clas(&free));
    assert!(without < with / 2.0, "{with} with, {without} without");
}

#[test]
fn without_placement_processes_stay_on_the_polling_core() {
    let placed = knet("napi", &profile("piii"), 300_000);
    let mut stay = profile("piii");
    (stay.placement, stay.steals) = (Placement::Stay, false);
    let stay = knet("napi", &stay, 300_000);
    // They wake up on idle cores, and the first core only polls.
    assert!(placed.applications < 0.005, "{}", placed.applications);
    // They get the poller's remaining time: one turn every 2 ms.
    assert!((0.01..0.04).contains(&stay.applications), "{}", stay.applications);
    assert!(stay.rps < placed.rps * 0.99, "{} and {}", stay.rps, placed.rps);
}

#[test]
fn without_yielding_softirqs_processes_on_a_polling_core_starve() {
    let mut never = profile("piii");
    (never.placement, never.steals) = (Placement::Stay, false);
    let yielding = knet("napi", &never, 300_000);
    never.costs.set(Cost::SoftirqMost, 1e12);
    let never = knet("napi", &never, 300_000);
    assert!(yielding.applications > 0.01, "{}", yielding.applications);
    assert!(never.applications < yielding.applications / 2.0, "{}", never.applications);
}

#[test]
fn threads_are_woken_by_the_one_core_that_the_nic_interrupts() {
    let any = Profile { interrupts: Interrupts::QueueCore, ..profile("piii") };
    let [one, any] = [&profile("piii"), &any].map(|profile| {
        let text = "[card]\nborrowed_core = 4\n[[wire]]\nport = \"generator\"\nflows = 64\n\
            rate_pps = 2000\n[[rx]]\nfunction = \"rss\"\n[host]\nqueues = 4\n\
            [interrupt]\nrx_usecs = 0\n";
        let mut simulation = machine(text, 1, profile);
        simulation.run_until(micros(100_000));
        let registers = [0, 1, 2, 3].map(|core| {
            let accounts = simulation.accounts(core).unwrap();
            // Every thread masks and unmasks its queue; only an interrupt reads a register.
            accounts[Component::Registers] / profile.costs.ns(Cost::RegisterRead)
        });
        let (report, _) = end_traced(simulation);
        assert!(report.queues.iter().all(|queue| queue.packets > 20), "{:?}", report.queues);
        registers
    });
    // 200 packets, an interrupt each; unmasking takes a fifth of a read.
    assert!(one[0] >= 180 && one[1..].iter().all(|&reads| reads <= 20), "{one:?}");
    assert!(any.iter().all(|&reads| (30..100).contains(&reads)), "{any:?}");
}

// ---------------------------------------------------------------- bad input

#[test]
fn a_host_serves_files_of_the_size_that_each_wires_peers_want() {
    let wire =
        |bytes: u32| format!("[[wire]]\nport = \"peers\"\nconnections = 1\nfile_bytes = {bytes}\n");
    let text =
        format!("{}{}[host]\nattachment = \"model\"\nqueues = 1\n", wire(3_000), wire(50_000));
    let mut simulation = machine(&text, 1, &free());
    simulation.run_until(micros(100_000));
    let (report, _) = end_traced(simulation);
    for wire in 0..2 {
        let line =
            report.notes.iter().find(|note| note.starts_with(&format!("peers of wire {wire}: ")));
        let answers = line.unwrap().split(' ').nth(4).unwrap().parse::<u64>().unwrap();
        assert!(answers > 50, "{line:?}");
        assert!(!line.unwrap().contains("timeout"), "{line:?}");
    }
}

#[test]
fn a_requested_stop_ends_a_pass_of_virtual_time() {
    let text = "[[wire]]\nport = \"generator\"\n[host]\nqueues = 1\n";
    let file = CardFile::parse(text, None).unwrap();
    let launch = Launch::new(&file, registries());
    let stop = launch.stop().clone();
    let mut simulation = Simulation::on_machine(launch, 1, &free()).unwrap();
    simulation.pass(Duration::from_micros(100));
    assert_eq!(simulation.now(), micros(100));
    stop.ask();
    simulation.pass(Duration::from_secs(3600));
    assert_eq!(simulation.now(), micros(100));
    end_traced(simulation);
}

#[test]
fn cards_with_too_many_cores_are_refused() {
    let refused = |borrowed: usize, cores: usize| {
        let text = format!(
            "[card]\nborrowed_core = {borrowed}\n[host]\nattachment = \"model\"\nqueues = 1\n\
             cores = {cores}\n"
        );
        let file = CardFile::parse(&text, None).unwrap();
        let launch = Launch::new(&file, registries());
        let result = Simulation::on_machine(launch, 1, &profile("x5355"));
        result.map(drop).unwrap_err().to_string()
    };
    assert!(refused(8, 6).contains("found 8, allowed with profile x5355: 0 to 7"));
    assert!(refused(3, 6).contains("found 3, which the host uses, allowed: from 6"));
}
