//! Makes the changes of a plan one by one, each recorded first.

use super::claims::Claims;
use super::plan::{Method, Plan, SettingChange, ThreadChange, change, is_borrowed, plan};
use super::{IsolationRequest, PURPOSE, applied, partition};
use crate::config::IsolationMethod;
use crate::error::MachineError;
use crate::topology::CoreSet;
use crate::undo::{Change, Journal, JournalSelection, Machine, Restored, process, restore_all};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Passes that look for threads started while others were moved.
const PASSES: u32 = 10;

/// An applied isolation. Restored on drop, unless held.
#[derive(Debug)]
pub struct Isolated {
    /// The planned changes.
    pub plan: Plan,
    /// Changes that the kernel refused, each with the reason.
    pub refused: Vec<String>,
    /// Threads that were moved.
    pub threads_moved: usize,
    /// Restored changes of killed processes.
    pub cleaned: Vec<Restored>,
    /// None if it belongs to another process.
    journal: Option<Journal>,
}

impl Isolated {
    /// Restores everything. None if that is up to another process.
    ///
    /// # Errors
    /// The state directory cannot be locked.
    pub fn restore(mut self) -> Result<Option<Restored>, MachineError> {
        self.journal.take().map(Journal::undo).transpose()
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        if let Some(journal) = self.journal.take() {
            // Changes that cannot be restored now stay in the journal, for the next start.
            let _ = journal.undo();
        }
    }
}

/// Isolates a core: for the lifetime of the result, or, if `held`, until [`super::restore`].
///
/// Changes left by killed processes are restored first. A held isolation of the same cores is
/// updated if this one must be held too, otherwise used.
///
/// # Errors
/// Not root; another core is isolated; there is no other core; the journal cannot be written.
/// Changes made by then have been restored.
pub fn apply(
    machine: &Machine,
    request: &IsolationRequest,
    held: bool,
) -> Result<Isolated, MachineError> {
    if machine.is_this() && !rustix::process::geteuid().is_root() {
        return Err(MachineError::Refused(
            "isolation needs root: it moves interrupts and the processes of all users".into(),
        ));
    }
    let cleaned = restore_all(machine, JournalSelection::Stale)?;
    let in_force = applied(machine);
    if let Some(other) = &in_force
        && (other.reserved != request.reserved() || held && !other.journal.is_held)
    {
        return Err(MachineError::Refused(format!(
            "cores {} are already isolated, by process {}{}",
            other.reserved,
            other.journal.process,
            if other.journal.is_held { ": `picnic isolate restore` first" } else { "" }
        )));
    }
    let plan = plan(machine, request)?;
    let is_new = in_force.is_none();
    let journal = match in_force {
        None => Some(Journal::create(machine, PURPOSE)?),
        Some(applied) if held => Some(Journal::reopen(machine, applied.journal)?),
        Some(_) => None,
    };
    let mut isolated = Isolated { plan, refused: Vec::new(), threads_moved: 0, cleaned, journal };
    // From here on, an error restores everything: the journal is in `isolated`.
    let result = isolated.make(machine, request, is_new, held);
    if result.is_err() && !is_new {
        // But not earlier changes.
        isolated.journal = None;
    }
    result?;
    if held {
        isolated.journal = None;
    }
    Ok(isolated)
}

impl Isolated {
    fn make(
        &mut self,
        machine: &Machine,
        request: &IsolationRequest,
        is_new: bool,
        held: bool,
    ) -> Result<(), MachineError> {
        let Isolated { plan, refused, threads_moved, journal, .. } = self;
        let Some(journal) = journal.as_mut() else { return Ok(()) };
        let reserved = request.reserved();
        let others = plan.target_cores.clone();
        let isolation = |method| Change::Isolation {
            borrowed_core: request.borrowed_core,
            reserved: request.reserved().to_string(),
            others: others.to_string(),
            is_partition: method == Method::Cpuset,
        };
        let mut mover = Mover {
            machine,
            reserved,
            others: others.clone(),
            borrowed_core: request.borrowed_core,
            claims: Claims::read(machine),
            is_partition: false,
            becomes: BTreeMap::new(),
            tried: BTreeSet::new(),
        };
        if is_new {
            // All threads: a partition makes the kernel move threads unrelated to the reserved
            // cores, and a thread that was on the other cores anyway must be distinguishable from
            // one started there.
            let threads = mover.threads()?;
            mover.note(journal, &threads)?;
            journal.record(isolation(plan.method))?;
        }
        // Future interrupts first, so that none appears in between.
        let interrupts = plan.interrupts.iter().map(SettingChange::from);
        let all: Vec<_> = plan.settings.iter().cloned().chain(interrupts).collect();
        refused.extend(set(machine, journal, &all)?);
        if plan.method == Method::Cpuset && is_new {
            let made = partition::make(machine, journal, &mover.reserved)?;
            // Even if it was not possible in the end.
            mover.is_partition = true;
            let made = match made {
                Ok(()) if !held => partition::join_root(machine, journal)?,
                made => made,
            };
            if let Err(reason) = made {
                if request.method == IsolationMethod::Cpuset {
                    let reason = format!("isolation.method \"cpuset\" is not possible: {reason}");
                    return Err(MachineError::Refused(reason));
                }
                partition::discard(machine);
                journal.record(isolation(Method::Affinity))?;
                plan.warnings
                    .push(format!("no cpuset partition, thread affinities instead: {reason}"));
                plan.method = Method::Affinity;
                plan.method_reason = Some(reason);
                plan.partition = None;
            }
        }
        *threads_moved = mover.run(journal, refused)?;
        if held && is_new {
            journal.hold()?;
        }
        Ok(())
    }
}

/// Records settings and makes them; returns those that the kernel refused, each with the reason.
pub(super) fn set(
    machine: &Machine,
    journal: &mut Journal,
    settings: &[SettingChange],
) -> Result<Vec<String>, MachineError> {
    journal.record_all(settings.iter().map(|SettingChange { path, was, becomes, .. }| {
        Change::Setting { path: path.clone(), was: was.clone(), becomes: becomes.clone() }
    }))?;
    let refused = settings.iter().filter_map(|SettingChange { setting, path, becomes, .. }| {
        let error = machine.kernel.write(path, becomes).err()?;
        Some(format!("{setting} to {becomes}: {error}"))
    });
    Ok(refused.collect())
}

/// Process and thread number, and when it was started.
type ThreadKey = (i32, i32, u64);

/// Moves threads off the reserved cores.
struct Mover<'a> {
    machine: &'a Machine,
    reserved: CoreSet,
    others: CoreSet,
    borrowed_core: usize,
    claims: Claims,
    /// Whether the kernel has moved threads.
    is_partition: bool,
    /// The target cores of threads in the journal.
    becomes: BTreeMap<ThreadKey, CoreSet>,
    /// Threads that were tried once.
    tried: BTreeSet<ThreadKey>,
}

impl Mover<'_> {
    fn threads(&self) -> Result<Vec<process::Thread>, MachineError> {
        let mut threads = process::threads(&self.machine.procfs)
            .map_err(|error| MachineError::system("cannot list the processes", error))?;
        threads.retain(|thread| {
            let is_of_card = is_borrowed(thread, self.borrowed_core)
                || self.claims.of_thread(thread, &self.reserved).is_some();
            !thread.is_bound && !is_of_card
        });
        Ok(threads)
    }

    /// Records the current and target cores of threads.
    fn note(
        &mut self,
        journal: &mut Journal,
        threads: &[process::Thread],
    ) -> Result<(), MachineError> {
        let changes: Vec<_> = threads.iter().map(|thread| change(thread, &self.others)).collect();
        journal.record_all(changes.iter().map(|thread| Change::Affinity {
            process: thread.process,
            thread: thread.thread,
            start_time: thread.start_time,
            was: thread.was.clone(),
            becomes: thread.becomes.clone(),
        }))?;
        for ThreadChange { process, thread, start_time, becomes, .. } in &changes {
            let cores = CoreSet::parse_list(becomes).unwrap_or_default();
            self.becomes.insert((*process, *thread, *start_time), cores);
        }
        Ok(())
    }

    /// Moves threads until no untried one is found; returns how many were moved.
    fn run(
        &mut self,
        journal: &mut Journal,
        refused: &mut Vec<String>,
    ) -> Result<usize, MachineError> {
        let mut moved = 0;
        for _ in 0..PASSES {
            let mut threads = self.threads()?;
            threads.retain(|thread| {
                let who = (thread.process, thread.thread, thread.start_time);
                let is_wrong = match self.becomes.get(&who) {
                    // The kernel has put it on the other cores and forgotten its own.
                    Some(becomes) if self.is_partition => thread.allowed != *becomes,
                    _ => thread.allowed.meets(&self.reserved),
                };
                is_wrong && !self.tried.contains(&who)
            });
            if threads.is_empty() {
                break;
            }
            let unknown: Vec<_> = threads
                .iter()
                .filter(|thread| {
                    let who = (thread.process, thread.thread, thread.start_time);
                    !self.becomes.contains_key(&who)
                })
                .cloned()
                .collect();
            self.note(journal, &unknown)?;
            for thread in threads {
                let who = (thread.process, thread.thread, thread.start_time);
                self.tried.insert(who);
                let becomes = &self.becomes[&who];
                match self.machine.kernel.set_affinity(thread.thread, becomes) {
                    Ok(()) => moved += 1,
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                    Err(error) => refused.push(format!(
                        "thread {} ({}) to {becomes}: {error}",
                        thread.thread, thread.name
                    )),
                }
            }
        }
        Ok(moved)
    }
}
