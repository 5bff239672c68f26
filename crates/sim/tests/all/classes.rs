//! Traffic classes: marks of filters choose lanes, and lanes share a saturated link as configured.

use crate::common::{end, quick, simulation};
use picnic_control::{Report, Running};
use picnic_core::time::Time;
use picnic_filter::{Action, Direction, Filter, FiveTuple, Protocol};

/// Runs a card for 40 ms whose hosts echo a gigabit each of TCP and UDP to a link of a gigabit.
/// Returns the report, and the bytes of each class in the last 30 ms.
fn run(classes: &str) -> (Report, Vec<(String, u64)>) {
    let text = format!(
        "[pool]\nbuffers = 16384\n[host]\nmode = \"echo\"\nqueues = 2\n[[wire]]\n\
         port = \"generator\"\nsize = 1000\nrate_pps = 250000\nflows = 64\ntcp_share = 0.5\n\
         [[wire]]\nport = \"generator\"\npackets = 1\n[wire.link]\nrate_mbps = 1000\n\
         latency_us = 20\n[[rx]]\nfunction = \"rss\"\n[[tx]]\nfunction = \"bond\"\n\
         mode = \"active-backup\"\nwire = 1\n{classes}"
    );
    let (mut simulation, _) = simulation(&text, 1, quick());
    for (name, protocol, mark) in [("tcp", Protocol::TCP, 1), ("udp", Protocol::UDP, 2)] {
        let tuple = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
        let filter = Filter::new(name, tuple, Action::Mark(mark)).on(Direction::Tx);
        simulation.filters().add(filter).unwrap();
    }
    let view = simulation.view().clone();
    let bytes = || -> Vec<(String, u64)> {
        let classes = view.classes.iter().filter(|class| class.wire == "wire1");
        classes.map(|class| (class.name.clone(), class.counters.bytes.get())).collect()
    };
    simulation.run_until(Time::from_nanos(10_000_000));
    let before = bytes();
    simulation.run_until(Time::from_nanos(40_000_000));
    let after = bytes().into_iter().zip(before).map(|((name, now), (_, was))| (name, now - was));
    let after = after.collect();
    (end(simulation), after)
}

fn class(name: &str, mark: u32, keys: &str) -> String {
    format!("[[class]]\nname = \"{name}\"\nmarks = [{mark}]\n{keys}\n")
}

#[test]
fn classes_share_a_saturated_link_by_weight() {
    for (tcp, udp) in [(1, 1), (3, 2), (2, 3)] {
        let classes = class("tcp", 1, &format!("weight = {tcp}"))
            + &class("udp", 2, &format!("weight = {udp}"));
        let (report, bytes) = run(&classes);
        let [(_, first), (_, second), (other, rest)] = &*bytes else { panic!("{bytes:?}") };
        assert_eq!((&**other, *rest), ("other", 0));
        // The link is full, and shares are exact to a turn of both classes.
        assert!(first + second > 3_600_000, "{bytes:?}");
        let off = (first * udp).abs_diff(second * tcp);
        assert!(off <= 4 * 1514 * tcp * udp, "{tcp}:{udp} {bytes:?}");
        let dropped: u64 = report.classes.iter().map(|class| class.dropped).sum();
        assert!(dropped > 1_000 && report.ledger.drops["wire_full"] >= dropped, "{report:?}");
        let groups: Vec<_> =
            report.filter_groups.iter().map(|group| (&*group.group, group.filters)).collect();
        assert_eq!(groups, [("general", 2)]);
        // Every packet has one of the marks; some were dropped at full tx rings before.
        let marked = report.filter_groups[0].packets;
        assert!(marked > 5_000 && marked <= report.ledger.delivered, "{marked} {report:?}");
    }
}

#[test]
fn a_class_of_a_higher_priority_has_the_link() {
    let classes = class("tcp", 1, "weight = 9") + &class("udp", 2, "priority = 1");
    let (report, bytes) = run(&classes);
    let [(first, udp), (_, tcp), _] = &*bytes else { panic!("{bytes:?}") };
    assert_eq!(first, "udp");
    // Half of the packets are UDP: nearly all of the link, and none is dropped.
    assert!(*udp > 20 * tcp, "{bytes:?}");
    let lost = |name: &str| -> u64 {
        report.classes.iter().filter(|class| class.class == name).map(|class| class.dropped).sum()
    };
    assert!(lost("tcp") > 1_000, "{report:?}");
}

#[test]
fn two_runs_agree() {
    let classes = class("tcp", 1, "weight = 2") + &class("udp", 2, "");
    assert_eq!(run(&classes).1, run(&classes).1);
}
