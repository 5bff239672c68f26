//! `picnic cleanup`: what killed commands have left on this machine.

use super::isolate::print_restored;
use clap::Args;
use picnic_control::socket;
use picnic_machine::signals;
use picnic_machine::undo::{Machine, Which, restore_all};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sudo picnic cleanup          what processes that were killed have left
  sudo picnic cleanup --all    also what stays on purpose, such as `picnic isolate apply`

Control sockets of cards that were killed are removed, too. What belongs to a process that runs is
left alone. Exit code 1 if something could not be
taken back and may be tried again.")]
pub(crate) struct CleanupArgs {
    /// Take back what stays on purpose too
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &CleanupArgs, json: bool) -> anyhow::Result<()> {
    // Not left half done.
    signals::stop_flag()?;
    let which = if args.all { Which::AllHeld } else { Which::Stale };
    let restored = restore_all(&Machine::this(), which)?;
    let sockets = socket::remove_stale();
    print_restored(&restored, Some(&sockets), json)
}
