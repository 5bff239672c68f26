//! One client of the control socket, served by its own thread.
//!
//! A file descriptor sent with a message (SCM_RIGHTS) is kept for the next call that needs one; of
//! several, the last. Reads and writes have time limits, so a client that hangs or reads no answers
//! delays only its own thread.

use crate::captures::Captures;
use crate::methods::{CallResult, Caller, Methods};
use crate::protocol::{
    Call, INVALID_REQUEST, LIMIT, LONGEST_LINE, Message, REFUSED, RpcError, answer, parse,
};
use crate::request::Request;
use crate::server::{Limits, Shared};
use picnic_os::channel::Channels;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt::socket_peercred,
};
use serde_json::Value;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Descriptors accepted per message; the kernel closes further ones.
const FILES: usize = 4;
/// Interval for checking whether a capture, or the card, has ended.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// Most calls of one client that wait for captures.
const MOST_WAITING: usize = 64;
/// Most clients that have channels open.
const MOST_WITH_CHANNELS: usize = 64;

/// State shared by the threads of all clients.
pub(super) struct Board {
    methods: Mutex<Methods>,
    pub(super) captures: Captures,
    pub(super) channels: Channels,
    limits: Limits,
    shared: Arc<Shared>,
    places: Mutex<Places>,
    /// No capture ends any more.
    pub(super) is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Places {
    taken: usize,
    is_reserve_taken: bool,
    with_channels: usize,
}

/// A client's place.
pub(super) struct Place {
    board: Arc<Board>,
    seat: Seat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// One of `Limits::clients`.
    Counted,
    /// The reserved one, for calls that read the card's state and stop it.
    Reserved,
    /// The seat of a process with an open channel, without a time limit.
    WithChannel,
}

impl Board {
    pub(super) fn new(methods: Methods, limits: Limits, shared: Arc<Shared>) -> Arc<Self> {
        let (captures, channels) = (methods.captures().clone(), methods.channels());
        let (methods, places) = (Mutex::new(methods), Mutex::default());
        let is_closed = AtomicBool::new(false);
        Arc::new(Board { methods, captures, channels, limits, shared, places, is_closed })
    }

    pub(super) fn methods(&self) -> MutexGuard<'_, Methods> {
        // A panicking call prints its own message; the card continues.
        self.methods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for another client.
    ///
    /// # Errors
    /// All are taken.
    pub(super) fn place(self: &Arc<Self>) -> Result<Place, RpcError> {
        let is_reserve = !self.take();
        let is_full = is_reserve && std::mem::replace(&mut self.places().is_reserve_taken, true);
        match is_full {
            true => Err(self.full()),
            false => {
                let seat = if is_reserve { Seat::Reserved } else { Seat::Counted };
                Ok(Place { board: self.clone(), seat })
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> bool {
        let mut places = self.places();
        let is_free = places.taken < self.limits.clients;
        places.taken += usize::from(is_free);
        is_free
    }

    fn full(&self) -> RpcError {
        let most = self.limits.clients;
        RpcError::new(LIMIT, format!("{most} clients are connected, which is the limit"))
    }

    fn is_ending(&self) -> bool {
        self.shared.end.load(Ordering::Acquire)
    }
}

impl Place {
    /// Whether it is still the reserved one: its client gets the next free place.
    fn is_reserve(&mut self) -> bool {
        if self.seat == Seat::Reserved && self.board.take() {
            self.seat = Seat::Counted;
            self.board.places().is_reserve_taken = false;
        }
        self.seat == Seat::Reserved
    }

    /// Whether its client may open a channel.
    ///
    /// # Errors
    /// Too many have channels.
    fn may_open_channel(&self) -> Result<(), RpcError> {
        if self.seat == Seat::WithChannel || self.board.places().with_channels < MOST_WITH_CHANNELS
        {
            return Ok(());
        }
        let message =
            format!("{MOST_WITH_CHANNELS} processes have channels open, which is the limit");
        Err(RpcError::new(LIMIT, message))
    }

    /// Its client has opened a channel: it no longer counts among `Limits::clients`.
    fn has_channel(&mut self) {
        if self.seat == Seat::Counted {
            let mut places = self.board.places();
            places.taken -= 1;
            places.with_channels += 1;
            self.seat = Seat::WithChannel;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.board.places();
        match self.seat {
            Seat::Counted => places.taken -= 1,
            Seat::Reserved => places.is_reserve_taken = false,
            Seat::WithChannel => places.with_channels -= 1,
        }
    }
}

/// The end of a client: it left, or gets an error because of a limit.
type End = Option<RpcError>;

/// A connection.
pub(super) struct Client {
    /// Tells clients apart.
    number: u64,
    stream: Arc<OwnedFd>,
    place: Place,
    input: Vec<u8>,
    /// Bytes of the input without a line end.
    scanned: usize,
    file: Option<OwnedFd>,
    /// Calls to answer when their capture has ended.
    waiting: Vec<(Value, u32)>,
    /// Start of the current line, or time of the last call.
    since: Instant,
    /// It will send nothing more.
    is_read: bool,
}

impl Client {
    pub(super) fn new(number: u64, stream: Arc<OwnedFd>, place: Place) -> Self {
        let (input, waiting) = (Vec::new(), Vec::new());
        let since = Instant::now();
        Client {
            number,
            stream,
            place,
            input,
            scanned: 0,
            file: None,
            waiting,
            since,
            is_read: false,
        }
    }

    fn board(&self) -> &Board {
        &self.place.board
    }

    /// Serves it until it leaves, a limit is reached or the card has ended.
    pub(super) fn run(mut self) {
        if let Err(Some(error)) = self.serve() {
            let _ = self.send(&answer(&Value::Null, &Err(error)));
        }
        self.board().captures.client_has_gone(self.number);
        self.board().channels.client_has_gone(self.number);
    }

    fn serve(&mut self) -> Result<(), End> {
        loop {
            while let Some(line) = self.line()? {
                if !line.trim_ascii().is_empty() {
                    self.answer(parse(&line))?;
                }
                self.since = Instant::now();
            }
            self.answer_waiting()?;
            let is_closed = self.board().is_closed.load(Ordering::Acquire);
            if self.is_read && (self.waiting.is_empty() || is_closed) {
                return Ok(());
            }
            self.read()?;
        }
    }

    /// The next whole line.
    fn line(&mut self) -> Result<Option<Vec<u8>>, End> {
        let end = self.input[self.scanned..].iter().position(|&byte| byte == b'\n');
        let length = end.map_or(self.input.len(), |end| self.scanned + end);
        if length > LONGEST_LINE {
            let message =
                format!("found a line of more than {LONGEST_LINE} bytes, which is the limit");
            return Err(Some(RpcError::new(LIMIT, message)));
        }
        if end.is_none() {
            self.scanned = length;
            return Ok(None);
        }
        self.scanned = 0;
        Ok(Some(self.input.drain(..=length).collect()))
    }

    /// Reads available input within its time limit.
    fn read(&mut self) -> Result<(), End> {
        let limits = self.board().limits;
        let (found, most) = match (self.input.is_empty(), self.waiting.is_empty()) {
            (false, _) => ("a line without an end", limits.stalled),
            (true, false) => ("no word", Duration::MAX),
            (true, true) => match self.place.seat {
                Seat::Reserved => ("no word", limits.stalled),
                Seat::Counted => ("no word", limits.idle),
                // Its process uses the channel's memory instead.
                Seat::WithChannel => ("no word", Duration::MAX),
            },
        };
        let left = most.saturating_sub(self.since.elapsed());
        let look = if self.waiting.is_empty() { left } else { left.min(LOOK) };
        let wants = if self.is_read { PollFlags::empty() } else { PollFlags::IN };
        let happened = wait(&self.stream, wants, look);
        if self.is_read {
            // Both directions are shut: the client will not read an answer.
            return if happened.is_empty() { Ok(()) } else { Err(None) };
        }
        if !happened.is_empty() {
            return self.receive();
        }
        if left <= look && self.since.elapsed() >= most {
            let message = format!("found {found} for {} s, which is the limit", most.as_secs());
            return Err(Some(RpcError::new(LIMIT, message)));
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), End> {
        let start = self.input.len();
        self.input.resize(start + READ, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.input[start..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut parts, &mut control, flags);
        let bytes = received.as_ref().map_or(0, |received| received.bytes);
        self.input.truncate(start + bytes);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                // An unused one is replaced.
                self.file = files.last().or(self.file.take());
            }
        }
        if start == 0 {
            self.since = Instant::now();
        }
        match received {
            Ok(received) if received.bytes == 0 => {
                self.is_read = true;
                // A last line needs no end, unless the card has truncated it.
                if !self.input.is_empty() && !self.board().is_ending() {
                    self.input.push(b'\n');
                }
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(None),
        }
    }

    /// Sends an answer. A client that reads nothing for too long is disconnected.
    fn send(&self, value: &Value) -> Result<(), End> {
        self.send_with(value, &[])
    }

    /// Sends an answer, and descriptors with its first byte.
    fn send_with(&self, value: &Value, files: &[OwnedFd]) -> Result<(), End> {
        // A value of maps, lists and text can always be written.
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES))];
        let (mut sent, mut since) = (0, Instant::now());
        while sent < line.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !files.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&files));
            }
            let parts = [IoSlice::new(&line[sent..])];
            match sendmsg(&self.stream, &parts, &mut control, flags) {
                Ok(bytes) => (sent, since) = (sent + bytes, Instant::now()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN)
                    if since.elapsed() < self.board().limits.stalled
                        && !self.board().is_ending() =>
                {
                    wait(&self.stream, PollFlags::OUT, LOOK);
                }
                Err(_) => return Err(None),
            }
        }
        Ok(())
    }

    /// Answers the calls whose captures have ended.
    fn answer_waiting(&mut self) -> Result<(), End> {
        let captures = &self.place.board.captures;
        let mut answers = Vec::new();
        self.waiting.retain(|(id, capture)| match captures.outcome(*capture) {
            Some(outcome) => {
                answers.push(answer(id, &Ok(outcome)));
                false
            }
            None => true,
        });
        for answer in answers {
            self.send(&answer)?;
            self.since = Instant::now();
        }
        Ok(())
    }

    fn answer(&mut self, message: Message) -> Result<(), End> {
        match message {
            Message::One(call) => {
                let is_full = self.waiting.len() >= MOST_WAITING;
                let (Some(id), outcome) = self.call(*call) else { return Ok(()) };
                let outcome = match outcome {
                    Ok(CallResult::Now(result)) => Ok(result),
                    Ok(CallResult::WithFiles(result, files)) => {
                        return self.send_with(&answer(&id, &Ok(result)), &files);
                    }
                    Ok(CallResult::WhenEnded(_)) if is_full => {
                        let message =
                            format!("{MOST_WAITING} calls wait for captures, which is the limit");
                        Err(RpcError::new(LIMIT, message))
                    }
                    Ok(CallResult::WhenEnded(capture)) => {
                        self.waiting.push((id, capture));
                        return Ok(());
                    }
                    Err(error) => Err(error),
                };
                self.send(&answer(&id, &outcome))
            }
            Message::Many(calls) => {
                let answers = calls.into_iter().filter_map(|mut call| {
                    if matches!(call.request, Ok(Request::ChannelOpen { .. })) {
                        let message = "this method sends descriptors: not in a batch";
                        call.request = Err(RpcError::new(INVALID_REQUEST, message));
                    }
                    let (id, outcome) = self.call(call);
                    let outcome = outcome.and_then(|outcome| match outcome {
                        CallResult::Now(result) | CallResult::WithFiles(result, _) => Ok(result),
                        CallResult::WhenEnded(_) => {
                            let message = "this method is answered later: not in a batch";
                            Err(RpcError::new(INVALID_REQUEST, message))
                        }
                    });
                    id.map(|id| answer(&id, &outcome))
                });
                let answers: Vec<_> = answers.collect();
                // A batch of notifications has no answer, not even an empty list.
                if answers.is_empty() { Ok(()) } else { self.send(&Value::Array(answers)) }
            }
        }
    }

    fn call(&mut self, call: Call) -> (Option<Value>, Result<CallResult, RpcError>) {
        let outcome = call.request.and_then(|request| {
            let is_small = matches!(request, Request::Info {} | Request::Stop {});
            if !is_small && self.place.is_reserve() {
                let full = self.board().full().message;
                let message = format!("{full}: this one may call card.info and card.stop only");
                return Err(RpcError::new(LIMIT, message));
            }
            let opens = matches!(request, Request::ChannelOpen { .. });
            if opens {
                self.place.may_open_channel()?;
            }
            let pid =
                socket_peercred(&*self.stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
            let caller = Caller { number: self.number, pid };
            let mut methods = self.place.board.methods();
            if self.board().shared.stopping.load(Ordering::Acquire) && request.needs_the_card() {
                return Err(RpcError::new(REFUSED, "the card is stopping"));
            }
            let outcome = methods.call(request, caller, || self.file.take());
            drop(methods);
            if opens && outcome.is_ok() {
                self.place.has_channel();
            }
            outcome
        });
        (call.id, outcome)
    }
}

/// Waits at most this long. A signal counts as a timeout.
fn wait(stream: &OwnedFd, wants: PollFlags, most: Duration) -> PollFlags {
    let timeout = Timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(most.subsec_nanos()),
    };
    let mut sources = [PollFd::new(stream, wants)];
    match poll(&mut sources, Some(&timeout)) {
        Ok(_) => sources[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
