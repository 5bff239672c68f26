//! `plugin.call`: a command defined by the object.
//!
//! The control thread makes and reads the texts; the borrowed core calls the object between two
//! bursts, with a buffer for its answer.

use crate::function::Plugin;
use crate::object::{REPLY_BYTES, c_text, reply_text};
use picnic_core::command::{Command, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ffi::{CString, c_char};

/// The arguments of `plugin.call`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The command, as the object names it.
    pub command: String,
    /// Its arguments: a JSON object.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// The result of `plugin.call`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Answer {
    /// The object's answer.
    pub answer: Map<String, Value>,
}

/// A command for the object, which returns with the answer.
pub struct PendingCall {
    command: CString,
    arguments: CString,
    reply: Vec<c_char>,
    /// Whether the object accepted it; none if the object takes no commands.
    done: Option<bool>,
}

impl Order for PendingCall {
    type Target = Plugin;

    fn apply(&mut self, plugin: &mut Plugin, _now: Time) -> bool {
        let PendingCall { command, arguments, reply, done } = self;
        *done = plugin.instance().command(command, arguments, reply);
        *done == Some(true)
    }
}

impl Command for Call {
    const NAME: &'static str = "call";
    const HELP: &'static str = "call a command that the plugin defines";
    const EXAMPLE: &'static str = r#"{"command": "get"}"#;
    type Order = PendingCall;
    type Reply = Answer;

    fn prepare(self, _: &BuildContext) -> Result<PendingCall, CommandError> {
        Ok(PendingCall {
            command: c_text(&self.command),
            arguments: c_text(&Value::Object(self.arguments).to_string()),
            reply: vec![0; REPLY_BYTES],
            done: None,
        })
    }

    fn reply(order: PendingCall) -> Result<Answer, CommandError> {
        let said = reply_text(&order.reply);
        let refused = |message: &str| Err(CommandError::Refused(message.into()));
        match order.done {
            None => refused("the plugin has no commands"),
            Some(false) if said.is_empty() => refused("the plugin refused without a reason"),
            Some(false) => refused(&said),
            Some(true) if said.is_empty() => Ok(Answer::default()),
            Some(true) => match serde_json::from_str(&said) {
                Ok(answer) => Ok(Answer { answer }),
                Err(_) => refused("the plugin's answer is not a JSON object"),
            },
        }
    }
}
