//! The commands of components: found by the component's name, prepared here, applied there.

use super::{Methods, other_answer};
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::request::{ComponentCall, ComponentPlace, no_method, wrong};
use picnic_core::command::{CommandEntry, CommandError, Prepared};
use picnic_core::direction::Direction;
use picnic_core::registry::{BuildContext, Entry};
use picnic_engine::build::Components;
use picnic_engine::swap::{Answer, Command};
use picnic_os::control::TaskControl;
use picnic_os::schedulers::registry::SCHEDULERS;
use serde_json::{Value, json};

/// What a component with commands is.
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
}

/// Components with commands: what each is, its name, its commands. THE WAY to all of them.
pub fn commanded(
    components: &Components,
) -> impl Iterator<Item = (Kind, &'static str, &'static [CommandEntry])> + use<> {
    fn of<P>(
        kind: Kind,
        entries: &'static [Entry<P>],
    ) -> impl Iterator<Item = (Kind, &'static str, &'static [CommandEntry])> {
        let with = entries.iter().filter(|entry| !entry.commands.is_empty());
        with.map(move |entry| (kind, entry.name, entry.commands))
    }
    of(Kind::Function, components.functions)
        .chain(of(Kind::Wire, components.wires))
        .chain(of(Kind::Attachment, components.attachments))
        .chain(of(Kind::Scheduler, SCHEDULERS))
}

/// Where a component is.
enum At {
    Function(Direction, usize),
    Wire(usize),
    Attachment,
    Scheduler,
}

/// The place that is meant, among these names: the one given, or the first of that name.
fn position(
    whole: &str,
    names: &[String],
    name: &str,
    wanted: Option<usize>,
) -> Result<usize, RpcError> {
    // A plugin goes by its entry's name, by its own, or by both.
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
    /// The methods of all components that card files can name.
    pub(super) fn component_methods(&self) -> impl Iterator<Item = String> + use<> {
        commanded(&self.components).flat_map(|(_, name, commands)| {
            commands.iter().map(move |command| format!("{name}.{}", command.name))
        })
    }

    /// Where the component is that a place means.
    fn at(&self, kind: Kind, name: &str, place: &ComponentPlace) -> Result<At, RpcError> {
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
                only(self.about.scheduler.as_deref().unwrap_or("no NIC OS"), At::Scheduler)
            }
        }
    }

    pub(super) fn component(&mut self, call: &ComponentCall) -> Result<Value, RpcError> {
        let found = commanded(&self.components)
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
            At::Attachment | At::Scheduler => 0,
        };
        let context = BuildContext { position, ..self.context.clone() };
        let arguments = Value::Object(call.arguments.clone());
        let order = command.prepare(&arguments, &context).map_err(refused)?;
        let (done, order) = self.deliver(&at, order)?;
        let mut reply = command.reply(order).map_err(refused)?;
        if !done {
            // Swapped meanwhile.
            let message = format!("what is there is no {}", call.component);
            return Err(RpcError::new(REFUSED, message));
        }
        match at {
            At::Function(direction, position) => {
                reply["chain"] = direction.name().into();
                reply["position"] = position.into();
            }
            At::Wire(position) => reply["position"] = json!(position),
            At::Attachment | At::Scheduler => {}
        }
        Ok(reply)
    }

    /// Has a component obey an order; whether it was done, and the order.
    fn deliver(&mut self, at: &At, order: Prepared) -> Result<(bool, Prepared), RpcError> {
        let command = match *at {
            At::Function(direction, position) => Command::Function(direction, position, order),
            At::Wire(position) => Command::Wire(position, order),
            At::Attachment => Command::Attachment(order),
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

fn refused(error: CommandError) -> RpcError {
    match error {
        CommandError::Argument(argument) => wrong(argument),
        CommandError::Refused(message) => RpcError::new(REFUSED, message),
    }
}
