//! `picnic wcet calibrate`: measures the cost of operations on one core of this machine.

use crate::commands::lab::{REVISION, wrong_setting};
use crate::failure::Usage;
use crate::output;
use crate::registries::{registries, sections};
use anyhow::Context as _;
use clap::Args;
use picnic_lab::calibrate::{Calibrated, Dearest, calibrate};
use picnic_lab::experiment::LabError;
use picnic_wcet::calibrate::CalibrationSettings;
use picnic_wcet::{Class, CostProfile, PathCosts};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// File to write the profile to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Core to measure on [default: the highest-numbered this process may use]
    #[arg(long)]
    core: Option<usize>,
    /// Samples of each kernel, the shortest of three runs each, 100 to 10000000
    #[arg(long, default_value_t = CalibrationSettings::default().samples)]
    samples: usize,
    /// Percentile of the samples to use, 50 to 100
    #[arg(long, default_value_t = CalibrationSettings::default().percentile)]
    percentile: f64,
    /// Factor applied to each cost, 1 to 100
    #[arg(long, default_value_t = CalibrationSettings::default().margin)]
    margin: f64,
    /// KiB that loads and stores range over, 4 to 1048576: the size of all data that tasks touch
    #[arg(long, default_value_t = CalibrationSettings::default().working_set_bytes >> 10)]
    working_set_kib: usize,
}

impl CalibrateArgs {
    fn settings(&self) -> Result<CalibrationSettings, Usage> {
        let check = |name: &str, good: bool, found: &dyn std::fmt::Display, allowed: &str| {
            let message = || format!("--{name}: found {found}, allowed: {allowed}");
            if good { Ok(()) } else { Err(Usage(message())) }
        };
        let samples = (100..=10_000_000).contains(&self.samples);
        check("samples", samples, &self.samples, "100 to 10000000")?;
        let percentile = (50.0..=100.0).contains(&self.percentile);
        check("percentile", percentile, &self.percentile, "50 to 100")?;
        check("margin", (1.0..=100.0).contains(&self.margin), &self.margin, "1 to 100")?;
        let working_set = (4..=1 << 20).contains(&self.working_set_kib);
        check("working-set-kib", working_set, &self.working_set_kib, "4 to 1048576")?;
        Ok(CalibrationSettings {
            samples: self.samples,
            percentile: self.percentile,
            margin: self.margin,
            working_set_bytes: self.working_set_kib << 10,
        })
    }
}

pub(super) fn run(args: &CalibrateArgs, json: bool) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let found = calibrate(&settings, args.core, registries(), &sections(), REVISION);
    let found = found.map_err(|error| match error {
        LabError::Setting(error) => wrong_setting(error, |key| format!("--{key}")),
        error => error.into_cause(),
    })?;
    let Calibrated { profile, dearest, no_doorbell, warning } = found;
    if let Some(warning) = &warning {
        output::tell(format_args!("warning: {warning}"));
    }
    if let Some(why) = &no_doorbell {
        output::tell(format_args!(
            "warning: the cost of a doorbell that wakes a core was not measured, and is the built-in one: {why}"
        ));
    }
    if cfg!(debug_assertions) {
        output::tell("warning: this binary is a debug build: release builds have other costs");
    }
    let text = profile.to_toml();
    if let Some(path) = &args.output {
        std::fs::write(path, &text).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    if json {
        return output::print_json(&as_json(&profile, &dearest, args, warning.as_deref()));
    }
    match &args.output {
        None => output::print(&text),
        Some(path) => output::print(&format!(
            "{}\nwritten to {}\n",
            table(&profile, &dearest),
            path.display()
        )),
    }
}

fn table(profile: &CostProfile, dearest: &Dearest) -> String {
    let columns =
        output::columns("class|#median|#percentile|#worst|#cost|#discarded|slowest kernel");
    let rows = Class::ALL.iter().map(|class| {
        let found = profile.measured.get(class).copied().unwrap_or_default();
        vec![
            class.name().into(),
            nanoseconds(found.median_ps),
            nanoseconds(found.percentile_ps),
            nanoseconds(found.worst_ps),
            nanoseconds(profile.cost_ps(*class)),
            output::count(found.discarded),
            dearest.get(class).copied().unwrap_or_default().into(),
        ]
    });
    let mut text = output::table(&columns, rows);
    if let Some(path) = profile.path {
        let PathCosts { turn_ps, packet_ps, doorbell_ps, typical_doorbell_ps } = path;
        text.push_str(&format!(
            "\npacket path with rss: {} ns per turn, {} ns per packet; {} ns per doorbell that wakes a \
             core, the longest {} ns\n",
            nanoseconds(turn_ps),
            nanoseconds(packet_ps),
            nanoseconds(typical_doorbell_ps.unwrap_or(doorbell_ps)),
            nanoseconds(doorbell_ps)
        ));
    }
    if let Some(found) = profile.interruptions {
        text.push_str(&format!(
            "interruptions of more than {} µs: {:.1} a second, the longest {} µs\n",
            found.shortest_ns / 1_000,
            found.per_second(),
            output::count(found.longest_ns / 1_000)
        ));
    }
    if let (Some(machine), Some(method)) = (&profile.machine, &profile.method) {
        text.push_str(&format!(
            "\n{}, Linux {}, {} build, {}\nns per operation; cost = percentile {} times {}\n",
            machine.cpu,
            machine.kernel,
            machine.build,
            machine.date,
            method.percentile,
            method.margin
        ));
    }
    text
}

/// Picoseconds as nanoseconds.
fn nanoseconds(ps: u64) -> String {
    format!("{:.2}", ps as f64 / 1000.0)
}

fn as_json(
    profile: &CostProfile,
    dearest: &Dearest,
    args: &CalibrateArgs,
    warning: Option<&str>,
) -> Value {
    let classes: Vec<_> = Class::ALL
        .iter()
        .map(|class| {
            let found = profile.measured.get(class).copied().unwrap_or_default();
            json!({
                "class": class.name(),
                "help": class.help(),
                "cost_ps": profile.cost_ps(*class),
                "median_ps": found.median_ps,
                "percentile_ps": found.percentile_ps,
                "worst_ps": found.worst_ps,
                "samples": found.samples,
                "discarded": found.discarded,
                "dearest_kernel": dearest.get(class),
            })
        })
        .collect();
    json!({
        "output": args.output,
        "machine": profile.machine,
        "method": profile.method,
        "classes": classes,
        "path": profile.path,
        "interruptions": profile.interruptions,
        "warning": warning,
    })
}
