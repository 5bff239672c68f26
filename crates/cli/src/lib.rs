//! The command line: run a card, check a card file, list components.
//!
//! A program with its own functions gets all of it in a few lines:
//!
//! ```no_run
//! # use picnic_core::{function::Function, registry::{Entry, join}};
//! # static MINE: &[Entry<Box<dyn Function>>] = &[];
//! use picnic_control::Registries;
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     let own = picnic_cli::registries();
//!     let functions = join(&[own.functions, MINE]);
//!     picnic_cli::main_with(Registries { functions, ..own })
//! }
//! ```
//!
//! Exit codes: 0 good, 1 failed, 2 usage or card file. Results go to standard output, messages
//! to standard error.

#![forbid(unsafe_code)]
// Comments on arguments are help: `[[rx]]` there is a section of a card, not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod benchmarks;
mod cli;
mod commands;
mod control;
mod explain;
mod failure;
mod figures;
mod live;
mod neighbours;
mod output;
mod registries;
mod summary;
mod template;
mod timeline;
mod wcet;
mod world;

pub use registries::own as registries;

use picnic_control::Registries;
use picnic_lab::registry::ExperimentEntry;
use picnic_lab::workloads;
use picnic_plugin::guard;
use std::io::Write;
use std::process::ExitCode;

/// The whole command line, with these registries.
pub fn main_with(registries: Registries) -> ExitCode {
    main_with_experiments(registries, &[])
}

/// Like [`main_with`], with experiments in addition to the lab's.
pub fn main_with_experiments(
    registries: Registries,
    experiments: &'static [ExperimentEntry],
) -> ExitCode {
    self::registries::set(registries);
    picnic_lab::registry::set(picnic_papers::registry::PAPERS, experiments);
    let cli = cli::Cli::read();
    let status = match cli.run() {
        Ok(()) => 0,
        Err(error) => failure::exit_code(&error, cli.json),
    };
    // Exit handlers of objects must not hang or change the status.
    if guard::is_abandoned() {
        let _ = std::io::stdout().flush();
        guard::end_process(status);
    }
    ExitCode::from(status)
}

/// A program that runs these benchmarks: `NAME --KEY VALUE`.
pub fn main_of_benchmarks(benchmarks: &[ExperimentEntry]) -> ExitCode {
    match self::benchmarks::run(benchmarks) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(failure::exit_code(&error, false)),
    }
}
