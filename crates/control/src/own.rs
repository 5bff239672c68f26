//! Functions' own counters: the numbers in the result of their command `get`.
//!
//! A whole number is a counter: it only grows, from zero at insertion. A number that may fall is a
//! gauge, which the reply's type declares at the field: `#[schemars(extend("x-gauge" = true))]`.
//! Negative and fractional numbers are gauges too.
//!
//! The control thread reads the counters of a running card, an executor the counters of an ended
//! one.

use crate::launch::Registries;
use crate::report::{FunctionReport, Report};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use picnic_engine::chain::ChainFunction;
use serde_json::{Map, Value, json};
use std::convert::Infallible;

/// Reads the functions of a card.
#[derive(Clone)]
pub struct Own {
    functions: &'static [Entry<Box<dyn Function>>],
    context: BuildContext,
}

impl Own {
    /// For a card with these registries.
    pub fn new(registries: &Registries, context: BuildContext) -> Self {
        Own { functions: registries.functions, context }
    }

    /// Adds the functions' own counters to a report. `obey` sends an order to the function at a
    /// place, and returns it if it was done.
    ///
    /// # Errors
    /// Those of `obey`; functions read before keep their figures.
    pub fn ask<E>(
        &self,
        report: &mut Report,
        mut obey: impl FnMut(Direction, usize, Prepared) -> Result<Option<Prepared>, E>,
    ) -> Result<(), E> {
        let chains =
            [(Direction::Rx, &mut report.functions), (Direction::Tx, &mut report.tx_functions)];
        for (direction, functions) in chains {
            for (position, function) in functions.iter_mut().enumerate() {
                let Some(get) = self.get(&function.name) else { continue };
                let context = BuildContext { position, ..self.context.clone() };
                let Ok(order) = get.prepare(&json!({}), &context) else { continue };
                let Some(order) = obey(direction, position, order)? else { continue };
                if let Ok(Value::Object(state)) = get.reply(order) {
                    let (counters, gauges) = sorted(get, state);
                    function.add_own(&counters, gauges);
                }
            }
        }
        Ok(())
    }

    /// The same for functions of an ended card, for each direction.
    pub fn ask_ended(&self, report: &mut Report, now: Time, chains: &mut [Vec<ChainFunction>; 2]) {
        let asked = self.ask(report, |direction, position, mut order| {
            let link = chains[direction as usize].get_mut(position);
            let done = link.is_some_and(|link| link.obey(&mut order, now));
            Ok::<_, Infallible>(done.then_some(order))
        });
        let Ok(()) = asked;
    }

    /// The command that shows the state of the function with this name.
    fn get(&self, name: &str) -> Option<&'static CommandEntry> {
        // A plugin's name starts with its entry's.
        let name = name.split(':').next()?;
        let entry = self.functions.iter().find(|entry| entry.name == name)?;
        entry.commands.iter().find(|command| command.name == "get")
    }
}

/// The numbers of a state: counters and gauges.
fn sorted(
    get: &CommandEntry,
    state: Map<String, Value>,
) -> (Map<String, Value>, Map<String, Value>) {
    let declared = get.results();
    let is_gauge = |name: &str| declared.iter().any(|key| key.gauge && key.name == name);
    let numbers = state.into_iter().filter(|(_, value)| value.is_number());
    numbers.partition(|(name, value)| value.is_u64() && !is_gauge(name))
}

impl FunctionReport {
    /// Adds a part's own counters. Counters of several parts add up; gauges are taken from the
    /// first.
    pub fn add_own(&mut self, counters: &Map<String, Value>, gauges: Map<String, Value>) {
        for (name, more) in counters {
            let count = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or_default();
            let sum = count(self.counters.get(name)).saturating_add(count(Some(more)));
            self.counters.insert(name.clone(), sum.into());
        }
        for (name, value) in gauges {
            self.gauges.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use picnic_core::command::{Command, CommandError, Order};
    use picnic_core::error::ConfigError;
    use picnic_core::out::Out;
    use picnic_core::packet::burst::Burst;
    use picnic_core::registry::{Component, NoKeys};
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    #[derive(Deserialize, JsonSchema)]
    struct Get {}

    struct Nothing;

    impl Order for Nothing {
        type Target = ();
        fn apply(&mut self, _: &mut (), _: Time) -> bool {
            true
        }
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct State {
        packets: u64,
        text: String,
        #[schemars(extend("x-gauge" = true))]
        waiting: Option<u32>,
        degrees: i64,
        share: f64,
        bytes: u64,
    }

    impl Command for Get {
        const NAME: &'static str = "get";
        const HELP: &'static str = "the state";
        type Order = Nothing;
        type Reply = State;
        fn prepare(self, _: &BuildContext) -> Result<Nothing, CommandError> {
            Ok(Nothing)
        }
        fn reply(_: Nothing) -> Result<State, CommandError> {
            let text = "5".into();
            Ok(State { packets: 3, text, waiting: Some(2), degrees: -4, share: 0.5, bytes: 7 })
        }
    }

    #[test]
    fn numbers_are_counters_unless_they_may_fall() {
        let get = CommandEntry::of::<Get>();
        let kinds: Vec<_> =
            get.results().into_iter().map(|key| (key.name, key.r#type, key.gauge)).collect();
        assert!(kinds.contains(&("waiting".into(), "integer, gauge".into(), true)), "{kinds:?}");
        assert_eq!(kinds.iter().filter(|(.., is_gauge)| *is_gauge).count(), 1);
        let Ok(Value::Object(state)) = get.reply(Prepared::new(Nothing)) else { panic!("a state") };
        let (counters, gauges) = sorted(&get, state);
        assert_eq!(Value::from(counters), json!({ "packets": 3, "bytes": 7 }));
        assert_eq!(Value::from(gauges), json!({ "waiting": 2, "degrees": -4, "share": 0.5 }));
    }

    struct Counting;

    impl Function for Counting {
        fn process(&mut self, _: Time, _: &mut Burst, _: &mut Out<'_>) {}
        fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
            order.apply(&mut (), now)
        }
    }

    impl Component for Counting {
        type Product = Box<dyn Function>;
        type Config = NoKeys;
        const NAME: &'static str = "slot";
        const HELP: &'static str = "count";
        const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get>()];
        fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
            Ok(Box::new(Counting))
        }
    }

    /// A missing function has counted nothing.
    #[test]
    fn ended_functions_report_their_counters() {
        let functions = const { &[Entry::of::<Counting>()] };
        let own = Own { functions, context: BuildContext::default() };
        let file = bench::card(&"[[rx]]\nfunction = \"slot\"\n".repeat(2));
        let mut report = bench::parts(&file).monitor.report();
        let mut chains = [vec![ChainFunction::new("slot", Box::new(Counting))], vec![]];
        own.ask_ended(&mut report, Time::ZERO, &mut chains);
        let counters = report.functions.into_iter().map(|function| Value::from(function.counters));
        assert_eq!(Value::from_iter(counters), json!([{ "packets": 3, "bytes": 7 }, {}]));
    }

    #[test]
    fn counters_of_several_parts_add_up() {
        let monitor = bench::parts(&bench::card("[[rx]]\nfunction = \"slot\"\n")).monitor;
        let mut function = monitor.report().functions.remove(0);
        let figures = |value: Value| value.as_object().cloned().unwrap();
        for (counters, gauges) in [
            (json!({ "packets": 3, "bytes": u64::MAX }), json!({ "rules": 4 })),
            (json!({ "packets": 5, "bytes": 1, "more": 1 }), json!({ "rules": 4, "held": 2 })),
        ] {
            function.add_own(&figures(counters), figures(gauges));
        }
        let counters = json!({ "packets": 8, "bytes": u64::MAX, "more": 1 });
        assert_eq!(Value::from(function.counters), counters);
        assert_eq!(Value::from(function.gauges), json!({ "rules": 4, "held": 2 }));
    }
}
