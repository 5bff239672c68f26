//! The card's cost on the target core at 1 Gb/s of bulk receive: 81 274 packets per second.
//!
//! In the sim world the paper's machine is modelled (`testbeds/netburst.rs`), with and without the
//! card. On the host three variants take turns: `per-packet` is the paper's card, one interrupt for
//! each packet; `gated` masks a busy queue; `moderated` is our default, where packets wait for each
//! other up to 20 µs. The paper says that "implementing moderation should reduce" the cost: the
//! three must be in that order.
//!
//! A generator's packets need the card, so there is no `without`, and the target core's time is the
//! time of the target's thread, from the kernel's counts, without TCP. With `attachment = "tap"` it
//! includes TCP, and all four variants are measured; with `engine = "kernel"` cards in the kernel
//! are compared with `without` (`kernel.rs`).
//!
//! Source: PICNIC, section 4.1 and figure 4: +8 % with the card. It does not say whether this is
//! relative or absolute, so both are given.

mod kernel;

use super::cards::{CardRun, within};
use super::columns::{self, Column, shown};
use super::modelled::{Curve, on_machine};
use super::testbeds::netburst;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{LEAST_PAIRS, Rule, Verdict};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
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
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// The card's engine; host only
    pub engine: Engine,
    /// The host attachment; host only, with engine = "poll"
    pub attachment: Attachment,
    /// Work of the host for a packet, in nanoseconds: the stack and the application; host only
    pub host_ns: u32,
    /// Milliseconds that each interrupt mode runs [default: 500]. Host only
    pub milliseconds: Option<u64>,
    /// Bytes that the sender writes at a time; with attachment = "tap" or engine = "kernel"
    pub message_bytes: u32,
    /// Repeats of all variants on the host [default: by the effort]; more repeats detect smaller
    /// differences
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

/// The receiver of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    /// Work of fixed length per packet
    #[default]
    App,
    /// The kernel's stack with a TCP receiver, as root; with world = "host"
    Tap,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            profile: None,
            host_ns: 4_000,
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
        within("message_bytes", f64::from(self.message_bytes), 1.0, 1e6)?;
        within("repeats", f64::from(self.repeats.unwrap_or(1)), 1.0, 1000.0)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
    }

    fn repeats(&self, effort: Effort) -> u32 {
        self.repeats.unwrap_or(effort.repeats())
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
    const HELP: &'static str = "target-core CPU at 1 Gb/s by kind of interrupts";

    fn example(_: &Path) -> Option<String> {
        // Long enough for each target thread to run, on a busy machine too.
        Some("world = \"host\"\nmilliseconds = 100".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(PicnicUtilization(settings))))
    }
}

impl Reproduces for PicnicUtilization {
    const PAPER: Row = row(
        "PICNIC fig. 4",
        "target-core CPU for 1 Gb/s bulk TCP receive, with and without the card",
        &[
            number("target core's CPU with the card", 0.08, Unit::Change)
                .ours("relative_change")
                .modelled(netburst::load_change),
            number("the same in points", 0.08, Unit::Fraction)
                .ours("absolute_fraction")
                .modelled(netburst::load_points),
            words("with moderation", "less")
                .ours("moderation_change")
                .at_most(0.0, "moderated to an interrupt a packet")
                .modelled(netburst::moderated_change),
        ],
    )
    .corrected("+8 %: relative or absolute it does not say")
    .on("netburst", 2);
}

const CURVE: Curve = Curve {
    series: "ways",
    points: |profile, effort| {
        let loads = netburst::loads(profile, effort)?.into_iter();
        let point = |(way, load)| Point::at("way", way).with(Figure::one(BUSY, load));
        Ok([WITHOUT, PER_PACKET, MODERATED].into_iter().zip(loads).map(point).collect())
    },
    plot: || Plot::bars("target core by way of interrupting", "ways", BUSY),
};

const BUSY: &str = "target_core_busy_fraction";
/// Time of the target's thread, as the kernel counts it, even if other threads use the core.
const THREAD: &str = "target_ns_per_packet";

const WITHOUT: &str = "without";
const PER_PACKET: &str = "per-packet";
const GATED: &str = "gated";
const MODERATED: &str = "moderated";
/// The card's variants in the paper's order, and their `[interrupt]` sections.
const WAYS: [(&str, &str); 3] = [
    (PER_PACKET, "per_packet = true\ngate = \"none\"\n"),
    (GATED, "rx_usecs = 0\n"),
    (MODERATED, ""),
];
const SIDES: [&str; 4] = [WITHOUT, PER_PACKET, GATED, MODERATED];

/// Columns of each variant, and those only for the host.
const WAY: [Column; 3] = [
    shown(BUSY, "target core busy"),
    shown("interrupts_per_second", "interrupts"),
    shown("delivered_pps", "delivered"),
];
const COUNTED: [Column; 3] = [
    shown(THREAD, "a packet"),
    shown("target_cycles_per_packet", "target cycles a packet"),
    shown("target_cache_misses_per_packet", "target misses a packet"),
];

/// The `[interrupt]` section of one of the card's variants.
fn interrupt_of(side: &str) -> Option<&'static str> {
    WAYS.iter().find(|(name, _)| *name == side).map(|(_, keys)| *keys)
}

/// Whether each variant costs the target core less than the one before, and the last less than the
/// first.
fn order(outcome: &mut Outcome, found: &MeasuredPoint, key: &str) {
    let values = |name: &str| {
        let side = found.spec.sides.iter().position(|side| side == name);
        side.map_or(Vec::new(), |side| found.values(side, key))
    };
    let pairs = values(MODERATED).into_iter().zip(values(PER_PACKET));
    let ratios: Vec<f64> = pairs.map(|(moderated, each)| moderated / each).collect();
    let moderation = Figure::of_pairs("moderation_change", &ratios);
    outcome.add(moderation.called("moderated to an interrupt a packet"));
    let mut is_less = |from: &str, to: &str| {
        let rule = Rule { more_is_better: false, ..Rule::default() };
        let both = Comparison::of(key, ("from", values(from)), ("to", values(to))).judged_by(rule);
        let word = less(&both);
        let point = Point::at("from", from).and("to", to).and("is_less", word);
        outcome.series("order").push(point.comparing(both));
        word
    };
    let steps = [is_less(PER_PACKET, GATED), is_less(GATED, MODERATED)];
    let whole = is_less(PER_PACKET, MODERATED);
    outcome.tell("moderation_reduces_it", whole);
    let not = steps.iter().find(|word| **word == NO);
    outcome.tell("ways_in_order", *not.or(steps.iter().find(|word| **word != YES)).unwrap_or(&YES));
    outcome.note(format!(
        "in order: \"{YES}\" and \"{NO}\" are beyond noise (95 %) and 2 %, \"{EQUAL}\" is within 2 %, \
         \"{TOO_CLOSE}\" is neither, or from fewer than {LEAST_PAIRS} pairs"
    ));
}

const YES: &str = "yes";
const NO: &str = "no";
const EQUAL: &str = "equal";
const TOO_CLOSE: &str = "too close";

/// Whether the candidate is less: models are exact, measurements are judged.
fn less(both: &Comparison) -> &'static str {
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
        let spec = Spec::at("offered_pps", RATE_PPS).sides(&SIDES[1..]);
        vec![spec.measured(self.0.repeats(effort))]
    }

    fn cores(&self, _: &Spec) -> usize {
        2
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        if settings.is_tcp() {
            return kernel::measure(settings, point, side, run);
        }
        let interrupt = interrupt_of(side).unwrap_or_default();
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = 1514\nflows = 1\n\
             frames = \"reuse\"\nrate_pps = {RATE_PPS}\n[[rx]]\nfunction = \"rss\"\n\
             [host]\nattachment = \"app\"\nqueues = 1\ncost_ns = {}\n[interrupt]\n{interrupt}",
            settings.host_ns
        );
        let usual = run.effort.of(200, 500, 2000);
        let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
        let card = CardRun::of(World::Host, &text, run.seed, time);
        let passed = CardRun { warm_up: time / 10, ..card }.run_until_delivered()?;
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one(BUSY, passed.target_busy()));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        outcome.add(Figure::one(THREAD, passed.target_ns_per_packet));
        passed.per_packet().into_iter().for_each(|figure| outcome.add(figure));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        if settings.is_tcp() {
            return kernel::conclude(settings, points);
        }
        let mut outcome = Outcome::with_settings(Source::Measured, settings);
        let Some(found) = points.first() else { return outcome };
        order(&mut outcome, found, THREAD);
        for (side, name) in found.spec.sides.iter().enumerate() {
            let point = columns::row(Point::at("way", name.clone()), (found, side), &WAY);
            outcome.series("ways").push(columns::row(point, (found, side), &COUNTED));
        }
        outcome.note(format!(
            "{RATE_PPS} packets/s of 1514 bytes; each packet costs the host {} ns",
            settings.host_ns
        ));
        outcome.note(
            "a generator's packets need the card: attachment = \"tap\" also measures without the card, \
             and with the kernel's TCP",
        );
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        if self.0.is_tcp() {
            return kernel::plots(&self.0);
        }
        vec![(CURVE.plot)()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_engine_is_only_on_the_host() {
        let settings = Settings { engine: Engine::Kernel, ..Settings::default() };
        let error = PicnicUtilization::build(settings, &BuildContext::default()).err().unwrap();
        let wanted = "card: engine: found \"kernel\" with world = \"sim\", allowed: \"poll\"";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn the_tap_is_only_for_the_poll_engine_on_the_host() {
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

    /// The concluded order of these costs, by repeat.
    fn order_of(ways: [&[f64]; 3]) -> [String; 2] {
        let side = |values: &[f64]| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("target_ns_per_segment", values.to_vec()));
            outcome
        };
        let spec = Spec::at("offered_pps", RATE_PPS).sides(&SIDES[1..]);
        let mut outcome = Outcome::of(Source::Measured);
        let found = MeasuredPoint { spec, sides: ways.map(side).into() };
        order(&mut outcome, &found, "target_ns_per_segment");
        let fields = outcome.fields();
        assert_eq!(fields["order"].as_array().unwrap().len(), 3, "{fields:#?}");
        ["ways_in_order", "moderation_reduces_it"].map(|key| fields[key].as_str().unwrap().into())
    }

    #[test]
    fn measured_order_exceeds_noise() {
        let around = |middle: f64, noise: f64| -> Vec<f64> {
            (0..12).map(|n| middle * (1.0 + noise * f64::from(n * 5 % 12 - 6) / 6.0)).collect()
        };
        let measured = |ways: [Vec<f64>; 3]| order_of(ways.each_ref().map(Vec::as_slice));
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
}
