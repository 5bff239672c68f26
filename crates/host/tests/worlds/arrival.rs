//! Waiting time at the wire is part of latency, also while the borrowed core is away.

use picnic_control::report::Stamp;
use picnic_control::{Launch, Registries};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, Verdict, per_packet};
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_host::registries;
use picnic_testing::{machine, wait_until};
use std::time::Duration;

/// How long the borrowed core is away, once.
const AWAY: Duration = Duration::from_millis(20);

struct Pausing;

impl Component for Pausing {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "pausing";
    const HELP: &'static str = "has the borrowed core pause at its first packet";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        let mut has_paused = false;
        Ok(Box::new(per_packet(move |_| {
            if !std::mem::replace(&mut has_paused, true) {
                std::thread::sleep(AWAY);
            }
            Verdict::Next
        })))
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Pausing>()];

#[test]
fn packets_arriving_during_an_absence_show_latency() {
    let _machine = machine();
    let card = "[[wire]]\nport = \"generator\"\nrate_pps = 10_000\n\
                [[rx]]\nfunction = \"pausing\"\n[host]\nqueues = 1\n";
    let card = CardFile::parse(card, None).unwrap();
    let registries = Registries { functions: FUNCTIONS, ..registries() };
    let running = Launch::new(&card, registries).start_alone().unwrap();
    wait_until("packets of twice the pause are delivered", || {
        running.view().ledger.read().delivered >= 400
    });
    let report = running.stop().unwrap();
    let latency = &report.latency_ns;
    assert_eq!(report.wires[0].stamp, Stamp::Arrival);
    // 200 packets arrived in this time, and waited half of it on average.
    // Of all, as a percentile would depend on the packets of a longer run.
    let recorded = report.latencies.iter().flatten().filter_map(|part| part.counts.last());
    let longest_ns = recorded.map(|&(ns, _)| ns).max();
    assert!(longest_ns >= Some(10_000_000), "{latency:?}");
    let waited_ns = latency.at_wire.unwrap() * report.ledger.delivered;
    assert!(waited_ns >= 500_000_000, "{latency:?}, {:?}", report.ledger);
}
