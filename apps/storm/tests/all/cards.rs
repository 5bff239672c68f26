//! Members on cards in the simulator: properties over seeds of a bad network.

use picnic_core::command::Prepared;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_os::control::TaskControl;
use picnic_os::task::TaskId;
use picnic_sim::SwitchConfig;
use picnic_storm::bench::Load;
use picnic_storm::card::load::{Costs, Place};
use picnic_storm::cards::{Model, SimGroup, in_sim};
use std::time::Duration;

pub(crate) fn model(network: SwitchConfig) -> Model {
    let behind_card = Costs { receive_ns: 300, send_ns: 300, message_ns: 50, ..Costs::default() };
    Model {
        profile: None,
        network,
        behind_card,
        on_host: Costs { receive_ns: 2_000, send_ns: 2_000, packet_ns: 200, ..behind_card },
        card_packet_ns: 200,
        card_message_ns: 100,
        repeat_after_ns: 200_000,
        suspect_after_ns: 0,
    }
}

pub(crate) fn load(seed: u64) -> Load {
    Load {
        members: 3 + (seed % 3) as usize,
        all_send: seed.is_multiple_of(2),
        payload_bytes: [16, 64, 512, 1400][(seed / 2 % 4) as usize],
        window_messages: [1, 8, 64][(seed / 8 % 3) as usize],
        loss: 0.0,
        seed,
        duration: Duration::from_millis(3),
    }
}

#[test]
fn members_on_cards_and_hosts_deliver_one_order() {
    for place in [Place::Card, Place::Host] {
        for seed in 0..24 {
            let outcome = in_sim(&load(seed), place, &model(SwitchConfig::default()));
            let outcome = outcome.unwrap_or_else(|error| panic!("{place:?}, seed {seed}: {error}"));
            assert!(outcome.messages > 10, "{place:?}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn a_host_is_woken_for_ordered_messages_only() {
    for seed in 0..8 {
        // One sender with a window of one: each message is a batch, and causes clocks of all members.
        let load = Load { all_send: false, window_messages: 1, ..load(seed) };
        let run = |place| in_sim(&load, place, &model(SwitchConfig::default())).unwrap();
        let (card, host) = (run(Place::Card), run(Place::Host));
        // One more for the view, by which the card says that it is ready.
        let most = 1.0 + 1.0 / card.messages as f64 + 1e-9;
        assert!(card.sleeps_per_message <= most, "seed {seed}: {card:?}");
        assert!(host.sleeps_per_message > most, "seed {seed}: {host:?}");
    }
}

/// A run on a bad network, with a partition in its middle: the trace.
fn bad(seed: u64, place: Place) -> u64 {
    let network = SwitchConfig {
        loss: 0.01 * (seed % 5) as f64,
        duplicate: 0.05,
        reorder: 0.1,
        ..SwitchConfig::default()
    };
    let load = Load { loss: network.loss, ..load(seed) };
    let mut group = SimGroup::new(&load, place, &model(network)).unwrap();
    group.cluster.run_until(Time::from_nanos(3_000_000));
    group.cluster.partition(&[0, 0, 1]);
    group.cluster.run_until(Time::from_nanos(3_700_000));
    group.cluster.partition(&[]);
    group.cluster.run_until(Time::from_nanos(8_000_000));
    group.cluster.set_network(SwitchConfig::default());
    // Once loss ends, everything submitted is delivered.
    let submitted =
        |group: &SimGroup| group.sides.iter().map(|side| side.seen().submitted as usize).sum();
    while group.sides.iter().any(|side| {
        let whole: usize = submitted(&group);
        side.seen().samples.len() < whole
    }) {
        let next = group.cluster.now() + 1_000_000;
        assert!(next < Time::from_nanos(100_000_000), "{place:?}, seed {seed}: not delivered");
        group.cluster.run_until(next);
    }
    let counts = group.cluster.counts();
    assert!(counts.duplicated > 0 && counts.delayed > 0 && counts.cut > 0, "{counts:?}");
    let hash = group.cluster.trace_hash();
    // Compares the orders of all members, and checks every ledger.
    group.finish(&load).unwrap_or_else(|error| panic!("{place:?}, seed {seed}: {error}"));
    hash
}

#[test]
fn a_bad_network_changes_nothing_in_the_order() {
    for place in [Place::Card, Place::Host] {
        for seed in 0..40 {
            let trace = bad(seed, place);
            if seed % 10 == 0 {
                assert_eq!(bad(seed, place), trace, "{place:?}, seed {seed}: two runs differ");
            }
        }
    }
}

#[test]
fn a_killed_task_takes_nothing_with_it_and_the_others_go_on() {
    for seed in 0..12 {
        let model = Model { suspect_after_ns: 1_000_000, ..model(SwitchConfig::default()) };
        let load = Load {
            members: 5,
            all_send: true,
            payload_bytes: 64,
            window_messages: 8,
            duration: Duration::from_millis(30),
            ..load(seed)
        };
        let mut group = SimGroup::new(&load, Place::Card, &model).unwrap();
        let killed = seed as usize % 5;
        let at = Time::from_nanos(12_000_000 + seed * 3_777);
        let kill = Command::Resident(Prepared::new(TaskControl::Kill(TaskId(1))));
        group.cluster.card(killed).at(at, kill);
        group.cluster.run_until(at + 100_000);
        let seen = |group: &SimGroup, side: usize| -> Vec<(u8, u32)> {
            let seen = group.sides[side].seen();
            seen.samples.iter().map(|(sender, number, ..)| (*sender, *number)).collect()
        };
        let before = seen(&group, (killed + 1) % 5).len();
        assert!(before > 0, "seed {seed}: no view before the kill");
        group.cluster.run_until(Time::from_nanos(60_000_000));
        let orders: Vec<Vec<(u8, u32)>> = (0..5).map(|side| seen(&group, side)).collect();
        let longest = orders.iter().max_by_key(|order| order.len()).unwrap();
        for (member, order) in orders.iter().enumerate() {
            assert_eq!(order[..], longest[..order.len()], "seed {seed}, member {member}");
            let is_whole = order.len() == longest.len();
            assert!(
                is_whole || member == killed,
                "seed {seed}, member {member}: not all delivered"
            );
        }
        assert!(longest.len() > before + 50, "seed {seed}: the others do not go on");
        for (report, _) in group.cluster.finish() {
            assert!(report.ledger.balanced(), "seed {seed}: {:?}", report.ledger);
            assert_eq!(report.buffers_missing, 0, "seed {seed}");
        }
    }
}
