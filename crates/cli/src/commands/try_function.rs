//! `picnic try`: runs one function on a capture, packet by packet.

use super::keyed::direction;
use crate::failure::Usage;
use crate::output;
use crate::registries::{registries, sections};
use anyhow::{Context, bail};
use clap::Args;
use picnic_core::config::{CardFile, Section, Setting};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::files::Files;
use picnic_core::packet::headers::Front;
use picnic_core::packet::layers;
use picnic_core::registry::{BuildContext, find};
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Released, Trial};
use picnic_ports::pcap::CaptureFile;
use picnic_ports::pcapng::{self, Writer};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic try rss --in web.pcap
  picnic try ./my.so --in dns.pcap --set queue=3
  picnic try --in dns.pcap --card my.toml            the first function of the card's rx chain
  picnic try ./my.so --in dns.pcap --out after.pcapng
  picnic try ./my.so --in dns.pcap --expect after.pcapng && echo as before

The clock follows the capture, from 0. --out and --expect contain the packets that leave, in that
order, without packets that are dropped or kept.
Exit codes: 0 good; 1 not as expected, or a packet without a fate; 2 usage, keys or files.")]
pub(crate) struct TryArgs {
    /// A function by name, or a shared object by path (with a slash, or ending in .so); with
    /// --card, a function of the card's chain [default: its first]
    #[arg(required_unless_present = "card")]
    function: Option<String>,
    /// Take the function's keys, and queues, wires and buffers, from this card file
    #[arg(long, value_name = "CARD.toml")]
    card: Option<PathBuf>,
    /// The capture to read, pcap or pcapng
    #[arg(long = "in", value_name = "PCAP")]
    input: PathBuf,
    /// Interface to read, if the capture has several [default: all]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Write the packets that leave to this file
    #[arg(long, value_name = "PCAPNG")]
    out: Option<PathBuf>,
    /// Compare the packets that leave with this capture
    #[arg(long, value_name = "PCAP")]
    expect: Option<PathBuf>,
    /// A key of the function, such as --set rate=10
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The chain to put it in
    #[arg(long, value_parser = direction(), default_value = "rx")]
    chain: Direction,
    /// Target queues of the card, without --card [default: 4]
    #[arg(long, conflicts_with = "card", value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: Option<u16>,
    /// Print only the totals
    #[arg(long, short)]
    quiet: bool,
}

/// The result for one packet.
#[derive(Debug, Serialize)]
struct Packet {
    /// Its number in the capture, from 0; null if the function made it.
    number: Option<usize>,
    /// When the function released it.
    time_ns: u64,
    fate: String,
    /// Its addresses and ports on arrival; null if it is not IP.
    flow: Option<Flow>,
    /// Length on arrival.
    length_bytes: Option<usize>,
    /// Length on departure.
    out_bytes: Option<usize>,
    /// Its changes in words; empty if unchanged.
    changed: String,
    #[serde(skip_serializing_if = "is_zero")]
    mark: u32,
    #[serde(skip)]
    data: Option<Vec<u8>>,
}

/// The flow of a packet.
#[derive(Debug, Serialize)]
struct Flow {
    source: IpAddr,
    destination: IpAddr,
    /// "tcp", "udp", "icmp", or the number of another protocol.
    protocol: String,
    /// Null unless TCP or UDP.
    source_port: Option<u16>,
    destination_port: Option<u16>,
}

impl Flow {
    fn of(data: &[u8]) -> Option<Self> {
        let front = Front::of(data, data.len());
        let (source, destination): (IpAddr, IpAddr) = match (front.ipv4(), front.ipv6()) {
            (Some(ip), _) => (ip.source().into(), ip.destination().into()),
            (None, Some(ip)) => (ip.source().into(), ip.destination().into()),
            (None, None) => return None,
        };
        let protocol = match layers::parse(data).protocol {
            1 | 58 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            number => number.to_string(),
        };
        let (source_port, destination_port) = front.ports().unzip();
        Some(Flow { source, destination, protocol, source_port, destination_port })
    }
}

impl Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |address: IpAddr, port: Option<u16>| match port {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let (source, destination) =
            (end(self.source, self.source_port), end(self.destination, self.destination_port));
        write!(f, "{source} > {destination} {}", self.protocol)
    }
}

#[derive(Debug, Serialize)]
struct TryReport {
    function: String,
    packets: Vec<Packet>,
    /// Packets by fate.
    fates: BTreeMap<String, usize>,
    changed: usize,
    /// Packets that differ from the expectation; null without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    unexpected: Option<Vec<String>>,
}

fn is_zero(mark: &u32) -> bool {
    *mark == 0
}

/// Whether a function is named by the path of a shared object.
pub(crate) fn is_path(function: &str) -> bool {
    function.contains('/') || function.ends_with(".so")
}

pub(crate) fn run(args: &TryArgs, json: bool) -> anyhow::Result<()> {
    let files = Files::default();
    let same = |error: ConfigError| Usage(format!("{}: {}", error.key, error.message));
    files.read("--in", &args.input).map_err(same)?;
    args.expect.iter().try_for_each(|path| files.read("--expect", path)).map_err(same)?;
    args.out.iter().try_for_each(|path| files.write("--out", path)).map_err(same)?;
    let input = load(&args.input, args.interface.as_deref())?;
    let (name, mut tried) = try_all(args, &input)?;
    tried.function = name;
    if let Some(out) = &args.out {
        write(out, &tried.packets)
            .with_context(|| format!("{}: cannot be written", out.display()))?;
    }
    if let Some(expect) = &args.expect {
        tried.unexpected = Some(compare(&tried.packets, &load(expect, None)?));
    }
    output::show(&tried, json, || tried.text(args.quiet))?;
    match tried.unexpected.as_deref() {
        Some([first, ..]) => bail!("not as expected: {first}"),
        _ => Ok(()),
    }
}

fn load(path: &Path, interface: Option<&str>) -> anyhow::Result<CaptureFile> {
    let wrong = |message: String| Usage(format!("{}: {message}", path.display()));
    let file = match interface {
        None => CaptureFile::load(path).map_err(wrong)?,
        Some(_) => {
            let chosen = CaptureFile::load_chosen(path, interface, None).map_err(wrong)?;
            chosen.map_err(|message| wrong(format!("--interface: {message}")))?
        }
    };
    if let Some(broken) = file.broken() {
        output::tell(format_args!(
            "picnic: {}: at byte {}, {}; the {} packets before it are used",
            path.display(),
            broken.offset,
            broken.reason,
            file.len()
        ));
    }
    Ok(file)
}

fn try_all(args: &TryArgs, input: &CaptureFile) -> anyhow::Result<(String, TryReport)> {
    let (card, position) = match &args.card {
        Some(path) => {
            let text = CardFile::read(path)?;
            let card = sections().parse(&text, Some(path))?;
            let position = position(args, &card, path)?;
            let settings = settings(args, position)?;
            (sections().parse_with(&text, Some(path), &settings)?, position)
        }
        None => {
            let function = args.function.as_deref().unwrap_or_default();
            let kind = if is_path(function) { "plugin" } else { "function" };
            let mut settings = settings(args, 0)?;
            settings
                .insert(0, Setting::text(&format!("{}[0].{kind}", args.chain.name()), function));
            (sections().parse_with("rx = []", None, &settings)?, 0)
        }
    };
    let context = BuildContext { position, ..picnic_engine::build::context(&card) };
    let context = match args.queues {
        Some(queues) => BuildContext { queues, ..context },
        None => context,
    };
    let chain = chain(&card, args.chain);
    let Some(section) = chain.get(position) else { bail!("the function has no section") };
    let mut function = find(registries().functions, section)?.build(section, &context)?;
    let name = function.name().unwrap_or(section.name()).to_owned();
    let mut trial = Trial::new(&context, args.chain)?;
    let mut packets = Vec::new();
    let mut last = 0;
    for number in 0..input.len() {
        let Some((data, time_ns)) = input.packet(number) else { break };
        last = time_ns;
        let outcomes = trial.give(&mut *function, Time::from_nanos(time_ns), 0, data);
        let outcomes = outcomes.map_err(|error| anyhow::anyhow!("packet {number}: {error}"))?;
        packets.extend(outcomes.into_iter().map(|outcome| Packet::of(outcome, time_ns, input)));
    }
    let end = trial.end(&mut *function).map_err(|error| anyhow::anyhow!("at the end: {error}"))?;
    packets.extend(end.into_iter().map(|outcome| Packet::of(outcome, last, input)));
    let mut fates = BTreeMap::new();
    for packet in &packets {
        *fates.entry(packet.fate.clone()).or_default() += 1;
    }
    let changed = packets.iter().filter(|packet| !packet.changed.is_empty()).count();
    Ok((name, TryReport { function: String::new(), packets, fates, changed, unexpected: None }))
}

/// The `--set` values for the function at a position of the chain.
fn settings(args: &TryArgs, position: usize) -> Result<Vec<Setting>, Usage> {
    let settings = args.set.iter().map(|set| {
        Setting::parse(&format!("{}[{position}].{set}", args.chain.name()))
            .map_err(|error| Usage(format!("--set {set}: {error}")))
    });
    settings.collect()
}

fn chain(card: &CardFile, direction: Direction) -> &[Section] {
    match direction {
        Direction::Rx => &card.rx,
        Direction::Tx => &card.tx,
    }
}

/// The function's position in the card's chain.
fn position(args: &TryArgs, card: &CardFile, path: &Path) -> Result<usize, Usage> {
    let chain = chain(card, args.chain);
    let names: Vec<_> = chain.iter().map(|section| name_in(section, card)).collect();
    let place = |path: &str| Path::new(path).canonicalize().ok();
    let found = match args.function.as_deref() {
        None => (!chain.is_empty()).then_some(0),
        Some(function) if is_path(function) => {
            let wanted = place(function);
            names.iter().position(|name| is_path(name) && wanted.is_some() && place(name) == wanted)
        }
        Some(function) => names.iter().position(|name| name == function),
    };
    found.ok_or_else(|| {
        let allowed = if names.is_empty() { "none".into() } else { names.join(", ") };
        let found = args.function.as_deref().unwrap_or("none");
        let (path, chain) = (path.display(), args.chain.name());
        Usage(format!("{path}: {chain} chain: found no \"{found}\", allowed: {allowed}"))
    })
}

/// The name in a section of a chain: a function, or the path of an object.
fn name_in(section: &Section, card: &CardFile) -> String {
    let keys: Map<String, Value> = section.parse().unwrap_or_default();
    match keys.get("plugin").and_then(Value::as_str) {
        Some(path) => card.directory.join(path).display().to_string(),
        None => section.name().into(),
    }
}

impl Packet {
    fn of(outcome: Released, time_ns: u64, input: &CaptureFile) -> Self {
        let Released { number, fate, data, mark, .. } = outcome;
        let before = number.and_then(|number| input.packet(number)).map(|(data, _)| data);
        let has_left = !matches!(fate, Fate::Dropped(_) | Fate::Consumed);
        let data = has_left.then_some(data);
        Packet {
            number,
            time_ns,
            fate: match fate {
                Fate::Next => "next".into(),
                Fate::Queue(queue) => format!("queue {queue}"),
                Fate::Wire(wire) => format!("wire {wire}"),
                Fate::Dropped(reason) => format!("dropped: {}", reason.name()),
                Fate::Consumed => "consumed".into(),
            },
            flow: before.or(data.as_deref()).and_then(Flow::of),
            length_bytes: before.map(<[u8]>::len),
            out_bytes: data.as_ref().map(Vec::len),
            changed: match (before, &data) {
                (Some(before), Some(after)) => difference(before, after),
                _ => String::new(),
            },
            mark,
            data,
        }
    }

    fn text(&self) -> String {
        let number = self.number.map_or("made".into(), |number| number.to_string());
        let length = self.length_bytes.or(self.out_bytes).unwrap_or(0);
        let seconds = self.time_ns as f64 / 1e9;
        let flow = self.flow.as_ref().map_or("not IP".into(), Flow::to_string);
        let fate = &self.fate;
        let mut text = format!("{number:>6} {seconds:>12.6} {length:>6} B  {flow:<45} {fate}");
        if self.mark != 0 {
            let _ = write!(text, ", mark {}", self.mark);
        }
        if !self.changed.is_empty() {
            let _ = write!(text, ", {}", self.changed);
        }
        text
    }
}

/// The difference of two packets in words; empty if equal.
fn difference(before: &[u8], after: &[u8]) -> String {
    const SHOWN: usize = 8;
    if before == after {
        return String::new();
    }
    let first = before.iter().zip(after).position(|(before, after)| before != after);
    let first = first.unwrap_or(before.len().min(after.len()));
    let hex = |bytes: &[u8]| {
        let end = bytes.len().min(first + SHOWN);
        let shown = bytes[first.min(end)..end].iter().map(|byte| format!("{byte:02x}"));
        shown.collect::<String>()
    };
    if before.len() != after.len() {
        return format!("{} bytes now, changed from byte {first}", after.len());
    }
    let count = before.iter().zip(after).filter(|(before, after)| before != after).count();
    format!("{count} bytes changed, at {first}: {} now {}", hex(before), hex(after))
}

impl TryReport {
    fn text(&self, is_quiet: bool) -> String {
        let mut text = String::new();
        for packet in self.packets.iter().filter(|_| !is_quiet) {
            text.push_str(&packet.text());
            text.push('\n');
        }
        let fates = self.fates.iter().map(|(fate, count)| format!("{count} {fate}"));
        let fates: Vec<_> = fates.collect();
        let fates = if fates.is_empty() { "no packets".into() } else { fates.join(", ") };
        let _ = writeln!(text, "{}: {fates}; {} changed", self.function, self.changed);
        for line in self.unexpected.iter().flatten() {
            let _ = writeln!(text, "unexpected: {line}");
        }
        text
    }
}

/// Differences between the packets that left and another capture.
fn compare(packets: &[Packet], wanted: &CaptureFile) -> Vec<String> {
    let found: Vec<_> = packets.iter().filter_map(|packet| packet.data.as_ref()).collect();
    let mut wrong = Vec::new();
    if found.len() != wanted.len() {
        wrong.push(format!("{} packets leave, {} are expected", found.len(), wanted.len()));
    }
    for (number, found) in found.iter().enumerate() {
        let Some((wanted, _)) = wanted.packet(number) else { break };
        let difference = difference(wanted, found);
        if !difference.is_empty() {
            wrong.push(format!("packet {number} of those that leave: {difference}"));
        }
    }
    wrong
}

/// Writes packets that left, with an interface for each door.
fn write(path: &Path, packets: &[Packet]) -> anyhow::Result<()> {
    let mut writer = Writer::new(BufWriter::new(File::create(path)?), "picnic try")?;
    let mut doors = BTreeMap::new();
    for packet in packets {
        let Some(data) = &packet.data else { continue };
        let door = match doors.get(&packet.fate) {
            Some(door) => *door,
            None => {
                let door = writer.add_interface(&packet.fate, 0)?;
                doors.insert(packet.fate.clone(), door);
                door
            }
        };
        writer.packet(door, &pcapng::Packet::whole(packet.time_ns, data))?;
    }
    if doors.is_empty() {
        // Some readers reject a capture without interfaces.
        writer.add_interface("next", 0)?;
    }
    writer.into_inner().into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_differences_name_the_place() {
        assert_eq!(difference(b"abc", b"abc"), "");
        assert_eq!(difference(b"abc", b"axc"), "1 bytes changed, at 1: 6263 now 7863");
        assert_eq!(difference(b"abc", b"abcd"), "4 bytes now, changed from byte 3");
        assert_eq!(difference(b"abc", b""), "0 bytes now, changed from byte 0");
    }

    #[test]
    fn paths_are_distinguished_from_names() {
        assert!(is_path("./a") && is_path("a.so") && !is_path("rss"));
    }
}
