//! One queue of an interface: an AF_XDP socket and its four rings.
//!
//! Guarantees: as in [`super::xsk`]; only places from [`Loans`] are put on the rings.

use super::bpf::Mark;
use super::xsk_ring::{Consumer, Offsets, Producer, Shared, Slot};
use super::xsk_sockets::{SocketsConfig, SocketsMode, Step};
use libc::{c_int, c_void, socklen_t, xdp_desc};
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::lend::{Borrower, Loans};
use picnic_core::packet::pool::{Pool, PoolMemory};
use picnic_core::port::Receiver;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;
use std::mem::zeroed;
use std::time::Duration;

/// The kernel's bounds on a chunk, in bytes: the upper is a page.
pub(crate) const CHUNK_LOW: usize = 2048;
pub(crate) const CHUNK_HIGH: usize = 4096;
/// Bytes that the kernel keeps free before each received packet.
const KERNEL_HEADROOM: usize = 256;
/// Of a socket in copy mode: packets that one system call sends at most.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
/// Microseconds a busy-polling call may take; it returns as soon as its budget is used up.
const BUSY_POLL_USECS: c_int = 20;
/// Bytes of packets being sent in copy mode, at most.
const SEND_BUFFER: c_int = 16 << 20;
/// How often, and after which pause, a queue is asked for that is taken. The kernel releases that
/// of a killed card from a work queue, which may run late on a busy machine.
const BIND_ATTEMPTS: u32 = 1500;
const BIND_PAUSE: Duration = Duration::from_millis(2);
/// How often a closed queue is probed. It is released as late; a queue that is not released costs
/// the card its buffers.
const RELEASE_ATTEMPTS: u32 = 1000;

/// How a pool's buffers become chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Bytes of a chunk.
    pub(crate) size: usize,
    /// Bytes kept free before a packet, in addition to the kernel's.
    headroom: usize,
}

impl Chunks {
    /// The chunks of a pool; none if its buffers are too small.
    pub(crate) fn of(memory: &PoolMemory) -> Option<Self> {
        let size = memory.room().min(CHUNK_HIGH);
        let headroom = memory.headroom().saturating_sub(KERNEL_HEADROOM);
        let fits = size >= CHUNK_LOW && headroom + KERNEL_HEADROOM < size;
        fits.then_some(Chunks { size, headroom })
    }

    /// Bytes of the longest packet that one chunk receives.
    pub(crate) fn room(&self) -> usize {
        self.size - KERNEL_HEADROOM - self.headroom
    }
}

/// The kernel's counts of packets it could not hand over, since the last query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Found no free buffer, or no free slot.
    pub(crate) overruns: u64,
    /// Longer than the receive limit.
    pub(crate) oversize: u64,
    /// Buffers that the NIC cannot use: lent out until the sockets are closed.
    pub(crate) unusable: u64,
}

/// The packets left to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// None, or the kernel sends them without a call.
    Done,
    /// The kernel took no more for now: it must be called again.
    Again,
}

/// A socket on one queue.
#[derive(Debug)]
pub(super) struct Queue {
    // Before the socket, which lives as long as any of its rings is mapped.
    pub(super) rx: Consumer<xdp_desc>,
    pub(super) fill: Producer<u64>,
    pub(super) tx: Producer<xdp_desc>,
    pub(super) completion: Consumer<u64>,
    pub(super) socket: OwnedFd,
    /// Buffers in the fill ring, in the receive ring and between the two.
    out: usize,
    counted: libc::xdp_statistics,
}

impl Queue {
    /// A socket with its rings, the fill ring stocked; the first of an interface registers the
    /// memory, the others share it.
    pub(super) fn open(
        index: u32,
        queue: u32,
        wanted: &SocketsConfig,
        way: SocketsMode,
        (places, borrower): (&[u64], &Borrower),
        first: Option<BorrowedFd<'_>>,
    ) -> Result<Self, (Step, io::Error)> {
        let at = |step| move |error| (step, error);
        let socket = socket().map_err(at(Step::Socket))?;
        if first.is_none() {
            register(&socket, borrower).map_err(at(Step::Memory))?;
        }
        let mut queue_of_rings = Queue::with_rings(socket, wanted).map_err(at(Step::Rings))?;
        for &place in places {
            if !queue_of_rings.fill.stage(place) {
                break;
            }
            queue_of_rings.out += 1;
        }
        queue_of_rings.fill.publish();
        let socket = &queue_of_rings.socket;
        // Both help, but neither is needed: an older kernel refuses, or a kernel that
        // asks for a privilege.
        let _ = set(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, wanted.tx_slots);
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER);
        if wanted.busy_poll != 0 {
            let budget = wanted.busy_poll as c_int;
            set(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1 as c_int)
                .and_then(|()| set(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, BUSY_POLL_USECS))
                .and_then(|()| set(socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, budget))
                .map_err(at(Step::Rings))?;
        }
        let mut attempts = 1..BIND_ATTEMPTS;
        loop {
            match bind(socket, index, queue, wanted, way, first) {
                Ok(()) => return Ok(queue_of_rings),
                // The kernel lets go of a queue some time after its last socket was closed.
                Err(error) if is_busy(&error) && attempts.next().is_some() => {
                    std::thread::sleep(BIND_PAUSE);
                }
                Err(error) => return Err((Step::Bind(queue), error)),
            }
        }
    }

    fn with_rings(socket: OwnedFd, wanted: &SocketsConfig) -> io::Result<Self> {
        for (option, slots) in [
            (libc::XDP_UMEM_FILL_RING, wanted.rx_slots),
            (libc::XDP_UMEM_COMPLETION_RING, wanted.tx_slots),
            (libc::XDP_RX_RING, wanted.rx_slots),
            (libc::XDP_TX_RING, wanted.tx_slots),
        ] {
            set(&socket, libc::SOL_XDP, option, slots)?;
        }
        // SAFETY: integers alone.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { zeroed() };
        if get(&socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)?
            < size_of::<libc::xdp_mmap_offsets>()
        {
            // A kernel before 5.4: rings without flags.
            return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT));
        }
        fn map<T: Slot>(
            socket: &OwnedFd,
            page: u64,
            offsets: &Offsets,
            slots: u32,
        ) -> io::Result<Shared<T>> {
            Shared::map(socket.as_fd(), page as libc::off_t, offsets, slots)
        }
        let (rx_slots, tx_slots) = (wanted.rx_slots, wanted.tx_slots);
        Ok(Queue {
            rx: Consumer::new(map(&socket, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, rx_slots)?),
            fill: Producer::new(map(
                &socket,
                libc::XDP_UMEM_PGOFF_FILL_RING,
                &offsets.fr,
                rx_slots,
            )?),
            tx: Producer::new(map(&socket, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, tx_slots)?),
            completion: Consumer::new(map(
                &socket,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                tx_slots,
            )?),
            socket,
            out: 0,
            // SAFETY: integers alone.
            counted: unsafe { zeroed() },
        })
    }

    /// Frames that wait to be taken in, read anew if fewer than `wanted` are known of.
    pub(super) fn waiting(&mut self, wanted: usize) -> usize {
        self.rx.ready(wanted)
    }

    /// Receives packets, as many as there are and `rx` has room for, with the times before
    /// them that are known by a mark. Adds those without to `unstamped`.
    #[inline]
    pub(super) fn receive(
        &mut self,
        loans: &mut Loans,
        rx: &mut Receiver<'_>,
        mark: Option<Mark>,
        unstamped: &mut u64,
    ) -> usize {
        let ready = self.rx.ready(rx.room());
        if ready == 0 {
            return 0;
        }
        let now = rx.now();
        let mut push = |packet: Option<Descriptor>, rx: &mut Receiver<'_>| match packet {
            Some(packet) => {
                let stamp = mark.and_then(|mark| mark.stamp_of(&packet));
                *unstamped += u64::from(stamp.is_none());
                rx.arrived_at_monotonic(stamp);
                rx.push(packet);
            }
            None => rx.shed(DropReason::Malformed, 1),
        };
        let mut taken = 0;
        // A budget, since packets that are shed take no room.
        while taken < ready && rx.room() != 0 {
            let Some(descriptor) = self.rx.peek(0) else { break };
            if descriptor.options & libc::XDP_PKT_CONTD != 0 {
                let Some((packet, pieces)) = self.take_pieces(loans, rx) else { break };
                push(packet, rx);
                taken += pieces;
                continue;
            }
            self.rx.take();
            taken += 1;
            push(loans.take(place(&descriptor), descriptor.len as usize, now, 0), rx);
        }
        self.rx.release();
        self.out = self.out.saturating_sub(taken);
        taken
    }

    /// A packet in several pieces, if they can be taken, and how many those were; `None` if not all
    /// are there yet.
    #[cold]
    fn take_pieces(
        &mut self,
        loans: &mut Loans,
        rx: &mut Receiver<'_>,
    ) -> Option<(Option<Descriptor>, usize)> {
        let mut pieces = 1;
        loop {
            self.rx.ready(pieces);
            match self.rx.peek(pieces - 1)? {
                piece if piece.options & libc::XDP_PKT_CONTD == 0 => break,
                _ => pieces += 1,
            }
        }
        let now = rx.now();
        let taken = (0..pieces).map_while(|_| self.rx.take());
        let taken = taken.map(|piece| (place(&piece), piece.len as usize));
        Some((loans.take_pieces(rx.pool(), taken, now), pieces))
    }

    /// Gives the kernel empty buffers, up to a total of `depth`, once a quarter of them is used.
    #[inline]
    pub(super) fn top_up(&mut self, loans: &mut Loans, pool: &mut Pool, depth: usize) {
        if self.out > depth - depth / 4 {
            return;
        }
        let before = self.out;
        while self.out < depth && self.fill.has_room(1) {
            let Some(place) = loans.lend(pool) else { break };
            self.fill.stage(place);
            self.out += 1;
        }
        if self.out != before {
            self.fill.publish();
        }
    }

    /// The losses since the last query.
    pub(super) fn lost(&mut self, zero_copy: bool) -> Lost {
        // SAFETY: integers alone.
        let mut now: libc::xdp_statistics = unsafe { zeroed() };
        if get(&self.socket, libc::SOL_XDP, libc::XDP_STATISTICS, &mut now).is_err() {
            return Lost::default();
        }
        let before = std::mem::replace(&mut self.counted, now);
        let dropped = now.rx_dropped.wrapping_sub(before.rx_dropped);
        let full = now.rx_ring_full.wrapping_sub(before.rx_ring_full);
        let empty = now.rx_fill_ring_empty_descs.wrapping_sub(before.rx_fill_ring_empty_descs);
        // In copy mode each packet that found the fill ring empty is among those dropped; a NIC's
        // driver only polls it from time to time.
        let oversize = if zero_copy { 0 } else { dropped.saturating_sub(empty) };
        Lost {
            overruns: full + dropped - oversize,
            oversize,
            unusable: now.rx_invalid_descs.wrapping_sub(before.rx_invalid_descs),
        }
    }

    /// Shows the kernel the packets staged for sending, and calls it if requested.
    #[inline]
    pub(super) fn kick(&mut self, need_wakeup: bool, zero_copy: bool) -> Sending {
        self.tx.publish();
        let mut waiting = self.tx.waiting();
        while waiting != 0 {
            if need_wakeup && !self.tx.needs_wakeup() {
                return Sending::Done;
            }
            let called = wake_transmit(&self.socket);
            let left = self.tx.waiting();
            if left == waiting {
                // A NIC takes them in its own time. A kernel that takes none has no room for them.
                let at_work = zero_copy && called.is_ok();
                return if at_work { Sending::Done } else { Sending::Again };
            }
            // An older kernel takes 32 at a time.
            waiting = left;
        }
        Sending::Done
    }

    /// Has the kernel look for received packets.
    pub(super) fn wake_receive(&self) {
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let none = std::ptr::null_mut::<libc::sockaddr>();
        // SAFETY: room for no bytes and no address. What it returns says nothing that the rings
        // do not.
        unsafe { libc::recvfrom(fd, std::ptr::null_mut(), 0, flags, none, std::ptr::null_mut()) };
    }

    /// Takes the error that waits on the socket, if any, so that it wakes no one again.
    pub(super) fn take_error(&self) {
        let mut error: c_int = 0;
        let _ = get(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }
}

/// Whether the kernel has released the binding of an interface's queue, in this thread's network
/// namespace. Waits for some time.
pub(super) fn is_released(index: u32, queue: u32) -> bool {
    (0..RELEASE_ATTEMPTS).any(|attempt| {
        if attempt != 0 {
            std::thread::sleep(BIND_PAUSE);
        }
        match probe(index, queue) {
            Ok(()) => true,
            // Without an interface nothing is bound to it.
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
        }
    })
}

/// Binds an unused socket to a queue and closes it: this works if nothing else is bound to the
/// queue.
fn probe(index: u32, queue: u32) -> io::Result<()> {
    const PAGE: usize = 4096;
    let socket = socket()?;
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping of the kernel's choosing touches no memory of ours. It is never used,
    // and the kernel keeps its page for as long as it needs it.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let memory = libc::xdp_umem_reg {
        addr: page as u64,
        len: PAGE as u64,
        chunk_size: PAGE as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let registered = set(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, memory);
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { libc::munmap(page, PAGE) };
    registered?;
    for option in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
        set(&socket, libc::SOL_XDP, option, 1_u32)?;
    }
    let address = address(index, queue, libc::XDP_COPY, 0);
    bind_to(&socket, &address)
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The start of a received packet: in unaligned mode a place and a distance from there.
#[inline(always)]
fn place(descriptor: &xdp_desc) -> u64 {
    let base = descriptor.addr & libc::XSK_UNALIGNED_BUF_ADDR_MASK;
    base + (descriptor.addr >> libc::XSK_UNALIGNED_BUF_OFFSET_SHIFT)
}

/// Makes the pool's memory the socket's UMEM.
fn register(socket: &OwnedFd, borrower: &Borrower) -> io::Result<()> {
    let memory = borrower.memory();
    let chunks = Chunks::of(&memory).ok_or(io::ErrorKind::InvalidInput)?;
    // From here on the kernel may read and write the memory, and it does so in chunks whose
    // places are put on its rings. Those are places of `Loans`, lent to it: nothing else of the
    // process refers to them until they are taken back from a ring, or recalled, which the
    // borrower prevents while the socket lives.
    let registration = libc::xdp_umem_reg {
        addr: memory.address() as u64,
        len: memory.bytes() as u64,
        chunk_size: chunks.size as u32,
        headroom: chunks.headroom as u32,
        flags: libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
        tx_metadata_len: 0,
    };
    set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, registration)
}

fn bind(
    socket: &OwnedFd,
    index: u32,
    queue: u32,
    wanted: &SocketsConfig,
    way: SocketsMode,
    first: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let flag = |condition, flag| if condition { flag } else { 0 };
    let address = match first {
        // The others do as the first.
        Some(first) => address(index, queue, libc::XDP_SHARED_UMEM, first.as_raw_fd() as u32),
        None => {
            let flags = (if way.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY })
                | flag(wanted.need_wakeup, libc::XDP_USE_NEED_WAKEUP)
                | flag(way.pieces, libc::XDP_USE_SG);
            address(index, queue, flags, 0)
        }
    };
    bind_to(socket, &address)
}

fn address(index: u32, queue: u32, flags: u16, shared: u32) -> libc::sockaddr_xdp {
    libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    }
}

fn bind_to(socket: &OwnedFd, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let length = size_of::<libc::sockaddr_xdp>() as socklen_t;
    let at = std::ptr::from_ref(address).cast();
    // SAFETY: the address has the stated length.
    check(unsafe { libc::bind(socket.as_raw_fd(), at, length) }).map(drop)
}

fn wake_transmit(socket: &OwnedFd) -> io::Result<()> {
    let (fd, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no address.
    let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let (at, length) = ((&raw const value).cast::<c_void>(), size_of::<T>() as socklen_t);
    // SAFETY: `at` holds `length` bytes, and the kernel only reads them.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, length) }).map(drop)
}

/// Reads an option that is integers alone; how many bytes of it the kernel has written.
fn get<T: Copy>(socket: &OwnedFd, level: c_int, option: c_int, value: &mut T) -> io::Result<usize> {
    let mut length = size_of::<T>() as socklen_t;
    let (fd, at) = (socket.as_raw_fd(), std::ptr::from_mut(value).cast::<c_void>());
    // SAFETY: `at` has room for `length` bytes; all callers' values are integers, of which any
    // bits are a value.
    check(unsafe { libc::getsockopt(fd, level, option, at, &raw mut length) })?;
    Ok(length as usize)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::packet::pool::PoolConfig;

    #[test]
    fn chunks_fit_between_a_header_and_the_next() {
        let chunks = |buffer_size, headroom| {
            let config = PoolConfig { buffers: 64, buffer_size, headroom };
            let memory = Pool::new(&config, 0).unwrap().0.memory();
            let chunks = Chunks::of(&memory)?;
            assert!(chunks.size <= memory.room());
            assert!(chunks.headroom + KERNEL_HEADROOM >= headroom as usize);
            Some((chunks.size, chunks.room()))
        };
        // Strides are odd numbers of lines: a buffer may have one more than was asked for.
        assert_eq!(chunks(2048, 128), Some((2176, 1920)));
        assert_eq!(chunks(2048, 512), Some((2560, 2048)));
        assert_eq!(chunks(9216, 128), Some((4096, 3840)));
        assert_eq!(chunks(1920, 128), Some((2048, 1792)));
        assert_eq!(chunks(1792, 128), None);
        assert_eq!(chunks(2048, 0), Some((2048, 1792)));
    }

    #[test]
    fn unaligned_places_have_two_parts() {
        let at = |addr| place(&xdp_desc { addr, len: 0, options: 0 });
        assert_eq!(
            (at(4096), at(4096 | 256 << 48), at(1 << 47 | 0xffff << 48)),
            (4096, 4352, (1 << 47) + 0xffff)
        );
    }
}
