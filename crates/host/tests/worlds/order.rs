//! What a host side has to say stands in the notes of the run's report.

use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

fn notes(keys: &str) -> Vec<String> {
    let text = format!(
        "[[wire]]\nport = \"generator\"\npackets = 20000\nflows = 64\n\
         size = 100\nsequence_numbers = true\n[host]\nqueues = 2\n{keys}"
    );
    let card = CardFile::parse(&text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    wait_until("all packets are through", || running.is_finished());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    report.notes.into_iter().filter(|note| note.starts_with("queue ")).collect()
}

#[test]
fn the_order_check_is_told_queue_by_queue() {
    let _machine = machine();
    let notes = notes("verify_order = true");
    assert_eq!(notes.len(), 2, "{notes:?}");
    let mut sum = 0;
    for (queue, note) in notes.iter().enumerate() {
        let rest = note.strip_prefix(&format!("queue {queue}: ")).unwrap();
        let (packets, rest) = rest.split_once(' ').unwrap();
        assert_eq!(rest, "packets in order, 0 reordered, 0 skipped", "{note}");
        sum += packets.parse::<u64>().unwrap();
    }
    assert_eq!(sum, 20_000);
}

#[test]
fn a_check_that_nobody_asked_for_is_not_told() {
    let _machine = machine();
    assert_eq!(notes(""), [""; 0]);
}
