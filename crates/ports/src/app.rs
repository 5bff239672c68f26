//! A host inside this process: it reads headers, or echoes packets.
//!
//! ```toml
//! [host]
//! attachment = "app"
//! mode = "echo"
//! cost_ns = 200
//! ```
//!
//! Guarantees: every packet is read (its first line is loaded) and leaves delivered; an
//! echo keeps all checksums right, since swapping words does not change their sum. The cost
//! of a packet is passed to the world as work, since this crate has no clock.
//!
//! `verify_order` needs a generator with `sequence_numbers = true`; its result is reported at the
//! end of the run. Each queue judges its own packets, so a flow that moves between queues shows as
//! skipped packets.
//!
//! Source: RFC 4737, 3.3: a packet is reordered if it arrives after a later packet of its flow.

mod commands;

use crate::generator::{MAX_FLOWS, Stamp};
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor};
use picnic_core::packet::layers::{Layers, PacketType};
use picnic_core::packet::wire::IpProtocol;
use picnic_core::packet::wire::checksum::PseudoHeader;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Action of the application on packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reads each packet's header.
    #[default]
    Sink,
    /// Swaps source and destination and sends the packet back on its wire.
    Echo,
}

/// The keys of `attachment = "app"`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct AppConfig {
    /// "sink" reads each packet's header, "echo" sends packets back with source and destination
    /// swapped.
    pub mode: Mode,
    /// Share of packets that "echo" sends back; it reads the others.
    #[schemars(range(min = 0.0, max = 1.0), extend("x-advanced" = true))]
    pub echo_share: f64,
    /// Nanoseconds of work per packet.
    #[schemars(range(max = MAX_COST_NS))]
    pub cost_ns: u64,
    /// Nanoseconds of the kernel stack's work per packet before the application gets it, added to
    /// cost_ns. The application's core does it, except with `system = "napi"`.
    #[schemars(range(max = MAX_COST_NS), extend("x-advanced" = true))]
    pub stack_ns: u64,
    /// Whether to check the order of packets within each flow, by the generator's sequence numbers.
    pub verify_order: bool,
}

impl Default for AppConfig {
    fn default() -> Self {
        let (mode, echo_share) = (Mode::Sink, 1.0);
        AppConfig { mode, echo_share, cost_ns: 0, stack_ns: 0, verify_order: false }
    }
}

/// Observations of the application on one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct AppCounters {
    /// Sum of the header words read; meaningless, but it forces the reads.
    pub digest: Counter,
    /// Packets with a sequence number.
    pub numbered: Counter,
    /// Packets without one, if order is verified.
    pub unnumbered: Counter,
    /// Packets with an unreliable sequence number: their checksum is wrong.
    pub damaged: Counter,
    /// Packets that arrived after a later one of their flow, or twice.
    pub reordered: Counter,
    /// Sequence numbers skipped: packets lost, or late.
    pub skipped: Counter,
}

const MAX_COST_NS: u64 = 1_000_000_000;
/// Bytes read by a sink: Ethernet, IPv4 and ports, in whole words.
const HEADER_BYTES: usize = 40;

/// Nanoseconds of work per packet; the borrowed core may change it. On a separate cache line:
/// targets read it for every burst.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cost(Counter);

/// The application.
#[derive(Debug)]
pub struct App {
    config: AppConfig,
    cost_ns: Arc<Cost>,
    counters: Arc<[AppCounters]>,
}

impl Component for App {
    type Product = Box<dyn HostAttachment>;
    type Config = AppConfig;
    const NAME: &'static str = "app";
    const HELP: &'static str = "receive packets in this process, at a set cost per packet";
    const IN_VIRTUAL_TIME: bool = true;
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;

    fn build(
        config: AppConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn HostAttachment>, ConfigError> {
        Ok(Box::new(App::new(config, context)?))
    }
}

impl App {
    /// An application with a set of counters for each of the card's queues.
    ///
    /// # Errors
    /// A wrong value: key, value found, values allowed.
    pub fn new(config: AppConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        let counters = (0..context.queues).map(|_| AppCounters::default()).collect();
        let cost_ns = Arc::new(Cost::default());
        cost_ns.0.set(config.cost_ns);
        Ok(App { config, cost_ns, counters })
    }

    /// The counters, one set per queue, to be read at any time.
    pub fn counters(&self) -> Arc<[AppCounters]> {
        self.counters.clone()
    }
}

impl HostAttachment for App {
    fn open_queue(&mut self, queue: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        let index = usize::from(queue);
        if index >= self.counters.len() {
            let message = format!("queue {queue} of {}: no such queue", self.counters.len());
            return Err(ConfigError::new("queues", message));
        }
        Ok(Box::new(AppQueue {
            mode: self.config.mode,
            echo_share: self.config.echo_share,
            owed: 0.0,
            cost_ns: self.cost_ns.clone(),
            stack_ns: self.config.stack_ns,
            order: self.config.verify_order.then(Order::default),
            digest: 0,
            counters: self.counters.clone(),
            index,
        }))
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

struct AppQueue {
    mode: Mode,
    echo_share: f64,
    /// Packets to be sent back for those received so far, less those that were.
    owed: f64,
    cost_ns: Arc<Cost>,
    stack_ns: u64,
    order: Option<Order>,
    digest: u64,
    counters: Arc<[AppCounters]>,
    index: usize,
}

impl HostQueue for AppQueue {
    fn deliver(&mut self, _now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        // Two passes: the lines of the whole burst travel at the same time.
        for packet in burst.as_slice() {
            packet.prefetch();
        }
        let packets = burst.len() as u64;
        let Some(counters) = self.counters.get(self.index) else { return 0 };
        if let Some(order) = &mut self.order {
            for packet in burst.as_mut_slice() {
                order.check(packet, counters);
            }
        }
        match self.mode {
            Mode::Sink => {
                let mut digest = self.digest;
                for packet in burst.drain() {
                    digest = digest.wrapping_add(read(packet.data()));
                    out.deliver(packet);
                }
                self.digest = digest;
                // A store that others may see is one the compiler must make.
                counters.digest.set(digest);
            }
            Mode::Echo => {
                for mut packet in burst.drain() {
                    self.owed += self.echo_share;
                    if self.owed < 1.0 {
                        self.digest = self.digest.wrapping_add(read(packet.data()));
                        out.deliver(packet);
                        continue;
                    }
                    self.owed -= 1.0;
                    swap_ends(&mut packet);
                    out.echo(packet);
                }
                counters.digest.set(self.digest);
            }
        }
        packets.saturating_mul(self.cost_ns.0.get() + self.stack_ns)
    }

    fn stack_ns(&self) -> u64 {
        self.stack_ns
    }

    fn is_application(&self) -> bool {
        true
    }

    fn report(&self) -> Vec<String> {
        match self.counters.get(self.index) {
            Some(counters) if self.order.is_some() => vec![counters.order(self.index)],
            _ => Vec::new(),
        }
    }
}

impl AppCounters {
    /// The result of the order check, for the user.
    fn order(&self, queue: usize) -> String {
        let (numbered, reordered) = (self.numbered.get(), self.reordered.get());
        let (skipped, unnumbered) = (self.skipped.get(), self.unnumbered.get());
        let in_order = numbered - reordered;
        let mut line = format!(
            "queue {queue}: {in_order} packets in order, {reordered} reordered, {skipped} skipped"
        );
        if unnumbered != 0 {
            line += &format!(", {unnumbered} without a sequence number");
        }
        let damaged = self.damaged.get();
        if damaged != 0 {
            line += &format!(", {damaged} with a wrong checksum");
        }
        line
    }
}

/// Reads a header: adds up its words.
#[inline(always)]
fn read(data: &[u8]) -> u64 {
    match data.first_chunk::<HEADER_BYTES>() {
        Some(header) => {
            let (words, _) = header.as_chunks::<8>();
            words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
        }
        None => data.iter().fold(0, |sum, &byte| sum.wrapping_add(byte.into())),
    }
}

/// Offsets of the headers, from the card if known.
fn layers_of(packet: &mut Descriptor) -> Layers {
    if packet.packet_type() == PacketType::NONE { packet.parse() } else { packet.layers() }
}

/// Swaps source and destination of Ethernet, IP, and TCP or UDP.
fn swap_ends(packet: &mut Descriptor) {
    let layers = layers_of(packet);
    let data = packet.data_mut();
    let l3 = usize::from(layers.l3_offset);
    swap(data, 0, 6);
    if layers.packet_type.is_ipv4() {
        swap(data, l3 + 12, 4);
    } else if layers.packet_type.is_ipv6() {
        swap(data, l3 + 8, 16);
    }
    if layers.packet_type.has_ports() {
        swap(data, layers.l4_offset.into(), 2);
    }
}

/// Swaps the `width` bytes at `at` with those after them, if present.
fn swap(data: &mut [u8], at: usize, width: usize) {
    if let Some(pair) = data.get_mut(at..at + 2 * width) {
        let (one, other) = pair.split_at_mut(width);
        one.swap_with_slice(other);
    }
}

/// The expected sequence number of each flow of each wire.
#[derive(Debug, Default)]
struct Order(Vec<Vec<u64>>);

impl Order {
    fn check(&mut self, packet: &mut Descriptor, counters: &AppCounters) {
        let layers = layers_of(packet);
        let stamp = payload(packet.data(), &layers).and_then(Stamp::read);
        let Some(Stamp { flow, sequence }) = stamp.filter(|stamp| stamp.flow < MAX_FLOWS) else {
            counters.unnumbered.add(1);
            return;
        };
        if packet.checksum() == ChecksumState::Unknown && !is_intact(packet.data(), &layers) {
            counters.damaged.add(1);
            return;
        }
        counters.numbered.add(1);
        let expected = self.expected(packet.wire, flow as usize);
        if sequence < *expected {
            counters.reordered.add(1);
        } else {
            counters.skipped.add(sequence - *expected);
            *expected = sequence.saturating_add(1);
        }
    }

    /// Grows when a flow is first seen; bounded by [`MAX_FLOWS`] for each wire.
    fn expected(&mut self, wire: u8, flow: usize) -> &mut u64 {
        let wire = usize::from(wire);
        if self.0.len() <= wire {
            self.0.resize(wire + 1, Vec::new());
        }
        let flows = &mut self.0[wire];
        if flows.len() <= flow {
            flows.resize((flow + 1).next_power_of_two(), 0);
        }
        &mut flows[flow]
    }
}

/// Whether the TCP or UDP checksum is right; false if it cannot be read.
fn is_intact(data: &[u8], layers: &Layers) -> bool {
    let l3 = usize::from(layers.l3_offset);
    let read = || {
        let header = data.get(l3..)?;
        let length =
            |at: usize| Some(usize::from(u16::from_be_bytes(*header.get(at..)?.first_chunk()?)));
        let (pseudo, end) = if layers.packet_type.is_ipv4() {
            let address = |at: usize| Some(*header.get(at..)?.first_chunk::<4>()?);
            (PseudoHeader::v4(address(12)?.into(), address(16)?.into()), length(2)?)
        } else {
            let address = |at: usize| Some(*header.get(at..)?.first_chunk::<16>()?);
            (PseudoHeader::v6(address(8)?.into(), address(24)?.into()), 40 + length(4)?)
        };
        Some((pseudo, data.get(layers.l4_offset.into()..l3 + end)?))
    };
    let protocol = if layers.packet_type.is_tcp() { IpProtocol::TCP } else { IpProtocol::UDP };
    read().is_some_and(|(pseudo, segment)| pseudo.verify(protocol, segment))
}

/// The payload of TCP or UDP.
fn payload<'d>(data: &'d [u8], layers: &Layers) -> Option<&'d [u8]> {
    let l4 = data.get(layers.l4_offset.into()..)?;
    if layers.packet_type.is_tcp() {
        l4.get(usize::from(l4.get(12)? >> 4) * 4..)
    } else if layers.packet_type.is_udp() {
        l4.get(8..)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
