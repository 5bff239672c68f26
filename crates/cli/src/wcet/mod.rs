//! What `picnic wcet` measures and shows.

pub(crate) mod calibrate;
mod card;
mod doorbell;
mod observe;
mod path;
mod probe;
pub(crate) mod show;

use crate::commands::wcet::{WcetArgs, What};

/// Runs the subcommand asked for.
pub(crate) fn run(args: &WcetArgs, json: bool) -> anyhow::Result<()> {
    match &args.what {
        What::Calibrate(args) => calibrate::run(args, json),
        What::Show(args) => show::run(args, json),
    }
}
