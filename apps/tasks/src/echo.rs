//! echo: returns every message of a host process to it, through a channel.
//!
//! ```toml
//! [[task]]
//! task = "echo"
//! channel = "echo"
//! message_bytes = 64
//! ```
//!
//! `examples/channel/ping.rs` and `ping.c` are the host's side. `picnic ctl channels` shows the
//! channel, and the process that has it open.

use crate::bounds;
use crate::graphs::{Task, Trial};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::task::{TaskSpec, program};
use picnic_wcet::task;
use schemars::JsonSchema;
use serde::Deserialize;

/// The task.
#[derive(Debug)]
pub struct Echo;

/// Its keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The name of its channel. If another task has it, this one ends.
    pub channel: String,
    /// Bytes of the longest message.
    #[schemars(range(min = 1, max = LONGEST))]
    pub message_bytes: u16,
    /// Messages that fit into the channel, each way; rounded up to a power of two.
    #[schemars(range(min = 1, max = 4096))]
    pub messages: u16,
}

/// Bytes of the longest message; its bounds allow for copying one twice.
const LONGEST: u16 = 4096;

impl Default for Config {
    fn default() -> Self {
        Config { channel: "echo".into(), message_bytes: 64, messages: 256 }
    }
}

impl Component for Echo {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "echo";
    const HELP: &'static str = "return every message of a host process to it";

    fn build(config: Config, context: &BuildContext) -> Result<Setup, ConfigError> {
        let spec = bounds::bounded(TaskSpec::new(Self::NAME), &echo::GRAPH, context)?;
        Ok(Setup { spec, program: program(move |nic| echo(nic, config)) })
    }
}

impl Task for Echo {
    const GRAPH: Option<Trial> =
        Some((&echo::GRAPH, || program(|nic| echo(nic, Config::default()))));
}

/// Returns messages until it is ended.
#[task]
pub async fn echo(nic: Nic, config: Config) {
    let bytes = usize::from(config.message_bytes);
    let opened = nic.channel(&config.channel, bytes, usize::from(config.messages)).await;
    #[wcet(ns = 2_000)]
    let opened = opened.inspect_err(|error| nic.note(error));
    // Its memory is mapped elsewhere; this segment makes its own buffer.
    #[wcet(ns = 5_000)]
    let (Ok(mut channel), mut message) = (opened, vec![0; bytes]) else { return };
    loop {
        // A segment copies one message at most.
        #[wcet(ns = 2_000)]
        let received = channel.receive(&mut message).await;
        let is_there = received.is_ok();
        if is_there {
            let bytes = received.unwrap_or(0);
            // The process may have ended: then no answer is needed.
            #[wcet(ns = 2_000)]
            let _ = channel.send(&message[..bytes]).await;
        }
    }
}
