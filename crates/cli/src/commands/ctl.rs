//! `picnic ctl`: queries and changes a running card over its socket.

mod captures;
mod components;
pub(super) mod figures;
mod methods;
pub(super) mod moderation;
mod sciron;
mod text;

use super::keyed::direction;
use crate::control::{CardChoice, Connection};
use crate::failure::Usage;
use crate::output;
use anyhow::{Context, bail};
use captures::CaptureCommand;
use clap::{Args, Subcommand};
use components::ComponentCall;
use figures::{LatencyArgs, StatsArgs};
use methods::MethodCall;
use moderation::ModerationArgs;
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use sciron::ScironArgs;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use text::{chains, info, swapped, text_of};

/// Longest wait for a card to stop.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl                              what runs where
  picnic ctl stats --json                 the figures of `picnic run --json`, now
  picnic ctl stats --over 5               those of the next five seconds
  picnic ctl latency --hgrm               percentiles for HdrHistogram's tools
  picnic ctl rss table 0,0,1,2            the queue of each entry
  picnic ctl rss key symmetric
  picnic ctl sample every 1000            of the first sample in the rx chain
  picnic ctl generator rate-pps 50000     of the first generator; also: pcap rewind
  picnic ctl heartbeat wire 1             the task of that kind; --task chooses among several
  picnic ctl moderation static --rx-usecs 50        other settings stay
  picnic ctl moderation --poll-usecs 20   how long targets keep polling after a packet
  picnic ctl moderation --tx-complete interrupt     waiting hosts are notified of room to send
  picnic ctl filter add protocol=icmp action=drop
  picnic ctl sciron reload firewall.rules
  picnic ctl tasks create heartbeat period_us=1000
  picnic ctl tasks kill heartbeat
  picnic ctl swap rx other.toml           replaces the rx chain by its [[rx]] sections
  picnic ctl capture start --write long.pcapng --stage queue
  picnic ctl --card web stop
  picnic ctl call rss.set '{\"table_size\": 64}'

The protocol: docs/control.md.")]
pub(crate) struct CtlArgs {
    #[command(flatten)]
    choice: CardChoice,
    #[command(subcommand)]
    command: Option<CtlCommand>,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// Show the card and its cores (the default)
    Info,
    /// Show the figures: since the start, over some seconds, or since a reset
    Stats(StatsArgs),
    /// Show latencies by queue, also as HdrHistogram's text
    Latency(LatencyArgs),
    /// Show or change interrupt moderation and polling of target cores
    Moderation(ModerationArgs),
    /// List the functions of both chains
    Chain,
    /// Replace a chain
    Swap {
        /// The chain
        #[arg(value_parser = direction())]
        chain: Direction,
        /// A card file; its [[rx]] or [[tx]] sections are used
        file: PathBuf,
    },
    /// Captures that continue after this command
    #[command(subcommand)]
    Capture(CaptureCommand),
    /// Methods of the card
    #[command(flatten)]
    Method(MethodCall),
    /// SCIRON's rules: show, reload
    Sciron(ScironArgs),
    /// A command of a component; `picnic functions NAME` lists those of a function
    #[command(flatten)]
    Component(ComponentCall),
    /// Stop the card and wait for its end
    Stop,
    /// Call a method by its name and print the result
    Call {
        /// The method, such as card.info
        method: String,
        /// Its parameters, a JSON object
        #[arg(default_value = "{}")]
        params: String,
    },
}

pub(crate) fn run(args: &CtlArgs, json: bool) -> anyhow::Result<()> {
    let (method, params) = match args.command.as_ref().unwrap_or(&CtlCommand::Info) {
        CtlCommand::Info => ("card.info", json!({})),
        CtlCommand::Stats(stats) => {
            return figures::stats(stats, &mut args.choice.connect()?, json);
        }
        CtlCommand::Latency(latency) => {
            return figures::latencies(latency, &mut args.choice.connect()?, json);
        }
        CtlCommand::Component(component) => {
            let (method, params) = component.call();
            let result = args.choice.connect()?.call(&method, params)?;
            return match json {
                true => output::print_json(&result),
                false => output::print(&component.text(&result)),
            };
        }
        CtlCommand::Moderation(change) => {
            let result = change.call(&mut args.choice.connect()?)?;
            return match json {
                true => output::print_json(&result),
                false => output::print(&moderation::text(&result)),
            };
        }
        CtlCommand::Chain => ("chain.list", json!({})),
        CtlCommand::Swap { chain, file } => ("chain.swap", swap_params(*chain, file)?),
        CtlCommand::Capture(command) => {
            return captures::run(&mut args.choice.connect()?, command, json);
        }
        CtlCommand::Method(call) => return call.run(&args.choice, json),
        CtlCommand::Sciron(rules) => return sciron::run(rules, &args.choice, json),
        CtlCommand::Stop => return stop(&mut args.choice.connect()?, json),
        CtlCommand::Call { method, params } => {
            let params: Map<String, Value> = serde_json::from_str(params)
                .map_err(|error| Usage(format!("PARAMS: allowed: a JSON object: {error}")))?;
            let result = args.choice.connect()?.call(method, Value::Object(params))?;
            return output::print_json(&result);
        }
    };
    let result = args.choice.connect()?.call(method, params)?;
    if json {
        return output::print_json(&result);
    }
    let text = match method {
        "card.info" => info(&result),
        "chain.list" => chains(&result),
        _ => swapped(&result),
    };
    output::print(&text)
}

fn swap_params(chain: Direction, file: &PathBuf) -> anyhow::Result<Value> {
    let text = CardFile::read(file)?;
    // The card may run in another directory: relative paths in the file start here.
    let file = std::path::absolute(file).context("the working directory no longer exists")?;
    let Some(path) = file.to_str() else {
        return Err(
            Usage(format!("{}: a path without UTF-8 cannot be sent", file.display())).into()
        );
    };
    Ok(json!({ "chain": chain.name(), "toml": text, "file": path }))
}

/// Requests the card's stop; the card then closes the connection.
fn stop(connection: &mut Connection, json: bool) -> anyhow::Result<()> {
    let info = connection.call("card.info", json!({}))?;
    connection.call("card.stop", json!({}))?;
    let give_up = Instant::now() + PATIENCE;
    while connection.path().exists() && matches!(connection.ended(), Ok(false)) {
        if Instant::now() >= give_up {
            bail!("the card has not stopped after {} s", PATIENCE.as_secs());
        }
    }
    match json {
        true => output::print_json(&json!({ "name": info["name"], "stopped": true })),
        false => output::print(&format!("{} has stopped\n", text_of(&info["name"]))),
    }
}
