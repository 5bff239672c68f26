//! Cards with tasks on real cores: counts and order, no times.

use picnic_control::{Launch, Registries, Running};
use picnic_core::command::Prepared;
use picnic_engine::swap::{Command, Controller};
use picnic_host::registries;
use picnic_os::control::TaskControl;
use picnic_os::roster::State;
use picnic_os::task::{TaskId, TaskSpec, program};
use picnic_testing::{let_pass, wait_for, wait_until};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::time::Duration;

fn start(text: &str) -> Box<dyn Running> {
    let card = picnic_host::sections().parse(text, None).unwrap();
    let registries = Registries { tasks: picnic_tasks::registry::TASKS, ..registries() };
    Launch::new(&card, registries).start_alone().unwrap()
}

#[test]
fn heartbeats_are_sent_under_each_idle_policy() {
    for idle in ["spin", "adaptive", "block"] {
        let running = start(&format!(
            "[card]\nidle = \"{idle}\"\n[[wire]]\nport = \"generator\"\nrate_pps = 10000\n\
             [host]\nqueues = 1\n[[task]]\ntask = \"heartbeat\"\nperiod_us = 2000\nwait = true\n"
        ));
        let sent = || running.view().wires[0].counters.tx_packets.get();
        wait_until("ten heartbeats", || sent() >= 10);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        assert_eq!(report.buffers_missing, 0);
        let os = report.os.unwrap();
        let task = &os.tasks[0];
        assert_eq!(task.state, State::Stopped);
        assert!(task.completed >= 9, "{task:?}");
        assert_eq!(task.response_ns.mean_ns.is_some(), task.jitter_ns.mean_ns.is_some());
        assert!(report.ledger.transmitted >= 10);
    }
}

#[test]
fn wait_for_a_segment_counts_as_latency() {
    // Lower bounds only: a busy machine only lengthens waits.
    let running = start(
        "[[wire]]\nport = \"generator\"\nrate_pps = 5000\n[host]\nqueues = 1\n[[task]]\n\
         task = \"busy\"\nsegments_ns = [20_000_000]\npause_us = 1\n",
    );
    let queue = running.view().queues[0].clone();
    wait_until("packets with their latency", || queue.target.latency_packets.get() >= 50);
    let latency = running.stop().unwrap().latency_ns;
    let at_least = |part: Option<u64>| part.is_some_and(|ns| ns >= 1_000_000);
    assert!(at_least(latency.at_wire) && at_least(latency.mean), "{latency:?}");
}

/// Sends an order to the running card; returns whether it succeeded, and the returned order.
fn order(controller: &mut Controller, control: TaskControl) -> (bool, TaskControl) {
    controller.send(Command::Resident(Prepared::new(control))).ok().unwrap();
    let answer = wait_for("the card answers", || controller.answer());
    let Command::Resident(message) = answer.replaced else { panic!("not mine") };
    (answer.done, message.open::<TaskControl>().unwrap())
}

fn states(controller: &mut Controller) -> Vec<State> {
    let (_, list) = order(controller, TaskControl::list(4));
    let TaskControl::List(lines) = list else { panic!("{list:?}") };
    lines.iter().map(|line| line.state).collect()
}

#[test]
fn task_work_takes_time_and_counts_as_busy() {
    let mut running = start(
        "[[wire]]\nport = \"generator\"\npackets = 1\n[host]\nqueues = 1\n[[task]]\n\
         task = \"busy\"\nperiod_us = 1000\nsegments_ns = [200_000]\ninvocations = 20\n",
    );
    let mut controller = running.control().unwrap().controller;
    wait_until("the task's end", || states(&mut controller) == [State::Returned]);
    let report = running.stop().unwrap();
    let os = report.os.unwrap();
    let task = &os.tasks[0];
    assert_eq!((task.segments, task.completed), (20, 20));
    assert!(task.busy_ns >= 20 * 200_000, "{task:?}");
    assert!(task.longest_segment_ns >= 200_000);
}

#[test]
fn tasks_start_and_end_while_the_card_runs() {
    let mut running =
        start("[os]\n[host]\nqueues = 1\n[[wire]]\nport = \"generator\"\npackets = 1\n");
    let mut controller = running.control().unwrap().controller;
    let mut order = |control: TaskControl| order(&mut controller, control);
    let beat = program(|nic| async move {
        loop {
            let _ = nic.post(0, &[0xff; 60]);
            nic.next_release().await;
        }
    });
    let spec = TaskSpec::new("beat").periodic(500_000).wcet_ns(5_000);
    let (done, created) = order(TaskControl::create(spec, beat));
    assert!(done);
    let TaskControl::Create { result: Some(Ok(id)), .. } = created else { panic!("{created:?}") };
    let sent = || running.view().wires[0].counters.tx_packets.get();
    wait_until("five frames", || sent() >= 5);
    assert!(order(TaskControl::Suspend(id)).0);
    let (_, list) = order(TaskControl::list(4));
    let TaskControl::List(lines) = list else { panic!("{list:?}") };
    assert_eq!((lines[0].id, lines[0].state), (id, State::Suspended));
    let before = sent();
    let_pass(5);
    assert!(sent() <= before + 1, "one may have waited for the wire");
    assert!(order(TaskControl::Resume(id)).0);
    wait_until("five more", || sent() >= before + 5);
    let bad = program(|nic| async move {
        nic.sleep_ns(100_000).await;
        panic!("as it is meant to");
    });
    let (_, created) = order(TaskControl::create(TaskSpec::new("bad"), bad));
    let TaskControl::Create { result: Some(Ok(bad)), .. } = created else { panic!("{created:?}") };
    wait_until("it has ended by itself", || {
        let (_, list) = order(TaskControl::list(4));
        let TaskControl::List(lines) = list else { panic!("{list:?}") };
        lines.iter().any(|line| line.id == bad && line.state == State::Panicked)
    });
    wait_until("more yet", || sent() >= before + 10);
    assert!(!order(TaskControl::Kill(bad)).0, "there is nothing left to kill");
    assert!(order(TaskControl::Kill(id)).0);
    assert!(!order(TaskControl::Kill(TaskId(99))).0);
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced(), "{:?}", report.ledger);
    let os = report.os.unwrap();
    let states: Vec<_> = os.tasks.iter().map(|task| (&*task.name, task.state)).collect();
    assert_eq!(states, [("bad", State::Panicked), ("beat", State::Killed)]);
    assert_eq!(os.panics, 1);
}

/// Drops of a run that no measured interruption explains.
fn unexplained(report: &picnic_control::Report) -> u64 {
    let borrowed = report.borrowed_core.taken_away.as_ref().map_or(0, |taken| taken.drops);
    let targets = report.target_cores.iter().filter_map(|core| core.taken_away.as_ref());
    let explained = borrowed + targets.map(|taken| taken.drops).sum::<u64>();
    report.ledger.dropped.saturating_sub(explained)
}

/// Starts random sets of tasks at a random rate for a time each: of those that are admitted, the ones
/// with these numbers.
fn random_admitted_sets(sets: std::ops::Range<usize>, duration: Duration) {
    let _machine = picnic_testing::machine();
    let tasks = prop::collection::vec((1u64..6, 5u64..200), 1..4);
    let sets_of = (50_000u64..400_000, 1u16..3, tasks);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut found, mut segments) = (0, 0);
    while found < sets.end {
        let (rate_pps, queues, tasks) = sets_of.new_tree(&mut runner).unwrap().current();
        let mut text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = {rate_pps}\n\
             backlog = 1024\nflows = 64\n[[rx]]\nfunction = \"rss\"\n[host]\nqueues = {queues}\n\
             [pool]\nbuffers = 8192\n[os]\nline_rate_pps = {rate_pps}\n"
        );
        for (number, (periods, segment_us)) in tasks.into_iter().enumerate() {
            let (period_us, segment_ns) = (periods * 500, segment_us * 1_000);
            text += &format!(
                "[[task]]\ntask = \"busy\"\nname = \"t{number}\"\nperiod_us = {period_us}\n\
                 segments_ns = [{segment_ns}]\n"
            );
        }
        let card = picnic_host::sections().parse(&text, None).unwrap();
        let registries = Registries { tasks: picnic_tasks::registry::TASKS, ..registries() };
        let launch = Launch::new(&card, registries);
        if launch.build().is_err() {
            // Refused by admission.
            continue;
        }
        found += 1;
        if found <= sets.start {
            continue;
        }
        let running = launch.start_alone().unwrap();
        std::thread::sleep(duration);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        let os = report.os.as_ref().unwrap();
        segments += os.tasks.iter().map(|task| task.segments).sum::<u64>();
        assert_eq!(
            unexplained(&report),
            0,
            "{text}\n{:?}\n{:?}\n{:?}\n{:?}",
            report.drops_by_stage,
            report.borrowed_core,
            report.target_cores,
            os
        );
    }
    assert!(segments > 100 * sets.len() as u64, "{segments}");
}

#[test]
fn drops_of_admitted_sets_follow_measured_interruptions() {
    random_admitted_sets(0..3, Duration::from_secs(1));
}

#[test]
#[ignore = "takes three minutes: run by scripts/test admission"]
fn drops_of_many_admitted_sets_follow_measured_interruptions() {
    // A part of them, as `8..16`.
    let part = std::env::var("PICNIC_SETS").unwrap_or("0..20".into());
    let (first, end) = part.split_once("..").unwrap();
    random_admitted_sets(first.parse().unwrap()..end.parse().unwrap(), Duration::from_secs(10));
}
