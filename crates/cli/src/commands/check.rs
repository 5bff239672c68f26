//! `picnic check`: checks a card file, and shows what would run where.

use super::components::Kind;
use super::ctl::moderation::mode_in_words;
use super::net;
use crate::neighbours;
use crate::output;
use crate::registries::sections;
use crate::template::toml_value;
use crate::wcet::first;
use crate::world::WorldArgs;
use clap::Args;
use picnic_control::error::RunError;
use picnic_control::launch::Checked;
use picnic_control::{EnginePlan, Launch};
use picnic_core::config::{CardFile, Section};
use picnic_lab::card::CardArgs;
use picnic_machine::config::{IsolationLevel, IsolationSection};
use picnic_machine::topology::LeftOut;
use picnic_os::config::{Origin, PathReport};
use picnic_os::keys::TaskSection;
use picnic_ports::middleware::link::LinkConfig;
use picnic_wcet::CostProfile;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic check my.toml
  picnic check my.toml --set host.queues=8 --json

All errors are reported, in the order of the file's lines: FILE:LINE: KEY: MESSAGE, with --json as
objects with file, line, key, found, allowed and message. The exit code is 2.")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    card: CardArgs,
    #[command(flatten)]
    world: WorldArgs,
}

/// The plan of a card.
#[derive(Debug, Serialize)]
struct Plan {
    file: Option<String>,
    card: String,
    engine: String,
    idle: Option<String>,
    borrowed_core: usize,
    isolation: IsolationPlan,
    wires: Vec<WirePlan>,
    rx: Vec<String>,
    tx: Vec<String>,
    filters: usize,
    attachment: String,
    ring_size: Option<usize>,
    tx_ring_size: Option<usize>,
    queues: Vec<QueuePlan>,
    default_queue: u16,
    interrupt: Option<String>,
    pool: Option<PoolPlan>,
    /// The engine's own plan.
    engine_plan: Option<Value>,
    #[serde(skip)]
    engine_lines: Vec<(&'static str, String)>,
    trace: bool,
    /// Keys that the file and the command line set to non-default values.
    set: BTreeMap<String, Value>,
    os: Option<OsPlan>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct IsolationPlan {
    /// Whether a run keeps interrupts and processes off the borrowed core.
    apply: bool,
    level: IsolationLevel,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
struct OsPlan {
    scheduler: String,
    cost_profile: String,
    tasks: Vec<String>,
    /// The assumptions of admission.
    path: Option<PathReport>,
}

#[derive(Debug, Serialize)]
struct WirePlan {
    name: String,
    port: String,
    /// The rate of its simulated link.
    link_mbps: Option<f64>,
    fault: bool,
}

#[derive(Debug, Serialize)]
struct QueuePlan {
    queue: usize,
    core: usize,
}

#[derive(Debug, Serialize)]
struct PoolPlan {
    buffers: u32,
    buffer_size_bytes: u32,
    mapped_bytes: usize,
}

pub(crate) fn run(args: &CheckArgs, json: bool) -> anyhow::Result<()> {
    let (mut card, mut faults) = args.card.examine(&sections(), Vec::new())?;
    let mut built_in = None;
    if args.world.is_host()
        && first::is_wanted(&card)
        && let Some(profile) = first::kept()
    {
        let under_profile;
        (under_profile, faults) = args.card.examine(&sections(), vec![profile])?;
        built_in = Some(std::mem::replace(&mut card, under_profile));
    }
    let launch = Launch::new(&card, args.world.registries());
    launch.judge(faults)?;
    if launch.executor()?.is_served() {
        net::enter(&card)?;
    }
    let described = launch.describe();
    let checked = launch.check().inspect_err(|_| {
        // The plan for a machine or user that meets the requirements.
        let described = described.as_ref().ok().and_then(Option::as_ref);
        if let Some(EnginePlan { lines, .. }) = described.filter(|_| !json) {
            let text: String = lines.iter().map(|(name, value)| line(name, value)).collect();
            let _ = output::print(&text);
        }
    });
    let (described, checked) = RunError::both(described, checked).map_err(|error| {
        let built_in = built_in.as_ref().map(|card| Launch::new(card, args.world.registries()));
        first::hinted(net::hinted(error, &card), built_in.as_ref())
    })?;
    // The running card of this name may be this file's.
    let own = Some(&*card.card.name);
    let shared = neighbours::warnings(&launch, &checked.placement, own)?;
    let mut plan = Plan::new(&card, checked, described);
    plan.notes.extend(shared);
    output::show(&plan, json, || plan.text())
}

impl IsolationPlan {
    fn text(&self) -> String {
        let mut text = format!("level {}", self.level);
        for LeftOut { core, shares } in &self.left_out {
            // Writing to a string does not fail.
            let _ = write!(text, ", core {core} left out for its {shares}");
        }
        if self.apply {
            text.push_str(", interrupts and processes kept off during a run");
        }
        text
    }
}

impl Plan {
    fn new(
        file: &CardFile,
        Checked { placement, filters, os: handle }: Checked,
        described: Option<EnginePlan>,
    ) -> Self {
        // Only for the poll engine.
        let is_polled = !described.as_ref().is_some_and(|plan| plan.is_whole);
        let names = |sections: &[Section]| {
            sections.iter().map(|section| section.name().to_owned()).collect()
        };
        let wires = file.wires.iter().map(|wire| WirePlan {
            name: wire.name.clone(),
            port: wire.port.name().into(),
            link_mbps: wire.link.as_ref().and_then(|link| {
                let config: Result<LinkConfig, _> = link.parse();
                config.ok().map(|config| config.rate_mbps)
            }),
            fault: wire.fault.is_some(),
        });
        let cores = placement.target_cores.into_iter().enumerate();
        Plan {
            file: file.path().map(|path| path.display().to_string()),
            card: file.card.name.clone(),
            engine: file.card.engine.clone(),
            idle: is_polled.then(|| format!("{:?}", file.card.idle).to_lowercase()),
            borrowed_core: placement.borrowed_core,
            isolation: IsolationPlan {
                apply: file.section::<IsolationSection>().apply,
                level: placement.level,
                left_out: placement.left_out,
            },
            wires: wires.collect(),
            rx: names(&file.rx),
            tx: names(&file.tx),
            filters: filters.list().len(),
            attachment: file.host.section.name().into(),
            ring_size: is_polled.then_some(file.host.ring_size),
            tx_ring_size: is_polled.then_some(file.host.tx_ring_size),
            queues: cores.map(|(queue, core)| QueuePlan { queue, core }).collect(),
            default_queue: file.card.default_queue,
            interrupt: is_polled.then(|| mode_in_words(file.interrupt.moderation())),
            pool: is_polled.then(|| PoolPlan {
                buffers: file.pool.buffers,
                buffer_size_bytes: file.pool.buffer_size,
                mapped_bytes: file.pool.mapped_bytes(),
            }),
            engine_plan: described.as_ref().map(|plan| plan.json.clone()),
            engine_lines: described.map(|plan| plan.lines).unwrap_or_default(),
            trace: file.has("trace"),
            set: other_than_default(file.settings()),
            os: picnic_os::config::asked_for(file).map(|os| OsPlan {
                scheduler: os.section.name().into(),
                cost_profile: match os.cost_profile() {
                    Some(path) => file.directory.join(path).display().to_string(),
                    None => CostProfile::built_in().name,
                },
                tasks: file
                    .given::<TaskSection>()
                    .iter()
                    .map(|task| {
                        let name = task.name.as_deref();
                        name.unwrap_or(task.section.name()).to_owned()
                    })
                    .collect(),
                path: handle.map(|handle| handle.path),
            }),
            notes: placement.warnings,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text.push_str(&line(name, &value));
        line("file", self.file.clone().unwrap_or_else(|| "the built-in card".into()));
        let idle = self.idle.as_ref().map(|idle| format!(", idle {idle}")).unwrap_or_default();
        line("card", format!("{}, engine {}{idle}", self.card, self.engine));
        line("borrowed core", self.borrowed_core.to_string());
        line("isolation", self.isolation.text());
        for wire in &self.wires {
            let link = wire.link_mbps.map(|rate| format!(", link of {rate} Mb/s"));
            let link = link.unwrap_or_default();
            let fault = if wire.fault { ", with faults" } else { "" };
            line("wire", format!("{}: {}{link}{fault}", wire.name, wire.port));
        }
        line("rx chain", chain(&self.rx, &format!("to queue {}", self.default_queue)));
        if self.pool.is_some() {
            line("tx chain", chain(&self.tx, "to the packet's wire"));
        }
        for (core, queues) in self.queues_by_core() {
            line("target core", format!("{core}: {}", ranges(&queues)));
        }
        if let (Some(ring_size), Some(tx_ring_size)) = (self.ring_size, self.tx_ring_size) {
            line("rings", format!("{ring_size} descriptors, tx {tx_ring_size}"));
        }
        if self.filters != 0 {
            line("filters", self.filters.to_string());
        }
        line("host", self.attachment.clone());
        if let Some(interrupt) = &self.interrupt {
            line("interrupt", interrupt.clone());
        }
        if let Some(PoolPlan { buffers, buffer_size_bytes, mapped_bytes }) = self.pool {
            let mebibytes = mapped_bytes >> 20;
            let buffers = format!("{buffers} buffers of {buffer_size_bytes} bytes");
            line("pool", format!("{buffers}, {mebibytes} MiB"));
        }
        for (name, value) in &self.engine_lines {
            line(name, value.clone());
        }
        if let Some(os) = &self.os {
            let tasks = match &*os.tasks {
                [] => "no task".into(),
                [task] => format!("1 task: {task}"),
                tasks => format!("{} tasks: {}", tasks.len(), tasks.join(", ")),
            };
            line("NIC OS", format!("{}, {tasks}", os.scheduler));
            line("bounds", format!("under the cost profile: {}", os.cost_profile));
            if let Some(path) = &os.path {
                for (name, value) in path_lines(path) {
                    line(name, value);
                }
            }
        }
        if self.trace {
            line("trace", "on".into());
        }
        for (key, value) in &self.set {
            line("set", format!("{key} = {}", toml_value(&value.to_string())));
        }
        for note in &self.notes {
            line("note", note.clone());
        }
        text
    }

    fn queues_by_core(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut by_core = BTreeMap::<usize, Vec<usize>>::new();
        for queue in &self.queues {
            by_core.entry(queue.core).or_default().push(queue.queue);
        }
        by_core
    }
}

fn line(name: &str, value: &str) -> String {
    output::hanging(&format!("{name:<13} "), &output::name(value))
}

/// The keys with non-default values. Names of components are shown elsewhere.
fn other_than_default(settings: Vec<(String, Value)>) -> BTreeMap<String, Value> {
    let all: BTreeMap<_, _> = settings.into_iter().collect();
    let sections = sections();
    let is_default = |path: &str, value: &Value| {
        let Some((place, key)) = path.rsplit_once('.') else { return false };
        let section = place.split('.').map(|part| part.split('[').next().unwrap_or(part));
        let section = section.collect::<Vec<_>>().join(".");
        let Some(entry) = sections.iter().find(|entry| entry.name == section) else { return false };
        let mut keys = Vec::new();
        if let Some(names) = entry.names {
            if key == names.key {
                return true;
            }
            let named = all.get(&format!("{place}.{}", names.key)).and_then(Value::as_str);
            let kind = Kind::of(names.key);
            let mut components = kind.into_iter().flat_map(|kind| (kind.list)());
            let component = components.find(|other| Some(other.name) == named.or(names.default));
            keys.extend(component.into_iter().flat_map(|component| component.keys));
        }
        keys.extend(entry.keys());
        // A component's key takes precedence over its section's.
        let default = keys.iter().find(|known| known.name == key).map(|known| &known.default);
        let default = default.and_then(|text| serde_json::from_str::<Value>(text).ok());
        default.is_some_and(|default| default == *value)
    };
    let others = all.iter().filter(|(path, value)| !is_default(path, value));
    others.map(|(path, value)| (path.clone(), value.clone())).collect()
}

/// The assumptions of admission, and their origin.
fn path_lines(path: &PathReport) -> Vec<(&'static str, String)> {
    let told = |origin: &Origin, unit: &str| match origin.value {
        Some(value) => format!("{}{unit} ({})", output::count(value), origin.from),
        None => format!("not known: {}", origin.from),
    };
    let mut lines = Vec::new();
    for wire in &path.wires {
        lines.push(("line rate", format!("{}: {}", wire.name, told(&wire.rate_pps, " packets/s"))));
        if wire.rate_pps.value.is_some() {
            lines
                .push(("receive room", format!("{}: {}", wire.name, told(&wire.room, " packets"))));
        }
    }
    lines.push(("packet turn", told(&path.turn_ns, " ns")));
    lines.push(("packet", told(&path.packet_ns, " ns")));
    lines.push(("doorbell", told(&path.doorbell_ns, " ns")));
    let (share, budget) = (path.packets_fraction * 100.0, path.catch_up_ns / 1_000);
    lines.push(("packet path", format!("{share:.1} % of the core, {budget} µs after a segment")));
    if let Some(ns) = path.tolerates_ns {
        let promise =
            format!("loses nothing while no core is interrupted for more than {} µs", ns / 1_000);
        lines.push(("promise", promise));
    }
    if let Some(found) = path.interruptions {
        let shortest_us = found.shortest_ns / 1_000;
        let longest_us = output::count(found.longest_ns / 1_000);
        let mut text = format!(
            "{:.1} a second of more than {shortest_us} µs, the longest {longest_us} µs (when calibrated)",
            found.per_second
        );
        if path.tolerates_ns.is_some_and(|ns| ns < found.longest_ns) {
            text += "; os.interruption_us reserves room for longer ones";
        }
        lines.push(("interrupted", text));
    }
    lines.extend(path.notes.iter().map(|note| ("note", note.clone())));
    lines
}

/// The functions of a chain, and the destination of packets that no function steers.
fn chain(names: &[String], end: &str) -> String {
    match names {
        [] => format!("all {end}"),
        names => format!("{}; the rest {end}", names.join(" -> ")),
    }
}

/// Ascending numbers, written as `queues 0-2, 5`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let parts: Vec<_> = parts
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}-{last}"),
        })
        .collect();
    let noun = if numbers.len() == 1 { "queue" } else { "queues" };
    format!("{noun} {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_at_their_defaults_are_not_shown() {
        let text = "[card]\nseed = 1\nname = \"web\"\n[[wire]]\nport = \"generator\"\n\
                    flows = 4096\nrate_pps = 7\nfault = { drop = 0.5, corrupt = 0.0 }\n\
                    [[rx]]\nfunction = \"rss\"\nhash = \"toeplitz\"\ntable_size = 64\n";
        let card = sections().parse(text, None).unwrap();
        let set = other_than_default(card.settings());
        let keys: Vec<_> = set.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["card.name", "rx[0].table_size", "wire[0].fault.drop", "wire[0].rate_pps"]
        );
    }

    #[test]
    fn numbers_in_a_row_are_one_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "queues 0-2, 5, 7-8");
        assert_eq!(ranges(&[3]), "queue 3");
    }
}
