//! Checks of a filter before it is added.

use super::FilterError;
use crate::code::FilterCode;
use crate::text::Reason;
use crate::{Action, Direction, Filter, Match, Place};

pub(super) fn check_name(key: &'static str, name: &str) -> Result<(), FilterError> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/".contains(letter);
    if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
        return Ok(());
    }
    let found = format!("\"{}\"", name.escape_default());
    Err(FilterError::invalid(key, found, "1 to 64 letters, digits and any of - _ . : /"))
}

/// Checks a filter alone.
pub(super) fn check(
    filter: &Filter,
    code: &FilterCode,
    keeps: Option<&Filter>,
    queues: u16,
) -> Result<(), FilterError> {
    check_name("name", &filter.name)?;
    check_name("group", &filter.group)?;
    if let Match::FiveTuple(tuple) = &filter.matching {
        if tuple.mixes_families() {
            let found = "an IPv4 and an IPv6 address";
            return Err(FilterError::invalid(
                "destination",
                found,
                "two addresses of the same family",
            ));
        }
        let protocol = tuple.protocol;
        let ports_fit = protocol.is_none_or(|protocol| [6, 17].contains(&protocol.0));
        if tuple.has_ports() && !ports_fit {
            let key =
                if tuple.source_ports.is_any() { "destination_ports" } else { "source_ports" };
            let found = protocol.map_or(String::new(), |p| format!("ports with protocol {p}"));
            return Err(FilterError::invalid(key, found, "ports with tcp, udp or any protocol"));
        }
    }
    let of = |filter: &Filter| {
        let action = |action| filter.action == action;
        [
            filter.matching == Match::Predicate,
            action(Action::Callback),
            action(Action::Deliver),
            action(Action::Allocate),
        ]
    };
    let had = keeps.filter(|_| code.is_empty()).map_or([false; 4], of);
    let given = [
        code.predicate.is_some(),
        code.callback.is_some(),
        code.handover.is_some(),
        code.allocator.is_some(),
    ];
    let keys = ["predicate", "callback", "handover", "allocator"];
    for (((key, needed), given), had) in keys.into_iter().zip(of(filter)).zip(given).zip(had) {
        match (needed, given) {
            (true, false) if !had => {
                return Err(FilterError::invalid(key, "none", "code, given with the filter"));
            }
            (false, true) => {
                return Err(FilterError::invalid(key, "code", "none, as the filter calls no code"));
            }
            _ => {}
        }
    }
    let refuse = |found: &str, allowed| Err(FilterError::invalid("action", found, allowed));
    match (filter.action, filter.place, filter.direction) {
        (Action::Steer(_), Place::Driver, _) => refuse("steer at the driver", "steer at place nic"),
        (Action::Steer(_), _, Direction::Tx) => refuse("steer on tx", "steer on rx"),
        (Action::Steer(queue), ..) if queue >= queues => {
            let allowed = format!("0 to {}", queues.saturating_sub(1));
            let reason = Reason::new(queue.to_string(), allowed);
            Err(FilterError::Invalid { key: "queue", reason })
        }
        (Action::Deliver, Place::Driver, _) => {
            refuse("deliver at the driver", "deliver at place nic")
        }
        (Action::Poll, Place::Driver, _) => refuse("poll at the driver", "poll at place nic"),
        (Action::Poll, _, Direction::Tx) => refuse("poll on tx", "poll on rx"),
        (Action::Allocate, ..) if !is_plain(filter) => {
            refuse("allocate with a condition, direction or place", "allocate without these")
        }
        _ => Ok(()),
    }
}

/// Whether a filter matches everything, on rx at the card.
fn is_plain(filter: &Filter) -> bool {
    (&filter.matching, filter.direction, filter.place) == (&Match::Any, Direction::Rx, Place::Nic)
}

/// Checks that a change leaves an allocator an allocator, and a filter of packets one of packets.
pub(super) fn check_kind(old: &Filter, new: &Filter) -> Result<(), FilterError> {
    match (old.is_allocator(), new.is_allocator()) {
        (true, false) => {
            let allowed = "allocate, as the filter is an allocator";
            Err(FilterError::invalid("action", "another action", allowed))
        }
        (false, true) => {
            let allowed = "an action on packets, as the filter has one";
            Err(FilterError::invalid("action", "allocate", allowed))
        }
        _ => Ok(()),
    }
}
