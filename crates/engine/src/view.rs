//! What others may read of a running card: counters, by wire, queue and function.

use crate::chain::{ChainFunction, FunctionCounters};
use picnic_core::direction::Direction;
use picnic_core::ledger::Ledger;
use picnic_core::port::Capabilities;
use picnic_core::stats::{Counter, SteerCounters, TargetCounters, WireCounters};
use std::sync::{Arc, Mutex, MutexGuard};

/// The counters of a card; cheap to clone, to be read from any thread.
#[derive(Clone, Debug)]
pub struct View {
    /// The card's name.
    pub name: String,
    /// By wire.
    pub wires: Vec<WireView>,
    /// By queue.
    pub queues: Vec<QueueView>,
    /// The functions of both chains, those swapped in while running included.
    pub functions: Functions,
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// What kept wires from working when the card was built, each with what mends it.
    pub warnings: Vec<String>,
    /// What the poll engine has of it; none if one engine has all.
    pub poll: Option<Arc<PollCounters>>,
}

/// What the kernel has handed over to the poll engine, of a card that both share.
#[derive(Debug, Default)]
pub struct PollCounters {
    /// Packets that filters have sent there.
    pub packets: Counter,
    /// Those of them that it has taken.
    pub taken: Counter,
    /// Those that were lost on the way: no buffer, no room, no socket.
    pub lost: Counter,
    /// Packets that it has handed to its host.
    pub delivered: Counter,
    /// Packets that it has dropped, with those that were lost on the way.
    pub dropped: Counter,
}

/// A wire's name and counters.
#[derive(Clone, Debug)]
pub struct WireView {
    /// Its name in the card file.
    pub name: String,
    /// What its port can do by itself; with `arrival`, the receive time of its packets is when they
    /// arrived, not when they were taken.
    pub capabilities: Capabilities,
    /// Its counters.
    pub counters: Arc<WireCounters>,
}

/// A queue's counters, from both sides.
#[derive(Clone, Debug)]
pub struct QueueView {
    /// What the target core counts.
    pub target: Arc<TargetCounters>,
    /// What the borrowed core counts.
    pub steer: Arc<SteerCounters>,
    /// Descriptors that fit into its ring.
    pub ring_size: usize,
}

/// A function's name and counters.
#[derive(Clone, Debug)]
pub struct FunctionView {
    /// Its name in the card file.
    pub name: String,
    /// Its counters, from zero when it was put in.
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

/// The functions of both chains, in order. Swaps bring it up to date when their answer is
/// taken in (`Controller::answer`); the borrowed core never looks at it.
#[derive(Clone, Debug)]
pub struct Functions(Arc<Mutex<[Vec<FunctionView>; 2]>>);

impl Functions {
    pub(crate) fn new(rx: &[ChainFunction], tx: &[ChainFunction]) -> Self {
        Functions(Arc::new(Mutex::new([FunctionView::of(rx), FunctionView::of(tx)])))
    }

    /// Those of a card that another engine runs, which says itself when they are others.
    pub fn fixed(rx: Vec<FunctionView>) -> Self {
        Functions(Arc::new(Mutex::new([rx, Vec::new()])))
    }

    /// Those of one chain at this moment.
    pub fn of(&self, direction: Direction) -> Vec<FunctionView> {
        self.lock()[direction as usize].clone()
    }

    /// Another engine has put these in place of those of a chain.
    pub fn replace(&self, direction: Direction, functions: Vec<FunctionView>) {
        self.lock()[direction as usize] = functions;
    }

    fn lock(&self) -> MutexGuard<'_, [Vec<FunctionView>; 2]> {
        // A list is put in whole, so whoever panicked has left one of the two.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
