//! Front ends that mean harm: their guest is lost, the card and the other guests go on.

use super::packet;
use super::protocol::{Guest, MEMORY, Machine, assert_passes, connect, start};
use picnic_testing::wait_until;
use rustix::fs::ftruncate;

#[test]
fn memory_that_shrinks_under_traffic_ends_only_its_guest() {
    let machine = Machine::new("");
    for (round, rest) in [0, 4096, MEMORY as u64 / 2, 0x2000].into_iter().enumerate() {
        let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
        start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
        assert_passes(&machine, &mut guest, round as u64);
        while guest.rx.post(2000, 1, false).is_some() {}
        guest.send(1);
        // The target core polls the ring of the guest's packets all the time, and this deliver
        // reaches the other ring and the buffers of both.
        ftruncate(&guest.file, rest).unwrap();
        machine.deliver(&vec![packet(7, 1000); 20]);
        wait_until("the guest is lost", || {
            let report = machine.look().report.join("\n");
            let is_gone = !report.contains("connected at the end");
            is_gone && report.contains("its memory was taken away")
        });
        // A message now finds no connection.
        assert!(vhost::VhostBackend::get_features(&front).is_err());
    }
    let (mut front, mut guest) = (connect(&machine.socket), Guest::new());
    start(&mut front, &guest, &[0, 1, 2, 3, 4, 5]);
    assert_passes(&machine, &mut guest, 9);
    machine.end();
}
