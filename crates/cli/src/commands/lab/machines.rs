//! `picnic lab profiles` and `picnic lab fit`: modelled machines, and predictions for them.

use super::FitArgs;
use super::progress::Progress;
use crate::failure::Usage;
use crate::output::{self, Column};
use picnic_lab::experiment::Effort;
use picnic_lab::fit::{Fit, Testbed};
use picnic_lab::registry::papers;
use picnic_machine::signals;
use picnic_papers::testbeds::testbed;
use picnic_sim::machine::{PROFILES, Profile};
use serde_json::json;

pub(super) fn named(name: &str) -> anyhow::Result<Profile> {
    Profile::named(name).map_err(|error| Usage(error.to_string()).into())
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
        let figures = profile.figures.iter().map(|figure| {
            json!({
                "key": figure.key, "value": figure.value, "unit": figure.unit,
                "source": figure.source.name(), "from": figure.from, "point": figure.point,
            })
        });
        return output::print_json(&json!({
            "name": profile.name, "help": profile.help, "packages": profile.packages,
            "figures": figures.collect::<Vec<_>>(),
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

fn list(json: bool) -> anyhow::Result<()> {
    let all = PROFILES.iter().map(|(name, _)| named(name)).collect::<anyhow::Result<Vec<_>>>()?;
    if json {
        let all: Vec<_> = all.iter().map(|p| json!({ "name": p.name, "help": p.help })).collect();
        return output::print_json(&json!({ "profiles": all }));
    }
    let rows = all.iter().map(|profile| vec![profile.name.clone(), profile.help.clone()]);
    let table = output::table(&output::columns("name|help"), rows.collect::<Vec<_>>());
    output::print(&(table + "\n`picnic lab profiles NAME` shows the figures of one.\n"))
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
