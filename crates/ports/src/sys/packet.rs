//! Packet sockets: ring, options and batches, made safe to use.
//!
//! Guarantees: a [`Frame`] is exclusive access to one slot of the receive ring while the kernel
//! has given it to us; no method returns bytes outside the ring, even if its contents are wrong.
//!
//! Source: packet(7), Documentation/networking/packet_mmap.rst, netdevice(7).

use crate::virtio::HEADER_BYTES;
use libc::{c_int, c_void, socklen_t};
use picnic_core::packet::burst::BURST;
use picnic_core::packet::desc::Descriptor;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a block of the ring at most, and at least: contiguous memory if the kernel has it.
const BLOCK_BYTES: usize = 2 << 20;
const SMALLEST_BLOCK_BYTES: usize = 4096;
/// The most bytes before a packet in its slot: headers, address, virtio header, alignment.
const SLOT_OVERHEAD: usize = 128;
/// Parts of memory that one system call gathers.
const PARTS: usize = 1024;
/// Longest name of an interface, with its final zero.
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// The name of an interface as the kernel wants it.
pub(crate) type Name = [u8; NAME_BYTES];

/// A name with its final zero; `None` if it is empty, too long, or holds a zero or a slash.
pub(crate) fn name(text: &str) -> Option<Name> {
    let bytes = text.as_bytes();
    let fine = !bytes.is_empty() && bytes.len() < NAME_BYTES;
    let mut name = [0; NAME_BYTES];
    (fine && !bytes.contains(&0) && !bytes.contains(&b'/')).then(|| {
        name[..bytes.len()].copy_from_slice(bytes);
        name
    })
}

/// A packet socket in the network namespace that it was opened in.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// A socket that receives nothing until it is bound.
    pub(crate) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the kernel has just made it for us.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn set<T>(&self, level: c_int, option: c_int, value: T) -> io::Result<()> {
        let (at, length) = ((&raw const value).cast::<c_void>(), size_of::<T>() as socklen_t);
        // SAFETY: `at` holds `length` bytes, and the kernel only reads them.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, at, length) }).map(drop)
    }

    fn get<const WORDS: usize>(&self, level: c_int, option: c_int) -> io::Result<[u32; WORDS]> {
        let mut value = [0; WORDS];
        let mut length = size_of_val(&value) as socklen_t;
        let (fd, at) = (self.0.as_raw_fd(), value.as_mut_ptr().cast::<c_void>());
        // SAFETY: `at` has room for `length` bytes, and any bytes are a value.
        check(unsafe { libc::getsockopt(fd, level, option, at, &raw mut length) })?;
        Ok(value)
    }

    /// Packets have a virtio header; slots are of version 2; packets longer than a slot are kept
    /// whole; this socket's own packets are not received.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        self.set(libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        self.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1 as c_int)?;
        self.set(libc::SOL_PACKET, libc::PACKET_COPY_THRESH, 1 as c_int)?;
        self.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1 as c_int)
    }

    /// Lets `bytes` of packets wait in the interface's queue, or as many as permitted.
    pub(crate) fn set_send_buffer(&self, bytes: usize) {
        let bytes = bytes as c_int;
        // The first needs a privilege; without either, fewer packets wait.
        if self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes).is_err() {
            let _ = self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, bytes);
        }
    }

    /// Keeps up to `bytes` of memory of packets that are longer than a slot, or as many as are
    /// permitted.
    pub(crate) fn set_receive_buffer(&self, bytes: usize) {
        let bytes = bytes as c_int;
        // The first needs a privilege; without either, fewer packets are kept.
        if self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
            let _ = self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
        }
    }

    /// Reads the oldest packet that was kept whole, its virtio header first, into these parts;
    /// returns the bytes read. The rest of a longer packet is lost.
    #[inline]
    pub(crate) fn read(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::readv(&self.0, parts)?)
    }

    /// Makes the interface accept packets for other addresses too, while the socket lives.
    pub(crate) fn set_promiscuous(&self, index: c_int) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)
    }

    /// Receives from and sends to this interface from now on, and no other.
    pub(crate) fn bind(&self, index: c_int) -> io::Result<()> {
        // SAFETY: integers alone.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as socklen_t;
        // SAFETY: the address has the stated length.
        check(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), length) })
            .map(drop)
    }

    /// The interface that the socket is bound to; none since it left this namespace, though it
    /// may be back by now.
    pub(crate) fn bound_to(&self) -> Option<c_int> {
        // SAFETY: integers alone.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as socklen_t;
        // SAFETY: the kernel writes no more than the length says.
        let asked = unsafe {
            libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut length)
        };
        check(asked).ok().map(|_| address.sll_ifindex).filter(|&index| index > 0)
    }

    /// Packets that found no free slot since this was last asked.
    pub(crate) fn take_dropped(&self) -> u64 {
        // A `tpacket_stats`: packets, and dropped packets.
        match self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS) {
            Ok([_, dropped]) => u64::from(dropped),
            Err(_) => 0,
        }
    }

    /// Takes the error that waits on the socket, if any, so that it wakes no one again.
    pub(crate) fn take_error(&self) {
        let _ = self.get::<1>(libc::SOL_SOCKET, libc::SO_ERROR);
    }

    fn request(&self, request: libc::Ioctl, ifreq: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests made here read and write an `ifreq` and nothing beyond it.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, &raw mut *ifreq) }).map(drop)
    }

    /// The index of the interface with this name.
    pub(crate) fn index_of(&self, name: &Name) -> io::Result<c_int> {
        let mut ifreq = ifreq(name);
        self.request(libc::SIOCGIFINDEX as libc::Ioctl, &mut ifreq)?;
        // SAFETY: the kernel has just written it.
        Ok(unsafe { ifreq.ifr_ifru.ifru_ifindex })
    }

    /// Whether interface `index` is up and has a carrier; an error if it is gone.
    pub(crate) fn is_running(&self, index: c_int) -> io::Result<bool> {
        let mut ifreq = ifreq(&[0; NAME_BYTES]);
        ifreq.ifr_ifru.ifru_ifindex = index;
        // The name is asked for first: it may have been changed.
        self.request(libc::SIOCGIFNAME as libc::Ioctl, &mut ifreq)?;
        self.request(libc::SIOCGIFFLAGS as libc::Ioctl, &mut ifreq)?;
        // SAFETY: the kernel has just written them.
        let flags = c_int::from(unsafe { ifreq.ifr_ifru.ifru_flags });
        let both = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(flags & both == both)
    }

    /// Whether the interface with this name speaks Ethernet.
    pub(crate) fn is_ethernet(&self, name: &Name) -> io::Result<bool> {
        let mut ifreq = ifreq(name);
        self.request(libc::SIOCGIFHWADDR as libc::Ioctl, &mut ifreq)?;
        // SAFETY: the kernel has just written it.
        let family = unsafe { ifreq.ifr_ifru.ifru_hwaddr.sa_family };
        Ok([libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&family))
    }

    /// Sends packets with their headers, oldest first, by one system call; gathers the segments
    /// of chained ones. Returns how many were taken; an error is about the first.
    pub(crate) fn send<'p>(
        &self,
        packets: impl Iterator<Item = (&'p Descriptor, [u8; HEADER_BYTES])>,
    ) -> io::Result<usize> {
        let mut headers = [[0; HEADER_BYTES]; BURST];
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; PARTS];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BURST];
        // Pointers to the whole arrays, which remain valid when written through them.
        let (header_at, part_at) = (headers.as_mut_ptr(), parts.as_mut_ptr().cast::<libc::iovec>());
        let message_at = messages.as_mut_ptr().cast::<libc::mmsghdr>();
        let (mut count, mut used) = (0, 0);
        for (packet, header) in packets.take(BURST) {
            let segments = if packet.is_chained() { packet.segments().count() } else { 1 };
            if used + 1 + segments > PARTS {
                break;
            }
            // SAFETY: `count` is below `BURST`, the length of both arrays, by `take`; the parts
            // written from `used` on are the header and `segments` more, which fit. Zeros and
            // null pointers are values of all fields of a message.
            unsafe {
                header_at.add(count).write(header);
                let mut message: libc::mmsghdr = zeroed();
                message.msg_hdr.msg_iov = part_at.add(used);
                message.msg_hdr.msg_iovlen = (1 + segments) as _;
                message_at.add(count).write(message);
                part_at.add(used).write(libc::iovec {
                    iov_base: header_at.add(count).cast(),
                    iov_len: HEADER_BYTES,
                });
                used += 1;
                for segment in packet.segments().take(segments) {
                    part_at.add(used).write(libc::iovec {
                        iov_base: segment.as_ptr().cast_mut().cast(),
                        iov_len: segment.len(),
                    });
                    used += 1;
                }
            }
            count += 1;
        }
        if count == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT as _);
        // SAFETY: the first `count` messages were written, and point to parts that were; these
        // point to headers on this stack and to bytes of packets that are borrowed meanwhile.
        // The kernel reads the parts, and writes the messages' lengths.
        let sent = unsafe { libc::sendmmsg(fd, message_at, count as u32, flags) };
        check(sent).map(|sent| sent as usize)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn ifreq(name: &Name) -> libc::ifreq {
    // SAFETY: zero is a value of the name and of every reading of the union.
    let mut ifreq: libc::ifreq = unsafe { zeroed() };
    for (to, &from) in ifreq.ifr_name.iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
    ifreq
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The receive ring: slots that the kernel fills in order and we give back in order.
#[derive(Debug)]
pub(crate) struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    block_bytes: usize,
    slot_bytes: usize,
    slots_per_block: usize,
    blocks: usize,
    /// The next slot to read: its block, its place there.
    block: usize,
    slot: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of at least `slots` slots, for packets of up to `packet_bytes` each.
    pub(crate) fn map(socket: &Socket, slots: usize, packet_bytes: usize) -> io::Result<Self> {
        let slot_bytes = (packet_bytes + SLOT_OVERHEAD).next_multiple_of(libc::TPACKET_ALIGNMENT);
        // A small ring takes no more than it needs.
        let wanted = slots.saturating_mul(slot_bytes).min(BLOCK_BYTES).next_power_of_two();
        let block_bytes = wanted.max(SMALLEST_BLOCK_BYTES);
        let slots_per_block = block_bytes / slot_bytes;
        let blocks = slots.div_ceil(slots_per_block);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: (blocks * slots_per_block) as u32,
        };
        socket.set(libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let bytes = blocks * block_bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = socket.0.as_raw_fd();
        // SAFETY: a fresh mapping of the kernel's choosing touches no memory of ours.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Ring {
                start,
                bytes,
                block_bytes,
                slot_bytes,
                slots_per_block,
                blocks,
                block: 0,
                slot: 0,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the kernel has put at least `frames` packets into the ring that are still there: it
    /// fills slot after slot. Never of more than there are slots.
    pub(crate) fn holds(&self, frames: usize) -> bool {
        let slots = self.blocks * self.slots_per_block;
        if frames == 0 || frames > slots {
            return frames == 0;
        }
        let slot = (self.block * self.slots_per_block + self.slot + frames - 1) % slots;
        self.has_packet(self.slot(slot / self.slots_per_block, slot % self.slots_per_block))
    }

    /// The start of a slot; `block` and `slot` are below their counts.
    #[inline]
    fn slot(&self, block: usize, slot: usize) -> NonNull<u8> {
        debug_assert!(block < self.blocks && slot < self.slots_per_block);
        let offset = block * self.block_bytes + slot * self.slot_bytes;
        // SAFETY: `block` and `slot` are below their counts, so the slot lies in the mapping.
        unsafe { self.start.add(offset) }
    }

    /// Whether there is a packet in the slot that begins at `at`.
    #[inline]
    fn has_packet(&self, at: NonNull<u8>) -> bool {
        // SAFETY: a slot starts with its status; slots are aligned to 16. The kernel writes it
        // at any time, so it is only ever used as an atomic.
        let status = unsafe { at.cast::<AtomicU32>().as_ref() };
        status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The oldest packet that the kernel has put into the ring, if there is one.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Frame<'_>> {
        let at = self.slot(self.block, self.slot);
        if !self.has_packet(at) {
            return None;
        }
        // SAFETY: the rest of the header follows the status and was written before it.
        let header = unsafe { at.cast::<libc::tpacket2_hdr>().read() };
        Some(Frame { header, at, ring: self })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; frames borrow the ring, so none is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// One slot of the ring with a packet in it; dropped, it goes back to the kernel.
#[derive(Debug)]
pub(crate) struct Frame<'r> {
    header: libc::tpacket2_hdr,
    at: NonNull<u8>,
    ring: &'r mut Ring,
}

impl Frame<'_> {
    /// Bytes of the packet, be they in the slot or not.
    pub(crate) fn length(&self) -> usize {
        self.header.tp_len as usize
    }

    /// When the kernel put it into the slot, by the clock of real time, in nanoseconds.
    #[inline]
    pub(crate) fn arrived_ns(&self) -> u64 {
        u64::from(self.header.tp_sec) * 1_000_000_000 + u64::from(self.header.tp_nsec)
    }

    /// Whether the packet is longer than its slot and waits for [`Socket::read`]: the packet that
    /// was kept when this slot was filled, so all are read in the order of their slots.
    pub(crate) fn is_kept(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_COPY != 0
    }

    /// Whether the slot was too small for the packet.
    pub(crate) fn is_cut(&self) -> bool {
        self.header.tp_snaplen < self.header.tp_len
    }

    /// Start and end of the packet in [`Frame::slot`], in bytes.
    pub(crate) fn place(&self) -> (usize, usize) {
        let start = usize::from(self.header.tp_mac);
        (start, start + self.header.tp_snaplen as usize)
    }

    /// The VLAN tag that the kernel took out of the packet: protocol and control information.
    pub(crate) fn tag(&self) -> Option<(u16, u16)> {
        let has = |flag: u32| self.header.tp_status & flag != 0;
        let protocol = match has(libc::TP_STATUS_VLAN_TPID_VALID) {
            true => self.header.tp_vlan_tpid,
            false => libc::ETH_P_8021Q as u16,
        };
        has(libc::TP_STATUS_VLAN_VALID).then_some((protocol, self.header.tp_vlan_tci))
    }

    /// The slot's bytes after the status, which the kernel may read.
    pub(crate) fn slot(&mut self) -> Slot<'_> {
        const STATUS: usize = size_of::<u32>();
        // SAFETY: the slot lies in the mapping, and all except its status is ours until that is
        // given back.
        Slot(unsafe {
            std::slice::from_raw_parts_mut(
                self.at.as_ptr().add(STATUS),
                self.ring.slot_bytes - STATUS,
            )
        })
    }
}

/// The bytes of a slot, by their place in it.
#[derive(Debug)]
pub(crate) struct Slot<'f>(&'f mut [u8]);

impl Slot<'_> {
    /// The bytes from `start` up to `end`, if they lie after the slot's status.
    #[inline]
    pub(crate) fn get_mut(&mut self, start: usize, end: usize) -> Option<&mut [u8]> {
        let before = size_of::<u32>();
        self.0.get_mut(start.checked_sub(before)?..end.checked_sub(before)?)
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `Ring::next`.
        let status = unsafe { self.at.cast::<AtomicU32>().as_ref() };
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.ring.slot += 1;
        if self.ring.slot == self.ring.slots_per_block {
            self.ring.slot = 0;
            self.ring.block = (self.ring.block + 1) % self.ring.blocks;
        }
    }
}
