//! A host side's messages are in the notes of the run's report.

use picnic_control::Launch;
use picnic_host::{registries, sections};
use picnic_testing::{machine, wait_until};

const PACKETS: u64 = 20_000;

/// The notes of a card after all packets; `fault` is a line of `[wire.fault]`.
fn notes_with(fault: &str, keys: &str) -> Vec<String> {
    let text = format!(
        "[[wire]]\nport = \"generator\"\npackets = {PACKETS}\nflows = 64\nipv6_share = 0.5\n\
         tcp_share = 0.5\nsize = 100\nsequence_numbers = true\n{fault}[host]\nqueues = 2\n{keys}"
    );
    let card = sections().parse(&text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    wait_until("all packets are through", || running.is_finished());
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced());
    assert_eq!((report.ledger.r#in, report.ledger.delivered), (PACKETS, PACKETS));
    report.notes
}

/// The notes of the queues.
fn notes(keys: &str) -> Vec<String> {
    let notes = notes_with("", keys);
    notes.into_iter().filter(|note| note.starts_with("queue ")).collect()
}

/// The number before these words.
fn count(note: &str, words: &str) -> u64 {
    let Some((before, _)) = note.split_once(&format!(" {words}")) else { return 0 };
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn order_check_reports_each_queue() {
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
    assert_eq!(sum, PACKETS);
}

#[test]
fn disabled_order_check_reports_nothing() {
    let _machine = machine();
    assert_eq!(notes(""), [""; 0]);
}

/// A bit flipped anywhere in a packet, also in its number: the packet is counted as damaged, and
/// implies no missing packets.
#[test]
fn corrupted_packets_are_counted_without_false_gaps() {
    let _machine = machine();
    let notes = notes_with("[wire.fault]\ncorrupt = 0.5\n", "verify_order = true");
    let corrupted: u64 = notes.iter().map(|note| count(note, "corrupted")).sum();
    assert!((PACKETS / 3..PACKETS * 2 / 3).contains(&corrupted), "{notes:?}");
    let queues: Vec<_> = notes.iter().filter(|note| note.starts_with("queue ")).collect();
    let sum = |words: &str| queues.iter().map(|note| count(note, words)).sum::<u64>();
    let (damaged, unnumbered) = (sum("with a wrong checksum"), sum("without a sequence number"));
    // Some flips are in bytes without a checksum: the packets' numbers are right.
    let found = damaged + unnumbered;
    assert!(found > corrupted / 2 && found <= corrupted, "{notes:?}");
    assert!(damaged > unnumbered, "{notes:?}");
    assert_eq!(sum("packets in order") + sum("reordered") + found, PACKETS, "{notes:?}");
    assert_eq!(sum("reordered"), 0, "{notes:?}");
    // If the last packets of a flow were damaged, no later one shows the gap.
    let skipped = sum("skipped");
    assert!(skipped <= found && skipped > found / 2, "{notes:?}");
}
