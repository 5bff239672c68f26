//! The parts of a card that the kernel shares.

use super::*;
use crate::bench;

#[test]
fn the_parts_of_a_shared_card_add_up() {
    let mut report = bench::parts(&bench::card("")).monitor.report();
    assert_eq!(report.parts(), None);
    report.kernel = Some(KernelReport { packets: 7, delivered: 4, dropped: 3 });
    let poll = PollReport { packets: 90, taken: 80, lost: 10, delivered: 60, dropped: 30 };
    report.poll = Some(poll);
    let part = |packets, delivered, dropped| KernelReport { packets, delivered, dropped };
    let parts =
        [("kernel", part(7, 4, 3)), ("poll engine", part(90, 60, 30)), ("both", part(97, 64, 33))];
    assert_eq!(report.parts(), Some(parts));
}
