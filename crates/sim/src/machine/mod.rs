//! A machine's cores under virtual time: what runs when, and where each nanosecond goes.
//!
//! * [`Core`]: interrupts preempt softirqs, softirqs preempt processes; a preempted piece of work
//!   keeps its remainder. Each nanosecond belongs to one [`Component`].
//! * [`Lock`]: an owner, a queue, a cost for each hand-over.
//! * [`Scheduler`]: run queues, time slices, and where a process goes that wakes up.
//! * [`Distances`]: the cost of a cache line by where it was last.
//! * [`Profile`]: a machine as data, each figure with its source.
//!
//! Guarantee: the accounts of a core add up to the time that has passed, to the nanosecond; this
//! is asserted whenever a piece of work ends.
//!
//! None of it knows packets: `crate::host` and the world give it work. The mechanisms and the
//! sentences of the papers that they stand for are in `docs/machine-model.md`.

mod core;
mod distance;
mod lock;
mod profile;
mod scheduler;

pub use self::core::{Accounts, Component, Core, Level, Parts};
pub use distance::{Distances, Lines};
pub use lock::{Lock, Taken};
pub use profile::{Cost, Costs, Figure, PROFILES, Profile, ProfileError, Routine, Source};
pub use scheduler::{Next, Placement, Scheduler, Woken};
