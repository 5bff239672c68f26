//! The `sciron` binary: checks a file of rules.
//!
//! Exit codes: 0 good, 1 a rule that never applies (with `--strict`), 2 usage or a wrong file.

#![forbid(unsafe_code)]

use clap::Parser;
use picnic_sciron::report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check the rules of SCIRON, the stateless firewall of PICNIC
#[derive(Debug, Parser)]
#[command(
    name = "sciron",
    version,
    max_term_width = 100,
    after_help = "\
A rule is a line:  proto source destination sport dport accept|drop
  tcp any 10.0.0.1/32 any 22 accept      # the first rule that matches decides
  any any any any any drop
  default accept                         # what no rule matches

To run them: [sciron] of a card file, or picnic ctl sciron."
)]
struct Args {
    /// The file of rules
    #[arg(long, value_name = "RULES")]
    check: PathBuf,
    /// Exit with 1 if a rule never applies
    #[arg(long)]
    strict: bool,
    /// One JSON object on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = report::of(&args.check);
    let printed = if args.json { report.json() } else { report.text() };
    if !printed.is_empty() {
        use std::io::Write;
        // Whoever closed the pipe has seen enough.
        let _ = std::io::stdout().lock().write_all(printed.as_bytes());
    }
    if let Some(message) = report.error() {
        eprintln!("{message}");
    }
    ExitCode::from(report.exit_code(args.strict))
}
