//! One file per command.

pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod card;
pub(crate) mod check;
pub(crate) mod cleanup;
pub(crate) mod completions;
pub(crate) mod components;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod filter;
pub(crate) mod isolate;
pub(crate) mod keyed;
pub(crate) mod lab;
pub(crate) mod later;
pub(crate) mod man;
pub(crate) mod net;
pub(crate) mod new;
pub(crate) mod run;
pub(crate) mod sciron;
pub(crate) mod tasks;
pub(crate) mod top;
pub(crate) mod traffic;
pub(crate) mod try_function;
pub(crate) mod wcet;
pub(crate) mod workload;

use crate::cli::{Cli, Command};
use components::Kind;

/// Runs the command that was asked for.
///
/// # Errors
/// See [`crate::failure`] for how they are told.
pub(crate) fn run(cli: &Cli) -> anyhow::Result<()> {
    let json = cli.json;
    match &cli.command {
        Command::Run(args) => run::run(args, json),
        Command::Check(args) => check::run(args, json),
        Command::Card(args) => card::run(args, json),
        Command::Functions(args) => components::run(Kind::Functions, args, json),
        Command::Ports(args) => components::run(Kind::Ports, args, json),
        Command::Attachments(args) => components::run(Kind::Attachments, args, json),
        Command::Schedulers(args) => components::run(Kind::Schedulers, args, json),
        Command::Tasks(args) => components::run(Kind::Tasks, args, json),
        Command::Demo(args) => demo::run(args, json),
        Command::Doctor => doctor::run(json),
        Command::Lab(args) => lab::run(args, json),
        Command::Net(args) => net::run(args, json),
        Command::New(args) => new::run(args, json),
        Command::Try(args) => try_function::run(args, json),
        Command::Top(args) => top::run(args, json),
        Command::Traffic(args) => traffic::run(args, json),
        Command::Workload(args) => workload::run(args, json),
        Command::Capture(args) => capture::run(args, json),
        Command::Ctl(args) => ctl::run(args, json),
        Command::Isolate(args) => isolate::run(args, json),
        Command::Cleanup(args) => cleanup::run(args, json),
        Command::Bench(args) => bench::run(args, json),
        Command::Sciron(args) => sciron::run(args, json),
        Command::Wcet(args) => wcet::run(args, json),
        Command::Man(args) => man::run(args, json),
        Command::Completions(args) => completions::run(args, json),
    }
}
