use super::*;
use crate::harness::Bench;
use picnic_core::ledger::Stage;
use picnic_core::registry::find;
use picnic_core::shared::Shared;

/// Two cards' wires on one cable of their own set.
fn wires(frames: usize) -> ([Box<dyn WirePort>; 2], Arc<Cables>) {
    let cables = Cables { cables: Arc::default(), is_real: true };
    let mut held = None;
    let mut wire = || {
        let shared = Shared::default();
        held = Some(shared.get_or_make(|| cables.clone()));
        let context = BuildContext { shared, ..BuildContext::default() };
        CablePort::build(CableConfig { frames, ..CableConfig::default() }, &context).unwrap()
    };
    ([wire(), wire()], Arc::new(cables))
}

fn dropped(bench: &Bench, reason: DropReason) -> u64 {
    bench.ledger.drops.get(reason, Stage::WireTx)
}

fn start(wire: &mut dyn WirePort, bench: &mut Bench) {
    wire.start(&mut bench.pool).unwrap();
}

#[test]
fn frames_arrive_whole_in_order_and_both_ways() {
    let ([mut a, mut b], _cables) = wires(16);
    let (mut at_a, mut at_b) = (Bench::new(), Bench::new());
    start(&mut *a, &mut at_a);
    start(&mut *b, &mut at_b);
    for round in 0..100_u8 {
        let sent: Vec<Vec<u8>> =
            (0..16).map(|n| vec![round ^ n; 60 + usize::from(n) * 97]).collect();
        let frames: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        at_a.transmit(&mut *a, 0, &frames);
        at_b.transmit(&mut *b, 0, &frames[..3]);
        let first = at_b.receive(&mut *b, 0, 5);
        let rest = at_b.receive(&mut *b, 0, 32);
        assert_eq!((first.len(), [first, rest].concat()), (5, sent.clone()));
        assert_eq!(at_a.receive(&mut *a, 0, 32), sent[..3]);
    }
    at_a.assert_conserved();
    at_b.assert_conserved();
}

#[test]
fn frames_without_room_or_a_card_are_dropped_and_counted() {
    let ([mut a, mut b], _cables) = wires(16);
    let (mut at_a, mut at_b) = (Bench::new(), Bench::new());
    start(&mut *a, &mut at_a);
    assert!(!a.status().is_up);
    at_a.transmit(&mut *a, 0, &[&[1; 60]]);
    assert_eq!(dropped(&at_a, DropReason::WireDown), 1);
    start(&mut *b, &mut at_b);
    assert!(a.status().is_up);
    at_a.transmit(&mut *a, 0, &[&[2; 60][..]; 20]);
    assert_eq!(dropped(&at_a, DropReason::WireFull), 4);
    assert_eq!(at_b.receive(&mut *b, 0, 32).len(), 16);
    at_a.transmit(&mut *a, 0, &[&[3; 60][..]; 2]);
    at_b.stop(&mut *b);
    assert!(!a.status().is_up);
    // The next card at the other end does not get the frames for this one.
    start(&mut *b, &mut at_b);
    assert!(at_b.receive(&mut *b, 0, 32).is_empty());
    at_a.transmit(&mut *a, 0, &[&[4; 60]]);
    assert_eq!(at_b.receive(&mut *b, 0, 32), [vec![4; 60]]);
}

#[test]
fn a_sleeping_card_is_woken_once_and_only_while_it_sleeps() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let ([mut a, mut b], _cables) = wires(16);
    let (mut at_a, mut at_b) = (Bench::new(), Bench::new());
    start(&mut *a, &mut at_a);
    start(&mut *b, &mut at_b);
    let is_rung = |wire: &dyn WirePort| {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let readiness = wire.status().readiness.unwrap();
        poll(&mut [PollFd::from_borrowed_fd(readiness, PollFlags::IN)], Some(&at_once)) == Ok(1)
    };
    at_a.transmit(&mut *a, 0, &[&[1; 60]]);
    assert!(!is_rung(&*b), "it is awake");
    assert!(!b.arm(), "a frame waits");
    assert_eq!(at_b.receive(&mut *b, 0, 32).len(), 1);
    assert!(b.arm());
    at_a.transmit(&mut *a, 0, &[&[2; 60]]);
    assert!(is_rung(&*b));
    assert_eq!(at_b.receive(&mut *b, 0, 32).len(), 1);
    assert!(!is_rung(&*b), "it is awake again");
}

#[test]
fn a_cable_has_two_ends_of_one_size() {
    let cables = Cables::in_virtual_time();
    let one = cables.plug("a-b", 16, 2048).unwrap();
    assert_eq!(cables.open(), ["a-b"]);
    let error = cables.plug("a-b", 64, 2048).unwrap_err();
    assert_eq!(error.message, "found 64, allowed: 16, as at the other end of \"a-b\"");
    let other = cables.plug("a-b", 16, 2048).unwrap();
    let error = cables.plug("a-b", 16, 2048).unwrap_err();
    assert_eq!(error.message, "found \"a-b\", which joins two cards, allowed: other names");
    drop((one, other));
    assert!(cables.open().is_empty(), "a cable without cards is gone");
    let keys = picnic_core::config::Section::from_text("port", "port = \"cable\"\ncable = \"\"");
    let entry = find(crate::registry::WIRES, keys.as_ref().unwrap()).unwrap();
    assert!(entry.build(&keys.unwrap(), &BuildContext::default()).is_err());
}

#[test]
fn frames_longer_than_the_cables_are_dropped_and_counted() {
    let cables = Cables::in_virtual_time();
    let mut one = cables.plug("a-b", 16, 100).unwrap();
    let mut other = cables.plug("a-b", 16, 100).unwrap();
    assert!(!one.send(&[0; 101]));
    assert!(one.send(&[7; 100]));
    let mut found = Vec::new();
    assert_eq!(other.receive(|frame| found.push(frame.to_vec())), 1);
    assert_eq!(found, [vec![7; 100]]);
}
