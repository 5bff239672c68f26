//! A card shared by the kernel and the poll engine: `engine = "hybrid"`.
//!
//! The programs hand packets that filters send to the poll engine to AF_XDP sockets, which are the
//! wires of a second card: the same file, without filters. This module has that part, and the
//! combined view.
//!
//! Guarantees: each packet is counted once. A packet that has not reached its socket is in flight;
//! packets lost there are in the ledger, as counted by the sockets.
//!
//! Source: Documentation/networking/af_xdp.rst; docs/decisions/051-hybrid.md.

use crate::counters::Taken;
use crate::plan::{Action, Plan};
use picnic_control::error::RunError;
use picnic_control::monitor::Notes;
use picnic_control::{Executor, Launch, PollPart, Report, Running};
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::ledger::{CardLedger, DropReason, Ledger, QueueLedger, Stage};
use picnic_core::stats::{Counter, SteerCounters, TargetCounters, WireCounters};
use picnic_engine::chain::FunctionCounters;
use picnic_engine::view::{FunctionView, Functions, PollCounters, QueueView, View, WireView};
use picnic_ports::af_xdp::SharedSocketMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The poll engine's name among the executors.
const POLL: &str = "poll";

/// The sockets of a card, while they are needed.
pub(crate) struct Sockets(Arc<SharedSocketMap>);

impl Sockets {
    /// No open sockets yet, for `wires` wires.
    pub(crate) fn new(file: &CardFile, wires: usize) -> Result<Self, RunError> {
        let sockets = Sockets(SharedSocketMap::of(&file.shared));
        let what = "engine = \"hybrid\": cannot create an XSKMAP";
        sockets.0.make(wires).map_err(|error| RunError::system(what, error))?;
        Ok(sockets)
    }

    /// The map in which the programs find them.
    pub(crate) fn map(&self) -> Option<BorrowedFd<'_>> {
        self.0.map()
    }

    /// The mark of times that the programs write before packets.
    pub(crate) fn mark(&self) -> u64 {
        self.0.mark()
    }
}

/// Checks that the poll engine can run its part.
pub(crate) fn check(launch: &Launch<'_>) -> Result<Vec<String>, ConfigError> {
    executor(launch)?;
    Ok(launch.behind().build()?.parts.warnings())
}

fn executor(launch: &Launch<'_>) -> Result<&'static dyn Executor, ConfigError> {
    let found = launch.registries.executors.iter().find(|executor| executor.name() == POLL);
    found.copied().ok_or_else(|| {
        let message = "found \"hybrid\", allowed in a program that has the poll engine";
        launch.file.locate(ConfigError::new("card.engine", message))
    })
}

/// The running poll engine's part; stopped when dropped.
pub(crate) struct Half(Option<Box<dyn Running>>);

impl Half {
    pub(crate) fn start(launch: &Launch<'_>) -> Result<Self, RunError> {
        Ok(Half(Some(executor(launch)?.start(launch.behind())?)))
    }

    /// Its counters plus the programs'.
    pub(crate) fn sums(&self, kernel: &View, plan: &Plan) -> Option<Sums> {
        self.0.as_ref().map(|running| Sums::new(kernel, running.view(), plan))
    }

    /// The interface for changing this part.
    pub(crate) fn beside(&mut self, plan: &Plan) -> Option<PollPart> {
        let running = self.0.as_mut()?;
        let functions = running.view().functions.clone();
        let controller = running.control()?.controller;
        Some(PollPart { controller, alone: alone(plan), functions })
    }

    /// The notes of the poll engine's world, for reports of the whole.
    pub(crate) fn notes(&self) -> Option<Notes> {
        self.0.as_ref().map(|running| running.monitor().notes.clone())
    }

    /// Messages of its watchdog.
    pub(crate) fn said(&self) -> Vec<String> {
        self.0.as_ref().map(|running| running.said()).unwrap_or_default()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.as_ref().is_some_and(|running| running.is_alive())
    }

    /// Stops it; its report becomes part of the whole's.
    pub(crate) fn stop(mut self) -> Result<Option<Report>, RunError> {
        self.0.take().map(Running::stop).transpose()
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // The card failed to start: there is an error already.
        let _ = self.0.take().map(Running::stop);
    }
}

/// Positions of the rx chain's functions that only the poll engine has.
pub(crate) fn alone(plan: &Plan) -> Vec<usize> {
    let steps = plan.steps.iter().enumerate();
    let alone = steps.filter(|(_, step)| matches!(step.action, Action::Elsewhere));
    alone.map(|(position, _)| position).collect()
}

/// Adds figures to the whole's report that only the poll engine has.
pub(crate) fn complete(report: &mut Report, half: Report) {
    report.buffers_missing = half.buffers_missing;
    report.failed = half.failed;
    (report.latency_ns, report.latencies) = (half.latency_ns, half.latencies);
    for (queue, of_half) in report.queues.iter_mut().zip(half.queues) {
        queue.latency_ns = of_half.latency_ns;
    }
    let functions = report.functions.iter_mut().chain(&mut report.tx_functions);
    for (function, of_half) in functions.zip(half.functions.into_iter().chain(half.tx_functions)) {
        function.add_own(&of_half.counters, of_half.gauges);
    }
    let known = report.notes.clone();
    report.notes.extend(half.notes.into_iter().filter(|note| !known.contains(note)));
}

/// Both parts' counters, and the whole's, which are their sums.
pub(crate) struct Sums {
    kernel: View,
    poll: View,
    pub(crate) whole: View,
    /// Counters of the rx chain's functions, by position: the whole's, then both parts'.
    functions: Vec<[Arc<FunctionCounters>; 3]>,
}

impl Sums {
    fn new(kernel: &View, poll: &View, plan: &Plan) -> Self {
        let whole = View {
            name: kernel.name.clone(),
            wires: kernel
                .wires
                .iter()
                .zip(&poll.wires)
                .map(|(wire, WireView { capabilities, .. })| WireView {
                    capabilities: *capabilities,
                    counters: Arc::default(),
                    ..wire.clone()
                })
                .collect(),
            queues: kernel
                .queues
                .iter()
                .map(|queue| QueueView {
                    target: Arc::default(),
                    steer: Arc::default(),
                    ring_size: queue.ring_size,
                })
                .collect(),
            guests: poll.guests.clone(),
            functions: Functions::fixed(Vec::new()),
            ledger: Arc::new(Ledger::new(kernel.queues.len())),
            warnings: poll.warnings.clone(),
            poll: Some(Arc::new(PollCounters::default())),
            classes: Vec::new(),
            groups: kernel.groups.clone(),
        };
        whole.functions.replace(Direction::Tx, poll.functions.of(Direction::Tx));
        let (kernel, poll) = (kernel.clone(), poll.clone());
        let mut sums = Sums { kernel, poll, whole, functions: Vec::new() };
        sums.put(plan);
        sums
    }

    /// Both parts have the rx chain of this plan from now on.
    pub(crate) fn put(&mut self, plan: &Plan) {
        let of_poll = self.poll.functions.of(Direction::Rx).into_iter();
        let of_kernel = self.kernel.functions.of(Direction::Rx).into_iter().zip(&plan.steps);
        let mut functions = Vec::new();
        self.functions.clear();
        for (of_poll, (of_kernel, step)) in of_poll.zip(of_kernel) {
            let counters = Arc::<FunctionCounters>::default();
            let of_kernel = match step.action {
                // Packets only pass its position.
                Action::Elsewhere => Arc::default(),
                _ => of_kernel.counters,
            };
            self.functions.push([counters.clone(), of_kernel, of_poll.counters]);
            functions.push(FunctionView { name: of_poll.name, counters });
        }
        self.whole.functions.replace(Direction::Rx, functions);
    }

    /// Adds both parts' counts to the whole's counters. `take` copies the programs' counts to the
    /// kernel part. Packets that have not reached their socket are in flight.
    pub(crate) fn take(&self, take: impl FnOnce() -> Taken) -> (Taken, u64) {
        // Arrivals are read last, so they are not fewer than departures.
        let of_poll: Vec<u64> = self.counters(&self.poll, 2).map(Counter::get).collect();
        let taken_by_poll = self.poll.ledger.card.received.get();
        let delivered = self.poll.ledger.queues.iter().map(|queue| queue.delivered.get()).sum();
        let dropped: u64 = dropped(&self.poll.ledger);
        let shed: Vec<u64> =
            self.poll.wires.iter().map(|wire| wire.counters.rx_shed.get()).collect();
        let taken = take();
        let Taken { polled, unpolled, .. } = taken;
        let to_sockets = polled.saturating_sub(unpolled).saturating_sub(taken_by_poll);
        let card = &self.whole.ledger.card;
        // Readers check this again after all others.
        card.received.set(self.kernel.ledger.card.received.get());
        let sums = self.counters(&self.whole, 0).zip(self.counters(&self.kernel, 1)).zip(of_poll);
        sums.for_each(|((whole, kernel), poll)| whole.set(kernel.get() + poll));
        card.held.set(self.poll.ledger.card.held.get() + to_sockets);
        for ((whole, kernel), shed) in self.whole.wires.iter().zip(&self.kernel.wires).zip(&shed) {
            let (whole, kernel) = (&whole.counters, &kernel.counters);
            whole.rx_packets.set(kernel.rx_packets.get().saturating_sub(*shed));
            whole.rx_bytes.set(kernel.rx_bytes.get());
        }
        if let Some(poll) = &self.whole.poll {
            let shed = shed.iter().sum::<u64>();
            poll.packets.set(polled);
            poll.taken.set(taken_by_poll.saturating_sub(shed));
            poll.lost.set(unpolled + shed);
            poll.delivered.set(delivered);
            poll.dropped.set(dropped + unpolled);
        }
        (taken, to_sockets)
    }

    /// The same after both have ended: packets that have not reached their socket are lost.
    pub(crate) fn end(&self, take: impl FnOnce() -> Taken) {
        let (_, lost) = self.take(take);
        let card = &self.whole.ledger.card;
        card.drops.add(DropReason::WireDown, Stage::Wire, lost);
        card.held.set(card.held.get() - lost);
        if let Some(poll) = &self.whole.poll {
            poll.lost.add(lost);
            poll.dropped.add(lost);
        }
    }

    /// A part's counters that add up to the whole's, in a fixed order.
    fn counters<'a>(&'a self, of: &'a View, part: usize) -> impl Iterator<Item = &'a Counter> {
        let wires = of.wires.iter().flat_map(|wire| of_wire(&wire.counters));
        let queues = of
            .queues
            .iter()
            .flat_map(|queue| of_target(&queue.target).chain(of_steer(&queue.steer)));
        let ledgers = of.ledger.queues.iter().flat_map(of_queue);
        let functions = self.functions.iter().flat_map(move |parts| {
            let FunctionCounters { packets, dropped, timed_ns, timed_packets } = &*parts[part];
            [packets, dropped, timed_ns, timed_packets]
        });
        wires.chain(queues).chain(of_card(&of.ledger.card)).chain(ledgers).chain(functions)
    }
}

/// Packets dropped, for all reasons.
fn dropped(ledger: &Ledger) -> u64 {
    let of_queues = ledger.queues.iter().flat_map(|queue| queue.drops.counters());
    of_queues.chain(ledger.card.drops.counters()).map(Counter::get).sum()
}

/// Except arrivals, which only the kernel counts.
fn of_wire(wire: &WireCounters) -> impl Iterator<Item = &Counter> {
    let WireCounters { rx_shed, interrupts, tx_packets, tx_bytes, tx_kept, stamps_ahead, .. } =
        wire;
    let WireCounters { waited_ns, held_ns, waited_packets, rx_packets: _, rx_bytes: _, .. } = wire;
    let all = [rx_shed, interrupts, tx_packets, tx_bytes, tx_kept, stamps_ahead];
    all.into_iter().chain([waited_ns, held_ns, waited_packets])
}

fn of_target(target: &TargetCounters) -> impl Iterator<Item = &Counter> {
    let TargetCounters { packets, bytes, interrupts, starved, polls, empty_polls, .. } = target;
    let TargetCounters { transmitted, transmitted_bytes, latency_ns, latency_packets, .. } = target;
    let all = [packets, bytes, interrupts, starved, polls, empty_polls];
    all.into_iter().chain([transmitted, transmitted_bytes, latency_ns, latency_packets])
}

fn of_steer(steer: &SteerCounters) -> impl Iterator<Item = &Counter> {
    let SteerCounters { packets, doorbells, coalesced, ring_full, depth, tx_taken, .. } = steer;
    let SteerCounters { tx_completed, tx_completed_bytes, tx_in_flight_bytes, tx_limited, .. } =
        steer;
    let all = [packets, doorbells, coalesced, ring_full, depth, tx_taken];
    all.into_iter().chain([tx_completed, tx_completed_bytes, tx_in_flight_bytes, tx_limited])
}

/// Except arrivals and held packets.
fn of_card(card: &CardLedger) -> impl Iterator<Item = &Counter> {
    let CardLedger {
        made,
        steered,
        submitted,
        transmitted,
        consumed,
        unbalanced_bursts,
        drops,
        ..
    } = card;
    let all = [made, steered, submitted, transmitted, consumed, unbalanced_bursts];
    all.into_iter().chain(drops.counters())
}

fn of_queue(queue: &QueueLedger) -> impl Iterator<Item = &Counter> {
    let QueueLedger { taken, delivered, submitted, made, drops } = queue;
    [taken, delivered, submitted, made].into_iter().chain(drops.counters())
}
