//! A host that is the kernel's own network stack, for the kernel engine.
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
//! Packets never leave the kernel: each goes to the stack on its target core, by the interface
//! that is its wire, whose addresses and routes are the host's.
//!
//! Guarantees: the poll engine refuses it by name; there, `tap` is the way to the stack.
//!
//! Source: none.

use picnic_core::attachment::HostAttachment;
use picnic_core::error::ConfigError;
use picnic_core::kernel::{Handover, InKernel, KernelForm, Scheduling};
use picnic_core::registry::{BuildContext, Component};
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
    /// What is handed over through the ring of each target core to its thread: "skb", packets merged
    /// by GRO on the borrowed core, best for TCP; or "cpumap", frames, as an XDP program in the
    /// driver has them, best for small packets of a NIC.
    pub handover: Handover,
    /// Of these threads: "normal", or "batch" (`SCHED_BATCH`), which lets what runs on the core go on
    /// until it sleeps or has had its time: more throughput for servers there, but packets wait for up
    /// to 4 ms behind a program that never sleeps.
    pub scheduling: Scheduling,
}

impl Component for Stack {
    type Product = Box<dyn HostAttachment>;
    type Config = StackConfig;
    const NAME: &'static str = "stack";
    const HELP: &'static str = "the kernel's network stack, by the wire (engine = \"kernel\")";
    const KERNEL: Option<InKernel<StackConfig>> = Some(InKernel {
        keys: &["handover", "scheduling"],
        beside: &[],
        commands: &[],
        form: |config, _| Ok(KernelForm::Stack(config.handover, config.scheduling)),
    });

    fn example(_: &Path) -> Option<String> {
        None
    }

    fn build(_: StackConfig, _: &BuildContext) -> Result<Self::Product, ConfigError> {
        let message = "found \"stack\", allowed with engine = \"kernel\" only: \
                       attachment = \"tap\" leads packets of this engine to the kernel";
        Err(ConfigError::new("attachment", message))
    }
}
