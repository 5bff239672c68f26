//! Interfaces polled by kernel threads, on a chosen core.
//!
//! ```no_run
//! use picnic_machine::napi::Polling;
//! use picnic_machine::undo::{Journal, Machine};
//! let machine = Machine::this();
//! let mut journal = Journal::create(&machine, "demo")?;
//! let mut polling = Polling::start(&machine, &mut journal, "eth0", None)?;
//! polling.pin(&machine, &mut journal, 3)?;
//! // ... what eth0 receives is taken on core 3 ...
//! journal.undo()?;
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! By default an interface is polled in a softirq, on the core of its interrupt; one without
//! interrupts, such as a veth, on the core of the sender. Threads can poll it instead, and run on a
//! chosen core.
//!
//! Guarantees: every change is in the journal before it is made ([`crate::undo`]).
//!
//! Source: Documentation/networking/napi.rst, sections Threaded NAPI and Software IRQ coalescing. A
//! veth polls only with GRO or an XDP program, so GRO is switched on first: its threads then
//! survive attaching a program.

use crate::command;
use crate::error::MachineError;
use crate::isolate;
use crate::netdev;
use crate::topology::CoreSet;
use crate::undo::process::{Thread, threads as all_threads};
use crate::undo::{Change, Journal, Machine, feature_words, within};
use crate::veth;
use crate::xdp;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// The length to which kernel thread names may be truncated.
const SHORTEST_NAME: usize = 15;

/// Ticks per second of proc_stat(5) on every architecture that picnic is built for.
const USER_HZ: u64 = 100;

/// An interface that kernel threads poll.
#[derive(Clone, Debug)]
pub struct Polling {
    interface: String,
    namespace: Option<String>,
    /// Other threads of that name, if the kernel does not tell which are whose: there may be one in
    /// each namespace.
    foreign: BTreeSet<i32>,
    pinned: BTreeSet<i32>,
}

/// Scheduling statistics of a kernel thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Nanoseconds running.
    pub run_ns: u64,
    /// Nanoseconds waiting for its core.
    pub wait_ns: u64,
    /// Times that it was scheduled.
    pub turns: u64,
}

impl Polling {
    /// Whether threads can poll an interface, as far as known without trying.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(interface: &str, namespace: Option<&str>) -> Result<(), MachineError> {
        let asked = InterfaceQuery { interface, namespace };
        if !asked.is_up() {
            let enter = namespace.map(|name| format!(" -n {name}")).unwrap_or_default();
            return Err(asked.refused(format!("it is down (ip{enter} link set {interface} up)")));
        }
        // A veth has it once it does GRO.
        if netdev::has_napi(interface, namespace) == Some(false)
            && !veth::is_one(interface, namespace)
        {
            return Err(asked.without_napi());
        }
        Ok(())
    }

    /// Makes threads poll an interface.
    ///
    /// # Errors
    /// The interface does not exist or cannot be polled by threads; ethtool is not installed.
    pub fn start(
        machine: &Machine,
        journal: &mut Journal,
        interface: &str,
        namespace: Option<&str>,
    ) -> Result<Self, MachineError> {
        Self::check(interface, namespace)?;
        let asked = InterfaceQuery { interface, namespace };
        let features = asked.said(&["ethtool", "-k", interface])?;
        let gro = features.lines().find_map(|line| line.strip_prefix("generic-receive-offload:"));
        let gro = gro.and_then(|state| state.split_whitespace().next()).unwrap_or("off");
        let attribute = format!("/sys/class/net/{interface}/threaded");
        let threaded = asked.said(&["cat", &attribute])?.trim().to_owned();
        let mut foreign = BTreeSet::new();
        if threaded == "0" {
            foreign = numbers(threads(machine, interface));
        }
        for (feature, was, becomes) in [("gro", gro, "on"), ("threaded", &*threaded, "1")] {
            if was == becomes {
                continue;
            }
            let words = feature_words(interface, namespace, feature, becomes);
            journal.record(Change::Feature {
                interface: interface.into(),
                namespace: namespace.map(str::to_owned),
                feature: feature.into(),
                was: was.into(),
            })?;
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            journal.run(&words).map_err(|error| match feature {
                // The kernel's own error is only that it cannot be written.
                "threaded" => asked.without_napi(),
                _ => asked.refused(error.to_string()),
            })?;
        }
        Ok(Polling {
            interface: interface.into(),
            namespace: namespace.map(str::to_owned),
            foreign,
            pinned: BTreeSet::new(),
        })
    }

    /// Defers interrupts after each poll for `usecs` microseconds, until `polls` polls in a row (at
    /// least one) find nothing: packets that arrive in that time are taken at once. After that it
    /// interrupts again.
    ///
    /// # Errors
    /// The kernel does not support it: Linux before 5.8.
    pub fn hold(&self, journal: &mut Journal, usecs: u32, polls: u32) -> Result<(), MachineError> {
        let (interface, namespace) = (&*self.interface, self.namespace.as_deref());
        // The time first: without it the kernel would poll repeatedly.
        for (feature, becomes) in [
            ("gro_flush_timeout", (u64::from(usecs) * 1000).to_string()),
            ("napi_defer_hard_irqs", polls.max(1).to_string()),
        ] {
            let attribute = format!("/sys/class/net/{interface}/{feature}");
            let words = within(namespace, &["cat", &attribute]);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let was = command::run(&words).map_err(|error| {
                MachineError::Refused(format!(
                    "the interrupts of interface {interface} cannot be deferred: {error}"
                ))
            })?;
            journal.record(Change::Feature {
                interface: interface.into(),
                namespace: namespace.map(str::to_owned),
                feature: feature.into(),
                was: was.trim().into(),
            })?;
            let words = feature_words(interface, namespace, feature, &becomes);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let done = journal.run(&words).map(drop);
            done.map_err(|error| MachineError::Refused(error.to_string()))?;
        }
        Ok(())
    }

    /// Pins its unpinned threads to a core.
    ///
    /// # Errors
    /// It has none, or they may not run there.
    pub fn pin(
        &mut self,
        machine: &Machine,
        journal: &mut Journal,
        core: usize,
    ) -> Result<(), MachineError> {
        let told = netdev::napi_threads(&self.interface, self.namespace.as_deref());
        let told = told.map_err(|error| {
            MachineError::system(
                format!("cannot list the polling threads of {}", self.interface),
                error,
            )
        })?;
        let (mut own, others): (Vec<_>, Vec<_>) = threads(machine, &self.interface)
            .into_iter()
            .partition(|Thread { thread, .. }| match &told {
                Some(told) => told.contains(thread),
                None => !self.foreign.contains(thread),
            });
        // Such a kernel keeps an interface's threads when they no longer poll it.
        if told.is_none() && own.is_empty() {
            own = others;
        }
        if own.is_empty() {
            let interface = &self.interface;
            let enter = self.namespace.as_ref().map(|name| format!(" -n {name}"));
            let message = format!(
                "interface {interface} has no thread that polls it: is it up? (ip{} link set \
                 {interface} up)",
                enter.unwrap_or_default()
            );
            return Err(MachineError::Refused(message));
        }
        for thread in own.iter().filter(|thread| !self.pinned.contains(&thread.thread)) {
            bring(machine, journal, thread, core).map_err(|error| {
                let what =
                    format!("the thread that polls {} cannot run on core {core}", self.interface);
                MachineError::system(what, error)
            })??;
        }
        self.pinned = numbers(own);
        Ok(())
    }

    /// The threads that it has pinned.
    pub fn threads(&self) -> impl Iterator<Item = i32> {
        self.pinned.iter().copied()
    }
}

/// Pins a thread to a core, also to an isolated one. The outer error is the kernel's.
fn bring(
    machine: &Machine,
    journal: &mut Journal,
    thread: &Thread,
    core: usize,
) -> io::Result<Result<(), MachineError>> {
    let Thread { process, thread, start_time, allowed, .. } = thread;
    let becomes: CoreSet = [core].into_iter().collect();
    let noted = journal.record(Change::Affinity {
        process: *process,
        thread: *thread,
        start_time: *start_time,
        was: allowed.to_string(),
        becomes: becomes.to_string(),
    });
    if noted.is_err() {
        return Ok(noted);
    }
    let mut moved = machine.kernel.set_affinity(*thread, &becomes);
    if moved.is_err() && isolate::let_in(machine, core, *thread) {
        moved = machine.kernel.set_affinity(*thread, &becomes);
    }
    moved.map(Ok)
}

/// An interface to query.
struct InterfaceQuery<'a> {
    interface: &'a str,
    namespace: Option<&'a str>,
}

impl InterfaceQuery<'_> {
    /// Runs a command in the interface's namespace.
    fn said(&self, words: &[&str]) -> Result<String, MachineError> {
        let words = within(self.namespace, words);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        command::run(&words).map_err(|error| MachineError::Refused(error.to_string()))
    }

    /// Whether it is up; true if unknown.
    fn is_up(&self) -> bool {
        let flags = self.said(&["cat", &format!("/sys/class/net/{}/flags", self.interface)]);
        let flags = flags
            .ok()
            .and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
        flags.is_none_or(|flags| flags & 1 != 0)
    }

    fn without_napi(&self) -> MachineError {
        self.refused(match xdp::driver(self.interface, self.namespace) {
            Some(driver) => format!("its driver ({driver}) has no NAPI"),
            None => "it has no NAPI".into(),
        })
    }

    fn refused(&self, why: String) -> MachineError {
        MachineError::Refused(format!(
            "interface {} cannot be polled by a thread of the kernel: {why}",
            self.interface
        ))
    }
}

/// The threads that poll interfaces of a name.
fn threads(machine: &Machine, interface: &str) -> Vec<Thread> {
    all_named(machine, &format!("napi/{interface}-"))
}

fn numbers(threads: Vec<Thread>) -> BTreeSet<i32> {
    threads.into_iter().map(|thread| thread.thread).collect()
}

/// Kernel threads by the start of their names.
pub fn named(machine: &Machine, start: &str) -> BTreeSet<i32> {
    numbers(all_named(machine, start))
}

/// Schedules the kernel thread of this name, which ends with its purpose, as batch (`SCHED_BATCH`),
/// so that it does not preempt on waking.
///
/// # Errors
/// There is no such thread, or this process may not.
pub fn schedule_as_batch(machine: &Machine, name: &str) -> Result<(), MachineError> {
    let found = all_named(machine, name).into_iter().find(|thread| thread.name == name);
    let Some(Thread { thread, .. }) = found else {
        return Err(MachineError::Refused(format!("there is no thread {name}")));
    };
    let set = command::run(&["chrt", "--batch", "--pid", "0", &thread.to_string()]);
    set.map(drop).map_err(|error| MachineError::Refused(error.to_string()))
}

fn all_named(machine: &Machine, start: &str) -> Vec<Thread> {
    let mut all = all_threads(&machine.procfs).unwrap_or_default();
    let is_one = |name: &str| {
        let is_cut = name.len() == SHORTEST_NAME && start.starts_with(name);
        name.starts_with(start) || is_cut
    };
    all.retain(|thread| thread.is_kernel && is_one(&thread.name));
    all
}

/// Nanoseconds that a core has spent in softirqs since boot, in steps of 10 ms; none if the kernel
/// does not report it.
pub fn softirq_ns(machine: &Machine, core: usize) -> Option<u64> {
    read_softirq(&fs::read_to_string(machine.procfs.join("stat")).ok()?, core)
}

fn read_softirq(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    // user, nice, system, idle, iowait, irq, softirq
    let ticks: u64 = line.split_whitespace().nth(7)?.parse().ok()?;
    Some(ticks * (1_000_000_000 / USER_HZ))
}

/// Scheduling statistics of a thread; none if it has ended, or the kernel does not report them.
pub fn schedule(thread: i32) -> Option<Schedule> {
    let text = fs::read_to_string(Path::new("/proc").join(thread.to_string()).join("schedstat"));
    read_schedule(&text.ok()?)
}

fn read_schedule(text: &str) -> Option<Schedule> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Schedule { run_ns: next()?, wait_ns: next()?, turns: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{IsolationLevel, IsolationMethod};
    use crate::isolate::{IsolationRequest, apply};
    use crate::undo::fixture::{Fixture, KERNEL, put};

    #[test]
    fn softirq_time_is_read_per_core() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 8\ncpu10 1 2 3 4 5 6 70 8\nintr 1\n";
        assert_eq!(read_softirq(stat, 1), Some(70_000_000));
        assert_eq!(read_softirq(stat, 10), Some(700_000_000));
        assert_eq!(read_softirq(stat, 0), None);
        assert_eq!(read_softirq("cpu1 1 2", 1), None);
        assert!(softirq_ns(&Machine::this(), crate::topology::cores()[0]).is_some());
    }

    /// A card that starts when its core is already isolated: its thread enters, and stays until the
    /// card ends, whichever ends first.
    #[test]
    fn threads_enter_an_isolated_core() {
        for (has_groups, ends_first) in [(false, false), (true, false), (true, true)] {
            let fixture = if has_groups { Fixture::busy().with_groups() } else { Fixture::busy() };
            let machine = &fixture.machine;
            let before = fixture.all();
            let request = IsolationRequest {
                borrowed_core: 7,
                level: IsolationLevel::None,
                left_out: Vec::new(),
                method: IsolationMethod::Auto,
                interfaces: Vec::new(),
                warnings: Vec::new(),
            };
            let isolated = apply(machine, &request, false).unwrap();
            if has_groups {
                put(&machine.sysfs.join("fs/cgroup/picnic/cpuset.cpus.effective"), "7");
            }
            let mut journal = Journal::create(machine, "test").unwrap();
            fixture.start(600, 600, 2, KERNEL, "0-6");
            let threads = all_threads(&machine.procfs).unwrap();
            let thread = threads.iter().find(|thread| thread.thread == 600).unwrap();
            bring(machine, &mut journal, thread, 7).unwrap().unwrap();
            assert_eq!(fixture.cores(600), "7");
            let undo = |journal: Journal| {
                // The thread ends when it no longer polls its interface.
                fixture.end(600);
                assert!(journal.undo().unwrap().is_whole());
            };
            if ends_first {
                undo(journal);
                assert!(isolated.restore().unwrap().unwrap().is_whole());
            } else {
                assert!(isolated.restore().unwrap().unwrap().is_whole());
                assert_eq!(fixture.cores(600), "7");
                undo(journal);
            }
            assert_eq!(fixture.all(), before);
        }
    }

    #[test]
    fn schedules_are_parsed() {
        let found = read_schedule("12 3 4\n");
        assert_eq!(found, Some(Schedule { run_ns: 12, wait_ns: 3, turns: 4 }));
        assert_eq!((read_schedule("12 3"), read_schedule("a b c")), (None, None));
    }

    #[test]
    fn kernel_threads_are_found_by_name() {
        let machine = Machine::this();
        assert_eq!(named(&machine, "no-such-thread/"), BTreeSet::new());
        // Every core has this thread, if this process sees kernel threads.
        let found = named(&machine, "ksoftirqd/");
        assert!(found.iter().all(|&thread| schedule(thread).is_some()) || found.is_empty());
    }
}
