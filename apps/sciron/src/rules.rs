//! The rules file: one rule per line; the first match decides.
//!
//! ```text
//! rules    = { line }
//! line     = [ rule | default | unreadable ] [ "#" comment ]
//! rule     = protocol source destination source_ports destination_ports action
//! default  = "default" action
//! unreadable = "unreadable" action
//! protocol = "any" | "tcp" | "udp" | "icmp" | "icmpv6" | ... | number, 0 to 255
//! source, destination = "any" | address | address "/" length
//! source_ports, destination_ports = "any" | port | port "-" port
//! action   = "accept" | "drop"
//! ```
//!
//! Fields are separated by blanks. Addresses are of IPv4 or IPv6, those of one rule of the same;
//! an address without length is one host. Ports go with tcp, udp and any. `default` decides about
//! IP packets that no rule matches; without it they are accepted. A file has one
//! `default` at most, anywhere, and one `unreadable`.
//!
//! Packets other than IP (such as ARP) always pass. A rule with ports matches no fragment: not even
//! the first, as all fragments of a packet must have one fate. Fragments and others whose headers
//! cannot be read are dropped where a rule that drops could have matched; with `unreadable accept`
//! such a rule passes them on to the next.

use picnic_core::config::LONGEST_FILE;
use picnic_core::files::NoFile;
use picnic_filter::matching::Tuple;
use picnic_filter::{FiveTuple, PortRange, Prefix, Protocol, Reason, Unreadable};
use serde::Serialize;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Most rules in a file: the capacity of a list of filters, minus the default.
pub const MOST_RULES: usize = picnic_filter::MOST_FILTERS - 1;
/// Size limit of a file, in bytes.
const LONGEST: usize = 8 * LONGEST_FILE;
/// Most faults listed for one file.
const MOST_FAULTS: usize = 20;
const FIELDS: [&str; 6] =
    ["protocol", "source", "destination", "source_ports", "destination_ports", "action"];

/// The decision about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Pass it.
    #[default]
    Accept,
    /// Drop it.
    Drop,
}

impl FromStr for Verdict {
    type Err = Reason;
    fn from_str(text: &str) -> Result<Self, Reason> {
        match text {
            "accept" => Ok(Verdict::Accept),
            "drop" => Ok(Verdict::Drop),
            other => Err(Reason::new(other, "accept or drop")),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Verdict::Accept { "accept" } else { "drop" })
    }
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its line in the file, from 1.
    pub line: usize,
    /// Its condition.
    pub tuple: FiveTuple,
    /// Its decision.
    pub verdict: Verdict,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FiveTuple { protocol, source, destination, source_ports, destination_ports } =
            self.tuple;
        let any = || "any".to_owned();
        let protocol = protocol.map_or_else(any, |protocol| protocol.to_string());
        let prefix = |prefix: Option<Prefix>| prefix.map_or_else(any, |prefix| prefix.to_string());
        write!(
            f,
            "{protocol} {} {} {source_ports} {destination_ports} {}",
            prefix(source),
            prefix(destination),
            self.verdict
        )
    }
}

/// A fault in a file of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// The field; empty for the whole line.
    pub field: &'static str,
    /// The value found.
    pub found: String,
    /// The values allowed.
    pub allowed: String,
}

/// The first faults of a rules file, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// The faults, up to 20.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index != 0 {
                f.write_str("\n")?;
            }
            match &self.file {
                Some(file) => {
                    let file = file.display().to_string();
                    write!(f, "{}:", file.replace(char::is_control, " "))?;
                }
                None => f.write_str("rules:")?,
            }
            if fault.line != 0 {
                write!(f, "{}:", fault.line)?;
            }
            if !fault.field.is_empty() {
                write!(f, " {}:", fault.field)?;
            }
            let found = fault.found.replace(char::is_control, " ");
            write!(f, " found {found}, allowed: {}", fault.allowed)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// A firewall's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// In order.
    pub rules: Vec<Rule>,
    /// Decision about IP packets that no rule matches.
    pub default: Verdict,
    /// Treatment of packets that a dropping rule could match but cannot read.
    pub unreadable: Unreadable,
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or its faults: line, field, found, allowed.
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let of_file = |found: String, allowed: &str| Faults {
            file: Some(path.into()),
            faults: vec![Fault { line: 0, field: "", found, allowed: allowed.into() }],
        };
        let mut bytes = Vec::new();
        // One more byte, to detect a longer file.
        picnic_core::files::open(path)
            .and_then(|file| file.take(LONGEST as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| of_file(what_is_there(&error), "a file of rules"))?;
        if bytes.len() > LONGEST {
            return Err(of_file(format!("more than {LONGEST} bytes"), "no more"));
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| of_file(error.utf8_error().to_string(), "UTF-8 text"))?;
        text.parse().map_err(|faults| Faults { file: Some(path.into()), ..faults })
    }

    /// The decision about a packet, with its rule; `None` for the default.
    ///
    /// Reads the rules from the top: for tests, and to explain.
    pub fn verdict(&self, packet: &Tuple) -> (Verdict, Option<&Rule>) {
        let decides = |tuple: &FiveTuple, verdict| {
            let stops = verdict == Verdict::Drop && self.unreadable == Unreadable::Drop;
            tuple.matches(packet) || stops && tuple.could_match(packet)
        };
        match self.rules.iter().find(|rule| decides(&rule.tuple, rule.verdict)) {
            Some(rule) => (rule.verdict, Some(rule)),
            None if decides(&FiveTuple::default(), self.default) => (self.default, None),
            // Whether it is IP cannot be determined.
            None => (Verdict::Accept, None),
        }
    }
}

/// Describes the object found instead of a readable file.
fn what_is_there(error: &std::io::Error) -> String {
    let other = error.get_ref().and_then(|inner| inner.downcast_ref::<NoFile>());
    other.map_or_else(|| error.to_string(), |NoFile(found)| (*found).into())
}

impl FromStr for Rules {
    type Err = Faults;
    fn from_str(text: &str) -> Result<Self, Faults> {
        let mut rules = Rules::default();
        let (mut default_line, mut unreadable_line) = (None, None);
        let mut faults = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let words = line.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>();
            let mut fault = |field, Reason { found, allowed }: Reason| {
                faults.push(Fault { line: line_number, field, found: brief(&found), allowed });
            };
            match *words {
                [] => {}
                [word @ ("default" | "unreadable"), action] => {
                    let of_default = word == "default";
                    let first = if of_default { &mut default_line } else { &mut unreadable_line };
                    match (action.parse(), *first) {
                        (Err(reason), _) => fault("action", reason),
                        (Ok(_), Some(first)) => {
                            let allowed = format!("one; the first is in line {first}");
                            fault("", Reason::new(format!("a second {word}"), allowed));
                        }
                        (Ok(verdict), None) => {
                            *first = Some(line_number);
                            match verdict {
                                verdict if of_default => rules.default = verdict,
                                Verdict::Accept => rules.unreadable = Unreadable::Accept,
                                Verdict::Drop => rules.unreadable = Unreadable::Drop,
                            }
                        }
                    }
                }
                [word @ ("default" | "unreadable"), ref rest @ ..] => {
                    let found = format!("{word} with {} words", rest.len());
                    fault("", Reason::new(found, format!("{word} accept, or {word} drop")));
                }
                ref fields => match rule(line_number, fields) {
                    Ok(_) if rules.rules.len() == MOST_RULES => {
                        let found = format!("more than {MOST_RULES} rules");
                        fault("", Reason::new(found, "no more"));
                        break;
                    }
                    Ok(rule) => rules.rules.push(rule),
                    Err((field, reason)) => fault(field, reason),
                },
            }
            if faults.len() == MOST_FAULTS {
                break;
            }
        }
        if faults.is_empty() { Ok(rules) } else { Err(Faults { file: None, faults }) }
    }
}

/// Shortens a text for a message.
fn brief(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

fn rule(line: usize, fields: &[&str]) -> Result<Rule, (&'static str, Reason)> {
    let [protocol, source, destination, source_ports, destination_ports, action] = *fields else {
        let found = format!("{} fields", fields.len());
        return Err(("", Reason::new(found, format!("{}: {}", FIELDS.len(), FIELDS.join(" ")))));
    };
    let named = protocol;
    let protocol = match named {
        "any" => None,
        name => Some(name.parse::<Protocol>().map_err(|mut reason| {
            reason.allowed = format!("any, {}", reason.allowed);
            ("protocol", reason)
        })?),
    };
    let prefix = |field, text: &str| match text {
        "any" => Ok(None),
        text => text.parse::<Prefix>().map(Some).map_err(|mut reason| {
            if !reason.allowed.contains("must be zero") {
                reason.allowed = format!("any, {}", reason.allowed);
            }
            (field, reason)
        }),
    };
    let ports = |field, text: &str| text.parse::<PortRange>().map_err(|reason| (field, reason));
    let tuple = FiveTuple {
        protocol,
        source: prefix("source", source)?,
        destination: prefix("destination", destination)?,
        source_ports: ports("source_ports", source_ports)?,
        destination_ports: ports("destination_ports", destination_ports)?,
    };
    let verdict = action.parse().map_err(|reason| ("action", reason))?;
    if tuple.mixes_families() {
        let allowed = "an address of the same family as the source";
        return Err(("destination", Reason::new(destination, allowed)));
    }
    let takes_ports = protocol.is_none_or(|protocol| [6, 17].contains(&protocol.0));
    for (field, text, range) in [
        ("source_ports", source_ports, tuple.source_ports),
        ("destination_ports", destination_ports, tuple.destination_ports),
    ] {
        if !range.is_any() && !takes_ports {
            let allowed = format!("any, as {named} has no ports here");
            return Err((field, Reason::new(text, allowed)));
        }
    }
    Ok(Rule { line, tuple, verdict })
}

/// A file that reads back to the same rules, apart from their lines.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            writeln!(f, "{rule}")?;
        }
        if self.unreadable == Unreadable::Accept {
            writeln!(f, "unreadable accept")?;
        }
        writeln!(f, "default {}", self.default)
    }
}
