//! `os.scheduler`: another scheduler for a running card, by an order to its NIC OS.
//!
//! It is built here, on the control thread, and the replaced one is freed here.

use super::{Methods, NAP, other_answer};
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError, invalid};
use picnic_core::config::{KeyHelp, Sections};
use picnic_core::error::{ConfigError, not_among};
use picnic_core::registry::{BuildContext, find};
use picnic_os::control::TaskControl;
use picnic_os::executor::{Schedules, Switch};
use picnic_os::keys::{OsSection, SECTIONS};
use picnic_os::schedulers::Scheduler;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the answer waits for a scheduler that follows the current one.
const FOLLOWS: Duration = Duration::from_millis(500);

impl Methods {
    pub(super) fn scheduler(
        &mut self,
        name: Option<&str>,
        keys: &Map<String, Value>,
    ) -> Result<Value, RpcError> {
        self.factory()?;
        let Some(name) = name else {
            if !keys.is_empty() {
                return Err(invalid("keys: found keys without a scheduler"));
            }
            return Ok(shown(&self.schedules(Switch::question())?));
        };
        let (name, scheduler) = self.build_scheduler(name, keys)?;
        let mut schedules = self.schedules(Switch::to(name, scheduler))?;
        let give_up = Instant::now() + FOLLOWS;
        while schedules.next.is_some() && Instant::now() < give_up {
            std::thread::sleep(NAP);
            schedules = self.schedules(Switch::question())?;
        }
        Ok(shown(&schedules))
    }

    /// The name of the scheduler that decides.
    pub(super) fn scheduler_name(&mut self) -> Result<Arc<str>, RpcError> {
        Ok(self.schedules(Switch::question())?.name)
    }

    /// Sends the NIC OS an order about its scheduler. Replaced ones are freed.
    fn schedules(&mut self, switch: Switch) -> Result<Schedules, RpcError> {
        match self.order(TaskControl::Switch(switch))? {
            (_, TaskControl::Switch(Switch { result: Some(result), .. })) => {
                result.map_err(|why| RpcError::new(REFUSED, why))
            }
            _ => Err(other_answer()),
        }
    }

    /// The scheduler of this name, with keys as in `[os]`.
    fn build_scheduler(
        &self,
        name: &str,
        keys: &Map<String, Value>,
    ) -> Result<(&'static str, Box<dyn Scheduler>), RpcError> {
        let wrong = |message: String| RpcError::new(INVALID_PARAMS, message);
        let told = |error: ConfigError| {
            // The section is made here: its keys are meaningful to the caller, its lines are not.
            let key = error.key.strip_prefix("os.").unwrap_or(&error.key);
            wrong(format!("{key}: {}", error.message))
        };
        let entries = self.registries.schedulers;
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            let names = entries.iter().map(|entry| entry.name);
            return Err(wrong(format!("scheduler: {}", not_among("", name, names))));
        };
        let known = entry.keys();
        let is_known = |key: &str| known.iter().any(|known: &KeyHelp| known.name == key);
        if let Some(key) = keys.keys().find(|key| !is_known(key)) {
            let names = known.iter().map(|key| &*key.name);
            return Err(wrong(format!("keys: {}", not_among("key ", key, names))));
        }
        let mut section =
            toml::Table::try_from(keys).map_err(|error| wrong(format!("keys: {error}")))?;
        section.insert("scheduler".into(), name.into());
        let root = toml::Table::from_iter([("os".to_owned(), toml::Value::Table(section))]);
        let text = toml::to_string(&root).map_err(|error| wrong(format!("keys: {error}")))?;
        let file = Sections::core().with(SECTIONS).parse(&text, None).map_err(told)?;
        let section = file.section::<OsSection>();
        let context = BuildContext { position: 0, ..self.context.clone() };
        let scheduler = find(entries, &section.section)
            .and_then(|entry| entry.build(&section.section, &context))
            .map_err(told)?;
        Ok((entry.name, scheduler))
    }
}

fn shown(schedules: &Schedules) -> Value {
    json!({ "scheduler": &*schedules.name, "next": schedules.next.as_deref() })
}
