//! The data path allocates nothing in steady state: checked by a counting allocator.
//!
//! Only one test, so that no other thread of the process allocates meanwhile.

use allocation_counter::AllocationInfo;
use picnic_core::attachment::QueueOut;
use picnic_core::backlog::{Backlog, Limits};
use picnic_core::doorbell::NoDoorbell;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out, TargetRing};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::Receiver;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::channel;
use picnic_core::stats::{SteerCounters, TargetCounters, WireCounters};
use picnic_core::time::Time;
use std::sync::Arc;

struct ToQueueZero;

impl Onward for ToQueueZero {
    fn carry_on(&mut self, _: Time, burst: &mut Burst, doors: &mut Doors) {
        burst.drain().for_each(|packet| doors.steer(packet, 0));
    }
}

#[test]
fn a_hundred_thousand_packets_allocate_nothing() {
    const PACKETS: u64 = 100_000;
    const QUEUES: usize = 4;
    let config = PoolConfig { buffers: 1024, buffer_size: 256, headroom: 64 };
    let (pool, mut returns) = Pool::new(&config, QUEUES).unwrap();
    let ledger = Arc::new(Ledger::new(QUEUES));
    let gates: Vec<_> = (0..QUEUES).map(|_| Arc::new(Gate::new())).collect();
    let (mut targets, mut rings) = (Vec::new(), Vec::new());
    let modes = [
        ModerationMode::None,
        ModerationMode::Static { usecs: 2, frames: 8 },
        ModerationMode::Adaptive { max_usecs: 20 },
        ModerationMode::Static { usecs: 0, frames: 0 },
    ];
    for (gate, mode) in gates.iter().zip(modes) {
        let (producer, consumer) = channel::<Descriptor>(128);
        rings.push(consumer);
        let counters = Arc::new(SteerCounters::default());
        let moderation = Moderation::new(mode);
        let doorbell = Arc::new(NoDoorbell);
        targets.push(TargetRing::new(producer, gate.clone(), doorbell, moderation, counters));
    }
    let mut doors = Doors::new(pool, targets, 1, 64, ledger.clone());
    let tx_queues = (0..QUEUES).map(|_| Arc::default()).collect();
    doors.backlog = Backlog::new(1, tx_queues, Limits { packets: 64, bytes: 100_000 });
    let (wire, target) = (WireCounters::default(), TargetCounters::default());
    let (mut tx, mut tx_ring) = channel::<Descriptor>(64);
    let mut function = per_packet(|packet: &mut PacketMut<'_>| {
        packet.parse();
        packet.mark = packet.mark.wrapping_add(1);
        match packet.data()[0] % 12 {
            0 => Verdict::Next,
            1 => Verdict::Transmit(0),
            2 => Verdict::Drop(DropReason::Filtered),
            3 => Verdict::Consume,
            4 => Verdict::Steer(9),
            kind => Verdict::Steer(u16::from(kind) % QUEUES as u16),
        }
    });
    let mut burst = Burst::new();
    let mut rest = ToQueueZero;
    let (frame, long) = ([0x45; 60], [7; 700]);

    let (mut received, mut delivered, mut now) = (0_u64, 0_u64, Time::ZERO);
    let allocations = allocation_counter::measure(|| {
        while received < PACKETS {
            now = now + 5_000;
            let mut rx =
                Receiver::new(&mut doors.pool, &mut burst, &wire, &ledger.card, now, 0, BURST);
            while rx.room() != 0 {
                received += 1;
                match received % 97 {
                    0 => rx.push_bytes(&long),
                    1 => rx.shed(DropReason::Malformed, 1),
                    kind => {
                        if let Some(mut packet) = rx.allocate(frame.len()) {
                            packet.data_mut().copy_from_slice(&frame);
                            packet.data_mut()[0] = kind as u8;
                            rx.push(packet);
                        }
                    }
                }
            }
            drop(rx);
            let mut out = Out::new(now, Stage::Rx, &mut doors, &mut rest);
            function.process(now, &mut burst, &mut out);
            if received % 5 == 0
                && let Some(made) = out.make(&long)
            {
                if let Some(copy) = out.copy(&made) {
                    out.transmit(copy, 0);
                }
                out.next(made);
            }
            if let Some(made) = out.make(&frame) {
                if let Some(copy) = out.copy(&made) {
                    out.transmit(copy, 0);
                }
                out.next(made);
            }
            out.finish();
            burst.drain().for_each(|packet| doors.steer(packet, 1));
            doors.publish(now);
            for (queue, ring) in rings.iter_mut().enumerate() {
                let gate = &gates[queue];
                let mut out =
                    QueueOut::new(&mut returns[queue], &mut tx, &target, &ledger.queues[queue]);
                while let Some(packet) = ring.pop() {
                    delivered += 1;
                    if delivered % 8 == 0 { out.echo(packet) } else { out.deliver(packet) }
                }
                drop(out);
                ring.release();
                gate.begin();
                gate.rearm();
            }
            while let Some(mut packet) = tx_ring.pop() {
                packet.set_tx_queue(received as u8 % QUEUES as u8);
                doors.transmit(packet, 0);
            }
            tx_ring.release();
            doors.serve_wire(0, now, &wire, |mut transmitter| {
                while let Some(packet) = transmitter.next() {
                    transmitter.sent(packet);
                }
            });
        }
    });

    assert!(delivered > PACKETS / 4, "the path was not exercised: {delivered}");
    assert!(wire.tx_packets.get() > PACKETS / 20);
    assert_eq!(doors.pool.outstanding(), 0);
    assert_eq!(allocations, AllocationInfo::default(), "neither taken nor given back");
}
