//! `vmdq` against a naive switch that checks every pool, frame by frame.

use crate::common::{Card, Door, Packet, refusal};
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_functions::vmdq::{Config, Pool, Vmdq};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

const QUEUES: u16 = 8;
const VLANS: [u16; 3] = [0, 10, 20];

fn context() -> BuildContext {
    BuildContext { queues: QUEUES, ..BuildContext::default() }
}

/// Addresses that frames have: 0 to 7 are stations, then a group and all stations.
fn mac(number: u8) -> [u8; 6] {
    match number {
        0..8 => [2, 0, 0, 0, 0, number],
        8 => [0x01, 0, 0x5e, 0, 0, 1],
        _ => [0xff; 6],
    }
}

fn text(number: u8) -> String {
    let bytes: Vec<_> = mac(number).iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[derive(Clone, Debug)]
struct Frame {
    /// The queue that has sent it; else it came from a wire.
    sender: Option<u8>,
    destination: u8,
    source: u8,
    vlan: u16,
    flow: u16,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut frame = [mac(self.destination), mac(self.source)].concat();
        if self.vlan != 0 {
            frame.extend([0x81, 0]);
            frame.extend(self.vlan.to_be_bytes());
        }
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(self.flow.to_be_bytes());
        frame.extend([0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let vlan = prop::sample::select(VLANS.to_vec());
    (prop::option::of(0..QUEUES as u8), 0..10u8, 0..8u8, vlan, 0..4u16).prop_map(
        |(sender, destination, source, vlan, flow)| Frame {
            sender,
            destination,
            source,
            vlan,
            flow,
        },
    )
}

/// Pools whose queues and stations are their own; the last queue and stations are of none.
fn any_config() -> impl Strategy<Value = Config> {
    let vlans =
        prop_oneof![Just(None), prop::sample::subsequence(VLANS.to_vec(), 1..=2).prop_map(Some)];
    let pools = prop::collection::vec((vlans, any::<bool>()), 0..=3);
    (pools, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(pools, has_default, mac_anti_spoofing, vlan_anti_spoofing)| Config {
            default_pool: (has_default && !pools.is_empty()).then_some(0),
            pools: pools
                .into_iter()
                .enumerate()
                .map(|(index, (vlans, broadcast))| Pool {
                    macs: vec![text(2 * index as u8), text(2 * index as u8 + 1)],
                    vlans,
                    queues: vec![2 * index as u16, 2 * index as u16 + 1],
                    broadcast,
                })
                .collect(),
            mac_anti_spoofing,
            vlan_anti_spoofing,
        },
    )
}

/// The fate of a frame: the pools that get it, whether it continues, why it is dropped.
fn naive(config: &Config, frame: &Frame) -> (BTreeSet<usize>, bool, Option<DropReason>) {
    let admits = |pool: &Pool| pool.vlans.as_ref().is_none_or(|vlans| vlans.contains(&frame.vlan));
    let has = |pool: &Pool, number: u8| pool.macs.contains(&text(number));
    let nobody = BTreeSet::new();
    let sender = match frame.sender {
        None => None,
        Some(queue) => {
            let owner = config.pools.iter().position(|pool| pool.queues.contains(&queue.into()));
            let Some(owner) = owner else { return (nobody, true, None) };
            let pool = &config.pools[owner];
            if config.mac_anti_spoofing && !has(pool, frame.source)
                || config.vlan_anti_spoofing && !admits(pool)
            {
                return (nobody, false, Some(DropReason::Spoofed));
            }
            Some(owner)
        }
    };
    let is_group = frame.destination >= 8;
    let is_for = |pool: &Pool| {
        admits(pool) && if is_group { pool.broadcast } else { has(pool, frame.destination) }
    };
    let mut to: BTreeSet<_> =
        (0..config.pools.len()).filter(|&index| is_for(&config.pools[index])).collect();
    match sender {
        Some(owner) if !is_group && to.contains(&owner) => {
            (nobody, false, Some(DropReason::Filtered))
        }
        Some(owner) => {
            to.remove(&owner);
            let goes_on = is_group || to.is_empty();
            (to, goes_on, None)
        }
        None => {
            if to.is_empty() {
                to.extend(config.default_pool.map(usize::from));
            }
            let goes_on = to.is_empty();
            (to, goes_on, None)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_frame_goes_as_in_a_naive_switch(
        config in any_config(),
        frames in prop::collection::vec(any_frame(), 0..=32),
    ) {
        let mut vmdq = Vmdq::new(&config, &context()).unwrap();
        let mut card = Card::new(&context());
        let packets: Vec<_> = frames.iter().map(|frame| Packet((0, frame.bytes()))).collect();
        let seen = card.run_with(&mut vmdq, &packets, |place, packet| {
            if let Some(queue) = frames[place].sender {
                packet.set_tx_queue(queue);
            }
        });
        let (mut spoofed, mut filtered) = (0, 0);
        for (number, frame) in frames.iter().enumerate() {
            let (to, goes_on, dropped) = naive(&config, frame);
            let of = || seen.iter().filter(|packet| packet.number == number);
            let reached: Vec<_> = of()
                .filter_map(|packet| match packet.door {
                    Door::Queue(queue) => Some(usize::from(queue) / 2),
                    _ => None,
                })
                .collect();
            // Each pool once.
            prop_assert_eq!(reached.len(), to.len());
            prop_assert_eq!(reached.into_iter().collect::<BTreeSet<_>>(), to, "{:?}", frame);
            prop_assert_eq!(of().filter(|packet| packet.door == Door::Next).count() == 1, goes_on);
            prop_assert!(of().all(|packet| packet.data == packets[number].0.1));
            spoofed += u64::from(dropped == Some(DropReason::Spoofed));
            filtered += u64::from(dropped == Some(DropReason::Filtered));
        }
        prop_assert_eq!(card.dropped(DropReason::Spoofed), spoofed);
        prop_assert_eq!(card.dropped(DropReason::Filtered), filtered);
        // Within a pool, a flow has one queue and keeps its order there.
        let (mut doors, mut last) = (HashMap::new(), HashMap::new());
        for packet in &seen {
            let Door::Queue(queue) = packet.door else { continue };
            let flow = (frames[packet.number].flow, queue / 2);
            prop_assert_eq!(*doors.entry(flow).or_insert(queue), queue);
            if let Some(before) = last.insert((queue, flow), packet.number) {
                prop_assert!(before < packet.number);
            }
        }
    }
}

fn two_pools() -> Config {
    let pool = |index: u8| Pool {
        macs: vec![text(index)],
        queues: vec![2 * u16::from(index), 2 * u16::from(index) + 1],
        ..Pool::default()
    };
    Config { pools: vec![pool(0), pool(1)], ..Config::default() }
}

#[test]
fn flows_are_spread_inside_a_pool() {
    let mut vmdq = Vmdq::new(&two_pools(), &context()).unwrap();
    let frame = |flow| Frame { sender: None, destination: 1, source: 5, vlan: 0, flow };
    let packets: Vec<_> = (0..64).map(|flow| Packet((0, frame(flow).bytes()))).collect();
    let seen = Card::new(&context()).run(&mut vmdq, &packets);
    let count = |queue| seen.iter().filter(|packet| packet.door == Door::Queue(queue)).count();
    assert_eq!(count(2) + count(3), 64);
    assert!(count(2) >= 16 && count(3) >= 16, "{} and {}", count(2), count(3));
}

#[test]
fn frames_shorter_than_their_header_have_no_pool() {
    let mut vmdq = Vmdq::new(&two_pools(), &context()).unwrap();
    let frame = Frame { sender: None, destination: 0, source: 7, vlan: 0, flow: 0 }.bytes();
    let lengths = [(6, false), (13, false), (14, true)];
    let packets = lengths.map(|(length, _)| Packet((0, frame[..length].to_vec())));
    let seen = Card::new(&context()).run(&mut vmdq, &packets);
    for (length, is_its) in lengths {
        let packet = seen.iter().find(|packet| packet.data.len() == length).unwrap();
        assert_eq!(matches!(packet.door, Door::Queue(0 | 1)), is_its, "{length}: {packet:?}");
    }
}

#[test]
fn pools_are_replaced_while_it_runs() {
    let mut vmdq = Vmdq::new(&two_pools(), &context()).unwrap();
    let mut card = Card::new(&context());
    let frame = Frame { sender: None, destination: 1, source: 5, vlan: 0, flow: 1 }.bytes();
    let door =
        |card: &mut Card, vmdq: &mut Vmdq| card.run(vmdq, &[Packet((0, frame.clone()))])[0].door;
    assert!(matches!(door(&mut card, &mut vmdq), Door::Queue(2 | 3)));
    let replace = Vmdq::COMMANDS.iter().find(|command| command.name == "replace").unwrap();
    let pools = json!({ "pools": [{ "macs": [text(1)], "queues": [7] }] });
    let mut order = replace.prepare(&pools, &context()).unwrap();
    assert!(vmdq.obey(&mut order, Time::ZERO));
    assert_eq!(replace.reply(order).unwrap(), json!({ "pools": 1, "replaced": 2 }));
    assert_eq!(door(&mut card, &mut vmdq), Door::Queue(7));
}

#[test]
fn wrong_pools_are_refused() {
    let a = "macs = [\"02:00:00:00:00:01\"], vlans = [1, 2], queues = [0]";
    for (pools, expected) in [
        ("{ queues = [4] }".to_owned(), "pools[0].queues[0]: found queue 4, allowed: 0 to 3"),
        ("{ macs = [] }".into(), "pools[0].queues: missing, expected one or more queues"),
        (
            "{ queues = [1] }, { queues = [2, 1] }".into(),
            "pools[1].queues[1]: found queue 1, which is that of pool 0",
        ),
        (
            "{ queues = [1], vlans = [4096] }".into(),
            "pools[0].vlans[0]: found 4096, allowed: 0 to 4095",
        ),
        (
            "{ queues = [1], macs = [\"ff:ff:ff:ff:ff:ff\"] }".into(),
            "pools[0].macs[0]: found \"ff:ff:ff:ff:ff:ff\", allowed: ",
        ),
        ("{ queues = [1], macs = [\"02:0:00:00:00:001\"] }".into(), "pools[0].macs[0]: found"),
        ("{ queues = [1], macs = [\"+2:00:00:00:00:01\"] }".into(), "pools[0].macs[0]: found"),
        (
            format!("{{ {a} }}, {{ macs = [\"02:00:00:00:00:01\"], vlans = [2], queues = [1] }}"),
            "pools[1].macs[0]: found 02:00:00:00:00:01, which another pool has on VLAN 2 too",
        ),
    ] {
        let error = refusal(&format!("function = \"vmdq\"\npools = [{pools}]"));
        assert!(error.contains(expected), "{pools}: {error}");
    }
    // The same address on other VLANs is another station.
    let apart =
        format!("{{ {a} }}, {{ macs = [\"02:00:00:00:00:01\"], vlans = [3], queues = [1] }}");
    let answer = refusal(&format!("function = \"vmdq\"\npools = [{apart}]"));
    assert!(answer.starts_with("accepted"), "{answer}");
    assert!(refusal("function = \"vmdq\"\ndefault_pool = 0").contains("default_pool: found 0"));
}
