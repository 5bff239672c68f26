//! Cards from text, and a witness that checks every packet given to hosts.
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../../../engine/tests/common/functions.rs"]
pub mod functions;
mod sender;
pub mod waits;

use picnic_control::{Launch, Registries, Report};
use picnic_core::config::CardFile;
use picnic_core::function::Function;
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Entry, join};
use picnic_core::time::Time;
use picnic_engine::chain::ChainFunction;
use picnic_functions::rss;
use picnic_ports::generator::Stamp;
use picnic_sim::{CostModel, Simulation, Trace};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

/// Packets of one queue: the last number of each flow, and errors.
#[derive(Default)]
pub struct Seen {
    pub packets: u64,
    pub stamped: u64,
    /// Packets after a later one of their flow.
    pub late: u64,
    /// Packets with the same number as the one before.
    pub doubled: u64,
    pub last_time: Time,
    last: BTreeMap<(u8, u32), u64>,
}

#[derive(Clone, Default)]
pub struct Witness(Arc<Mutex<BTreeMap<u16, Seen>>>);

impl Witness {
    pub fn seen(&self) -> MutexGuard<'_, BTreeMap<u16, Seen>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn late(&self) -> u64 {
        self.seen().values().map(|seen| seen.late).sum()
    }

    pub fn doubled(&self) -> u64 {
        self.seen().values().map(|seen| seen.doubled).sum()
    }

    pub fn packets(&self) -> u64 {
        self.seen().values().map(|seen| seen.packets).sum()
    }
}

struct Witnessed(u16, Witness);

impl Observer for Witnessed {
    fn observe(&mut self, now: Time, _: Stage, packets: &[Descriptor]) {
        let mut queues = self.1.seen();
        let seen = queues.entry(self.0).or_default();
        assert!(now >= seen.last_time, "time runs backwards");
        seen.last_time = now;
        for packet in packets {
            seen.packets += 1;
            assert!(packet.received_at() <= now, "seen before it came");
            // After the MAC addresses, which also contain PICN; VLAN, IPv6 and TCP at most.
            let data = packet.data().get(12..).unwrap_or(&[]);
            let mark = data.windows(4).take(80).position(|bytes| bytes == b"PICN");
            let Some(stamp) = mark.and_then(|at| Stamp::read(&data[at..])) else { continue };
            seen.stamped += 1;
            match seen.last.insert((packet.wire, stamp.flow), stamp.sequence) {
                Some(last) if last > stamp.sequence => seen.late += 1,
                Some(last) if last == stamp.sequence => seen.doubled += 1,
                _ => {}
            }
        }
    }
}

impl Hook for Witness {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let HookPoint::Queue { index, .. } = *point else { return None };
        Some(Box::new(Witnessed(index, self.clone())))
    }
}

/// The names in test cards: all usual ones, and a host that sends on its own.
pub fn registries() -> Registries {
    static OURS: LazyLock<Registries> = LazyLock::new(|| {
        let usual = picnic_sim::registries();
        let attachments = join(&[usual.attachments, &[Entry::of::<sender::Sender>()]]);
        Registries { attachments, ..usual }
    });
    *OURS
}

pub fn simulation(text: &str, seed: u64, costs: CostModel) -> (Simulation, Witness) {
    let file = CardFile::parse(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let witness = Witness::default();
    let launch = Launch::new(&file, registries()).hook(witness.clone());
    let simulation =
        Simulation::new(launch, seed, costs).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (simulation, witness)
}

/// Steps to the end or to `until`; the ledger balances after every step with an event.
#[track_caller]
pub fn step_through(simulation: &mut Simulation, until: Option<Time>) {
    let (mut recorded, mut steps) = (0, 0);
    // A card whose wires are slow and full polls them millions of times between events.
    while steps < 5_000_000 {
        if until.is_some_and(|until| simulation.now() >= until) || !simulation.step() {
            return;
        }
        steps += 1;
        if simulation.trace().recorded() != recorded {
            recorded = simulation.trace().recorded();
            assert!(recorded < 5_000_000, "never comes to rest: {:?}", simulation.ledger());
            steps = 0;
            let ledger = simulation.ledger();
            assert!(ledger.balanced(), "at {}: {ledger:?}", simulation.now());
        }
    }
    panic!("does nothing, and never comes to rest: {:?}", simulation.ledger());
}

/// Ends a simulation; everything is accounted for and all buffers have returned.
#[track_caller]
pub fn end(simulation: Simulation) -> Report {
    end_traced(simulation).0
}

/// The same, with the trace.
#[track_caller]
pub fn end_traced(simulation: Simulation) -> (Report, Trace) {
    let (outcome, trace) = simulation.finish();
    assert_eq!(outcome.buffers_missing, 0, "{:?}", outcome.ledger);
    assert!(outcome.ledger.balanced(), "{:?}", outcome.ledger);
    assert_eq!(outcome.ledger.in_flight, 0, "{:?}", outcome.ledger);
    (outcome, trace)
}

pub fn rss(queues: u16) -> Box<dyn Function> {
    let context = BuildContext { queues, ..BuildContext::default() };
    Box::new(rss::Rss::new(&rss::Config::default(), &context).unwrap())
}

pub fn links(functions: Vec<Box<dyn Function>>) -> Vec<ChainFunction> {
    functions.into_iter().map(|function| ChainFunction::new("test", function)).collect()
}

pub fn micros(microseconds: u64) -> Time {
    Time::from_nanos(microseconds * 1000)
}

/// Costs that isolate moderation: work is nearly free, doorbells take a microsecond.
pub fn quick() -> CostModel {
    CostModel {
        card_turn_ns: 10,
        card_packet_ns: 0,
        card_send_ns: None,
        switch_ns: 0,
        target_turn_ns: 10,
        handover_ns: 1,
        target_packet_ns: 0,
        interrupt_ns: 0,
        doorbell_send_ns: 0,
        doorbell_arrive_ns: 1_000..=1_000,
        wake_ups: picnic_sim::machine::WakeUps::default(),
        adaptive_spin_ns: 0,
    }
}
