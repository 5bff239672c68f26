//! Several cards in one world: simulations that share their time, and the switches between them.
//!
//! ```
//! use picnic_control::Launch;
//! use picnic_core::{config::CardFile, time::Time};
//! use picnic_sim::{Cluster, CostModel, SwitchConfig, registries};
//!
//! let card = || CardFile::parse("[[wire]]\nport = \"cable\"\n", None).unwrap();
//! let cards = [card(), card()];
//! let launches = cards.iter().map(|card| Launch::new(card, registries())).collect();
//! let mut cluster = Cluster::new(launches, 7, CostModel::default(), SwitchConfig::default()).unwrap();
//! cluster.run_until(Time::from_nanos(1_000_000));
//! for (report, _) in cluster.finish() {
//!     assert!(report.ledger.balanced());
//! }
//! ```
//!
//! Each card is a [`Simulation`] with its own cores. The next event of all is executed first; the
//! seed orders simultaneous events of two cards. Cables of one name meet at one switch, so two
//! cards with one cable are joined by a line with its rate and latency.
//!
//! Guarantees: as for a single card: the same seed gives the same trace of every card.

use crate::cost::CostModel;
use crate::machine::Profile;
use crate::switch::{Switch, SwitchConfig, SwitchCounts};
use crate::trace::Trace;
use crate::world::Simulation;
use picnic_control::error::RunError;
use picnic_control::{Launch, Report};
use picnic_core::config::CardFile;
use picnic_core::random::Random;
use picnic_core::time::Time;
use picnic_ports::cable::{Cables, Plug};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The random streams of a cluster's seed; cards have streams of seeds of their own.
const TIES: u64 = 2;
const NETWORK: u64 = 3;

/// A cable from a card to a switch.
#[derive(Debug)]
struct Port {
    plug: Plug,
    card: usize,
    switch: usize,
    line: usize,
}

/// Cards with their cores, and the network between them, in virtual time.
pub struct Cluster {
    now: Time,
    cards: Vec<Simulation>,
    /// Its cables live as long as these cards.
    _cables: Vec<Arc<Cables>>,
    switches: Vec<(String, Switch)>,
    ports: Vec<Port>,
    ties: Random,
}

impl Cluster {
    /// The cards of these launches, each with its own card file.
    ///
    /// # Errors
    /// As for [`Simulation::new`].
    pub fn new(
        launches: Vec<Launch<'_>>,
        seed: u64,
        costs: CostModel,
        network: SwitchConfig,
    ) -> Result<Self, RunError> {
        Self::build(launches, seed, network, |launch, seed| {
            Simulation::new(launch, seed, costs.clone())
        })
    }

    /// The same cards, each in a machine of this profile.
    ///
    /// # Errors
    /// As for [`Simulation::on_machine`].
    pub fn on_machine(
        launches: Vec<Launch<'_>>,
        seed: u64,
        profile: &Profile,
        network: SwitchConfig,
    ) -> Result<Self, RunError> {
        Self::build(launches, seed, network, |launch, seed| {
            Simulation::on_machine(launch, seed, profile)
        })
    }

    fn build(
        launches: Vec<Launch<'_>>,
        seed: u64,
        network: SwitchConfig,
        make: impl Fn(Launch<'_>, u64) -> Result<Simulation, RunError>,
    ) -> Result<Self, RunError> {
        let mut cluster = Cluster {
            now: Time::ZERO,
            cards: Vec::new(),
            _cables: Vec::new(),
            switches: Vec::new(),
            ports: Vec::new(),
            ties: Random::new(seed, TIES),
        };
        for (card, launch) in launches.into_iter().enumerate() {
            let cables = cables_of(launch.file);
            let seed_of_card = Random::new(seed, NETWORK + 1 + card as u64).next();
            cluster.cards.push(make(launch, seed_of_card)?);
            for name in cables.open() {
                let known = cluster.switches.iter().position(|(other, _)| *other == name);
                let switch = known.unwrap_or_else(|| {
                    let random = Random::new(seed ^ cluster.switches.len() as u64, NETWORK);
                    cluster.switches.push((name.clone(), Switch::new(network, random)));
                    cluster.switches.len() - 1
                });
                let plug = cables.plug_as_other(&name)?;
                let line = cluster.switches[switch].1.add();
                cluster.ports.push(Port { plug, card, switch, line });
            }
            cluster._cables.push(cables);
        }
        Ok(cluster)
    }

    /// The virtual time reached.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The cards, in the order of their launches.
    pub fn cards(&self) -> &[Simulation] {
        &self.cards
    }

    /// A card, to give it commands.
    ///
    /// # Panics
    /// There is no card of this number.
    pub fn card(&mut self, number: usize) -> &mut Simulation {
        &mut self.cards[number]
    }

    /// What all switches have done with frames.
    pub fn counts(&self) -> SwitchCounts {
        self.switches.iter().fold(SwitchCounts::default(), |sum, (_, switch)| {
            let SwitchCounts { sent, sent_bytes, delivered, lost, duplicated, delayed, cut, full } =
                switch.counts;
            SwitchCounts {
                sent: sum.sent + sent,
                sent_bytes: sum.sent_bytes + sent_bytes,
                delivered: sum.delivered + delivered,
                lost: sum.lost + lost,
                duplicated: sum.duplicated + duplicated,
                delayed: sum.delayed + delayed,
                cut: sum.cut + cut,
                full: sum.full + full,
            }
        })
    }

    /// Changes the network from now on.
    pub fn set_network(&mut self, network: SwitchConfig) {
        self.switches.iter_mut().for_each(|(_, switch)| switch.set_config(network));
    }

    /// Parts the network: frames pass only between cards with the same number here.
    pub fn partition(&mut self, islands: &[u8]) {
        for Port { card, switch, line, .. } in &self.ports {
            let island = islands.get(*card).copied().unwrap_or(0);
            self.switches[*switch].1.set_island(*line, island);
        }
    }

    /// A hash of the traces of all cards, and of the network's counts.
    pub fn trace_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.cards.iter().for_each(|card| card.trace().hash().hash(&mut hasher));
        self.counts().hash(&mut hasher);
        hasher.finish()
    }

    /// Executes the earliest event of all cards if it is not after `until`. False if there is none.
    fn step(&mut self, until: Time) -> bool {
        let of_cards = self.cards.iter().map(Simulation::next_time);
        let of_switches = self.switches.iter().map(|(_, switch)| switch.next_time());
        let times: Vec<Option<Time>> = of_cards.chain(of_switches).collect();
        let Some(next) = times.iter().flatten().min().copied().filter(|next| *next <= until) else {
            return false;
        };
        let first = times.iter().filter(|time| **time == Some(next)).count() as u64;
        let chosen = if first == 1 { 0 } else { self.ties.next() % first };
        let mut due = times.iter().enumerate().filter(|(_, time)| **time == Some(next));
        let Some((place, _)) = due.nth(chosen as usize) else { return false };
        self.now = self.now.max(next);
        match place.checked_sub(self.cards.len()) {
            None => {
                self.cards[place].step_once();
                self.take_frames(place);
            }
            Some(switch) => self.frame_arrives(switch),
        }
        true
    }

    /// Frames that a card has sent go to their switches.
    fn take_frames(&mut self, card: usize) {
        let now = self.cards[card].now();
        for port in self.ports.iter_mut().filter(|port| port.card == card) {
            let (_, switch) = &mut self.switches[port.switch];
            port.plug.receive(|frame| switch.send(now, port.line, frame));
        }
    }

    fn frame_arrives(&mut self, switch: usize) {
        let of_network = &mut self.switches[switch].1;
        let Some((time, line, frame)) = of_network.step() else { return };
        let found = self.ports.iter_mut().find(|port| port.switch == switch && port.line == line);
        let Some(port) = found else { return };
        match port.plug.send(&frame) {
            true => {
                of_network.counts.delivered += 1;
                self.cards[port.card].wires_have_frames(time);
            }
            false => of_network.counts.full += 1,
        }
    }

    /// Runs until `time`, or until nothing more can happen before it.
    pub fn run_until(&mut self, time: Time) {
        while self.step(time) {}
        self.now = self.now.max(time);
        self.cards.iter_mut().for_each(|card| card.run_until(time));
    }

    /// Ends all cards, one after another, as [`Simulation::finish`] does. Frames under way are lost.
    pub fn finish(self) -> Vec<(Report, Trace)> {
        self.cards.into_iter().map(Simulation::finish).collect()
    }
}

/// The cables of a card in virtual time: a separate set; a cluster has the other ends.
pub(crate) fn cables_of(file: &CardFile) -> Arc<Cables> {
    file.shared.get_or_make(Cables::in_virtual_time)
}
