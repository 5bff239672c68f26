//! A host in virtual time: driver, stack, sockets and processes, at a machine's costs.
//!
//! ```toml
//! [host]
//! attachment = "model"
//! cores = 6
//! ```
//!
//! Packets of `port = "peers"` arrive through the card's target queues; the host sends through its
//! tx rings, so the card's functions run unchanged. Port 80 answers each request with a file of the
//! size that the wire's peers want, port 9 reads everything. One process serves each connection.
//!
//! The host's code runs at the start of a piece of work and returns its cost ([`Done::parts`]); the
//! effects (frames, wake-ups) follow when the piece has ended. The world
//! (`world/modelled.rs`) runs the pieces on its cores.
//!
//! Source: PICNIC 5.2: "When ACKs arrive at a core, if data is waiting in the transmit buffer, it
//! is transmitted immediately from the same core."

mod process;
mod socket;

use crate::frame::Segment;
use crate::machine::{Component, Cost, Costs, Distances, Lines, Moved, Parts, Profile};
use crate::peers::Ends;
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::device::{Device, Dma, Work};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::ChecksumState;
use picnic_core::random::Random;
use picnic_core::registry::{BuildContext, Component as Registered};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;
use socket::Socket;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// The keys of `attachment = "model"`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Cores for processes, from core 0: at least those with target queues; 0: only those.
    #[schemars(range(max = 64))]
    pub cores: u16,
    /// The core of all processes, which then stay there; none: any.
    #[schemars(range(max = 63))]
    pub process_core: Option<u16>,
    /// Maximum connections; one process serves each.
    #[schemars(range(min = 1, max = 10000))]
    pub processes: u16,
    /// Bytes that a process reads or writes at a time.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub io_bytes: u32,
    /// Segments that may be in flight to a peer.
    #[schemars(range(min = 1, max = 100_000))]
    pub send_window: u32,
    /// Segments in flight to a peer at the start of a connection.
    #[schemars(range(min = 1, max = 100_000))]
    pub first_window: u32,
    /// Segments that a socket buffers for sending.
    #[schemars(range(min = 2, max = 100_000))]
    pub send_buffer: u32,
    /// Bytes that a socket buffers for reading.
    #[schemars(range(min = 4096, max = 100_000_000))]
    pub receive_buffer: u32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        ModelConfig {
            cores: 0,
            process_core: None,
            processes: 1024,
            io_bytes: 11_584,
            send_window: 32,
            first_window: 32,
            send_buffer: 64,
            receive_buffer: 262_144,
        }
    }
}

/// A piece of the host's work: its costs, and its effects when it has ended.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) parts: Parts,
    /// Processes to wake, by number.
    pub(crate) wakes: Vec<usize>,
    /// Frames to send, by queue.
    frames: Vec<(u16, Segment)>,
    /// The process has nothing more to do.
    pub(crate) sleeps: bool,
}

/// The state of a host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: ModelConfig,
    costs: Costs,
    distances: Distances,
    device: Option<Device>,
    ends: Arc<Ends>,
    sockets: Vec<Socket>,
    by_peer: BTreeMap<(u8, u16), usize>,
    /// Buffers freed by cores, with the place of their lines.
    buffers: Vec<Vec<Lines>>,
    /// Frames that may leave, by queue.
    out: Vec<VecDeque<Segment>>,
    random: Random,
    /// The working core, and the place of the headers of its packets.
    core: usize,
    headers: Lines,
    work: Done,
    /// Requests answered, and bytes read.
    pub(crate) answers: u64,
    pub(crate) bytes_read: u64,
    /// Acknowledgements handled, and of these, those with the process on the same core.
    pub(crate) acknowledgements: u64,
    pub(crate) colocated: u64,
    /// Lines that moved to a core.
    pub(crate) moved: Moved,
}

/// The host of a card, for its queues and its world.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<Option<Host>>);

impl Hosts {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Host>> {
        // Counts and queues are complete, even if their last user panicked.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Host {
    fn new(config: ModelConfig, ends: Arc<Ends>, queues: u16, seed: u64) -> Self {
        Host {
            config,
            costs: Costs::default(),
            distances: Distances::default(),
            device: None,
            ends,
            sockets: Vec::new(),
            by_peer: BTreeMap::new(),
            buffers: Vec::new(),
            out: vec![VecDeque::new(); queues.into()],
            random: Random::new(seed, 0x686f_7374),
            core: 0,
            headers: Lines::default(),
            work: Done::default(),
            answers: 0,
            bytes_read: 0,
            acknowledgements: 0,
            colocated: 0,
            moved: Moved::default(),
        }
    }

    /// Sets a machine's costs, its device, and the number of cores.
    pub(crate) fn on(&mut self, profile: &Profile, device: Option<Device>, cores: usize) {
        self.device = device;
        (self.costs, self.distances) = (profile.costs.clone(), profile.distances());
        self.buffers = vec![Vec::new(); cores];
    }

    /// A core begins a piece of work. `headers` is the place of its packets' headers: in memory, or
    /// with the core that handed them over, which also had their buffers.
    pub(crate) fn begin(&mut self, core: usize, headers: Lines) {
        (self.core, self.headers) = (core, headers);
        self.work = Done::default();
    }

    /// The piece of work, whose effects wait for its end.
    pub(crate) fn take_work(&mut self) -> Done {
        let mut work = std::mem::take(&mut self.work);
        if let Some(device) = self.device {
            let sent = Work::of_look(0, 0, work.frames.len() as u64);
            work.parts.stall(Component::Registers, device.cost(&sent));
        }
        work
    }

    /// The place to which the device puts received packets.
    pub(super) fn dma(&self) -> Lines {
        match self.device.map(|device| device.dma) {
            Some(Dma::Cache) => Lines::Cache,
            Some(Dma::Memory) | None => Lines::Memory,
        }
    }

    /// A piece of work has ended: its frames may leave. Returns the queues with frames.
    pub(crate) fn release(&mut self, work: &mut Done) -> Vec<u16> {
        let mut queues = Vec::new();
        for (queue, segment) in work.frames.drain(..) {
            self.out[usize::from(queue)].push_back(segment);
            if !queues.contains(&queue) {
                queues.push(queue);
            }
        }
        queues
    }

    fn spend(&mut self, component: Component, cost: Cost) {
        let ns = self.costs.ns(cost);
        self.work.parts.add(component, ns);
    }

    /// Touches lines of an object: they belong to this core from now on.
    fn touch(&mut self, component: Component, mut lines: Lines, count: Cost) -> Lines {
        let count = self.costs.get(count);
        let ns = self.distances.touch(self.core, &mut lines, count, &mut self.moved);
        self.work.parts.stall(component, ns);
        lines
    }

    /// A segment of a peer has arrived.
    fn receive(&mut self, segment: &Segment) -> bool {
        let peer = (segment.wire, segment.peer);
        let socket = match self.by_peer.get(&peer) {
            Some(socket) => *socket,
            None if self.sockets.len() < usize::from(self.config.processes) => {
                let file_bytes = self.ends.file_bytes(segment.wire);
                self.sockets.push(Socket::new(segment, &self.config, file_bytes));
                self.by_peer.insert(peer, self.sockets.len() - 1);
                self.sockets.len() - 1
            }
            None => return false,
        };
        let from = match self.headers {
            Lines::Memory => self.dma(),
            handed => handed,
        };
        self.touch(Component::Stack, from, Cost::HeaderLines);
        if from.owner().is_some() {
            self.touch(Component::Stack, from, Cost::BufferLines);
        }
        self.take_in(socket, segment);
        true
    }
}

/// The attachment.
#[derive(Debug)]
pub struct Model {
    hosts: Arc<Hosts>,
}

impl Registered for Model {
    type Product = Box<dyn HostAttachment>;
    type Config = ModelConfig;
    const NAME: &'static str = "model";
    const HELP: &'static str = "a modelled host: driver, stack, sockets and processes";
    const IN_VIRTUAL_TIME: bool = true;

    fn build(
        config: ModelConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        let hosts = context.shared.get_or_make(Hosts::default);
        let ends = context.shared.get_or_make(Ends::default);
        *hosts.lock() = Some(Host::new(config, ends, context.queues, context.seed));
        Ok(Box::new(Model { hosts }))
    }
}

impl HostAttachment for Model {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(ModelQueue { hosts: self.hosts.clone(), queue: queue.into() }))
    }

    fn wants_buffers(&self) -> usize {
        256
    }
}

struct ModelQueue {
    hosts: Arc<Hosts>,
    queue: usize,
}

impl HostQueue for ModelQueue {
    fn deliver(&mut self, _: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        let mut hosts = self.hosts.lock();
        for packet in burst.drain() {
            let segment = Segment::read(packet.data(), packet.wire, true);
            // Without a machine around the card there is no host: it accepts nothing.
            let host = hosts.as_mut();
            match host.zip(segment).is_some_and(|(host, segment)| host.receive(&segment)) {
                true => out.deliver(packet),
                false => out.drop(packet, DropReason::HostRefused),
            }
        }
        0
    }

    fn transmit(&mut self, _: Time, out: &mut QueueOut<'_>) -> usize {
        let mut hosts = self.hosts.lock();
        let Some(queue) = hosts.as_mut().and_then(|host| host.out.get_mut(self.queue)) else {
            return 0;
        };
        let mut sent = 0;
        while let Some(segment) = queue.front()
            && let Some(mut packet) = out.buffer()
        {
            packet.truncate(segment.length() as u16);
            segment.write(false, packet.data_mut());
            packet.set_checksum(ChecksumState::Good);
            packet.wire = segment.wire;
            out.submit(packet);
            queue.pop_front();
            sent += 1;
        }
        sent
    }

    /// Unmasked interrupts preempt the host's work.
    fn is_application(&self) -> bool {
        true
    }
}
