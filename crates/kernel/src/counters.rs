//! What the programs count, brought into the card's own counters.
//!
//! Guarantees: a packet is counted once where it comes in and once where it leaves, so at the end
//! of a run the ledger balances by counts of both ends. What the kernel does not tell stays zero
//! or null.

use crate::object::{CountsMap, Object, RingsMap};
use crate::plan::{MOST_STEPS, MOST_WIRES, Plan, Step};
use picnic_control::error::RunError;
use picnic_core::direction::Direction;
use picnic_core::kernel::KernelCounts;
use picnic_core::ledger::{DropReason, Drops, Stage};
use picnic_engine::view::View;
use picnic_machine::topology::Placement;
use std::sync::{Mutex, PoisonError};

/// The map with what each core counts.
pub(crate) const COUNTS: &str = "COUNTS";

const WORDS: usize = 4 * MOST_WIRES + 4 * MOST_STEPS + 1 + 14;
/// `struct counts`, word by word.
pub(crate) type CoreCounts = [u64; WORDS];

/// `struct counts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    wire_packets: [u64; MOST_WIRES],
    wire_bytes: [u64; MOST_WIRES],
    steered: [u64; MOST_STEPS + 1],
    dropped: [u64; MOST_STEPS],
    lost: u64,
    refused: u64,
    delivered_packets: u64,
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
}

impl Counts {
    fn of(words: &CoreCounts) -> Self {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or_default();
        // In the order of `struct counts`, as fields are evaluated as they are written.
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
        }
    }
}

/// What is no counter of the card's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// Packets handed over and not taken yet.
    pub(crate) under_way: u64,
    /// Packets that were taken from a wire on another core than the borrowed one.
    pub(crate) elsewhere: u64,
    /// For each function.
    pub(crate) counts: Vec<KernelCounts>,
}

/// The counters of a card's programs.
pub(crate) struct Counters {
    counts: CountsMap,
    rings: RingsMap,
    borrowed_core: usize,
    /// The core of each queue.
    cores: Vec<usize>,
    /// Why each function drops what it drops.
    reasons: Vec<DropReason>,
    /// One at a time brings them into the card's.
    taken: Mutex<()>,
}

impl Counters {
    pub(crate) fn new(
        object: &mut Object,
        plan: &Plan,
        placement: &Placement,
    ) -> Result<Self, RunError> {
        let (counts, rings) = object.counters()?;
        let reasons = plan.steps.iter().map(Step::reason).collect();
        let (borrowed_core, cores) = (placement.borrowed_core, placement.target_cores.clone());
        Ok(Counters { counts, rings, borrowed_core, cores, reasons, taken: Mutex::new(()) })
    }

    /// Brings them into the counters of `view` as they are now.
    pub(crate) fn take(&self, view: &View) -> Taken {
        // Nothing in it can be half done.
        let _alone = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // What has come in is read last: it is no less than what has left by then.
        let ring = |core: &usize| {
            let found = self.rings.get(&(*core as u32), 0);
            let each = found.iter().flat_map(|values| values.iter());
            each.fold([0, 0], |[doorbells, full], [more, dropped]| {
                [doorbells + more, full + dropped]
            })
        };
        let rings: Vec<[u64; 2]> = self.cores.iter().map(ring).collect();
        let Ok(found) = self.counts.get(&0, 0) else { return Taken::default() };
        let by_core: Vec<_> = found.iter().map(Counts::of).collect();
        bring(view, self, &by_core, &rings)
    }
}

/// Sets a count of drops, of which only this thread is the writer.
fn set(drops: &Drops, reason: DropReason, stage: Stage, count: u64) {
    drops.add(reason, stage, count.saturating_sub(drops.get(reason, stage)));
}

fn bring(view: &View, card_of: &Counters, by_core: &[Counts], rings: &[[u64; 2]]) -> Taken {
    let Counters { cores, reasons, .. } = card_of;
    let sum = |count: &dyn Fn(&Counts) -> u64| by_core.iter().map(count).sum::<u64>();
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
    let mut entering = received.saturating_sub(filtered + unreadable + steered_by_filters);
    let mut of_functions = Vec::new();
    for (step, function) in view.functions.of(Direction::Rx).iter().enumerate() {
        let aborted = sum(&|counts| counts.aborted[step]);
        let dropped = aborted + sum(&|counts| counts.dropped[step]);
        let left = sum(&|counts| counts.left[step]);
        let steered = sum(&|counts| counts.steered[step]);
        function.counters.packets.set(entering);
        function.counters.dropped.set(dropped);
        of_functions.push(KernelCounts {
            packets: entering,
            steered,
            dropped,
            unhashed: sum(&|counts| counts.unhashed),
            tagged: sum(&|counts| counts.tagged),
            rules: Vec::new(),
        });
        entering = entering.saturating_sub(dropped + left + steered);
    }
    for reason in [DropReason::Filtered, DropReason::RateLimited] {
        let steps = (0..).zip(reasons).filter(|(_, of)| **of == reason);
        let dropped: u64 = steps.map(|(step, _)| sum(&|counts| counts.dropped[step])).sum();
        let by_filters = if reason == DropReason::Filtered { filtered } else { 0 };
        set(&card.drops, reason, Stage::Rx, dropped + by_filters);
    }
    let aborted = sum(&|counts| counts.aborted.iter().sum());
    set(&card.drops, DropReason::Aborted, Stage::Rx, aborted);
    set(&card.drops, DropReason::Unreadable, Stage::Rx, unreadable);
    let (lost, refused) = (sum(&|counts| counts.lost), sum(&|counts| counts.refused));
    let full: u64 = rings.iter().map(|[_, full]| full).sum();
    set(&card.drops, DropReason::NoSuchQueue, Stage::Steer, lost);
    set(&card.drops, DropReason::HostRefused, Stage::Steer, refused);
    set(&card.drops, DropReason::RingFull, Stage::Steer, full);
    let steered = steered_by_filters + sum(&|counts| counts.steered.iter().sum());
    let steered = steered.saturating_sub(lost + refused + full);
    card.steered.set(steered);

    let mut taken = 0;
    for (queue, &core) in cores.iter().enumerate() {
        let (Some(found), Some(counts)) = (view.queues.get(queue), by_core.get(core)) else {
            continue;
        };
        let packets = counts.delivered_packets;
        let delivered = packets.saturating_sub(counts.without_buffer);
        taken += packets;
        let ledger = &view.ledger.queues[queue];
        ledger.taken.set(packets);
        ledger.delivered.set(delivered);
        set(&ledger.drops, DropReason::HostRefused, Stage::Target, counts.without_buffer);
        let [doorbells, full] = rings.get(queue).copied().unwrap_or_default();
        found.target.packets.set(delivered);
        found.target.bytes.set(counts.delivered_bytes);
        found.target.interrupts.set(counts.wakeups);
        found.target.polls.set(counts.polls);
        found.target.empty_polls.set(counts.empty_polls);
        found.steer.doorbells.set(doorbells);
        found.steer.ring_full.set(full);
        // Which queue a refused packet was for is not known; without any, this is exact.
        found.steer.packets.set(packets);
    }
    let others = by_core.iter().enumerate().filter(|(core, _)| *core != card_of.borrowed_core);
    let elsewhere = others.flat_map(|(_, counts)| counts.wire_packets).sum();
    Taken { under_way: steered.saturating_sub(taken), elsewhere, counts: of_functions }
}
