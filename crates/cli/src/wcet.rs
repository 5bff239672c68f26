//! Measurements and displays of `picnic wcet`.

pub(crate) mod calibrate;
pub(crate) mod first;
pub(crate) mod show;

use crate::commands::wcet::{WcetArgs, WcetCommand};

/// Runs the subcommand asked for.
pub(crate) fn run(args: &WcetArgs, json: bool) -> anyhow::Result<()> {
    match &args.what {
        WcetCommand::Calibrate(args) => calibrate::run(args, json),
        WcetCommand::Show(args) => show::run(args, json),
    }
}
