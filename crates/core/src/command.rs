//! Commands of running components: queries and changes.
//!
//! A component lists its commands in [`Component::COMMANDS`]; `picnic ctl`, the control
//! socket, help and completions come from the list. A command is the type of its arguments:
//!
//! ```
//! use picnic_core::command::{Command, CommandEntry, CommandError, Order};
//! use picnic_core::registry::BuildContext;
//! use picnic_core::time::Time;
//! # use schemars::JsonSchema;
//! # use serde::{Deserialize, Serialize};
//!
//! struct Limiter { rate_pps: u64 }
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Set {
//!     /// Packets per second.
//!     rate_pps: u64,
//! }
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Replaced {
//!     /// The previous rate.
//!     replaced_pps: u64,
//! }
//!
//! // The order that goes to the borrowed core and returns.
//! struct Rate(u64);
//!
//! impl Order for Rate {
//!     type Target = Limiter;
//!     fn apply(&mut self, limiter: &mut Limiter, _now: Time) -> bool {
//!         std::mem::swap(&mut self.0, &mut limiter.rate_pps);
//!         true
//!     }
//! }
//!
//! impl Command for Set {
//!     const NAME: &'static str = "set";
//!     const HELP: &'static str = "change the rate";
//!     const EXAMPLE: &'static str = r#"{"rate_pps": 1000}"#;
//!     type Order = Rate;
//!     type Reply = Replaced;
//!     fn prepare(self, _: &BuildContext) -> Result<Rate, CommandError> {
//!         Ok(Rate(self.rate_pps))
//!     }
//!     fn reply(order: Rate) -> Result<Replaced, CommandError> {
//!         Ok(Replaced { replaced_pps: order.0 })
//!     }
//! }
//!
//! const COMMANDS: &[CommandEntry] = &[CommandEntry::of::<Set>()];
//! # let mut limiter = Limiter { rate_pps: 5 };
//! # let arguments = serde_json::json!({ "rate_pps": 9 });
//! # let mut order = COMMANDS[0].prepare(&arguments, &BuildContext::default()).unwrap();
//! # assert!(order.apply(&mut limiter, Time::ZERO));
//! # assert_eq!(COMMANDS[0].reply(order).unwrap(), serde_json::json!({ "replaced_pps": 5 }));
//! # assert_eq!(limiter.rate_pps, 9);
//! ```
//!
//! Guarantees: arguments are read, and memory is allocated, by the control thread
//! ([`Command::prepare`]). The borrowed core applies the order between two bursts
//! ([`Order::apply`]), where nothing is allocated or freed. The replaced parts come back with
//! the order to the control thread ([`Command::reply`]).
//!
//! Between the control plane and a component travel JSON and an order that is opaque to all but
//! the component, so a component may be a shared object.
//!
//! Most components show their state and allow changes to parts of it: [`Get`] and [`Set`] provide
//! everything but the fields.
//!
//! [`Component::COMMANDS`]: crate::registry::Component::COMMANDS

mod state;

pub use state::{ComponentChange, Get, Inspect, Look, PendingChange, Set};

use crate::config::{KeyHelp, in_range, keys_in, keys_of};
use crate::json::InvalidValue;
use crate::registry::BuildContext;
use crate::time::Time;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::Any;
use std::fmt;

/// An order, made from a command's arguments: everything that the borrowed core needs, and room for
/// the result.
pub trait Order: Send + 'static {
    /// The component that it applies to.
    type Target: 'static;

    /// Applies the order, on the core that the component runs on, between two bursts. Allocates and
    /// frees nothing: replaced state is left in the order, as is the reason if nothing was done
    /// (false).
    fn apply(&mut self, target: &mut Self::Target, now: Time) -> bool;
}

/// A command: the type of its arguments. Their comments are the help that users read.
pub trait Command: DeserializeOwned + JsonSchema + 'static {
    /// Its name: lower case, words joined by `_`. `get` is the default command; `picnic ctl
    /// FUNCTION ARGUMENT VALUE` is short for `set`.
    const NAME: &'static str;
    /// One line of help: lower case, no full stop, at most 64 columns.
    const HELP: &'static str;
    /// Arguments of a valid call for the component with its defaults, as JSON.
    const EXAMPLE: &'static str = "{}";
    /// The order for the borrowed core.
    type Order: Order;
    /// Its result: an object.
    type Reply: Serialize + DeserializeOwned + JsonSchema + 'static;

    /// Makes the order; on the control thread.
    ///
    /// # Errors
    /// The wrong argument, with the found and allowed values.
    fn prepare(self, context: &BuildContext) -> Result<Self::Order, CommandError>;

    /// The result of an order that the component has seen; on the control thread.
    ///
    /// # Errors
    /// Why it was not done.
    fn reply(order: Self::Order) -> Result<Self::Reply, CommandError>;

    /// The result for people, in lines. `place` is the component's position: `rss at rx[0]`.
    fn text(reply: &Self::Reply, place: &str) -> String {
        lines(&serde_json::to_value(reply).unwrap_or_default(), place)
    }
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// An argument is wrong.
    Argument(InvalidValue),
    /// The component cannot do it.
    Refused(String),
}

impl CommandError {
    /// A wrong argument: the found and allowed values.
    pub fn argument(key: impl Into<String>, message: impl fmt::Display) -> Self {
        CommandError::Argument(InvalidValue::new(key, message.to_string()))
    }
}

impl From<InvalidValue> for CommandError {
    fn from(wrong: InvalidValue) -> Self {
        CommandError::Argument(wrong)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Argument(wrong) => wrong.fmt(f),
            CommandError::Refused(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for CommandError {}

/// An order for a component, which returns with the answer; opaque except to component and command.
pub struct Prepared(Box<dyn Erased>);

trait Erased: Any + Send {
    fn apply(&mut self, target: &mut dyn Any, now: Time) -> bool;
}

impl<O: Order> Erased for O {
    fn apply(&mut self, target: &mut dyn Any, now: Time) -> bool {
        target.downcast_mut().is_some_and(|target| Order::apply(self, target, now))
    }
}

impl Prepared {
    /// Wraps an order.
    pub fn new(order: impl Order) -> Self {
        Prepared(Box::new(order))
    }

    /// Applies it; false if it is for another component, or was not done.
    pub fn apply<T: 'static>(&mut self, target: &mut T, now: Time) -> bool {
        (*self.0).apply(target, now)
    }

    /// The order; the prepared one again if it is of another kind.
    ///
    /// # Errors
    /// It is of another kind.
    pub fn open<O: Order>(self) -> Result<O, Prepared> {
        let order: &dyn Any = &*self.0;
        if !order.is::<O>() {
            return Err(self);
        }
        let order: Box<dyn Any> = self.0;
        match order.downcast::<O>() {
            Ok(order) => Ok(*order),
            Err(_) => unreachable!("it was checked before"),
        }
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

/// One argument of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// Its name, type, default and help.
    #[serde(flatten)]
    pub key: KeyHelp,
    /// Whether it must be given.
    pub required: bool,
    /// Other names accepted on command lines.
    #[serde(skip)]
    pub aliases: Vec<String>,
}

/// The arguments that a type describes, in order.
pub fn arguments_of<T: JsonSchema>() -> Vec<Argument> {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    arguments_in(&settings.into_generator().into_root_schema_for::<T>().to_value())
}

/// The arguments in an object's schema, with everything that it refers to.
pub fn arguments_in(schema: &Value) -> Vec<Argument> {
    let texts = |list: &Value| -> Vec<String> {
        let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let required = texts(&schema["required"]);
    let argument = |key: KeyHelp| Argument {
        required: required.contains(&key.name),
        aliases: texts(&schema["properties"][&key.name]["aliases"]),
        key,
    };
    keys_in(schema).into_iter().map(argument).collect()
}

/// An entry of a component's list of commands.
#[derive(Clone, Copy)]
pub struct CommandEntry {
    /// Its name.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Arguments of a valid call, as JSON.
    pub example: &'static str,
    arguments: fn() -> Vec<Argument>,
    results: fn() -> Vec<KeyHelp>,
    prepare: fn(&Value, &BuildContext) -> Result<Prepared, CommandError>,
    reply: fn(Prepared) -> Result<Value, CommandError>,
    text: fn(&Value, &str) -> String,
}

impl CommandEntry {
    /// The entry of a command.
    pub const fn of<C: Command>() -> Self {
        CommandEntry {
            name: C::NAME,
            help: C::HELP,
            example: C::EXAMPLE,
            arguments: arguments_of::<C>,
            results: keys_of::<C::Reply>,
            prepare: |arguments, context| {
                let order = in_range::<C>(arguments)?.prepare(context)?;
                Ok(Prepared::new(order))
            },
            reply: |prepared| {
                let other = |_| CommandError::Refused("the order is for another command".into());
                let reply = C::reply(prepared.open().map_err(other)?)?;
                serde_json::to_value(reply)
                    .map_err(|error| CommandError::Refused(error.to_string()))
            },
            text: |value, place| match serde_json::from_value(value.clone()) {
                Ok(reply) => C::text(&reply, place),
                // Of another version, for example.
                Err(_) => lines(value, place),
            },
        }
    }

    /// Its arguments.
    pub fn arguments(&self) -> Vec<Argument> {
        (self.arguments)()
    }

    /// The fields of its result.
    pub fn results(&self) -> Vec<KeyHelp> {
        (self.results)()
    }

    /// Makes an order from arguments, an object; on the control thread.
    ///
    /// # Errors
    /// The wrong argument, with the found and allowed values.
    pub fn prepare(
        &self,
        arguments: &Value,
        context: &BuildContext,
    ) -> Result<Prepared, CommandError> {
        (self.prepare)(arguments, context)
    }

    /// The result of an order that its component has seen: an object.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn reply(&self, prepared: Prepared) -> Result<Value, CommandError> {
        (self.reply)(prepared)
    }

    /// A result for people, in lines.
    pub fn text(&self, reply: &Value, place: &str) -> String {
        (self.text)(reply, place)
    }
}

impl fmt::Debug for CommandEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandEntry").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A result for people: a header and a line per field.
fn lines(reply: &Value, place: &str) -> String {
    let mut text = format!("{place}\n");
    for (name, value) in reply.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text += &format!("{name} {value}\n");
    }
    text
}
