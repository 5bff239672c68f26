//! The commands of `flow-director`: show its state; add, remove, list and replace rules.
//!
//! ```sh
//! picnic ctl flow-director add --protocol udp --destination-port 53 --queue 1
//! picnic ctl flow-director list
//! picnic ctl flow-director remove --number 1
//! ```
//!
//! Guarantees: a rule is added or removed between bursts, without allocation; replacing all rules
//! swaps in a prepared table, so packets meet either the old rules or the new ones.

use super::rule::{Compiled, Rule};
use super::table::{MAX_RULES, Refusal, Table};
use super::{CAPACITY, FlowDirector, table_of};
use picnic_core::command::{Command, CommandEntry, CommandError, Get, Inspect, Order};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) const COMMANDS: &[CommandEntry] = &[
    CommandEntry::of::<Get<FlowDirector>>(),
    CommandEntry::of::<Add>(),
    CommandEntry::of::<Remove>(),
    CommandEntry::of::<List>(),
    CommandEntry::of::<Replace>(),
];

/// The most rules that one call lists.
const PAGE: usize = 1024;

const OTHER: &str = "the function there is not a flow-director";

/// The result of `flow-director.get`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct InForce {
    /// Number of rules.
    #[schemars(extend("x-gauge" = true))]
    pub rules: usize,
    /// Capacity in rules.
    #[schemars(extend("x-gauge" = true))]
    pub capacity: usize,
    /// Combinations of fields and prefix lengths: each costs a look-up per packet.
    #[schemars(extend("x-gauge" = true))]
    pub masks: usize,
    /// Packets that matched a rule.
    pub matched_packets: u64,
    /// Packets without a matching rule.
    pub unmatched_packets: u64,
    /// Packets steered to the queue that sends their flow.
    pub followed_packets: u64,
    /// Flows learnt from hosts' packets; their earlier packets may be overtaken.
    pub learnt_flows: u64,
    /// Flows now sent by another queue; packets waiting at the old one may be overtaken.
    pub moved_flows: u64,
    /// Flows forgotten early, for lack of a place.
    pub replaced_flows: u64,
}

impl Inspect for FlowDirector {
    type State = InForce;

    fn inspect(&self) -> InForce {
        InForce {
            rules: self.table.len(),
            capacity: self.table.capacity(),
            masks: self.table.masks(),
            matched_packets: self.counters.matched.get(),
            unmatched_packets: self.counters.unmatched.get(),
            followed_packets: self.counters.followed.get(),
            learnt_flows: self.counters.learnt.get(),
            moved_flows: self.counters.moved.get(),
            replaced_flows: self.counters.replaced.get(),
        }
    }
}

/// The arguments of `flow-director.add`: a rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Add(Rule);

/// The result of `flow-director.add`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Added {
    /// The number of the new rule.
    pub number: u32,
}

/// A rule to add, and its number or the error.
#[derive(Debug)]
pub struct Addition {
    rule: Compiled,
    outcome: Option<Result<u32, Refusal>>,
}

impl Order for Addition {
    type Target = FlowDirector;

    fn apply(&mut self, director: &mut FlowDirector, _now: Time) -> bool {
        let outcome = director.table.add(&self.rule);
        self.outcome = Some(outcome);
        outcome.is_ok()
    }
}

impl Command for Add {
    const NAME: &'static str = "add";
    const HELP: &'static str = "add a rule; the result has its number";
    const EXAMPLE: &'static str =
        r#"{"protocol": "tcp", "destination": "10.0.0.0/8", "destination_port": 80, "queue": 1}"#;
    type Order = Addition;
    type Reply = Added;

    fn prepare(self, context: &BuildContext) -> Result<Addition, CommandError> {
        let rule = self.0.compile(context).map_err(|wrong| wrong.in_command(""))?;
        Ok(Addition { rule, outcome: None })
    }

    fn reply(order: Addition) -> Result<Added, CommandError> {
        match order.outcome {
            Some(Ok(number)) => Ok(Added { number }),
            Some(Err(refusal)) => Err(CommandError::Refused(refusal.to_string())),
            None => Err(CommandError::Refused(OTHER.into())),
        }
    }

    fn text(reply: &Added, _: &str) -> String {
        format!("rule {}\n", reply.number)
    }
}

/// The arguments of `flow-director.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// The number of the rule, as `list` shows it.
    pub number: u32,
}

/// The result of `flow-director.remove`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Removed {
    /// The number of the removed rule.
    pub number: u32,
}

/// A rule to remove.
#[derive(Debug)]
pub struct Removal {
    number: u32,
    outcome: Option<bool>,
}

impl Order for Removal {
    type Target = FlowDirector;

    fn apply(&mut self, director: &mut FlowDirector, _now: Time) -> bool {
        let removed = director.table.remove(self.number);
        self.outcome = Some(removed);
        removed
    }
}

impl Command for Remove {
    const NAME: &'static str = "remove";
    const HELP: &'static str = "remove a rule by its number";
    const EXAMPLE: &'static str = r#"{"number": 1}"#;
    type Order = Removal;
    type Reply = Removed;

    fn prepare(self, _: &BuildContext) -> Result<Removal, CommandError> {
        Ok(Removal { number: self.number, outcome: None })
    }

    fn reply(order: Removal) -> Result<Removed, CommandError> {
        let number = order.number;
        match order.outcome {
            Some(true) => Ok(Removed { number }),
            Some(false) => {
                let message = format!("found {number}, allowed: the number of a rule");
                Err(CommandError::argument("number", message))
            }
            None => Err(CommandError::Refused(OTHER.into())),
        }
    }

    fn text(reply: &Removed, _: &str) -> String {
        format!("rule {} is gone\n", reply.number)
    }
}

/// The arguments of `flow-director.list`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct List {
    /// The number to start from.
    pub first: u32,
    /// The most rules to list.
    #[schemars(range(min = 1, max = PAGE))]
    pub most: usize,
}

impl Default for List {
    fn default() -> Self {
        List { first: 1, most: PAGE }
    }
}

/// The result of `flow-director.list`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Listed {
    /// The rules, each with its number and the packets it matched.
    pub rules: Vec<ListedRule>,
    /// The number to continue from; null if these were the last.
    pub next: Option<u32>,
}

/// One rule of the list.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct ListedRule {
    /// Its number.
    pub number: u32,
    /// Packets that it decided.
    pub packets: u64,
    /// Its fields and action.
    pub rule: Rule,
}

/// Room for a page of rules.
#[derive(Debug)]
pub struct Page {
    first: u32,
    most: usize,
    rules: Vec<(u32, Compiled, u64)>,
    next: Option<u32>,
    is_seen: bool,
}

impl Order for Page {
    type Target = FlowDirector;

    /// Fills a page, in existing memory.
    fn apply(&mut self, director: &mut FlowDirector, _now: Time) -> bool {
        let mut rules = director.table.rules(self.first);
        // One by one: `extend` may reserve more than needed.
        for rule in rules.by_ref().take(self.most) {
            if self.rules.len() < self.rules.capacity() {
                self.rules.push(rule);
            }
        }
        self.next = rules.next().map(|(number, ..)| number);
        self.is_seen = true;
        true
    }
}

impl Command for List {
    const NAME: &'static str = "list";
    const HELP: &'static str = "the rules by number, with their packet counts";
    type Order = Page;
    type Reply = Listed;

    fn prepare(self, _: &BuildContext) -> Result<Page, CommandError> {
        let List { first, most } = self;
        Ok(Page { first, most, rules: Vec::with_capacity(most), next: None, is_seen: false })
    }

    fn reply(order: Page) -> Result<Listed, CommandError> {
        if !order.is_seen {
            return Err(CommandError::Refused(OTHER.into()));
        }
        let listed = |(number, rule, packets): (u32, Compiled, u64)| ListedRule {
            number,
            packets,
            rule: rule.rule(),
        };
        Ok(Listed { rules: order.rules.into_iter().map(listed).collect(), next: order.next })
    }

    fn text(reply: &Listed, place: &str) -> String {
        let mut text = format!("{place}: {} rules listed\n", reply.rules.len());
        for ListedRule { number, packets, rule } in &reply.rules {
            text += &format!("{number:>5} {packets:>12}");
            let fields = serde_json::to_value(rule).unwrap_or_default();
            for (name, value) in fields.as_object().into_iter().flatten() {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text += &format!(" {name}={value}");
            }
            text.push('\n');
        }
        if let Some(next) = reply.next {
            text += &format!("more from number {next}\n");
        }
        text
    }
}

/// The arguments of `flow-director.replace`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Replace {
    /// The new rules.
    pub rules: Vec<Rule>,
    /// The new capacity in rules.
    #[schemars(range(min = 1, max = MAX_RULES))]
    pub capacity: usize,
}

impl Default for Replace {
    fn default() -> Self {
        Replace { rules: Vec::new(), capacity: CAPACITY }
    }
}

/// The result of `flow-director.replace`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Replaced {
    /// Rules in force now.
    pub rules: usize,
    /// Rules before.
    pub replaced: usize,
}

/// A new table, then the replaced one.
pub struct RulesChange {
    table: Box<Table>,
    rules: usize,
    is_done: bool,
}

impl Order for RulesChange {
    type Target = FlowDirector;

    fn apply(&mut self, director: &mut FlowDirector, _now: Time) -> bool {
        std::mem::swap(&mut self.table, &mut director.table);
        self.is_done = true;
        true
    }
}

impl Command for Replace {
    const NAME: &'static str = "replace";
    const HELP: &'static str = "replace all rules at once";
    const EXAMPLE: &'static str = r#"{"rules":[{"protocol":"udp","queue":1}]}"#;
    type Order = RulesChange;
    type Reply = Replaced;

    fn prepare(self, context: &BuildContext) -> Result<RulesChange, CommandError> {
        // In the kernel there is room for this many, however few the card starts with.
        if context.in_kernel && self.capacity > CAPACITY {
            let message = format!("found {}, allowed: 1 to {CAPACITY}", self.capacity);
            return Err(CommandError::argument("capacity", message));
        }
        let table = table_of(&self.rules, self.capacity, context)
            .map_err(|(place, wrong)| wrong.in_command(&format!("rules[{place}].")))?;
        Ok(RulesChange { rules: table.len(), table: Box::new(table), is_done: false })
    }

    fn reply(order: RulesChange) -> Result<Replaced, CommandError> {
        if !order.is_done {
            return Err(CommandError::Refused(OTHER.into()));
        }
        Ok(Replaced { rules: order.rules, replaced: order.table.len() })
    }

    fn text(reply: &Replaced, _: &str) -> String {
        format!("{} rules replaced {}\n", reply.rules, reply.replaced)
    }
}
