//! Lists of filters at their largest, on several cores.

use super::{any, card, of_protocol, pool, run, udp};
use crate::frames::Frame;
use picnic_core::attachment::QueueOut;
use picnic_core::guard::{Guard, Screen};
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::ring::spsc::channel;
use picnic_core::stats::TargetCounters;
use picnic_core::time::Time;
use picnic_filter::code::FilterCode;
use picnic_filter::filters::FilterChange;
use picnic_filter::{
    Action, Callback, CallbackVerdict, Direction, Filter, FilterError, Filters, MOST_FILTERS,
    MOST_GROUPS, Match, Place, Predicate, Protocol,
};

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
