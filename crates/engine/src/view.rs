//! What others may read of a running card: counters, by wire, queue and function.

use crate::chain::FunctionCounters;
use picnic_core::ledger::Ledger;
use picnic_core::stats::{SteerCounters, TargetCounters, WireCounters};
use std::sync::Arc;

/// The counters of a card; cheap to clone, to be read from any thread.
#[derive(Clone, Debug)]
pub struct View {
    /// The card's name.
    pub name: String,
    /// By wire.
    pub wires: Vec<WireView>,
    /// By queue.
    pub queues: Vec<QueueView>,
    /// By function: the rx chain's, as built.
    pub functions: Vec<(String, Arc<FunctionCounters>)>,
    /// The ledger.
    pub ledger: Arc<Ledger>,
}

/// A wire's name and counters.
#[derive(Clone, Debug)]
pub struct WireView {
    /// Its name in the card file.
    pub name: String,
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
