//! The simulator: the same card on virtual cores, under virtual time.
//!
//! ```
//! use picnic_control::Launch;
//! use picnic_core::{config::CardFile, time::Time};
//! use picnic_sim::{CostModel, Simulation, registries};
//!
//! let card = CardFile::parse("[host]\nqueues = 2\n", None).unwrap();
//! let run = |seed| {
//!     let launch = Launch::new(&card, registries());
//!     let mut simulation = Simulation::new(launch, seed, CostModel::default()).unwrap();
//!     simulation.run_until(Time::from_nanos(200_000));
//!     assert!(simulation.ledger().balanced());
//!     simulation.finish()
//! };
//! let ((report, trace), (_, again), (_, other)) = (run(7), run(7), run(8));
//! assert_eq!(trace, again);
//! assert_ne!(trace.hash(), other.hash());
//! assert_eq!((report.buffers_missing, report.ledger.in_flight), (0, 0));
//! ```
//!
//! It runs the engine of `picnic-engine` unchanged; this crate supplies the world: time
//! ([`CostModel`]), doorbells, and the order of simultaneous events on different cores, random by a
//! seed.
//!
//! Guarantees:
//!
//! * the same seed, card file and costs give the same [`Trace`], packet by
//!   packet and nanosecond by nanosecond; tests run everything twice;
//! * no clock is read, no thread started, no map iterated in random order;
//! * between two steps the ledger balances exactly;
//! * if all cores sleep for good, nothing is left in any ring: a lost wake-up
//!   appears as packets in flight at the end of [`Simulation::run_to_end`].
//!
//! All times are modelled: they follow from the [`CostModel`], not from the
//! machine the simulation runs on.

#![forbid(unsafe_code)]

mod bells;
mod cluster;
mod cost;
mod digest;
mod event;
mod executors;
mod frame;
mod guests;
mod host;
pub mod machine;
mod peers;
mod switch;
mod trace;
mod world;

pub use cluster::Cluster;
pub use cost::CostModel;
pub use executors::{in_virtual_time, on_machine, registries};
pub use host::{Model, ModelConfig};
pub use peers::{Peers, PeersConfig, Workload};
pub use switch::{SwitchConfig, SwitchCounts};
pub use trace::{KEPT, Trace, TraceEntry, TraceEvent};
pub use world::{HostFigures, HostProcess, Simulation};
