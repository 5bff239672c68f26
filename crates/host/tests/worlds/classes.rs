//! Traffic classes on real cores: a saturated link is shared by weight.

use picnic_control::Launch;
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

#[test]
fn classes_share_a_saturated_link_within_two_percent() {
    let _machine = machine();
    // Lanes that the link needs three seconds to empty: both stay full while a core is taken away. A
    // fraction of a core fills them.
    let text = "[card]\nwire_backlog = 8192\n[pool]\nbuffers = 32768\n\
                [host]\nmode = \"echo\"\nqueues = 1\n[[wire]]\n\
                port = \"generator\"\nsize = 1000\nrate_pps = 8000\nflows = 64\ntcp_share = 0.5\n\
                [[wire]]\nport = \"generator\"\npackets = 1\n[wire.link]\nrate_mbps = 20\n\
                [[tx]]\nfunction = \"bond\"\nmode = \"active-backup\"\nwire = 1\n\
                [[class]]\nname = \"tcp\"\nmarks = [1]\nweight = 3\n\
                [[class]]\nname = \"udp\"\nmarks = [2]\nweight = 2\n\
                [[filter]]\nprotocol = \"tcp\"\ndirection = \"tx\"\naction = \"mark\"\nmark = 1\n\
                [[filter]]\nprotocol = \"udp\"\ndirection = \"tx\"\naction = \"mark\"\nmark = 2\n";
    let card = picnic_host::sections().parse(text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    // Bytes sent and packets dropped of both classes at the second wire.
    let counts = || {
        let report = running.monitor().report();
        [3, 4].map(|class| [report.classes[class].bytes, report.classes[class].dropped])
    };
    // Weights share the link while both lanes have packets: only pieces in which both lanes were full
    // count, and most of them agree.
    let (mut before, mut shares) = (counts(), Vec::new());
    wait_until("seven megabytes are sent while both lanes are full", || {
        let after = counts();
        let grown = [0, 1].map(|class| [0, 1].map(|it| after[class][it] - before[class][it]));
        let [[tcp, tcp_dropped], [udp, udp_dropped]] = grown;
        if tcp + udp > 500_000 {
            if tcp_dropped > 0 && udp_dropped > 0 {
                shares.push(tcp as f64 / (tcp + udp) as f64);
            }
            before = after;
        }
        shares.len() >= 15
    });
    shares.sort_by(f64::total_cmp);
    assert!((shares[7] - 0.6).abs() <= 0.012, "{shares:?}");
    let report = running.stop().unwrap();
    assert!(report.ledger.balanced() && report.buffers_missing == 0, "{:?}", report.ledger);
}
