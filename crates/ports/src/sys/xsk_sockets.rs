//! The sockets of one interface, opened together, and the program that feeds them.
//!
//! Guarantees: all is undone when they are dropped, however far they had come; buffers can be
//! recalled only after that, and only if the kernel has let go of them.

use super::bpf::{Attachment, Mark, Program, SocketMap};
use super::xsk_queue::{CHUNK_LOW, Chunks, Lost, Queue, is_released};
use crate::af_xdp::SharedSocketMap;
use picnic_core::packet::lend::Borrower;
use rustix::fd::AsFd;
use std::io;
use std::sync::Arc;

/// The configuration of the sockets.
#[derive(Clone, Debug)]
pub(crate) struct SocketsConfig {
    /// The number of the wire, and the map of a program elsewhere that hands packets to the
    /// sockets.
    pub(crate) handed: Option<(usize, Arc<SharedSocketMap>)>,
    /// The interface's queues, ascending.
    pub(crate) queues: Vec<u32>,
    /// Buffers at the kernel's disposal per queue, and slots of the rings, powers of two.
    pub(crate) rx_slots: u32,
    pub(crate) tx_slots: u32,
    /// Whether the program is in the driver or in the kernel's generic path; none: the driver if
    /// possible.
    pub(crate) native: Option<bool>,
    pub(crate) zero_copy: Option<bool>,
    pub(crate) need_wakeup: bool,
    /// Packets a busy poll takes at most; zero for interrupts.
    pub(crate) busy_poll: u32,
    /// Packets come with the time at which the program saw them.
    pub(crate) stamps: bool,
    /// Bytes of the longest packet on the interface.
    pub(crate) longest: usize,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Socket,
    Memory,
    Rings,
    /// Taking one of the interface's queues.
    Bind(u32),
    Program,
    Attach,
}

/// One way to go about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketsMode {
    pub(super) zero_copy: bool,
    pub(super) pieces: bool,
}

/// Why there are no sockets.
#[derive(Debug)]
pub(crate) struct SocketsError {
    pub(crate) step: Step,
    pub(crate) error: io::Error,
    /// Packets in pieces were asked for, as the longest does not fit into the room of one buffer.
    pub(crate) pieces: bool,
    pub(crate) longest: usize,
    pub(crate) room: usize,
}

/// Buffers for the fill rings of sockets yet to be opened.
#[derive(Debug)]
pub(crate) struct Supplies {
    pub(super) queues: Vec<Vec<u64>>,
    pub(super) borrower: Borrower,
}

/// The sockets of an interface and the program that feeds them; all removed when dropped.
#[derive(Debug)]
pub(crate) struct Sockets {
    attachment: Option<Attachment>,
    /// Mark of the stamps before packets; none without stamps.
    pub(super) mark: Option<Mark>,
    pub(super) queues: Vec<Queue>,
    pub(super) wanted: SocketsConfig,
    index: u32,
    /// Bytes of the longest piece that can be sent.
    pub(super) longest_piece: usize,
    pub(super) pieces: bool,
    /// Buffers are written by the NIC itself.
    pub(crate) zero_copy: bool,
    /// Why the program is not in the driver, though that was tried.
    pub(crate) not_native: Option<io::Error>,
    /// Buffers cannot be recalled while this is there.
    pub(super) borrower: Borrower,
    /// The kernel has let go of all queues.
    released: bool,
}

impl Sockets {
    /// Opens a socket on each queue of interface `index` of this thread's network namespace, and
    /// attaches the program that feeds them.
    pub(crate) fn open(
        index: u32,
        wanted: &SocketsConfig,
        supplies: Supplies,
    ) -> Result<Self, SocketsError> {
        let memory = supplies.borrower.memory();
        let room = Chunks::of(&memory).map_or(0, |chunks| chunks.room());
        let needs_pieces = wanted.longest > room;
        let mut ways = Vec::new();
        let may_be_zero_copy = memory.huge_pages() && wanted.native != Some(false);
        if wanted.zero_copy.unwrap_or(may_be_zero_copy) {
            // Drivers that cope with pieces are few.
            ways.push(SocketsMode { zero_copy: true, pieces: needs_pieces });
        }
        if wanted.zero_copy != Some(true) {
            ways.push(SocketsMode { zero_copy: false, pieces: true });
            if !needs_pieces {
                ways.push(SocketsMode { zero_copy: false, pieces: false });
            }
        }
        let mut trouble = None;
        for way in ways {
            match Sockets::open_so(index, wanted, &supplies, way) {
                Ok(sockets) => return Ok(sockets),
                Err((step, error)) => {
                    let worth_another = matches!(step, Step::Bind(_) | Step::Attach)
                        && matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL));
                    trouble = Some((step, error, way.pieces && needs_pieces));
                    if !worth_another {
                        break;
                    }
                }
            }
        }
        let (step, error, pieces) =
            trouble.unwrap_or((Step::Memory, io::ErrorKind::InvalidInput.into(), false));
        Err(SocketsError { step, error, pieces, longest: wanted.longest, room })
    }

    fn open_so(
        index: u32,
        wanted: &SocketsConfig,
        supplies: &Supplies,
        way: SocketsMode,
    ) -> Result<Self, (Step, io::Error)> {
        let chunks = Chunks::of(&supplies.borrower.memory());
        let mut sockets = Sockets {
            attachment: None,
            mark: None,
            queues: Vec::with_capacity(wanted.queues.len()),
            wanted: wanted.clone(),
            index,
            longest_piece: chunks.map_or(CHUNK_LOW, |chunks| chunks.size),
            pieces: way.pieces,
            zero_copy: way.zero_copy,
            not_native: None,
            borrower: supplies.borrower.clone(),
            released: false,
        };
        match sockets.fill_in(&supplies.queues, way) {
            Ok(()) => Ok(sockets),
            Err(trouble) => {
                sockets.close();
                Err(trouble)
            }
        }
    }

    fn fill_in(&mut self, places: &[Vec<u64>], way: SocketsMode) -> Result<(), (Step, io::Error)> {
        let Sockets { wanted, index, borrower, queues, mark, .. } = &mut *self;
        for (&queue, places) in wanted.queues.iter().zip(places) {
            let first = queues.first().map(|first| first.socket.as_fd());
            let opened = Queue::open(*index, queue, wanted, way, (places, borrower), first)?;
            queues.push(opened);
        }
        let program = |error| (Step::Program, error);
        if let Some((wire, handed)) = &wanted.handed {
            *mark = handed.stamps().filter(|_| wanted.stamps);
            return wanted.queues.iter().zip(&*queues).try_for_each(|(&number, queue)| {
                handed.put(*wire, number, queue.socket.as_fd()).map_err(program)
            });
        }
        let entries = wanted.queues.last().map_or(1, |last| last + 1);
        let map = SocketMap::new(entries).map_err(program)?;
        for (&number, queue) in wanted.queues.iter().zip(&*queues) {
            map.set(number, queue.socket.as_fd()).map_err(program)?;
        }
        let (loaded, mark) = Program::redirect_to(&map, wanted.stamps).map_err(program)?;
        let attached = match loaded.attach(*index, wanted.native != Some(false)) {
            // In front of zero-copy sockets the program must be in the driver.
            Err(error) if wanted.native.is_none() && !way.zero_copy && !is_taken(&error) => {
                let generic = loaded.attach(*index, false);
                // The driver's error is the better reason.
                generic
                    .map(|attachment| (attachment, Some(error.raw_os_error())))
                    .map_err(|_| error)
            }
            attached => attached.map(|attachment| (attachment, None)),
        };
        let (attachment, not_native) = attached.map_err(|error| (Step::Attach, error))?;
        (self.attachment, self.mark) = (Some(attachment), mark);
        self.not_native = not_native.flatten().map(io::Error::from_raw_os_error);
        Ok(())
    }

    /// Closes all, and waits until the kernel has let go of them: in the network namespace that
    /// they were opened in. If it does not, the buffers can never be recalled.
    pub(crate) fn close(mut self) {
        self.attachment = None;
        self.queues.clear();
        // A NIC may still write for a while, and a child that another thread is just starting has
        // copies of the sockets until it has become another program.
        let SocketsConfig { queues, .. } = &self.wanted;
        self.released = queues.iter().all(|&queue| is_released(self.index, queue));
    }

    /// The losses since the last query, on all queues.
    pub(crate) fn lost(&mut self) -> Lost {
        let zero_copy = self.zero_copy;
        self.queues.iter_mut().map(|queue| queue.lost(zero_copy)).fold(
            Lost::default(),
            |sum, lost| Lost {
                overruns: sum.overruns + lost.overruns,
                oversize: sum.oversize + lost.oversize,
                unusable: sum.unusable + lost.unusable,
            },
        )
    }
}

/// Whether the kernel says that there is a program at the interface already.
pub(crate) fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // First of all nothing more is received.
        self.attachment = None;
        self.queues.clear();
        if !self.released {
            std::mem::forget(self.borrower.clone());
        }
    }
}
