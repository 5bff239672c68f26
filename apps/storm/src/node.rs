//! A member as an ordinary program: the protocol over UDP, one thread, datagrams in batches.
//!
//! The driver's loop: [`Node::receive`], [`Node::deliver`] until `None`, submit, [`Node::send`];
//! [`Node::wait`] if nothing was received.
//!
//! Guarantees: no system call per packet, but one per batch each way; the thread sleeps when it
//! has nothing to do.

use crate::member::{Delivery, Member, To};
use crate::settings::{Fault, Settings};
use picnic_core::time::Time;
use picnic_ports::datagrams::Datagrams;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Batches that are received before anything is delivered or sent.
const BATCHES: usize = 4;

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Settings that are not allowed.
    #[error("{}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"))]
    Settings(Vec<Fault>),
    /// The socket cannot be opened.
    #[error("{0}: {1}")]
    Socket(SocketAddr, io::Error),
}

/// A member with its socket and its clock.
#[derive(Debug)]
pub struct Node {
    member: Member,
    socket: Datagrams,
    start: Instant,
    /// Number of arriving datagrams that are discarded, out of 2^32.
    loss: u32,
    random: u64,
    waits: u64,
    datagrams: u64,
    bytes: u64,
}

impl Node {
    /// A node for the member `settings.me`, with the addresses of all members.
    ///
    /// # Errors
    /// Settings that are not allowed, or no socket.
    pub fn new(settings: Settings, addresses: &[SocketAddr]) -> Result<Self, NodeError> {
        let (own, longest) = (addresses[usize::from(settings.me)], settings.packet_bytes.into());
        let member = Member::new(settings).map_err(NodeError::Settings)?;
        let socket =
            Datagrams::bind(own, longest).map_err(|error| NodeError::Socket(own, error))?;
        Ok(Node::of(member, socket, addresses))
    }

    /// A node for this member, whose socket is open.
    pub(crate) fn of(member: Member, mut socket: Datagrams, addresses: &[SocketAddr]) -> Self {
        socket.peers(addresses);
        Node {
            random: member.settings().me.into(),
            member,
            socket,
            start: Instant::now(),
            loss: 0,
            waits: 0,
            datagrams: 0,
            bytes: 0,
        }
    }

    /// Discards this fraction of the datagrams that arrive, chosen by `seed`: for experiments.
    #[must_use]
    pub fn losing(mut self, fraction: f64, seed: u64) -> Self {
        self.loss = (fraction.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.random ^= seed << 8;
        self
    }

    /// Counts times from this moment.
    #[must_use]
    pub fn counting_from(mut self, start: Instant) -> Self {
        self.start = start;
        self
    }

    /// The time now.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// The member.
    pub fn member(&mut self) -> &mut Member {
        &mut self.member
    }

    /// Number of times that the thread went to sleep.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// Datagrams sent, one for each receiver.
    pub fn datagrams_sent(&self) -> u64 {
        self.datagrams
    }

    /// Their bytes.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes
    }

    /// Takes the datagrams that have arrived, and returns their number.
    ///
    /// # Errors
    /// The socket fails.
    pub fn receive(&mut self) -> io::Result<usize> {
        let mut total = 0;
        for _ in 0..BATCHES {
            let count = self.socket.receive()?;
            let now = self.now();
            for number in 0..count {
                if self.loss == 0 || self.next_random() > self.loss {
                    // A refusal is counted.
                    let _ = self.member.receive(now, self.socket.datagram(number));
                }
            }
            total += count;
            if count < picnic_ports::datagrams::BATCH {
                break;
            }
        }
        Ok(total)
    }

    /// The next message of the order, if it is its turn.
    pub fn deliver(&mut self) -> Option<Delivery<'_>> {
        self.member.deliver()
    }

    /// Sends everything that is due.
    ///
    /// # Errors
    /// The socket fails.
    pub fn send(&mut self) -> io::Result<()> {
        let now = self.now();
        let me = usize::from(self.member.settings().me);
        while let Some((to, length)) = self.member.transmit(now, self.socket.buffer()) {
            let copies = if to == To::All { self.member.members().count() as u64 - 1 } else { 1 };
            self.datagrams += copies;
            self.bytes += copies * length as u64;
            match to {
                To::All => {
                    self.socket.stage(length, 0..me);
                    self.socket.stage(length, me + 1..usize::MAX);
                }
                To::One(member) => {
                    self.socket.stage(length, member.into()..usize::from(member) + 1);
                }
            }
            self.socket.next_buffer()?;
        }
        self.socket.send()
    }

    /// Sleeps until a datagram arrives, `also` can be read, a repeat is due, or for
    /// this long.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&mut self, also: Option<BorrowedFd<'_>>, longest: Duration) -> io::Result<()> {
        let left = self.member.next_deadline().since(self.now());
        self.waits += 1;
        self.socket.wait(also, Some(longest.min(Duration::from_nanos(left))))
    }

    /// SplitMix64, upper half.
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}
