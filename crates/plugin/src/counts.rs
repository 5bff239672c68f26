//! `plugin.get`: the object's own counters, by name.
//!
//! Every function answers `get` with its figures, so a plugin's counters appear next to those of
//! built-in functions.

use crate::abi::COUNTERS_MAX;
use crate::function::Plugin;
use picnic_core::command::{Command, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The arguments of `plugin.get`: none.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {}

/// The result of `plugin.get`: each counter by its name.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Counted(BTreeMap<String, u64>);

/// A request for the object, which returns with the answer.
pub struct Count {
    values: Box<[u64; COUNTERS_MAX]>,
    names: Option<Arc<[(String, String)]>>,
}

impl Order for Count {
    type Target = Plugin;

    fn apply(&mut self, plugin: &mut Plugin, _now: Time) -> bool {
        self.names = plugin.instance().count(&mut self.values);
        self.names.is_some()
    }
}

impl Command for Counts {
    const NAME: &'static str = "get";
    const HELP: &'static str = "the plugin's own counters since it was inserted, by name";
    type Order = Count;
    type Reply = Counted;

    fn prepare(self, _: &BuildContext) -> Result<Count, CommandError> {
        Ok(Count { values: Box::new([0; COUNTERS_MAX]), names: None })
    }

    fn reply(order: Count) -> Result<Counted, CommandError> {
        let names = order
            .names
            .ok_or_else(|| CommandError::Refused("the plugin has no counters".into()))?;
        let names = names.iter().map(|(name, _)| name.clone());
        Ok(Counted(names.zip(*order.values).collect()))
    }
}
