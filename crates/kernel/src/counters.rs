//! Copies the programs' counters into the card's.
//!
//! Guarantees: a packet is counted once where it enters and once where it leaves, so at the end of
//! a run the ledger balances by the counts of both ends. Figures that the kernel does not report
//! stay zero or null.

use crate::object::{CountsMap, Object, RingsMap};
use crate::plan::{MOST_STEPS, MOST_WIRES, Plan, Step};
use picnic_control::error::RunError;
use picnic_core::direction::Direction;
use picnic_core::kernel::KernelCounts;
use picnic_core::ledger::{DropReason, Drops, Stage};
use picnic_engine::view::View;
use picnic_machine::topology::Placement;

/// The map of per-core counters.
pub(crate) const COUNTS: &str = "COUNTS";

const WORDS: usize = 4 * MOST_WIRES + 4 * MOST_STEPS + 1 + 16;
/// `struct counts`, word by word.
pub(crate) type CoreCounts = [u64; WORDS];

/// `struct counts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) wire_packets: [u64; MOST_WIRES],
    wire_bytes: [u64; MOST_WIRES],
    steered: [u64; MOST_STEPS + 1],
    dropped: [u64; MOST_STEPS],
    lost: u64,
    refused: u64,
    pub(crate) delivered_packets: u64,
    delivered_bytes: u64,
    without_buffer: u64,
    polls: u64,
    empty_polls: u64,
    wakeups: u64,
    unhashed: u64,
    filtered: u64,
    unreadable: u64,
    steered_by_filters: u64,
    tagged: u64,
    sent_packets: [u64; MOST_WIRES],
    sent_bytes: [u64; MOST_WIRES],
    left: [u64; MOST_STEPS],
    redirected: u64,
    aborted: [u64; MOST_STEPS],
    polled: u64,
    unpolled: u64,
}

impl Counts {
    pub(crate) fn of(words: &CoreCounts) -> Self {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        // In the order of `struct counts`, as fields are evaluated in source order.
        Counts {
            wire_packets: std::array::from_fn(|_| next()),
            wire_bytes: std::array::from_fn(|_| next()),
            steered: std::array::from_fn(|_| next()),
            dropped: std::array::from_fn(|_| next()),
            lost: next(),
            refused: next(),
            delivered_packets: next(),
            delivered_bytes: next(),
            without_buffer: next(),
            polls: next(),
            empty_polls: next(),
            wakeups: next(),
            unhashed: next(),
            filtered: next(),
            unreadable: next(),
            steered_by_filters: next(),
            tagged: next(),
            sent_packets: std::array::from_fn(|_| next()),
            sent_bytes: std::array::from_fn(|_| next()),
            left: std::array::from_fn(|_| next()),
            redirected: next(),
            aborted: std::array::from_fn(|_| next()),
            polled: next(),
            unpolled: next(),
        }
    }

    /// In the order that `of` reads.
    fn words(&self) -> Vec<u64> {
        let Counts { wire_packets, wire_bytes, steered, dropped, .. } = self;
        let Counts { sent_packets, sent_bytes, left, aborted, .. } = self;
        let single = [
            self.lost,
            self.refused,
            self.delivered_packets,
            self.delivered_bytes,
            self.without_buffer,
            self.polls,
            self.empty_polls,
            self.wakeups,
            self.unhashed,
            self.filtered,
            self.unreadable,
            self.steered_by_filters,
            self.tagged,
        ];
        [
            &wire_packets[..],
            wire_bytes,
            steered,
            dropped,
            &single,
            sent_packets,
            sent_bytes,
            left,
            &[self.redirected],
            aborted,
            &[self.polled, self.unpolled],
        ]
        .concat()
    }
}

/// Figures that are not counters of the card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// Packets handed over and not yet taken.
    pub(crate) under_way: u64,
    /// Packets taken from a wire on another core than the borrowed one.
    pub(crate) elsewhere: u64,
    /// Packets that filters sent to the poll engine, and packets without a socket.
    pub(crate) polled: u64,
    pub(crate) unpolled: u64,
    /// For each function.
    pub(crate) counts: Vec<KernelCounts>,
}

/// The counters of a card's programs, for each of its chains.
pub(crate) struct Counters {
    /// The chain that it started with, some of whose programs still count; the last is the current
    /// chain.
    chains: Vec<(CountsMap, Vec<DropReason>)>,
    /// Counts of the chains in between.
    gone: ChainCounts,
    rings: RingsMap,
    borrowed_core: usize,
    /// The core of each queue.
    cores: Vec<usize>,
}

/// Counts of a chain.
#[derive(Clone, Debug, Default)]
struct ChainCounts {
    by_core: Vec<Counts>,
    /// Drop reason of each function.
    reasons: Vec<DropReason>,
}

/// Drop reasons of functions, except for objects that drop packets.
const REASONS: [DropReason; 2] = [DropReason::Filtered, DropReason::RateLimited];

impl ChainCounts {
    fn read((counts, reasons): &(CountsMap, Vec<DropReason>)) -> Option<Self> {
        let found = counts.get(&0, 0).ok()?;
        Some(ChainCounts {
            by_core: found.iter().map(Counts::of).collect(),
            reasons: reasons.clone(),
        })
    }

    fn sum(&self, count: impl Fn(&Counts) -> u64) -> u64 {
        self.by_core.iter().map(count).sum()
    }

    fn dropped(&self, counts: &Counts, reason: DropReason) -> u64 {
        let steps = counts.dropped.iter().zip(&self.reasons);
        steps.filter(|(_, of)| **of == reason).map(|(dropped, _)| dropped).sum()
    }

    /// Adds another chain's counts, keeping only the sums over its functions.
    fn add(&mut self, other: &ChainCounts) {
        self.reasons = REASONS.into();
        self.by_core.resize(self.by_core.len().max(other.by_core.len()), Counts::default());
        for (own, more) in self.by_core.iter_mut().zip(&other.by_core) {
            let mut sums = Counts { dropped: [0; MOST_STEPS], ..more.clone() };
            for (place, reason) in sums.dropped.iter_mut().zip(REASONS) {
                *place = other.dropped(more, reason);
            }
            let words = own.words().into_iter().zip(sums.words()).map(|(own, more)| own + more);
            let mut all = [0; WORDS];
            all.iter_mut().zip(words).for_each(|(place, word)| *place = word);
            *own = Counts::of(&all);
        }
    }
}

impl Counters {
    pub(crate) fn new(
        object: &mut Object,
        plan: &Plan,
        placement: &Placement,
    ) -> Result<Self, RunError> {
        let mut counters = Counters {
            chains: Vec::new(),
            gone: ChainCounts::default(),
            rings: object.rings()?,
            borrowed_core: placement.borrowed_core,
            cores: placement.target_cores.clone(),
        };
        counters.put(object.counts()?, plan);
        Ok(counters)
    }

    /// Adds the counters of the new current chain.
    pub(crate) fn put(&mut self, counts: CountsMap, plan: &Plan) {
        self.chains.push((counts, plan.steps.iter().map(Step::reason).collect()));
    }

    /// Adds the counts of a chain that was not activated after all.
    pub(crate) fn add(&mut self, counts: CountsMap, plan: &Plan) {
        self.put(counts, plan);
        let counted = self.chains.pop().as_ref().and_then(ChainCounts::read);
        self.gone.add(&counted.unwrap_or_default());
    }

    /// Adds up the replaced chains, which no longer count.
    pub(crate) fn settle(&mut self) {
        while self.chains.len() > 2 {
            let gone = self.chains.remove(1);
            self.gone.add(&ChainCounts::read(&gone).unwrap_or_default());
        }
    }

    /// Copies the current counts to `view`.
    pub(crate) fn take(&self, view: &View) -> Taken {
        // Arrivals are read last, so they are not fewer than departures.
        let ring = |core: &usize| {
            let found = self.rings.get(&(*core as u32), 0);
            found.iter().flat_map(|values| values.iter()).sum()
        };
        let full: Vec<u64> = self.cores.iter().map(ring).collect();
        let read: Option<Vec<_>> = self.chains.iter().map(ChainCounts::read).collect();
        let Some(mut chains) = read else { return Taken::default() };
        chains.insert(0, self.gone.clone());
        bring(view, self, &chains, &full)
    }
}

/// Sets a drop counter; this thread is its only writer.
fn set(drops: &Drops, reason: DropReason, stage: Stage, count: u64) {
    drops.add(reason, stage, count.saturating_sub(drops.get(reason, stage)));
}

/// Copies the chains' counts; the last chain is the current one.
fn bring(view: &View, card_of: &Counters, chains: &[ChainCounts], full_of: &[u64]) -> Taken {
    let cores = &card_of.cores;
    let sum =
        |count: &dyn Fn(&Counts) -> u64| chains.iter().map(|chain| chain.sum(count)).sum::<u64>();
    let now = |count: &dyn Fn(&Counts) -> u64| chains.last().map_or(0, |chain| chain.sum(count));
    for (wire, found) in view.wires.iter().enumerate() {
        found.counters.rx_packets.set(sum(&|counts| counts.wire_packets[wire]));
        found.counters.rx_bytes.set(sum(&|counts| counts.wire_bytes[wire]));
        found.counters.tx_packets.set(sum(&|counts| counts.sent_packets[wire]));
        found.counters.tx_bytes.set(sum(&|counts| counts.sent_bytes[wire]));
    }
    let card = &view.ledger.card;
    let received: u64 = view.wires.iter().map(|wire| wire.counters.rx_packets.get()).sum();
    card.received.set(received);
    card.transmitted.set(view.wires.iter().map(|wire| wire.counters.tx_packets.get()).sum());
    card.consumed.set(sum(&|counts| counts.redirected));

    let filtered = sum(&|counts| counts.filtered);
    let unreadable = sum(&|counts| counts.unreadable);
    let steered_by_filters = sum(&|counts| counts.steered_by_filters);
    let (polled, unpolled) = (sum(&|counts| counts.polled), sum(&|counts| counts.unpolled));
    let in_front = |counts: &Counts| {
        counts.filtered + counts.unreadable + counts.steered_by_filters + counts.polled
    };
    let mut entering =
        now(&|counts| counts.wire_packets.iter().sum()).saturating_sub(now(&in_front));
    let mut of_functions = Vec::new();
    for (step, function) in view.functions.of(Direction::Rx).iter().enumerate() {
        let aborted = now(&|counts| counts.aborted[step]);
        let dropped = aborted + now(&|counts| counts.dropped[step]);
        let left = now(&|counts| counts.left[step]);
        let steered = now(&|counts| counts.steered[step]);
        // The counts are not of one moment: departures may be ahead of arrivals.
        let packets = entering.max(function.counters.packets.get());
        function.counters.packets.set(packets);
        function.counters.dropped.set(dropped);
        of_functions.push(KernelCounts {
            packets,
            steered,
            dropped,
            unhashed: now(&|counts| counts.unhashed),
            tagged: now(&|counts| counts.tagged),
            rules: Vec::new(),
        });
        entering = entering.saturating_sub(dropped + left + steered);
    }
    for reason in REASONS {
        let dropped = chains.iter().map(|chain| chain.sum(|counts| chain.dropped(counts, reason)));
        let by_filters = if reason == DropReason::Filtered { filtered } else { 0 };
        set(&card.drops, reason, Stage::Rx, dropped.sum::<u64>() + by_filters);
    }
    let aborted = sum(&|counts| counts.aborted.iter().sum());
    set(&card.drops, DropReason::Aborted, Stage::Rx, aborted);
    set(&card.drops, DropReason::Unreadable, Stage::Rx, unreadable);
    let (lost, refused) = (sum(&|counts| counts.lost), sum(&|counts| counts.refused));
    let full: u64 = full_of.iter().sum();
    set(&card.drops, DropReason::NoSuchQueue, Stage::Steer, lost);
    set(&card.drops, DropReason::HostRefused, Stage::Steer, refused);
    set(&card.drops, DropReason::WireDown, Stage::Wire, unpolled);
    set(&card.drops, DropReason::RingFull, Stage::Steer, full);
    let steered = steered_by_filters + sum(&|counts| counts.steered.iter().sum());
    let steered = steered.saturating_sub(lost + refused + full);
    card.steered.set(steered);

    let mut taken = 0;
    for (queue, &core) in cores.iter().enumerate() {
        let Some(found) = view.queues.get(queue) else { continue };
        let of_core = |count: fn(&Counts) -> u64| {
            chains.iter().filter_map(|chain| chain.by_core.get(core)).map(count).sum::<u64>()
        };
        let packets = of_core(|counts| counts.delivered_packets);
        let without_buffer = of_core(|counts| counts.without_buffer);
        let delivered = packets.saturating_sub(without_buffer);
        taken += packets;
        let ledger = &view.ledger.queues[queue];
        ledger.taken.set(packets);
        ledger.delivered.set(delivered);
        set(&ledger.drops, DropReason::HostRefused, Stage::Target, without_buffer);
        found.target.packets.set(delivered);
        found.target.bytes.set(of_core(|counts| counts.delivered_bytes));
        found.target.interrupts.set(of_core(|counts| counts.wakeups));
        found.target.polls.set(of_core(|counts| counts.polls));
        found.target.empty_polls.set(of_core(|counts| counts.empty_polls));
        found.steer.ring_full.set(full_of.get(queue).copied().unwrap_or_default());
        // The queue of a refused packet is unknown; without any, this is exact.
        found.steer.packets.set(packets);
    }
    let by_core = chains.iter().flat_map(|chain| chain.by_core.iter().enumerate());
    let others = by_core.filter(|(core, _)| *core != card_of.borrowed_core);
    let elsewhere = others.flat_map(|(_, counts)| counts.wire_packets).sum();
    Taken {
        under_way: steered.saturating_sub(taken),
        elsewhere,
        polled,
        unpolled,
        counts: of_functions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_replaced_chains_are_kept() {
        let words: CoreCounts = std::array::from_fn(|place| place as u64 + 1);
        let counts = Counts::of(&words);
        assert_eq!(counts.words(), words);
        let [filtered, limited] = REASONS;
        let chain = ChainCounts {
            by_core: vec![counts.clone()],
            reasons: vec![limited, filtered, limited],
        };
        let mut gone = ChainCounts::default();
        gone.add(&chain);
        gone.add(&chain);
        assert_eq!(gone.by_core.len(), 1);
        for reason in REASONS {
            let of = |chain: &ChainCounts| chain.sum(|counts| chain.dropped(counts, reason));
            assert_eq!(of(&gone), 2 * of(&chain));
        }
        assert_eq!(gone.by_core[0].dropped[2..], [0; MOST_STEPS - 2]);
        assert_eq!(gone.by_core[0].delivered_packets, 2 * counts.delivered_packets);
    }
}
