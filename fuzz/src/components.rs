//! Cards made from everything in the registries, with keys and values by their types.
//!
//! Mutated text rarely is a working card. Here the bytes choose components, keys and values from
//! each entry's description, so a new function, port or attachment is covered once its line is in
//! the list. The resulting card is text and takes the same path as every other: see
//! [`crate::card`].
//!
//! The lists are the simulator's, which open no interfaces of this machine.

use crate::card;
use arbitrary::{Result, Unstructured};
use picnic_core::config::KeyHelp;
use picnic_core::registry::Entry;
use picnic_sim::registries;
use std::cell::OnceCell;
use std::fmt::Write;

/// Makes a card from the bytes, builds it, runs it.
pub fn run(data: &[u8]) {
    let text = KNOWN.with(|known| {
        let known = known.get_or_init(Known::of_registries);
        known.card(&mut Unstructured::new(data)).unwrap_or_default()
    });
    card::run(text.as_bytes());
}

thread_local! {
    // Describing the entries takes longer than running a card.
    static KNOWN: OnceCell<Known> = const { OnceCell::new() };
}

/// Names and keys of all components of a kind.
type Components = Vec<(&'static str, Vec<KeyHelp>)>;

/// The parts of a possible card.
struct Known {
    wires: Components,
    functions: Components,
    attachments: Components,
    sections: Components,
}

impl Known {
    fn of_registries() -> Known {
        fn all<P>(entries: &[Entry<P>]) -> Components {
            entries.iter().map(|entry| (entry.name, entry.keys())).collect()
        }
        let registries = registries();
        Known {
            wires: all(registries.wires),
            functions: all(registries.functions),
            attachments: all(registries.attachments),
            sections: picnic_host::sections()
                .iter()
                .map(|entry| (entry.name, entry.keys()))
                .collect(),
        }
    }

    fn card(&self, u: &mut Unstructured<'_>) -> Result<String> {
        // Small enough to run.
        let mut text = String::from("[pool]\nbuffers = 256\nbuffer_size = 512\n");
        for (name, keys) in &self.sections {
            if matches!(*name, "card" | "interrupt" | "isolation") {
                let _ = writeln!(text, "[{name}]");
                put(&mut text, u, keys)?;
            }
        }
        let _ = writeln!(text, "[host]\nqueues = {}", u.int_in_range(1..=4)?);
        let _ = writeln!(text, "ring_size = 64\ntx_ring_size = {}", u.choose(&[64, 256])?);
        component(&mut text, u, "attachment", &self.attachments)?;
        for _ in 0..u.int_in_range(1..=2)? {
            text.push_str("[[wire]]\n");
            component(&mut text, u, "port", &self.wires)?;
            for inner in ["wire.link", "wire.fault"] {
                if !u.ratio(2, 3)? {
                    let _ = writeln!(text, "[{inner}]");
                    let section = self.sections.iter().find(|(name, _)| *name == inner);
                    put(&mut text, u, section.map_or(&[], |(_, keys)| keys))?;
                }
            }
        }
        for section in ["[[rx]]\n", "[[tx]]\n"] {
            for _ in 0..u.int_in_range(0..=3)? {
                text.push_str(section);
                component(&mut text, u, "function", &self.functions)?;
            }
        }
        Ok(text)
    }
}

fn component(
    text: &mut String,
    u: &mut Unstructured<'_>,
    kind: &str,
    components: &Components,
) -> Result<()> {
    // The first of a list works without anything else.
    let (name, keys) = if u.ratio(2, 3)? { &components[0] } else { u.choose(components)? };
    let _ = writeln!(text, "{kind} = \"{name}\"");
    put(text, u, keys)
}

/// Writes some keys with values; none once the bytes are used up.
pub(crate) fn put(text: &mut String, u: &mut Unstructured<'_>, keys: &[KeyHelp]) -> Result<()> {
    for key in keys {
        let chosen = match !u.ratio(7, 8)? {
            true if !u.ratio(3, 4)? && !key.default.is_empty() => Some(key.default.clone()),
            true => Some(value(u, &key.r#type)?),
            false => None,
        };
        if let Some(value) = cheap(key, chosen) {
            let _ = writeln!(text, "{} = {value}", key.name);
        }
    }
    Ok(())
}

/// The same value, or one for which a card is built quickly: drawing the usual thousands of flows
/// takes four times as long as everything else. The consumed bytes stay the same.
fn cheap(key: &KeyHelp, chosen: Option<String>) -> Option<String> {
    let is_many = |value: &String| value.parse().is_ok_and(|flows: u64| flows > FLOWS);
    match chosen {
        chosen if key.name != "flows" => chosen,
        Some(few) if !is_many(&few) => Some(few),
        _ => Some(FLOWS.to_string()),
    }
}

/// Flows of a generator, at most.
const FLOWS: u64 = 16;

/// A value of a type as help names it: `integer`, `"a" | "b"`, `list of number`.
fn value(u: &mut Unstructured<'_>, of: &str) -> Result<String> {
    if let Some(items) = of.strip_prefix("list of ") {
        let values: Result<Vec<_>> = (0..u.int_in_range(0..=4)?).map(|_| value(u, items)).collect();
        return Ok(format!("[{}]", values?.join(", ")));
    }
    let alternatives: Vec<_> = of.split(" | ").collect();
    let chosen = *u.choose(&alternatives)?;
    let values: &[&str] = match chosen {
        // The text after the quotes is an explanation.
        literal if literal.starts_with('"') => {
            return Ok(literal.split_inclusive('"').take(2).collect());
        }
        "boolean" => &["true", "false"],
        "number" => &["0.0", "0.01", "0.5", "1.0", "1.5", "-1.0", "1e300", "nan", "inf"],
        "string" => &["\"x\"", "\"\"", "\"6d5a\"", "\"0123456789abcdef\""],
        _ => &["1", "2", "3", "0", "60", "64", "100", "1000", "1514", "65535", "4294967296", "-1"],
    };
    Ok((*u.choose(values)?).to_owned())
}

/// Initial inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..64u32)
        .map(|seed| {
            let byte = |index: u32| {
                (index.wrapping_add(seed << 16).wrapping_mul(2_654_435_761) >> 13) as u8
            };
            (0..512).map(byte).collect()
        })
        .collect()
}
