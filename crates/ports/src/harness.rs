//! Test harness: the least of a card, to plug a wire into.

use picnic_core::hook::Observers;
use picnic_core::ledger::{CardLedger, DropReason, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use std::collections::VecDeque;

/// A pool, a ledger and counters; packets are checked and returned at once.
pub(crate) struct Bench {
    pub(crate) pool: Pool,
    pub(crate) ledger: CardLedger,
    pub(crate) counters: WireCounters,
    /// Shown what passes the wire.
    pub(crate) observers: Observers,
    /// Packets received and checked.
    pub(crate) taken: u64,
    pub(crate) sent: u64,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench::with_pool(256, 2048)
    }

    pub(crate) fn with_pool(buffers: u32, buffer_size: u32) -> Self {
        let config = PoolConfig { buffers, buffer_size, ..PoolConfig::default() };
        Bench {
            pool: Pool::new(&config, 0).unwrap().0,
            ledger: CardLedger::default(),
            counters: WireCounters::default(),
            observers: Observers::default(),
            taken: 0,
            sent: 0,
        }
    }

    /// Receives up to `limit` packets into `burst`.
    pub(crate) fn fill(
        &mut self,
        wire: &mut dyn WirePort,
        now: u64,
        limit: usize,
        burst: &mut Burst,
    ) {
        let now = Time::from_nanos(now);
        let Bench { pool, ledger, counters, observers, .. } = self;
        let before = burst.len();
        wire.receive(now, &mut Receiver::new(pool, burst, counters, ledger, now, 0, limit));
        observers.show(now, Stage::Wire, &burst.as_slice()[before..]);
    }

    /// Receives up to `limit` packets; their bytes.
    pub(crate) fn receive(
        &mut self,
        wire: &mut dyn WirePort,
        now: u64,
        limit: usize,
    ) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        self.fill(wire, now, limit, &mut burst);
        let packets = burst.drain().map(|packet| {
            let bytes = packet.segments().flatten().copied().collect::<Vec<_>>();
            assert_eq!(bytes.len(), packet.length() as usize);
            self.pool.free(packet);
            bytes
        });
        let packets: Vec<_> = packets.collect();
        self.taken += packets.len() as u64;
        packets
    }

    /// Receives until the wire says that it has finished.
    pub(crate) fn receive_all(&mut self, wire: &mut dyn WirePort, limit: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for _ in 0..100_000 {
            packets.extend(self.receive(wire, 0, limit));
            if wire.status().is_finished {
                return packets;
            }
        }
        panic!("the wire does not finish");
    }

    /// Has the wire transmit these.
    pub(crate) fn transmit(&mut self, wire: &mut dyn WirePort, now: u64, packets: &[&[u8]]) {
        let made = packets.iter().map(|bytes| self.pool.packet(bytes).unwrap());
        let mut queue: VecDeque<_> = made.collect();
        let Bench { pool, ledger, counters, observers, .. } = self;
        let (now, transmitter) =
            (Time::from_nanos(now), Transmitter::new(pool, &mut queue, counters, ledger));
        observers.begin();
        wire.transmit(now, &mut transmitter.observed(observers, now));
        observers.end();
        self.sent += packets.len() as u64;
        assert!(queue.is_empty());
    }

    /// Ends the wire; its lines for the user.
    pub(crate) fn stop(&mut self, wire: &mut dyn WirePort) -> Vec<String> {
        let Bench { pool, ledger, counters, .. } = self;
        wire.stop(&mut Transmitter::new(pool, &mut VecDeque::new(), counters, ledger))
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.ledger.drops.get(reason, Stage::Wire)
    }

    /// Every packet is accounted for, and all buffers have returned.
    pub(crate) fn assert_conserved(&mut self) {
        let (received, dropped) = (self.ledger.received.get(), self.ledger.drops.total());
        let dropped_tx = self.sent - self.ledger.transmitted.get();
        assert_eq!(received, self.taken + dropped - dropped_tx);
        let WireCounters { rx_packets, rx_shed, .. } = &self.counters;
        assert_eq!(received, rx_packets.get() + rx_shed.get());
        assert_eq!(self.pool.outstanding(), 0);
    }
}
