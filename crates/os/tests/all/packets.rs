//! Packets to and from tasks: mailboxes, frames, and their part of the ledger.

use crate::bench::{Bench, Log, micros};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::resident::Resident;
use picnic_core::time::Time;
use picnic_os::control::TaskControl;
use picnic_os::mailbox::MailboxSender;
use picnic_os::net::{FRAMES_PER_SEGMENT, SendError};
use picnic_os::task::{TaskId, TaskSpec, program};
use std::sync::{Arc, Mutex};

fn spec(name: &str) -> TaskSpec {
    TaskSpec::new(name).wcet_ns(1_000)
}

type Slot = Arc<Mutex<Option<MailboxSender>>>;

/// A task that hands out its mailbox's sender and then handles each packet by `each`.
fn reader(
    bench: &mut Bench,
    capacity: usize,
    each: impl Fn(picnic_os::mailbox::Packet) + Send + 'static,
) -> (TaskId, Slot) {
    let slot = Slot::default();
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(capacity).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        while let Some(packet) = mailbox.receive().await {
            each(packet);
        }
    });
    let id = bench.os.create(spec("reader"), body).unwrap();
    bench.run_until(micros(5));
    (id, slot)
}

fn push(bench: &mut Bench, slot: &Slot, bytes: &[u8]) -> bool {
    let packet = bench.doors.pool.packet(bytes).unwrap();
    match slot.lock().unwrap().as_mut().unwrap().push(packet) {
        Ok(()) => true,
        Err(packet) => {
            bench.doors.drop(packet, DropReason::MailboxFull, Stage::Rx);
            false
        }
    }
}

#[test]
fn packets_arrive_in_order_and_are_held() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let (_, slot) = reader(&mut bench, 8, move |packet| {
        said.say(Time::ZERO, format!("{:?}", packet.data()));
    });
    assert!(!bench.os.attention().is_raised());
    for byte in 1..=3 {
        assert!(push(&mut bench, &slot, &[byte]));
    }
    assert_eq!(bench.os.attention().held().get(), 3);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "0:[1] 0:[2] 0:[3]");
    assert_eq!(bench.os.attention().held().get(), 0);
    assert_eq!(bench.doors.ledger.card.consumed.get(), 3);
    bench.end();
}

#[test]
fn mailboxes_count_packets() {
    let (mut bench, log, slot) = (Bench::new(), Log::default(), Slot::default());
    let (said, theirs) = (log.clone(), slot.clone());
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        drop(mailbox.receive().await);
        said.say(
            Time::ZERO,
            format!("{} received, {} found it full", mailbox.received(), mailbox.full()),
        );
    });
    bench.os.create(spec("reader"), body).unwrap();
    bench.run_until(micros(5));
    for byte in 0..6 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(10));
    assert_eq!(log.text(), "0:4 received, 2 found it full");
    bench.end();
}

fn segments(bench: &Bench) -> u64 {
    bench.os.lines().next().unwrap().counters.segments.get()
}

#[test]
fn each_packet_is_received_in_a_separate_segment() {
    let mut bench = Bench::new();
    let (_, slot) = reader(&mut bench, 4, drop);
    assert_eq!(segments(&bench), 1);
    for byte in 0..3 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(20));
    assert_eq!(segments(&bench), 4);
    bench.end();
}

#[test]
fn packets_wake_only_waiting_tasks() {
    let (mut bench, log, slot) = (Bench::new(), Log::default(), Slot::default());
    let (said, theirs) = (log.clone(), slot.clone());
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        drop(mailbox.receive().await);
        said.say(nic.now(), format!("{} left", mailbox.len()));
        nic.sleep_until(micros(20)).await;
        said.say(nic.now(), format!("{} left", mailbox.len()));
        drop((mailbox.try_receive(), mailbox.try_receive()));
        said.say(nic.now(), format!("empty: {}", mailbox.is_empty()));
        std::future::pending().await
    });
    bench.os.create(spec("reader"), body).unwrap();
    bench.run_until(micros(5));
    push(&mut bench, &slot, &[0]);
    bench.run_until(micros(10));
    for byte in 1..3 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(30));
    assert_eq!(log.text(), "5:0 left 20:2 left 20:empty: true");
    assert_eq!(segments(&bench), 3);
    bench.end();
}

#[test]
fn full_mailboxes_return_the_packet() {
    let mut bench = Bench::new();
    let (_, slot) = reader(&mut bench, 4, drop);
    let taken = (0..6).filter(|&byte| push(&mut bench, &slot, &[byte])).count();
    assert_eq!(taken, 4);
    let sender = slot.lock().unwrap();
    let sender_ref = sender.as_ref().unwrap();
    assert_eq!((sender_ref.received(), sender_ref.full(), sender_ref.capacity()), (4, 2, 4));
    drop(sender);
    assert_eq!(bench.doors.ledger.card.drops.get(DropReason::MailboxFull, Stage::Rx), 2);
    bench.run_until(micros(30));
    assert_eq!(bench.doors.ledger.card.consumed.get(), 4);
    bench.end();
}

#[test]
fn tasks_can_use_every_door() {
    let mut bench = Bench::new();
    let (_, slot) = reader(&mut bench, 8, |packet| match packet.data()[0] {
        0 => packet.transmit(0),
        1 => packet.discard(DropReason::Filtered),
        2 => packet.steer(9),
        _ => packet.consume(),
    });
    for byte in 0..4 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(20));
    let card = &bench.doors.ledger.card;
    assert_eq!(bench.doors.backlog.waiting(), 1);
    assert_eq!(card.drops.get(DropReason::Filtered, Stage::Task), 1);
    assert_eq!(card.drops.get(DropReason::NoSuchQueue, Stage::Steer), 1);
    assert_eq!(card.consumed.get(), 1);
    bench.end();
}

#[test]
fn packets_leave_in_order_of_release() {
    let (mut bench, slot) = (Bench::new(), Slot::default());
    let theirs = slot.clone();
    let body = program(move |nic| async move {
        let (sender, mut mailbox) = nic.mailbox(4).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        nic.sleep_until(micros(10)).await;
        while let Some(packet) = mailbox.try_receive() {
            packet.transmit(0);
        }
        std::future::pending().await
    });
    bench.os.create(spec("t"), body).unwrap();
    bench.run_until(micros(5));
    for byte in 1..4 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(20));
    assert_eq!(bench.wire_takes(0, 9, false), [[1], [2], [3]]);
    bench.end();
}

#[test]
fn packets_of_killed_tasks_are_consumed() {
    let mut bench = Bench::new();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let theirs = kept.clone();
    let (id, slot) = reader(&mut bench, 8, move |packet| theirs.lock().unwrap().push(packet));
    for byte in 0..3 {
        push(&mut bench, &slot, &[byte]);
    }
    bench.run_until(micros(20));
    push(&mut bench, &slot, &[7]);
    assert_eq!(bench.os.attention().held().get(), 4);
    assert!(bench.os.control(bench.now, &mut TaskControl::Kill(id)));
    assert!(slot.lock().unwrap().as_ref().unwrap().is_closed());
    assert!(!push(&mut bench, &slot, &[8]));
    bench.run_until(micros(25));
    assert_eq!(bench.os.attention().held().get(), 3, "those that are elsewhere");
    assert!(!bench.os.attention().is_raised());
    kept.lock().unwrap().clear();
    assert!(bench.os.attention().is_raised());
    bench.run_until(micros(30));
    bench.end();
}

#[test]
fn mailboxes_end_with_their_filter() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let (id, slot) = reader(&mut bench, 8, drop);
    push(&mut bench, &slot, &[1]);
    *slot.lock().unwrap() = None;
    bench.run_until(micros(20));
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    assert_eq!(line.state, picnic_os::roster::State::Returned);
    assert_eq!(bench.doors.ledger.card.consumed.get(), 1);
    assert_eq!(log.text(), "");
    bench.end();
}

#[test]
fn synchronous_sends_wait_for_the_wire() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for byte in 1..=3u8 {
            let end = nic.send(0, &[byte; 60]).await;
            said.say(nic.now(), format!("{byte}:{end:?}"));
        }
    });
    bench.os.create(spec("sender"), body).unwrap();
    // Another's packet is ahead in the queue.
    let ahead = bench.doors.pool.packet(&[0; 60]).unwrap();
    bench.doors.transmit(ahead, 0);
    bench.run_until(micros(10));
    assert_eq!(log.text(), "");
    bench.wire_takes(0, 1, false);
    bench.run_until(micros(20));
    assert_eq!(log.text(), "", "the one ahead has gone, not its own");
    assert_eq!(bench.wire_takes(0, 1, false), [vec![1; 60]]);
    bench.run_until(micros(30));
    assert_eq!(log.text(), "20:1:Ok(())");
    bench.wire_takes(0, 1, true);
    bench.run_until(micros(40));
    assert_eq!(log.text(), "30:2:Err(Dropped)");
    bench.wire_takes(0, 1, false);
    bench.run_until(micros(50));
    assert_eq!(log.text(), "40:3:Ok(())");
    assert_eq!(bench.doors.ledger.card.made.get(), 3);
    assert!(!bench.doors.is_watched());
    bench.end();
}

#[test]
fn suspended_senders_get_results_later() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let end = nic.send(0, &[1; 60]).await;
        said.say(nic.now(), format!("{end:?}"));
    });
    let id = bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    bench.os.control(bench.now, &mut TaskControl::Suspend(id));
    bench.wire_takes(0, 1, true);
    bench.run_until(micros(20));
    // Meanwhile another task's packet has left.
    let other = bench.doors.pool.packet(&[0; 60]).unwrap();
    bench.doors.transmit(other, 0);
    bench.wire_takes(0, 1, false);
    bench.run_until(micros(30));
    assert_eq!(log.text(), "");
    bench.os.control(bench.now, &mut TaskControl::Resume(id));
    bench.run_until(micros(40));
    assert!(log.text().ends_with(":Err(Dropped)"), "{}", log.text());
    bench.end();
}

#[test]
fn callbacks_get_the_result_of_each_frame() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let sender = nic.sender(0, move |end| said.say(Time::ZERO, format!("{end:?}")));
        for byte in 1..=4u8 {
            sender.post(&[byte; 60]).unwrap();
        }
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    bench.wire_takes(0, 1, false);
    bench.wire_takes(0, 1, true);
    bench.wire_takes(0, 1, false);
    bench.run_until(micros(20));
    let said = log.take();
    let said: Vec<_> = said.into_iter().map(|(_, what)| what).collect();
    assert_eq!(said, ["Ok(())", "Err(Dropped)", "Ok(())"]);
    bench.end();
}

#[test]
fn nothing_is_sent_after_a_stop() {
    let (mut bench, kept) = (Bench::new(), Arc::new(Mutex::new(None)));
    let theirs = kept.clone();
    let body = program(move |nic| async move {
        let sender = nic.sender(0, |_| {});
        sender.post(&[1; 60]).unwrap();
        *theirs.lock().unwrap() = Some(sender);
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    bench.end();
    let sender = kept.lock().unwrap().take().unwrap();
    assert_eq!(sender.post(&[2; 60]), Err(SendError::Stopped));
}

#[test]
fn a_callback_may_send_the_next_frame() {
    let mut bench = Bench::new();
    let body = program(move |nic| async move {
        let theirs = nic.clone();
        let sender = nic.sender(0, move |_| theirs.post(0, &[2; 60]).unwrap());
        sender.post(&[1; 60]).unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    for byte in [1, 2] {
        bench.run_until(bench.now + 10_000);
        assert_eq!(bench.wire_takes(0, 9, false), [vec![byte; 60]]);
    }
    bench.end();
}

#[test]
fn callbacks_report_a_stop() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let sender = nic.sender(0, move |end| said.say(Time::ZERO, format!("{end:?}")));
        sender.post(&[1; 60]).unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    bench.end();
    assert_eq!(log.text(), "0:Err(Stopped)");
}

#[test]
fn panicking_callbacks_end_their_task() {
    let mut bench = Bench::new();
    let body = program(move |nic| async move {
        let sender = nic.sender(0, |_| panic!("as it is meant to"));
        sender.post(&[1; 60]).unwrap();
        nic.sleep_until(Time::MAX).await;
    });
    let id = bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(10));
    bench.wire_takes(0, 1, false);
    bench.run_until(micros(20));
    let line = bench.os.lines().find(|line| line.id == id).unwrap();
    assert_eq!(line.state, picnic_os::roster::State::Panicked);
    bench.end();
}

#[test]
fn unsendable_frames_are_refused_with_a_reason() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        let tell = |end: Result<(), SendError>| said.say(nic.now(), end.unwrap_err().to_string());
        tell(nic.post(0, &[]));
        tell(nic.post(0, &[0; 4000]));
        tell(nic.post(3, &[0; 60]));
        tell(nic.send(3, &[0; 60]).await);
        for _ in 0..FRAMES_PER_SEGMENT {
            nic.post(0, &[0; 60]).unwrap();
        }
        tell(nic.post(0, &[0; 60]));
        // After the await there are buffers again.
        nic.yield_now().await;
        nic.post(0, &[0; 60]).unwrap();
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(20));
    let texts: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(
        texts,
        [
            "the frame has 0 bytes, allowed: 1 to 2048 (pool.buffer_size)",
            "the frame has 4000 bytes, allowed: 1 to 2048 (pool.buffer_size)",
            "the card has no wire 3",
            "the card has no wire 3",
            "no buffer is left, allowed: 16 frames per segment",
        ]
    );
    assert_eq!(bench.doors.backlog.waiting(), FRAMES_PER_SEGMENT + 1);
    bench.end();
}

#[test]
fn full_wire_queues_are_reported() {
    let (mut bench, log) = (Bench::new(), Log::default());
    let said = log.clone();
    let body = program(move |nic| async move {
        for _ in 0..5 {
            for _ in 0..FRAMES_PER_SEGMENT {
                let _ = nic.post(0, &[0; 60]);
            }
            nic.yield_now().await;
        }
        let end = nic.send(0, &[0; 60]).await;
        said.say(nic.now(), format!("{end:?}"));
    });
    bench.os.create(spec("sender"), body).unwrap();
    bench.run_until(micros(20));
    assert_eq!(log.take()[0].1, "Err(WireFull)");
    bench.end();
}

#[test]
fn a_task_waits_for_several_mailboxes_and_for_a_time() {
    let (mut bench, log, slots) =
        (Bench::new(), Log::default(), [Slot::default(), Slot::default()]);
    let (said, theirs) = (log.clone(), slots.clone());
    let body = program(move |nic| async move {
        let (one, mut first) = nic.mailbox(4).unwrap();
        let (other, mut second) = nic.mailbox(4).unwrap();
        *theirs[0].lock().unwrap() = Some(one);
        *theirs[1].lock().unwrap() = Some(other);
        for until in [40, 40, 40, 60, 90] {
            nic.any_mail([&mut first, &mut second], micros(until)).await;
            let found = (first.try_receive().is_some(), second.try_receive().is_some());
            said.say(Time::ZERO, format!("{found:?} {}", first.is_closed()));
        }
    });
    bench.os.create(spec("reader"), body).unwrap();
    bench.run_until(micros(5));
    assert!(push(&mut bench, &slots[1], &[1]));
    bench.run_until(micros(10));
    assert!(push(&mut bench, &slots[0], &[2]));
    bench.run_until(micros(39));
    assert_eq!(log.text(), "0:(false, true) false 0:(true, false) false");
    bench.run_until(micros(59));
    assert_eq!(log.text(), "0:(false, false) false");
    bench.run_until(micros(80));
    // It is closed while the task waits.
    *slots[0].lock().unwrap() = None;
    bench.run_until(micros(85));
    assert_eq!(log.text(), "0:(false, false) false 0:(false, false) true");
    bench.end();
}
