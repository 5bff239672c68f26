//! What the card costs the target core at 1 Gb/s of bulk receive: 81 274 packets a second.
//!
//! Four ways take turns. `without` is a NIC that interrupts the target core itself, moderated by
//! `nic_usecs` as the paper's driver had it; `per-packet` is the paper's card, one interrupt for
//! each packet; `gated` masks a queue that is at work; `moderated` is our default, where packets
//! wait for each other up to 20 µs. The paper says that "implementing moderation should reduce"
//! the cost: the three must be in that order.
//!
//! On the host a generator's packets cannot be had without the card, so that there is no `without`, and
//! the target core's time is that of the target's thread, as the kernel counts it: its TCP is not in it. With
//! `attachment = "tap"` it is, and all four ways are measured; with `engine = "kernel"` cards in the
//! kernel are, beside `without` (`kernel.rs`).
//!
//! Source: PICNIC, section 4.1 and figure 4: +8 % with the card. Whether relative or absolute it
//! does not say, so both are told.

mod kernel;

use super::cards::{CardRun, repeated, run_time, within};
use super::columns::{self, Column, shown};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{LEAST_PAIRS, Rule, Verdict, median};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::path::Path;
use std::time::Duration;

/// 1 Gb/s of 1514-byte frames with their framing.
const RATE_PPS: u32 = 81_274;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The card's engine
    pub engine: Engine,
    /// What the packets are delivered to; with engine = "poll"
    pub attachment: Attachment,
    /// Work of the host for a packet, in nanoseconds: the stack and the application
    pub host_ns: u32,
    /// Work of the driver for a packet, in nanoseconds; sim only
    pub driver_ns: u64,
    /// Taking an interrupt, in nanoseconds; sim only
    pub interrupt_ns: u64,
    /// Least time between two interrupts of the NIC without the card, in microseconds; sim only
    pub nic_usecs: u32,
    /// How long each way is run, in milliseconds; 100 in the sim world and 500 on the host, if not
    /// said
    pub milliseconds: Option<u64>,
    /// Bytes that the sender hands over at once; with attachment = "tap" or engine = "kernel"
    pub message_bytes: u32,
    /// How often all ways take turns on the host, if not as the effort says: the more often, the
    /// smaller the differences that can be told
    pub repeats: Option<u32>,
}

/// What runs the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// A thread on the borrowed core
    #[default]
    Poll,
    /// The kernel, as root; with world = "host"
    Kernel,
}

/// What the packets are delivered to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    /// Work of a given length for each
    #[default]
    App,
    /// The kernel's stack with a TCP receiver, as root; with world = "host"
    Tap,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            host_ns: 4_000,
            driver_ns: 300,
            interrupt_ns: 1_000,
            nic_usecs: 100,
            milliseconds: None,
            message_bytes: 65_536,
            repeats: None,
            engine: Engine::Poll,
            attachment: Attachment::App,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        if self.engine == Engine::Kernel && self.world == World::Sim {
            let message = "found \"kernel\" with world = \"sim\", allowed: \"poll\"";
            return Err(ConfigError::new("engine", message));
        }
        if self.attachment == Attachment::Tap {
            let other = match (self.world, self.engine) {
                (World::Sim, _) => Some("world = \"sim\""),
                (_, Engine::Kernel) => Some("engine = \"kernel\""),
                _ => None,
            };
            if let Some(other) = other {
                let message = format!("found \"tap\" with {other}, allowed: \"app\"");
                return Err(ConfigError::new("attachment", message));
            }
        }
        within("host_ns", f64::from(self.host_ns), 0.0, 10_000.0)?;
        within("driver_ns", self.driver_ns as f64, 0.0, 1e5)?;
        within("interrupt_ns", self.interrupt_ns as f64, 0.0, 1e5)?;
        within("message_bytes", f64::from(self.message_bytes), 1.0, 1e6)?;
        within("nic_usecs", f64::from(self.nic_usecs), 1.0, 1e5)?;
        within("repeats", f64::from(self.repeats.unwrap_or(1)), 1.0, 1000.0)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
    }

    fn repeats(&self, effort: Effort) -> u32 {
        self.repeats.unwrap_or(effort.repeats())
    }

    /// What of the target core the ways are put in order by: on the host, time of the target's thread
    /// as the kernel counts it, whatever else wants the core.
    fn key(&self) -> &'static str {
        match self.world {
            World::Sim => "target_core_busy_fraction",
            World::Host => "target_ns_per_packet",
        }
    }

    /// Whether the kernel's stack receives TCP.
    fn is_tcp(&self) -> bool {
        self.engine == Engine::Kernel || self.attachment == Attachment::Tap
    }
}

/// The experiment.
#[derive(Debug)]
pub struct PicnicUtilization(Settings);

impl Component for PicnicUtilization {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "picnic-utilization";
    const HELP: &'static str = "target-core CPU at 1 Gb/s by way of interrupting";

    fn example(_: &Path) -> Option<String> {
        Some("milliseconds = 10".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(PicnicUtilization(settings)))
    }
}

impl Reproduces for PicnicUtilization {
    const PAPER: Row = row(
        "PICNIC fig. 4",
        "target-core CPU for 1 Gb/s bulk TCP receive, with and without the card",
        &[
            number("target core's CPU with the card", 0.08, Unit::Change).ours("relative_change"),
            words("with moderation", "less").ours("moderated_change"),
        ],
    )
    .corrected("+8 %: relative or absolute it does not say");
}

const WITHOUT: &str = "without";
const PER_PACKET: &str = "per-packet";
const GATED: &str = "gated";
const MODERATED: &str = "moderated";
/// The card's ways as the paper has them in order, and their `[interrupt]` sections.
const WAYS: [(&str, &str); 3] = [
    (PER_PACKET, "per_packet = true\ngate = \"none\"\n"),
    (GATED, "rx_usecs = 0\n"),
    (MODERATED, ""),
];
const SIDES: [&str; 4] = [WITHOUT, PER_PACKET, GATED, MODERATED];

/// Columns of each way, and those of the host alone.
const WAY: [Column; 3] = [
    shown("target_core_busy_fraction", "target core busy"),
    shown("interrupts_per_second", "interrupts"),
    shown("delivered_pps", "delivered"),
];
const COUNTED: [Column; 3] = [
    shown("target_ns_per_packet", "a packet"),
    shown("target_cycles_per_packet", "target cycles a packet"),
    shown("target_cache_misses_per_packet", "target misses a packet"),
];

/// The `[interrupt]` section of one of the card's ways.
fn interrupt_of(side: &str) -> Option<&'static str> {
    WAYS.iter().find(|(name, _)| *name == side).map(|(_, keys)| *keys)
}

/// Whether each way costs the target core less than the one before, and the last less than the first.
fn order(outcome: &mut Outcome, found: &MeasuredPoint, key: &str) {
    let mut is_less = |from: &str, to: &str| {
        let values = |name: &str| {
            let side = found.spec.sides.iter().position(|side| side == name);
            side.map_or(Vec::new(), |side| found.values(side, key))
        };
        let rule = Rule { more_is_better: false, ..Rule::default() };
        let both = Comparison::of(key, ("from", values(from)), ("to", values(to))).judged_by(rule);
        let word = less(&both, outcome.source());
        let point = Point::at("from", from).and("to", to).and("is_less", word);
        outcome.series("order").push(point.comparing(both));
        word
    };
    let steps = [is_less(PER_PACKET, GATED), is_less(GATED, MODERATED)];
    let whole = is_less(PER_PACKET, MODERATED);
    outcome.tell("moderation_reduces_it", whole);
    let not = steps.iter().find(|word| **word == NO);
    outcome.tell("ways_in_order", *not.or(steps.iter().find(|word| **word != YES)).unwrap_or(&YES));
    if outcome.source() == Source::Measured {
        outcome.note(format!(
            "in order: \"{YES}\" and \"{NO}\" are beyond noise (95 %) and 2 %, \"{EQUAL}\" is within 2 %, \
             \"{TOO_CLOSE}\" is neither, or from fewer than {LEAST_PAIRS} pairs"
        ));
    }
}

const YES: &str = "yes";
const NO: &str = "no";
const EQUAL: &str = "equal";
const TOO_CLOSE: &str = "too close to tell";

/// Whether the candidate is less: a model is exact, and what was measured is judged.
fn less(both: &Comparison, source: Source) -> &'static str {
    if source == Source::Modelled {
        let [before, after] = [&both.baseline, &both.candidate].map(|side| median(&side.values));
        return match after.total_cmp(&before) {
            Ordering::Less => YES,
            Ordering::Equal => EQUAL,
            Ordering::Greater => NO,
        };
    }
    match both.judgement().map(|judgement| judgement.verdict) {
        Some(Verdict::Better) => YES,
        Some(Verdict::Worse) => NO,
        Some(Verdict::NoDifference) => EQUAL,
        Some(Verdict::TooNoisy) | None => TOO_CLOSE,
    }
}

impl Experiment for PicnicUtilization {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        if self.0.is_tcp() {
            return kernel::points(&self.0, effort);
        }
        let first = usize::from(self.0.world == World::Host);
        let spec = Spec::at("offered_pps", RATE_PPS).sides(&SIDES[first..]);
        vec![repeated(spec, self.0.world, self.0.repeats(effort))]
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { 2 } else { 1 }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        if settings.is_tcp() {
            return kernel::measure(settings, point, side, run);
        }
        let interrupt = match interrupt_of(side) {
            Some(keys) => keys.into(),
            // Nobody but the NIC holds a packet back.
            None => format!("rx_usecs = 0\nwire_usecs = {}\n", settings.nic_usecs),
        };
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = 1514\nflows = 1\n\
             frames = \"reuse\"\nrate_pps = {RATE_PPS}\n[[rx]]\nfunction = \"rss\"\n\
             [host]\nattachment = \"app\"\nqueues = 1\ncost_ns = {}\n[interrupt]\n{interrupt}",
            settings.host_ns
        );
        let world = settings.world;
        let time = run_time(settings.milliseconds, world, 100, run.effort.of(200, 500, 2000));
        let costs = CostModel {
            interrupt_ns: settings.interrupt_ns,
            target_packet_ns: settings.driver_ns,
            doorbell_send_ns: 500,
            doorbell_arrive_ns: 1_000..=1_000,
            ..CostModel::default()
        };
        let warm_up = if world == World::Sim { Duration::ZERO } else { time / 10 };
        let card = CardRun::of(world, &text, run.seed, time);
        let passed = CardRun { costs, warm_up, ..card }.run()?;
        let mut outcome = Outcome::of(settings.world.source());
        outcome.add(Figure::one("target_core_busy_fraction", passed.target_busy()));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        if world == World::Host {
            outcome.add(Figure::one(settings.key(), passed.target_ns_per_packet));
        }
        passed.per_packet().into_iter().for_each(|figure| outcome.add(figure));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        if settings.is_tcp() {
            return kernel::conclude(settings, points);
        }
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let Some(found) = points.first() else { return outcome };
        let busy = |name: &str| {
            let side = found.spec.sides.iter().position(|side| side == name)?;
            Some(median(&found.values(side, "target_core_busy_fraction")))
        };
        let (without, card) = (busy(WITHOUT), busy(PER_PACKET));
        let both = without.zip(card);
        outcome.add(
            Figure::one("relative_change", both.map(|(without, card)| card / without - 1.0))
                .called("target core's CPU with the card, relative"),
        );
        outcome.add(
            Figure::one("absolute_change", both.map(|(without, card)| card - without))
                .called("the same, absolute"),
        );
        let moderated = busy(MODERATED).zip(without);
        outcome.add(
            Figure::one("moderated_change", moderated.map(|(card, without)| card / without - 1.0))
                .called("the same, moderated"),
        );
        order(&mut outcome, found, settings.key());
        for (side, name) in found.spec.sides.iter().enumerate() {
            let point = columns::row(Point::at("way", name.clone()), (found, side), &WAY);
            let counted = if settings.world == World::Host { &COUNTED[..] } else { &[] };
            outcome.series("ways").push(columns::row(point, (found, side), counted));
        }
        outcome.note(format!(
            "{RATE_PPS} packets/s of 1514 bytes; a packet costs the host {} ns",
            settings.host_ns
        ));
        outcome.note(match settings.world {
            World::Sim => format!(
                "modelled: {} ns an interrupt, {} ns a packet for the driver, the NIC without the \
                 card interrupts every {} µs at most",
                settings.interrupt_ns, settings.driver_ns, settings.nic_usecs
            ),
            World::Host => {
                "without the card, and with the kernel's TCP: attachment = \"tap\" has both, \
                            the generator needs the card"
                    .into()
            }
        });
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        if self.0.is_tcp() {
            return kernel::plots(&self.0);
        }
        vec![Plot::bars("target core by way of interrupting", "ways", "target_core_busy_fraction")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::runner;

    #[test]
    fn the_kernel_is_on_the_host_alone() {
        let settings = Settings { engine: Engine::Kernel, ..Settings::default() };
        let error = PicnicUtilization::build(settings, &BuildContext::default()).err().unwrap();
        let wanted = "card: engine: found \"kernel\" with world = \"sim\", allowed: \"poll\"";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn the_tap_is_of_the_poll_engine_on_the_host() {
        let tap = || Settings { attachment: Attachment::Tap, ..Settings::default() };
        let kernel = Settings { world: World::Host, engine: Engine::Kernel, ..tap() };
        for (settings, with) in [(tap(), "world = \"sim\""), (kernel, "engine = \"kernel\"")] {
            let error = settings.validate().unwrap_err().to_string();
            let wanted = format!("attachment: found \"tap\" with {with}, allowed: \"app\"");
            assert!(error.ends_with(&wanted), "{error}");
        }
        let host = PicnicUtilization(Settings { world: World::Host, ..tap() });
        host.0.validate().unwrap();
        let [point] = &host.points(Effort::Usual)[..] else { panic!("one point") };
        assert_eq!(point.sides, SIDES);
    }

    /// What the three ways cost, repeat by repeat, is concluded to be in this order.
    fn order_of(ways: [&[f64]; 3], source: Source) -> [String; 2] {
        let side = |values: &[f64]| {
            let mut outcome = Outcome::of(source);
            outcome.add(Figure::of("target_ns_per_segment", values.to_vec()));
            outcome
        };
        let spec = Spec::at("offered_pps", RATE_PPS).sides(&SIDES[1..]);
        let mut outcome = Outcome::of(source);
        let found = MeasuredPoint { spec, sides: ways.map(side).into() };
        order(&mut outcome, &found, "target_ns_per_segment");
        let fields = outcome.fields();
        assert_eq!(fields["order"].as_array().unwrap().len(), 3, "{fields:#?}");
        ["ways_in_order", "moderation_reduces_it"].map(|key| fields[key].as_str().unwrap().into())
    }

    #[test]
    fn equal_costs_are_no_order() {
        let modelled =
            |ways: [f64; 3]| order_of(ways.each_ref().map(std::slice::from_ref), Source::Modelled);
        assert_eq!(modelled([3.0, 2.0, 1.0]), [YES, YES]);
        assert_eq!(modelled([3.0, 3.0, 1.0]), [EQUAL, YES]);
        assert_eq!(modelled([1.0, 1.0, 1.0]), [EQUAL, EQUAL]);
        assert_eq!(modelled([1.0, 1.0, 2.0]), [NO, NO]);
    }

    #[test]
    fn what_was_measured_is_in_order_beyond_noise_alone() {
        let around = |middle: f64, noise: f64| -> Vec<f64> {
            (0..12).map(|n| middle * (1.0 + noise * f64::from(n * 5 % 12 - 6) / 6.0)).collect()
        };
        let measured =
            |ways: [Vec<f64>; 3]| order_of(ways.each_ref().map(Vec::as_slice), Source::Measured);
        let [high, middle, low] = [3000.0, 2000.0, 1000.0];
        let steady = |middle| around(middle, 0.01);
        assert_eq!(measured([steady(high), steady(middle), steady(low)]), [YES, YES]);
        assert_eq!(measured([steady(high), steady(low), steady(low)]), [EQUAL, YES]);
        assert_eq!(measured([steady(middle), steady(low), steady(high)]), [NO, NO]);
        let mut noisy = around(low, 0.5);
        noisy.reverse();
        assert_eq!(measured([steady(high), around(low, 0.5), noisy]), [TOO_CLOSE, YES]);
        let few = |value| vec![value; 3];
        assert_eq!(measured([few(high), few(middle), few(low)]), [TOO_CLOSE, TOO_CLOSE]);
    }

    #[test]
    fn the_card_costs_the_target_core_and_moderation_reduces_it() {
        let settings = Settings { milliseconds: Some(20), ..Settings::default() };
        let experiment = PicnicUtilization::build(settings, &BuildContext::default()).unwrap();
        let name = PicnicUtilization::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        let fields = outcome.fields();
        assert_eq!(fields["moderation_reduces_it"], "yes", "{fields:#?}");
        assert_eq!(fields["ways_in_order"], "yes", "{fields:#?}");
        assert!(fields["relative_change"].as_f64().unwrap() > 0.0, "{fields:#?}");
        for way in fields["ways"].as_array().unwrap() {
            let delivered = way["delivered_pps"].as_f64().unwrap();
            assert!((delivered / f64::from(RATE_PPS) - 1.0).abs() < 0.03, "{way}");
        }
    }
}
