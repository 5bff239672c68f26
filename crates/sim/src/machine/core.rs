//! A core: three levels of work, preemption, and an account of each nanosecond.
//!
//! ```
//! use picnic_core::time::Time;
//! use picnic_sim::machine::{Component, Core, Level, Parts};
//!
//! let at = Time::from_nanos;
//! let mut core = Core::new(at(0));
//! core.start(at(10), Level::Process, Parts::of(Component::Application, 100), 1);
//! // An interrupt at 30 takes 5 ns: the process ends 5 ns later.
//! core.start(at(30), Level::Interrupt, Parts::of(Component::Driver, 5), 2);
//! assert_eq!(core.ends_at(), Some(at(35)));
//! assert_eq!(core.end(at(35)), 2);
//! assert_eq!(core.ends_at(), Some(at(115)));
//! assert_eq!(core.end(at(115)), 1);
//! assert_eq!(core.accounts(at(120))[Component::Idle], 15);
//! ```
//!
//! Guarantees: work of a level preempts work of lower levels at any nanosecond, which later
//! continue with the remainder; the accounts add up to the time since the core began.

use picnic_core::time::Time;
use std::ops::{Index, IndexMut};

/// The use of a nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The driver's own work.
    Driver,
    /// Reading and writing the registers of a device.
    Registers,
    /// Allocating and freeing buffers.
    Buffers,
    /// The protocol stack.
    Stack,
    /// Sockets and system calls.
    Socket,
    /// Copying payload.
    Copy,
    /// Waiting for locks and moving them.
    Lock,
    /// Interrupt entry, context switches, wake-ups.
    Kernel,
    /// The application.
    Application,
    /// Idle.
    Idle,
}

impl Component {
    /// All of them, in the order of reports.
    pub const ALL: [Component; 10] = [
        Component::Driver,
        Component::Registers,
        Component::Buffers,
        Component::Stack,
        Component::Socket,
        Component::Copy,
        Component::Lock,
        Component::Kernel,
        Component::Application,
        Component::Idle,
    ];

    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Component::Driver => "driver",
            Component::Registers => "registers",
            Component::Buffers => "buffers",
            Component::Stack => "stack",
            Component::Socket => "socket",
            Component::Copy => "copy",
            Component::Lock => "lock",
            Component::Kernel => "kernel",
            Component::Application => "application",
            Component::Idle => "idle",
        }
    }
}

/// Nanoseconds by component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts([u64; Component::ALL.len()]);

impl Accounts {
    /// The sum over all components.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Time with work.
    pub fn busy(&self) -> u64 {
        self.total() - self[Component::Idle]
    }

    /// The time since an earlier state of the same accounts.
    #[must_use]
    pub fn since(&self, earlier: &Accounts) -> Accounts {
        Accounts(std::array::from_fn(|place| self.0[place] - earlier.0[place]))
    }
}

impl Index<Component> for Accounts {
    type Output = u64;
    fn index(&self, component: Component) -> &u64 {
        &self.0[component as usize]
    }
}

impl IndexMut<Component> for Accounts {
    fn index_mut(&mut self, component: Component) -> &mut u64 {
        &mut self.0[component as usize]
    }
}

/// A piece of work: how long for each component, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    list: Vec<Part>,
    total: u64,
    stalled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    component: Component,
    ns: u64,
    /// It waits for a register or for memory, and uses no pipeline.
    stalls: bool,
}

impl Parts {
    /// Work of one component.
    pub fn of(component: Component, nanoseconds: u64) -> Self {
        let mut parts = Parts::default();
        parts.add(component, nanoseconds);
        parts
    }

    /// Adds work at the end.
    pub fn add(&mut self, component: Component, nanoseconds: u64) {
        self.put(Part { component, ns: nanoseconds, stalls: false });
    }

    /// Adds waiting for a register or for memory at the end.
    pub fn stall(&mut self, component: Component, nanoseconds: u64) {
        self.put(Part { component, ns: nanoseconds, stalls: true });
    }

    fn put(&mut self, part: Part) {
        if part.ns == 0 {
            return;
        }
        self.total += part.ns;
        self.stalled += if part.stalls { part.ns } else { 0 };
        match self.list.last_mut() {
            Some(last) if (last.component, last.stalls) == (part.component, part.stalls) => {
                last.ns += part.ns;
            }
            _ => self.list.push(part),
        }
    }

    /// Adds other work at the end.
    pub fn append(&mut self, other: &Parts) {
        other.list.iter().for_each(|part| self.put(*part));
    }

    /// The same work in a pipeline that is shared: all but stalls takes `factor` as long.
    #[must_use]
    pub fn stretched(&self, factor: f64) -> Parts {
        let mut stretched = Parts::default();
        for part in &self.list {
            let factor = if part.stalls { 1.0 } else { factor };
            stretched.put(Part { ns: (part.ns as f64 * factor).round() as u64, ..*part });
        }
        stretched
    }

    /// The part that stalls, in nanoseconds.
    pub fn stalled(&self) -> u64 {
        self.stalled
    }

    /// Its length in nanoseconds.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The components, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Component, u64)> {
        self.list.iter().map(|part| (part.component, part.ns))
    }
}

/// Preemption levels: later ones preempt earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Processes and kernel threads.
    Process,
    /// Work deferred by interrupts.
    Softirq,
    /// Interrupts.
    Interrupt,
}

/// Running or preempted work.
#[derive(Clone, Debug)]
struct Running {
    level: Level,
    parts: Parts,
    /// The current part, and the completed nanoseconds of it.
    part: usize,
    done_ns: u64,
    left_ns: u64,
    token: u64,
}

/// One core.
#[derive(Clone, Debug)]
pub struct Core {
    began: Time,
    /// Time is accounted for up to here.
    at: Time,
    accounts: Accounts,
    /// When it last became idle.
    idle_since: Time,
    /// Lowest level first; the last one runs.
    stack: Vec<Running>,
    /// Changes whenever the end of the running work does.
    epoch: u64,
}

impl Core {
    /// An idle core.
    pub fn new(now: Time) -> Self {
        let (accounts, stack) = (Accounts::default(), Vec::new());
        Core { began: now, at: now, accounts, idle_since: now, stack, epoch: 0 }
    }

    /// The running level; none if idle.
    pub fn level(&self) -> Option<Level> {
        self.stack.last().map(|running| running.level)
    }

    /// How long it has been idle at `now`, in nanoseconds; 0 while it works.
    pub fn idle_ns(&self, now: Time) -> u64 {
        if self.stack.is_empty() { now.since(self.idle_since) } else { 0 }
    }

    /// Starts work, identified by `token`, ahead of the running work.
    ///
    /// # Panics
    /// If work of the same or a higher level is running: a caller's error.
    pub fn start(&mut self, now: Time, level: Level, parts: Parts, token: u64) {
        self.settle(now);
        assert!(self.level() < Some(level), "{level:?} started over {:?}", self.level());
        let left_ns = parts.total();
        self.stack.push(Running { level, parts, part: 0, done_ns: 0, left_ns, token });
        self.epoch += 1;
    }

    /// When the running work ends, if nothing preempts it.
    pub fn ends_at(&self) -> Option<Time> {
        self.stack.last().map(|running| self.at + running.left_ns)
    }

    /// A number that changes whenever [`Core::ends_at`] does.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Ends the running work, which is complete; returns its token. The preempted work continues.
    ///
    /// # Panics
    /// If it is not complete, or the accounts do not add up.
    pub fn end(&mut self, now: Time) -> u64 {
        self.settle(now);
        let Some(ended) = self.stack.pop() else { panic!("nothing runs on the core") };
        assert_eq!(ended.left_ns, 0, "work ended early");
        assert_eq!(self.accounts.total(), now.since(self.began), "accounts do not add up");
        self.epoch += 1;
        self.idle_since = now;
        ended.token
    }

    /// Nanoseconds by component since the core began.
    pub fn accounts(&mut self, now: Time) -> Accounts {
        self.settle(now);
        assert_eq!(self.accounts.total(), now.since(self.began), "accounts do not add up");
        self.accounts
    }

    /// Accounts for the time up to `now`.
    fn settle(&mut self, now: Time) {
        let mut passed = now.since(self.at);
        self.at = self.at.max(now);
        let Some(running) = self.stack.last_mut() else {
            self.accounts[Component::Idle] += passed;
            return;
        };
        assert!(passed <= running.left_ns, "work ran beyond its end");
        running.left_ns -= passed;
        while passed != 0 {
            let Part { component, ns: whole, .. } = running.parts.list[running.part];
            let step = passed.min(whole - running.done_ns);
            self.accounts[component] += step;
            (passed, running.done_ns) = (passed - step, running.done_ns + step);
            if running.done_ns == whole {
                (running.part, running.done_ns) = (running.part + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> Time {
        Time::from_nanos(nanoseconds)
    }

    /// Two parts of a process, a softirq and an interrupt in it: at every nanosecond of each.
    #[test]
    fn preemption_at_every_boundary_keeps_the_remainder() {
        for softirq_at in 0..=12 {
            for interrupt_at in softirq_at..=softirq_at + 4 {
                let mut core = Core::new(at(0));
                let mut process = Parts::of(Component::Socket, 5);
                process.add(Component::Copy, 7);
                core.start(at(0), Level::Process, process, 1);
                core.start(at(softirq_at), Level::Softirq, Parts::of(Component::Stack, 4), 2);
                core.start(at(interrupt_at), Level::Interrupt, Parts::of(Component::Driver, 3), 3);
                let mut ends = Vec::new();
                while let Some(end) = core.ends_at() {
                    ends.push((core.end(end), end.as_nanos()));
                }
                assert_eq!(
                    ends,
                    [(3, interrupt_at + 3), (2, softirq_at + 4 + 3), (1, 12 + 4 + 3)],
                    "{softirq_at}, {interrupt_at}"
                );
                let accounts = core.accounts(at(25));
                let of = |component| accounts[component];
                assert_eq!(
                    [of(Component::Socket), of(Component::Copy), of(Component::Stack)],
                    [5, 7, 4]
                );
                assert_eq!([of(Component::Driver), of(Component::Idle)], [3, 6]);
                assert_eq!(accounts.busy(), 19);
            }
        }
    }

    #[test]
    fn accounts_are_exact_in_the_middle_of_work() {
        let mut core = Core::new(at(100));
        let mut parts = Parts::of(Component::Driver, 10);
        parts.add(Component::Stack, 10);
        parts.add(Component::Stack, 10);
        assert_eq!((parts.total(), parts.iter().count()), (30, 2));
        core.start(at(150), Level::Softirq, parts, 0);
        for now in 150..=180 {
            let accounts = core.accounts(at(now));
            assert_eq!(accounts.total(), now - 100);
            assert_eq!(accounts[Component::Driver], (now - 150).min(10));
            assert_eq!(accounts[Component::Stack], (now - 150).saturating_sub(10));
        }
        let before = core.accounts(at(180));
        core.end(at(180));
        assert_eq!(core.accounts(at(190)).since(&before).total(), 10);
    }

    #[test]
    fn a_shared_pipeline_stretches_all_but_stalls() {
        let mut parts = Parts::of(Component::Driver, 100);
        parts.stall(Component::Driver, 50);
        parts.stall(Component::Registers, 30);
        parts.add(Component::Stack, 40);
        assert_eq!((parts.total(), parts.stalled()), (220, 80));
        let stretched = parts.stretched(1.5);
        assert_eq!((stretched.total(), stretched.stalled()), (290, 80));
        let of: Vec<_> = stretched.iter().collect();
        assert_eq!(of[..2], [(Component::Driver, 150), (Component::Driver, 50)]);
        assert_eq!(parts.stretched(1.0), parts);
        let mut twice = parts.clone();
        twice.append(&parts);
        assert_eq!((twice.total(), twice.stalled()), (440, 160));
    }

    #[test]
    fn an_end_moves_when_work_is_preempted() {
        let mut core = Core::new(at(0));
        core.start(at(0), Level::Process, Parts::of(Component::Application, 10), 1);
        let epoch = core.epoch();
        core.start(at(10), Level::Interrupt, Parts::of(Component::Kernel, 1), 2);
        assert_ne!(core.epoch(), epoch);
        assert_eq!((core.end(at(11)), core.idle_ns(at(11))), (2, 0));
        // Nothing remained: it ends at the same moment.
        assert_eq!(core.ends_at(), Some(at(11)));
        assert_eq!((core.end(at(11)), core.idle_ns(at(11))), (1, 0));
        assert_eq!((core.level(), core.idle_ns(at(15))), (None, 4));
    }

    #[test]
    #[should_panic(expected = "Softirq started over")]
    fn a_level_does_not_preempt_itself() {
        let mut core = Core::new(at(0));
        core.start(at(0), Level::Softirq, Parts::of(Component::Stack, 1), 1);
        core.start(at(0), Level::Softirq, Parts::of(Component::Stack, 1), 2);
    }
}
