//! Several cards and a switch in one world.

use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::time::Time;
use picnic_sim::{Cluster, CostModel, SwitchConfig, SwitchCounts, registries};

const FRAMES: u64 = 400;
/// The generator's last frame leaves before this.
const END: Time = Time::from_nanos(4_000_000);

/// The first card mirrors its packets to the others.
fn cluster(seed: u64, idle: &str, network: SwitchConfig) -> Cluster {
    let card = |text: &str| {
        let text = format!("[card]\nidle = \"{idle}\"\n{text}[host]\nqueues = 1\n");
        CardFile::parse(&text, None).unwrap()
    };
    let wire = "[[wire]]\nport = \"cable\"\ncable = \"lan\"\n";
    let generator =
        format!("[[wire]]\nport = \"generator\"\npackets = {FRAMES}\nrate_pps = 200000\n");
    let cards = [
        card(&format!("{generator}{wire}[[rx]]\nfunction = \"mirror\"\nwire = 1\n")),
        card(wire),
        card(wire),
    ];
    let launches = cards.iter().map(|card| Launch::new(card, registries())).collect();
    Cluster::new(launches, seed, CostModel::default(), network).unwrap()
}

/// Ends it: the packets that each card's wire 0 or, for the first, wire 1 received.
fn end(cluster: Cluster) -> (SwitchCounts, Vec<u64>, u64) {
    let (counts, hash) = (cluster.counts(), cluster.trace_hash());
    let delivered = cluster.finish().into_iter().map(|(report, _)| {
        assert!(report.ledger.balanced(), "{:?}", report.ledger);
        assert_eq!((report.buffers_missing, report.ledger.in_flight), (0, 0));
        report.ledger.delivered
    });
    (counts, delivered.collect(), hash)
}

#[test]
fn every_card_gets_every_frame_whether_it_spins_or_sleeps() {
    for idle in ["spin", "adaptive", "block"] {
        let mut cluster = cluster(1, idle, SwitchConfig::default());
        cluster.run_until(END);
        let (counts, delivered, _) = end(cluster);
        assert_eq!(delivered, [FRAMES; 3], "{idle}");
        assert_eq!((counts.sent, counts.delivered), (FRAMES, 2 * FRAMES));
    }
}

#[test]
fn a_frame_takes_the_time_of_both_lines_and_of_the_switch() {
    let network = SwitchConfig { rate_mbps: 100.0, latency_ns: 10_000, ..SwitchConfig::default() };
    let mut cluster = cluster(1, "spin", network);
    let counts = |cluster: &Cluster, card: usize, wire: usize| {
        let counters = &cluster.cards()[card].view().wires[wire].counters;
        (counters.tx_packets.get(), counters.rx_packets.get())
    };
    let mut sent_at = None;
    while counts(&cluster, 1, 0).1 == 0 {
        cluster.run_until(cluster.now() + 10);
        if counts(&cluster, 0, 1).0 != 0 {
            sent_at.get_or_insert(cluster.now());
        }
    }
    // 60 bytes and framing, at 100 Mb/s.
    let wire_ns = 2 * (60 + 24) * 80 + 10_000;
    let took_ns = cluster.now().since(sent_at.unwrap());
    assert!((wire_ns - 20..wire_ns + 200).contains(&took_ns), "{took_ns}, due: {wire_ns}");
}

#[test]
fn a_bad_network_loses_repeats_and_delays_by_seed() {
    let network = SwitchConfig {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        queue_frames: 4,
        rate_mbps: 120.0,
        ..SwitchConfig::default()
    };
    let run = |seed| {
        let mut cluster = cluster(seed, "adaptive", network);
        cluster.run_until(Time::from_nanos(1_000_000));
        cluster.partition(&[0, 1, 0]);
        cluster.run_until(Time::from_nanos(1_500_000));
        cluster.partition(&[]);
        cluster.run_until(END);
        end(cluster)
    };
    let (counts, delivered, hash) = run(5);
    let SwitchCounts { sent, delivered: reached, lost, duplicated, delayed, cut, full, .. } =
        counts;
    assert_eq!(sent, FRAMES);
    assert!([lost, duplicated, delayed, cut].iter().all(|count| *count > 20), "{counts:?}");
    assert_eq!(2 * sent + duplicated, reached + lost + cut + full, "{counts:?}");
    assert_eq!(delivered[1] + delivered[2], reached);
    assert_eq!(run(5), (counts, delivered, hash));
    assert_ne!(run(6).2, hash);
}
