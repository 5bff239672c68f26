//! The protocol of the control socket: JSON-RPC 2.0, one message per line.
//!
//! ```
//! use picnic_control::protocol::{Message, parse};
//! use picnic_control::request::Request;
//! let line = br#"{"jsonrpc": "2.0", "id": 1, "method": "card.stats"}"#;
//! let Message::One(call) = parse(line) else { panic!("no batch") };
//! assert!(matches!(call.request, Ok(Request::Stats { .. })));
//! ```
//!
//! Guarantees: any bytes become calls or errors, without a panic; a message nested
//! deeper than 127 levels is a parse error. A call without `id` is a notification, and
//! never answered. The parameters of a call are complete and in range before it is executed.
//!
//! Source: JSON-RPC 2.0 Specification (2013); [`request`] for the methods.

use crate::request::{self, Request};
use picnic_core::error::{brief, not_among};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The version of methods and fields; a change breaks existing clients.
pub const VERSION: u32 = 1;
/// Bytes of the longest line.
// Some twenty thousand filters in one call.
pub const LONGEST_LINE: usize = 4 << 20;
/// Calls in the longest batch.
pub const LONGEST_BATCH: usize = 32;

/// The error of a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RpcError {
    /// One of the codes below.
    pub code: i64,
    /// The value found and the values allowed.
    pub message: String,
    /// The place in a card file: `file`, `line`, `key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// Not a JSON-RPC 2.0 request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are wrong.
pub const INVALID_PARAMS: i64 = -32602;
/// The card cannot do this now, or never.
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
        RpcError { code, message: brief(&message.into()).into_owned(), data: None }
    }
}

/// A parsed line.
#[derive(Debug)]
pub enum Message {
    /// One call.
    One(Box<Call>),
    /// A batch, answered with a list.
    Many(Vec<Call>),
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// The id of its answer; none for a notification.
    pub id: Option<Value>,
    /// The request, or its error.
    pub request: Result<Request, RpcError>,
}

/// A wrong parameter.
pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(INVALID_PARAMS, message)
}

/// Parses a line, without its end.
pub fn parse(line: &[u8]) -> Message {
    let nameless = |code, message: String| {
        let request = Err(RpcError::new(code, message));
        Message::One(Box::new(Call { id: Some(Value::Null), request }))
    };
    match serde_json::from_slice(line) {
        Err(error) => nameless(PARSE_ERROR, format!("the line is not JSON: {error}")),
        Ok(Value::Array(items)) if items.is_empty() => {
            nameless(INVALID_REQUEST, "found an empty batch, allowed: one or more calls".into())
        }
        Ok(Value::Array(items)) if items.len() > LONGEST_BATCH => {
            let message =
                format!("found a batch of {} calls, allowed: 1 to {LONGEST_BATCH}", items.len());
            nameless(INVALID_REQUEST, message)
        }
        Ok(Value::Array(items)) => Message::Many(items.into_iter().map(call).collect()),
        Ok(value) => Message::One(Box::new(call(value))),
    }
}

/// A JSON value's kind, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
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
        let message = format!("found {}, allowed: a request object", kind(&value));
        return wrong(Value::Null, message);
    };
    let id = fields.remove("id");
    let id = match id {
        Some(id @ (Value::Array(_) | Value::Object(_) | Value::Bool(_))) => {
            let message = format!("id: found {}, allowed: a string or a number", kind(&id));
            return wrong(Value::Null, message);
        }
        id => id,
    };
    let known = || id.clone().unwrap_or(Value::Null);
    match fields.get("jsonrpc") {
        Some(Value::String(version)) if version == "2.0" => {}
        Some(Value::String(version)) => {
            return wrong(known(), format!("jsonrpc: found \"{version}\", allowed: \"2.0\""));
        }
        Some(other) => {
            return wrong(known(), format!("jsonrpc: found {}, allowed: \"2.0\"", kind(other)));
        }
        None => return wrong(known(), "jsonrpc: found none, allowed: \"2.0\"".into()),
    }
    let method = match fields.remove("method") {
        Some(Value::String(method)) => method,
        Some(other) => {
            return wrong(known(), format!("method: found {}, allowed: a name", kind(&other)));
        }
        None => return wrong(known(), "method: missing".into()),
    };
    let params = match fields.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        // Positional parameters are impossible: all parameters have names.
        Some(Value::Array(list)) if list.is_empty() => Map::new(),
        Some(Value::Array(_)) => {
            let request = Err(invalid("params: found a list, allowed: an object"));
            return Call { id, request };
        }
        Some(other) => {
            return wrong(known(), format!("params: found {}, allowed: an object", kind(&other)));
        }
    };
    const FIELDS: [&str; 4] = ["jsonrpc", "id", "method", "params"];
    if let Some(field) = fields.keys().find(|field| *field != "jsonrpc") {
        return wrong(known(), not_among("", field, FIELDS.into_iter()));
    }
    Call { id, request: request::read(&method, params) }
}

/// An answer.
pub fn answer(id: &Value, outcome: &Result<Value, RpcError>) -> Value {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    }
}

#[cfg(test)]
mod tests;
