//! A host, or a wire, that is a TAP interface of the kernel: unmodified programs behind it.
//!
//! ```toml
//! [[wire]]
//! port = "tap"                 # what the kernel sends by wire0, the card receives
//! interface = "wire0"
//!
//! [host]
//! attachment = "tap"
//! name = "web0"
//! addresses = ["10.0.0.1/24", "fd00::1/64"]
//! namespace = "server"
//! ```
//!
//! Of a host, each target queue is one queue of the interface. A write to a TAP runs the kernel's
//! receive path in the writer's context, so the target core's thread writes, and the protocol
//! work of a queue is done on its core. As a wire it has one queue, and the borrowed core writes:
//! a wire between a card and a real network is better a `packet` or `xdp` one. A packet, or a
//! super-frame, costs one system call each way: the interface's price.
//!
//! Offloads, both ways: unfinished and verified checksums, and super-frames of TCP and UDP. A
//! wire that cannot finish checksums gets them finished. The kernel sends super-frames only if
//! every wire of the card takes them and the pool has buffers to lay out for them; otherwise it
//! cuts them itself.
//!
//! The kernel drops what finds a queue of the interface full, and knows of no back-pressure from
//! a TAP; so the queues are long (`tx_queue_length`).
//!
//! Of what the host sends, the kernel chooses the queue of the interface by a hash with ports, if
//! there are any. A fragment has none: with several queues it may take another one than the whole
//! datagrams of its flow and overtake them, or be overtaken. UDP allows that; TCP does not send
//! fragments. Towards the host, and from it by one queue, fragments keep their place, unless `rss`
//! hashes UDP by ports or `rps_cores` steers, which does so too.
//!
//! With `rps_cores` the kernel spreads the flows of a queue over cores itself (receive packet
//! steering), by a hash in software, a backlog for each core and an interrupt between cores: what
//! the card's own queues save. What a backlog has no room for the kernel counts as its drop.
//!
//! Guarantees: what the kernel does not take is a counted drop, `host_refused` or `wire_down`;
//! while the tx ring is full or no buffer is at hand, packets wait in the interface's own queue,
//! and what does not fit there the kernel counts as its drop. An interface that is deleted is
//! counted and reported, what is sent meanwhile is dropped and counted, and it is taken up again
//! when one of its name and kind is there, which nobody else has open. It is set as the keys say,
//! or, where the card has no privileges any more, left as it is, and the report says so. Without
//! `persistent` the interface ends with the
//! card, however the card ends.
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

/// Empty buffers at hand for each queue: for packets, or for super-frames of some 33 each.
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
    const HELP: &'static str = "a network interface of the kernel, one queue per target queue";

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
