//! Channels to host processes: messages in memory that both map, without the kernel in between.
//!
//! ```
//! # use picnic_os::{channel::ChannelError, context::Nic};
//! async fn echo(nic: Nic) -> Result<(), ChannelError> {
//!     let mut channel = nic.channel("echo", 64, 256).await?;
//!     let mut message = [0; 64];
//!     loop {
//!         // An error: the host process has gone. The next one gets its own messages.
//!         let Ok(bytes) = channel.receive(&mut message).await else { continue };
//!         let _ = channel.send(&message[..bytes]).await;
//!     }
//! }
//! ```
//!
//! A host process opens a channel by its name over the control socket: `picnic_channel::Channel`,
//! or `picnic_channel.h`. The memory exists while a process has the channel open; it is host memory
//! (`os.host_bytes`), charged when the task makes the channel, as is card memory for its own part.
//!
//! One process at a time has a channel open, and each gets a fresh one: it sees no message of an
//! earlier process, and no answer to one. When it goes, the task can still receive the messages
//! that it sent; then, or at the next send, the task gets [`HostGone`] once. Messages that were on
//! their way are lost, and counted.
//!
//! Guarantees: the borrowed core makes no system call for a channel, except one that wakes a host
//! process which sleeps, at most once per segment; it maps and unmaps nothing. Anything that a
//! process writes into the memory, at worst its channel is broken: it is gone then. Nothing is
//! allocated per message.
//!
//! Source: NICOS 1 (dividing an application between host and NIC) and 4.1.

mod directory;

pub(crate) use directory::Directory;
pub use directory::{Channels, HostEnd, OpenError, Opened};

use crate::context::Nic;
use crate::memory::{Charge, Kind, MemoryError, Reserved};
use crate::shared::{Shared, lock};
use directory::{Link, Session};
use picnic_channel::{Awaits, Broken, End, MOST_BYTES, MOST_MESSAGES, SendError, Shape};
use picnic_core::stats::Counter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Longest name.
const LONGEST_NAME: usize = 64;

/// Why a channel was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Another living task has a channel of this name.
    #[error("channel \"{name}\" exists already: it belongs to task {task}")]
    Taken {
        /// The name.
        name: String,
        /// The task that has it.
        task: u64,
    },
    /// Not a name.
    #[error(
        "found channel name \"{0}\", allowed: 1 to {LONGEST_NAME} letters, digits, \".\", \"-\", \"_\""
    )]
    Name(String),
    /// Messages of this size, or this number of them, do not fit.
    #[error(
        "found {messages} messages of {message_bytes} bytes, allowed: 1 to {MOST_MESSAGES} \
         messages of 1 to {MOST_BYTES} bytes"
    )]
    Shape {
        /// Bytes of the longest message.
        message_bytes: usize,
        /// Messages each way.
        messages: usize,
    },
    /// There is no room for its memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The host process that had the channel open has gone, or broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host process has gone")]
pub struct HostGone;

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelSendError {
    /// The host process is slow: there is no room.
    #[error("the channel is full")]
    Full,
    /// No host process has the channel open.
    #[error("no host process has the channel open")]
    NotOpen,
    /// It is longer than the channel's messages.
    #[error("found a message of {found} bytes, allowed: up to {most}")]
    TooLong {
        /// Its bytes.
        found: usize,
        /// Bytes of the longest.
        most: usize,
    },
    /// The host process has gone.
    #[error(transparent)]
    Gone(#[from] HostGone),
}

/// Counts of a channel; written by the borrowed core.
#[derive(Debug, Default)]
pub struct ChannelCounters {
    /// Times that a host process opened it.
    pub openings: Counter,
    /// Messages sent to host processes.
    pub sent: Counter,
    /// Messages received from them.
    pub received: Counter,
    /// Messages that found it full.
    pub full: Counter,
    /// Messages refused because of their length.
    pub too_long: Counter,
    /// Unread messages, in both directions, when a host process or the task ended.
    pub lost: Counter,
    /// Host processes that broke the protocol.
    pub broken: Counter,
    /// Sleeping host processes woken.
    pub host_wakeups: Counter,
}

/// A channel's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChannelReport {
    /// Its name.
    pub channel: String,
    /// The number of its task.
    pub task: u64,
    /// Whether its task still has it.
    pub is_alive: bool,
    /// The host process that has it open; null if none has, or one without a number.
    pub pid: Option<i32>,
    /// Bytes of its longest message.
    pub message_bytes: u64,
    /// Messages that fit into it, each way.
    pub messages: u64,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Times that a host process opened it.
    pub openings: u64,
    /// Messages sent to host processes.
    pub sent_messages: u64,
    /// Messages received from them.
    pub received_messages: u64,
    /// Messages of the task that found it full.
    pub full_messages: u64,
    /// Messages of the task refused because of their length.
    pub too_long_messages: u64,
    /// Unread messages when a host process or the task ended.
    pub lost_messages: u64,
    /// Host processes that broke the protocol.
    pub broken_hosts: u64,
    /// Sleeping host processes woken.
    pub host_wakeups: u64,
}

impl Nic {
    /// Makes a channel for host processes, with room for `messages` messages of up to
    /// `message_bytes` bytes each way; `messages` is rounded up to a power of two. It ends with this
    /// task, if not before.
    ///
    /// # Errors
    /// The name is taken or none, the sizes are beyond the limits, or there is no room.
    pub async fn channel(
        &self,
        name: &str,
        message_bytes: usize,
        messages: usize,
    ) -> Result<Channel, ChannelError> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_good) {
            return Err(ChannelError::Name(name.into()));
        }
        let Some(shape) = Shape::new(message_bytes, messages) else {
            return Err(ChannelError::Shape { message_bytes, messages });
        };
        let shared = &self.cell.shared;
        // The card's own part, with the ends of the process that uses it and of the next.
        let own = size_of::<Channel>() + size_of::<Link>() + 2 * size_of::<End>();
        let (charge, reserved) = {
            let mut memory = lock(&shared.memory);
            let charge = memory.charge(self.id(), Kind::Channel, own)?;
            (charge, memory.reserve_host(shape.bytes())?)
        };
        let link = Arc::new(Link::new(name, self.id(), shape));
        loop {
            // Another thread may be reading the list, for an instant.
            self.yield_now().await;
            if let Some(added) = shared.channels.try_add(&link) {
                added?;
                let shared = shared.clone();
                let (end, next, gone, seen) = (None, None, false, false);
                let _charged = (charge, reserved);
                return Ok(Channel { link, shared, end, next, gone, seen, _charged });
            }
        }
    }
}

/// A task's side of a channel. Dropping it, also by the task's end, closes it.
pub struct Channel {
    link: Arc<Link>,
    shared: Arc<Shared>,
    /// The rings shared with the host process that has it open.
    end: Option<Arc<End>>,
    /// Of the next process, which opened it after the last one left.
    next: Option<Session>,
    /// The process of `end` has gone.
    gone: bool,
    /// What [`Channel::is_open`] said last.
    seen: bool,
    _charged: (Charge, Reserved),
}

impl Channel {
    /// Whether a host process has it open.
    pub fn is_open(&mut self) -> bool {
        self.look();
        self.seen = self.end.is_some() && !self.gone;
        self.seen
    }

    /// Sends a message, without waiting. It is published when the segment ends.
    ///
    /// # Errors
    /// There is no room, no host process has the channel open, or the message is too long.
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), ChannelSendError> {
        self.send_now(message, End::stage)
    }

    /// Sends a message for which a sleeping host process is not woken: it finds the message when
    /// another one wakes it. A full channel wakes it in any case.
    ///
    /// # Errors
    /// As [`Channel::try_send`].
    #[inline]
    pub fn try_send_quietly(&mut self, message: &[u8]) -> Result<(), ChannelSendError> {
        self.send_now(message, End::stage_quietly)
    }

    #[inline]
    fn send_now(
        &mut self,
        message: &[u8],
        stage: impl FnOnce(&End, &[u8]) -> Result<(), SendError>,
    ) -> Result<(), ChannelSendError> {
        self.look();
        let counters = &self.link.counters;
        let Some(end) = &self.end else {
            let most = self.link.shape.message_bytes();
            if message.len() > most {
                counters.too_long.add(1);
                return Err(ChannelSendError::TooLong { found: message.len(), most });
            }
            return Err(ChannelSendError::NotOpen);
        };
        if self.gone {
            self.end_session();
            return Err(HostGone.into());
        }
        match stage(end, message) {
            Ok(()) => {
                counters.sent.add(1);
                self.shared.channels.mark();
                Ok(())
            }
            Err(SendError::Full) => {
                counters.full.add(1);
                self.shared.channels.mark();
                Err(ChannelSendError::Full)
            }
            Err(SendError::TooLong { found, most }) => {
                counters.too_long.add(1);
                Err(ChannelSendError::TooLong { found, most })
            }
            Err(SendError::Broken(Broken)) => {
                self.break_off();
                Err(HostGone.into())
            }
        }
    }

    /// The oldest message, if there is one: copies it, up to the length of `into`, and returns the
    /// number of bytes copied. Does not pause: for taking several in one segment.
    ///
    /// # Errors
    /// The host process has gone, and all its messages were received; the next call is about the
    /// next process.
    #[inline]
    pub fn try_receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, HostGone> {
        self.look();
        let Some(end) = &self.end else { return Ok(None) };
        match end.take(into) {
            Ok(Some(bytes)) => {
                self.link.counters.received.add(1);
                self.shared.channels.mark();
                Ok(Some(bytes))
            }
            Ok(None) if self.gone => {
                self.end_session();
                Err(HostGone)
            }
            Ok(None) => Ok(None),
            Err(Broken) => {
                self.break_off();
                Err(HostGone)
            }
        }
    }

    /// The oldest message; waits for one, and for a host process. Copies it, up to the length of
    /// `into`, and returns the number of bytes copied.
    ///
    /// Errors: as for [`Channel::try_receive`].
    pub fn receive<'a>(&'a mut self, into: &'a mut [u8]) -> Receive<'a> {
        Receive { channel: self, into, paused: false }
    }

    /// Sends a message; waits for room, and for a host process.
    ///
    /// Errors: the message is too long, or the host process has gone.
    pub fn send<'a>(&'a mut self, message: &'a [u8]) -> Send<'a> {
        Send { channel: self, message, paused: false }
    }

    /// Notices a process that has come or gone.
    #[inline]
    fn look(&mut self) {
        if self.link.changed.load(Ordering::Acquire) {
            self.look_closer();
        }
    }

    #[cold]
    fn look_closer(&mut self) {
        self.link.changed.store(false, Ordering::Release);
        // The thread that offers one holds the lock for an instant; the next look finds it.
        match self.link.offer.try_lock() {
            Ok(mut offer) => self.next = offer.take().or(self.next.take()),
            Err(_) => self.link.changed.store(true, Ordering::Release),
        }
        if self.end.is_none() {
            self.begin_session();
        }
        self.gone = self.end.is_some() && self.link.host_has_gone();
    }

    /// The next process's turn, if there is one.
    fn begin_session(&mut self) {
        let Some(Session { number, end }) = self.next.take() else { return };
        self.link.counters.openings.add(1);
        self.link.session.store(number, Ordering::Release);
        self.gone = self.link.host_has_gone();
        *lock(&self.link.end) = Some(end.clone());
        self.end = Some(end);
        self.shared.channels.opened(&self.link);
    }

    #[cold]
    fn end_session(&mut self) {
        self.close_session();
        self.begin_session();
    }

    fn close_session(&mut self) {
        let Some(end) = self.end.take() else { return };
        self.shared.channels.ended(&self.link);
        self.link.counters.lost.add(end.in_flight());
        // A process that is still there gets the messages sent before.
        end.close();
        *lock(&self.link.end) = None;
        self.link.ended.store(self.link.session.load(Ordering::Relaxed), Ordering::Release);
        self.gone = false;
    }

    /// The process broke the protocol.
    #[cold]
    fn break_off(&mut self) {
        self.link.counters.broken.add(1);
        self.end_session();
    }

    /// Whether something awaited is there, or a process has come or gone since
    /// [`Channel::is_open`] was last asked.
    pub(crate) fn has_news(&mut self, awaits: Awaits) -> bool {
        self.has(awaits) || self.seen != (self.end.is_some() && !self.gone)
    }

    /// Leaves a waker for news, or for a process that comes or goes.
    pub(crate) fn wait(&self, awaits: Awaits, context: &Context<'_>) {
        let waker = context.waker();
        lock(&self.link.waker).get_or_insert_with(|| waker.clone()).clone_from(waker);
        self.shared.channels.wait(&self.link, awaits);
        // It may have changed before the waker was there.
        if self.link.changed.load(Ordering::Acquire) {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close_session();
        // First closed, then no offer: a thread that offers does it in the opposite order.
        self.link.closed.store(true, Ordering::SeqCst);
        let lost = self.next.take().map_or(0, |next| next.unnoticed());
        self.link.counters.lost.add(lost);
        self.link.offer(None);
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_open = self.end.is_some();
        f.debug_struct("Channel").field("name", &self.link.name).field("is_open", &is_open).finish()
    }
}

/// Waits for a message; see [`Channel::receive`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Receive<'a> {
    channel: &'a mut Channel,
    into: &'a mut [u8],
    paused: bool,
}

impl Future for Receive<'_> {
    type Output = Result<usize, HostGone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Receive { channel, into, paused } = &mut *self;
        if !std::mem::replace(paused, true) && channel.has(Awaits::Message) {
            // An await pauses: the message is taken when the next segment runs.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match channel.try_receive(into) {
            Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
            Ok(None) => {
                channel.wait(Awaits::Message, context);
                Poll::Pending
            }
            Err(gone) => Poll::Ready(Err(gone)),
        }
    }
}

/// Waits for room; see [`Channel::send`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Send<'a> {
    channel: &'a mut Channel,
    message: &'a [u8],
    paused: bool,
}

impl Future for Send<'_> {
    type Output = Result<(), ChannelSendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Send { channel, message, paused } = &mut *self;
        if !std::mem::replace(paused, true) && channel.has(Awaits::Room) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match channel.try_send(message) {
            Err(ChannelSendError::Full | ChannelSendError::NotOpen) => {
                channel.wait(Awaits::Room, context);
                Poll::Pending
            }
            sent => Poll::Ready(sent),
        }
    }
}

impl Channel {
    /// Whether an attempt would succeed, or fail for good.
    fn has(&mut self, awaits: Awaits) -> bool {
        self.look();
        self.end.as_ref().is_some_and(|end| self.gone || end.has_news(awaits))
    }
}
