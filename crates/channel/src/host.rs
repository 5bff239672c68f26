//! A host process's side: opened by name over the card's control socket.
//!
//! The card sends three descriptors with its answer: the memory, this process's doorbell and the
//! card's own. The connection stays open; when it closes, for any reason, the card knows that
//! this process has gone.

use crate::bell::Bell;
use crate::end::{Awaits, End, Side};
use crate::region::{Region, WORD};
use crate::ring::{Broken, MAGIC, MESSAGE_BYTES, MESSAGES, SendError, Shape};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a channel cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The card refused it: no such channel, or another process has it open.
    #[error("{0}")]
    Refused(String),
    /// The card's answer makes no sense.
    #[error("cannot use the card's answer: {0}")]
    Answer(String),
    /// The task, or the card, has ended.
    #[error("the card has closed the channel")]
    Closed,
    /// Nothing came, or no room was made, in time.
    #[error("nothing happened in time")]
    Timeout,
    /// The message was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The card does not keep to the protocol.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The system refused a call.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for ChannelError {
    fn from(error: Errno) -> Self {
        ChannelError::System(error.into())
    }
}

/// A channel to a task on a card. Dropping it closes it; messages sent before are still received.
#[derive(Debug)]
pub struct Channel {
    end: End,
    bell: Bell,
    /// Readable when the card has closed it.
    connection: UnixStream,
    /// Both of the above.
    readable: OwnedFd,
    is_resting: bool,
}

impl Channel {
    /// Opens a channel by the name that its task gave it, of the card with this control socket.
    ///
    /// # Errors
    /// There is no such card or channel, or another process has it open.
    pub fn open(socket: impl AsRef<Path>, name: &str) -> Result<Self, ChannelError> {
        let mut connection = UnixStream::connect(socket)?;
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "channel.open", "params": { "name": name }
        });
        connection.write_all(format!("{call}\n").as_bytes())?;
        let (answer, mut files) = receive(&connection)?;
        if let Some(message) = answer["error"]["message"].as_str() {
            return Err(ChannelError::Refused(message.into()));
        }
        let (Some(card), Some(own), Some(memory), None) =
            (files.pop(), files.pop(), files.pop(), files.pop())
        else {
            return Err(ChannelError::Answer("found other than three descriptors".into()));
        };
        let shape = shape(memory.as_fd())?;
        let region = Arc::new(Region::open(memory.as_fd(), shape.bytes())?);
        let (bell, card) = (Bell::of(own), Arc::new(Bell::of(card)));
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        for source in [bell.as_fd(), connection.as_fd()] {
            epoll::add(&readable, source, epoll::EventData::new_u64(0), wanted)?;
        }
        let end = End::new(region, shape, Side::Host, card);
        Ok(Channel { end, bell, connection, readable, is_resting: false })
    }

    /// Bytes of the longest message.
    pub fn message_bytes(&self) -> usize {
        self.end.shape().message_bytes()
    }

    /// Messages that fit into the channel, each way.
    pub fn messages(&self) -> usize {
        self.end.shape().messages()
    }

    /// Sends a message, and wakes the card if it sleeps.
    ///
    /// # Errors
    /// The channel is full, the message is too long, or the card has closed the channel.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let staged = self.stage(message);
        self.flush();
        staged
    }

    /// Writes a message that [`Channel::flush`] sends: for many at once.
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[inline]
    pub fn stage(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        match self.end.stage(message) {
            Ok(()) => Ok(()),
            Err(SendError::Full) if self.end.is_closed() => Err(ChannelError::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends all staged messages, and tells the card of taken ones.
    #[inline]
    pub fn flush(&mut self) {
        self.end.flush();
    }

    /// Sends a message; waits for room while the card makes progress within `patience`, or without
    /// a limit if `patience` is none.
    ///
    /// # Errors
    /// As [`Channel::send`], or no room was made in time.
    pub fn send_within(
        &mut self,
        message: &[u8],
        patience: Option<Duration>,
    ) -> Result<(), ChannelError> {
        loop {
            match self.send(message) {
                Err(ChannelError::Send(SendError::Full)) => self.wait(Awaits::Room, patience)?,
                other => return other,
            }
        }
    }

    /// The oldest message, if there is one: copies it, up to the length of `into`, and returns the
    /// number of bytes copied.
    ///
    /// # Errors
    /// The card has closed the channel, and all messages have been received.
    #[inline]
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ChannelError> {
        if let Some(bytes) = self.end.take(into)? {
            return Ok(Some(bytes));
        }
        self.end.flush();
        if !self.end.is_closed() {
            return Ok(None);
        }
        // Its last messages were published before it closed.
        match self.end.take(into)? {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(ChannelError::Closed),
        }
    }

    /// The oldest message; waits for one up to `patience`, or for ever if that is none.
    ///
    /// # Errors
    /// As [`Channel::receive`], or nothing came in time.
    pub fn receive_within(
        &mut self,
        into: &mut [u8],
        patience: Option<Duration>,
    ) -> Result<usize, ChannelError> {
        loop {
            match self.receive(into)? {
                Some(bytes) => return Ok(bytes),
                None => self.wait(Awaits::Message, patience)?,
            }
        }
    }

    /// Waits for a message or room.
    fn wait(&mut self, awaits: Awaits, patience: Option<Duration>) -> Result<(), ChannelError> {
        if self.is_gone()? {
            // Closed, or with messages to receive: the caller looks once more.
            let has_ended = !self.end.has_news(awaits);
            return if has_ended { Err(ChannelError::Closed) } else { Ok(()) };
        }
        if self.rest(awaits) {
            let timeout = patience.map(|patience| Timespec {
                tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(patience.subsec_nanos()),
            });
            let mut sources = [
                PollFd::new(&self.bell, PollFlags::IN),
                PollFd::new(&self.connection, PollFlags::IN),
            ];
            let found = poll(&mut sources, timeout.as_ref());
            self.wake();
            if found == Ok(0) && !self.end.has_news(awaits) {
                return Err(ChannelError::Timeout);
            }
        }
        Ok(())
    }

    /// Whether the card or the task has ended.
    fn is_gone(&self) -> Result<bool, ChannelError> {
        if self.end.is_closed() {
            return Ok(true);
        }
        let mut sources = [PollFd::new(&self.connection, PollFlags::IN)];
        Ok(poll(&mut sources, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? != 0)
    }

    /// Prepares to wait for [`Channel::descriptor`] in a loop of one's own: false if there already
    /// is something to do. [`Channel::wake`] ends the wait.
    pub fn rest(&mut self, awaits: Awaits) -> bool {
        self.end.flush();
        self.end.rest(awaits);
        self.is_resting = true;
        if self.end.has_news(awaits) || self.end.is_closed() {
            self.wake();
            return false;
        }
        true
    }

    /// Ends a wait. While it is awake, the card makes no system call for this process.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.is_resting) {
            self.end.wake();
            self.bell.quiet();
        }
    }

    /// Readable when there may be something to do, after [`Channel::rest`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Staged messages are sent; the connection's end says the rest.
        self.end.flush();
    }
}

/// The sizes in a channel's memory.
fn shape(memory: BorrowedFd<'_>) -> Result<Shape, ChannelError> {
    let region = Region::open(memory, (MESSAGES + 1) * WORD)?;
    let words = region.words();
    let number = |word: usize| usize::try_from(words[word].load(Ordering::Relaxed)).ok();
    let is_known = words[0].load(Ordering::Acquire) == MAGIC;
    let shape = (is_known.then_some(())).and_then(|()| {
        let messages = number(MESSAGES)?;
        Shape::new(number(MESSAGE_BYTES)?, messages).filter(|shape| shape.messages() == messages)
    });
    shape.ok_or_else(|| ChannelError::Answer("the memory is not a channel of this version".into()))
}

/// An answer, a line, and the descriptors that come with it.
fn receive(connection: &UnixStream) -> Result<(Value, Vec<OwnedFd>), ChannelError> {
    let (mut line, mut files) = (Vec::new(), Vec::new());
    while !line.ends_with(b"\n") {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            match recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => continue,
                other => other?.bytes,
            };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                files.extend(sent);
            }
        }
        if received == 0 {
            return Err(ChannelError::Answer("the card closed the connection".into()));
        }
        line.extend(&bytes[..received]);
    }
    let answer = serde_json::from_slice(&line);
    Ok((answer.map_err(|error| ChannelError::Answer(error.to_string()))?, files))
}
