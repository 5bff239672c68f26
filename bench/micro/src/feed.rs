//! The rate at which a borrowed core feeds a target core: a card in the kernel, against a
//! hand-written program.
//!
//! The card has `rss` with JHash and `handover = "cpumap"`; the other is an XDP program that does
//! nothing else (`bench/peers/xdp_dispatch.bpf.c`). Frames of 60 bytes are sent as in `firewall`;
//! the figure is packets per second of the polling thread's processor time. In both cases, target
//! thread and sender share the other core: in a flood most packets find the target ring full, while
//! bursts of half a ring are fed whole.

use super::firewall::{Bed, Load, RING_SIZE};
use super::measured;
use picnic_core::error::ConfigError;
use picnic_kernel::Peer;
use picnic_lab::compare::order;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use picnic_lab::workloads::hosts::Role;
use picnic_lab::workloads::tools;
use picnic_machine::napi::{Polling, schedule};
use picnic_machine::undo::{Journal, Machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Feed {
    /// Object file of a program to compare with
    peer: Option<PathBuf>,
    /// Milliseconds of each measurement
    #[schemars(range(min = 10, max = 60_000))]
    milliseconds: u64,
    /// Rounds: each measures both programs in turn, with both loads
    #[schemars(range(min = 1, max = 1000))]
    rounds: u32,
}

impl Default for Feed {
    fn default() -> Self {
        Feed { peer: None, milliseconds: 500, rounds: 9 }
    }
}

impl Benchmark for Feed {
    const NAME: &'static str = "feed";
    const HELP: &'static str = "packets fed through a cpumap: a card, and a hand-written program";
    const QUICK: &'static str = "milliseconds = 50\nrounds = 1";

    fn check(&self) -> Result<(), ConfigError> {
        match &self.peer {
            Some(peer) if !peer.is_file() => {
                let message = format!("found \"{}\", allowed: an object file", peer.display());
                Err(ConfigError::new("peer", message))
            }
            _ => Ok(()),
        }
    }
    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

const LOADS: [(&str, Load); 2] = [("flood", Load::Flood), ("bursts", Load::Bursts)];

fn measure(args: &Feed, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need_kernel_engine(picnic_kernel::is_built())?;
    tools::need(&[("ethtool", "ethtool")])?;
    let mut found = LOADS.map(|_| (Vec::new(), Vec::new()));
    let mut lost = 0;
    for round in 0..args.rounds {
        run.round(round.into(), args.rounds.into());
        for ((_, load), (by_hand, card)) in LOADS.into_iter().zip(&mut found) {
            for side in order(round as usize, 2) {
                let bed = Bed::build(Duration::from_millis(args.milliseconds))?;
                match &args.peer {
                    Some(peer) if side == 0 => by_hand.push(beside(&bed, peer, load)?),
                    None if side == 0 => {}
                    _ => {
                        let rx = "[[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n";
                        let filters = picnic_filter::Filters::new(1);
                        let (rate, full) = bed.card(rx, filters, load)?;
                        card.push(rate);
                        lost += if load == Load::Bursts { full } else { 0 };
                    }
                }
            }
        }
    }
    let mut outcome = measured();
    if lost != 0 {
        outcome.note(format!(
            "{lost} packets of bursts found the ring full: the target core was busy"
        ));
    }
    let mut series = outcome.series("loads");
    for ((name, _), (by_hand, card)) in LOADS.into_iter().zip(found) {
        let nanoseconds = card.iter().map(|rate| 1e9 / rate).collect();
        let point = Point::at("load", name);
        let point = if args.peer.is_some() {
            point.comparing(Comparison::of("pps_of_core", ("by_hand", by_hand), ("card", card)))
        } else {
            let rate = Figure::of("card_pps_of_core", card);
            point.with(rate.called("card, packets of its core's time"))
        };
        series.push(
            point.with(Figure::of("card_ns_per_packet", nanoseconds).called("card, a packet")),
        );
    }
    Ok(outcome)
}

/// Packets per second of the polling thread's time, with the given program.
fn beside(bed: &Bed, peer: &Path, load: Load) -> anyhow::Result<f64> {
    let machine = Machine::this();
    let netns = bed.hosts.netns(Role::Card);
    let mut journal = Journal::create(&machine, "feed")?;
    let mut polling = Polling::start(&machine, &mut journal, "w0", Some(&netns))?;
    let peer = Peer::attach(peer, ("w0", &netns), bed.cores[0], RING_SIZE)?;
    polling.pin(&machine, &mut journal, bed.cores[1])?;
    let spent = || polling.threads().filter_map(schedule).map(|found| found.run_ns).sum::<u64>();
    let packets = || -> anyhow::Result<u64> {
        let told = bed.hosts.within(Role::Card, "cat /sys/class/net/w0/statistics/rx_packets")?;
        Ok(told.trim().parse()?)
    };
    let before = (packets()?, spent());
    bed.send(load)?;
    let (packets, spent) = (packets()? - before.0, spent() - before.1);
    drop(peer);
    journal.undo()?;
    Ok(packets as f64 / (spent as f64 / 1e9))
}
