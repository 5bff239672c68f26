//! Messages over the control socket, valid and invalid.

use super::*;
use crate::request::{ComponentPlace, methods};
use picnic_core::config::InterruptSection;
use picnic_core::direction::Direction;
use proptest::prelude::*;

fn one(line: &str) -> Call {
    match parse(line.as_bytes()) {
        Message::One(call) => *call,
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
    for method in methods() {
        let found = one(&with(&method.name, "{}")).request;
        let is_known = match &found {
            Ok(request) => !matches!(request, Request::Component(_)),
            Err(error) => error.code == INVALID_PARAMS,
        };
        assert!(is_known, "{}: {found:?}", method.name);
        // Only mandatory parameters are reported as missing.
        let required = method.params.iter().find(|param| param.required);
        if let (Err(error), Some(required)) = (&found, required) {
            assert_eq!(error.message, format!("{}: missing, must be given", required.key.name));
        }
        let (code, message) = error(&with(&method.name, r#"{"no_such_thing":1}"#));
        assert_eq!(code, INVALID_PARAMS, "{}: {message}", method.name);
        let start = "no_such_thing: found key \"no_such_thing\", allowed: ";
        assert!(message.starts_with(start), "{}: {message}", method.name);
    }
    let (code, message) = error(&with("reboot", "{}"));
    assert_eq!(code, METHOD_NOT_FOUND);
    assert!(message.starts_with("found method \"reboot\", allowed: card.info, "), "{message}");
}

#[test]
fn methods_have_help_and_so_have_their_parameters() {
    assert!(methods().len() > 20);
    for method in methods() {
        assert!(method.help.ends_with('.'), "{}: {:?}", method.name, method.help);
        for param in &method.params {
            let key = &param.key;
            assert!(!key.help.is_empty(), "{}: {} has no help", method.name, key.name);
            assert!(!key.r#type.is_empty(), "{}: {} has no type", method.name, key.name);
        }
    }
}

#[test]
fn unknown_methods_are_component_commands() {
    let request = one(&with("rss.set", r#"{"chain":"tx","position":2,"key":"symmetric"}"#)).request;
    let Ok(Request::Component(call)) = request else { panic!("{request:?}") };
    assert_eq!((&*call.component, &*call.command), ("rss", "set"));
    let place = ComponentPlace { chain: Direction::Tx, position: Some(2), task: None };
    assert_eq!((call.place, call.arguments.len()), (place, 1));
}

#[test]
fn answers_carry_the_id_and_notifications_get_none() {
    for id in ["1", "-7", "1.5", "\"a\"", "null", "\"\""] {
        let call = one(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"card.info"}}"#));
        assert_eq!(call.id, Some(serde_json::from_str(id).unwrap()));
        assert_eq!(call.request, Ok(Request::Info {}));
    }
    let call = one(r#"{"jsonrpc":"2.0","method":"card.stop","params":[]}"#);
    assert_eq!((call.id, call.request), (None, Ok(Request::Stop {})));
    // Wrong, but known to be a notification: no answer.
    assert_eq!(one(r#"{"jsonrpc":"2.0","method":"card.reboot"}"#).id, None);
    // Not even a request: answered with the id null, as specified.
    assert_eq!(one(r#"{"foo":"bar"}"#).id, Some(Value::Null));
}

#[test]
fn invalid_requests_name_the_field() {
    for (line, code, message) in [
        ("", PARSE_ERROR, "the line is not JSON: "),
        ("{\"jsonrpc\"", PARSE_ERROR, "the line is not JSON: "),
        ("\u{0}\u{1}", PARSE_ERROR, "the line is not JSON: "),
        ("3", INVALID_REQUEST, "found a number, allowed: a request object"),
        ("[]", INVALID_REQUEST, "found an empty batch"),
        ("{}", INVALID_REQUEST, "jsonrpc: found none, allowed: \"2.0\""),
        (r#"{"jsonrpc":"1.0"}"#, INVALID_REQUEST, "jsonrpc: found \"1.0\""),
        (r#"{"jsonrpc":2.0}"#, INVALID_REQUEST, "jsonrpc: found a number"),
        (r#"{"jsonrpc":"2.0"}"#, INVALID_REQUEST, "method: missing"),
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
            "found \"parms\", allowed: jsonrpc, id, method, params",
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
        ("card.info", r#"{"x":1}"#, "x: found key \"x\", allowed: none"),
        ("card.info", "[1]", "params: found a list, allowed: an object"),
        ("rss.get", r#"{"chain":"up"}"#, "chain: found \"up\", allowed: rx, tx"),
        ("rss.get", r#"{"position":-1}"#, "position: found -1, allowed: a whole number from 0"),
        ("moderation.set", "{}", "params: found none, allowed: rx_usecs, rx_frames"),
        (
            "moderation.set",
            r#"{"mode":"static"}"#,
            "mode: found key \"mode\", allowed: rx_usecs, rx_frames",
        ),
        ("moderation.set", r#"{"adaptive":1}"#, "adaptive: found 1, allowed: true or false"),
        (
            "moderation.set",
            r#"{"poll_usecs":1000001}"#,
            "poll_usecs: found 1000001, allowed: 0 to 1000000",
        ),
        ("moderation.set", r#"{"rx_usecs":-1}"#, "rx_usecs: found -1, allowed: 0 to 1000000"),
        ("chain.swap", r#"{"chain":"rx"}"#, "params: found none, allowed: one of toml, functions"),
        ("chain.swap", r#"{"toml":""}"#, "chain: missing, must be given"),
        ("task.list", r#"{"x":1}"#, "x: found key \"x\", allowed: none"),
        ("task.kill", "{}", "task: missing, must be given"),
        ("task.kill", r#"{"task":1,"x":1}"#, "x: found key \"x\", allowed: task"),
        ("task.suspend", r#"{"task":-1}"#, "task: found -1, allowed: a number or a name"),
        ("task.resume", r#"{"task":[]}"#, "task: found [], allowed: a number or a name"),
        ("task.set_priority", r#"{"task":1}"#, "priority: missing, must be given"),
        (
            "task.set_priority",
            r#"{"task":1,"priority":256}"#,
            "priority: found 256, allowed: a whole number, 0 to 255",
        ),
        ("task.create", r#"{"keys":{}}"#, "task: missing, must be given"),
        ("task.create", r#"{"task":3}"#, "task: found 3, allowed: text in quotes"),
        ("task.create", r#"{"task":"busy","keys":[]}"#, "keys: found [], allowed: a set of keys"),
        ("capture.start", r#"{"stages":[]}"#, "stages: found an empty list, allowed: one"),
        ("capture.start", r#"{"stages":["eth"]}"#, "stages[0]: found \"eth\", allowed: wire"),
        ("capture.start", r#"{"snap_bytes":0}"#, "snap_bytes: found 0, allowed: 1"),
        ("capture.start", r#"{"packets":0}"#, "packets: found 0, allowed: 1"),
        ("capture.start", r#"{"buffer_bytes":1}"#, "buffer_bytes: found 1, allowed"),
        ("capture.stop", "{}", "capture: missing, must be given"),
    ] {
        let (code, found) = error(&with(method, params));
        assert_eq!(code, INVALID_PARAMS, "{method} {params}: {found}");
        assert!(found.starts_with(message), "{method} {params}: {found}");
    }
}

#[test]
fn batches_have_one_call_per_item() {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"card.info"}"#;
    let line = format!("[{call}, 1, {call}]");
    let Message::Many(calls) = parse(line.as_bytes()) else { panic!("one") };
    let good: Vec<_> = calls.iter().map(|call| call.request.is_ok()).collect();
    assert_eq!(good, [true, false, true]);
    let of = |items: usize| format!("[{}1]", "1,".repeat(items - 1));
    assert!(
        matches!(parse(of(LONGEST_BATCH).as_bytes()), Message::Many(calls) if calls.len() == 32)
    );
    assert_eq!(error(&of(LONGEST_BATCH + 1)).0, INVALID_REQUEST);
}

#[test]
fn moderation_round_trips_and_keeps_missing_keys() {
    let card = InterruptSection { rx_usecs: 7, rx_frames: 64, poll_usecs: 3, ..Default::default() };
    let set = |params: &str| match one(&with("moderation.set", params)).request {
        Ok(Request::ModerationSet(change)) => card.changed(&change).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(set(&serde_json::to_string(&card).unwrap()), card);
    assert_eq!(set(r#"{"rx_usecs":50}"#), InterruptSection { rx_usecs: 50, ..card.clone() });
    let wanted = InterruptSection { adaptive: true, tx_usecs: 9, ..card.clone() };
    assert_eq!(set(r#"{"adaptive":true,"tx_usecs":9}"#), wanted);
}

/// JSON of any shape, often the shape of a request.
fn any_json() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("2.0".to_owned()),
        proptest::sample::select(methods()).prop_map(|method| method.name.clone()),
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

/// The answer to any input is one line of JSON with either result or error.
fn check(line: &[u8]) {
    let calls = match parse(line) {
        Message::One(call) => vec![*call],
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
