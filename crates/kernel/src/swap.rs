//! Replaces a card's rx chain while packets flow.
//!
//! The new chain is loaded next to the old one, shares the card's maps (rings, filters, ways), and
//! is activated by link update. Slow and fallible steps come first.

use crate::attached::Attached;
use crate::counters::Taken;
use crate::hybrid::{self, Sums};
use crate::live::{Live, functions};
use crate::object::{Object, SharedMaps, settle};
use crate::plan::{Plan, of_engine, steps};
use crate::rules::Rules;
use picnic_control::SwapRx;
use picnic_control::error::RunError;
use picnic_core::config::Section;
use picnic_core::function::Function;
use picnic_core::registry::{BuildContext, Entry};
use picnic_forms::Handover;
use picnic_machine::error::MachineError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A running card, shared by those who change it; none after it has stopped.
pub(crate) struct Card {
    pub(crate) attached: Attached,
    pub(crate) live: Live,
    pub(crate) rules: Rules,
    /// The poll engine's counters, if it takes part.
    pub(crate) sums: Option<Sums>,
}

impl Card {
    /// Copies the programs' counts to the card's counters. Packets on their way to the poll engine
    /// are returned separately.
    pub(crate) fn take(&self) -> (Taken, u64) {
        let take = || self.attached.counters.take(&self.attached.view);
        self.sums.as_ref().map_or_else(|| (take(), 0), |sums| sums.take(take))
    }
}

/// A panicking user held it for at most one change: its state is consistent.
pub(crate) fn lock_card(card: &Mutex<Option<Card>>) -> MutexGuard<'_, Option<Card>> {
    card.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the chain of a card.
pub(crate) struct Swapper {
    pub(crate) card: Arc<Mutex<Option<Card>>>,
    /// Plan of the current chain.
    pub(crate) plan: Plan,
    pub(crate) cores: Vec<usize>,
    pub(crate) shared: SharedMaps,
    pub(crate) functions: &'static [Entry<Box<dyn Function>>],
}

impl SwapRx for Swapper {
    fn swap(
        &mut self,
        sections: &[Section],
        base: &BuildContext,
        exchange: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<Vec<usize>, RunError> {
        let base = &BuildContext { in_kernel: true, ..base.clone() };
        let is_hybrid = self.plan.is_hybrid;
        let steps = steps(self.functions, sections, base, self.plan.handover)
            .map_err(|error| of_engine(is_hybrid, error))?;
        let plan = self.plan.with(steps);
        let mut object = Object::load_beside(&plan, &self.cores, false, Some(&self.shared))?;
        for (_, number) in plan.wires.iter().zip(plan.programs()) {
            match plan.handover {
                Handover::Cpumap => object.wire(number).map(drop)?,
                Handover::Skb => object.tc(&format!("steer_{number}")).map(drop)?,
            }
        }
        let (tables, users) = (object.tables(&plan)?, object.take_users());
        let functions = functions(self.functions, sections, base, users)?;
        exchange()?;
        let swapped = match lock_card(&self.card).as_mut() {
            Some(Card { attached, live, sums, .. }) => attached.swap(&plan, object).map(|()| {
                live.replace(functions, tables);
                sums.iter_mut().for_each(|sums| sums.put(&plan));
            }),
            None => Err(MachineError::Refused("the card has stopped".into()).into()),
        };
        if let Err(error) = swapped {
            return Err(exchange().err().unwrap_or(error));
        }
        let alone = hybrid::alone(&plan);
        self.plan = plan;
        settle();
        if let Some(card) = lock_card(&self.card).as_mut() {
            card.attached.settle();
        }
        Ok(alone)
    }
}
