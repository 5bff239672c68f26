//! What the card adds to the latency of minimum-size UDP, by packet rate.
//!
//! `per-packet` is the paper's card: the physical NIC interrupts at most every `nic_usecs`, the
//! borrowed core then moves what has come, one packet after the other, each with an interrupt of
//! its own. `moderated` is our default: the borrowed core polls the wire, and packets wait for
//! each other up to 20 µs at the target.
//!
//! *Extra* is what passes after the physical NIC's interrupt until the target routine has the
//! packet: without the card it would have it then. It is split into the wait at the wire behind
//! packets of the same interrupt, the turn of the borrowed core, and the rest: in the target ring,
//! with the doorbell. A line is fitted up to the knee, the last rate at which nothing is lost.
//!
//! The paper explains its straight line by the first part: more packets an interrupt, more of them
//! in front. With a load ρ of the borrowed core and a NIC that interrupts every T at most, an
//! interrupt finds the packets of T, and the mean packet waits ρ T / 2 behind others. With the
//! paper's costs (350 packets/ms fill its core: `card_ns = 2360`) it is 15 µs at 80 packets/ms,
//! where the paper has about 19. A handler that went on until the ring is empty would take what
//! comes meanwhile at once: an interrupt would find the packets of (1 - ρ) T only, 12 µs there, and
//! the line would bend, which the paper's does not.
//!
//! Packets arrive at random: even ones beat with the packets of which the latency is recorded, one
//! in 16.
//!
//! Source: PICNIC, section 4.2 and figure 5.

use super::cards::{CardRun, repeated, within};
use super::columns::{self, Column, hidden, shown};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{Line, median};
use picnic_lab::distribution::Distribution;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// Offered load, in packets per millisecond
    pub packets_per_millisecond: Vec<f64>,
    /// Least time between two interrupts of the physical NIC in microseconds, in the paper's mode
    pub nic_usecs: u32,
    /// Packets that may wait at the physical NIC
    pub nic_ring: u32,
    /// Work of the borrowed core for a packet, in nanoseconds; sim only
    pub card_ns: u64,
    /// Sending an interrupt to the target core, in nanoseconds; sim only
    pub send_ns: u64,
    /// Its way there, in nanoseconds; sim only
    pub way_ns: u64,
    /// Packets at each load; 20000 in the sim world; on the host, as many as come in a time that
    /// the effort says
    pub packets: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        let rates = [
            10, 25, 50, 80, 120, 160, 200, 250, 300, 350, 400, 500, 700, 900, 1200, 1500, 1800,
            2200, 3000,
        ];
        Settings {
            world: World::Sim,
            packets_per_millisecond: rates.map(f64::from).into(),
            nic_usecs: 125,
            nic_ring: 256,
            card_ns: 70,
            send_ns: 500,
            way_ns: 1_000,
            packets: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        within("nic_usecs", f64::from(self.nic_usecs), 1.0, 1e5)?;
        within("nic_ring", f64::from(self.nic_ring), 64.0, 65_536.0)?;
        for (key, found) in
            [("card_ns", self.card_ns), ("send_ns", self.send_ns), ("way_ns", self.way_ns)]
        {
            within(key, found as f64, 0.0, 1e6)?;
        }
        within("packets", self.packets.unwrap_or(1000) as f64, 1000.0, 1e9)?;
        let rates = &self.packets_per_millisecond;
        let key = "packets_per_millisecond";
        if rates.is_empty() {
            return Err(ConfigError::new(key, "found none, allowed: one or more"));
        }
        rates.iter().try_for_each(|&rate| within(key, rate, 0.1, 1e5))
    }
}

/// The experiment.
#[derive(Debug)]
pub struct PicnicLatency(Settings);

impl Component for PicnicLatency {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "picnic-latency";
    const HELP: &'static str = "extra latency by packet rate, per packet and moderated";

    fn example(_: &Path) -> Option<String> {
        Some("packets_per_millisecond = [80, 400, 800]\npackets = 1000".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(PicnicLatency(settings)))
    }
}

impl Reproduces for PicnicLatency {
    const PAPER: Row = row(
        "PICNIC fig. 5",
        "extra latency of minimum-size UDP by packet rate, from arrival, one interrupt per packet",
        &[
            number("extra latency at 80 packets/ms", 19.0, Unit::Microseconds)
                .ours("extra_at_80000_pps_ns"),
            words("straight up to 350 packets/ms, where the borrowed core is full", "yes")
                .ours("per_packet_line_r_squared")
                .at_least(0.98, "R²"),
        ],
    )
    .corrected("another machine than that of figures 6 and 8");
}

/// The paper's mode, and ours; the latter's figures have the second name.
const SIDES: [(&str, &str); 2] = [("per-packet", "per_packet"), ("moderated", "moderated")];
/// Parts of the extra latency, with their names for people.
const PARTS: [(&str, &str); 3] = [
    ("at_wire_ns", "at the wire behind others"),
    ("on_borrowed_core_ns", "on the borrowed core"),
    ("in_target_ring_ns", "in the target ring"),
];
/// Columns of each side's loads.
const LOADS: [Column; 7] = [
    shown("extra_ns", "extra latency"),
    hidden(PARTS[0].0, PARTS[0].1),
    hidden(PARTS[1].0, PARTS[1].1),
    hidden(PARTS[2].0, PARTS[2].1),
    hidden("held_ns", "held by the NIC"),
    hidden("delivered_pps", "delivered"),
    hidden("borrowed_core_busy_fraction", "borrowed core busy"),
];
/// R² from which on a line counts as straight.
const STRAIGHT: f64 = 0.98;
/// The load whose extra latency the paper tells, in packets per second.
const PAPER_PPS: f64 = 80_000.0;
/// Least share of what is offered that is delivered where nothing is lost: what waits at the end
/// of the time is not delivered yet.
const ALL: f64 = 0.99;

impl Experiment for PicnicLatency {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |&rate: &f64| {
            let spec = Spec::at("offered_pps", (rate * 1000.0).round());
            repeated(spec.sides(&SIDES.map(|side| side.0)), self.0.world, effort.repeats())
        };
        self.0.packets_per_millisecond.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        if self.0.world == World::Host { 2 } else { 1 }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let rate_pps = point.number("offered_pps");
        let interrupt = match side {
            "per-packet" => {
                format!("per_packet = true\ngate = \"none\"\nwire_usecs = {}\n", settings.nic_usecs)
            }
            _ => String::new(),
        };
        let text = format!(
            "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nflows = 64\ntcp_share = 0.0\n\
             frames = \"reuse\"\narrivals = \"random\"\nbacklog = {}\nrate_pps = {rate_pps}\n\
             [host]\nattachment = \"app\"\nqueues = 1\n[interrupt]\n{interrupt}",
            settings.nic_ring
        );
        let usual = run.effort.of(100, 300, 1000) as f64 / 1e3;
        let seconds = match (settings.packets, settings.world) {
            (Some(packets), _) => packets as f64 / rate_pps,
            (None, World::Sim) => 20_000.0 / rate_pps,
            (None, World::Host) => usual,
        };
        let time = Duration::from_secs_f64(seconds);
        let default = CostModel::default();
        let costs = CostModel {
            card_packet_ns: settings.card_ns.saturating_sub(default.card_turn_ns),
            card_turn_ns: settings.card_ns.min(default.card_turn_ns),
            doorbell_send_ns: settings.send_ns,
            doorbell_arrive_ns: settings.way_ns..=settings.way_ns,
            ..default
        };
        let card = CardRun::of(settings.world, &text, run.seed, time);
        let passed = CardRun { costs, ..card }.run()?;
        let latency = &passed.report.latency_ns;
        let mut outcome = Outcome::of(settings.world.source());
        let held = latency.held_at_wire.unwrap_or(0);
        let less_held = |part: Option<u64>| part.map(|part| part.saturating_sub(held) as f64);
        for (key, value) in [
            ("offered_pps", Some(passed.offered_pps)),
            ("delivered_pps", Some(passed.delivered_pps)),
            ("extra_ns", less_held(latency.mean)),
            ("held_ns", Some(held as f64)),
            ("at_wire_ns", less_held(latency.at_wire)),
            ("on_borrowed_core_ns", latency.on_borrowed_core.map(|ns| ns as f64)),
            ("in_target_ring_ns", latency.in_target_ring.map(|ns| ns as f64)),
            ("borrowed_core_busy_fraction", Some(passed.report.borrowed_core.busy_fraction)),
        ] {
            outcome.add(Figure::one(key, value));
        }
        outcome.distribute(Distribution::of_card("latency_ns", &passed.report));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let at_paper = points.iter().find(|found| found.spec.number("offered_pps") == PAPER_PPS);
        let extra = at_paper.map(|found| median(&found.values(0, "extra_ns")));
        let label = "extra latency at 80 packets/ms, an interrupt a packet";
        outcome.add(Figure::one("extra_at_80000_pps_ns", extra).called(label));
        for (side, (name, key)) in SIDES.iter().enumerate() {
            self.judge(&mut outcome, points, side, name, key);
            let whole = at_paper.and_then(|found| found.distribution(side, "latency_ns"));
            if let Some(whole) = whole.cloned() {
                let label = format!("{name} at 80/ms");
                outcome.distribute(whole.keyed(&format!("{key}_latency_ns")).called(&label));
            }
        }
        for found in points {
            let point = Point::with_labels(found.spec.labels.clone());
            let point = SIDES.iter().enumerate().fold(point, |point, (side, (name, key))| {
                columns::beside(point, (found, side), (key, name), &LOADS)
            });
            outcome.series("loads").push(point);
        }
        outcome.note(format!(
            "per-packet: the NIC interrupts every {} µs at most, and its wait is not in the extra \
             latency; moderated: the borrowed core polls",
            settings.nic_usecs
        ));
        if settings.world == World::Sim {
            outcome.note(format!(
                "modelled: {} ns a packet on the borrowed core, {} ns to send an interrupt, {} ns \
                 for its way",
                settings.card_ns, settings.send_ns, settings.way_ns
            ));
        }
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        let plot = |title: &str, figure: &str| Plot::lines(title, "loads", "offered_pps", figure);
        let parts = plot("where it comes from, an interrupt a packet", "per_packet_at_wire_ns")
            .and("per_packet_on_borrowed_core_ns")
            .and("per_packet_in_target_ring_ns");
        let extra = plot("extra latency by packet rate", "per_packet_extra_ns");
        vec![extra.and("moderated_extra_ns").marked("paper", PAPER_PPS, 19_000.0), parts]
    }
}

impl PicnicLatency {
    /// Where a side's knee is, how straight the line up to it is, and what makes it rise.
    fn judge(
        &self,
        outcome: &mut Outcome,
        points: &[MeasuredPoint],
        side: usize,
        name: &str,
        key: &str,
    ) {
        let value = |found: &MeasuredPoint, figure: &str| median(&found.values(side, figure));
        let mut loads: Vec<_> = points.iter().collect();
        loads.sort_by(|a, b| a.spec.number("offered_pps").total_cmp(&b.spec.number("offered_pps")));
        let is_lost = |found: &&MeasuredPoint| {
            value(found, "delivered_pps") < ALL * value(found, "offered_pps")
        };
        let knee = loads.iter().position(is_lost).unwrap_or(loads.len());
        let (below, beyond) = loads.split_at(knee);
        let line = |figure: &str| {
            let dots =
                below.iter().map(|found| (value(found, "offered_pps"), value(found, figure)));
            Line::of(&dots.collect::<Vec<_>>())
        };
        let whole = line("extra_ns");
        let straight = (3..=below.len()).rev().find(|&count| {
            let dots = below[..count].iter();
            let dots = dots.map(|at| (value(at, "offered_pps"), value(at, "extra_ns")));
            let line = Line::of(&dots.collect::<Vec<_>>());
            line.and_then(|line| line.r_squared).is_some_and(|r_squared| r_squared >= STRAIGHT)
        });
        let straight = straight.map(|count| below[count - 1].spec.number("offered_pps"));
        let label = format!("straight (R² of 0.98 or more) up to, {name}");
        outcome.add(Figure::one(&format!("{key}_straight_pps"), straight).called(&label));
        let saturation = below.last().map(|found| found.spec.number("offered_pps"));
        outcome.add(
            Figure::one(&format!("{key}_knee_pps"), saturation)
                .called(&format!("knee, {name}: the last load of which nothing is lost")),
        );
        outcome.add(
            Figure::one(
                &format!("{key}_line_r_squared"),
                whole.as_ref().and_then(|line| line.r_squared),
            )
            .called(&format!("R² of a straight line up to there, {name}")),
        );
        let of_line = |figure: &str, label: &str, value: Option<f64>| {
            Figure::one(&format!("{key}_{figure}"), value).called(&format!("{label}, {name}"))
        };
        let at_none = whole.as_ref().map(|line| line.at(0.0));
        outcome.add(of_line("line_at_none_ns", "the line at no load", at_none).in_detail());
        let rise = whole.as_ref().map(|line| line.slope * 100_000.0);
        let label = "it rises with each 100 packets/ms by";
        outcome.add(of_line("line_rise_ns", label, rise));
        for (part, label) in PARTS {
            let share =
                line(part).zip(whole.as_ref()).map(|(part, whole)| part.slope / whole.slope);
            let figure = format!("line_{}_share", part.trim_end_matches("_ns"));
            outcome.add(of_line(&figure, &format!("of which {label}"), share).in_detail());
        }
        if let Some(first) = beyond.first() {
            let busy = value(first, "borrowed_core_busy_fraction");
            let (from, to) = (saturation.unwrap_or(0.0), first.spec.number("offered_pps"));
            let why = match busy > 0.95 {
                true => "the borrowed core is full",
                false => "the borrowed core is not full: the target is behind",
            };
            outcome.note(format!(
                "{name}: packets are lost between {:.0} and {:.0} packets/ms; {why} ({:.0} % busy)",
                from / 1000.0,
                to / 1000.0,
                busy * 100.0
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::runner;

    #[test]
    fn with_an_interrupt_a_packet_it_rises_with_the_packets_in_front() {
        let settings = Settings { packets: Some(8_000), ..Settings::default() };
        let experiment = PicnicLatency::build(settings, &BuildContext::default()).unwrap();
        let name = PicnicLatency::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        let figure = |key: &str| outcome.median(key).unwrap();
        let knee = figure("per_packet_knee_pps");
        assert!((1.2e6..1.8e6).contains(&knee), "{:#?}", outcome.fields());
        assert_eq!(figure("per_packet_straight_pps"), knee);
        assert!(figure("per_packet_line_r_squared") >= STRAIGHT, "{:#?}", outcome.fields());
        // As the text of this file says, for 570 ns a packet and 125 µs.
        for load in outcome.fields()["loads"].as_array().unwrap() {
            let rate = load["offered_pps"].as_f64().unwrap();
            let busy = rate * 570e-9;
            if busy > 0.9 {
                continue;
            }
            let wanted_ns = busy * 125_000.0 / 2.0;
            let found_ns = load["per_packet_at_wire_ns"].as_f64().unwrap();
            let tolerance = 500.0 + 0.15 * wanted_ns;
            assert!((found_ns - wanted_ns).abs() < tolerance, "{rate}: {found_ns}, {wanted_ns}");
        }
        // It comes from packets in front, of the same interrupt.
        assert!(figure("per_packet_line_at_wire_share") > 0.9);
        // Half of those of an interrupt, 570 ns each, and at most the way of an interrupt.
        let extra = figure("extra_at_80000_pps_ns");
        assert!((2_500.0..5_000.0).contains(&extra), "{extra}");
        assert!(figure("moderated_knee_pps") >= 3e6);
    }
}
