//! `picnic demo web`: nginx behind the card, wrk in front of it.

use crate::live::Live;
use crate::output::{count, nanoseconds, rate};
use crate::registries::{registries, sections};
use crate::workloads::hosts::{CLIENT, Hosts, Role, SERVER, wire_link};
use crate::workloads::web::{FILE, Load, Server, TOOLS, WebFigures};
use crate::workloads::{tools, web};
use crate::{output, summary};
use clap::Args;
use picnic_control::{Launch, Report, Running};
use picnic_core::config::{CardFile, Setting};
use picnic_lab::card::ChangeArgs;
use picnic_machine::signals;
use picnic_machine::topology::cores;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The card, also an example, with other names for its namespaces.
const CARD: &str = include_str!("../../../../../examples/cards/web.toml");
/// The same in the kernel, where the server is in the wire's namespace.
const KERNEL_CARD: &str = include_str!("../../../../../examples/cards/kernel.toml");
/// Size of the requested file.
const FILE_BYTES: usize = 1024;
/// Bytes of a packet on the wire without its Ethernet header.
const MTU: u32 = 1500;
/// Interval for checking the running programs.
const LOOK: Duration = Duration::from_millis(50);
/// Interval for drawing the live table.
const DRAW: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Builds three network namespaces: wrk in the first, the card's wire in the second, nginx in the
third, with the card between them. With --engine kernel the wire is in nginx's namespace, since the
card hands packets to the network stack there. Everything is removed at the end, also after Ctrl-C;
`picnic cleanup` or the next run removes the remains of a killed run. Nothing else is changed.

Needs root, and nginx and wrk: apt-get install nginx-light wrk

Examples:
  picnic demo web                         five seconds, 100 connections
  picnic demo web --connections 1000 --json
  picnic demo web --set host.queues=2 --set interrupt.rx_usecs=0
  picnic demo web --engine kernel         the card in the kernel
  picnic demo web --keep                  leave it running, to look around

Exit codes: 0 good; 1 failed, also if a request went wrong or the ledger does not balance; 2 usage.")]
pub(super) struct WebArgs {
    /// Seconds of load, 1 to 86400
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Open connections, 1 to 50000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    connections: u64,
    /// Keep everything running afterwards, until Ctrl-C
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    changes: ChangeArgs,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Figures<'a> {
    demo: &'static str,
    connections: u64,
    file_bytes: usize,
    web: &'a WebFigures,
    card: &'a Report,
}

pub(super) fn run(args: &WebArgs, json: bool) -> anyhow::Result<()> {
    tools::need(&TOOLS)?;
    let stop = signals::stop_flag()?;
    let go_on = |what: &str| {
        anyhow::ensure!(!stop.load(Ordering::Acquire), "interrupted; everything is removed");
        say(json, what);
        Ok(())
    };
    go_on("building namespaces")?;
    let hosts = Hosts::build("demo", MTU)?;
    let card = card(args, &hosts)?;
    go_on("starting the card")?;
    let running = Launch::new(&card, registries()).start_alone()?;
    go_on("starting nginx")?;
    let workers = cores().len().max(2);
    let server = Server::start(&hosts, workers, FILE_BYTES)?;
    go_on(&format!("{} connections for {} s", args.connections, args.seconds))?;
    let load = Load {
        connections: args.connections as usize,
        threads: cores().len(),
        seconds: args.seconds,
        path: FILE,
    };
    let live = Live::new(running.monitor(), json);
    let web = measure(&*running, load.start(&hosts, SERVER)?, &stop, live)?;
    if args.keep {
        kept(&hosts, &web).lines().for_each(output::tell);
        while !stop.load(Ordering::Acquire) && running.is_alive() {
            std::thread::sleep(LOOK);
        }
    }
    drop(server);
    let mut report = running.stop()?;
    report.latencies = None;
    drop(hosts);
    let figures = Figures {
        demo: "web",
        connections: args.connections,
        file_bytes: FILE_BYTES,
        web: &web,
        card: &report,
    };
    let printed = output::show(&figures, json, || text(args, &card, &web, &report));
    summary::verdict(&report)?;
    let errors = web.errors.total();
    anyhow::ensure!(errors == 0, "{errors} requests failed: {:?}", web.errors);
    printed
}

/// Shows the current step on a terminal.
fn say(json: bool, what: &str) {
    let is_terminal = rustix::termios::isatty(std::io::stderr());
    if !json || is_terminal {
        output::tell(format_args!("picnic: {what}"));
    }
}

/// The example's card with these namespaces and the command line's changes.
fn card(args: &WebArgs, hosts: &Hosts) -> anyhow::Result<CardFile> {
    let settings = vec![
        Setting::text("wire[0].namespace", &hosts.netns(Role::Card)),
        Setting::text("host.namespace", &hosts.netns(Role::Server)),
    ];
    let card = args.changes.load(&sections(), CARD, None, settings)?;
    if card.card.engine != "kernel" {
        return Ok(card);
    }
    hosts.serve_at_wire()?;
    let settings = vec![
        Setting::text("wire[0].interface", &wire_link(0)),
        Setting::text("wire[0].namespace", &hosts.netns(Role::Server)),
    ];
    Ok(args.changes.load(&sections(), KERNEL_CARD, None, settings)?)
}

/// Waits for the end of the load.
fn measure(
    running: &dyn Running,
    mut asking: web::RunningWrk,
    stop: &AtomicBool,
    mut live: Option<Live>,
) -> anyhow::Result<WebFigures> {
    let mut drawn = Instant::now();
    let result = loop {
        if let Some(figures) = asking.finished()? {
            break Ok(figures);
        }
        if stop.load(Ordering::Acquire) {
            break Err(anyhow::anyhow!("interrupted; everything is removed"));
        }
        if !running.is_alive() {
            break Err(anyhow::anyhow!("a thread of the card has ended: this is a bug in picnic"));
        }
        if let Some(live) = live.as_mut().filter(|_| drawn.elapsed() >= DRAW) {
            live.draw(running.elapsed());
            drawn = Instant::now();
        }
        std::thread::sleep(LOOK);
    };
    if let Some(live) = &mut live {
        live.erase();
    }
    result
}

fn text(args: &WebArgs, card: &CardFile, web: &WebFigures, report: &Report) -> String {
    let latency = &web.request_latency_ns;
    format!(
        "{} requests/s: {} requests of {FILE_BYTES} bytes in {:.2} s by {} connections, {} errors\n\
         answered after p50 {}, p99 {}, p999 {}\n\n{}",
        rate(web.requests_per_second),
        count(web.requests),
        web.duration_s,
        count(args.connections),
        count(web.errors.total()),
        nanoseconds(Some(latency.p50)),
        nanoseconds(Some(latency.p99)),
        nanoseconds(Some(latency.p999)),
        summary::text(&card.card.name, report),
    )
}

/// Hints for using the parts that were kept running.
fn kept(hosts: &Hosts, web: &WebFigures) -> String {
    let (client, server) = (hosts.netns(Role::Client), hosts.netns(Role::Server));
    format!(
        "{} requests/s. Still running, until Ctrl-C:\n  \
         ip netns exec {client} ping {SERVER}\n  \
         ip netns exec {client} wrk -c 100 http://{SERVER}/file\n  \
         ip netns exec {server} ping {CLIENT}",
        rate(web.requests_per_second)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_runs_the_example_in_its_own_namespaces() {
        let settings = vec![Setting::text("wire[0].namespace", "elsewhere")];
        let card = ChangeArgs::default().load(&sections(), CARD, None, settings).unwrap();
        assert_eq!(card.wires[0].port.name(), "packet");
        assert_eq!(card.host.section.name(), "tap");
        assert!(CARD.contains(SERVER) && CARD.contains("namespace = \"card\""));
    }
}
