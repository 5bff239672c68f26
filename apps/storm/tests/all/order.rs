//! The promises of a group, over thousands of seeds.

use crate::network::{Network, Weather, settings};
use picnic_storm::{Settings, SubmitError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

const CALM: Weather = Weather { latency_ns: (1000, 0), loss_percent: 0, twice_percent: 0 };

/// A message of a test: its sender, its number there, and the delivered count of each sender's
/// messages when it was submitted.
fn payload(sender: usize, number: u64, seen: &[u64], length: usize) -> Vec<u8> {
    let mut payload = vec![sender as u8];
    payload.extend(number.to_le_bytes());
    seen.iter().for_each(|count| payload.extend(count.to_le_bytes()));
    payload.resize(payload.len().max(length), 0x5a);
    payload
}

fn number_at(payload: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(payload[1 + 8 * place..9 + 8 * place].try_into().unwrap())
}

/// Every member's log against every promise that holds at any time.
fn check_logs(network: &Network, seed: u64) {
    let count = network.members.len();
    let longest = network.logs.iter().max_by_key(|log| log.len()).unwrap();
    for (member, log) in network.logs.iter().enumerate() {
        assert_eq!(log[..], longest[..log.len()], "seed {seed}: member {member} has another order");
    }
    let mut delivered = vec![0; count];
    let mut before = None;
    for message in longest {
        let sender = usize::from(message.sender);
        assert_eq!(usize::from(message.payload[0]), sender, "seed {seed}");
        assert_eq!(number_at(&message.payload, 0), delivered[sender], "seed {seed}: per sender");
        for (other, delivered) in delivered.iter().enumerate() {
            let seen = number_at(&message.payload, 1 + other);
            assert!(seen <= *delivered, "seed {seed}: a message before its cause");
        }
        assert!(before < Some((message.timestamp, message.sender)), "seed {seed}: by timestamp");
        before = Some((message.timestamp, message.sender));
        delivered[sender] += 1;
    }
}

/// A run with random traffic in bad weather, then calm: its trace.
fn run(seed: u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let weather = Weather {
        latency_ns: (1000, random.random_range(0..30_000)),
        loss_percent: random.random_range(0..30),
        twice_percent: random.random_range(0..20),
    };
    let settings = Settings {
        announce_after_ns: [0, 5000, 200_000][random.random_range(0..3)],
        ..settings(random.random_range(2..=5))
    };
    let mut network = Network::new(seed, &settings, weather);
    let count = network.members.len();
    let mut submitted = vec![0; count];
    let mut seen: Vec<Vec<u64>> = vec![vec![0; count]; count];
    for _ in 0..120 {
        let member = network.random.random_range(0..count);
        network.appetite[member] = [0, 1, usize::MAX][network.random.random_range(0..3)];
        for _ in 0..network.random.random_range(0..4) {
            seen[member] = vec![0; count];
            network.logs[member].iter().for_each(|m| seen[member][usize::from(m.sender)] += 1);
            let length = network.random.random_range(0..200);
            let message = payload(member, submitted[member], &seen[member], length);
            match network.members[member].submit(&message) {
                Ok(_) => submitted[member] += 1,
                Err(error) => assert_eq!(error, SubmitError::Full),
            }
        }
        network.serve(member);
        for _ in 0..network.random.random_range(0..12) {
            network.step();
        }
    }
    check_logs(&network, seed);
    network.weather = CALM;
    network.appetite.fill(usize::MAX);
    network.settle();
    check_logs(&network, seed);
    for (member, log) in network.logs.iter().enumerate() {
        let total: u64 = submitted.iter().sum();
        assert_eq!(log.len() as u64, total, "seed {seed}: member {member} lacks messages");
        assert_eq!(network.members[member].counts().submitted, submitted[member]);
    }
    network.trace()
}

#[test]
fn any_weather_leaves_one_order_that_is_complete_once_loss_ends() {
    for seed in 0..3000 {
        let trace = run(seed);
        if seed % 10 == 0 {
            assert_eq!(trace, run(seed), "seed {seed}: two runs differ");
        }
    }
}

#[test]
fn slow_member_holds_senders_back_until_it_delivers() {
    let mut network = Network::new(1, &settings(3), CALM);
    network.appetite[2] = 0;
    let mut sent = 0;
    for _ in 0..200 {
        sent += u64::from(network.members[0].submit(&[7; 100]).is_ok());
        network.settle_for(100_000);
    }
    // A message of 100 bytes takes eight units of the 256 of the window.
    assert_eq!(sent, 256 / 8);
    assert_eq!(network.members[0].counts().window_full, 200 - sent);
    assert_eq!((network.logs[1].len() as u64, network.logs[2].len()), (sent, 0));
    network.appetite[2] = usize::MAX;
    network.serve(2);
    network.settle();
    assert!(network.members[0].submit(&[7; 100]).is_ok());
    network.settle();
    assert!(network.logs.iter().all(|log| log.len() as u64 == sent + 1));
}

#[test]
fn one_clock_packet_answers_a_batch() {
    let mut network = Network::new(1, &settings(5), CALM);
    for number in 0..30u8 {
        network.members[0].submit(&[number; 16]).unwrap();
    }
    network.settle();
    assert!(network.logs.iter().all(|log| log.len() == 30));
    // Two data packets of 600 bytes; both may come in one batch.
    for member in &network.members[1..] {
        let clocks = member.counts().clocks_sent;
        assert!((1..=3).contains(&clocks), "{clocks} clocks for two packets");
    }
}

#[test]
fn different_settings_and_other_groups_are_distinguished() {
    let base = settings(3);
    let mut sender = Network::new(1, &base, CALM).members.remove(0);
    sender.submit(b"x").unwrap();
    let mut packet = [0; 600];
    let (_, length) = sender.transmit(picnic_core::time::Time::ZERO, &mut packet).unwrap();
    let others = [
        (Settings { me: 1, group: 9, ..base.clone() }, (0, 1, 0)),
        (Settings { me: 1, window_bytes: 8192, ..base.clone() }, (0, 1, 0)),
        (
            Settings { me: 1, members: ["a", "b", "c"].map(String::from).into(), ..base.clone() },
            (0, 1, 0),
        ),
        (Settings { me: 0, ..base.clone() }, (0, 0, 1)),
        (Settings { me: 1, ..base.clone() }, (1, 0, 0)),
    ];
    let mut kinds = BTreeMap::new();
    for (settings, expected) in others {
        let mut member = picnic_storm::Member::new(settings).unwrap();
        let result = member.receive(picnic_core::time::Time::ZERO, &packet[..length]);
        let counts = member.counts();
        assert_eq!((counts.packets_received, counts.foreign, counts.twins), expected);
        if let Err(refusal) = result {
            *kinds.entry(refusal.to_string()).or_insert(0) += 1;
        }
    }
    assert_eq!(kinds.values().copied().collect::<Vec<_>>(), [1, 1, 2]);
}
