//! Traffic classes on real cores: a saturated link is shared by weight.

use picnic_control::Launch;
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

#[test]
fn classes_share_a_saturated_link_within_two_percent() {
    let _machine = machine();
    let text = "[pool]\nbuffers = 16384\n[host]\nmode = \"echo\"\nqueues = 1\n[[wire]]\n\
                port = \"generator\"\nsize = 1000\nrate_pps = 40000\nflows = 64\ntcp_share = 0.5\n\
                [[wire]]\nport = \"generator\"\npackets = 1\n[wire.link]\nrate_mbps = 100\n\
                [[tx]]\nfunction = \"bond\"\nmode = \"active-backup\"\nwire = 1\n\
                [[class]]\nname = \"tcp\"\nmarks = [1]\nweight = 3\n\
                [[class]]\nname = \"udp\"\nmarks = [2]\nweight = 2\n\
                [[filter]]\nprotocol = \"tcp\"\ndirection = \"tx\"\naction = \"mark\"\nmark = 1\n\
                [[filter]]\nprotocol = \"udp\"\ndirection = \"tx\"\naction = \"mark\"\nmark = 2\n";
    let card = picnic_host::sections().parse(text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    let report = || running.monitor().report();
    let bytes = || [0, 1].map(|class| report().classes[3 + class].bytes);
    // Both classes lose packets: both have more than their share.
    wait_until("both lanes are full", || {
        report().classes[3..5].iter().all(|class| class.dropped > 100)
    });
    let before = bytes();
    wait_until("ten megabytes are sent", || bytes().iter().sum::<u64>() > 10_000_000);
    let after = bytes();
    let [tcp, udp] = [0, 1].map(|class| (after[class] - before[class]) as f64);
    let share = tcp / (tcp + udp);
    assert!((share - 0.6).abs() <= 0.012, "{share}: {before:?} {after:?}");
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.buffers_missing == 0, "{:?}", report.ledger);
}
