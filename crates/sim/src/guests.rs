//! Guests in virtual time: the card file of a card with virtual machines, without the machines.
//!
//! ```toml
//! [host]
//! attachment = "vhost-user"
//! queues = 4
//!
//! [[host.guest]]
//! socket = "vm0.sock"
//!
//! [[host.guest]]
//! socket = "vm1.sock"
//! ```
//!
//! The keys are those of the real attachment (`picnic_ports::vhost_user`), which makes a socket for
//! each guest; here nothing is opened. A modelled guest has enabled all its rings, always has
//! buffers, and reads each packet. The target core pays for the copy to the guest's memory: 30 ns a
//! packet and 0.1 ns a byte, both assumed. What the guest's own processors do with a packet is not
//! modelled.

use picnic_core::attachment::{Guest, GuestState, HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_ports::vhost_user::VhostUserConfig;
use std::ops::Range;
use std::sync::Arc;

const COPY_PACKET_NS: u64 = 30;
const BYTES_PER_NS: u64 = 10;

/// The modelled guests.
#[derive(Debug)]
pub(crate) struct Guests(Vec<Arc<dyn Guest>>);

impl Component for Guests {
    type Product = Box<dyn HostAttachment>;
    type Config = VhostUserConfig;
    const NAME: &'static str = "vhost-user";
    const HELP: &'static str = "modelled guests, which read their packets";
    const IN_VIRTUAL_TIME: bool = true;

    fn build(
        config: VhostUserConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        config.check(context)?;
        let queues = context.queues / config.guest.len() as u16;
        let guests = config.names().into_iter().zip(&config.guest).zip(0..);
        let guests = guests.map(|((name, guest), place)| {
            let queues = place * queues..(place + 1) * queues;
            Arc::new(Modelled { name, queues, mtu: guest.mtu.into() }) as _
        });
        Ok(Box::new(Guests(guests.collect())))
    }
}

impl HostAttachment for Guests {
    fn open_queue(&mut self, _queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(GuestQueue))
    }

    fn guests(&self) -> Vec<Arc<dyn Guest>> {
        self.0.clone()
    }
}

#[derive(Debug)]
struct Modelled {
    name: String,
    queues: Range<u16>,
    mtu: u64,
}

impl Guest for Modelled {
    fn name(&self) -> &str {
        &self.name
    }

    fn queues(&self) -> Range<u16> {
        self.queues.clone()
    }

    fn state(&self) -> GuestState {
        GuestState {
            is_connected: true,
            connections: 1,
            ready_queues: self.queues.len() as u64,
            mtu: self.mtu,
            ..GuestState::default()
        }
    }
}

struct GuestQueue;

impl HostQueue for GuestQueue {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        let mut work = 0;
        for packet in burst.drain() {
            work += COPY_PACKET_NS + u64::from(packet.length()) / BYTES_PER_NS;
            out.deliver(packet);
        }
        work
    }
}
