//! The tx chain has the same functions as the rx chain, with the same effect in both directions.

use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::ledger::LedgerTotals;
use picnic_sim::{CostModel, Simulation, registries};

/// Runs a card whose hosts echo 1000 packets of 64 flows; returns packets by wire, and the ledger.
fn run(tx: &str, wires: usize) -> (Vec<u64>, LedgerTotals) {
    let text = format!(
        "[[wire]]\nport = \"generator\"\npackets = 1000\nflows = 64\n{}\
         [[rx]]\nfunction = \"rss\"\n{tx}\n[host]\nmode = \"echo\"\nqueues = 4\n",
        "[[wire]]\nport = \"generator\"\npackets = 1\n".repeat(wires - 1),
    );
    let file = CardFile::parse(&text, None).unwrap();
    let mut simulation =
        Simulation::new(Launch::new(&file, registries()), 7, CostModel::default()).unwrap();
    let view = simulation.view().clone();
    // Endlessly circulating packets prevent it from ending.
    simulation.run_until(picnic_core::time::Time::from_nanos(5_000_000));
    let (outcome, _) = simulation.finish();
    assert!(outcome.ledger.balanced(), "{tx}: {:?}", outcome.ledger);
    assert_eq!((outcome.buffers_missing, outcome.ledger.in_flight), (0, 0), "{tx}");
    let sent = view.wires.iter().map(|wire| wire.counters.tx_packets.get()).collect();
    (sent, outcome.ledger)
}

#[test]
fn without_functions_packets_leave_by_the_wire_they_came_by() {
    let (sent, ledger) = run("", 2);
    assert_eq!((sent, ledger.delivered), (vec![1000, 1], 1001));
}

#[test]
fn sample_works_on_tx() {
    let sample = "[[tx]]\nfunction = \"sample\"\nevery = 10\ndrop_rest = true\n";
    let (sent, ledger) = run(sample, 1);
    assert_eq!(sent, [100], "{ledger:?}");
    assert_eq!(ledger.drops_by_stage.get("filtered@tx"), Some(&900));
}

#[test]
fn drop_works_on_tx() {
    let (sent, ledger) = run("[[tx]]\nfunction = \"pass\"\n[[tx]]\nfunction = \"drop\"\n", 1);
    assert_eq!((sent, ledger.drops_by_stage.get("filtered@tx")), (vec![0], Some(&1000)));
}

#[test]
fn rss_on_tx_returns_packets_to_the_targets() {
    // Like an embedded switch: no packet reaches a wire, and each is delivered repeatedly.
    let (sent, ledger) = run("[[tx]]\nfunction = \"rss\"\n", 1);
    assert_eq!(sent, [0]);
    assert!(ledger.delivered > 10_000, "{ledger:?}");
    // They were in flight at the end.
    assert!(ledger.drops.keys().all(|&reason| reason == "stopped"), "{ledger:?}");
}
