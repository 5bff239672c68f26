//! Changes to the machine, written down before they are made, and taken back.
//!
//! ```no_run
//! use picnic_machine::undo::{Change, Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! journal.record(Change::Namespace { name: "picnic-demo-1".into() })?;
//! // Only now is it made.
//! journal.run(&["ip", "netns", "add", "picnic-demo-1"]).unwrap();
//! let restored = journal.undo()?;
//! assert!(restored.failed.is_empty());
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! A journal is a file of JSON lines in the state directory (`/run/picnic`, or
//! `$PICNIC_STATE_DIR`): who made it, then one line for each change. It belongs to the process
//! that made it and is *stale* once that has ended, however it ended; [`restore_all`] takes
//! back what stale journals hold, and any program that makes changes calls it first. One that
//! is [held](Journal::hold) outlives its process on purpose.
//!
//! Guarantees: a change is on its way to the disk before it is made. Changes are taken back in
//! the reverse order. Taking back twice, or after a kill at any moment, ends at the same: what
//! is as it was is left alone, and what has gone meanwhile (a process, an interrupt, a core) is
//! no error. A process's number that another has by now does not count as that process. A
//! journal of an earlier boot is only removed: its changes have gone with that boot. Journals
//! that others than root or this user could have written are not obeyed. A command that makes a
//! change goes on when the process that ran it is killed: its journal is locked until it ends.

mod change;
#[cfg(test)]
pub(crate) mod fixture;
mod journal;
mod machine;
mod network;
pub(crate) mod process;
#[cfg(test)]
mod tests;
mod threads;

pub use change::Change;
pub(crate) use change::{feature_words, within};
pub use journal::{Journal, JournalInfo, JournalSelection, Restored, journals, restore_all};
pub use machine::{Kernel, Machine};
