//! Every bad key, by its exact message; and the effects of good keys.

use crate::common::{Card, Door, Packet, Seen, build, refusal};
use picnic_core::ledger::DropReason;
use picnic_core::registry::BuildContext;

#[test]
fn rss_errors_are_exact() {
    let cases = [
        ("hash = \"crc\"", "hash: found \"crc\", allowed: toeplitz, jhash, lookup2"),
        ("key = \"6d5a\"", "key: hash key has 2 bytes, allowed: 40 to 64"),
        ("key = \"6d5\"", "key: hash key has 3 hex digits; two are needed for each byte"),
        (
            "key = \"6g\"",
            "key: hash key has 'g' at character 1, allowed: hex digits, two to a byte, with or without ':' between bytes",
        ),
        ("key = 5", "key: found 5, allowed: text in quotes"),
        ("jhash_init = 1", "jhash_init: allowed only with hash = \"jhash\" or \"lookup2\""),
        ("table_size = 0", "table_size: found 0, allowed: 1 to 4096"),
        ("table_size = 4097", "table_size: found 4097, allowed: 1 to 4096"),
        ("table = []", "table: found 0 entries, allowed: 1 to 4096"),
        ("table = [0, 1, 4, 9]", "table[2]: found queue 4, allowed: 0 to 3"),
        (
            "types = [\"ipv4\", \"sctp-ipv4\"]",
            "types[1]: found \"sctp-ipv4\", allowed: ipv4, tcp-ipv4, udp-ipv4, ipv6, tcp-ipv6, udp-ipv6; \
             did you mean \"tcp-ipv4\"?",
        ),
        ("default_queue = 4", "default_queue: found queue 4, allowed: 0 to 3"),
    ];
    for (line, message) in cases {
        assert_eq!(refusal(&format!("function = \"rss\"\n{line}")), format!("card:2: {message}"));
    }
    let key = "ab".repeat(40);
    let cases = [
        (
            format!("key = \"{key}\"\nsymmetric = true"),
            "symmetric: found together with a key, allowed: one of the two",
        ),
        (
            format!("hash = \"jhash\"\nkey = \"{key}\""),
            "key: allowed only with hash = \"toeplitz\"",
        ),
        (
            "hash = \"lookup2\"\nsymmetric = true".into(),
            "symmetric: allowed only with hash = \"toeplitz\"",
        ),
        (
            "table = [0, 1]\ntable_size = 4".into(),
            "table_size: found 4, allowed with `table`: its length, 2",
        ),
    ];
    for (lines, message) in cases {
        assert_eq!(refusal(&format!("function = \"rss\"\n{lines}")), format!("card:3: {message}"));
    }
}

#[test]
fn table_entries_have_their_own_line() {
    let text = "function = \"rss\"\ntable = [\n  0,\n  1,\n  17,\n]";
    assert_eq!(refusal(text), "card:5: table[2]: found queue 17, allowed: 0 to 3");
}

#[test]
fn table_may_state_its_size() {
    let text = "function = \"rss\"\ntable = [0, 1, 2]\ntable_size = 3";
    assert!(build(text, &BuildContext::default()).is_ok());
}

#[test]
fn by_wire_and_sample_errors_are_exact() {
    let cases = [
        (
            "by-wire",
            "queues = [1]",
            "queues: found 1 queues, allowed: one queue for each of 2 wires",
        ),
        ("by-wire", "queues = [1, 4]", "queues[1]: found queue 4, allowed: 0 to 3"),
        ("sample", "every = 0", "every: found 0, allowed: 1 or more"),
        ("sample", "queue = 4", "queue: found queue 4, allowed: 0 to 3"),
        ("sample", "random = 1", "random: found 1, allowed: true or false"),
    ];
    for (function, line, message) in cases {
        let text = format!("function = \"{function}\"\n{line}");
        assert_eq!(refusal(&text), format!("card:2: {message}"));
    }
}

fn packets(count: usize, wires: u8) -> Vec<Packet> {
    (0..count).map(|i| Packet((i as u8 % wires, vec![i as u8; 60]))).collect()
}

fn run(text: &str, context: &BuildContext, bursts: usize) -> (Vec<Seen>, Card) {
    let mut function = build(text, context).unwrap();
    let mut card = Card::new(context);
    let seen = (0..bursts)
        .flat_map(|_| card.run(function.as_mut(), &packets(40, context.wires)))
        .collect();
    (seen, card)
}

#[test]
fn by_wire_sends_each_wire_to_its_queue() {
    let context = BuildContext { wires: 6, ..BuildContext::default() };
    let (seen, _) = run("function = \"by-wire\"", &context, 1);
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|packet| packet.door == Door::Queue(packet.data[0] as u16 % 6 % 4)));
    let context = BuildContext { wires: 3, ..BuildContext::default() };
    let (seen, _) = run("function = \"by-wire\"\nqueues = [3, 0, 3]", &context, 1);
    let queue_of = [3, 0, 3];
    let right = |packet: &Seen| packet.door == Door::Queue(queue_of[packet.number % 3]);
    assert!(seen.len() == 40 && seen.iter().all(right));
}

#[test]
fn dropped_packets_are_counted_as_filtered() {
    let (seen, card) = run("function = \"drop\"", &BuildContext::default(), 2);
    assert_eq!((seen.len(), card.dropped(DropReason::Filtered)), (0, 80));
}

#[test]
fn sample_counts_across_bursts() {
    let context = BuildContext::default();
    let (seen, _) = run("function = \"sample\"\nevery = 30\nmark = 9", &context, 3);
    let marked = |packet: &&Seen| packet.mark == 9;
    let numbers: Vec<_> = seen.iter().filter(marked).map(|packet| packet.number).collect();
    assert_eq!((seen.len(), numbers), (120, vec![0, 30, 60, 90]));
    assert!(seen.iter().all(|packet| packet.door == Door::Next && [0, 9].contains(&packet.mark)));
}

#[test]
fn sample_steers_selected_packets_and_may_drop_the_rest() {
    let context = BuildContext::default();
    let text = "function = \"sample\"\nevery = 8\nqueue = 2\ndrop_rest = true";
    let (seen, card) = run(text, &context, 2);
    assert_eq!((seen.len(), card.dropped(DropReason::Filtered)), (10, 70));
    assert!(seen.iter().all(|packet| packet.door == Door::Queue(2) && packet.number % 8 == 0));
}

#[test]
fn sample_of_one_takes_every_packet() {
    for random in [false, true] {
        let text = format!("function = \"sample\"\nevery = 1\nrandom = {random}");
        let (seen, _) = run(&text, &BuildContext::default(), 1);
        assert!(seen.len() == 40 && seen.iter().all(|packet| packet.mark == 1));
    }
}

#[test]
fn random_samples_follow_the_seed_and_the_rate() {
    let text = "function = \"sample\"\nevery = 10\nrandom = true";
    let numbers = |seed, position| {
        let context = BuildContext { seed, position, ..BuildContext::default() };
        let (seen, _) = run(text, &context, 250);
        let taken = seen.iter().filter(|packet| packet.mark == 1);
        taken.map(|packet| packet.number).collect::<Vec<_>>()
    };
    let one = numbers(1, 0);
    assert_eq!(one, numbers(1, 0));
    assert_ne!(one, numbers(2, 0));
    assert_ne!(one, numbers(1, 1));
    // 10,000 packets at 1 in 10: the standard deviation is 30, five of them are allowed.
    assert!((850..=1150).contains(&one.len()), "{}", one.len());
}
