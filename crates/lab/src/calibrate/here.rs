//! This machine as a profile.
//!
//! Costs are medians of timed parts of a card. [`check`] runs cards on this machine and in its model.
//!
//! Guarantee: the profile contains only the costs of the card and its doorbells. A host's stack,
//! sockets, locks and cache lines cost nothing in it.

use super::doorbell::{Wakes, sleepers};
use super::path::{PACKETS, PathCard, PathTurns, Side};
use super::probe::{Thread, date};
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
    let mut ways: Vec<u64> = (0..settings.samples).map(|_| wakes.way_ns(Duration::ZERO)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn costs(turn: f64, packet: f64, way: f64) -> Costs {
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
