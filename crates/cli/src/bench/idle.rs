//! Idle: what a card without traffic costs, and how long the first packet after a pause waits.
//!
//! The wire is a veth, the host echoes. A client sends one packet into the silence and, as soon
//! as it is back, another, which finds everybody awake. What the first takes longer is the wait:
//! the borrowed core's wake and the target's, both ways.

use super::median;
use crate::card::{ChangeArgs, Setting};
use crate::workload::hosts::{Hosts, Place, SERVER};
use crate::workload::program;
use anyhow::Context;
use clap::Args;
use picnic_host::run;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const CARD: &str = "\
[card]
name = \"idle\"
[[wire]]
port = \"packet\"
interface = \"w0\"
[host]
attachment = \"app\"
mode = \"echo\"
queues = 1
[interrupt]
rx_usecs = 0
";
/// The card answers for whoever has this address.
const MAC: &str = "02:00:00:00:88:01";
const PORT: u16 = 9;
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct IdleArgs {
    /// Seconds without traffic
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// First packets
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pauses: u64,
    /// Milliseconds of each pause
    #[arg(long, default_value_t = 50)]
    pause_ms: u64,
    #[command(flatten)]
    changes: ChangeArgs,
}

pub(super) fn run(args: &IdleArgs) -> anyhow::Result<Value> {
    anyhow::ensure!(args.seconds > 0.0, "--seconds must be above zero");
    program::need(&program::BASIC)?;
    let hosts = Hosts::build(1500)?;
    let netns = hosts.netns(Place::Client);
    let neighbour = ["neighbour", "add", SERVER, "lladdr", MAC, "dev", "c0"];
    program::run(&[&["ip", "-n", &netns], &neighbour[..]].concat())?;
    let settings = vec![Setting::word("wire[0].namespace", &hosts.netns(Place::Card))];
    let card = args.changes.load(CARD, None, settings)?;
    let running = run::start(&card.file).map_err(|error| card.explain_host(error))?;
    // Let what starting has brought about pass.
    std::thread::sleep(Duration::from_millis(500));
    let (start, before) = (Instant::now(), processor_time()?);
    std::thread::sleep(Duration::from_secs_f64(args.seconds));
    let (elapsed, after) = (start.elapsed().as_nanos() as f64, processor_time()?);
    let waits = first_packets(args, &hosts);
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: a bug");
    let Waits { mut first, mut second, mut wait } = waits?;
    let wait_p50 = median(&mut wait);
    Ok(json!({
        "benchmark": "idle",
        "borrowed_core_cpu_fraction": (after - before) as f64 / elapsed,
        "first_packet_round_trip_p50_ns": median(&mut first),
        "next_packet_round_trip_p50_ns": median(&mut second),
        "first_packet_wait_p50_ns": wait_p50,
        "first_packet_wait_p90_ns": wait.get(wait.len() * 9 / 10),
        "first_packet_wait_max_ns": wait.last(),
        "pauses": args.pauses,
        "pause_ns": args.pause_ms * 1_000_000,
        "seconds": args.seconds,
    }))
}

struct Waits {
    first: Vec<f64>,
    second: Vec<f64>,
    wait: Vec<f64>,
}

/// Sends a packet after each pause, and another behind it.
fn first_packets(args: &IdleArgs, hosts: &Hosts) -> anyhow::Result<Waits> {
    let path = format!("/run/netns/{}", hosts.netns(Place::Client));
    let namespace = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let (pauses, pause) = (args.pauses, Duration::from_millis(args.pause_ms));
    // A thread of its own: it never leaves the namespace.
    let thread = std::thread::spawn(move || -> anyhow::Result<Waits> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter the client's namespace")?;
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect((SERVER, PORT))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let round_trip = || -> anyhow::Result<f64> {
            let start = Instant::now();
            socket.send(b"are you awake?")?;
            socket.recv(&mut [0; 64]).context("a packet has not come back")?;
            Ok(start.elapsed().as_nanos() as f64)
        };
        round_trip()?;
        let mut waits = Waits { first: Vec::new(), second: Vec::new(), wait: Vec::new() };
        for _ in 0..pauses {
            std::thread::sleep(pause);
            let (first, second) = (round_trip()?, round_trip()?);
            waits.first.push(first);
            waits.second.push(second);
            waits.wait.push(first - second);
        }
        Ok(waits)
    });
    thread.join().map_err(|_| anyhow::anyhow!("the client's thread panicked"))?
}

/// Nanoseconds that the borrowed core's thread has run.
fn processor_time() -> anyhow::Result<u64> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "borrowed" {
            let text = std::fs::read_to_string(path.join("schedstat"))
                .context("this kernel does not tell a thread's time (schedstat)")?;
            let time = text.split_whitespace().next().and_then(|word| word.parse().ok());
            return time.context("schedstat says what it should not");
        }
    }
    anyhow::bail!("there is no thread of the borrowed core")
}
