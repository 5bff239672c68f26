//! Checks for every registry: names, help, keys, and the commands of its entries.
//!
//! Included by the conformance tests of each crate that has one.

#![allow(dead_code, unreachable_pub)]

use allocation_counter::AllocationInfo;
use picnic_core::command::{CommandEntry, CommandError, Order, Prepared};
use picnic_core::config::Section;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use serde_json::json;
use std::collections::HashSet;

/// One style in all registries: "drop every packet".
fn is_help(help: &str) -> bool {
    let starts_low = help.starts_with(|first: char| first.is_ascii_lowercase());
    help.len() <= 64 && starts_low && !help.contains(['.', '\n'])
}

/// Each entry by its name, which the key `kind` of a section holds.
pub fn entries_are_explained<P>(kind: &'static str, entries: &[Entry<P>]) {
    let mut names = HashSet::new();
    for entry in entries {
        let name = entry.name;
        assert!(names.insert(name), "{name} twice");
        assert!(is_help(entry.help), "{name}: {}", entry.help);
        for key in entry.keys() {
            assert!(!key.help.is_empty(), "{name}.{} has no help", key.name);
            assert!(!key.r#type.is_empty(), "{name}.{} has no type", key.name);
        }
        let text = format!("{kind} = \"{name}\"\nno_such_key = 1");
        let section = Section::from_text(kind, &text).unwrap();
        let error = entry.build(&section, &BuildContext::default()).map(drop).unwrap_err();
        let message = error.to_string();
        let start = "card:2: no_such_key: found key \"no_such_key\", allowed: ";
        assert!(message.starts_with(start), "{name}: {message}");
    }
}

/// Every command: explained, its arguments read, its example applied by `obey` to the product of
/// `build` without allocating or freeing; its result as declared.
pub fn commands_are_obeyed<P>(
    entries: &[Entry<P>],
    context: &BuildContext,
    build: impl Fn(&Entry<P>) -> P,
    obey: impl Fn(&mut P, &mut Prepared, Time) -> bool,
) {
    commands_are_explained(entries, context);
    let done = examples_are_obeyed(entries, context, build, obey);
    for (name, memory) in done {
        assert_eq!(memory, AllocationInfo::default(), "{name}");
    }
}

fn commands_of<P>(
    entries: &[Entry<P>],
) -> impl Iterator<Item = (String, &Entry<P>, &'static CommandEntry)> {
    entries.iter().flat_map(|entry| {
        let named = |command: &CommandEntry| format!("{}.{}", entry.name, command.name);
        entry.commands.iter().map(move |command| (named(command), entry, command))
    })
}

/// Every command: explained, its example's arguments read, wrong ones refused with their key.
pub fn commands_are_explained<P>(entries: &[Entry<P>], context: &BuildContext) {
    for (name, entry, command) in commands_of(entries) {
        let same = entry.commands.iter().filter(|other| other.name == command.name);
        assert_eq!(same.count(), 1, "{name} stands twice");
        assert!(command.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        assert!(is_help(command.help), "{name}: {}", command.help);
        let arguments = command.arguments();
        let keys = arguments.iter().map(|argument| argument.key.clone());
        for key in keys.chain(command.results()) {
            assert!(!key.help.is_empty(), "{name}: {} has no help", key.name);
            assert!(!key.r#type.is_empty(), "{name}: {} has no type", key.name);
            // These name the component.
            let says_which = ["chain", "position", "task"].contains(&&*key.name);
            assert!(!says_which, "{name}: {}", key.name);
        }
        let required = arguments.iter().find(|argument| argument.required);
        match (command.prepare(&json!({}), context), required) {
            (Ok(_), required) => assert!(required.is_none(), "{name}: {required:?} has a default"),
            (Err(CommandError::Argument(wrong)), Some(required)) => {
                let missing = format!("{}: missing, must be given", required.key.name);
                assert_eq!(wrong.to_string(), missing);
            }
            (Err(CommandError::Argument(wrong)), None) => {
                let says = ["allowed", "expected"].iter().any(|word| wrong.message.contains(word));
                assert!(says, "{name}: {wrong}");
            }
            (Err(other), _) => panic!("{name}: {other}"),
        }
        let wrong = command.prepare(&json!({ "no_such_argument": 1 }), context).unwrap_err();
        let start = "no_such_argument: found key \"no_such_argument\", allowed: ";
        assert!(wrong.to_string().starts_with(start), "{name}: {wrong}");
        for value in [json!([]), json!(1), json!("x"), json!(null)] {
            assert!(command.prepare(&value, context).is_err(), "{name}: {value}");
        }
        let example: serde_json::Value = serde_json::from_str(command.example).unwrap();
        command.prepare(&example, context).unwrap_or_else(|error| panic!("{name}: {error}"));
        for key in arguments.iter().map(|argument| &argument.key.name) {
            let mut wrong = example.clone();
            wrong[key] = json!([{}]);
            let message = command.prepare(&wrong, context).unwrap_err().to_string();
            assert!(message.starts_with(&**key), "{name}: {message}");
        }
    }
}

/// Every command: its example applied by `obey` to the product of `build`, its result as declared.
/// Returns the memory used, by command.
pub fn examples_are_obeyed<P>(
    entries: &[Entry<P>],
    context: &BuildContext,
    build: impl Fn(&Entry<P>) -> P,
    obey: impl Fn(&mut P, &mut Prepared, Time) -> bool,
) -> Vec<(String, AllocationInfo)> {
    let mut all = Vec::new();
    for (name, entry, command) in commands_of(entries) {
        let mut component = build(entry);
        let example = serde_json::from_str(command.example).unwrap();
        let mut order = command.prepare(&example, context).unwrap();
        let mut done = false;
        let memory = allocation_counter::measure(|| {
            done = obey(&mut component, &mut order, Time::ZERO);
        });
        assert!(done, "{name} was not done");
        let reply = command.reply(order).unwrap();
        let fields: HashSet<_> = reply.as_object().unwrap().keys().cloned().collect();
        let declared: HashSet<_> = command.results().into_iter().map(|key| key.name).collect();
        assert_eq!(fields, declared, "{name}");
        let text = command.text(&reply, "there");
        assert!(text.ends_with('\n') && text.len() > 1, "{name}: {text:?}");
        // An order of another component is ignored, and its result is not a result.
        struct Stray;
        impl Order for Stray {
            type Target = ();
            fn apply(&mut self, _: &mut (), _: Time) -> bool {
                true
            }
        }
        assert!(!obey(&mut component, &mut Prepared::new(Stray), Time::ZERO), "{name}");
        assert!(command.reply(Prepared::new(Stray)).is_err(), "{name}");
        all.push((name, memory));
    }
    all
}
