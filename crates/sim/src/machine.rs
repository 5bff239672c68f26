//! A machine's cores in virtual time: what runs when, and what each nanosecond is spent on.
//!
//! * [`Core`]: interrupts preempt softirqs, softirqs preempt processes; a preempted piece of work
//!   keeps its remainder. Each nanosecond belongs to one [`Component`].
//! * [`Lock`]: an owner, a queue, a cost for each hand-over.
//! * [`Scheduler`]: run queues, time slices, and the placement of woken processes.
//! * [`Distances`]: the cost of a cache line by its last place; [`Moved`]: how many moved.
//! * [`Pipelines`]: hardware threads that compute no faster than their pipeline.
//! * [`WakeUps`]: how long a core takes to wake, by the length of its sleep.
//! * [`Profile`]: a machine as data, each figure with its source.
//!
//! Guarantee: the accounts of a core add up to the time that has passed, to the nanosecond; this
//! is asserted whenever a piece of work ends.
//!
//! Nothing here knows packets: `crate::host` and the world supply work. `docs/machine-model.md` has
//! the mechanisms with the papers' sentences that they represent.

mod core;
mod distance;
mod lock;
mod pipeline;
mod profile;
mod scheduler;
mod wake;

pub use self::core::{Accounts, Component, Core, Level, Parts};
pub use distance::{Distance, Distances, LINE_BYTES, Lines, Moved};
pub use lock::{Lock, Taken};
pub use pipeline::Pipelines;
pub use profile::{
    Cost, Costs, Figure, Interrupts, PROFILES, Profile, ProfileError, Routine, Source,
};
pub use scheduler::{Next, Placement, Scheduler, Woken};
pub use wake::WakeUps;
