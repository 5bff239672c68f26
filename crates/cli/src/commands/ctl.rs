//! `picnic ctl`: queries and changes a running card over its socket.

mod components;
pub(super) mod figures;
mod methods;
pub(super) mod moderation;
mod sciron;
mod text;

use super::later::later;
use crate::control::{CardChoice, Connection};
use crate::failure::Usage;
use crate::output;
use anyhow::bail;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use components::ComponentCall;
use figures::{LatencyArgs, StatsArgs};
use methods::MethodCall;
use sciron::ScironArgs;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use text::text_of;

/// Longest wait for a card to stop.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl                              the card, its parts and its cores
  picnic ctl stats --json                 the figures of `picnic run --json`, now
  picnic ctl stats --over 5               the figures of the next five seconds
  picnic ctl latency --hgrm               percentiles for HdrHistogram's tools
  picnic ctl rss table 0,0,1,2            the queue of each entry
  picnic ctl rss key symmetric
  picnic ctl sample every 1000            the rate of the first sample in the rx chain
  picnic ctl generator rate-pps 50000     of the first generator; also: pcap rewind
  picnic ctl heartbeat wire 1             the task of that kind; --task chooses among several
  picnic ctl moderation static --rx-usecs 50        other settings stay
  picnic ctl moderation --poll-usecs 20   how long targets keep polling after a packet
  picnic ctl moderation --tx-complete interrupt     waiting hosts are notified of room to send
  picnic ctl filter add protocol=icmp action=drop
  picnic ctl sciron reload firewall.rules
  picnic ctl tasks create heartbeat period_us=1000
  picnic ctl tasks kill heartbeat
  picnic ctl swap rx other.toml           replaces the rx chain with its [[rx]] sections
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
    /// A method of the card, or a command of a component
    #[command(flatten)]
    Declared(Declared),
    /// Show the figures: since the start, over some seconds, or since a reset
    Stats(StatsArgs),
    /// Show latencies by queue, also as HdrHistogram's text
    Latency(LatencyArgs),
    /// SCIRON's rules: show, reload
    Sciron(ScironArgs),
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

/// A call derived from the declarations of the card and its components.
#[derive(Clone, Debug)]
enum Declared {
    Card(Box<MethodCall>),
    /// `picnic functions NAME` lists the commands of a function.
    Component(ComponentCall),
}

impl Declared {
    fn of(name: &str, given: &ArgMatches) -> Option<Self> {
        let of_card = MethodCall::of(name, given).map(|call| Declared::Card(Box::new(call)));
        of_card.or_else(|| ComponentCall::of(name, given).map(Declared::Component))
    }

    /// Calls it; the result, and that for people.
    fn run(&self, choice: &CardChoice) -> anyhow::Result<(Value, String)> {
        match self {
            Declared::Card(call) => call.run(choice),
            Declared::Component(call) => call.run(choice),
        }
    }
}

impl FromArgMatches for Declared {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let call = matches.subcommand().and_then(|(name, given)| Declared::of(name, given));
        call.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Declared {
    fn augment_subcommands(command: Command) -> Command {
        let command = command.subcommands(MethodCall::commands());
        // When they are asked for: at each start they would take half of its time.
        later(command, |command| command.subcommands(ComponentCall::commands()))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        MethodCall::has(name) || ComponentCall::has(name)
    }
}

pub(crate) fn run(args: &CtlArgs, json: bool) -> anyhow::Result<()> {
    let choice = &args.choice;
    let (result, text) = match &args.command {
        None => MethodCall::of("info", &ArgMatches::default()).unwrap_or_default().run(choice)?,
        Some(CtlCommand::Declared(call)) => call.run(choice)?,
        Some(CtlCommand::Stats(args)) => figures::stats(args, &mut choice.connect()?)?,
        Some(CtlCommand::Latency(args)) => figures::latencies(args, &mut choice.connect()?)?,
        Some(CtlCommand::Sciron(rules)) => sciron::run(rules, choice)?,
        Some(CtlCommand::Stop) => stop(&mut choice.connect()?)?,
        Some(CtlCommand::Call { method, params }) => {
            let params: Map<String, Value> = serde_json::from_str(params)
                .map_err(|error| Usage(format!("PARAMS: allowed: a JSON object: {error}")))?;
            let result = choice.connect()?.call(method, Value::Object(params))?;
            return output::print_json(&result);
        }
    };
    output::show(&result, json, || text)
}

/// Requests the card's stop; the card then closes the connection.
fn stop(connection: &mut Connection) -> anyhow::Result<(Value, String)> {
    let info = connection.call("card.info", json!({}))?;
    connection.call("card.stop", json!({}))?;
    let give_up = Instant::now() + PATIENCE;
    while connection.path().exists() && matches!(connection.ended(), Ok(false)) {
        if Instant::now() >= give_up {
            bail!("the card has not stopped after {} s", PATIENCE.as_secs());
        }
    }
    let text = format!("{} has stopped\n", text_of(&info["name"]));
    Ok((json!({ "name": info["name"], "stopped": true }), text))
}
