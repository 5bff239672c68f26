//! Clients and server with a card between them, with programs off the borrowed core.
//!
//! The programs have the cores that a card's isolation would leave them, so that a figure includes
//! the card's work on a packet's path, and not the loss of a core.

use picnic_control::error::RunError;
use picnic_control::{Launch, Report};
use picnic_core::config::{CardFile, Setting};
use picnic_core::hook::Hook;
use picnic_lab::card;
use picnic_lab::workloads::hosts::{HOST_MAC, Hosts, Role, wire_link};
use picnic_lab::workloads::tools::{self, Tool};
use picnic_machine::topology::{Placement, available, cores, place};

/// The card, which is also an example. Its namespaces have other names here.
const CARD: &str = include_str!("../../../../examples/cards/web.toml");
/// Bytes of a packet on the wire without its Ethernet header.
const MTU: u32 = 1500;

/// The namespaces, and the card between them.
pub(crate) struct Joined {
    pub(crate) hosts: Hosts,
    /// Clients, each with its own wire of the card, which bonds them if there are several.
    clients: u8,
    /// Changes of the card as `KEY=VALUE`.
    set: Vec<String>,
}

impl Joined {
    /// Builds them.
    ///
    /// # Errors
    /// Not root, a program is not installed, or the system's error.
    pub(crate) fn build(clients: u8, set: Vec<String>, tools: &[Tool]) -> anyhow::Result<Self> {
        tools::need(tools)?;
        let hosts = Hosts::with_clients("lab", MTU, clients)?;
        let mut joined = Joined { hosts, clients, set };
        let placement = joined.placement(Vec::new())?;
        joined.hosts.keep_programs_off(&placement);
        Ok(joined)
    }

    /// The cores of the card with these keys changed.
    ///
    /// # Errors
    /// Errors in the keys; the cores do not exist.
    pub(crate) fn placement(&self, changed: Vec<Setting>) -> anyhow::Result<Placement> {
        let card = self.card(changed)?;
        Ok(place(&card, &available()).map_err(RunError::from)?)
    }

    /// The cores of the programs.
    pub(crate) fn cores_of_programs(&self) -> Vec<usize> {
        match self.hosts.programs_cores() {
            [] => cores(),
            some => some.to_vec(),
        }
    }

    /// The number of these.
    pub(crate) fn programs_cores(&self) -> usize {
        self.cores_of_programs().len()
    }

    /// Runs `body` while the card is at work, with these keys of it changed and its packets observed.
    ///
    /// # Errors
    /// Those of `body`; the card does not start; its ledger does not balance.
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
        format!("rx[{}].{key}", u8::from(self.clients > 1))
    }

    fn card(&self, changed: Vec<Setting>) -> anyhow::Result<CardFile> {
        let card = bonded(self.clients);
        let mut settings: Vec<_> = (0..self.clients.max(1))
            .map(|wire| {
                let key = format!("wire[{wire}].namespace");
                Setting::text(&key, &self.hosts.netns(Role::Card))
            })
            .collect();
        settings.extend([
            Setting::text("host.namespace", &self.hosts.netns(Role::Server)),
            Setting::text("host.mac", HOST_MAC),
            Setting::number("host.mtu", MTU),
        ]);
        settings.extend(changed);
        Ok(card::changed(&picnic_host::sections(), &card, None, settings, &self.set)?)
    }
}

/// The card with this number of wires, each client answered on its own.
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
