//! The resident of the borrowed core: when it gets a turn, and its turn.

use super::{Activity, Card, Phase};
use picnic_core::command::Prepared;
use picnic_core::resident::{self, Attention, Turn};
use picnic_core::time::Time;
use std::sync::Arc;

/// The resident of the borrowed core, and its deadlines.
pub(crate) struct Resident {
    pub(super) inner: Box<dyn resident::Resident>,
    pub(super) attention: Arc<Attention>,
    /// Time of its next turn; `Time::MAX` if not by time.
    pub(super) due: Time,
    /// End of its patience while its turn is due: packets are left at the wires.
    waits_until: Option<Time>,
}

impl Resident {
    pub(crate) fn new(inner: Box<dyn resident::Resident>) -> Self {
        let attention = inner.attention().clone();
        Resident { inner, attention, due: Time::ZERO, waits_until: None }
    }

    /// Passes an order to it; false if the order is not for it.
    pub(crate) fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        // The order may give it something to run.
        self.attention.raise_here();
        self.inner.obey(order, now)
    }

    #[inline(always)]
    pub(super) fn is_due(&self, now: Time) -> bool {
        now >= self.due || self.attention.is_raised()
    }

    /// Whether its due turn may be next: packets go first until its patience ends.
    #[cold]
    pub(super) fn may_go(&mut self, now: Time, is_behind: bool) -> bool {
        if is_behind {
            let patience_ns = self.inner.patience_ns();
            if now < *self.waits_until.get_or_insert(now + patience_ns) {
                return false;
            }
        }
        self.waits_until = None;
        true
    }
}

impl Card {
    /// The resident's turn; or the end of its last one, in which case packets go next.
    #[cold]
    pub(super) fn resident_turn(&mut self, now: Time) -> Option<Activity> {
        let phase = std::mem::replace(&mut self.phase, Phase::Packets);
        let resident = self.resident.as_mut()?;
        if phase == Phase::Ended {
            resident.due = resident.inner.ended(now).unwrap_or(Time::MAX);
            return None;
        }
        resident.attention.lower();
        let mut activity = Activity::default();
        match resident.inner.turn(now, &mut self.doors) {
            Turn::Ran(segment) => {
                activity.segment = Some(segment);
                self.phase = Phase::Ended;
            }
            Turn::Idle(due) => resident.due = due.unwrap_or(Time::MAX),
        }
        Some(activity)
    }

    /// When its next turn is due, if any.
    pub(super) fn resident_deadline(&self, now: Time) -> Option<Time> {
        let resident = self.resident.as_ref()?;
        if self.phase != Phase::Packets || resident.attention.is_raised() {
            return Some(now);
        }
        (resident.due != Time::MAX).then_some(resident.due)
    }

    /// Ends the resident: it releases every packet and gets no more turns.
    pub(super) fn stop_resident(&mut self, now: Time) {
        let Some(resident) = &mut self.resident else { return };
        if std::mem::replace(&mut self.phase, Phase::Packets) == Phase::Ended {
            resident.inner.ended(now);
        }
        resident.inner.stop(now, &mut self.doors);
        resident.attention.lower();
        resident.due = Time::MAX;
        let published = self.doors.publish(now);
        self.check(0, published);
    }
}
