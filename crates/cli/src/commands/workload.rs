//! `picnic workload list|run`: requests to web servers, through a card.

use super::components::keys_table;
use crate::failure::Usage;
use crate::output::{self, count, nanoseconds, rate};
use crate::summary;
use clap::{Args, Subcommand};
use picnic_core::error::ConfigError;
use picnic_lab::workloads::client::ClientResult;
use picnic_lab::workloads::kind::{ClientKind, FileKind, KINDS, ServerKind, Workload};
use picnic_papers::workloads::run::{FEWEST_FLOWS, Run, Tested, WorkloadResult, test_flows};
use serde::Serialize;
use serde_json::json;
use std::fmt::Write;

#[derive(Debug, Args)]
#[command(after_help = "\
A workload is a file: `picnic workload list NAME` prints one, to be changed and run by its path.
Builds three network namespaces, as `picnic demo web` does, and removes them at the end.

Needs root and the programs that the workload names: apache2 with PHP, nginx, webfs, wrk.

Examples:
  picnic workload list
  picnic workload run support
  picnic workload run sclient --server nginx --rate 5000 --json
  picnic workload run closed-loop
  picnic workload list e-commerce > mine.toml
  picnic workload run mine.toml --set host.queues=2

Exit codes: 0 good; 1 failed, also if no request was answered; 2 usage.")]
pub(crate) struct WorkloadArgs {
    #[command(subcommand)]
    command: WorkloadCommand,
}

#[derive(Debug, Subcommand)]
enum WorkloadCommand {
    /// List the workloads, or print the file of one
    List {
        /// Print this one
        name: Option<String>,
    },
    /// Run one through a card, and report the wire's traffic
    Run(RunArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Its name, or the path of its file
    name: String,
    /// Seconds of load, 1 to 86400
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Another server: nginx, nginx-copy, apache or webfs
    #[arg(long, value_name = "NAME", value_parser = server)]
    server: Option<ServerKind>,
    /// Another client: picnic or wrk
    #[arg(long, value_name = "NAME", value_parser = client)]
    client: Option<ClientKind>,
    /// Simultaneous connections, 1 to 50000
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    connections: Option<u32>,
    /// Requests offered per second, independent of answers
    #[arg(long, value_name = "REQUESTS")]
    rate: Option<f64>,
    /// Change a key of the card, such as host.queues=2; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Seed of the requests and their sources
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn server(text: &str) -> Result<ServerKind, String> {
    use ServerKind::{Apache, Nginx, NginxCopy, Webfs};
    let all = [Nginx, NginxCopy, Apache, Webfs];
    let names = all.iter().map(|server| server.name());
    let found = all.iter().find(|server| server.name() == text).copied();
    found.ok_or_else(|| picnic_core::error::not_among("server ", text, names))
}

fn client(text: &str) -> Result<ClientKind, String> {
    let all = [ClientKind::Picnic, ClientKind::Wrk];
    let found = all.into_iter().find(|client| client.name() == text);
    let names = all.into_iter().map(ClientKind::name);
    found.ok_or_else(|| picnic_core::error::not_among("client ", text, names))
}

pub(crate) fn run(args: &WorkloadArgs, json: bool) -> anyhow::Result<()> {
    match &args.command {
        WorkloadCommand::List { name: None } => list(json),
        WorkloadCommand::List { name: Some(name) } => show(name, json),
        WorkloadCommand::Run(args) => run_one(args, json),
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    let all = KINDS.iter().map(|(name, _)| Workload::find(name));
    let all: Vec<Workload> = all.collect::<Result<_, _>>()?;
    if json {
        let listed = all.iter().map(|kind| json!({ "name": kind.name, "help": kind.help }));
        return output::print_json(&json!({ "workloads": listed.collect::<Vec<_>>() }));
    }
    let rows = all.iter().map(|kind| vec![kind.name.clone(), kind.help.clone()]);
    let table = output::table(&output::columns("name|help"), rows);
    let keys = keys_table(&Workload::keys());
    let of_files = keys_table(&FileKind::keys());
    output::print(&format!(
        "{table}\nThe keys of a workload's file:\n\n{keys}\nThe keys of each `[[file]]`:\n\n\
         {of_files}\n`picnic workload list NAME` prints the file of one.\n"
    ))
}

fn show(name: &str, json: bool) -> anyhow::Result<()> {
    let workload = found(name)?;
    if json {
        return output::print_json(&workload);
    }
    match KINDS.iter().find(|(kind, _)| *kind == name) {
        Some((_, text)) => output::print(text),
        // A parsed file can be read.
        None => output::print(&std::fs::read_to_string(name)?),
    }
}

fn found(name: &str) -> anyhow::Result<Workload> {
    Workload::find(name).map_err(told)
}

/// Errors in a file keep their place there; all others concern the command line.
fn told(error: ConfigError) -> anyhow::Error {
    match (&error.file, error.key.as_str()) {
        (Some(_), _) => error.into(),
        (None, "") => Usage(error.message).into(),
        (None, key) => Usage(format!("{key}: {}", error.message)).into(),
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Figures<'a> {
    workload: &'a str,
    server: ServerKind,
    asked_by: ClientKind,
    #[serde(flatten)]
    ran: &'a WorkloadResult,
    /// Ent's tests over the hashes of the connections, by hash; none for fewer than 1000.
    randomness: Option<Vec<(&'static str, Tested)>>,
}

fn run_one(args: &RunArgs, json: bool) -> anyhow::Result<()> {
    let mut workload = found(&args.name)?;
    workload.server = args.server.unwrap_or(workload.server);
    workload.client = args.client.unwrap_or(workload.client);
    workload.connections = args.connections.unwrap_or(workload.connections);
    workload.requests_per_second = args.rate.unwrap_or(workload.requests_per_second);
    workload.check().map_err(told)?;
    let (set, seed) = (args.set.clone(), args.seed);
    let how = Run { seconds: args.seconds as f64, set, seed, ..Run::default() };
    let mut ran = picnic_papers::workloads::run::run(&workload, &how)?;
    ran.card.latencies = None;
    let randomness = test_flows(&ran.flows).map(Vec::from);
    let printed = match json {
        true => {
            let (name, server) = (&*workload.name, workload.server);
            let asked_by = workload.client;
            output::print_json(&Figures { workload: name, server, asked_by, ran: &ran, randomness })
        }
        false => output::print(&text(&workload, &ran, randomness.as_deref())),
    };
    summary::verdict(&ran.card)?;
    anyhow::ensure!(ran.client.answered != 0, unanswered(&workload, &ran.client));
    printed
}

/// The fate of requests if none was answered.
fn unanswered(workload: &Workload, client: &ClientResult) -> String {
    let made = client.offered - client.client_full;
    let told = match &client.first_broken {
        Some(how) => format!("{} broken, the first: {how}", count(client.broken)),
        None if client.refused > 0 => {
            format!("{} answered with a status other than 200", count(client.refused))
        }
        None => format!("{} timed out after {} ms", count(client.timeouts), workload.patience_ms),
    };
    format!("no request was answered: of {}, {told}", count(made))
}

fn text(
    workload: &Workload,
    ran: &WorkloadResult,
    randomness: Option<&[(&'static str, Tested)]>,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<13} {value}");
    };
    let (client, wire) = (&ran.client, &ran.wire);
    let colon = if workload.help.is_empty() { "" } else { ": " };
    line("workload", format!("{}{colon}{}", workload.name, workload.help));
    line("server", workload.server.name().into());
    line("client", workload.client.name().into());
    line(
        "requests",
        format!("{} answered, {}/s", count(client.answered), rate(client.per_second())),
    );
    line(
        "answered in",
        format!(
            "p50 {}, p99 {}",
            nanoseconds((client.answered > 0).then_some(client.p50_ns)),
            nanoseconds((client.answered > 0).then_some(client.p99_ns))
        ),
    );
    line(
        "went wrong",
        format!(
            "{} broken, {} refused, {} timed out; {} unfinished at the end",
            count(client.broken),
            count(client.refused),
            count(client.timeouts),
            count(client.unfinished)
        ),
    );
    if let Some(how) = &client.first_broken {
        line("first broken", how.clone());
    }
    if client.is_at_limit() {
        line(
            "at its limit",
            format!(
                "the client: of {} requests, {} not sent for lack of connections, {} late or never; \
                 so this says little about the server",
                count(client.offered),
                count(client.client_full),
                count(client.client_late)
            ),
        );
    }
    for (name, packets, bytes, only) in [
        ("in", wire.packets_in, wire.bytes_in, wire.acknowledgements_in),
        ("out", wire.packets_out, wire.bytes_out, wire.acknowledgements_out),
    ] {
        let share = only as f64 / packets.max(1) as f64 * 100.0;
        line(
            name,
            format!(
                "{} packets, {} bytes, {share:.0} % acknowledgements alone",
                count(packets),
                count(bytes)
            ),
        );
    }
    line("out to in", format!("{:.1} bytes", ran.out_to_in));
    match randomness {
        None => line("connections", too_few(wire.connections)),
        Some(tested) => {
            line("connections", count(wire.connections));
            for (hash, tested) in tested {
                line(
                    hash,
                    format!(
                        "entropy {:.2} %, mean {:.2} %, pi {:.2} %, serial {:.2} %, chi-square {:.0} %",
                        tested.entropy_percent,
                        tested.mean_percent,
                        tested.pi_percent,
                        tested.serial_percent,
                        tested.chi_square_percent
                    ),
                );
            }
        }
    }
    line("card", summary_line(ran));
    text
}

/// The number of connections, and how many are needed to test their hashes.
fn too_few(connections: u64) -> String {
    let connections = count(connections);
    format!(
        "{connections}, too few to judge how random their hashes are: {FEWEST_FLOWS} are needed"
    )
}

fn summary_line(ran: &WorkloadResult) -> String {
    let dropped = &ran.card.drops;
    match dropped.is_empty() {
        true => "dropped nothing".into(),
        false => {
            let each = dropped.iter().map(|(reason, packets)| format!("{reason} {packets}"));
            format!("dropped {}", each.collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_connections_name_the_required_number() {
        let wanted = "999, too few to judge how random their hashes are: 1000 are needed";
        assert_eq!(too_few(999), wanted);
    }

    #[test]
    fn unanswered_requests_are_explained() {
        let workload = Workload::find("sclient").unwrap();
        let client = ClientResult { offered: 3000, client_full: 500, ..ClientResult::default() };
        let told = |client: &ClientResult| unanswered(&workload, client);
        let of = |rest: &str| format!("no request was answered: of 2,500, {rest}");
        let late = ClientResult { timeouts: 2400, ..client.clone() };
        assert_eq!(told(&late), of("2,400 timed out after 400 ms"));
        let refused = ClientResult { refused: 2500, ..late };
        assert_eq!(told(&refused), of("2,500 answered with a status other than 200"));
        let first_broken = Some("Connection refused (os error 111)".into());
        let broken = ClientResult { broken: 2500, first_broken, ..refused };
        let wanted = "2,500 broken, the first: Connection refused (os error 111)";
        assert_eq!(told(&broken), of(wanted));
    }
}
