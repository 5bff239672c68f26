//! Mailboxes: packets from the filter stage to a task, in order, without a copy.
//!
//! ```
//! # use picnic_os::{context::Nic, mailbox::MailboxSender};
//! async fn count_bytes(nic: Nic, install: impl FnOnce(MailboxSender)) {
//!     let Ok((sender, mut mailbox)) = nic.mailbox(64) else { return };
//!     install(sender); // into a filter
//!     while let Some(packet) = mailbox.receive().await {
//!         let _bytes = packet.length(); // dropped here: consumed, and counted so
//!     }
//! }
//! ```
//!
//! A mailbox belongs to the borrowed core: the filter stage and the task take
//! turns there. It is bounded; a full one returns packets to the sender, to drop and count.
//!
//! Guarantees: a packet in a mailbox, or taken from one, counts as held until it
//! leaves through a door; when the task ends, its packets are consumed; nothing is allocated
//! per packet.

use crate::channel::Channel;
use crate::memory::{Charge, Kind, MemoryError};
use crate::net::Exit;
use crate::shared::{Shared, lock};
use crate::task::{TaskCell, TaskId};
use picnic_channel::Awaits;
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::Descriptor;
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_filter::FilterCode;
use picnic_filter::code::{Closer, Handover};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// State shared by both ends of a mailbox.
#[derive(Default)]
struct State {
    /// The task waits for a packet; `waker` wakes it.
    waiting: AtomicBool,
    waker: Mutex<Option<Waker>>,
    closed: AtomicBool,
    received: Counter,
    full: Counter,
    /// Its bytes in card memory.
    _charge: Option<Charge>,
}

impl State {
    /// Closes the mailbox, from any thread: the task checks `closed` again after leaving its waker,
    /// so that one of the two sees the other.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the task, if it waits.
    #[inline]
    fn notify(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.waiting.store(false, Ordering::Relaxed);
        if let Some(waker) = lock(&self.waker).as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// The two ends of a mailbox.
pub(crate) fn channel(
    shared: &Arc<Shared>,
    owner: TaskId,
    capacity: usize,
) -> Result<(MailboxSender, Mailbox), MemoryError> {
    let capacity = capacity.max(1);
    // Too many to count are too many to allocate.
    let ring = spsc::bytes::<Descriptor>(capacity).unwrap_or(usize::MAX);
    let bytes = ring.saturating_add(size_of::<State>());
    let charge = lock(&shared.memory).charge(owner, Kind::Mailbox, bytes)?;
    let (producer, consumer) = spsc::channel(capacity);
    let state = Arc::new(State { _charge: Some(charge), ..State::default() });
    let sender = MailboxSender { ring: producer, state: state.clone(), shared: shared.clone() };
    Ok((sender, Mailbox { ring: consumer, state, shared: shared.clone() }))
}

/// The filter stage's end.
pub struct MailboxSender {
    ring: Producer<Descriptor>,
    state: Arc<State>,
    shared: Arc<Shared>,
}

impl MailboxSender {
    /// Puts a packet into the mailbox, where it is held by NIC OS.
    ///
    /// # Errors
    /// The packet, if the mailbox is full or its task has ended: to be dropped as `mailbox_full`,
    /// or passed on.
    #[inline]
    pub fn push(&mut self, packet: Descriptor) -> Result<(), Descriptor> {
        if self.state.closed.load(Ordering::Relaxed) {
            return Err(packet);
        }
        match self.ring.push(packet) {
            Ok(()) => {
                self.shared.attention.held().add(1);
                self.state.received.add(1);
                self.state.notify();
                Ok(())
            }
            Err(packet) => {
                self.state.full.add(1);
                Err(packet)
            }
        }
    }

    /// Whether the task has ended.
    pub fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Relaxed)
    }

    /// Packets ever put in.
    pub fn received(&self) -> u64 {
        self.state.received.get()
    }

    /// Packets that ever found it full.
    pub fn full(&self) -> u64 {
        self.state.full.get()
    }

    /// A handle that closes it from another thread.
    pub(crate) fn end(&self) -> End {
        End(self.state.clone())
    }

    /// Packets it has room for.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}

/// Closes a mailbox whose sender is still in use elsewhere.
pub(crate) struct End(Arc<State>);

impl End {
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

/// A task's mailbox; NIC OS counts its packets in the ledger.
impl Handover for MailboxSender {
    fn hand_over(&mut self, _now: Time, packet: Descriptor) -> Result<(), Descriptor> {
        self.push(packet)
    }

    fn closer(&self) -> Option<Closer> {
        let end = self.end();
        Some(Box::new(move || end.close()))
    }
}

/// A task's mailbox, for a filter that delivers to it.
impl From<MailboxSender> for FilterCode {
    fn from(mailbox: MailboxSender) -> Self {
        FilterCode { handover: Some(Box::new(mailbox)), ..FilterCode::default() }
    }
}

impl Drop for MailboxSender {
    fn drop(&mut self) {
        // Tells the task that no more packets come.
        self.state.close();
    }
}

impl fmt::Debug for MailboxSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailboxSender").field("ring", &self.ring).finish_non_exhaustive()
    }
}

/// A task's end.
pub struct Mailbox {
    ring: Consumer<Descriptor>,
    state: Arc<State>,
    shared: Arc<Shared>,
}

impl Mailbox {
    /// The oldest packet; waits for one. `None` once it is empty and closed.
    pub fn receive(&mut self) -> Receive<'_> {
        Receive { mailbox: self, paused: false }
    }

    /// The oldest packet, if any. Does not pause: for taking several in one segment.
    pub fn try_receive(&mut self) -> Option<Packet> {
        let descriptor = self.ring.pop()?;
        self.ring.release();
        Some(Packet { descriptor: Some(descriptor), shared: self.shared.clone() })
    }

    /// Number of packets in it.
    pub fn len(&mut self) -> usize {
        self.ring.refresh()
    }

    /// Whether it is empty.
    pub fn is_empty(&mut self) -> bool {
        self.len() == 0
    }

    /// Packets ever put in.
    pub fn received(&self) -> u64 {
        self.state.received.get()
    }

    /// Packets that ever found it full.
    pub fn full(&self) -> u64 {
        self.state.full.get()
    }

    /// Whether no more packets will be put in.
    pub fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Acquire)
    }

    fn has_news(&mut self) -> bool {
        !self.is_empty() || self.state.closed.load(Ordering::Acquire)
    }

    fn poll_receive(&mut self, context: &Context<'_>) -> Poll<Option<Packet>> {
        if let Some(packet) = self.try_receive() {
            return Poll::Ready(Some(packet));
        }
        if self.state.closed.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        match self.waits(context) {
            true => Poll::Pending,
            false => Poll::Ready(self.try_receive()),
        }
    }

    /// Has the task woken by the next packet; false if it has been closed.
    fn waits(&self, context: &Context<'_>) -> bool {
        let waker = context.waker();
        lock(&self.state.waker).get_or_insert_with(|| waker.clone()).clone_from(waker);
        // A thread that found no waker may have closed it meanwhile.
        let is_open = !self.state.closed.load(Ordering::Acquire);
        if is_open {
            self.state.waiting.store(true, Ordering::Relaxed);
        }
        is_open
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::Release);
        while self.try_receive().is_some() {}
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("ring", &self.ring).finish_non_exhaustive()
    }
}

/// Waits for a packet; see [`Mailbox::receive`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Receive<'a> {
    mailbox: &'a mut Mailbox,
    paused: bool,
}

impl Future for Receive<'_> {
    type Output = Option<Packet>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Packet>> {
        if !std::mem::replace(&mut self.paused, true) && self.mailbox.has_news() {
            // An await pauses: the packet is available when the next segment runs.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.mailbox.poll_receive(context)
    }
}

/// Waits for a packet in one of several mailboxes, or for a time; see `Nic::any_mail`.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct AnyMail<'a, const N: usize> {
    cell: &'a TaskCell,
    mailboxes: [&'a mut Mailbox; N],
    channel: Option<(&'a mut Channel, Awaits)>,
    until: Time,
    paused: bool,
}

impl<'a, const N: usize> AnyMail<'a, N> {
    pub(crate) fn new(cell: &'a TaskCell, mailboxes: [&'a mut Mailbox; N], until: Time) -> Self {
        AnyMail { cell, mailboxes, channel: None, until, paused: false }
    }

    /// Waits for news of a channel as well: for what `awaits` says, and for a host process that
    /// comes or goes after [`Channel::is_open`] was last asked.
    pub fn or_channel(self, channel: &'a mut Channel, awaits: Awaits) -> Self {
        AnyMail { channel: Some((channel, awaits)), ..self }
    }
}

impl<const N: usize> Future for AnyMail<'_, N> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_over = self.cell.shared.now() >= self.until
            || self.mailboxes.iter_mut().any(|mailbox| mailbox.has_news())
            || self.channel.as_mut().is_some_and(|(channel, awaits)| channel.has_news(*awaits));
        if is_over && std::mem::replace(&mut self.paused, true) {
            return Poll::Ready(());
        }
        self.paused = true;
        if is_over || !self.mailboxes.iter().all(|mailbox| mailbox.waits(context)) {
            // An await pauses: the next segment is ready.
            context.waker().wake_by_ref();
        } else {
            self.cell.wait_until(self.until);
            if let Some((channel, awaits)) = &self.channel {
                channel.wait(*awaits, context);
            }
        }
        Poll::Pending
    }
}

/// A packet held by a task until it leaves by a door. Dropping it consumes it.
pub struct Packet {
    /// None once it has left.
    descriptor: Option<Descriptor>,
    shared: Arc<Shared>,
}

impl Packet {
    /// Sends it to a target queue.
    pub fn steer(self, queue: u16) {
        self.leave(Exit::Steer(queue));
    }

    /// Sends it out by a wire.
    pub fn transmit(self, wire: u8) {
        self.leave(Exit::Transmit(wire));
    }

    /// Drops it, counted under `reason` at stage `task`.
    pub fn discard(self, reason: DropReason) {
        self.leave(Exit::Drop(reason));
    }

    /// Consumes it: the task keeps it.
    pub fn consume(self) {}

    fn leave(mut self, exit: Exit) {
        if let Some(descriptor) = self.descriptor.take() {
            lock(&self.shared.outbox).leave(descriptor, exit);
            self.shared.mark_outbox();
        }
    }
}

impl Deref for Packet {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        match &self.descriptor {
            Some(descriptor) => descriptor,
            // Only methods that consume the packet take it.
            None => unreachable!("the packet has left"),
        }
    }
}

impl DerefMut for Packet {
    fn deref_mut(&mut self) -> &mut Descriptor {
        match &mut self.descriptor {
            Some(descriptor) => descriptor,
            None => unreachable!("the packet has left"),
        }
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            lock(&self.shared.outbox).leave(descriptor, Exit::Consume);
            self.shared.mark_outbox();
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}
