//! Restores threads: all together, since threads start others while they are moved.
//!
//! Guarantees: a thread moved by another program since stays there. A thread started by a listed
//! one goes where its parent belongs.

use super::change::{Change, UndoResult, list, undone};
use super::journal::Restored;
use super::machine::Machine;
use super::process::{self, Thread};
use crate::topology::{CoreSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Passes that look for threads started meanwhile.
const PASSES: u32 = 10;
/// Ancestors checked for a listed one.
const GENERATIONS: u32 = 64;

/// Process and thread number, and when it was started.
type ThreadKey = (i32, i32, u64);

/// The threads that changes have moved, directly or through their parents.
pub(super) struct Threads {
    /// The cores of each before the first change, and after each.
    listed: BTreeMap<ThreadKey, (CoreSet, BTreeSet<CoreSet>)>,
    /// The cores of each thread now, before anything is restored.
    before: BTreeMap<ThreadKey, CoreSet>,
    /// All cores, and all except the reserved ones.
    everywhere: CoreSet,
    others: Option<CoreSet>,
    /// Cores that are online. The kernel forgets offline cores in affinities.
    online: CoreSet,
}

impl Threads {
    /// None if the changes are not about threads.
    pub(super) fn of(machine: &Machine, changes: &[Change]) -> Option<Self> {
        let mut listed = BTreeMap::<ThreadKey, (CoreSet, BTreeSet<CoreSet>)>::new();
        let mut isolation = None;
        for change in changes {
            match change {
                Change::Affinity { process, thread, start_time, was, becomes } => {
                    let who = (*process, *thread, *start_time);
                    let entry = listed.entry(who).or_insert_with(|| (list(was), BTreeSet::new()));
                    entry.1.insert(list(becomes));
                }
                Change::Isolation { reserved, others, .. } => {
                    isolation = Some((list(reserved), list(others)));
                }
                _ => {}
            }
        }
        if listed.is_empty() && isolation.is_none() {
            return None;
        }
        let threads = process::threads(&machine.procfs).unwrap_or_default();
        Some(Threads {
            listed,
            before: threads.iter().map(|thread| (who(thread), thread.allowed.clone())).collect(),
            everywhere: isolation.as_ref().map_or_else(CoreSet::new, |(a, b)| a.or(b)),
            others: isolation.map(|(_, others)| others),
            online: Topology::read(&machine.sysfs).online,
        })
    }

    /// Whether two sets are equal with respect to online cores.
    fn same(&self, a: &CoreSet, b: &CoreSet) -> bool {
        a == b || !self.online.is_empty() && a.and(&self.online) == b.and(&self.online)
    }

    /// The cores that a listed thread belongs on. A thread moved by another program since stays.
    fn home(&self, who: &ThreadKey) -> Option<CoreSet> {
        let (was, becomes) = self.listed.get(who)?;
        let by_us = |cores: &CoreSet| {
            let places = becomes.iter().chain(&self.others).chain([was, &self.everywhere]);
            { places }.any(|place| self.same(place, cores))
        };
        match self.before.get(who) {
            Some(now) if !by_us(now) => Some(now.clone()),
            _ => Some(was.clone()),
        }
    }

    /// The cores for a thread started meanwhile: its parent's, if it is on the parent's assigned
    /// cores.
    fn inherited(&self, thread: &Thread, others: &CoreSet, parents: &Parents) -> CoreSet {
        // The end of a partition may have moved it, hence its earlier cores.
        let now = self.before.get(&who(thread)).unwrap_or(&thread.allowed);
        let mut next = (thread.process, thread.process);
        for _ in 0..GENERATIONS {
            let Some(&(start_time, parent)) = parents.get(&next) else { break };
            if let Some((was, becomes)) = self.listed.get(&(next.0, next.1, start_time)) {
                let is_inherited = becomes.iter().any(|cores| self.same(cores, now));
                return if is_inherited { was.clone() } else { now.clone() };
            }
            next = (parent, parent);
        }
        if self.same(now, others) { self.everywhere.clone() } else { now.clone() }
    }

    /// Moves all threads back.
    pub(super) fn revert(&self, machine: &Machine, restored: &mut Restored) {
        let mut seen = BTreeMap::new();
        for pass in 0..PASSES {
            let threads = process::threads(&machine.procfs).unwrap_or_default();
            let parents: Parents = threads
                .iter()
                .map(|thread| ((thread.process, thread.thread), (thread.start_time, thread.parent)))
                .collect();
            let mut is_over = true;
            for thread in &threads {
                let who = who(thread);
                let listed = self.home(&who);
                let is_listed = listed.is_some();
                let home = match (listed, &self.others) {
                    (Some(home), _) => home,
                    (None, Some(others)) if !thread.is_bound => {
                        self.inherited(thread, others, &parents)
                    }
                    _ => continue,
                };
                if seen.contains_key(&who) {
                    continue;
                }
                is_over = false;
                let undone = if self.same(&thread.allowed, &home) {
                    UndoResult::Unchanged
                } else {
                    undone(machine.kernel.set_affinity(thread.thread, &home))
                };
                // Threads that were never moved are no changes.
                if is_listed || undone != UndoResult::Unchanged {
                    let what =
                        format!("thread {} ({}) to cores {home}", thread.thread, thread.name);
                    restored.count(&what, undone);
                }
                seen.insert(who, ());
            }
            if is_over && pass != 0 {
                break;
            }
        }
        restored.gone += self.listed.keys().filter(|&who| !seen.contains_key(who)).count();
    }
}

/// By process and thread number: its start, and its parent process.
type Parents = BTreeMap<(i32, i32), (u64, i32)>;

fn who(thread: &Thread) -> ThreadKey {
    (thread.process, thread.thread, thread.start_time)
}
