//! The ledger: accounts for every packet that came in.
//!
//! `in = delivered + transmitted + consumed + Σ dropped(reason, stage) + in flight`
//!
//! `in` counts packets received by wires, sent by the host and made by functions. Each side of the
//! card keeps the counts that it alone writes; [`Ledger::read`] adds them up. *In flight* is not a
//! remainder: packets are counted where they can be (rings, functions, wires), so that any error
//! unbalances the sum. While cores run, the parts are read at slightly different moments; the sum
//! is exact when they are idle, and per burst on the borrowed core.

use crate::stats::Counter;
use serde::Serialize;
use std::collections::BTreeMap;

macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident { $(#[doc = $help:literal] $item:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $(#[doc = $help] $item),+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [$name] = &[$($name::$item),+];

            /// The name used in output.
            pub const fn name(self) -> &'static str {
                match self { $($name::$item => $text),+ }
            }

            /// Its meaning, in a sentence.
            pub const fn help(self) -> &'static str {
                match self { $($name::$item => $help),+ }.trim_ascii_start()
            }
        }
    };
}

named_enum! {
    /// Why a packet was dropped.
    DropReason {
        /// A function decided so.
        Filtered = "filtered",
        /// A filter could have matched, had its headers been readable.
        Unreadable = "unreadable",
        /// The target ring was full.
        RingFull = "ring_full",
        /// No buffer of the pool was free.
        PoolExhausted = "pool_exhausted",
        /// More packets waited at the wire than its `backlog` holds: the card polled too seldom.
        BacklogFull = "backlog_full",
        /// More packets waited at the other end of a link than its `queue_packets` holds.
        LinkFull = "link_full",
        /// Longer than a packet, or all buffers of the pool, may be.
        Oversize = "oversize",
        /// Zero bytes, or not a valid packet.
        Malformed = "malformed",
        /// It exceeded its rate limit.
        RateLimited = "rate_limited",
        /// Its sender may not send from this address or VLAN.
        Spoofed = "spoofed",
        /// Its checksum is wrong.
        BadChecksum = "bad_checksum",
        /// Its buffer has no room for further headers.
        NoRoom = "no_room",
        /// Steered to a queue the card does not have.
        NoSuchQueue = "no_such_queue",
        /// Sent to a wire the card does not have.
        NoSuchWire = "no_such_wire",
        /// The wire's send backlog is full.
        WireFull = "wire_full",
        /// The kernel had no free slot for it: the card polled too seldom.
        WireOverrun = "wire_overrun",
        /// The wire was down, or its interface gone.
        WireDown = "wire_down",
        /// A super-frame for a wire that cannot segment it.
        SuperFrame = "super_frame",
        /// The tx ring was full.
        TxRingFull = "tx_ring_full",
        /// A function's burst was full: it made more than it took.
        BurstFull = "burst_full",
        /// The fault injector lost it.
        Fault = "fault",
        /// A plugin returned a target or a length that is not allowed.
        InvalidTarget = "invalid_target",
        /// The user's XDP object aborted it: `XDP_ABORTED`, or an unknown verdict.
        Aborted = "aborted",
        /// A plugin held more packets than it may.
        HoldFull = "hold_full",
        /// The mailbox was full, or its task had ended.
        MailboxFull = "mailbox_full",
        /// The host refused it.
        HostRefused = "host_refused",
        /// The ring of its guest had not started, or was disabled.
        RingDisabled = "ring_disabled",
        /// Its guest had no buffer for it.
        NoDescriptor = "no_descriptor",
        /// A descriptor of its guest was wrong.
        BadDescriptor = "bad_descriptor",
        /// The card stopped before it could be delivered.
        Stopped = "stopped",
    }
}

named_enum! {
    /// Where a packet was dropped.
    Stage {
        /// At the wire, before any work on it.
        Wire = "wire",
        /// In the rx chain.
        Rx = "rx",
        /// On the way to the target ring.
        Steer = "steer",
        /// On the target core.
        Target = "target",
        /// In the tx chain.
        Tx = "tx",
        /// In a task on the borrowed core.
        Task = "task",
        /// On the way to the wire.
        WireTx = "wire_tx",
    }
}

/// Drop counts by reason and stage, written by one core.
#[derive(Debug, Default)]
pub struct Drops([[Counter; Stage::ALL.len()]; DropReason::ALL.len()]);

impl Drops {
    /// Counts `count` packets dropped.
    #[inline]
    pub fn add(&self, reason: DropReason, stage: Stage, count: u64) {
        self.0[reason as usize][stage as usize].add(count);
    }

    /// Packets dropped for `reason` at `stage`.
    pub fn get(&self, reason: DropReason, stage: Stage) -> u64 {
        self.0[reason as usize][stage as usize].get()
    }

    /// Every count, in one order.
    pub fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.0.iter().flatten()
    }

    /// All packets dropped.
    pub fn total(&self) -> u64 {
        self.counters().map(Counter::get).sum()
    }

    /// The nonzero counts.
    pub fn nonzero(&self) -> impl Iterator<Item = (DropReason, Stage, u64)> + '_ {
        DropReason::ALL.iter().flat_map(move |&reason| {
            Stage::ALL.iter().filter_map(move |&stage| {
                let count = self.get(reason, stage);
                (count != 0).then_some((reason, stage, count))
            })
        })
    }
}

/// The counts written by the borrowed core.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CardLedger {
    /// Packets that the wires received or shed.
    pub received: Counter,
    /// Packets made by functions: clones, segments.
    pub made: Counter,
    /// Packets steered to target rings.
    pub steered: Counter,
    /// Packets taken from tx rings.
    pub submitted: Counter,
    /// Packets the wires took for transmission.
    pub transmitted: Counter,
    /// Packets that functions kept for good.
    pub consumed: Counter,
    /// Packets inside functions, waiting for wires and kept by them, at the last count.
    pub held: Counter,
    /// Bursts after which the borrowed core's own sum did not balance.
    pub unbalanced_bursts: Counter,
    /// Packets dropped on the borrowed core.
    pub drops: Drops,
}

/// The counts written by one target queue's core.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct QueueLedger {
    /// Packets taken from the target ring.
    pub taken: Counter,
    /// Packets handed to the host.
    pub delivered: Counter,
    /// Packets the host put on the tx ring.
    pub submitted: Counter,
    /// Packets the host made or brought for transmission (tap, echo).
    pub made: Counter,
    /// Packets dropped on the target core.
    pub drops: Drops,
}

/// The parts of a card's ledger.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The borrowed core's part.
    pub card: CardLedger,
    /// Each queue's part.
    pub queues: Vec<QueueLedger>,
}

impl Ledger {
    /// A ledger for `queues` target queues, all zero.
    pub fn new(queues: usize) -> Self {
        Ledger {
            card: CardLedger::default(),
            queues: (0..queues).map(|_| QueueLedger::default()).collect(),
        }
    }

    /// Adds up all parts.
    pub fn read(&self) -> LedgerTotals {
        let card = &self.card;
        let sum = |count: fn(&QueueLedger) -> u64| self.queues.iter().map(count).sum::<u64>();
        let taken = sum(|queue| queue.taken.get());
        let submitted_by_hosts = sum(|queue| queue.submitted.get());
        // Packets in rings are counted at both ends; a reader may see the ends at different
        // moments, so a negative difference is read as zero.
        let in_rx_rings = card.steered.get().saturating_sub(taken);
        let in_tx_rings = submitted_by_hosts.saturating_sub(card.submitted.get());
        let mut drops = BTreeMap::<&'static str, u64>::new();
        let mut stages = BTreeMap::<String, u64>::new();
        for part in std::iter::once(&card.drops).chain(self.queues.iter().map(|queue| &queue.drops))
        {
            for (reason, stage, count) in part.nonzero() {
                *drops.entry(reason.name()).or_default() += count;
                *stages.entry(format!("{}@{}", reason.name(), stage.name())).or_default() += count;
            }
        }
        LedgerTotals {
            delivered: sum(|queue| queue.delivered.get()),
            transmitted: card.transmitted.get(),
            consumed: card.consumed.get(),
            dropped: drops.values().sum(),
            in_flight: in_rx_rings + in_tx_rings + card.held.get(),
            unbalanced_bursts: card.unbalanced_bursts.get(),
            drops,
            drops_by_stage: stages,
            // Counters advance while they are read: read last, it is no less than the packets that
            // have left.
            r#in: card.received.get() + card.made.get() + sum(|queue| queue.made.get()),
        }
    }
}

/// The ledger added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Packets that came in or were made.
    pub r#in: u64,
    /// Packets handed to the host.
    pub delivered: u64,
    /// Packets the wires took.
    pub transmitted: u64,
    /// Packets that functions kept for good.
    pub consumed: u64,
    /// Packets dropped, for all reasons.
    pub dropped: u64,
    /// Packets in rings, in functions, waiting for wires and kept by them.
    pub in_flight: u64,
    /// Bursts that did not balance on their own.
    pub unbalanced_bursts: u64,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Packets dropped, by `reason@stage`.
    pub drops_by_stage: BTreeMap<String, u64>,
}

impl LedgerTotals {
    /// Whether every packet is accounted for.
    pub fn balanced(&self) -> bool {
        self.unbalanced_bursts == 0
            && self.r#in
                == self.delivered + self.transmitted + self.consumed + self.dropped + self.in_flight
    }
}

impl Serialize for LedgerTotals {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("in", &self.r#in)?;
        map.serialize_entry("delivered", &self.delivered)?;
        map.serialize_entry("transmitted", &self.transmitted)?;
        map.serialize_entry("consumed", &self.consumed)?;
        map.serialize_entry("dropped", &self.dropped)?;
        map.serialize_entry("in_flight", &self.in_flight)?;
        map.serialize_entry("balanced", &self.balanced())?;
        map.end()
    }
}
