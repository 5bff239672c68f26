//! `picnic capture`: writes the packets of a running card as pcapng to a file or a pipe.

use crate::control::{CardChoice, Connection};
use crate::failure::Usage;
use crate::output::{self, count};
use anyhow::{Context, bail};
use clap::builder::UnknownArgumentValueParser;
use clap::{Args, ValueEnum};
use picnic_machine::signals;
use picnic_ports::stream;
use rustix::termios::isatty;
use serde_json::{Value, json};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest time until Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic capture -w all.pcapng                      the wires, both ways, until Ctrl-C
  picnic capture -w - | tshark -r -                 live
  picnic capture -s queue -s rx -c 1000 -w q.pcapng
  picnic capture -g vm0 -w vm0.pcapng               packets for one guest
  picnic ctl capture start -w long.pcapng           continues after the command has ended

Each wire, queue or function is an interface of the file. Packets that come too fast for the file
or the reader are counted there (isb_ifdrop) and cost the card nothing.")]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    choice: CardChoice,
    #[command(flatten)]
    pub(crate) what: CaptureWhat,
}

/// Settings of a capture.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureWhat {
    /// Stage to capture; may be repeated [default: wire]
    #[arg(long, short, value_enum)]
    stage: Vec<Stage>,
    /// Only queues of this guest; may be repeated; alone: stage queue
    #[arg(long, short, value_name = "NAME")]
    guest: Vec<String>,
    /// The pcapng file to write;
    /// - for standard output (the default unless it is a terminal)
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The name of --write in other programs
    #[arg(long, short = 'o', hide = true, value_name = "FILE",
          value_parser = UnknownArgumentValueParser::suggest_arg("--write"))]
    output: Option<String>,
    /// Stop after this many packets
    #[arg(long, short, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop when the file has this many bytes (whole packets)
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    size: Option<u64>,
    /// Keep this many bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 262_144,
          value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snap: u32,
    /// Buffer memory per interface, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    buffer: u64,
}

/// A stage for captures.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stage {
    /// At each wire, in both directions
    Wire,
    /// Before each function of the rx chain
    Rx,
    /// At each target queue
    Queue,
    /// Before each function of the tx chain
    Tx,
}

impl CaptureWhat {
    /// Whether the packets are written to standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        self.write.as_deref().is_none_or(|path| path == Path::new("-"))
    }

    /// Starts the capture, over this connection.
    pub(crate) fn start(
        &self,
        connection: &mut Connection,
        attached: bool,
    ) -> anyhow::Result<Value> {
        let stages: Vec<_> = self.stage.iter().filter_map(ValueEnum::to_possible_value).collect();
        let mut params = json!({
            "snap_bytes": self.snap,
            "buffer_bytes": self.buffer,
            "attached": attached,
        });
        if !stages.is_empty() {
            params["stages"] = stages.iter().map(|stage| stage.get_name()).collect();
        } else if !self.guest.is_empty() {
            params["stages"] = json!(["queue"]);
        }
        if !self.guest.is_empty() {
            params["guests"] = json!(self.guest);
        }
        if let Some(count) = self.count {
            params["packets"] = count.into();
        }
        if let Some(size) = self.size {
            params["bytes"] = size.into();
        }
        match self.write.as_deref().filter(|_| !self.is_stdout()) {
            None => connection.call_with(io::stdout().as_fd(), "capture.start", params),
            Some(path) => {
                // Created here, with the user's rights.
                let file = stream::create(path, signals::is_asked)
                    .with_context(|| format!("{}: cannot be created", path.display()))?;
                connection.call_with(file.as_fd(), "capture.start", params)
            }
        }
    }
}

pub(crate) fn run(args: &CaptureArgs, json: bool) -> anyhow::Result<()> {
    let what = &args.what;
    if what.is_stdout() && isatty(io::stdout()) {
        let message = "standard output is a terminal: give --write FILE, or pipe the output";
        return Err(Usage(message.into()).into());
    }
    if what.is_stdout() && json {
        let message = "the capture goes to standard output, so --json needs --write FILE";
        return Err(Usage(message.into()).into());
    }
    let stop = signals::stop_flag()?;
    let mut connection = args.choice.connect()?;
    let started = what.start(&mut connection, true)?;
    if let Some(note) = started["note"].as_str() {
        output::tell(note);
    }
    let number = &started["capture"];
    let mut call = connection.send("capture.wait", json!({ "capture": number }))?;
    let mut is_stopping = false;
    let outcome = loop {
        if stop.load(Ordering::Acquire) && !is_stopping {
            is_stopping = true;
            call = connection.send("capture.stop", json!({ "capture": number }))?;
        }
        if let Some(outcome) = connection.poll(call, LOOK)? {
            break outcome;
        }
    };
    if json {
        output::print_json(&outcome)?;
    } else {
        output::tell(summary(&outcome));
    }
    match outcome["error"].as_str() {
        // The reader has seen enough.
        Some(error) if what.is_stdout() && error.contains("Broken pipe") => Ok(()),
        Some(error) => bail!("the capture ended early: {error}"),
        None => Ok(()),
    }
}

/// The result of a capture, in a line.
pub(crate) fn summary(outcome: &Value) -> String {
    let written = count(outcome["packets_written"].as_u64().unwrap_or(0));
    match outcome["packets_lost"].as_u64().unwrap_or(0) {
        0 => format!("{written} packets captured"),
        lost => format!("{written} packets captured, {} lost on the way to the file", count(lost)),
    }
}
