//! ping-drop: Program 1 of the paper: drops all ICMP packets, both ways.
//!
//! ```toml
//! [[task]]
//! task = "ping-drop"
//! place = "nic"      # or "driver": on the target cores
//! ```
//!
//! The task installs its filters on rx and tx, and waits. Killing it removes them, and pings pass
//! again. The paper's filter looks at one byte, the protocol of an IPv4 header; a five-tuple with
//! only the protocol also matches tagged frames and IPv6.
//!
//! Source: NICOS 4.4, Program 1.

use crate::bounds;
use crate::graphs::{Task, Trial};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_filter::{Action, Direction, Filter, FilterCode, FiveTuple, Place, Protocol};
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

/// Filters without code.
const NO_CODE: FilterCode = FilterCode { predicate: None, callback: None, handover: None };
/// Number of filters.
const FILTERS: usize = 4;

/// Both directions; IPv4 and IPv6 have different protocol numbers for ICMP.
fn filters(place: Place) -> [Filter; FILTERS] {
    let pings = |direction, protocol| {
        let pings = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
        Filter::new("ping-drop", pings, Action::Drop).on(direction).at(place)
    };
    [
        pings(Direction::Rx, Protocol::ICMP),
        pings(Direction::Rx, Protocol::ICMPV6),
        pings(Direction::Tx, Protocol::ICMP),
        pings(Direction::Tx, Protocol::ICMPV6),
    ]
}

/// Installs the filters, one per segment, and waits: ending the task removes them.
#[task]
pub async fn ping_drop(nic: Nic, filters: [Filter; FILTERS]) {
    #[bound(4)]
    for filter in filters {
        let added = nic.add_filter(filter, NO_CODE).await;
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
