//! The command line.

use crate::commands::bench::BenchArgs;
use crate::commands::lab::LabArgs;
use crate::commands::new::NewArgs;
use crate::commands::sciron::ScironArgs;
use crate::commands::try_function::TryArgs;
use crate::commands::wcet::WcetArgs;
use crate::commands::{capture::CaptureArgs, ctl::CtlArgs, top::TopArgs};
use crate::commands::{card::CardCommandArgs, check::CheckArgs, components::ComponentsArgs};
use crate::commands::{cleanup::CleanupArgs, isolate::IsolateArgs};
use crate::commands::{completions::CompletionsArgs, demo::DemoArgs, run::RunArgs};
use clap::{Parser, Subcommand};

/// A programmable NIC made from a borrowed CPU core
///
/// NIC features run as software functions on a borrowed core; the rest of the
/// machine sees one multi-queue NIC. What the card is made of stands in a card file.
#[derive(Debug, Parser)]
#[command(name = "picnic", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// One JSON object on standard output, and nothing else there
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  picnic run                      five seconds of the built-in demonstration card
  picnic card > my.toml           that card as a file, every key explained
  picnic check my.toml            is the file right, and what would run where?
  picnic run my.toml --json       run it; figures for programs
  picnic functions rss            the keys of a function
  picnic try rss --in web.pcap    what it does with each packet
  picnic ctl stats                the figures of a running card
  picnic capture | tshark -r -    its packets

Exit codes: 0 good, 1 failed, 2 usage or card file.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a card until its wires finish, a time is up or Ctrl-C
    Run(RunArgs),
    /// Say whether a card file is right, and what would run where
    Check(CheckArgs),
    /// Print the built-in demonstration card as a file to start from
    Card(CardCommandArgs),
    /// Write a function to start from, with its tests
    New(NewArgs),
    /// Give one function a capture and show what becomes of each packet
    Try(TryArgs),
    /// List the NIC functions that [[rx]] and [[tx]] can name
    Functions(ComponentsArgs),
    /// List the wire ports that [[wire]] can name
    Ports(ComponentsArgs),
    /// List the host attachments that [host] can name
    Attachments(ComponentsArgs),
    /// List the schedulers that [os] can name
    Schedulers(ComponentsArgs),
    /// List the tasks that [[task]] can name
    Tasks(ComponentsArgs),
    /// Put the card in front of unmodified programs and report the result (root)
    Demo(DemoArgs),
    /// Say what this machine can and cannot do, why, and what mends it
    Doctor,
    /// Run experiments that say what a NIC feature gives
    Lab(LabArgs),
    /// Ask and change a running card
    Ctl(CtlArgs),
    /// Watch a running card on the terminal: rates, drops, rings
    Top(TopArgs),
    /// Write the packets of a running card to a file or pipe, as pcapng
    Capture(CaptureArgs),
    /// Keep interrupts and processes off the borrowed core: plan, apply, restore
    Isolate(IsolateArgs),
    /// Undo changes left by killed commands
    Cleanup(CleanupArgs),
    /// Measure the card on this machine
    #[command(subcommand)]
    Bench(BenchArgs),
    /// Check the rules of SCIRON, the stateless firewall
    Sciron(ScironArgs),
    /// Bound what tasks' segments take, under a profile of this machine's costs
    Wcet(WcetArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_nothing() {
        Cli::command().debug_assert();
    }
}
