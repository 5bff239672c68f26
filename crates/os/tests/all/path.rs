//! The packet path's arithmetic against the same in fractions, and admission against every single
//! interval.

use picnic_core::config::InterruptSection;
use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::time::Time;
use picnic_os::admission::{Demand, Order, admit};
use picnic_os::doorbells::Doorbells;
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_os::schedulers::Discipline;
use proptest::prelude::*;

const BILLION: u128 = 1_000_000_000;

fn up(number: u128, by: u128) -> u128 {
    number / by + u128::from(!number.is_multiple_of(by))
}

fn intake(pps: u64, burst: u64) -> Intake {
    Intake { name: "wire".into(), pps, burst, room: u64::MAX }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn times_are_rounded_up(
        wires in prop::collection::vec((0..3_000_000_u64, 0..40_u64), 0..4),
        (turn_ns, packet_ns) in (0..400_u64, 0..150_u64),
        (burst, looked_at) in (0..65_u64, 0..4_u64),
        (switch_ns, cold_ns) in (0..2_000_u64, 0..50_000_u64),
        (taken_ns, segments) in (0..5_000_000_u64, 0..9_u64),
    ) {
        let costs = Costs { turn_ns, packet_ns, burst, wires: looked_at, ..Costs::default() };
        let intakes: Vec<_> = wires.iter().map(|&(pps, burst)| intake(pps, burst)).collect();
        let path = PacketPath::new(intakes, costs).switching(switch_ns, cold_ns);
        let wide = u128::from;
        // Picoseconds per packet in turns of whole bursts; billionths of the core.
        let each_ps = 1_000 * wide(packet_ns) + up(1_000 * wide(turn_ns), wide(burst.max(1)));
        let pps: u128 = wires.iter().map(|wire| wide(wire.0)).sum();
        let share = up(pps * each_ps, 1_000);
        prop_assert_eq!(wide(path.share_ppb()), share);
        prop_assert_eq!(wide(path.pps()), pps);
        prop_assert_eq!(wide(path.per_packet_ns()), wide(packet_ns) + up(wide(turn_ns), wide(burst.max(1))));
        let turn = wide(burst * looked_at * packet_ns + turn_ns);
        prop_assert_eq!(wide(path.whole_turn_ns()), turn);
        prop_assert_eq!(path.catches_up(), share < BILLION);
        prop_assert_eq!(path.segment_ns(taken_ns, false), taken_ns + switch_ns);
        prop_assert_eq!(path.segment_ns(taken_ns, true), taken_ns + switch_ns + cold_ns);
        let taken = wide(taken_ns);
        let segments_wide = wide(segments.max(1));
        if share >= BILLION {
            prop_assert_eq!(path.catch_up_ns(taken_ns), turn_ns);
            prop_assert_eq!(wide(path.until_next_ns(taken_ns)), taken + wide(turn_ns));
            let all = taken + wide(turn_ns) * segments_wide;
            prop_assert_eq!(wide(path.until_next_of_ns(taken_ns, segments)), all);
            return Ok(());
        }
        let left = BILLION - share;
        let behind = |time: u128| up(time * up(share * BILLION, left), BILLION);
        let bursts: u128 = wires.iter().filter(|wire| wire.0 != 0).map(|wire| wide(wire.1)).sum();
        let rest = up((up(bursts * each_ps, 1_000) + wide(turn_ns)) * BILLION, left);
        let catch_up = |taken: u128| behind(taken + turn) + rest;
        prop_assert_eq!(wide(path.catch_up_ns(taken_ns)), catch_up(taken));
        prop_assert_eq!(wide(path.until_next_ns(taken_ns)), taken + catch_up(taken));
        let all = taken + behind(taken) + catch_up(0) * segments_wide;
        prop_assert_eq!(wide(path.until_next_of_ns(taken_ns, segments)), all);
        for (wire, intake) in wires.iter().zip(path.intakes()) {
            let arriving = taken * wide(wire.0) / BILLION + wide(wire.1.max(1));
            prop_assert_eq!(wide(path.arriving(intake, taken_ns)), arriving);
        }
    }

    /// With a turn of the packet path that a release may find begun, and one after each segment.
    #[test]
    fn turns_agree_with_every_interval(
        tasks in prop::collection::vec((60..400_u64, prop::collection::vec(1..30_u64, 1..3)), 1..5),
        turn_ns in 0..60_u64,
        (switch_ns, cold_ns) in (0..4_u64, 0..500_u64),
        is_by_segment in any::<bool>(),
    ) {
        // The extra time of a first pass is not part of any other.
        let path = PacketPath::new(Vec::new(), Costs { turn_ns, ..Costs::default() })
            .switching(switch_ns, cold_ns);
        let demand = |(period, segments): &(u64, Vec<u64>)| Demand {
            name: "t".into(),
            period_ns: Some(*period),
            invocation_ns: segments.iter().sum(),
            segment_ns: segments.iter().copied().max().unwrap(),
            segments: segments.len() as u64,
        };
        let demands: Vec<_> = tasks.iter().map(demand).collect();
        let discipline = if is_by_segment { Discipline::Segment } else { Discipline::Completion };
        let answer = admit(&demands, &path, Order::EarliestDeadline, discipline);
        // Period, all of an invocation, its longest part, including the turns after segments.
        let mut works: Vec<_> = demands
            .iter()
            .map(|demand| {
                let beside_ns = turn_ns + switch_ns;
                let whole = demand.invocation_ns + demand.segments * beside_ns;
                let segment_ns = demand.segment_ns + beside_ns;
                let blocking = if is_by_segment { segment_ns } else { whole };
                (demand.period_ns.unwrap(), whole, blocking)
            })
            .collect();
        works.sort_by_key(|work| work.0);
        let load: f64 = works.iter().map(|work| work.1 as f64 / work.0 as f64).sum();
        let due = |works: &[(u64, u64, u64)], within: u64| -> u64 {
            works.iter().map(|work| (within - 1) / work.0 * work.1).sum()
        };
        let first = works[0].0 + 1;
        // The last turn does not fit: its length divided by the rest of the core is exceeded.
        let end = ((turn_ns as f64 / (1.0 - load).max(1e-6)) as u64 + 2).min(100_000);
        let fits = load <= 1.0 + 1e-12
            && (turn_ns == 0
                || (first..end.max(first + 1)).all(|within| turn_ns + due(&works, within) <= within))
            && (1..works.len()).all(|index| {
                let mut intervals = first..works[index].0;
                intervals.all(|within| works[index].2 + due(&works[..index], within) <= within)
            });
        prop_assert_eq!(answer.is_ok(), fits, "{:?} of {:?}, {} ns", answer, works, turn_ns);
    }
}

#[test]
fn sums_saturate() {
    let top = u64::MAX;
    let free = Costs { catch_up_ns: 0, ..Costs::default() };
    let costs = Costs { turn_ns: top, packet_ns: top, burst: top, wires: top, ..free };
    let path = PacketPath::new(vec![intake(top, top), intake(top, top)], costs);
    assert_eq!((path.pps(), path.share_ppb(), path.whole_turn_ns()), (top, top, top));
    assert_eq!((path.per_packet_ns(), path.catches_up()), (top, false));
    let path = PacketPath::new(vec![intake(1 << 63, 1), intake(1 << 63, 1)], costs);
    assert_eq!(path.share_ppb(), top);
    for (burst, packet_ns) in [(1 << 63, 1), (1 << 31, 1 << 32)] {
        let costs = Costs { packet_ns, burst, wires: 2, ..free };
        assert_eq!(PacketPath::new(Vec::new(), costs).whole_turn_ns(), top);
    }
    assert_eq!(path.arriving(&intake(top, top), top), top);
    assert_eq!(path.arriving(&intake(3_000_000_000, top), 1), top);
    assert_eq!((path.until_next_ns(top), path.until_next_of_ns(top, top)), (top, top));
    let switching = PacketPath::default().switching(top, top);
    assert_eq!((switching.segment_ns(1, false), switching.segment_ns(1, true)), (top, top));
    // One that catches up, but not soon.
    let slow = Costs { turn_ns: top / 2, packet_ns: 0, burst: 1, ..Costs::default() };
    let path = PacketPath::new(Vec::new(), slow);
    assert!(path.catches_up());
    assert_eq!(path.until_next_of_ns(0, 3), top);
    assert_eq!(path.until_next_ns(top / 2 + 2), top);
    // All arrivals come together.
    let path = PacketPath::new(
        vec![intake(1, top), intake(1, top)],
        Costs { turn_ns: top, packet_ns: 0, burst: top, ..Costs::default() },
    );
    assert!(path.catches_up());
    assert_eq!(path.catch_up_ns(0), top);
    let one = PacketPath::new(
        vec![intake(1_000_000, 1)],
        Costs { turn_ns: 0, packet_ns: 999, burst: 1, ..Costs::default() },
    );
    assert_eq!((one.share_ppb(), one.catch_up_ns(top)), (999_000_000, top));
    assert_eq!(one.until_next_of_ns(top, 1), top);
    let few =
        PacketPath::new(vec![intake(1, 1)], Costs { packet_ns: 1, burst: 1, ..Costs::default() });
    assert_eq!((few.share_ppb(), few.until_next_of_ns(top, 1)), (1, top));
}

#[test]
fn empty_paths_cost_nothing() {
    let path = PacketPath::default();
    assert_eq!((path.pps(), path.share_ppb(), path.whole_turn_ns()), (0, 0, 0));
    assert_eq!((path.segment_ns(7, true), path.until_next_ns(7), path.catch_up_ns(7)), (7, 7, 0));
    assert!(!path.is_stated() && path.clone().stated().is_stated());
    let Costs { turn_ns, packet_ns, burst, wires, .. } = *path.costs();
    assert_eq!((turn_ns, packet_ns, burst, wires), (0, 0, 64, 1));
}

/// Nanoseconds for doorbells in turns of a whole burst each, and for one such turn with the
/// doorbells due before it, according to a path of these costs.
fn of_doorbells(costs: Costs) -> (f64, u64) {
    let path = |doorbells| PacketPath::new(vec![intake(1, 1)], Costs { doorbells, ..costs });
    let (with, without) = (path(costs.doorbells), path(Doorbells::default()));
    // At one packet a second, the catch-up after an empty segment is the last turn, the due
    // doorbells, and the packet.
    let rest_ns = with.catch_up_ns(0) - without.catch_up_ns(0) + 2;
    let fast = |doorbells| {
        PacketPath::new(vec![intake(1_000, 1)], Costs { doorbells, ..costs }).share_ppb() as f64
    };
    let each_packet_ns = (fast(costs.doorbells) - fast(Doorbells::default()) + 1.0) / 1_000.0;
    (each_packet_ns * costs.burst as f64, rest_ns)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Targets that always sleep, packets steered at random, turns of whole bursts that cost at
    /// most the stated time: doorbells take no longer than bounded.
    #[test]
    fn doorbells_stay_within_their_bound(
        (queues, wires) in (1..6_u64, 1..4_u64),
        (usecs, frames) in (0..40_u32, prop::sample::select(vec![0, 16, 64, 200])),
        (turn_ns, packet_ns, bell_ns) in (1..2_000_u64, 1..200_u64, 1..12_000_u64),
        (turn_share, bell_share) in (1..101_u64, 1..101_u64),
        steered in prop::collection::vec((0..6_usize, 0..6_usize, 0..65_u64), 1..120),
    ) {
        let section = InterruptSection { rx_usecs: usecs, rx_frames: frames, ..<_>::default() };
        let doorbells = Doorbells::of(&section, queues as u16, bell_ns, bell_ns);
        let costs = Costs { turn_ns, packet_ns, wires, doorbells, ..Costs::default() };
        let mut moderations: Vec<_> =
            (0..queues).map(|_| Moderation::new(section.moderation())).collect();
        // One packet waits for each queue from before.
        moderations.iter_mut().for_each(|moderation| moderation.published(Time::ZERO, 1));
        let (mut now, mut rung) = (1_000_000, 0);
        let took_ns = (turn_ns + 64 * packet_ns) * turn_share / 100;
        let took_bell_ns = (bell_ns * bell_share).div_ceil(100);
        for &(one, other, packets) in &steered {
            let start = now;
            // The burst is spread over two queues, and over the wires one after the other.
            for wire in 0..wires {
                let of_wire = |all: u64| all / wires + u64::from(wire < all % wires);
                for (queue, all) in [(one, packets), (other, 64 - packets)] {
                    let packets = of_wire(all) as u32;
                    if packets != 0 {
                        let queue = queue % queues as usize;
                        moderations[queue].published(Time::from_nanos(start), packets);
                    }
                }
                for moderation in &mut moderations {
                    if moderation.due(Time::from_nanos(start)) {
                        moderation.served();
                        rung += 1;
                        now += took_bell_ns;
                    }
                }
            }
            now += took_ns;
        }
        let (each_turn_ns, rest_ns) = of_doorbells(costs);
        let counted_ns = each_turn_ns * steered.len() as f64 + rest_ns as f64;
        let spent_ns = (rung * took_bell_ns) as f64;
        prop_assert!(spent_ns <= counted_ns, "{spent_ns} ns spent, {counted_ns} ns counted, {costs:?}");
        // Of a single turn, no more than a doorbell for each queue and wire.
        let path = PacketPath::new(Vec::new(), costs);
        prop_assert!(path.turn_ns() <= turn_ns + queues * wires * bell_ns);
    }
}

#[test]
fn doorbell_bounds_follow_moderation() {
    let counted = |section: InterruptSection, queues: u16, wires: u64| {
        let doorbells = Doorbells::of(&section, queues, 3_000, 25_000);
        // A turn of a burst takes 6.7 µs without them.
        let costs = Costs { turn_ns: 300, packet_ns: 100, wires, doorbells, ..Costs::default() };
        let path = PacketPath::new(Vec::new(), costs);
        (of_doorbells(costs).0.round() as u64, path.turn_ns())
    };
    let of = |rx_usecs, rx_frames| InterruptSection { rx_usecs, rx_frames, ..<_>::default() };
    for (section, queues, wires, each_turn_ns, turn_ns) in [
        // Without moderation, each burst rings each queue.
        (of(0, 64), 4, 1, 12_000, 100_300),
        (of(0, 64), 4, 2, 24_000, 200_300),
        // By time alone: 12 µs x 6.7 / (6.7 + 20 - 9).
        (of(20, 0), 4, 1, 4_542, 100_300),
        (of(200, 0), 4, 1, 407, 100_300),
        // Also by count: one of a whole burst.
        (of(200, 64), 4, 1, 3_000 + 589, 100_300),
        // No turn rings more than half of the queues by time, and half by count on top.
        (of(1, 64), 4, 1, 7_500, 100_300),
        // One queue is rung once a turn.
        (of(1, 1), 1, 1, 3_000, 25_300),
        // With several wires, those that ring by count ring again: 12 x 6.7 / (20 - 12).
        (of(20, 0), 4, 2, 10_050, 100_300),
        (of(20, 64), 4, 2, 15_000, 150_300),
        (InterruptSection { adaptive: true, ..of(20, 0) }, 4, 1, 12_000, 100_300),
    ] {
        let found = counted(section.clone(), queues, wires);
        assert!(found.0.abs_diff(each_turn_ns) <= 2, "{section:?}: {found:?}, {each_turn_ns} ns");
        assert_eq!(found.1, turn_ns, "{section:?}");
    }
    // A packet moved separately rings one queue.
    let each = InterruptSection { per_packet: true, ..of(0, 0) };
    assert_eq!(Doorbells::of(&each, 4, 1, 1).queues, 1);
    assert_eq!(each.moderation(), ModerationMode::PerPacket);
}

#[test]
fn interruptions_are_tolerated_within_room_and_time() {
    let wire = |room| Intake { name: "w".into(), pps: 1_000_000, burst: 1, room };
    let path = |room, costs: Costs| PacketPath::new(vec![wire(room)], costs);
    let free = Costs { burst: 1, ..Costs::default() };
    for (room, costs, segment_ns, expected) in [
        // 1023 packets in addition to the one that arrives with the first, 900 of them in the
        // segment.
        (1_024, free, 900_000, Some(123_000)),
        (1_024, free, 2_000_000, Some(0)),
        (1_024, Costs { ring: 512, ..free }, 500_000, Some(11_000)),
        (u64::MAX, free, 0, None),
        (u64::MAX, Costs { ring: 512, ..free }, 0, Some(511_000)),
        // Half of the core: the path catches up in 1 ms with the arrivals of 1 ms, except two
        // packets and two turns.
        (u64::MAX, Costs { packet_ns: 500, ring: 8_192, ..free }, 100_000, Some(898_500)),
    ] {
        assert_eq!(path(room, costs).tolerates_ns(segment_ns), expected, "{room} {costs:?}");
    }
    assert_eq!(PacketPath::default().tolerates_ns(0), None);
    // Exactly that much is admitted.
    let task = [Demand {
        name: "t".into(),
        period_ns: None,
        invocation_ns: 100_000,
        segment_ns: 100_000,
        segments: 1,
    }];
    for (room, ring) in [(1_024, u64::MAX), (1_000_000, 1_000_000)] {
        let costs = Costs { packet_ns: 500, turn_ns: 40, ring, ..free };
        let tolerates_ns = path(room, costs).tolerates_ns(100_000).unwrap();
        let admitted = |interruption_ns| {
            let path = path(room, Costs { interruption_ns, ..costs });
            admit(&task, &path, Order::Other, Discipline::Segment)
        };
        assert_eq!(admitted(tolerates_ns), Ok(()));
        let message = admitted(tolerates_ns + 2_000).unwrap_err().to_string();
        let expected = format!("and an interruption of {} ns", tolerates_ns + 2_000);
        assert!(message.contains(&expected), "{message}");
    }
}
