//! Rules that never apply, and rules in conflict.
//!
//! Findings for each pair of rules:
//!
//! - *shadowed*: an earlier rule matches all packets of the later one and decides otherwise;
//! - *redundant*: an earlier rule matches all packets of the later one and decides the same;
//! - *overlap*: some packets match both, and the two decide differently, so that their order
//!   matters.
//!
//! A rule that only several earlier ones together cover is not found. A shadowed or redundant rule
//! is listed with the first rule that covers it, and not as an overlap.
//!
//! Pairs are compared one by one: seconds for the largest files.

use crate::rules::{Rule, Rules};
use picnic_filter::{FiveTuple, Prefix, Protocol};
use serde::Serialize;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Most overlaps listed; all are counted.
const MOST_OVERLAPS: usize = 100;

/// Two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Line of the later rule.
    pub line: usize,
    /// Line of the earlier rule.
    pub earlier_line: usize,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Number of rules in the file.
    pub rules: usize,
    /// Rules that never apply and would decide otherwise.
    pub shadowed: Vec<Pair>,
    /// Rules that never apply and would decide the same.
    pub redundant: Vec<Pair>,
    /// Pairs whose order matters; the first hundred.
    pub overlaps: Vec<Pair>,
    /// Number of such pairs.
    pub overlap_count: usize,
}

impl Findings {
    /// Whether every rule can apply.
    pub fn all_apply(&self) -> bool {
        self.shadowed.is_empty() && self.redundant.is_empty()
    }
}

impl Rules {
    /// Compares each rule with those before it.
    pub fn check(&self) -> Findings {
        let mut findings = Findings { rules: self.rules.len(), ..Findings::default() };
        for (index, later) in self.rules.iter().enumerate() {
            let before = &self.rules[..index];
            let pair = |earlier: &Rule| Pair { line: later.line, earlier_line: earlier.line };
            if let Some(earlier) =
                before.iter().find(|earlier| covers(&earlier.tuple, &later.tuple))
            {
                let same = earlier.verdict == later.verdict;
                let list = if same { &mut findings.redundant } else { &mut findings.shadowed };
                list.push(pair(earlier));
                continue;
            }
            let differing = before.iter().filter(|earlier| earlier.verdict != later.verdict);
            for earlier in differing.filter(|earlier| overlap(&earlier.tuple, &later.tuple)) {
                findings.overlap_count += 1;
                if findings.overlaps.len() < MOST_OVERLAPS {
                    findings.overlaps.push(pair(earlier));
                }
            }
        }
        findings
    }
}

/// The prefixes of a rule; a missing one means all addresses of the rule's family, if it has one.
fn prefixes(tuple: &FiveTuple) -> [Option<Prefix>; 2] {
    let all = match tuple.is_ipv4() {
        Some(true) => Prefix::new(Ipv4Addr::UNSPECIFIED, 0),
        Some(false) => Prefix::new(Ipv6Addr::UNSPECIFIED, 0),
        None => None,
    };
    [tuple.source.or(all), tuple.destination.or(all)]
}

/// Whether every packet that `inner` matches, `outer` matches.
fn covers(outer: &FiveTuple, inner: &FiveTuple) -> bool {
    if outer.protocol.is_some() && outer.protocol != inner.protocol {
        return false;
    }
    let inside = |outer: Option<Prefix>, inner: Option<Prefix>| match (outer, inner) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => outer.covers(&inner),
    };
    let [inner_source, inner_destination] = prefixes(inner);
    inside(outer.source, inner_source)
        && inside(outer.destination, inner_destination)
        && outer.source_ports.covers(&inner.source_ports)
        && outer.destination_ports.covers(&inner.destination_ports)
}

/// Whether some packet matches both.
fn overlap(a: &FiveTuple, b: &FiveTuple) -> bool {
    // In IPv6, a packet has the authentication header's protocol and the one after it.
    let is_ipv6 = [a, b].iter().all(|rule| rule.is_ipv4() != Some(true));
    let authenticated = [a, b].iter().any(|rule| rule.protocol == Some(Protocol::AUTHENTICATION));
    let protocols = match (a.protocol, b.protocol) {
        _ if is_ipv6 && authenticated => true,
        (Some(a), Some(b)) => a == b,
        (Some(one), None) | (None, Some(one)) => {
            // Only TCP and UDP have ports.
            !(a.has_ports() || b.has_ports()) || [6, 17].contains(&one.0)
        }
        (None, None) => true,
    };
    let meet = |(a, b): (Option<Prefix>, Option<Prefix>)| match (a, b) {
        (Some(a), Some(b)) => a.covers(&b) || b.covers(&a),
        _ => true,
    };
    protocols
        && prefixes(a).into_iter().zip(prefixes(b)).all(meet)
        && a.source_ports.meets(&b.source_ports)
        && a.destination_ports.meets(&b.destination_ports)
}
