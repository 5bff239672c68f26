//! `picnic ctl`: a running card, asked and changed over its socket.

use super::filter::{self, FilterArgs, ScironArgs};
use super::tasks::{self, TasksArgs};
use crate::commands::capture::{self, CaptureWhat};
use crate::control::{CardChoice, Connection};
use crate::failure::Usage;
use crate::output::{self, Column, count};
use crate::summary;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use picnic_control::report::Report;
use picnic_core::config::CardFile;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a card may take to stop.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl                              what runs where
  picnic ctl stats --json                 the figures of `picnic run --json`, now
  picnic ctl rss table 0,0,1,2            which queue each entry means
  picnic ctl rss key symmetric
  picnic ctl moderation static --rx-usecs 50 --rx-frames 32
  picnic ctl moderation --poll-usecs 20   how long targets poll on after the last packet
  picnic ctl filter add protocol=icmp action=drop
  picnic ctl sciron reload firewall.rules
  picnic ctl tasks create heartbeat period_us=1000
  picnic ctl tasks kill heartbeat
  picnic ctl swap rx other.toml           its [[rx]] sections in place of the rx chain
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
    /// What runs where (the default)
    Info,
    /// The figures at this moment
    Stats,
    /// Hash, key and indirection table of the rx chain's rss
    Rss(RssArgs),
    /// When target cores are interrupted, and how long they poll on
    Moderation(ModerationArgs),
    /// The functions of both chains
    Chain,
    /// Put other functions in place of a chain
    Swap {
        /// The chain
        chain: ChainArg,
        /// A card file, of which the [[rx]] or [[tx]] sections are taken
        file: PathBuf,
    },
    /// Captures that go on when this command has ended
    #[command(subcommand)]
    Capture(CaptureCommand),
    /// Filters: list, show, add, change, remove, reload
    Filter(FilterArgs),
    /// SCIRON's rules: show, reload
    Sciron(ScironArgs),
    /// Tasks of NIC OS: list, show, create, kill, suspend, resume, set-priority
    Tasks(TasksArgs),
    /// Stop the card, and wait until it has
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

#[derive(Debug, Subcommand)]
enum CaptureCommand {
    /// Begin one; its number is printed
    Start(CaptureWhat),
    /// End one, and wait until its file is whole
    Stop {
        /// Its number; may be left out if one runs
        capture: Option<u32>,
    },
    /// Those that run (the default)
    List,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ChainArg {
    /// Wire to target
    #[default]
    Rx,
    /// Target to wire
    Tx,
}

impl ChainArg {
    fn name(self) -> &'static str {
        match self {
            ChainArg::Rx => "rx",
            ChainArg::Tx => "tx",
        }
    }
}

#[derive(Debug, Args)]
struct RssArgs {
    /// The chain it is in
    #[arg(long, value_enum, default_value = "rx", global = true)]
    chain: ChainArg,
    /// Its place in the chain, from 0; the first rss if left out
    #[arg(long, global = true)]
    position: Option<usize>,
    #[command(subcommand)]
    command: Option<RssCommand>,
}

#[derive(Debug, Subcommand)]
enum RssCommand {
    /// Show them (the default)
    Show,
    /// Change the Toeplitz key
    Key {
        /// 40 to 64 bytes in hex, or "symmetric"
        key: String,
    },
    /// Change the indirection table
    Table {
        /// The queue of each entry, 1 to 4096 of them, with commas between
        #[arg(value_delimiter = ',', required_unless_present = "uniform")]
        queues: Vec<u16>,
        /// That many entries instead, spread over all queues in turn
        #[arg(long, value_name = "ENTRIES", conflicts_with = "queues")]
        uniform: Option<usize>,
    },
}

#[derive(Debug, Args)]
struct ModerationArgs {
    /// Change it to this; without, it is shown
    mode: Option<Mode>,
    /// Microseconds a packet may wait; with adaptive, the longest delay
    #[arg(long, requires = "mode")]
    rx_usecs: Option<u32>,
    /// Packets that may wait; 0 for no limit
    #[arg(long, requires = "mode")]
    rx_frames: Option<u32>,
    /// Microseconds that targets poll on without packets before they wait for an interrupt
    #[arg(long)]
    poll_usecs: Option<u32>,
    /// Microseconds that packets of the host may wait for others while it keeps sending
    #[arg(long)]
    tx_usecs: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// An interrupt at each packet
    None,
    /// After a time or a count
    Static,
    /// After a time that follows the packet rate
    Adaptive,
}

pub(crate) fn run(args: &CtlArgs, json: bool) -> anyhow::Result<()> {
    let (method, params) = match args.command.as_ref().unwrap_or(&CtlCommand::Info) {
        CtlCommand::Info => ("card.info", json!({})),
        CtlCommand::Stats => ("card.stats", json!({})),
        CtlCommand::Rss(rss) => rss_call(rss),
        CtlCommand::Moderation(moderation) => moderation_call(moderation),
        CtlCommand::Chain => ("chain.list", json!({})),
        CtlCommand::Swap { chain, file } => ("chain.swap", swap_params(*chain, file)?),
        CtlCommand::Capture(command) => {
            return captures(&mut args.choice.connect()?, command, json);
        }
        CtlCommand::Filter(filter) => {
            let call = filter::filter_call(filter, || args.choice.connect(), json)?;
            return call.map_or(Ok(()), |call| tell(&mut args.choice.connect()?, call, json));
        }
        CtlCommand::Sciron(sciron) => {
            let call = filter::sciron_call(sciron, || args.choice.connect())?;
            return tell(&mut args.choice.connect()?, call, json);
        }
        CtlCommand::Tasks(tasks) => {
            let call = tasks::call(tasks)?;
            return tell(&mut args.choice.connect()?, call, json);
        }
        CtlCommand::Stop => return stop(&mut args.choice.connect()?, json),
        CtlCommand::Call { method, params } => {
            let params: Map<String, Value> = serde_json::from_str(params)
                .map_err(|error| Usage(format!("PARAMS: wanted is a JSON object: {error}")))?;
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
        "card.stats" => stats(&mut args.choice.connect()?, result)?,
        "rss.get" => rss(&result),
        "rss.set" => {
            format!("{} entries of the table moved\n", count(number(&result["moved_entries"])))
        }
        "moderation.get" => format!("moderation {}\n", moderation(&result)),
        "moderation.set" => format!(
            "moderation {}, was {}\n",
            moderation(&result["moderation"]),
            moderation(&result["replaced"])
        ),
        "chain.list" => chains(&result),
        _ => swapped(&result),
    };
    output::print(&text)
}

/// Makes a call and prints its result.
fn tell(connection: &mut Connection, call: filter::Call, json: bool) -> anyhow::Result<()> {
    let result = connection.call(call.method, call.params)?;
    if json { output::print_json(&result) } else { output::print(&(call.text)(&result)) }
}

fn rss_call(args: &RssArgs) -> (&'static str, Value) {
    let mut params = json!({ "chain": args.chain.name() });
    if let Some(position) = args.position {
        params["position"] = position.into();
    }
    match args.command.as_ref().unwrap_or(&RssCommand::Show) {
        RssCommand::Show => ("rss.get", params),
        RssCommand::Key { key } => {
            params["key"] = key.as_str().into();
            ("rss.set", params)
        }
        RssCommand::Table { uniform: Some(entries), .. } => {
            params["table_size"] = (*entries).into();
            ("rss.set", params)
        }
        RssCommand::Table { queues, uniform: None } => {
            params["table"] = queues.as_slice().into();
            ("rss.set", params)
        }
    }
}

fn moderation_call(args: &ModerationArgs) -> (&'static str, Value) {
    let mode = args.mode.and_then(|mode| mode.to_possible_value());
    let mut params = Map::new();
    if let Some(mode) = mode {
        params.insert("mode".into(), mode.get_name().into());
    }
    for (name, value) in [
        ("rx_usecs", args.rx_usecs),
        ("rx_frames", args.rx_frames),
        ("poll_usecs", args.poll_usecs),
        ("tx_usecs", args.tx_usecs),
    ] {
        if let Some(value) = value {
            params.insert(name.into(), value.into());
        }
    }
    (if params.is_empty() { "moderation.get" } else { "moderation.set" }, Value::Object(params))
}

fn swap_params(chain: ChainArg, file: &PathBuf) -> anyhow::Result<Value> {
    let text = CardFile::read(file)?;
    // The card may run elsewhere: relative paths in the file start from where it is here.
    let file = std::path::absolute(file).context("the working folder is gone")?;
    let Some(path) = file.to_str() else {
        return Err(
            Usage(format!("{}: a path without UTF-8 cannot be sent", file.display())).into()
        );
    };
    Ok(json!({ "chain": chain.name(), "toml": text, "file": path }))
}

fn captures(
    connection: &mut Connection,
    command: &CaptureCommand,
    json: bool,
) -> anyhow::Result<()> {
    let (result, text) = match command {
        CaptureCommand::Start(what) => {
            if what.is_stdout() {
                let message = "wanted is --write FILE: this command ends before the capture does";
                return Err(Usage(message.into()).into());
            }
            let started = what.start(connection, false)?;
            let text =
                format!("capture {} of {}\n", started["capture"], text_of(&started["interfaces"]));
            (started, text)
        }
        CaptureCommand::Stop { capture } => {
            let capture = match capture {
                Some(number) => *number,
                None => only_capture(&connection.call("capture.list", json!({}))?)?,
            };
            let outcome = connection.call("capture.stop", json!({ "capture": capture }))?;
            let mut text = format!("{}\n", capture::summary(&outcome));
            if let Some(error) = outcome["error"].as_str() {
                text.push_str(&format!("it ended early: {error}\n"));
            }
            (outcome, text)
        }
        CaptureCommand::List => {
            let list = connection.call("capture.list", json!({}))?;
            let text = capture_table(&list);
            (list, text)
        }
    };
    if json { output::print_json(&result) } else { output::print(&text) }
}

fn only_capture(list: &Value) -> anyhow::Result<u32> {
    let numbers: Vec<_> = list["captures"].as_array().into_iter().flatten().collect();
    match &numbers[..] {
        [] => bail!("no capture runs"),
        [only] => Ok(number(&only["capture"]) as u32),
        several => {
            let numbers: Vec<_> = several.iter().map(|one| text_of(&one["capture"])).collect();
            let message = format!("several captures run, say which: {}", numbers.join(", "));
            Err(Usage(message).into())
        }
    }
}

fn capture_table(list: &Value) -> String {
    let captures = list["captures"].as_array().into_iter().flatten();
    let rows = captures.map(|capture| {
        vec![
            text_of(&capture["capture"]),
            text_of(&capture["stages"]),
            format!("{:.1}", capture["elapsed_s"].as_f64().unwrap_or(0.0)),
            count(number(&capture["packets_written"])),
            count(number(&capture["packets_lost"])),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return "no capture runs\n".into();
    }
    let columns = [
        Column::Number("capture"),
        Column::Text("stages"),
        Column::Number("seconds"),
        Column::Number("packets"),
        Column::Number("lost"),
    ];
    output::table(&columns, rows)
}

/// Asks the card to stop; it closes the connection when it has.
fn stop(connection: &mut Connection, json: bool) -> anyhow::Result<()> {
    let info = connection.call("card.info", json!({}))?;
    connection.call("card.stop", json!({}))?;
    let give_up = Instant::now() + PATIENCE;
    while connection.path().exists() && matches!(connection.ended(), Ok(false)) {
        if Instant::now() >= give_up {
            bail!("the card has not stopped for {} s", PATIENCE.as_secs());
        }
    }
    match json {
        true => output::print_json(&json!({ "name": info["name"], "stopped": true })),
        false => output::print(&format!("{} has stopped\n", text_of(&info["name"]))),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A value as people write it.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text_of).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn info(card: &Value) -> String {
    let elapsed = card["elapsed_s"].as_f64().unwrap_or(0.0);
    let chain = |name: &str| match card[name].as_array() {
        Some(functions) if !functions.is_empty() => {
            functions.iter().map(text_of).collect::<Vec<_>>().join(" -> ")
        }
        _ => "-".into(),
    };
    let file = match &card["file"] {
        Value::Null => "the built-in card".into(),
        file => text_of(file),
    };
    let lines = [
        ("card", format!("{}, pid {}, for {elapsed:.1} s", text_of(&card["name"]), card["pid"])),
        ("file", file),
        ("borrowed core", text_of(&card["borrowed_core"])),
        ("target cores", text_of(&card["target_cores"])),
        ("wires", text_of(&card["wires"])),
        ("rx chain", chain("rx")),
        ("tx chain", chain("tx")),
        ("host", text_of(&card["attachment"])),
        ("moderation", moderation(&card["moderation"])),
    ];
    lines.into_iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
}

fn stats(connection: &mut Connection, result: Value) -> anyhow::Result<String> {
    let name = text_of(&connection.call("card.info", json!({}))?["name"]);
    let report: Report =
        serde_json::from_value(result).context("the card's figures are of another version")?;
    Ok(summary::text(&name, &report, None))
}

fn moderation(value: &Value) -> String {
    let usecs = text_of(&value["rx_usecs"]);
    let mode = match value["mode"].as_str() {
        Some("static") if number(&value["rx_frames"]) == 0 => format!("static, after {usecs} µs"),
        Some("static") => {
            format!("static, after {usecs} µs or {} packets", value["rx_frames"])
        }
        Some("adaptive") => format!("adaptive, after {usecs} µs at most"),
        other => other.unwrap_or("unknown").into(),
    };
    let mut text = mode;
    match number(&value["poll_usecs"]) {
        0 => {}
        usecs => text += &format!(", polling on for {usecs} µs"),
    }
    match number(&value["tx_usecs"]) {
        0 => {}
        usecs => text += &format!(", tx after {usecs} µs"),
    }
    text
}

fn rss(rss: &Value) -> String {
    let mut text = format!(
        "rss at {}[{}]: hash {}\n",
        text_of(&rss["chain"]),
        rss["position"],
        text_of(&rss["hash"])
    );
    match rss["key"].as_str() {
        Some(key) => {
            let note = if rss["symmetric"] == true { " (symmetric)" } else { "" };
            text.push_str(&format!("key {key}{note}\n"));
        }
        None => text.push_str(&format!("initial value {}\n", rss["jhash_init"])),
    }
    let table: Vec<_> = rss["table"].as_array().into_iter().flatten().map(text_of).collect();
    text.push_str(&format!("table of {} entries, {} queues\n", table.len(), rss["queues"]));
    let width = table.iter().map(String::len).max().unwrap_or(1);
    for (row, entries) in table.chunks(16).enumerate() {
        text.push_str(&format!("{:>5}:", row * 16));
        entries.iter().for_each(|entry| text.push_str(&format!(" {entry:>width$}")));
        text.push('\n');
    }
    text
}

fn chains(lists: &Value) -> String {
    let rows = ["rx", "tx"].into_iter().flat_map(|chain| {
        lists[chain].as_array().into_iter().flatten().map(move |function| {
            vec![
                format!("{chain}[{}]", function["position"]),
                text_of(&function["function"]),
                count(number(&function["packets"])),
                count(number(&function["dropped"])),
            ]
        })
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return "no functions: rx packets go to the default queue, tx packets to their wire\n"
            .into();
    }
    let columns = [
        Column::Text("place"),
        Column::Text("function"),
        Column::Number("packets"),
        Column::Number("dropped"),
    ];
    output::table(&columns, rows)
}

fn swapped(result: &Value) -> String {
    let names = |list: &Value, key: Option<&str>| {
        let items = list.as_array().into_iter().flatten();
        let names: Vec<_> = items.map(|item| text_of(key.map_or(item, |key| &item[key]))).collect();
        if names.is_empty() { "no functions".to_owned() } else { names.join(" -> ") }
    };
    format!(
        "{} chain: {}, was {}\n",
        text_of(&result["chain"]),
        names(&result["functions"], None),
        names(&result["replaced"], Some("name"))
    )
}
