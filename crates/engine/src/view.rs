//! Read-only access to a running card: counters by wire, queue and function.

use crate::chain::{ChainFunction, FunctionCounters};
use picnic_core::attachment::Guest;
use picnic_core::classes::ClassCounters;
use picnic_core::direction::Direction;
use picnic_core::guard::Groups;
use picnic_core::ledger::Ledger;
use picnic_core::port::Capabilities;
use picnic_core::stats::{Counter, SteerCounters, TargetCounters, WireCounters};
use std::sync::{Arc, Mutex, MutexGuard};

/// The counters of a card; cheap to clone, readable from any thread.
#[derive(Clone, Debug)]
pub struct View {
    /// The card's name.
    pub name: String,
    /// By wire.
    pub wires: Vec<WireView>,
    /// By queue.
    pub queues: Vec<QueueView>,
    /// The guests, in the order of their queues; none unless the host is virtual machines.
    pub guests: Vec<Arc<dyn Guest>>,
    /// The functions of both chains, including those swapped in while running.
    pub functions: Functions,
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// Problems that kept wires from working when the card was built, each with its fix.
    pub warnings: Vec<String>,
    /// The poll engine's share; none if one engine has all packets.
    pub poll: Option<Arc<PollCounters>>,
    /// Traffic classes, by wire; none if the card has none.
    pub classes: Vec<ClassView>,
    /// The guard's groups of filters; none without a guard.
    pub groups: Option<Arc<dyn Groups>>,
}

/// A traffic class at a wire.
#[derive(Clone, Debug)]
pub struct ClassView {
    /// The wire's name.
    pub wire: String,
    /// The class's name.
    pub name: String,
    /// Its counters there.
    pub counters: Arc<ClassCounters>,
}

/// Packets that the kernel passed to the poll engine, for a card that both share.
#[derive(Debug, Default)]
pub struct PollCounters {
    /// Packets that filters sent there.
    pub packets: Counter,
    /// Packets that it received.
    pub taken: Counter,
    /// Packets lost on the way: no buffer, no room, no socket.
    pub lost: Counter,
    /// Packets that it delivered to its host.
    pub delivered: Counter,
    /// Packets that it dropped, including those lost on the way.
    pub dropped: Counter,
}

/// A wire's name and counters.
#[derive(Clone, Debug)]
pub struct WireView {
    /// Its name in the card file.
    pub name: String,
    /// Its port's own abilities; with `arrival`, the receive time of its packets is their arrival,
    /// not their reception by the card.
    pub capabilities: Capabilities,
    /// Its counters.
    pub counters: Arc<WireCounters>,
}

/// A queue's counters, of both sides.
#[derive(Clone, Debug)]
pub struct QueueView {
    /// Counters of the target core.
    pub target: Arc<TargetCounters>,
    /// Counters of the borrowed core.
    pub steer: Arc<SteerCounters>,
    /// Number of descriptors that fit in its ring.
    pub ring_size: usize,
}

/// A function's name and counters.
#[derive(Clone, Debug)]
pub struct FunctionView {
    /// Its name in the card file.
    pub name: String,
    /// Its counters, from zero when it was inserted.
    pub counters: Arc<FunctionCounters>,
}

impl FunctionView {
    pub(crate) fn of(links: &[ChainFunction]) -> Vec<Self> {
        let view = |link: &ChainFunction| FunctionView {
            name: link.name.clone(),
            counters: link.counters.clone(),
        };
        links.iter().map(view).collect()
    }
}

/// The functions of both chains, in order. Swaps update it when their answer is received
/// (`Controller::answer`); the borrowed core never reads it.
#[derive(Clone, Debug)]
pub struct Functions(Arc<Mutex<[Vec<FunctionView>; 2]>>);

impl Functions {
    pub(crate) fn new(rx: &[ChainFunction], tx: &[ChainFunction]) -> Self {
        Functions(Arc::new(Mutex::new([FunctionView::of(rx), FunctionView::of(tx)])))
    }

    /// The functions of a card run by another engine, which reports changes itself.
    pub fn fixed(rx: Vec<FunctionView>) -> Self {
        Functions(Arc::new(Mutex::new([rx, Vec::new()])))
    }

    /// The current functions of one chain.
    pub fn of(&self, direction: Direction) -> Vec<FunctionView> {
        self.lock()[direction as usize].clone()
    }

    /// Replaces the functions of a chain, for another engine.
    pub fn replace(&self, direction: Direction, functions: Vec<FunctionView>) {
        self.lock()[direction as usize] = functions;
    }

    fn lock(&self) -> MutexGuard<'_, [Vec<FunctionView>; 2]> {
        // A list is replaced whole, so a panic leaves one of the two.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
