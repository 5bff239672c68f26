//! The life of a task: ready, waiting, invocation ended, ended.

use super::{MOST_ENDED, Os};
use crate::roster::{Ended, State, Task, VACANT};
use crate::shared::lock;
use crate::task::End;
use picnic_core::time::Time;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Os {
    pub(super) fn set_ready(&mut self, slot: usize, ready: bool) {
        let before = std::mem::replace(&mut self.candidates[slot].ready, ready);
        self.ready = self.ready + usize::from(ready) - usize::from(before);
    }

    /// The task is ready, after all ready tasks.
    pub(super) fn line_up(&mut self, slot: usize) {
        self.sequence += 1;
        self.candidates[slot].since = self.sequence;
        self.set_ready(slot, true);
    }

    /// The task waits for its release, at `ready_at`.
    pub(super) fn await_release(&mut self, slot: usize) {
        let Some(task) = &self.tasks[slot] else { return };
        let ticket = &mut self.candidates[slot].ticket;
        task.stamp(ticket, &self.path);
        if !task.suspended {
            ticket.next_release = task.ready_at;
            ticket.next_deadline = task.ready_at + task.period_ns.unwrap_or(0);
            self.timers.set(slot, task.ready_at);
        }
    }

    /// The event that the task waited for has come, at `at`.
    pub(super) fn make_ready(&mut self, slot: usize, at: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        let begins = match task.state {
            // A release, or a wake ahead of one: then the task checks and waits again.
            State::Release => at >= task.ready_at,
            State::Waiting => task.period_ns.is_none(),
            _ => return,
        };
        if begins {
            task.cell.begin_invocation();
            task.counters.invocations.add(1);
            (task.open, task.begun) = (true, false);
            if task.period_ns.is_none() {
                task.ready_at = at;
            }
        }
        task.state = State::Ready;
        self.candidates[slot].begun = task.begun;
        self.timers.clear(slot);
        let Some(task) = &self.tasks[slot] else { return };
        if !task.suspended {
            self.candidates[slot].ticket.next_release = task.ready_at;
            self.line_up(slot);
        }
    }

    /// Ends a task and releases everything it has.
    pub(super) fn end(&mut self, slot: usize, end: End) {
        let Some(task) = self.tasks[slot].take() else { return };
        task.cell.end();
        self.timers.clear(slot);
        self.set_ready(slot, false);
        let priority = self.candidates[slot].ticket.priority;
        self.candidates[slot] = VACANT;
        self.changed = true;
        let Task { cell, future, charge, name, kind, bounds_from, period_ns, .. } = task;
        let (counters, times) = (task.counters, task.times);
        // Dropping the body's values may panic, too.
        if catch_unwind(AssertUnwindSafe(|| drop(future))).is_err() || end == End::Panicked {
            self.counters.panics.add(1);
        }
        drop(charge);
        lock(&self.shared.memory).release_all(cell.id);
        self.shared.installed.take(cell.id, &mut self.orphans);
        self.remove_orphans();
        if self.ended.len() == MOST_ENDED {
            self.ended.remove(0);
        }
        let state = end.into();
        let id = cell.id;
        self.ended.push(Ended {
            id,
            name,
            kind,
            bounds_from,
            period_ns,
            priority,
            state,
            counters,
            times,
        });
    }

    /// Removes the filters of ended tasks; again next time if another thread changes filters at
    /// this moment.
    pub(super) fn remove_orphans(&mut self) {
        if !self.orphans.is_empty() {
            self.shared.installed.remove(&mut self.orphans);
            if !self.orphans.is_empty() {
                self.shared.attention.raise_here();
            }
        }
    }

    /// The task waits: for its release, for a time, for an event. Returns whether its invocation is
    /// over.
    pub(super) fn pause(&mut self, slot: usize, awaits_release: bool) -> bool {
        self.set_ready(slot, false);
        let Some(task) = &mut self.tasks[slot] else { return false };
        let candidate = &mut self.candidates[slot];
        let until = task.cell.until();
        if awaits_release {
            let completes = std::mem::replace(&mut task.open, false);
            candidate.begun = false;
            task.state = State::Release;
            if !completes {
                // Woken ahead of its release, which it still waits for.
                self.await_release(slot);
            }
            return completes;
        }
        task.state = State::Waiting;
        if until != Time::MAX {
            self.timers.set(slot, until);
        }
        let ticket = &mut candidate.ticket;
        task.stamp(ticket, &self.path);
        // A periodic task that waits in mid-invocation is due again when the wait ends, if
        // known.
        ticket.next_release = until;
        if task.period_ns.is_some() {
            return false;
        }
        candidate.begun = false;
        std::mem::replace(&mut task.open, false)
    }

    /// The task's invocation ended at `now`.
    pub(super) fn complete(&mut self, slot: usize, now: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        task.counters.completed.add(1);
        task.times.response.record(now.since(task.ready_at));
        let Some(period_ns) = task.period_ns else { return };
        let next = task.ready_at + period_ns;
        if now > next {
            task.counters.deadline_misses.add(1);
        }
        // Also for releases whose own deadlines have passed.
        let skipped = now.since(next) / period_ns;
        if skipped != 0 {
            task.counters.deadline_misses.add(skipped);
            task.counters.releases_skipped.add(skipped);
        }
        task.ready_at = next + skipped * period_ns;
        if task.state == State::Release {
            self.await_release(slot);
        }
    }

    /// The task's next invocation begins at `now`, without waiting.
    pub(super) fn begin_again(&mut self, slot: usize, now: Time) {
        let Some(task) = &mut self.tasks[slot] else { return };
        task.counters.invocations.add(1);
        task.ready_at = now;
        if !task.suspended {
            self.candidates[slot].ticket.next_release = now;
        }
    }
}
