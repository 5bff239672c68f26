//! Sending: raw frames with all their headers, from a task to a wire.
//!
//! ```
//! # use picnic_os::{context::Nic, net::SendError};
//! async fn three_ways(nic: Nic) -> Result<(), SendError> {
//!     let frame = [0xff; 60];
//!     nic.send(0, &frame).await?; // continues when the wire has taken it
//!     nic.post(0, &frame)?; // continues at once, without a result
//!     let sender = nic.sender(0, |sent| println!("{sent:?}"));
//!     sender.post(&frame) // continues at once; the callback gets the result
//! }
//! ```
//!
//! The frame is written directly into a buffer of the pool; the executor keeps some buffers in
//! stock; after the segment it goes to the wire's queue, past the tx chain. The frame's number in
//! the queue tells whether a wire has taken it, so packets without a waiting task cost nothing.
//!
//! Guarantees: frames leave in the order they were sent; each is counted as made
//! when it goes to the wire and has one fate; nothing is allocated per frame.
//!
//! Source: NICOS 4.3.

use crate::memory::{Kind, Memory, MemoryError, Name};
use crate::shared::{Shared, lock};
use crate::task::{TaskCell, TaskId};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::{Doors, Fate};
use picnic_core::packet::desc::Descriptor;
use picnic_core::resident::Attention;
use picnic_core::time::Time;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Buffers in stock: frames that can be sent in one segment.
pub const FRAMES_PER_SEGMENT: usize = 16;
/// Frames in flight whose end is awaited.
pub const MOST_AWAITED: usize = 64;

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No empty buffer in stock: too many frames in one segment, or the pool is exhausted.
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
    /// The maximum number of packets waits for the wire.
    #[error("the wire's send backlog is full")]
    WireFull,
    /// The wire could not send it.
    #[error("the wire dropped the frame")]
    Dropped,
    /// Too many awaited frames are in flight.
    #[error("{MOST_AWAITED} frames are under way already")]
    TooMany,
    /// Card memory has no room for the record of a frame whose end is awaited.
    #[error("{0} (os.arena_bytes)")]
    Memory(#[from] MemoryError),
    /// The card has been stopped.
    #[error("the card has been stopped")]
    Stopped,
}

/// A door for a task's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Consume,
    Drop(DropReason),
    Steer(u16),
    Transmit(u8),
}

/// A leaving packet, in the order in which the task released it.
enum Leaving {
    Packet(Descriptor, Exit),
    Frame { frame: Descriptor, wire: u8, awaited: Option<u32> },
    ToHost { frame: Descriptor, queue: u16 },
}

pub(crate) type Callback = Arc<Mutex<dyn FnMut(Result<(), SendError>) + Send>>;

/// Who waits for a frame's end.
enum EndListener {
    /// A future that checks when woken.
    Future(Option<Waker>),
    Callback(Callback, TaskId),
}

/// A frame whose end is awaited.
struct Awaited {
    /// Wire and number in its queue, once queued.
    queued: Option<(u8, u64)>,
    told: EndListener,
    /// Its end, until the future has taken it.
    end: Option<Result<(), SendError>>,
    /// The future was dropped: no task waits.
    abandoned: bool,
    /// When it was sent, as an increasing number.
    order: u64,
    /// Its record's bytes in card memory.
    record: Name,
}

/// Packets that tasks have sent or released, until the executor takes them to the doors.
pub(crate) struct Outbox {
    /// Empty buffers of the pool's size.
    stock: Vec<Descriptor>,
    leaving: VecDeque<Leaving>,
    awaited: Vec<Option<Awaited>>,
    under_way: usize,
    /// Awaited frames, ever.
    sent: u64,
    buffer_size: usize,
    wires: u8,
    stopped: bool,
    memory: Arc<Mutex<Memory>>,
}

impl Outbox {
    pub(crate) fn new(wires: u8, buffer_size: usize, memory: Arc<Mutex<Memory>>) -> Self {
        Outbox {
            stock: Vec::with_capacity(FRAMES_PER_SEGMENT),
            leaving: VecDeque::with_capacity(4 * FRAMES_PER_SEGMENT),
            awaited: (0..MOST_AWAITED).map(|_| None).collect(),
            under_way: 0,
            sent: 0,
            buffer_size,
            wires,
            stopped: false,
            memory,
        }
    }

    /// A held packet leaves by a door.
    pub(crate) fn leave(&mut self, packet: Descriptor, exit: Exit) {
        self.leaving.push_back(Leaving::Packet(packet, exit));
    }

    /// Accepts a frame, into a buffer of the stock.
    fn stage(&mut self, wire: u8, bytes: &[u8], awaited: Option<u32>) -> Result<(), SendError> {
        if wire >= self.wires {
            return Err(SendError::NoSuchWire(wire));
        }
        let frame = self.frame(bytes)?;
        self.leaving.push_back(Leaving::Frame { frame, wire, awaited });
        Ok(())
    }

    /// Accepts a frame for a target queue.
    fn stage_to_host(&mut self, queue: u16, bytes: &[u8], now: Time) -> Result<(), SendError> {
        let mut frame = self.frame(bytes)?;
        frame.set_received_at(now);
        self.leaving.push_back(Leaving::ToHost { frame, queue });
        Ok(())
    }

    /// A buffer of the stock with these bytes.
    fn frame(&mut self, bytes: &[u8]) -> Result<Descriptor, SendError> {
        if self.stopped {
            return Err(SendError::Stopped);
        }
        if bytes.is_empty() || bytes.len() > self.buffer_size {
            return Err(SendError::Length { found: bytes.len(), allowed: self.buffer_size });
        }
        let mut frame = self.stock.pop().ok_or(SendError::NoBuffer)?;
        frame.truncate(bytes.len() as u16);
        frame.data_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    /// As [`Outbox::stage`], with a listener for its end; returns its place.
    fn stage_awaited(
        &mut self,
        wire: u8,
        bytes: &[u8],
        told: EndListener,
        owner: TaskId,
    ) -> Result<u32, SendError> {
        let free = self.awaited.iter().position(Option::is_none).ok_or(SendError::TooMany)?;
        let size = size_of::<Awaited>();
        let record = lock(&self.memory).allocate(owner, Kind::Send, size, align_of::<Awaited>())?;
        if let Err(error) = self.stage(wire, bytes, Some(free as u32)) {
            lock(&self.memory).free(record);
            return Err(error);
        }
        let order = self.sent;
        self.awaited[free] =
            Some(Awaited { queued: None, told, end: None, abandoned: false, order, record });
        self.sent += 1;
        self.under_way += 1;
        Ok(free as u32)
    }

    /// Refills the stock.
    pub(crate) fn top_up(&mut self, doors: &mut Doors) {
        // At most an eighth of the pool is kept empty.
        let most = FRAMES_PER_SEGMENT.min(doors.pool.buffers() / 8);
        while self.stock.len() < most
            && let Some(buffer) = doors.pool.allocate(self.buffer_size)
        {
            self.stock.push(buffer);
        }
    }

    /// Takes everything that tasks have released to the doors.
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
                Leaving::ToHost { frame, queue } => {
                    doors.count_made();
                    doors.steer(frame, queue);
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

    /// Whether a frame's end is awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        self.under_way != 0
    }

    /// Notifies listeners of frames that have ended; callbacks are left in `calls`, to be called
    /// when the outbox is free.
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
                    // The future frees the place.
                    continue;
                }
                EndListener::Callback(callback, task) => calls.push(Call {
                    callback: callback.clone(),
                    task: *task,
                    order: awaited.order,
                    end,
                }),
            }
            lock(&self.memory).free(awaited.record);
            *place = None;
            self.under_way -= 1;
        }
        calls.sort_unstable_by_key(|call| call.order);
    }

    /// Stops sending, and returns the stock.
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
            lock(&self.memory).free(awaited.record);
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
            Some(awaited) => {
                lock(&self.memory).free(awaited.record);
                *slot = None;
                self.under_way -= 1;
            }
            None => {}
        }
    }
}

/// A pending callback for a frame's end.
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
    // Without a buffer too: some may have returned, and the stock is refilled from those.
    shared.mark_outbox();
    staged
}

/// Sends a frame to a target queue; see `Nic::post_to_host`.
pub(crate) fn post_to_host(shared: &Shared, queue: u16, bytes: &[u8]) -> Result<(), SendError> {
    let staged = lock(&shared.outbox).stage_to_host(queue, bytes, shared.now());
    shared.mark_outbox();
    staged
}

/// Sends frames and calls a callback for the end of each; see `Nic::sender`.
pub struct Sender {
    pub(crate) shared: Arc<Shared>,
    pub(crate) wire: u8,
    pub(crate) task: TaskId,
    pub(crate) callback: Callback,
}

impl Sender {
    /// Sends a frame with all its headers. The callback gets the result when the wire has taken it,
    /// or could not.
    ///
    /// # Errors
    /// The reason for which it cannot be sent; the callback is then not called.
    pub fn post(&self, frame: &[u8]) -> Result<(), SendError> {
        let told = EndListener::Callback(self.callback.clone(), self.task);
        let staged = lock(&self.shared.outbox).stage_awaited(self.wire, frame, told, self.task);
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
    cell: &'a TaskCell,
    wire: u8,
    frame: &'a [u8],
    /// The place of its end, once in flight.
    place: Option<u32>,
    refused: Option<SendError>,
    done: bool,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(cell: &'a TaskCell, wire: u8, frame: &'a [u8]) -> Self {
        Sending { cell, wire, frame, place: None, refused: None, done: false }
    }
}

impl Future for Sending<'_> {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = &this.cell.shared;
        let mut outbox = lock(&shared.outbox);
        let polled = match this.place {
            Some(place) => outbox.poll_end(place, context.waker()),
            None => {
                let told = EndListener::Future(Some(context.waker().clone()));
                match outbox.stage_awaited(this.wire, this.frame, told, this.cell.id) {
                    Ok(place) => {
                        this.place = Some(place);
                        shared.mark_outbox();
                        Poll::Pending
                    }
                    Err(error) if this.refused == Some(error) => Poll::Ready(Err(error)),
                    Err(error) => {
                        // An await pauses. A refused frame is tried once more after that.
                        this.refused = Some(error);
                        shared.mark_outbox();
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
            lock(&self.cell.shared.outbox).abandon(place);
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
    fn ends_are_checked_until_all_are_notified() {
        let (pool, _) = Pool::new(&PoolConfig { buffers: 64, ..PoolConfig::default() }, 0).unwrap();
        let mut doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
        let memory = Memory::new(4096, 0, crate::memory::TransferCost::default());
        let memory = Arc::new(Mutex::new(memory));
        let mut outbox = Outbox::new(1, 2048, memory.clone());
        assert!(!outbox.is_awaited());
        outbox.top_up(&mut doors);
        let callback = EndListener::Callback(Arc::new(Mutex::new(|_| {})), TaskId(1));
        for told in [EndListener::Future(None), EndListener::Future(None), callback] {
            outbox.stage_awaited(0, &[0; 60], told, TaskId(1)).unwrap();
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
        assert_eq!(lock(&memory).report().arena.blocks, 0);
        outbox.stop(&mut doors);
    }
}
