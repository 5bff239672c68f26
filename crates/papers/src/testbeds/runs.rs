//! Runs a card, its host and its peers on a machine for a while, and counts.

use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::time::Time;
use picnic_sim::machine::{Accounts, Component, Cost, Profile};
use picnic_sim::{HostFigures, Simulation, registries};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of Ethernet, IP and TCP before a segment's payload.
const HEADERS: u64 = 54;

/// Counts of the measured time.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// Seconds of virtual time.
    pub(super) seconds: f64,
    /// By host core.
    pub(super) accounts: Vec<Accounts>,
    pub(super) host: HostFigures,
    /// Frames taken from wires, and sent to them, with their bytes.
    pub(super) received: u64,
    pub(super) sent: u64,
    sent_bytes: u64,
    /// By queue: packets, and interrupts taken.
    pub(super) queues: Vec<(u64, u64)>,
    /// Share of time that the borrowed core had work.
    pub(super) borrowed_busy: f64,
    /// Mean latency from the NIC's interrupt to the target routine, in nanoseconds.
    pub(super) extra_ns: f64,
}

/// Number of cached runs: figures of one machine share them.
const REMEMBERED: usize = 8192;
static MEMORY: Mutex<BTreeMap<String, Passed>> = Mutex::new(BTreeMap::new());

fn memory() -> MutexGuard<'static, BTreeMap<String, Passed>> {
    // Complete entries, even if their last user panicked.
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a card file on a machine: a time to settle, then the measured one, in microseconds. The same run always gives the
/// same result, so it is cached.
///
/// # Errors
/// The card file is wrong, or needs more than the machine has.
pub(super) fn run(
    profile: &Profile,
    text: &str,
    (warm_us, run_us): (u64, u64),
    seed: u64,
) -> Result<Passed, String> {
    let machine = format!("{:?}", Profile { figures: Vec::new(), ..profile.clone() });
    let key = format!("{machine} {warm_us} {run_us} {seed} {text}");
    if let Some(passed) = memory().get(&key) {
        return Ok(passed.clone());
    }
    let passed = run_anew(profile, text, warm_us, run_us, seed)?;
    let mut memory = memory();
    if memory.len() >= REMEMBERED {
        memory.clear();
    }
    memory.insert(key, passed.clone());
    Ok(passed)
}

fn run_anew(
    profile: &Profile,
    text: &str,
    warm_us: u64,
    run_us: u64,
    seed: u64,
) -> Result<Passed, String> {
    let file = CardFile::parse(text, None).map_err(|error| error.to_string())?;
    let mut simulation = Simulation::on_machine(Launch::new(&file, registries()), seed, profile)
        .map_err(|error| error.to_string())?;
    let cores = (0..).map_while(|core| simulation.accounts(core).map(|_| core)).count();
    simulation.run_until(Time::from_nanos(warm_us * 1000));
    let before = Counts::of(&mut simulation, cores);
    simulation.run_until(Time::from_nanos((warm_us + run_us) * 1000));
    let after = Counts::of(&mut simulation, cores);
    if !simulation.ledger().balanced() {
        return Err("the ledger does not balance: this is a bug".into());
    }
    let (report, _) = simulation.finish();
    let (was, is) = (before.host, after.host);
    let host = HostFigures {
        answers: is.answers - was.answers,
        bytes_read: is.bytes_read - was.bytes_read,
        acknowledgements: is.acknowledgements - was.acknowledgements,
        colocated: is.colocated - was.colocated,
        switches: is.switches - was.switches,
        remote_wakes: is.remote_wakes - was.remote_wakes,
        interrupts: is.interrupts - was.interrupts,
        moved: is.moved.since(&was.moved),
        computed_ns: is.computed_ns - was.computed_ns,
    };
    let both = after.queues.iter().zip(&before.queues);
    let held_ns = report.latency_ns.held_at_wire.unwrap_or(0);
    Ok(Passed {
        seconds: run_us as f64 / 1e6,
        accounts: after.accounts.iter().zip(&before.accounts).map(|(a, b)| a.since(b)).collect(),
        host,
        received: after.received - before.received,
        sent: after.sent - before.sent,
        sent_bytes: after.sent_bytes - before.sent_bytes,
        queues: both.map(|(a, b)| (a.0 - b.0, a.1 - b.1)).collect(),
        borrowed_busy: report.borrowed_core.busy_fraction,
        extra_ns: report.latency_ns.mean.unwrap_or(0) as f64 - held_ns as f64,
    })
}

struct Counts {
    accounts: Vec<Accounts>,
    host: HostFigures,
    received: u64,
    sent: u64,
    sent_bytes: u64,
    queues: Vec<(u64, u64)>,
}

impl Counts {
    fn of(simulation: &mut Simulation, cores: usize) -> Counts {
        let accounts = (0..cores).filter_map(|core| simulation.accounts(core)).collect();
        let host = simulation.host_figures().unwrap_or_default();
        let view = simulation.view();
        let sum = |of: fn(&picnic_core::stats::WireCounters) -> u64| {
            view.wires.iter().map(|wire| of(&wire.counters)).sum()
        };
        let of_queue = |queue: &picnic_engine::view::QueueView| {
            (queue.target.packets.get(), queue.target.interrupts.get())
        };
        Counts {
            accounts,
            host,
            received: sum(|wire| wire.rx_packets.get()),
            sent: sum(|wire| wire.tx_packets.get()),
            sent_bytes: sum(|wire| wire.tx_bytes.get()),
            queues: view.queues.iter().map(of_queue).collect(),
        }
    }
}

impl Passed {
    /// Payload sent, in bits per second.
    pub(super) fn goodput_bps(&self) -> f64 {
        (self.sent_bytes - self.sent * HEADERS) as f64 * 8.0 / self.seconds
    }

    /// Share of time that the host's cores had work, on average.
    pub(super) fn busy(&self) -> f64 {
        let busy: u64 = self.accounts.iter().map(Accounts::busy).sum();
        busy as f64 / self.total()
    }

    /// Share of the host cores' time spent on a component.
    pub(super) fn share(&self, component: Component) -> f64 {
        self.accounts.iter().map(|accounts| accounts[component]).sum::<u64>() as f64 / self.total()
    }

    /// The driver's share without its work for sent frames.
    pub(super) fn driver_receive_share(&self, profile: &Profile) -> f64 {
        let sent_ns = self.sent as f64 * profile.costs.get(Cost::DriverSend);
        let all = self.share(Component::Driver) + self.share(Component::Registers);
        (all - sent_ns / self.total()).max(0.0)
    }

    fn total(&self) -> f64 {
        self.accounts.iter().map(Accounts::total).sum::<u64>() as f64
    }
}
