//! `picnic-micro NAME --KEY VALUE`: see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    picnic_cli::main_of_benchmarks(picnic_micro::BENCHMARKS)
}
