//! A group of cards: in one process on real cores, or in the simulator.
//!
//! On real cores each card has a borrowed core and a target core, or shares them with the others;
//! each two cards are joined by a cable. In the simulator the cards' cables meet at a switch, and
//! each card has its own machine. There, the protocol can also run on the hosts, with cards that
//! only forward.
//!
//! After the run, the orders of all members are compared, and every card's ledger must balance.

mod shared;

use crate::bench::{self, BenchError, Load, Outcome, Side as Measured};
use crate::card::load::{Costs, Place, Plan, Side};
use crate::card::program::Program;
use crate::card::{ATTACHMENTS, TASKS, carrier::Carrier};
use crate::member::Member;
use crate::settings::Settings;
use picnic_control::{Launch, Registries, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::doorbell::Doorbell;
use picnic_core::ledger::LedgerTotals;
use picnic_core::registry::join;
use picnic_core::time::Time;
use picnic_host::doorbell::FutexDoorbell;
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::available;
use picnic_os::channel::ChannelReport;
use picnic_sim::machine::Profile;
use picnic_sim::{Cluster, CostModel, SwitchConfig};
use rustix::time::ClockId;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// From the start to the first message, in nanoseconds: cards are built, tasks install their
/// filters. A program waits for its card in any case.
const STARTS_NS: u64 = 2_000_000;
/// The same on real cores.
const STARTS_REAL_NS: u64 = 300_000_000;
/// Time without a delivery after which a member has seen everything, in nanoseconds.
const QUIET_NS: u64 = 20_000_000;
/// Time after which undelivered messages are abandoned, in nanoseconds.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Sleep of a program's thread: a safety net under its doorbell.
const SLEEP: Duration = Duration::from_millis(1);

/// The components that card files can name on real cores.
static ON_CORES: LazyLock<Registries> = LazyLock::new(|| with_storm(picnic_host::registries()));
/// The components that card files can name in the simulator.
static IN_SIM: LazyLock<Registries> =
    LazyLock::new(|| picnic_sim::in_virtual_time(with_storm(picnic_host::registries())));

fn with_storm(registries: Registries) -> Registries {
    let attachments = join(&[registries.attachments, ATTACHMENTS]);
    Registries { tasks: TASKS, attachments, ..registries }
}

/// Longest payload of a member on a card, by default.
pub const PAYLOAD_BYTES: u16 = 1400;

/// The registries of cards on real cores that may have members.
pub fn registries() -> Registries {
    *ON_CORES
}

/// A modelled network of hosts with cards.
#[derive(Clone, Debug)]
pub struct Model {
    /// The machine of each card; none: the default costs.
    pub profile: Option<Profile>,
    /// The network.
    pub network: SwitchConfig,
    /// Work of the host for the program, if the protocol runs on the card.
    pub behind_card: Costs,
    /// Work of the host, if the protocol runs there.
    pub on_host: Costs,
    /// Nanoseconds of the card's processor for a packet of the protocol.
    pub card_packet_ns: u64,
    /// Nanoseconds of the card's processor for an ordered message.
    pub card_message_ns: u64,
    /// Nanoseconds until a request is repeated.
    pub repeat_after_ns: u64,
    /// Nanoseconds of silence after which a member is excluded; 0: the group is fixed.
    pub suspect_after_ns: u64,
}

/// The text of a card file.
struct Card<'a> {
    me: usize,
    load: &'a Load,
    /// The names of its cables, and the wire to each member.
    cables: Vec<String>,
    wires: Vec<usize>,
    /// Keys of `[card]` and `[host]`.
    card: String,
    host: String,
    /// Keys of the wires and of the task.
    wire: String,
    task: Option<String>,
}

impl Card<'_> {
    fn text(&self) -> String {
        let mut text = format!(
            "[card]\nname = \"storm{}\"\nseed = {}\n{}[pool]\nbuffers = 4096\n[interrupt]\nrx_usecs = 0\n",
            self.me,
            self.load.seed + self.me as u64,
            self.card
        );
        for cable in &self.cables {
            let _ = write!(text, "[[wire]]\nport = \"cable\"\ncable = \"{cable}\"\n{}", self.wire);
        }
        let attachment = if self.task.is_some() { "app" } else { "storm-load" };
        let _ = write!(text, "[host]\nattachment = \"{attachment}\"\nqueues = 1\n{}", self.host);
        if let Some(task) = &self.task {
            let members: Vec<String> = names(self.load.members);
            let _ = write!(
                text,
                "[os]\nadmission = \"override\"\narena_bytes = 8388608\n[[task]]\ntask = \"storm\"\nmembers = {members:?}\nme = \"{}\"\n\
                 wires = {:?}\n{task}",
                self.me, self.wires
            );
        }
        text
    }

    fn file(&self) -> Result<CardFile, BenchError> {
        let text = self.text();
        picnic_host::sections()
            .parse(&text, None)
            .map_err(|error| BenchError::Card(format!("{error}\n{text}")))
    }
}

fn names(members: usize) -> Vec<String> {
    (0..members).map(|member| member.to_string()).collect()
}

fn plan(load: &Load, me: usize, costs: Costs, clock: Option<Instant>) -> Plan {
    let begins = begins(clock.is_some());
    Plan {
        me: me as u8,
        sends: me == 0 || load.all_send,
        payload_bytes: load.payload_bytes,
        window_messages: load.window_messages,
        begins,
        ends: begins + load.duration.as_nanos() as u64,
        costs,
        clock,
    }
}

fn begins(is_real: bool) -> Time {
    Time::ZERO + if is_real { STARTS_REAL_NS } else { STARTS_NS }
}

/// Whether every submitted message was delivered everywhere, and the last delivery was a while ago.
fn is_over(sides: &[Arc<Side>], load: &Load, is_real: bool, now: Time) -> bool {
    let end = begins(is_real) + load.duration.as_nanos() as u64;
    if now < end {
        return false;
    }
    let submitted: usize = sides.iter().map(|side| side.seen().submitted as usize).sum();
    let is_whole = sides.iter().all(|side| side.seen().samples.len() >= submitted);
    let heard = sides.iter().map(|side| side.seen().heard).max().unwrap_or(Time::ZERO);
    is_whole && now.since(heard) > QUIET_NS || now.since(end) > PATIENCE_NS
}

fn failed(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::Card(error.to_string())
}

/// A card that has ended.
struct Ended {
    ledger: LedgerTotals,
    missing: usize,
    wakeups: u64,
    tx_packets: u64,
    tx_bytes: u64,
    /// Time of its borrowed core in turns that did something, in nanoseconds, if it has one of its own.
    busy_ns: u64,
}

impl Ended {
    fn of(report: &Report) -> Self {
        let channels = report.os.as_ref().map_or(&[][..], |os| &os.channels);
        let interrupts: u64 = report.queues.iter().map(|queue| queue.interrupts).sum();
        Ended {
            ledger: report.ledger.clone(),
            missing: report.buffers_missing,
            wakeups: interrupts + wakeups(channels),
            tx_packets: report.wires.iter().map(|wire| wire.tx_packets).sum(),
            tx_bytes: report.wires.iter().map(|wire| wire.tx_bytes).sum(),
            busy_ns: 0,
        }
    }
}

/// Wake-ups of host programs.
fn wakeups(channels: &[ChannelReport]) -> u64 {
    channels.iter().map(|channel| channel.host_wakeups).sum()
}

/// Runs a load on cards of this process. With two cores for each member, each card has its own;
/// with fewer, all cards share one and all programs another.
///
/// # Errors
/// A card cannot start, loses messages, or the members' orders differ.
pub fn on_cores(load: &Load) -> Result<Outcome, BenchError> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let cores = available().cores;
    let is_shared = cores.len() < 2 * load.members;
    let clock = Instant::now();
    let (mut files, mut sides) = (Vec::new(), Vec::new());
    for me in 0..load.members {
        let peers: Vec<usize> = (0..load.members).filter(|peer| *peer != me).collect();
        let wire_to = |peer: usize| peers.iter().position(|other| *other == peer).unwrap_or(0);
        let (borrowed, target) = match is_shared {
            true => (cores[cores.len() - 1], cores[0]),
            false => (cores[cores.len() - 1 - me], cores[me]),
        };
        let card = Card {
            me,
            load,
            cables: peers.iter().map(|p| format!("{run}-{}-{}", me.min(*p), me.max(*p))).collect(),
            wires: (0..load.members).map(wire_to).collect(),
            card: format!("borrowed_core = {borrowed}\n"),
            host: format!("target_cores = [{target}]\n[isolation]\nlevel = \"none\"\n"),
            wire: match load.loss > 0.0 {
                true => format!("[wire.fault]\ndrop = {}\n", load.loss),
                false => String::new(),
            },
            task: Some(String::new()),
        };
        let file = card.file()?;
        let plan = plan(load, me, Costs::default(), Some(clock));
        sides.push(file.shared.get_or_make(|| Side::behind_card(plan)));
        files.push(file);
    }
    let cpu_before = cpu_ns();
    let now = || Time::from_nanos(clock.elapsed().as_nanos() as u64);
    let is_over = || is_over(&sides, load, true, now());
    let ended = match is_shared {
        true => {
            let pair = (cores[cores.len() - 1], cores[0]);
            shared::run(&files, &sides, pair, clock, is_over)?
        }
        false => {
            let targets = &cores[..load.members];
            on_own_cores(&files, &sides, targets, clock, is_over)?
        }
    };
    let cpu_ns = (cpu_ns() - cpu_before) / load.members as u64;
    let mut outcome = finish(load, &sides, &ended, vec![cpu_ns; load.members], None)?;
    let of_all = (outcome.messages * load.members as u64) as f64;
    let busy_ns: u64 = ended.iter().map(|ended| ended.busy_ns).sum();
    outcome.borrowed_core_ns_per_message = Some(busy_ns as f64 / of_all);
    Ok(outcome)
}

fn on_own_cores(
    files: &[CardFile],
    sides: &[Arc<Side>],
    targets: &[usize],
    clock: Instant,
    is_over: impl Fn() -> bool,
) -> Result<Vec<Ended>, BenchError> {
    let start = |file| Launch::new(file, *ON_CORES).start_alone().map_err(|error| failed(&error));
    let mut running = files.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let ending = Arc::new(AtomicBool::new(false));
    let mut programs = Vec::new();
    for ((card, side), target) in running.iter_mut().zip(sides).zip(targets) {
        let tasks = card.control().and_then(|access| access.tasks);
        let channels = tasks.map(|tasks| tasks.channels().clone()).unwrap_or_default();
        let bell = Arc::new(FutexDoorbell::default());
        let program = Program::new(side.clone(), channels, bell.clone());
        let (ending, of_program) = (ending.clone(), bell.clone());
        let body = move || run_programs(vec![program], &of_program, clock, &ending);
        let thread = spawn_pinned("storm-host".into(), *target, body);
        programs.push((thread.map_err(|error| failed(&error))?, bell));
    }
    while !is_over() {
        std::thread::sleep(Duration::from_millis(2));
    }
    ending.store(true, Ordering::Release);
    for (thread, bell) in programs {
        bell.ring();
        thread.join().map_err(|_| failed(&"a program panicked"))?;
    }
    let stop = |card: Box<dyn Running>| {
        let busy_ns = card.monitor().notes.core.busy_ns.get();
        let report = card.stop().map_err(|error| failed(&error))?;
        Ok(Ended { busy_ns, ..Ended::of(&report) })
    };
    running.into_iter().map(stop).collect()
}

/// Calls programs, which share a doorbell, until `ending`; sleeps while all of them do.
fn run_programs(
    mut programs: Vec<Program>,
    bell: &FutexDoorbell,
    clock: Instant,
    ending: &AtomicBool,
) {
    while !ending.load(Ordering::Acquire) {
        let mut sleep = SLEEP;
        for program in &mut programs {
            let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
            if let Some(due) = program.turn(now) {
                sleep = sleep.min(Duration::from_nanos(due.since(now)));
            }
        }
        if !sleep.is_zero() {
            bell.wait(sleep);
        }
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs a load in the simulator.
///
/// # Errors
/// A card cannot start, loses messages, or the members' orders differ.
pub fn in_sim(load: &Load, place: Place, model: &Model) -> Result<Outcome, BenchError> {
    let mut cluster = SimGroup::new(load, place, model)?;
    while !is_over(&cluster.sides, load, false, cluster.cluster.now()) {
        let next = cluster.cluster.now() + 1_000_000;
        cluster.cluster.run_until(next);
    }
    cluster.finish(load)
}

/// A group in the simulator.
pub struct SimGroup {
    /// The cards and their network.
    pub cluster: Cluster,
    /// The programs on their hosts.
    pub sides: Vec<Arc<Side>>,
}

impl SimGroup {
    /// The cards of a load, at time zero.
    ///
    /// # Errors
    /// A card cannot start.
    pub fn new(load: &Load, place: Place, model: &Model) -> Result<Self, BenchError> {
        let (mut files, mut sides) = (Vec::new(), Vec::new());
        for me in 0..load.members {
            let task = format!(
                "frame_ns = {}\nmessage_ns = {}\nrepeat_us = {}\nsuspect_us = {}\n",
                model.card_packet_ns,
                model.card_message_ns,
                model.repeat_after_ns / 1_000,
                model.suspect_after_ns / 1_000
            );
            let card = Card {
                me,
                load,
                cables: vec!["lan".into()],
                wires: vec![0; load.members],
                card: "idle = \"spin\"\nborrowed_core = 1\n".into(),
                host: "target_cores = [0]\n".into(),
                wire: String::new(),
                task: (place == Place::Card).then_some(task),
            };
            let file = card.file()?;
            let side = || match place {
                Place::Card => Side::behind_card(plan(load, me, model.behind_card, None)),
                Place::Host => {
                    let settings = Settings {
                        members: names(load.members),
                        me: me as u8,
                        repeat_after_ns: model.repeat_after_ns,
                        suspect_after_ns: model.suspect_after_ns,
                        ..Settings::default()
                    };
                    let member = Member::new(settings).expect("settings of a benchmark");
                    let carrier = Carrier::new(0, me, load.members, &[], &[]);
                    Side::is_member(plan(load, me, model.on_host, None), member, carrier)
                }
            };
            sides.push(file.shared.get_or_make(side));
            files.push(file);
        }
        let launches = files.iter().map(|file| Launch::new(file, *IN_SIM)).collect();
        let network = SwitchConfig { loss: load.loss, ..model.network };
        let mut cluster = match &model.profile {
            Some(profile) => Cluster::on_machine(launches, load.seed, profile, network),
            None => Cluster::new(launches, load.seed, CostModel::default(), network),
        }
        .map_err(|error| failed(&error))?;
        for (me, side) in sides.iter().enumerate().filter(|_| place == Place::Card) {
            let side = side.clone();
            cluster.card(me).add_process(Time::ZERO, |channels, bell| {
                let mut program = Program::new(side, channels, bell);
                Box::new(move |now| program.turn(now))
            });
        }
        Ok(SimGroup { cluster, sides })
    }

    /// Ends the cards: the outcome.
    ///
    /// # Errors
    /// A card lost messages, or the members' orders differ.
    pub fn finish(self, load: &Load) -> Result<Outcome, BenchError> {
        let SimGroup { cluster, sides } = self;
        let wire_bytes = cluster.counts().sent_bytes;
        let ended: Vec<Ended> =
            cluster.finish().iter().map(|(report, _)| Ended::of(report)).collect();
        let work = sides.iter().map(|side| side.seen().work_ns).collect();
        finish(load, &sides, &ended, work, Some(wire_bytes))
    }
}

fn finish(
    load: &Load,
    sides: &[Arc<Side>],
    ended: &[Ended],
    cpu_ns: Vec<u64>,
    wire_bytes: Option<u64>,
) -> Result<Outcome, BenchError> {
    let mut measured = Vec::new();
    for (me, ((side, ended), cpu_ns)) in sides.iter().zip(ended).zip(cpu_ns).enumerate() {
        if !ended.ledger.balanced() || ended.missing != 0 {
            return Err(BenchError::Ledger { member: me, ledger: format!("{:?}", ended.ledger) });
        }
        let mut seen = side.seen();
        measured.push(Measured {
            samples: std::mem::take(&mut seen.samples),
            cpu_ns,
            waits: ended.wakeups,
            packets: ended.tx_packets,
            bytes: ended.tx_bytes,
            repeats: seen.repeats,
        });
    }
    let mut outcome = bench::outcome(load, measured)?;
    if let Some(bytes) = wire_bytes {
        outcome.wire_mbit_per_second = bytes as f64 * 8.0 / load.duration.as_secs_f64() / 1e6;
    }
    Ok(outcome)
}
