//! `picnic wcet`: bounds of tasks' segments under a cost profile.

use crate::wcet::calibrate::CalibrateArgs;
use crate::wcet::show::ShowArgs;
use clap::{Args, Subcommand};

/// Bounds of tasks' segments under a cost profile.
#[derive(Debug, Args)]
pub(crate) struct WcetArgs {
    #[command(subcommand)]
    pub(crate) what: WcetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WcetCommand {
    /// Measure the cost of operations on this machine and write a profile
    Calibrate(CalibrateArgs),
    /// Show a task's graph, its bounds under a profile, and observed times
    Show(ShowArgs),
}

pub(crate) use crate::wcet::run;
