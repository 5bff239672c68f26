//! A switch between the cards of a cluster: rate, latency, and network faults.
//!
//! A frame occupies its card's line to the switch, then waits `latency_ns`, then for the line to
//! each receiver. The switch learns which addresses are behind which line; frames to a group or to
//! an unknown address go to all other lines.
//!
//! Guarantees: the same seed gives the same fates; without [`SwitchConfig::reorder`] the order from
//! one card to another is kept.
//!
//! Source: IEEE 802.1D (learning, flooding); IEEE 802.3, 3.2 and 4A.4.2 (framing).

use picnic_core::random::Random;
use picnic_core::time::Time;
use std::collections::BTreeMap;

/// The shortest frame, and preamble, check sequence and gap of each, in bytes.
const SHORTEST_BYTES: u64 = 60;
const FRAMING_BYTES: u64 = 4 + 8 + 12;

/// The properties of a switch and its lines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Rate of each line in Mb/s; 0: unlimited. Default: 1000.
    pub rate_mbps: f64,
    /// From the end of a frame at the switch to its start on the line to the receiver. Default:
    /// 2000 ns.
    pub latency_ns: u64,
    /// Frames that wait for a line; a further one is dropped. Default: 256.
    pub queue_frames: usize,
    /// Fraction of frames that are lost, for each receiver. Default: 0.
    pub loss: f64,
    /// Fraction of frames that arrive twice. Default: 0.
    pub duplicate: f64,
    /// Fraction of frames that later frames overtake. Default: 0.
    pub reorder: f64,
    /// How much later, at most. Default: 50,000 ns.
    pub reorder_ns: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        SwitchConfig {
            rate_mbps: 1000.0,
            latency_ns: 2_000,
            queue_frames: 256,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_ns: 50_000,
        }
    }
}

impl SwitchConfig {
    fn line_ns(&self, bytes: usize) -> u64 {
        let bytes = (bytes as u64).max(SHORTEST_BYTES) + FRAMING_BYTES;
        if self.rate_mbps > 0.0 { (bytes as f64 * 8e3 / self.rate_mbps).ceil() as u64 } else { 0 }
    }
}

/// Counts of a switch's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SwitchCounts {
    /// Frames that cards sent, and their bytes on the line, with framing.
    pub sent: u64,
    /// See `sent`.
    pub sent_bytes: u64,
    /// Frames that cards got.
    pub delivered: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that arrived late.
    pub delayed: u64,
    /// Frames between two islands of a partition.
    pub cut: u64,
    /// Frames that found a line's queue or the receiver's ring full.
    pub full: u64,
}

/// Where a frame under way arrives next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    Switch { from: usize },
    Card { to: usize },
}

/// A line of the switch, both directions.
#[derive(Clone, Debug, Default)]
struct Line {
    /// When the line is free again, towards the switch and towards the card.
    inward: Time,
    outward: Time,
    waiting: usize,
    island: u8,
}

/// A switch with the frames on it.
#[derive(Debug)]
pub(crate) struct Switch {
    config: SwitchConfig,
    random: Random,
    lines: Vec<Line>,
    learned: BTreeMap<[u8; 6], usize>,
    under_way: BTreeMap<(Time, u64), (Stop, Vec<u8>)>,
    number: u64,
    pub(crate) counts: SwitchCounts,
}

impl Switch {
    pub(crate) fn new(config: SwitchConfig, random: Random) -> Self {
        Switch {
            config,
            random,
            lines: Vec::new(),
            learned: BTreeMap::new(),
            under_way: BTreeMap::new(),
            number: 0,
            counts: SwitchCounts::default(),
        }
    }

    /// Changes the network from now on; frames under way keep their fates.
    pub(crate) fn set_config(&mut self, config: SwitchConfig) {
        self.config = config;
    }

    /// Another line; its number.
    pub(crate) fn add(&mut self) -> usize {
        self.lines.push(Line::default());
        self.lines.len() - 1
    }

    /// Frames pass only between lines of one island.
    pub(crate) fn set_island(&mut self, line: usize, island: u8) {
        self.lines[line].island = island;
    }

    /// When the next frame arrives somewhere.
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.under_way.first_key_value().map(|((time, _), _)| *time)
    }

    fn chance(&mut self, fraction: f64) -> bool {
        fraction > 0.0 && (self.random.next() >> 11) as f64 / ((1_u64 << 53) as f64) < fraction
    }

    fn push(&mut self, time: Time, stop: Stop, frame: Vec<u8>) {
        self.number += 1;
        self.under_way.insert((time, self.number), (stop, frame));
    }

    /// A card sends a frame.
    pub(crate) fn send(&mut self, now: Time, from: usize, frame: &[u8]) {
        let line_ns = self.config.line_ns(frame.len());
        let line = &mut self.lines[from];
        line.inward = line.inward.max(now) + line_ns;
        let at = line.inward;
        self.counts.sent += 1;
        self.counts.sent_bytes += (frame.len() as u64).max(SHORTEST_BYTES) + FRAMING_BYTES;
        self.push(at, Stop::Switch { from }, frame.to_vec());
    }

    /// The next frame's arrival; the line and the frame if it has reached a card.
    pub(crate) fn step(&mut self) -> Option<(Time, usize, Vec<u8>)> {
        let ((now, _), (stop, frame)) = self.under_way.pop_first()?;
        match stop {
            Stop::Card { to } => {
                self.lines[to].waiting -= 1;
                Some((now, to, frame))
            }
            Stop::Switch { from } => {
                self.forward(now, from, &frame);
                None
            }
        }
    }

    fn forward(&mut self, now: Time, from: usize, frame: &[u8]) {
        let [to, source] =
            [0, 6].map(|at| frame.get(at..).and_then(|rest| rest.first_chunk::<6>()));
        if let Some(source) = source {
            self.learned.insert(*source, from);
        }
        let is_group = to.is_none_or(|to| to[0] & 1 != 0);
        let known = to.filter(|_| !is_group).and_then(|to| self.learned.get(to)).copied();
        for line in 0..self.lines.len() {
            if line == from || known.is_some_and(|known| known != line) {
                continue;
            }
            if self.lines[line].island != self.lines[from].island {
                self.counts.cut += 1;
            } else if self.chance(self.config.loss) {
                self.counts.lost += 1;
            } else {
                self.leave(now, line, frame);
                if self.chance(self.config.duplicate) {
                    self.counts.duplicated += 1;
                    self.leave(now, line, frame);
                }
            }
        }
    }

    fn leave(&mut self, now: Time, to: usize, frame: &[u8]) {
        let SwitchConfig { latency_ns, queue_frames, reorder, reorder_ns, .. } = self.config;
        let line_ns = self.config.line_ns(frame.len());
        if self.lines[to].waiting >= queue_frames {
            self.counts.full += 1;
            return;
        }
        let line = &mut self.lines[to];
        line.waiting += 1;
        line.outward = line.outward.max(now + latency_ns) + line_ns;
        let mut at = line.outward;
        if self.chance(reorder) {
            self.counts.delayed += 1;
            at = at + self.random.between(&(1..=reorder_ns.max(1)));
        }
        self.push(at, Stop::Card { to }, frame.to_vec());
    }
}
