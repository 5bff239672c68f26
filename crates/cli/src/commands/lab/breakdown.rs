//! `picnic lab breakdown`: what a packet costs the cores of a card's host.

use super::machines;
use super::progress::Progress;
use super::through::Measured;
use super::wrong_setting;
use crate::failure::Usage;
use crate::output::{self, Column};
use crate::registries::{registries, sections};
use clap::Args;
use picnic_core::config::{CardFile, DEMONSTRATION};
use picnic_lab::breakdown::{Breakdown, Question, modelled};
use picnic_lab::card::changed;
use picnic_lab::experiment::LabError;
use picnic_machine::signals;
use std::path::PathBuf;

/// Virtual time in a model, in seconds: without noise, little is enough.
const MODELLED: f64 = 0.05;
/// Rows of the table of interrupts.
const EVENTS: usize = 12;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The stacks of whole cores are sampled 1999 times a second, with whatever else runs there (root, and
the program `perf`). The innermost listed function decides on the component of a sample. Time per
packet is that of all packets that the host received or sent.

Examples:
  picnic lab breakdown my.toml --workload-kind iperf3 --out breakdown
  picnic lab breakdown --cores 0 --seconds 10
  picnic lab breakdown my.toml --profile x5355

Exit codes: 0 good; 1 failed; 2 usage or card file.")]
pub(crate) struct BreakdownArgs {
    #[command(flatten)]
    measured: Measured,
    /// Seconds of the measurement [default: 3, in a model 0.05]
    #[arg(long, value_parser = super::ab::seconds)]
    seconds: Option<f64>,
    /// Cores to sample [default: the target cores]
    #[arg(long, value_name = "CORE,...", value_delimiter = ',')]
    cores: Option<Vec<usize>>,
    /// Answer for this modelled machine; see `picnic lab profiles`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["cores", "out", "workload", "workload_kind", "server"])]
    profile: Option<String>,
    /// Write stacks and a flame graph into this folder, the borrowed core's too
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &BreakdownArgs, json: bool) -> anyhow::Result<()> {
    signals::stop_flag()?;
    let found = match &args.profile {
        Some(name) => {
            let path = args.measured.card.as_deref();
            let text = path.map_or(Ok(DEMONSTRATION.to_owned()), CardFile::read)?;
            let file = changed(&sections(), &text, path, Vec::new(), &args.measured.set)?;
            modelled(
                &file,
                registries(),
                &machines::named(name)?,
                args.seconds.unwrap_or(MODELLED),
            )?
        }
        None => measured(args)?,
    };
    if let Some(folder) = &args.out {
        let card = args
            .measured
            .card
            .as_ref()
            .map_or("the built-in card".into(), |card| card.display().to_string());
        found.draw(folder, &format!("{card}, cores {:?}", found.cores))?;
    }
    output::show(&found, json, || text_of(&found, args))
}

fn measured(args: &BreakdownArgs) -> anyhow::Result<Breakdown> {
    let question = Question {
        side: args.measured.side(),
        workload: args.measured.through.workload().map_err(Usage)?,
        seconds: args.seconds.unwrap_or(3.0),
        cores: args.cores.clone(),
        borrowed: args.out.is_some(),
    };
    let bar = Progress::new();
    let mut progress = |share: f64, what: &str| bar.tell(share, what);
    let found = question.run(registries(), &sections(), &mut progress);
    drop(bar);
    found.map_err(|error| match error {
        LabError::Setting(error) if error.key == "cores" => {
            wrong_setting(error, |key| format!("--{key}"))
        }
        error => error.into_cause(),
    })
}

fn text_of(found: &Breakdown, args: &BreakdownArgs) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("unavailable".into(), |value| format!("{value:.digits$}"))
    };
    let rows = found.components.iter().filter(|part| part.fraction != 0.0).map(|part| {
        let share = format!("{:.1}", part.fraction * 100.0);
        vec![part.component.into(), share, number(part.ns_per_packet, 0)]
    });
    let columns =
        [Column::Text("component"), Column::Number("% of time"), Column::Number("ns per packet")];
    let mut text = format!(
        "{}, cores {:?}: {} packets in {:.2} s\n\n{}",
        found.source,
        found.cores,
        output::count(found.packets),
        found.seconds,
        output::table(&columns, rows.collect::<Vec<_>>())
    );
    let rows = found.events.iter().filter(|event| event.count != 0).take(EVENTS).map(|event| {
        vec![event.kind.clone(), output::count(event.count), number(event.per_packet, 3)]
    });
    let columns = [Column::Text("kind"), Column::Number("count"), Column::Number("per packet")];
    text += &format!("\n{}", output::table(&columns, rows.collect::<Vec<_>>()));
    if let (Some(samples), Some(busy)) = (found.samples, found.busy_fraction_of_kernel) {
        text += &format!(
            "\nbusy: {:.1} % of {} samples, {:.1} % by the kernel's counts\n",
            found.busy_fraction() * 100.0,
            output::count(samples),
            busy * 100.0
        );
    }
    match &args.out {
        Some(folder) => text + &format!("\nFlame graph: {}\n", folder.join("flame.svg").display()),
        None => text,
    }
}
