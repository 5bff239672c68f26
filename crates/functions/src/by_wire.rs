//! `by-wire`: steers each wire's packets to its own queue.
//!
//! ```toml
//! [[rx]]
//! function = "by-wire"
//! queues = [2, 0, 1]       # wire 0 to queue 2, ...; without it, wire modulo queues
//! ```
//!
//! Guarantees: reads no packet bytes; all packets of a wire stay in order.
//! Source: PICNIC, section 4.3: the simple classifier of the scaling test, where
//! each flow came on its own wire.

use crate::settings::check_queue;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::InKernel;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::KernelForm;
use schemars::JsonSchema;
use serde::Deserialize;

/// Steers by the wire a packet came in on.
#[derive(Debug)]
pub struct ByWire {
    queue_of: [u16; 256],
}

/// The keys of `by-wire`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The queue of each wire, one entry for each; default: wire modulo queues.
    pub queues: Option<Vec<u16>>,
}

impl Component for ByWire {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "by-wire";
    const HELP: &'static str = "steer each wire's packets to its own queue";
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &["queues"],
        beside: &[],
        commands: &[],
        form: |config, context| {
            let wires = usize::from(context.wires);
            Ok(KernelForm::ByWire(config.queue_of(context)?[..wires].to_vec()).into())
        },
    });

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(ByWire { queue_of: config.queue_of(context)? }))
    }
}

impl Config {
    /// The queue of each wire that a card can have.
    fn queue_of(&self, context: &BuildContext) -> Result<[u16; 256], ConfigError> {
        let queues = context.queues.max(1);
        let mut queue_of = std::array::from_fn(|wire| wire as u16 % queues);
        if let Some(chosen) = &self.queues {
            if chosen.len() != usize::from(context.wires) {
                let (found, wires) = (chosen.len(), context.wires);
                let message =
                    format!("found {found} queues, allowed: one queue for each of {wires} wires");
                return Err(ConfigError::new("queues", message));
            }
            for (wire, (&queue, place)) in chosen.iter().zip(&mut queue_of).enumerate() {
                check_queue(&format!("queues[{wire}]"), queue, context.queues)?;
                *place = queue;
            }
        }
        Ok(queue_of)
    }
}

impl Function for ByWire {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        for packet in burst.drain() {
            let queue = self.queue_of[usize::from(packet.wire)];
            out.steer(packet, queue);
        }
    }
}
