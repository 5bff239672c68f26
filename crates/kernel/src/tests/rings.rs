//! The programs' target rings: packets without room are dropped before them.

use super::{can_load, launch, parse};
use crate::counters::Counts;
use crate::object::Object;
use crate::plan::plan;
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use picnic_forms::Handover;
use picnic_machine::testbed::Testbed;
use picnic_ports::interface::within;
use picnic_testing::{skip, wait_until};
use rustix::thread::{CpuSet, sched_setaffinity};

const RING_SIZE: u64 = 64;
const DROP: u32 = 1;
const REDIRECT: u32 = 4;

/// The programs of a card that hands all packets to core 0, with core 1 borrowed.
fn object() -> Object {
    let text = format!(
        "[card]\nengine = \"kernel\"\nborrowed_core = 1\n[[wire]]\nport = \"xdp\"\n\
         interface = \"eth0\"\n[host]\nattachment = \"stack\"\nhandover = \"cpumap\"\n\
         queues = 1\ntarget_cores = [0]\nring_size = {RING_SIZE}\n"
    );
    let (plan, placement) = plan(&launch(&parse(&text))).unwrap();
    let mut object = Object::load(&plan, &placement.target_cores, false).unwrap();
    object.count(Handover::Cpumap).unwrap();
    object.wire(0).unwrap();
    object
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).unwrap();
}

#[test]
fn rings_are_full_at_their_size_and_refusals_free_room() {
    if !can_load("rings_are_full_at_their_size_and_refusals_free_room") {
        return;
    }
    // On the borrowed core, and elsewhere.
    for core in [1, 0] {
        std::thread::scope(|scope| scope.spawn(|| is_bounded(core)).join()).unwrap();
    }
}

/// Fills the ring from a core, without a consumer.
fn is_bounded(core: usize) {
    let mut object = object();
    let rings = object.rings().unwrap();
    pin(core);
    let frame: &[u8] = &[0; 60];
    let hand_over = |object: &mut Object| {
        let mut options = TestRunOptions::new();
        (options.data_in, options.repeat) = (Some(frame), 1);
        object.wire(0).unwrap().test_run(options).unwrap().return_value
    };
    for packet in 0..RING_SIZE {
        assert_eq!(hand_over(&mut object), REDIRECT, "core {core}, packet {packet}");
    }
    let dropped = 20;
    for _ in 0..dropped {
        assert_eq!(hand_over(&mut object), DROP, "core {core}");
    }
    // One of them did not arrive after all.
    object.refuse(0, core).unwrap();
    let verdicts: Vec<_> = (0..20).map(|_| hand_over(&mut object)).collect();
    let handed = verdicts.iter().filter(|&&verdict| verdict == REDIRECT).count();
    // It checks again after eight.
    assert_eq!(handed, 1, "core {core}: {verdicts:?}");
    assert!(verdicts[..8].contains(&REDIRECT), "core {core}: {verdicts:?}");
    let full: u64 = rings.get(&0, 0).unwrap().iter().sum();
    assert_eq!(full, dropped + 19, "core {core}");
}

/// The kernel's own ring would drop silently: each packet is delivered or counted.
#[test]
fn floods_from_several_cores_are_counted_exactly() {
    let test = "floods_from_several_cores_are_counted_exactly";
    if !can_load(test) {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return skip(test, "it needs two cores");
    }
    const TIMES: u32 = 200_000;
    let mut object = object();
    let rings = object.rings().unwrap();
    let counts = object.counts().unwrap();
    let program = object.wire(0).unwrap();
    let program: &Xdp = program;
    let frame: &[u8] = &[0; 60];
    // Delivered packets arrive on a private loopback interface.
    let bed = Testbed::build("kernel-test").unwrap();
    bed.add_namespace("card").unwrap();
    let namespace = bed.netns("card");
    std::thread::scope(|scope| {
        for core in [0, 1] {
            let flood = move || {
                pin(core);
                let mut options = TestRunOptions::new();
                (options.data_in, options.repeat) = (Some(frame), TIMES);
                options.attrs = TestRunAttrs::new().xdp_live_frames(64);
                program.test_run(options).unwrap();
            };
            let namespace = &namespace;
            scope.spawn(move || within(Some(namespace), flood).unwrap());
        }
    });
    let full: u64 = rings.get(&0, 0).unwrap().iter().sum();
    let sum = |count: fn(&Counts) -> u64| -> u64 {
        let by_core = counts.get(&0, 0).unwrap();
        by_core.iter().map(|words| count(&Counts::of(words))).sum()
    };
    let wanted = 2 * u64::from(TIMES);
    assert_eq!(sum(|counts| counts.wire_packets.iter().sum()), wanted);
    wait_until("each packet is delivered or dropped", || {
        sum(|counts| counts.delivered_packets) + full == wanted
    });
    assert!(full != 0, "two cores feed a third of one");
}
