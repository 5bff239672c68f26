//! The cost to the borrowed core of arrival times and of transmit completion.
//!
//! Arrival times: bursts received through a wire's [`Receiver`] with the time of the turn, and with
//! their own times by each method of the ports: reported ahead of each packet (`packet`), read in
//! front of each (`xdp`), computed from a rate (a paced `generator`). Packets of `xdp` are in lent
//! buffers, so the baseline is the same without times (`lent`).
//!
//! Transmit completion: a card driven by hand on one core, whose host sends a packet per turn and
//! either has room for more or waits for room. Doorbells are silent, so the figure is the card's
//! own work. All take turns.

use super::{measured, time_per_packet};
use picnic_control::{Launch, Registries};
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::error::ConfigError;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::lend::Loans;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Clocks, Receiver};
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_lab::compare::order;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bursts of a timing.
const BURSTS: usize = 1 << 10;
/// Turns of a timing.
const TURNS: usize = 1 << 14;
/// Bytes of each packet.
const BYTES: u16 = 60;
/// Offset of a packet in a lent buffer, the mark before it, and its meaning.
const IN_FRONT: u64 = 64;
const STAMP_BYTES: u64 = 16;
const MARK: u64 = 0x5eed_5eed;
/// The kernel's clocks at time zero.
const CLOCKS: Clocks = Clocks { realtime_ns: 1 << 60, monotonic_ns: 1 << 50 };

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Modes {
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Modes {
    fn default() -> Self {
        Modes { repeats: 101 }
    }
}

impl Benchmark for Modes {
    const NAME: &'static str = "modes";
    const HELP: &'static str = "cost of arrival times and transmit completion";
    const QUICK: &'static str = "repeats = 2";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let stamps = [Stamp::Taken, Stamp::Ahead, Stamp::Paced, Stamp::Lent, Stamp::InFront];
        let completions = ["off", "interrupt", "moderated"];
        let mut wire = Wire::new()?;
        let mut cards = Vec::new();
        for is_greedy in [false, true] {
            for told in completions {
                cards.push(Sending::new(told, is_greedy)?);
            }
        }
        let mut taken: Vec<Vec<f64>> = vec![Vec::new(); stamps.len()];
        let mut turns: Vec<Vec<f64>> = vec![Vec::new(); cards.len()];
        for repeat in 0..self.repeats {
            run.round(repeat.into(), self.repeats.into());
            for index in order(repeat as usize, stamps.len()) {
                taken[index].push(wire.run(stamps[index]));
            }
            for index in order(repeat as usize, cards.len()) {
                turns[index].push(cards[index].run());
            }
        }
        let mut outcome = measured();
        outcome.tell("burst", BURST);
        for (stamp, times) in stamps.iter().zip(&taken) {
            let base = if *stamp == Stamp::InFront { Stamp::Lent } else { Stamp::Taken };
            let base = stamps.iter().zip(&taken).find(|(stamp, _)| **stamp == base);
            let base = base.map_or(&taken[0], |(_, times)| times);
            let point = Point::at("stamps", stamp.name())
                .with(Figure::of("taken_ns", times.clone()).called("a packet taken in"))
                .with(Figure::of("extra_ns", beyond(times, base)).called("more"));
            outcome.series("arrival").push(point);
        }
        for (index, times) in turns.iter().enumerate() {
            let off = index - index % completions.len();
            let host = if off == 0 { "has room" } else { "waits for room" };
            let point = Point::at("tx_complete", completions[index % completions.len()])
                .and("host", host)
                .with(Figure::of("turn_ns", times.clone()).called("a turn of a packet"))
                .with(Figure::of("extra_ns", beyond(times, &turns[off])).called("more"));
            outcome.series("completion").push(point);
        }
        Ok(outcome)
    }
}

/// The difference between two series of times, repeat by repeat.
fn beyond(times: &[f64], base: &[f64]) -> Vec<f64> {
    times.iter().zip(base).map(|(time, base)| time - base).collect()
}

/// The source of a wire's arrival times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    Taken,
    Ahead,
    Paced,
    Lent,
    InFront,
}

impl Stamp {
    fn name(self) -> &'static str {
        match self {
            Stamp::Taken => "none",
            Stamp::Ahead => "packet",
            Stamp::Paced => "generator",
            Stamp::Lent => "lent",
            Stamp::InFront => "xdp",
        }
    }
}

/// A wire's side of the receive path, and a pool to take buffers from.
struct Wire {
    pool: Pool,
    loans: Loans,
    burst: Burst,
    counters: WireCounters,
    ledger: Arc<Ledger>,
    now: Time,
}

impl Wire {
    /// On the heap, like a card's: an unlucky stack address can double the times.
    fn new() -> anyhow::Result<Box<Self>> {
        let (mut pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        let mut loans = Loans::new(&pool);
        // Each buffer has a time and a mark before the packet's place, for all cases.
        let places: Vec<_> = std::iter::from_fn(|| loans.lend(&mut pool)).collect();
        for place in places {
            let stamp = loans.take(place + IN_FRONT - STAMP_BYTES, 16, Time::ZERO, 0);
            if let Some(mut stamp) = stamp {
                let words = [CLOCKS.monotonic_ns + 1, MARK].map(u64::to_ne_bytes);
                stamp.data_mut().copy_from_slice(words.as_flattened());
                pool.free(stamp);
            }
        }
        Ok(Box::new(Wire {
            pool,
            loans,
            burst: Burst::new(),
            counters: WireCounters::default(),
            ledger: Arc::new(Ledger::new(0)),
            now: Time::ZERO,
        }))
    }

    /// Nanoseconds per packet received and returned.
    #[inline(never)]
    fn run(&mut self, stamp: Stamp) -> f64 {
        let mut take = || match stamp {
            Stamp::Lent | Stamp::InFront => self.take_lent(stamp == Stamp::InFront),
            Stamp::Taken | Stamp::Ahead | Stamp::Paced => self.take(stamp),
        };
        time_per_packet(BURSTS * BURST, || (0..BURSTS).for_each(|_| take()))
    }

    fn take(&mut self, stamp: Stamp) {
        self.now = self.now + 10_000;
        let (now, first) = (self.now, self.now.as_nanos() - 10_000);
        let Wire { pool, burst, counters, ledger, .. } = self;
        let mut rx = Receiver::new(pool, burst, counters, &ledger.card, now, 0, BURST)
            .with_clocks(Some(CLOCKS));
        for index in 0..BURST as u64 {
            let arrived = first + 100 * index;
            if stamp == Stamp::Ahead {
                rx.arrived_at_realtime(CLOCKS.realtime_ns + arrived);
            }
            let Some(packet) = rx.place(BYTES.into()) else { break };
            packet.data_mut()[..8].copy_from_slice(&arrived.to_ne_bytes());
        }
        if stamp == Stamp::Paced {
            let mut next = first;
            rx.stamp(0, || {
                next += 100;
                Time::from_nanos(next)
            });
        }
        drop(rx);
        for packet in burst.drain() {
            pool.free(packet);
        }
    }

    /// A burst of packets from lent buffers, as `xdp` receives them.
    fn take_lent(&mut self, has_stamps: bool) {
        self.now = self.now + 10_000;
        let Wire { pool, loans, burst, counters, ledger, now } = self;
        let mut places = [0; BURST];
        places.iter_mut().for_each(|place| *place = loans.lend(pool).unwrap_or_default());
        let mut rx = Receiver::new(pool, burst, counters, &ledger.card, *now, 0, BURST)
            .with_clocks(Some(CLOCKS));
        for place in places {
            let taken = loans.take(place + IN_FRONT, BYTES.into(), *now, 0);
            let Some(packet) = taken else { break };
            if has_stamps {
                rx.arrived_at_monotonic(packet.in_front(STAMP_BYTES as u16).and_then(|stamp| {
                    let (words, _) = stamp.as_chunks();
                    let [ns, mark] = [*words.first()?, *words.last()?].map(u64::from_ne_bytes);
                    (mark == MARK).then_some(ns)
                }));
            }
            rx.push(packet);
        }
        drop(rx);
        for packet in burst.drain() {
            pool.free(packet);
        }
    }
}

/// Keys of a host that sends.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SenderKeys {
    /// It asks for more buffers than there are.
    greedy: bool,
}

/// A host that sends a packet whenever it is polled.
struct Sender(SenderKeys);

impl Component for Sender {
    type Product = Box<dyn HostAttachment>;
    type Config = SenderKeys;
    const NAME: &'static str = "sender";
    const HELP: &'static str = "sends a packet at each poll";

    fn build(keys: SenderKeys, _: &BuildContext) -> Result<Self::Product, ConfigError> {
        Ok(Box::new(Sender(keys)))
    }
}

static SENDERS: &[Entry<Box<dyn HostAttachment>>] = &[Entry::of::<Sender>()];

impl HostAttachment for Sender {
    fn open_queue(&mut self, _: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(Sender(self.0)))
    }

    fn wants_buffers(&self) -> usize {
        if self.0.greedy { 1 } else { BURST }
    }
}

impl HostQueue for Sender {
    fn deliver(&mut self, _: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        burst.drain().for_each(|packet| out.deliver(packet));
        0
    }

    fn transmit(&mut self, _: Time, out: &mut QueueOut<'_>) -> usize {
        let mut sent = 0;
        while sent == 0 || self.0.greedy {
            let Some(mut packet) = out.buffer() else { break };
            packet.truncate(BYTES);
            out.submit(packet);
            sent += 1;
        }
        sent
    }
}

/// A card whose host sends, with both sides driven by one thread.
struct Sending {
    assembled: Assembled,
    burst: Burst,
    now: Time,
}

impl Sending {
    fn new(tx_complete: &str, is_greedy: bool) -> anyhow::Result<Self> {
        let text = format!(
            "[[wire]]\nport = \"generator\"\npackets = 1\nrate_pps = 1\n[host]\n\
             attachment = \"sender\"\ngreedy = {is_greedy}\nqueues = 1\n\
             [interrupt]\ntx_complete = \"{tx_complete}\"\n"
        );
        let file = picnic_host::sections().parse(&text, None)?;
        let registries = Registries { attachments: SENDERS, ..picnic_host::registries() };
        let parts = Launch::new(&file, registries).build()?.parts;
        let bell = || Arc::new(NoDoorbell) as Arc<dyn Doorbell>;
        let assembled = assemble(&file, parts, &[bell()], bell())?;
        Ok(Sending { assembled, burst: Burst::new(), now: Time::ZERO })
    }

    /// Nanoseconds per packet sent by the host, one per turn.
    fn run(&mut self) -> f64 {
        let Sending { assembled, burst, now } = self;
        let mut sent = 0;
        let total = time_per_packet(1, || {
            while sent < TURNS {
                *now = *now + 100;
                sent += assembled.queues[0].poll(*now, burst).transmitted;
                assembled.card.poll(*now);
            }
        });
        total / sent as f64
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.assembled.card.stop_receiving(self.now);
        let queue = &mut self.assembled.queues[0];
        queue.stop_transmitting();
        while queue.poll(self.now, &mut self.burst).packets != 0 {}
        self.assembled.card.finish(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_room_interrupts_match_each_mode() {
        let mut wire = Wire::new().unwrap();
        for stamp in [Stamp::Taken, Stamp::Ahead, Stamp::Paced, Stamp::Lent, Stamp::InFront] {
            wire.run(stamp);
            assert_eq!((wire.counters.stamps_ahead.get(), wire.pool.outstanding()), (0, 0));
        }
        for (told, is_greedy, is_told) in [
            ("off", true, false),
            ("interrupt", false, false),
            ("interrupt", true, true),
            ("moderated", true, true),
        ] {
            let mut card = Sending::new(told, is_greedy).unwrap();
            assert!(card.run() > 0.0);
            let queue = &card.assembled.view.queues[0];
            let interrupts = queue.target.interrupts.get();
            assert_eq!(interrupts > 100, is_told, "{told} {is_greedy}: {interrupts}");
        }
    }
}
