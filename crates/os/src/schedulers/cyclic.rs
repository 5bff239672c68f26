//! The cyclic executive: a fixed timetable of frames, repeated for ever.
//!
//! A frame lasts the greatest common divisor of all periods; the timetable ends after their least
//! common multiple. A task of period `p` is in every `p / frame`th frame, from the least loaded of
//! those it may begin with (by bound, then by number), tasks of short periods placed first. In its
//! frame it runs to the end of its invocation, after those placed before it. Work left over from a
//! frame is done first in the next. An aperiodic task runs if all of its invocation fits before the
//! next frame with work.
//!
//! Guarantees: an entry whose task is not ready by the end of its frame is skipped, and runs in its
//! next place. A set of periods that would need more than [`MOST_FRAMES`] frames has no timetable:
//! its ready tasks take turns in the order they became ready.
//!
//! Source: NICOS 4.6, "Common Schedulers"; Baker and Shaw, "The Cyclic Executive Model and Ada",
//! RTSS 1988.

use super::{Decision, Discipline, Scheduler, next_release, to_completion, whole_filler};
use crate::admission::Order;
use crate::ticket::Candidate;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;

/// Frames of the longest timetable.
pub const MOST_FRAMES: u64 = 4096;

/// The scheduler.
#[derive(Clone, Debug, Default)]
pub struct Cyclic {
    /// Tasks by frame: their places among the candidates.
    frames: Vec<Vec<usize>>,
    frame_ns: u64,
    /// Frame 0 began this long before time zero.
    lead_ns: u64,
    /// The current frame, and which of its entries have run.
    frame: u64,
    run: Vec<bool>,
}

/// It has no keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CyclicConfig {}

impl Component for Cyclic {
    type Product = Box<dyn Scheduler>;
    type Config = CyclicConfig;
    const NAME: &'static str = "cyclic";
    const HELP: &'static str = "cyclic executive: a fixed timetable, to completion";

    fn build(_: CyclicConfig, _: &BuildContext) -> Result<Box<dyn Scheduler>, ConfigError> {
        Ok(Box::new(Cyclic::default()))
    }
}

/// Length of a frame in nanoseconds, and number of frames, for tasks of these periods. `None`
/// without periods; saturates at the maximum of `u64`.
pub fn timetable(periods: impl Iterator<Item = u64> + Clone) -> Option<(u64, u64)> {
    let frame_ns = periods.clone().filter(|&period| period != 0).reduce(gcd)?;
    let frames = periods.filter(|&period| period != 0).fold(1u64, |frames, period| {
        let period = period / frame_ns;
        (frames / gcd(frames, period)).saturating_mul(period)
    });
    Some((frame_ns, frames))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Cyclic {
    /// Frames of the timetable; none without one.
    pub fn frames(&self) -> &[Vec<usize>] {
        &self.frames
    }

    fn frame_at(&self, now: Time) -> u64 {
        now.as_nanos().saturating_add(self.lead_ns) / self.frame_ns
    }

    fn entries(&self, frame: u64) -> &[usize] {
        &self.frames[(frame % self.frames.len() as u64) as usize]
    }

    /// The next entry of frame `until` or an earlier one that has not run and is ready.
    fn next_entry(&mut self, until: u64, tasks: &[Candidate]) -> Option<usize> {
        // After a long pause one round is enough: every task is in it.
        self.skip_to(until.saturating_sub(self.frames.len() as u64));
        loop {
            let entries = &self.frames[(self.frame % self.frames.len() as u64) as usize];
            for (&task, run) in entries.iter().zip(&mut self.run) {
                if !*run && tasks.get(task).is_some_and(|task| task.ready) {
                    *run = true;
                    return Some(task);
                }
            }
            if self.frame >= until {
                return None;
            }
            self.skip_to(self.frame + 1);
        }
    }

    fn skip_to(&mut self, frame: u64) {
        if frame > self.frame {
            self.frame = frame;
            self.run.fill(false);
        }
    }
}

impl Scheduler for Cyclic {
    fn periodic(&mut self, now: Time, tasks: &[Candidate]) -> Option<usize> {
        let mut ready = tasks.iter().enumerate().filter(|(_, task)| task.ready);
        // Under `Plus` it is called at every yield: a task that has begun continues.
        let begun = ready.clone().find(|(_, task)| task.begun && task.is_periodic());
        if let Some((index, _)) = begun {
            return Some(index);
        }
        if self.frames.is_empty() {
            let waiting = ready.by_ref().filter(|(_, task)| task.is_periodic());
            return waiting.min_by_key(|(_, task)| task.since).map(|(index, _)| index);
        }
        self.next_entry(self.frame_at(now), tasks)
    }

    fn next_periodic(&self, now: Time, tasks: &[Candidate]) -> Option<Time> {
        if self.frames.is_empty() {
            return next_release(tasks);
        }
        // A task that has not run in this frame may yet be released in it.
        let frame = self.frame_at(now);
        let late = self.entries(frame).iter().enumerate().filter(|&(place, _)| {
            frame != self.frame || !self.run.get(place).is_some_and(|&run| run)
        });
        let late = late.filter_map(|(_, &task)| tasks.get(task)).filter(|task| !task.ready);
        let late = late.map(|task| task.ticket.next_release).min();
        let mut following = (frame + 1..).take(self.frames.len());
        let busy = following.find(|&frame| !self.entries(frame).is_empty())?;
        let begins = Time::from_nanos(busy.saturating_mul(self.frame_ns) - self.lead_ns);
        Some(late.map_or(begins, |late| begins.min(late.max(now))))
    }

    fn filler(&mut self, _now: Time, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        whole_filler(slack_ns, tasks)
    }

    fn decide(&mut self, now: Time, tasks: &[Candidate]) -> Decision {
        to_completion(self, now, tasks)
    }

    fn discipline(&self) -> Discipline {
        Discipline::Completion
    }

    fn order(&self) -> Order {
        Order::Timetable
    }

    fn tasks_changed(&mut self, now: Time, tasks: &[Candidate]) {
        *self = Cyclic::default();
        let mut periodic: Vec<_> = tasks
            .iter()
            .enumerate()
            .filter_map(|(index, task)| {
                let period = task.ticket.period_ns.filter(|&period| period != 0)?;
                Some((period, index, task.ticket.remaining_ns))
            })
            .collect();
        // By number among equals, as they are.
        periodic.sort_by_key(|&(period, ..)| period);
        let periods = periodic.iter().map(|&(period, ..)| period);
        let Some((frame_ns, count)) = timetable(periods) else { return };
        if count > MOST_FRAMES {
            return;
        }
        // Frames are aligned with releases, so that a task is ready when its frame begins.
        let releases = periodic.iter().map(|&(_, task, _)| tasks[task].ticket.next_release);
        let phase_ns = releases.min().map_or(0, |first| first.as_nanos() % frame_ns);
        self.lead_ns = (frame_ns - phase_ns) % frame_ns;
        self.frame_ns = frame_ns;
        // Room for somewhat more than their mean, so that few of them grow.
        let entries: u64 = periodic.iter().map(|&(period, ..)| count * frame_ns / period).sum();
        let room = (entries + entries / 2).div_ceil(count) as usize;
        self.frames = (0..count).map(|_| Vec::with_capacity(room)).collect();
        self.frame = self.frame_at(now);
        let mut load = vec![0u64; count as usize];
        for (period, task, bound_ns) in periodic {
            let step = (period / frame_ns) as usize;
            let places = |begin: usize| (begin..count as usize).step_by(step);
            let heaviest = |begin: usize| places(begin).map(|frame| load[frame]).max().unwrap_or(0);
            let begin = (0..step).min_by_key(|&begin| heaviest(begin)).unwrap_or(0);
            for frame in places(begin) {
                self.frames[frame].push(task);
                load[frame] = load[frame].saturating_add(bound_ns);
            }
        }
        let longest = self.frames.iter().map(Vec::len).max().unwrap_or(0);
        self.run = vec![false; longest];
    }
}
