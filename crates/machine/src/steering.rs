//! The kernel's receive packet steering: off for an interface, or to one core.
//!
//! ```no_run
//! use picnic_machine::steering::{gather, stop};
//! use picnic_machine::undo::{Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! stop(&mut journal, "eth0", None)?;
//! gather(&mut journal, "veth0", None, 1)?;
//! // ... what veth0 receives is taken on core 1 ...
//! journal.undo()?;
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! Guarantees: every change is in the journal before it is made ([`crate::undo`]).
//!
//! Source: Documentation/networking/scaling.rst, section Receive Packet Steering.

use crate::command;
use crate::error::MachineError;
use crate::topology::CoreSet;
use crate::undo::{Change, Journal, feature_words, within};

/// Keeps received packets of an interface on the core that takes them.
///
/// # Errors
/// The interface does not exist, or this process may not.
pub fn stop(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
) -> Result<(), MachineError> {
    steer(journal, interface, namespace, &CoreSet::default())
}

/// Moves all received packets of an interface to one core, whichever core they arrive on: for a
/// veth, which hands packets over on the sender's core. Flows stay in order, even if their sender
/// changes cores.
///
/// # Errors
/// The interface does not exist, this process may not, or the kernel does not steer to that core.
pub fn gather(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
    core: usize,
) -> Result<(), MachineError> {
    steer(journal, interface, namespace, &[core].into_iter().collect())
}

/// Steers received packets of an interface to these cores; without cores they stay where they
/// arrive.
fn steer(
    journal: &mut Journal,
    interface: &str,
    namespace: Option<&str>,
    cores: &CoreSet,
) -> Result<(), MachineError> {
    // The setting of each queue, one per line.
    const LIST: &str = "cd \"/sys/class/net/$1/queues\" && for queue in rx-*; do \
                        echo \"$queue $(cat $queue/rps_cpus)\"; done";
    let listed = read(namespace, &["sh", "-c", LIST, "sh", interface])?;
    let becomes = if cores.is_empty() { "0".into() } else { cores.to_mask() };
    for line in listed.lines() {
        let Some((queue, was)) = line.split_once(' ') else { continue };
        if CoreSet::parse_mask(was).as_ref() == Ok(cores) {
            continue;
        }
        let feature = format!("queues/{queue}/rps_cpus");
        let words = feature_words(interface, namespace, &feature, &becomes);
        journal.record(Change::Feature {
            interface: interface.into(),
            namespace: namespace.map(str::to_owned),
            feature,
            was: was.into(),
        })?;
        change(journal, &words)?;
    }
    Ok(())
}

/// The output of a command in a namespace.
pub(crate) fn read(namespace: Option<&str>, words: &[&str]) -> Result<String, MachineError> {
    let words = within(namespace, words);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    command::run(&words).map_err(|error| MachineError::Refused(error.to_string()))
}

/// Runs a command that makes a change of the journal.
pub(crate) fn change(journal: &Journal, words: &[String]) -> Result<(), MachineError> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = journal.run(&words).map(drop);
    done.map_err(|error| MachineError::Refused(error.to_string()))
}
