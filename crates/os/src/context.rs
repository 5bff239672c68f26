//! What a task sees of the card: the value its body is given.
//!
//! ```
//! # use picnic_os::context::Nic;
//! async fn every_millisecond(nic: Nic) {
//!     loop {
//!         nic.sleep_ns(1_000_000).await;
//!         let _ = nic.post(0, &[0xff; 60]);
//!     }
//! }
//! ```
//!
//! Guarantees: nothing here blocks the core; every await on one of these futures
//! pauses the task, also if what it waits for is there already, and nothing else
//! does. So a segment is what stands between two awaits, as its bound says.
//!
//! Source: NICOS 4.1 to 4.4.

use crate::alloc::Allocator;
use crate::mailbox::{Mailbox, MailboxSender};
use crate::memory::{self, Block, HostBlock, MemoryError, MemoryReport, Transfer};
use crate::net::{self, SendError, Sender, Sending};
use crate::reply::{self, Reply};
use crate::shared::{Services, lock};
use crate::task::YIELDED;
use crate::task::{AWAITS_RELEASE, CreateError, Program, TaskCell, TaskId, TaskRequest, TaskSpec};
use picnic_core::time::Time;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// A task's way to the card. Clones are the same task's.
#[derive(Clone)]
pub struct Nic {
    pub(crate) cell: Arc<TaskCell>,
}

impl Nic {
    /// The task's own name.
    pub fn id(&self) -> TaskId {
        self.cell.id
    }

    /// Whether the task is released by time.
    pub fn is_periodic(&self) -> bool {
        self.cell.is_periodic
    }

    /// When the segment that runs began.
    pub fn now(&self) -> Time {
        self.cell.shared.now()
    }

    /// What is open to whoever works beside tasks.
    pub fn services(&self) -> Services {
        Services(self.cell.shared.clone())
    }

    // ------------------------------------------------------------ time

    /// Lets others run. The task stays ready.
    pub fn yield_now(&self) -> Yield<'_> {
        Yield { cell: &self.cell, yielded: false }
    }

    /// Waits until this time.
    pub fn sleep_until(&self, time: Time) -> Sleep<'_> {
        Sleep { cell: &self.cell, until: time, paused: false }
    }

    /// Waits this many nanoseconds from the start of the running segment.
    pub fn sleep_ns(&self, nanoseconds: u64) -> Sleep<'_> {
        self.sleep_until(self.now() + nanoseconds)
    }

    /// Ends the invocation and waits for the next release. That of a task that is not periodic is
    /// at once: its next invocation is ready, behind all that are.
    pub fn next_release(&self) -> NextRelease<'_> {
        NextRelease { cell: &self.cell, invocation: self.cell.invocation() }
    }

    /// Says which segment comes next: its bounds go into the task's ticket. The code that
    /// `#[task]` makes calls it before each await.
    #[inline]
    pub fn next_segment(&self, segment: u16) {
        self.cell.next_segment(usize::from(segment));
    }

    /// The running segment stands for this much more work, in nanoseconds. The world lets it
    /// pass: on a real core by working, on a virtual one by the clock.
    pub fn work(&self, nanoseconds: u64) {
        self.cell.add_work(nanoseconds);
    }

    // ------------------------------------------------------------ packets

    /// Sends a raw frame with all its headers, and goes on when the wire has taken it.
    pub fn send<'a>(&'a self, wire: u8, frame: &'a [u8]) -> Sending<'a> {
        Sending::new(&self.cell.shared, wire, frame)
    }

    /// Sends a raw frame with all its headers, and goes on at once.
    ///
    /// # Errors
    /// Why it cannot be sent. What becomes of it later is counted, but not told.
    pub fn post(&self, wire: u8, frame: &[u8]) -> Result<(), SendError> {
        net::post(&self.cell.shared, wire, frame)
    }

    /// A way to send frames by one wire and have `callback` told how each ended. It is called
    /// on the borrowed core between segments, and is to be short.
    pub fn sender<F>(&self, wire: u8, callback: F) -> Sender
    where
        F: FnMut(Result<(), SendError>) + Send + 'static,
    {
        let shared = self.cell.shared.clone();
        Sender { shared, wire, task: self.cell.id, callback: Arc::new(Mutex::new(callback)) }
    }

    /// A mailbox for `capacity` packets, rounded up to a power of two, and the end of it that
    /// goes into a filter.
    pub fn mailbox(&self, capacity: usize) -> (MailboxSender, Mailbox) {
        self.services().mailbox(capacity)
    }

    // ------------------------------------------------------------ memory

    /// Memory on the card, aligned to 16 bytes.
    ///
    /// # Errors
    /// There is no room.
    pub fn allocate(&self, bytes: usize) -> Result<Block, MemoryError> {
        self.allocate_aligned(bytes, 16)
    }

    /// Memory on the card, aligned to a power of two up to 4096.
    ///
    /// # Errors
    /// There is no room, or the alignment is none.
    pub fn allocate_aligned(&self, bytes: usize, align: usize) -> Result<Block, MemoryError> {
        Block::new(&self.cell.shared, self.cell.id, bytes, align)
    }

    /// Memory at the host. To be had at set-up: the system may take its time.
    ///
    /// # Errors
    /// All that tasks may have is taken.
    pub fn allocate_host(&self, bytes: usize) -> Result<HostBlock, MemoryError> {
        HostBlock::new(&self.cell.shared, bytes)
    }

    /// Copies bytes of the card to the host, from `at` on. It takes the time of the transfer,
    /// in which others run.
    ///
    /// # Errors
    /// The bytes leave a block, or one has been released.
    pub async fn copy_to_host(
        &self,
        from: &Block,
        range: Range<usize>,
        to: &HostBlock,
        at: usize,
    ) -> Result<(), MemoryError> {
        self.transfer(Transfer { card: from, range, host: to, at }, true).await
    }

    /// Copies bytes of the host to the card, from `at` on; see [`Nic::copy_to_host`].
    ///
    /// # Errors
    /// As there.
    pub async fn copy_from_host(
        &self,
        from: &HostBlock,
        at: usize,
        to: &mut Block,
        range: Range<usize>,
    ) -> Result<(), MemoryError> {
        self.transfer(Transfer { card: to, range, host: from, at }, false).await
    }

    async fn transfer(&self, transfer: Transfer<'_>, to_host: bool) -> Result<(), MemoryError> {
        let begun = transfer.begin();
        self.sleep_ns(*begun.as_ref().unwrap_or(&0)).await;
        begun?;
        transfer.end(to_host)
    }

    /// Gives `bytes` bytes of the arena to an allocator of one's own, which from now on is asked
    /// by all tasks, until it is uninstalled or this task ends. Blocks stay with the allocator
    /// that gave them.
    ///
    /// # Errors
    /// There is no room.
    pub fn install_allocator(
        &self,
        bytes: usize,
        allocator: Box<dyn Allocator>,
    ) -> Result<(), MemoryError> {
        memory::install(&self.cell.shared, self.cell.id, bytes, allocator)
    }

    /// Uninstalls the allocator that this task installed last; whether there was one.
    pub fn uninstall_allocator(&self) -> bool {
        memory::uninstall(&self.cell.shared, self.cell.id)
    }

    /// How memory stands.
    pub fn memory(&self) -> MemoryReport {
        lock(&self.cell.shared.memory).report()
    }

    // ------------------------------------------------------------ tasks

    /// Creates a task. It is there, or refused, when this one runs again.
    pub fn create(&self, spec: TaskSpec, program: Program) -> Reply<Result<TaskId, CreateError>> {
        let (replier, reply) = reply::channel();
        self.cell.shared.request(TaskRequest::Create(Box::new((spec, program)), replier));
        reply
    }

    /// Ends a task, if it is there: all it has is released. Itself at its next await.
    pub fn kill(&self, task: TaskId) {
        self.cell.shared.request(TaskRequest::Kill(task));
    }

    /// Lets a task run no more until it is resumed. Itself from its next await on.
    pub fn suspend(&self, task: TaskId) {
        self.cell.shared.request(TaskRequest::Suspend(task));
    }

    /// Lets a suspended task run again.
    pub fn resume(&self, task: TaskId) {
        self.cell.shared.request(TaskRequest::Resume(task));
    }

    /// Gives a task another priority.
    pub fn set_priority(&self, task: TaskId, priority: u8) {
        self.cell.shared.request(TaskRequest::Priority(task, priority));
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("id", &self.cell.id).finish_non_exhaustive()
    }
}

/// Lets others run; see [`Nic::yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Yield<'a> {
    cell: &'a TaskCell,
    yielded: bool,
}

impl Future for Yield<'_> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.yielded, true) {
            return Poll::Ready(());
        }
        self.cell.pause(YIELDED);
        Poll::Pending
    }
}

/// Waits for a time; see [`Nic::sleep_until`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep<'a> {
    cell: &'a TaskCell,
    until: Time,
    paused: bool,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.paused, true) && self.cell.shared.now() >= self.until {
            return Poll::Ready(());
        }
        self.cell.wait_until(self.until);
        Poll::Pending
    }
}

/// Waits for the next release; see [`Nic::next_release`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextRelease<'a> {
    cell: &'a TaskCell,
    invocation: u64,
}

impl Future for NextRelease<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        if self.cell.invocation() > self.invocation {
            return Poll::Ready(());
        }
        self.cell.pause(AWAITS_RELEASE);
        Poll::Pending
    }
}
