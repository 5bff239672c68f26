//! `picnic advise cores`: which core a card should borrow, and which it should interrupt.

use super::lab::ab::{pairs, percent, seconds, seed};
use super::lab::machine;
use super::lab::progress::Progress;
use super::lab::through::Measured;
use super::later::Later;
use crate::failure::Usage;
use crate::output::{self, Column};
use crate::registries::{registries, sections};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use picnic_core::config::{CardFile, DEMONSTRATION};
use picnic_lab::ab::{Allowed, CARD_FIGURES, ComparedFigure};
use picnic_lab::advise::{Advice, Asked, Placement, modelled, placements};
use picnic_lab::card::changed;
use picnic_lab::compare::{LEAST_PAIRS, SMALLEST_EFFECT};
use picnic_lab::experiment::LabError;
use picnic_machine::{signals, topology};

#[derive(Clone, Debug, Args)]
pub(crate) struct AdviseArgs {
    #[command(subcommand)]
    command: AdviseCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum AdviseCommand {
    /// Try the placements that differ on this machine, and print the best one
    Cores(Box<Later<CoresArgs>>),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
For each distance between the borrowed core and the others, one placement is tried with all queues on
one core, and one with the queues spread. They are compared with the card file's own placement as by
`picnic lab ab`, in turns, with a confidence of 95 %.

Examples:
  picnic advise cores my.toml --workload-kind wrk
  picnic advise cores my.toml --figure-of latency_p99_ns
  picnic advise cores my.toml --profile x5355 --json

Exit codes: 0 answered, with any answer; 1 failed; 2 usage or card file.")]
struct CoresArgs {
    #[command(flatten)]
    measured: Measured,
    /// Compare this figure of the card [default: the workload's]
    #[arg(long, value_name = "NAME",
          value_parser = PossibleValuesParser::new(CARD_FIGURES.iter().map(|figure|
              clap::builder::PossibleValue::new(figure.name).help(figure.help))))]
    figure_of: Option<String>,
    /// The smallest effect of interest, in percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = SMALLEST_EFFECT * 100.0)]
    effect: f64,
    /// Pairs of each placement, at least 10
    #[arg(long, value_name = "N", default_value_t = LEAST_PAIRS, value_parser = pairs)]
    pairs: usize,
    /// Seconds of each measurement [default: 0.2; with a workload 2]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Percent of all cores that other processes may use meanwhile
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = 10.0)]
    allow_others: f64,
    /// Answer for this modelled machine; see `picnic lab profiles`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["workload", "workload_kind", "server"])]
    profile: Option<String>,
}

pub(crate) fn run(args: &AdviseArgs, json: bool) -> anyhow::Result<()> {
    let AdviseCommand::Cores(args) = &args.command;
    let args = &args.0;
    signals::stop_flag()?;
    let bar = Progress::new();
    let mut progress = |share: f64, what: &str| bar.tell(share, what);
    let advice = advice(args, &mut progress);
    drop(bar);
    let advice = advice?;
    output::show(&advice, json, || text_of(&advice))
}

fn advice(args: &CoresArgs, progress: &mut dyn FnMut(f64, &str)) -> anyhow::Result<Advice> {
    let path = args.measured.card.as_deref();
    let text = path.map_or(Ok(DEMONSTRATION.to_owned()), CardFile::read)?;
    let load = |more: &[String]| {
        changed(&sections(), &text, path, Vec::new(), &[&args.measured.set[..], more].concat())
    };
    let kind = args.measured.through.kind();
    let figure = match (&args.figure_of, kind) {
        (None, Some(kind)) => Some(kind.figure()),
        (name, _) => ComparedFigure::of_card(name.as_deref().unwrap_or("delivered_pps")),
    };
    let figure = figure.ok_or_else(|| Usage("--figure-of: no such figure".into()))?;
    let workload = args.measured.through.workload().map_err(Usage)?;
    let long = if workload.is_some() { 2.0 } else { 0.2 };
    let (seconds, effect) = (args.seconds.unwrap_or(long), args.effect / 100.0);
    if let Some(name) = &args.profile {
        // Virtual time has no noise.
        let seconds = args.seconds.unwrap_or(0.05);
        return modelled(&machine(name)?, registries(), &figure, (seconds, effect), load, progress);
    }
    let file = load(&[])?;
    let available = topology::available();
    let placed = topology::place(&file, &available)?;
    let shares = match (placed.borrowed_core, placed.target_cores.first()) {
        (borrowed, Some(&core)) => available.topology.distance(borrowed, core),
        _ => None,
    };
    let own = Placement {
        borrowed_core: placed.borrowed_core,
        target_cores: placed.target_cores,
        shares: shares.map_or("unknown distance", topology::Distance::name).into(),
    };
    let cores = &available.cores;
    let ends: Vec<usize> = [cores.last(), cores.first()].into_iter().flatten().copied().collect();
    let queues = own.target_cores.len();
    let others = placements(&available.topology, cores, &ends, queues);
    let asked = Asked {
        side: args.measured.side(),
        workload,
        figure,
        effect,
        pairs: args.pairs,
        seconds,
        allowed: Allowed { loss: 1.0, full_client: true, others: args.allow_others / 100.0 },
        seed: seed(),
    };
    let advice = asked.run(own, others, registries(), &sections(), progress);
    advice.map_err(LabError::into_cause)
}

fn text_of(advice: &Advice) -> String {
    let rows = advice.tried.iter().map(|tried| {
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.3}"));
        let interval =
            tried.interval.map_or("–".into(), |[low, high]| format!("{low:.3} to {high:.3}"));
        let placement = &tried.placement;
        let cores = format!("{} for {:?}", placement.borrowed_core, placement.target_cores);
        vec![
            cores,
            placement.shares.clone(),
            number(tried.ratio),
            interval,
            tried.verdict.to_string(),
        ]
    });
    let columns = [
        Column::Text("borrowed core"),
        Column::Text("distance"),
        Column::Number("ratio"),
        Column::Number("95 %"),
        Column::Text("verdict"),
    ];
    let table = output::table(&columns, rows.collect::<Vec<_>>());
    format!("{}, {}\n\n{table}\n{}\n", advice.figure, advice.source, advice.text())
}
