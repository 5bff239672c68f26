//! A wire with TCP clients: windows, acknowledgements and a timeout.
//!
//! ```toml
//! [[wire]]
//! port = "peers"
//! workload = "request"     # or "send"
//! connections = 50
//! file_bytes = 65160
//! ```
//!
//! `"request"`: each connection requests a file, acknowledges every second segment of it, and sends
//! the next request after `think_us`, or at random times (`requests_per_second`). One connection
//! and a short file are a ping-pong. `"send"`: each connection sends as fast as its window allows,
//! or at `segments_per_second`. The other end is `attachment = "model"`; both exist only in virtual
//! time. The host serves files of the size that the peers of each wire want.
//!
//! Guarantees: the same seed gives the same frames; frames take their time on a link of `rate_mbps`
//! in each direction, in order; more than `ring` waiting frames are shed and counted, as by a NIC
//! with a full ring; a lost frame is retransmitted after `timeout_us`. No congestion control.
//!
//! Source: RFC 9293; RFC 5681, 4.2, for every second segment.

use crate::frame::{DISCARD, MSS, ON_WIRE, Segment, WEB};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::ChecksumState;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::random::Random;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Workload of the clients.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Request files.
    #[default]
    Request,
    /// Send to the host.
    Send,
}

/// The keys of `port = "peers"`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PeersConfig {
    /// "request" requests files from the host, "send" sends to it.
    pub workload: Workload,
    /// Parallel connections.
    #[schemars(range(min = 1, max = 10000))]
    pub connections: u16,
    /// Size of a file in bytes.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub file_bytes: u32,
    /// Size of a request in bytes.
    #[schemars(range(min = 1, max = 1448))]
    pub request_bytes: u16,
    /// Whether the next request acknowledges the end of an answer, instead of a separate frame.
    pub piggyback: bool,
    /// Microseconds between an answer and the next request of its connection.
    pub think_us: u32,
    /// Requests per second of all connections, at random times independent of answers; 0: after
    /// each answer.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub requests_per_second: f64,
    /// A connection per request, with this many frames without data.
    #[schemars(range(max = 16))]
    pub control_frames: u8,
    /// Bytes that a connection may have in flight.
    #[schemars(range(min = 1448, max = 16_000_000))]
    pub window_bytes: u32,
    /// With workload = "send": segments per second of each connection; 0: limited only by windows.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub segments_per_second: f64,
    /// Rate of the link in each direction, in Mb/s.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub rate_mbps: u32,
    /// Delay of the link in microseconds, in each direction.
    pub delay_us: u32,
    /// Frames that may wait for the card.
    #[schemars(range(min = 16, max = 65536))]
    pub ring: u32,
    /// Microseconds without progress after which a connection retransmits.
    #[schemars(range(min = 100, max = 60_000_000))]
    pub timeout_us: u32,
}

impl Default for PeersConfig {
    fn default() -> Self {
        PeersConfig {
            workload: Workload::Request,
            connections: 50,
            file_bytes: 20_000,
            request_bytes: 300,
            piggyback: false,
            think_us: 0,
            requests_per_second: 0.0,
            control_frames: 0,
            window_bytes: 65_536,
            segments_per_second: 0.0,
            rate_mbps: 1000,
            delay_us: 50,
            ring: 4096,
            timeout_us: 200_000,
        }
    }
}

/// What both ends of a connection must know.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The size of a file, by wire.
    files: Mutex<BTreeMap<u8, u32>>,
    /// From the device to memory or back, in nanoseconds.
    bus_ns: AtomicU64,
}

impl Ends {
    fn files(&self) -> MutexGuard<'_, BTreeMap<u8, u32>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of file that the clients of a wire request.
    pub(crate) fn file_bytes(&self, wire: u8) -> u32 {
        self.files().get(&wire).copied().unwrap_or(PeersConfig::default().file_bytes)
    }

    /// The card is on a bus.
    pub(crate) fn set_bus_ns(&self, bus_ns: u32) {
        self.bus_ns.store(bus_ns.into(), Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A connection sends a request, or continues sending.
    Start(u16),
    /// This frame reaches its peer.
    Frame(u16, u32, u32, u32, u16),
    /// Check whether a connection has made progress since.
    Timeout(u16, u64),
}

/// One connection.
#[derive(Clone, Debug, Default)]
struct Connection {
    port: u16,
    /// Next byte to send, and the first unacknowledged one.
    next: u32,
    acknowledged: u32,
    /// Next byte expected.
    expected: u32,
    /// Bytes of the file still missing; 0 between requests.
    missing: u32,
    /// Segments that arrived out of order: two cores of the host may send for one connection.
    early: Vec<(u32, u16)>,
    /// Segments since the last acknowledgement.
    unacknowledged: u32,
    /// The host's window.
    window: u32,
    /// Segments that may be sent at a rate.
    credit: u64,
    /// Requests that fell due while one was in progress.
    due: u64,
    asked_at: u64,
    /// Counts arrivals: a timeout checks whether it has changed.
    progress: u64,
}

/// The clients of one wire.
#[derive(Debug)]
pub struct Peers {
    config: PeersConfig,
    wire: u8,
    ends: Arc<Ends>,
    random: Random,
    connections: Vec<Connection>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// Frames in transit to the card, each with its arrival time.
    arriving: VecDeque<(u64, Segment)>,
    to_host_free: u64,
    to_peers_free: u64,
    /// Frames dropped by a full ring since they were last counted as shed.
    lost: u64,
    answers: u64,
    answer_ns: u64,
    timeouts: u64,
}

impl Component for Peers {
    type Product = Box<dyn WirePort>;
    type Config = PeersConfig;
    const NAME: &'static str = "peers";
    const HELP: &'static str = "TCP clients, for attachment = \"model\"";
    const IN_VIRTUAL_TIME: bool = true;

    fn build(
        config: PeersConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn WirePort>, ConfigError> {
        Ok(Box::new(Peers::new(config, context)))
    }
}

impl Peers {
    fn new(config: PeersConfig, context: &BuildContext) -> Self {
        let wire = context.position as u8;
        let ends = context.shared.get_or_make(Ends::default);
        ends.files().insert(wire, config.file_bytes);
        let mut random = Random::new(context.seed, 0x7065_6572 << 8 | u64::from(wire));
        let connection = |random: &mut Random| Connection {
            port: 1024 + (random.next() % 60_000) as u16,
            window: config.window_bytes,
            ..Connection::default()
        };
        let connections = (0..config.connections).map(|_| connection(&mut random)).collect();
        let mut peers = Peers {
            wire,
            ends,
            random,
            connections,
            events: BinaryHeap::new(),
            sequence: 0,
            arriving: VecDeque::new(),
            to_host_free: 0,
            to_peers_free: 0,
            lost: 0,
            answers: 0,
            answer_ns: 0,
            timeouts: 0,
            config,
        };
        for index in 0..peers.config.connections {
            // Not all at once: at random times, or within 2 ms.
            let at = match peers.is_open_loop() {
                true => peers.random_gap_ns(),
                false => peers.random.between(&(0..=2_000_000)),
            };
            peers.at(at, Event::Start(index));
        }
        peers
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    /// Whether requests come whether or not answers do.
    fn is_open_loop(&self) -> bool {
        self.config.workload == Workload::Request && self.config.requests_per_second > 0.0
    }

    /// From one request of a connection in open loop to the next.
    fn random_gap_ns(&mut self) -> u64 {
        let mean = 1e9 * f64::from(self.config.connections) / self.config.requests_per_second;
        let uniform = (self.random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((-(1.0 - uniform).ln() * mean).min(1e12) as u64).max(1)
    }

    /// Nanoseconds of a frame on the link.
    fn on_link(&self, bytes: usize) -> u64 {
        (bytes as u64 + ON_WIRE) * 8 * 1000 / u64::from(self.config.rate_mbps)
    }

    fn delay_ns(&self) -> u64 {
        u64::from(self.config.delay_us) * 1000
    }

    /// Processes everything until `now`.
    fn advance(&mut self, now: u64) {
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if time > now {
                break;
            }
            self.events.pop();
            match event {
                Event::Start(index) => self.start(time, index),
                Event::Frame(index, sequence, acknowledged, window, payload) => {
                    self.frame(time, index, sequence, acknowledged, window, payload);
                }
                Event::Timeout(index, progress) => self.timeout(time, index, progress),
            }
        }
        let waiting = self.arriving.partition_point(|(arrival, _)| *arrival <= now);
        let ring = self.config.ring as usize;
        if waiting > ring {
            self.arriving.drain(ring..waiting);
            self.lost += (waiting - ring) as u64;
        }
    }

    /// Sends a frame to the host.
    fn send(&mut self, now: u64, index: u16, sequence: u32, payload: u16, syn: bool) {
        let connection = &mut self.connections[usize::from(index)];
        connection.unacknowledged = 0;
        let segment = Segment {
            wire: self.wire,
            peer: index + 1,
            port: connection.port,
            host_port: match self.config.workload {
                Workload::Request => WEB,
                Workload::Send => DISCARD,
            },
            sequence,
            acknowledged: connection.expected,
            window: self.config.window_bytes,
            payload,
            syn,
        };
        let left = self.to_host_free.max(now) + self.on_link(segment.length());
        self.to_host_free = left;
        self.arriving.push_back((left + self.delay_ns(), segment));
    }

    fn start(&mut self, now: u64, index: u16) {
        let place = usize::from(index);
        if self.config.workload == Workload::Send {
            if self.config.segments_per_second > 0.0 {
                let gap = 1e9 / self.config.segments_per_second;
                self.connections[place].credit += 1;
                self.at(now + (gap.round() as u64).max(1), Event::Start(index));
            }
            if self.connections[place].progress == 0 {
                self.connections[place].progress = 1;
                let timeout = now + u64::from(self.config.timeout_us) * 1000;
                self.at(timeout, Event::Timeout(index, 1));
            }
            return self.pump(now, index);
        }
        if self.is_open_loop() {
            let gap_ns = self.random_gap_ns();
            self.at(now + gap_ns, Event::Start(index));
            if self.connections[place].missing != 0 {
                self.connections[place].due += 1;
                return;
            }
        }
        self.ask(now, index);
    }

    fn ask(&mut self, now: u64, index: u16) {
        let control = self.config.control_frames;
        let connection = &mut self.connections[usize::from(index)];
        if control != 0 {
            // A new connection has a new port.
            connection.port = 1024 + (connection.port - 1023) % 60_000;
            (connection.next, connection.acknowledged, connection.expected) = (0, 0, 0);
        }
        connection.missing = self.config.file_bytes;
        connection.early.clear();
        connection.asked_at = now;
        connection.progress += 1;
        let (sequence, progress) = (connection.next, connection.progress);
        connection.next = connection.next.wrapping_add(self.config.request_bytes.into());
        for frame in 0..control {
            self.send(now, index, sequence, 0, frame == 0);
        }
        self.send(now, index, sequence, self.config.request_bytes, false);
        let timeout = now + u64::from(self.config.timeout_us) * 1000;
        self.at(timeout, Event::Timeout(index, progress));
    }

    /// Sends as windows and rate allow.
    fn pump(&mut self, now: u64, index: u16) {
        let paced = self.config.segments_per_second > 0.0;
        loop {
            let connection = &mut self.connections[usize::from(index)];
            let window = self.config.window_bytes.min(connection.window);
            let under_way = connection.next.wrapping_sub(connection.acknowledged);
            if under_way + u32::from(MSS) > window || paced && connection.credit == 0 {
                // Time blocked by a window is made up for only to a limit.
                connection.credit = connection.credit.min(64);
                return;
            }
            connection.credit = connection.credit.saturating_sub(1);
            let sequence = connection.next;
            connection.next = sequence.wrapping_add(MSS.into());
            self.send(now, index, sequence, MSS, false);
        }
    }

    fn frame(
        &mut self,
        now: u64,
        index: u16,
        sequence: u32,
        acknowledged: u32,
        window: u32,
        payload: u16,
    ) {
        let Some(connection) = self.connections.get_mut(usize::from(index)) else { return };
        connection.window = window;
        let newly = acknowledged.wrapping_sub(connection.acknowledged);
        if newly != 0 && newly <= connection.next.wrapping_sub(connection.acknowledged) {
            connection.acknowledged = acknowledged;
            connection.progress += 1;
        }
        if self.config.workload == Workload::Send {
            return self.pump(now, index);
        }
        let ahead = sequence.wrapping_sub(connection.expected);
        if payload == 0 || connection.missing == 0 || ahead >= 1 << 31 {
            return;
        }
        connection.progress += 1;
        connection.early.push((sequence, payload));
        while let Some(place) =
            connection.early.iter().position(|(sequence, _)| *sequence == connection.expected)
        {
            let (_, payload) = connection.early.swap_remove(place);
            connection.expected = connection.expected.wrapping_add(payload.into());
            connection.missing = connection.missing.saturating_sub(payload.into());
            connection.unacknowledged += 1;
        }
        let (is_whole, next) = (connection.missing == 0, connection.next);
        if connection.unacknowledged >= 2 || is_whole && !self.config.piggyback {
            self.send(now, index, next, 0, false);
        }
        if !is_whole {
            return;
        }
        self.answers += 1;
        let is_open_loop = self.is_open_loop();
        let connection = &mut self.connections[usize::from(index)];
        self.answer_ns += now - connection.asked_at;
        if !is_open_loop {
            self.at(now + u64::from(self.config.think_us) * 1000, Event::Start(index));
        } else if connection.due != 0 {
            connection.due -= 1;
            self.ask(now, index);
        }
    }

    /// Retransmits unacknowledged data, if nothing has arrived since.
    fn timeout(&mut self, now: u64, index: u16, progress: u64) {
        let config = &self.config;
        let (timeout_ns, is_sender) =
            (u64::from(config.timeout_us) * 1000, config.workload == Workload::Send);
        let connection = &mut self.connections[usize::from(index)];
        let waits = connection.missing != 0 || is_sender;
        if !waits {
            return;
        }
        let found = connection.progress;
        if found == progress && (connection.next != connection.acknowledged || !is_sender) {
            self.timeouts += 1;
            if is_sender {
                connection.next = connection.acknowledged;
                connection.credit += 1;
                connection.window = connection.window.max(MSS.into());
                self.pump(now, index);
            } else if connection.acknowledged != connection.next {
                let sequence = connection.acknowledged;
                self.send(now, index, sequence, self.config.request_bytes, false);
            } else {
                let next = connection.next;
                self.send(now, index, next, 0, false);
            }
        }
        self.at(now + timeout_ns, Event::Timeout(index, found));
    }
}

impl WirePort for Peers {
    fn describe(&self) -> Description {
        let capabilities = Capabilities {
            partial_checksums: true,
            arrival: true,
            tells_waiting: true,
            ..Capabilities::default()
        };
        let room = Some(self.config.ring.into());
        let ethernet = Arrivals::ethernet(Some(self.config.rate_mbps));
        let arrivals = Arrivals { room, room_origin: "ring", ..ethernet };
        Description { capabilities, arrivals, ..Description::default() }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        self.advance(now.as_nanos());
        if self.lost != 0 {
            rx.shed(DropReason::BacklogFull, std::mem::take(&mut self.lost));
        }
        while rx.room() != 0 && self.arriving.front().is_some_and(|(at, _)| *at <= now.as_nanos()) {
            let Some((arrival, segment)) = self.arriving.pop_front() else { return };
            rx.arrived_at(Time::from_nanos(arrival));
            rx.pool().ensure(1);
            match rx.place(segment.length()) {
                Some(packet) => {
                    segment.write(true, packet.data_mut());
                    packet.set_checksum(ChecksumState::Good);
                }
                None => rx.shed(DropReason::PoolExhausted, 1),
            }
        }
    }

    fn holds(&mut self, now: Time, frames: usize) -> bool {
        self.advance(now.as_nanos());
        frames == 0
            || self.arriving.get(frames - 1).is_some_and(|(arrival, _)| *arrival <= now.as_nanos())
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        self.advance(now.as_nanos());
        let bus_ns = self.ends.bus_ns.load(Ordering::Relaxed);
        while let Some(packet) = tx.next() {
            let found = Segment::read(packet.data(), self.wire, false);
            let left = self.to_peers_free.max(now.as_nanos() + bus_ns)
                + self.on_link(packet.length() as usize);
            self.to_peers_free = left;
            tx.sent(packet);
            if let Some(segment) = found
                && let Some(index) = segment.peer.checked_sub(1)
                && self.connections.get(usize::from(index)).is_some_and(|c| c.port == segment.port)
            {
                let Segment { sequence, acknowledged, window, payload, .. } = segment;
                let event = Event::Frame(index, sequence, acknowledged, window, payload);
                self.at(left + self.delay_ns(), event);
            }
        }
    }

    fn status(&self) -> Status<'_> {
        let frame = self.arriving.front().map(|(arrival, _)| *arrival);
        // Events at a peer reach the card after the delay.
        let event = self.events.peek().map(|Reverse((time, ..))| time + self.delay_ns());
        let next = frame.into_iter().chain(event).min().map(Time::from_nanos);
        Status { next_deadline: next, next_arrival: next, ..Status::default() }
    }

    fn stop(&mut self, _tx: &mut Transmitter<'_>) -> Vec<String> {
        let mut line = format!("peers of wire {}: {} answers", self.wire, self.answers);
        if let Some(mean_ns) = self.answer_ns.checked_div(self.answers) {
            line += &format!(", {} us each", mean_ns / 1000);
        }
        if self.timeouts != 0 {
            line += &format!(", {} timeouts", self.timeouts);
        }
        vec![line]
    }
}
