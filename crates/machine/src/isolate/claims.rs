//! Threads and settings that running cards claim, from their journals: isolation does not move
//! them.

use super::PURPOSE;
use crate::topology::CoreSet;
use crate::undo::{Change, Machine, journals, process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Threads and settings that cards have changed and will restore, with their processes.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By number and start.
    threads: BTreeMap<(i32, u64), i32>,
    settings: BTreeMap<PathBuf, i32>,
}

impl Claims {
    /// None if the journals cannot be read.
    pub(super) fn read(machine: &Machine) -> Claims {
        let mut claims = Claims::default();
        let journals = journals(machine).unwrap_or_default().into_iter().flatten();
        for journal in journals.filter(|journal| journal.purpose != PURPOSE && !journal.is_stale())
        {
            let is_here = journal.is_of_this_network(machine);
            for change in journal.changes {
                match change {
                    Change::Affinity { thread, start_time, .. } => {
                        claims.threads.insert((thread, start_time), journal.process);
                    }
                    Change::Setting { path, .. } => {
                        claims.settings.insert(path, journal.process);
                    }
                    // Others are of namespaces that isolation does not see.
                    Change::Feature { interface, namespace: None, feature, .. } if is_here => {
                        let folder = machine.sysfs.join("class/net").join(interface);
                        claims.settings.insert(folder.join(feature), journal.process);
                    }
                    _ => {}
                }
            }
        }
        claims
    }

    /// The process whose card has a thread on one of these cores.
    pub(super) fn of_thread(&self, thread: &process::Thread, reserved: &CoreSet) -> Option<i32> {
        let process = self.threads.get(&(thread.thread, thread.start_time)).copied();
        process.filter(|_| thread.allowed.meets(reserved))
    }

    /// The process whose card has made a setting.
    pub(super) fn of_setting(&self, path: &Path) -> Option<i32> {
        self.settings.get(path).copied()
    }
}

/// Warnings about processes whose cards keep their threads and settings.
pub(super) fn told(spared: &BTreeSet<i32>) -> impl Iterator<Item = String> {
    spared.iter().map(|process| {
        format!(
            "process {process} has a card that keeps its interrupts, its threads and its packet \
             steering where they are"
        )
    })
}
