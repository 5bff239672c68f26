//! Every drop reason has its cause: without the cause there are no such drops.

use picnic_control::Launch;
use picnic_core::config::{Sections, Setting};
use picnic_core::ledger::DropReason;
use picnic_core::time::Time;
use picnic_sim::{CostModel, Simulation, registries};
use std::collections::BTreeMap;

/// A card, and one key of it with two values: the first causes drops for this reason, the second
/// none.
struct Cause {
    reason: DropReason,
    key: &'static str,
    values: [&'static str; 2],
    card: &'static str,
}

/// A packet rate above the capacity of these tests' borrowed core (500 ns per packet).
const FAST: &str = "[[wire]]\nport = \"generator\"\nrate_pps = 8000000\npackets = 20000\n";
/// A packet rate below it.
const SLOW: &str =
    "[[wire]]\nport = \"generator\"\nrate_pps = 500000\npackets = 2000\nsize = 200\n";

const CAUSES: &[Cause] = &[
    Cause {
        reason: DropReason::BacklogFull,
        key: "wire[0].backlog",
        values: ["1024", "65536"],
        card: FAST,
    },
    Cause {
        reason: DropReason::LinkFull,
        key: "wire[0].link.queue_packets",
        values: ["16", "4096"],
        card: "[[wire]]\nport = \"generator\"\nrate_pps = 200000\npackets = 2000\nsize = 1514\n\
               [wire.link]\n",
    },
    Cause {
        reason: DropReason::PoolExhausted,
        key: "pool.buffers",
        values: ["128", "16384"],
        card: "[host]\ncost_ns = 4000\n[[wire]]\nport = \"generator\"\nrate_pps = 1500000\n\
               packets = 5000\n",
    },
    Cause {
        reason: DropReason::RingFull,
        key: "host.ring_size",
        values: ["64", "16384"],
        card: "[pool]\nbuffers = 32768\n[host]\ncost_ns = 4000\n[[wire]]\nport = \"generator\"\n\
               rate_pps = 1500000\npackets = 5000\n",
    },
    Cause {
        reason: DropReason::HostRefused,
        key: "interrupt.gate",
        values: ["none", "queue"],
        card: "[host]\ncost_ns = 4000\nring_size = 16384\nqueues = 1\n[interrupt]\nrx_usecs = 0\n\
               [[wire]]\nport = \"generator\"\nrate_pps = 500000\npackets = 5000\n",
    },
    Cause {
        reason: DropReason::Filtered,
        key: "rx[0].untagged",
        values: ["false", "true"],
        card: "[[rx]]\nfunction = \"vlan\"\nallow = [7]\n",
    },
    Cause {
        reason: DropReason::RateLimited,
        key: "rx[0].packets_per_second",
        values: ["1000", "1000000000"],
        card: "[[rx]]\nfunction = \"rate-limit\"\n",
    },
    Cause {
        reason: DropReason::Spoofed,
        key: "tx[0].mac_anti_spoofing",
        values: ["true", "false"],
        card: "[host]\nmode = \"echo\"\nqueues = 1\n[[tx]]\nfunction = \"vmdq\"\n\
               pools = [{ macs = [\"02:00:00:00:00:77\"], queues = [0] }]\n",
    },
    Cause {
        reason: DropReason::BadChecksum,
        key: "wire[0].fault.corrupt",
        values: ["0.9", "0.0"],
        card: "[[rx]]\nfunction = \"checksum\"\ndrop_bad = true\n",
    },
    Cause {
        reason: DropReason::NoRoom,
        key: "pool.headroom",
        values: ["0", "64"],
        card: "[[rx]]\nfunction = \"vlan\"\ninsert = \"all\"\nidentifier = 9\n",
    },
    Cause {
        reason: DropReason::Fault,
        key: "wire[0].fault.drop",
        values: ["0.5", "0.0"],
        card: "",
    },
];

/// Where the other reasons are tested: no card file can cause them here.
const ELSEWHERE: &[(DropReason, &str, &str)] = &[
    (
        DropReason::Unreadable,
        "filter/tests/all/unreadable.rs",
        "packets_from_the_host_are_judged_equally",
    ),
    (DropReason::Oversize, "ports/src/pcap/tests.rs", "packets_of_all_lengths"),
    (DropReason::Malformed, "ports/src/pcap/tests.rs", "packets_of_all_lengths"),
    (
        DropReason::RingDisabled,
        "ports/src/vhost_user/tests.rs",
        "disabled_rings_lose_packets_both_ways",
    ),
    (
        DropReason::NoDescriptor,
        "ports/src/vhost_user/tests.rs",
        "guests_get_packets_whatever_their_chains",
    ),
    (
        DropReason::BadDescriptor,
        "ports/src/vhost_user/tests/rings.rs",
        "a_bad_chain_costs_one_packet",
    ),
    (
        DropReason::NoSuchQueue,
        "engine/tests/all/rx.rs",
        "unsteered_packets_end_at_the_default_queue_and_wrong_queues_are_counted",
    ),
    (DropReason::NoSuchWire, "engine/tests/all/tx.rs", "hairpins_use_only_their_wire"),
    (
        DropReason::WireFull,
        "engine/tests/all/tx.rs",
        "stopped_wires_delay_their_queue_for_a_bounded_time",
    ),
    (
        DropReason::WireOverrun,
        "ports/src/af_packet/tests.rs",
        "bursts_keep_their_order_and_a_full_ring_is_counted",
    ),
    (
        DropReason::WireDown,
        "host/tests/worlds/kernel_wires.rs",
        "interfaces_deleted_under_load_are_reopened",
    ),
    (
        DropReason::SuperFrame,
        "core/tests/all/backlog.rs",
        "super_frames_are_dropped_at_wires_without_support",
    ),
    (DropReason::BurstFull, "core/tests/all/doors.rs", "a_chain_that_takes_nothing_counts_drops"),
    (
        DropReason::InvalidTarget,
        "plugin/tests/all/objects.rs",
        "held_packets_are_flushed_in_order_when_due",
    ),
    (
        DropReason::Aborted,
        "kernel/src/tests/traffic/objects.rs",
        "object_verdicts_are_obeyed_and_counted",
    ),
    (DropReason::HoldFull, "plugin/tests/all/objects.rs", "held_packets_are_limited"),
    (
        DropReason::TxRingFull,
        "engine/tests/all/tx.rs",
        "slow_wires_fill_the_tx_ring_and_are_counted",
    ),
    (DropReason::Stopped, "engine/tests/all/tx.rs", "dead_wires_return_their_buffers"),
    (DropReason::MailboxFull, "os/tests/all/packets.rs", "full_mailboxes_return_the_packet"),
];

/// The drops of a card with this key set.
fn drops(cause: &Cause, value: &str) -> BTreeMap<String, u64> {
    let text = if cause.card.contains("[[wire]]") {
        cause.card.to_owned()
    } else {
        format!("{SLOW}{}", cause.card)
    };
    let setting = Setting::parse(&format!("{}={value}", cause.key)).unwrap();
    let file = Sections::core()
        .with(picnic_ports::registry::SECTIONS)
        .parse_with(&text, None, &[setting])
        .unwrap();
    let costs = CostModel { card_packet_ns: 500, ..CostModel::default() };
    let mut simulation = Simulation::new(Launch::new(&file, registries()), 3, costs).unwrap();
    simulation.run_until(Time::from_nanos(50_000_000));
    simulation.finish().0.drops
}

#[test]
fn reasons_vanish_without_their_cause() {
    let wrong = CAUSES.iter().filter_map(|cause| {
        let name = cause.reason.name();
        let [with, without] = cause.values.map(|value| drops(cause, value));
        let is_cause = with.contains_key(name) && !without.contains_key(name);
        (!is_cause).then(|| format!("{name}, {}: {with:?}, then {without:?}", cause.key))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Unrelated settings change nothing: more buffers do not help a full backlog.
#[test]
fn a_full_backlog_is_not_a_lack_of_buffers() {
    let backlog = &CAUSES[0];
    for buffers in ["4096", "65536"] {
        let cause = Cause { key: "pool.buffers", ..*backlog };
        let drops = drops(&cause, buffers);
        assert_eq!(drops.get("pool_exhausted"), None, "{drops:?}");
        assert!(drops["backlog_full"] > 1000, "{drops:?}");
    }
}

#[test]
fn every_reason_has_its_test() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for &reason in DropReason::ALL {
        let here = CAUSES.iter().filter(|cause| cause.reason == reason).count();
        let elsewhere: Vec<_> = ELSEWHERE.iter().filter(|place| place.0 == reason).collect();
        assert_eq!(here + elsewhere.len(), 1, "{}: one test", reason.name());
        for (_, file, test) in elsewhere {
            let text = std::fs::read_to_string(crates.join(file)).unwrap();
            assert!(text.contains(&format!("fn {test}(")), "{file}: no {test}");
        }
        assert!(reason.help().ends_with('.') && reason.help().len() < 90, "{}", reason.help());
    }
}
