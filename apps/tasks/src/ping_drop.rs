//! ping-drop: Program 1 of the paper: drops all ICMP packets, both ways.
//!
//! ```toml
//! [[task]]
//! task = "ping-drop"
//! place = "nic"      # or "driver": on the target cores
//! ```
//!
//! The task installs two filters, on rx and on tx, and waits. When it is killed
//! they go with it, and pings come through again. The paper's filter looks at one
//! byte, the protocol of an IPv4 header; a five-tuple that states the protocol
//! alone says the same of tagged frames and of IPv6.
//!
//! Source: NICOS 4.4, Program 1.

use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::filter::{
    Action, Direction, Filter, FilterError, FiveTuple, Hooks, Place, Protocol,
};
use picnic_os::task::{TaskSpec, program};
use schemars::JsonSchema;
use serde::Deserialize;

/// The task.
#[derive(Debug)]
pub struct PingDrop;

/// Its keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where pings end: "nic" (on the borrowed core) or "driver" (on the target cores).
    pub place: Place,
}

impl Component for PingDrop {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "ping-drop";
    const HELP: &'static str = "drop all ICMP packets, both ways, while it runs";

    fn build(config: Config, _: &BuildContext) -> Result<Setup, ConfigError> {
        let spec = TaskSpec::new(Self::NAME).wcet_ns(50_000);
        let body = move |nic| async move {
            // Without the filters there is nothing to do: the task's end tells of it.
            let _ = ping_drop(nic, config.place).await;
        };
        Ok(Setup { spec, program: program(body) })
    }
}

async fn ping_drop(nic: Nic, place: Place) -> Result<(), FilterError> {
    for direction in [Direction::Rx, Direction::Tx] {
        // ICMP for IPv4 and for IPv6 have numbers of their own.
        for protocol in [Protocol::ICMP, Protocol::ICMPV6] {
            let pings = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
            let filter = Filter::new("ping-drop", pings, Action::Drop).on(direction).at(place);
            nic.add_filter(filter, Hooks::default()).await?;
        }
    }
    nic.sleep_until(Time::MAX).await;
    Ok(())
}
