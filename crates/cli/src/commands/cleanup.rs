//! `picnic cleanup`: undoes changes left by killed commands.

use super::isolate::print_restored;
use clap::Args;
use picnic_control::socket;
use picnic_machine::signals;
use picnic_machine::undo::{JournalSelection, Machine, restore_all};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sudo picnic cleanup          undo the changes of killed processes
  sudo picnic cleanup --all    also undo `picnic isolate apply` and `picnic net up`

Control sockets of killed cards are removed as well. Changes of running processes are left alone.
Exit code 1 if a change could not be undone; run it again.")]
pub(crate) struct CleanupArgs {
    /// Also undo changes that are kept on purpose
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &CleanupArgs, json: bool) -> anyhow::Result<()> {
    // Must not stop halfway.
    signals::stop_flag()?;
    let which = if args.all { JournalSelection::AllHeld } else { JournalSelection::Stale };
    let restored = restore_all(&Machine::this(), which)?;
    let sockets = socket::remove_stale();
    print_restored(&restored, Some(&sockets), json)
}
