//! TCP connections on plain links, with protocol processing and application on chosen cores.
//!
//! All links are veth pairs; one core processes the packets of all of them at the receiver, by the
//! kernel's receive packet steering, and one core has the receiving application. Each sender has a
//! core of its own, as far away as possible.

use super::columns::{self, Column, hidden, shown};
use anyhow::Context;
use picnic_lab::compare::median;
use picnic_lab::counters::{Counted, Counters};
use picnic_lab::experiment::{LabError, MeasuredPoint, Run};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::traffic::{Receive, Received, Send, Sent};
use picnic_lab::workloads::hosts::{Hosts, Role, plain_link, plain_server};
use picnic_lab::workloads::tools;
use picnic_machine::topology::{CoreSet, Distance, Topology, available, cores};
use std::thread::JoinHandle;
use std::time::Duration;

/// The paper's packets: 1448 bytes of payload at this MTU.
const MTU: u32 = 1500;
/// See [`MTU`].
const MESSAGE_BYTES: usize = 1448;
/// The load above which a core counts as saturated.
const FULL: f64 = 0.98;
/// The rate that means full speed.
pub(crate) const FLAT_OUT: u64 = 0;
const PORT: u16 = 5300;

/// The resource shared by protocol and application, in the paper's terms; SMT siblings, which the
/// paper's machine does not have, are a class of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    Core,
    Siblings,
    Die,
    Processor,
    Computer,
}

impl Pair {
    pub(crate) const ALL: [Pair; 5] =
        [Pair::Core, Pair::Siblings, Pair::Die, Pair::Processor, Pair::Computer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pair::Core => "same-core",
            Pair::Siblings => "smt-siblings",
            Pair::Die => "same-die",
            Pair::Processor => "same-processor",
            Pair::Computer => "same-computer",
        }
    }

    fn of_name(name: &str) -> Option<Pair> {
        Pair::ALL.into_iter().find(|pair| pair.name() == name)
    }

    /// The resource that two cores share; none if unknown.
    fn of(topology: &Topology, one: usize, other: usize) -> Option<Pair> {
        Some(match topology.distance(one, other)? {
            Distance::Same => Pair::Core,
            Distance::Thread => Pair::Siblings,
            Distance::L2 => Pair::Die,
            Distance::Cache | Distance::Package => Pair::Processor,
            Distance::Machine => Pair::Computer,
        })
    }
}

/// The cores of one measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Places {
    protocol: usize,
    application: usize,
    /// One for each connection.
    senders: Vec<usize>,
}

impl Places {
    /// The cores of a pair among `cores`, or why there are none. The protocol's core is the same
    /// for all pairs, as in the paper.
    fn of(
        pair: Pair,
        topology: &Topology,
        cores: &[usize],
        connections: usize,
    ) -> Result<Places, String> {
        let &protocol = cores.first().ok_or("this process may use no core")?;
        let mut is_there = false;
        for &application in cores {
            if Pair::of(topology, protocol, application) != Some(pair) {
                continue;
            }
            is_there = true;
            // The senders share as little as possible with them.
            let distance = |core: usize| {
                let to = |other| {
                    let pair = Pair::of(topology, core, other).unwrap_or(Pair::Processor);
                    Pair::ALL.iter().position(|other| *other == pair).unwrap_or(0)
                };
                to(protocol).min(to(application))
            };
            let others = cores.iter().copied();
            let mut senders: Vec<_> =
                others.filter(|core| *core != protocol && *core != application).collect();
            senders.sort_by_key(|&core| std::cmp::Reverse((distance(core), core)));
            if senders.len() >= connections {
                senders.truncate(connections);
                return Ok(Places { protocol, application, senders });
            }
        }
        Err(match (is_there, connections) {
            (true, 1) => "no core is left for the sender".into(),
            (true, _) => format!("too few cores are left for {connections} senders"),
            (false, _) => "this machine has no such pair of cores".into(),
        })
    }
}

/// The word for why a pair has no figures.
pub(crate) const MISSING: &str = "missing";

/// Columns of each pair.
const GOODPUT: [Column; 1] = [shown("goodput_bps", "arrived")];
const PROCESSOR: [Column; 6] = [
    shown("both_cores", "time of both cores, in cores"),
    hidden("softirq_fraction", "protocol's core in soft interrupts"),
    shown("sender_busy_fraction", "busiest sender's core"),
    hidden("buffer_fill_fraction", "receive buffer full"),
    hidden("cycles_per_packet", "cycles per packet"),
    shown("cache_misses_per_packet", "cache misses per packet"),
];

/// Measures a pair once with this number of connections, each at a rate.
pub(crate) fn measure(
    side: &str,
    rate_mbps: u64,
    (connections, milliseconds): (usize, Option<u64>),
    run: &Run<'_>,
) -> Result<Outcome, LabError> {
    let mut outcome = Outcome::of(Source::Measured);
    let places = Pair::of_name(side).ok_or_else(|| format!("found pair \"{side}\""));
    let places =
        places.and_then(|pair| Places::of(pair, &available().topology, &cores(), connections));
    let places = match places {
        Ok(places) => places,
        Err(why) => {
            outcome.tell(MISSING, why);
            return Ok(outcome);
        }
    };
    tools::need(&[])?;
    let rate_bps = (rate_mbps != FLAT_OUT).then_some(rate_mbps * 1_000_000);
    let usual = run.effort.of(300, 1000, 2000);
    let time = Duration::from_millis(milliseconds.unwrap_or(usual));
    let seen = Joined::build(places)?.measure(rate_bps, time)?;
    outcome.add(Figure::one("goodput_bps", seen.goodput_bps));
    outcome.add(Figure::one("both_cores", seen.both_cores));
    outcome.add(Figure::one("softirq_fraction", seen.softirq));
    outcome.add(Figure::one("sender_busy_fraction", seen.sender_busy));
    outcome.add(Figure::one("buffer_fill_fraction", seen.buffer_fill));
    outcome.add(Figure::one("cycles_per_packet", seen.cycles_per_packet));
    outcome.add(Figure::one("cache_misses_per_packet", seen.misses_per_packet));
    Ok(outcome)
}

/// The rate of a point, in Mb/s.
pub(crate) fn rate(found: &MeasuredPoint) -> u64 {
    found.spec.number("rate_mbps") as u64
}

/// Medians of a figure, of each pair that this machine has.
pub(crate) fn medians(found: &MeasuredPoint, key: &str) -> Vec<(Pair, f64)> {
    let sides = Pair::ALL.iter().enumerate().map(|(side, &pair)| (pair, found.values(side, key)));
    sides.filter(|(_, of)| !of.is_empty()).map(|(pair, of)| (pair, median(&of))).collect()
}

/// The rate that each pair reached.
pub(crate) fn reached(found: &MeasuredPoint) -> Vec<(Pair, f64)> {
    medians(found, "goodput_bps")
}

/// The change from the best pair to the worst.
pub(crate) fn worst_to_best(values: &[(Pair, f64)]) -> Option<f64> {
    let [worst, best] =
        [f64::min, f64::max].map(|of| values.iter().map(|(_, value)| *value).reduce(of));
    Some(worst? / best? - 1.0).filter(|_| values.len() > 1)
}

/// The change from the best other pair, by `best` of two, to this one.
pub(crate) fn to_best_other(
    values: &[(Pair, f64)],
    pair: Pair,
    best: fn(f64, f64) -> f64,
) -> Option<f64> {
    let own = values.iter().find(|(own, _)| *own == pair)?.1;
    let others = values.iter().filter(|(own, _)| *own != pair).map(|(_, value)| *value);
    Some(own / others.reduce(best)? - 1.0)
}

/// Why pairs are missing, once each.
pub(crate) fn note_missing(outcome: &mut Outcome, points: &[MeasuredPoint]) {
    for (side, pair) in Pair::ALL.iter().enumerate() {
        let sides = points.iter().filter_map(|found| found.sides.get(side));
        let why = sides.filter_map(|side| side.fields().remove(MISSING)).next();
        if let Some(why) = why.as_ref().and_then(|why| why.as_str()) {
            outcome.note(format!("{}: {why}", pair.name()));
        }
    }
}

/// A row for each pair of this machine.
pub(crate) fn pairs(outcome: &mut Outcome, found: &MeasuredPoint) {
    for (side, pair) in Pair::ALL.iter().enumerate() {
        let goodput = found.values(side, "goodput_bps");
        if goodput.is_empty() {
            continue;
        }
        if median(&found.values(side, "sender_busy_fraction")) > FULL {
            outcome.note(format!(
                "{}, {}: a sender's core is full, so the rate is the sender's",
                found.spec.name(),
                pair.name()
            ));
        }
        let point = Point::at("pair", pair.name());
        let (series, point) = match rate(found) {
            FLAT_OUT => ("flat_out", point),
            rate => ("rates", point.and("rate_mbps", rate)),
        };
        let both = goodput.into_iter().zip(found.values(0, "goodput_bps"));
        let ratios = both.map(|(rate, same_core)| rate / same_core).collect();
        let point = columns::row(point, (found, side), &GOODPUT)
            .with(Figure::of("ratio_to_same_core", ratios).called("to same core"));
        outcome.series(series).push(columns::row(point, (found, side), &PROCESSOR));
    }
}

/// The results of one run of all connections.
struct RunFigures {
    goodput_bps: f64,
    /// Busy time of the protocol's and the application's core, in cores.
    both_cores: Option<f64>,
    softirq: Option<f64>,
    sender_busy: Option<f64>,
    buffer_fill: Option<f64>,
    /// Of protocol and application together.
    cycles_per_packet: Option<f64>,
    misses_per_packet: Option<f64>,
}

/// Client and server on veth pairs, one for each connection, each side's protocol on its core.
struct Joined {
    hosts: Hosts,
    places: Places,
}

impl Joined {
    fn build(places: Places) -> anyhow::Result<Self> {
        let hosts = Hosts::build("lab", MTU)?;
        let joined = Joined { hosts, places };
        for (link, &sender) in (0..).zip(&joined.places.senders) {
            joined.hosts.join_plainly_by(link, MTU)?;
            joined.steer(Role::Server, &plain_link(link), joined.places.protocol)?;
            joined.steer(Role::Client, &plain_link(link), sender)?;
        }
        Ok(joined)
    }

    /// Makes this core process an interface's received packets, packet by packet.
    fn steer(&self, role: Role, link: &str, core: usize) -> anyhow::Result<()> {
        // Neither enlarged by the sender nor merged by the receiver: the paper's packets.
        self.hosts.ip(role, &format!("link set {link} gso_max_segs 1"))?;
        let mask = self.hosts.folder().join("core");
        std::fs::write(&mask, CoreSet::from_iter([core]).to_mask())
            .with_context(|| format!("cannot write {}", mask.display()))?;
        let file = format!("/sys/class/net/{link}/queues/rx-0/rps_cpus");
        self.hosts
            .within(role, &format!("cp {} {file}", mask.display()))
            .map(drop)
            .context("cannot have packets processed by a chosen core (CONFIG_RPS)")
    }

    fn measure(&self, rate_bps: Option<u64>, time: Duration) -> anyhow::Result<RunFigures> {
        let Places { protocol, application, senders } = &self.places;
        let limit = Some(time + Duration::from_secs(120));
        let mut receiving = Vec::new();
        for (link, _) in (0..).zip(senders) {
            let at = (plain_server(link), PORT).into();
            let receive = Receive { core: Some(*application), limit, ..Receive::at(at) };
            let server = self.hosts.namespace(Role::Server)?;
            let listening = join(server.spawn(move || receive.listen())?)?;
            receiving.push(std::thread::Builder::new().spawn(move || listening.run())?);
        }
        let mut both = vec![*protocol, *application];
        both.dedup();
        let counters = Counters::start(both.iter().copied());
        let mut sending = Vec::new();
        for (link, &core) in (0..).zip(senders) {
            let to = (plain_server(link), PORT).into();
            let send = Send {
                core: Some(core),
                rate_bps,
                bytes: MESSAGE_BYTES,
                duration: time,
                ..Send::to(to)
            };
            sending.push(self.hosts.namespace(Role::Client)?.spawn(move || send.run())?);
        }
        let received = receiving.into_iter().map(join).collect::<Result<Vec<Received>, _>>()?;
        let counted = counters.ok().and_then(|counters| counters.stop().ok());
        let sent = sending.into_iter().map(join).collect::<Result<Vec<Sent>, _>>()?;
        let are_same =
            received.iter().zip(&sent).all(|(received, sent)| received.bytes == sent.bytes);
        anyhow::ensure!(are_same, "a connection has lost bytes");
        let share = |core: usize| received[0].cores.iter().find(|share| share.core == core);
        let busy = |core: usize| Some(1.0 - share(core)?.idle);
        let packets: u64 = sent.iter().map(|sent| sent.messages).sum();
        let packets = (packets != 0).then_some(packets as f64);
        let per_packet = |of: fn(&Counted) -> f64| Some(of(&counted?) / packets?);
        let fills = received.iter().filter_map(|received| received.receive_buffer.as_ref());
        Ok(RunFigures {
            goodput_bps: received.iter().map(|received| received.goodput_bps).sum(),
            both_cores: both.into_iter().map(busy).sum(),
            softirq: share(*protocol).map(|share| share.softirq),
            sender_busy: senders.iter().filter_map(|&core| busy(core)).reduce(f64::max),
            buffer_fill: fills.map(|fill| fill.mean_fraction).reduce(f64::max),
            cycles_per_packet: per_packet(|counted| counted.cycles),
            misses_per_packet: per_packet(|counted| counted.cache_misses),
        })
    }
}

fn join<R>(handle: JoinHandle<anyhow::Result<R>>) -> anyhow::Result<R> {
    handle.join().map_err(|_| anyhow::anyhow!("a thread of a connection panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_machine::topology::{Cache, CacheKind, Core};

    /// Two packages of four cores with two threads each; two cores share an L2.
    fn machine() -> Topology {
        let mut topology = Topology::default();
        for number in 0..16_usize {
            let siblings = CoreSet::from_iter([number & !1, number | 1]);
            let (kind, size_bytes) = (CacheKind::Unified, None);
            let shared = (number & !3..=number | 3).collect();
            let cache = Cache { level: 2, kind, shared, size_bytes };
            let core = Core { package: Some(number / 8), siblings, caches: vec![cache] };
            topology.cores.insert(number, core);
        }
        topology
    }

    #[test]
    fn pairs_match_the_machine_with_distant_senders() {
        let topology = machine();
        let all: Vec<usize> = (0..16).collect();
        let places = |pair, cores: &[usize]| Places::of(pair, &topology, cores, 1);
        let expect =
            |application, sender| Ok(Places { protocol: 0, application, senders: vec![sender] });
        assert_eq!(places(Pair::Core, &all), expect(0, 15));
        assert_eq!(places(Pair::Siblings, &all), expect(1, 15));
        assert_eq!(places(Pair::Die, &all), expect(2, 15));
        assert_eq!(places(Pair::Processor, &all), expect(4, 15));
        assert_eq!(places(Pair::Computer, &all), expect(8, 15));
        assert_eq!(places(Pair::Core, &[0, 1]), expect(0, 1));
        assert_eq!(places(Pair::Siblings, &[0, 1]), Err("no core is left for the sender".into()));
        let none = Err("this machine has no such pair of cores".to_owned());
        assert_eq!(places(Pair::Computer, &[0, 1]), none);
        let four = Places::of(Pair::Die, &topology, &all, 4).unwrap();
        assert_eq!(four.senders, [15, 14, 13, 12]);
        let few = Places::of(Pair::Die, &topology, &all[..5], 4).unwrap_err();
        assert_eq!(few, "too few cores are left for 4 senders");
    }

    #[test]
    fn changes_are_to_the_best_other_pair() {
        let values = [(Pair::Core, 8.0), (Pair::Die, 10.0), (Pair::Processor, 5.0)];
        assert_eq!(worst_to_best(&values), Some(-0.5));
        assert_eq!(to_best_other(&values, Pair::Core, f64::max), Some(8.0 / 10.0 - 1.0));
        assert_eq!(to_best_other(&values, Pair::Die, f64::max), Some(10.0 / 8.0 - 1.0));
        assert_eq!(to_best_other(&values, Pair::Core, f64::min), Some(8.0 / 5.0 - 1.0));
        assert_eq!(to_best_other(&values, Pair::Computer, f64::max), None);
        assert_eq!(worst_to_best(&values[..1]), None);
    }
}
