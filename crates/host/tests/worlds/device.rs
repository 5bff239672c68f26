//! `[device]`: what-if runs wait for registers, and say so.

use picnic_control::Launch;
use picnic_host::{registries, sections};
use picnic_machine::topology::{Placement, available, place};
use picnic_testing::machine;
use std::time::Instant;

fn card(device: &str) -> String {
    format!("[[wire]]\nport = \"generator\"\npackets = 200\n[host]\nqueues = 1\n[device]\n{device}")
}

#[test]
fn a_target_core_waits_for_its_registers_and_the_report_says_so() {
    let _machine = machine();
    let file = sections()
        .parse(&card("register_read_ns = 250000\nrx_reads_per_packet = 2\nbus_ns = 700\n"), None);
    let file = file.unwrap();
    let start = Instant::now();
    let mut running = Launch::new(&file, registries()).start_alone().unwrap();
    while running.view().queues[0].target.packets.get() < 200 {
        running.pass(std::time::Duration::from_millis(1));
    }
    // The core has waited for all except the last burst, of at most 64 packets.
    assert!(start.elapsed().as_micros() >= (200 - 64) * 500);
    let report = running.stop().unwrap();
    assert_eq!(report.ledger.delivered, 200);
    let said = report.notes.iter().find(|note| note.starts_with("what if: ")).unwrap();
    assert!(said.contains("(by its keys): reads of 250000 ns"), "{said}");
    assert!(said.contains("the bus's 700 ns are not imposed"), "{said}");
}

#[test]
fn a_cache_must_be_shared() {
    let _machine = machine();
    let file = sections().parse(&card("kind = \"integrated-dca\"\n"), None).unwrap();
    let topology = available().topology;
    let Ok(Placement { borrowed_core, target_cores, .. }) = place(&file, &available()) else {
        return picnic_testing::skip("a shared cache", "this machine has too few cores");
    };
    let shares = (2..=4).any(|level| {
        let cores = topology.sharing(borrowed_core, level);
        cores.is_some_and(|cores| cores.contains(target_cores[0]))
    });
    let started = Launch::new(&file, registries()).start_alone();
    match started {
        Ok(running) => {
            assert!(shares, "cores that share no cache are refused");
            running.stop().unwrap();
        }
        Err(error) => {
            let error = error.to_string();
            assert!(
                !shares && error.contains("device.kind: found \"cache\", but cores"),
                "{error}"
            );
        }
    }
}
