//! Hooks: the packets that observers see at each point, in order, and the same run without them.

use crate::common;
use crate::common::functions::{Door, Every};
use crate::common::{Bench, Wire, by_first_byte, frame, lock, patient};
use picnic_core::attachment::QueueOut;
use picnic_core::direction::Direction;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::guard::{Guard, QueueGuard, Screen};
use picnic_core::hook::{Hook, HookPoint, Hooks, Observer};
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_engine::chain::{Chain, ChainFunction};
use picnic_engine::swap::Command;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Observed packets, by hook point and stage.
type Shown = BTreeMap<(String, &'static str), Vec<u8>>;

/// Observed packets: their last bytes by point and stage. `closed` observers refuse.
#[derive(Clone, Default)]
struct Log {
    shown: Arc<Mutex<Shown>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// Those that may block.
    waits: Arc<Mutex<Vec<String>>>,
    closed: bool,
}

struct Watcher(String, Log);

impl Observer for Watcher {
    fn may_wait(&mut self) {
        lock(&self.1.waits).push(self.0.clone());
    }
    fn begin(&mut self) -> bool {
        lock(&self.1.calls).push("begin");
        !self.1.closed
    }
    fn observe(&mut self, _: Time, stage: Stage, packets: &[Descriptor]) {
        lock(&self.1.calls).push("observe");
        let mut shown = lock(&self.1.shown);
        let shown = shown.entry((self.0.clone(), stage.name())).or_default();
        shown.extend(packets.iter().map(|packet| packet.data()[1]));
    }
    fn end(&mut self) {
        lock(&self.1.calls).push("end");
    }
}

impl Hook for Log {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let name = match point {
            HookPoint::Wire { index, name } => format!("{index} {name}"),
            HookPoint::Function { direction, position, name } => {
                format!("{} {position} {name}", direction.name())
            }
            HookPoint::Queue { index, .. } => format!("queue {index}"),
        };
        Some(Box::new(Watcher(name, self.clone())))
    }
}

/// A guard that drops packets whose second byte is this.
struct Refuse(u8);

impl Guard for Refuse {
    fn function(&self, _: Stage) -> Option<Box<dyn Function>> {
        None
    }
    fn queue(&self, _: u16) -> Option<Box<dyn QueueGuard>> {
        Some(Box::new(Refuse(self.0)))
    }
    fn screen(&self, _: u16) -> Option<Box<dyn Screen>> {
        None
    }
}

impl QueueGuard for Refuse {
    fn receive(&mut self, _: Time, burst: &mut Burst, out: &mut QueueOut<'_>) {
        burst.retain(|packet| match packet.data()[1] == self.0 {
            true => {
                out.drop(packet, DropReason::Filtered);
                None
            }
            false => Some(packet),
        });
    }
}

/// A guard that drops everything.
struct Closed;

impl Guard for Closed {
    fn function(&self, stage: Stage) -> Option<Box<dyn Function>> {
        (stage == Stage::Rx).then(|| Box::new(Every::new(1, Door::Drop)) as Box<dyn Function>)
    }
    fn queue(&self, _: u16) -> Option<Box<dyn QueueGuard>> {
        None
    }
    fn screen(&self, _: u16) -> Option<Box<dyn Screen>> {
        None
    }
}

#[test]
fn guards_precede_timed_functions() {
    let functions = (vec![by_first_byte()], vec![]);
    let (wires, guard) = (vec![Wire::default()], Some(Box::new(Closed) as Box<dyn Guard>));
    let mut bench =
        Bench::with_hooks("[host]\nqueues = 1\n", wires, functions, &Hooks::none(), guard);
    // The first burst is timed, and the second is not.
    bench.card.time_functions_by([Box::new(|| Time::ZERO), Box::new(|| Time::ZERO)]);
    for dropped in [1, 2] {
        bench.wire(0).incoming.push_back(frame(0, 0, 0, 60));
        bench.turn();
        assert_eq!(bench.balanced().dropped, dropped);
    }
    bench.end();
}

fn drop_flow(flow: u8) -> Box<dyn Function> {
    Box::new(per_packet(move |packet: &mut PacketMut<'_>| match packet.data()[1] == flow {
        true => Verdict::Drop(DropReason::Filtered),
        false => Verdict::Next,
    }))
}

fn bench(hooks: &Hooks) -> Bench {
    let functions = (vec![drop_flow(1), by_first_byte()], vec![drop_flow(3)]);
    let wires = vec![Wire::default()];
    let guard = Some(Box::new(Refuse(2)) as Box<dyn Guard>);
    let bench = Bench::with_hooks("[host]\nqueues = 1\n", wires, functions, hooks, guard);
    bench.host().echo = true;
    bench.wire(0).incoming.extend((0..6).map(|flow| frame(0, flow, 0, 60)));
    bench
}

#[test]
fn every_hook_point_sees_its_packets() {
    let (log, closed) = (Log::default(), Log { closed: true, ..Log::default() });
    let mut bench = bench(&Hooks::none().with(log.clone()).with(closed.clone()));
    bench.settle();
    assert_eq!(bench.end().transmitted, 3);
    let expected: [(&str, &str, &[u8]); 6] = [
        ("0 wire0", "wire", &[0, 1, 2, 3, 4, 5]),
        ("rx 0 slot", "rx", &[0, 1, 2, 3, 4, 5]),
        ("rx 1 slot", "rx", &[0, 2, 3, 4, 5]),
        // After the guard, before the host.
        ("queue 0", "target", &[0, 3, 4, 5]),
        ("tx 0 slot", "tx", &[0, 3, 4, 5]),
        ("0 wire0", "wire_tx", &[0, 4, 5]),
    ];
    let expected =
        expected.map(|(point, stage, flows)| ((point.to_owned(), stage), flows.to_vec()));
    assert_eq!(*lock(&log.shown), BTreeMap::from(expected));
    // One call per burst, except for the wire's packets, which it takes one by one.
    let calls = lock(&log.calls).join(" ");
    let burst = ["begin observe end"; 5].join(" ");
    assert_eq!(calls, format!("{burst} begin observe observe observe end"));
    // An observer that declines is only asked, and does not hide packets from others.
    assert_eq!(*lock(&closed.calls), ["begin"; 6]);
}

/// A wire that keeps packets is polled while it keeps them, whether others wait for it or not.
#[test]
fn unobserved_wires_call_no_observer() {
    let log = Log::default();
    let mut bench = bench(&Hooks::none().with(log.clone()));
    bench.wire(0).keeps = Some(0);
    bench.turn();
    bench.look();
    bench.turn();
    assert_eq!(lock(&log.calls).join(" ").matches("begin").count(), 6);
    let calls = lock(&log.calls).len();
    for _ in 0..5 {
        bench.turn();
    }
    bench.wire(0).keeps = Some(1);
    assert_eq!([bench.turn().transmitted, lock(&log.calls).len()], [0, calls]);
    bench.settle();
    assert_eq!(lock(&log.calls).len(), calls);
    bench.end();
}

#[test]
fn observing_changes_nothing() {
    let mut plain = bench(&Hooks::none());
    let mut watched = bench(&Hooks::none().with(Log::default()));
    for bench in [&mut plain, &mut watched] {
        bench.settle();
    }
    assert_eq!(plain.host().seen, watched.host().seen);
    assert_eq!(plain.wire(0).sent, watched.wire(0).sent);
    assert_eq!(plain.end(), watched.end());
}

#[test]
fn swapped_in_functions_are_observed() {
    let log = Log::default();
    let hooks = Hooks::none().with(log.clone());
    let mut bench = bench(&hooks);
    let links = common::build_links("[[tx]]\nfunction = \"slot\"\n", vec![drop_flow(4)], &hooks);
    let command = Command::Swap(Direction::Tx, links);
    assert!(bench.controller.send(command).is_ok());
    bench.settle();
    assert_eq!(bench.end().transmitted, 3);
    let shown = lock(&log.shown);
    assert_eq!(shown[&("tx 0 slot".into(), "tx")], [0, 3, 4, 5]);
    assert_eq!(shown[&("0 wire0".into(), "wire_tx")], [0, 3, 5]);
}

#[test]
fn functions_swapped_into_an_unobserved_chain_are_observed() {
    let log = Log::default();
    let mut bench = bench(&Hooks::none());
    let hooks = Hooks::none().with(log.clone());
    let links = common::build_links("[[tx]]\nfunction = \"slot\"\n", vec![drop_flow(4)], &hooks);
    assert!(bench.controller.send(Command::Swap(Direction::Tx, links)).is_ok());
    bench.settle();
    bench.end();
    assert_eq!(lock(&log.shown)[&("tx 0 slot".into(), "tx")], [0, 3, 4, 5]);
}

/// Observes one function of a chain, and nothing else.
struct Second(Log);

impl Hook for Second {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let is_second = matches!(point, HookPoint::Function { position: 1, .. });
        is_second.then(|| self.0.observer(point)).flatten()
    }
}

#[test]
fn single_functions_can_be_observed() {
    let log = Log::default();
    let mut bench = bench(&Hooks::none().with(Second(log.clone())));
    bench.settle();
    bench.end();
    let expected = [(("rx 1 slot".to_owned(), "rx"), vec![0, 2, 3, 4, 5])];
    assert_eq!(*lock(&log.shown), BTreeMap::from(expected));
}

#[test]
fn observers_may_block_only_in_offline_cards() {
    for (wires, offline) in [
        (vec![patient(), patient()], true),
        (vec![patient(), Wire::default()], false),
        (vec![Wire::default(), Wire::default()], false),
    ] {
        let log = Log::default();
        let hooks = Hooks::none().with(log.clone());
        let functions = (vec![by_first_byte()], vec![drop_flow(1)]);
        let mut bench = Bench::with_hooks("[host]\nqueues = 1\n", wires, functions, &hooks, None);
        let mut expected =
            vec!["0 wire0", "1 wire1", "queue 0", "rx 0 slot", "tx 0 slot", "tx 0 slot"];
        expected.retain(|_| offline);
        // Also a function added later.
        let text = "[[tx]]\nfunction = \"slot\"\n";
        let links = common::build_links(text, vec![drop_flow(4)], &hooks);
        assert!(bench.controller.send(Command::Swap(Direction::Tx, links)).is_ok());
        bench.settle();
        bench.end();
        let mut waits = lock(&log.waits).clone();
        waits.sort_unstable();
        assert_eq!(waits, expected);
    }
}

#[test]
fn observers_do_not_block_unless_allowed() {
    let log = Log::default();
    let observers =
        || Hooks::none().with(log.clone()).observers(&HookPoint::Queue { index: 0, guest: None });
    let link = || ChainFunction::new("test", drop_flow(1)).observed(observers());
    let mut chain = Chain::new(Stage::Rx, vec![link()]);
    chain.replace(vec![link()]);
    assert!(lock(&log.waits).is_empty());
    let _ = chain.offline(true);
    assert_eq!(lock(&log.waits).len(), 1);
}
