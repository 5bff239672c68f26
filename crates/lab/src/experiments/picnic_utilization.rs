//! What the card costs the target core at 1 Gb/s of bulk receive: 81 274 packets a second.
//!
//! Four ways take turns. `without` is a NIC that interrupts the target core itself, moderated by
//! `nic_usecs` as the paper's driver had it; `per-packet` is the paper's card, one interrupt for
//! each packet; `gated` masks a queue that is at work; `moderated` is our default, where packets
//! wait for each other up to 20 µs. The paper says that "implementing moderation should reduce"
//! the cost: the three must be in that order.
//!
//! On the host a target core cannot be had without the poll engine's card, so that `without` is of
//! the sim world alone, and its share of time is that of the target's thread: the kernel's TCP is not
//! in it. With `engine = "kernel"` it is, and so is `without` (`kernel.rs`).
//!
//! Source: PICNIC, section 4.1 and figure 4: +8 % with the card. Whether relative or absolute it
//! does not say, so both are told.

mod kernel;

use super::cards::{CardRun, repeated, within};
use crate::compare::median;
use crate::experiment::{Effort, Experiment, Found, LabError, Run, Spec, World};
use crate::outcome::{Figure, Outcome, Point};
use crate::plot::Plot;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_sim::CostModel;
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
    /// The card's engine
    pub engine: Engine,
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
    /// Bytes that the sender hands over at once; with engine = "kernel"
    pub message_bytes: u32,
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
            engine: Engine::Poll,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        if self.engine == Engine::Kernel && self.world == World::Sim {
            let message = "found \"kernel\" with world = \"sim\", allowed: \"poll\"";
            return Err(ConfigError::new("engine", message));
        }
        within("host_ns", f64::from(self.host_ns), 0.0, 10_000.0)?;
        within("driver_ns", self.driver_ns as f64, 0.0, 1e5)?;
        within("interrupt_ns", self.interrupt_ns as f64, 0.0, 1e5)?;
        within("message_bytes", f64::from(self.message_bytes), 1.0, 1e6)?;
        within("nic_usecs", f64::from(self.nic_usecs), 1.0, 1e5)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
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

const WITHOUT: &str = "without";
const SIDES: [&str; 4] = [WITHOUT, "per-packet", "gated", "moderated"];

impl Experiment for PicnicUtilization {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        if self.0.engine == Engine::Kernel {
            return kernel::points(effort);
        }
        let first = usize::from(self.0.world == World::Host);
        let spec = Spec::at("offered_pps", RATE_PPS).sides(&SIDES[first..]);
        vec![repeated(spec, self.0.world, effort.repeats())]
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { 2 } else { 1 }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        if settings.engine == Engine::Kernel {
            return kernel::measure(settings, point, side, run);
        }
        let interrupt = match side {
            // Nobody but the NIC holds a packet back.
            WITHOUT => format!("rx_usecs = 0\nwire_usecs = {}\n", settings.nic_usecs),
            "per-packet" => "per_packet = true\ngate = \"none\"\n".into(),
            "gated" => "rx_usecs = 0\n".into(),
            _ => String::new(),
        };
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nsize = 1514\nflows = 1\n\
             frames = \"reuse\"\nrate_pps = {RATE_PPS}\n[[rx]]\nfunction = \"rss\"\n\
             [host]\nattachment = \"app\"\nqueues = 1\ncost_ns = {}\n[interrupt]\n{interrupt}",
            settings.host_ns
        );
        let host = run.effort.of(200, 500, 2000);
        let usual = if settings.world == World::Sim { 100 } else { host };
        let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
        let costs = CostModel {
            interrupt_ns: settings.interrupt_ns,
            target_packet_ns: settings.driver_ns,
            doorbell_send_ns: 500,
            doorbell_arrive_ns: 1_000..=1_000,
            ..CostModel::default()
        };
        let (world, seed, filters) = (settings.world, run.seed, None);
        let warm_up = Duration::ZERO;
        let passed = CardRun { world, text: &text, filters, costs, seed, warm_up, time }.run()?;
        let mut outcome = Outcome::of(settings.world.source());
        outcome.add(Figure::one("target_core_busy_fraction", passed.target_busy()));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        outcome.add(Figure::one("delivered_pps", passed.delivered_pps));
        passed.per_packet().into_iter().for_each(|figure| outcome.add(figure));
        Ok(outcome)
    }

    fn conclude(&self, points: &[Found]) -> Outcome {
        let settings = &self.0;
        if settings.engine == Engine::Kernel {
            return kernel::conclude(settings, points);
        }
        let mut outcome = Outcome::of(settings.world.source());
        outcome.settings = serde_json::to_value(settings).unwrap_or_default();
        let Some(found) = points.first() else { return outcome };
        let busy = |name: &str| {
            let side = found.spec.sides.iter().position(|side| side == name)?;
            Some(median(&found.values(side, "target_core_busy_fraction")))
        };
        let (without, card) = (busy(WITHOUT), busy("per-packet"));
        let both = without.zip(card);
        outcome.add(
            Figure::one("relative_change", both.map(|(without, card)| card / without - 1.0))
                .called("target core's CPU with the card, relative"),
        );
        outcome.add(
            Figure::one("absolute_change", both.map(|(without, card)| card - without))
                .called("the same, absolute"),
        );
        let moderated = busy("moderated").zip(without);
        outcome.add(
            Figure::one("moderated_change", moderated.map(|(card, without)| card / without - 1.0))
                .called("the same, moderated"),
        );
        let order = [card, busy("gated"), busy("moderated")];
        let falls = order.windows(2).all(|pair| pair[0] >= pair[1]);
        outcome.tell("moderation_reduces_it", if falls { "yes" } else { "no" });
        for (side, name) in found.spec.sides.iter().enumerate() {
            let of =
                |key: &str, label: &str| Figure::of(key, found.values(side, key)).called(label);
            let point = Point::at("way", name.clone())
                .with(of("target_core_busy_fraction", "target core busy"))
                .with(of("interrupts_per_second", "interrupts"))
                .with(of("delivered_pps", "delivered"));
            let counted = [
                ("target_cycles_per_packet", "target cycles a packet"),
                ("target_cache_misses_per_packet", "target misses a packet"),
            ];
            let counted = counted.iter().filter(|_| settings.world == World::Host);
            let point = counted.fold(point, |point, (key, label)| point.with(of(key, label)));
            outcome.series("ways").push(point);
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
            World::Host => "without the card, and with the kernel's TCP: not measurable here, the \
                            generator needs the card"
                .into(),
        });
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        if self.0.engine == Engine::Kernel {
            return kernel::plots();
        }
        vec![Plot::bars("target core by way of interrupting", "ways", "target_core_busy_fraction")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner;

    #[test]
    fn the_kernel_is_on_the_host_alone() {
        let settings = Settings { engine: Engine::Kernel, ..Settings::default() };
        let error = PicnicUtilization::build(settings, &BuildContext::default()).err().unwrap();
        let wanted = "card: engine: found \"kernel\" with world = \"sim\", allowed: \"poll\"";
        assert_eq!(error.to_string(), wanted);
    }

    #[test]
    fn the_card_costs_the_target_core_and_moderation_reduces_it() {
        let settings = Settings { milliseconds: Some(20), ..Settings::default() };
        let experiment = PicnicUtilization::build(settings, &BuildContext::default()).unwrap();
        let name = PicnicUtilization::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        let fields = outcome.fields();
        assert_eq!(fields["moderation_reduces_it"], "yes", "{fields:#?}");
        assert!(fields["relative_change"].as_f64().unwrap() > 0.0, "{fields:#?}");
        for way in fields["ways"].as_array().unwrap() {
            let delivered = way["delivered_pps"].as_f64().unwrap();
            assert!((delivered / f64::from(RATE_PPS) - 1.0).abs() < 0.03, "{way}");
        }
    }
}
