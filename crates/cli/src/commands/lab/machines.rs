//! `picnic lab profiles|calibrate|fit`: modelled machines, this one among them, and predictions.

use super::progress::Progress;
use super::{FitArgs, REVISION};
use crate::failure::Usage;
use crate::output::{self, Column};
use crate::registries::{registries, sections};
use anyhow::Context;
use picnic_lab::calibrate::here::{self, Checked, HERE};
use picnic_lab::experiment::Effort;
use picnic_lab::fit::{Fit, Testbed};
use picnic_lab::registry::papers;
use picnic_machine::signals;
use picnic_papers::testbeds::testbed;
use picnic_sim::machine::{PROFILES, Profile};
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn named(name: &str) -> anyhow::Result<Profile> {
    here::profile(name).map_err(|error| Usage(error).into())
}

/// Whether a paper measured this experiment on this machine.
pub(super) fn is_of(profile: &Profile, experiment: &str) -> bool {
    let row = papers().find(|row| row.name == experiment);
    row.and_then(|row| row.machine).is_some_and(|machine| machine.profile == profile.name)
}

/// All machines, or one with its figures.
pub(super) fn profiles(name: Option<&str>, json: bool) -> anyhow::Result<()> {
    let Some(name) = name else { return list(json) };
    let profile = named(name)?;
    if json {
        return output::print_json(&json!({
            "name": profile.name, "help": profile.help, "packages": profile.packages,
            "figures": figures(&profile),
        }));
    }
    let rows = profile.figures.iter().map(|figure| {
        let from = match &figure.point {
            Some(point) => format!("{point}: \"{}\"", figure.from),
            None => figure.from.clone(),
        };
        let value = format!("{} {}", figure.value, figure.unit).trim_end().to_owned();
        vec![figure.key.clone(), value, figure.source.name().into(), from]
    });
    let columns = ["figure", "value", "source", "from"].map(Column::Text);
    let table = output::table(&columns, rows.collect::<Vec<_>>());
    output::print(&format!(
        "{}: {}\n{} cores: {:?}\n\n{table}",
        profile.name,
        profile.help,
        profile.cores(),
        profile.packages
    ))
}

fn figures(profile: &Profile) -> Vec<Value> {
    let figures = profile.figures.iter().map(|figure| {
        json!({
            "key": figure.key, "value": figure.value, "unit": figure.unit,
            "source": figure.source.name(), "from": figure.from, "point": figure.point,
        })
    });
    figures.collect()
}

fn list(json: bool) -> anyhow::Result<()> {
    let mut all =
        PROFILES.iter().map(|(name, _)| named(name)).collect::<anyhow::Result<Vec<_>>>()?;
    // This machine has no profile until it is measured.
    all.extend(here::profile(HERE).ok());
    if json {
        let all: Vec<_> = all.iter().map(|p| json!({ "name": p.name, "help": p.help })).collect();
        return output::print_json(&json!({ "profiles": all }));
    }
    let rows = all.iter().map(|profile| vec![profile.name.clone(), profile.help.clone()]);
    let table = output::table(&output::columns("name|help"), rows.collect::<Vec<_>>());
    output::print(&(table + "\n`picnic lab profiles NAME` shows the figures of one.\n"))
}

/// Measures this machine, writes its profile, and runs cards here and in the model of it.
pub(super) fn calibrate(output: Option<&Path>, quick: bool, json: bool) -> anyhow::Result<()> {
    let path = output.map(Path::to_owned).or_else(here::place).ok_or_else(|| {
        Usage("--output: missing, and $HOME, the default place, is not set".into())
    })?;
    signals::stop_flag()?;
    if cfg!(debug_assertions) {
        output::tell("warning: this binary is a debug build; a release build has other costs");
    }
    let (samples, seconds) = if quick { (500, 0.05) } else { (20_000, 0.5) };
    let text = here::measure_here(samples, registries(), &sections(), REVISION)?;
    let cannot = || format!("{}: cannot write", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(cannot)?;
    }
    std::fs::write(&path, &text).with_context(cannot)?;
    let profile = Profile::parse(HERE, &path.display().to_string(), &text)?;
    let tell = |what: &str| output::tell(what);
    let found = here::check(&profile, registries(), &sections(), seconds, tell);
    let found = found.map_err(|error| match error.is::<signals::Interrupted>() {
        true => anyhow::anyhow!("interrupted; the profile is in {}", path.display()),
        false => error,
    })?;
    if json {
        return output::print_json(&json!({
            "profile": path, "help": profile.help, "figures": figures(&profile),
            "checks": found.rows, "noise": found.noise,
        }));
    }
    output::print(&checked(&profile, &path, &found))
}

fn checked(profile: &Profile, path: &Path, found: &Checked) -> String {
    let columns = [
        Column::Text("card"),
        Column::Number("measured"),
        Column::Number("modelled"),
        Column::Number("ratio"),
        Column::Number("95 %"),
        Column::Text("within 1.2x"),
    ];
    let number = |value: f64| output::count(value.round() as u64);
    let lines = found.rows.iter().map(|row| {
        vec![
            format!("{}, {}", row.name, row.unit),
            number(row.measured),
            number(row.modelled),
            format!("{:.2}", row.ratio.ratio),
            format!("{:.2} to {:.2}", row.ratio.low, row.ratio.high),
            row.verdict.text().into(),
        ]
    });
    let mut text =
        format!("{}\n\n", profile.help) + &output::table(&columns, lines.collect::<Vec<_>>());
    for row in &found.rows {
        for why in &row.why {
            text += &format!("\n{}: {why}", row.name);
        }
    }
    if let Some(noise) = &found.noise {
        text += &format!("\nother work disturbed the machine: {noise}");
    }
    text + &format!("\nwritten to {}; `picnic run --world sim --profile here`\n", path.display())
}

/// Fits and predicts these machines, or all.
pub(super) fn fit(args: &FitArgs, json: bool) -> anyhow::Result<()> {
    let all = PROFILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let names = if args.names.is_empty() { all } else { args.names.clone() };
    let testbeds = names.iter().map(|name| {
        named(name)?;
        Ok(testbed(name)?)
    });
    let testbeds: Vec<Testbed> = testbeds.collect::<anyhow::Result<_>>()?;
    let effort = if args.quick { Effort::Quick } else { Effort::Usual };
    signals::stop_flag()?;
    let progress = Progress::new();
    let mut fits = Vec::new();
    for (place, testbed) in testbeds.iter().enumerate() {
        let name = &testbed.profile.name;
        let mut watch = |share: f64, what: &str| {
            let share = (place as f64 + share) / testbeds.len() as f64;
            progress.tell(share, &format!("{name}: {what}"));
        };
        let fit = testbed.predict(None, effort, &mut watch);
        fits.push(fit.map_err(|why| anyhow::anyhow!("{name}: {why}"))?);
    }
    drop(progress);
    match (&fits[..], json) {
        ([fit], true) => output::print_json(fit),
        (fits, true) => output::print_json(&json!({ "fits": fits })),
        (fits, false) if args.markdown => {
            output::print(&fits.iter().map(markdown_of).collect::<Vec<_>>().join("\n"))
        }
        (fits, false) => output::print(&fits.iter().map(text_of).collect::<Vec<_>>().join("\n")),
    }
}

fn text_of(fit: &Fit) -> String {
    let rows = fit.fitted.iter().map(|fitted| {
        let [cost, paper, ours] = fitted.texts();
        vec![cost, fitted.point.clone(), paper, ours]
    });
    let columns = ["cost", "fitted to", "paper", "modelled"].map(Column::Text);
    let mut text = format!("{}, fitted:\n", fit.profile);
    text += &output::table(&columns, rows.collect::<Vec<_>>());
    let rows = fit.predictions.iter().map(|prediction| {
        let [paper, ours, formula, finding] = prediction.texts();
        vec![prediction.name.clone(), paper, ours, formula, finding]
    });
    let columns = ["figure", "paper", "predicted", "formula", "verdict"].map(Column::Text);
    text += "\npredicted, with all assumed costs at +-25 % and the fit repeated:\n";
    text += &output::table(&columns, rows.collect::<Vec<_>>());
    for prediction in &fit.predictions {
        for line in &prediction.depends_on {
            text += &format!("\n{}: {line}", prediction.name);
        }
    }
    text + "\n"
}

/// One table: fit points first.
fn markdown_of(fit: &Fit) -> String {
    let mut text = format!(
        "| `{}` | paper | modelled | formula | verdict |\n|---|--:|--:|--:|---|\n",
        fit.profile
    );
    for fitted in &fit.fitted {
        let ([cost, paper, ours], point) = (fitted.texts(), &fitted.point);
        text += &format!("| {point} | {paper} | {ours} | | fitted: `{cost}` |\n");
    }
    for prediction in &fit.predictions {
        let [paper, ours, formula, finding] = prediction.texts();
        let name = &prediction.name;
        let formula = formula.trim_matches('–');
        text += &format!("| {name} | {paper} | {ours} | {formula} | {finding} |\n");
    }
    text
}
