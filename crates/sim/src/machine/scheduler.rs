//! The scheduler: run queues, time slices, and the core of a woken process.
//!
//! Guarantees: a process is on at most one run queue; it runs on one core; a wake-up while it runs
//! is not lost; first come, first served within a core.
//!
//! Source: Linux 2.4, `reschedule_idle` ([`Placement::IdleFirst`]); Linux 2.6, `wake_affine`
//! ([`Placement::NearWaker`]). PICNIC 5.2: "the OS more effectively scheduled the Web server
//! threads on the same core as their network protocol processing".

use picnic_core::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The core of a woken process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Its previous core.
    #[default]
    Stay,
    /// Its previous core if that is idle, else any idle core, else its previous core.
    IdleFirst,
    /// Its previous core if that is idle, else the waker's, unless more wait there.
    NearWaker,
}

/// A process, for the scheduler.
#[derive(Clone, Debug)]
struct Process {
    core: usize,
    state: State,
    /// It was woken while it ran.
    woken: bool,
    pinned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Queued,
    Running,
}

/// The result of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It was awake already.
    Awake,
    /// It waits on this core's run queue.
    On {
        /// The core.
        core: usize,
        /// Its previous core was another.
        migrated: bool,
    },
}

/// The next process to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Its number.
    pub process: usize,
    /// Another one ran before: a context switch.
    pub switched: bool,
}

/// The run queues of a machine.
#[derive(Clone, Debug)]
pub struct Scheduler {
    placement: Placement,
    slice_ns: u64,
    /// Idle cores take processes from the longest queue.
    steals: bool,
    processes: Vec<Process>,
    queues: Vec<VecDeque<usize>>,
    current: Vec<Option<usize>>,
    last: Vec<Option<usize>>,
    slice_ends: Vec<Time>,
    /// Where the search for an idle core begins, so that none is favoured.
    hand: usize,
}

impl Scheduler {
    /// Run queues of `cores` cores.
    pub fn new(cores: usize, placement: Placement, slice_ns: u64, steals: bool) -> Self {
        Scheduler {
            placement,
            slice_ns,
            steals,
            processes: Vec::new(),
            queues: vec![VecDeque::new(); cores],
            current: vec![None; cores],
            last: vec![None; cores],
            slice_ends: vec![Time::ZERO; cores],
            hand: 0,
        }
    }

    /// A sleeping process on `core`, perhaps `pinned` to it.
    pub fn add(&mut self, core: usize, pinned: bool) -> usize {
        self.processes.push(Process { core, state: State::Asleep, woken: false, pinned });
        self.processes.len() - 1
    }

    /// The core of a process.
    pub fn core_of(&self, process: usize) -> usize {
        self.processes[process].core
    }

    /// Whether it sleeps.
    pub fn is_asleep(&self, process: usize) -> bool {
        self.processes[process].state == State::Asleep
    }

    /// Processes that run or wait on a core.
    pub fn load(&self, core: usize) -> usize {
        self.queues[core].len() + usize::from(self.current[core].is_some())
    }

    /// Wakes a process. `waker` is the waking core; `is_idle` tells which cores have nothing to do
    /// at all.
    pub fn wake(
        &mut self,
        process: usize,
        waker: Option<usize>,
        is_idle: impl Fn(usize) -> bool,
    ) -> Woken {
        if self.processes[process].state != State::Asleep {
            self.processes[process].woken = true;
            return Woken::Awake;
        }
        let before = self.processes[process].core;
        let core = self.place(process, waker, &is_idle);
        let process_state = &mut self.processes[process];
        (process_state.core, process_state.state) = (core, State::Queued);
        self.queues[core].push_back(process);
        Woken::On { core, migrated: core != before }
    }

    fn place(
        &mut self,
        process: usize,
        waker: Option<usize>,
        is_idle: &impl Fn(usize) -> bool,
    ) -> usize {
        let Process { core: before, pinned, .. } = self.processes[process];
        let is_free = |core: usize, load: usize| load == 0 && is_idle(core);
        if pinned || self.placement == Placement::Stay || is_free(before, self.load(before)) {
            return before;
        }
        match (self.placement, waker) {
            (Placement::IdleFirst, _) => {
                let cores = self.queues.len();
                self.hand += 1;
                let mut all = (0..cores).map(|step| (self.hand + step) % cores);
                all.find(|&core| is_free(core, self.load(core))).unwrap_or(before)
            }
            (Placement::NearWaker, Some(waker)) if waker < self.queues.len() => {
                if self.load(waker) <= self.load(before) { waker } else { before }
            }
            _ => before,
        }
    }

    /// The process that continues or is next on `core`, if any. An idle core takes one from
    /// another.
    pub fn next(&mut self, core: usize, now: Time) -> Option<Next> {
        if let Some(current) = self.current[core] {
            if self.queues[core].is_empty() || now < self.slice_ends[core] {
                return Some(Next { process: current, switched: false });
            }
            self.current[core] = None;
            self.processes[current].state = State::Queued;
            self.queues[core].push_back(current);
        }
        if self.queues[core].is_empty() {
            self.steal(core);
        }
        let process = self.queues[core].pop_front()?;
        self.processes[process].state = State::Running;
        self.current[core] = Some(process);
        self.slice_ends[core] = now + self.slice_ns;
        let switched = self.last[core].replace(process) != Some(process);
        Some(Next { process, switched })
    }

    /// Takes a waiting process from the core with the longest queue.
    fn steal(&mut self, core: usize) {
        if !self.steals {
            return;
        }
        let longest = (0..self.queues.len())
            .max_by_key(|&other| (self.queues[other].len(), std::cmp::Reverse(other)));
        let Some(from) = longest.filter(|&other| other != core) else { return };
        let free = self.queues[from].iter().position(|&process| !self.processes[process].pinned);
        if let Some(process) = free.and_then(|place| self.queues[from].remove(place)) {
            self.processes[process].core = core;
            self.queues[core].push_back(process);
        }
    }

    /// The process running on `core` asks to sleep. False if it was woken meanwhile and continues.
    pub fn sleep(&mut self, core: usize) -> bool {
        let Some(process) = self.current[core] else { return true };
        if std::mem::take(&mut self.processes[process].woken) {
            return false;
        }
        self.processes[process].state = State::Asleep;
        self.current[core] = None;
        true
    }

    /// The core is idle: the next process is a switch, since the idle task ran.
    pub fn idle(&mut self, core: usize) {
        self.last[core] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> Time {
        Time::from_nanos(nanoseconds)
    }

    fn scheduler(placement: Placement) -> Scheduler {
        Scheduler::new(4, placement, 1000, true)
    }

    #[test]
    fn policies_place_wake_ups() {
        // Core 0 is the previous one, core 2 wakes it; only core 3 is idle.
        for (placement, wanted) in
            [(Placement::Stay, 0), (Placement::IdleFirst, 3), (Placement::NearWaker, 2)]
        {
            let mut scheduler = scheduler(placement);
            let process = scheduler.add(0, false);
            let woken = scheduler.wake(process, Some(2), |core| core == 3);
            assert_eq!(woken, Woken::On { core: wanted, migrated: wanted != 0 }, "{placement:?}");
            let mut pinned = scheduler.clone();
            let process = pinned.add(0, true);
            let woken = pinned.wake(process, Some(2), |core| core == 3);
            assert_eq!(woken, Woken::On { core: 0, migrated: false });
        }
    }

    #[test]
    fn a_wake_up_stays_where_it_was_if_the_waker_has_more_to_run() {
        let mut scheduler = scheduler(Placement::NearWaker);
        let busy = scheduler.add(2, false);
        scheduler.wake(busy, None, |_| false);
        let process = scheduler.add(0, false);
        let woken = scheduler.wake(process, Some(2), |_| false);
        assert_eq!(woken, Woken::On { core: 0, migrated: false });
    }

    #[test]
    fn slices_go_round_and_only_others_switch() {
        let mut scheduler = scheduler(Placement::Stay);
        for process in [scheduler.add(0, false), scheduler.add(0, false)] {
            scheduler.wake(process, None, |_| true);
        }
        let next = |scheduler: &mut Scheduler, now| {
            let next = scheduler.next(0, at(now)).unwrap();
            (next.process, next.switched)
        };
        assert_eq!(next(&mut scheduler, 0), (0, true));
        assert_eq!(next(&mut scheduler, 999), (0, false));
        assert_eq!(next(&mut scheduler, 1000), (1, true));
        assert!(scheduler.sleep(0));
        assert_eq!(next(&mut scheduler, 1500), (0, true));
        // If alone, it continues beyond its slice.
        assert_eq!(next(&mut scheduler, 99_000), (0, false));
    }

    #[test]
    fn a_wake_up_of_a_running_process_is_not_lost() {
        let mut scheduler = scheduler(Placement::Stay);
        let process = scheduler.add(1, false);
        scheduler.wake(process, None, |_| true);
        scheduler.next(1, at(0)).unwrap();
        assert_eq!(scheduler.wake(process, None, |_| true), Woken::Awake);
        assert!(!scheduler.sleep(1));
        assert!(scheduler.sleep(1));
        assert!(scheduler.is_asleep(process));
    }

    #[test]
    fn idle_cores_steal_waiting_processes() {
        let mut scheduler = scheduler(Placement::Stay);
        for _ in 0..3 {
            let process = scheduler.add(0, false);
            scheduler.wake(process, None, |_| true);
        }
        let pinned = scheduler.add(0, true);
        scheduler.wake(pinned, None, |_| true);
        assert_eq!(scheduler.next(0, at(0)).unwrap().process, 0);
        assert_eq!(scheduler.next(1, at(0)).unwrap().process, 1);
        assert_eq!(scheduler.next(2, at(0)).unwrap().process, 2);
        assert_eq!(scheduler.next(3, at(0)), None, "the pinned one is not taken");
        assert_eq!(scheduler.core_of(1), 1);
    }
}
