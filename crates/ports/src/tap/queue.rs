//! One queue of a TAP device: packets to and from the kernel, and the state of the device.
//!
//! Guarantees: a deleted device is detected by the first read or write, is no longer waited for,
//! and is reopened with its settings once an interface of its name exists.

use super::config::{DeviceConfig, LANDING_BUFFERS};
use super::device;
use crate::interface::shorten;
use crate::sys::link::InterfaceHandle;
use crate::sys::sysfs::Sysfs;
use crate::sys::tun;
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::landing::Landing;
use picnic_core::time::Time;
use rustix::io::{Errno, readv, writev};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Interval for looking for a missing device, in nanoseconds.
const LOOK_NS: u64 = 50_000_000;
/// Most segments of a packet in one write; longer chains are gathered first.
const SEGMENTS: usize = 64;

/// The result of a read.
pub(super) enum Read {
    /// A packet.
    Packet(Descriptor),
    /// A packet that cannot be accepted.
    Unfit(Descriptor),
    /// The start of a packet that does not fit in a landing.
    TooLong(Descriptor),
    /// Nothing.
    Nothing,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The kernel has the packet.
    Taken,
    /// The kernel had no memory for it.
    Full,
    /// The kernel did not take it.
    Refused,
    /// The interface is down, or gone.
    Down,
    /// The descriptor requests something that the kernel's header cannot express.
    Unfit,
}

/// The result for the kernel's error.
pub(super) fn refusal(error: Errno) -> Written {
    match error {
        Errno::BADFD | Errno::IO => Written::Down,
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Written::Full,
        _ => Written::Refused,
    }
}

/// A queue, open or left over from a device that was deleted.
#[derive(Debug)]
pub(super) struct Queue {
    file: OwnedFd,
    /// To look for the device in its namespace; none in tests, whose queues are sockets.
    link: Option<InterfaceHandle>,
    sysfs: Option<Arc<Sysfs>>,
    wanted: Arc<DeviceConfig>,
    gone: bool,
    next_look: Time,
    losses: u64,
    returns: u64,
    /// Packets that had no room.
    too_long: u64,
    /// A setting that failed on the returned device.
    complaint: Option<String>,
}

impl Queue {
    pub(super) fn new(
        file: OwnedFd,
        link: impl Into<Option<InterfaceHandle>>,
        sysfs: Option<Arc<Sysfs>>,
        wanted: Arc<DeviceConfig>,
    ) -> Self {
        Queue {
            file,
            link: link.into(),
            sysfs,
            wanted,
            gone: false,
            next_look: Time::ZERO,
            losses: 0,
            returns: 0,
            too_long: 0,
            complaint: None,
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    #[cfg(test)]
    pub(super) fn wanted(&self) -> &DeviceConfig {
        &self.wanted
    }

    /// Buffers that a landing for [`Queue::read`] needs.
    pub(super) fn landing(&self) -> usize {
        self.wanted.landing
    }

    /// Descriptor to wait on; none without a device, which would always be ready.
    pub(super) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.file.as_fd())
    }

    /// When a missing device is looked for.
    pub(super) fn next_look(&self) -> Option<Time> {
        self.gone.then_some(self.next_look)
    }

    /// Whether the device exists; looks for a missing one when it is time.
    #[inline]
    pub(super) fn is_there(&mut self, now: Time) -> bool {
        !self.gone || self.look(now)
    }

    #[cold]
    fn look(&mut self, now: Time) -> bool {
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_NS;
        let Some(link) = &mut self.link else { return false };
        let name = &self.wanted.name;
        // While its creator has a queue open, the device may lack headers, and keep lacking them.
        if link.find_again(name).is_err() || link.gives_headers() != Ok(true) {
            return false;
        }
        if tun::attach(self.file.as_fd(), name, false).is_err() {
            return false;
        }
        // Every queue does this, and the last one has the final device.
        let configured =
            device::configure(self.file.as_fd(), link, self.sysfs.as_deref(), &self.wanted);
        self.complaint = configured.err().map(|error| format!("{}: {}", error.key, error.message));
        self.gone = false;
        self.returns += 1;
        true
    }

    /// Events of the device, for the report.
    pub(super) fn report(&self) -> Vec<String> {
        let name = &self.wanted.name;
        let mut lines = Vec::new();
        if self.losses != 0 {
            lines.push(format!("{name}: was deleted {} times", self.losses));
        }
        if self.returns != 0 {
            lines.push(format!("{name}: reappeared and was reattached {} times", self.returns));
        }
        if self.too_long != 0 {
            let (count, shorten) = (self.too_long, shorten(name, self.wanted.namespace.as_deref()));
            lines.push(format!("{name}: {count} packets were longer than a card takes: {shorten}"));
        }
        if let Some(complaint) = &self.complaint {
            lines.push(format!(
                "{name}: after it reappeared, {complaint}; set it as in the card file"
            ));
        }
        if self.gone {
            lines.push(format!("{name}: was missing at the end"));
        }
        lines
    }

    fn note(&mut self, error: Errno) {
        if error == Errno::BADFD && !self.gone {
            self.gone = true;
            self.losses += 1;
        }
    }

    /// Writes a packet, with its offloads.
    #[inline]
    pub(super) fn write(&mut self, packet: &Descriptor) -> Written {
        let Some(header) = Header::of(packet) else { return Written::Unfit };
        let header = header.to_bytes();
        if !packet.is_chained() {
            let slices = [IoSlice::new(&header), IoSlice::new(packet.data())];
            return self.written(writev(&self.file, &slices));
        }
        let mut slices = [IoSlice::new(&[]); SEGMENTS + 1];
        slices[0] = IoSlice::new(&header);
        let mut count = 1;
        for segment in packet.segments() {
            let Some(slice) = slices.get_mut(count) else {
                return self.write_gathered(&header, packet);
            };
            *slice = IoSlice::new(segment);
            count += 1;
        }
        self.written(writev(&self.file, &slices[..count]))
    }

    /// Writes a packet of very many segments.
    #[cold]
    fn write_gathered(&mut self, header: &[u8], packet: &Descriptor) -> Written {
        let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
        let slices = [IoSlice::new(header), IoSlice::new(&bytes)];
        self.written(writev(&self.file, &slices))
    }

    fn written(&mut self, result: Result<usize, Errno>) -> Written {
        match result {
            Ok(_) => Written::Taken,
            Err(error) => {
                self.note(error);
                refusal(error)
            }
        }
    }

    /// Reads a packet into a landing of [`Queue::landing`] buffers or more.
    #[inline]
    pub(super) fn read(&mut self, landing: &mut Landing) -> Read {
        let (mut header, mut more) = ([0; HEADER_BYTES], [0; 1]);
        let mut slices: [_; LANDING_BUFFERS + 2] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        slices[0] = IoSliceMut::new(&mut header);
        let (mut count, mut room) = (1, 0);
        for buffer in landing.buffers().take(self.wanted.landing) {
            room += buffer.len();
            slices[count] = IoSliceMut::new(buffer);
            count += 1;
        }
        slices[count] = IoSliceMut::new(&mut more);
        let length = match readv(&self.file, &mut slices[..=count]) {
            Ok(length) => length,
            Err(error) => {
                self.note(error);
                return Read::Nothing;
            }
        };
        // Every frame fits, unless the MTU or the length of super-frames was raised without
        // the card's knowledge.
        let (is_empty, is_long) = (length <= HEADER_BYTES, length > HEADER_BYTES + room);
        let length = length.saturating_sub(HEADER_BYTES).min(room);
        let Some(mut packet) = landing.land(length) else { return Read::Nothing };
        if is_long {
            self.too_long += 1;
            return Read::TooLong(packet);
        }
        match Header::from_bytes(&header).apply(&mut packet, 0) {
            Ok(()) if !is_empty => Read::Packet(packet),
            _ => Read::Unfit(packet),
        }
    }
}
