//! Commands of functions while the card runs: obeyed by a stand-in, then brought into the maps.
//!
//! Functions with commands are built as for the poll engine, but see no packets: they obey orders
//! and say how they then stand ([`Function::kernel_form`]).
//!
//! Guarantees: what is replaced comes back with the answer, as from the poll engine; a change is in
//! force for all packets at once, and none is lost over it.

use crate::object::{SETTLE, Tables};
use picnic_control::Launch;
use picnic_core::command::Prepared;
use picnic_core::direction::Direction;
use picnic_core::doorbell::Doorbell;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{KernelCounts, KernelForm};
use picnic_core::registry::{BuildContext, find};
use picnic_core::ring::gate::Gate;
use picnic_core::time::Time;
use picnic_engine::build::context;
use picnic_engine::swap::{Answer, Command, Controller, Mailbox, channel};
use picnic_engine::view::View;
use std::sync::Arc;

/// The functions of a chain, those with commands, and what they change.
pub(crate) struct Live {
    mailbox: Mailbox,
    functions: Vec<Option<Box<dyn Function>>>,
    tables: Tables,
}

/// Who looks into the mailbox does so by the clock.
struct Silent;

impl Doorbell for Silent {
    fn ring(&self) {}
}

impl Live {
    pub(crate) fn new(
        launch: &Launch<'_>,
        view: &View,
        tables: Tables,
    ) -> Result<(Self, Controller), ConfigError> {
        let base = context(launch.file);
        let functions = launch.file.rx.iter().enumerate().map(|(position, section)| {
            let entry = find(launch.registries.functions, section)?;
            if entry.in_kernel().commands.is_empty() {
                return Ok(None);
            }
            entry.build(section, &BuildContext { position, ..base.clone() }).map(Some)
        });
        let functions = functions.collect::<Result<_, ConfigError>>()?;
        let (controller, mailbox) =
            channel(Arc::new(Gate::new()), Arc::new(Silent), view.functions.clone());
        Ok((Live { mailbox, functions, tables }, controller))
    }

    /// Obeys the commands that wait.
    pub(crate) fn obey(&mut self) {
        while let Some(command) = self.mailbox.next_command() {
            let answer = match command {
                Command::Function(Direction::Rx, position, order) => self.tell(position, order),
                command => command.refused(),
            };
            self.mailbox.answer(answer);
        }
    }

    fn tell(&mut self, position: usize, mut order: Prepared) -> Answer {
        let mut done = false;
        if let Some(Some(function)) = self.functions.get_mut(position) {
            let before = function.kernel_form();
            done = function.obey(&mut order, Time::ZERO);
            let form = function.kernel_form();
            if let Some(KernelForm::ByHash(by_hash)) =
                form.filter(|form| before.as_ref() != Some(form))
            {
                // The map that is written next was in force before the last change.
                std::thread::sleep(SETTLE);
                done &= self.tables.set(&by_hash).is_ok();
            }
        }
        Answer { done, replaced: Command::Function(Direction::Rx, position, order) }
    }

    /// Tells functions what has been counted for them.
    pub(crate) fn note(&mut self, counts: &KernelCounts) {
        self.functions.iter_mut().flatten().for_each(|function| function.note_kernel(counts));
    }
}
