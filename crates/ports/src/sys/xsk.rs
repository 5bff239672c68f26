//! AF_XDP sockets over the card's buffer pool, made safe to use.
//!
//! ```text
//! Umem::new ─▶ Umem::supplies ─▶ Sockets::open (any thread) ─▶ Umem::install
//! Umem::receive · Umem::post, Umem::kick, Umem::reap          (the borrowed core)
//! Umem::remove ─▶ dropped (any thread) ─▶ Umem::recall
//! ```
//!
//! The pool's memory is registered as UMEM in unaligned mode, since its buffers are an odd number
//! of lines apart. The kernel's part of a buffer, the chunk, starts after its header.
//!
//! Guarantees: the kernel gets only places of buffers that were lent to it; they are reused when it
//! has returned them, or when all its sockets are closed. At most one system call per burst in each
//! direction, and none on receive unless the kernel requests it.
//!
//! Source: Documentation/networking/af_xdp.rst; include/uapi/linux/if_xdp.h.

pub(crate) use super::xsk_queue::{CHUNK_LOW, Chunks, Sending};
pub(crate) use super::xsk_sockets::{
    Sockets, SocketsConfig, SocketsError, Step, Supplies, is_taken,
};

use libc::xdp_desc;
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::lend::Loans;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Receiver, Transmitter};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;

/// Pieces that one packet may be sent in, the kernel's fragments of a packet.
pub(crate) const MOST_PIECES: usize = 16;
const HUGE_PAGE_SHIFT: u32 = 21;

/// The card's pool as UMEM: lent buffers, and the sockets they are lent to.
#[derive(Debug)]
pub(crate) struct Umem {
    sockets: Option<Sockets>,
    loans: Loans,
    /// The next queue to poll.
    turn: usize,
    /// Readable when a socket is.
    events: OwnedFd,
}

impl Umem {
    /// Nothing lent, and no sockets.
    pub(crate) fn new(pool: &Pool) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Umem { sockets: None, loans: Loans::new(pool), turn: 0, events })
    }

    /// Takes buffers that cross a border of huge pages out of use: where these are not neighbours
    /// in memory, a NIC cannot write across. For set-up.
    pub(crate) fn keep_within_pages(&mut self, pool: &mut Pool) -> usize {
        let room = pool.memory().room() as u64;
        self.loans.set_aside(pool, |place| {
            place >> HUGE_PAGE_SHIFT != (place + room - 1) >> HUGE_PAGE_SHIFT
        })
    }

    /// Buffers for the sockets that `wanted` selects; fewer if fewer are free.
    pub(crate) fn supplies(&mut self, pool: &mut Pool, wanted: &SocketsConfig) -> Supplies {
        let loans = &mut self.loans;
        let queues = wanted.queues.iter();
        let queues = queues
            .map(|_| (0..wanted.rx_slots).map_while(|_| loans.lend(pool)).collect())
            .collect();
        Supplies { queues, borrower: loans.borrower() }
    }

    /// Takes sockets up that were opened with this one's supplies; others are closed.
    pub(crate) fn install(&mut self, sockets: Sockets) {
        if !self.loans.has_borrower(&sockets.borrower) {
            return;
        }
        for queue in &sockets.queues {
            let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            // Without it the card polls the socket anyway, at its next deadline.
            let _ = epoll::add(&self.events, &queue.socket, data, flags);
        }
        self.sockets = Some(sockets);
    }

    /// Takes the sockets out of use, to be dropped: that takes its time, so elsewhere.
    pub(crate) fn remove(&mut self) -> Option<Sockets> {
        self.sockets.take()
    }

    /// The sockets.
    pub(crate) fn sockets(&mut self) -> Option<&mut Sockets> {
        self.sockets.as_mut()
    }

    /// Returns buffers that the kernel never handed back, once all sockets are closed and dropped;
    /// the result is the number of packets never sent. `None` while a socket is left.
    pub(crate) fn recall(&mut self, pool: &mut Pool) -> Option<usize> {
        self.loans.recall(pool)
    }

    /// As [`Umem::recall`], with the buffers that were taken out of use.
    pub(crate) fn end(&mut self, pool: &mut Pool) -> Option<usize> {
        self.loans.end(pool)
    }

    /// Packets that the kernel has and has not sent yet.
    pub(crate) fn unsent(&self) -> usize {
        self.loans.packets()
    }

    /// A descriptor that is readable when packets have arrived.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Takes the errors that wait on the sockets, so that they wake no one again.
    pub(crate) fn take_errors(&self) {
        for queue in self.sockets.iter().flat_map(|sockets| &sockets.queues) {
            queue.take_error();
        }
    }

    /// Whether at least `frames` frames wait in all queues together; each piece of a long one
    /// counts.
    pub(crate) fn holds(&mut self, frames: usize) -> bool {
        let queues = self.sockets.iter_mut().flat_map(|sockets| &mut sockets.queues);
        queues.map(|queue| queue.waiting(frames)).sum::<usize>() >= frames
    }

    /// Takes in arrived packets, with queues taking turns at being first, and gives the kernel
    /// empty buffers. Adds the packets without a stamp to `unstamped`.
    #[inline]
    pub(crate) fn receive(&mut self, rx: &mut Receiver<'_>, unstamped: &mut u64) {
        let Some(sockets) = &mut self.sockets else { return };
        let (count, depth) = (sockets.queues.len(), sockets.wanted.rx_slots as usize);
        let mut index = if self.turn < count { self.turn } else { 0 };
        self.turn = index + 1;
        for _ in 0..count {
            let queue = &mut sockets.queues[index];
            let taken = queue.receive(&mut self.loans, rx, sockets.mark, unstamped);
            queue.top_up(&mut self.loans, rx.pool(), depth);
            let asked_for = sockets.zero_copy && queue.fill.needs_wakeup();
            if asked_for || (sockets.wanted.busy_poll != 0 && taken == 0) {
                queue.wake_receive();
            }
            index = if index + 1 == count { 0 } else { index + 1 };
        }
    }

    /// Ends the packets that the kernel has sent; their buffers return.
    #[inline]
    pub(crate) fn reap(&mut self, tx: &mut Transmitter<'_>) {
        let Some(queue) = self.sockets.as_mut().and_then(|sockets| sockets.queues.first_mut())
        else {
            return;
        };
        if queue.completion.ready(1) == 0 {
            return;
        }
        while let Some(place) = queue.completion.take() {
            if let Some(length) = self.loans.put_back(tx.pool(), place) {
                tx.left(length);
            }
        }
        queue.completion.release();
    }

    /// Whether a packet can be posted: `Ok(false)` if not for now, `Err` if not ever, as it would
    /// be in more pieces than the kernel takes.
    #[inline]
    pub(crate) fn has_room_for(&mut self, packet: &Descriptor) -> Result<bool, ()> {
        let Some(sockets) = &mut self.sockets else { return Ok(false) };
        let pieces = Loans::pieces(packet, sockets.longest_piece);
        if pieces > 1 && (!sockets.pieces || pieces > MOST_PIECES) {
            return Err(());
        }
        Ok(sockets.queues.first_mut().is_some_and(|queue| queue.tx.has_room(pieces)))
    }

    /// Puts a packet on the transmit ring, for which there must be room: [`Umem::has_room_for`].
    /// The kernel sees it after [`Umem::kick`].
    ///
    /// All packets leave by the first queue: flows keep their order.
    #[inline]
    pub(crate) fn post(&mut self, packet: Descriptor, tx: &mut Transmitter<'_>) {
        let Some(sockets) = &mut self.sockets else {
            return tx.drop(packet, DropReason::WireDown);
        };
        let Some(queue) = sockets.queues.first_mut() else { return };
        tx.keep(&packet);
        self.loans.lend_packet(tx.pool(), packet, sockets.longest_piece, |addr, len, more| {
            let options = if more { libc::XDP_PKT_CONTD } else { 0 };
            queue.tx.stage(xdp_desc { addr, len, options });
        });
    }

    /// Shows the kernel the posted packets, and calls it if requested.
    #[inline]
    pub(crate) fn kick(&mut self) -> Sending {
        let Some(sockets) = &mut self.sockets else { return Sending::Done };
        let Some(queue) = sockets.queues.first_mut() else { return Sending::Done };
        queue.kick(sockets.wanted.need_wakeup, sockets.zero_copy)
    }
}
