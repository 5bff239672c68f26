//! Commands of functions while the card runs: a stand-in handles them, then the maps are updated.
//!
//! Functions with commands are built as for the poll engine, but get no packets: they handle orders
//! and report their resulting state ([`Function::kernel_form`]).
//!
//! Guarantees: replaced parts return with the answer, as from the poll engine; a change takes
//! effect for all packets at once, without loss.

use crate::objects::XdpObject;
use crate::plan::base;
use crate::tables::Tables;
use picnic_control::Launch;
use picnic_core::command::Prepared;
use picnic_core::config::Section;
use picnic_core::direction::Direction;
use picnic_core::doorbell::NoDoorbell;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::KernelCounts;
use picnic_core::registry::{BuildContext, Entry, find};
use picnic_core::ring::gate::Gate;
use picnic_core::time::Time;
use picnic_engine::swap::{Answer, Command, Controller, Mailbox, channel};
use picnic_engine::view::View;
use picnic_forms::KernelForm;
use std::sync::Arc;

/// The functions of a chain with commands, and the maps they change.
pub(crate) struct Live {
    mailbox: Mailbox,
    functions: StandIns,
    /// Counts of each.
    counts: Vec<KernelCounts>,
    tables: Tables,
}

/// Stand-ins for functions in the kernel, by position.
pub(crate) type StandIns = Vec<Option<Box<dyn Function>>>;

/// Makes them, for a chain whose objects are loaded.
pub(crate) fn functions(
    registry: &'static [Entry<Box<dyn Function>>],
    sections: &[Section],
    base: &BuildContext,
    users: Vec<(usize, XdpObject)>,
) -> Result<StandIns, ConfigError> {
    let mut users = users.into_iter().peekable();
    let functions = sections.iter().enumerate().map(|(position, section)| {
        if let Some((_, user)) = users.next_if(|(step, _)| *step == position) {
            return Ok(Some(Box::new(user) as Box<dyn Function>));
        }
        let entry = find(registry, section)?;
        if entry.in_kernel().commands.is_empty() {
            return Ok(None);
        }
        entry.build(section, &BuildContext { position, ..base.clone() }).map(Some)
    });
    functions.collect()
}

impl Live {
    pub(crate) fn new(
        launch: &Launch<'_>,
        view: &View,
        tables: Tables,
        users: Vec<(usize, XdpObject)>,
    ) -> Result<(Self, Controller), ConfigError> {
        let functions =
            functions(launch.registries.functions, &launch.file.rx, &base(launch.file), users)?;
        let counts = vec![KernelCounts::default(); functions.len()];
        let (controller, mailbox) =
            channel(Arc::new(Gate::new()), Arc::new(NoDoorbell), view.functions.clone());
        Ok((Live { mailbox, functions, counts, tables }, controller))
    }

    /// Replaces the functions with the ones of another chain.
    pub(crate) fn replace(&mut self, functions: StandIns, tables: Tables) {
        self.counts = vec![KernelCounts::default(); functions.len()];
        (self.functions, self.tables) = (functions, tables);
    }

    /// Handles waiting commands.
    pub(crate) fn obey(&mut self) {
        while let Some(command) = self.mailbox.next_command() {
            let answer = match command {
                Command::Function(Direction::Rx, position, mut order) => {
                    let done = self.tell(position, &mut order);
                    Answer { done, replaced: Command::Function(Direction::Rx, position, order) }
                }
                command => command.refused(),
            };
            self.mailbox.answer(answer);
        }
    }

    /// Sends an order to the function at a position; false if it is for another, or failed.
    pub(crate) fn tell(&mut self, position: usize, order: &mut Prepared) -> bool {
        let Self { functions, tables, counts, .. } = self;
        let mut done = false;
        if let Some(Some(function)) = functions.get_mut(position) {
            let counts = &mut counts[position];
            let form_of = |function: &dyn Function| function.kernel_form()?.open::<KernelForm>();
            let before = form_of(&**function);
            if let Some(KernelForm::ByRules { .. }) = before {
                counts.rules = tables.flows.take().unwrap_or_default();
                function.note_kernel(counts);
            }
            done = function.obey(order, Time::ZERO);
            let form = form_of(&**function);
            if let Some(form) = form.filter(|form| before.as_ref() != Some(form)) {
                let set = tables.set(&form);
                done &= set.is_ok();
                counts.rules = set.unwrap_or_default();
                function.note_kernel(counts);
            }
            counts.rules.clear();
        }
        done
    }

    /// Passes the counts to the functions.
    pub(crate) fn note(&mut self, counts: Vec<KernelCounts>) {
        for ((function, noted), counts) in
            self.functions.iter_mut().zip(&mut self.counts).zip(counts)
        {
            *noted = counts;
            if let Some(function) = function {
                function.note_kernel(noted);
            }
        }
    }
}
