//! Policies for filling the time before the next periodic task.
//!
//! Each policy gets the ready aperiodic tasks whose next segment fits the slack.
//!
//! - `first-fit`: the highest priority, then the longest waiting. Among fitting tasks of   one
//!   priority, none is skipped.
//! - `best-fit`: the longest segment; leaves the least slack by this one choice.
//! - `lookahead`: of all sets of segments, one that leaves the least slack, within the   first
//!   tasks of the queue; of that set, the first by priority and waiting time.
//!
//! The latter two may skip a task while others fit better.
//!
//! Source: NICOS 4.6; Shmueli and Feitelson, "Backfilling with Lookahead to Optimize the Packing of
//! Parallel Jobs", JPDC 65(9), 2005.

use super::first_by_priority;
use crate::ticket::Candidate;
use schemars::JsonSchema;
use serde::Deserialize;
use std::cmp::Reverse;

/// Chooses a task for the slack.
pub trait SlackPolicy: Send {
    /// The task to run a segment, of those that are ready, aperiodic and fit `slack_ns`.
    fn choose(&mut self, slack_ns: u64, tasks: &[Candidate]) -> Option<usize>;
}

/// A policy by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// By priority, then by waiting time
    #[default]
    FirstFit,
    /// The longest segment that fits
    BestFit,
    /// One of the set of segments that leaves the least slack
    Lookahead,
}

impl Choice {
    /// All of them.
    pub const ALL: [Choice; 3] = [Choice::FirstFit, Choice::BestFit, Choice::Lookahead];

    /// Its name in card files.
    pub fn name(self) -> &'static str {
        match self {
            Choice::FirstFit => "first-fit",
            Choice::BestFit => "best-fit",
            Choice::Lookahead => "lookahead",
        }
    }

    /// The policy.
    pub fn policy(self) -> Box<dyn SlackPolicy> {
        match self {
            Choice::FirstFit => Box::new(FirstFit),
            Choice::BestFit => Box::new(BestFit),
            Choice::Lookahead => Box::new(Lookahead::default()),
        }
    }
}

fn fits(task: &Candidate, slack_ns: u64) -> bool {
    task.ticket.wcet_ns <= slack_ns
}

/// `first-fit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl SlackPolicy for FirstFit {
    fn choose(&mut self, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        first_by_priority(tasks, |task| fits(task, slack_ns))
    }
}

/// `best-fit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFit;

impl SlackPolicy for BestFit {
    fn choose(&mut self, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        let ready = tasks.iter().enumerate().filter(|(_, task)| task.ready && !task.is_periodic());
        let fitting = ready.filter(|(_, task)| fits(task, slack_ns));
        let best = fitting.max_by(|(_, a), (_, b)| {
            let by_length = a.ticket.wcet_ns.cmp(&b.ticket.wcet_ns);
            let by_priority = || a.ticket.priority.cmp(&b.ticket.priority);
            by_length.then_with(by_priority).then_with(|| b.since.cmp(&a.since))
        });
        best.map(|(index, _)| index)
    }
}

/// Number of tasks that `lookahead` considers together: the first of the queue.
pub const WINDOW: usize = 32;
/// Parts that `lookahead` divides the slack into. Segments are rounded up to whole parts.
pub const PARTS: usize = 255;

/// A set of sums, from 0 to [`PARTS`]: bit `n` means that some segments take `n` parts together.
type Sums = [u64; 4];

/// `lookahead`.
#[derive(Clone, Debug)]
pub struct Lookahead {
    /// The queue: place, priority, since, nanoseconds.
    queue: Vec<(usize, u8, u64, u64)>,
}

impl Default for Lookahead {
    fn default() -> Self {
        Lookahead { queue: Vec::with_capacity(WINDOW) }
    }
}

impl Lookahead {
    /// Puts the first [`WINDOW`] tasks that fit into the queue, in order.
    fn look(&mut self, slack_ns: u64, tasks: &[Candidate]) {
        self.queue.clear();
        for (index, task) in tasks.iter().enumerate() {
            if !task.ready || task.is_periodic() || !fits(task, slack_ns) {
                continue;
            }
            let key = (Reverse(task.ticket.priority), task.since);
            let place = self
                .queue
                .partition_point(|&(_, priority, since, _)| (Reverse(priority), since) <= key);
            if self.queue.len() == WINDOW {
                if place == WINDOW {
                    continue;
                }
                self.queue.pop();
            }
            let entry = (index, task.ticket.priority, task.since, task.ticket.wcet_ns);
            self.queue.insert(place, entry);
        }
    }
}

impl SlackPolicy for Lookahead {
    fn choose(&mut self, slack_ns: u64, tasks: &[Candidate]) -> Option<usize> {
        self.look(slack_ns, tasks);
        let first = *self.queue.first()?;
        let all: u128 = self.queue.iter().map(|&(.., wcet_ns)| u128::from(wcet_ns)).sum();
        if all <= u128::from(slack_ns) {
            return Some(first.0);
        }
        let part_ns = slack_ns.div_ceil(PARTS as u64).max(1);
        let room = (slack_ns / part_ns) as usize;
        let parts = |wcet_ns: u64| wcet_ns.div_ceil(part_ns) as usize;
        // From the end of the queue: the possible sums of the tasks from `n` on.
        let mut sums = [[0; 4]; WINDOW + 1];
        let length = self.queue.len();
        sums[length] = [1, 0, 0, 0];
        for (n, &(.., wcet_ns)) in self.queue.iter().enumerate().rev() {
            let with = shifted(&sums[n + 1], parts(wcet_ns));
            for word in 0..4 {
                sums[n][word] = sums[n + 1][word] | with[word];
            }
        }
        // A single segment may fit exactly, but not rounded up to parts.
        let best = highest(&sums[0], room).filter(|&sum| sum != 0);
        let Some(sum) = best else { return Some(first.0) };
        // The first of the queue with which that sum is still reachable.
        let chosen = self.queue.iter().enumerate().find(|&(n, &(.., wcet_ns))| {
            sum.checked_sub(parts(wcet_ns)).is_some_and(|rest| has(&sums[n + 1], rest))
        });
        chosen.map(|(_, &(index, ..))| index)
    }
}

fn has(sums: &Sums, sum: usize) -> bool {
    sums[sum / 64] >> (sum % 64) & 1 == 1
}

/// Every sum, increased by `by`; those past the end are dropped.
fn shifted(sums: &Sums, by: usize) -> Sums {
    let (words, bits) = (by / 64, by % 64);
    let mut result = [0; 4];
    for word in words..4 {
        result[word] = sums[word - words] << bits;
        if bits != 0 && word > words {
            result[word] |= sums[word - words - 1] >> (64 - bits);
        }
    }
    result
}

/// The highest sum of at most `room`.
fn highest(sums: &Sums, room: usize) -> Option<usize> {
    (0..=room.min(PARTS)).rev().find(|&sum| has(sums, sum))
}
