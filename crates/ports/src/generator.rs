//! A wire that makes its own packets: flows, sizes and rate by seed.
//!
//! ```toml
//! [[wire]]
//! port = "generator"
//! flows = 4096
//! popularity = "zipf"
//! ipv6_share = 0.5
//! size = "imix"
//! rate_pps = 1000000
//! burst = 32
//! ```
//!
//! Guarantees: the same seed and keys give the same packets; addresses, lengths and checksums of
//! every frame are right; the load offered is never silently reduced: at a rate, packets that the
//! card does not take in time are shed and counted (beyond `backlog` as `backlog_full`, without a
//! buffer as `pool_exhausted`), and each packet's receive time is its due time: evenly spaced, or
//! random (`arrivals`) with the rate as the mean. Without a rate the wire is patient: it has
//! packets whenever the card polls, and loses none. Packets that the card sends to this wire are
//! counted and discarded.
//!
//! `frames = "reuse"` writes the pool's buffers once and never again, to measure the card without
//! the generator's stores. It needs a card with only this wire, and functions and a host that write
//! to no packet. The flow then belongs to the buffer: popularity and order determine the contents
//! of the buffers, not the next packet.
//!
//! Source: RFC 2544, RFC 4814, RFC 5180 for what benchmarks send.

mod arrivals;
mod commands;
mod config;
mod flow;
mod flows;
mod pace;
mod popularity;
pub(crate) mod random;
mod stamp;
#[cfg(test)]
mod tests;

pub use config::{
    ArrivalsKind, Frames, GeneratorConfig, MAX_FLOWS, MIN_FRAME_BYTES, Order, PopularityKind, Size,
};
pub use flow::{FlowConfig, FlowKind, Ports, Protocol};
pub use stamp::Stamp;

use arrivals::Paced;
use flows::{Flows, Shape, Template, Templates};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::BURST;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Rate, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use popularity::{AliasTable, Popularity};
use random::Random;

/// The generator.
#[derive(Debug)]
pub struct Generator {
    flows: Flows,
    popularity: Popularity,
    writer: Writer,
    /// None: as fast as the card takes them.
    pace: Option<Paced>,
    /// Packets due and not yet polled.
    waiting: u64,
    /// Most such packets.
    backlog: u64,
    /// Packets without a place since the last shedding.
    lost: u64,
    /// Remaining packets.
    remaining: u64,
    /// Flows of the packets being made.
    chosen: [u32; BURST],
}

/// How frames are written into buffers.
#[derive(Debug)]
enum Writer {
    /// All have the template's length: a copy.
    Same { length: u16 },
    /// Lengths vary, or there are sequence numbers: a copy and a correction.
    Varied(VariedFrames),
    /// The buffers hold frames already, once they have been filled.
    Reuse { length: u16, filled: bool },
}

#[derive(Debug)]
struct VariedFrames {
    sizes: Sizes,
    random: Random,
    /// The next sequence number of each flow; empty for none.
    sequences: Vec<u64>,
}

/// The frame sizes of the flows.
#[derive(Debug)]
enum Sizes {
    /// The same of all.
    All(Size),
    /// One of each.
    Each(Vec<Size>),
}

impl Sizes {
    /// The smallest and the largest.
    fn bounds(&self) -> (u16, u16) {
        match self {
            Sizes::All(size) => size.bounds(),
            Sizes::Each(sizes) => sizes.iter().fold((u16::MAX, 0), |(low, high), size| {
                let bounds = size.bounds();
                (low.min(bounds.0), high.max(bounds.1))
            }),
        }
    }
}

impl Component for Generator {
    type Product = Box<dyn WirePort>;
    type Config = GeneratorConfig;
    const NAME: &'static str = "generator";
    const HELP: &'static str = "generate packets: flows, protocols, sizes and rate, by seed";
    const IN_VIRTUAL_TIME: bool = true;
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;

    fn build(
        config: GeneratorConfig,
        context: &BuildContext,
    ) -> Result<Box<dyn WirePort>, ConfigError> {
        Ok(Box::new(Generator::new(&config, context)?))
    }
}

impl Generator {
    /// A generator as configured.
    ///
    /// # Errors
    /// A wrong value: key, value found, values allowed.
    pub fn new(config: &GeneratorConfig, context: &BuildContext) -> Result<Self, ConfigError> {
        config.validate(context.buffer_size)?;
        // A stream of random numbers for each purpose, so that one key does not disturb another.
        let stream =
            |purpose: u64| Random::new(context.seed, (context.position as u64) << 8 | purpose);
        let plans = config.plans(context.buffer_size)?;
        let mut flows = Flows::draw(config, &plans, &mut stream(0))
            .map_err(|error| ConfigError::new("flows", error.to_string()))?;
        let headers = flows.longest();
        let shares = std::mem::take(&mut flows.shares);
        let sizes = std::mem::take(&mut flows.sizes);
        let all = sizes.first().copied().unwrap_or(config.size);
        let sizes = match sizes.iter().all(|size| *size == all) {
            true => Sizes::All(all),
            false => Sizes::Each(sizes),
        };
        if flows.template_bytes() > context.buffer_size {
            return Err(ConfigError::new(
                "ipv6_share",
                format!(
                    "found headers of {headers} bytes, allowed with buffers of {} bytes: 64 bytes",
                    context.buffer_size
                ),
            ));
        }
        let (_, largest) = sizes.bounds();
        if config.sequence_numbers && usize::from(largest) < headers + Stamp::BYTES {
            return Err(ConfigError::new(
                "sequence_numbers",
                format!(
                    "found true with frames of up to {largest} bytes, allowed: with frames of {} \
                     bytes or more",
                    headers + Stamp::BYTES
                ),
            ));
        }
        let writer = match sizes {
            Sizes::All(Size::Fixed(length))
                if headers <= usize::from(length) && !config.sequence_numbers =>
            {
                flows.lengthen_all(length);
                match config.frames {
                    Frames::Fresh => Writer::Same { length },
                    Frames::Reuse => Writer::Reuse { length, filled: false },
                }
            }
            sizes => {
                let numbered = if config.sequence_numbers { flows.shapes.len() } else { 0 };
                let sequences = vec![0; numbered];
                Writer::Varied(VariedFrames { sizes, random: stream(1), sequences })
            }
        };
        if config.frames == Frames::Reuse {
            if !matches!(writer, Writer::Reuse { .. }) {
                return Err(config::reuse(&format!("headers of {headers} bytes")));
            }
            if context.wires != 1 {
                return Err(config::reuse(&format!("{} wires", context.wires)));
            }
        }
        let count = flows.shapes.len() as u32;
        let popularity = match (config.popularity, config.order) {
            (PopularityKind::Uniform, Order::Random) if shares.windows(2).any(|w| w[0] != w[1]) => {
                Popularity::Weighted { random: stream(2), table: AliasTable::new(&shares) }
            }
            (PopularityKind::Uniform, Order::Random) => {
                Popularity::Uniform { random: stream(2), flows: count }
            }
            (PopularityKind::Uniform, Order::Sequence) => {
                Popularity::Sequence { next: 0, flows: count }
            }
            (PopularityKind::Zipf, _) => Popularity::Weighted {
                random: stream(2),
                table: AliasTable::zipf(count, config.zipf_exponent),
            },
        };
        Ok(Generator {
            flows,
            popularity,
            writer,
            pace: (config.rate_pps != 0).then(|| Paced::new(config, stream(3))),
            waiting: 0,
            lost: 0,
            backlog: config.backlog.into(),
            remaining: if config.packets == 0 { u64::MAX } else { config.packets },
            chosen: [0; BURST],
        })
    }

    /// Makes up to `count` packets in available buffers; returns the number.
    #[inline]
    fn make(&mut self, count: usize, rx: &mut Receiver<'_>) -> usize {
        if let Writer::Reuse { length, filled } = &mut self.writer {
            if !*filled {
                *filled = fill(rx.pool(), &mut self.popularity, &self.flows.templates, *length);
            }
            if *filled {
                return hand_over(count, *length, rx);
            }
        }
        let chosen = &mut self.chosen[..count];
        self.popularity.choose(chosen);
        let shapes = &self.flows.shapes;
        match (&mut self.writer, &self.flows.templates) {
            (Writer::Same { length } | Writer::Reuse { length, .. }, Templates::One(templates)) => {
                copy::<64, 48, 16>(templates, chosen, *length, rx)
            }
            (Writer::Same { length } | Writer::Reuse { length, .. }, Templates::Two(templates)) => {
                copy::<128, 64, 64>(templates, chosen, *length, rx)
            }
            (Writer::Varied(varied), Templates::One(templates)) => {
                varied.write::<64, 48, 16>(templates, shapes, chosen, rx)
            }
            (Writer::Varied(varied), Templates::Two(templates)) => {
                varied.write::<128, 64, 64>(templates, shapes, chosen, rx)
            }
        }
    }
}

impl WirePort for Generator {
    fn describe(&self) -> Description {
        // Sent packets go nowhere, so super-frames need not be segmented.
        let capabilities = Capabilities {
            patient: self.pace.is_none(),
            super_frames: true,
            arrival: self.pace.is_some(),
            tells_waiting: self.pace.is_some(),
            ..Capabilities::default()
        };
        let arrivals = match &self.pace {
            None => Arrivals {
                rate: Rate::Asked,
                room: Some(u64::MAX),
                origin: "it waits until it is asked".into(),
                ..Arrivals::default()
            },
            Some(Paced::Random(_)) => Arrivals {
                room: Some(self.backlog),
                origin: "its packets arrive at random: at no rate for sure".into(),
                room_origin: "backlog",
                ..Arrivals::default()
            },
            Some(Paced::Even { pace, .. }) => Arrivals {
                rate: Rate::Pps(pace.rate()),
                burst: pace.burst(),
                room: Some(self.backlog),
                origin: "rate_pps".into(),
                room_origin: "backlog",
            },
        };
        Description { capabilities, arrivals, ..Description::default() }
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let room = rx.room().min(BURST);
        let wanted = match &mut self.pace {
            None => self.remaining.min(room as u64),
            Some(paced) => {
                let places = self.backlog.max(room as u64);
                let (kept, lost) = paced.advance(now, self.waiting, self.remaining, places);
                if lost + self.lost != 0 {
                    rx.shed(DropReason::BacklogFull, lost + std::mem::take(&mut self.lost));
                    self.remaining -= lost;
                }
                self.waiting = kept;
                self.waiting.min(room as u64)
            }
        } as usize;
        if wanted == 0 {
            return;
        }
        let home = if rx.pool().ensure(wanted) { wanted } else { rx.pool().available() };
        let first = rx.pushed().len();
        let mut offered = self.make(home.min(wanted), rx);
        if let Some(paced) = &mut self.pace {
            paced.stamp(first, rx);
            // A wire does not wait for buffers.
            if offered < wanted {
                rx.shed(DropReason::PoolExhausted, (wanted - offered) as u64);
                paced.lose((wanted - offered) as u64);
                offered = wanted;
            }
            self.waiting -= offered as u64;
        }
        if self.remaining != u64::MAX {
            self.remaining -= offered as u64;
        }
        // The lines of the next burst travel while the chain works on this one.
        match self.writer {
            Writer::Reuse { filled: true, .. } => rx.pool().prefetch_for_read(wanted),
            _ => rx.pool().prefetch_for_write(wanted),
        }
    }

    fn holds(&mut self, now: Time, frames: usize) -> bool {
        if let Some(paced) = &mut self.pace {
            // As many have a place as when they are taken in whole bursts.
            let places = self.backlog.max(BURST as u64);
            let (kept, lost) = paced.advance(now, self.waiting, self.remaining, places);
            (self.waiting, self.remaining) = (kept, self.remaining - lost);
            self.lost += lost;
        }
        self.waiting >= frames as u64
    }

    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            tx.sent(packet);
        }
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }

    fn status(&self) -> Status<'_> {
        let due = |paced: &Paced| match self.waiting {
            0 => paced.next_arrival(),
            _ => paced.last(),
        };
        let is_finished = self.remaining == 0;
        Status {
            next_deadline: self.pace.as_ref().filter(|_| !is_finished).map(due),
            next_arrival: self.pace.as_ref().map(Paced::next_arrival),
            is_finished,
            ..Status::default()
        }
    }
}

/// Frames that are all `length` bytes: copies of their flows' templates, and zeros.
#[inline]
fn copy<const N: usize, const HEAD: usize, const TAIL: usize>(
    templates: &[Template<N>],
    chosen: &[u32],
    length: u16,
    rx: &mut Receiver<'_>,
) -> usize {
    let packets = rx.place_many(chosen.len(), length.into());
    for (packet, &flow) in packets.iter_mut().zip(chosen) {
        if let Some(template) = templates.get(flow as usize) {
            template.write::<HEAD, TAIL>(packet.data_mut());
        }
    }
    packets.len()
}

/// Frames that were written before.
#[inline]
fn hand_over(count: usize, length: u16, rx: &mut Receiver<'_>) -> usize {
    rx.place_many(count, length.into()).len()
}

/// Writes a frame into every buffer of the pool; false, and nothing done, if some are in use.
#[cold]
fn fill(pool: &mut Pool, popularity: &mut Popularity, templates: &Templates, length: u16) -> bool {
    let buffers = pool.buffers();
    if !pool.ensure(buffers) {
        return false;
    }
    let mut packets = Vec::with_capacity(buffers);
    let mut flow = [0];
    for _ in 0..buffers {
        popularity.choose(&mut flow);
        let template: &[u8] = match templates {
            Templates::One(templates) => &templates[flow[0] as usize].0,
            Templates::Two(templates) => &templates[flow[0] as usize].0,
        };
        let Some(mut packet) = pool.allocate(length.into()) else { break };
        let data = packet.data_mut();
        let head = data.len().min(template.len());
        data[..head].copy_from_slice(&template[..head]);
        data[head..].fill(0);
        packets.push(packet);
    }
    let filled = packets.len() == buffers;
    // Last taken, first returned: the free list is unchanged.
    while let Some(packet) = packets.pop() {
        pool.free(packet);
    }
    filled
}

impl VariedFrames {
    #[inline]
    fn write<const N: usize, const HEAD: usize, const TAIL: usize>(
        &mut self,
        templates: &[Template<N>],
        shapes: &[Shape],
        chosen: &[u32],
        rx: &mut Receiver<'_>,
    ) -> usize {
        for (made, &flow) in chosen.iter().enumerate() {
            let flow_index = flow as usize;
            let (Some(template), Some(&shape)) =
                (templates.get(flow_index), shapes.get(flow_index))
            else {
                return made;
            };
            let headers = shape.end() as u16;
            let length = self.draw_size(flow_index).max(headers);
            let Some(packet) = rx.place(length.into()) else { return made };
            let data = packet.data_mut();
            template.write::<HEAD, TAIL>(data);
            let payload = length - headers;
            shape.lengthen(data, payload);
            if usize::from(payload) >= Stamp::BYTES
                && let Some(sequence) = self.sequences.get_mut(flow_index)
            {
                shape.stamp(data, Stamp { flow, sequence: *sequence });
                *sequence += 1;
            }
        }
        chosen.len()
    }

    #[inline]
    fn draw_size(&mut self, flow: usize) -> u16 {
        let size = match &self.sizes {
            Sizes::All(size) => *size,
            Sizes::Each(sizes) => sizes.get(flow).copied().unwrap_or(Size::Imix),
        };
        match size {
            Size::Fixed(size) => size,
            Size::Range(low, high) => self.random.within(low, high),
            Size::Imix => match self.random.below(12) {
                0..7 => 60,
                7..11 => 590,
                _ => 1514,
            },
        }
    }
}
