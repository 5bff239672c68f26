//! Wire port `xdp`: queues of an interface, through AF_XDP sockets on the card's own buffers.
//!
//! ```toml
//! [[wire]]
//! port = "xdp"
//! interface = "eth1"
//! namespace = "lab"       # optional: a name of `ip netns`, or a path
//! queues = "all"          # or a number of them, or a list such as [0, 2]
//! mode = "auto"           # its program: "native" (in the driver) | "generic"
//! copy_mode = "auto"      # "zero-copy" (the NIC writes the buffers) | "copy" (the kernel does)
//! need_wakeup = true      # call the kernel only when it asks for it
//! promiscuous = true      # packets for others too, until the card ends
//! rx_ring = 2048          # buffers that wait for packets, per queue
//! tx_ring = 1024          # most packets being sent
//! busy_poll = 0           # packets per busy poll instead of interrupts
//! stamps = true           # each packet's arrival time, read by the XDP program
//! checksums = "auto"      # partial checksums: "mend" | "trust"
//! ```
//!
//! The pool is the sockets' memory: received packets are in the card's buffers, and sent packets
//! leave from them. The kernel writes into them (copy), or the NIC itself (zero-copy, which needs a
//! driver with support, and a pool on 2 MiB pages). An XDP program gives the sockets the packets of
//! their queues; packets of other queues go to the kernel. The program ends with the process.
//!
//! A packet is transmitted when the kernel says that it is done with it; until then it is in
//! flight. All packets leave on the first queue, so that flows keep their order.
//!
//! With `engine = "hybrid"` the program is the kernel engine's, which gives the sockets the packets
//! that filters send to the poll engine, of all queues.
//!
//! **Checksums.** XDP has no metadata about partial checksums or super-frames. Checksums are
//! completed before sending; a super-frame is dropped. Packets from another part of the kernel
//! (veth) may arrive with partial checksums that nothing marks. `mend` recognises such packets by
//! their checksum field, which holds the pseudo-header's sum, and marks them, so that the next
//! sender completes them. This works for TCP and UDP outside tunnels; for others, such as SCTP,
//! turn the offload off at the sender: `ethtool -K PEER tx off`.
//!
//! Guarantees: a packet that found no buffer or slot is shed as overrun, one longer than is
//! received as oversize. A packet longer than a buffer comes and goes in pieces; where the kernel
//! cannot do that and the MTU needs it, the card does not start. An interface that loses its
//! carrier, goes down or is deleted is counted and reported; packets sent then are dropped and
//! counted; it is reopened when it returns under the same name. An interface is the wire of one
//! card at a time, and a queue that already has an XDP program is refused.
//!
//! Privileges: CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; with `namespace`, CAP_SYS_ADMIN. Without
//! CAP_IPC_LOCK, the pool counts against the limit of locked memory. Those of the thread that opens
//! the sockets stay with it, for the interface's return.
//!
//! Source: Documentation/networking/af_xdp.rst; docs/decisions/009-af-xdp-over-the-pool.md.

mod config;
mod follow;
mod handed;
mod keeper;
mod refusal;
#[cfg(test)]
mod tests;

pub use config::{Checksums, CopyMode, Mode, Queues, XdpConfig};
pub use handed::SharedSocketMap;

use crate::interface::{WireLock, down, drop_oldest, lock, long_super_frames, no_namespace};
use crate::sys::link::{InterfaceHandle, LinkState};
use crate::sys::namespace;
use crate::sys::packet::{Name, Socket};
use crate::sys::xsk::{Sending, SocketsConfig, Umem};
use crate::sys::xsk_device;
use config::SENT_FRAME_BYTES;
use keeper::{Done, Keeper};
use picnic_core::error::ConfigError;
use picnic_core::kernel::InKernel;
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::{ChecksumState, GsoType};
use picnic_core::packet::offload;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use refusal::{refuse, refused};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed attempt to reopen the interface.
const RETRY_NS: u64 = 1_000_000_000;
/// At the end: number and length of the waits for the kernel to send, which it may leave to a
/// thread that runs late on a busy machine.
const PATIENCE: (u32, Duration) = (1000, Duration::from_millis(1));
/// A packet is at least an Ethernet header.
const SHORTEST: u32 = 14;

/// Length of the longest super-frame of an interface with default settings, in bytes.
const SUPER_FRAME: usize = 65_536;

/// The registry entry.
#[derive(Debug)]
pub struct Xdp;

impl Component for Xdp {
    type Product = Box<dyn WirePort>;
    type Config = XdpConfig;
    const NAME: &'static str = "xdp";
    const HELP: &'static str = "queues of an interface, without a copy (AF_XDP)";
    const KERNEL: Option<InKernel<XdpConfig>> = Some(InKernel {
        keys: &["interface", "namespace", "mode"],
        beside: &[
            "copy_mode",
            "need_wakeup",
            "rx_ring",
            "tx_ring",
            "busy_poll",
            "stamps",
            "checksums",
        ],
        commands: &[],
        form: |config, _| Ok(config.kernel_form()?.into()),
    });

    fn example(_: &std::path::Path) -> Option<String> {
        None
    }

    fn build(config: XdpConfig, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        Ok(Box::new(XdpPort::open(&config, context)?))
    }
}

/// State of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Closing,
    Closed,
    Opening,
    /// No thread is left to open them.
    Ended,
}

/// Counters for the final report.
#[derive(Debug, Default)]
struct Counts {
    /// Times the interface went down or lost its carrier, disappeared, and was reopened.
    downs: u64,
    losses: u64,
    returns: u64,
    /// Packets without a buffer or slot; packets that were too long; buffers unusable for a NIC.
    overruns: u64,
    oversize: u64,
    unusable: u64,
    /// Packets to send with a checksum that cannot be completed.
    unfit: u64,
    /// Packets received without an arrival time: the driver leaves no room before them.
    unstamped: u64,
}

/// AF_XDP sockets on an interface.
#[derive(Debug)]
pub struct XdpPort {
    config: XdpConfig,
    /// The wire's number, and the shared socket map of the engine that feeds it; none if the port
    /// does.
    handed: Option<(usize, Arc<SharedSocketMap>)>,
    /// Wires that share the pool.
    wires: usize,
    /// Buffers of the pool for this wire.
    share: usize,
    interface: String,
    name: Name,
    index: i32,
    /// The interface's receive and transmit queues when the card was built.
    queues: Vec<u32>,
    mend: bool,
    /// For queries about the interface, and for its promiscuous mode, which ends with it.
    control: Socket,
    /// Bound to a name in the interface's namespace, which no second card can bind.
    _lock: WireLock,
    /// Length of the interface's longest super-frame, in bytes, when it was opened.
    super_frames: u32,
    /// Both exist once the card has its pool.
    umem: Option<Umem>,
    keeper: Option<Keeper>,
    wanted: Option<SocketsConfig>,
    phase: Phase,
    link: LinkState,
    /// Bytes of the longest packet that can be sent.
    longest: u32,
    sending: Sending,
    next_check: Time,
    next_attempt: Time,
    /// Packets that closed sockets have not sent, for the ledger.
    lost: u64,
    counts: Counts,
    notes: Vec<String>,
}

impl XdpPort {
    fn is_up(&self) -> bool {
        self.link == LinkState::Running && self.phase == Phase::Open
    }

    /// Finds the interface and reserves it for this card; nothing is received yet.
    ///
    /// # Errors
    /// A key is wrong, or the system refused.
    pub fn open(config: &XdpConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        let (interface, name) = config.check()?;
        let open = || XdpPort::open_here(config, context, interface, name);
        match &config.namespace {
            None => open(),
            Some(namespace) => {
                let path = namespace::path(namespace);
                namespace::within(&path, open).map_err(|error| no_namespace(namespace, &error))?
            }
        }
    }

    /// As `open`, in the network namespace of the calling thread.
    fn open_here(
        config: &XdpConfig,
        context: &BuildContext,
        interface: &str,
        name: Name,
    ) -> Result<Self, ConfigError> {
        let refuse = |what: &str, error: &io::Error| refuse(interface, what, error);
        let control = Socket::open().map_err(|error| refuse("cannot be queried", &error))?;
        let index = control.index_of(&name).map_err(|_| {
            let place = config.namespace.as_deref().unwrap_or("the card's network namespace");
            let message = format!("found \"{interface}\", but {place} has no such interface");
            ConfigError::new("interface", message)
        })?;
        if !control.is_ethernet(&name).map_err(|error| refuse("cannot be queried", &error))? {
            let message = format!("\"{interface}\" does not speak Ethernet");
            return Err(ConfigError::new("interface", message));
        }
        let lock = lock(interface).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                let message = format!("\"{interface}\" is the wire of a card already");
                ConfigError::new("interface", message)
            }
            _ => refuse("cannot be taken for this card", &error),
        })?;
        let (receive, _) = xsk_device::queues(control.as_fd(), &name);
        let queues = config.queues(receive)?;
        let mend = match config.checksums {
            Checksums::Mend => true,
            Checksums::Trust => false,
            Checksums::Auto => xsk_device::is_virtual(control.as_fd(), &name),
        };
        let handed =
            context.is_hybrid.then(|| (context.position, SharedSocketMap::of(&context.shared)));
        let is_own = handed.is_none();
        Ok(XdpPort {
            // Other packets belong to the kernel.
            config: XdpConfig { promiscuous: config.promiscuous && is_own, ..config.clone() },
            handed,
            wires: context.wires.max(1).into(),
            share: context.buffers / 2 / usize::from(context.wires.max(1)),
            interface: interface.into(),
            name,
            index,
            queues,
            mend,
            control,
            _lock: lock,
            super_frames: InterfaceHandle::find(interface)
                .and_then(|link| link.longest_super_frame())
                .unwrap_or(0),
            umem: None,
            keeper: None,
            wanted: None,
            phase: Phase::Closed,
            link: LinkState::Running,
            longest: 0,
            sending: Sending::Done,
            next_check: Time::ZERO,
            next_attempt: Time::ZERO,
            lost: 0,
            counts: Counts::default(),
            notes: Vec::new(),
        })
    }

    fn mtu(&self) -> usize {
        xsk_device::mtu(self.control.as_fd(), &self.name).unwrap_or(1500) as usize
    }

    /// Posts as many waiting packets as fit; drops packets that cannot be sent.
    #[inline]
    fn post(&mut self, tx: &mut Transmitter<'_>) {
        let Some(umem) = &mut self.umem else { return };
        while let Some(oldest) = tx.peek() {
            let length = oldest.length();
            let reason = if oldest.gso_type() != GsoType::None {
                // The card drops those before; other engines see it in the ledger.
                DropReason::SuperFrame
            } else if length < SHORTEST {
                DropReason::Malformed
            } else if length > self.longest {
                DropReason::Oversize
            } else {
                match umem.has_room_for(oldest) {
                    Ok(false) => return,
                    Err(()) => DropReason::Oversize,
                    Ok(true) => {
                        let Some(packet) = tx.next() else { return };
                        if packet.checksum() == ChecksumState::Partial {
                            self.counts.unfit += 1;
                            tx.drop(packet, DropReason::Malformed);
                        } else {
                            umem.post(packet, tx);
                        }
                        continue;
                    }
                }
            };
            drop_oldest(tx, reason);
        }
    }
}

impl WirePort for XdpPort {
    fn holds(&mut self, _now: Time, frames: usize) -> bool {
        self.umem.as_mut().is_some_and(|umem| umem.holds(frames))
    }

    fn describe(&self) -> Description {
        let arrival = self.config.stamps;
        let capabilities = Capabilities { tells_waiting: true, arrival, ..Capabilities::default() };
        let arrivals = Arrivals {
            // All may arrive at one queue.
            room: Some(self.config.rx_slots(self.share, self.queues.len()).into()),
            room_origin: "rx_ring",
            ..Arrivals::ethernet(xsk_device::speed(self.control.as_fd(), &self.name))
        };
        let (socket, interface) = (self.control.as_fd(), &self.interface);
        let mut warnings = Vec::new();
        let namespace = self.config.namespace.as_deref();
        warnings.extend(down(socket, interface, &self.name, namespace));
        warnings.extend(long_super_frames(interface, self.super_frames, SUPER_FRAME, namespace));
        if self.handed.is_none() && xsk_device::is_virtual(socket, &self.name) {
            warnings.push(format!(
                "{interface} is not a NIC: AF_XDP copies every packet and accepts no super-frames; \
                 port = \"packet\" is faster"
            ));
        }
        Description { capabilities, arrivals, warnings, notes: Vec::new() }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        if now >= self.next_check {
            self.check(now, rx);
        }
        let Some(umem) = &mut self.umem else { return };
        let mut unstamped = 0;
        umem.receive(rx, &mut unstamped);
        if self.config.stamps {
            self.counts.unstamped += unstamped;
        }
        if self.mend {
            for packet in rx.pushed_mut() {
                if offload::is_unfinished(packet) {
                    packet.set_checksum(ChecksumState::Partial);
                }
            }
        }
    }

    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        if self.lost != 0 {
            tx.lose(std::mem::take(&mut self.lost), DropReason::WireDown);
        }
        if let Some(umem) = &mut self.umem {
            umem.reap(tx);
        }
        if !self.is_up() {
            while tx.peek().is_some() {
                drop_oldest(tx, DropReason::WireDown);
            }
            return;
        }
        loop {
            self.post(tx);
            let Some(umem) = &mut self.umem else { return };
            self.sending = umem.kick();
            umem.reap(tx);
            // Packets that found no room may find some now.
            match tx.peek().map(|oldest| umem.has_room_for(oldest)) {
                Some(Ok(true)) if self.sending == Sending::Done => {}
                _ => return,
            }
        }
    }

    fn status(&self) -> Status<'_> {
        let is_up = self.is_up();
        Status {
            is_up,
            next_deadline: match is_up {
                // Packets and changes of the interface wake the card by themselves.
                true => (self.sending == Sending::Again).then_some(Time::ZERO),
                false => Some(self.next_check),
            },
            readiness: self.umem.as_ref().map(Umem::readiness),
            ..Status::default()
        }
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        let memory = pool.memory();
        let share = pool.buffers() / 2 / self.wires;
        let mtu = self.mtu();
        let wanted = self.config.wanted(self.queues.clone(), &memory, share, mtu)?;
        let wanted = SocketsConfig { handed: self.handed.clone(), ..wanted };
        self.longest = (mtu + SENT_FRAME_BYTES) as u32;
        let cannot = |what: &str, error: &io::Error| refuse(&self.interface, what, error);
        let mut umem = Umem::new(pool).map_err(|error| cannot("cannot be waited on", &error))?;
        if memory.huge_pages() && wanted.zero_copy != Some(false) {
            umem.keep_within_pages(pool);
        }
        let namespace = self.config.namespace.as_deref().map(namespace::path);
        let keeper = Keeper::start(namespace)
            .map_err(|error| cannot("cannot be watched by a thread", &error))?;
        if self.config.promiscuous {
            self.control
                .set_promiscuous(self.index)
                .map_err(|error| cannot("cannot be made promiscuous", &error))?;
        }
        keeper.open(self.index as u32, &wanted, umem.supplies(pool, &wanted));
        match keeper.wait() {
            Done::Opened(opened) => match *opened {
                Ok(sockets) => {
                    if let Some(error) = &sockets.not_native {
                        let name = &self.interface;
                        self.notes.push(format!(
                            "{name}: its driver runs no XDP program ({error}): generic mode"
                        ));
                    }
                    if sockets.zero_copy {
                        let name = &self.interface;
                        let kernel = match self.handed {
                            Some(_) => ", and packets that stay in the kernel are copied",
                            None => "",
                        };
                        self.notes.push(format!(
                            "{name}: zero-copy: the NIC writes the card's buffers{kernel}"
                        ));
                    }
                    umem.install(sockets);
                }
                Err(trouble) => {
                    umem.end(pool);
                    return Err(refused(&self.interface, &trouble, &self.config));
                }
            },
            Done::Closed | Done::Ended => {
                umem.end(pool);
                let error = io::Error::other("its thread has ended");
                return Err(cannot("cannot be opened", &error));
            }
        }
        (self.umem, self.keeper, self.wanted) = (Some(umem), Some(keeper), Some(wanted));
        self.phase = Phase::Open;
        Ok(())
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        if let (Some(umem), LinkState::Running, Phase::Open) =
            (&mut self.umem, self.link, self.phase)
        {
            // The kernel may be about to send its packets.
            for _ in 0..PATIENCE.0 {
                umem.kick();
                umem.reap(tx);
                if umem.unsent() == 0 {
                    break;
                }
                std::thread::sleep(PATIENCE.1);
            }
            let late = umem.sockets().map(|sockets| sockets.lost()).unwrap_or_default();
            self.counts.overruns += late.overruns;
            self.counts.oversize += late.oversize;
        }
        // Until every socket there is has been closed.
        loop {
            match self.phase {
                Phase::Open => self.close(),
                Phase::Closing | Phase::Opening => {
                    let done = self.keeper.as_ref().map_or(Done::Ended, Keeper::wait);
                    self.take_up(Time::ZERO, done, tx.pool());
                }
                Phase::Closed | Phase::Ended => break,
            }
            if self.umem.is_none() {
                break;
            }
        }
        self.keeper = None;
        if let Some(mut umem) = self.umem.take() {
            self.lost += umem.end(tx.pool()).unwrap_or(0) as u64;
        }
        let reason = match self.link {
            LinkState::Running => DropReason::Stopped,
            LinkState::Down | LinkState::Gone => DropReason::WireDown,
        };
        if self.lost != 0 {
            tx.lose(std::mem::take(&mut self.lost), reason);
        }
        let (name, counts) = (&self.interface, &self.counts);
        let mut lines = self.notes.clone();
        for (count, text) in [
            (counts.overruns, "packets found no empty buffer"),
            (counts.oversize, "packets were longer than is received"),
            (counts.unfit, "packets had checksums that could not be finished"),
            (counts.unstamped, "packets had no arrival time and got the time of their turn"),
            (counts.unusable, "buffers were of no use to the NIC: their pages are no neighbours"),
        ] {
            if count != 0 {
                lines.push(format!("{name}: {count} {text}"));
            }
        }
        for (count, text) in [
            (counts.downs, "went down or lost its carrier"),
            (counts.losses, "was deleted or moved away"),
            (counts.returns, "reappeared and was reattached"),
        ] {
            if count != 0 {
                lines.push(format!("{name}: {text} {count} times"));
            }
        }
        match self.link {
            LinkState::Running => {}
            LinkState::Down => lines.push(format!("{name}: is down at the end")),
            LinkState::Gone => lines.push(format!("{name}: was missing at the end")),
        }
        lines
    }
}
