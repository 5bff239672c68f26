//! A TAP interface of the kernel as host or wire, for unmodified programs.
//!
//! ```toml
//! [[wire]]
//! port = "tap"                 # the card receives packets that the kernel sends on wire0
//! interface = "wire0"
//!
//! [host]
//! attachment = "tap"
//! name = "web0"
//! addresses = ["10.0.0.1/24", "fd00::1/64"]
//! namespace = "server"
//! ```
//!
//! As a host, each target queue is one queue of the interface. A write to a TAP runs the kernel's
//! receive path in the writer's context, so the target core's thread writes, and the protocol work
//! of a queue is done on its core. As a wire it has one queue, and the borrowed core writes: to
//! connect a card to a real network, prefer `packet` or `xdp`. A packet, or a super-frame, costs
//! one system call each way.
//!
//! Offloads, both ways: partial and verified checksums, and super-frames of TCP and UDP. For a wire
//! that cannot complete checksums, the card completes them. The kernel sends super-frames only if
//! every wire of the card takes them and the pool has enough buffers; otherwise it cuts them
//! itself.
//!
//! The kernel drops packets that find a queue of the interface full, and gets no back-pressure from
//! a TAP; so the queues are long (`tx_queue_length`).
//!
//! For packets from the host, the kernel chooses the queue of the interface by a hash with ports,
//! if present. A fragment has none: with several queues it may take another queue than the whole
//! datagrams of its flow, and change the order. UDP allows that; TCP does not send fragments.
//! Towards the host, and from it through one queue, fragments keep their order, unless `rss` hashes
//! UDP by ports or `rps_cores` steers, which also uses ports.
//!
//! With `rps_cores` the kernel spreads the flows of a queue over cores itself (receive packet
//! steering), with a hash in software, a backlog for each core and interrupts between cores, which
//! the card's own queues avoid. The kernel counts packets beyond a backlog as its drops.
//!
//! Guarantees: packets that the kernel refuses are counted drops, `host_refused` or `wire_down`;
//! while the tx ring is full or no buffer is available, packets wait in the interface's own queue,
//! and the kernel counts those that do not fit as its drops. A deleted interface is counted and
//! reported; packets sent then are dropped and counted; it is reopened when an interface of
//! its name and kind exists that no other program has open. Its settings are applied again, or, if
//! the card has dropped its privileges, left as they are with a note in the report. Without
//! `persistent` the interface ends with the card, however the card ends.
//!
//! Source: PICNIC, 3.3; linux/Documentation/networking/tuntap.rst.

mod config;
mod device;
mod queue;
mod wire;

pub use config::{TapConfig, TapWireConfig};
pub use wire::TapWire;

use config::DeviceConfig;
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use queue::{Queue, Read, Written};
use std::os::fd::BorrowedFd;

/// Empty buffers per queue: for packets, or for super-frames of some 33 buffers each.
const FILL: usize = 256;
const SUPER_FRAME_FILL: usize = 1024;

/// The attachment; its device is made when the first queue is opened.
#[derive(Debug)]
pub struct Tap {
    wanted: DeviceConfig,
    wire: u8,
    queues: Option<Vec<Option<Queue>>>,
}

impl Component for Tap {
    type Product = Box<dyn HostAttachment>;
    type Config = TapConfig;
    const NAME: &'static str = "tap";
    const HELP: &'static str = "a TAP interface of the kernel, one queue per target queue";

    fn example(_: &std::path::Path) -> Option<String> {
        None
    }

    fn build(
        mut config: TapConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        let wire = config.wire;
        if wire >= context.wires {
            let allowed = format!("0 to {}", context.wires.saturating_sub(1));
            return Err(ConfigError::new("wire", format!("found {wire}, allowed: {allowed}")));
        }
        config.super_frames &= context.super_frames;
        let cores = std::mem::take(&mut config.rps_cores);
        let wanted = config.read(context, context.queues)?.steered_to(cores)?;
        Ok(Box::new(Tap { wanted, wire, queues: None }))
    }
}

impl HostAttachment for Tap {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        if self.queues.is_none() {
            self.queues = Some(device::make(&self.wanted)?.into_iter().map(Some).collect());
        }
        let opened =
            self.queues.as_mut().and_then(|queues| queues.get_mut(usize::from(queue))?.take());
        let opened = opened.ok_or_else(|| {
            ConfigError::new("queues", format!("queue {queue}: no such queue, or taken"))
        })?;
        Ok(Box::new(TapQueue { queue: opened, wire: self.wire, index: queue }))
    }

    fn wants_buffers(&self) -> usize {
        if self.wanted.super_frames { SUPER_FRAME_FILL } else { FILL }
    }

    fn wants_real_time(&self) -> bool {
        true
    }
}

struct TapQueue {
    queue: Queue,
    /// The wire that packets of the host leave by.
    wire: u8,
    index: u16,
}

impl HostQueue for TapQueue {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        for packet in burst.as_slice() {
            packet.prefetch();
        }
        for packet in burst.drain() {
            match self.queue.write(&packet) {
                Written::Taken => out.deliver(packet),
                _ => out.drop(packet, DropReason::HostRefused),
            }
        }
        // The work has been done, in this thread.
        0
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        let (mut sent, landing) = (0, self.queue.landing());
        while sent < BURST && self.queue.is_there(now) {
            let Some(buffers) = out.landing(landing) else { break };
            match self.queue.read(buffers) {
                Read::Packet(mut packet) => {
                    packet.wire = self.wire;
                    packet.set_received_at(now);
                    out.submit(packet);
                    sent += 1;
                }
                Read::Unfit(packet) => out.refuse(packet, DropReason::Malformed),
                Read::TooLong(packet) => out.refuse(packet, DropReason::Oversize),
                Read::Nothing => break,
            }
        }
        sent
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.queue.readiness()
    }

    fn report(&self) -> Vec<String> {
        // Every queue has seen the same.
        if self.index == 0 { self.queue.report() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests;
