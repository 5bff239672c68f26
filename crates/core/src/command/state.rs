//! `get` and `set`: show a component's state, or change it and return the previous state.
//!
//! ```
//! use picnic_core::command::{ComponentChange, CommandEntry, CommandError, Get, Inspect, Set};
//! use picnic_core::registry::BuildContext;
//! use picnic_core::time::Time;
//! # use schemars::JsonSchema;
//! # use serde::{Deserialize, Serialize};
//!
//! struct Limiter { rate_pps: u64 }
//!
//! #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
//! struct State {
//!     /// Packets per second (before the change, for `set`).
//!     #[schemars(extend("x-gauge" = true))]
//!     rate_pps: u64,
//! }
//!
//! impl Inspect for Limiter {
//!     type State = State;
//!     const HELP: &'static str = "the current rate";
//!     fn inspect(&self) -> State {
//!         State { rate_pps: self.rate_pps }
//!     }
//! }
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Rate {
//!     /// The new number of packets per second.
//!     rate_pps: u64,
//! }
//!
//! impl ComponentChange for Rate {
//!     const HELP: &'static str = "change the rate; the result has the previous one";
//!     const EXAMPLE: &'static str = r#"{"rate_pps": 1000}"#;
//!     type Of = Limiter;
//!     type New = u64;
//!     fn prepare(self, _: &BuildContext) -> Result<u64, CommandError> {
//!         Ok(self.rate_pps)
//!     }
//!     fn apply(rate_pps: &mut u64, limiter: &mut Limiter, _now: Time) -> bool {
//!         limiter.rate_pps = *rate_pps;
//!         true
//!     }
//! }
//!
//! const COMMANDS: &[CommandEntry] =
//!     &[CommandEntry::of::<Get<Limiter>>(), CommandEntry::of::<Set<Rate>>()];
//! # let mut limiter = Limiter { rate_pps: 5 };
//! # let arguments = serde_json::json!({ "rate_pps": 9 });
//! # let mut order = COMMANDS[1].prepare(&arguments, &BuildContext::default()).unwrap();
//! # assert!(order.apply(&mut limiter, Time::ZERO));
//! # assert_eq!(COMMANDS[1].reply(order).unwrap(), serde_json::json!({ "rate_pps": 5 }));
//! # assert_eq!(limiter.rate_pps, 9);
//! ```
//!
//! Guarantees: a state is a consistent snapshot between two bursts; nothing is allocated or freed
//! on the borrowed core.

use super::{Command, CommandError, Order};
use crate::registry::BuildContext;
use crate::time::Time;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A component with a state to show: `CommandEntry::of::<Get<Self>>()` in its list of commands.
pub trait Inspect: 'static {
    /// The state. Its fields' comments are the user's help. Reports and metrics have the numbers of
    /// functions: an integer is a counter, which only grows, unless its field is declared a gauge
    /// by `#[schemars(extend("x-gauge" = true))]`.
    type State: Copy
        + Default
        + Send
        + Serialize
        + DeserializeOwned
        + JsonSchema
        + fmt::Debug
        + 'static;
    /// One line of help of `get`.
    const HELP: &'static str = "counters since it was inserted";

    /// The state at this moment.
    fn inspect(&self) -> Self::State;
}

/// State that a task shares with its commands.
impl<T: Inspect> Inspect for Arc<T> {
    type State = T::State;
    const HELP: &'static str = T::HELP;

    fn inspect(&self) -> T::State {
        T::inspect(self)
    }
}

/// The arguments of `get`: none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, bound = "")]
#[schemars(bound = "", rename = "Get")]
pub struct Get<C> {
    #[serde(skip)]
    of: PhantomData<fn() -> C>,
}

/// An order that returns with the state.
pub struct Look<C: Inspect>(Option<C::State>);

impl<C: Inspect> Order for Look<C> {
    type Target = C;

    fn apply(&mut self, component: &mut C, _now: Time) -> bool {
        self.0 = Some(component.inspect());
        true
    }
}

impl<C: Inspect> Command for Get<C> {
    const NAME: &'static str = "get";
    const HELP: &'static str = C::HELP;
    type Order = Look<C>;
    type Reply = C::State;

    fn prepare(self, _: &BuildContext) -> Result<Look<C>, CommandError> {
        Ok(Look(None))
    }

    fn reply(order: Look<C>) -> Result<C::State, CommandError> {
        order.0.ok_or_else(unseen)
    }
}

/// A change of a component whose result is the previous state: the type of its arguments, whose
/// comments are the user's help. In the component's list it is `CommandEntry::of::<Set<Self>>()`.
pub trait ComponentChange: DeserializeOwned + JsonSchema {
    /// Its name.
    const NAME: &'static str = "set";
    /// One line of help; see [`Command::HELP`].
    const HELP: &'static str;
    /// Arguments of a valid call for the component with its defaults, as JSON.
    const EXAMPLE: &'static str = "{}";
    /// The component.
    type Of: Inspect;
    /// The new value; after the call, the replaced one.
    type New: Send + 'static;

    /// Makes the new value; on the control thread.
    ///
    /// # Errors
    /// The wrong argument, with the found and allowed values.
    fn prepare(self, context: &BuildContext) -> Result<Self::New, CommandError>;

    /// Makes the change, on the core that the component runs on; false if it cannot be made.
    /// Allocates and frees nothing.
    fn apply(new: &mut Self::New, component: &mut Self::Of, now: Time) -> bool;

    /// Why the change could not be made; on the control thread.
    fn refusal(_new: Self::New, _state: <Self::Of as Inspect>::State) -> CommandError {
        unseen()
    }
}

/// The command that makes a change.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent, bound(deserialize = "C: DeserializeOwned"))]
#[schemars(transparent, bound = "C: JsonSchema")]
pub struct Set<C>(C);

/// A change for the component, which returns with the previous state.
pub struct PendingChange<C: ComponentChange> {
    new: C::New,
    before: Option<<C::Of as Inspect>::State>,
    is_done: bool,
}

impl<C: ComponentChange + 'static> Order for PendingChange<C> {
    type Target = C::Of;

    fn apply(&mut self, component: &mut C::Of, now: Time) -> bool {
        self.before = Some(component.inspect());
        self.is_done = C::apply(&mut self.new, component, now);
        self.is_done
    }
}

impl<C: ComponentChange + 'static> Command for Set<C> {
    const NAME: &'static str = C::NAME;
    const HELP: &'static str = C::HELP;
    const EXAMPLE: &'static str = C::EXAMPLE;
    type Order = PendingChange<C>;
    type Reply = <C::Of as Inspect>::State;

    fn prepare(self, context: &BuildContext) -> Result<PendingChange<C>, CommandError> {
        Ok(PendingChange { new: self.0.prepare(context)?, before: None, is_done: false })
    }

    fn reply(order: PendingChange<C>) -> Result<Self::Reply, CommandError> {
        match (order.before, order.is_done) {
            (Some(before), true) => Ok(before),
            (Some(state), false) => Err(C::refusal(order.new, state)),
            (None, _) => Err(unseen()),
        }
    }
}

/// No component has seen the order.
fn unseen() -> CommandError {
    CommandError::Refused("the component in this place is another one".into())
}
