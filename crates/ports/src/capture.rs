//! Capture: copies packets off the data path; a thread writes them as pcapng.
//!
//! Each place where packets are captured is a [`Point`]. It owns the producer end
//! of a ring of 64-byte cells; one writer thread empties all rings into one
//! file, an interface for each point.
//!
//! Guarantees: a point takes no lock, allocates nothing and makes no system call; a packet that
//! finds its ring full, or the capture ended, is not captured, and counted as lost, in the file too
//! (`isb_ifdrop`). A point that may wait does so while the ring is full, and loses nothing. Packets
//! of one point stay in order. A regular file is written under another name and renamed at the end;
//! a FIFO, terminal or device is written directly, and waited for until a stop is requested
//! ([`crate::stream`]). After a write error the card continues, and [`Capture::report`] has the
//! error. Packets reported as written have reached the file.

mod writer;

use crate::output::OutputFile;
use crate::pcapng::direction_flags;
use crate::stream::{self, Stream};
use picnic_core::direction::Direction;
use picnic_core::hook::Observer;
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::{Descriptor, RssFunction, RssType};
use picnic_core::packet::pool::MAX_PACKET_BYTES;
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::stats::Counter;
use picnic_core::stop::Stop;
use picnic_core::time::Time;
use rustix::thread::CapabilitySet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sleep of an idle writer.
const NAP: Duration = Duration::from_millis(2);
/// Interval at which a point that may wait checks for room.
const ROOM_PAUSE: Duration = Duration::from_micros(100);
const CELL: usize = 64;
/// Before each packet: time, captured and original length, direction and [`HASHED`], hash.
const RECORD_HEADER: usize = 24;
/// The packet has a Toeplitz hash; beside the bits of the direction.
const HASHED: u32 = 1 << 31;

/// The smallest ring for one point, in bytes: the longest packet fits.
pub const MIN_BUFFER_BYTES: usize = 2 * MAX_PACKET_BYTES;
/// The largest ring for one point, in bytes.
pub const MAX_BUFFER_BYTES: usize = 1 << 30;

/// Settings of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions {
    /// Bytes of each packet to keep.
    pub snaplen: u32,
    /// Ring of each point, in bytes; clamped to the allowed range.
    pub buffer_bytes: usize,
    /// Nanoseconds from 1970 to the world's `Time::ZERO`; zero where time is virtual.
    pub epoch_ns: u64,
    /// Number of packets after which the capture ends; 0: unlimited.
    pub packets: u64,
    /// File size in bytes at which it ends, at a packet boundary; 0: unlimited.
    pub bytes: u64,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        CaptureOptions {
            snaplen: 262_144,
            buffer_bytes: 1 << 20,
            epoch_ns: 0,
            packets: 0,
            bytes: 0,
        }
    }
}

/// Result for one point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PointReport {
    /// The interface's name.
    pub name: String,
    /// Packets that passed.
    pub seen: u64,
    /// Packets written to the file.
    pub written: u64,
    /// Packets not captured.
    pub lost: u64,
}

/// Result of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// All points, in the order they were made in.
    pub points: Vec<PointReport>,
    /// Whether it ended because it was full.
    pub is_full: bool,
    /// Why it ended early, if it did.
    pub error: Option<String>,
}

impl CaptureReport {
    /// Packets written, over all points.
    pub fn written(&self) -> u64 {
        self.points.iter().map(|point| point.written).sum()
    }

    /// Packets not captured, over all points.
    pub fn lost(&self) -> u64 {
        self.points.iter().map(|point| point.lost).sum()
    }

    /// A summary in one line.
    pub fn summary(&self) -> String {
        let mut line = format!("{} packets written", self.written());
        if self.lost() != 0 {
            line += &format!(", {} not captured", self.lost());
        }
        if let Some(error) = &self.error {
            line += &format!("; ended by an error: {error}");
        }
        line
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Cell([u8; CELL]);

/// Counters of one point. The point writes the first two, the writer the third.
#[derive(Debug, Default)]
struct PointCounters {
    name: String,
    seen: Counter,
    lost: Counter,
    written: Counter,
    /// Seen and lost when the capture became full: later packets count as neither.
    at_end: OnceLock<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Shared {
    /// New points that the writer does not know yet.
    fresh: Mutex<Vec<(Arc<PointCounters>, Consumer<Cell>)>>,
    counters: Mutex<Vec<Arc<PointCounters>>>,
    /// Whether the file is needed; only then is it opened.
    in_use: AtomicBool,
    /// No more packets are captured.
    closed: AtomicBool,
    stop: AtomicBool,
    /// The capture has all requested packets.
    full: AtomicBool,
    /// Nothing was or will be captured: the file is removed.
    abandoned: AtomicBool,
    error: Mutex<Option<String>>,
    /// Number of the last requested flush, and of the last finished one (`u64::MAX` at the end).
    flush_wanted: AtomicU64,
    flushed: Mutex<u64>,
    flush_done: Condvar,
}

/// The destination of the bytes.
enum Sink {
    File(OutputFile),
    Stream(Stream),
    Other(Box<dyn Write + Send>),
}

impl Sink {
    /// Opens a file; waits for a FIFO's reader until a stop is requested, or it `is_over`.
    fn open(path: &Path, stop: &Stop, is_over: impl Fn() -> bool) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let file = stream::create(path, || stop.is_asked() || is_over())?;
            let stream = Stream::new(file.into(), stop.clone())
                .map_err(|message| io::Error::other(format!("it {message}")))?;
            return Ok(Sink::Stream(stream));
        }
        OutputFile::create(path).map(Sink::File)
    }

    /// Capabilities needed at the end, to rename a file in another user's folder.
    fn needs(&self) -> CapabilitySet {
        match self {
            Sink::File(file) if file.needs_privileges() => {
                CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER
            }
            Sink::File(_) | Sink::Stream(_) | Sink::Other(_) => CapabilitySet::empty(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::File(file) => file.write(bytes),
            Sink::Stream(stream) => stream.write(bytes),
            Sink::Other(sink) => sink.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::File(file) => file.flush(),
            Sink::Stream(stream) => stream.flush(),
            Sink::Other(sink) => sink.flush(),
        }
    }
}

type Open = Box<dyn FnOnce(&Shared) -> io::Result<Sink> + Send>;

/// Opens a file on the writer's thread.
fn open_there(path: &Path, stop: &Stop) -> Open {
    let (path, stop) = (path.to_owned(), stop.clone());
    Box::new(move |shared| Sink::open(&path, &stop, || shared.abandoned.load(Ordering::Acquire)))
}

/// A pcapng file being written.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    options: CaptureOptions,
    thread: Option<JoinHandle<()>>,
    /// The file was created at the start, before the card.
    is_made: bool,
}

impl Capture {
    /// Starts a capture into a new file. An existing file is replaced only at the end, and not if
    /// the capture is dropped before any packet. A slow reader is waited for until a `stop` is
    /// requested.
    ///
    /// # Errors
    /// The file cannot be created, or the thread not started.
    pub fn create(path: &Path, options: CaptureOptions, stop: &Stop) -> io::Result<Self> {
        if stream::is_fifo(path) {
            // Its reader may come later.
            return Capture::start(open_there(path, stop), true, options);
        }
        let sink = Sink::open(path, stop, || true)?;
        Capture::start(Box::new(move |_| Ok(sink)), true, options)
    }

    /// Starts a capture into a file that is created when the first point is used; the report then
    /// has any error. `stop` as for [`Capture::create`].
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn create_when_used(path: &Path, options: CaptureOptions, stop: &Stop) -> io::Result<Self> {
        Capture::start(open_there(path, stop), false, options)
    }

    /// Starts a capture into any writer.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn to_writer(
        sink: impl Write + Send + 'static,
        options: CaptureOptions,
    ) -> io::Result<Self> {
        Capture::start(Box::new(move |_| Ok(Sink::Other(Box::new(sink)))), true, options)
    }

    fn start(open: Open, in_use: bool, mut options: CaptureOptions) -> io::Result<Self> {
        options.buffer_bytes = options.buffer_bytes.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES);
        let shared = Arc::new(Shared { in_use: in_use.into(), ..Shared::default() });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("picnic-capture".into())
            .spawn(move || writer::write(&for_thread, open, options))?;
        Ok(Capture { shared, options, thread: Some(thread), is_made: in_use })
    }

    /// A new capture point, with an interface of this name in the file.
    pub fn point(&self, name: &str) -> Point {
        let (ring, consumer) = spsc::channel(self.options.buffer_bytes / CELL);
        let counters = Arc::new(PointCounters { name: name.into(), ..PointCounters::default() });
        lock(&self.shared.counters).push(counters.clone());
        lock(&self.shared.fresh).push((counters.clone(), consumer));
        Point {
            ring,
            counters,
            shared: self.shared.clone(),
            snaplen: self.options.snaplen.min(2 * MAX_PACKET_BYTES as u32 - CELL as u32) as usize,
            epoch_ns: self.options.epoch_ns,
            seen: 0,
            lost: 0,
            used: false,
            may_wait: false,
        }
    }

    /// Waits until all packets captured so far are in the file; false if that takes longer than
    /// `patience`. Not for the data path.
    pub fn sync(&self, patience: Duration) -> bool {
        let Some(thread) = &self.thread else { return true };
        let wanted = self.shared.flush_wanted.fetch_add(1, Ordering::AcqRel) + 1;
        thread.thread().unpark();
        let flushed = lock(&self.shared.flushed);
        let wait =
            self.shared.flush_done.wait_timeout_while(flushed, patience, |done| *done < wanted);
        wait.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }

    /// Its result so far.
    pub fn report(&self) -> CaptureReport {
        let ended = self.thread.is_none();
        let points = lock(&self.shared.counters);
        let points = points.iter().map(|point| {
            let (seen, written) = (point.seen.get(), point.written.get());
            // At the end, every packet that was seen but is not in the file counts as lost.
            let lost = if ended { seen.saturating_sub(written) } else { point.lost.get() };
            let (seen, lost) = point.at_end.get().copied().unwrap_or((seen, lost));
            PointReport { name: point.name.clone(), seen, written, lost }
        });
        CaptureReport {
            points: points.collect(),
            is_full: self.shared.full.load(Ordering::Acquire),
            error: lock(&self.shared.error).clone(),
        }
    }

    /// Requests the end of the capture without waiting; see [`Capture::has_ended`].
    pub fn stop(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Whether it was stopped, is full, or failed.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the capture: writes the remaining packets and the statistics, and closes the file.
    /// Points may live on; they count nothing any longer.
    pub fn finish(&mut self) -> CaptureReport {
        self.stop();
        let joined = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = joined {
            self.shared.fail("the writer thread has died".into());
        }
        self.report()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.is_made && self.report().points.iter().all(|point| point.seen == 0) {
            self.shared.abandoned.store(true, Ordering::Release);
        }
        self.finish();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    fn fail(&self, error: String) {
        self.closed.store(true, Ordering::Release);
        lock(&self.error).get_or_insert(error);
    }

    fn flushed(&self, number: u64) {
        *lock(&self.flushed) = number;
        self.flush_done.notify_all();
    }
}

// ---------------------------------------------------------------- the data path's end

/// A capture point; used by one thread.
#[derive(Debug)]
pub struct Point {
    ring: Producer<Cell>,
    counters: Arc<PointCounters>,
    shared: Arc<Shared>,
    snaplen: usize,
    epoch_ns: u64,
    seen: u64,
    lost: u64,
    used: bool,
    may_wait: bool,
}

impl Point {
    /// Whether packets wait for room if the ring is full.
    pub fn wait_for_room(&mut self, may_wait: bool) {
        self.may_wait = may_wait;
    }

    /// Waits until a packet of `cells` cells fits; false if it never will.
    #[cold]
    fn make_room(&mut self, cells: usize) -> bool {
        while self.may_wait && !self.shared.closed.load(Ordering::Acquire) {
            self.publish();
            if self.ring.has_room(cells) {
                return true;
            }
            std::thread::sleep(ROOM_PAUSE);
        }
        false
    }

    /// Copies a packet, to be written after [`Point::publish`]; false if it is lost, or if the
    /// capture has been stopped.
    pub fn record(&mut self, now: Time, packet: &Descriptor, direction: Option<Direction>) -> bool {
        // What comes after the end is no part of the capture.
        if self.shared.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.seen += 1;
        let length = packet.segments().map(<[u8]>::len).sum::<usize>();
        let captured = length.min(self.snaplen);
        let cells = (RECORD_HEADER + captured).div_ceil(CELL);
        if self.shared.closed.load(Ordering::Relaxed)
            || (!self.ring.has_room(cells) && !self.make_room(cells))
        {
            self.lost += 1;
            return false;
        }
        let mut cell = Cell([0; CELL]);
        let timestamp = self.epoch_ns.saturating_add(now.as_nanos());
        cell.0[0..8].copy_from_slice(&timestamp.to_le_bytes());
        cell.0[8..12].copy_from_slice(&(captured as u32).to_le_bytes());
        cell.0[12..16].copy_from_slice(&(length as u32).to_le_bytes());
        let mut flags = direction.map_or(0, direction_flags);
        // A host's packet may have arrived with a hash and been changed since.
        if direction == Some(Direction::Rx) && has_toeplitz(packet) {
            flags |= HASHED;
        }
        cell.0[16..20].copy_from_slice(&flags.to_le_bytes());
        cell.0[20..24].copy_from_slice(&packet.rss_hash.to_le_bytes());
        let (mut fill, mut left) = (RECORD_HEADER, captured);
        for segment in packet.segments() {
            let mut rest = &segment[..segment.len().min(left)];
            left -= rest.len();
            while !rest.is_empty() {
                let (part, after) = rest.split_at(rest.len().min(CELL - fill));
                cell.0[fill..fill + part.len()].copy_from_slice(part);
                fill += part.len();
                rest = after;
                if fill == CELL {
                    // Room was made sure of, so this and the next cannot fail.
                    let _ = self.ring.stage(cell);
                    fill = 0;
                }
            }
        }
        if fill != 0 {
            let _ = self.ring.stage(cell);
        }
        true
    }

    /// Ends a burst: publishes the recorded packets to the writer.
    pub fn publish(&mut self) {
        if !self.used {
            self.used = true;
            self.shared.in_use.store(true, Ordering::Release);
        }
        self.counters.seen.set(self.seen);
        self.counters.lost.set(self.lost);
        self.ring.publish();
    }

    /// Packets not captured so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

fn has_toeplitz(packet: &Descriptor) -> bool {
    packet.rss_type() != RssType::None && packet.rss_function() == RssFunction::Toeplitz
}

/// A point that observes packets for the life of the card.
impl Observer for Point {
    fn may_wait(&mut self) {
        self.wait_for_room(true);
    }

    fn observe(&mut self, now: Time, stage: Stage, packets: &[Descriptor]) {
        let direction = Direction::at(stage);
        for packet in packets {
            // At a wire, received packets have their arrival time; all others are seen now.
            let late_ns = if stage == Stage::Wire { packet.age(now) } else { 0 };
            let seen_at = Time::from_nanos(now.as_nanos().saturating_sub(late_ns));
            self.record(seen_at, packet, Some(direction));
        }
    }

    fn end(&mut self) {
        self.publish();
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        self.publish();
    }
}
