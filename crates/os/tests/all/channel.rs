//! Channels between tasks and the host, on a virtual core: both ends here.

use crate::bench::{Bench, Log, edf_plus, micros};
use picnic_channel::{Awaits, Shape};
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::resident::Resident;
use picnic_os::channel::{ChannelReport, ChannelSendError, Channels, HostEnd, HostGone, OpenError};
use picnic_os::context::Nic;
use picnic_os::control::TaskControl;
use picnic_os::executor::OsSettings;
use picnic_os::task::{TaskId, TaskSpec, program};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
struct Counting(AtomicUsize);

impl Doorbell for Counting {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn channels(bench: &Bench) -> Channels {
    bench.os.services().channels()
}

fn opened(bench: &Bench, name: &str) -> HostEnd {
    channels(bench).open_here(name, Arc::new(NoDoorbell)).unwrap()
}

/// Runs until nothing is left to do.
fn settle(bench: &mut Bench) {
    bench.run_until(bench.now + 1_000_000);
}

fn create<T>(bench: &mut Bench, name: &str, body: impl FnOnce(Nic) -> T + Send + 'static) -> TaskId
where
    T: Future<Output = ()> + Send + 'static,
{
    let task = bench.os.create(TaskSpec::new(name), program(body)).unwrap();
    settle(bench);
    task
}

/// Returns every message to its sender.
async fn echo(nic: Nic) {
    let mut channel = nic.channel("echo", 16, 4).await.unwrap();
    let mut message = [0; 16];
    loop {
        if let Ok(bytes) = channel.receive(&mut message).await {
            let _ = channel.send(&message[..bytes]).await;
        }
    }
}

fn report(bench: &Bench, name: &str) -> ChannelReport {
    channels(bench).list().into_iter().rfind(|channel| channel.channel == name).unwrap()
}

#[test]
fn messages_go_both_ways() {
    let mut bench = Bench::new();
    create(&mut bench, "echo", echo);
    let mut host = opened(&bench, "echo");
    let mut into = [0; 16];
    for round in 0..20_u8 {
        for number in 0..round % 5 {
            host.send(&[round, number]).unwrap();
        }
        settle(&mut bench);
        for number in 0..round % 5 {
            assert_eq!(host.receive(&mut into), Some(2));
            assert_eq!(into[..2], [round, number]);
        }
        assert_eq!(host.receive(&mut into), None);
    }
    let figures = report(&bench, "echo");
    assert_eq!((figures.sent_messages, figures.received_messages), (40, 40));
    assert_eq!((figures.openings, figures.lost_messages, figures.broken_hosts), (1, 0, 0));
    drop(host);
    bench.end();
}

/// A message needs no call for the task's attention: the memory is watched.
#[test]
fn waiting_tasks_see_the_memory_itself() {
    let mut bench = Bench::new();
    create(&mut bench, "echo", echo);
    let mut host = opened(&bench, "echo");
    settle(&mut bench);
    let attention = bench.os.attention().clone();
    assert!(!attention.is_raised() && attention.is_watching());
    host.send(b"silent").unwrap();
    assert!(attention.is_raised(), "seen in the memory");
    settle(&mut bench);
    assert_eq!(host.receive(&mut [0; 16]), Some(6));
    drop(host);
    settle(&mut bench);
    assert!(!attention.is_watching(), "nobody has it open");
    bench.end();
}

#[test]
fn hosts_are_woken_once_per_segment_and_never_while_awake() {
    let mut bench = Bench::new();
    create(&mut bench, "bursts", |nic| async move {
        let mut channel = nic.channel("bursts", 8, 64).await.unwrap();
        loop {
            for _ in 0..10 {
                let _ = channel.try_send(b"message");
            }
            nic.sleep_ns(100_000).await;
        }
    });
    let bell = Arc::new(Counting::default());
    let mut host = channels(&bench).open_here("bursts", bell.clone()).unwrap();
    let drain = |host: &mut HostEnd| while host.receive(&mut [0; 8]).is_some() {};
    for _ in 0..5 {
        drain(&mut host);
        bench.run_until(bench.now + 300_000);
    }
    assert_eq!(bell.0.load(Ordering::SeqCst), 0, "it was awake");
    for round in 1..=5 {
        drain(&mut host);
        assert!(host.rest(Awaits::Message));
        bench.run_until(bench.now + 300_000);
        assert_eq!(bell.0.load(Ordering::SeqCst), round);
        host.wake();
    }
    assert_eq!(report(&bench, "bursts").host_wakeups, 5);
    bench.end();
}

#[test]
fn full_channels_hold_the_task_back() {
    let mut bench = Bench::new();
    let log = Log::default();
    let said = log.clone();
    create(&mut bench, "sender", move |nic| async move {
        let mut channel = nic.channel("sender", 4, 2).await.unwrap();
        assert_eq!(channel.try_send(&[1]), Err(ChannelSendError::NotOpen));
        for number in 0..6_u8 {
            channel.send(&[number]).await.unwrap();
            said.say(nic.now(), number.to_string());
        }
        let too_long = ChannelSendError::TooLong { found: 5, most: 4 };
        assert_eq!(channel.try_send(&[0; 5]), Err(too_long));
        assert_eq!(channel.send(&[0; 5]).await, Err(too_long));
        nic.sleep_until(micros(1 << 40)).await;
    });
    assert_eq!(log.text(), "", "it waits for a host");
    let mut host = opened(&bench, "sender");
    let mut got = Vec::new();
    for expected in [2, 4, 6] {
        settle(&mut bench);
        assert_eq!(got.len() + 2, expected);
        while host.receive(&mut [0; 4]).is_some() {
            got.push(());
        }
    }
    settle(&mut bench);
    let figures = report(&bench, "sender");
    assert_eq!((figures.sent_messages, figures.too_long_messages), (6, 2));
    assert!(figures.full_messages >= 2, "{figures:?}");
    bench.end();
}

#[test]
fn names_and_sizes_are_checked() {
    let settings = OsSettings { host_bytes: 1 << 16, ..OsSettings::default() };
    let mut bench = Bench::with(&settings, edf_plus());
    let log = Log::default();
    let said = log.clone();
    create(&mut bench, "first", |nic| async move {
        let _channel = nic.channel("taken", 8, 8).await.unwrap();
        nic.sleep_until(micros(1 << 40)).await;
    });
    create(&mut bench, "second", move |nic| async move {
        let long = "n".repeat(65);
        for (name, bytes, messages) in [
            ("taken", 8, 8),
            ("", 8, 8),
            ("a b", 8, 8),
            (&long, 8, 8),
            ("x", 0, 8),
            ("x", 65_537, 8),
            ("x", 8, 0),
            ("x", 8, 65_537),
            ("x", 65_536, 65_536),
        ] {
            let refused = nic.channel(name, bytes, messages).await.unwrap_err();
            said.say(nic.now(), refused.to_string());
        }
        // A refused request is not charged.
        let one = nic.channel("x", 1024, 16).await.unwrap();
        drop(one);
        let _again = nic.channel("x", 1024, 16).await.unwrap();
    });
    let said: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(said[0], "channel \"taken\" exists already: it belongs to task 1");
    let name = "allowed: 1 to 64 letters, digits, \".\", \"-\", \"_\"";
    assert_eq!(said[1], format!("found channel name \"\", {name}"));
    assert!(said[2..4].iter().all(|text| text.ends_with(name)));
    let sizes = "allowed: 1 to 65536 messages of 1 to 65536 bytes";
    assert!(said[4..8].iter().all(|text| text.ends_with(sizes)), "{said:?}");
    assert!(said[8].starts_with("found no room for 8590984448 bytes at the host"), "{said:?}");
    assert_eq!(said.len(), 9);
    assert_eq!(bench.os.memory_report().host_used_bytes, Shape::new(8, 8).unwrap().bytes() as u64);
    let refused = |name: &str| {
        channels(&bench).open_here(name, Arc::new(NoDoorbell)).unwrap_err().to_string()
    };
    assert_eq!(refused("other"), "found \"other\", allowed: taken");
    // Channels of this process have no doorbell for others.
    assert!(matches!(channels(&bench).open("taken", 1, None), Err(OpenError::NoDoorbell)));
    bench.end();
}

#[test]
fn one_host_at_a_time() {
    let mut bench = Bench::new();
    create(&mut bench, "echo", echo);
    let host = opened(&bench, "echo");
    let second = channels(&bench).open_here("echo", Arc::new(NoDoorbell)).unwrap_err();
    assert_eq!(second.to_string(), "found \"echo\", which another process has open");
    drop(host);
    drop(opened(&bench, "echo"));
    drop(opened(&bench, "echo"));
    settle(&mut bench);
    let mut host = opened(&bench, "echo");
    host.send(b"fourth").unwrap();
    settle(&mut bench);
    assert_eq!(host.receive(&mut [0; 16]), Some(6));
    bench.end();
}

/// The next host gets neither messages of an earlier host nor answers to them.
#[test]
fn each_host_has_its_own_messages() {
    let mut bench = Bench::new();
    let log = Log::default();
    let said = log.clone();
    create(&mut bench, "slow", move |nic| async move {
        let mut channel = nic.channel("slow", 16, 8).await.unwrap();
        let mut message = [0; 16];
        loop {
            match channel.receive(&mut message).await {
                Ok(bytes) => {
                    nic.sleep_ns(10_000).await;
                    let sent = channel.send(&message[..bytes]).await;
                    said.say(nic.now(), format!("{} {}", message[0], sent.is_ok()));
                }
                Err(HostGone) => said.say(nic.now(), "gone"),
            }
        }
    });
    let mut first = opened(&bench, "slow");
    (1..=3).for_each(|number| first.send(&[number]).unwrap());
    // The first message has been taken when the host goes, the second has not.
    bench.run_until(bench.now + 1_000);
    drop(first);
    let mut second = opened(&bench, "slow");
    second.send(&[9]).unwrap();
    settle(&mut bench);
    let said: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["1 false", "9 true"]);
    let mut into = [0; 16];
    assert_eq!((second.receive(&mut into), into[0]), (Some(1), 9));
    assert_eq!(second.receive(&mut into), None);
    assert_eq!(report(&bench, "slow").lost_messages, 2);
    // Without anything to send, the task reads all before it hears of the end.
    second.send(&[10]).unwrap();
    drop(second);
    settle(&mut bench);
    let said: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, ["10 false"]);
    bench.end();
}

#[test]
fn receivers_get_all_messages_of_an_ended_host() {
    let mut bench = Bench::new();
    let log = Log::default();
    let said = log.clone();
    create(&mut bench, "sink", move |nic| async move {
        let mut channel = nic.channel("sink", 1, 8).await.unwrap();
        let mut message = [0; 1];
        loop {
            let text = match channel.receive(&mut message).await {
                Ok(_) => message[0].to_string(),
                Err(HostGone) => "gone".into(),
            };
            said.say(nic.now(), text);
        }
    });
    for number in 0..3_u8 {
        let mut host = opened(&bench, "sink");
        (0..4).for_each(|each| host.send(&[10 * number + each]).unwrap());
        drop(host);
        if number == 1 {
            // The third one opens while the task still reads the second one's messages.
            continue;
        }
        settle(&mut bench);
    }
    let said: Vec<_> = log.take().into_iter().map(|(_, text)| text).collect();
    let expected = "0 1 2 3 gone 20 21 22 23 gone";
    // The task had not looked at the second before the third came.
    assert_eq!(said.join(" "), expected);
    assert_eq!(report(&bench, "sink").lost_messages, 4);
    bench.end();
}

#[test]
fn ended_tasks_close_their_channels() {
    let mut bench = Bench::new();
    let task = create(&mut bench, "echo", echo);
    let bell = Arc::new(Counting::default());
    let mut host = channels(&bench).open_here("echo", bell.clone()).unwrap();
    settle(&mut bench);
    (0..3).for_each(|number| host.send(&[number]).unwrap());
    assert!(bench.os.memory_report().host_used_bytes > 0);
    let now = bench.now;
    assert!(bench.os.control(now, &mut TaskControl::Kill(task)));
    assert!(host.is_closed() && bell.0.load(Ordering::SeqCst) == 1);
    let figures = report(&bench, "echo");
    assert_eq!((figures.is_alive, figures.lost_messages), (false, 3));
    assert!(channels(&bench).open_here("echo", bell).is_err());
    // Its name is free for another.
    create(&mut bench, "again", echo);
    let mut second = opened(&bench, "echo");
    second.send(b"x").unwrap();
    settle(&mut bench);
    assert_eq!(second.receive(&mut [0; 16]), Some(1));
    drop((host, second));
    channels(&bench).tick();
    let used = bench.os.memory_report().host_used_bytes;
    assert_eq!(used, report(&bench, "echo").memory_bytes, "of the second task");
    bench.end();
}

/// A process may open a channel just as its task ends, or the card.
#[test]
fn ended_tasks_close_channels_that_they_had_not_noticed() {
    let mut bench = Bench::new();
    let task = create(&mut bench, "echo", echo);
    let first = opened(&bench, "echo");
    settle(&mut bench);
    drop(first);
    let mut host = opened(&bench, "echo");
    host.send(b"x").unwrap();
    let now = bench.now;
    assert!(bench.os.control(now, &mut TaskControl::Kill(task)));
    assert!(host.is_closed());
    let figures = report(&bench, "echo");
    assert_eq!((figures.is_alive, figures.lost_messages), (false, 1));
    bench.end();
}

/// A host that writes anywhere in the memory: its channel breaks, the next host's works.
#[test]
fn broken_hosts_lose_their_channel_only() {
    proptest!(ProptestConfig::with_cases(64), |(
        writes in vec((0_usize..400, prop_oneof![any::<u64>(), 0_u64..20]), 1..60),
    )| {
        let mut bench = Bench::new();
        create(&mut bench, "echo", echo);
        let mut host = opened(&bench, "echo");
        let region = host.region().clone();
        for (word, value) in writes {
            let words = region.words();
            words[word % words.len()].store(value, Ordering::Relaxed);
            let _ = host.send(b"more");
            bench.run_until(bench.now + 10_000);
        }
        drop(host);
        settle(&mut bench);
        let mut host = opened(&bench, "echo");
        host.send(b"well").unwrap();
        settle(&mut bench);
        prop_assert_eq!(host.receive(&mut [0; 16]), Some(4));
        drop(host);
        bench.end();
    });
}
