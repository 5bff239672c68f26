//! The control socket: any line becomes calls or errors, and each gets an answer.
//!
//! The arguments of a call are then in range, and the answer is one line of JSON. The text of a
//! swap is a card file, which has its own target.

use picnic_control::methods::components::commanded;
use picnic_control::protocol::{Call, LONGEST_BATCH, Message, answer, parse};
use picnic_control::request::{Request, methods};
use picnic_core::config::InterruptSection;
use picnic_core::registry::BuildContext;
use serde_json::Value;

/// Reads the bytes as lines of the control socket.
pub fn run(data: &[u8]) {
    for line in data.split(|&byte| byte == b'\n').take(16) {
        match parse(line) {
            Message::One(call) => check(*call),
            Message::Many(calls) => {
                assert!((1..=LONGEST_BATCH).contains(&calls.len()));
                calls.into_iter().for_each(check);
            }
        }
    }
}

fn check(call: Call) {
    let Call { id, request } = call;
    match &request {
        Ok(Request::ModerationSet(change)) => {
            let set =
                InterruptSection::default().changed(change).expect("what was read is in range");
            let times = [set.rx_usecs, set.poll_usecs, set.tx_usecs];
            assert!(!change.is_empty() && times.iter().all(|&usecs| usecs <= 1_000_000));
        }
        Ok(Request::Component(call)) => {
            // A component turns arguments into an order or an error.
            let named = commanded(&picnic_host::registries())
                .filter(|(_, name, _)| *name == call.component);
            let mut commands = named.flat_map(|(_, _, commands)| commands);
            if let Some(command) = commands.find(|command| command.name == call.command) {
                let arguments = Value::Object(call.arguments.clone());
                let _ = command.prepare(&arguments, &BuildContext::default());
            }
        }
        Ok(Request::ChainSwap(swap)) => assert_ne!(swap.toml.is_some(), swap.functions.is_some()),
        Ok(Request::CaptureStart(wanted)) => assert_eq!(wanted.check(), Ok(())),
        Ok(_) => {}
        Err(error) => assert!(error.code < 0 && !error.message.is_empty(), "{error:?}"),
    }
    let outcome = request.map(|_| Value::Null);
    let text = answer(&id.unwrap_or(Value::Null), &outcome).to_string();
    assert!(!text.contains('\n'), "an answer of several lines: {text}");
    let answer: Value = serde_json::from_str(&text).expect("an answer that is no JSON");
    assert_ne!(answer.get("result").is_some(), answer.get("error").is_some());
}

/// A call of each method, and texts that are not calls.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut lines: Vec<String> = methods()
        .iter()
        .map(|method| &method.name)
        .map(|name| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}","params":{{}}}}"#))
        .collect();
    for (method, params) in [
        ("rss.get", r#"{"chain":"tx","position":3}"#),
        ("rss.set", r#"{"key":"symmetric","table":[0,1,2]}"#),
        ("rss.set", r#"{"table_size":64}"#),
        ("generator.set", r#"{"rate_pps":1000,"position":0}"#),
        ("edf-plus.set", r#"{"slack":"lookahead"}"#),
        ("moderation.set", r#"{"adaptive":false,"rx_usecs":20,"rx_frames":64}"#),
        ("moderation.set", r#"{"adaptive":true,"rx_usecs":50}"#),
        ("moderation.set", r#"{"rx_usecs":0}"#),
        ("chain.swap", r#"{"chain":"rx","toml":"[[rx]]\nfunction = \"pass\"\n","file":"/x"}"#),
        ("chain.swap", r#"{"chain":"tx","functions":[{"function":"rss","types":["ipv4"]}]}"#),
        (
            "capture.start",
            r#"{"stages":["wire","rx","queue","tx"],"snap_bytes":64,"packets":9,"bytes":9,"attached":true}"#,
        ),
        ("capture.stop", r#"{"capture":1}"#),
    ] {
        lines
            .push(format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{params}}}"#));
    }
    let batch = format!("[{},{},3]", lines[0], lines[5]);
    lines.push(batch);
    lines.extend(["[]", "{}", "{\"jsonrpc\":\"2.0\"", "\n\n", "[[[["].map(str::to_owned));
    lines.into_iter().map(String::into_bytes).collect()
}
