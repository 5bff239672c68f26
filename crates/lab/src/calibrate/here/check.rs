//! Cards that run on this machine and in its model: measurements beside predictions.
//!
//! No card's figure is used for a cost, so each row is a prediction. The cards take turns, and the
//! ratio of modelled to measured has a 95 % interval. A row holds if the interval is within the
//! bound, and is not decided if only a part of the interval is. If all of the interval is outside,
//! the row names the effects that the model leaves out, each with its measured number and with the
//! ratio that the model yields with the effect; the row is explained if one of them suffices.

use super::super::doorbell::Wakes;
use super::super::line::line_ns;
use super::two_cores;
use crate::compare::{Interval, median};
use crate::meter::Meter;
use crate::window::Window;
use anyhow::{Context, anyhow, bail};
use picnic_control::{Launch, Registries};
use picnic_core::config::Sections;
use picnic_machine::signals;
use picnic_machine::threads::spawn_pinned;
use picnic_sim::machine::{Cost, Profile, WakeUps};
use serde::Serialize;
use std::time::Duration;

/// How near a modelled figure is to the measured one if the model holds.
pub(super) const NEAR: f64 = 0.2;
/// Runs of each card.
const ROUNDS: usize = 11;
/// Wake-ups of each kind, and samples of moving lines, in each round.
const SAMPLES: usize = 20;
/// Chance that an interval does not contain the ratio.
const MISS: f64 = 0.05;
/// How much longer a run takes after each one without a packet.
const LONGER: [f64; 4] = [1.0, 4.0, 16.0, 64.0];
/// Virtual time of a modelled run, in seconds: millions of packets take long, and have no noise.
const MODELLED_S: f64 = 0.05;
/// Lines that move between the cores for each packet, at most: descriptor, header of the buffer,
/// headers of the packet, return of the buffer.
const LINES: f64 = 4.0;

/// The verdict of a row on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval is within the bound.
    Holds,
    /// Only a part of it is: this machine is too noisy, or the runs are too short.
    NotDecided,
    /// It is outside, and an effect that the model leaves out is as large.
    Explained,
    /// It is outside, and no known effect is as large.
    NotExplained,
}

impl Verdict {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::NotDecided => "not decided",
            Verdict::Explained => "differs, explained",
            Verdict::NotExplained => "differs",
        }
    }
}

/// A card's figure, measured and modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub name: &'static str,
    /// Nanoseconds, or packets per second.
    pub unit: &'static str,
    /// The median of all rounds.
    pub measured: f64,
    /// The modelled figure.
    pub modelled: f64,
    /// Modelled divided by measured.
    pub ratio: Interval,
    /// The bound on the ratio, in either direction.
    pub allowed: f64,
    /// The conclusion.
    pub verdict: Verdict,
    /// The reasons, with their numbers.
    pub why: Vec<String>,
}

/// All rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// By card.
    pub rows: Vec<Row>,
    /// Why measured figures are less reliable, if other programs used the machine.
    pub noise: Option<String>,
}

/// An effect that the model leaves out.
struct Effect {
    /// With its measured number.
    what: String,
    /// The modelled figure with the effect.
    modelled: f64,
}

/// The conclusion from the rounds of a card.
fn judge(
    modelled: f64,
    measured: &[f64],
    effects: impl FnOnce() -> anyhow::Result<Vec<Effect>>,
) -> anyhow::Result<(Interval, Verdict, Vec<String>)> {
    let ratio_of = |modelled: f64| {
        let ratios: Vec<f64> = measured.iter().map(|measured| modelled / measured).collect();
        Interval::of(&ratios, MISS).context("a card delivered nothing in a round")
    };
    let is_near = |ratio: f64| ratio.max(1.0 / ratio) <= 1.0 + NEAR;
    let ratio = ratio_of(modelled)?;
    if ratio.is_within(NEAR, 1.0) {
        return Ok((ratio, Verdict::Holds, Vec::new()));
    }
    if ratio.low <= 1.0 + NEAR && ratio.high >= 1.0 / (1.0 + NEAR) {
        let spread = format!("spread {:.0} %", ratio.half_width() * 100.0);
        return Ok((ratio, Verdict::NotDecided, vec![spread]));
    }
    let (mut verdict, mut why) = (Verdict::NotExplained, Vec::new());
    for Effect { what, modelled } in effects()? {
        let with = ratio_of(modelled)?.ratio;
        if is_near(with) {
            verdict = Verdict::Explained;
        }
        why.push(format!("{what}: with that, the ratio is {with:.2}"));
    }
    Ok((ratio, verdict, why))
}

/// A card that runs here and in the model.
pub(super) struct Check {
    pub(super) name: &'static str,
    unit: &'static str,
    card: &'static str,
    pub(super) read: fn(&Window) -> Option<f64>,
    /// About how long the target core sleeps before each interrupt; none if it does not sleep.
    sleeps_us: Option<u64>,
}

impl Check {
    /// The card file.
    pub(super) fn text(&self) -> String {
        let host = if self.card.contains("[host]\n") { "" } else { "[host]\n" };
        let text = format!("{}{host}", self.card).replace("[host]\n", "[host]\nqueues = 1\n");
        format!("[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\n{text}")
    }

    fn is_rate(&self) -> bool {
        self.unit != "ns"
    }
}

fn latency(window: &Window) -> Option<f64> {
    window.report.latency_ns.p50.map(|ns| ns as f64)
}

fn delivered(window: &Window) -> Option<f64> {
    Some(window.rate(window.delivered))
}

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "doorbell to target routine, 2,000 packets/s",
        unit: "ns",
        card: "rate_pps = 2000\n[interrupt]\nrx_usecs = 0\npoll_usecs = 0\n",
        read: latency,
        sleeps_us: Some(500),
    },
    Check {
        name: "latency at 20,000 packets/s",
        unit: "ns",
        card: "rate_pps = 20000\n[interrupt]\nrx_usecs = 0\npoll_usecs = 0\n",
        read: latency,
        sleeps_us: Some(20),
    },
    Check {
        name: "latency at 200,000 packets/s, moderated to 20 us",
        unit: "ns",
        card: "rate_pps = 200000\n[interrupt]\nrx_usecs = 20\npoll_usecs = 0\n",
        read: latency,
        sleeps_us: Some(10),
    },
    Check {
        name: "dispatch at full speed",
        unit: "packets/s",
        card: "[[rx]]\nfunction = \"rss\"\n[interrupt]\npoll_usecs = 1000\n",
        read: delivered,
        sleeps_us: None,
    },
    Check {
        name: "overload: 500,000 packets/s offered, 4 us each",
        unit: "packets/s",
        card: "rate_pps = 500000\n[host]\ncost_ns = 4000\n",
        read: delivered,
        sleeps_us: None,
    },
];

/// The results of a card's rounds.
#[derive(Default)]
struct Measured {
    values: Vec<f64>,
    /// Preemptions of the card's cores, with their time and the time of the runs, in nanoseconds.
    preemptions: u64,
    preempted_ns: f64,
    ran_ns: f64,
    /// Wake-ups after the card's sleep.
    ways_ns: Vec<f64>,
}

/// Runs each card here, alternately, and in the model of `profile`; calls `tell` for each step.
///
/// # Errors
/// A card cannot run, or this process was asked to stop.
pub fn check(
    profile: &Profile,
    registries: Registries,
    sections: &Sections,
    seconds: f64,
    mut tell: impl FnMut(&str),
) -> anyhow::Result<Checked> {
    let run = |check: &Check, registries, seconds: f64| -> anyhow::Result<(f64, Window)> {
        let file = sections.parse(&check.text(), None)?;
        // A core may be preempted for all of a short run: the card then runs again, for longer.
        for times in LONGER {
            let launch = Launch::new(&file, registries).stopped_by(signals::stop());
            let time = Duration::from_secs_f64(seconds * times);
            let window = Window::of(launch.start_alone()?, time / 4, time)?;
            if let Some(value) = (check.read)(&window).filter(|&value| value > 0.0) {
                return Ok((value, window));
            }
        }
        bail!("{}: no packet was delivered", check.name)
    };
    let model = |check: &Check, profile: Profile| -> anyhow::Result<f64> {
        let registries = picnic_sim::on_machine(registries, profile);
        Ok(run(check, registries, seconds.min(MODELLED_S))?.0)
    };
    let mut modelled = Vec::new();
    for check in CHECKS {
        tell(&format!("modelling {}", check.name));
        modelled.push(model(check, profile.clone())?);
    }
    let meter = Meter::start();
    let mut measured: Vec<Measured> = CHECKS.iter().map(|_| Measured::default()).collect();
    let mut lines_ns = Vec::new();
    for round in 1..=ROUNDS {
        tell(&format!("round {round} of {ROUNDS}"));
        for (check, of) in CHECKS.iter().zip(&mut measured) {
            let (value, window) = run(check, registries, seconds)?;
            of.values.push(value);
            of.note(&window);
            if let Some(sleeps_us) = check.sleeps_us {
                of.ways_ns.push(way_ns(sleeps_us)?);
            }
        }
        lines_ns.push(line()?);
    }
    let noise = meter.stop().noise();
    let mut rows = Vec::new();
    for ((check, of), modelled) in CHECKS.iter().zip(&measured).zip(modelled) {
        let effects = || -> anyhow::Result<Vec<Effect>> {
            let mut effects = Vec::new();
            if let Some(sleeps_us) = check.sleeps_us {
                let way = median(&of.ways_ns);
                let own = profile.wake_ups.way_ns(sleeps_us * 1000);
                let own = own.unwrap_or(profile.costs.ns(Cost::InterruptWay));
                tell(&format!("modelling {} with other wake-ups", check.name));
                let mut other = profile.clone();
                other.costs.set(Cost::InterruptWay, way);
                other.wake_ups = WakeUps::default();
                effects.push(Effect {
                    what: format!(
                        "a core that had slept for {sleeps_us} us woke in {way:.0} ns while the cards \
                         ran, and in {own} ns when the profile was measured"
                    ),
                    modelled: model(check, other)?,
                });
            }
            effects.push(of.preemption(modelled, check.is_rate()));
            if check.is_rate() {
                effects.push(moved_lines(modelled, median(&of.values), median(&lines_ns)));
            }
            Ok(effects)
        };
        let (ratio, mut verdict, mut why) = judge(modelled, &of.values, effects)?;
        if let (Verdict::NotExplained, Some(noise)) = (verdict, &noise) {
            // What others did may be more than any effect of the card.
            verdict = Verdict::NotDecided;
            why.push(noise.clone());
        }
        rows.push(Row {
            name: check.name,
            unit: check.unit,
            measured: median(&of.values),
            modelled,
            ratio,
            allowed: 1.0 + NEAR,
            verdict,
            why,
        });
    }
    Ok(Checked { rows, noise })
}

impl Measured {
    /// Counts the preemptions of the card's cores.
    fn note(&mut self, window: &Window) {
        let report = &window.report;
        let card = report.borrowed_core.taken_away.iter().map(|of| (of.times, of.total_ns));
        let targets = report.target_cores.iter().filter_map(|core| core.taken_away.as_ref());
        let all = card.chain(targets.map(|of| (of.times, of.total_ns)));
        // A packet needs both cores: the core that was preempted longer decides.
        if let Some((times, total_ns)) = all.max_by_key(|(_, total_ns)| *total_ns) {
            self.preemptions += times;
            self.preempted_ns += total_ns as f64;
        }
        self.ran_ns += report.duration_s * 1e9;
    }

    /// While one of its cores is away, a card delivers nothing. If that is most of the time, the
    /// median packet waits for half of an absence.
    fn preemption(&self, modelled: f64, is_rate: bool) -> Effect {
        let share = (self.preempted_ns / self.ran_ns).min(1.0);
        let (times, percent) = (self.preemptions, share * 100.0);
        let waits_ns = match share > 0.5 {
            true => self.preempted_ns / times.max(1) as f64 / 2.0,
            false => 0.0,
        };
        Effect {
            what: format!(
                "a core of the card was preempted {times} times, for {percent:.1} % of the time"
            ),
            modelled: if is_rate { modelled * (1.0 - share) } else { modelled + waits_ns },
        }
    }
}

/// Both halves of a card were timed on one core: between two, lines move.
fn moved_lines(modelled: f64, measured: f64, line_ns: f64) -> Effect {
    let gap_ns = 1e9 / measured - 1e9 / modelled;
    let lines = (gap_ns / line_ns).clamp(0.0, LINES);
    Effect {
        what: format!(
            "a packet takes {gap_ns:.0} ns longer than its parts; a line of memory moves from core to \
             core in {line_ns:.0} ns, and up to {LINES:.0} lines move for a packet"
        ),
        modelled: 1e9 / (1e9 / modelled + lines * line_ns),
    }
}

/// Runs on the timed core, with the number of the other.
fn on_core(
    body: impl FnOnce(usize) -> anyhow::Result<f64> + Send + 'static,
) -> anyhow::Result<f64> {
    let (core, other) = two_cores(&picnic_machine::topology::cores())?;
    let timing = spawn_pinned("calibrate".into(), core, move || body(other))?;
    timing.join().map_err(|_| anyhow!("the timing thread panicked"))?.0
}

/// Nanoseconds that another core needs to wake after so long a sleep.
fn way_ns(sleeps_us: u64) -> anyhow::Result<f64> {
    on_core(move |other| {
        let mut wakes = Wakes::new(other)?;
        let slept = Duration::from_micros(sleeps_us);
        let ways: Vec<f64> = (0..SAMPLES).map(|_| wakes.way_ns(slept) as f64).collect();
        Ok(median(&ways))
    })
}

fn line() -> anyhow::Result<f64> {
    on_core(|other| line_ns(other, SAMPLES))
}

#[cfg(test)]
mod tests {
    use super::super::tests::costs;
    use super::super::{HERE, text};
    use super::*;

    /// The behaviour of a machine with these costs is arithmetic, and the model must agree.
    #[test]
    fn modelled_cards_take_the_time_of_their_costs() {
        let text = text("x", 2, "x", &costs(64.0, 100.0, 11_000.0));
        let profile = Profile::parse(HERE, "here.toml", &text).unwrap();
        let registries = picnic_sim::on_machine(picnic_host::registries(), profile);
        let of = |name: &str| {
            let check = CHECKS.iter().find(|check| check.name.starts_with(name)).unwrap();
            let file = picnic_host::sections().parse(&check.text(), None).unwrap();
            let running = Launch::new(&file, registries).start_alone().unwrap();
            let time = Duration::from_millis(20);
            (check.read)(&Window::of(running, time, time).unwrap()).unwrap()
        };
        for (name, wanted) in [
            // It has slept for longer than 20 us.
            ("doorbell", 22_000.0 + 164.0),
            ("latency at 20,", 22_000.0 + 164.0),
            // 64 packets in a turn: 101 ns each.
            ("dispatch", 1e9 / 101.0),
            ("overload", 1e9 / 4020.0),
        ] {
            let found = of(name);
            assert!((found / wanted - 1.0).abs() < 0.05, "{name}: {found} of {wanted}");
        }
    }

    fn around(middle: f64, noise: f64) -> Vec<f64> {
        (0..ROUNDS).map(|n| middle * (1.0 + noise * (n as f64 - 5.0) / 5.0)).collect()
    }

    #[test]
    fn noise_is_not_explained_as_an_effect() {
        let never = || -> anyhow::Result<Vec<Effect>> { panic!("no effect is needed") };
        let of = |measured: &[f64]| judge(100.0, measured, never).unwrap();
        assert_eq!(of(&around(105.0, 0.02)).1, Verdict::Holds);
        // Far away, but so wide that the model may hold.
        let (ratio, verdict, why) = of(&around(125.0, 0.6));
        assert!(ratio.half_width() > 0.1, "{ratio:?}");
        assert_eq!(verdict, Verdict::NotDecided);
        assert!(why[0].starts_with("spread "), "{why:?}");
        assert_eq!(of(&around(120.0, 0.05)).1, Verdict::NotDecided);
        assert!(judge(100.0, &[0.0; ROUNDS], never).is_err());
    }

    #[test]
    fn a_difference_is_explained_by_an_effect_that_is_as_large() {
        let effect = |what: &str, modelled| Effect { what: what.into(), modelled };
        let small = || Ok(vec![effect("8 preemptions", 120.0)]);
        let (_, verdict, why) = judge(100.0, &around(200.0, 0.02), small).unwrap();
        assert_eq!(verdict, Verdict::NotExplained);
        assert!(why[0].starts_with("8 preemptions: with that, the ratio is 0.60"), "{why:?}");
        let both = || Ok(vec![effect("a", 120.0), effect("wakes in 190 ns", 190.0)]);
        let (_, verdict, why) = judge(100.0, &around(200.0, 0.02), both).unwrap();
        assert_eq!((verdict, why.len()), (Verdict::Explained, 2));
    }

    #[test]
    fn effects_change_modelled_figures_by_their_numbers() {
        let of =
            Measured { preemptions: 3, preempted_ns: 2.5e8, ran_ns: 1e9, ..Measured::default() };
        let preempted = of.preemption(1000.0, true);
        assert_eq!(preempted.modelled, 750.0);
        assert_eq!(of.preemption(1000.0, false).modelled, 1000.0);
        let mostly = Measured { preempted_ns: 6e8, ..of };
        assert_eq!(mostly.preemption(1000.0, false).modelled, 1000.0 + 1e8);
        assert!(preempted.what.contains("3 times, for 25.0 %"), "{}", preempted.what);
        // 20 ns longer: less than a line. 1000 ns longer: more than four.
        let gap = |measured_ns: f64| moved_lines(1e9 / 100.0, 1e9 / measured_ns, 50.0).modelled;
        assert!((gap(120.0) - 1e9 / 120.0).abs() < 1.0);
        assert!((gap(1100.0) - 1e9 / 300.0).abs() < 1.0);
        assert!((gap(80.0) - 1e9 / 100.0).abs() < 1.0, "lines make nothing faster");
    }
}
