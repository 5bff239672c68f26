//! `picnic lab profiles` and `picnic lab fit`: modelled machines, and predictions for them.

use crate::failure::Usage;
use crate::output::{self, Column};
use picnic_core::error::not_among;
use picnic_lab::experiment::Effort;
use picnic_lab::fit::Fit;
use picnic_papers::testbeds::TESTBEDS;
use picnic_sim::machine::{PROFILES, Profile};
use serde_json::json;

fn named(name: &str) -> anyhow::Result<Profile> {
    Profile::named(name).map_err(|error| Usage(error.to_string()).into())
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

/// Fits and predicts.
pub(super) fn fit(name: &str, quick: bool, json: bool) -> anyhow::Result<()> {
    let testbed = TESTBEDS.iter().find(|testbed| testbed.profile == name).ok_or_else(|| {
        let known = TESTBEDS.iter().map(|testbed| testbed.profile);
        Usage(not_among("profile ", name, known))
    })?;
    let effort = if quick { Effort::Quick } else { Effort::Usual };
    let fit = testbed.predict(effort).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    output::show(&fit, json, || text_of(&fit))
}

fn text_of(fit: &Fit) -> String {
    let rows = fit.fitted.iter().map(|fitted| {
        let [paper, ours] = fitted.texts();
        vec![fitted.cost.into(), format!("{:.4}", fitted.value), fitted.point.into(), paper, ours]
    });
    let columns = ["cost", "fitted", "to", "paper", "modelled"].map(Column::Text);
    let mut text = format!("{}, fitted:\n", fit.profile);
    text += &output::table(&columns, rows.collect::<Vec<_>>());
    let rows = fit.predictions.iter().map(|prediction| {
        let [paper, ours, formula] = prediction.texts();
        vec![prediction.name.into(), paper, ours, formula, prediction.finding()]
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
