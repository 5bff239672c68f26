//! Wire port `packet`: a kernel interface, through a packet socket and ring.
//!
//! ```toml
//! [[wire]]
//! port = "packet"
//! interface = "eth1"
//! namespace = "lab"     # optional: a name of `ip netns`, or a path
//! promiscuous = true    # packets for others too, until the card ends
//! frames = 4096         # slots of the receive ring
//! frame_size = 1920     # bytes of a packet that fit in a slot
//! ```
//!
//! Packets are read from a ring shared with the kernel, so receiving makes no system call, except
//! one for each packet longer than a slot; a burst is sent with one. Each packet has a virtio
//! header, so super-frames and partial checksums (veth has both) pass unchanged. A VLAN tag that
//! the kernel stripped is inserted again. Packets that the card or its machine sends through the
//! interface are not received.
//!
//! Slots are those of version 2, which hands over each slot as soon as it is filled: version 3
//! hands over whole blocks, the last of which waits for a timer of a millisecond or more. Slots
//! that are no longer than ordinary packets keep the ring in the cache; super-frames would be
//! copied twice there, so the kernel keeps them aside, and they are read straight into buffers.
//!
//! A packet for which the interface's queue has no room is offered again for a tenth of a second,
//! then dropped. The host waits for that time, as with a NIC with a full queue.
//!
//! A packet's receive time is the kernel's, from when it was put into the ring.
//!
//! Guarantees: order is kept, also between long packets and others; a packet that found no free
//! slot, or was long and found no room, is shed as overrun, one longer than 128 KiB as oversize,
//! one whose offloads a descriptor cannot express (a super-frame in a tunnel) as malformed. An
//! interface that loses its carrier, goes down or is deleted is counted and reported; packets sent
//! meanwhile are dropped and counted; it is reopened when it returns under the same name. An
//! interface is the wire of one card at a time.
//!
//! Privileges: CAP_NET_RAW; with `namespace`, CAP_SYS_ADMIN; without CAP_NET_ADMIN, few long
//! packets have room. Needed only to start.
//!
//! Source: packet(7), Documentation/networking/packet_mmap.rst.

use crate::interface::{
    CHECK_NS, WireLock, down, drop_oldest, lock, long_super_frames, no_namespace, shorten,
};
use crate::sys::link::{InterfaceHandle, LinkState};
use crate::sys::namespace;
use crate::sys::packet::{Frame, Name, Ring, Socket, name};
use crate::sys::xsk_device;
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::pool::MAX_PACKET_BYTES;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use std::io;
use std::os::fd::AsFd;

mod config;
mod long;
mod retry;
#[cfg(test)]
pub(crate) mod tests;

pub use config::PacketConfig;

use long::LongPackets;
use retry::Retry;

/// Bytes of packets that may wait in the interface's queue.
const SEND_BUFFER: usize = 4 << 20;
/// Memory for long packets waiting to be read, in bytes; allocated only as needed.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Bytes of packets after which a turn of receiving ends: super-frames would make it long.
const TURN_BYTES: usize = 256 << 10;

/// Bytes of a VLAN tag, and of the addresses before it.
const TAG_BYTES: usize = 4;
const ADDRESSES_BYTES: usize = 12;

/// The registry entry.
#[derive(Debug)]
pub struct Packet;

impl Component for Packet {
    type Product = Box<dyn WirePort>;
    type Config = PacketConfig;
    const NAME: &'static str = "packet";
    const HELP: &'static str = "an interface of the kernel, by packet socket (AF_PACKET)";

    fn example(_: &std::path::Path) -> Option<String> {
        None
    }

    fn build(config: PacketConfig, _: &BuildContext) -> Result<Self::Product, ConfigError> {
        Ok(Box::new(PacketPort::open(&config)?))
    }
}

/// A packet socket on an interface.
#[derive(Debug)]
pub struct PacketPort {
    // Before the socket: the ring's memory is the socket's.
    ring: Ring,
    socket: Socket,
    long: LongPackets,
    /// Bound to a name in the interface's namespace, which no second card can bind.
    _lock: WireLock,
    interface: String,
    name: Name,
    namespace: Option<String>,
    index: i32,
    promiscuous: bool,
    /// Slots of the ring.
    frames: u32,
    link: LinkState,
    next_check: Time,
    retry: Retry,
    /// Times the interface went down or lost its carrier, disappeared, and was reopened.
    downs: u64,
    losses: u64,
    returns: u64,
    /// Packets without a free slot. Atomic, since the last are read for a report.
    overruns: u64,
    /// Packets that a descriptor cannot express, and packets that are too long.
    unfit: u64,
    oversize: u64,
    /// Length of the interface's longest super-frame, in bytes, when it was opened.
    longest: u32,
}

impl PacketPort {
    /// Opens the interface; packets are received into the ring from now on.
    ///
    /// # Errors
    /// A key is wrong, or the system refused.
    pub fn open(config: &PacketConfig) -> Result<Self, ConfigError> {
        let interface = config.interface.as_deref().ok_or_else(|| {
            ConfigError::new("interface", "missing, expected the name of an interface")
        })?;
        let name = name(interface).ok_or_else(|| {
            let message = format!("found \"{interface}\", allowed: a name of 1 to 15 bytes");
            ConfigError::new("interface", message)
        })?;
        let open = || PacketPort::open_here(config, interface, name);
        match &config.namespace {
            None => open(),
            Some(namespace) => {
                let path = namespace::path(namespace);
                namespace::within(&path, open).map_err(|error| no_namespace(namespace, &error))?
            }
        }
    }

    /// Opens the interface in the network namespace of the calling thread.
    fn open_here(config: &PacketConfig, interface: &str, name: Name) -> Result<Self, ConfigError> {
        let refuse = |what: &str, error: io::Error| {
            ConfigError::new("interface", format!("\"{interface}\": {what}: {error}"))
        };
        let socket = Socket::open().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ConfigError::new(
                "interface",
                format!("\"{interface}\": a packet socket needs CAP_NET_RAW (root)"),
            ),
            _ => refuse("cannot open a packet socket", error),
        })?;
        let index = socket.index_of(&name).map_err(|_| {
            let place = config.namespace.as_deref().unwrap_or("the card's network namespace");
            let message = format!("found \"{interface}\", but {place} has no such interface");
            ConfigError::new("interface", message)
        })?;
        if !socket.is_ethernet(&name).map_err(|error| refuse("cannot be queried", error))? {
            let message = format!("\"{interface}\" does not speak Ethernet");
            return Err(ConfigError::new("interface", message));
        }
        let lock = lock(interface).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                let message = format!("\"{interface}\" is the wire of a card already");
                ConfigError::new("interface", message)
            }
            _ => refuse("cannot be taken for this card", error),
        })?;
        socket.prepare().map_err(|error| refuse("the kernel lacks a required feature", error))?;
        socket.set_send_buffer(SEND_BUFFER);
        socket.set_receive_buffer(RECEIVE_BUFFER);
        let found = InterfaceHandle::find(interface);
        let longest = found.and_then(|link| link.longest_super_frame()).unwrap_or(0);
        let ring = Ring::map(&socket, config.frames as usize, config.frame_size as usize);
        let ring = ring.map_err(|error| {
            let message = format!("found {}, but there is no memory: {error}", config.frames);
            ConfigError::new("frames", message)
        })?;
        let mut port = PacketPort {
            ring,
            socket,
            long: LongPackets::new(),
            _lock: lock,
            interface: interface.into(),
            name,
            namespace: config.namespace.clone(),
            index,
            promiscuous: config.promiscuous,
            frames: config.frames,
            link: LinkState::Running,
            next_check: Time::ZERO,
            retry: Retry::default(),
            downs: 0,
            losses: 0,
            returns: 0,
            overruns: 0,
            unfit: 0,
            oversize: 0,
            longest,
        };
        port.attach(index).map_err(|error| refuse("cannot be received from", error))?;
        Ok(port)
    }

    /// Opens the interface with this index again.
    fn attach(&mut self, index: i32) -> io::Result<()> {
        self.socket.bind(index)?;
        if self.promiscuous {
            self.socket.set_promiscuous(index)?;
        }
        self.index = index;
        Ok(())
    }

    /// Counts the kernel's drops, and checks whether the interface still exists.
    #[cold]
    fn check(&mut self, now: Time, rx: &mut Receiver<'_>) {
        self.next_check = now + CHECK_NS;
        let overruns = self.socket.take_dropped();
        if overruns != 0 {
            self.overruns += overruns;
            rx.shed(DropReason::WireOverrun, overruns);
        }
        // One that has left the namespace and is back has its index, but not the socket.
        let found = match self.socket.bound_to() {
            Some(index) if index == self.index => match self.socket.is_running(index) {
                Ok(true) => LinkState::Running,
                Ok(false) => LinkState::Down,
                Err(_) => self.look_for_return(),
            },
            _ => self.look_for_return(),
        };
        match (self.link, found) {
            // One that is there again and still down is back when it is up.
            (LinkState::Gone | LinkState::Down, LinkState::Running) => self.returns += 1,
            (LinkState::Running, LinkState::Down) => self.downs += 1,
            (LinkState::Running | LinkState::Down, LinkState::Gone) => self.losses += 1,
            _ => {}
        }
        if found != LinkState::Running || self.link != found {
            // It says the same as has just been found, and would wake the card again and again.
            self.socket.take_error();
        }
        self.link = found;
    }

    /// Reopens the interface if one of its name exists: the socket outlives it, with ring,
    /// namespace and privileges.
    fn look_for_return(&mut self) -> LinkState {
        let Ok(index) = self.socket.index_of(&self.name) else { return LinkState::Gone };
        if self.attach(index).is_err() {
            return LinkState::Gone;
        }
        if self.link != LinkState::Gone {
            // It went and came between two looks.
            self.losses += 1;
            self.returns += 1;
        }
        match self.socket.is_running(index) {
            Ok(true) => LinkState::Running,
            Ok(false) => LinkState::Down,
            Err(_) => LinkState::Gone,
        }
    }
}

impl WirePort for PacketPort {
    fn describe(&self) -> Description {
        let capabilities = Capabilities {
            partial_checksums: true,
            super_frames: true,
            arrival: true,
            tells_waiting: true,
            ..Capabilities::default()
        };
        let arrivals = Arrivals {
            room: Some(self.frames.into()),
            room_origin: "frames",
            ..Arrivals::ethernet(xsk_device::speed(self.socket.as_fd(), &self.name))
        };
        let (interface, namespace) = (&self.interface, self.namespace.as_deref());
        let down = down(self.socket.as_fd(), interface, &self.name, namespace);
        let long = long_super_frames(interface, self.longest, MAX_PACKET_BYTES, namespace);
        let warnings = down.into_iter().chain(long).collect();
        Description { capabilities, arrivals, warnings, notes: Vec::new() }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        if now >= self.next_check {
            self.check(now, rx);
        }
        let mut bytes = 0;
        // A budget, since packets that are shed take no room.
        for _ in 0..rx.room() {
            let Some(mut frame) = self.ring.next() else { return };
            let length = frame.length();
            rx.arrived_at_realtime(frame.arrived_ns());
            let taken = match frame.is_kept() {
                false => take(&mut frame, rx),
                true => self.long.take(&self.socket, length, frame.tag(), rx),
            };
            if let Err(reason) = taken {
                self.unfit += u64::from(reason == DropReason::Malformed);
                self.oversize += u64::from(reason == DropReason::Oversize);
                self.overruns += u64::from(reason == DropReason::WireOverrun);
                rx.shed(reason, 1);
            }
            bytes += length;
            if bytes >= TURN_BYTES {
                return;
            }
        }
    }

    fn holds(&mut self, _now: Time, frames: usize) -> bool {
        self.ring.holds(frames)
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        if self.retry.is_early(now) {
            return;
        }
        while let Some(oldest) = tx.peek() {
            if self.link != LinkState::Running {
                drop_oldest(tx, DropReason::WireDown);
                continue;
            }
            if Header::of(oldest).is_none() {
                self.unfit += 1;
                drop_oldest(tx, DropReason::Malformed);
                continue;
            }
            // Ends before a packet that no header can be made for: it will be the oldest.
            let batch =
                tx.waiting().map_while(|packet| Some((packet, Header::of(packet)?.to_bytes())));
            match self.socket.send(batch) {
                Ok(taken) => {
                    self.retry.taken();
                    for _ in 0..taken {
                        if let Some(packet) = tx.next() {
                            tx.sent(packet);
                        }
                    }
                }
                // Its queue is full for now: the rest stays.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The kernel has thrown its copy away, the card still has the packet.
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOBUFS) && self.retry.refused(now) =>
                {
                    return;
                }
                Err(error) => drop_oldest(tx, refusal(&error)),
            }
        }
    }

    fn status(&self) -> Status<'_> {
        let is_up = self.link == LinkState::Running;
        Status {
            is_up,
            // While it runs, packets and changes of the interface wake the card by themselves.
            next_deadline: (!is_up).then_some(self.next_check),
            readiness: Some(self.socket.as_fd()),
            ..Status::default()
        }
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        self.long.stop(tx.pool());
        let name = &self.interface;
        let mut lines = Vec::new();
        self.overruns += self.socket.take_dropped();
        if self.overruns != 0 {
            let total = self.overruns;
            lines.push(format!("{name}: {total} packets found the receive ring full"));
        }
        if self.unfit != 0 {
            let unfit = self.unfit;
            // Usually packets within a tunnel, which the kernel merged or would have cut.
            lines.push(format!(
                "{name}: {unfit} packets had offloads that a card cannot express: try `ethtool -K \
                 {name} gro off`, and `tso off` at a sender on this machine"
            ));
        }
        if self.oversize != 0 {
            let oversize = self.oversize;
            let shorten = shorten(name, self.namespace.as_deref());
            lines.push(format!(
                "{name}: {oversize} packets were longer than a card takes: {shorten}"
            ));
        }
        if self.downs != 0 {
            lines.push(format!("{name}: went down or lost its carrier {} times", self.downs));
        }
        if self.losses != 0 {
            lines.push(format!("{name}: was deleted or moved away {} times", self.losses));
        }
        if self.returns != 0 {
            lines.push(format!("{name}: reappeared and was reattached {} times", self.returns));
        }
        match self.link {
            LinkState::Running => {}
            LinkState::Down => lines.push(format!("{name}: is down at the end")),
            LinkState::Gone => lines.push(format!("{name}: was missing at the end")),
        }
        lines
    }
}

/// Copies a packet from its slot into buffers, with its tag and metadata.
#[inline]
fn take(frame: &mut Frame<'_>, rx: &mut Receiver<'_>) -> Result<(), DropReason> {
    if frame.is_cut() {
        // Too long for its slot, and there was no room to keep it aside.
        return Err(DropReason::WireOverrun);
    }
    let ((mut start, end), tag) = (frame.place(), frame.tag());
    let mut slot = frame.slot();
    let header = start.checked_sub(HEADER_BYTES).and_then(|before| slot.get_mut(before, start));
    let header = header.and_then(|bytes| bytes.first_chunk()).map(Header::from_bytes);
    let header = header.ok_or(DropReason::Malformed)?;
    if tag.is_some() {
        // In front of the packet is its virtio header, just read: there is room.
        start -= TAG_BYTES;
    }
    let data = slot.get_mut(start, end).filter(|data| !data.is_empty());
    let data = data.ok_or(DropReason::Malformed)?;
    if let Some((protocol, control)) = tag {
        put_tag(data, protocol, control).ok_or(DropReason::Malformed)?;
    }
    let length = data.len();
    let pool = rx.pool();
    let Some(mut packet) = pool.packet(data) else {
        return Err(pool.refusal(length));
    };
    let inserted = if tag.is_some() { TAG_BYTES as u16 } else { 0 };
    if header.apply(&mut packet, inserted).is_err() {
        pool.free(packet);
        return Err(DropReason::Malformed);
    }
    rx.push(packet);
    Ok(())
}

/// Inserts a VLAN tag after the addresses, which move into the four bytes before them.
#[inline]
fn put_tag(data: &mut [u8], protocol: u16, control: u16) -> Option<()> {
    let front = data.first_chunk_mut::<{ ADDRESSES_BYTES + TAG_BYTES }>()?;
    front.copy_within(TAG_BYTES.., 0);
    front[12..14].copy_from_slice(&protocol.to_be_bytes());
    front[14..].copy_from_slice(&control.to_be_bytes());
    Some(())
}

/// Drop reason for the kernel's error on sending.
fn refusal(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::ENETUNREACH) => {
            DropReason::WireDown
        }
        Some(libc::EMSGSIZE) => DropReason::Oversize,
        Some(libc::ENOBUFS | libc::ENOMEM) => DropReason::WireFull,
        _ => DropReason::Malformed,
    }
}
