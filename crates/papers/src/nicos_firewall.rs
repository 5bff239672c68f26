//! The same stateless firewall on the card and at the driver.
//!
//! Two scenarios, as in the paper: all packets are discarded, or most of a mix is accepted. Each is
//! run for every number of rules and packet size, with the rules on the card (the borrowed core
//! filters) and at the driver (the target core filters, before the host gets the packet). All rules
//! except the last match nothing, so every packet is checked against all rules; the last discards.
//!
//! Two runs per point: one at a fixed rate, for the load of the target cores; one at full speed,
//! for the card's throughput.
//!
//! In the sim world the machine is a profile, usually the paper's. Packets come from a generator; the
//! rules accept TCP, each packet at the host's cost, and discard UDP. A packet costs the core that
//! filters it `filter_ns`, plus `filter_doubling_ns` for each doubling of the rules, since they are a
//! compiled classifier. Its size has no cost there.
//!
//! On the host, wire and host are real (`real.rs`): UDP over a veth, and in the mix accepted TCP in
//! both directions as well, at its real cost. It needs root.
//!
//! Source: NICOS 4.7 and figure 4.

mod real;

use super::cards::{CardRun, repeated};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
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
use picnic_sim::machine::{Cost, Profile};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

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
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Share of UDP in the mix, which the rules discard
    pub udp_share: f64,
    /// Packets that the host sends for each accepted one in the mix; at most 1 in the sim world
    pub outgoing: f64,
    /// Packets per second at which the target cores' load is measured
    pub rate_pps: u32,
    /// Work of the host per accepted packet, in nanoseconds; sim only [default: the machine's stack
    /// and system call]
    pub host_ns: Option<u64>,
    /// Cost of a packet in a single filter on a core of the host, in nanoseconds; sim only [default:
    /// the machine's, or 10]
    pub filter_ns: Option<u64>,
    /// Additional cost for each doubling of the filters, in nanoseconds; sim only [default: the
    /// machine's, or 1]
    pub filter_doubling_ns: Option<u64>,
    /// Target queues
    pub queues: u16,
    /// Duration of each run, in milliseconds [default: 100 in the sim world, 300 on the host, 100
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
            profile: None,
            udp_share: 0.3,
            outgoing: 1.0,
            rate_pps: 20_000,
            host_ns: None,
            filter_ns: None,
            filter_doubling_ns: None,
            queues: 1,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn milliseconds(&self, effort: Effort) -> u64 {
        let host = effort.of(100, 300, 1000);
        self.milliseconds.unwrap_or(if self.world == World::Sim { 100 } else { host })
    }

    fn sizes(&self) -> Vec<u32> {
        let sizes = if self.world == World::Sim { vec![60] } else { vec![60, 1514] };
        self.sizes.clone().unwrap_or(sizes)
    }

    /// The machine of the sim world; none on the host.
    fn machine(&self) -> Result<Option<Profile>, ConfigError> {
        let wrong = |message: String| Err(ConfigError::new("profile", message));
        match (self.world, &self.profile) {
            (World::Host, Some(name)) => {
                wrong(format!("found \"{name}\" with world = \"host\", allowed only with \"sim\""))
            }
            (World::Host, None) => Ok(None),
            (World::Sim, name) => match Profile::named(name.as_deref().unwrap_or(PAPERS_MACHINE)) {
                Ok(machine) => Ok(Some(machine)),
                Err(error) => wrong(error.to_string()),
            },
        }
    }

    /// Nanoseconds of a packet in the rules, on a core of the machine's host.
    fn filter_ns(&self, machine: &Profile, rules: u32) -> f64 {
        let cost = |stated: Option<u64>, cost: Cost, usual: f64| match machine.costs.get(cost) {
            _ if stated.is_some() => stated.unwrap_or_default() as f64,
            0.0 => usual,
            ns => ns,
        };
        let one_ns = cost(self.filter_ns, Cost::Filter, 10.0);
        let doubling_ns = cost(self.filter_doubling_ns, Cost::FilterDoubling, 1.0);
        one_ns + doubling_ns * f64::from(rules.ilog2())
    }

    /// Nanoseconds of the host for an accepted packet, without its driver, and for its answer.
    fn host_ns(&self, machine: &Profile) -> u64 {
        let sum = |costs: &[Cost]| costs.iter().map(|&cost| machine.costs.get(cost)).sum::<f64>();
        let received_ns =
            match sum(&[Cost::StackReceive, Cost::Allocate, Cost::Free, Cost::SystemCall]) {
                0.0 => 1_000.0,
                ns => ns,
            };
        let received_ns = self.host_ns.map_or(received_ns, |ns| ns as f64);
        let sent_ns = sum(&[Cost::SystemCall, Cost::StackSend, Cost::DriverSend]);
        (received_ns + sent_ns * self.outgoing).round() as u64
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
        if !(0.0..=1.0).contains(&self.udp_share) {
            return wrong("udp_share", &self.udp_share, "0 to 1");
        }
        let most = if self.world == World::Sim { 1.0 } else { 100.0 };
        if !(0.0..=most).contains(&self.outgoing) {
            return wrong("outgoing", &self.outgoing, &format!("0 to {most}"));
        }
        if !(1..=1_000_000_000).contains(&self.rate_pps) {
            return wrong("rate_pps", &self.rate_pps, "1 to 1000000000");
        }
        if let Some(milliseconds) = self.milliseconds.filter(|time| !(1..=10_000).contains(time)) {
            return wrong("milliseconds", &milliseconds, "1 to 10000");
        }
        Ok(())
    }
}

/// The profile of the paper's machine.
const PAPERS_MACHINE: &str = "tigon";

/// The experiment, on its machine in the sim world.
#[derive(Debug)]
pub struct NicosFirewall(Settings, Option<Profile>);

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
        let machine = settings.machine()?;
        Ok(Box::new(NicosFirewall(settings, machine)))
    }
}

impl Reproduces for NicosFirewall {
    const PAPER: Row = row(
        "NICOS fig. 4",
        "the same stateless firewall on the card and at the driver: all discarded, and a mix",
        &[
            words("host's CPU with the firewall on the card, all discarded", "about 0")
                .ours("discard_card_target_core_busy_fraction")
                .at_most(0.01, "busy")
                .modelled(tigon::discard_busy),
            words("host's CPU in the mix", "better on the card")
                .ours("mix_target_core_busy_change")
                .at_most(0.0, "change")
                .modelled(tigon::mix_busy_change),
            words("throughput in the mix", "better on the card")
                .ours("mix_throughput_gain")
                .at_least(0.0, "gain")
                .modelled(tigon::mix_gain),
        ],
    )
    .on(PAPERS_MACHINE, 2);
}

/// The row's figures on a machine.
mod tigon {
    use super::*;

    /// With 64 rules and the shortest packets: the driver's, then the card's.
    fn both(machine: &Profile, scenario: Scenario, is_paced: bool) -> Result<[Figures; 2], String> {
        let settings = Settings::default();
        let point = Point { scenario, rules: 64, size: 60 };
        let rate_pps = is_paced.then_some(settings.rate_pps);
        let [driver, card] = [Place::Driver, Place::Nic]
            .map(|place| measure(&settings, Some(machine), point, place, rate_pps, 100));
        let text = |error: LabError| error.to_string();
        Ok([driver.map_err(text)?, card.map_err(text)?])
    }

    pub(super) fn discard_busy(machine: &Profile, _: Effort) -> Result<f64, String> {
        Ok(both(machine, Scenario::Discard, true)?[1].target_busy)
    }

    pub(super) fn mix_busy_change(machine: &Profile, _: Effort) -> Result<f64, String> {
        let [driver, card] = both(machine, Scenario::Mix, true)?;
        Ok(card.target_busy / driver.target_busy - 1.0)
    }

    pub(super) fn mix_gain(machine: &Profile, _: Effort) -> Result<f64, String> {
        let [driver, card] = both(machine, Scenario::Mix, false)?;
        Ok(card.taken_pps / driver.taken_pps - 1.0)
    }
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

/// The places of the rules, alternating: the reference first.
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
        let machine = self.1.as_ref();
        let at = |rate| measure(settings, machine, point, place, rate, milliseconds);
        let paced = at(Some(settings.rate_pps))?;
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
        outcome(&self.0, self.1.as_ref(), points)
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
    let udp = FiveTuple { protocol: Some(Protocol::UDP), ..FiveTuple::default() };
    let matching = match point.scenario {
        Scenario::Discard => Match::Any,
        Scenario::Mix => udp.into(),
    };
    add("discard".into(), matching, point.rules as usize);
    changes
}

/// The card file in the sim world.
fn card(settings: &Settings, machine: &Profile, point: Point, rate_pps: Option<u32>) -> String {
    let rate_pps = rate_pps.unwrap_or(0);
    let Settings { seed, queues, outgoing, udp_share, .. } = settings;
    format!(
        "[card]\nseed = {seed}\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = {}\n\
         rate_pps = {rate_pps}\ntcp_share = {:?}\n[[rx]]\nfunction = \"rss\"\n[host]\n\
         attachment = \"app\"\nmode = \"echo\"\necho_share = {outgoing:?}\nqueues = {queues}\n\
         cost_ns = {}\n[interrupt]\npoll_usecs = 0\n",
        point.size,
        1.0 - udp_share,
        settings.host_ns(machine)
    )
}

fn measure(
    settings: &Settings,
    machine: Option<&Profile>,
    point: Point,
    place: Place,
    rate_pps: Option<u32>,
    milliseconds: u64,
) -> Result<Figures, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::Failed(error.to_string());
    let filters = Filters::new(settings.queues);
    filters.apply(rules(settings, point, place)).map_err(|error| failed(&error))?;
    let time = Duration::from_millis(milliseconds);
    let Some(machine) = machine else {
        return Ok(between_wires(settings, point, filters, rate_pps, time)?);
    };
    let filter_ns = settings.filter_ns(machine, point.rules);
    let (cost, filter_ns) = match place {
        Place::Nic => (Cost::CardPacket, machine.on_card_ns(filter_ns)),
        Place::Driver => (Cost::DriverReceive, filter_ns),
    };
    let costs = machine.costs.clone().with(cost, machine.costs.get(cost) + filter_ns);
    let text = card(settings, machine, point, rate_pps);
    let card = CardRun::of(settings.world, &text, settings.seed, time);
    let machine = Some(Profile { costs, ..machine.clone() });
    let report = CardRun { filters: Some(filters), machine, ..card }.run()?.report;
    let received: u64 = report.wires.iter().map(|wire| wire.rx_packets).sum();
    let refused = report.drops.get(DropReason::Filtered.name()).copied().unwrap_or(0);
    let packets = received as f64;
    let targets = report.target_cores.len() as f64;
    let awake: f64 = report.target_cores.iter().map(|core| 1.0 - core.asleep_fraction).sum();
    Ok(Figures {
        target_busy: awake / targets,
        borrowed_busy: report.borrowed_core.busy_fraction,
        taken_pps: packets / report.duration_s,
        accepted: 1.0 - refused as f64 / packets,
        goodput_bps: None,
    })
}

/// At a rate, the mix has its share of UDP and TCP in both directions; at full speed, as much TCP as
/// possible, with the same UDP.
fn between_wires(
    settings: &Settings,
    point: Point,
    filters: Filters,
    rate_pps: Option<u32>,
    time: Duration,
) -> anyhow::Result<Figures> {
    let Point { scenario, size, .. } = point;
    let Settings { udp_share, outgoing, .. } = *settings;
    let stated_pps = f64::from(settings.rate_pps);
    let (udp_pps, ways) = match scenario {
        Scenario::Discard => (rate_pps.map(f64::from), [false; 2]),
        Scenario::Mix => {
            (Some((stated_pps * udp_share).max(1.0)), [udp_share < 1.0, outgoing > 0.0])
        }
    };
    let tcp_pps = rate_pps.map(|rate_pps| f64::from(rate_pps) * (1.0 - udp_share));
    let tcp = |is_sent: bool, of_incoming: f64| {
        is_sent.then(|| tcp_pps.map(|pps| (pps * of_incoming) as u64))
    };
    let traffic = real::Traffic {
        size,
        udp_pps: udp_pps.map(|pps| pps as u64),
        tcp_pps: [tcp(ways[0], 1.0), tcp(ways[1], outgoing)],
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

/// A figure of both sides at a point; of throughput, TCP's goodput where there is some.
fn compared(settings: &Settings, point: &MeasuredPoint, key: &str) -> Comparison {
    let is_tcp =
        point.spec.word("scenario") == Scenario::Mix.name() && settings.world == World::Host;
    let key = if is_tcp && key == "taken_pps" { "goodput_bps" } else { key };
    let [driver, card] = [0, 1].map(|side| (SIDES[side], point.values(side, key)));
    Comparison::of(key, driver, card)
}

fn outcome(settings: &Settings, machine: Option<&Profile>, points: &[MeasuredPoint]) -> Outcome {
    let mut outcome = Outcome::with_settings(settings.world.source(), settings);
    let (mut busiest_on_card, mut gains, mut changes) = (0.0_f64, Vec::new(), Vec::new());
    let mut series = outcome.series("points");
    for point in points {
        let of = |side: usize, key: &str, label: &str| {
            Figure::of(&format!("{}_{key}", SIDES[side]), point.values(side, key)).called(label)
        };
        let peaks = compared(settings, point, "taken_pps");
        let busy = of(1, "target_core_busy_fraction", "card: target busy");
        if point.spec.word("scenario") == Scenario::Mix.name() {
            let ratios = compared(settings, point, "target_core_busy_fraction").ratios();
            changes.extend(ratios.iter().map(|ratio| ratio - 1.0));
            gains.extend(peaks.ratios().iter().map(|ratio| ratio - 1.0));
        } else {
            busiest_on_card = busy.values.iter().copied().fold(busiest_on_card, f64::max);
        }
        let found = Labelled::with_labels(point.spec.labels.clone())
            .comparing(peaks)
            .with(of(1, "accepted_fraction", "passed").in_detail())
            .with(of(0, "accepted_fraction", "driver").in_detail())
            .with(of(0, "target_core_busy_fraction", "driver: target busy"))
            .with(busy)
            .with(of(0, "borrowed_core_busy_fraction", "driver: card busy").in_detail())
            .with(of(1, "borrowed_core_busy_fraction", "card: card busy"));
        series.push(found);
    }
    for scenario in Scenario::ALL {
        // Points are in the order of their rules.
        let mut of_it =
            points.iter().filter(|point| point.spec.word("scenario") == scenario.name());
        let Some(point) = of_it.next_back() else { continue };
        for key in ["taken_pps", "target_core_busy_fraction", "borrowed_core_busy_fraction"] {
            let found = compared(settings, point, key);
            let key = format!("{}_{}", scenario.name(), found.key);
            outcome.compare(Comparison { key, ..found });
        }
    }
    outcome.add(
        Figure::one("discard_card_target_core_busy_fraction", busiest_on_card)
            .called("all discarded: target busy, card"),
    );
    outcome
        .add(Figure::of("mix_target_core_busy_change", changes).called("mix: target busy, card"));
    outcome.add(Figure::of("mix_throughput_gain", gains).called("mix: throughput, card"));
    if let Some(point) = points.last() {
        outcome.note(format!(
            "compared: with {} rules, of {} bytes a packet",
            point.spec.number("rules"),
            point.spec.number("packet_bytes")
        ));
    }
    outcome.note(format!(
        "{}: cores busy at {} packets/s, taken at full speed",
        settings.world.source().label(),
        settings.rate_pps,
    ));
    outcome.note(match settings.world {
        World::Sim => format!(
            "modelled on {}: the rules accept TCP, {} % of the mix",
            machine
                .map(|machine| format!("\"{}\", {}", machine.name, machine.help))
                .unwrap_or_default(),
            ((1.0 - settings.udp_share) * 100.0).round()
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
