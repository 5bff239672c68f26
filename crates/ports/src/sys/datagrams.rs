//! UDP in batches: many datagrams by one system call, each way.
//!
//! ```
//! use picnic_ports::datagrams::Datagrams;
//! # fn main() -> std::io::Result<()> {
//! let mut here = Datagrams::bind("127.0.0.1:0".parse().unwrap(), 1500)?;
//! let mut there = Datagrams::bind("127.0.0.1:0".parse().unwrap(), 1500)?;
//! here.peers(&[there.address()?]);
//! here.buffer()[..5].copy_from_slice(b"hello");
//! here.stage(5, 0..1);
//! here.send()?;
//! there.wait(None, None)?;
//! assert_eq!(there.receive()?, 1);
//! assert_eq!(there.datagram(0), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Guarantees: nothing is allocated per datagram; a datagram that is longer than a buffer is
//! truncated, which its length shows; a datagram to several peers is written once.
//!
//! Source: recvmmsg(2), sendmmsg(2).

#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Datagrams by one system call at most.
pub const BATCH: usize = 64;
/// Buffers that wait to be sent at most.
const STAGED: usize = 32;

/// A UDP socket with its buffers, and peers to send to.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    longest: usize,
    incoming: Vec<u8>,
    lengths: [usize; BATCH],
    outgoing: Vec<u8>,
    buffers: usize,
    /// Buffer, length and peer of each datagram to be sent.
    staged: Vec<(usize, usize, usize)>,
    peers: Vec<Address>,
}

/// A socket address as the kernel reads it.
struct Address(libc::sockaddr_storage, libc::socklen_t);

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.1).finish()
    }
}

impl Address {
    fn of(address: &SocketAddr) -> Self {
        // SAFETY: only integers, for which zero is a value.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let length = match address {
            SocketAddr::V4(address) => {
                // SAFETY: a storage is as large and as aligned as any kind of address.
                let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
                to.sin_family = libc::AF_INET as libc::sa_family_t;
                to.sin_port = address.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                // SAFETY: as above.
                let to = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
                to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                to.sin6_port = address.port().to_be();
                to.sin6_flowinfo = address.flowinfo();
                to.sin6_addr.s6_addr = address.ip().octets();
                to.sin6_scope_id = address.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        Address(storage, length as libc::socklen_t)
    }
}

impl Datagrams {
    /// A socket at this address, for datagrams of up to `longest` bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind(address: SocketAddr, longest: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Datagrams {
            socket,
            longest,
            incoming: vec![0; BATCH * longest],
            lengths: [0; BATCH],
            outgoing: vec![0; STAGED * longest],
            buffers: 0,
            staged: Vec::with_capacity(BATCH),
            peers: Vec::new(),
        })
    }

    /// Its own address.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Those to send to, by number.
    pub fn peers(&mut self, peers: &[SocketAddr]) {
        self.peers = peers.iter().map(Address::of).collect();
    }

    /// Takes arrived datagrams without waiting; returns their number.
    ///
    /// # Errors
    /// The system's error, except that no datagrams are waiting.
    pub fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: only integers and pointers, for which zero and null are values.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut parts: [libc::iovec; BATCH] = unsafe { zeroed() };
        let buffers = self.incoming.chunks_exact_mut(self.longest.max(1));
        for ((message, part), buffer) in messages.iter_mut().zip(&mut parts).zip(buffers) {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        let (fd, flags, forever) =
            (self.socket.as_raw_fd(), libc::MSG_DONTWAIT as _, std::ptr::null_mut());
        // SAFETY: each message has one part, a separate buffer that is borrowed
        // mutably until the call returns.
        let count =
            unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), BATCH as u32, flags, forever) };
        if count < 0 {
            return match io::Error::last_os_error() {
                error if is_transient(&error) => Ok(0),
                error => Err(error),
            };
        }
        let count = (count as usize).min(BATCH);
        for (length, message) in self.lengths.iter_mut().zip(&messages[..count]) {
            *length = (message.msg_len as usize).min(self.longest);
        }
        Ok(count)
    }

    /// A datagram of the last [`Datagrams::receive`].
    pub fn datagram(&self, number: usize) -> &[u8] {
        &self.incoming[number * self.longest..][..self.lengths[number]]
    }

    /// The buffer for the next datagram to send.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.outgoing[self.buffers * self.longest..][..self.longest]
    }

    /// Stages `length` bytes of the buffer for these peers.
    pub fn stage(&mut self, length: usize, peers: Range<usize>) {
        let length = length.min(self.longest);
        let peers = peers.start..peers.end.min(self.peers.len());
        self.staged.extend(peers.map(|peer| (self.buffers, length, peer)));
    }

    /// Advances to the next buffer; if there is none, the staged datagrams are sent.
    ///
    /// # Errors
    /// Those of [`Datagrams::send`].
    pub fn next_buffer(&mut self) -> io::Result<()> {
        self.buffers += 1;
        if self.buffers == STAGED { self.send() } else { Ok(()) }
    }

    /// Sends the staged datagrams. One that the system cannot take now is lost, as in a network.
    ///
    /// # Errors
    /// The system's error, except for a lack of room or of listeners.
    pub fn send(&mut self) -> io::Result<()> {
        self.buffers = 0;
        let mut done = 0;
        while done < self.staged.len() {
            match self.send_some(done) {
                Ok(sent) => done += sent.max(1),
                Err(error) if is_transient(&error) => done += 1,
                Err(error) => {
                    self.staged.clear();
                    return Err(error);
                }
            }
        }
        self.staged.clear();
        Ok(())
    }

    fn send_some(&mut self, from: usize) -> io::Result<usize> {
        // SAFETY: only integers and pointers, for which zero and null are values.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut parts: [libc::iovec; BATCH] = unsafe { zeroed() };
        let staged = &self.staged[from..];
        for ((message, part), &(buffer, length, peer)) in
            messages.iter_mut().zip(&mut parts).zip(staged)
        {
            let bytes = &mut self.outgoing[buffer * self.longest..][..length];
            *part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
            let address = &mut self.peers[peer];
            message.msg_hdr.msg_name = (&raw mut address.0).cast();
            message.msg_hdr.msg_namelen = address.1;
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        let count = staged.len().min(BATCH) as u32;
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT as _);
        // SAFETY: the first `count` messages have one part each, bytes of a buffer, and an address
        // of the given length; all are borrowed until the call returns, and only read.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Waits until a datagram has arrived, `also` can be read, or for this long.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self, also: Option<BorrowedFd<'_>>, longest: Option<Duration>) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = longest.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let socket = self.socket.as_fd();
        let mut watched =
            [socket, also.unwrap_or(socket)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A temporary condition: no room, no datagram, no receiver (reported for an earlier datagram).
fn is_transient(error: &io::Error) -> bool {
    let codes = [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ECONNREFUSED, libc::EPERM];
    let unreachable = [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENETDOWN];
    error.raw_os_error().is_some_and(|code| codes.contains(&code) || unreachable.contains(&code))
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_batch_reaches_every_peer_in_order() {
        let bind = |address: &str| Datagrams::bind(address.parse().unwrap(), 100).unwrap();
        let mut others = [bind("127.0.0.1:0"), bind("127.0.0.1:0")];
        let mut sender = bind("127.0.0.1:0");
        let addresses: Vec<SocketAddr> = others.iter().map(|o| o.address().unwrap()).collect();
        sender.peers(&addresses);
        for number in 0..100u8 {
            sender.buffer()[..2].copy_from_slice(&[number, 1]);
            sender.stage(2, 0..2);
            sender.next_buffer().unwrap();
        }
        sender.send().unwrap();
        for other in &mut others {
            let mut found = Vec::new();
            while found.len() < 100 {
                other.wait(None, None).unwrap();
                let count = other.receive().unwrap();
                found.extend((0..count).map(|number| other.datagram(number).to_vec()));
            }
            assert!(found.iter().zip(0..).all(|(datagram, number)| *datagram == [number, 1]));
        }
    }

    #[test]
    fn an_absent_peer_is_no_error_and_addresses_of_both_families_work() {
        let mut sender = Datagrams::bind("127.0.0.1:0".parse().unwrap(), 100).unwrap();
        let absent = sender.address().unwrap();
        let mut here = Datagrams::bind("[::1]:0".parse().unwrap(), 100).unwrap();
        here.peers(&[here.address().unwrap()]);
        here.stage(9, 0..1);
        here.send().unwrap();
        here.wait(None, None).unwrap();
        assert_eq!((here.receive().unwrap(), here.datagram(0).len()), (1, 9));
        drop(sender);
        sender = Datagrams::bind("127.0.0.1:0".parse().unwrap(), 100).unwrap();
        sender.peers(&[absent]);
        for _ in 0..3 {
            sender.stage(1, 0..1);
            sender.send().unwrap();
            assert_eq!(sender.receive().unwrap(), 0);
        }
    }
}
