//! ping-drop: Program 1 of the paper: drops all ICMP packets, both ways.
//!
//! ```toml
//! [[task]]
//! task = "ping-drop"
//! place = "nic"      # or "driver": on the target cores
//! ```
//!
//! The task installs its filters on rx and tx, and waits. Killing it removes them, and pings pass
//! again. As in the paper, a filter is a static pattern: a start, a length, a mask that selects
//! bytes, and values. The paper's looks at the protocol byte alone, which also matches frames of
//! other kinds, such as ARP from certain addresses; these patterns include the EtherType. They match
//! untagged frames without IP options or extension headers.
//!
//! Source: NICOS 4.4, Program 1.

use crate::bounds;
use crate::graphs::{Task, Trial};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_filter::{Action, Direction, Filter, FilterCode, Pattern, Place};
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::task::{TaskSpec, program};
use picnic_wcet::task;
use schemars::JsonSchema;
use serde::Deserialize;

/// The task.
#[derive(Debug)]
pub struct PingDrop;

/// Its keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Place of the filters: "nic" (on the borrowed core) or "driver" (on the target cores).
    pub place: Place,
}

impl Component for PingDrop {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "ping-drop";
    const HELP: &'static str = "drop all ICMP packets, both ways, while it runs";

    fn build(config: Config, context: &BuildContext) -> Result<Setup, ConfigError> {
        let spec = bounds::bounded(TaskSpec::new(Self::NAME), &ping_drop::GRAPH, context)?;
        let filters = filters(config.place);
        Ok(Setup { spec, program: program(move |nic| ping_drop(nic, filters)) })
    }
}

impl Task for PingDrop {
    const GRAPH: Option<Trial> =
        Some((&ping_drop::GRAPH, || program(|nic| ping_drop(nic, filters(Place::Driver)))));
}

/// Number of filters.
const FILTERS: usize = 4;

/// First byte of the patterns: the EtherType of an untagged frame.
const START: u16 = 12;
/// The bytes of a frame from there to the protocol. Bit `n` of the mask selects byte `n`.
const ICMP: (u64, &[u8]) = (0b1000_0000_0011, &[0x08, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const ICMPV6: (u64, &[u8]) = (0b1_0000_0011, &[0x86, 0xdd, 0, 0, 0, 0, 0, 0, 58]);

/// Both directions, both versions of IP.
fn filters(place: Place) -> [Filter; FILTERS] {
    let pings = |direction, (mask, value): (u64, &[u8])| {
        let pattern = Pattern::by_byte(START, value.len(), mask, &[value]);
        // The patterns are constants, and a test builds them all.
        let pattern = pattern.unwrap_or_else(|_| unreachable!("a pattern has a length"));
        Filter::new("ping-drop", pattern, Action::Drop).on(direction).at(place)
    };
    [
        pings(Direction::Rx, ICMP),
        pings(Direction::Rx, ICMPV6),
        pings(Direction::Tx, ICMP),
        pings(Direction::Tx, ICMPV6),
    ]
}

/// Installs the filters, one per segment, and waits: ending the task removes them.
#[task]
pub async fn ping_drop(nic: Nic, filters: [Filter; FILTERS]) {
    #[bound(4)]
    for filter in filters {
        let added = nic.add_filter(filter, FilterCode::NONE).await;
        // This segment, after the yield, changes the list: cheap on a card with few filters.
        #[wcet(ns = 50_000)]
        let is_refused = added.is_err();
        if is_refused {
            // Without the filters there is nothing to do: the task's end reports it.
            return;
        }
    }
    nic.sleep_until(Time::MAX).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_filter::{Filters, Match};

    #[test]
    fn patterns_select_the_protocol() {
        for place in [Place::Nic, Place::Driver] {
            for filter in filters(place) {
                Filters::new(1).check(&filter).unwrap();
                let Match::Pattern(pattern) = filter.matching else { panic!("not a pattern") };
                let value = pattern.values().next().unwrap();
                let selected: Vec<_> =
                    (0..value.len()).filter(|&at| pattern.mask()[at] != 0).collect();
                let places: Vec<_> = selected.iter().map(|at| at + 12).collect();
                let bytes: Vec<_> = selected.iter().map(|&at| value[at]).collect();
                match bytes[0] {
                    0x08 => assert_eq!((&*places, &*bytes), (&[12, 13, 23][..], &[8, 0, 1][..])),
                    _ => {
                        assert_eq!((&*places, &*bytes), (&[12, 13, 20][..], &[0x86, 0xdd, 58][..]))
                    }
                }
            }
        }
    }
}
