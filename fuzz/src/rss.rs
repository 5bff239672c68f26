//! `rss` with any packets: each leaves through one door, to the queue of its hash.

use crate::frames;
use arbitrary::{Result, Unstructured};
use picnic_core::doorbell::NoDoorbell;
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out, TargetRing};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::BuildContext;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::ring::spsc::{self, Consumer};
use picnic_core::stats::SteerCounters;
use picnic_core::time::Time;
use picnic_functions::rss::{Config, HashName, HashType, Rss};
use std::cell::RefCell;
use std::sync::Arc;

const QUEUES: u16 = 4;
/// Smaller than a burst, so that rings fill up.
const RING: usize = 32;

/// The end of the chain: nothing arrives here except in bursts.
struct Nowhere;

impl Onward for Nowhere {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {
        panic!("rss makes no packets");
    }
}

/// A card's doors with the far ends of its rings.
struct Bench {
    doors: Doors,
    rings: Vec<Consumer<Descriptor>>,
}

impl Bench {
    fn new() -> Bench {
        let config = PoolConfig { buffers: 128, buffer_size: 256, headroom: 0 };
        let (pool, _) = Pool::new(&config, 0).expect("a small pool");
        let (targets, rings) = (0..QUEUES)
            .map(|_| {
                let (producer, consumer) = spsc::channel(RING);
                let moderation = Moderation::new(ModerationMode::None);
                let (gate, counters) = (Arc::new(Gate::new()), Arc::<SteerCounters>::default());
                let ring =
                    TargetRing::new(producer, gate, Arc::new(NoDoorbell), moderation, counters);
                (ring, consumer)
            })
            .unzip();
        let ledger = Arc::new(Ledger::new(QUEUES.into()));
        Bench { doors: Doors::new(pool, targets, 1, 64, ledger), rings }
    }
}

thread_local! {
    // Mapping a pool for each input would dominate the time.
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

/// Settings of `rss` from the bytes.
fn config(u: &mut Unstructured<'_>) -> Result<Config> {
    let hash = *u.choose(&[HashName::Toeplitz, HashName::Jhash, HashName::Lookup2])?;
    let types: u8 = u.arbitrary()?;
    let is_on = |index: usize| types >> index & 1 == 0;
    let all = HashType::ALL.into_iter().enumerate();
    Ok(Config {
        hash,
        symmetric: hash == HashName::Toeplitz && u.arbitrary()?,
        jhash_init: if hash == HashName::Toeplitz { None } else { u.arbitrary()? },
        table_size: u.int_in_range(1..=300)?,
        types: all.filter(|(index, _)| is_on(*index)).map(|(_, name)| name).collect(),
        default_queue: u.arbitrary::<bool>()?.then_some(3),
        ..Config::default()
    })
}

/// Settings from the first bytes, packets from the others.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let Ok(config) = config(&mut u) else { return };
    let context = BuildContext { queues: QUEUES, ..BuildContext::default() };
    let mut rss = Rss::new(&config, &context).expect("settings that are allowed");
    BENCH.with_borrow_mut(|bench| while process(&mut u, &mut rss, bench) {});
}

/// One burst; false once the bytes are used up.
fn process(u: &mut Unstructured<'_>, rss: &mut Rss, bench: &mut Bench) -> bool {
    let Bench { doors, rings } = bench;
    let mut burst = Burst::new();
    // By `mark`: the sent bytes.
    let mut sent = Vec::<&[u8]>::new();
    while burst.room() != 0 && !u.is_empty() {
        let length = usize::from(u.arbitrary::<u8>().unwrap_or(0)).min(u.len());
        let Ok(bytes) = u.bytes(length) else { break };
        let mut packet = doors.pool.packet(bytes).expect("a buffer for each packet of a burst");
        packet.mark = sent.len() as u32;
        sent.push(bytes);
        burst.push(packet).expect("there is room");
    }
    let dropped = || doors_dropped(&doors.ledger);
    let dropped_before = dropped();
    let now = Time::from_nanos(1);
    let mut onward = Nowhere;
    let mut out = Out::new(now, Stage::Rx, doors, &mut onward);
    rss.process(now, &mut burst, &mut out);
    assert_eq!(out.finish(), 0, "rss itself drops nothing");
    let published = doors.publish(now);
    let dropped = (doors_dropped(&doors.ledger) - dropped_before) as usize;
    assert_eq!(published + dropped + burst.len(), sent.len(), "a packet has no fate, or two");

    let mut last_mark = None;
    for packet in burst.drain() {
        check(rss, &packet, &sent, None);
        assert!(last_mark < Some(packet.mark), "the burst is out of order");
        last_mark = Some(packet.mark);
        doors.pool.free(packet);
    }
    for (queue, ring) in rings.iter_mut().enumerate() {
        let mut last_mark = None;
        ring.refresh();
        while let Some(packet) = ring.pop() {
            check(rss, &packet, &sent, Some(queue as u16));
            assert!(last_mark < Some(packet.mark), "a queue is out of order");
            last_mark = Some(packet.mark);
            doors.pool.free(packet);
        }
        ring.release();
    }
    assert_eq!(doors.pool.outstanding(), 0, "buffers are missing");
    !u.is_empty()
}

fn doors_dropped(ledger: &Ledger) -> u64 {
    ledger.card.drops.get(DropReason::RingFull, Stage::Steer)
}

/// The packet is unchanged, and in the queue that `classify` names.
fn check(rss: &Rss, packet: &Descriptor, sent: &[&[u8]], queue: Option<u16>) {
    assert_eq!(packet.data(), sent[packet.mark as usize], "rss has changed the bytes");
    let wanted = rss.classify(packet.data());
    assert_eq!(queue, wanted.queue, "alone and in a burst, the queues differ");
    assert_eq!((packet.rss_hash, packet.rss_type()), (wanted.hash, wanted.over));
}

/// All kinds of frames, one after the other, under each hash.
pub fn seeds() -> Vec<Vec<u8>> {
    let packets: Vec<u8> = frames::all()
        .iter()
        .flat_map(|frame| [&[frame.len() as u8], frame.as_slice()].concat())
        .collect();
    (0..3).map(|hash| [&[hash, 0, 0, 127, 0], packets.as_slice()].concat()).collect()
}
