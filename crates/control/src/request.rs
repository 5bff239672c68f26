//! The list of methods for clients, and their parameters.
//!
//! ```
//! use picnic_control::request::{Request, read};
//! let params = serde_json::json!({ "task": "heartbeat" });
//! let asked = read("task.kill", params.as_object().unwrap().clone()).unwrap();
//! assert!(matches!(asked, Request::TaskKill { .. }));
//! ```
//!
//! A method of the card is a variant of [`Request`]: its name in JSON, its help and its
//! parameters are there and nowhere else. The methods of components come from their own lists
//! of commands, see `picnic_core::command`, and are found by the card that runs.
//!
//! Guarantees: a request is complete and in range before it is executed.

use crate::captures::CaptureRequest;
use crate::listing::{CAPTURES, CHANNELS, FILTERS, Listing, TASKS};
use crate::protocol::{METHOD_NOT_FOUND, RpcError, invalid};
use picnic_core::command::{Argument, arguments_in};
use picnic_core::config::InterruptSection;
use picnic_core::direction::Direction;
use picnic_core::error::not_among;
use picnic_core::json::{InvalidValue, typed};
use picnic_filter::config::Keys;
use schemars::JsonSchema;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(tag = "method", content = "params", deny_unknown_fields)]
pub enum Request {
    /// Show the card, its parts and its cores.
    #[serde(rename = "card.info")]
    Info {},
    /// Show the figures of `picnic run --json`, at this moment.
    #[serde(rename = "card.stats")]
    Stats {
        /// Include all recorded latencies, by queue.
        #[serde(default)]
        latencies: bool,
        /// Only figures since the last `card.reset`.
        #[serde(default)]
        since_reset: bool,
        /// Include functions' own counters, since the function was inserted.
        #[serde(default)]
        counters: bool,
    },
    /// Remember the figures, for `card.stats` with `since_reset`. Counters continue: other readers,
    /// such as Prometheus, notice nothing.
    #[serde(rename = "card.reset")]
    Reset {},
    /// Request a clean stop. The connection is closed when the card has stopped.
    #[serde(rename = "card.stop")]
    Stop {},
    /// Show when target cores are interrupted.
    #[serde(rename = "moderation.get")]
    ModerationGet {},
    /// Change moderation for all queues and wires. Takes the keys of `[interrupt]`; missing keys
    /// stay unchanged.
    #[serde(rename = "moderation.set")]
    ModerationSet(#[schemars(with = "InterruptSection")] Map<String, Value>),
    /// List the functions of both chains, with their counters.
    #[serde(rename = "chain.list")]
    ChainList {},
    /// Replace a whole chain.
    #[serde(rename = "chain.swap")]
    ChainSwap(Swap),
    /// List the filters, in the order they are tried.
    #[serde(rename = "filter.list")]
    FilterList {
        /// Only filters of this group.
        #[serde(default)]
        group: Option<String>,
    },
    /// Show one filter.
    #[serde(rename = "filter.show")]
    FilterShow {
        /// Its number or name.
        id: Reference,
    },
    /// Add a filter.
    #[serde(rename = "filter.add")]
    FilterAdd {
        /// Its keys, as in `[[filter]]`.
        keys: Box<Keys>,
    },
    /// Replace a filter, which keeps its number and its counters.
    #[serde(rename = "filter.change")]
    FilterChange {
        /// Its number or name.
        id: Reference,
        /// All its keys.
        keys: Box<Keys>,
    },
    /// Remove a filter.
    #[serde(rename = "filter.remove")]
    FilterRemove {
        /// Its number or name.
        id: Reference,
    },
    /// Replace all filters of each named group, at once.
    #[serde(rename = "filter.reload")]
    FilterReload {
        /// Groups to empty even if no filter names them.
        #[serde(default)]
        groups: Vec<String>,
        /// The filters, each by its keys.
        filters: Vec<Keys>,
    },
    /// List all tasks, ended ones first.
    #[serde(rename = "task.list")]
    TaskList {},
    /// Show one task, ended or not, with response times and jitter.
    #[serde(rename = "task.show")]
    TaskShow {
        /// Its number or name.
        task: Reference,
    },
    /// Build and admit a task, as `[[task]]` would.
    #[serde(rename = "task.create")]
    TaskCreate {
        /// Its kind, as in `[[task]]`.
        task: String,
        /// The other keys of `[[task]]`.
        #[serde(default)]
        keys: Map<String, Value>,
    },
    /// End a task and release its resources.
    #[serde(rename = "task.kill")]
    TaskKill {
        /// Its number or name.
        task: Reference,
    },
    /// Suspend a task; releases due meanwhile are skipped.
    #[serde(rename = "task.suspend")]
    TaskSuspend {
        /// Its number or name.
        task: Reference,
    },
    /// Resume a task, a periodic one at its next release.
    #[serde(rename = "task.resume")]
    TaskResume {
        /// Its number or name.
        task: Reference,
    },
    /// Give a task another priority.
    #[serde(rename = "task.set_priority")]
    TaskSetPriority {
        /// Its number or name.
        task: Reference,
        /// Among equals, a higher number goes first.
        priority: u8,
    },
    /// List the channels between tasks and host processes, ended ones first.
    #[serde(rename = "channel.list")]
    ChannelList {},
    /// Open a channel for the calling process, until its connection ends. Three descriptors come
    /// with the answer: the memory, the process's doorbell and the card's, both eventfds. Programs
    /// call this through `picnic_channel`.
    #[serde(rename = "channel.open")]
    ChannelOpen {
        /// Its name.
        name: String,
    },
    /// Show the scheduler of NIC OS, or replace it: refused, with the arithmetic, if the new one
    /// cannot schedule the tasks. It follows once no periodic task is due, if both promise deadlines.
    #[serde(rename = "os.scheduler")]
    OsScheduler {
        /// The new one, as in `[os]`.
        #[serde(default)]
        scheduler: Option<String>,
        /// Its keys, as in `[os]`.
        #[serde(default)]
        keys: Map<String, Value>,
    },
    /// Capture packets to the file sent with the call.
    #[serde(rename = "capture.start")]
    CaptureStart(CaptureRequest),
    /// Stop a capture; the answer follows when everything is written.
    #[serde(rename = "capture.stop")]
    CaptureStop {
        /// Its number.
        capture: u32,
    },
    /// Wait until the capture has ended on its own.
    #[serde(rename = "capture.wait")]
    CaptureWait {
        /// Its number.
        capture: u32,
    },
    /// List the running captures.
    #[serde(rename = "capture.list")]
    CaptureList {},
    /// A command of a component, from that component's list.
    #[serde(skip)]
    Component(Box<ComponentCall>),
}

/// A call of a component's command: `COMPONENT.COMMAND`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComponentCall {
    /// The component's name.
    pub component: String,
    /// The command's.
    pub command: String,
    /// The component, among several of this name.
    pub place: ComponentPlace,
    /// The command's arguments, not yet parsed.
    pub arguments: Map<String, Value>,
}

/// The parameters that select a component: the fields of [`ComponentPlace`].
pub const PLACE: [&str; 3] = ["chain", "position", "task"];

/// A component's place; by default, the first of its name, in the rx chain for a function.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(default)]
pub struct ComponentPlace {
    /// The chain of a function.
    pub chain: Direction,
    /// Its position in the chain, or the wire's number, from 0; default: the first of that name.
    pub position: Option<usize>,
    /// Number or name of a task; default: the first of that kind.
    pub task: Option<Reference>,
}

/// Parameters of `chain.swap`: one of `toml` and `functions`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// The chain.
    pub chain: Direction,
    /// Text of a card file; only the `[[rx]]` (or `[[tx]]`) sections are used.
    #[serde(default)]
    pub toml: Option<String>,
    /// Or the sections as objects: `{"function": "rss", ...}`.
    #[serde(default)]
    pub functions: Option<Vec<Map<String, Value>>>,
    /// Name of the text's file: for messages, and for relative paths in it.
    #[serde(default)]
    pub file: Option<PathBuf>,
}

/// A task or a filter, by number or name.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq)]
#[schemars(untagged)]
pub enum Reference {
    /// By its number, which the card never reuses.
    Number(u64),
    /// By its name, if it is unique: one living task, one filter.
    Name(String),
}

impl Request {
    /// Whether it needs a command to the borrowed core.
    pub fn needs_the_card(&self) -> bool {
        use Request as R;
        matches!(
            self,
            R::Component(_)
                | R::Stats { counters: true, .. }
                | R::ModerationSet(_)
                | R::ChainSwap(_)
                | R::OsScheduler { .. }
                | R::TaskList {}
                | R::TaskShow { .. }
                | R::TaskCreate { .. }
                | R::TaskKill { .. }
                | R::TaskSuspend { .. }
                | R::TaskResume { .. }
                | R::TaskSetPriority { .. }
        )
    }

    /// Checks whether individually valid parameters fit together.
    fn check(self) -> Result<Self, RpcError> {
        match &self {
            Request::ModerationSet(change) => {
                InterruptSection::default().changed(change).map_err(wrong)?;
            }
            Request::ChainSwap(swap) if swap.toml.is_some() == swap.functions.is_some() => {
                let found = if swap.toml.is_some() { "both" } else { "none" };
                let message = format!("params: found {found}, allowed: one of toml, functions");
                return Err(invalid(message));
            }
            Request::CaptureStart(wanted) => wanted.check().map_err(invalid)?,
            _ => {}
        }
        Ok(self)
    }
}

/// A method of the card, for help.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// Its effect.
    pub help: String,
    /// Its parameters.
    pub params: Vec<Argument>,
}

impl Method {
    /// The table for its result, if it is a table.
    pub fn listing(&self) -> Option<&'static Listing> {
        match self.name.split_once('.')?.0 {
            "filter" => Some(&FILTERS),
            "task" => Some(&TASKS),
            "capture" => Some(&CAPTURES),
            "channel" => Some(&CHANNELS),
            _ => None,
        }
    }
}

/// The methods of the card, in order; methods of components are in their lists of commands.
pub fn methods() -> &'static [Method] {
    static METHODS: OnceLock<Vec<Method>> = OnceLock::new();
    METHODS.get_or_init(|| {
        let settings = schemars::generate::SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<Request>().to_value();
        let variants = schema["oneOf"].as_array().into_iter().flatten();
        let method = |variant: &Value| Method {
            name: text(&variant["properties"]["method"]["const"]),
            help: text(&variant["description"]),
            params: arguments_in(&variant["properties"]["params"]),
        };
        variants.map(method).collect()
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('\n', " ")
}

/// The error for an unknown method, with the known ones.
pub fn no_method(method: &str, others: impl IntoIterator<Item = String>) -> RpcError {
    let mut names: Vec<_> = methods().iter().map(|method| method.name.clone()).collect();
    names.extend(others);
    let message = not_among("method ", method, names.iter().map(String::as_str));
    RpcError::new(METHOD_NOT_FOUND, message)
}

/// The request for a method with these parameters. An unknown name that looks like a component's
/// command is taken for one.
///
/// # Errors
/// There is no such method, or a parameter is wrong.
pub fn read(method: &str, params: Map<String, Value>) -> Result<Request, RpcError> {
    if methods().iter().any(|known| known.name == method) {
        let request = json!({ "method": method, "params": params });
        return typed::<Request>(&request).map_err(wrong)?.check();
    }
    let Some((component, command)) = method.split_once('.') else {
        return Err(no_method(method, []));
    };
    // These select the component; the rest is for the command.
    let (place, arguments): (Map<_, _>, Map<_, _>) =
        params.into_iter().partition(|(name, _)| PLACE.contains(&name.as_str()));
    Ok(Request::Component(Box::new(ComponentCall {
        component: component.into(),
        command: command.into(),
        place: typed(&Value::Object(place)).map_err(wrong)?,
        arguments,
    })))
}

/// A wrong parameter.
pub(crate) fn wrong(wrong: InvalidValue) -> RpcError {
    let key = wrong.key.strip_prefix("params.").unwrap_or(&wrong.key);
    let key = if key.is_empty() { "params" } else { key };
    invalid(format!("{key}: {}", wrong.message))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Number(number) => write!(f, "{number}"),
            Reference::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Reference;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Reference, E> {
                Ok(Reference::Number(number))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Reference, E> {
                let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
                u64::try_from(number).map(Reference::Number).map_err(|_| wrong())
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Reference, E> {
                Ok(Reference::Name(name.into()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
