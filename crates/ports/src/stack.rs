//! The kernel's own network stack as host, for the kernel engine.
//!
//! ```toml
//! [card]
//! engine = "kernel"
//!
//! [host]
//! attachment = "stack"
//! handover = "cpumap"
//! ```
//!
//! Packets never leave the kernel: each goes to the stack on its target core, through its wire's
//! interface, whose addresses and routes are the host's.
//!
//! Guarantees: the poll engine refuses it by name; there, `tap` is the way to the stack.
//!
//! Source: none.

use picnic_core::attachment::HostAttachment;
use picnic_core::error::ConfigError;
use picnic_core::kernel::InKernel;
use picnic_core::registry::{BuildContext, Component};
use picnic_forms::{Handover, KernelForm, Scheduling};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::Path;

/// The registry entry.
#[derive(Debug)]
pub struct Stack;

/// The keys of `stack`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StackConfig {
    /// The unit that passes through the ring of each target core to its thread: "skb", packets
    /// merged by GRO on the borrowed core, best for TCP; or "cpumap", frames from an XDP program in
    /// the driver, best for small packets of a NIC.
    pub handover: Handover,
    /// Scheduling of these threads: "normal", or "batch" (`SCHED_BATCH`), which lets other programs
    /// on the core continue until they sleep or use up their time: more throughput for servers
    /// there, but packets wait up to 4 ms for a program that never sleeps.
    pub scheduling: Scheduling,
}

impl Component for Stack {
    type Product = Box<dyn HostAttachment>;
    type Config = StackConfig;
    const NAME: &'static str = "stack";
    const HELP: &'static str = "the kernel's network stack, through the wire (engine = \"kernel\")";
    const KERNEL: Option<InKernel<StackConfig>> = Some(InKernel {
        keys: &["handover", "scheduling"],
        beside: &[],
        commands: &[],
        form: |config, _| Ok(KernelForm::Stack(config.handover, config.scheduling).into()),
    });

    fn example(_: &Path) -> Option<String> {
        None
    }

    fn build(_: StackConfig, _: &BuildContext) -> Result<Self::Product, ConfigError> {
        let message = "found \"stack\", allowed only with engine = \"kernel\": \
                       attachment = \"tap\" leads packets of this engine to the kernel";
        Err(ConfigError::new("attachment", message))
    }
}
