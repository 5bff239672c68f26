//! A virtual processor: the scheduler's own code, and segments that take drawn times.

use super::draw::TaskSet;
use picnic_core::time::Time;
use picnic_os::schedulers::{Decision, Scheduler};
use picnic_os::ticket::{Candidate, Ticket};

/// What one run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Run {
    pub(super) busy_fraction: f64,
    /// Milliseconds from ready to the end of an invocation, tasks that are not periodic.
    pub(super) responses_ms: Vec<f64>,
    /// The same of periodic tasks.
    pub(super) periodic_responses_ms: Vec<f64>,
    pub(super) misses: u64,
    pub(super) overruns: u64,
    pub(super) invocations: u64,
    /// The fewest invocations of any task that is not periodic.
    pub(super) fewest_of_others: u64,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    invocation: u64,
    segment: usize,
    ready_ns: u64,
}

/// Runs a set for so many milliseconds of virtual time.
pub(super) fn run(scheduler: &mut dyn Scheduler, set: &TaskSet, milliseconds: u64) -> Run {
    let until = milliseconds * 1_000_000;
    let mut result = Run::default();
    let mut states = vec![State::default(); set.tasks.len()];
    let mut tasks: Vec<Candidate> = Vec::with_capacity(set.tasks.len());
    for (task, state) in set.tasks.iter().zip(&mut states) {
        state.ready_ns = task.start_ns;
        let release = Time::from_nanos(task.start_ns);
        let ticket = Ticket {
            wcet_ns: task.bounds_ns[0],
            remaining_ns: task.bounds_ns.iter().sum(),
            period_ns: task.period_ns,
            priority: 0,
            next_release: release,
            next_deadline: release + task.period_ns.unwrap_or(0),
        };
        tasks.push(Candidate { ticket, ready: false, begun: false, since: 0 });
    }
    scheduler.tasks_changed(Time::ZERO, &tasks);
    let (mut now, mut busy_ns) = (0, 0);
    while now < until {
        for (task, state) in tasks.iter_mut().zip(&states) {
            if !task.ready && state.ready_ns <= now {
                task.ready = true;
                task.since = state.ready_ns;
            }
        }
        let next = match scheduler.decide(Time::from_nanos(now), &tasks) {
            Decision::Run(index) => {
                let state = &mut states[index];
                let took_ns = set.takes_ns(index, state.invocation, state.segment);
                result.overruns += u64::from(took_ns > tasks[index].ticket.wcet_ns);
                busy_ns += took_ns.min(until - now);
                now += took_ns;
                end_segment(set, index, now, &mut tasks[index], state, &mut result);
                continue;
            }
            Decision::Idle(next) => next.map_or(until, Time::as_nanos),
        };
        let waiting = tasks.iter().zip(&states).filter(|(task, _)| !task.ready);
        let ready = waiting.map(|(_, state)| state.ready_ns).min().unwrap_or(until);
        now = next.min(ready).max(now + 1);
    }
    result.busy_fraction = busy_ns as f64 / until as f64;
    let others = set.tasks.iter().zip(&states).filter(|(task, _)| task.period_ns.is_none());
    result.fewest_of_others = others.map(|(_, state)| state.invocation).min().unwrap_or(u64::MAX);
    result
}

fn end_segment(
    set: &TaskSet,
    index: usize,
    now: u64,
    task: &mut Candidate,
    state: &mut State,
    result: &mut Run,
) {
    let bounds = &set.tasks[index].bounds_ns;
    state.segment += 1;
    task.begun = state.segment < bounds.len();
    if !task.begun {
        let response_ms = (now - state.ready_ns) as f64 / 1e6;
        result.invocations += 1;
        task.ready = false;
        match task.ticket.period_ns {
            Some(period) => {
                result.periodic_responses_ms.push(response_ms);
                result.misses += u64::from(now > task.ticket.next_deadline.as_nanos());
                task.ticket.next_release = task.ticket.next_deadline;
                task.ticket.next_deadline = task.ticket.next_release + period;
                state.ready_ns = task.ticket.next_release.as_nanos();
            }
            None => {
                result.responses_ms.push(response_ms);
                state.ready_ns = now + set.thinks_ns(index, state.invocation);
            }
        }
        state.invocation += 1;
        state.segment = 0;
    }
    task.ticket.wcet_ns = bounds[state.segment];
    task.ticket.remaining_ns = bounds[state.segment..].iter().sum();
}
