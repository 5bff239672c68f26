//! The ends of ranges, and the remains of changed filters: counters, code, lists, keys.

use crate::frames::Frame;
use picnic_core::attachment::QueueOut;
use picnic_core::function::Function;
use picnic_core::guard::{Guard, Screen};
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::ring::spsc::channel;
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
use picnic_filter::code::{Closer, FilterCode};
use picnic_filter::config::Keys;
use picnic_filter::filters::FilterChange;
use picnic_filter::matching::Tuple;
use picnic_filter::{
    Action, Base, Callback, CallbackVerdict, Direction, Filter, FilterError, FilterId, Filters,
    FiveTuple, Handover, Headers, Hidden, MOST_FILTERS, MOST_GROUPS, Match, Pattern, Place,
    PortRange, Predicate, Prefix, Protocol,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Nothing;

impl Onward for Nothing {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

fn pool() -> Pool {
    Pool::new(&PoolConfig { buffers: 128, ..PoolConfig::default() }, 0).unwrap().0
}

/// Sends frames through the rx filters at the card; returns how many continue.
fn run(doors: &mut Doors, head: &mut dyn Function, frames: &[Vec<u8>]) -> usize {
    let mut burst = Burst::new();
    for frame in frames {
        burst.push(doors.pool.packet(frame).unwrap()).unwrap();
    }
    let mut nothing = Nothing;
    let mut out = Out::new(Time::ZERO, Stage::Rx, doors, &mut nothing);
    head.process(Time::ZERO, &mut burst, &mut out);
    out.finish();
    let passed = burst.len();
    burst.drain().for_each(|packet| doors.pool.free(packet));
    passed
}

fn card(filters: &Filters) -> (Doors, Box<dyn Function>) {
    let doors = Doors::new(pool(), Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
    (doors, filters.function(Stage::Rx).unwrap())
}

fn udp() -> Vec<u8> {
    Frame::default().bytes()
}

fn any(action: Action) -> Filter {
    Filter::new("f", Match::Any, action)
}

fn of_protocol(protocol: Protocol, action: Action) -> Filter {
    let tuple = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
    Filter::new("f", tuple, action)
}

// ---------------------------------------------------------------- prefixes and ports

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

#[test]
fn prefix_length_is_limited_by_the_address() {
    let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
    let bits =
        |text: &str, most: u8| format!("found {text}, allowed: a length of 0 to {most} bits");
    assert_eq!(error("10.0.0.0/33"), bits("10.0.0.0/33", 32));
    assert_eq!(error("2001:db8::/129"), bits("2001:db8::/129", 128));
    let (four, six) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([7; 16]));
    assert_eq!([32, 33].map(|length| Prefix::new(four, length).is_some()), [true, false]);
    assert_eq!([128, 129].map(|length| Prefix::new(six, length).is_some()), [true, false]);
    let one = Prefix::new(four, 32).unwrap();
    assert!(one.contains(four) && !one.contains([10, 0, 0, 0].into()));
    assert_eq!(one.address(), four);
    assert!(Prefix::new(four, 0).unwrap().contains([255; 4].into()));
    let one = Prefix::new(six, 128).unwrap();
    let mut other = [7; 16];
    other[15] = 6;
    assert!(one.contains(six) && !one.contains(other.into()));
    assert!(Prefix::new(six, 127).unwrap().contains(other.into()));
    assert!(Prefix::new(six, 0).unwrap().contains([255; 16].into()));
}

#[test]
fn prefixes_and_ranges_cover_their_members() {
    let covers = |a: &str, b: &str| prefix(a).covers(&prefix(b));
    assert!(covers("10.0.0.0/8", "10.0.0.0/8") && covers("10.0.0.0/8", "10.1.0.0/16"));
    assert!(!covers("10.0.0.0/8", "10.0.0.0/7") && !covers("10.0.0.0/8", "11.0.0.0/16"));
    assert!(!covers("0.0.0.0/0", "::/0"));
    let range = |low, high| PortRange::new(low, high).unwrap();
    let middle = range(10, 20);
    for (other, covers, meets) in [
        (range(10, 20), true, true),
        (range(11, 19), true, true),
        (range(9, 20), false, true),
        (range(10, 21), false, true),
        (range(0, 9), false, false),
        (range(0, 10), false, true),
        (range(20, 30), false, true),
        (range(21, 30), false, false),
    ] {
        assert_eq!((middle.covers(&other), middle.meets(&other)), (covers, meets), "{other}");
        assert_eq!(other.meets(&middle), meets, "{other}");
    }
}

// ---------------------------------------------------------------- hidden headers

/// An IPv6 frame: the first next header, then the bytes after the IP header.
fn six(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x11; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((rest.len() as u16).to_be_bytes());
    frame.extend([first, 64]);
    frame.extend([0x20; 32]);
    frame.extend(rest);
    frame
}

fn hidden(frame: &[u8]) -> Hidden {
    Headers::of(&layers::parse(frame), frame).hidden
}

/// A routing header with a segment left, before UDP.
const ROUTED: [u8; 8] = [17, 0, 4, 1, 0, 0, 0, 0];
const UDP_HEADER: [u8; 8] = [0, 9, 0, 7, 0, 8, 0, 0];

#[test]
fn header_lengths_are_honoured() {
    // An authentication header of 24 bytes: in units of four, two less.
    let authentication = [&[43, 4][..], &[0; 22]].concat();
    let frame = six(51, &[&authentication[..], &ROUTED, &UDP_HEADER].concat());
    assert_eq!(hidden(&frame), Hidden::Destination);
    // Others in units of eight, minus one: options, routing that has arrived, mobility. A header
    // read a byte too early is the end, with no segment left.
    let long = [&[43, 1][..], &[0; 13], &[17]].concat();
    for first in [0, 43, 60, 135] {
        let frame = six(first, &[&long[..], &[17, 0, 0, 1, 0, 0, 0, 0], &UDP_HEADER].concat());
        assert_eq!(hidden(&frame), Hidden::Destination, "{first}");
    }
    // A fragment's of eight, of a packet that is whole.
    let frame = six(44, &[&[43, 0, 0, 0, 1, 2, 3, 4][..], &ROUTED, &UDP_HEADER].concat());
    assert_eq!(hidden(&frame), Hidden::Destination);
    let short = [&[43, 0, 0, 0, 1, 2, 3, 17][..], &[17, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_eq!(hidden(&six(44, &[&short[..], &UDP_HEADER].concat())), Hidden::Destination);
    // After the first of several fragments nothing is read: mobility may be all.
    let frame = six(44, &[&[135, 0, 0, 1, 1, 2, 3, 4][..], &[60, 0, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(hidden(&frame), Hidden::Protocol);
}

#[test]
fn source_routes_are_found_after_the_shortest_option() {
    let with_options = |options: &[u8]| {
        let mut frame = vec![0x11; 12];
        frame.extend([0x08, 0x00, 0x40 | (5 + options.len() as u8 / 4), 0]);
        frame.extend([0, 20 + options.len() as u8 + 8, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(options);
        frame.extend(UDP_HEADER);
        frame
    };
    let route = [131, 7, 4, 1, 2, 3, 4];
    let behind = |options: &[u8]| hidden(&with_options(&[options, &route[..]].concat()));
    assert_eq!(behind(&[1]), Hidden::Destination);
    assert_eq!(behind(&[7, 2, 1, 1, 1]), Hidden::Destination);
    // An option of one byte ends the list: its length cannot be.
    assert_eq!(behind(&[7, 1, 1, 1, 1]), Hidden::Nothing);
    // A truncated option counts as one.
    assert_eq!(hidden(&with_options(&[1, 1, 1, 1, 131, 7, 4, 1])), Hidden::Destination);
    // A pointer that is not past the end, wherever it points.
    let last = [1, 131, 7, 7, 1, 2, 3, 4];
    assert_ne!(hidden(&with_options(&last)), Hidden::Nothing);
    let arrived = [1, 131, 7, 8, 1, 2, 3, 4];
    assert_eq!(hidden(&with_options(&arrived)), Hidden::Nothing);
    // After the options there is none: these are ports.
    let mut frame = with_options(&[1; 4]);
    let ports = frame.len() - UDP_HEADER.len();
    frame[ports..ports + 3].copy_from_slice(&route[..3]);
    assert_eq!(hidden(&frame), Hidden::Nothing);
}

#[test]
fn hidden_addresses_are_all_zeros() {
    // Truncated after the EtherType.
    for (ether_type, zeros) in [(0x0800, IpAddr::from([0; 4])), (0x86dd, IpAddr::from([0; 16]))] {
        let frame = Frame { ether_type, cut: 16, ..Frame::default() }.bytes();
        let tuple = Tuple::of(&layers::parse(&frame), &frame).unwrap();
        assert_eq!((tuple.source, tuple.destination), (zeros, zeros));
        assert_eq!(tuple.hidden, Hidden::Addresses);
    }
    let routed = six(43, &[&ROUTED[..], &UDP_HEADER].concat());
    let tuple = Tuple::of(&layers::parse(&routed), &routed).unwrap();
    // With a source route, the source is read.
    let (source, destination) = (IpAddr::from([0x20; 16]), IpAddr::from([0; 16]));
    assert_eq!((tuple.source, tuple.destination), (source, destination));
    assert_eq!(tuple.hidden, Hidden::Destination);
}

#[test]
fn protocols_are_looked_up_while_a_filter_names_them() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let first = filters.add(of_protocol(Protocol::UDP, Action::Drop)).unwrap();
    let second = filters.add(of_protocol(Protocol::TCP, Action::Drop)).unwrap();
    let again = filters.add(of_protocol(Protocol::TCP, Action::Drop)).unwrap();
    // Its protocol is after a mobility header.
    let frame = six(135, &[59, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(hidden(&frame), Hidden::Protocol);
    for (gone, passes) in [(second, 0), (again, 0), (first, 1)] {
        filters.remove(gone).unwrap();
        assert_eq!(run(&mut doors, &mut *head, std::slice::from_ref(&frame)), passes);
    }
}

#[test]
fn bit_masks_select_bytes() {
    let pattern = Pattern::by_byte(12, 4, 0b0101, &[&[8, 9, 7, 6]]).unwrap();
    assert_eq!((pattern.base(), pattern.start()), (Base::Frame, 12));
    assert_eq!(pattern.mask(), [0xff, 0, 0xff, 0]);
}

// ---------------------------------------------------------------- lists and cores

#[test]
fn filter_numbers_start_at_one_and_are_never_reused() {
    let filters = Filters::new(1);
    let add = || filters.add(any(Action::Count)).unwrap().to_string();
    assert_eq!([add(), add()], ["1", "2"]);
    filters.list().iter().for_each(|listing| drop(filters.remove(listing.id).unwrap()));
    assert_eq!([add(), add()], ["3", "4"]);
}

#[test]
fn each_filter_has_its_own_counters() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let ids: Vec<_> = (0..600).map(|_| filters.add(any(Action::Count)).unwrap()).collect();
    assert_eq!(run(&mut doors, &mut *head, &[udp(), udp()]), 2);
    filters.remove(ids[599]).unwrap();
    assert_eq!(run(&mut doors, &mut *head, &[udp()]), 1);
    let counts: Vec<_> = filters.list().iter().map(|listing| listing.packets).collect();
    assert_eq!(counts, [3; 599]);
}

#[test]
fn cores_take_lists_with_their_next_packet() {
    let filters = Filters::new(2);
    assert!(filters.is_taken() && filters.groups().is_empty());
    let (mut doors, mut head) = card(&filters);
    filters.add(any(Action::Drop).in_group("a")).unwrap();
    assert!(!filters.is_taken());
    assert_eq!(run(&mut doors, &mut *head, &[udp()]), 0);
    assert!(filters.is_taken());
    assert_eq!(head.held(), 0);
    filters.define_groups(&["b", "a", "c"]).unwrap();
    assert_eq!(filters.groups(), ["a", "b", "c"]);
}

/// A card's groups are numbered in 16 bits: two names never share a number.
#[test]
fn groups_are_limited_and_existing_ones_stay_usable() {
    let filters = Filters::new(1);
    let names: Vec<_> = (0..MOST_GROUPS + 2).map(|number| format!("group-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let refused = || Err(FilterError::TooManyGroups(MOST_GROUPS));
    assert_eq!(filters.define_groups(&names[..=MOST_GROUPS]), refused());
    assert!(filters.define_groups(&["one", "a name"]).is_err());
    assert!(filters.groups().is_empty(), "a definition is whole or not made at all");
    filters.define_groups(&names[..MOST_GROUPS - 1]).unwrap();
    let into = |groups: &[&str]| {
        let add = |group: &&str| {
            FilterChange::Add(any(Action::Count).in_group(*group), FilterCode::default())
        };
        filters.apply(groups.iter().map(add).collect()).map(|added| added.len())
    };
    let [last, beyond] = [names[MOST_GROUPS - 1], names[MOST_GROUPS]];
    assert_eq!(into(&[last, beyond]).map(|_| ()), refused());
    assert_eq!((filters.list().len(), filters.groups().len()), (0, MOST_GROUPS - 1));
    assert_eq!(into(&[last, names[0], last]), Ok(3));
    assert_eq!(filters.define_groups(&[beyond]), refused());
    // There is no room for another group, but each existing group has room.
    assert_eq!(into(&[beyond]).map(|_| ()), refused());
    assert_eq!(into(&[last, names[7]]), Ok(2));
    filters.define_groups(&[last, names[7]]).unwrap();
    assert_eq!(filters.groups(), names[..MOST_GROUPS]);
}

/// On tx there are no queues to steer to.
#[test]
fn callbacks_at_the_card_steer_only_on_rx() {
    for (direction, passed, dropped) in [(Direction::Rx, 0, 1), (Direction::Tx, 1, 0)] {
        let filters = Filters::new(2);
        let filter = any(Action::Callback).on(direction);
        filters.add_with(filter, Callback::new(|_| CallbackVerdict::Steer(1))).unwrap();
        let (mut doors, _) = card(&filters);
        assert_eq!(run(&mut doors, &mut filters.head(direction), &[udp()]), passed);
        // This card has no queues.
        let drops = &doors.ledger.card.drops;
        assert_eq!(drops.get(DropReason::NoSuchQueue, Stage::Steer), dropped, "{direction:?}");
    }
}

/// Nothing can be steered here any more.
#[test]
fn steering_callbacks_at_the_driver_pass_the_packet() {
    let (filters, mut pool) = (Filters::new(2), pool());
    let filter = any(Action::Callback).on(Direction::Tx).at(Place::Driver);
    filters.add_with(filter, Callback::copied(|_| CallbackVerdict::Steer(1))).unwrap();
    for mut screen in screens(&filters) {
        assert!(screen.begin());
        let mut packet = pool.packet(&[0; 60]).unwrap();
        assert_eq!(screen.refuses(&mut packet), None);
        pool.free(packet);
    }
}

#[test]
fn written_lists_limit_kinds_and_number_of_filters() {
    let filters = Filters::new(1);
    filters.write_only(2, picnic_filter::image::Judge::Kernel);
    let wrong = |filter: Filter| match filters.add(filter) {
        Err(FilterError::Invalid { key, .. }) => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(wrong(any(Action::Drop).on(Direction::Tx)), "direction");
    assert_eq!(wrong(any(Action::Drop).at(Place::Driver)), "place");
    assert_eq!(wrong(any(Action::Mark(1))), "action");
    filters.add(any(Action::Drop)).unwrap();
    filters.add(any(Action::Steer(0))).unwrap();
    assert_eq!(filters.add(any(Action::Drop)).map(drop), Err(FilterError::TooMany(2)));
}

/// A list's places are numbered in 16 bits.
#[test]
fn full_lists_can_be_replaced() {
    let filters = Filters::new(1);
    let counts = || any(Action::Count);
    let add = |filter: Filter| FilterChange::Add(filter, FilterCode::default());
    let rx = |count: usize| (0..count).map(|_| add(counts())).collect::<Vec<_>>();
    let refused = Err(FilterError::TooMany(MOST_FILTERS));
    assert_eq!(filters.apply(rx(MOST_FILTERS + 1)), refused);
    assert_eq!(filters.list().len(), 0, "none of them is there");
    let added = filters.apply(rx(MOST_FILTERS)).unwrap();
    // Another list has its own room; a filter that moves there frees room here.
    let moves = counts().on(Direction::Tx);
    let other = filters.add(moves.clone()).unwrap();
    assert_eq!(filters.add(counts()).map(drop), Err(FilterError::TooMany(MOST_FILTERS)));
    assert_eq!(filters.set(other, counts()), Err(FilterError::TooMany(MOST_FILTERS)));
    filters.set(added[0], counts().with_priority(1)).unwrap();
    filters.set(added[1], moves).unwrap();
    filters.add(counts()).unwrap();
    let mut changes = vec![FilterChange::Remove(added[2])];
    changes.extend(rx(1));
    assert_eq!(filters.apply(changes).unwrap().len(), 1);
    assert_eq!(filters.add(counts()).map(drop), Err(FilterError::TooMany(MOST_FILTERS)));
}

fn screens(filters: &Filters) -> Vec<Box<dyn Screen>> {
    (0..2).map(|queue| filters.screen(queue).unwrap()).collect()
}

#[test]
fn code_is_copied_for_every_core_of_its_list() {
    let (filters, mut pool) = (Filters::new(2), pool());
    let filter = Filter::new("p", Match::Predicate, Action::Drop);
    let filter = filter.on(Direction::Tx).at(Place::Driver);
    filters.add_with(filter, Predicate::copied(|packet| packet.data()[0] == 2)).unwrap();
    for mut screen in screens(&filters) {
        assert!(screen.begin());
        for (first, reason) in [(1, None), (2, Some(DropReason::Filtered))] {
            let mut packet = pool.packet(&[first; 60]).unwrap();
            assert_eq!(screen.refuses(&mut packet), reason);
            pool.free(packet);
        }
    }
}

#[test]
fn counters_are_reused_after_every_core_left_them() {
    let (filters, mut pool) = (Filters::new(2), pool());
    let filter = any(Action::Count).on(Direction::Tx).at(Place::Driver);
    let mut screens = screens(&filters);
    let first = filters.add(filter.clone()).unwrap();
    assert!(screens.iter_mut().all(|screen| screen.begin()));
    filters.remove(first).unwrap();
    // One core uses the new list, the other still the old one.
    screens[0].begin();
    let second = filters.add(filter).unwrap();
    let mut packet = pool.packet(&udp()).unwrap();
    assert_eq!(screens[1].refuses(&mut packet), None);
    assert_eq!(filters.get(second).unwrap().packets, 0);
    assert!(screens[1].begin());
    assert_eq!(screens[1].refuses(&mut packet), None);
    assert_eq!(filters.get(second).unwrap().packets, 1);
    pool.free(packet);
}

#[test]
fn queues_get_packets_that_their_filters_pass() {
    let (mut pool, mut returns) =
        Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 1).unwrap();
    let filters = Filters::new(1);
    filters.add(of_protocol(Protocol::UDP, Action::Drop).at(Place::Driver)).unwrap();
    let mut queue = filters.queue(0).unwrap();
    let (mut tx, _ring) = channel::<Descriptor>(4);
    let (counters, ledger) = (TargetCounters::default(), Ledger::new(1));
    let mut out = QueueOut::new(&mut returns[0], &mut tx, &counters, &ledger.queues[0]);
    let mut burst = Burst::new();
    let fragment = Frame { protocol: 6, fragment: 0x2000, ..Frame::default() }.bytes();
    for frame in [udp(), Frame { protocol: 6, ..Frame::default() }.bytes(), udp(), fragment] {
        burst.push(pool.packet(&frame).unwrap()).unwrap();
    }
    queue.receive(Time::ZERO, &mut burst, &mut out);
    assert_eq!(burst.len(), 2);
    burst.drain().for_each(|packet| out.deliver(packet));
    drop(out);
    let drops = &ledger.queues[0].drops;
    assert_eq!(drops.get(DropReason::Filtered, Stage::Target), 2);
    assert_eq!(drops.get(DropReason::Unreadable, Stage::Target), 0);
    assert_eq!(pool.outstanding(), 0);
}

// ---------------------------------------------------------------- code that is added and removed

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

// ---------------------------------------------------------------- keys

#[test]
fn filter_names_are_limited() {
    let filters = Filters::new(1);
    let named = |length: usize| Filter { name: "n".repeat(length), ..any(Action::Count) };
    assert_eq!(
        [0, 1, 64, 65].map(|length| filters.add(named(length)).is_ok()),
        [false, true, true, false]
    );
}

#[test]
fn pattern_keys_read_back_as_written() {
    let text = r#"{"name":"p","group":"g","action":"drop","base":"l3","start":9,"mask":"fff0",
        "values":["0110","abc0"]}"#;
    let keys: Keys = serde_json::from_str(text).unwrap();
    let filter = keys.filter().unwrap();
    let pattern =
        Pattern::new(Base::L3, 9, &[0xff, 0xf0], &[&[0x01, 0x10], &[0xab, 0xc0]]).unwrap();
    assert_eq!(filter.matching, Match::Pattern(pattern));
    let written = serde_json::to_value(Keys::of(&filter)).unwrap();
    let wanted: serde_json::Value = serde_json::from_str(text).unwrap();
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&written[key], value, "{key}");
    }
}

#[test]
fn bytes_are_written_in_pairs_of_digits_alone() {
    let error = |mask: &str| {
        let text =
            format!(r#"{{"name":"p","action":"drop","start":0,"mask":"{mask}","values":["00"]}}"#);
        let keys: Keys = serde_json::from_str(&text).unwrap();
        keys.filter().unwrap_err().to_string()
    };
    for mask in ["f", "fff", "+f", "0x", "g0", "ä"] {
        let expected = format!("mask: found \"{mask}\", allowed: hexadecimal digits, two per byte");
        assert_eq!(error(mask), expected);
    }
}

#[test]
fn keys_ask_for_one_kind_of_match() {
    let matching = |keys: &str| {
        let text = format!(r#"{{"name":"p","action":"count"{keys}}}"#);
        let keys: Keys = serde_json::from_str(&text).unwrap();
        keys.filter().map(|filter| filter.matching).map_err(|error| error.to_string())
    };
    assert_eq!(matching(""), Ok(Match::Any));
    assert_eq!(matching(r#","predicate":true"#), Ok(Match::Predicate));
    assert_eq!(matching(r#","protocol":"any""#), Ok(Match::FiveTuple(FiveTuple::default())));
    for (key, value) in [
        ("source", "\"10.0.0.0/8\""),
        ("destination", "\"10.0.0.0/8\""),
        ("protocol", "\"udp\""),
        ("source_ports", "\"7\""),
        ("destination_ports", "\"7\""),
    ] {
        let alone = matching(&format!(r#","{key}":{value}"#)).unwrap();
        assert!(matches!(alone, Match::FiveTuple(_)), "{key}");
        let both = matching(&format!(r#","{key}":{value},"predicate":true"#)).unwrap_err();
        let kinds =
            "found keys of two kinds, allowed: keys of a five-tuple, of a pattern, or neither";
        assert_eq!(both, format!("{key}: {kinds}"));
    }
}
