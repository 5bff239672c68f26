//! One TCP connection by bit rate, with protocol and application on various cores.
//!
//! Messages of 1448 bytes go over a veth with an MTU of 1500, one packet each. The receiver's
//! protocol processing has a fixed core, set by the kernel's receive packet steering; the receiving
//! application is on the same core, or on one that shares with it an L2 cache, the processor, or
//! only the computer. All take turns at each rate. The sender has a separate core, as far away as
//! possible: without it a pair cannot be measured, nor can a pair that this machine does not have.
//!
//! For each pair the goodput and the time of both cores are reported, from the kernel's counts; at
//! full speed also the loss of the worst pair against the best. The sender's core is reported as
//! well: if it is saturated, it limits the rate.
//!
//! Source: PLACEMENT, "Single connection": same core, same die (a shared L2), same processor, same
//! computer; all reach the same rate at first, and over 40 % are lost at the top by the wrong pair.

use super::cards::within;
use super::columns::{self, Column, hidden, shown};
use super::modelled::{Curve, on_machine};
use super::testbeds::core2;
use anyhow::Context;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::median;
use picnic_lab::counters::{Counted, Counters};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::traffic::{Receive, Send};
use picnic_lab::workloads::hosts::{Hosts, PLAIN_LINK, PLAIN_SERVER, Role};
use picnic_lab::workloads::tools;
use picnic_machine::topology::{CoreSet, Distance, Topology, available, cores};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

/// The paper's packets: 1448 bytes of payload at this MTU.
const MTU: u32 = 1500;
/// See [`MTU`].
const MESSAGE_BYTES: usize = 1448;
/// The load above which a core counts as saturated.
const FULL: f64 = 0.98;
/// The rate that means full speed.
const FLAT_OUT: u64 = 0;
const PORT: u16 = 5300;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Bit rates of the connection, in Mb/s; 0 means the maximum. Host only
    pub rates_mbps: Vec<u64>,
    /// Duration of each measurement, in milliseconds [default: 1000; less for --quick]. Host only
    pub milliseconds: Option<u64>,
    /// Measurements of each [default: 10; fewer for --quick]. Host only
    pub repeats: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        let rates_mbps = vec![100, 500, 1000, 2000, FLAT_OUT];
        let (milliseconds, repeats, profile) = (None, None, None);
        Settings { world: World::Sim, profile, rates_mbps, milliseconds, repeats }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        if self.rates_mbps.is_empty() {
            return Err(ConfigError::new("rates_mbps", "missing, expected one or more"));
        }
        self.rates_mbps
            .iter()
            .try_for_each(|&rate| within("rates_mbps", rate as f64, 0.0, 400_000.0))?;
        within("repeats", f64::from(self.repeats.unwrap_or(1)), 1.0, 1000.0)?;
        within("milliseconds", self.milliseconds.unwrap_or(100) as f64, 100.0, 60_000.0)
    }
}

/// The resource shared by protocol and application, in the paper's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    Core,
    Die,
    Processor,
    Computer,
}

impl Pair {
    const ALL: [Pair; 4] = [Pair::Core, Pair::Die, Pair::Processor, Pair::Computer];

    fn name(self) -> &'static str {
        match self {
            Pair::Core => "same-core",
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
            Distance::Thread | Distance::L2 => Pair::Die,
            Distance::Cache | Distance::Package => Pair::Processor,
            Distance::Machine => Pair::Computer,
        })
    }
}

/// The cores of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    protocol: usize,
    application: usize,
    sender: usize,
}

impl Places {
    /// The cores of a pair among `cores`, or the reason for no pair. The protocol's core is the
    /// same for all pairs, as in the paper.
    fn of(pair: Pair, topology: &Topology, cores: &[usize]) -> Result<Places, String> {
        let &protocol = cores.first().ok_or("this process may use no core")?;
        let mut is_there = false;
        for &application in cores {
            if Pair::of(topology, protocol, application) != Some(pair) {
                continue;
            }
            is_there = true;
            // The sender shares as little as possible with them.
            let distance = |core: usize| {
                let to = |other| {
                    let pair = Pair::of(topology, core, other).unwrap_or(Pair::Processor);
                    Pair::ALL.iter().position(|other| *other == pair).unwrap_or(0)
                };
                to(protocol).min(to(application))
            };
            let others = cores.iter().copied();
            let others = others.filter(|core| *core != protocol && *core != application);
            if let Some(sender) = others.max_by_key(|&core| (distance(core), core)) {
                return Ok(Places { protocol, application, sender });
            }
        }
        Err(match is_there {
            true => "no core is left for the sender".into(),
            false => "this machine has no such pair of cores".into(),
        })
    }
}

/// The experiment.
#[derive(Debug)]
pub struct PlacementSingle(Settings);

impl Component for PlacementSingle {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "placement-single";
    const HELP: &'static str = "a TCP connection by rate, protocol's and application's core";

    fn example(_: &Path) -> Option<String> {
        Some("world = \"host\"\nrates_mbps = [10]\nmilliseconds = 100\nrepeats = 1".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(PlacementSingle(settings))))
    }
}

impl Reproduces for PlacementSingle {
    const PAPER: Row = row(
        "PLACEMENT",
        "one TCP connection by bit rate, protocol and application on the same core, die, processor \
     or computer",
        &[
            words("all pairs of cores reach low rates", "yes")
                .ours("least_share_of_lowest_rate")
                .at_least(0.95, "reached by the worst")
                .modelled(core2::least_share),
            words("they differ in CPU", "yes")
                .ours("cpu_spread_change")
                .at_least(0.1, "dearest to cheapest")
                .modelled(core2::cpu_spread),
            words("CPU drops near 75 MB/s", "yes")
                .ours("cpu_at_drop_change")
                .at_most(0.0, "CPU from 50 to 75 MB/s")
                .modelled(core2::cpu_drop),
            words("same core is cheapest at low rates", "yes")
                .ours("same_core_cpu_change")
                .at_most(0.0, "its CPU, to the best other pair")
                .modelled(core2::same_core_cpu),
            words("flat out, the wrong pair loses over 40 %", "yes")
                .ours("worst_pair_change")
                .at_most(-0.4, "worst pair")
                .modelled(core2::single_worst),
        ],
    )
    .on("core2", 9);
}

const CURVE: Curve = Curve {
    series: "rates",
    points: core2::single_by_rate,
    plot: || {
        Plot::lines("time of all cores by rate", "rates", "offered_mbytes", "both_cores").by("pair")
    },
};

/// The word for why a pair has no figures.
const MISSING: &str = "missing";

/// Columns of each pair.
const GOODPUT: [Column; 1] = [shown("goodput_bps", "arrived")];
const PROCESSOR: [Column; 6] = [
    shown("both_cores", "time of both cores, in cores"),
    hidden("softirq_fraction", "protocol's core in soft interrupts"),
    shown("sender_busy_fraction", "sender's core busy"),
    hidden("buffer_fill_fraction", "receive buffer full"),
    hidden("cycles_per_packet", "cycles per packet"),
    shown("cache_misses_per_packet", "cache misses per packet"),
];

impl Experiment for PlacementSingle {
    /// All pairs are sides of each point, on any machine, so that points of several machines have
    /// the same sides.
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let repeats = self.0.repeats.unwrap_or(effort.repeats());
        let spec = |&rate: &u64| {
            let spec = Spec::at("rate_mbps", rate).sides(&Pair::ALL.map(Pair::name));
            spec.measured(repeats)
        };
        self.0.rates_mbps.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let mut outcome = Outcome::of(Source::Measured);
        let places = Pair::of_name(side).ok_or_else(|| format!("found pair \"{side}\""));
        let places = places.and_then(|pair| Places::of(pair, &available().topology, &cores()));
        let places = match places {
            Ok(places) => places,
            Err(why) => {
                outcome.tell(MISSING, why);
                return Ok(outcome);
            }
        };
        tools::need(&[])?;
        let rate_mbps = point.number("rate_mbps") as u64;
        let rate_bps = (rate_mbps != FLAT_OUT).then_some(rate_mbps * 1_000_000);
        let usual = run.effort.of(300, 1000, 2000);
        let time = Duration::from_millis(self.0.milliseconds.unwrap_or(usual));
        let seen = Joined::build(places)?.measure(places, rate_bps, time)?;
        outcome.add(Figure::one("goodput_bps", seen.goodput_bps));
        outcome.add(Figure::one("both_cores", seen.both_cores));
        outcome.add(Figure::one("softirq_fraction", seen.softirq));
        outcome.add(Figure::one("sender_busy_fraction", seen.sender_busy));
        outcome.add(Figure::one("buffer_fill_fraction", seen.buffer_fill));
        outcome.add(Figure::one("cycles_per_packet", seen.cycles_per_packet));
        outcome.add(Figure::one("cache_misses_per_packet", seen.misses_per_packet));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let mut outcome = Outcome::with_settings(Source::Measured, &self.0);
        let least = points.iter().filter(|found| rate(found) != FLAT_OUT).min_by_key(|of| rate(of));
        let share = least.and_then(|found| {
            let worst = reached(found).into_iter().reduce(f64::min)?;
            Some(worst / (found.spec.number("rate_mbps") * 1e6))
        });
        let lowest = Figure::one("least_share_of_lowest_rate", share);
        outcome.add(lowest.called("reached of the lowest rate, by the worst pair"));
        let top = points.iter().find(|found| rate(found) == FLAT_OUT).map(reached);
        let loss = top.filter(|rates| rates.len() > 1).and_then(|rates| {
            let [worst, best] = [f64::min, f64::max].map(|of| rates.iter().copied().reduce(of));
            Some(worst? / best? - 1.0)
        });
        let loss = Figure::one("worst_pair_change", loss);
        outcome.add(loss.called("at full speed, worst pair against the best"));
        points.iter().for_each(|found| pairs(&mut outcome, found));
        for (side, pair) in Pair::ALL.iter().enumerate() {
            let sides = points.iter().filter_map(|found| found.sides.get(side));
            let why = sides.filter_map(|side| side.fields().remove(MISSING)).next();
            if let Some(why) = why.as_ref().and_then(|why| why.as_str()) {
                outcome.note(format!("{}: {why}", pair.name()));
            }
        }
        outcome.note("a veth in place of the paper's 2 Gb/s link: the cores limit the rate");
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("time of both cores by rate", "rates", "rate_mbps", "both_cores")
                .by("pair"),
            Plot::lines("received by rate", "rates", "rate_mbps", "goodput_bps").by("pair"),
            Plot::bars("received at full speed", "flat_out", "goodput_bps"),
        ]
    }
}

fn rate(found: &MeasuredPoint) -> u64 {
    found.spec.number("rate_mbps") as u64
}

/// The rate that each pair of this machine reached.
fn reached(found: &MeasuredPoint) -> Vec<f64> {
    let sides = (0..Pair::ALL.len()).map(|side| found.values(side, "goodput_bps"));
    sides.filter(|values| !values.is_empty()).map(|values| median(&values)).collect()
}

/// A row for each pair of this machine.
fn pairs(outcome: &mut Outcome, found: &MeasuredPoint) {
    for (side, pair) in Pair::ALL.iter().enumerate() {
        let goodput = found.values(side, "goodput_bps");
        if goodput.is_empty() {
            continue;
        }
        if median(&found.values(side, "sender_busy_fraction")) > FULL {
            outcome.note(format!(
                "{}, {}: the sender's core is full, so the rate is the sender's",
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

/// The result of one run of the connection.
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

/// Client and server on a veth, each side's protocol on its core.
struct Joined {
    hosts: Hosts,
}

impl Joined {
    fn build(places: Places) -> anyhow::Result<Self> {
        let hosts = Hosts::build("lab", MTU)?;
        hosts.join_plainly(MTU)?;
        let joined = Joined { hosts };
        joined.steer(Role::Server, places.protocol)?;
        joined.steer(Role::Client, places.sender)?;
        Ok(joined)
    }

    /// Makes this core process an interface's received packets, packet by packet.
    fn steer(&self, role: Role, core: usize) -> anyhow::Result<()> {
        // The paper's packets: neither enlarged by the sender nor merged by the receiver.
        self.hosts.ip(role, &format!("link set {PLAIN_LINK} gso_max_segs 1"))?;
        let mask = self.hosts.folder().join("core");
        std::fs::write(&mask, CoreSet::from_iter([core]).to_mask())
            .with_context(|| format!("cannot write {}", mask.display()))?;
        let file = format!("/sys/class/net/{PLAIN_LINK}/queues/rx-0/rps_cpus");
        self.hosts
            .within(role, &format!("cp {} {file}", mask.display()))
            .map(drop)
            .context("cannot have packets processed by a chosen core (CONFIG_RPS)")
    }

    fn measure(
        &self,
        places: Places,
        rate_bps: Option<u64>,
        time: Duration,
    ) -> anyhow::Result<RunFigures> {
        let [server, client] = [Role::Server, Role::Client].map(|role| self.hosts.namespace(role));
        let at = format!("0.0.0.0:{PORT}").parse()?;
        let limit = Some(time + Duration::from_secs(10));
        let receive = Receive { core: Some(places.application), limit, ..Receive::at(at) };
        let listening = server?.spawn(move || receive.listen())?;
        let listening = join(listening)?;
        let to = format!("{PLAIN_SERVER}:{PORT}").parse()?;
        let send = Send {
            core: Some(places.sender),
            rate_bps,
            bytes: MESSAGE_BYTES,
            duration: time,
            ..Send::to(to)
        };
        let mut both = vec![places.protocol, places.application];
        both.dedup();
        let counters = Counters::start(both.iter().copied());
        let sending = client?.spawn(move || send.run())?;
        let received = listening.run()?;
        let counted = counters.ok().and_then(|counters| counters.stop().ok());
        let sent = join(sending)?;
        anyhow::ensure!(received.bytes == sent.bytes, "the connection has lost bytes");
        let busy = |core: usize| {
            let found = received.cores.iter().find(|share| share.core == core)?;
            Some(1.0 - found.idle)
        };
        let packets = (sent.messages != 0).then_some(sent.messages as f64);
        let per_packet = |of: fn(&Counted) -> f64| Some(of(&counted?) / packets?);
        let protocol = received.cores.iter().find(|share| share.core == places.protocol);
        Ok(RunFigures {
            goodput_bps: received.goodput_bps,
            both_cores: both.into_iter().map(busy).sum(),
            softirq: protocol.map(|share| share.softirq),
            sender_busy: busy(places.sender),
            buffer_fill: received.receive_buffer.map(|fill| fill.mean_fraction),
            cycles_per_packet: per_packet(|counted| counted.cycles),
            misses_per_packet: per_packet(|counted| counted.cache_misses),
        })
    }
}

fn join<R>(handle: JoinHandle<anyhow::Result<R>>) -> anyhow::Result<R> {
    handle.join().map_err(|_| anyhow::anyhow!("a thread of the connection panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_machine::topology::{Cache, CacheKind, Core};

    /// Two packages of two cores with two threads each; the threads share an L2.
    fn machine() -> Topology {
        let mut topology = Topology::default();
        for number in 0..8_usize {
            let threads = CoreSet::from_iter([number & !1, number | 1]);
            let (kind, size_bytes) = (CacheKind::Unified, None);
            let cache = Cache { level: 2, kind, shared: threads.clone(), size_bytes };
            let core = Core { package: Some(number / 4), siblings: threads, caches: vec![cache] };
            topology.cores.insert(number, core);
        }
        topology
    }

    #[test]
    fn pairs_match_the_machine_with_a_distant_sender() {
        let topology = machine();
        let all: Vec<usize> = (0..8).collect();
        let places = |pair, cores: &[usize]| Places::of(pair, &topology, cores);
        let expect = |application, sender| Ok(Places { protocol: 0, application, sender });
        assert_eq!(places(Pair::Core, &all), expect(0, 7));
        assert_eq!(places(Pair::Die, &all), expect(1, 7));
        assert_eq!(places(Pair::Processor, &all), expect(2, 7));
        assert_eq!(places(Pair::Computer, &all), expect(4, 7));
        assert_eq!(places(Pair::Core, &[0, 1]), expect(0, 1));
        assert_eq!(places(Pair::Die, &[0, 1]), Err("no core is left for the sender".into()));
        let none = Err("this machine has no such pair of cores".to_owned());
        assert_eq!(places(Pair::Computer, &[0, 1]), none);
    }

    #[test]
    fn missing_pairs_are_reported_and_the_worst_loses() {
        let experiment = PlacementSingle(Settings::default());
        let side = |goodput_bps: Option<f64>| {
            let mut outcome = Outcome::of(Source::Measured);
            match goodput_bps {
                Some(rate) => outcome.add(Figure::one("goodput_bps", rate)),
                None => outcome.tell(MISSING, "this machine has no such pair of cores"),
            }
            outcome
        };
        let found = |rate: u64, goodput: [Option<f64>; 4]| MeasuredPoint {
            spec: Spec::at("rate_mbps", rate),
            sides: goodput.map(side).to_vec(),
        };
        let outcome = experiment.conclude(&[
            found(100, [Some(1e8), Some(0.99e8), Some(1e8), None]),
            found(FLAT_OUT, [Some(8e9), Some(10e9), Some(6e9), None]),
        ]);
        let fields = outcome.fields();
        assert_eq!(fields["least_share_of_lowest_rate"], 0.99);
        assert_eq!(fields["worst_pair_change"], -0.4);
        for series in ["rates", "flat_out"] {
            assert_eq!(fields[series].as_array().map(Vec::len), Some(3), "{series}");
        }
        let note = "same-computer: this machine has no such pair of cores";
        assert!(outcome.notes.iter().any(|found| found == note), "{:?}", outcome.notes);
    }
}
