//! Random cards under random seeds: conservation, order, no lost wake-up, reproducibility.

use crate::common::{end, end_traced, micros, simulation, step_through};
use picnic_control::{Launch, Report};
use picnic_sim::{CostModel, Simulation, registries};
use proptest::prelude::*;
use std::fmt::Write;

#[derive(Clone, Debug)]
struct WireShape {
    flows: u32,
    packets: u32,
    rate_pps: u64,
    burst: u32,
    size: usize,
    zipf: bool,
    shares: (u8, u8, u8),
    /// Rate in Mb/s, latency, queue.
    link: Option<(u32, u32, u32)>,
    fault: Option<(u8, u8, u8)>,
}

/// As drawn; of exclusive settings, the first is meant.
#[derive(Clone, Copy, Debug)]
struct InterruptShape {
    per_packet: bool,
    unmasked: bool,
    adaptive: bool,
    usecs: u32,
    frames: u32,
    poll_usecs: u32,
    wire_usecs: u32,
    wire_frames: u32,
    tx_complete: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostShape {
    Sink,
    Echo,
    /// Sends this many packets for each received one, once it has this many buffers.
    Sender(u32, usize),
}

#[derive(Clone, Debug)]
struct CardShape {
    wires: Vec<WireShape>,
    rx: Vec<usize>,
    steer: usize,
    tx: bool,
    queues: u16,
    cores: Option<Vec<usize>>,
    rings: (u32, u32),
    buffers: u32,
    interrupt: InterruptShape,
    idle: usize,
    burst: usize,
    host: HostShape,
    cost_ns: u32,
    system: usize,
    seed: u64,
}

const SIZES: [&str; 4] = ["100", "[90, 1514]", "\"imix\"", "1514"];
const RX: [&str; 4] = [
    "function = \"pass\"",
    "function = \"sample\"\nevery = 3\nmark = 7",
    "function = \"sample\"\nevery = 5\nqueue = 0",
    "function = \"sample\"\nevery = 2\ndrop_rest = true",
];
const STEER: [&str; 4] = [
    "function = \"rss\"",
    "function = \"rss\"\nhash = \"jhash\"\ntable_size = 7",
    "function = \"by-wire\"",
    "function = \"pass\"",
];
const SYSTEMS: [&str; 3] = ["knet", "napi", "clas"];
const IDLE: [&str; 3] = ["spin", "adaptive", "block"];
const TX_COMPLETE: [&str; 3] = ["off", "interrupt", "moderated"];

impl CardShape {
    fn text(&self) -> String {
        let mut text = format!(
            "[card]\nidle = \"{}\"\nburst = {}\nwire_backlog = 64\nseed = {}\n\
             [pool]\nbuffers = {}\n\
             [host]\nqueues = {}\nring_size = {}\ntx_ring_size = {}\n",
            IDLE[self.idle],
            self.burst,
            self.seed,
            self.buffers,
            self.queues,
            self.rings.0,
            self.rings.1,
        );
        writeln!(text, "system = \"{}\"", SYSTEMS[self.system()]).unwrap();
        let (cost_ns, stack_ns) = (self.cost_ns, self.cost_ns / 2);
        match self.host {
            HostShape::Sender(sends, landing) => writeln!(
                text,
                "attachment = \"sender\"\nsends = {sends}\nlanding = {landing}\n\
                 cost_ns = {cost_ns}"
            ),
            app => {
                let mode = if app == HostShape::Echo { "echo" } else { "sink" };
                writeln!(text, "mode = \"{mode}\"\ncost_ns = {cost_ns}\nstack_ns = {stack_ns}")
            }
        }
        .unwrap();
        if let Some(cores) = &self.cores {
            let cores: Vec<_> = cores.iter().take(self.queues.into()).collect();
            writeln!(text, "target_cores = {cores:?}").unwrap();
        }
        self.write_interrupt(&mut text);
        for wire in &self.wires {
            let popularity = if wire.zipf { "zipf" } else { "uniform" };
            let share = |share: u8| f64::from(share) / 2.0;
            writeln!(
                text,
                "[[wire]]\nport = \"generator\"\nflows = {}\npackets = {}\nrate_pps = {}\n\
                 burst = {}\nsize = {}\npopularity = \"{popularity}\"\ntcp_share = {:.1}\n\
                 ipv6_share = {:.1}\nvlan_share = {:.1}\nsequence_numbers = {}",
                wire.flows,
                wire.packets,
                wire.rate_pps,
                wire.burst,
                SIZES[wire.size],
                share(wire.shares.0),
                share(wire.shares.1),
                share(wire.shares.2),
                // 60-byte frames have no room for stamps, and are refused.
                wire.size != 2,
            )
            .unwrap();
            if let Some((rate, latency, queue)) = wire.link {
                writeln!(
                    text,
                    "[wire.link]\nrate_mbps = {rate}\nlatency_us = {latency}\n\
                     queue_packets = {queue}"
                )
                .unwrap();
            }
            if let Some((lose, double, other)) = wire.fault {
                let share = |share: u8| f64::from(share) / 20.0;
                writeln!(
                    text,
                    "[wire.fault]\ndrop = {:.2}\nduplicate = {:.2}\nreorder = {other:.2}\n\
                     corrupt = {other:.2}\ntruncate = {other:.2}",
                    share(lose),
                    share(double),
                    other = share(other),
                )
                .unwrap();
            }
        }
        for &function in &self.rx {
            writeln!(text, "[[rx]]\n{}", RX[function]).unwrap();
        }
        writeln!(text, "[[rx]]\n{}", STEER[self.steer]).unwrap();
        if self.tx {
            text.push_str("[[tx]]\nfunction = \"pass\"\n");
        }
        text
    }

    fn write_interrupt(&self, text: &mut String) {
        let InterruptShape { per_packet, unmasked, adaptive, usecs, frames, .. } = self.interrupt;
        let InterruptShape { poll_usecs, tx_complete, .. } = self.interrupt;
        let (wire_usecs, wire_frames) = self.wire_moderation();
        writeln!(
            text,
            "[interrupt]\nper_packet = {per_packet}\ngate = \"{}\"\nrx_usecs = {usecs}\n\
             rx_frames = {}\nadaptive = {}\npoll_usecs = {}\nwire_usecs = {wire_usecs}\n\
             wire_frames = {wire_frames}\ntx_complete = \"{}\"",
            if unmasked { "none" } else { "queue" },
            if per_packet { 0 } else { frames },
            adaptive && !per_packet,
            if unmasked { 0 } else { poll_usecs },
            TX_COMPLETE[tx_complete],
        )
        .unwrap();
    }

    /// Classification in software needs cores to hand packets to.
    fn system(&self) -> usize {
        self.system.min(usize::from(self.queues))
    }

    /// `wire_usecs` and `wire_frames`, if the wires support them.
    fn wire_moderation(&self) -> (u32, u32) {
        let InterruptShape { wire_usecs, wire_frames, .. } = self.interrupt;
        let is_patient = |wire: &WireShape| wire.rate_pps == 0 && wire.link.is_none();
        if wire_usecs == 0 || self.wires.iter().any(is_patient) {
            return (0, 0);
        }
        let can_tell = self.wires.iter().all(|wire| wire.link.is_none());
        (wire_usecs, if can_tell { wire_frames } else { 0 })
    }

    fn has_faults(&self) -> bool {
        self.wires.iter().any(|wire| wire.fault.is_some())
    }

    /// Whether nothing in it may change the order within a flow: no faults, and no function that
    /// steers packets past those still in the burst.
    fn keeps_order(&self) -> bool {
        !self.has_faults() && !self.rx.contains(&2)
    }

    /// Packets that its hosts send after receiving this many.
    fn sent(&self, delivered: u64) -> u64 {
        match self.host {
            HostShape::Sink => 0,
            HostShape::Echo => delivered,
            HostShape::Sender(sends, _) => delivered * u64::from(sends),
        }
    }

    /// Whether nothing in it may lose a packet.
    fn is_lossless(&self) -> bool {
        !self.has_faults()
            && self.host == HostShape::Sink
            && self.wires.iter().all(|wire| wire.rate_pps == 0 && wire.link.is_none())
            && !self.rx.contains(&3)
    }
}

fn wires() -> impl Strategy<Value = Vec<WireShape>> {
    let wire = (
        1..40u32,
        1..600u32,
        prop_oneof![
            2 => Just(0u64),
            2 => 10_000..300_000u64,
            1 => 1_000_000..20_000_000u64
        ],
        prop_oneof![2 => Just(1u32), 1 => 2..100u32],
        0..SIZES.len(),
        any::<bool>(),
        (0..3u8, 0..3u8, 0..3u8),
        prop::option::weighted(0.3, (100..10_000u32, 0..20u32, 1..60u32)),
        prop::option::weighted(0.2, (0..3u8, 0..3u8, 0..3u8)),
    );
    let wire =
        wire.prop_map(|(flows, packets, rate_pps, burst, size, zipf, shares, link, fault)| {
            WireShape { flows, packets, rate_pps, burst, size, zipf, shares, link, fault }
        });
    prop::collection::vec(wire, 1..4)
}

fn interrupts() -> impl Strategy<Value = InterruptShape> {
    let modes = (prop::bool::weighted(0.3), prop::bool::weighted(0.3), prop::bool::weighted(0.3));
    let times = (
        prop_oneof![Just(0u32), Just(5), Just(20), Just(300)],
        prop_oneof![Just(0u32), Just(1), Just(8), Just(64)],
        prop_oneof![3 => Just(0u32), 1 => Just(15)],
    );
    let wires = (
        prop_oneof![Just(0u32), Just(5), Just(50), Just(700)],
        prop_oneof![Just(0u32), Just(1), Just(8), Just(300)],
    );
    (modes, times, wires, 0..TX_COMPLETE.len()).prop_map(|(modes, times, wires, tx_complete)| {
        let (per_packet, unmasked, adaptive) = modes;
        let (usecs, frames, poll_usecs) = times;
        let (wire_usecs, wire_frames) = wires;
        InterruptShape {
            per_packet,
            unmasked,
            adaptive,
            usecs,
            frames,
            poll_usecs,
            wire_usecs,
            wire_frames,
            tx_complete,
        }
    })
}

fn cards() -> impl Strategy<Value = CardShape> {
    let chain = (
        prop::collection::vec(0..RX.len(), 0..3),
        0..STEER.len(),
        any::<bool>(),
        1..9u16,
        // Core 3 may be the borrowed core's neighbour or shared by all queues.
        prop::option::of(prop::collection::vec(0..4usize, 8)),
    );
    let memory = (
        prop_oneof![Just((64u32, 64u32)), Just((256, 64)), Just((1024, 1024))],
        prop_oneof![Just(64u32), 65..300u32, Just(8192u32)],
    );
    let timing = (interrupts(), 0..IDLE.len(), prop_oneof![Just(64usize), 1..64usize]);
    let host = (
        prop_oneof![
            Just(HostShape::Sink),
            Just(HostShape::Echo),
            // At most 8 queues want 4 buffers each: including their fill rings, fewer than 64.
            (1..100u32, 1..5usize).prop_map(|(sends, landing)| HostShape::Sender(sends, landing))
        ],
        prop_oneof![Just(0u32), 1..1500u32],
        prop_oneof![3 => Just(0usize), 1 => Just(1), 1 => Just(2)],
        1..u64::from(u32::MAX),
    );
    (wires(), chain, memory, timing, host).prop_map(|(wires, chain, memory, timing, host)| {
        let (rx, steer, tx, queues, cores) = chain;
        let (rings, buffers) = memory;
        let (interrupt, idle, burst) = timing;
        let (host, cost_ns, system, seed) = host;
        CardShape {
            wires,
            rx,
            steer,
            tx,
            queues,
            cores,
            rings,
            buffers,
            interrupt,
            idle,
            burst,
            host,
            cost_ns,
            system,
            seed,
        }
    })
}

fn config(cases: u32) -> ProptestConfig {
    // A card may take seconds to run: reporting a larger failing one is better than none.
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Default::default()
    }
}

/// For a card that is idle: the number of interrupts follows from its keys.
#[track_caller]
fn check_interrupts(card: &CardShape, simulation: &Simulation) {
    let InterruptShape { per_packet, unmasked, tx_complete, .. } = card.interrupt;
    let view = simulation.view();
    let (wire_usecs, wire_frames) = card.wire_moderation();
    for wire in &view.wires {
        let (interrupts, packets) =
            (wire.counters.interrupts.get(), wire.counters.rx_packets.get());
        if wire_usecs == 0 {
            assert_eq!(interrupts, 0, "a wire that is not moderated");
            continue;
        }
        // At most at those times, and for that many frames; some of them may have found no buffer.
        let by_time = simulation.now().as_nanos() / (u64::from(wire_usecs) * 1000) + 1;
        let frames = packets + wire.counters.rx_shed.get();
        let by_count = frames.checked_div(wire_frames.into()).unwrap_or(0);
        assert!(interrupts <= by_time + by_count, "{interrupts} of {by_time} and {by_count}");
        assert!((packets != 0) == (interrupts != 0), "{interrupts} for {packets} packets");
    }
    // The cores of other systems wake each other as well.
    if SYSTEMS[card.system()] != "knet" {
        return;
    }
    let completes = TX_COMPLETE[tx_complete] != "off" && matches!(card.host, HostShape::Sender(..));
    for queue in &view.queues {
        let (sent, coalesced) = (queue.steer.doorbells.get(), queue.steer.coalesced.get());
        let taken = queue.target.interrupts.get();
        assert_eq!(taken + coalesced, sent, "an interrupt is taken or finds one pending");
        assert!(unmasked || coalesced == 0, "a queue that is masked is not interrupted");
        let packets = queue.steer.packets.get();
        if per_packet && unmasked && !completes {
            assert_eq!(sent, packets, "one for each packet");
        } else if !completes {
            assert!(sent <= packets, "{sent} for {packets} packets");
        }
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Every card becomes idle on its own with no packet left anywhere: no wake-up is lost.
    #[test]
    fn every_card_becomes_idle_with_nothing_in_flight(card in cards(), seed: u64) {
        let text = card.text();
        let run = || {
            let (mut simulation, witness) = simulation(&text, seed, CostModel::default());
            step_through(&mut simulation, None);
            let ledger = simulation.ledger();
            assert_eq!(ledger.in_flight, 0, "asleep on packets: {ledger:?}");
            check_interrupts(&card, &simulation);
            (end_traced(simulation), witness)
        };
        let ((outcome, trace), witness) = run();
        let ledger = &outcome.ledger;
        prop_assert_eq!(ledger.unbalanced_bursts, 0);
        prop_assert_eq!(ledger.delivered, witness.packets());
        if !card.has_faults() {
            let offered: u64 = card.wires.iter().map(|wire| u64::from(wire.packets)).sum();
            prop_assert_eq!(ledger.r#in, offered + card.sent(ledger.delivered));
        }
        let sent: u64 = outcome.queues.iter().map(|queue| queue.transmitted).sum();
        let refused = ledger.drops.get("tx_ring_full").copied().unwrap_or(0);
        prop_assert_eq!(sent + refused, card.sent(ledger.delivered), "waits for room: {:?}", ledger);
        if card.keeps_order() {
            prop_assert_eq!((witness.late(), witness.doubled()), (0, 0));
        }
        if card.is_lossless() {
            prop_assert_eq!(ledger.dropped, 0, "{:?}", ledger);
        }
        let ((again, same), _) = run();
        prop_assert_eq!(&trace, &same);
        prop_assert_eq!(&outcome.ledger, &again.ledger);
    }

    /// Stopped anywhere, a card accounts for every packet.
    #[test]
    fn cards_stopped_at_any_time_account_for_all(
        card in cards(),
        seed: u64,
        after_us in 0..400u64,
    ) {
        let (mut simulation, witness) = simulation(&card.text(), seed, CostModel::default());
        step_through(&mut simulation, Some(micros(after_us)));
        let outcome = end(simulation);
        prop_assert_eq!(outcome.ledger.delivered, witness.packets());
        if card.keeps_order() {
            prop_assert_eq!((witness.late(), witness.doubled()), (0, 0));
        }
    }
}

#[test]
fn only_the_seed_determines_a_run() {
    let text = "[[wire]]\nport = \"generator\"\nrate_pps = 2000000\nflows = 64\n\
                [host]\nqueues = 4\ncost_ns = 300\nmode = \"echo\"\n";
    let run = |seed| {
        let file = picnic_core::config::CardFile::parse(text, None).unwrap();
        let mut simulation =
            Simulation::new(Launch::new(&file, registries()), seed, CostModel::default()).unwrap();
        simulation.run_until(micros(1000));
        simulation.finish()
    };
    let outcomes: Vec<_> = (0..6).map(run).collect();
    for (seed, (report, trace)) in outcomes.iter().enumerate() {
        let (again, same) = run(seed as u64);
        assert_eq!(*trace, same);
        assert_eq!(trace.hash(), same.hash());
        assert_eq!(trace.to_string(), same.to_string());
        assert_eq!(report.ledger, again.ledger);
        // With every time in the report.
        let json = |report: &Report| serde_json::to_value(report).unwrap();
        assert_eq!(json(report), json(&again));
    }
    let mut hashes: Vec<_> = outcomes.iter().map(|(_, trace)| trace.hash()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 6, "two seeds gave one trace");
}

#[test]
fn card_file_seed_changes_packets() {
    let run = |seed| {
        let text = format!(
            "[card]\nseed = {seed}\n[[wire]]\nport = \"generator\"\npackets = 64\nflows = 9\n\
             [host]\nqueues = 1\n"
        );
        let (mut simulation, _) = simulation(&text, 1, CostModel::default());
        simulation.run_to_end();
        end_traced(simulation)
    };
    let ((one, trace), (two, other)) = (run(1), run(2));
    assert_eq!(one.ledger, two.ledger);
    // The same numbers at the same times, but not the same bytes.
    assert_eq!(trace.entries(), other.entries());
    assert_ne!(trace.hash(), other.hash());
}

/// Otherwise it takes millions of turns that do nothing.
#[test]
fn cards_sleep_until_full_wires_have_room() {
    let wire = |packets: u32, rate_mbps: u32, fault: &str| {
        format!(
            "[[wire]]\nport = \"generator\"\nflows = 1\npackets = {packets}\nsize = 100\n\
             [wire.link]\nrate_mbps = {rate_mbps}\nqueue_packets = 1\n{fault}"
        )
    };
    for idle in IDLE {
        for fault in ["", "[wire.fault]\ndrop = 0.05\n"] {
            let text = format!(
                "[card]\nidle = \"{idle}\"\nwire_backlog = 64\n[pool]\nbuffers = 8192\n\
                 [host]\nqueues = 7\nring_size = 256\ntx_ring_size = 64\n\
                 attachment = \"sender\"\nsends = 96\n\
                 [interrupt]\nrx_usecs = 5\nwire_usecs = 50\ntx_complete = \"moderated\"\n\
                 {}{}[[rx]]\nfunction = \"by-wire\"\n",
                wire(40, 100, fault),
                wire(20, 101, fault),
            );
            let (mut simulation, _) = simulation(&text, 0, CostModel::default());
            let mut steps = 0;
            while simulation.step() {
                steps += 1;
            }
            let events = simulation.trace().recorded();
            assert!(steps < 4 * events, "{idle} {fault}: {steps} steps for {events} events");
            let ledger = end_traced(simulation).0.ledger;
            assert_eq!(ledger.transmitted, 96 * ledger.delivered, "{idle} {fault}: {ledger:?}");
        }
    }
}
