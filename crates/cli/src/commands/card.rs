//! `picnic card`: the built-in demonstration card as a file to start from.

use crate::commands::components::{Kind, keys_table};
use crate::output;
use crate::template::{self, Component};
use clap::Args;
use picnic_core::config::{CardFile, DEMONSTRATION, KeyHelp, common_sections, keys_of};
use picnic_ports::middleware::fault::FaultConfig;
use picnic_ports::middleware::tracer::TraceConfig;
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic card > my.toml     a card file to change
  picnic card --keys        the keys that do not belong to a function, port or attachment")]
pub(crate) struct CardCommandArgs {
    /// List the keys of the sections common to all cards instead
    #[arg(long)]
    keys: bool,
}

pub(crate) fn run(args: &CardCommandArgs, json: bool) -> anyhow::Result<()> {
    if json {
        let sections: Vec<Value> = sections()
            .into_iter()
            .map(|(section, keys)| json!({ "section": section, "keys": keys }))
            .collect();
        return output::print_json(&json!({ "sections": sections, "card_toml": text()? }));
    }
    if args.keys {
        let sections: Vec<_> = sections()
            .iter()
            .map(|(section, keys)| format!("[{section}]\n{}", keys_table(keys)))
            .collect();
        return output::print(&sections.join("\n"));
    }
    output::print(&text()?)
}

/// The sections that any card may have, with their keys.
fn sections() -> Vec<(&'static str, Vec<KeyHelp>)> {
    let mut sections = common_sections();
    sections.push(("wire.fault", keys_of::<FaultConfig>()));
    sections.push(("trace", keys_of::<TraceConfig>()));
    sections
}

/// The built-in card, every key at its default.
fn text() -> anyhow::Result<String> {
    let card = CardFile::parse(DEMONSTRATION, None)?;
    let component = |kind: Kind, key, name: &str| {
        let mut list = kind.list().into_iter();
        let entry = list.find(|entry| entry.name == name);
        entry
            .map(|entry| Component {
                kind: key,
                name: entry.name,
                help: entry.help,
                keys: entry.keys,
            })
            .ok_or_else(|| anyhow::anyhow!("the built-in card names no known {key}"))
    };
    let first = |names: Vec<&str>| names.first().copied().unwrap_or_default().to_owned();
    let wire = first(card.wires.iter().map(|wire| wire.port.name()).collect());
    let rx = first(card.rx.iter().map(|section| section.name()).collect());
    Ok(template::card(
        &component(Kind::Ports, "port", &wire)?,
        &component(Kind::Functions, "function", &rx)?,
        &component(Kind::Attachments, "attachment", card.host.attachment.name())?,
        &keys_of::<FaultConfig>(),
        &keys_of::<TraceConfig>(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a card file says, without where it stands in the text.
    fn said(text: &str) -> String {
        let card = CardFile::parse(text, None).unwrap();
        let rss = |section: &picnic_core::config::Section| {
            format!("{:?}", section.parse::<picnic_functions::rss::Config>().unwrap())
        };
        let names: Vec<_> =
            card.wires.iter().map(|wire| (wire.name.clone(), wire.port.name())).collect();
        let host = &card.host;
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            card.card,
            card.pool,
            card.interrupt,
            names,
            card.rx.iter().map(rss).collect::<Vec<_>>(),
            card.tx.len(),
            (host.queues, &host.target_cores, host.ring_size, host.attachment.name()),
        )
    }

    #[test]
    fn the_printed_card_is_the_built_in_card() {
        let text = text().unwrap();
        assert_eq!(said(&text), said(DEMONSTRATION), "{text}");
        picnic_host::run::check(&CardFile::parse(&text, None).unwrap()).unwrap();
    }

    #[test]
    fn sections_that_are_switched_off_are_right_once_switched_on() {
        let text = text().unwrap();
        let is_key = |line: &str| {
            let word = line.split(" = ").next().unwrap_or_default();
            line.starts_with('[') && line.ends_with(']')
                || line.contains(" = ") && !word.contains(' ')
        };
        let switched_on: String = text
            .lines()
            .filter(|line| !line.ends_with("= ..."))
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if is_key(rest) && !rest.ends_with("[...]") => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let card = CardFile::parse(&switched_on, None).unwrap();
        let fault = card.wires[0].fault.as_ref().unwrap();
        assert!(fault.parse::<FaultConfig>().is_ok(), "{switched_on}");
        let trace = card.trace.unwrap().parse::<TraceConfig>();
        assert!(trace.is_ok(), "{trace:?} {switched_on}");
    }

    #[test]
    fn every_common_key_is_in_the_printed_card() {
        let text = text().unwrap();
        for (section, keys) in sections() {
            assert!(text.contains(&format!("[{section}]")));
            for key in keys {
                let name = format!("{} = ", key.name);
                assert!(text.lines().any(|line| line.trim_start_matches("# ").starts_with(&name)));
                assert!(!key.help.is_empty(), "{} has no help", key.name);
            }
        }
    }
}
