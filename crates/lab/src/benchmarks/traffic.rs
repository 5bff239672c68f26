//! Real traffic with and without a card, in turns: what such benchmarks share.
//!
//! The plain veth joins the same namespaces and uses all cores of the machine. The card runs
//! only in its own turns, and its borrowed core is one of these cores; so a ratio holds what the
//! core that is borrowed would have done. With `--apart` the programs keep off that core both
//! ways, as they do while a card's isolation is applied: a ratio holds what the card adds.

use super::median;
use crate::card::ChangeArgs;
use crate::workloads::hosts::{Hosts, PLAIN_SERVER, Role, SERVER};
use crate::workloads::tools::{self, Tool};
use clap::Args;
use picnic_control::error::RunError;
use picnic_control::report::QueueReport;
use picnic_control::{Launch, Report};
use picnic_core::config::{CardFile, Setting};
use picnic_machine::topology::{Placement, available, cores, place};
use serde_json::{Map, Value, json};

/// The card, which is also an example. Its namespaces get other names here.
const CARD: &str = include_str!("../../../../examples/cards/web.toml");

/// What all of these can be told.
#[derive(Debug, Args)]
pub struct TrafficArgs {
    /// Rounds: each measures both ways in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Bytes of a packet on the wire without its Ethernet header
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    mtu: u32,
    /// Keep the programs off the borrowed core, both ways
    #[arg(long)]
    apart: bool,
    #[command(flatten)]
    changes: ChangeArgs,
}

/// A way from client to server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A veth pair, and nothing else.
    Plain,
    /// A veth pair, the card and its tap.
    Card,
}

impl Way {
    /// The server's address by this way.
    pub fn address(self) -> &'static str {
        match self {
            Way::Plain => PLAIN_SERVER,
            Way::Card => SERVER,
        }
    }
}

/// The namespaces, joined both ways.
pub struct Joined<'a> {
    args: &'a TrafficArgs,
    pub hosts: Hosts,
}

impl<'a> Joined<'a> {
    /// Builds them.
    ///
    /// # Errors
    /// Not root, a program is not installed, or what the system said.
    pub fn build(args: &'a TrafficArgs, tools: &[Tool]) -> anyhow::Result<Self> {
        tools::need(tools)?;
        let hosts = Hosts::build("bench", args.mtu)?;
        hosts.join_plainly(args.mtu)?;
        let mut joined = Joined { args, hosts };
        if args.apart {
            let card = joined.card(Vec::new())?;
            let cores = apart(&place(&card, &available()).map_err(RunError::from)?);
            joined.hosts.keep_programs_on(cores);
        }
        Ok(joined)
    }

    /// How many cores the programs have.
    pub fn programs_cores(&self) -> usize {
        match self.hosts.programs_cores().len() {
            0 => cores().len(),
            count => count,
        }
    }

    /// Runs `body` while this way is open; with what the card says of its run.
    ///
    /// # Errors
    /// Those of `body`; the card does not start; its ledger does not balance.
    pub fn during<T>(
        &self,
        way: Way,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Option<Report>)> {
        match way {
            Way::Plain => Ok((body()?, None)),
            Way::Card => {
                let (result, report) = self.behind_card(Vec::new(), body)?;
                Ok((result, Some(report)))
            }
        }
    }

    /// Runs `body` while the card is at work, with these keys of it changed.
    ///
    /// # Errors
    /// As [`Joined::during`].
    pub fn behind_card<T>(
        &self,
        changed: Vec<Setting>,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Report)> {
        let card = self.card(changed)?;
        let running = Launch::new(&card, picnic_host::registries()).start_alone()?;
        let result = body();
        let report = running.stop()?;
        anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: a bug");
        Ok((result?, report))
    }

    fn card(&self, changed: Vec<Setting>) -> anyhow::Result<CardFile> {
        let mtu = self.args.mtu;
        let mut settings = vec![
            Setting::text("wire[0].namespace", &self.hosts.netns(Role::Card)),
            Setting::text("host.namespace", &self.hosts.netns(Role::Server)),
            // The client's kernel remembers it from one turn to the next.
            Setting::text("host.mac", "02:00:00:00:88:01"),
            Setting::number("host.mtu", mtu),
        ];
        settings.extend(changed);
        Ok(self.args.changes.load(&picnic_host::sections(), CARD, None, settings)?)
    }
}

/// The cores that isolation would leave to the programs.
fn apart(placement: &Placement) -> Vec<usize> {
    let taken = |core: &usize| {
        *core == placement.borrowed_core
            || placement.left_out.iter().any(|left_out| left_out.core == *core)
    };
    cores().into_iter().filter(|core| !taken(core)).collect()
}

/// Packets delivered per interrupt taken, over all queues.
pub fn packets_per_interrupt(report: &Report) -> f64 {
    let sum = |field: fn(&QueueReport) -> u64| report.queues.iter().map(field).sum::<u64>() as f64;
    sum(|queue| queue.packets) / sum(|queue| queue.interrupts).max(1.0)
}

/// Measured pairs of one figure.
#[derive(Debug, Default)]
pub struct Pairs {
    plain: Vec<f64>,
    card: Vec<f64>,
}

impl Pairs {
    /// Adds what was measured by one way.
    pub fn add(&mut self, way: Way, value: f64) {
        match way {
            Way::Plain => self.plain.push(value),
            Way::Card => self.card.push(value),
        }
    }

    /// Medians of both, and of the ratios of card to plain with their spread, as fields called
    /// after `name`.
    pub fn report(mut self, name: &str, fields: &mut Map<String, Value>) {
        let mut ratios: Vec<f64> =
            self.card.iter().zip(&self.plain).map(|(card, plain)| card / plain).collect();
        fields.insert(format!("plain_{name}"), json!(median(&mut self.plain)));
        fields.insert(format!("card_{name}"), json!(median(&mut self.card)));
        fields.insert(format!("ratio_{name}"), json!(median(&mut ratios)));
        fields.insert(format!("ratio_{name}_min"), json!(ratios.first()));
        fields.insert(format!("ratio_{name}_max"), json!(ratios.last()));
    }
}
