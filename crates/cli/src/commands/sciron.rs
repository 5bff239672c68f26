//! `picnic sciron`: checks the firewall's rules before a card runs them.

use crate::output;
use anyhow::bail;
use clap::{Args, Subcommand};
use picnic_sciron::report;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ScironArgs {
    #[command(subcommand)]
    command: ScironCommand,
}

#[derive(Debug, Subcommand)]
enum ScironCommand {
    /// Check a rules file: errors, rules that never apply, rules that overlap
    Check(CheckArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A rule is a line of six fields:
  protocol source destination source_ports destination_ports accept|drop
  tcp any 10.0.0.1/32 any 22 accept      # the first rule that matches decides
  any any any any any drop
  default accept                         # packets that match no rule

To run them: rules = \"FILE\" in [sciron] of a card file, or for the demonstration card
  picnic run --set sciron.rules=firewall.rules
While it runs: picnic ctl sciron.

Exit codes: 0 good, 1 a rule never applies (with --strict), 2 a wrong file.")]
struct CheckArgs {
    /// The rules file
    rules: PathBuf,
    /// Exit with 1 if a rule never applies
    #[arg(long)]
    strict: bool,
}

pub(crate) fn run(args: &ScironArgs, json: bool) -> anyhow::Result<()> {
    let ScironCommand::Check(args) = &args.command;
    let report = report::of(&args.rules);
    output::show(&report.json(), json, || report.text())?;
    let findings = report.findings().map_err(Clone::clone)?;
    if args.strict && !findings.all_apply() {
        bail!("{}: some rules never apply", args.rules.display());
    }
    Ok(())
}
