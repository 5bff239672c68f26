//! The cost of a rate-limited wire, per packet: towards the card and towards the port.
//!
//! A port that always has a burst, and always sends, is polled as often as the link's rate allows,
//! alone and with the link in turn. The timing covers the calls of the wire, not making and
//! returning packets. The figures are the additional cost of the link.

use super::{all_within, measured};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::ledger::CardLedger;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Capabilities, Description, Receiver, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_host::registries;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The shortest frame; below, its time on a link of 10 Gb/s, rounded up.
const FRAME_BYTES: usize = 60;
const LINK: &str = "[wire.link]\nrate_mbps = 10000\n";
const FRAME_NS: u64 = 68;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Links {
    /// Packets of a burst, 1 to 64 each
    packets: Vec<u64>,
    /// Bursts of each timing
    #[schemars(range(min = 1, max = 1_000_000))]
    bursts: usize,
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Links {
    fn default() -> Self {
        Links { packets: vec![64, 8], bursts: 500, repeats: 101 }
    }
}

impl Benchmark for Links {
    const NAME: &'static str = "link";
    const HELP: &'static str = "cost of a rate-limited wire, per packet";
    const QUICK: &'static str = "bursts = 4\nrepeats = 2";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("packets", &self.packets, 1, BURST as u64)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let mut outcome = measured();
        let rounds = self.packets.len() as u64 * u64::from(self.repeats);
        let mut round = 0;
        for &packets in &self.packets {
            let mut sides =
                [Side::new(packets as usize, false)?, Side::new(packets as usize, true)?];
            let mut added = [const { Vec::new() }; 2];
            for _ in 0..self.repeats {
                run.round(round, rounds);
                round += 1;
                let [bare, linked] = sides.each_mut().map(|side| side.receive(self.bursts));
                added[0].push(linked - bare);
                let [bare, linked] = sides.each_mut().map(|side| side.transmit(self.bursts));
                added[1].push(linked - bare);
            }
            let [received, sent] = added;
            outcome.add(Figure::of(&format!("received_{packets}_added_ns"), received));
            outcome.add(Figure::of(&format!("sent_{packets}_added_ns"), sent));
        }
        Ok(outcome)
    }
}

/// Has this many packets whenever it is polled.
struct Ready(usize);

impl WirePort for Ready {
    fn describe(&self) -> Description {
        let capabilities = Capabilities { arrival: true, ..Capabilities::default() };
        Description { capabilities, ..Description::default() }
    }

    fn receive(&mut self, _: Time, rx: &mut Receiver<'_>) {
        rx.place_many(self.0, FRAME_BYTES);
    }

    fn transmit(&mut self, _: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            tx.sent(packet);
        }
    }
}

/// A wire, and the minimum of a card.
struct Side {
    wire: Box<dyn WirePort>,
    packets: usize,
    now: Time,
    pool: Pool,
    burst: Burst,
    queue: VecDeque<Descriptor>,
    counters: WireCounters,
    ledger: CardLedger,
}

impl Side {
    fn new(packets: usize, is_linked: bool) -> anyhow::Result<Self> {
        let wire: Box<dyn WirePort> = Box::new(Ready(packets));
        let link = if is_linked { LINK } else { "" };
        let card = CardFile::parse(&format!("[[wire]]\n{link}"), None)?;
        let wire = (registries().middleware)(wire, &card.wires[0], &BuildContext::default())?;
        Ok(Side {
            wire,
            packets,
            now: Time::ZERO,
            pool: Pool::new(&PoolConfig::default(), 0)?.0,
            burst: Burst::new(),
            queue: VecDeque::with_capacity(BURST),
            counters: WireCounters::default(),
            ledger: CardLedger::default(),
        })
    }

    /// The time of the next burst: the previous one has just left the line.
    fn turn(&mut self) -> Time {
        self.now = self.now + FRAME_NS * self.packets as u64;
        self.now
    }

    /// Nanoseconds per packet until the card has it.
    fn receive(&mut self, bursts: usize) -> f64 {
        let (mut spent, mut packets) = (Duration::ZERO, 0);
        for _ in 0..bursts {
            let now = self.turn();
            let Side { wire, pool, burst, counters, ledger, .. } = self;
            let start = Instant::now();
            wire.receive(now, &mut Receiver::new(pool, burst, counters, ledger, now, 0, BURST));
            spent += start.elapsed();
            packets += burst.len();
            burst.drain().for_each(|packet| pool.free(packet));
        }
        spent.as_nanos() as f64 / packets.max(1) as f64
    }

    /// Nanoseconds per packet from the card's queue until it has left.
    fn transmit(&mut self, bursts: usize) -> f64 {
        let (mut spent, before) = (Duration::ZERO, self.counters.tx_packets.get());
        for _ in 0..bursts {
            let now = self.turn();
            let Side { wire, pool, queue, counters, ledger, packets, .. } = self;
            while queue.len() < *packets
                && let Some(packet) = pool.allocate(FRAME_BYTES)
            {
                queue.push_back(packet);
            }
            let start = Instant::now();
            wire.transmit(now, &mut Transmitter::new(pool, queue, counters, ledger));
            spent += start.elapsed();
        }
        let packets = self.counters.tx_packets.get() - before;
        spent.as_nanos() as f64 / packets.max(1) as f64
    }
}
