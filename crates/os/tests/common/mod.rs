//! A virtual processor for schedulers: segments take the time of their bounds. Each test uses some
//! of it.

#![allow(dead_code, unreachable_pub)]

use picnic_core::time::Time;
use picnic_os::schedulers::{Decision, Scheduler};
use picnic_os::ticket::{Candidate, Ticket};

/// A task of the model: its segments' bounds, of one invocation.
#[derive(Clone, Debug)]
pub struct Model {
    pub period_ns: Option<u64>,
    pub priority: u8,
    pub first_release: u64,
    pub segments: Vec<u64>,
}

pub fn periodic(period_ns: u64, segments: &[u64]) -> Model {
    Model { period_ns: Some(period_ns), priority: 0, first_release: 0, segments: segments.to_vec() }
}

pub fn other(segments: &[u64]) -> Model {
    Model { period_ns: None, priority: 0, first_release: 0, segments: segments.to_vec() }
}

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// (start, task, segment), in order.
    pub trace: Vec<(u64, usize, usize)>,
    pub misses: Vec<u64>,
    pub idle_ns: u64,
    pub invocations: Vec<u64>,
}

/// Runs tasks on a virtual processor: segments take the time of their bounds; an aperiodic task is
/// released again as soon as it ends.
pub fn run(scheduler: &mut dyn Scheduler, models: &[Model], until: u64) -> Run {
    let mut result = Run { misses: vec![0; models.len()], ..Run::default() };
    result.invocations = vec![0; models.len()];
    let mut segment = vec![0; models.len()];
    let mut since = 0;
    let mut tasks: Vec<Candidate> = models
        .iter()
        .map(|model| Candidate {
            ticket: Ticket {
                wcet_ns: model.segments[0],
                remaining_ns: model.segments.iter().sum(),
                period_ns: model.period_ns,
                priority: model.priority,
                next_release: Time::from_nanos(model.first_release),
                next_deadline: Time::from_nanos(model.first_release + model.period_ns.unwrap_or(0)),
            },
            ready: false,
            begun: false,
            since: 0,
        })
        .collect();
    let mut now = 0;
    scheduler.tasks_changed(Time::ZERO, &tasks);
    while now < until {
        for task in &mut tasks {
            if !task.ready && task.ticket.next_release.as_nanos() <= now {
                task.ready = true;
                since += 1;
                task.since = since;
            }
        }
        match scheduler.decide(Time::from_nanos(now), &tasks) {
            Decision::Run(index) => {
                let (task, model) = (&mut tasks[index], &models[index]);
                assert!(task.ready, "task {index} is not ready");
                result.trace.push((now, index, segment[index]));
                now += task.ticket.wcet_ns;
                segment[index] += 1;
                task.begun = segment[index] < model.segments.len();
                if !task.begun {
                    segment[index] = 0;
                    result.invocations[index] += 1;
                    task.ready = false;
                    if let Some(period) = model.period_ns {
                        if now > task.ticket.next_deadline.as_nanos() {
                            result.misses[index] += 1;
                        }
                        task.ticket.next_release = task.ticket.next_deadline;
                        task.ticket.next_deadline = task.ticket.next_release + period;
                    } else {
                        task.ticket.next_release = Time::from_nanos(now);
                    }
                }
                task.ticket.wcet_ns = model.segments[segment[index]];
                task.ticket.remaining_ns = model.segments[segment[index]..].iter().sum();
            }
            Decision::Idle(next) => {
                let released = tasks.iter().filter(|task| !task.ready);
                let released = released.map(|task| task.ticket.next_release.as_nanos()).min();
                let next = next.map_or(until, Time::as_nanos).min(released.unwrap_or(until));
                assert!(next > now, "idle until a time that is past: {next} at {now}");
                let next = next.min(until);
                result.idle_ns += next - now;
                now = next;
            }
        }
    }
    result
}
