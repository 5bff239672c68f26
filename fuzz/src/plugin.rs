//! The boundary to shared objects: any schema and keys, and an object that returns anything.
//!
//! The object is trusted code, so only its return values are varied: it follows the first bytes of
//! each packet (`scripted.c`, compiled at the first input).

use crate::frames;
use arbitrary::{Result, Unstructured};
use picnic_core::config::Section;
use picnic_core::direction::Direction;
use picnic_core::function::Function;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Released, Trial};
use picnic_plugin::ENTRY;
use picnic_plugin::schema::Schema;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

/// One instance for all inputs: loading takes longer than an input.
struct Scripted {
    function: Box<dyn Function>,
    context: BuildContext,
}

thread_local! {
    static SCRIPTED: RefCell<Option<Scripted>> = const { RefCell::new(None) };
}

impl Scripted {
    fn new() -> Scripted {
        let folder = tempfile::tempdir().expect("a folder for the object");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/plugin");
        let object = folder.path().join("scripted.so");
        let done = Command::new("cc")
            .args(["-std=c11", "-O1", "-shared", "-fPIC", "-I"])
            .arg(root.join("include"))
            .arg("-o")
            .arg(&object)
            .arg(root.join("tests/objects/scripted.c"))
            .status();
        assert!(done.expect("a C compiler").success());
        let text = "plugin = \"scripted.so\"";
        let section = Section::from_text("function", text).expect("a section");
        let context = BuildContext {
            wires: 3,
            buffer_size: 256,
            buffers: 1024,
            directory: folder.path().into(),
            ..BuildContext::default()
        };
        // The object is in memory; its file may be removed.
        let function = ENTRY.build(&section, &context).expect("the object loads");
        Scripted { function, context }
    }
}

/// The first byte selects the side of the boundary.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = match u.arbitrary::<u8>() {
        Ok(0..=63) => keys(u),
        Ok(64..=127) => commands(u),
        Ok(_) => packets(u),
        Err(_) => Ok(()),
    };
}

/// A schema and keys as text: an error, or keys that pass again unchanged.
fn keys(mut u: Unstructured<'_>) -> Result<()> {
    let length = usize::from(u.arbitrary::<u16>()?).min(u.len());
    let schema = String::from_utf8_lossy(u.bytes(length)?).into_owned();
    let Ok(schema) = Schema::parse(Some(&schema)) else { return Ok(()) };
    let _ = schema.keys();
    let given = String::from_utf8_lossy(u.take_rest()).into_owned();
    let given = serde_json::from_str::<Map<String, Value>>(&given).unwrap_or_default();
    match schema.complete(given) {
        Ok(complete) => {
            let again = schema.complete(complete.clone()).expect("what is complete passes");
            assert_eq!(again, complete);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

/// Commands that the object answers with any text.
fn commands(mut u: Unstructured<'_>) -> Result<()> {
    let is_done: bool = u.arbitrary()?;
    let said = String::from_utf8_lossy(u.take_rest()).into_owned();
    let arguments = if is_done { json!({}) } else { json!({ "a": 1 }) };
    let call = json!({ "command": said, "arguments": arguments });
    let entry =
        ENTRY.commands.iter().find(|entry| entry.name == "call").expect("a plugin can be called");
    with_scripted(|scripted| {
        let mut order = entry.prepare(&call, &scripted.context).expect("it is a call");
        let done = scripted.function.obey(&mut order, Time::ZERO);
        assert_eq!(done, is_done);
        if let Ok(reply) = entry.reply(order) {
            assert!(is_done && reply["answer"].is_object(), "{reply}");
        }
    });
    Ok(())
}

fn packets(mut u: Unstructured<'_>) -> Result<()> {
    let direction = Direction::ALL[usize::from(u.arbitrary::<bool>()?)];
    with_scripted(|scripted| {
        let Scripted { function, context } = scripted;
        let mut trial = Trial::new(context, direction).expect("a small pool");
        let (mut given, mut outcomes) = (Vec::new(), Vec::new());
        while !u.is_empty() && given.len() < 64 {
            let length = usize::from(u.arbitrary::<u16>()? % 1024).min(u.len());
            let bytes = u.bytes(length)?;
            given.push(bytes);
            let now = Time::from_nanos(given.len() as u64);
            outcomes.extend(
                trial.give(&mut **function, now, 0, bytes).expect("each packet has one fate"),
            );
        }
        outcomes.extend(trial.end(&mut **function).expect("all buffers come home"));
        assert_eq!(outcomes.len(), given.len());
        outcomes.iter().for_each(|outcome| check(outcome, &given));
        Ok(())
    })
}

/// A packet that left has its own bytes where any remain.
fn check(outcome: &Released, given: &[&[u8]]) {
    if matches!(outcome.fate, Fate::Dropped(_) | Fate::Consumed) {
        return;
    }
    let given = given[outcome.number.expect("the object makes none")];
    let Some(&[a, b, c, d, .., low, high, done]) = given.first_chunk::<11>() else {
        return assert_eq!(outcome.data, given);
    };
    let moved = match done & 7 {
        0 => 0,
        // A held packet is processed again, by its then first bytes.
        2 if i32::from_le_bytes([a, b, c, d]) != picnic_plugin::abi::HOLD => {
            isize::from(i16::from_le_bytes([low, high]))
        }
        _ => return,
    };
    for (at, byte) in outcome.data.iter().enumerate() {
        let before = at.checked_add_signed(moved).and_then(|at| given.get(at));
        assert!(before.is_none_or(|before| before == byte), "byte {at}, moved {moved}: {given:?}");
    }
}

fn with_scripted<T>(body: impl FnOnce(&mut Scripted) -> T) -> T {
    SCRIPTED.with_borrow_mut(|scripted| body(scripted.get_or_insert_with(Scripted::new)))
}

/// Keys of the examples' kinds, commands, and frames that begin with a script.
pub fn seeds() -> Vec<Vec<u8>> {
    let schema = json!({
        "properties": {
            "rate": { "type": "integer", "minimum": 1, "maximum": 100, "default": 10 },
            "share": { "type": "number", "minimum": 0 },
            "mode": { "enum": ["drop", "pass"], "default": "drop" },
            "ports": { "type": "array", "items": { "type": "integer", "maximum": 65535 } },
            "name": { "type": "string" },
            "on": { "type": "boolean" },
        },
        "required": ["name"],
    })
    .to_string();
    let given = [
        json!({ "name": "a", "ports": [53], "on": true }),
        json!({ "name": "", "rate": 0 }),
        json!({ "share": 0.5, "mode": "x" }),
    ];
    let keys = given.iter().map(|given| {
        let length = (schema.len() as u16).to_le_bytes();
        [&[0], &length[..], schema.as_bytes(), given.to_string().as_bytes()].concat()
    });
    let commands = ["{}", "{\"a\": 1}", "no JSON"].map(|said| [&[64, 1], said.as_bytes()].concat());
    let targets = [-1, 0, 3, 4, -2, -3, -4, -5, -256, -258, -600, i32::MIN, 1 << 20];
    let packets = targets.iter().flat_map(|&target: &i32| {
        [0, 1, 2, 3, 4].map(|done| {
            let script = [&target.to_le_bytes()[..], &60_u32.to_le_bytes(), &[2, 0, done]].concat();
            let frames = frames::all().into_iter().take(4).map(|frame| {
                let frame = [&script[..], frame.get(11..).unwrap_or_default()].concat();
                [&(frame.len() as u16).to_le_bytes()[..], &frame].concat()
            });
            [vec![128, 1], frames.collect::<Vec<_>>().concat()].concat()
        })
    });
    keys.chain(commands).chain(packets).collect()
}
