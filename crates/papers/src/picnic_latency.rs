//! The card's additional latency for minimum-size UDP, by packet rate.
//!
//! In the sim world the paper's machine is modelled (`testbeds/netburst.rs`). On the host two modes
//! take turns. `per-packet` is the paper's card: the physical NIC interrupts at most every `nic_usecs`, the
//! borrowed core then moves the packets one by one, each with its own interrupt. `moderated` is our
//! default: the borrowed core polls the wire, and packets wait for each other up to 20 µs at the
//! target.
//!
//! *Extra* is the time from the physical NIC's interrupt until the target routine has the packet:
//! without the card it would have it at the interrupt. It is split into the wait at the wire behind
//! packets of the same interrupt, the turn of the borrowed core, and the rest: in the target ring,
//! with the doorbell. A line is fitted up to the knee, the last rate without loss.
//!
//! The paper explains its straight line by the first part: more packets per interrupt, more of them
//! before it. With a load ρ of the borrowed core and a NIC that interrupts at most every T, an
//! interrupt finds the packets of T, and the mean packet waits ρ T / 2 behind others.
//!
//! Packets arrive at random: regular arrivals would interfere with the recorded packets, one in 16.
//!
//! Source: PICNIC, section 4.2 and figure 5.

use super::cards::{CardRun, within};
use super::columns::{self, Column, hidden, shown};
use super::modelled::{Curve, along, on_machine};
use super::testbeds::netburst;
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{Line, median};
use picnic_lab::distribution::Distribution;
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point, Source};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
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
    /// The modelled machine, with world = "sim" [default: the paper's]
    pub profile: Option<String>,
    /// Offered load, in packets per millisecond; host only
    pub packets_per_millisecond: Vec<f64>,
    /// Least time between two interrupts of the physical NIC, in microseconds, in the paper's mode
    pub nic_usecs: u32,
    /// Packets that may wait at the physical NIC; host only
    pub nic_ring: u32,
    /// Packets at each load [default: as many as arrive in the effort's time]. Host only
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
            profile: None,
            packets_per_millisecond: rates.map(f64::from).into(),
            nic_usecs: 125,
            nic_ring: 256,
            packets: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        within("nic_usecs", f64::from(self.nic_usecs), 1.0, 1e5)?;
        within("nic_ring", f64::from(self.nic_ring), 64.0, 65_536.0)?;
        within("packets", self.packets.unwrap_or(1000) as f64, 1000.0, 1e9)?;
        let rates = &self.packets_per_millisecond;
        let key = "packets_per_millisecond";
        if rates.is_empty() {
            return Err(ConfigError::new(key, "missing, expected one or more"));
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
        Some("world = \"host\"\npackets_per_millisecond = [80, 400]\npackets = 1000".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        let Settings { world, profile, .. } = &settings;
        let modelled = on_machine::<Self>(*world, profile.as_deref(), &settings, Some(CURVE))?;
        Ok(modelled.unwrap_or_else(|| Box::new(PicnicLatency(settings))))
    }
}

impl Reproduces for PicnicLatency {
    const PAPER: Row = row(
        "PICNIC fig. 5",
        "extra latency of minimum-size UDP by packet rate, from arrival, one interrupt per packet",
        &[
            number("core full at 350 packets/ms", 350e3, Unit::PerSecond)
                .ours("per_packet_knee_pps")
                .modelled(netburst::full_pps),
            number("extra latency at 80 packets/ms", 19_000.0, Unit::Nanoseconds)
                .ours("extra_at_80000_pps_ns")
                .modelled_and(netburst::extra_ns, netburst::extra_formula_ns),
            words("straight up to 350 packets/ms, where the borrowed core is full", "yes")
                .ours("per_packet_line_r_squared")
                .at_least(0.98, "R²")
                .modelled(netburst::linear),
        ],
    )
    .corrected("another machine than that of figures 6 and 8")
    .on("netburst", 2);
}

const CURVE: Curve = Curve {
    series: "loads",
    points: |profile, effort| {
        let loads = netburst::latencies(profile, effort)?;
        let loads = loads.into_iter().map(|(per_ms, ns)| (per_ms * 1000.0, ns));
        Ok(along("offered_pps", "per_packet_extra_ns", loads.collect()))
    },
    plot: || extra("per_packet_extra_ns"),
};

/// Extra latency by load.
fn extra(key: &str) -> Plot {
    let plot = Plot::lines("extra latency by packet rate", "loads", "offered_pps", key);
    plot.marked("paper", PAPER_PPS, 19_000.0)
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
/// R² above which a line counts as straight.
const STRAIGHT: f64 = 0.98;
/// The load at which the paper gives the extra latency, in packets per second.
const PAPER_PPS: f64 = 80_000.0;
/// Least delivered share of the offered load that counts as no loss: packets waiting at the end are
/// not delivered yet.
const ALL: f64 = 0.99;

impl Experiment for PicnicLatency {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |&rate: &f64| {
            let spec = Spec::at("offered_pps", (rate * 1000.0).round());
            spec.sides(&SIDES.map(|side| side.0)).measured(effort.repeats())
        };
        self.0.packets_per_millisecond.iter().map(spec).collect()
    }

    fn cores(&self, _: &Spec) -> usize {
        2
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
        let seconds = settings.packets.map_or(usual, |packets| packets as f64 / rate_pps);
        let time = Duration::from_secs_f64(seconds);
        let passed = CardRun::of(World::Host, &text, run.seed, time).run()?;
        let latency = &passed.report.latency_ns;
        let mut outcome = Outcome::of(Source::Measured);
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
        let mut outcome = Outcome::with_settings(Source::Measured, settings);
        let at_paper = points.iter().find(|found| found.spec.number("offered_pps") == PAPER_PPS);
        let extra = at_paper.map(|found| median(&found.values(0, "extra_ns")));
        let label = "extra latency at 80 packets/ms, one interrupt per packet";
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
            "per-packet: the NIC interrupts at most every {} µs, and its wait is not in the extra \
             latency; moderated: the borrowed core polls",
            settings.nic_usecs
        ));
        outcome
    }

    fn plots(&self) -> Vec<Plot> {
        let title = "where it comes from, an interrupt a packet";
        let parts = Plot::lines(title, "loads", "offered_pps", "per_packet_at_wire_ns")
            .and("per_packet_on_borrowed_core_ns")
            .and("per_packet_in_target_ring_ns");
        vec![extra("per_packet_extra_ns").and("moderated_extra_ns"), parts]
    }
}

impl PicnicLatency {
    /// A side's knee, the straightness of the line up to it, and the reasons of its slope.
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
                .called(&format!("knee, {name}: the highest load without loss")),
        );
        outcome.add(
            Figure::one(
                &format!("{key}_line_r_squared"),
                whole.as_ref().and_then(|line| line.r_squared),
            )
            .called(&format!("R² of a straight line up to the knee, {name}")),
        );
        let of_line = |figure: &str, label: &str, value: Option<f64>| {
            Figure::one(&format!("{key}_{figure}"), value).called(&format!("{label}, {name}"))
        };
        let at_none = whole.as_ref().map(|line| line.at(0.0));
        outcome.add(of_line("line_at_none_ns", "the line at no load", at_none).in_detail());
        let rise = whole.as_ref().map(|line| line.slope * 100_000.0);
        let label = "rise per 100 packets/ms";
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
                true => "the borrowed core is saturated",
                false => "the borrowed core is not saturated: the target is slower",
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
