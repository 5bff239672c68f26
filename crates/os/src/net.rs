//! Sending: raw frames with all their headers, from a task to a wire.
//!
//! ```
//! # use picnic_os::{context::Nic, net::SendError};
//! async fn three_ways(nic: Nic) -> Result<(), SendError> {
//!     let frame = [0xff; 60];
//!     nic.send(0, &frame).await?; // goes on when the wire has taken it
//!     nic.post(0, &frame)?; // goes on at once, and never learns
//!     let sender = nic.sender(0, |sent| println!("{sent:?}"));
//!     sender.post(&frame) // goes on at once; the callback is told
//! }
//! ```
//!
//! The frame is written straight into a buffer of the pool, of which the executor
//! keeps some at hand; behind the segment it goes to the wire's queue, past the
//! tx chain. That a wire has taken a frame is told by the frame's number in the
//! queue, so packets nobody waits for cost nothing.
//!
//! Guarantees: frames leave in the order they were sent; each is counted as made
//! when it goes to the wire and has one fate; nothing is allocated per frame.
//!
//! Source: NICOS 4.3.

use crate::shared::{Shared, lock};
use crate::task::TaskId;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::{Doors, Fate};
use picnic_core::packet::desc::Descriptor;
use picnic_core::resident::Attention;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Buffers kept at hand: frames that can be sent in one segment.
pub const FRAMES_PER_SEGMENT: usize = 16;
/// Frames under way whose end someone waits for.
pub const MOST_AWAITED: usize = 64;

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No empty buffer is at hand: too many frames in one segment, or the pool is exhausted.
    #[error("no buffer is left, allowed: {FRAMES_PER_SEGMENT} frames per segment")]
    NoBuffer,
    /// The frame does not fit into one buffer.
    #[error("the frame has {found} bytes, allowed: 1 to {allowed} (pool.buffer_size)")]
    Length {
        /// Bytes of the frame.
        found: usize,
        /// Bytes of a buffer.
        allowed: usize,
    },
    /// The card has no such wire.
    #[error("the card has no wire {0}")]
    NoSuchWire(u8),
    /// As many packets wait for the wire as may.
    #[error("the wire's send backlog is full")]
    WireFull,
    /// The wire could not send it.
    #[error("the wire dropped the frame")]
    Dropped,
    /// Too many frames are under way whose end someone waits for.
    #[error("{MOST_AWAITED} frames are under way already")]
    TooMany,
    /// The card has been stopped.
    #[error("the card has been stopped")]
    Stopped,
}

/// A door out of a task's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Consume,
    Drop(DropReason),
    Steer(u16),
    Transmit(u8),
}

/// Something on its way out, in the order in which the task let go of it.
enum Leaving {
    Packet(Descriptor, Exit),
    Frame { frame: Descriptor, wire: u8, awaited: Option<u32> },
}

pub(crate) type Callback = Arc<Mutex<dyn FnMut(Result<(), SendError>) + Send>>;

/// Who is told of a frame's end.
enum EndListener {
    /// A future that asks, once woken.
    Future(Option<Waker>),
    Callback(Callback, TaskId),
}

/// A frame whose end someone waits for.
struct Awaited {
    /// Wire and number in its queue, once it is there.
    queued: Option<(u8, u64)>,
    told: EndListener,
    /// Its end, until the future has asked for it.
    end: Option<Result<(), SendError>>,
    /// The future has gone: nobody is told.
    abandoned: bool,
    /// When it was sent, as a number that grows.
    order: u64,
}

/// What tasks have sent and let go of, until the executor takes it to the doors.
pub(crate) struct Outbox {
    /// Empty buffers, as long as the pool makes them.
    stock: Vec<Descriptor>,
    leaving: VecDeque<Leaving>,
    awaited: Vec<Option<Awaited>>,
    under_way: usize,
    /// Awaited frames, ever.
    sent: u64,
    buffer_size: usize,
    wires: u8,
    stopped: bool,
}

impl Outbox {
    pub(crate) fn new(wires: u8, buffer_size: usize) -> Self {
        Outbox {
            stock: Vec::with_capacity(FRAMES_PER_SEGMENT),
            leaving: VecDeque::with_capacity(4 * FRAMES_PER_SEGMENT),
            awaited: (0..MOST_AWAITED).map(|_| None).collect(),
            under_way: 0,
            sent: 0,
            buffer_size,
            wires,
            stopped: false,
        }
    }

    /// A packet that is held leaves by a door.
    pub(crate) fn leave(&mut self, packet: Descriptor, exit: Exit) {
        self.leaving.push_back(Leaving::Packet(packet, exit));
    }

    /// Takes a frame in, into a buffer of the stock.
    fn stage(&mut self, wire: u8, bytes: &[u8], awaited: Option<u32>) -> Result<(), SendError> {
        if self.stopped {
            return Err(SendError::Stopped);
        }
        if bytes.is_empty() || bytes.len() > self.buffer_size {
            return Err(SendError::Length { found: bytes.len(), allowed: self.buffer_size });
        }
        if wire >= self.wires {
            return Err(SendError::NoSuchWire(wire));
        }
        let mut frame = self.stock.pop().ok_or(SendError::NoBuffer)?;
        frame.truncate(bytes.len() as u16);
        frame.data_mut().copy_from_slice(bytes);
        self.leaving.push_back(Leaving::Frame { frame, wire, awaited });
        Ok(())
    }

    /// As [`Outbox::stage`], with someone to tell of its end; the place it is kept in.
    fn stage_awaited(
        &mut self,
        wire: u8,
        bytes: &[u8],
        told: EndListener,
    ) -> Result<u32, SendError> {
        let free = self.awaited.iter().position(Option::is_none).ok_or(SendError::TooMany)?;
        self.stage(wire, bytes, Some(free as u32))?;
        self.awaited[free] =
            Some(Awaited { queued: None, told, end: None, abandoned: false, order: self.sent });
        self.sent += 1;
        self.under_way += 1;
        Ok(free as u32)
    }

    /// Fills the stock up.
    pub(crate) fn top_up(&mut self, doors: &mut Doors) {
        // No more than an eighth of the pool lies about empty.
        let most = FRAMES_PER_SEGMENT.min(doors.pool.buffers() / 8);
        while self.stock.len() < most
            && let Some(buffer) = doors.pool.allocate(self.buffer_size)
        {
            self.stock.push(buffer);
        }
    }

    /// Takes all that tasks have let go of to the doors.
    pub(crate) fn flush(&mut self, doors: &mut Doors, attention: &Attention) {
        while let Some(leaving) = self.leaving.pop_front() {
            match leaving {
                Leaving::Packet(packet, exit) => {
                    let held = attention.held();
                    held.set(held.get().saturating_sub(1));
                    match exit {
                        Exit::Consume => doors.consume(packet),
                        Exit::Drop(reason) => doors.drop(packet, reason, Stage::Task),
                        Exit::Steer(queue) => doors.steer(packet, queue),
                        Exit::Transmit(wire) => doors.transmit(packet, wire),
                    }
                }
                Leaving::Frame { frame, wire, awaited } => {
                    doors.count_made();
                    let Some(place) = awaited else {
                        doors.transmit(frame, wire);
                        continue;
                    };
                    let queued = doors.transmit_watched(frame, wire);
                    let Some(awaited) = &mut self.awaited[place as usize] else { continue };
                    match queued {
                        Ok(number) => awaited.queued = Some((wire, number)),
                        Err(DropReason::WireFull) => awaited.end = Some(Err(SendError::WireFull)),
                        Err(_) => awaited.end = Some(Err(SendError::NoSuchWire(wire))),
                    }
                }
            }
        }
    }

    /// Whether someone waits for a frame's end.
    pub(crate) fn is_awaited(&self) -> bool {
        self.under_way != 0
    }

    /// Tells those whose frames have ended; callbacks are left in `calls`, to be called when
    /// the outbox is free.
    pub(crate) fn settle(&mut self, doors: &mut Doors, calls: &mut Vec<Call>) {
        for place in &mut self.awaited {
            let Some(awaited) = place else { continue };
            if let Some((wire, number)) = awaited.queued {
                let progress = &mut doors.progress[usize::from(wire)];
                let end = match progress.fate(number) {
                    Fate::Waiting if self.stopped => Err(SendError::Stopped),
                    Fate::Waiting => continue,
                    Fate::Sent => Ok(()),
                    Fate::Dropped => Err(SendError::Dropped),
                };
                progress.forget(number);
                awaited.queued = None;
                awaited.end = Some(end);
            }
            let Some(end) = awaited.end else { continue };
            match &mut awaited.told {
                EndListener::Future(_) if awaited.abandoned => {}
                EndListener::Future(waker) => {
                    if let Some(waker) = waker.take() {
                        waker.wake();
                    }
                    // The future empties the place.
                    continue;
                }
                EndListener::Callback(callback, task) => calls.push(Call {
                    callback: callback.clone(),
                    task: *task,
                    order: awaited.order,
                    end,
                }),
            }
            *place = None;
            self.under_way -= 1;
        }
        calls.sort_unstable_by_key(|call| call.order);
    }

    /// Nothing more is sent, and the stock goes home.
    pub(crate) fn stop(&mut self, doors: &mut Doors) {
        self.stopped = true;
        for buffer in self.stock.drain(..) {
            doors.pool.free(buffer);
        }
    }

    fn poll_end(&mut self, place: u32, waker: &Waker) -> Poll<Result<(), SendError>> {
        let slot = &mut self.awaited[place as usize];
        let Some(awaited) = slot else { return Poll::Ready(Err(SendError::Stopped)) };
        if let Some(end) = awaited.end {
            *slot = None;
            self.under_way -= 1;
            return Poll::Ready(end);
        }
        awaited.told = EndListener::Future(Some(waker.clone()));
        Poll::Pending
    }

    fn abandon(&mut self, place: u32) {
        let slot = &mut self.awaited[place as usize];
        match slot {
            Some(awaited) if awaited.end.is_none() => awaited.abandoned = true,
            Some(_) => {
                *slot = None;
                self.under_way -= 1;
            }
            None => {}
        }
    }
}

/// A callback that is to be told of a frame's end.
pub(crate) struct Call {
    callback: Callback,
    order: u64,
    pub(crate) task: TaskId,
    end: Result<(), SendError>,
}

impl Call {
    /// Makes the call. False if it panicked.
    pub(crate) fn make(self) -> bool {
        catch_unwind(AssertUnwindSafe(|| lock(&self.callback)(self.end))).is_ok()
    }
}

/// Sends a frame; see `Nic::post`.
pub(crate) fn post(shared: &Shared, wire: u8, bytes: &[u8]) -> Result<(), SendError> {
    let staged = lock(&shared.outbox).stage(wire, bytes, None);
    // Without a buffer too: some may have come home, and the stock is filled up from those.
    shared.mark_outbox();
    staged
}

/// Sends frames and tells a callback how each ended; see `Nic::sender`.
pub struct Sender {
    pub(crate) shared: Arc<Shared>,
    pub(crate) wire: u8,
    pub(crate) task: TaskId,
    pub(crate) callback: Callback,
}

impl Sender {
    /// Sends a frame with all its headers. The callback is told when the wire has taken it, or
    /// that it has not.
    ///
    /// # Errors
    /// Why it cannot be sent at all; the callback hears nothing then.
    pub fn post(&self, frame: &[u8]) -> Result<(), SendError> {
        let told = EndListener::Callback(self.callback.clone(), self.task);
        let staged = lock(&self.shared.outbox).stage_awaited(self.wire, frame, told);
        self.shared.mark_outbox();
        staged.map(drop)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("wire", &self.wire).finish_non_exhaustive()
    }
}

/// Sends a frame and waits for its end; see `Nic::send`.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sending<'a> {
    shared: &'a Arc<Shared>,
    wire: u8,
    frame: &'a [u8],
    /// Where its end will stand, once it is under way.
    place: Option<u32>,
    refused: Option<SendError>,
    done: bool,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, wire: u8, frame: &'a [u8]) -> Self {
        Sending { shared, wire, frame, place: None, refused: None, done: false }
    }
}

impl Future for Sending<'_> {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut outbox = lock(&this.shared.outbox);
        let polled = match this.place {
            Some(place) => outbox.poll_end(place, context.waker()),
            None => {
                let told = EndListener::Future(Some(context.waker().clone()));
                match outbox.stage_awaited(this.wire, this.frame, told) {
                    Ok(place) => {
                        this.place = Some(place);
                        this.shared.mark_outbox();
                        Poll::Pending
                    }
                    Err(error) if this.refused == Some(error) => Poll::Ready(Err(error)),
                    Err(error) => {
                        // An await pauses. What was refused is tried once more behind that.
                        this.refused = Some(error);
                        this.shared.mark_outbox();
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                }
            }
        };
        this.done |= polled.is_ready();
        polled
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && !self.done
        {
            lock(&self.shared.outbox).abandon(place);
        }
    }
}

impl fmt::Debug for Sending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("wire", &self.wire).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::ledger::Ledger;
    use picnic_core::packet::pool::{Pool, PoolConfig};
    use picnic_core::stats::WireCounters;
    use picnic_core::time::Time;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn ends_are_looked_for_until_all_who_wait_have_been_told() {
        let (pool, _) = Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 0).unwrap();
        let mut doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
        let mut outbox = Outbox::new(1, 2048);
        assert!(!outbox.is_awaited());
        outbox.top_up(&mut doors);
        let callback = EndListener::Callback(Arc::new(Mutex::new(|_| {})), TaskId(1));
        for told in [EndListener::Future(None), EndListener::Future(None), callback] {
            outbox.stage_awaited(0, &[0; 60], told).unwrap();
        }
        outbox.flush(&mut doors, &Attention::default());
        let woken = Arc::new(Woken::default());
        assert!(outbox.poll_end(0, &woken.clone().into()).is_pending());
        doors.serve_wire(0, Time::ZERO, &WireCounters::default(), |mut transmitter| {
            while let Some(frame) = transmitter.next() {
                transmitter.sent(frame);
            }
        });
        let mut calls = Vec::new();
        outbox.settle(&mut doors, &mut calls);
        assert_eq!((calls.len(), woken.0.load(Ordering::Relaxed)), (1, true));
        assert_eq!(outbox.poll_end(0, Waker::noop()), Poll::Ready(Ok(())));
        assert!(outbox.is_awaited());
        outbox.abandon(1);
        assert!(!outbox.is_awaited());
        outbox.stop(&mut doors);
    }
}
