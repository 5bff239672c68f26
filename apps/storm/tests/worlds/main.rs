//! Groups over UDP on this machine.
#![allow(missing_docs)]

mod killed;

use picnic_storm::bench::{self, BenchError, Load, Outcome};
use picnic_storm::cards;
use picnic_storm::log::Log;
use picnic_storm::node::Node;
use picnic_storm::{Settings, check};
use picnic_testing::machine;
use std::net::SocketAddr;
use std::time::Duration;

/// Five members under load until this is enough. Members that have no core for a while need longer.
fn loaded(
    (loss, all_send): (f64, bool),
    run: impl Fn(&Load) -> Result<Outcome, BenchError>,
    is_enough: impl Fn(&Outcome) -> bool,
) -> Outcome {
    for milliseconds in [300, 1_200, 4_800, 19_200] {
        let load = Load {
            members: 5,
            all_send,
            payload_bytes: 64,
            window_messages: 8,
            loss,
            seed: 1,
            duration: Duration::from_millis(milliseconds),
        };
        match run(&load) {
            Ok(outcome) if is_enough(&outcome) => return outcome,
            Ok(_) | Err(BenchError::Nothing) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("never enough");
}

#[test]
fn five_members_on_loopback_agree_and_repeat_lost_messages() {
    let _machine = machine();
    for (loss, all_send) in [(0.0, false), (0.01, true)] {
        let is_enough =
            |outcome: &Outcome| outcome.messages > 50 && (outcome.repeats > 0 || loss == 0.0);
        let outcome = loaded((loss, all_send), bench::run, is_enough);
        assert!(outcome.latency_last_ns.p50 >= outcome.latency_sender_ns.p50 / 2);
    }
}

#[test]
fn five_members_on_cards_agree_and_repeat_lost_messages() {
    let _machine = machine();
    for (loss, all_send) in [(0.0, false), (0.01, true)] {
        // Compares the orders of all members, and checks every ledger.
        let is_enough = |outcome: &Outcome| outcome.messages > 50;
        let outcome = loaded((loss, all_send), cards::on_cores, is_enough);
        let of_core = outcome.borrowed_core_ns_per_message;
        assert!(of_core.is_none_or(|ns| ns > 1.0), "{outcome:?}");
        println!("{outcome:?}");
    }
}

/// Members take turns until each has delivered all, each with a log; the checker reads the logs.
#[test]
fn logs_of_members_pass_the_check_and_an_edited_one_does_not() {
    let _machine = machine();
    let names = ["a", "b", "c"].map(String::from).to_vec();
    // No other process has this address, nor do ports below 32768 go to those that ask for any.
    let [.., high, low] = std::process::id().to_be_bytes();
    let addresses = [7001, 7002, 7003].map(|port| SocketAddr::from(([127, 86, high, low], port)));
    let mut texts = [0, 1, 2].map(|me| (Log::new(Vec::new(), &names, me).unwrap(), 0));
    let mut nodes = [0, 1, 2].map(|me| {
        let settings = Settings { members: names.clone(), me, ..Settings::default() };
        Node::new(settings, &addresses).unwrap().losing(0.2, 7)
    });
    let mut round = 0;
    while texts.iter().any(|(_, delivered)| *delivered < 150) {
        for (node, (log, delivered)) in nodes.iter_mut().zip(&mut texts) {
            node.receive().unwrap();
            while let Some(delivery) = node.deliver() {
                log.delivered(&delivery).unwrap();
                *delivered += 1;
            }
            if round < 50 {
                log.submitted(node.member().submit(b"text").unwrap()).unwrap();
            }
            node.send().unwrap();
        }
        round += 1;
        assert!(round < 10_000_000, "the group is stuck");
    }
    let texts = texts.map(|(mut log, _)| {
        log.end().unwrap();
        String::from_utf8(log.into_inner()).unwrap()
    });
    let read = |text| check::read("log", text).unwrap();
    let report = check::compare(&texts.each_ref().map(|text| read(text.as_str())));
    assert_eq!(report.problems, [""; 0]);
    assert!(report.members.iter().all(|member| (member.submitted, member.delivered) == (50, 150)));
    let edited = texts[1].replacen("deliver a", "deliver b", 1);
    let report = check::compare(&[&texts[0], &edited, &texts[2]].map(|text| read(text)));
    assert!(!report.problems.is_empty());
}
