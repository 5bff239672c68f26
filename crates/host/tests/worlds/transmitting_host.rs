//! A host that sends on its own: buffers, back-pressure, sleep, and a clean end.

use picnic_control::{Launch, Registries, Running};
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_core::time::Time;
use picnic_host::registries;
use picnic_testing::{let_pass, machine, wait_until};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct Keys {
    /// Packets that each queue sends when its descriptor is readable.
    packets: u64,
}

/// Sends packets when its descriptor is readable.
struct Sender(Keys);

impl Component for Sender {
    type Product = Box<dyn HostAttachment>;
    type Config = Keys;
    const NAME: &'static str = "sender";
    const HELP: &'static str = "sends";

    fn build(keys: Keys, _: &BuildContext) -> Result<Box<dyn HostAttachment>, ConfigError> {
        Ok(Box::new(Sender(keys)))
    }
}

impl HostAttachment for Sender {
    fn open_queue(&mut self, _: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let event =
            eventfd(1, flags).map_err(|error| ConfigError::new("attachment", error.to_string()))?;
        Ok(Box::new(SenderQueue { event, left: 0, packets: self.0.packets, rest: 5 }))
    }

    fn wants_buffers(&self) -> usize {
        256
    }
}

struct SenderQueue {
    event: OwnedFd,
    left: u64,
    packets: u64,
    /// Remaining bursts, each announced by the descriptor.
    rest: u32,
}

static ASKED: AtomicU64 = AtomicU64::new(0);

impl HostQueue for SenderQueue {
    fn deliver(&mut self, _: Time, _: &mut Burst, _: &mut QueueOut<'_>) -> u64 {
        0
    }

    fn transmit(&mut self, _: Time, out: &mut QueueOut<'_>) -> usize {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let mut sent = 0;
        while let Some(mut packet) = out.buffer() {
            if self.left == 0 {
                out.unused(packet);
                let mut count = [0; 8];
                if rustix::io::read(&self.event, &mut count).is_err() {
                    break;
                }
                self.left = self.packets;
                if self.rest != 0 {
                    self.rest -= 1;
                    let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
                }
                continue;
            }
            self.left -= 1;
            packet.truncate(60);
            out.submit(packet);
            sent += 1;
        }
        sent
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
}

static ATTACHMENTS: &[Entry<Box<dyn HostAttachment>>] = &[Entry::of::<Sender>()];

fn start(keys: &str) -> Box<dyn Running> {
    start_with(keys, registries())
}

fn start_with(keys: &str, registries: Registries) -> Box<dyn Running> {
    let card = format!(
        "[[wire]]\nport = \"generator\"\npackets = 1\n[host]\nattachment = \"sender\"\n{keys}"
    );
    let card = CardFile::parse(&card, None).unwrap();
    let registries = Registries { attachments: ATTACHMENTS, ..registries };
    Launch::new(&card, registries).start_alone().unwrap()
}

#[test]
fn all_host_packets_leave_and_buffers_return() {
    let _machine = machine();
    // The last has tx rings and a pool that are too small.
    for keys in [
        "queues = 1\npackets = 1000",
        "queues = 3\npackets = 500",
        "queues = 2\npackets = 20000\ntx_ring_size = 64\n[pool]\nbuffers = 128",
    ] {
        let running = start(keys);
        let queues = running.view().queues.len() as u64;
        let packets: u64 =
            keys.split("packets = ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        let wanted = queues * packets * 6;
        wait_until(keys, || running.view().ledger.card.transmitted.get() == wanted);
        // With nothing to send the targets sleep.
        assert_rest(queues, keys);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{report:#?}");
        assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{report:#?}");
        assert_eq!((report.ledger.transmitted, report.ledger.dropped), (wanted, 0), "{report:#?}");
    }
}

#[test]
fn cards_stop_while_their_host_sends() {
    let _machine = machine();
    for round in 0..20 {
        let running = start("queues = 2\npackets = 1000000000");
        let_pass(round);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{report:#?}");
        assert_eq!((report.ledger.in_flight, report.buffers_missing), (0, 0), "{report:#?}");
    }
}

/// Packets that the wire may still take.
static ALLOWED: AtomicU64 = AtomicU64::new(0);

/// A wire that takes a limited number of packets, and has none.
struct Valve;

impl WirePort for Valve {
    fn receive(&mut self, _: Time, _: &mut Receiver<'_>) {}

    fn transmit(&mut self, _: Time, tx: &mut Transmitter<'_>) {
        while ALLOWED.load(Ordering::Relaxed) != 0
            && let Some(packet) = tx.next()
        {
            ALLOWED.fetch_sub(1, Ordering::Relaxed);
            tx.sent(packet);
        }
    }
}

/// Lets time pass, in which only each target's safety net asks its host: ten times per second.
fn assert_rest(queues: u64, what: &str) {
    let (began, before) = (Instant::now(), ASKED.load(Ordering::Relaxed));
    let_pass(300);
    let asked = ASKED.load(Ordering::Relaxed) - before;
    let nets = began.elapsed().as_millis() as u64 / 100;
    assert!(asked < (17 + nets) * queues, "{what}: asked {asked} times");
}

/// With its wire closed the host fills all the room, and sleeps. Then the wire takes a few packets
/// at a time, and each time the card wakes the host.
#[test]
fn blocked_hosts_are_woken_by_completions_only() {
    const STEP: u64 = 50;
    const PACKETS: u64 = 6 * 200;
    let _machine = machine();
    for mode in ["interrupt", "moderated"] {
        ALLOWED.store(0, Ordering::Relaxed);
        let began = Instant::now();
        let keys = format!(
            "queues = 1\npackets = {}\ntx_ring_size = 64\n[card]\nwire_backlog = 64\n\
             [pool]\nbuffers = 1024\n[interrupt]\ntx_complete = \"{mode}\"\ntx_usecs = 0",
            PACKETS / 6
        );
        let valve = Registries { middleware: |_, _, _| Ok(Box::new(Valve)), ..registries() };
        let running = start_with(&keys, valve);
        let queue = &running.view().queues[0];
        let waits = || queue.target.starved.get() == 1;
        let gone = || running.view().ledger.card.transmitted.get();
        let filled = 64 + 64;
        wait_until("it has filled all room", || queue.target.transmitted.get() == filled);
        wait_until("it waits for more", waits);
        assert_rest(1, mode);
        for step in 1..=PACKETS / STEP {
            ALLOWED.fetch_add(STEP, Ordering::Relaxed);
            wait_until("they leave", || gone() == step * STEP);
            let submitted = (step * STEP + filled).min(PACKETS);
            wait_until("it has filled the room", || queue.target.transmitted.get() == submitted);
            wait_until("it waits, or has sent all", || waits() == (submitted != PACKETS));
        }
        let doorbells = || queue.steer.doorbells.get();
        wait_until("no doorbell is pending", || queue.target.interrupts.get() == doorbells());
        let report = running.monitor().report();
        let [of_queue] = &report.queues[..] else { panic!("{report:#?}") };
        assert_eq!((of_queue.tx_completed, of_queue.tx_completed_bytes), (PACKETS, 60 * PACKETS));
        assert!(of_queue.interrupts != 0, "{mode}: {of_queue:#?}");
        // Possible wake-ups: a doorbell, its descriptor, the safety net.
        let watched = began.elapsed().as_millis() as u64 / 100 + 1;
        let (wakeups, most) = (report.target_cores[0].wakeups, doorbells() + 6 + watched);
        assert!(wakeups <= most, "{mode}: {wakeups} wake-ups, {most} at most: {report:#?}");
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{report:#?}");
        assert_eq!(
            (report.ledger.transmitted, report.buffers_missing),
            (PACKETS, 0),
            "{report:#?}"
        );
    }
}

/// A wire that sends a packet every 100 us, and has none.
struct Slow {
    sent_until: Option<Time>,
}

impl WirePort for Slow {
    fn receive(&mut self, _: Time, _: &mut Receiver<'_>) {}

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        let sent_until = self.sent_until.get_or_insert(now);
        while *sent_until + 100_000 <= now
            && let Some(packet) = tx.next()
        {
            *sent_until = *sent_until + 100_000;
            tx.sent(packet);
        }
    }
}

#[test]
fn stopping_cards_flush_working_wires() {
    let _machine = machine();
    for round in 0..5 {
        let slow = Registries {
            middleware: |_, _, _| Ok(Box::new(Slow { sent_until: None })),
            ..registries()
        };
        let keys = "queues = 1\npackets = 1000000000\ntx_ring_size = 64\n[card]\nwire_backlog = 64";
        let running = start_with(keys, slow);
        let queue = &running.view().queues[0];
        wait_until("all room is filled", || queue.target.transmitted.get() >= 2 * 64);
        let_pass(round);
        let report = running.stop().unwrap();
        assert!(report.ledger.balanced(), "{report:#?}");
        let fates = (report.ledger.dropped, report.ledger.in_flight, report.buffers_missing);
        assert_eq!(fates, (0, 0, 0), "{report:#?}");
    }
}
