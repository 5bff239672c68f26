//! Code of filters that is added and removed while packets pass.

use super::{any, card, of_protocol, run, udp};
use crate::frames::Frame;
use picnic_core::out::Doors;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_filter::code::Closer;
use picnic_filter::filters::FilterChange;
use picnic_filter::{Action, Direction, FilterId, Filters, Handover, Protocol};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes nothing; records when it is closed, dropped, and when a burst ends.
struct Told {
    closed: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    alive: Arc<()>,
}

impl Handover for Told {
    fn hand_over(&mut self, _: Time, packet: Descriptor) -> Result<(), Descriptor> {
        assert_eq!(Arc::strong_count(&self.alive), 2);
        Err(packet)
    }
    fn end_burst(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
    fn closer(&self) -> Option<Closer> {
        let closed = self.closed.clone();
        Some(Box::new(move || _ = closed.fetch_add(1, Ordering::Relaxed)))
    }
}

#[derive(Default)]
struct Seen {
    closed: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    alive: Arc<()>,
}

impl Seen {
    fn handover(&self) -> Box<dyn Handover> {
        let (closed, ended) = (self.closed.clone(), self.ended.clone());
        Box::new(Told { closed, ended, alive: self.alive.clone() })
    }
    fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }
    fn is_freed(&self) -> bool {
        Arc::strong_count(&self.alive) == 1
    }
}

#[test]
fn receivers_close_when_their_filter_drops_them() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let deliver = of_protocol(Protocol::UDP, Action::Deliver);
    let (first, second, third) = (Seen::default(), Seen::default(), Seen::default());
    let id = filters.add_with(deliver.clone(), first.handover()).unwrap();
    let mut step = |doors: &mut Doors| run(doors, &mut *head, &[udp()]);
    assert_eq!(step(&mut doors), 0);
    filters.set(id, deliver.clone().with_priority(9)).unwrap();
    step(&mut doors);
    assert_eq!((first.closed(), first.is_freed()), (0, false), "its code stays");
    let change = FilterChange::Set(id, deliver.clone(), second.handover().into());
    filters.apply(vec![change]).unwrap();
    step(&mut doors);
    assert_eq!((first.closed(), second.closed()), (1, 0));
    filters.set(id, of_protocol(Protocol::UDP, Action::Count)).unwrap();
    assert_eq!(step(&mut doors), 1);
    assert_eq!(second.closed(), 1);
    let other = filters.add_with(deliver, third.handover()).unwrap();
    step(&mut doors);
    filters.remove(other).unwrap();
    assert_eq!(step(&mut doors), 1);
    assert_eq!(third.closed(), 1);
    // In another list there is no code to keep.
    let fourth = Seen::default();
    let moves = filters.add_with(of_protocol(Protocol::TCP, Action::Deliver), fourth.handover());
    let moved = of_protocol(Protocol::TCP, Action::Count).on(Direction::Tx);
    filters.set(moves.unwrap(), moved).unwrap();
    assert_eq!(fourth.closed(), 1);
    // Leftovers of cores are freed with the next change.
    filters.remove(id).unwrap();
    step(&mut doors);
    filters.add(any(Action::Count)).unwrap();
    step(&mut doors);
    filters.add(any(Action::Count)).unwrap();
    assert_eq!([first, second, third].map(|seen| seen.is_freed()), [true; 3]);
}

/// A mailbox's end is freed even if no thread changes the filters: any call frees it.
#[test]
fn any_call_of_the_handle_frees_leftovers() {
    let calls: [fn(&Filters); 3] = [
        |filters| _ = filters.list(),
        |filters| _ = filters.is_taken(),
        // A call that changes nothing, since there is no such filter.
        |filters| _ = filters.try_apply(vec![FilterChange::Remove(FilterId(77))]).unwrap_err(),
    ];
    for call in calls {
        let filters = Filters::new(1);
        let (mut doors, mut head) = card(&filters);
        let seen = Seen::default();
        let deliver = of_protocol(Protocol::UDP, Action::Deliver);
        let id = filters.add_with(deliver, seen.handover()).unwrap();
        run(&mut doors, &mut *head, &[udp()]);
        filters.remove(id).unwrap();
        call(&filters);
        assert!(!seen.is_freed(), "the core has it");
        run(&mut doors, &mut *head, &[udp()]);
        assert!(!seen.is_freed(), "a core frees nothing");
        call(&filters);
        assert!(seen.is_freed());
    }
}

#[test]
fn receivers_see_the_end_only_of_bursts_with_their_packets() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let seen = Seen::default();
    filters.add_with(of_protocol(Protocol::TCP, Action::Deliver), seen.handover()).unwrap();
    filters.add(of_protocol(Protocol::UDP, Action::Count)).unwrap();
    assert_eq!(run(&mut doors, &mut *head, &[udp()]), 1);
    assert_eq!(seen.ended.load(Ordering::Relaxed), 0);
    run(&mut doors, &mut *head, &[Frame { protocol: 6, ..Frame::default() }.bytes()]);
    assert_eq!(seen.ended.load(Ordering::Relaxed), 1);
    assert_eq!(head.held(), 0, "a receiver holds nothing that does not say so");
}

/// Reports this number of held packets.
struct Holding(usize);

impl Handover for Holding {
    fn hand_over(&mut self, _: Time, packet: Descriptor) -> Result<(), Descriptor> {
        Err(packet)
    }
    fn held(&self) -> usize {
        self.0
    }
}

#[test]
fn receivers_packets_count_as_held() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let deliver = of_protocol(Protocol::TCP, Action::Deliver);
    let holds = |packets| -> Box<dyn Handover> { Box::new(Holding(packets)) };
    let first = filters.add_with(deliver.clone(), holds(3)).unwrap();
    filters.add(any(Action::Count)).unwrap();
    filters.add_with(deliver, holds(4)).unwrap();
    assert_eq!(head.held(), 0, "the core does not go by them yet");
    run(&mut doors, &mut *head, &[udp()]);
    assert_eq!(head.held(), 7);
    filters.remove(first).unwrap();
    run(&mut doors, &mut *head, &[udp()]);
    assert_eq!(head.held(), 4);
}

#[test]
fn reload_keeps_the_first_of_equal_filters() {
    let filters = Filters::new(1);
    let rule = |priority| of_protocol(Protocol::UDP, Action::Count).with_priority(priority);
    let first = filters.add(rule(1)).unwrap();
    let second = filters.add(rule(2)).unwrap();
    filters.replace(&[rule(1).group.as_str()], vec![rule(1)]).unwrap();
    assert!(filters.get(first).is_some() && filters.get(second).is_none());
}
