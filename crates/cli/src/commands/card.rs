//! `picnic card`: prints the built-in demonstration card as a file to start from.

use crate::commands::components::{Kind, keys_table};
use crate::output;
use crate::registries::sections;
use crate::template::{self, SectionText, shown};
use anyhow::Context;
use clap::Args;
use picnic_core::config::{KeyHelp, SectionEntry, Shape};
use serde_json::{Value, json};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic card > my.toml     a card file to change
  picnic card --keys        the keys of all sections
  picnic card --all         advanced keys as well")]
pub(crate) struct CardCommandArgs {
    /// List the keys of all sections instead
    #[arg(long)]
    keys: bool,
    /// Show advanced keys as well
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &CardCommandArgs, json: bool) -> anyhow::Result<()> {
    if json {
        let sections: Vec<Value> = in_order()
            .into_iter()
            .map(|entry| json!({ "section": entry.name, "keys": entry.keys() }))
            .collect();
        return output::print_json(&json!({ "sections": sections, "card_toml": text(true)? }));
    }
    if args.keys {
        let tables = in_order().into_iter().filter(|entry| !entry.keys().is_empty());
        let tables = tables.map(|entry| {
            format!("{}\n{}", entry.header(), keys_table(&shown(&entry.keys(), args.all)))
        });
        return output::print(&tables.collect::<Vec<_>>().join("\n"));
    }
    output::print(&text(args.all)?)
}

/// The note of a card without advanced keys.
const ADVANCED: &str = "each key at its default (--all: advanced keys as well)";

/// The sections of card files, nested ones after their parent.
fn in_order() -> Vec<SectionEntry> {
    let sections: Vec<SectionEntry> = sections().iter().copied().collect();
    let place = |entry: &SectionEntry| {
        let outer = entry.name.split('.').next().unwrap_or_default();
        sections.iter().position(|other| other.name == outer)
    };
    let mut sorted = sections.clone();
    sorted.sort_by_key(place);
    sorted
}

/// The built-in card, its keys at their defaults; with `all`, advanced keys as well.
fn text(all: bool) -> anyhow::Result<String> {
    let described = |entry: SectionEntry| {
        let mut keys: Vec<_> = entry.keys().into_iter().filter(|key| !key.is_section()).collect();
        if let Some(names) = entry.names {
            let kind = Kind::of(names.key);
            let mut list = kind.into_iter().flat_map(|kind| (kind.list)());
            let component = list.find(|component| component.name == names.example);
            let component = component.with_context(|| format!("no {} to show", names.key))?;
            let help = format!("{}: {}", capital(names.key), component.help);
            // A component may override a common key.
            keys.retain(|key| component.keys.iter().all(|own| own.name != key.name));
            keys.push(KeyHelp::text(names.key, component.name, help));
            keys.extend(component.keys);
        }
        let is_on = match entry.shape {
            Shape::Table => true,
            Shape::Optional => false,
            Shape::List { built_in, .. } => built_in,
        };
        let (header, help, keys) = (entry.header(), entry.help.into(), shown(&keys, all));
        Ok(SectionText { header, help, is_on, keys })
    };
    let sections: anyhow::Result<Vec<_>> = in_order().into_iter().map(described).collect();
    let which = if all { "every key at its default" } else { ADVANCED };
    Ok(template::card(&sections?, which))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::config::{CardFile, DEMONSTRATION, Section, Setting};
    use picnic_filter::config::Keys;
    use picnic_ports::middleware::fault::FaultConfig;
    use picnic_ports::middleware::tracer::TraceConfig;

    fn parse(text: &str) -> CardFile {
        sections().parse(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The contents of a card file, without positions in the text.
    fn said(text: &str) -> String {
        let card = parse(text);
        let rss = |section: &Section| {
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
            (host.queues, &host.target_cores, host.ring_size, host.section.name()),
        )
    }

    #[test]
    fn the_printed_card_is_the_built_in_card() {
        for all in [false, true] {
            let text = text(all).unwrap();
            assert_eq!(said(&text), said(DEMONSTRATION), "{text}");
            assert_eq!(text.contains("\nwatchdog_ms = "), all, "advanced");
            picnic_control::Launch::new(&parse(&text), picnic_host::registries()).build().unwrap();
        }
    }

    #[test]
    fn sections_that_are_switched_off_are_right_once_switched_on() {
        let text = text(true).unwrap();
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
        // A filter has either a five-tuple or a pattern.
        let (before, filter) = switched_on.split_once("[[filter]]").unwrap();
        let (filter, after) = filter.split_once("\n[os]").unwrap();
        let is_for_all = |line: &&str| {
            let of_some = ["base = ", "unreadable = "].iter().any(|key| line.starts_with(key));
            !line.ends_with("\"...\"") && !of_some
        };
        let filter: Vec<_> = filter.lines().filter(is_for_all).collect();
        // "..." is no MAC address.
        let is_mac = |line: &str| ["mac", "peer_mac"].contains(&line.split(" = ").next().unwrap());
        let before: Vec<_> = before.lines().filter(|line| !is_mac(line)).collect();
        let before = before.join("\n");
        let card = parse(&format!("{before}[[filter]]{}\n[os]{after}", filter.join("\n")));
        assert_eq!((card.given::<FaultConfig>().len(), card.given::<TraceConfig>().len()), (1, 1));
        assert_eq!((card.given::<Keys>().len(), card.tx.len()), (1, 1));
        let os = picnic_os::config::asked_for(&card).unwrap();
        assert_eq!(os.section.name(), "edf-plus");
        let names = sections().iter().map(|entry| entry.name).collect::<Vec<_>>();
        let missing = |name: &&str| !name.contains('.') && !card.has(name);
        assert_eq!(names.into_iter().find(missing), None, "{switched_on}");
    }

    #[test]
    fn every_key_is_in_the_printed_card() {
        let text = text(true).unwrap();
        for entry in sections().iter() {
            assert!(text.contains(&entry.header()), "{}", entry.name);
            for key in entry.keys().into_iter().filter(|key| !key.is_section()) {
                let name = format!("{} = ", key.name);
                assert!(text.lines().any(|line| line.trim_start_matches("# ").starts_with(&name)));
                assert!(!key.help.is_empty(), "{} has no help", key.name);
            }
        }
    }

    #[test]
    fn every_key_with_a_default_can_be_set() {
        for entry in sections().iter() {
            let place = match entry.shape {
                Shape::List { .. } => format!("{}[0]", entry.name),
                _ => entry.name.replace("wire.", "wire[0]."),
            };
            for key in entry.keys().into_iter().filter(|key| !key.default.is_empty()) {
                let value = template::toml_value(&key.default);
                let text = format!("{place}.{}={}", key.name, value.trim_matches('"'));
                let mut settings = vec![Setting::parse(&text).unwrap()];
                // Mandatory keys of a section.
                for (section, needed) in
                    [("trace", "path"), ("sciron", "rules"), ("class[0]", "name")]
                {
                    if place == section {
                        settings.push(Setting::text(&format!("{section}.{needed}"), "x"));
                    }
                }
                if let Some(names) = entry.names {
                    settings.push(Setting::text(&format!("{place}.{}", names.key), names.example));
                }
                let card = sections().parse_with(DEMONSTRATION, None, &settings);
                assert!(card.is_ok(), "{text}: {}", card.unwrap_err());
            }
        }
    }
}
