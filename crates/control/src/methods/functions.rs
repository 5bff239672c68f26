//! The commands of functions: found by the function's name, prepared here, applied there.

use super::{Methods, other_answer};
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::request::{FunctionCall, FunctionPlace, no_method, wrong};
use picnic_core::command::CommandError;
use picnic_core::direction::Direction;
use picnic_core::registry::BuildContext;
use picnic_engine::swap::Command;
use serde_json::Value;

impl Methods {
    /// The methods of all functions that card files can name.
    pub(super) fn function_methods(&self) -> impl Iterator<Item = String> {
        let commands = |entry: &picnic_core::registry::Entry<_>| {
            let name = entry.name;
            entry.commands.iter().map(move |command| format!("{name}.{}", command.name))
        };
        self.components.functions.iter().flat_map(commands)
    }

    /// Where the function stands that a place means.
    fn function_at(
        &self,
        name: &str,
        place: &FunctionPlace,
    ) -> Result<(Direction, usize), RpcError> {
        let direction = place.chain;
        let functions = self.monitor.view.functions.of(direction);
        let is_meant =
            |position: usize| functions.get(position).is_some_and(|function| function.name == name);
        let chain = direction.name();
        let names = || match functions.is_empty() {
            true => "no function".to_owned(),
            false => {
                let names: Vec<_> = functions.iter().map(|function| &*function.name).collect();
                names.join(", ")
            }
        };
        match place.position {
            Some(position) if is_meant(position) => Ok((direction, position)),
            Some(position) => {
                let message = format!(
                    "position: found {position}, but no {name} is there; {chain} has {}",
                    names()
                );
                Err(RpcError::new(INVALID_PARAMS, message))
            }
            None => (0..functions.len()).find(|&position| is_meant(position)).map_or_else(
                || {
                    let message = format!("{chain} has no {name}: found {}", names());
                    Err(RpcError::new(REFUSED, message))
                },
                |position| Ok((direction, position)),
            ),
        }
    }

    pub(super) fn function(&mut self, call: &FunctionCall) -> Result<Value, RpcError> {
        let entries = self.components.functions.iter();
        let mut commands = entries
            .filter(|entry| entry.name == call.function)
            .flat_map(|entry| entry.commands)
            .filter(|command| command.name == call.command);
        let Some(command) = commands.next() else {
            let method = format!("{}.{}", call.function, call.command);
            return Err(no_method(&method, self.function_methods()));
        };
        let (direction, position) = self.function_at(&call.function, &call.place)?;
        let context = BuildContext { position, ..self.context.clone() };
        let arguments = Value::Object(call.arguments.clone());
        let order = command.prepare(&arguments, &context).map_err(refused)?;
        let answer = self.command(Command::Function(direction, position, order))?;
        let Command::Function(_, _, order) = answer.replaced else { return Err(other_answer()) };
        let mut reply = command.reply(order).map_err(refused)?;
        if !answer.done {
            // Swapped meanwhile.
            let message = format!("the function there is no {}", call.function);
            return Err(RpcError::new(REFUSED, message));
        }
        reply["chain"] = direction.name().into();
        reply["position"] = position.into();
        Ok(reply)
    }
}

fn refused(error: CommandError) -> RpcError {
    match error {
        CommandError::Argument(argument) => wrong(argument),
        CommandError::Refused(message) => RpcError::new(REFUSED, message),
    }
}
