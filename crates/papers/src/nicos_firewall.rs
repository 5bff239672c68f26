//! The same stateless firewall on the card and at the driver.
//!
//! Two scenarios, as in the paper: all packets are discarded, or most of a mix is accepted. Each is
//! run for every number of rules and packet size, with the rules on the card (the borrowed core
//! filters) and at the driver (the target core filters, before the host gets the packet). All rules
//! but the last match nothing, so every packet is checked against all of them; the last discards.
//!
//! Two runs per point: one at a fixed rate, for the load of the target cores; one at full speed,
//! for the card's throughput.
//!
//! In the sim world packets come from a generator, and the mix has accepted flows, each packet at
//! the host's cost, and discarded flows. A packet costs the core that filters it `filter_ns`, plus
//! `filter_doubling_ns` for each doubling of the rules, since they are a compiled classifier. Its
//! size has no cost there.
//!
//! On the host, wire and host are real (`real.rs`): UDP over a veth, and in the mix accepted TCP in
//! both directions as well, at its real cost. It needs root.
//!
//! Source: NICOS 4.7 and figure 4.

mod real;

use super::cards::{CardRun, repeated};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_filter::code::FilterCode;
use picnic_filter::filters::FilterChange;
use picnic_filter::{
    Action, Filter, Filters, FiveTuple, Match, Place, PortRange, Prefix, Protocol,
};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point as Labelled};
use picnic_lab::paper::{Row, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_sim::CostModel;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

/// The generator's destination ports are uniform over 1 to this.
const PORTS: u16 = 49_151;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Seed of rules and packets
    pub seed: u64,
    /// Numbers of rules
    pub rules: Vec<u32>,
    /// Sizes of packets, in bytes [default: 60 in the sim world, 60 and 1514 on the host]
    pub sizes: Option<Vec<u32>>,
    /// Share of accepted flows in the mix; sim only
    pub accepted: f64,
    /// Packets per second at which the target cores' load is measured [default: 200000 in the sim
    /// world, 20000 on the host]
    pub rate_pps: Option<u32>,
    /// Work of the host per accepted packet, in nanoseconds; sim only
    pub host_ns: u32,
    /// Cost of a packet in a single filter, in nanoseconds; sim only
    pub filter_ns: u64,
    /// Additional cost for each doubling of the filters, in nanoseconds; sim only
    pub filter_doubling_ns: u64,
    /// Target queues
    pub queues: u16,
    /// Duration of each run, in milliseconds [default: 20 in the sim world, 300 on the host, 100
    /// for --quick]
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            seed: 1,
            rules: vec![1, 16, 64, 256, 1024, 4096],
            sizes: None,
            accepted: 0.7,
            rate_pps: None,
            host_ns: 1_000,
            filter_ns: 10,
            filter_doubling_ns: 1,
            queues: 1,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn milliseconds(&self, effort: Effort) -> u64 {
        let host = effort.of(100, 300, 1000);
        self.milliseconds.unwrap_or(if self.world == World::Sim { 20 } else { host })
    }

    fn sizes(&self) -> Vec<u32> {
        let sizes = if self.world == World::Sim { vec![60] } else { vec![60, 1514] };
        self.sizes.clone().unwrap_or(sizes)
    }

    fn rate_pps(&self) -> u32 {
        let usual = if self.world == World::Sim { 200_000 } else { 20_000 };
        self.rate_pps.unwrap_or(usual)
    }

    fn filter_ns(&self, rules: u32) -> u64 {
        self.filter_ns + self.filter_doubling_ns * u64::from(rules.ilog2())
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::new(key, format!("found {found}, allowed: {allowed}")))
        };
        if self.rules.is_empty() {
            return wrong("rules", &"no number", "one number of rules or more");
        }
        if let Some(rules) = self.rules.iter().find(|rules| !(1..=65_000).contains(*rules)) {
            return wrong("rules", rules, "1 to 65000");
        }
        if self.sizes().is_empty() {
            return wrong("sizes", &"no size", "one size or more");
        }
        if let Some(size) = self.sizes().iter().find(|size| !(60..=1514).contains(*size)) {
            return wrong("sizes", size, "60 to 1514");
        }
        if !(0.0..=1.0).contains(&self.accepted) {
            return wrong("accepted", &self.accepted, "0 to 1");
        }
        if !(1..=1_000_000_000).contains(&self.rate_pps()) {
            return wrong("rate_pps", &self.rate_pps(), "1 to 1000000000");
        }
        if let Some(milliseconds) = self.milliseconds.filter(|time| !(1..=10_000).contains(time)) {
            return wrong("milliseconds", &milliseconds, "1 to 10000");
        }
        Ok(())
    }
}

/// The experiment.
#[derive(Debug)]
pub struct NicosFirewall(Settings);

impl Component for NicosFirewall {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "nicos-firewall";
    const HELP: &'static str = "one firewall, on the card and at the driver";

    fn example(_: &Path) -> Option<String> {
        Some("rules = [1, 64]\nmilliseconds = 5".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(NicosFirewall(settings)))
    }
}

impl Reproduces for NicosFirewall {
    const PAPER: Row = row(
        "NICOS fig. 4",
        "the same stateless firewall on the card and at the driver: all discarded, and a mix",
        &[
            words("host's CPU on the card, all discarded", "about 0")
                .ours("discard_card_target_core_busy_fraction"),
            words("throughput in the mix", "better on the card").ours("mix_throughput_gain"),
        ],
    );
}

/// The scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Discard,
    Mix,
}

impl Scenario {
    const ALL: [Scenario; 2] = [Scenario::Discard, Scenario::Mix];

    fn name(self) -> &'static str {
        match self {
            Scenario::Discard => "discard",
            Scenario::Mix => "mix",
        }
    }
}

/// A point to run.
#[derive(Clone, Copy, Debug)]
struct Point {
    scenario: Scenario,
    rules: u32,
    size: u32,
}

/// The places of the rules, in turns: the one compared against first.
const SIDES: [&str; 2] = ["driver", "card"];

/// The results of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    target_busy: f64,
    borrowed_busy: f64,
    taken_pps: f64,
    accepted: f64,
    /// TCP's goodput in the mix.
    goodput_bps: Option<f64>,
}

impl Experiment for NicosFirewall {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let settings = &self.0;
        let mut points = Vec::new();
        for scenario in Scenario::ALL {
            // TCP chooses its own sizes: the longest represents all of them.
            let is_tcp = settings.world == World::Host && scenario == Scenario::Mix;
            let longest = settings.sizes().into_iter().max().into_iter().collect();
            for size in if is_tcp { longest } else { settings.sizes() } {
                for &rules in &settings.rules {
                    let spec = Spec::at("scenario", scenario.name())
                        .and("rules", rules)
                        .and("packet_bytes", size)
                        .sides(&SIDES);
                    points.push(repeated(spec, settings.world, effort.repeats()));
                }
            }
        }
        points
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { 2 } else { 1 }
    }

    fn measure(&self, spec: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let is_mix = spec.word("scenario") == Scenario::Mix.name();
        let point = Point {
            scenario: if is_mix { Scenario::Mix } else { Scenario::Discard },
            rules: spec.number("rules") as u32,
            size: spec.number("packet_bytes") as u32,
        };
        let place = if side == SIDES[0] { Place::Driver } else { Place::Nic };
        let milliseconds = settings.milliseconds(run.effort);
        let at = |rate| measure(settings, point, place, rate, milliseconds);
        let paced = at(Some(settings.rate_pps()))?;
        run.progress(0.5, "flat out");
        let peak = at(None)?;
        let mut outcome = Outcome::of(settings.world.source());
        outcome.add(Figure::one("taken_pps", peak.taken_pps));
        if let Some(goodput_bps) = peak.goodput_bps {
            outcome.add(Figure::one("goodput_bps", goodput_bps));
        }
        outcome.add(Figure::one("accepted_fraction", paced.accepted));
        outcome.add(Figure::one("target_core_busy_fraction", paced.target_busy));
        outcome.add(Figure::one("borrowed_core_busy_fraction", paced.borrowed_busy));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        outcome(&self.0, points)
    }

    fn plots(&self) -> Vec<Plot> {
        let plot = |scenario: &str, title: &str| {
            Plot::lines(title, "points", "rules", "driver_target_core_busy_fraction")
                .and("card_target_core_busy_fraction")
                .only("scenario", scenario)
                .with_logarithms()
        };
        let (title, driver, card) = match self.0.world {
            World::Sim => ("mix: packets taken, flat out", "driver_taken_pps", "card_taken_pps"),
            World::Host => ("mix: TCP, flat out", "driver_goodput_bps", "card_goodput_bps"),
        };
        let taken = Plot::lines(title, "points", "rules", driver)
            .and(card)
            .only("scenario", "mix")
            .with_logarithms();
        vec![
            plot("discard", "all discarded: target core by rules"),
            plot("mix", "mix: target core by rules"),
            taken,
        ]
    }
}

/// Rules that do not match the generator's packets, and a last one that discards.
fn rules(settings: &Settings, point: Point, place: Place) -> Vec<FilterChange> {
    let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
    let mut changes = Vec::new();
    let mut add = |name: String, matching: Match, priority: usize| {
        let filter = Filter::new(name, matching, Action::Drop).at(place);
        changes
            .push(FilterChange::Add(filter.with_priority(priority as i32), FilterCode::default()));
    };
    for rule in 1..point.rules as usize {
        // Benchmark traffic comes from 198.18.0.0/15; these do not.
        let source = Ipv4Addr::new(10, random.random(), random.random(), random.random());
        let destination = Ipv4Addr::new(172, 16, random.random(), random.random());
        let low = random.random_range(0..60_000);
        let tuple = FiveTuple {
            protocol: Some(Protocol(if random.random() { 6 } else { 17 })),
            source: Prefix::new(source, random.random_range(16..=32)),
            destination: Prefix::new(destination, random.random_range(16..=32)),
            source_ports: PortRange::ANY,
            destination_ports: PortRange::new(low, low + random.random_range(0..5_000))
                .unwrap_or_default(),
        };
        add(format!("rule{rule}"), tuple.into(), rule);
    }
    let matching = match (point.scenario, settings.world) {
        (Scenario::Discard, _) => Match::Any,
        (Scenario::Mix, World::Sim) => {
            let dropped = (f64::from(PORTS) * (1.0 - settings.accepted)).round() as u16;
            let destination_ports = PortRange::new(0, dropped).unwrap_or_default();
            FiveTuple { destination_ports, ..FiveTuple::default() }.into()
        }
        (Scenario::Mix, World::Host) => {
            FiveTuple { protocol: Some(Protocol::UDP), ..FiveTuple::default() }.into()
        }
    };
    add("discard".into(), matching, point.rules as usize);
    changes
}

fn card(settings: &Settings, point: Point, rate_pps: Option<u32>) -> String {
    let rate_pps = rate_pps.unwrap_or(0);
    format!(
        "[card]\nseed = {}\n[[wire]]\nport = \"generator\"\nsize = {}\nrate_pps = {rate_pps}\n\
         [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"app\"\nqueues = {}\ncost_ns = {}\n\
         [interrupt]\npoll_usecs = 0\n",
        settings.seed, point.size, settings.queues, settings.host_ns
    )
}

fn measure(
    settings: &Settings,
    point: Point,
    place: Place,
    rate_pps: Option<u32>,
    milliseconds: u64,
) -> Result<Figures, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::Failed(error.to_string());
    let filters = Filters::new(settings.queues);
    filters.apply(rules(settings, point, place)).map_err(|error| failed(&error))?;
    let time = Duration::from_millis(milliseconds);
    if settings.world == World::Host {
        return Ok(between_wires(settings, point, filters, rate_pps, time)?);
    }
    let mut costs = CostModel::default();
    let filter_ns = settings.filter_ns(point.rules);
    match place {
        Place::Nic => costs.card_packet_ns += filter_ns,
        Place::Driver => costs.target_packet_ns += filter_ns,
    }
    let text = card(settings, point, rate_pps);
    let card = CardRun::of(settings.world, &text, settings.seed, time);
    let report = CardRun { filters: Some(filters), costs, ..card }.run()?.report;
    let packets = report.ledger.r#in as f64;
    let targets = report.target_cores.len() as f64;
    let awake: f64 = report.target_cores.iter().map(|core| 1.0 - core.asleep_fraction).sum();
    Ok(Figures {
        target_busy: awake / targets,
        borrowed_busy: report.borrowed_core.busy_fraction,
        taken_pps: packets / report.duration_s,
        accepted: report.ledger.delivered as f64 / packets,
        goodput_bps: None,
    })
}

/// UDP packets of the mix, which are discarded, per other packet.
const DISCARDED_SHARE: f64 = 0.1;

/// At a rate, nine tenths of the mix are TCP, half in each direction; at full speed, as much TCP as
/// possible, with the same UDP.
fn between_wires(
    settings: &Settings,
    point: Point,
    filters: Filters,
    rate_pps: Option<u32>,
    time: Duration,
) -> anyhow::Result<Figures> {
    let Point { scenario, size, .. } = point;
    let stated_pps = f64::from(settings.rate_pps());
    let udp_pps = match scenario {
        Scenario::Discard => rate_pps.map(f64::from),
        Scenario::Mix => Some((stated_pps * DISCARDED_SHARE).max(1.0)),
    };
    let tcp_pps = rate_pps.map(|rate_pps| f64::from(rate_pps) * (1.0 - DISCARDED_SHARE) / 2.0);
    let traffic = real::Traffic {
        scenario,
        size,
        udp_pps: udp_pps.map(|pps| pps as u64),
        tcp_pps: tcp_pps.map(|pps| pps as u64),
        time,
    };
    let seen = real::measure(filters, settings.queues, &traffic)?;
    Ok(Figures {
        target_busy: seen.target_busy,
        borrowed_busy: seen.borrowed_busy,
        taken_pps: seen.taken_pps,
        accepted: seen.accepted,
        goodput_bps: seen.goodput_bps,
    })
}

fn outcome(settings: &Settings, points: &[MeasuredPoint]) -> Outcome {
    let mut outcome = Outcome::with_settings(settings.world.source(), settings);
    let (mut busiest_on_card, mut gains) = (0.0_f64, Vec::new());
    let mut series = outcome.series("points");
    for point in points {
        let of = |side: usize, key: &str, label: &str| {
            Figure::of(&format!("{}_{key}", SIDES[side]), point.values(side, key)).called(label)
        };
        let is_mix = point.spec.word("scenario") == Scenario::Mix.name();
        let is_tcp = is_mix && settings.world == World::Host;
        let key = if is_tcp { "goodput_bps" } else { "taken_pps" };
        let [driver, card] = [0, 1].map(|side| (SIDES[side], point.values(side, key)));
        let peaks = Comparison::of(key, driver, card);
        let busy = of(1, "target_core_busy_fraction", "card: target busy");
        if is_mix {
            gains.extend(peaks.ratios().iter().map(|ratio| ratio - 1.0));
        } else {
            busiest_on_card = busy.values.iter().copied().fold(busiest_on_card, f64::max);
        }
        let found = Labelled::with_labels(point.spec.labels.clone())
            .comparing(peaks)
            .with(of(1, "accepted_fraction", "passed"))
            .with(of(0, "accepted_fraction", "driver").in_detail())
            .with(of(0, "target_core_busy_fraction", "driver: target busy"))
            .with(busy)
            .with(of(0, "borrowed_core_busy_fraction", "driver").in_detail())
            .with(of(1, "borrowed_core_busy_fraction", "card").in_detail());
        series.push(found);
    }
    outcome.add(
        Figure::one("discard_card_target_core_busy_fraction", busiest_on_card)
            .called("all discarded: target busy, card"),
    );
    outcome.add(Figure::of("mix_throughput_gain", gains).called("mix: throughput, card"));
    outcome.note(format!(
        "{}: target busy at {} packets/s, taken at full speed",
        settings.world.source().label(),
        settings.rate_pps(),
    ));
    outcome.note(match settings.world {
        World::Sim => format!(
            "modelled: each accepted packet costs the host {} ns; each packet costs the core that \
             filters {} ns more, and {} ns for each doubling of the rules",
            settings.host_ns, settings.filter_ns, settings.filter_doubling_ns
        ),
        World::Host => {
            "all discarded: UDP by a veth; mix: TCP both ways at once, which is accepted, \
                        and UDP, which is not. Sender, card and host share this machine's cores"
                .into()
        }
    });
    outcome.note(
        "the paper: with all discarded, the host's CPU is about idle with the firewall on the \
         card; in the mix, CPU and throughput are better",
    );
    outcome
}
