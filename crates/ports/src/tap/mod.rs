//! A host that is a multi-queue TAP interface of the kernel: unmodified programs behind it.
//!
//! ```toml
//! [host]
//! attachment = "tap"
//! name = "web0"
//! addresses = ["10.0.0.1/24", "fd00::1/64"]
//! namespace = "server"
//! ```
//!
//! Each target queue is one queue of the interface. A write to a TAP runs the kernel's receive
//! path in the writer's context, so the target core's thread writes, and the protocol work of
//! a queue is done on its core. A packet costs one system call each way: the interface's price.
//!
//! Offloads. Towards the host all of them: unfinished and verified checksums, and super-frames
//! of TCP and UDP, as long as the wire brought them. From the host, unfinished checksums; a
//! wire that cannot finish them gets them finished. Super-frames from the host are refused (the
//! kernel cuts them to the MTU first): they do not fit into a buffer, and not every wire can cut.
//!
//! Guarantees: what the kernel does not take is a drop `host_refused`; while the tx ring is full
//! or no buffer is at hand, packets wait in the interface's own queue, and what does not fit
//! there the kernel counts as its drop. Without `persistent` the interface ends with the card,
//! however the card ends.
//!
//! Source: PICNIC, 3.3; linux/Documentation/networking/tuntap.rst.

mod config;
mod device;

pub use config::TapConfig;

use crate::virtio::{HEADER_BYTES, Header};
use config::Wanted;
use device::Device;
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use rustix::io::{Errno, readv, writev};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Empty buffers at hand for each queue.
const FILL: usize = 256;
/// Segments of a packet that one write takes; longer chains are copied together.
const SEGMENTS: usize = 64;

/// The attachment; its device is made when the first queue is opened.
#[derive(Debug)]
pub struct Tap {
    wanted: Wanted,
    wire: u8,
    device: Option<Device>,
}

impl Component for Tap {
    type Product = Box<dyn HostAttachment>;
    type Config = TapConfig;
    const NAME: &'static str = "tap";
    const HELP: &'static str = "a network interface of the kernel, one queue per target queue";

    fn build(
        config: TapConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        let wire = config.wire;
        let wanted = config.read(context)?;
        Ok(Box::new(Tap { wanted, wire, device: None }))
    }
}

impl HostAttachment for Tap {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, String> {
        if self.device.is_none() {
            self.device = Some(device::make(&self.wanted)?);
        }
        let device = self.device.as_mut();
        let opened = device.and_then(|device| device.queues.get_mut(usize::from(queue))?.take());
        let queue = opened.ok_or_else(|| format!("queue {queue}: no such queue, or taken"))?;
        Ok(Box::new(TapQueue { queue, wire: self.wire, gone: false }))
    }

    fn wants_buffers(&self) -> usize {
        FILL
    }
}

struct TapQueue {
    queue: OwnedFd,
    /// The wire that packets of the host leave by.
    wire: u8,
    /// The interface was deleted: its descriptor is always ready and never good.
    gone: bool,
}

impl HostQueue for TapQueue {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        for packet in burst.as_slice() {
            packet.prefetch();
        }
        for packet in burst.drain() {
            if self.write(&packet) {
                out.deliver(packet);
            } else {
                out.drop(packet, DropReason::HostRefused);
            }
        }
        // The work has been done, in this thread.
        0
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        let mut sent = 0;
        while sent < BURST && !self.gone {
            let Some(mut packet) = out.buffer() else { break };
            match self.read(&mut packet) {
                Some(true) => {
                    packet.wire = self.wire;
                    packet.set_received_at(now);
                    out.submit(packet);
                    sent += 1;
                }
                Some(false) => out.refuse(packet, DropReason::Malformed),
                None => {
                    out.unused(packet);
                    break;
                }
            }
        }
        sent
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.queue.as_fd())
    }
}

impl TapQueue {
    /// Writes a packet; false if the kernel does not take it.
    fn write(&mut self, packet: &Descriptor) -> bool {
        let Some(header) = Header::of(packet) else { return false };
        let header = header.to_bytes();
        if !packet.is_chained() {
            let slices = [IoSlice::new(&header), IoSlice::new(packet.data())];
            return self.written(writev(&self.queue, &slices));
        }
        let mut slices = [IoSlice::new(&[]); SEGMENTS + 1];
        slices[0] = IoSlice::new(&header);
        let mut count = 1;
        for segment in packet.segments() {
            let Some(slice) = slices.get_mut(count) else { return self.write_gathered(packet) };
            *slice = IoSlice::new(segment);
            count += 1;
        }
        self.written(writev(&self.queue, &slices[..count]))
    }

    /// Writes a packet of very many segments.
    #[cold]
    fn write_gathered(&mut self, packet: &Descriptor) -> bool {
        let Some(header) = Header::of(packet) else { return false };
        let header = header.to_bytes();
        let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
        let slices = [IoSlice::new(&header), IoSlice::new(&bytes)];
        self.written(writev(&self.queue, &slices))
    }

    fn written(&mut self, result: Result<usize, Errno>) -> bool {
        self.gone |= result == Err(Errno::BADFD);
        result.is_ok()
    }

    /// Reads a packet into an empty buffer; `None` if there is none, and then the buffer is as it
    /// was. False if the packet cannot be taken.
    fn read(&mut self, packet: &mut Descriptor) -> Option<bool> {
        let (mut header, mut more) = ([0; HEADER_BYTES], [0; 1]);
        let mut slices = [
            IoSliceMut::new(&mut header),
            IoSliceMut::new(packet.data_mut()),
            IoSliceMut::new(&mut more),
        ];
        let length = match readv(&self.queue, &mut slices) {
            Ok(length) => length,
            Err(error) => {
                self.gone |= error == Errno::BADFD;
                return None;
            }
        };
        // The MTU is such that every frame fits, unless it was raised behind the card's back.
        let fits = (HEADER_BYTES + 1..=HEADER_BYTES + packet.data().len()).contains(&length);
        packet.truncate(length.saturating_sub(HEADER_BYTES).min(u16::MAX.into()) as u16);
        Some(fits && Header::from_bytes(&header).apply(packet, 0).is_ok())
    }
}

#[cfg(test)]
mod tests;
