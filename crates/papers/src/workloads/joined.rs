//! Real traffic with and without a card, in turns: what such benchmarks share.
//!
//! The plain veth joins the same namespaces and uses all cores of the machine. The card runs
//! only in its own turns, and its borrowed core is one of these cores; so a ratio holds what the
//! core that is borrowed would have done. With `--apart` the programs keep off that core both
//! ways, as they do while a card's isolation is applied: a ratio holds what the card adds.

use crate::workloads::census::Census;
use picnic_control::error::RunError;
use picnic_control::report::QueueReport;
use picnic_control::{Launch, Report};
use picnic_core::config::{CardFile, Setting};
use picnic_core::hook::Hook;
use picnic_lab::card;
use picnic_lab::compare::order;
use picnic_lab::outcome::Comparison;
use picnic_lab::workloads::hosts::{HOST_MAC, Hosts, PLAIN_SERVER, Role, SERVER, wire_link};
use picnic_lab::workloads::tools::{self, Tool};
use picnic_machine::topology::{Placement, available, cores, place};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The card, which is also an example. Its namespaces get other names here.
const CARD: &str = include_str!("../../../../examples/cards/web.toml");

/// What all of these can be told: keys beside those of the benchmark.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Traffic {
    /// Rounds: each measures both ways in turns
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) rounds: u32,
    /// Seconds of each measurement
    #[schemars(range(min = 1, max = 3600))]
    pub(crate) seconds: u64,
    /// Bytes of a packet on the wire without its Ethernet header
    #[schemars(range(min = 1280, max = 9000))]
    mtu: u32,
    /// Keep the programs off the borrowed core, both ways
    apart: bool,
    /// Change a key of the card, as in host.queues=2
    set: Vec<String>,
    /// Clients, each with a wire of the card for itself
    #[serde(skip)]
    clients: u8,
}

impl Default for Traffic {
    fn default() -> Self {
        Traffic { rounds: 5, seconds: 2, mtu: 1500, apart: false, set: Vec::new(), clients: 1 }
    }
}

impl Traffic {
    /// Of one measurement, the programs off the borrowed core.
    pub(crate) fn apart() -> Self {
        Traffic::with(Vec::new())
    }

    /// The same with keys of the card changed.
    pub(crate) fn with(set: Vec<String>) -> Self {
        Traffic { rounds: 1, apart: true, set, ..Traffic::default() }
    }

    /// The same with so many clients: the card bonds their wires.
    pub(crate) fn by_wires(self, clients: u8) -> Self {
        Traffic { clients, ..self }
    }
}

/// A way from client to server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A veth pair, and nothing else.
    Plain,
    /// A veth pair, the card and its tap.
    Card,
}

impl Way {
    /// Both, in the order of this round.
    pub(crate) fn in_turn(round: u32) -> impl Iterator<Item = Way> {
        order(round as usize, 2).map(|side| [Way::Plain, Way::Card][side])
    }

    /// A figure's key, of this way.
    pub(crate) fn key(self, key: &str) -> String {
        match self {
            Way::Plain => format!("plain_{key}"),
            Way::Card => format!("card_{key}"),
        }
    }

    /// The server's address by this way.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Way::Plain => PLAIN_SERVER,
            Way::Card => SERVER,
        }
    }
}

/// The namespaces, joined both ways.
pub(crate) struct Joined<'a> {
    args: &'a Traffic,
    pub(crate) hosts: Hosts,
}

impl<'a> Joined<'a> {
    /// Builds them.
    ///
    /// # Errors
    /// Not root, a program is not installed, or what the system said.
    pub(crate) fn build(args: &'a Traffic, tools: &[Tool]) -> anyhow::Result<Self> {
        tools::need(tools)?;
        let hosts = Hosts::with_clients("bench", args.mtu, args.clients)?;
        hosts.join_plainly(args.mtu)?;
        let mut joined = Joined { args, hosts };
        if args.apart {
            let cores = apart(&joined.placement(Vec::new())?);
            joined.hosts.keep_programs_on(cores);
        }
        Ok(joined)
    }

    /// The cores of the card with these keys of it changed.
    ///
    /// # Errors
    /// What is wrong with the keys; the cores are not there.
    pub(crate) fn placement(&self, changed: Vec<Setting>) -> anyhow::Result<Placement> {
        let card = self.card(changed)?;
        Ok(place(&card, &available()).map_err(RunError::from)?)
    }

    /// The cores that the programs have.
    pub(crate) fn cores_of_programs(&self) -> Vec<usize> {
        match self.hosts.programs_cores() {
            [] => cores(),
            some => some.to_vec(),
        }
    }

    /// How many these are.
    pub(crate) fn programs_cores(&self) -> usize {
        self.cores_of_programs().len()
    }

    /// Runs `body` while this way is open; with what the card says of its run.
    ///
    /// # Errors
    /// Those of `body`; the card does not start; its ledger does not balance.
    pub(crate) fn during<T>(
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
    pub(crate) fn behind_card<T>(
        &self,
        changed: Vec<Setting>,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Report)> {
        self.observed_behind_card(changed, None::<Census>, body)
    }

    /// The same, while somebody looks on at its packets.
    ///
    /// # Errors
    /// As [`Joined::during`].
    pub(crate) fn observed_behind_card<T>(
        &self,
        changed: Vec<Setting>,
        hook: impl Hook + 'static,
        body: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Report)> {
        let card = self.card(changed)?;
        let running = Launch::new(&card, picnic_host::registries()).hook(hook).start_alone()?;
        let result = body();
        let report = running.stop()?;
        anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
        Ok((result?, report))
    }

    /// A key of the card's `rss`.
    pub(crate) fn rss_key(&self, key: &str) -> String {
        format!("rx[{}].{key}", u8::from(self.args.clients > 1))
    }

    fn card(&self, changed: Vec<Setting>) -> anyhow::Result<CardFile> {
        let Traffic { mtu, clients, .. } = *self.args;
        let card = bonded(clients);
        let mut settings: Vec<_> = (0..clients.max(1))
            .map(|wire| {
                let key = format!("wire[{wire}].namespace");
                Setting::text(&key, &self.hosts.netns(Role::Card))
            })
            .collect();
        settings.extend([
            Setting::text("host.namespace", &self.hosts.netns(Role::Server)),
            Setting::text("host.mac", HOST_MAC),
            Setting::number("host.mtu", mtu),
        ]);
        settings.extend(changed);
        let set = &self.args.set;
        Ok(card::changed(&picnic_host::sections(), &card, None, settings, set)?)
    }
}

/// The card with so many wires, each client answered by its own.
fn bonded(wires: u8) -> String {
    if wires <= 1 {
        return CARD.into();
    }
    let bond = "function = \"bond\"\n";
    let mut card = CARD.replacen("[[rx]]\n", &format!("[[rx]]\n{bond}\n[[rx]]\n"), 1);
    for wire in 1..wires {
        let link = wire_link(wire);
        card += &format!("\n[[wire]]\nport = \"packet\"\ninterface = \"{link}\"\n");
    }
    card + "\n[[tx]]\n" + bond
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
pub(crate) fn packets_per_interrupt(report: &Report) -> f64 {
    let sum = |field: fn(&QueueReport) -> u64| report.queues.iter().map(field).sum::<u64>() as f64;
    sum(|queue| queue.packets) / sum(|queue| queue.interrupts).max(1.0)
}

/// Measured pairs of one figure.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    plain: Vec<f64>,
    card: Vec<f64>,
}

impl Pairs {
    /// Adds what was measured by one way.
    pub(crate) fn add(&mut self, way: Way, value: f64) {
        match way {
            Way::Plain => self.plain.push(value),
            Way::Card => self.card.push(value),
        }
    }

    /// Card against plain.
    pub(crate) fn compared(self, key: &str) -> Comparison {
        Comparison::of(key, ("plain", self.plain), ("card", self.card))
    }
}
