//! Latency and throughput of a group whose members are threads of this process, over loopback.
//!
//! *Latency* is from the submission to the delivery in order, at the sender and at the last member.
//! *Throughput* is the ordered payload per second that each member delivers. Every member has a
//! socket and a thread, and shares nothing with the others.
//!
//! After the run, the orders of all members are compared: a difference is an error.

use crate::member::Member;
use crate::node::{Node, NodeError};
use crate::settings::Settings;
use picnic_ports::datagrams::Datagrams;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Shortest payload in bytes: the time and the number of a message.
pub const SHORTEST: usize = 16;
/// Longest sleep of a member: it then sees that all others have everything.
const SLEEP: Duration = Duration::from_millis(200);
/// Silence after which messages that are missing are lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// The load of a run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Members of the group.
    pub members: usize,
    /// Whether all members send, or only the first one.
    pub all_send: bool,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Messages that a sender has submitted and not yet delivered.
    pub window_messages: usize,
    /// Fraction of packets that are lost.
    pub loss: f64,
    /// Seed of the losses.
    pub seed: u64,
    /// Time during which messages are submitted.
    pub duration: Duration,
}

/// Two percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Messages that every member delivered.
    pub messages: u64,
    /// Messages a second, at each member.
    pub messages_per_second: f64,
    /// Ordered payload at each member, in megabits a second.
    pub ordered_mbit_per_second: f64,
    /// All datagrams of all members with 42 bytes of headers each, in megabits a second. A datagram
    /// to all members counts once for each.
    pub wire_mbit_per_second: f64,
    /// From submission to delivery at the sender.
    pub latency_sender_ns: Latency,
    /// From submission to delivery at the last member.
    pub latency_last_ns: Latency,
    /// CPU time of a member for each message, in nanoseconds.
    pub cpu_ns_per_message: f64,
    /// How often a member slept for each message.
    pub sleeps_per_message: f64,
    /// Datagrams that a member sent for each message.
    pub packets_per_message: f64,
    /// Datagrams with repeats, of all members.
    pub repeats: u64,
    /// Time of the borrowed core for each message and member, in nanoseconds; none without cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowed_core_ns_per_message: Option<f64>,
    /// Cores that this process may use.
    pub cores: usize,
}

/// Reasons for a run without an outcome.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A member cannot start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A socket failed.
    #[error("a socket of the group: {0}")]
    Socket(#[from] io::Error),
    /// Two members delivered different orders.
    #[error("members 0 and {member} differ at message {place}")]
    Order {
        /// The member that differs from member 0.
        member: usize,
        /// The place in the order.
        place: usize,
    },
    /// A card cannot start or has failed.
    #[error("a card of the group: {0}")]
    Card(String),
    /// A card's packets do not add up.
    #[error("the ledger of card {member} does not balance: {ledger}")]
    Ledger {
        /// The card's member.
        member: usize,
        /// Its ledger.
        ledger: String,
    },
    /// Nothing was delivered.
    #[error("no message was delivered")]
    Nothing,
}

/// A delivery: sender, number, and the times of submission and delivery.
pub type Sample = (u8, u32, u64, u64);

pub(crate) struct Side {
    pub(crate) samples: Vec<Sample>,
    pub(crate) cpu_ns: u64,
    pub(crate) waits: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) repeats: u64,
}

/// What the members of a run know of each other. A member that leaves earlier than the others would
/// hold their order back, and one without a core is silent for as long as it has none.
#[derive(Debug, Default)]
struct Progress {
    /// Members that submit nothing more, and their messages.
    over: AtomicUsize,
    submitted: AtomicU64,
    /// Members that have delivered all of them.
    whole: AtomicUsize,
}

impl Progress {
    /// A member has submitted its last message.
    fn add(&self, submitted: u32) {
        self.submitted.fetch_add(submitted.into(), Ordering::Relaxed);
        self.over.fetch_add(1, Ordering::Release);
    }

    /// Whether a member with these deliveries has those of all members.
    fn is_whole(&self, load: &Load, delivered: usize) -> bool {
        self.over.load(Ordering::Acquire) == load.members
            && delivered as u64 >= self.submitted.load(Ordering::Relaxed)
    }
}

/// Runs a load by `run`; again, ten and a hundred times as long, if it delivered nothing: a busy
/// machine may give a group no time in a short run.
///
/// # Errors
/// Those of `run`.
pub fn until_delivered(
    load: &Load,
    run: impl Fn(&Load) -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let mut found = run(load);
    for times in [10, 100] {
        if matches!(found, Err(BenchError::Nothing)) {
            found = run(&Load { duration: load.duration * times, ..load.clone() });
        }
    }
    found
}

/// Runs a load.
///
/// # Errors
/// A member cannot start, a socket fails, or the members' orders differ.
pub fn run(load: &Load) -> Result<Outcome, BenchError> {
    let nodes = group(load)?;
    let (barrier, progress) = (Barrier::new(nodes.len()), Progress::default());
    let sides: Vec<io::Result<Side>> = thread::scope(|scope| {
        let (barrier, progress) = (&barrier, &progress);
        let spawn = |(me, node): (usize, Node)| {
            scope.spawn(move || {
                barrier.wait();
                let side = member(node, load, me == 0 || load.all_send, progress);
                if side.is_err() {
                    // Nobody waits for it.
                    progress.whole.fetch_add(load.members, Ordering::Release);
                }
                side
            })
        };
        let threads: Vec<_> = nodes.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a member panicked")).collect()
    });
    outcome(load, sides.into_iter().collect::<io::Result<Vec<Side>>>()?)
}

fn group(load: &Load) -> Result<Vec<Node>, BenchError> {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = Settings {
        members: (0..load.members).map(|member| member.to_string()).collect(),
        ..Settings::default()
    };
    // The members keep these sockets, so no other process can take their ports.
    let open = |_| Datagrams::bind(loopback, settings.packet_bytes.into());
    let sockets = (0..load.members).map(open).collect::<io::Result<Vec<_>>>()?;
    let addresses = sockets.iter().map(Datagrams::address).collect::<io::Result<Vec<_>>>()?;
    let start = Instant::now();
    let node = |(me, socket)| {
        let member = Member::new(Settings { me, ..settings.clone() });
        let node = Node::of(member.map_err(NodeError::Settings)?, socket, &addresses);
        Ok(node.losing(load.loss, load.seed).counting_from(start))
    };
    (0..).zip(sockets).map(node).collect()
}

/// One member's run.
fn member(mut node: Node, load: &Load, sends: bool, progress: &Progress) -> io::Result<Side> {
    let me = node.member().settings().me;
    let mut payload = vec![0x5a; load.payload_bytes.max(SHORTEST)];
    let mut samples: Vec<Sample> = Vec::new();
    let (mut submitted, mut delivered, mut heard) = (0_u32, 0_u32, Instant::now());
    let (end, cpu_before) = (heard + load.duration, cpu_ns());
    let (mut is_counted, mut is_whole) = (false, false);
    loop {
        let received = node.receive()?;
        let now = node.now().as_nanos();
        while let Some(delivery) = node.deliver() {
            let (sent, rest) =
                delivery.payload.split_first_chunk::<8>().expect("a bench's payload");
            let (number, _) = rest.split_first_chunk::<4>().expect("a bench's payload");
            let (sent, number) = (u64::from_le_bytes(*sent), u32::from_le_bytes(*number));
            delivered += u32::from(delivery.sender == me);
            samples.push((delivery.sender, number, sent, now));
        }
        let is_over = Instant::now() >= end;
        while sends && !is_over && ((submitted - delivered) as usize) < load.window_messages {
            payload[..8].copy_from_slice(&node.now().as_nanos().to_le_bytes());
            payload[8..12].copy_from_slice(&submitted.to_le_bytes());
            if node.member().submit(&payload).is_err() {
                break;
            }
            submitted += 1;
        }
        node.send()?;
        if is_over && !is_counted {
            progress.add(submitted);
            is_counted = true;
        }
        if !is_whole && progress.is_whole(load, samples.len()) {
            progress.whole.fetch_add(1, Ordering::Release);
            is_whole = true;
        }
        if progress.whole.load(Ordering::Acquire) >= load.members || heard.elapsed() > PATIENCE {
            break;
        }
        if received > 0 {
            heard = Instant::now();
        } else {
            node.wait(None, SLEEP)?;
        }
    }
    let counts = *node.member().counts();
    Ok(Side {
        samples,
        cpu_ns: cpu_ns() - cpu_before,
        waits: node.waits(),
        packets: node.datagrams_sent(),
        bytes: node.bytes_sent(),
        repeats: counts.repeats_sent,
    })
}

pub(crate) fn outcome(load: &Load, sides: Vec<Side>) -> Result<Outcome, BenchError> {
    let first = &sides[0].samples;
    for (member, side) in sides.iter().enumerate() {
        let name = |sample: &Sample| (sample.0, sample.1);
        let same = first.iter().zip(&side.samples).take_while(|(a, b)| name(a) == name(b)).count();
        if same != first.len() || same != side.samples.len() {
            return Err(BenchError::Order { member, place: same });
        }
    }
    let (messages, seconds) = (first.len() as u64, load.duration.as_secs_f64());
    if messages == 0 {
        return Err(BenchError::Nothing);
    }
    let at_sender = |place: usize| {
        let (sender, ..) = first[place];
        let (_, _, sent, at) = sides[usize::from(sender)].samples[place];
        at - sent
    };
    let at_last = |place: usize| {
        let last = sides.iter().map(|side| side.samples[place].3).max().unwrap_or(0);
        last - first[place].2
    };
    let total = |figure: fn(&Side) -> u64| sides.iter().map(figure).sum::<u64>() as f64;
    let per_message = |figure: f64| figure / sides.len() as f64 / messages as f64;
    let wire_bytes = total(|side| side.bytes) + 42.0 * total(|side| side.packets);
    Ok(Outcome {
        messages,
        messages_per_second: messages as f64 / seconds,
        ordered_mbit_per_second: (messages * load.payload_bytes as u64 * 8) as f64 / seconds / 1e6,
        wire_mbit_per_second: wire_bytes * 8.0 / seconds / 1e6,
        latency_sender_ns: latency((0..first.len()).map(at_sender).collect()),
        latency_last_ns: latency((0..first.len()).map(at_last).collect()),
        cpu_ns_per_message: per_message(total(|side| side.cpu_ns)),
        sleeps_per_message: per_message(total(|side| side.waits)),
        packets_per_message: per_message(total(|side| side.packets)),
        repeats: sides.iter().map(|side| side.repeats).sum(),
        borrowed_core_ns_per_message: None,
        cores: thread::available_parallelism().map_or(1, usize::from),
    })
}

fn latency(mut samples: Vec<u64>) -> Latency {
    samples.sort_unstable();
    let at = |percent: usize| samples[(samples.len() * percent / 100).min(samples.len() - 1)];
    Latency { p50: at(50), p99: at(99) }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
