//! Frames and their ends, when buffers or room are short.

use crate::bench::{Bench, Log, micros};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::time::Time;
use picnic_os::task::{TaskSpec, program};
use std::task::Poll;

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

#[test]
fn callbacks_follow_the_order_of_frames() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let [a, b, c] = ["a", "b", "c"].map(|name| {
            let said = said.clone();
            nic.sender(0, move |_| said.say(Time::ZERO, name))
        });
        a.post(&[1; 60]).unwrap();
        b.post(&[2; 60]).unwrap();
        nic.sleep_until(micros(10)).await;
        // In the place of the first, which has ended.
        c.post(&[3; 60]).unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(5));
    assert_eq!(bench.wire_takes(0, 1, false).len(), 1);
    bench.run_until(micros(15));
    assert_eq!(bench.wire_takes(0, 9, false).len(), 2);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "0:a 0:b 0:c");
    bench.end();
}

#[test]
fn abandoned_frames_take_no_place() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for _ in 0..100 {
            let mut sending = Box::pin(nic.send(0, &[0; 60]));
            std::future::poll_fn(|context| {
                assert!(sending.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(sending);
            nic.yield_now().await;
        }
        said.say(Time::ZERO, format!("{:?}", nic.send(0, &[0; 60]).await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..300 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    assert_eq!(log.text(), "0:Ok(())");
    assert!(!bench.doors.is_watched());
    bench.end();
}

#[test]
fn unqueried_ends_do_not_affect_others() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut one = Box::pin(nic.send(0, &[1; 60]));
        let mut other = Box::pin(nic.send(0, &[2; 60]));
        std::future::poll_fn(|context| {
            assert!(one.as_mut().poll(context).is_pending());
            assert!(other.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        nic.sleep_until(micros(10)).await;
        drop(one);
        said.say(nic.now(), format!("{:?}", other.await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(5));
    assert_eq!(bench.wire_takes(0, 1, false), [vec![1; 60]]);
    bench.run_until(micros(15));
    assert_eq!(bench.wire_takes(0, 1, true), [vec![2; 60]]);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "10:Err(Dropped)");
    bench.end();
}

#[test]
fn ended_frames_do_not_affect_their_successors() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let mut one = Box::pin(nic.send(0, &[1; 60]));
        assert_eq!(one.as_mut().await, Ok(()));
        let mut other = Box::pin(nic.send(0, &[2; 60]));
        std::future::poll_fn(|context| {
            assert!(other.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(one);
        said.say(Time::ZERO, format!("{:?}", other.await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..9 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    assert_eq!(log.text(), "0:Ok(())");
    bench.end();
}

#[test]
fn returned_buffers_can_be_awaited() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let taken: Vec<_> = std::iter::from_fn(|| bench.doors.pool.packet(&[0; 60])).collect();
    let body = program(move |nic| async move {
        nic.sleep_until(micros(50)).await;
        said.say(nic.now(), format!("{:?}", nic.send(0, &[0; 60]).await));
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    taken.into_iter().for_each(|packet| bench.doors.pool.free(packet));
    bench.run_until(micros(60));
    bench.wire_takes_all(0);
    bench.run_until(micros(70));
    assert_eq!(log.text(), "50:Ok(())");
    bench.end();
}

#[test]
fn returned_buffers_can_be_sent_again() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        loop {
            said.say(Time::ZERO, format!("{:?}", nic.post(0, &[0; 60]).is_ok()));
            nic.yield_now().await;
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.turn();
    let taken: Vec<_> = std::iter::from_fn(|| bench.doors.pool.packet(&[0; 60])).collect();
    for _ in 0..30 {
        bench.turn();
    }
    assert!(log.take().iter().any(|(_, sent)| sent == "false"), "the stock is used up");
    taken.into_iter().for_each(|packet| bench.doors.pool.free(packet));
    for _ in 0..3 {
        bench.turn();
    }
    assert_eq!(log.take().last().map(|(_, sent)| sent.as_str()), Some("true"));
    bench.end();
}

#[test]
fn frames_fit_in_a_buffer() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for (wire, length) in [(0, 1), (0, 2048), (0, 2049), (1, 60)] {
            said.say(nic.now(), format!("{:?}", nic.post(wire, &vec![0; length]).err()));
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.turn();
    let refused = "0:Some(Length { found: 2049, allowed: 2048 }) 0:Some(NoSuchWire(1))";
    assert_eq!(log.text(), format!("0:None 0:None {refused}"));
    bench.end();
}

#[test]
fn the_stock_is_at_most_an_eighth_of_the_pool() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let config = PoolConfig { buffers: 64, ..PoolConfig::default() };
    bench.doors.pool = Pool::new(&config, 0).unwrap().0;
    let said = log.clone();
    let body = program(move |nic| async move {
        let sent = (0..64).filter(|_| nic.post(0, &[0; 60]).is_ok()).count();
        said.say(nic.now(), sent.to_string());
        // A frame refused for lack of a buffer is tried again when there are some.
        for _ in 0..100 {
            said.say(nic.now(), format!("{:?}", nic.send(0, &[0; 60]).await));
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    for _ in 0..300 {
        bench.turn();
        bench.wire_takes_all(0);
    }
    let said: Vec<_> = log.take().into_iter().map(|(_, what)| what).collect();
    assert_eq!((&*said[0], said.len()), ("8", 101));
    assert!(said[1..].iter().all(|sent| sent == "Ok(())"), "{said:?}");
    bench.end();
}

#[test]
fn mailboxes_hold_at_least_one() {
    let mut bench = Bench::new();
    let body = program(|nic| async move {
        let (sender, _mailbox) = nic.mailbox(0).unwrap();
        assert_eq!(sender.capacity(), 1);
    });
    bench.os.create(spec("t"), body).unwrap();
    bench.turn();
    assert_eq!(bench.os.counters().panics.get(), 0);
    bench.end();
}
