//! Members on cards in the simulator whose hosts are slow or die, whose cards change, and that lack
//! something at the start.

use crate::cards::{load, model};
use picnic_control::{Launch, Registries, Report};
use picnic_core::command::Prepared;
use picnic_core::direction::Direction;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_os::channel::ChannelReport;
use picnic_os::control::TaskControl;
use picnic_os::task::TaskId;
use picnic_sim::{CostModel, Simulation, SwitchConfig};
use picnic_storm::bench::Load;
use picnic_storm::card::TASKS;
use picnic_storm::card::load::{Costs, Place};
use picnic_storm::cards::{Model, SimGroup};
use serde_json::{Value, json};
use std::time::Duration;

const END: Time = Time::from_nanos(200_000_000);

fn order_of(group: &SimGroup, member: usize) -> Vec<(u8, u32)> {
    let seen = group.sides[member].seen();
    seen.samples.iter().map(|(sender, number, ..)| (*sender, *number)).collect()
}

/// Runs until these members have delivered everything that was submitted.
fn settle(group: &mut SimGroup, seed: u64) {
    group.cluster.run_until(Time::from_nanos(10_000_000));
    let is_whole = |group: &SimGroup| {
        let submitted: usize = group.sides.iter().map(|side| side.seen().submitted as usize).sum();
        group.sides.iter().all(|side| side.seen().samples.len() >= submitted)
    };
    while !is_whole(group) {
        let next = group.cluster.now() + 1_000_000;
        assert!(next < END, "seed {seed}: not delivered");
        group.cluster.run_until(next);
    }
}

/// Every ledger balances; the channels of the members.
fn ended(group: SimGroup, seed: u64) -> Vec<ChannelReport> {
    let channel = |(report, _): (Report, _)| {
        assert!(report.ledger.balanced(), "seed {seed}: {:?}", report.ledger);
        assert_eq!(report.buffers_missing, 0, "seed {seed}");
        report.os.unwrap().channels.remove(0)
    };
    group.cluster.finish().into_iter().map(channel).collect()
}

fn busy(seed: u64) -> Load {
    Load {
        members: 5,
        all_send: true,
        payload_bytes: 64,
        window_messages: 8,
        duration: Duration::from_millis(8),
        ..load(seed)
    }
}

#[test]
fn a_killed_host_program_takes_nothing_with_it_and_the_others_go_on() {
    for seed in 0..6 {
        let mut group =
            SimGroup::new(&busy(seed), Place::Card, &model(SwitchConfig::default())).unwrap();
        let killed = seed as usize % 5;
        group.cluster.run_until(Time::from_nanos(2_500_000 + seed * 77_777));
        group.sides[killed].set_dead(true);
        group.cluster.run_until(group.cluster.now() + 2_000_000);
        let before = order_of(&group, (killed + 1) % 5).len();
        let own = order_of(&group, killed);
        assert!(before > own.len() + 50, "seed {seed}: the others do not go on");
        group.sides[killed].set_dead(false);
        group.cluster.run_until(Time::from_nanos(20_000_000));
        let longest = order_of(&group, (killed + 1) % 5);
        for member in (0..5).filter(|member| *member != killed) {
            assert_eq!(order_of(&group, member), longest, "seed {seed}, member {member}");
        }
        // Two parts of the order: up to the death, and from the second life on.
        let order = order_of(&group, killed);
        assert_eq!(order[..own.len()], longest[..own.len()], "seed {seed}");
        let later = &order[own.len()..];
        assert!(!later.is_empty() && longest.ends_with(later), "seed {seed}: the second life");
        let channels = ended(group, seed);
        assert_eq!(channels[killed].openings, 2, "seed {seed}");
        assert_eq!(channels[killed].broken_hosts, 0);
    }
}

#[test]
fn full_channels_hold_the_order_back_and_lose_nothing() {
    for seed in 0..4 {
        let load = Load { window_messages: 400, payload_bytes: 16, ..busy(seed) };
        let slow = Costs { wake_ns: 3_000_000, ..model(SwitchConfig::default()).behind_card };
        let model = Model { behind_card: slow, ..model(SwitchConfig::default()) };
        let mut group = SimGroup::new(&load, Place::Card, &model).unwrap();
        settle(&mut group, seed);
        let orders: Vec<_> = (0..5).map(|member| order_of(&group, member)).collect();
        assert!(orders.iter().all(|order| *order == orders[0]), "seed {seed}");
        assert!(orders[0].len() > 400, "seed {seed}: {} messages", orders[0].len());
        let channels = ended(group, seed);
        assert!(channels.iter().any(|channel| channel.full_messages > 0), "{channels:?}");
    }
}

#[test]
fn swapped_chains_leave_one_order() {
    for seed in 0..6 {
        let load = busy(seed);
        let run = || {
            let model = model(SwitchConfig { loss: 0.01, ..SwitchConfig::default() });
            let mut group = SimGroup::new(&load, Place::Card, &model).unwrap();
            for swap in 0..25_u64 {
                let at = Time::from_nanos(2_000_000 + swap * 311_111 + seed);
                let direction = if swap % 2 == 0 { Direction::Rx } else { Direction::Tx };
                let card = group.cluster.card((swap % 5) as usize);
                card.at(at, Command::Swap(direction, Vec::new()));
            }
            settle(&mut group, seed);
            let trace = group.cluster.trace_hash();
            // Compares the orders of all members, and checks every ledger.
            let outcome =
                group.finish(&load).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(outcome.messages > 100, "seed {seed}: {outcome:?}");
            trace
        };
        let trace = run();
        if seed == 0 {
            assert_eq!(trace, run(), "two runs differ");
        }
    }
}

/// The figures of the task with this number on a card with these keys and tasks.
fn figures(os: &str, task: u64) -> Value {
    let wire = "[[wire]]\nport = \"generator\"\npackets = 1\n[host]\nqueues = 1\n";
    let tasks = "[[task]]\ntask = \"storm\"\n[[task]]\ntask = \"storm\"\nname = \"other\"\n";
    let text = format!("{wire}[os]\nadmission = \"override\"\n{os}{tasks}");
    let file = picnic_host::sections().parse(&text, None).unwrap();
    let registries = Registries { tasks: TASKS, ..picnic_sim::registries() };
    let launch = Launch::new(&file, registries);
    let mut simulation = Simulation::new(launch, 1, CostModel::default()).unwrap();
    let get = TASKS[0].commands[0];
    let order = get.prepare(&json!({}), &BuildContext::default()).unwrap();
    let order = Prepared::new(TaskControl::Task(TaskId(task), order));
    simulation.at(Time::from_nanos(2_000_000), Command::Resident(order));
    simulation.run_until(Time::from_nanos(3_000_000));
    let (_, answer) = simulation.answers().remove(0);
    let Command::Resident(control) = answer.replaced else { panic!("another answer") };
    let Ok(TaskControl::Task(_, order)) = control.open() else { panic!("another order") };
    let figures = get.reply(order).unwrap();
    let (report, _) = simulation.finish();
    assert!(report.ledger.balanced());
    figures
}

#[test]
fn a_member_without_channel_or_memory_says_so_and_others_of_the_card_go_on() {
    let room = "arena_bytes = 8388608\n";
    let (first, second) = (figures(room, 1), figures(room, 2));
    assert_eq!((&first["running"], &first["failed"]), (&true.into(), &Value::Null));
    assert_eq!(second["failed"], "channel_taken");
    let small = figures("arena_bytes = 65536\n", 1);
    assert_eq!((&small["failed"], &small["out_of_memory"]), (&"memory".into(), &true.into()));
}
