//! The `picnic` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    picnic_cli::main_with(picnic_cli::registries())
}
