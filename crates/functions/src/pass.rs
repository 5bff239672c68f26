//! `pass`: passes every packet unchanged to the next function.
//!
//! ```toml
//! [[rx]]
//! function = "pass"
//! ```
//!
//! Use it to measure the cost of a place in the chain.
//! Guarantees: touches neither packets nor burst.
//! Source: PICNIC, section 4 (the overhead of the framework alone).

use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::InKernel;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component, NoKeys};
use picnic_core::time::Time;
use picnic_forms::KernelForm;

/// Passes every packet unchanged.
#[derive(Debug, Default)]
pub struct Pass;

impl Component for Pass {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "pass";
    const HELP: &'static str = "pass every packet unchanged to the next function";
    const KERNEL: Option<InKernel<NoKeys>> = Some(InKernel {
        keys: &[],
        beside: &[],
        commands: &[],
        form: |_, _| Ok(KernelForm::Next.into()),
    });

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Pass))
    }
}

impl Function for Pass {
    #[inline]
    fn process(&mut self, _now: Time, _burst: &mut Burst, _out: &mut Out<'_>) {}
}
