//! Idle: the cost of a card without traffic, and the wait of the first packet after a pause.
//!
//! The wire is a veth. After a pause a client sends a packet and, as soon as it has been handled,
//! another, which finds all threads awake. The wait lasts from before the client's send until the
//! borrowed core takes the packet. Waking a thread takes time without a card, too; so a bare wake
//! is measured alternately with the card, after equal pauses:
//!
//! | figure | from | to |
//! |---|---|---|
//! | `first_packet_wait` | before the first send | the borrowed core takes it |
//! | `next_packet_wait` | before the second send | the borrowed core, awake, takes it |
//! | `bare_wake` | before a write to an eventfd | a thread on the borrowed core leaves ppoll |
//! | `veth_first`, `veth_next` | before a send | the other kernel's answer; no thread is woken |
//! | `first_round_trip`, `next_round_trip` | before a send | the card's echo, with two more wakes |
//!
//! After a pause the client itself is slow to send, as `veth_first` shows. So it first sends two
//! packets over a plain veth, which wake no thread, to exclude its own wake-up. The client stays
//! on a target core, and so does the card's target routine. An observer at the wire reads the time
//! when the burst has been received.

use super::{above_zero, measured};
use anyhow::Context;
use picnic_control::Launch;
use picnic_core::config::Setting;
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_host::clock::Clock;
use picnic_host::doorbell::CardDoorbell;
use picnic_lab::card;
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::workloads::hosts::{Hosts, PLAIN_SERVER, Role, SERVER};
use picnic_lab::workloads::tools;
use picnic_machine::signals;
use picnic_machine::threads::{BORROWED, spawn_pinned};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CARD: &str = "\
[card]
name = \"idle\"
[[wire]]
port = \"packet\"
interface = \"w0\"
[host]
attachment = \"app\"
mode = \"echo\"
queues = 1
[interrupt]
rx_usecs = 0
";
/// MAC address of the card, which answers for it.
const MAC: &str = "02:00:00:00:88:01";
const PORT: u16 = 9;
/// The longest wait on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Idle {
    /// Seconds without traffic
    seconds: f64,
    /// First packets
    #[schemars(range(min = 1, max = 100_000))]
    pauses: u64,
    /// Milliseconds of each pause
    #[schemars(range(min = 0, max = 60_000))]
    pause_ms: u64,
    /// Change a key of the card, such as card.idle=block
    set: Vec<String>,
}

impl Default for Idle {
    fn default() -> Self {
        Idle { seconds: 3.0, pauses: 50, pause_ms: 50, set: Vec::new() }
    }
}

impl Benchmark for Idle {
    const NAME: &'static str = "idle";
    const HELP: &'static str = "a card without traffic: cost, wait of the first packet (root)";
    const QUICK: &'static str = "seconds = 0.1\npauses = 2\npause_ms = 5";

    fn check(&self) -> Result<(), ConfigError> {
        above_zero("seconds", self.seconds)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Idle, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need(&[])?;
    let hosts = Hosts::build("bench", 1500)?;
    hosts.join_plainly(1500)?;
    hosts.ip(Role::Client, &format!("neighbour add {SERVER} lladdr {MAC} dev c0"))?;
    // The server's kernel answers each packet without a listener.
    hosts.within(Role::Server, "sysctl -qw net.ipv4.icmp_ratemask=0")?;
    let settings = vec![Setting::text("wire[0].namespace", &hosts.netns(Role::Card))];
    let card = card::changed(&picnic_host::sections(), CARD, None, settings, &args.set)?;
    let taking = Taking { clock: Clock::start(), at: Arc::default() };
    let running =
        Launch::new(&card, picnic_host::registries()).hook(taking.clone()).start_alone()?;
    // Let the effects of starting pass.
    signals::sleep(Duration::from_millis(500))?;
    run.progress(0.1, "silence");
    let (start, before) = (Instant::now(), processor_time()?);
    signals::sleep(Duration::from_secs_f64(args.seconds))?;
    let (elapsed, after) = (start.elapsed().as_nanos() as f64, processor_time()?);
    run.progress(0.5, "pauses");
    let placement = running.placement();
    let client = placement.target_cores.first().copied().unwrap_or(0);
    let waits = after_pauses(args, &hosts, &taking, (placement.borrowed_core, client));
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
    let mut outcome = measured();
    let busy_fraction = (after - before) as f64 / elapsed;
    outcome.add(Figure::one("borrowed_core_cpu_fraction", busy_fraction));
    let mut series = outcome.series("waits");
    for (name, samples) in waits?.named() {
        samples.sort_by(f64::total_cmp);
        let p90 = samples.get(samples.len() * 9 / 10).copied();
        let point = Point::at("wait", name)
            .with(Figure::one("p50_ns", median(samples)))
            .with(Figure::one("p90_ns", p90))
            .with(Figure::one("max_ns", samples.last().copied()))
            .with(Figure::of("each_ns", std::mem::take(samples)).in_detail());
        series.push(point);
    }
    Ok(outcome)
}

/// Records when packets of a wire are received.
#[derive(Clone)]
struct Taking {
    clock: Clock,
    /// Since the clock's start, in nanoseconds; 0 for not yet.
    at: Arc<AtomicU64>,
}

impl Hook for Taking {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        matches!(point, HookPoint::Wire { .. }).then(|| Box::new(self.clone()) as _)
    }
}

impl Observer for Taking {
    fn observe(&mut self, _: Time, stage: Stage, _: &[Descriptor]) {
        if stage == Stage::Wire {
            // The first since the last query.
            let at = self.clock.now().as_nanos();
            let _ = self.at.compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Nanoseconds of each kind, one per pause.
#[derive(Default)]
struct Waits {
    first: Vec<f64>,
    next: Vec<f64>,
    bare: Vec<f64>,
    veth_first: Vec<f64>,
    veth_next: Vec<f64>,
    round_trip_first: Vec<f64>,
    round_trip_next: Vec<f64>,
}

impl Waits {
    fn named(&mut self) -> [(&'static str, &mut Vec<f64>); 7] {
        [
            ("first_packet_wait", &mut self.first),
            ("next_packet_wait", &mut self.next),
            ("bare_wake", &mut self.bare),
            ("veth_first", &mut self.veth_first),
            ("veth_next", &mut self.veth_next),
            ("first_round_trip", &mut self.round_trip_first),
            ("next_round_trip", &mut self.round_trip_next),
        ]
    }
}

/// After each pause: two packets over the plain veth; then, in turn, a packet for the card and
/// another, and a bare wake-up.
fn after_pauses(
    args: &Idle,
    hosts: &Hosts,
    taking: &Taking,
    (borrowed_core, client): (usize, usize),
) -> anyhow::Result<Waits> {
    let namespace = hosts.namespace(Role::Client).context("cannot open the client's namespace")?;
    let (pauses, pause) = (args.pauses, Duration::from_millis(args.pause_ms));
    let (clock, taken_at) = (taking.clock, taking.at.clone());
    let bare = Arc::new(Sleeper::new(clock)?);
    let sleeper = {
        let bare = bare.clone();
        spawn_pinned("sleeper".into(), borrowed_core, move || bare.run())?
    };
    let ringer = bare.clone();
    // Its own thread, which never leaves the namespace.
    let thread = spawn_pinned("client".into(), client, move || -> anyhow::Result<Waits> {
        namespace.enter().context("cannot enter the client's namespace")?;
        let connect = |address: &str| -> anyhow::Result<UdpSocket> {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.connect((address, PORT))?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            Ok(socket)
        };
        let (through_card, plain) = (connect(SERVER)?, connect(PLAIN_SERVER)?);
        // Until the borrowed core receives it, and until its echo arrives.
        let card = || -> anyhow::Result<(f64, f64)> {
            taken_at.store(0, Ordering::Release);
            let start = clock.now().as_nanos();
            through_card.send(b"are you awake?")?;
            through_card.recv(&mut [0; 64]).context("a packet has not come back")?;
            let back = clock.now().as_nanos() - start;
            let taken = taken_at.load(Ordering::Acquire).saturating_sub(start);
            Ok((taken as f64, back as f64))
        };
        // Until the other kernel has answered that there is no listener.
        let veth = || -> anyhow::Result<f64> {
            let start = clock.now().as_nanos();
            plain.send(b"is anybody there?")?;
            let answer = plain.recv(&mut [0; 64]).map_err(|error| error.kind());
            let elapsed = clock.now().as_nanos() - start;
            anyhow::ensure!(
                answer == Err(std::io::ErrorKind::ConnectionRefused),
                "the plain veth's other end has not answered: {answer:?}"
            );
            Ok(elapsed as f64)
        };
        // Triggers address resolution.
        card()?;
        veth()?;
        let mut waits = Waits::default();
        for _ in 0..pauses {
            signals::sleep(pause)?;
            waits.veth_first.push(veth()?);
            waits.veth_next.push(veth()?);
            let (first, next) = (card()?, card()?);
            waits.first.push(first.0);
            waits.round_trip_first.push(first.1);
            waits.next.push(next.0);
            waits.round_trip_next.push(next.1);
            signals::sleep(pause)?;
            waits.veth_first.push(veth()?);
            waits.veth_next.push(veth()?);
            waits.bare.push(ringer.wake()?);
        }
        Ok(waits)
    })?;
    let waits = thread.join();
    bare.end();
    let panicked = |_| anyhow::anyhow!("a thread of the benchmark panicked");
    sleeper.join().map_err(panicked)?;
    waits.map_err(panicked)?.0
}

/// A thread asleep on an eventfd, like the borrowed core, to time its wake-up.
struct Sleeper {
    clock: Clock,
    bell: CardDoorbell,
    /// When it had woken, in nanoseconds; 0 for not yet.
    woken_at: AtomicU64,
    ended: AtomicBool,
}

impl Sleeper {
    fn new(clock: Clock) -> anyhow::Result<Self> {
        let bell = CardDoorbell::new().context("cannot make an eventfd")?;
        Ok(Sleeper { clock, bell, woken_at: AtomicU64::new(0), ended: AtomicBool::new(false) })
    }

    fn run(&self) {
        while !self.ended.load(Ordering::Acquire) {
            self.bell.wait_with(std::iter::empty(), Duration::from_secs(10));
            self.woken_at.store(self.clock.now().as_nanos(), Ordering::Release);
        }
    }

    /// Nanoseconds from before the write to after the sleep.
    fn wake(&self) -> anyhow::Result<f64> {
        self.woken_at.store(0, Ordering::Release);
        let start = self.clock.now().as_nanos();
        self.bell.ring();
        loop {
            match self.woken_at.load(Ordering::Acquire) {
                0 => {}
                at => return Ok(at.saturating_sub(start) as f64),
            }
            let waited = self.clock.now().as_nanos() - start;
            anyhow::ensure!(waited < TIMEOUT.as_nanos() as u64, "the bare sleeper does not wake");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Nanoseconds of processor time of the borrowed core's thread.
pub(crate) fn processor_time() -> anyhow::Result<u64> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == BORROWED {
            let text = std::fs::read_to_string(path.join("schedstat"))
                .context("this kernel does not report a thread's time (schedstat)")?;
            let time = text.split_whitespace().next().and_then(|word| word.parse().ok());
            return time.context("schedstat has an unexpected format");
        }
    }
    anyhow::bail!("there is no thread of the borrowed core")
}
