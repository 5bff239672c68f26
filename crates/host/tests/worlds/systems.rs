//! KNET's three systems on real cores: the same packets, in order, over real locks.

use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

const PACKETS: u64 = 20_000;

fn card(system: &str, mode: &str) -> CardFile {
    let text = format!(
        "[[wire]]\nport = \"generator\"\npackets = {PACKETS}\nflows = 64\nsize = 100\n\
         sequence_numbers = true\n[[rx]]\nfunction = \"rss\"\n[host]\nsystem = \"{system}\"\n\
         queues = 3\nstack_ns = 50\ncost_ns = 100\nmode = \"{mode}\"\nverify_order = true\n"
    );
    CardFile::parse(&text, None).unwrap()
}

#[test]
fn every_system_delivers_in_order_on_all_queues() {
    let _machine = machine();
    for system in ["knet", "clas", "napi"] {
        for mode in ["sink", "echo"] {
            let card = card(system, mode);
            let running = Launch::new(&card, registries()).start_alone().unwrap();
            wait_until("all packets are through", || running.is_finished());
            let report = running.stop().unwrap();
            assert!(report.ledger.balanced(), "{system}: {report:#?}");
            assert_eq!((report.ledger.delivered, report.buffers_missing), (PACKETS, 0), "{system}");
            for queue in &report.queues {
                let (index, packets) = (queue.queue, queue.packets);
                assert!(packets != 0, "{system}: {report:#?}");
                let wanted =
                    format!("queue {index}: {packets} packets in order, 0 reordered, 0 skipped");
                assert!(report.notes.contains(&wanted), "{system}: {wanted}: {:?}", report.notes);
            }
        }
    }
}

#[test]
fn cards_stopped_under_load_account_for_every_packet() {
    let _machine = machine();
    for system in ["clas", "napi"] {
        let text = format!(
            "[[wire]]\nport = \"generator\"\nflows = 64\nrate_pps = 1000000\n\
             [host]\nsystem = \"{system}\"\nqueues = 3\ncost_ns = 5000\n"
        );
        let card = CardFile::parse(&text, None).unwrap();
        let running = Launch::new(&card, registries()).start_alone().unwrap();
        wait_until("packets have come", || running.monitor().report().ledger.delivered > 1_000);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{system}: {report:#?}");
        assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{system}");
    }
}
