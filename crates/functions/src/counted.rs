//! `get` of functions that count: what a function shows, read on the borrowed core.
//!
//! A function says what it shows ([`Counted`]) and lists `CommandEntry::of::<Get<Self>>()`;
//! `picnic ctl FUNCTION` then shows it.
//!
//! Guarantees: the counts are those of one moment between two bursts; nothing is allocated on
//! the borrowed core.

use picnic_core::command::{Command, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;

/// A function with counts of its own.
pub trait Counted: 'static {
    /// What it shows. Its fields' comments are the help that users read.
    type Counts: Copy
        + Default
        + Send
        + Serialize
        + DeserializeOwned
        + JsonSchema
        + std::fmt::Debug
        + 'static;

    /// The counts at this moment.
    fn counts(&self) -> Self::Counts;
}

/// The arguments of `get`: none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, bound = "")]
#[schemars(bound = "", rename = "Get")]
pub struct Get<F> {
    #[serde(skip)]
    of: PhantomData<fn() -> F>,
}

/// On its way to the function and back.
pub struct Show<F: Counted>(F::Counts);

impl<F: Counted> Order for Show<F> {
    type Target = F;

    fn apply(&mut self, function: &mut F, _now: Time) -> bool {
        self.0 = function.counts();
        true
    }
}

impl<F: Counted> Command for Get<F> {
    const NAME: &'static str = "get";
    const HELP: &'static str = "counters since it was inserted";
    type Order = Show<F>;
    type Reply = F::Counts;

    fn prepare(self, _: &BuildContext) -> Result<Show<F>, CommandError> {
        Ok(Show(F::Counts::default()))
    }

    fn reply(order: Show<F>) -> Result<F::Counts, CommandError> {
        Ok(order.0)
    }
}
