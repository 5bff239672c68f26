//! What is said over the control socket: JSON-RPC 2.0, one message to a line.
//!
//! ```
//! use picnic_control::protocol::{Message, Request, parse};
//! let line = br#"{"jsonrpc": "2.0", "id": 1, "method": "card.stats"}"#;
//! let Message::One(call) = parse(line) else { panic!("no batch") };
//! assert!(matches!(call.request, Ok(Request::Stats)));
//! ```
//!
//! Guarantees: any bytes are read to calls or errors, nothing panics; a message nested
//! deeper than 127 levels is a parse error. A call without `id` is a notification, and
//! never answered. What a call asks for is whole and in range before anybody acts on it.
//!
//! Source: JSON-RPC 2.0 Specification (2013); docs/control.md for the methods.

use crate::captures::Wanted;
use crate::tasks::TaskRequest;
use picnic_core::direction::Direction;
use picnic_core::ring::moderation::ModerationMode;
use picnic_filter::request as filter;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The version of methods and fields; one that is raised breaks clients of the one before.
pub const VERSION: u32 = 1;
/// Bytes of the longest line.
// Some twenty thousand filters in one call.
pub const LONGEST_LINE: usize = 4 << 20;
/// Calls in the longest batch.
pub const LONGEST_BATCH: usize = 32;
/// Microseconds that moderation may be asked for at most, as in a card file.
const MOST_USECS: u32 = 1_000_000;

/// The methods, in the order that they are listed in.
pub const METHODS: [&str; 26] = [
    "card.info",
    "card.stats",
    "card.stop",
    "rss.get",
    "rss.set",
    "moderation.get",
    "moderation.set",
    "chain.list",
    "chain.swap",
    "filter.list",
    "filter.show",
    "filter.add",
    "filter.change",
    "filter.remove",
    "filter.reload",
    "task.list",
    "task.show",
    "task.create",
    "task.kill",
    "task.suspend",
    "task.resume",
    "task.set_priority",
    "capture.start",
    "capture.stop",
    "capture.wait",
    "capture.list",
];

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RpcError {
    /// One of the codes below.
    pub code: i64,
    /// What was found and what is allowed.
    pub message: String,
    /// Where, if it is about a card file: `file`, `line`, `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// No JSON.
pub const PARSE_ERROR: i64 = -32700;
/// No JSON-RPC 2.0 request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are wrong.
pub const INVALID_PARAMS: i64 = -32602;
/// The card cannot do this now, or not at all.
pub const REFUSED: i64 = -32000;
/// The borrowed core did not answer.
pub const NO_ANSWER: i64 = -32001;
/// One of the socket's limits is reached; the connection may be closed.
pub const LIMIT: i64 = -32002;
/// The caller may not use this socket.
pub const NOT_PERMITTED: i64 = -32003;

impl RpcError {
    /// An error with a code and a message.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        RpcError { code, message: message.into(), data: None }
    }
}

/// A line, read.
#[derive(Debug)]
pub enum Message {
    /// One call.
    One(Call),
    /// A batch: answered together, by a list.
    Many(Vec<Call>),
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// What its answer is known by; none for a notification.
    pub id: Option<Value>,
    /// What is asked for, or what is wrong with it.
    pub request: Result<Request, RpcError>,
}

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `card.info`: what runs where.
    Info,
    /// `card.stats`: the figures of `picnic run --json`, at this moment.
    Stats,
    /// `card.stop`: a clean stop.
    Stop,
    /// `rss.get`: key and table in force.
    RssGet(Place),
    /// `rss.set`: another key, another table.
    RssSet(RssSet),
    /// `moderation.get`.
    ModerationGet,
    /// `moderation.set`: of all queues, from now on.
    ModerationSet(ModerationSet),
    /// `chain.list`: the functions with their counts.
    ChainList,
    /// `chain.swap`: other functions in place of a whole chain.
    ChainSwap(Swap),
    /// `filter.*`: filters listed, read back, changed; see [`filter::FilterRequest`].
    Filter(filter::FilterRequest),
    /// `task.*`: tasks listed, created, controlled; see [`TaskRequest`].
    Task(TaskRequest),
    /// `capture.start`: packets into the file that came with the call.
    CaptureStart(Wanted),
    /// `capture.stop`: answered when all is written.
    CaptureStop(CaptureNumber),
    /// `capture.wait`: answered when the capture has ended by itself.
    CaptureWait(CaptureNumber),
    /// `capture.list`: those that run.
    CaptureList,
}

impl Request {
    /// Whether the borrowed core must obey a command for it.
    pub fn needs_the_card(&self) -> bool {
        use Request as R;
        matches!(
            self,
            R::RssGet(_) | R::RssSet(_) | R::ModerationSet(_) | R::ChainSwap(_) | R::Task(_)
        )
    }
}

/// A function's place; by default, the first `rss` of the rx chain.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Place {
    /// The chain.
    pub chain: Direction,
    /// The place in it, from 0; the first of its kind if left out.
    pub position: Option<usize>,
}

/// Parameters of `rss.set`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct RssSet {
    /// The chain.
    pub chain: Direction,
    /// The place in it, from 0; the first `rss` if left out.
    pub position: Option<usize>,
    /// Toeplitz key, 40 to 64 bytes in hex, or "symmetric".
    pub key: Option<String>,
    /// The queue of each entry.
    pub table: Option<Vec<u16>>,
    /// Or this many entries, spread over all queues in turn.
    pub table_size: Option<usize>,
}

/// Parameters of `chain.swap`: one of `toml` and `functions`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// The chain.
    pub chain: Direction,
    /// A card file's text, of which the `[[rx]]` (or `[[tx]]`) sections count.
    pub toml: Option<String>,
    /// Or the sections as objects: `{"function": "rss", ...}`.
    pub functions: Option<Vec<Map<String, Value>>>,
    /// Where the text comes from: for messages, and for relative paths in it.
    pub file: Option<PathBuf>,
}

/// Parameters of `capture.stop` and `capture.wait`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct CaptureNumber {
    /// The capture's number, as `capture.start` gave it.
    pub capture: u32,
}

/// What `moderation.set` changes: one of these, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModerationSet {
    /// When target cores are interrupted.
    pub mode: Option<ModerationMode>,
    /// Microseconds that targets poll on without packets before they wait for an interrupt.
    pub poll_usecs: Option<u32>,
    /// Microseconds that packets of the host may wait for others.
    pub tx_usecs: Option<u32>,
}

/// How moderation is written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ModerationParams {
    /// "none", "static" or "adaptive"; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModerationName>,
    /// Microseconds: the delay, or the longest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_usecs: Option<u32>,
    /// Packets that may wait; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_frames: Option<u32>,
    /// Microseconds that targets poll on; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_usecs: Option<u32>,
    /// Microseconds that packets of the host may wait; as it is if left out of a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_usecs: Option<u32>,
}

/// A moderation's name.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ModerationName {
    /// An interrupt at each packet.
    None,
    /// After a time or a count.
    Static,
    /// By the packet rate.
    Adaptive,
}

impl ModerationParams {
    /// How these are written.
    pub fn of(mode: ModerationMode, poll_usecs: u32, tx_usecs: u32) -> Self {
        let (mode, rx_usecs, rx_frames) = match mode {
            ModerationMode::None => (ModerationName::None, None, None),
            ModerationMode::Static { usecs, frames } => {
                (ModerationName::Static, Some(usecs), Some(frames))
            }
            ModerationMode::Adaptive { max_usecs } => {
                (ModerationName::Adaptive, Some(max_usecs), None)
            }
        };
        ModerationParams {
            mode: Some(mode),
            rx_usecs,
            rx_frames,
            poll_usecs: Some(poll_usecs),
            tx_usecs: Some(tx_usecs),
        }
    }

    /// The change, or what is wrong.
    fn change(self) -> Result<ModerationSet, RpcError> {
        let times = [
            ("rx_usecs", self.rx_usecs),
            ("poll_usecs", self.poll_usecs),
            ("tx_usecs", self.tx_usecs),
        ];
        for (name, found) in times {
            if let Some(usecs) = found
                && usecs > MOST_USECS
            {
                let message = format!("{name}: found {usecs}, allowed is 0 to {MOST_USECS}");
                return Err(invalid(message));
            }
        }
        let mode = self.mode.map(|name| self.mode(name)).transpose()?;
        if mode.is_none() {
            for (name, found) in [("rx_usecs", self.rx_usecs), ("rx_frames", self.rx_frames)] {
                if found.is_some() {
                    return Err(invalid(format!("mode: is missing, wanted with {name}")));
                }
            }
            if self.poll_usecs.is_none() && self.tx_usecs.is_none() {
                return Err(invalid("params: wanted is mode, poll_usecs or tx_usecs"));
            }
        }
        Ok(ModerationSet { mode, poll_usecs: self.poll_usecs, tx_usecs: self.tx_usecs })
    }

    fn mode(self, mode: ModerationName) -> Result<ModerationMode, RpcError> {
        let wrong = |message: String| Err(invalid(message));
        let name = match mode {
            ModerationName::None => "none",
            ModerationName::Static => "static",
            ModerationName::Adaptive => "adaptive",
        };
        if mode == ModerationName::None && self.rx_usecs.is_some() {
            return wrong("rx_usecs: allowed with mode \"static\" or \"adaptive\" only".into());
        }
        if mode != ModerationName::Static && self.rx_frames.is_some() {
            return wrong(format!("rx_frames: found with \"{name}\", allowed with \"static\""));
        }
        let usecs = || {
            let missing = format!("rx_usecs: is missing, wanted with \"{name}\"");
            self.rx_usecs.ok_or_else(|| invalid(missing))
        };
        Ok(match mode {
            ModerationName::None => ModerationMode::None,
            ModerationName::Static => {
                ModerationMode::Static { usecs: usecs()?, frames: self.rx_frames.unwrap_or(0) }
            }
            ModerationName::Adaptive => ModerationMode::Adaptive { max_usecs: usecs()? },
        })
    }
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(INVALID_PARAMS, message)
}

/// Reads a line, without its end.
pub fn parse(line: &[u8]) -> Message {
    let nameless = |code, message: String| {
        let request = Err(RpcError::new(code, message));
        Message::One(Call { id: Some(Value::Null), request })
    };
    match serde_json::from_slice(line) {
        Err(error) => nameless(PARSE_ERROR, format!("the line is no JSON: {error}")),
        Ok(Value::Array(items)) if items.is_empty() => {
            nameless(INVALID_REQUEST, "found a batch of no calls, wanted is one or more".into())
        }
        Ok(Value::Array(items)) if items.len() > LONGEST_BATCH => {
            let message =
                format!("found a batch of {} calls, allowed is 1 to {LONGEST_BATCH}", items.len());
            nameless(INVALID_REQUEST, message)
        }
        Ok(Value::Array(items)) => Message::Many(items.into_iter().map(call).collect()),
        Ok(value) => Message::One(call(value)),
    }
}

/// A JSON value's kind, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn call(value: Value) -> Call {
    let wrong = |id: Value, message: String| Call {
        id: Some(id),
        request: Err(RpcError::new(INVALID_REQUEST, message)),
    };
    let Value::Object(mut fields) = value else {
        let message = format!("found {}, wanted is a request object", kind(&value));
        return wrong(Value::Null, message);
    };
    let id = fields.remove("id");
    let id = match id {
        Some(id @ (Value::Array(_) | Value::Object(_) | Value::Bool(_))) => {
            let message = format!("id: found {}, allowed is a string or a number", kind(&id));
            return wrong(Value::Null, message);
        }
        id => id,
    };
    let known = || id.clone().unwrap_or(Value::Null);
    match fields.get("jsonrpc") {
        Some(Value::String(version)) if version == "2.0" => {}
        Some(Value::String(version)) => {
            return wrong(known(), format!("jsonrpc: found \"{version}\", allowed is \"2.0\""));
        }
        Some(other) => {
            return wrong(known(), format!("jsonrpc: found {}, wanted is \"2.0\"", kind(other)));
        }
        None => return wrong(known(), "jsonrpc: is missing, wanted is \"2.0\"".into()),
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(other) => {
            return wrong(known(), format!("method: found {}, wanted is a name", kind(&other)));
        }
        None => return wrong(known(), "method: is missing".into()),
    };
    let params = match fields.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        // By position there is nothing to say: all parameters have names.
        Some(Value::Array(list)) if list.is_empty() => Map::new(),
        Some(Value::Array(_)) => {
            let request = Err(invalid("params: found a list, wanted is an object"));
            return Call { id, request };
        }
        Some(other) => {
            return wrong(known(), format!("params: found {}, wanted is an object", kind(&other)));
        }
    };
    const FIELDS: &str = "jsonrpc, id, method, params";
    if let Some(field) = fields.keys().find(|field| *field != "jsonrpc") {
        return wrong(known(), format!("unknown field \"{field}\", allowed: {FIELDS}"));
    }
    Call { id, request: request(&method, params) }
}

fn read<T: DeserializeOwned>(params: Map<String, Value>) -> Result<T, RpcError> {
    T::deserialize(Value::Object(params)).map_err(|error| invalid(format!("params: {error}")))
}

/// What a method with these parameters asks for.
///
/// # Errors
/// There is no such method, or a parameter is wrong.
pub fn request(method: &str, params: Map<String, Value>) -> Result<Request, RpcError> {
    let without = |request, params: &Map<String, Value>| match params.keys().next() {
        None => Ok(request),
        Some(name) => {
            Err(invalid(format!("params: found \"{name}\", but {method} has no parameters")))
        }
    };
    match method {
        "card.info" => without(Request::Info, &params),
        "card.stats" => without(Request::Stats, &params),
        "card.stop" => without(Request::Stop, &params),
        "rss.get" => Ok(Request::RssGet(read(params)?)),
        "rss.set" => {
            let set: RssSet = read(params)?;
            if set.key.is_none() && set.table.is_none() && set.table_size.is_none() {
                return Err(invalid("params: wanted is one of key, table, table_size"));
            }
            if set.table.is_some() && set.table_size.is_some() {
                return Err(invalid("params: found table and table_size, allowed is one of them"));
            }
            Ok(Request::RssSet(set))
        }
        "moderation.get" => without(Request::ModerationGet, &params),
        "moderation.set" => Ok(Request::ModerationSet(read::<ModerationParams>(params)?.change()?)),
        "chain.list" => without(Request::ChainList, &params),
        "chain.swap" => {
            let swap: Swap = read(params)?;
            if swap.toml.is_some() == swap.functions.is_some() {
                return Err(invalid("params: wanted is either toml or functions"));
            }
            Ok(Request::ChainSwap(swap))
        }
        "filter.list" | "filter.show" | "filter.add" | "filter.change" | "filter.remove"
        | "filter.reload" => {
            // The request knows its kind by a key of its own.
            let mut params = params;
            let (_, what) = method.split_once('.').unwrap_or_default();
            if params.insert("filter".into(), what.into()).is_some() {
                return Err(invalid("params: unknown field `filter`"));
            }
            Ok(Request::Filter(read(params)?))
        }
        "task.list" => without(Request::Task(TaskRequest::List), &params),
        "task.show" => Ok(Request::Task(TaskRequest::Show(read(params)?))),
        "task.create" => Ok(Request::Task(TaskRequest::Create(read(params)?))),
        "task.kill" => Ok(Request::Task(TaskRequest::Kill(read(params)?))),
        "task.suspend" => Ok(Request::Task(TaskRequest::Suspend(read(params)?))),
        "task.resume" => Ok(Request::Task(TaskRequest::Resume(read(params)?))),
        "task.set_priority" => Ok(Request::Task(TaskRequest::SetPriority(read(params)?))),
        "capture.start" => {
            let wanted: Wanted = read(params)?;
            wanted.check().map_err(|message| invalid(format!("params: {message}")))?;
            Ok(Request::CaptureStart(wanted))
        }
        "capture.stop" => Ok(Request::CaptureStop(read(params)?)),
        "capture.wait" => Ok(Request::CaptureWait(read(params)?)),
        "capture.list" => without(Request::CaptureList, &params),
        other => {
            // Not the whole of it: it may be as long as a line.
            let found: String = other.chars().take(60).collect();
            let allowed = METHODS.join(", ");
            let message = format!("found method \"{found}\", allowed: {allowed}");
            Err(RpcError::new(METHOD_NOT_FOUND, message))
        }
    }
}

/// An answer.
pub fn answer(id: &Value, outcome: &Result<Value, RpcError>) -> Value {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Call {
        match parse(line.as_bytes()) {
            Message::One(call) => call,
            Message::Many(calls) => panic!("a batch: {calls:?}"),
        }
    }

    fn error(line: &str) -> (i64, String) {
        let error = one(line).request.unwrap_err();
        (error.code, error.message)
    }

    fn with(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    }

    #[test]
    fn every_method_can_be_called_and_no_other() {
        for method in METHODS {
            let found = one(&with(method, "{}")).request;
            let is_known = !matches!(&found, Err(error) if error.code == METHOD_NOT_FOUND);
            assert!(is_known, "{method}: {found:?}");
        }
        let (code, message) = error(&with("card.reboot", "{}"));
        assert_eq!(code, METHOD_NOT_FOUND);
        assert!(message.starts_with("found method \"card.reboot\", allowed: card.info, "));
    }

    #[test]
    fn ids_come_back_and_notifications_have_none() {
        for id in ["1", "-7", "1.5", "\"a\"", "null", "\"\""] {
            let call = one(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"card.info"}}"#));
            assert_eq!(call.id, Some(serde_json::from_str(id).unwrap()));
            assert_eq!(call.request, Ok(Request::Info));
        }
        let call = one(r#"{"jsonrpc":"2.0","method":"card.stop","params":[]}"#);
        assert_eq!((call.id, call.request), (None, Ok(Request::Stop)));
        // Wrong in a way that tells whether it was one: no answer to a notification.
        assert_eq!(one(r#"{"jsonrpc":"2.0","method":"card.reboot"}"#).id, None);
        // Not even a request: answered with the id null, as the specification says.
        assert_eq!(one(r#"{"foo":"bar"}"#).id, Some(Value::Null));
    }

    #[test]
    fn what_is_no_request_is_told_by_field() {
        for (line, code, message) in [
            ("", PARSE_ERROR, "the line is no JSON: "),
            ("{\"jsonrpc\"", PARSE_ERROR, "the line is no JSON: "),
            ("\u{0}\u{1}", PARSE_ERROR, "the line is no JSON: "),
            ("3", INVALID_REQUEST, "found a number, wanted is a request object"),
            ("[]", INVALID_REQUEST, "found a batch of no calls"),
            ("{}", INVALID_REQUEST, "jsonrpc: is missing"),
            (r#"{"jsonrpc":"1.0"}"#, INVALID_REQUEST, "jsonrpc: found \"1.0\""),
            (r#"{"jsonrpc":2.0}"#, INVALID_REQUEST, "jsonrpc: found a number"),
            (r#"{"jsonrpc":"2.0"}"#, INVALID_REQUEST, "method: is missing"),
            (r#"{"jsonrpc":"2.0","method":1}"#, INVALID_REQUEST, "method: found a number"),
            (r#"{"jsonrpc":"2.0","id":{},"method":"card.info"}"#, INVALID_REQUEST, "id: found"),
            (
                r#"{"jsonrpc":"2.0","method":"card.info","params":1}"#,
                INVALID_REQUEST,
                "params: found a number",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"card.info","parms":{}}"#,
                INVALID_REQUEST,
                "unknown field \"parms\"",
            ),
        ] {
            let found = error(line);
            assert_eq!(found.0, code, "{line}: {found:?}");
            assert!(found.1.starts_with(message), "{line}: {found:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(error(&deep).0, PARSE_ERROR);
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (method, params, message) in [
            ("card.info", r#"{"x":1}"#, "params: found \"x\", but card.info has no parameters"),
            ("card.info", "[1]", "params: found a list, wanted is an object"),
            ("rss.get", r#"{"chain":"up"}"#, "params: unknown variant `up`, expected `rx` or `tx`"),
            ("rss.get", r#"{"position":-1}"#, "params: invalid value: integer `-1`"),
            ("rss.set", "{}", "params: wanted is one of key, table, table_size"),
            ("rss.set", r#"{"table":[0],"table_size":1}"#, "params: found table and table_size"),
            ("rss.set", r#"{"table":[70000]}"#, "params: invalid value: integer `70000`"),
            ("moderation.set", "{}", "params: wanted is mode, poll_usecs or tx_usecs"),
            ("moderation.set", r#"{"rx_frames":5}"#, "mode: is missing, wanted with rx_frames"),
            (
                "moderation.set",
                r#"{"poll_usecs":1000001}"#,
                "poll_usecs: found 1000001, allowed is 0 to 1000000",
            ),
            ("moderation.set", r#"{"mode":"static"}"#, "rx_usecs: is missing"),
            (
                "moderation.set",
                r#"{"mode":"static","rx_usecs":1000001}"#,
                "rx_usecs: found 1000001, allowed is 0 to 1000000",
            ),
            (
                "moderation.set",
                r#"{"mode":"adaptive","rx_usecs":5,"rx_frames":1}"#,
                "rx_frames: found with \"adaptive\"",
            ),
            ("moderation.set", r#"{"mode":"none","rx_usecs":5}"#, "rx_usecs: allowed with"),
            ("chain.swap", r#"{"chain":"rx"}"#, "params: wanted is either toml or functions"),
            ("chain.swap", r#"{"toml":""}"#, "params: missing field `chain`"),
            ("task.list", r#"{"x":1}"#, "params: found \"x\", but task.list has no parameters"),
            ("task.kill", "{}", "params: missing field `task`"),
            ("task.kill", r#"{"task":1,"x":1}"#, "params: unknown field `x`, expected `task`"),
            (
                "task.suspend",
                r#"{"task":-1}"#,
                "params: invalid value: integer `-1`, expected a task's number or name",
            ),
            (
                "task.resume",
                r#"{"task":[]}"#,
                "params: invalid type: sequence, expected a task's number or name",
            ),
            ("task.set_priority", r#"{"task":1}"#, "params: missing field `priority`"),
            (
                "task.set_priority",
                r#"{"task":1,"priority":256}"#,
                "params: invalid value: integer `256`, expected u8",
            ),
            ("task.create", r#"{"keys":{}}"#, "params: missing field `task`"),
            ("task.create", r#"{"task":3}"#, "params: invalid type: integer `3`, expected a str"),
            ("task.create", r#"{"task":"busy","keys":[]}"#, "params: invalid type: sequence"),
            ("capture.start", r#"{"stages":[]}"#, "params: stages: found none, wanted is one"),
            ("capture.start", r#"{"stages":["eth"]}"#, "params: unknown variant `eth`, expected"),
            ("capture.start", r#"{"snap_bytes":0}"#, "params: snap_bytes: found 0, allowed is 1"),
            ("capture.start", r#"{"packets":0}"#, "params: packets: found 0, allowed is 1"),
            ("capture.start", r#"{"buffer_bytes":1}"#, "params: buffer_bytes: found 1, allowed"),
            ("capture.stop", "{}", "params: missing field `capture`"),
        ] {
            let (code, found) = error(&with(method, params));
            assert_eq!(code, INVALID_PARAMS, "{method} {params}: {found}");
            assert!(found.starts_with(message), "{method} {params}: {found}");
        }
    }

    #[test]
    fn a_batch_is_as_many_calls_as_it_has_items() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"card.info"}"#;
        let line = format!("[{call}, 1, {call}]");
        let Message::Many(calls) = parse(line.as_bytes()) else { panic!("one") };
        let good: Vec<_> = calls.iter().map(|call| call.request.is_ok()).collect();
        assert_eq!(good, [true, false, true]);
        let long = format!("[{}1]", "1,".repeat(LONGEST_BATCH));
        assert_eq!(error(&long).0, INVALID_REQUEST);
    }

    #[test]
    fn moderation_is_written_as_it_is_read() {
        for mode in [
            ModerationMode::None,
            ModerationMode::Static { usecs: 20, frames: 64 },
            ModerationMode::Adaptive { max_usecs: 1_000_000 },
        ] {
            let params = serde_json::to_string(&ModerationParams::of(mode, 7, 8)).unwrap();
            let request = one(&with("moderation.set", &params)).request;
            let set = ModerationSet { mode: Some(mode), poll_usecs: Some(7), tx_usecs: Some(8) };
            assert_eq!(request, Ok(Request::ModerationSet(set)), "{params}");
        }
        let request = one(&with("moderation.set", r#"{"poll_usecs":0,"tx_usecs":9}"#)).request;
        let set = ModerationSet { mode: None, poll_usecs: Some(0), tx_usecs: Some(9) };
        assert_eq!(request, Ok(Request::ModerationSet(set)));
    }

    /// JSON of any shape, often that of a request.
    fn any_json() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("2.0".to_owned()),
            proptest::sample::select(METHODS.to_vec()).prop_map(str::to_owned),
            proptest::sample::select(vec!["rx", "tx", "static", "symmetric", "[[rx]]"])
                .prop_map(str::to_owned),
            ".{0,8}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            word.prop_map(Value::from),
        ];
        let key = proptest::sample::select(vec![
            "jsonrpc",
            "id",
            "method",
            "params",
            "chain",
            "position",
            "key",
            "table",
            "mode",
            "rx_usecs",
            "rx_frames",
            "poll_usecs",
            "tx_usecs",
            "table_size",
            "task",
            "keys",
            "priority",
            "toml",
            "functions",
            "file",
            "x",
        ]);
        let value = leaf.prop_recursive(4, 32, 6, move |inner| {
            let fields = proptest::collection::vec((key.clone(), inner.clone()), 0..6);
            prop_oneof![
                proptest::collection::vec(inner, 0..6).prop_map(Value::from),
                fields.prop_map(|fields| {
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
                }),
            ]
        });
        value.prop_map(|value| value.to_string())
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            check(&line);
        }

        #[test]
        fn any_json_is_read(line in any_json()) {
            check(line.as_bytes());
        }
    }

    /// Whatever comes, an answer to it is one line of JSON with either result or error.
    fn check(line: &[u8]) {
        let calls = match parse(line) {
            Message::One(call) => vec![call],
            Message::Many(calls) => calls,
        };
        assert!(!calls.is_empty());
        for call in calls {
            let outcome = call.request.map(|_| Value::Null);
            let text = answer(&call.id.unwrap_or_default(), &outcome).to_string();
            assert!(!text.contains('\n'));
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["jsonrpc"], "2.0");
            assert_ne!(answer.get("result").is_some(), answer.get("error").is_some());
        }
    }
}
