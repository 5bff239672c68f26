//! This machine as a profile.
//!
//! Costs are medians of timed parts of a card. [`check`] runs cards on this machine and in its model.
//!
//! Guarantee: the profile contains only the costs of the card and its doorbells. A host's stack,
//! sockets, locks and cache lines cost nothing in it.

use super::doorbell::{Wakes, sleepers};
use super::path::{PACKETS, PathCard, PathTurns, Side};
use super::probe::{Thread, date};
use crate::compare::median;
use crate::facts::facts;
use anyhow::{Context, anyhow};
use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_machine::threads::spawn_pinned;
use picnic_sim::machine::{Cost, Profile};
use picnic_wcet::calibrate::{CalibrationSettings, Kernel, measure};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

mod check;

pub use check::{Checked, Row, Verdict, check};

/// The name of the profile of this machine.
pub const HERE: &str = "here";

/// Where the profile of this machine is kept: `picnic/here.toml` in `$XDG_DATA_HOME`, or in
/// `~/.local/share`; none without a home.
pub fn place() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = of("XDG_DATA_HOME").or_else(|| Some(of("HOME")?.join(".local/share")))?;
    Some(data.join("picnic/here.toml"))
}

/// A profile by name: one of the program's, or this machine's once it has been measured.
///
/// # Errors
/// No profile has this name, this machine was not measured, or its file is wrong.
pub fn profile(name: &str) -> Result<Profile, String> {
    if name != HERE {
        return Profile::named(name).map_err(|error| error.to_string());
    }
    let path = place().ok_or("found here, but $HOME, which has its file, is not set")?;
    let file = path.display().to_string();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("found here, but this machine was not measured ({file}: {error}), try: picnic lab calibrate")
    })?;
    Profile::parse(HERE, &file, &text).map_err(|error| error.to_string())
}

/// The measured costs: each with its value in nanoseconds and a description of the timed part.
struct Costs {
    parts: Vec<(Cost, f64, &'static str)>,
    /// Ways of wake-ups, each after its sleep.
    ways: Vec<(u64, f64)>,
}

/// How long the other core sleeps before it is woken, in nanoseconds. A processor's and a
/// hypervisor's sleep become deeper within these times.
const SLEEPS_NS: [u64; 7] = [0, 5_000, 20_000, 50_000, 150_000, 500_000, 1_500_000];
/// Sleeps of one length in a row.
const IN_A_ROW: usize = 25;

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
    let (core, other) = two_cores(&cores)?;
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

/// The timed core, and a core that it wakes.
fn two_cores(cores: &[usize]) -> anyhow::Result<(usize, usize)> {
    let core = cores.last().copied().unwrap_or(0);
    let others = sleepers(core, cores);
    let other = *others.first().context("a card needs two cores, and this process has one")?;
    Ok((core, other))
}

fn costs(samples: usize, other: usize, card: &PathCard) -> anyhow::Result<Costs> {
    let mut probe = Thread::start();
    let settings = CalibrationSettings { samples, percentile: 50.0, ..Default::default() };
    let mut of = |kernel: &mut dyn Kernel| -> anyhow::Result<f64> {
        Ok(measure(kernel, &settings, &mut probe)?.median_ps as f64 / 1000.0)
    };
    let turn = of(&mut PathTurns::new(card, Side::Idle)?)?;
    let packet = of(&mut PathTurns::new(card, Side::Card)?)?;
    let receive = of(&mut PathTurns::new(card, Side::Target)?)?;
    let empty = of(&mut PathTurns::new(card, Side::Empty)?)?;
    let mut wakes = Wakes::new(other)?;
    let settings = CalibrationSettings { samples: samples.div_ceil(10), ..settings };
    let mut clock = wakes.clock(&mut probe);
    let send = measure(&mut wakes, &settings, &mut clock)?.median_ps as f64 / 1000.0;
    let ways = ways(settings.samples, &mut wakes);
    let parts = vec![
        (Cost::CardTurn, turn, "a turn of the card without packets"),
        // A turn with a burst is a turn and its packets.
        (Cost::CardPacket, packet - turn / PACKETS as f64, "a burst received, with rss"),
        (Cost::DriverReceive, receive, "a burst taken off a target ring"),
        (Cost::DriverDone, empty, "a look at an empty target ring"),
        (Cost::InterruptSend, send, "a futex wake of a core that sleeps"),
    ];
    Ok(Costs { parts, ways })
}

/// The way of a wake-up after each sleep. Sleeps of one length follow one another, as they do under a
/// steady load, since a hypervisor adapts to them; the lengths take turns, since its other guests
/// come and go.
fn ways(samples: usize, wakes: &mut Wakes) -> Vec<(u64, f64)> {
    let mut found = SLEEPS_NS.map(|_| Vec::new());
    for _ in 0..samples.div_ceil(IN_A_ROW) {
        for (ways, slept) in found.iter_mut().zip(SLEEPS_NS) {
            let way = |_| wakes.way_ns(Duration::from_nanos(slept)) as f64;
            ways.extend((0..IN_A_ROW).map(way));
        }
    }
    SLEEPS_NS.into_iter().zip(found.iter().map(|ways| median(ways))).collect()
}

/// How ways are measured.
const WAY: &str = "from before that wake until the other core runs, by the length of its sleep";

fn text(about: &str, cores: usize, how: &str, costs: &Costs) -> String {
    let cores: Vec<_> = (0..cores).collect();
    let quoted = |text: &str| text.replace(['"', '\\'], "'");
    let mut text = format!(
        "help = \"this machine: {}\"\n\n# Which cores share what is left out: lines of memory cost \
         nothing here.\n[topology]\npackages = [[{cores:?}]]\n\n[costs]\n",
        quoted(about)
    );
    let pairs: Vec<_> =
        costs.ways.iter().map(|(slept, way)| format!("[{slept}, {way:.0}]")).collect();
    let way = (Cost::InterruptWay, format!("[{}]", pairs.join(", ")), WAY);
    let parts =
        costs.parts.iter().map(|(cost, ns, from)| (*cost, format!("{:.2}", ns.max(0.0)), *from));
    for (cost, value, from) in parts.chain([way]) {
        let _ = writeln!(
            text,
            "{} = {{ value = {value}, unit = \"ns\", source = \"measured\", from = \"{from}; {}\" }}",
            cost.key(),
            quoted(how)
        );
    }
    text + "chunk_ns = { value = 20_000, unit = \"ns\", source = \"assumed\", from = \"as fine as the answer needs\" }\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn costs(turn: f64, packet: f64, way: f64) -> Costs {
        let parts = vec![
            (Cost::CardTurn, turn, "a turn"),
            (Cost::CardPacket, packet, "a packet"),
            (Cost::DriverReceive, 20.0, "a burst"),
            (Cost::DriverDone, 30.0, "an empty look"),
            (Cost::InterruptSend, 3_000.0, "a wake"),
        ];
        Costs { parts, ways: vec![(0, way), (20_000, 2.0 * way)] }
    }

    #[test]
    fn the_text_of_a_measured_machine_is_a_profile_with_its_sources() {
        let text = text("a \"CPU\", Linux 6", 2, "median of 9", &costs(61.25, 40.5, 11_000.0));
        let profile = Profile::parse(HERE, "here.toml", &text).unwrap();
        assert_eq!((profile.cores(), profile.costs.get(Cost::CardTurn)), (2, 61.25));
        assert!(profile.help.contains("a 'CPU', Linux 6"), "{}", profile.help);
        let measured = profile.figures.iter().filter(|figure| figure.source.name() == "measured");
        assert_eq!(measured.count(), 6);
        assert_eq!(profile.wake_ups.way_ns(10_000), Some(16_500));
    }

    #[test]
    fn unmeasured_machine_names_the_command() {
        assert!(profile("x5355").is_ok());
        assert!(profile("netbrust").unwrap_err().contains("netburst"));
        if place().is_some_and(|path| path.exists()) {
            return;
        }
        assert!(profile(HERE).unwrap_err().contains("here"));
    }
}
