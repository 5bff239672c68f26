//! `[[filter]]` of the card file; filters use the same keys wherever they are text.
//!
//! ```toml
//! [[filter]]
//! name = "ping-drop"
//! protocol = "icmp"            # a five-tuple: protocol, source, destination, ports
//! action = "drop"
//!
//! [[filter]]
//! name = "ping-drop-by-bytes"
//! direction = "tx"
//! start = 23                   # or a pattern: the byte of the frame it starts at,
//! values = ["01"]              # its values, and a mask for all of them
//! mask = "ff"
//! action = "drop"
//! ```
//!
//! A filter with none of these keys matches every packet.
//!
//! A five-tuple or a pattern with action "drop" also drops packets that could match but cannot be
//! read: fragments, if it has ports; more extension headers than the card reads; see
//! [`hidden`](super::hidden). With `unreadable = "accept"` it passes them. A packet in which all
//! fields of the filter could be read matches, even if other parts are hidden.

use super::matching::{Base, FiveTuple, Match, Pattern, PortRange, Prefix, Protocol};
use super::text::{Reason, bytes, hex};
use super::{
    Action, Direction, Filter, FilterError, Filters, GENERAL, PRIORITY, Place, Unreadable,
};
use picnic_core::config::{CardFile, SectionConfig, SectionEntry, Shape};
use picnic_core::error::ConfigError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Sections of the card file about filters.
pub const SECTIONS: &[SectionEntry] = &[SectionEntry::of::<Keys>()];

/// A filter's action, as a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActionWord {
    /// Drops the packet.
    Drop,
    /// Ends its way through this group.
    Accept,
    /// Steers it to the target queue `queue`.
    Steer,
    /// Sets the mark `mark`.
    Mark,
    /// Counts it.
    #[default]
    Count,
    /// Code decides; only read back.
    Callback,
    /// Code takes it; only read back.
    Deliver,
    /// Code allocates card memory; only read back.
    Allocate,
    /// Passes it to the poll engine, with engine = "hybrid".
    Poll,
}

/// A filter's keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// Name for output: letters, digits and any of - _ . : /
    pub name: String,
    /// Group. Groups are ordered by their first mention.
    pub group: String,
    /// Place in the group: lower numbers first.
    pub priority: i32,
    /// Direction of its packets: "rx" (from the wire) or "tx" (to the wire).
    pub direction: Direction,
    /// Place of the filter: "nic" (borrowed core) or "driver" (target core).
    pub place: Place,
    /// Action: "drop", "accept", "steer", "mark", "count", or "poll": past all other filters to the
    /// poll engine, with engine = "hybrid" or "poll".
    pub action: ActionWord,
    /// For action = "drop": "drop" or "accept" packets that may match but cannot be read, such as
    /// fragments by a filter with ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Unreadable>,
    /// Target queue, for action = "steer".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
    /// Mark, for action = "mark".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
    /// IP protocol: a name such as "tcp", "udp", "icmp", or a number in quotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Source prefix, such as "10.0.0.0/8" or "2001:db8::/32".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Destination prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Source port or range, such as "53" or "1024-65535".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<String>,
    /// Destination port or range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_ports: Option<String>,
    /// First byte of a pattern, counted from `base`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u16>,
    /// Start of the count: "frame", "l3" or "l4".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// Mask of a pattern, in hexadecimal; default: all bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// Values of a pattern, in hexadecimal, all of the same length; any of them matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
    /// Matches by code; only read back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(skip)]
    pub predicate: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Keys {
            name: "filter".into(),
            group: GENERAL.into(),
            priority: PRIORITY,
            direction: Direction::Rx,
            place: Place::Nic,
            action: ActionWord::Count,
            unreadable: None,
            queue: None,
            mark: None,
            protocol: None,
            source: None,
            destination: None,
            source_ports: None,
            destination_ports: None,
            start: None,
            base: None,
            mask: None,
            values: None,
            predicate: false,
        }
    }
}

impl SectionConfig for Keys {
    const NAME: &'static str = "filter";
    const HELP: &'static str = "A filter, one [[filter]] for each, in order.";
    // More filters belong in a rules file.
    const SHAPE: Shape = Shape::List { least: 0, most: 256, built_in: false };

    fn check(&self) -> Result<(), ConfigError> {
        Ok(self.filter().map(drop)?)
    }
}

fn invalid(key: &'static str) -> impl Fn(Reason) -> FilterError {
    move |reason| FilterError::Invalid { key, reason }
}

fn read<T: FromStr<Err = Reason>>(
    key: &'static str,
    text: Option<&String>,
) -> Result<Option<T>, FilterError> {
    text.map(|text| text.parse()).transpose().map_err(invalid(key))
}

impl Keys {
    /// The keys of a filter.
    pub fn of(filter: &Filter) -> Self {
        let action = match filter.action {
            Action::Drop => ActionWord::Drop,
            Action::Accept => ActionWord::Accept,
            Action::Steer(_) => ActionWord::Steer,
            Action::Mark(_) => ActionWord::Mark,
            Action::Count => ActionWord::Count,
            Action::Callback => ActionWord::Callback,
            Action::Deliver => ActionWord::Deliver,
            Action::Poll => ActionWord::Poll,
            Action::Allocate => ActionWord::Allocate,
        };
        let mut keys = Keys {
            name: filter.name.clone(),
            group: filter.group.clone(),
            priority: filter.priority,
            direction: filter.direction,
            place: filter.place,
            action,
            ..Keys::default()
        };
        // Other filters do not have the key and would be refused with it.
        let tells_unreadable = filter.keeps_from_host() && filter.unreadable != Unreadable::Drop;
        keys.unreadable = tells_unreadable.then_some(filter.unreadable);
        match filter.action {
            Action::Steer(queue) => keys.queue = Some(queue),
            Action::Mark(mark) => keys.mark = Some(mark),
            _ => {}
        }
        match &filter.matching {
            Match::Any => {}
            Match::Predicate => keys.predicate = true,
            Match::FiveTuple(tuple) => {
                let ports = |ports: PortRange| (!ports.is_any()).then(|| ports.to_string());
                // A five-tuple without conditions matches all IP packets.
                keys.protocol = match tuple.protocol {
                    None if *tuple == FiveTuple::default() => Some("any".into()),
                    protocol => protocol.map(|protocol| protocol.to_string()),
                };
                keys.source = tuple.source.map(|prefix| prefix.to_string());
                keys.destination = tuple.destination.map(|prefix| prefix.to_string());
                keys.source_ports = ports(tuple.source_ports);
                keys.destination_ports = ports(tuple.destination_ports);
            }
            Match::Pattern(pattern) => {
                keys.start = Some(pattern.start());
                keys.base = Some(pattern.base());
                keys.mask = Some(hex(pattern.mask()));
                keys.values = Some(pattern.values().map(hex).collect());
            }
        }
        keys
    }

    /// The filter described by the keys.
    ///
    /// # Errors
    /// The first wrong key, the value found, the values allowed.
    pub fn filter(&self) -> Result<Filter, FilterError> {
        let filter = Filter {
            name: self.name.clone(),
            group: self.group.clone(),
            priority: self.priority,
            direction: self.direction,
            place: self.place,
            matching: self.matching()?,
            action: self.action()?,
            unreadable: self.unreadable.unwrap_or_default(),
        };
        if self.unreadable.is_some() && !filter.keeps_from_host() {
            let allowed = "only with action = \"drop\"";
            return Err(FilterError::invalid("unreadable", "one", allowed));
        }
        Ok(filter)
    }

    fn action(&self) -> Result<Action, FilterError> {
        let needs = |key, what| FilterError::invalid(key, "none", what);
        let action = match self.action {
            ActionWord::Drop => Action::Drop,
            ActionWord::Accept => Action::Accept,
            ActionWord::Count => Action::Count,
            ActionWord::Callback => Action::Callback,
            ActionWord::Deliver => Action::Deliver,
            ActionWord::Poll => Action::Poll,
            ActionWord::Allocate => Action::Allocate,
            ActionWord::Steer => Action::Steer(
                self.queue.ok_or_else(|| needs("queue", "a queue, as action = \"steer\""))?,
            ),
            ActionWord::Mark => Action::Mark(
                self.mark.ok_or_else(|| needs("mark", "a number, as action = \"mark\""))?,
            ),
        };
        let stray = |key, action: &str| {
            Err(FilterError::invalid(key, "one", &format!("only with action = \"{action}\"")))
        };
        match action {
            Action::Steer(_) => {}
            _ if self.queue.is_some() => return stray("queue", "steer"),
            _ => {}
        }
        match action {
            Action::Mark(_) => {}
            _ if self.mark.is_some() => return stray("mark", "mark"),
            _ => {}
        }
        Ok(action)
    }

    fn matching(&self) -> Result<Match, FilterError> {
        let tuple_keys = [
            ("protocol", self.protocol.is_some()),
            ("source", self.source.is_some()),
            ("destination", self.destination.is_some()),
            ("source_ports", self.source_ports.is_some()),
            ("destination_ports", self.destination_ports.is_some()),
        ];
        let pattern_keys = [
            ("start", self.start.is_some()),
            ("base", self.base.is_some()),
            ("mask", self.mask.is_some()),
            ("values", self.values.is_some()),
        ];
        let first = |keys: &[(&'static str, bool)]| keys.iter().find(|key| key.1).map(|key| key.0);
        match (first(&tuple_keys), first(&pattern_keys), self.predicate) {
            (None, None, false) => Ok(Match::Any),
            (None, None, true) => Ok(Match::Predicate),
            (Some(_), None, false) => self.tuple().map(Match::FiveTuple),
            (None, Some(_), false) => self.pattern().map(Match::Pattern),
            (_, Some(key), _) | (Some(key), ..) => {
                let allowed = "keys of a five-tuple, of a pattern, or neither";
                Err(FilterError::invalid(key, "keys of two kinds", allowed))
            }
        }
    }

    fn tuple(&self) -> Result<FiveTuple, FilterError> {
        let protocol = self.protocol.as_ref().filter(|text| *text != "any");
        Ok(FiveTuple {
            protocol: read::<Protocol>("protocol", protocol)?,
            source: read::<Prefix>("source", self.source.as_ref())?,
            destination: read::<Prefix>("destination", self.destination.as_ref())?,
            source_ports: read("source_ports", self.source_ports.as_ref())?.unwrap_or_default(),
            destination_ports: read("destination_ports", self.destination_ports.as_ref())?
                .unwrap_or_default(),
        })
    }

    fn pattern(&self) -> Result<Pattern, FilterError> {
        let needs = |key| FilterError::invalid(key, "none", "a value, as this is a pattern");
        let start = self.start.ok_or_else(|| needs("start"))?;
        let values = self.values.as_ref().ok_or_else(|| needs("values"))?;
        let values: Result<Vec<_>, _> = values.iter().map(|value| bytes(value)).collect();
        let values = values.map_err(invalid("values"))?;
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let mask = match &self.mask {
            Some(mask) => bytes(mask).map_err(invalid("mask"))?,
            None => vec![0xff; values.first().map_or(1, |value| value.len())],
        };
        Pattern::new(self.base.unwrap_or_default(), start, &mask, &values)
            .map_err(|(key, reason)| invalid(key)(reason))
    }
}

/// Adds the filters of a card file's `[[filter]]` sections, all or none.
///
/// # Errors
/// The first wrong filter: file, line, key, value found, values allowed.
pub fn add(filters: &Filters, file: &CardFile) -> Result<(), ConfigError> {
    let mut changes = Vec::new();
    for keys in file.given::<Keys>() {
        let filter = keys.filter()?;
        // Checked alone first, so that an error has its line.
        filters.check(&filter).map_err(|error| keys.section.locate(error.into()))?;
        changes.push(super::filters::FilterChange::Add(filter, super::code::FilterCode::default()));
    }
    filters.apply(changes).map(|_| ()).map_err(ConfigError::from)
}

impl From<FilterError> for ConfigError {
    fn from(error: FilterError) -> Self {
        match error {
            FilterError::Invalid { key, reason } => ConfigError::new(key, reason.to_string()),
            error => ConfigError::new("filter", error.to_string()),
        }
    }
}
