//! The commands of `bond`: list the known addresses, and forget them.
//!
//! ```sh
//! picnic ctl bond
//! picnic ctl bond addresses
//! picnic ctl bond clear
//! ```
//!
//! Guarantees: the table is read on the control thread; the borrowed core only hands it over.

use super::Bond;
use super::learnt::Learnt;
use picnic_core::command::{Command, CommandError, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The arguments of `bond.addresses`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Addresses {}

/// The result of `bond.addresses`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Known {
    /// The addresses, by wire and then by number.
    pub addresses: Vec<Address>,
}

/// A known address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub struct Address {
    /// The wire on which it was last seen.
    pub wire: u8,
    /// The MAC address.
    pub mac: String,
    /// Milliseconds since then, in steps of 67.
    pub age_ms: u64,
}

/// The table for the control thread.
#[derive(Debug, Default)]
pub struct Lookup {
    table: Option<Arc<Learnt>>,
    now: Time,
    age_ns: u64,
}

impl Order for Lookup {
    type Target = Bond;

    fn apply(&mut self, bond: &mut Bond, now: Time) -> bool {
        *self = Lookup { table: Some(bond.learnt.clone()), now, age_ns: bond.age_ns };
        true
    }
}

impl Command for Addresses {
    const NAME: &'static str = "addresses";
    const HELP: &'static str = "the known addresses and their wires";
    type Order = Lookup;
    type Reply = Known;

    fn prepare(self, _: &BuildContext) -> Result<Lookup, CommandError> {
        Ok(Lookup::default())
    }

    fn reply(order: Lookup) -> Result<Known, CommandError> {
        let all = order.table.iter().flat_map(|table| table.all(order.now, order.age_ns));
        let mut addresses: Vec<_> = all
            .map(|(mac, wire, age)| Address { wire, mac: mac.to_string(), age_ms: age / 1_000_000 })
            .collect();
        addresses.sort();
        Ok(Known { addresses })
    }

    fn text(reply: &Known, place: &str) -> String {
        let mut text = format!("{place}: {} addresses\n", reply.addresses.len());
        for Address { wire, mac, age_ms } in &reply.addresses {
            text += &format!("wire {wire:>3}  {mac}  {age_ms} ms ago\n");
        }
        text
    }
}

/// The arguments of `bond.clear`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Clear {}

/// The result of `bond.clear`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Cleared {
    /// Addresses forgotten.
    pub addresses: u32,
}

/// The order to forget all addresses, and their number.
#[derive(Debug)]
pub struct ForgetOrder(u32);

impl Order for ForgetOrder {
    type Target = Bond;

    fn apply(&mut self, bond: &mut Bond, _now: Time) -> bool {
        self.0 = bond.learnt.clear();
        true
    }
}

impl Command for Clear {
    const NAME: &'static str = "clear";
    const HELP: &'static str = "forget all addresses";
    type Order = ForgetOrder;
    type Reply = Cleared;

    fn prepare(self, _: &BuildContext) -> Result<ForgetOrder, CommandError> {
        Ok(ForgetOrder(0))
    }

    fn reply(order: ForgetOrder) -> Result<Cleared, CommandError> {
        Ok(Cleared { addresses: order.0 })
    }

    fn text(reply: &Cleared, _: &str) -> String {
        format!("{} addresses forgotten\n", reply.addresses)
    }
}
