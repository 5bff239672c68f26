//! The cost profile of this machine: measured when the first card with NIC OS starts, then kept.
//!
//! It is in the user's cache folder, by kind of build. A profile of another processor or kernel
//! is measured anew. If the machine is too busy to measure, or the profile cannot be kept, the
//! built-in profile applies, and the run says so, as does any card whose tasks are admitted under
//! costs that were measured on no machine.

use crate::commands::lab::REVISION;
use crate::failure::Hinted;
use crate::registries::{registries, sections};
use anyhow::{Context, bail};
use picnic_control::Launch;
use picnic_core::config::{CardFile, Setting};
use picnic_lab::calibrate::calibrate;
use picnic_lab::facts::facts;
use picnic_wcet::calibrate::CalibrationSettings;
use picnic_wcet::{CostProfile, Machine};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Whether to bound a card's tasks under the profile of this machine: the card has NIC OS on a
/// real core, and its file names no profile.
pub(crate) fn is_wanted(card: &CardFile) -> bool {
    let os = picnic_os::config::asked_for(card);
    card.card.engine != "kernel" && os.is_some_and(|os| os.cost_profile().is_none())
}

/// The setting that names the kept profile; none if this machine has none.
pub(crate) fn kept() -> Option<Setting> {
    let path = place(|name| std::env::var_os(name))?;
    let profile = CostProfile::load(&path).ok()?;
    is_of(profile.machine.as_ref()?, &this_machine()).then(|| setting(&path))?
}

/// The same; a missing profile is measured and kept, in one or two seconds. The text is for the
/// user, once the card has started.
pub(crate) fn kept_or_measured() -> (Option<Setting>, Option<String>) {
    if let Some(setting) = kept() {
        return (Some(setting), None);
    }
    match measure() {
        Ok((path, seconds)) => {
            let text = format!(
                "picnic: measured the cost of code and packets on this machine, for the admission \
                 of tasks ({seconds:.1} s, once): {}",
                path.display()
            );
            (setting(&path), Some(text))
        }
        Err(why) => {
            let text = format!(
                "picnic: the cost of code and packets on this machine could not be measured: {why:#}"
            );
            (None, Some(text))
        }
    }
}

/// The refusal of a card; if only its kept costs refuse it, with the command that measures this machine
/// again: other programs may have had the cores when it was measured. `built_in` is the card under the
/// built-in costs.
pub(crate) fn hinted(refusal: anyhow::Error, built_in: Option<&Launch<'_>>) -> anyhow::Error {
    let is_admitted = built_in.is_some_and(|card| card.check().is_ok());
    let path = place(|name| std::env::var_os(name)).filter(|_| is_admitted);
    let Some(path) = path else { return refusal };
    let path = path.display();
    let hint =
        format!("try, while no other program is busy: picnic wcet calibrate --output {path}");
    Hinted { error: refusal, hint }.into()
}

fn measure() -> anyhow::Result<(PathBuf, f64)> {
    let path = place(|name| std::env::var_os(name)).context("found no $XDG_CACHE_HOME or $HOME")?;
    let about = || format!("{}: cannot write", path.display());
    // First: what cannot be kept would be measured at each start.
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(about)?;
    let start = Instant::now();
    let settings = CalibrationSettings::default();
    let found = calibrate(&settings, None, registries(), &sections(), REVISION)
        .map_err(|error| error.into_cause())?;
    // Nothing is kept: at a later start, the core may be less busy.
    if let Some(why) = found.no_doorbell.filter(|_| picnic_machine::topology::cores().len() > 1) {
        bail!(why);
    }
    // Two starts may measure at the same time: either file is whole.
    let own = path.with_extension(format!("{}", std::process::id()));
    std::fs::write(&own, found.profile.to_toml()).with_context(about)?;
    std::fs::rename(&own, &path).with_context(about)?;
    Ok((path, start.elapsed().as_secs_f64()))
}

const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// Where the profile stands, for a user with these variables.
fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("picnic").join(format!("costs-{BUILD}.toml")))
}

fn this_machine() -> Machine {
    let facts = facts(REVISION);
    let (cpu, kernel, build) = (facts.processor, facts.kernel, BUILD.into());
    Machine { cpu, kernel, build, date: String::new() }
}

/// Whether a profile's costs are this machine's, whenever they were measured.
fn is_of(measured: &Machine, here: &Machine) -> bool {
    Machine { date: String::new(), ..measured.clone() } == *here
}

fn setting(path: &Path) -> Option<Setting> {
    Some(Setting::text("os.cost_profile", path.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_in_the_cache_folder() {
        let file = format!("picnic/costs-{BUILD}.toml");
        for (cache, home, expected) in [
            (Some("/c"), Some("/h"), Some(format!("/c/{file}"))),
            (Some("relative"), Some("/h"), Some(format!("/h/.cache/{file}"))),
            (None, Some("/h"), Some(format!("/h/.cache/{file}"))),
            (Some(""), None, None),
            (None, Some("relative"), None),
        ] {
            let found = place(|name| {
                let value = if name == "HOME" { home } else { cache };
                value.map(OsString::from)
            });
            assert_eq!(found, expected.map(PathBuf::from), "{cache:?} {home:?}");
        }
    }

    #[test]
    fn a_profile_holds_for_its_processor_kernel_and_build() {
        let here = this_machine();
        let then = Machine { date: "2025-01-31".into(), ..here.clone() };
        assert!(is_of(&then, &here));
        for other in [
            Machine { cpu: "another".into(), ..then.clone() },
            Machine { kernel: "another".into(), ..then.clone() },
            Machine { build: "another".into(), ..then },
        ] {
            assert!(!is_of(&other, &here), "{other:?}");
        }
    }

    #[test]
    fn cards_with_tasks_on_real_cores_want_it_unless_they_name_one() {
        let wanted = |text: &str| is_wanted(&sections().parse(text, None).unwrap());
        assert!(wanted("[os]\n") && wanted("[[task]]\ntask = \"heartbeat\"\n"));
        assert!(!wanted("") && !wanted("[os]\ncost_profile = \"p.toml\"\n"));
    }
}
