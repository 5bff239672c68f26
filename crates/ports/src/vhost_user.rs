//! Guests: virtual machines whose NIC is the card (vhost-user).
//!
//! ```toml
//! [host]
//! attachment = "vhost-user"
//! queues = 4
//!
//! [[host.guest]]
//! socket = "/run/picnic/vm0.sock"
//! ```
//!
//! Each guest has a multi-queue virtio NIC. Its rings are in its own memory, which the front end
//! (QEMU, or DPDK's virtio-user) shares; the target core of a queue copies packets from there and
//! to there, once. So the guests are the tenants of the card: with `vmdq` in front, each is a
//! virtual function in software.
//!
//! A guest's name in figures and captures is the stem of its socket's file name, `vm0` above.
//!
//! Which queue a packet takes is decided by the card (`rss`, filters, `picnic ctl rss`): the
//! features RSS and HASH_REPORT are not offered, since the front end would keep the guest's key for
//! itself. A guest should use all its queues: packets for one that it has not enabled are dropped.
//!
//! Offloads, both ways: partial and verified checksums, and super-frames of TCP. A packet between
//! guests keeps an unfinished checksum and stays one super-frame, unless the receiver does not know
//! them.
//!
//! Guarantees: whatever a guest writes to its memory and its socket costs packets of its own, as
//! `bad_descriptor`. Packets for a queue whose ring has not started or is disabled are dropped as
//! `ring_disabled`, those that find no buffer of the guest as `no_descriptor`. Without a buffer of
//! the card or room in the tx ring, packets wait in the guest. A front end that takes away memory that
//! it shares loses its connection, and nothing else.
//!
//! Source: QEMU, docs/interop/vhost-user.rst; Virtual I/O Device 1.2, 5.1.

mod backend;
mod config;
pub mod dirty;
mod extra;
mod guest;
pub mod inflight;
pub mod memory;
pub mod pair;
mod place;
mod post;
mod rarp;
pub mod ring;
mod socket;
mod state;

pub use config::{GuestConfig, Mode, VhostUserConfig};

use config::of_guest;
use guest::Guest;
use pair::Terms;
use picnic_core::attachment::{self, HostAttachment, HostQueue, QueueOut};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use post::{Post, Receiver};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Empty buffers per queue: for packets, or for super-frames of some 33 buffers each.
const FILL: usize = 256;
const SUPER_FRAME_FILL: usize = 1024;

/// The attachment; sockets are made when the first queue is opened.
#[derive(Debug)]
pub struct VhostUser {
    guests: Vec<(GuestConfig, PathBuf, Terms)>,
    /// Pairs of rings per guest.
    pairs: u16,
    super_frames: bool,
    started: Vec<Arc<Guest>>,
}

impl Component for VhostUser {
    type Product = Box<dyn HostAttachment>;
    type Config = VhostUserConfig;
    const NAME: &'static str = "vhost-user";
    const HELP: &'static str = "virtual machines, each with a multi-queue virtio NIC";

    fn example(directory: &Path) -> Option<String> {
        Some(format!("guest = [{{ socket = {:?} }}]", directory.join("vm0.sock")))
    }

    fn build(
        config: VhostUserConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        let (terms, pairs) = config.read(context)?;
        let guests = config.guest.into_iter().zip(terms);
        let guests = guests.map(|(guest, terms)| (guest.clone(), guest.path(context), terms));
        let (super_frames, started) = (context.super_frames, Vec::new());
        Ok(Box::new(VhostUser { guests: guests.collect(), pairs, super_frames, started }))
    }
}

impl VhostUser {
    fn start(&mut self) -> Result<(), ConfigError> {
        let fault = |error| ConfigError::new("guest", format!("no descriptors: {error}"));
        let names = config::names(self.guests.iter().map(|(config, ..)| config));
        let mut faults = Vec::new();
        let guests = self.guests.iter().zip(names).enumerate();
        for (index, ((config, path, terms), name)) in guests {
            let posts = (0..self.pairs).map(|_| Post::new().map(Arc::new));
            let posts = posts.collect::<Result<_, _>>().map_err(fault)?;
            let first = index as u16 * self.pairs;
            let guest = Guest::new(name, first, path.clone(), posts).map_err(fault)?;
            let guest = Arc::new(guest);
            match guest::start(&guest, config, *terms) {
                Ok(()) => self.started.push(guest),
                Err(error) => faults.push(of_guest(index, &error)),
            }
        }
        ConfigError::all(faults)
    }
}

impl HostAttachment for VhostUser {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        if self.started.is_empty() {
            self.start()?;
        }
        let (index, pair) = (usize::from(queue / self.pairs), usize::from(queue % self.pairs));
        let guest = self.started.get(index);
        let Some(post) = guest.and_then(|guest| guest.posts.get(pair)).cloned() else {
            return Err(ConfigError::new("queues", format!("queue {queue}: no such queue")));
        };
        Ok(Box::new(GuestQueue { receiver: Receiver::new(post) }))
    }

    fn guests(&self) -> Vec<Arc<dyn attachment::Guest>> {
        self.started.iter().map(|guest| guest.clone() as _).collect()
    }

    fn wants_buffers(&self) -> usize {
        if self.super_frames { SUPER_FRAME_FILL } else { FILL }
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        // Their threads remove the sockets: the borrowed core may not.
        self.started.iter().for_each(|guest| guest.stop());
    }
}

/// One queue: a pair of rings of a guest, as long as it has them.
struct GuestQueue {
    receiver: Receiver,
}

impl HostQueue for GuestQueue {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        self.receiver.look();
        match &mut self.receiver.pair {
            Some(pair) => pair.deliver(burst, out),
            None => burst.drain().for_each(|packet| out.drop(packet, DropReason::RingDisabled)),
        }
        self.receiver.note_broken();
        // The work has been done, in this thread.
        0
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        self.receiver.look();
        let Some(pair) = &mut self.receiver.pair else { return 0 };
        let told = pair.moved.is_some() && rarp::tell(pair, now, out);
        let sent = usize::from(told) + pair.transmit(now, out);
        self.receiver.note_broken();
        sent
    }

    fn next_deadline(&self) -> Option<Time> {
        // A guest that was told not to kick is polled.
        let must_poll = self.receiver.pair.as_ref().is_some_and(|pair| pair.must_poll());
        must_poll.then_some(Time::ZERO)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.post().sources())
    }
}

#[cfg(test)]
mod tests;
