//! Commands of components: found by name, prepared here, applied on the borrowed core.

use super::tasks::of_kind;
use super::{Methods, Part, other_answer};
use crate::launch::Registries;
use crate::own::Own;
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::report::Report;
use crate::request::{ComponentCall, ComponentPlace, no_method, wrong};
use picnic_core::command::{CommandEntry, CommandError, Prepared};
use picnic_core::direction::Direction;
use picnic_core::registry::{BuildContext, Entry};
use picnic_engine::swap::{Answer, Command};
use picnic_os::control::TaskControl;
use picnic_os::task::TaskId;
use serde_json::{Value, json};
use std::time::Duration;

/// Kind of a component with commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function of a chain.
    Function,
    /// A wire port.
    Wire,
    /// The host attachment.
    Attachment,
    /// The scheduler of NIC OS.
    Scheduler,
    /// A task of NIC OS.
    Task,
}

/// All components with commands: kind, name, commands.
pub fn commanded(
    registries: &Registries,
) -> impl Iterator<Item = (Kind, &'static str, &'static [CommandEntry])> + use<> {
    fn of<P>(
        kind: Kind,
        entries: &'static [Entry<P>],
    ) -> impl Iterator<Item = (Kind, &'static str, &'static [CommandEntry])> {
        let with = entries.iter().filter(|entry| !entry.commands.is_empty());
        with.map(move |entry| (kind, entry.name, entry.commands))
    }
    of(Kind::Function, registries.functions)
        .chain(of(Kind::Wire, registries.wires))
        .chain(of(Kind::Attachment, registries.attachments))
        .chain(of(Kind::Scheduler, registries.schedulers))
        .chain(of(Kind::Task, registries.tasks))
}

/// Place of a component.
enum At {
    Function(Direction, usize),
    Wire(usize),
    Attachment,
    Scheduler,
    Task(TaskId),
}

/// The meant position among these names: the given one, or the first with that name.
fn position(
    whole: &str,
    names: &[String],
    name: &str,
    wanted: Option<usize>,
) -> Result<usize, RpcError> {
    // A plugin can be named by its entry, its own name, or both.
    let is_called = |other: &str| {
        other == name || other.split_once(':').is_some_and(|(of, own)| of == name || own == name)
    };
    let is_meant = |position: usize| names.get(position).is_some_and(|other| is_called(other));
    let found = if names.is_empty() { "no function".to_owned() } else { names.join(", ") };
    match wanted {
        Some(position) if is_meant(position) => Ok(position),
        Some(position) => {
            let message =
                format!("position: found {position}, but no {name} is there; {whole} has {found}");
            Err(RpcError::new(INVALID_PARAMS, message))
        }
        None => (0..names.len())
            .find(|&position| is_meant(position))
            .ok_or_else(|| RpcError::new(REFUSED, format!("{whole} has no {name}: found {found}"))),
    }
}

impl Methods {
    /// The methods of all components in the registries.
    pub(super) fn component_methods(&self) -> impl Iterator<Item = String> + use<> {
        commanded(&self.registries).flat_map(|(_, name, commands)| {
            commands.iter().map(move |command| format!("{name}.{}", command.name))
        })
    }

    /// The component at a place.
    fn at(&mut self, kind: Kind, name: &str, place: &ComponentPlace) -> Result<At, RpcError> {
        let only = |found: &str, at: At| match found == name {
            true => Ok(at),
            false => Err(RpcError::new(REFUSED, format!("the card has no {name}: found {found}"))),
        };
        match kind {
            Kind::Function => {
                let functions = self.monitor.view.functions.of(place.chain);
                let names: Vec<_> = functions.into_iter().map(|function| function.name).collect();
                let position = position(place.chain.name(), &names, name, place.position)?;
                Ok(At::Function(place.chain, position))
            }
            Kind::Wire => {
                position("the card", &self.about.ports, name, place.position).map(At::Wire)
            }
            Kind::Attachment => only(&self.about.attachment, At::Attachment),
            Kind::Scheduler => {
                let name = self.tasks.is_some().then(|| self.scheduler_name()).transpose()?;
                only(name.as_deref().unwrap_or("no NIC OS"), At::Scheduler)
            }
            Kind::Task => {
                let lines = self.task_lines()?;
                of_kind(&lines, name, place.task.as_ref()).map(At::Task)
            }
        }
    }

    pub(super) fn component(&mut self, call: &ComponentCall) -> Result<Value, RpcError> {
        let found = commanded(&self.registries)
            .filter(|(_, name, _)| *name == call.component)
            .flat_map(|(kind, _, commands)| commands.iter().map(move |command| (kind, command)))
            .find(|(_, command)| command.name == call.command);
        let Some((kind, command)) = found else {
            let method = format!("{}.{}", call.component, call.command);
            return Err(no_method(&method, self.component_methods()));
        };
        let at = self.at(kind, &call.component, &call.place)?;
        let position = match at {
            At::Function(_, position) | At::Wire(position) => position,
            At::Attachment | At::Scheduler | At::Task(_) => 0,
        };
        let is_twice =
            matches!(at, At::Function(Direction::Rx, position) if self.is_twice(position));
        let in_kernel = self.context.in_kernel || is_twice;
        let context = BuildContext { position, in_kernel, ..self.context.clone() };
        let arguments = Value::Object(call.arguments.clone());
        let order = command.prepare(&arguments, &context).map_err(refused)?;
        let (done, order) = self.deliver(&at, order)?;
        let mut reply = command.reply(order).map_err(refused)?;
        if !done {
            // Swapped meanwhile.
            let message = format!("the component there is not {}", call.component);
            return Err(RpcError::new(REFUSED, message));
        }
        if is_twice {
            // Repeat the change that the kernel accepted.
            let order = command.prepare(&arguments, &context).map_err(refused)?;
            self.deliver_beside(position, order)
                .and_then(|order| command.reply(order).map_err(refused).map(drop))
                .map_err(|error| {
                    let message = "done in the kernel, but not in the poll engine";
                    RpcError::new(error.code, format!("{message}: {}", error.message))
                })?;
        }
        match at {
            At::Function(direction, position) => {
                reply["chain"] = direction.name().into();
                reply["position"] = position.into();
            }
            At::Wire(position) => reply["position"] = json!(position),
            At::Task(task) => reply["task"] = json!(task.0),
            At::Attachment | At::Scheduler => {}
        }
        Ok(reply)
    }

    /// Reads all functions' own counters, with a time limit for each. A function that is swapped
    /// meanwhile has none.
    pub(super) fn own_figures(
        &mut self,
        report: &mut Report,
        patience: Duration,
    ) -> Result<(), RpcError> {
        let own = Own::new(&self.registries, self.context.clone());
        own.ask(report, |direction, position, order| {
            let answer =
                self.command_within(Command::Function(direction, position, order), patience)?;
            done(answer)
        })?;
        // If both engines have a function, each counts separately.
        own.ask(report, |direction, position, order| {
            if direction == Direction::Tx || !self.is_twice(position) {
                return Ok(None);
            }
            let Some(Part { line, .. }) = &mut self.beside else { return Ok(None) };
            done(line.command(Command::Function(direction, position, order), patience)?)
        })
    }

    /// Sends an order to the poll engine's part of a function of the rx chain.
    fn deliver_beside(&mut self, position: usize, order: Prepared) -> Result<Prepared, RpcError> {
        let patience = self.patience;
        let Some(Part { line, .. }) = &mut self.beside else { return Ok(order) };
        let command = Command::Function(Direction::Rx, position, order);
        match line.command(command, patience)? {
            Answer { done: true, replaced: Command::Function(_, _, order) } => Ok(order),
            Answer { done: false, .. } => Err(RpcError::new(REFUSED, "the component refused")),
            Answer { .. } => Err(other_answer()),
        }
    }

    /// Sends an order to a component; returns whether it was done, and the order.
    fn deliver(&mut self, at: &At, order: Prepared) -> Result<(bool, Prepared), RpcError> {
        let command = match *at {
            At::Function(direction, position) => Command::Function(direction, position, order),
            At::Wire(position) => Command::Wire(position, order),
            At::Attachment => Command::Attachment(order),
            At::Task(task) => {
                return match self.order(TaskControl::Task(task, order))? {
                    (done, TaskControl::Task(_, order)) => Ok((done, order)),
                    _ => Err(other_answer()),
                };
            }
            At::Scheduler => {
                return match self.order(TaskControl::Scheduler(order))? {
                    (done, TaskControl::Scheduler(order)) => Ok((done, order)),
                    _ => Err(other_answer()),
                };
            }
        };
        let Answer { done, replaced } = self.command(command)?;
        match replaced {
            Command::Function(_, _, order) | Command::Wire(_, order) => Ok((done, order)),
            Command::Attachment(order) => Ok((done, order)),
            _ => Err(other_answer()),
        }
    }
}

/// The order of a function that has executed it.
fn done(answer: Answer) -> Result<Option<Prepared>, RpcError> {
    match answer {
        Answer { done, replaced: Command::Function(_, _, order) } => Ok(done.then_some(order)),
        Answer { .. } => Err(other_answer()),
    }
}

fn refused(error: CommandError) -> RpcError {
    match error {
        CommandError::Argument(argument) => wrong(argument),
        CommandError::Refused(message) => RpcError::new(REFUSED, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_found_by_place_or_first_name() {
        let names = ["rss", "drop", "plugin:mine", "rss"].map(String::from);
        let at = |name: &str, wanted| {
            position("rx", &names, name, wanted).map_err(|error| error.message)
        };
        assert_eq!((at("rss", None), at("rss", Some(3)), at("drop", None)), (Ok(0), Ok(3), Ok(1)));
        for name in ["plugin", "mine", "plugin:mine"] {
            assert_eq!((at(name, None), at(name, Some(2))), (Ok(2), Ok(2)), "{name}");
        }
        let found = "rss, drop, plugin:mine, rss";
        assert_eq!(at("lro", None), Err(format!("rx has no lro: found {found}")));
        let wrong =
            |place| Err(format!("position: found {place}, but no rss is there; rx has {found}"));
        assert_eq!((at("rss", Some(1)), at("rss", Some(4))), (wrong(1), wrong(4)));
        let none = position("tx", &[], "rss", None).unwrap_err();
        assert_eq!(none.message, "tx has no rss: found no function");
    }
}
