//! A host that sends on its own: a number of packets for each received one.

use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;

#[derive(Clone, Copy, Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// Packets per delivered one.
    sends: u64,
    /// Nanoseconds of work per delivered one.
    cost_ns: u64,
    /// Buffers that it needs before it sends, as hosts that read super-frames do.
    landing: usize,
}

impl Default for Keys {
    fn default() -> Self {
        Keys { sends: 0, cost_ns: 0, landing: 1 }
    }
}

pub struct Sender(Keys);

impl Component for Sender {
    type Product = Box<dyn HostAttachment>;
    type Config = Keys;
    const NAME: &'static str = "sender";
    const HELP: &'static str = "sends";
    const IN_VIRTUAL_TIME: bool = true;

    fn build(keys: Keys, _: &BuildContext) -> Result<Box<dyn HostAttachment>, ConfigError> {
        Ok(Box::new(Sender(keys)))
    }
}

impl HostAttachment for Sender {
    fn open_queue(&mut self, _: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(SenderQueue { keys: self.0, left: 0 }))
    }

    fn wants_buffers(&self) -> usize {
        64
    }
}

struct SenderQueue {
    keys: Keys,
    /// Packets left to send.
    left: u64,
}

impl HostQueue for SenderQueue {
    fn deliver(&mut self, _: Time, burst: &mut Burst, _: &mut QueueOut<'_>) -> u64 {
        let packets = burst.len() as u64;
        self.left += packets * self.keys.sends;
        packets * self.keys.cost_ns
    }

    fn transmit(&mut self, _: Time, out: &mut QueueOut<'_>) -> usize {
        let mut sent = 0;
        while self.left != 0
            && let Some(landing) = out.landing(self.keys.landing)
            && let Some(mut packet) = landing.take()
        {
            packet.truncate(60);
            out.submit(packet);
            self.left -= 1;
            sent += 1;
        }
        sent
    }
}
