//! Changes to the machine, recorded before they are made, and restored.
//!
//! ```no_run
//! use picnic_machine::undo::{Change, Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! journal.record(Change::Namespace { name: "picnic-demo-1".into() })?;
//! // Make it only now.
//! journal.run(&["ip", "netns", "add", "picnic-demo-1"]).unwrap();
//! let restored = journal.undo()?;
//! assert!(restored.failed.is_empty());
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! A journal is a file of JSON lines in the state directory (`/run/picnic`, or
//! `$PICNIC_STATE_DIR`): its process, then one line for each change. It belongs to the process that
//! made it and is *stale* once that has ended, for any reason; [`restore_all`] restores the changes
//! of stale journals, and any program that makes changes calls it first. One that is
//! [held](Journal::hold) outlives its process on purpose.
//!
//! Guarantees: a change is written to disk before it is made. Changes are restored in reverse
//! order. Restoring twice, or after a kill at any moment, has the same result: unchanged state is
//! left alone, and it is no error if something no longer exists (a process, an interrupt,
//! a core). A reused process number does not count as the old process. A journal of an earlier boot
//! is only removed: its changes ended with that boot. Journals that users other than root or this
//! one could have written are ignored. A command that makes a change continues when the process
//! that ran it is killed: its journal is locked until it ends.

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
