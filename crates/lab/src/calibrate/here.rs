//! This machine as a profile, and a comparison of the model with measurements on it.
//!
//! Costs are medians of timed parts of a card. The model takes these costs and runs the same cards
//! as this machine. No cost comes from a card's figure, so each figure is a prediction.
//!
//! Guarantee: the profile contains only the costs of the card and its doorbells. A host's stack,
//! sockets, locks and cache lines cost nothing in it.

use super::doorbell::{Wakes, sleepers};
use super::path::{PACKETS, PathCard, PathTurns, Side};
use super::probe::{Thread, date};
use crate::facts::facts;
use crate::meter::Meter;
use crate::window::Window;
use anyhow::{Context, anyhow};
use picnic_control::{Launch, Registries};
use picnic_core::config::Sections;
use picnic_machine::threads::spawn_pinned;
use picnic_sim::machine::{Cost, Profile};
use picnic_wcet::calibrate::{CalibrationSettings, Kernel, measure};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The name of the profile of this machine.
pub const HERE: &str = "here";
/// Largest ratio of a modelled and a measured figure at which the model holds.
const NEAR: f64 = 0.2;
/// Runs of each card; the median counts.
const RUNS: usize = 3;

/// Where the profile of this machine is kept: `picnic/here.toml` in `$XDG_DATA_HOME`, or in
/// `~/.local/share`; none without a home.
pub fn place() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = of("XDG_DATA_HOME").or_else(|| Some(of("HOME")?.join(".local/share")))?;
    Some(data.join("picnic/here.toml"))
}

/// A profile by name: those of the program, and this machine's once it has been measured.
///
/// # Errors
/// No profile has this name, this machine was not measured, or its file is wrong.
pub fn profile(name: &str) -> Result<Profile, String> {
    if name != HERE {
        return Profile::named(name).map_err(|error| error.to_string());
    }
    let path = place().ok_or("found here, and no $HOME that its file could be in")?;
    let file = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("found here, but this machine was not measured ({file}: {error}), try: picnic lab calibrate")
    })?;
    Profile::parse(HERE, &file, &text).map_err(|error| error.to_string())
}

/// The measured costs: each with its value in nanoseconds and what was timed.
type Costs = Vec<(Cost, f64, &'static str)>;

/// Measures this machine; the text of its profile. `samples` of each part are timed.
///
/// # Errors
/// There is no second core, or a core was never left alone.
pub fn measure_here(
    samples: usize,
    registries: Registries,
    sections: &Sections,
    revision: &str,
) -> anyhow::Result<String> {
    let cores = picnic_machine::topology::cores();
    let core = cores.last().copied().unwrap_or(0);
    let others = sleepers(core, &cores);
    let other = *others.first().context("a card needs two cores, and this process has one")?;
    let card = PathCard { registries, sections: sections.clone() };
    let measuring = spawn_pinned("calibrate".into(), core, move || costs(samples, other, &card))?;
    let (found, warning) =
        measuring.join().map_err(|_| anyhow!("the measuring thread panicked"))?;
    let facts = facts(revision);
    let about = format!("{}, Linux {}, {}", facts.processor, facts.kernel, date());
    let how = format!(
        "median of {samples} on core {core}{}",
        warning.map_or(String::new(), |why| format!("; {why}"))
    );
    Ok(text(&about, cores.last().map_or(1, |last| last + 1), &how, &found?))
}

fn costs(samples: usize, other: usize, card: &PathCard) -> anyhow::Result<Costs> {
    let mut probe = Thread::start();
    let settings = CalibrationSettings { samples, percentile: 50.0, ..Default::default() };
    let mut median = |kernel: &mut dyn Kernel| -> anyhow::Result<f64> {
        Ok(measure(kernel, &settings, &mut probe)?.median_ps as f64 / 1000.0)
    };
    let turn = median(&mut PathTurns::new(card, Side::Idle)?)?;
    let packet = median(&mut PathTurns::new(card, Side::Card)?)?;
    let receive = median(&mut PathTurns::new(card, Side::Target)?)?;
    let empty = median(&mut PathTurns::new(card, Side::Empty)?)?;
    let mut wakes = Wakes::new(other)?;
    let settings = CalibrationSettings { samples: samples.div_ceil(10), ..settings };
    let mut clock = wakes.clock(&mut probe);
    let send = measure(&mut wakes, &settings, &mut clock)?.median_ps as f64 / 1000.0;
    let mut ways: Vec<u64> = (0..settings.samples).map(|_| wakes.way_ns()).collect();
    ways.sort_unstable();
    let way = ways.get(ways.len() / 2).copied().unwrap_or(0) as f64;
    Ok(vec![
        (Cost::CardTurn, turn, "a turn of the card without packets"),
        // A turn with a burst is a turn and its packets.
        (Cost::CardPacket, packet - turn / PACKETS as f64, "a burst received, with rss"),
        (Cost::DriverReceive, receive, "a burst taken off a target ring"),
        (Cost::DriverDone, empty, "a look at an empty target ring"),
        (Cost::InterruptSend, send, "a futex wake of a core that sleeps"),
        (Cost::InterruptWay, way, "from before that wake until the other core runs"),
    ])
}

fn text(about: &str, cores: usize, how: &str, costs: &Costs) -> String {
    let cores: Vec<_> = (0..cores).collect();
    let quoted = |text: &str| text.replace(['"', '\\'], "'");
    let mut text = format!(
        "help = \"this machine: {}\"\n\n# Which cores share what is left out: lines of memory cost \
         nothing here.\n[topology]\npackages = [[{cores:?}]]\n\n[costs]\n",
        quoted(about)
    );
    for (cost, ns, from) in costs {
        let _ = writeln!(
            text,
            "{} = {{ value = {:.2}, unit = \"ns\", source = \"measured\", from = \"{from}; {}\" }}",
            cost.key(),
            ns.max(0.0),
            quoted(how)
        );
    }
    text + "chunk_ns = { value = 20_000, unit = \"ns\", source = \"assumed\", from = \"as fine as the answer needs\" }\n"
}

/// A card's figure, measured and modelled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The question.
    pub name: &'static str,
    /// In nanoseconds, or packets per second.
    pub unit: &'static str,
    /// The median of three runs here.
    pub measured: f64,
    /// The lowest and the highest run.
    pub spread: [f64; 2],
    /// The model's figure.
    pub modelled: f64,
    /// Modelled divided by measured.
    pub ratio: f64,
    /// From the quotient's reciprocal to it, the model holds.
    pub allowed: f64,
    /// Whether it does.
    pub holds: bool,
    /// What the model omits, if it does not hold.
    pub why: Option<&'static str>,
}

/// A card to run here and in the model.
struct Check {
    name: &'static str,
    unit: &'static str,
    card: &'static str,
    read: fn(&Window) -> Option<f64>,
    why: &'static str,
}

impl Check {
    /// The card file.
    fn text(&self) -> String {
        let host = if self.card.contains("[host]\n") { "" } else { "[host]\n" };
        let text = format!("{}{host}", self.card).replace("[host]\n", "[host]\nqueues = 1\n");
        format!("[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\n{text}")
    }
}

fn latency(window: &Window) -> Option<f64> {
    window.report.latency_ns.p50.map(|ns| ns as f64)
}

fn delivered(window: &Window) -> Option<f64> {
    Some(window.rate(window.delivered))
}

const CHECKS: &[Check] = &[
    Check {
        name: "doorbell to target routine, 2,000 packets/s",
        unit: "ns",
        card: "rate_pps = 2000\n[interrupt]\nrx_usecs = 0\npoll_usecs = 0\n",
        read: latency,
        why: "a wake-up takes longer the deeper the core sleeps; the cost was timed with short sleeps",
    },
    Check {
        name: "latency at 20,000 packets/s",
        unit: "ns",
        card: "rate_pps = 20000\n[interrupt]\nrx_usecs = 0\npoll_usecs = 0\n",
        read: latency,
        why: "a wake-up takes longer the deeper the core sleeps; the cost was timed with short sleeps",
    },
    Check {
        name: "latency at 200,000 packets/s, moderated to 20 us",
        unit: "ns",
        card: "rate_pps = 200000\n[interrupt]\nrx_usecs = 20\npoll_usecs = 0\n",
        read: latency,
        why: "a core that sleeps for microseconds only is woken faster or slower than one at rest",
    },
    Check {
        name: "dispatch at full speed",
        unit: "packets/s",
        card: "[[rx]]\nfunction = \"rss\"\n[interrupt]\npoll_usecs = 1000\n",
        read: delivered,
        why: "lines of memory that move between the cores: both halves were timed on one",
    },
    Check {
        name: "overload: 500,000 packets/s offered, 4 us each",
        unit: "packets/s",
        card: "rate_pps = 500000\n[host]\ncost_ns = 4000\n",
        read: delivered,
        why: "time that the target core gives to others",
    },
];

/// Runs each card here and in the model of `profile`, and calls `tell` for each. Also returns a
/// warning if other programs disturbed the measurements.
///
/// # Errors
/// A card cannot be run, or this process was told to stop.
pub fn check(
    profile: &Profile,
    registries: Registries,
    sections: &Sections,
    seconds: f64,
    mut tell: impl FnMut(&str),
) -> anyhow::Result<(Vec<Row>, Option<String>)> {
    let modelled = picnic_sim::on_machine(registries, profile.clone());
    let meter = Meter::start();
    let mut rows = Vec::new();
    for check in CHECKS {
        tell(check.name);
        let file = sections.parse(&check.text(), None)?;
        let run = |registries, seconds: f64| -> anyhow::Result<f64> {
            let running = Launch::new(&file, registries).start_alone()?;
            let time = Duration::from_secs_f64(seconds);
            let window = Window::of(running, time / 4, time)?;
            (check.read)(&window).context("no packet was delivered")
        };
        let mut measured = Vec::new();
        for _ in 0..RUNS {
            measured.push(run(registries, seconds)?);
        }
        measured.sort_by(f64::total_cmp);
        // Virtual time is slow at millions of packets per second, and has no noise.
        let said = run(modelled, seconds.min(0.05))?;
        let (found, ratio) = (measured[RUNS / 2], said / measured[RUNS / 2]);
        let holds = ratio.max(1.0 / ratio) <= 1.0 + NEAR;
        rows.push(Row {
            name: check.name,
            unit: check.unit,
            measured: found,
            spread: [measured[0], measured[RUNS - 1]],
            modelled: said,
            ratio,
            allowed: 1.0 + NEAR,
            holds,
            why: (!holds).then_some(check.why),
        });
    }
    Ok((rows, meter.stop().noise()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(turn: f64, packet: f64, way: f64) -> Costs {
        vec![
            (Cost::CardTurn, turn, "a turn"),
            (Cost::CardPacket, packet, "a packet"),
            (Cost::DriverReceive, 20.0, "a burst"),
            (Cost::DriverDone, 30.0, "an empty look"),
            (Cost::InterruptSend, 3_000.0, "a wake"),
            (Cost::InterruptWay, way, "a way"),
        ]
    }

    #[test]
    fn the_text_of_a_measured_machine_is_a_profile_with_its_sources() {
        let text = text("a \"CPU\", Linux 6", 2, "median of 9", &costs(61.25, 40.5, 11_000.0));
        let profile = Profile::parse(HERE, "here.toml", &text).unwrap();
        assert_eq!((profile.cores(), profile.costs.get(Cost::CardTurn)), (2, 61.25));
        assert!(profile.help.contains("a 'CPU', Linux 6"), "{}", profile.help);
        let measured = profile.figures.iter().filter(|figure| figure.source.name() == "measured");
        assert_eq!(measured.count(), 6);
    }

    /// Arithmetic gives the figures of a machine with these costs; the model must agree.
    #[test]
    fn modelled_cards_take_what_the_costs_say() {
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
            ("doorbell", 11_000.0 + 164.0),
            ("latency at 20", 11_000.0 + 164.0),
            // 64 packets in a turn: 101 ns each.
            ("dispatch", 1e9 / 101.0),
            ("overload", 1e9 / 4020.0),
        ] {
            let found = of(name);
            assert!((found / wanted - 1.0).abs() < 0.05, "{name}: {found} of {wanted}");
        }
    }

    #[test]
    fn a_machine_that_was_not_measured_says_how() {
        assert!(profile("x5355").is_ok());
        assert!(profile("netbrust").unwrap_err().contains("netburst"));
        if place().is_some_and(|path| path.exists()) {
            return;
        }
        assert!(profile(HERE).unwrap_err().contains("here"));
    }
}
