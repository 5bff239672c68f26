//! A NIC OS on its own core: virtual, or one of this machine.
//!
//! Both run the same tasks on the same executor. A segment states its duration; a virtual processor
//! advances its clock by that, a real one works for it.

use super::draw::TaskSet;
use picnic_core::ledger::Ledger;
use picnic_core::out::Doors;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::resident::{Resident, Turn};
use picnic_core::time::Time;
use picnic_lab::compare::Moments;
use picnic_lab::experiment::LabError;
use picnic_os::context::Nic;
use picnic_os::executor::{Os, OsSettings};
use picnic_os::schedulers::Scheduler;
use picnic_os::task::{Bounds, TaskId, TaskSpec, program};
use std::hint::spin_loop;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// An invocation of a task that is not periodic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Invocation {
    /// Milliseconds since the start of the one before; none for the first.
    pub(super) between_ms: Option<f64>,
    /// Milliseconds from ready to its end.
    pub(super) response_ms: f64,
}

/// The results of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Run {
    /// Of each task that is not periodic, by its place.
    pub(super) of_tasks: Vec<Vec<Invocation>>,
    pub(super) busy_fraction: f64,
    /// Milliseconds from ready to the end of an invocation, of aperiodic tasks.
    pub(super) response_ms: Moments,
    /// Milliseconds between the starts of two invocations, of aperiodic tasks.
    pub(super) between_ms: Moments,
    /// The same as `response_ms`, of periodic tasks.
    pub(super) periodic_response_ms: Moments,
    /// Milliseconds from release to start, periodic tasks.
    pub(super) jitter_ms: Moments,
    /// The longest of these.
    pub(super) longest_jitter_ms: f64,
    pub(super) misses: u64,
    pub(super) overruns: u64,
    pub(super) invocations: u64,
    /// The fewest invocations of any aperiodic task.
    pub(super) fewest_of_others: u64,
}

/// A core, with its clock.
pub(super) trait Processor {
    /// The current time.
    fn now(&mut self) -> Time;
    /// Works until this many nanoseconds after `start`.
    fn work(&mut self, start: Time, nanoseconds: u64);
    /// Idles until `until`.
    fn idle(&mut self, until: Time);
    /// The duration of a switch, and the additional cost of cold caches, in nanoseconds.
    fn switch_ns(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// A core in virtual time.
#[derive(Default)]
pub(super) struct Virtual(Time);

impl Processor for Virtual {
    fn now(&mut self) -> Time {
        self.0
    }

    fn work(&mut self, start: Time, nanoseconds: u64) {
        self.0 = start + nanoseconds;
    }

    fn idle(&mut self, until: Time) {
        // A past deadline must not stop the clock.
        self.0 = until.max(self.0 + 1);
    }
}

/// The core this thread runs on.
pub(super) struct Real(Instant);

impl Real {
    pub(super) fn new() -> Self {
        Real(Instant::now())
    }
}

impl Processor for Real {
    fn now(&mut self) -> Time {
        Time::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    fn work(&mut self, start: Time, nanoseconds: u64) {
        while self.now() < start + nanoseconds {
            spin_loop();
        }
    }

    fn switch_ns(&self) -> (u64, u64) {
        (20_000, 50_000)
    }

    fn idle(&mut self, until: Time) {
        while self.now() < until {
            spin_loop();
        }
    }
}

/// Runs a set for a number of milliseconds.
pub(super) fn run(
    processor: &mut dyn Processor,
    scheduler: Box<dyn Scheduler>,
    set: &Arc<TaskSet>,
    milliseconds: u64,
) -> Result<Run, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::Failed(error.to_string());
    // The duration of a switch belongs to the executor here, and is not an overrun of a task.
    let (switch_ns, cold_ns) = processor.switch_ns();
    let settings = OsSettings { switch_ns, cold_ns, ..OsSettings::default() };
    let mut os = Os::new(&settings, scheduler);
    let mut ids = Vec::new();
    let lists = Arc::new(Mutex::new(vec![Vec::new(); set.tasks.len()]));
    for index in 0..set.tasks.len() {
        let (spec, body) = (spec(set, index), body(set.clone(), index, lists.clone()));
        ids.push(os.create(spec, body).map_err(|error| failed(&error))?);
    }
    // No task here sends or receives: the doors are unused.
    let pool = PoolConfig { buffers: 64, ..PoolConfig::default() };
    let (pool, _returns) = Pool::new(&pool, 0).map_err(|error| failed(&error))?;
    let mut doors = Doors::new(pool, Vec::new(), 0, 64, Arc::new(Ledger::new(0)));
    let until = Time::from_nanos(milliseconds * 1_000_000);
    let mut now = processor.now();
    while now < until {
        match os.turn(now, &mut doors) {
            Turn::Ran(segment) => {
                processor.work(now, segment.work_ns);
                os.ended(processor.now());
            }
            Turn::Idle(next) => processor.idle(next.unwrap_or(until).min(until)),
        }
        now = processor.now();
    }
    let mut run = figures(&os, set, &ids, now);
    os.stop(now, &mut doors);
    run.of_tasks = std::mem::take(&mut lists.lock().unwrap_or_else(PoisonError::into_inner));
    let all = run.of_tasks.iter().flatten().filter_map(|invocation| invocation.between_ms);
    all.for_each(|between_ms| run.between_ms.add(between_ms));
    Ok(run)
}

fn spec(set: &TaskSet, index: usize) -> TaskSpec {
    let task = &set.tasks[index];
    let bounds = &task.bounds_ns;
    let left = |segment: usize| bounds[segment..].iter().sum();
    let bounds = Bounds {
        segments: bounds.clone().into(),
        remaining: (0..bounds.len()).map(left).collect(),
    };
    let spec = TaskSpec::new(format!("task{index}")).bounds(bounds).offset_ns(task.start_ns);
    let spec = spec.priority(task.priority);
    match task.period_ns {
        Some(period_ns) => spec.periodic(period_ns),
        None => spec,
    }
}

/// Invocations, by the place of their task.
type Lists = Arc<Mutex<Vec<Vec<Invocation>>>>;

/// A task: in each invocation its segments, then it waits for its release, or thinks. An aperiodic
/// one records its invocations.
fn body(set: Arc<TaskSet>, index: usize, lists: Lists) -> picnic_os::task::Program {
    program(move |nic: Nic| async move {
        let task = &set.tasks[index];
        let last = task.bounds_ns.len() - 1;
        let apart_ms = |to: Time, from: Time| to.since(from) as f64 / 1e6;
        let (mut started, mut ready) = (None, Time::from_nanos(task.start_ns));
        for invocation in 0.. {
            let now = nic.now();
            let between_ms = started.replace(now).map(|before| apart_ms(now, before));
            for segment in 0..last {
                nic.work(set.takes_ns(index, invocation, segment));
                nic.next_segment(segment as u16 + 1);
                nic.yield_now().await;
            }
            let takes_ns = set.takes_ns(index, invocation, last);
            nic.work(takes_ns);
            nic.next_segment(0);
            if task.period_ns.is_some() {
                nic.next_release().await;
                continue;
            }
            let end = nic.now() + takes_ns;
            let done = Invocation { between_ms, response_ms: apart_ms(end, ready) };
            lists.lock().unwrap_or_else(PoisonError::into_inner)[index].push(done);
            ready = end + set.thinks_ns(index, invocation);
            nic.sleep_until(ready).await;
        }
    })
}

fn figures(os: &Os, set: &TaskSet, ids: &[TaskId], now: Time) -> Run {
    let mut run = Run { fewest_of_others: u64::MAX, ..Run::default() };
    let mut busy_ns = 0;
    for line in os.lines() {
        let counters = &line.counters;
        busy_ns += counters.busy_ns.get();
        run.misses += counters.deadline_misses.get();
        run.overruns += counters.overruns.get();
        run.invocations += counters.completed.get();
        if line.period_ns.is_none() {
            run.fewest_of_others = run.fewest_of_others.min(counters.completed.get());
        }
    }
    for (task, &id) in set.tasks.iter().zip(ids) {
        let Some(times) = os.times(id) else { continue };
        let sum = match task.period_ns {
            Some(_) => &mut run.periodic_response_ms,
            None => &mut run.response_ms,
        };
        if task.period_ns.is_some() {
            let jitter = times.jitter.figures();
            if let (Some(mean), Some(deviation)) = (jitter.mean_ns, jitter.stddev_ns) {
                let jitter = Moments::of(times.jitter.count(), mean / 1e6, deviation / 1e6);
                run.jitter_ms.merge(jitter);
            }
            let longest_ms = jitter.max_ns.unwrap_or(0) as f64 / 1e6;
            run.longest_jitter_ms = run.longest_jitter_ms.max(longest_ms);
        }
        let figures = times.response.figures();
        if let (Some(mean), Some(deviation)) = (figures.mean_ns, figures.stddev_ns) {
            sum.merge(Moments::of(times.response.count(), mean / 1e6, deviation / 1e6));
        }
    }
    run.busy_fraction = busy_ns as f64 / now.as_nanos() as f64;
    run
}
