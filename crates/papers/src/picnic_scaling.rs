//! The number of wires at line rate that a borrowed core can serve, each with its own target core.
//!
//! In the sim world the paper's machine is modelled (`testbeds/x5355.rs`). On the host one to five
//! wires carry the load of a 1 Gb/s link in 1514-byte frames, and are held to such a link. `by-wire`
//! gives each wire its own queue and target core, and the borrowed core's load is measured.
//! `link_mbps` and `frame_bytes` change the link and the frames. A line through these points predicts
//! the number of wires that saturate the core. Two kinds of interrupts take turns: one for each
//! packet, as on the paper's card, and our default moderation.
//!
//! The clocks of two wires differ by up to 100 parts per million each, as Ethernet allows, so that
//! packets of all wires are not synchronous for ever.
//!
//! The borrowed core also generates the packets, and each point needs a core per wire and one more.
//! A point with a saturated target core says nothing about the borrowed core, and is excluded.
//!
//! Source: PICNIC, section 4.3 and figure 6; IEEE 802.3, clause 40.6.1.2.6, for the clocks.

use super::cards::{CardRun, within};
use super::columns::{self, Column, Fit, hidden, shown};
use super::modelled::on_machine;
use super::testbeds::x5355;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{Line, median};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Check sequence, preamble and gap of each frame.
const FRAMING_BYTES: u32 = 24;
/// The tolerance of a clock, in parts per million.
const CLOCK_PPM: f64 = 100.0;
/// The load above which a core counts as saturated.
const FULL: f64 = 0.98;
/// The share of lost packets above which there is a loss; fewer are lost at the ends of the run.
const LOSS: f64 = 1e-3;
/// Packets that may wait at a wire, as in the ring of a NIC.
const BACKLOG: u32 = 256;
/// The paper's largest number of wires.
const FIVE: f64 = 5.0;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where it runs
    pub world: World,
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Numbers of wires to which the line is fitted; host only
    pub wires: Vec<u32>,
    /// Rate of each wire's link, in megabits per second; host only
    pub link_mbps: u32,
    /// Bytes of a frame; host only
    pub frame_bytes: u16,
    /// Work of the host for a packet, in nanoseconds; host only
    pub host_ns: u32,
    /// Milliseconds that each point runs [default: 500; fewer for --quick]. Host only
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            profile: None,
            wires: vec![1, 2, 3, 4, 5],
            link_mbps: 1000,
            frame_bytes: 1514,
            host_ns: 4_000,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        self.wires.iter().try_for_each(|&wires| within("wires", f64::from(wires), 1.0, 128.0))?;
        if self.wires.is_empty() {
            return Err(ConfigError::new("wires", "missing, expected one or more"));
        }
        within("link_mbps", f64::from(self.link_mbps), 1.0, 1e6)?;
        within("frame_bytes", f64::from(self.frame_bytes), 60.0, 1514.0)?;
        within("host_ns", f64::from(self.host_ns), 0.0, 100_000.0)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
    }

    /// Bits of a frame on the wire.
    fn frame_bits(&self) -> f64 {
        f64::from((u32::from(self.frame_bytes) + FRAMING_BYTES) * 8)
    }

    /// The capacity of a link, in packets per second.
    fn link_pps(&self) -> f64 {
        f64::from(self.link_mbps) * 1e6 / self.frame_bits()
    }

    fn card(&self, wires: u32, interrupt: &str) -> String {
        let mut text = format!(
            "[card]\nidle = \"spin\"\n[[rx]]\nfunction = \"by-wire\"\n[host]\nattachment = \"app\"\n\
             queues = {wires}\ncost_ns = {}\n[interrupt]\n{interrupt}",
            self.host_ns
        );
        for wire in 0..wires {
            // From the slowest clock to the fastest.
            let place = f64::from(wire) / f64::from(wires.max(2) - 1) * 2.0 - 1.0;
            let clock = 1.0 + place * CLOCK_PPM / 1e6;
            let _ = write!(
                text,
                "[[wire]]\nport = \"generator\"\nsize = {}\nflows = 1\nbacklog = {BACKLOG}\n\
                 rate_pps = {:.0}\n[wire.link]\nrate_mbps = {}\nqueue_packets = {BACKLOG}\n",
                self.frame_bytes,
                self.link_pps() * clock,
                f64::from(self.link_mbps) * clock,
            );
        }
        text
    }
}

/// The experiment.
#[derive(Debug)]
pub struct PicnicScaling(Settings);

impl Component for PicnicScaling {
    type Product = Box<dyn Experiment>;
    type Config = Settings;
    const NAME: &'static str = "picnic-scaling";
    const HELP: &'static str = "number of wires at line rate that a borrowed core can serve";

    fn example(_: &Path) -> Option<String> {
        Some("world = \"host\"\nwires = [1]\nmilliseconds = 3".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, None)?;
        Ok(modelled.unwrap_or_else(|| Box::new(PicnicScaling(settings))))
    }
}

impl Reproduces for PicnicScaling {
    const PAPER: Row = row(
        "PICNIC fig. 6",
        "one borrowed core, 1 to 5 wires at line rate, each flow to its own target",
        &[
            number("taken from five wires", 5e9, Unit::BitsPerSecond)
                .ours("per_packet_five_wires_delivered_bps")
                .modelled(x5355::five_wires_bps),
            words("borrowed core with five wires is not full", "yes")
                .ours("per_packet_five_wires_busy_fraction")
                .at_most(0.95, "busy")
                .modelled_and(x5355::five_wires_load, x5355::five_wires_formula),
        ],
    )
    .corrected("another machine than that of figure 5; the curve's values are lost")
    .on("x5355", 8);
}

/// Kinds of interrupts, and their `[interrupt]` sections.
const WAYS: [(&str, &str); 2] =
    [("per-packet", "per_packet = true\ngate = \"none\"\n"), ("moderated", "")];

/// The cards of all numbers of wires, with each kind of interrupt.
#[cfg(test)]
pub(crate) fn all_cards() -> Vec<String> {
    let settings = Settings::default();
    let of = |wires: &u32| WAYS.map(|(_, keys)| settings.card(*wires, keys));
    settings.wires.iter().flat_map(of).collect()
}

impl Experiment for PicnicScaling {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let sides = WAYS.map(|(name, _)| name);
        let spec = |&wires: &u32| Spec::at("wires", wires).sides(&sides).measured(effort.repeats());
        self.0.wires.iter().map(spec).collect()
    }

    fn cores(&self, point: &Spec) -> usize {
        point.number("wires") as usize + 1
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &self.0;
        let wires = point.number("wires") as u32;
        let interrupt = WAYS.iter().find(|(name, _)| *name == side).map_or("", |(_, keys)| keys);
        let usual = run.effort.of(200, 500, 2000);
        let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
        let text = settings.card(wires, interrupt);
        let passed = CardRun::of(World::Host, &text, run.seed, time).run()?;
        let dropped: u64 = passed.report.drops.values().sum();
        let offered = dropped + passed.report.ledger.delivered;
        let awake = passed.report.target_cores.iter().map(|core| 1.0 - core.asleep_fraction);
        let mut outcome = Outcome::of(Source::Measured);
        outcome.add(Figure::one("busy_fraction", passed.report.borrowed_core.busy_fraction));
        outcome.add(Figure::one("offered_bps", passed.offered_pps * settings.frame_bits()));
        outcome.add(Figure::one("delivered_bps", passed.delivered_pps * settings.frame_bits()));
        outcome.add(Figure::one("dropped_fraction", dropped as f64 / offered.max(1) as f64));
        outcome.add(Figure::one("busiest_target_fraction", awake.fold(0.0, f64::max)));
        outcome.add(Figure::one("interrupts_per_second", passed.interrupts_per_second()));
        passed.per_packet().into_iter().for_each(|figure| outcome.add(figure));
        Ok(outcome)
    }

    fn conclude(&self, points: &[MeasuredPoint]) -> Outcome {
        let settings = &self.0;
        let mut outcome = Outcome::with_settings(Source::Measured, settings);
        for (side, (name, _)) in WAYS.iter().enumerate() {
            Way { side, name, points }.conclude(&mut outcome);
        }
        outcome.note(format!(
            "each wire carries {:.0} packets/s of {} bytes over a link of {} Mb/s, with its own clock",
            settings.link_pps(),
            settings.frame_bytes,
            settings.link_mbps
        ));
        outcome.note(
            "the borrowed core makes the packets as well: with real wires it would be less loaded",
        );
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        vec![
            Plot::lines("borrowed core by wires", "scaling", "wires", "busy_fraction").by("way"),
            Plot::lines("delivered by wires", "scaling", "wires", "delivered_bps")
                .by("way")
                .marked("paper", FIVE, 5e9),
        ]
    }
}

/// The results of the line through a kind's points.
const LINE: [Fit; 3] = [
    Fit("busy_per_wire_fraction", "core per wire", |line| Some(line.slope)),
    Fit("busy_per_wire_reach_fraction", "its 95 % interval, either way", |line| {
        Some(line.slope_reach)
    }),
    Fit("residual_fraction", "largest distance from the line", |line| Some(line.largest_residual)),
];
/// Columns of each number of wires; those in the middle are only for the host, which has counters.
const BUSY: [Column; 1] = [shown("busy_fraction", "borrowed core busy")];
const COUNTED: [Column; 2] = [
    shown("borrowed_cycles_per_packet", "cycles per packet"),
    hidden("borrowed_cache_misses_per_packet", "misses"),
];
const DELIVERED: [Column; 4] = [
    shown("delivered_bps", "delivered"),
    shown("dropped_fraction", "dropped"),
    shown("busiest_target_fraction", "busiest target core"),
    hidden("interrupts_per_second", "interrupts"),
];

/// A kind of interrupts, with its measurements.
struct Way<'a> {
    side: usize,
    name: &'a str,
    points: &'a [MeasuredPoint],
}

impl Way<'_> {
    fn of(&self, found: &MeasuredPoint, key: &str) -> f64 {
        median(&found.values(self.side, key))
    }

    fn is_void(&self, found: &MeasuredPoint) -> bool {
        self.of(found, "busiest_target_fraction") > FULL
    }

    fn is_full(&self, found: &MeasuredPoint) -> bool {
        self.of(found, "busy_fraction") > FULL || self.of(found, "dropped_fraction") > LOSS
    }

    /// Points that are valid for the borrowed core.
    fn good(&self) -> impl Iterator<Item = &MeasuredPoint> {
        self.points.iter().filter(|found| !self.is_void(found))
    }

    /// The line through the points that do not saturate the core; a note, if there are too few.
    fn line(&self, outcome: &mut Outcome) -> Option<Line> {
        let to_fit = self.good().filter(|found| !self.is_full(found));
        let to_fit: Vec<(f64, f64)> = to_fit
            .flat_map(|found| {
                let busy = found.values(self.side, "busy_fraction").into_iter();
                busy.map(|busy| (wires(found), busy))
            })
            .collect();
        let places: BTreeSet<u32> = to_fit.iter().map(|(wires, _)| *wires as u32).collect();
        let line = Line::of(&to_fit).filter(|_| places.len() >= 3);
        if line.is_none() {
            outcome.note(format!(
                "{}: no line: {} numbers of wires that do not saturate the core, 3 needed",
                self.name,
                places.len()
            ));
        }
        line
    }

    fn conclude(&self, outcome: &mut Outcome) {
        let name = self.name;
        let key = name.replace('-', "_");
        let figure = |what: &str, value: Option<f64>, label: &str| {
            Figure::one(&format!("{key}_{what}"), value).called(&format!("{name}: {label}"))
        };
        let five = self.good().find(|found| wires(found) == FIVE);
        for (what, of, label) in [
            ("five_wires_delivered_bps", "delivered_bps", "taken from five wires"),
            ("five_wires_busy_fraction", "busy_fraction", "borrowed core with five wires"),
        ] {
            outcome.add(figure(what, five.map(|found| self.of(found, of)), label));
        }
        let line = self.line(outcome);
        LINE.iter().for_each(|fit| fit.add(outcome, (&key, name), line.as_ref()));
        let full = line.and_then(|line| line.reaches(1.0));
        let (low, high) = (full.and_then(|full| full.low), full.and_then(|full| full.high));
        let at = full.map(|full| full.at);
        let found = figure("full_at_wires", at, "wires until the core is saturated");
        outcome.add(found.within(low, high));
        outcome.add(figure("full_at_wires_low", low, "its interval, low").in_detail());
        outcome.add(figure("full_at_wires_high", high, "its interval, high").in_detail());
        self.points.iter().for_each(|found| self.row(outcome, found));
    }

    fn row(&self, outcome: &mut Outcome, found: &MeasuredPoint) {
        let (side, number) = ((found, self.side), wires(found));
        let point = Point::at("way", self.name).and("wires", number as u32);
        let point = columns::row(point, side, &BUSY);
        let point = columns::row(point, side, &COUNTED);
        outcome.series("scaling").push(columns::row(point, side, &DELIVERED));
        if self.is_void(found) {
            outcome
                .note(format!("{}, {number} wires: void, a target core is saturated", self.name));
        }
    }
}

fn wires(found: &MeasuredPoint) -> f64 {
    found.spec.number("wires")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads of the borrowed core and of the busiest target core, by wires.
    fn concluded(loads: &[(u32, f64, f64)]) -> Outcome {
        let point = |&(wires, busy, target): &(u32, f64, f64)| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of("busy_fraction", vec![busy; 3]));
            outcome.add(Figure::of("busiest_target_fraction", vec![target; 3]));
            outcome.add(Figure::of("dropped_fraction", vec![0.0; 3]));
            outcome.add(Figure::of("delivered_bps", vec![f64::from(wires) * 1e9; 3]));
            let spec = Spec::at("wires", wires).sides(&WAYS.map(|(name, _)| name));
            MeasuredPoint { spec, sides: vec![outcome.clone(), outcome] }
        };
        let settings = Settings { world: World::Host, ..Settings::default() };
        PicnicScaling(settings).conclude(&loads.iter().map(point).collect::<Vec<_>>())
    }

    #[test]
    fn a_line_tells_at_how_many_wires_the_core_is_full_without_full_targets() {
        let line = [(1, 0.1, 0.3), (2, 0.2, 0.3), (3, 0.3, 0.3), (5, 0.5, 0.3)];
        let full_at = |loads: &[_]| concluded(loads).median("per_packet_full_at_wires");
        assert!((full_at(&line).unwrap() - 10.0).abs() < 1e-6);
        // A full target core hides the borrowed core's limit.
        let with_full = [&line[..], &[(4, 0.9, 0.99)]].concat();
        assert!((full_at(&with_full).unwrap() - 10.0).abs() < 1e-6);
        let outcome = concluded(&line.map(|(wires, busy, _)| (wires, busy, 0.99)));
        assert_eq!(outcome.fields()["per_packet_full_at_wires"], serde_json::Value::Null);
        let note = "per-packet, 1 wires: void, a target core is saturated";
        assert!(outcome.notes.iter().any(|own| own == note), "{:?}", outcome.notes);
    }
}
