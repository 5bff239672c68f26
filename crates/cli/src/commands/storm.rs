//! `picnic storm node|bench|check`: messages in one order at every member of a group.

mod card;

use crate::failure::Usage;
use crate::output;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use picnic_machine::signals;
use picnic_storm::bench::{self, Load, Outcome};
use picnic_storm::cards;
use picnic_storm::log::Log;
use picnic_storm::node::{Node, NodeError};
use picnic_storm::{Counts, Settings, State, SubmitError, check};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples, with each member in a separate terminal:
  picnic storm node a a=127.0.0.1:7001 b=127.0.0.1:7002 --log a.log
  picnic storm node b a=127.0.0.1:7001 b=127.0.0.1:7002 --log b.log
  picnic storm check a.log b.log
  picnic storm bench --window 8
  picnic storm bench --window 8 --place card

Exit codes: 0 good; 1 failed, or logs that differ; 2 usage, or a wrong log.")]
pub(crate) struct StormArgs {
    #[command(subcommand)]
    command: StormCommand,
}

#[derive(Debug, Subcommand)]
enum StormCommand {
    /// Join a group over UDP: lines from standard input are sent, all members' lines are printed
    Node(NodeArgs),
    /// Measure a group on this machine
    Bench(BenchArgs),
    /// Compare members' logs: same order, no message duplicated, lost or invented
    Check(CheckArgs),
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// This member's name
    name: String,
    /// All members; the same list for every member
    #[arg(value_name = "NAME=HOST:PORT", required = true, value_parser = member)]
    members: Vec<(String, SocketAddr)>,
    /// Where the protocol runs: in this program over UDP, or on a card
    #[arg(long, value_enum, default_value_t = PlaceArg::Host)]
    place: PlaceArg,
    /// Interface without the member's address; needs CAP_NET_RAW
    #[arg(long, value_name = "NAME", required_if_eq("place", "card"))]
    interface: Option<String>,
    /// Number of the group
    #[arg(long, default_value_t = 0)]
    group: u16,
    /// Write events to this file, for `picnic storm check`
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Leave after COUNT messages and an idle second [default: Ctrl-C]
    #[arg(long, value_name = "COUNT")]
    messages: Option<u64>,
}

/// Where members run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlaceArg {
    /// In programs on the host
    Host,
    /// On cards, connected by cables
    Card,
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// Where the protocol runs: in threads over loopback, or on cards
    #[arg(long, value_enum, default_value_t = PlaceArg::Host)]
    place: PlaceArg,
    /// Members of the group, 2 to 16
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=16))]
    members: u64,
    /// Bytes of a message, 16 to 1400
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(16..=1400))]
    payload: u64,
    /// Undelivered messages per sender, 1 to 1024
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    window: u64,
    /// Let all members send, not only the first
    #[arg(long)]
    all: bool,
    /// Percentage of packets that are lost, 0 to 50
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    loss: f64,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    duration: u64,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// The members' logs
    #[arg(required = true)]
    logs: Vec<PathBuf>,
}

fn member(text: &str) -> Result<(String, SocketAddr), String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=HOST:PORT")?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("expected a name without spaces before the =".to_owned());
    }
    let mut addresses = address.to_socket_addrs().map_err(|error| error.to_string())?;
    let address = addresses.next().ok_or("the host has no address")?;
    Ok((name.to_owned(), address))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=50.0).contains(&percent) { Ok(percent) } else { Err("allowed: 0 to 50".to_owned()) }
}

pub(crate) fn run(args: &StormArgs, json: bool) -> anyhow::Result<()> {
    match &args.command {
        StormCommand::Node(args) => node(args, json),
        StormCommand::Bench(args) => measure(args, json),
        StormCommand::Check(args) => compare(args, json),
    }
}

/// Silence after which a member is left out: longer than a busy machine keeps a process from its
/// core.
const SUSPECT_AFTER_NS: u64 = 5_000_000_000;

/// A number that no earlier process of this member has had.
fn incarnation() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_millis() as u32) ^ std::process::id().rotate_left(16)
}

/// Output of a member at its end with `--json`.
#[derive(Serialize)]
struct Left<'a> {
    member: &'a str,
    counts: Counts,
}

fn node(args: &NodeArgs, json: bool) -> anyhow::Result<()> {
    let names: Vec<String> = args.members.iter().map(|(name, _)| name.clone()).collect();
    let addresses: Vec<SocketAddr> = args.members.iter().map(|(_, address)| *address).collect();
    let Some(me) = names.iter().position(|name| *name == args.name) else {
        let message = format!("NAME: found {}, allowed: {}", args.name, names.join(", "));
        return Err(Usage(message).into());
    };
    let to: Box<dyn Write> = match &args.log {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| path.display().to_string())?,
        )),
        None => Box::new(io::sink()),
    };
    let log = Log::new(to, &names, me)?;
    signals::stop_flag()?;
    if let (PlaceArg::Card, Some(interface)) = (args.place, &args.interface) {
        let counts = card::run(args, interface, &names, log, json)?;
        return if json { output::print_json(&counts) } else { Ok(()) };
    }
    let settings = Settings {
        group: args.group,
        members: names.clone(),
        me: me as u8,
        suspect_after_ns: SUSPECT_AFTER_NS,
        incarnation: incarnation(),
        ..Settings::default()
    };
    let node = Node::new(settings, &addresses).map_err(|error| match error {
        NodeError::Settings(_) => Usage(error.to_string()).into(),
        NodeError::Socket(..) => anyhow::Error::from(error),
    })?;
    let counts =
        Session { node, log, input: Input::default(), names: &names }.run(args.messages, json)?;
    if json { output::print_json(&Left { member: &args.name, counts }) } else { Ok(()) }
}

/// A member at work.
struct Session<'a> {
    node: Node,
    log: Log<Box<dyn Write>>,
    input: Input,
    names: &'a [String],
}

impl Session<'_> {
    fn run(mut self, messages: Option<u64>, quiet: bool) -> anyhow::Result<Counts> {
        let mut active = Instant::now();
        let (mut view, mut was_outside) = (0, false);
        let mut strangers = (false, false);
        let mut text = String::new();
        while !signals::is_asked() {
            let received = self.node.receive()?;
            self.tell_strangers(&mut strangers);
            let now_in = self.node.member().view();
            was_outside |= self.node.member().state() == State::Outside;
            if now_in != view && self.node.member().state() == State::Running {
                if was_outside || now_in > view + 1 {
                    self.log.joined()?;
                }
                (view, was_outside) = (now_in, false);
                self.tell_view();
            }
            while let Some(delivery) = self.node.deliver() {
                self.log.delivered(&delivery)?;
                text += &self.names[usize::from(delivery.sender)];
                text.push('\t');
                text += &String::from_utf8_lossy(delivery.payload);
                text.push('\n');
            }
            let any_delivered = !text.is_empty();
            if any_delivered && !quiet {
                output::print(&text)?;
            }
            text.clear();
            let submitted = self.submit()?;
            self.node.send()?;
            self.log.flush()?;
            if any_delivered || submitted {
                active = Instant::now();
            }
            if received > 0 || submitted {
                continue;
            }
            let delivered = self.node.member().counts().delivered;
            if messages.is_some_and(|messages| delivered >= messages)
                && active.elapsed() > Duration::from_secs(1)
            {
                break;
            }
            let stdin = io::stdin();
            let also = self.input.wants_more().then(|| stdin.as_fd());
            self.node.wait(also, Duration::from_millis(50))?;
        }
        self.log.end()?;
        Ok(*self.node.member().counts())
    }

    /// Says once that packets of members that cannot be of this group arrive.
    fn tell_strangers(&mut self, told: &mut (bool, bool)) {
        let counts = *self.node.member().counts();
        if counts.twins > 0 && !std::mem::replace(&mut told.0, true) {
            output::tell("another process has this member's name");
        }
        if counts.foreign > 0 && !std::mem::replace(&mut told.1, true) {
            output::tell("packets arrive from a process with another group or member list");
        }
    }

    fn tell_view(&mut self) {
        let member = self.node.member();
        let names: Vec<&str> =
            member.members().map(|number| self.names[usize::from(number)].as_str()).collect();
        output::tell(format!("view {}: {}", member.view(), names.join(", ")));
    }

    /// Submits arrived lines while the window has room; returns whether there were any.
    fn submit(&mut self) -> anyhow::Result<bool> {
        self.input.read()?;
        let mut any = false;
        while let Some(line) = self.input.line() {
            match self.node.member().submit(line) {
                Ok(position) => {
                    self.log.submitted(position)?;
                    self.input.used(line.len());
                    any = true;
                }
                Err(SubmitError::Full | SubmitError::NoView) => break,
                Err(error) => {
                    let length = line.len();
                    self.input.used(length);
                    output::tell(format!("a line was not sent: {error}"));
                }
            }
        }
        Ok(any)
    }
}

/// Lines of standard input that are read without waiting.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Input {
    /// Whether to wait for more. Not while lines wait for the window.
    fn wants_more(&self) -> bool {
        !self.has_ended && self.line().is_none()
    }

    fn read(&mut self) -> io::Result<()> {
        let stdin = io::stdin();
        if self.wants_more() && is_readable(stdin.as_fd())? {
            let mut chunk = [0; 4096];
            let count = stdin.lock().read(&mut chunk)?;
            self.bytes.extend(&chunk[..count]);
            if count == 0 {
                self.has_ended = true;
                if self.bytes.last().is_some_and(|last| *last != b'\n') {
                    self.bytes.push(b'\n');
                }
            }
        }
        Ok(())
    }

    fn line(&self) -> Option<&[u8]> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        Some(&self.bytes[..end])
    }

    fn used(&mut self, length: usize) {
        self.bytes.drain(..=length);
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What `storm bench` prints with `--json`.
#[derive(Serialize)]
struct Measured<'a> {
    place: &'static str,
    members: u64,
    all_send: bool,
    payload_bytes: u64,
    window_messages: u64,
    loss_percent: f64,
    duration_s: u64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

fn measure(args: &BenchArgs, json: bool) -> anyhow::Result<()> {
    let load = Load {
        members: args.members as usize,
        all_send: args.all,
        payload_bytes: args.payload as usize,
        window_messages: args.window as usize,
        loss: args.loss / 100.0,
        seed: args.seed,
        duration: Duration::from_secs(args.duration),
    };
    let (outcome, place) = match args.place {
        PlaceArg::Host => (bench::run(&load)?, "host"),
        PlaceArg::Card => (cards::on_cores(&load)?, "card"),
    };
    if json {
        return output::print_json(&Measured {
            place,
            members: args.members,
            all_send: args.all,
            payload_bytes: args.payload,
            window_messages: args.window,
            loss_percent: args.loss,
            duration_s: args.duration,
            outcome: &outcome,
        });
    }
    output::print(&text_of(args, &outcome))
}

fn text_of(args: &BenchArgs, outcome: &Outcome) -> String {
    let Outcome { latency_sender_ns: sender, latency_last_ns: last, .. } = outcome;
    let shared =
        if (outcome.cores as u64) < args.members { ", which the members share" } else { "" };
    let time = |ns: u64| output::nanoseconds(Some(ns));
    let place = match args.place {
        PlaceArg::Host => "on the host",
        PlaceArg::Card => "on cards",
    };
    format!(
        "{} members {place}, {} cores{shared}\n\
         {} messages/s of {} bytes: {:.1} Mb/s ordered, {:.1} Mb/s on the wire\n\
         latency at the sender p50 {}, p99 {}; at the last member p50 {}, p99 {}\n\
         per message and member: {:.0} ns of CPU, {:.2} sleeps, {:.2} packets; {} repeats in all\n",
        args.members,
        outcome.cores,
        output::rate(outcome.messages_per_second),
        args.payload,
        outcome.ordered_mbit_per_second,
        outcome.wire_mbit_per_second,
        time(sender.p50),
        time(sender.p99),
        time(last.p50),
        time(last.p99),
        outcome.cpu_ns_per_message,
        outcome.sleeps_per_message,
        outcome.packets_per_message,
        outcome.repeats,
    )
}

fn compare(args: &CheckArgs, json: bool) -> anyhow::Result<()> {
    let read = |path: &PathBuf| {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        Ok((path.display().to_string(), String::from_utf8_lossy(&text).into_owned()))
    };
    let texts: Vec<(String, String)> = args.logs.iter().map(read).collect::<anyhow::Result<_>>()?;
    let (mut logs, mut faults) = (Vec::new(), Vec::new());
    for (file, text) in &texts {
        match check::read(file, text) {
            Ok(log) => logs.push(log),
            Err(found) => faults.extend(found),
        }
    }
    if !faults.is_empty() {
        return Err(Usage(faults.join("\n")).into());
    }
    let report = check::compare(&logs);
    match json {
        true => output::print_json(&report)?,
        false => {
            let mut text = String::new();
            for member in &report.members {
                let check::Summary { member, submitted, delivered, is_whole } = member;
                let end = if *is_whole { "" } else { ", no end" };
                text += &format!("{member}: {submitted} submitted, {delivered} delivered{end}\n");
            }
            report.problems.iter().for_each(|problem| text += &format!("{problem}\n"));
            output::print(&text)?;
        }
    }
    if !report.problems.is_empty() {
        bail!("the members' orders differ");
    }
    Ok(())
}
