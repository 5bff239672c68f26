//! `chain.*`: lists the functions of both chains, and replaces them.

use super::{Methods, Part};
use crate::error::RunError;
use crate::monitor::function_reports;
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::report::FunctionReport;
use crate::request::Swap;
use picnic_core::config::{CardFile, Section};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, find};
use picnic_engine::build::{BuildError, links};
use picnic_engine::chain::ChainFunction;
use picnic_engine::swap::{Answer, Command};
use picnic_machine::error::MachineError;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

impl Methods {
    pub(super) fn chains(&self) -> Value {
        let mut lists = Map::new();
        for direction in Direction::ALL {
            let reports = function_reports(&self.monitor.view, direction).into_iter().enumerate();
            let list = reports.map(|(position, report)| {
                json!({
                    "position": position,
                    "function": report.name,
                    "packets": report.packets,
                    "dropped": report.dropped,
                })
            });
            lists.insert(direction.name().into(), list.collect());
        }
        Value::Object(lists)
    }

    pub(super) fn swap(&mut self, swap: &Swap) -> Result<Value, RpcError> {
        let direction = swap.chain;
        let chain = direction.name();
        let text = match (&swap.toml, &swap.functions) {
            (Some(text), _) => text.clone(),
            (None, functions) => as_toml(swap.chain, functions.as_deref().unwrap_or_default())?,
        };
        let path = swap.file.as_deref();
        let file = self.sections.parse(&text, path).map_err(config_error)?;
        if !file.has(chain) {
            let message = format!("found none, allowed: sections [[{chain}]], or {chain} = []");
            return Err(config_error(file.locate(ConfigError::new(chain, message))));
        }
        let directory = match path {
            Some(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            None => self.context.directory.clone(),
        };
        self.swap_to(&file, direction, directory)
    }

    /// Replaces the card's functions with the functions of a card file's chain.
    pub(crate) fn swap_for(
        &mut self,
        file: &CardFile,
        direction: Direction,
    ) -> Result<Value, RpcError> {
        self.swap_to(file, direction, file.directory.clone())
    }

    fn swap_to(
        &mut self,
        file: &CardFile,
        direction: Direction,
        directory: PathBuf,
    ) -> Result<Value, RpcError> {
        let sections = if direction == Direction::Rx { &file.rx } else { &file.tx };
        let context = BuildContext { directory, ..self.context.clone() };
        let loads =
            |section| find(self.registries.functions, section).is_ok_and(|it| it.loads_code);
        if !picnic_confine::may_load()
            && let Some(section) = sections.iter().find(|section| loads(section))
        {
            let message = "a card started without a plugin cannot load one: name one in its \
                           file, or start it with --watch";
            return Err(config_error(section.locate(ConfigError::new("plugin", message))));
        }
        let before: Vec<_> = function_reports(&self.monitor.view, direction);
        if let (Some(_), None, Direction::Tx) = (&self.swap_rx, &self.beside, direction) {
            let why = self.fixed.unwrap_or("this engine has no tx chain");
            return Err(RpcError::new(REFUSED, why));
        }
        let has_links = self.swap_rx.is_none() || self.beside.is_some();
        let links = match has_links {
            true => {
                links(sections, direction, &self.registries.components(), &context, &self.hooks)
                    .map_err(config_error)?
            }
            false => Vec::new(),
        };
        if direction == Direction::Rx && self.swap_rx.is_some() {
            self.swap_rx(sections, &context, links)?;
        } else {
            // The replaced functions end here.
            drop(self.command(Command::Swap(direction, links))?);
            if let Some(part) = &self.beside {
                self.monitor.view.functions.replace(direction, part.functions.of(direction));
            }
        }
        Ok(self.swapped(direction, before))
    }

    /// Lets an engine swap its chain itself, with these functions for the poll engine's part.
    fn swap_rx(
        &mut self,
        sections: &[Section],
        context: &BuildContext,
        mut links: Vec<ChainFunction>,
    ) -> Result<(), RpcError> {
        let (patience, mut code) = (self.patience, REFUSED);
        let Some(swap_rx) = &mut self.swap_rx else { return Ok(()) };
        let (mut part, mut is_back) = (self.beside.as_mut(), false);
        let mut exchange = || {
            let Some(Part { line, .. }) = &mut part else { return Ok(()) };
            let next = std::mem::take(&mut links);
            // A restored chain also holds in the kernel, and may be answered late.
            let result = match std::mem::replace(&mut is_back, true) {
                true => line.command(Command::Swap(Direction::Rx, next), patience),
                false => line.half_of_swap(next, patience),
            };
            let message = match result {
                Ok(Answer { done: true, replaced: Command::Swap(_, replaced) }) => {
                    links = replaced;
                    return Ok(());
                }
                Ok(_) => "the poll engine refused its part".into(),
                Err(error) => {
                    code = error.code;
                    format!("{}: swap again when it does", error.message)
                }
            };
            Err(MachineError::Refused(message).into())
        };
        let swapped = swap_rx.swap(sections, context, &mut exchange);
        let alone = swapped.map_err(|error| match error {
            RunError::Build(BuildError::Config(error)) => config_error(error),
            error => RpcError::new(code, error.to_string()),
        })?;
        if let Some(part) = &mut self.beside {
            part.alone = alone;
        }
        Ok(())
    }

    /// The replacement of these functions.
    fn swapped(&self, direction: Direction, before: Vec<FunctionReport>) -> Value {
        let functions = self.monitor.view.functions.of(direction).into_iter();
        let functions: Vec<_> = functions.map(|function| function.name).collect();
        json!({ "chain": direction.name(), "functions": functions, "replaced": before })
    }
}

/// The error of a card file, with its place as data.
fn config_error(error: ConfigError) -> RpcError {
    let file = error.file.as_ref().map(|file| file.display().to_string());
    let line = (error.line != 0).then_some(error.line);
    let data = json!({ "file": file, "line": line, "key": error.key, "message": error.message });
    RpcError { data: Some(data), ..RpcError::new(INVALID_PARAMS, error.to_string()) }
}

/// Sections given as JSON objects, as equivalent text of a card file.
fn as_toml(chain: Direction, functions: &[Map<String, Value>]) -> Result<String, RpcError> {
    let name = chain.name();
    let sections = functions.iter().enumerate().map(|(position, keys)| {
        toml::Table::try_from(keys).map(toml::Value::Table).map_err(|error| {
            let message = format!("functions[{position}]: {error}");
            RpcError::new(INVALID_PARAMS, message)
        })
    });
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    let mut root = toml::Table::new();
    root.insert(name.into(), toml::Value::Array(sections));
    toml::to_string(&root).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_place_as_data() {
        let error = ConfigError::new("rx[0].hash", "found 1");
        let data = |error| config_error(error).data.unwrap();
        assert_eq!(
            data(error.clone()),
            json!({ "file": null, "line": null, "key": "rx[0].hash", "message": "found 1" })
        );
        let placed = ConfigError { file: Some("card.toml".into()), line: 1, ..error };
        assert_eq!(data(placed.clone())["line"], 1);
        assert_eq!(data(placed)["file"], "card.toml");
    }
}
