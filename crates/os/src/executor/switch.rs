//! Another scheduler while tasks run.
//!
//! Guarantees: no release is lost or doubled, since releases belong to the executor; tasks keep their
//! invocations and tickets. A set that the new scheduler cannot schedule is refused, with the
//! arithmetic. If both schedulers promise deadlines, the new one begins when no periodic task is due
//! or has begun: then all invocations so far were the old one's, all later ones are the new one's,
//! and each keeps its promise. Otherwise it begins at once. A task that waits in the middle of an
//! invocation holds it up until its deadline: after that, nothing is promised to that task.
//!
//! Source: Tindell and Alonso, "A Very Simple Protocol for Mode Changes in Priority Preemptive
//! Systems", 1996, for the change at an idle instant.

use super::Os;
use crate::admission::Order;
use crate::keys::Admission;
use crate::schedulers::Scheduler;
use picnic_core::time::Time;
use std::fmt;
use std::sync::Arc;

/// A scheduler by its name.
pub struct Named {
    /// As card files name it.
    pub name: Arc<str>,
    /// The scheduler.
    pub scheduler: Box<dyn Scheduler>,
}

/// The schedulers of a NIC OS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedules {
    /// The deciding scheduler.
    pub name: Arc<str>,
    /// The next scheduler, which takes over once no periodic task is due or has begun.
    pub next: Option<Arc<str>>,
}

/// An order to replace the scheduler, or only to say which there is.
#[derive(Debug, Default)]
pub struct Switch {
    /// The new scheduler, which is taken out; replaced ones are put in, to be freed by the sender.
    pub schedulers: Vec<Named>,
    /// The schedulers then, or why the new one was refused.
    pub result: Option<Result<Schedules, String>>,
}

impl Switch {
    /// An order to replace the scheduler.
    pub fn to(name: impl Into<Arc<str>>, scheduler: Box<dyn Scheduler>) -> Self {
        // Replaced schedulers: the current, a waiting one, and one replaced earlier.
        let mut schedulers = Vec::with_capacity(4);
        schedulers.push(Named { name: name.into(), scheduler });
        Switch { schedulers, result: None }
    }

    /// An order to say which scheduler there is.
    pub fn question() -> Self {
        Switch { schedulers: Vec::with_capacity(4), result: None }
    }
}

impl Os {
    /// Applies an order; false if it was refused.
    pub(crate) fn switch(&mut self, order: &mut Switch, now: Time) -> bool {
        let result = match order.schedulers.pop() {
            Some(new) => self.switch_to(new, order, now),
            None => Ok(()),
        };
        order.schedulers.extend(self.retired.take());
        let next = self.next_scheduler.as_ref().map(|next| next.name.clone());
        let schedules = Schedules { name: self.scheduler_name.clone(), next };
        order.result.insert(result.map(|()| schedules)).is_ok()
    }

    fn switch_to(&mut self, new: Named, order: &mut Switch, now: Time) -> Result<(), String> {
        if self.stopped {
            order.schedulers.push(new);
            return Err("NIC OS has stopped".into());
        }
        let (kind, discipline) = (new.scheduler.order(), new.scheduler.discipline());
        let judged = self.judge(&[], kind, discipline);
        if let Err(refusal) = judged {
            if self.admission == Admission::Refuse {
                order.schedulers.push(new);
                return Err(refusal.to_string());
            }
            self.override_admission(&refusal);
        }
        order.schedulers.extend(self.next_scheduler.replace(new));
        self.switch_if_idle(now);
        Ok(())
    }

    /// Lets the next scheduler begin if it may.
    pub(super) fn switch_if_idle(&mut self, now: Time) {
        self.switch_by = None;
        let Some(next) = &self.next_scheduler else { return };
        let promises = |order| order != Order::Other;
        let keeps = promises(self.scheduler.order())
            && promises(next.scheduler.order())
            && self.counters.overridden.get() == 0;
        // Until when it holds up the next scheduler: a task that waits, until its deadline.
        let is_due_until = |slot: usize| {
            let task = self.tasks[slot].as_ref().filter(|task| !task.suspended)?;
            let deadline = task.ready_at + task.period_ns?;
            let candidate = &self.candidates[slot];
            // Also one whose release has come, and is not handled yet.
            let runs = candidate.ready || candidate.ticket.next_release <= now;
            let waits = task.open && now <= deadline;
            (runs || waits).then_some(if runs { Time::MAX } else { deadline + 1 })
        };
        let due = || (0..self.tasks.len()).filter_map(is_due_until);
        if keeps && due().next().is_some() {
            // All that run end, and then there is another turn.
            self.switch_by = due().max().filter(|&by| by != Time::MAX);
            return;
        }
        let Some(Named { name, scheduler }) = self.next_scheduler.take() else { return };
        let name = std::mem::replace(&mut self.scheduler_name, name);
        let scheduler = std::mem::replace(&mut self.scheduler, scheduler);
        self.retired = Some(Named { name, scheduler });
        // The new scheduler judges a task that has begun by the rest of its invocation.
        self.candidates.iter_mut().for_each(|candidate| candidate.begun = false);
        self.changed = true;
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("name", &self.name).finish_non_exhaustive()
    }
}
