//! The command line.

use crate::commands::advise::AdviseArgs;
use crate::commands::bench::BenchArgs;
use crate::commands::lab::LabArgs;
use crate::commands::man::ManArgs;
use crate::commands::net::NetArgs;
use crate::commands::new::NewArgs;
use crate::commands::run::RunArgs;
use crate::commands::schema::SchemaArgs;
use crate::commands::sciron::ScironArgs;
use crate::commands::storm::StormArgs;
use crate::commands::traffic::TrafficArgs;
use crate::commands::try_function::TryArgs;
use crate::commands::wcet::WcetArgs;
use crate::commands::workload::WorkloadArgs;
use crate::commands::{self, components, later};
use crate::commands::{capture::CaptureArgs, ctl::CtlArgs, top::TopArgs};
use crate::commands::{card::CardCommandArgs, check::CheckArgs, components::ComponentsArgs};
use crate::commands::{cleanup::CleanupArgs, isolate::IsolateArgs};
use crate::commands::{completions::CompletionsArgs, demo::DemoArgs, doctor::DoctorArgs};
use crate::output;
use clap::{CommandFactory, Parser, Subcommand};
use picnic_core::error::brief;

/// A programmable NIC made from a borrowed CPU core
///
/// NIC features run as software functions on a borrowed core; the rest of the machine sees one
/// multi-queue NIC. A card file describes the parts of the card.
#[derive(Debug, Parser)]
#[command(name = "picnic", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print only one JSON object on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  picnic run                      five seconds of the built-in demonstration card
  picnic card > my.toml           that card as a file, every key explained
  picnic check my.toml            check the file, and show what would run where
  picnic run my.toml --json       run it; results as JSON
  picnic functions rss            the keys of a function
  picnic try rss --in web.pcap    its effect on each packet
  picnic ctl stats                the figures of a running card
  picnic capture | tshark -r -    its packets

Exit codes: 0 good, 1 failed, 2 usage or card file.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a card until its wires and tasks finish, the duration is over or Ctrl-C
    Run(RunArgs),
    /// Check a card file, and show what would run where
    Check(CheckArgs),
    /// Print the built-in demonstration card, with every key explained
    Card(CardCommandArgs),
    /// Create a new function, task, scheduler or experiment, with its tests
    New(NewArgs),
    /// Run one function on a capture and show the result for each packet
    Try(TryArgs),
    /// List the NIC functions for [[rx]] and [[tx]]
    Functions(ComponentsArgs),
    /// List the wire ports for [[wire]]
    Ports(ComponentsArgs),
    /// List the host attachments for [host]
    Attachments(ComponentsArgs),
    /// List the schedulers for [os]
    Schedulers(ComponentsArgs),
    /// List the tasks for [[task]]
    Tasks(ComponentsArgs),
    /// Run the card in front of unmodified programs and report the result (root)
    Demo(DemoArgs),
    /// Report the features that this machine supports or lacks, and how to add them
    Doctor(DoctorArgs),
    /// Run experiments that measure the effect of a NIC feature
    Lab(LabArgs),
    /// Say which cores a card should use, under its own workload or in a model
    Advise(AdviseArgs),
    /// Send and receive TCP and UDP at a rate, and report the view of both ends
    Traffic(TrafficArgs),
    /// Run a workload of web requests through a card, and report its wire's traffic (root)
    Workload(WorkloadArgs),
    /// Query and change a running card
    Ctl(CtlArgs),
    /// Watch a running card on the terminal: rates, drops, rings
    Top(TopArgs),
    /// Write the packets of a running card to a file or pipe, as pcapng
    Capture(CaptureArgs),
    /// Keep interrupts and processes off the borrowed core: plan, apply, restore
    Isolate(IsolateArgs),
    /// Make the network around a card, or remove it: namespaces, links, addresses
    Net(NetArgs),
    /// Undo changes left by killed commands
    Cleanup(CleanupArgs),
    /// Measure the card on this machine: named questions of `picnic lab ab`
    Bench(Box<BenchArgs>),
    /// Check the rules of SCIRON, the stateless firewall
    Sciron(ScironArgs),
    /// Deliver messages in the same order to all members of a group: join, measure, check
    Storm(StormArgs),
    /// Bound the run time of tasks' segments under a cost profile
    Wcet(WcetArgs),
    /// Print the JSON Schema of the --json output of runs and measurements
    Schema(SchemaArgs),
    /// Write the manual pages
    Man(ManArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

impl Cli {
    /// Reads the command line of this process. Ends the process on an error.
    pub(crate) fn read() -> Self {
        Cli::try_parse().unwrap_or_else(|error| refuse(&error))
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Those of the command; [`crate::failure`] prints them.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let json = self.json;
        match &self.command {
            Command::Run(args) => commands::run::run(args, json),
            Command::Check(args) => commands::check::run(args, json),
            Command::Card(args) => commands::card::run(args, json),
            Command::Functions(args) => components::run(&components::FUNCTIONS, args, json),
            Command::Ports(args) => components::run(&components::PORTS, args, json),
            Command::Attachments(args) => components::run(&components::ATTACHMENTS, args, json),
            Command::Schedulers(args) => components::run(&components::SCHEDULERS, args, json),
            Command::Tasks(args) => components::run(&components::TASKS, args, json),
            Command::Demo(args) => commands::demo::run(args, json),
            Command::Doctor(args) => commands::doctor::run(args, json),
            Command::Lab(args) => commands::lab::run(args, json),
            Command::Net(args) => commands::net::run(args, json),
            Command::New(args) => commands::new::run(args, json),
            Command::Try(args) => commands::try_function::run(args, json),
            Command::Top(args) => commands::top::run(args, json),
            Command::Advise(args) => commands::advise::run(args, json),
            Command::Traffic(args) => commands::traffic::run(args, json),
            Command::Workload(args) => commands::workload::run(args, json),
            Command::Capture(args) => commands::capture::run(args, json),
            Command::Ctl(args) => commands::ctl::run(args, json),
            Command::Isolate(args) => commands::isolate::run(args, json),
            Command::Cleanup(args) => commands::cleanup::run(args, json),
            Command::Bench(args) => commands::bench::run(args, json),
            Command::Sciron(args) => commands::sciron::run(args, json),
            Command::Storm(args) => commands::storm::run(args, json),
            Command::Wcet(args) => commands::wcet::run(args, json),
            Command::Schema(args) => commands::schema::run(args),
            Command::Man(args) => commands::man::run(args, whole(), json),
            Command::Completions(args) => commands::completions::run(args, whole(), json),
        }
    }
}

/// Prints an error of the command line, and ends. The message quotes words from it, so these are
/// read again in a printable form.
fn refuse(error: &clap::Error) -> ! {
    let words = std::env::args_os().map(|word| output::name(&brief(&word.to_string_lossy())));
    if let Err(shown) = Cli::try_parse_from(words) {
        shown.exit();
    }
    error.to_string().lines().for_each(output::tell);
    std::process::exit(error.exit_code());
}

/// The complete command line, for completions and manual pages.
pub(crate) fn whole() -> clap::Command {
    later::whole(Cli::command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }
}
