//! How many wires at line rate a borrowed core takes, each with its own target core.
//!
//! One to five wires bring what a link of 1 Gb/s carries of 1514-byte frames, and are held to such a
//! link. `by-wire` gives each wire a queue and a target core of its own, and the borrowed core's share of
//! work is measured. `link_mbps` and `frame_bytes` make faster links and shorter frames of these, and
//! some of both are modelled beside them (`links.rs`). A line through
//! these points says at how many wires the core is full; more wires than that are measured as
//! well, and not fitted, so that the prediction can fail. Two ways of interrupting take turns: one
//! interrupt for each packet, as the paper's card, and our default moderation.
//!
//! The clocks of two wires differ by up to 100 parts in a million each, as Ethernet allows, so that
//! packets of all wires do not come at once for ever.
//!
//! In the sim world the borrowed core's work costs what the settings say. On the host it is what it
//! is, the making of the packets included, and each point needs a core for each wire and one more.
//! A point where a target core is full says nothing of the borrowed core, and is left out.
//!
//! Source: PICNIC, section 4.3 and figure 6; IEEE 802.3, clause 40.6.1.2.6, for the clocks.

mod links;

use super::cards::{CardRun, repeated, run_time, within};
use super::columns::{self, Column, Fit, hidden, shown};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::{Crossing, Line, median};
use picnic_lab::experiment::{Effort, Experiment, LabError, MeasuredPoint, Run, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::paper::{Row, number, row, words};
use picnic_lab::plot::Plot;
use picnic_lab::registry::Reproduces;
use picnic_lab::unit::Unit;
use picnic_sim::CostModel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

/// Check sequence, preamble and gap come with each frame.
const FRAMING_BYTES: u32 = 24;
/// How far a clock may be off, in parts in a million.
const CLOCK_PPM: f64 = 100.0;
/// A core that works for more than this share of the time is full.
const FULL: f64 = 0.98;
/// More lost than this share of what was offered is a loss; less is of the ends of the run.
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
    /// Numbers of wires that the line is fitted to
    pub wires: Vec<u32>,
    /// More numbers of wires, that its prediction is tested with; sim only
    pub beyond: Vec<u32>,
    /// Rate of each wire's link, in megabits per second
    pub link_mbps: u32,
    /// Bytes of a frame
    pub frame_bytes: u16,
    /// Rates of other links to be modelled beside, in megabits per second; sim only
    pub more_links_mbps: Vec<u32>,
    /// Lengths of other frames to be modelled beside, in bytes; sim only
    pub more_frames_bytes: Vec<u16>,
    /// Work of the host for a packet, in nanoseconds; none with `more_links_mbps` and
    /// `more_frames_bytes`
    pub host_ns: u32,
    /// One turn of the borrowed core, in nanoseconds; sim only
    pub card_turn_ns: u64,
    /// One packet on the borrowed core, in nanoseconds; sim only
    pub card_packet_ns: u64,
    /// Ringing a doorbell, in nanoseconds; sim only
    pub doorbell_ns: u64,
    /// How long each point is run, in milliseconds; 50 in the sim world and 500 on the host, if not
    /// said: fewer for --quick
    pub milliseconds: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            world: World::Sim,
            wires: vec![1, 2, 3, 4, 5],
            beyond: vec![8, 16, 24, 32, 96],
            link_mbps: 1000,
            frame_bytes: 1514,
            more_links_mbps: vec![10_000, 25_000, 100_000],
            more_frames_bytes: vec![60],
            host_ns: 4_000,
            card_turn_ns: 50,
            card_packet_ns: 20,
            doorbell_ns: 500,
            milliseconds: None,
        }
    }
}

impl Settings {
    fn validate(&self) -> Result<(), ConfigError> {
        for (key, numbers) in [("wires", &self.wires), ("beyond", &self.beyond)] {
            numbers.iter().try_for_each(|&wires| within(key, f64::from(wires), 1.0, 128.0))?;
        }
        if self.wires.is_empty() {
            return Err(ConfigError::new("wires", "found none, allowed: one or more"));
        }
        if let Some(both) = self.beyond.iter().find(|wires| self.wires.contains(wires)) {
            let message = format!("found {both}, allowed: numbers that are not in `wires`");
            return Err(ConfigError::new("beyond", message));
        }
        let rate = |key: &str, mbps: u32| within(key, f64::from(mbps), 1.0, 1e6);
        let bytes = |key: &str, bytes: u16| within(key, f64::from(bytes), 60.0, 1514.0);
        rate("link_mbps", self.link_mbps)?;
        bytes("frame_bytes", self.frame_bytes)?;
        self.more_links_mbps.iter().try_for_each(|&more| rate("more_links_mbps", more))?;
        self.more_frames_bytes.iter().try_for_each(|&more| bytes("more_frames_bytes", more))?;
        within("host_ns", f64::from(self.host_ns), 0.0, 100_000.0)?;
        within("card_turn_ns", self.card_turn_ns as f64, 0.0, 1e5)?;
        within("card_packet_ns", self.card_packet_ns as f64, 0.0, 1e5)?;
        within("doorbell_ns", self.doorbell_ns as f64, 0.0, 1e5)?;
        within("milliseconds", self.milliseconds.unwrap_or(1) as f64, 1.0, 10_000.0)
    }

    /// Bits of a frame on the wire.
    fn frame_bits(&self) -> f64 {
        f64::from((u32::from(self.frame_bytes) + FRAMING_BYTES) * 8)
    }

    /// What a link carries, in packets a second.
    fn link_pps(&self) -> f64 {
        f64::from(self.link_mbps) * 1e6 / self.frame_bits()
    }

    /// The numbers of wires, and whether the line is fitted to them.
    fn numbers(&self) -> impl Iterator<Item = (u32, bool)> {
        let beyond = if self.world == World::Sim { &self.beyond[..] } else { &[] };
        let fitted = self.wires.iter().map(|&wires| (wires, true));
        fitted.chain(beyond.iter().map(|&wires| (wires, false)))
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
    const HELP: &'static str = "wires at line rate that a borrowed core takes";

    fn example(_: &Path) -> Option<String> {
        Some("wires = [1, 2, 3]\nbeyond = [40]\nmore_links_mbps = [10000]\nmilliseconds = 3".into())
    }

    fn build(settings: Settings, _: &BuildContext) -> Result<Box<dyn Experiment>, ConfigError> {
        settings.validate()?;
        Ok(Box::new(PicnicScaling(settings)))
    }
}

impl Reproduces for PicnicScaling {
    const PAPER: Row = row(
        "PICNIC fig. 6",
        "one borrowed core, 1 to 5 wires at line rate, each flow to its own target",
        &[
            number("taken from five wires", 5e9, Unit::BitsPerSecond)
                .ours("per_packet_five_wires_delivered_bps"),
            words("borrowed core with five wires is not full", "yes")
                .ours("per_packet_five_wires_busy_fraction")
                .at_most(0.95, "busy"),
        ],
    )
    .corrected("another machine than that of figure 5; the curve's values are lost");
}

/// Ways of interrupting, and their `[interrupt]` sections.
const WAYS: [(&str, &str); 2] =
    [("per-packet", "per_packet = true\ngate = \"none\"\n"), ("moderated", "")];

impl Experiment for PicnicScaling {
    fn points(&self, effort: Effort) -> Vec<Spec> {
        let spec = |(wires, _): (u32, bool)| {
            let spec = Spec::at("wires", wires).sides(&WAYS.map(|(name, _)| name));
            repeated(spec, self.0.world, effort.repeats())
        };
        self.0.numbers().map(spec).chain(links::points(&self.0)).collect()
    }

    fn cores(&self, point: &Spec) -> usize {
        match self.0.world {
            World::Sim => 1,
            World::Host => point.number("wires") as usize + 1,
        }
    }

    fn measure(&self, point: &Spec, side: &str, run: &mut Run<'_>) -> Result<Outcome, LabError> {
        let settings = &links::at(&self.0, point);
        let wires = point.number("wires") as u32;
        let interrupt = WAYS.iter().find(|(name, _)| *name == side).map_or("", |(_, keys)| keys);
        let (sim, host) = (run.effort.of(20, 50, 200), run.effort.of(200, 500, 2000));
        let time = run_time(settings.milliseconds, settings.world, sim, host);
        let costs = CostModel {
            card_turn_ns: settings.card_turn_ns,
            card_packet_ns: settings.card_packet_ns,
            doorbell_send_ns: settings.doorbell_ns,
            doorbell_arrive_ns: 1_000..=1_000,
            ..CostModel::default()
        };
        let (time, costs) = match links::is_one(point) {
            true => (links::time(&self.0, settings, time), links::costs(costs)),
            false => (time, costs),
        };
        let text = settings.card(wires, interrupt);
        let card = CardRun::of(settings.world, &text, run.seed, time);
        let passed = CardRun { costs, ..card }.run()?;
        let dropped: u64 = passed.report.drops.values().sum();
        let offered = dropped + passed.report.ledger.delivered;
        let awake = passed.report.target_cores.iter().map(|core| 1.0 - core.asleep_fraction);
        let mut outcome = Outcome::of(settings.world.source());
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
        let mut outcome = Outcome::with_settings(settings.world.source(), settings);
        let all = points;
        for (side, (name, _)) in WAYS.iter().enumerate() {
            let points = all.iter().filter(|found| !links::is_one(&found.spec));
            let way = Way { settings, side, name, points: points.collect() };
            way.conclude(&mut outcome);
        }
        if settings.world == World::Sim {
            links::conclude(&mut outcome, settings, all);
            outcome.note(
                "links and frames beside are modelled, with target cores that have no work; to \
                 measure any of it takes as many cores as wires, and one more: world = \"host\" with \
                 link_mbps and frame_bytes",
            );
        }
        outcome.note(format!(
            "each wire brings {:.0} packets/s of {} bytes by a link of {} Mb/s, by a clock of its own",
            settings.link_pps(),
            settings.frame_bytes,
            settings.link_mbps
        ));
        if settings.world == World::Sim {
            outcome.note(
                "where the core is full was found with more wires than the line was fitted to: the \
                 fuller it is, the more packets share a turn",
            );
        }
        outcome.note(match settings.world {
            World::Sim => format!(
                "modelled: {} ns a turn of the borrowed core, {} ns a packet, {} ns a doorbell",
                settings.card_turn_ns, settings.card_packet_ns, settings.doorbell_ns
            ),
            World::Host => {
                "the borrowed core makes the packets as well: it would be less full with \
                            wires that bring them"
                    .into()
            }
        });
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

/// What the line through the points of a way comes to.
const LINE: [Fit; 3] = [
    Fit("busy_per_wire_fraction", "core a wire", |line| Some(line.slope)),
    Fit("busy_per_wire_reach_fraction", "its 95 % interval, either way", |line| {
        Some(line.slope_reach)
    }),
    Fit("residual_fraction", "furthest point from the line", |line| Some(line.largest_residual)),
];
/// Columns of each number of wires; those in the middle are of the host, which has counters.
const BUSY: [Column; 1] = [shown("busy_fraction", "borrowed core busy")];
const COUNTED: [Column; 2] = [
    shown("borrowed_cycles_per_packet", "cycles a packet"),
    hidden("borrowed_cache_misses_per_packet", "misses"),
];
const DELIVERED: [Column; 4] = [
    shown("delivered_bps", "delivered"),
    shown("dropped_fraction", "dropped"),
    shown("busiest_target_fraction", "busiest target core"),
    hidden("interrupts_per_second", "interrupts"),
];

/// A way of interrupting, and what was measured of it.
struct Way<'a> {
    settings: &'a Settings,
    side: usize,
    name: &'a str,
    points: Vec<&'a MeasuredPoint>,
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

    fn is_fitted(&self, found: &MeasuredPoint) -> bool {
        self.settings.wires.contains(&(wires(found) as u32))
    }

    /// Points that say something of the borrowed core.
    fn good(&self) -> impl Iterator<Item = &MeasuredPoint> {
        self.points.iter().copied().filter(|found| !self.is_void(found))
    }

    /// The line through the points that do not fill the core; a note, if they are too few.
    fn line(&self, outcome: &mut Outcome) -> Option<Line> {
        let to_fit = self.good().filter(|found| self.is_fitted(found) && !self.is_full(found));
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
                "{}: no line: {} numbers of wires that do not fill the core, needed are 3",
                self.name,
                places.len()
            ));
        }
        line
    }

    fn conclude(&self, outcome: &mut Outcome) {
        let Way { settings, name, .. } = *self;
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
        let found = figure("full_at_wires", at, "wires until the core is full");
        outcome.add(found.within(low, high));
        outcome.add(figure("full_at_wires_low", low, "its interval, low").in_detail());
        outcome.add(figure("full_at_wires_high", high, "its interval, high").in_detail());
        // What was not fitted says whether the line goes on: a full core takes so many wires.
        let wire_bps = f64::from(settings.link_mbps) * 1e6;
        let taken = self.good().filter(|found| self.is_full(found) && !self.is_fitted(found));
        let taken: Vec<f64> =
            taken.map(|found| self.of(found, "delivered_bps") / wire_bps).collect();
        let found_full = (!taken.is_empty()).then(|| median(&taken));
        outcome.add(figure("found_full_at_wires", found_full, "full, as found"));
        let off = full.zip(found_full).map(|(full, found)| full.at / found - 1.0);
        outcome.add(figure("prediction_change", off, "predicted against found"));
        let verdict = match (full, found_full) {
            (Some(Crossing { at, low, high }), Some(found)) => {
                let is_within = (low.unwrap_or(at)..=high.unwrap_or(at)).contains(&found);
                if is_within { "holds" } else { "does not hold" }
            }
            _ => "not tested",
        };
        outcome.tell(&format!("{key}_prediction"), verdict);
        self.points.iter().for_each(|found| self.row(outcome, found, line));
    }

    fn row(&self, outcome: &mut Outcome, found: &MeasuredPoint, line: Option<Line>) {
        let (side, number) = ((found, self.side), wires(found));
        let point = Point::at("way", self.name).and("wires", number as u32);
        let point = columns::row(point, side, &BUSY);
        // Points that are not fitted are of the sim world, and counters of the other.
        let point = match self.settings.world {
            World::Sim => {
                let line = line.filter(|_| !self.is_fitted(found));
                let predicted = line.map(|line| line.at(number).min(1.0));
                let predicted = Figure::one("predicted_busy_fraction", predicted);
                point.with(predicted.called("predicted"))
            }
            World::Host => columns::row(point, side, &COUNTED),
        };
        outcome.series("scaling").push(columns::row(point, side, &DELIVERED));
        if self.is_void(found) {
            outcome.note(format!("{}, {number} wires: void, a target core is full", self.name));
        }
    }
}

fn wires(found: &MeasuredPoint) -> f64 {
    found.spec.number("wires")
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_lab::runner;

    fn fields(settings: Settings) -> serde_json::Map<String, serde_json::Value> {
        let experiment = PicnicScaling::build(settings, &BuildContext::default()).unwrap();
        let name = PicnicScaling::NAME;
        let outcome = runner::outcome(name, &*experiment, Effort::Usual, &mut |_, _| {}).unwrap();
        outcome.fields()
    }

    #[test]
    fn five_wires_do_not_fill_the_core_and_the_line_says_how_many_do() {
        let settings =
            Settings { beyond: vec![16, 40], milliseconds: Some(10), ..Settings::default() };
        let fields = fields(settings);
        let number = |key: &str| fields[key].as_f64().unwrap_or_else(|| panic!("{fields:#?}"));
        let delivered = number("per_packet_five_wires_delivered_bps");
        assert!((delivered / 5e9 - 1.0).abs() < 0.02, "{delivered}");
        assert!(number("per_packet_five_wires_busy_fraction") < 0.5);
        // A packet costs 520 ns and at most a turn of 50 ns: 4.2 to 4.7 % of the core a wire.
        let slope = number("per_packet_busy_per_wire_fraction");
        assert!((0.040..0.048).contains(&slope), "{slope}");
        assert!(number("per_packet_full_at_wires_low") <= number("per_packet_full_at_wires"));
        // The more wires, the more packets share a turn: the line says a little too few.
        let (found, off) = ("per_packet_found_full_at_wires", "per_packet_prediction_change");
        assert!((20.0..25.0).contains(&number(found)), "{}", number(found));
        assert!((-0.15..0.02).contains(&number(off)), "{}", number(off));
        // With fewer doorbells a wire costs less.
        assert!(number("moderated_busy_per_wire_fraction") < slope);
    }

    #[test]
    fn faster_links_and_shorter_frames_fill_the_core_with_fewer_wires() {
        let full_at = |link_mbps, frame_bytes| {
            let settings = Settings {
                wires: vec![1, 2, 3],
                beyond: Vec::new(),
                link_mbps,
                frame_bytes,
                more_links_mbps: Vec::new(),
                more_frames_bytes: Vec::new(),
                host_ns: 100,
                milliseconds: Some(2),
                ..Settings::default()
            };
            fields(settings)["moderated_full_at_wires"].as_f64().unwrap_or(f64::NAN)
        };
        let (long, short, fast) = (full_at(1000, 1514), full_at(1000, 60), full_at(10_000, 1514));
        // As many packets cost as much, whatever their length.
        assert!(short < long && fast < long, "{long} {short} {fast}");
    }

    #[test]
    fn other_links_and_frames_stand_beside_in_the_default_output() {
        let settings =
            Settings { beyond: Vec::new(), milliseconds: Some(10), ..Settings::default() };
        let fields = fields(settings.clone());
        let rows = fields["links"].as_array().unwrap();
        for way in ["per-packet", "moderated"] {
            for bytes in [1514, 60] {
                let full: Vec<f64> = [1_000, 10_000, 25_000, 100_000]
                    .into_iter()
                    .map(|link| {
                        let row = rows.iter().find(|row| {
                            row["way"] == way
                                && row["link_mbps"] == link
                                && row["frame_bytes"] == bytes
                        });
                        let row = row.unwrap_or_else(|| panic!("{way} {link} {bytes}: {rows:#?}"));
                        assert!(row["delivered_bps"].as_f64().unwrap() > 0.0, "{row}");
                        row["full_at_wires"].as_f64().unwrap_or_else(|| panic!("{row}"))
                    })
                    .collect();
                assert!(full.windows(2).all(|pair| pair[0] > pair[1]), "{way} {bytes}: {full:?}");
            }
        }
        let experiment = PicnicScaling(settings.clone());
        let notes = experiment.conclude(&[]).notes;
        assert!(notes.iter().any(|note| note.contains("as many cores as wires")), "{notes:?}");
        // What a machine can measure is asked for.
        let host = PicnicScaling(Settings { world: World::Host, ..settings.clone() });
        assert!(!host.points(Effort::Usual).iter().any(links::is_one));
        let error = Settings { more_frames_bytes: vec![20], ..settings }.validate().unwrap_err();
        assert!(error.to_string().contains("more_frames_bytes"), "{error}");
    }

    #[test]
    fn a_full_target_core_says_nothing_of_the_borrowed_core() {
        let settings = Settings {
            wires: vec![1, 2, 3],
            beyond: Vec::new(),
            host_ns: 13_000,
            milliseconds: Some(5),
            ..Settings::default()
        };
        let fields = fields(settings.clone());
        assert_eq!(fields["per_packet_full_at_wires"], serde_json::Value::Null, "{fields:#?}");
        assert_eq!(fields["per_packet_prediction"], "not tested");
        let error = Settings { beyond: vec![2], ..settings }.validate().unwrap_err().to_string();
        assert!(error.contains("beyond") && error.contains("found 2"), "{error}");
    }
}
