//! `rate-limit` against the virtual scheduling algorithm (GCRA) in exact arithmetic.

use crate::common;
use crate::common::{Card, Packet, build, from_wire_0, refusal};
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_functions::rate_limit::{Action, Config, Per, RateLimit};
use proptest::prelude::*;
use serde_json::{Value, json};

const SECOND: u128 = 1_000_000_000;

fn context() -> BuildContext {
    BuildContext { wires: 3, ..BuildContext::default() }
}

/// One limit as ITU-T I.371 has it: the theoretical arrival time of the next unit, kept in
/// billionths of units so that no rate needs a fraction. Nothing is filled here, so it is not the
/// function's own arithmetic over again.
#[derive(Clone, Copy)]
struct Gcra {
    rate: u128,
    burst: u128,
    next: u128,
}

impl Gcra {
    fn new(rate: u64, burst: u64) -> Gcra {
        Gcra { rate: rate.into(), burst: u128::from(burst) * SECOND, next: 0 }
    }

    /// When `units` conform at the earliest, not before `at`.
    fn earliest(&self, at: u128, units: u128) -> u128 {
        if self.rate == 0 {
            return at;
        }
        let needed = (self.next + units * SECOND).saturating_sub(self.burst);
        at.max(needed.div_ceil(self.rate))
    }

    fn send(&mut self, at: u128, units: u128) {
        self.next = self.next.max(at * self.rate) + units * SECOND;
    }
}

#[derive(Clone, Copy)]
struct Model {
    packets: Gcra,
    bytes: Gcra,
}

impl Model {
    fn new(config: &Config) -> Model {
        Model {
            packets: Gcra::new(config.packets_per_second, config.burst_packets),
            bytes: Gcra::new(config.bytes_per_second, config.burst_bytes),
        }
    }

    fn earliest(&self, at: u128, length: usize) -> u128 {
        self.packets.earliest(at, 1).max(self.bytes.earliest(at, length as u128))
    }

    fn send(&mut self, at: u128, length: usize) {
        self.packets.send(at, 1);
        self.bytes.send(at, length as u128);
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let rate = || prop_oneof![1 => Just(0_u64), 2 => 1..50_u64, 4 => 1000..3_000_000u64];
    (rate(), rate(), 1..9u64, 200..4000u64).prop_map(|(packets, bytes, burst, burst_bytes)| {
        Config {
            per: Per::Wire,
            packets_per_second: packets,
            bytes_per_second: bytes,
            burst_packets: burst,
            burst_bytes,
            waiting_packets: 400,
            ..Config::default()
        }
    })
}

/// Bursts: nanoseconds since the one before, and each packet's wire and length.
fn any_bursts() -> impl Strategy<Value = Vec<(u64, Vec<(u8, usize)>)>> {
    let gap = prop_oneof![Just(0), 1..1000u64, 1..3_000_000u64, 1..3_000_000_000u64];
    let packets = prop::collection::vec((0..3u8, 1..250usize), 0..12);
    prop::collection::vec((gap, packets), 1..20)
}

fn packets_of(burst: &[(u8, usize)]) -> Vec<Packet> {
    burst.iter().map(|&(wire, length)| Packet((wire, vec![7; length]))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn conforming_packets_pass_and_others_are_dropped(config in any_config(), bursts in any_bursts()) {
        let mut limiter = RateLimit::new(&config, &context()).unwrap();
        let mut card = Card::new(&context());
        let mut models = [Model::new(&config); 3];
        let (mut now, mut given, mut dropped) = (0, 0, 0);
        for (gap, burst) in &bursts {
            now += gap;
            card.now = Time::from_nanos(now);
            let seen = card.run(&mut limiter, &packets_of(burst));
            let mut expected = Vec::new();
            for (place, &(wire, length)) in burst.iter().enumerate() {
                let model = &mut models[usize::from(wire)];
                let fits = config.bytes_per_second == 0 || length as u64 <= config.burst_bytes;
                if fits && model.earliest(now.into(), length) == u128::from(now) {
                    model.send(now.into(), length);
                    expected.push(given + place);
                } else {
                    dropped += 1;
                }
            }
            prop_assert_eq!(seen.iter().map(|seen| seen.number).collect::<Vec<_>>(), expected);
            given += burst.len();
        }
        prop_assert_eq!(card.dropped(DropReason::RateLimited), dropped);
    }

    #[test]
    fn paced_packets_leave_in_order_at_the_first_possible_nanosecond(
        config in any_config(),
        bursts in any_bursts(),
    ) {
        let config = Config { action: Action::Pace, ..config };
        let mut limiter = RateLimit::new(&config, &context()).unwrap();
        let mut card = Card::new(&context());
        let mut models = [(Model::new(&config), 0_u128); 3];
        let (mut expected, mut left, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let mut now = 0;
        for (gap, burst) in &bursts {
            let until = Time::from_nanos(now + gap);
            // All that falls due before the burst comes.
            while let Some(due) = limiter.next_deadline().filter(|&due| due < until) {
                card.now = due;
                let seen = card.flush_due(&mut limiter);
                left.extend(seen.iter().map(|seen| (seen.number, due)));
                prop_assert!(limiter.next_deadline() != Some(due), "nothing came of a deadline");
            }
            now += gap;
            card.now = until;
            for &(wire, length) in burst {
                let (model, last) = &mut models[usize::from(wire)];
                // Not before it arrived, nor before its predecessor.
                let may = model.earliest((*last).max(now.into()), length);
                if config.bytes_per_second == 0 || length as u64 <= config.burst_bytes {
                    model.send(may, length);
                    *last = may;
                    expected.push((lengths.len(), Time::from_nanos(may as u64)));
                }
                lengths.push(wire);
            }
            let seen = card.run(&mut limiter, &packets_of(burst));
            left.extend(seen.iter().map(|seen| (seen.number, until)));
        }
        while let Some(due) = limiter.next_deadline() {
            card.now = due;
            left.extend(card.flush_due(&mut limiter).iter().map(|seen| (seen.number, due)));
        }
        prop_assert_eq!(limiter.held(), 0);
        for wire in 0..3 {
            let of = |list: &[(usize, Time)]| -> Vec<_> {
                list.iter().filter(|(number, _)| lengths[*number] == wire).copied().collect()
            };
            prop_assert_eq!(of(&left), of(&expected), "wire {}", wire);
        }
        prop_assert_eq!(left.len(), expected.len());
    }
}

fn call(function: &mut dyn Function, name: &str, arguments: &Value, now: Time) -> Value {
    let command = RateLimit::COMMANDS.iter().find(|command| command.name == name).unwrap();
    let mut order = command.prepare(arguments, &context()).unwrap();
    assert!(function.obey(&mut order, now));
    command.reply(order).unwrap()
}

fn pacer(keys: &str) -> Box<dyn Function> {
    build(&format!("function = \"rate-limit\"\naction = \"pace\"\n{keys}"), &context()).unwrap()
}

#[test]
fn excess_waiting_packets_are_dropped_and_others_flushed() {
    let mut pacer = pacer("packets_per_second = 1\nburst_packets = 1\nwaiting_packets = 3");
    let mut card = Card::new(&context());
    let seen = card.run(pacer.as_mut(), &from_wire_0(vec![vec![1; 60]; 10]));
    assert_eq!(seen.iter().map(|seen| seen.number).collect::<Vec<_>>(), [0]);
    assert_eq!((pacer.held(), card.dropped(DropReason::RateLimited)), (3, 6));
    let counts = call(pacer.as_mut(), "get", &json!({}), Time::ZERO);
    assert_eq!(counts["paced_packets"], 3);
    assert_eq!(counts["waiting_packets"], 3);
    assert_eq!(counts["dropped_packets"], 6);
    // A card that stops lets all of them go, in order.
    let seen = card.flush(pacer.as_mut());
    assert_eq!(seen.iter().map(|seen| seen.number).collect::<Vec<_>>(), [1, 2, 3]);
    // Places are free again.
    card.run(pacer.as_mut(), &from_wire_0(vec![vec![1; 60]; 3]));
    assert_eq!(pacer.held(), 3);
    card.flush(pacer.as_mut());
}

#[test]
fn higher_rates_apply_to_waiting_packets() {
    let mut pacer = pacer("packets_per_second = 1\nburst_packets = 1");
    let mut card = Card::new(&context());
    card.run(pacer.as_mut(), &from_wire_0(vec![vec![1; 60]; 3]));
    assert_eq!(pacer.next_deadline(), Some(Time::from_nanos(1_000_000_000)));
    card.now = Time::from_nanos(1000);
    let before = call(pacer.as_mut(), "set", &json!({ "packets_per_second": 1_000_000 }), card.now);
    assert_eq!(before["packets_per_second"], 1);
    let shown = call(pacer.as_mut(), "get", &json!({}), card.now);
    assert_eq!(shown["packets_per_second"], 1_000_000);
    assert_eq!(shown["burst_packets"], 1);
    // A microsecond at the new rate: one packet, and a deadline for the next.
    let seen = card.flush_due(pacer.as_mut());
    assert_eq!(seen.iter().map(|seen| seen.number).collect::<Vec<_>>(), [1]);
    assert_eq!(pacer.next_deadline(), Some(Time::from_nanos(2000)));
    card.flush(pacer.as_mut());
}

#[test]
fn tx_queues_marks_and_flows_have_their_own_buckets() {
    use common::frames::{Network, Spec, Upper};
    let flow =
        |port: u16| Spec { ports: (port, 80), ..Spec::plain(Network::V4, Upper::Tcp) }.build();
    let limits = "packets_per_second = 1\nburst_packets = 2\n";
    for (per, is_apart) in
        [("all", false), ("wire", false), ("tx-queue", true), ("mark", true), ("flow", true)]
    {
        let text = format!("function = \"rate-limit\"\nper = \"{per}\"\n{limits}");
        let mut limiter = build(&text, &context()).unwrap();
        let packets: Vec<_> = (0..40).map(|place: u16| Packet((0, flow(place % 4)))).collect();
        let seen = Card::new(&context()).run_with(limiter.as_mut(), &packets, |place, packet| {
            packet.set_tx_queue((place % 4) as u8);
            packet.mark = place as u32 % 4;
        });
        assert_eq!(seen.len(), if is_apart { 8 } else { 2 }, "{per}");
    }
}

#[test]
fn wrong_keys_are_refused() {
    for (keys, expected) in [
        ("packets_per_second = 1000000000001", "found 1000000000001, allowed: 0 to 1000000000000"),
        ("burst_packets = 0", "burst_packets: found 0, allowed: 1 to 4294967296"),
        ("burst_bytes = 0", "burst_bytes: found 0, allowed: 1 to 4294967296"),
        ("waiting_packets = 0", "waiting_packets: found 0, allowed: 1 to 65536"),
        ("buckets = 0", "buckets: found 0, allowed: 1 to 1048576"),
        ("per = \"queue\"", "per: found \"queue\", allowed: "),
    ] {
        let error = refusal(&format!("function = \"rate-limit\"\n{keys}"));
        assert!(error.contains(expected), "{keys}: {error}");
    }
}
