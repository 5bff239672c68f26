//! Which side is woken, and when.

use crate::{Pair, pair};
use picnic_channel::{Awaits, Bell, End, Region, Shape, Side};
use picnic_testing::PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;

#[test]
fn sleepers_are_woken_once_per_batch_and_others_never() {
    let Pair { card, host, bells: [_, bell] } = pair(8, 8);
    let mut into = [0; 8];
    let send = |count: usize| {
        (0..count).for_each(|_| card.stage(b"message").unwrap());
        card.flush()
    };
    assert!(!send(2), "the host is awake");
    host.rest(Awaits::Message);
    assert!(host.has_news(Awaits::Message), "it must look once more");
    host.wake();
    while host.take(&mut into).unwrap().is_some() {}
    host.flush();
    host.rest(Awaits::Message);
    assert!(!host.has_news(Awaits::Message));
    assert!(send(3));
    assert!(!send(3), "it has been rung");
    assert_eq!(bell.count(), 1);
    host.wake();
    assert!(!send(1));
    assert_eq!(bell.count(), 1);
}

#[test]
fn room_wakes_only_those_that_wait_for_it() {
    let Pair { card, host, bells: [for_card, for_host] } = pair(8, 2);
    let mut into = [0; 8];
    host.stage(b"a").unwrap();
    host.stage(b"b").unwrap();
    host.flush();
    host.rest(Awaits::Message);
    assert!(card.take(&mut into).unwrap().is_some());
    assert!(!card.flush(), "the host waits for a message, not for room");
    host.wake();
    assert!(host.stage(b"c").is_ok());
    host.flush();
    host.rest(Awaits::Room);
    assert!(!host.has_news(Awaits::Room));
    assert!(card.take(&mut into).unwrap().is_some());
    assert!(card.flush());
    assert!(host.has_news(Awaits::Room));
    assert_eq!((for_card.count(), for_host.count()), (0, 1));
}

#[test]
fn closed_channel_wakes_and_keeps_its_last_messages() {
    let Pair { card, host, bells: [_, bell] } = pair(8, 8);
    card.stage(b"last").unwrap();
    host.rest(Awaits::Message);
    card.close();
    assert_eq!(bell.count(), 1);
    assert!(host.is_closed());
    assert_eq!(host.take(&mut [0; 8]), Ok(Some(4)));
    assert_eq!(host.take(&mut [0; 8]), Ok(None));
}

/// Sleeps until its bell rings.
fn sleep(end: &End, bell: &Bell, awaits: Awaits) {
    end.flush();
    end.rest(awaits);
    if !end.has_news(awaits) {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let rung = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(rung, 1, "a wake-up was lost");
    }
    end.wake();
    bell.quiet();
}

/// Two threads that sleep whenever they can: a lost wake-up would stop both.
#[test]
fn no_wake_up_is_lost() {
    const COUNT: u32 = 20_000;
    let shape = Shape::new(4, 4).unwrap();
    let region = Arc::new(Region::private(shape.bytes()).unwrap());
    let [for_card, for_host] = [(); 2].map(|()| Arc::new(Bell::new().unwrap()));
    let card = End::new(region.clone(), shape, Side::Card, for_host.clone());
    let host = End::new(region, shape, Side::Host, for_card.clone());
    let task = std::thread::spawn(move || {
        let mut into = [0; 4];
        for number in 0..COUNT {
            let bytes = loop {
                match card.take(&mut into).unwrap() {
                    Some(bytes) => break bytes,
                    None => sleep(&card, &for_card, Awaits::Message),
                }
            };
            assert_eq!((bytes, into), (4, number.to_le_bytes()));
            // Some messages are echoed, so that both wait for messages and for room.
            while number % 3 == 0 && card.stage(&into).is_err() {
                sleep(&card, &for_card, Awaits::Room);
            }
            if number % 5 == 0 {
                card.flush();
            }
        }
        card.close();
    });
    let (mut into, mut back) = ([0; 4], 0);
    let mut drain = |host: &End| {
        while host.take(&mut into).unwrap().is_some() {
            assert_eq!(u32::from_le_bytes(into), back);
            back += 3;
        }
    };
    for number in 0..COUNT {
        while host.stage(&number.to_le_bytes()).is_err() {
            drain(&host);
            sleep(&host, &for_host, Awaits::Any);
        }
        if number % 7 == 0 {
            host.flush();
        }
    }
    while !host.is_closed() {
        drain(&host);
        if !host.is_closed() {
            sleep(&host, &for_host, Awaits::Message);
        }
    }
    drain(&host);
    task.join().unwrap();
    assert_eq!(back, COUNT.next_multiple_of(3));
}
