//! A function under test: the fate of each packet, and the time passed to it.

use picnic_core::direction::Direction;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{Descriptor, RssType};
use picnic_core::packet::pool::PoolConfig;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Released, Trial, conformance};

/// Follows the packet's first byte, and marks the packet with time and wire; it releases held
/// packets after 100 ns, or drops them.
#[derive(Default)]
struct Told {
    held: Vec<(Time, Descriptor)>,
    drops_held: bool,
    forgets: bool,
    /// It never releases its packets.
    is_deaf: bool,
}

const HOLD: u8 = 0;
const DROP: u8 = 1;
const CONSUME: u8 = 2;
const NEXT: u8 = 3;
const STEER: u8 = 4;
const TRANSMIT: u8 = 5;
const COPY: u8 = 6;
const LEAVE: u8 = 7;

impl Function for Told {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|mut packet| {
            packet.mark = packet.received_at().as_nanos() as u32 + 1000 * u32::from(packet.wire);
            packet.set_rss(packet.mark + 7, RssType::Ipv4);
            match packet.data()[0] {
                HOLD => self.held.push((now + 100, packet)),
                DROP => out.drop(packet, DropReason::Filtered),
                CONSUME => out.consume(packet),
                NEXT => out.next(packet),
                STEER => out.steer(packet, 1),
                TRANSMIT => out.transmit(packet, 1),
                COPY => {
                    let copy = out.copy(&packet).unwrap();
                    out.next(copy);
                    out.next(packet);
                }
                _ => return Some(packet),
            }
            None
        });
    }

    fn next_deadline(&self) -> Option<Time> {
        self.held.first().map(|(due, _)| *due)
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        while !self.is_deaf && self.next_deadline().is_some_and(|due| due <= now) {
            let (_, packet) = self.held.remove(0);
            if self.drops_held {
                out.drop(packet, DropReason::Fault);
            } else {
                out.next(packet);
            }
        }
    }

    fn held(&self) -> usize {
        if self.forgets { 0 } else { self.held.len() }
    }
}

fn trial() -> Trial {
    let context = BuildContext { queues: 2, wires: 2, ..BuildContext::default() };
    Trial::new(&context, Direction::Rx).unwrap()
}

/// Numbers and fates.
type Ends = Vec<(Option<usize>, Fate)>;

fn ends(outcomes: &[Released]) -> Ends {
    outcomes.iter().map(|outcome| (outcome.number, outcome.fate)).collect()
}

#[test]
fn fates_are_reported_for_their_packet() {
    let (mut trial, mut function) = (trial(), Told::default());
    let expected: [(u8, Ends); 8] = [
        (HOLD, vec![]),
        (DROP, vec![(Some(1), Fate::Dropped(DropReason::Filtered))]),
        (CONSUME, vec![(Some(2), Fate::Consumed)]),
        (NEXT, vec![(Some(3), Fate::Next)]),
        (STEER, vec![(Some(4), Fate::Queue(1))]),
        (TRANSMIT, vec![(Some(5), Fate::Wire(1))]),
        (COPY, vec![(None, Fate::Next), (Some(6), Fate::Next)]),
        (LEAVE, vec![(Some(7), Fate::Next)]),
    ];
    for (number, (byte, fates)) in expected.into_iter().enumerate() {
        let now = Time::from_nanos(10 + number as u64);
        let outcomes = trial.give(&mut function, now, 1, &[byte; 60]).unwrap();
        assert_eq!(ends(&outcomes), fates, "of {byte}");
        for Released { fate, data, mark, rss_hash, .. } in outcomes {
            let left = !matches!(fate, Fate::Dropped(_) | Fate::Consumed);
            let expected = if left { (vec![byte; 60], 1010 + number as u32) } else { (vec![], 0) };
            assert_eq!(rss_hash, if left { expected.1 + 7 } else { 0 }, "of {byte}");
            assert_eq!((data, mark), expected, "of {byte}");
        }
    }
    let outcomes = trial.end(&mut function).unwrap();
    assert_eq!(ends(&outcomes), [(Some(0), Fate::Next)]);
}

#[test]
fn packets_are_found_at_any_queue_and_wire() {
    let mut trial = trial();
    for number in 0..2_u8 {
        let mut steers = per_packet(move |_: &mut PacketMut<'_>| Verdict::Steer(number.into()));
        let outcomes = trial.give(&mut steers, Time::ZERO, 0, &[9; 60]).unwrap();
        assert_eq!(outcomes[0].fate, Fate::Queue(number.into()));
        let mut transmits = per_packet(move |_: &mut PacketMut<'_>| Verdict::Transmit(number));
        let outcomes = trial.give(&mut transmits, Time::ZERO, 0, &[9; 60]).unwrap();
        assert_eq!(outcomes[0].fate, Fate::Wire(number));
    }
}

/// Sends all packets on the second wire, or on the first while that is down.
struct Detour;

impl Function for Detour {
    fn process(&mut self, _: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let wire = u8::from(out.wire_is_up(1));
        burst.drain().for_each(|packet| out.transmit(packet, wire));
    }
}

#[test]
fn wires_go_down_and_return() {
    let mut trial = trial();
    let mut wire = |is_up| {
        trial.set_wire_up(1, is_up);
        trial.give(&mut Detour, Time::ZERO, 0, &[9; 60]).unwrap()[0].fate
    };
    assert_eq!([true, false, true].map(&mut wire), [1, 0, 1].map(Fate::Wire));
}

#[test]
fn metadata_is_passed_with_the_packet() {
    let mut function = per_packet(|_: &mut PacketMut<'_>| Verdict::Next);
    let mut trial = trial();
    let mark = |packet: &mut Descriptor| packet.mark = 77;
    let outcomes = trial.give_known(&mut function, Time::ZERO, 1, &[9; 60], mark).unwrap();
    assert_eq!((outcomes.len(), outcomes[0].mark, outcomes[0].wire), (1, 77, 1));
}

/// Its buffer is already free.
#[test]
fn dropped_packets_report_only_their_drop() {
    let mut data = [9; 60];
    data[0] = DROP;
    let outcomes = trial().give(&mut Told::default(), Time::from_nanos(5), 1, &data).unwrap();
    let fate = Fate::Dropped(DropReason::Filtered);
    let [Released { number: Some(0), fate: found, wire: 0, data, mark: 0, rss_hash: 0 }] =
        &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert_eq!((*found, data.len()), (fate, 0));
}

#[test]
fn due_packets_leave_before_a_new_one() {
    let (mut trial, mut function) = (trial(), Told::default());
    let mut give = |nanos, byte| {
        let outcomes = trial.give(&mut function, Time::from_nanos(nanos), 0, &[byte; 60]);
        ends(&outcomes.unwrap())
    };
    assert!(give(0, HOLD).is_empty());
    assert_eq!(give(99, NEXT), [(Some(1), Fate::Next)]);
    assert_eq!(give(100, NEXT), [(Some(0), Fate::Next), (Some(2), Fate::Next)]);
}

#[test]
fn drops_belong_to_the_given_then_the_oldest_packet() {
    let (mut trial, mut function) = (trial(), Told { drops_held: true, ..Told::default() });
    for byte in [HOLD, HOLD] {
        assert_eq!(trial.give(&mut function, Time::ZERO, 0, &[byte; 60]), Ok(vec![]));
    }
    let outcomes = trial.give(&mut function, Time::ZERO, 0, &[DROP; 60]).unwrap();
    assert_eq!(ends(&outcomes), [(Some(2), Fate::Dropped(DropReason::Filtered))]);
    let fault = Fate::Dropped(DropReason::Fault);
    let outcomes = trial.end(&mut function).unwrap();
    assert_eq!(ends(&outcomes), [(Some(0), fault), (Some(1), fault)]);
}

/// Two are dropped in one flush, and one of their buffers is reused by later packets.
#[test]
fn drops_are_reported_once() {
    let (mut trial, mut function) = (trial(), Told { drops_held: true, ..Told::default() });
    for byte in [HOLD, HOLD] {
        assert_eq!(trial.give(&mut function, Time::ZERO, 0, &[byte; 60]), Ok(vec![]));
    }
    let fault = Fate::Dropped(DropReason::Fault);
    let outcomes = trial.give(&mut function, Time::from_nanos(100), 0, &[HOLD; 60]).unwrap();
    assert_eq!(ends(&outcomes), [(Some(0), fault), (Some(1), fault)]);
    assert_eq!(ends(&trial.end(&mut function).unwrap()), [(Some(2), fault)]);
}

#[test]
fn rings_never_fill_up() {
    let (mut trial, mut function) = (trial(), Told::default());
    for number in 0..5000 {
        let outcomes = trial.give(&mut function, Time::ZERO, 0, &[STEER; 60]).unwrap();
        assert_eq!(ends(&outcomes), [(Some(number), Fate::Queue(1))]);
    }
}

#[test]
fn packets_without_a_fate_are_errors() {
    let (mut trial, mut function) = (trial(), Told { forgets: true, ..Told::default() });
    let told = trial.give(&mut function, Time::ZERO, 0, &[HOLD; 60]).unwrap_err();
    let expected = "1 packets in and 0 made, but 0 released, 0 dropped or consumed and 0 held";
    assert_eq!(told, expected);
}

#[test]
fn packets_held_at_the_end_are_errors() {
    let (mut trial, mut function) = (trial(), Told { is_deaf: true, ..Told::default() });
    for _ in 0..3 {
        assert_eq!(trial.give(&mut function, Time::ZERO, 0, &[HOLD; 60]), Ok(vec![]));
    }
    let told = trial.end(&mut function).unwrap_err();
    assert_eq!(told, "3 packets are still held after the last flush");
}

#[test]
fn functions_holding_every_buffer_get_no_more() {
    // A packet of 1024 buffers each time.
    let context = BuildContext { buffer_size: 64, ..BuildContext::default() };
    let mut trial = Trial::new(&context, Direction::Rx).unwrap();
    let mut function = Told { is_deaf: true, ..Told::default() };
    let whole = PoolConfig::default().buffers / 1024;
    for _ in 0..whole {
        let outcomes = trial.give(&mut function, Time::ZERO, 0, &[HOLD; 1024 * 64]);
        assert_eq!(outcomes, Ok(vec![]));
    }
    let told = trial.give(&mut function, Time::ZERO, 0, &[HOLD; 60]).unwrap_err();
    assert_eq!(told, format!("packet {whole}: no free buffers"));
}

#[test]
fn trial_uses_the_requested_chain() {
    struct Stages(Vec<Stage>);
    impl Function for Stages {
        fn process(&mut self, _: Time, _: &mut Burst, out: &mut Out<'_>) {
            self.0.push(out.stage());
        }
    }
    for (direction, stage) in [(Direction::Rx, Stage::Rx), (Direction::Tx, Stage::Tx)] {
        let mut trial = Trial::new(&BuildContext::default(), direction).unwrap();
        let mut function = Stages(vec![]);
        trial.give(&mut function, Time::ZERO, 0, &[LEAVE; 60]).unwrap();
        assert_eq!(function.0, [stage]);
    }
}

#[test]
fn conformance_detects_each_violation() {
    let context = BuildContext { queues: 2, wires: 2, ..BuildContext::default() };
    let keeps = |build: fn() -> Box<dyn Function>| {
        let frames = conformance::of_frames(build, &context);
        let bytes = conformance::of_bytes(build, &context, &conformance::bytes_of_frames(0));
        (frames, bytes)
    };
    let missed = |build: fn() -> Box<dyn Function>, part: &str| {
        let (frames, bytes) = keeps(build);
        let (frames, bytes) = (frames.unwrap_err(), bytes.unwrap_err());
        assert!(frames.contains(part) && bytes.contains(part), "{frames}; {bytes}");
        assert!(frames.starts_with("Rx"), "it tells where: {frames}");
    };
    assert_eq!(keeps(|| Box::new(per_packet(|_| Verdict::Next))), (Ok(()), Ok(())));
    /// Keeps the layers from before its own write.
    struct Stale;
    impl Function for Stale {
        fn process(&mut self, _: Time, burst: &mut Burst, _: &mut Out<'_>) {
            for packet in burst.as_mut_slice() {
                let layers = packet.parse();
                if let Some(ether_type) = packet.data_mut().get_mut(12..14) {
                    ether_type.copy_from_slice(&[0x88, 0xb5]);
                }
                packet.set_layers(&layers);
            }
        }
    }
    missed(|| Box::new(Stale), "its descriptor has the layers");
    /// Holds each packet until the end, or claims to hold none.
    struct Holds(Vec<Descriptor>, bool);
    impl Function for Holds {
        fn process(&mut self, _: Time, burst: &mut Burst, _: &mut Out<'_>) {
            self.0.extend(burst.drain());
        }
        fn held(&self) -> usize {
            if self.1 { self.0.len() } else { 0 }
        }
    }
    missed(|| Box::new(Holds(Vec::new(), false)), "0 held");
    let (_, bytes) = keeps(|| Box::new(Holds(Vec::new(), true)));
    assert!(bytes.unwrap_err().contains("held after the last flush"));
}

/// The closure of the README.
fn names_to_queue_1(packet: &mut PacketMut<'_>) -> Verdict {
    match packet.udp() {
        Some(udp) if udp.destination_port() == 53 => Verdict::Steer(1),
        _ => Verdict::Next,
    }
}

#[test]
fn closure_sees_headers_that_are_split_over_buffers() {
    let build = || -> Box<dyn Function> { Box::new(per_packet(names_to_queue_1)) };
    assert_eq!(conformance::of_pieces(build, &BuildContext::default()), Ok(()));
}

#[test]
fn buffer_differences_name_the_failing_accessor() {
    struct Whole(fn(&mut PacketMut<'_>) -> Verdict);
    impl Function for Whole {
        fn process(&mut self, _: Time, burst: &mut Burst, out: &mut Out<'_>) {
            burst.retain(|mut packet| match (self.0)(&mut PacketMut::from(&mut packet)) {
                Verdict::Next => Some(packet),
                verdict => {
                    out.dispose(packet, verdict);
                    None
                }
            });
        }
    }
    let told = |judge| {
        let build = || -> Box<dyn Function> { Box::new(Whole(judge)) };
        conformance::of_pieces(build, &BuildContext::default()).unwrap_err()
    };
    let message = told(names_to_queue_1);
    assert!(message.contains("found Next, expected Queue(1) as of the whole packet"), "{message}");
    let reason = "`packet.udp()` returned nothing: headers are split over two buffers";
    assert!(message.contains(reason), "{message}");
    let message = told(|packet| match packet.tcp() {
        Some(_) => Verdict::Steer(1),
        None => Verdict::Next,
    });
    assert!(message.contains("`packet.tcp()` returned nothing"), "{message}");
    // If an accessor is not the reason, the short first buffer is.
    let message = told(|packet| match packet.data().len() {
        ..=60 => Verdict::Steer(1),
        _ => Verdict::Next,
    });
    assert!(message.contains("only the first buffer") || message.contains("returned nothing"));
}
