//! The `picnic` binary: run a card, check a card file, list what one can name.
//!
//! Exit codes: 0 good, 1 failed, 2 usage or card file. What a command has to say
//! goes to standard output, messages to standard error.

#![forbid(unsafe_code)]
// Comments on arguments are help: `[[rx]]` there is a section of a card, not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod cli;
mod commands;
mod control;
mod failure;
mod live;
mod output;
mod registries;
mod summary;
mod template;
mod wcet;

use clap::Parser;
use picnic_lab::workloads;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(&cli::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::exit_code(&error),
    }
}
