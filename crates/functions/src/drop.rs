//! `drop`: drops every packet, counted as filtered.
//!
//! ```toml
//! [[rx]]
//! function = "drop"
//! ```
//!
//! Use it to measure a wire and the functions before it, or to discard the rest at
//! the end of a chain. Guarantees: every buffer returns at once.
//! Source: Linux, `XDP_DROP`.

use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::InKernel;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component, NoKeys};
use picnic_core::time::Time;
use picnic_forms::KernelForm;

/// Drops every packet.
#[derive(Debug, Default)]
pub struct Drop;

impl Component for Drop {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "drop";
    const HELP: &'static str = "drop every packet, counted as filtered";
    const KERNEL: Option<InKernel<NoKeys>> = Some(InKernel {
        keys: &[],
        beside: &[],
        commands: &[],
        form: |_, _| Ok(KernelForm::Drop.into()),
    });

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Drop))
    }
}

impl Function for Drop {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.drain() {
            out.drop(packet, DropReason::Filtered);
        }
    }
}
