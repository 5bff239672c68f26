//! Programs of the kernel engine: nanoseconds per packet, by the kernel's test runs.
//!
//! Nothing is attached and no packet is sent. The same packets are used repeatedly, so caches and
//! branch predictors know them: this is the cost of the program, not of the packet.

use super::classifier::rules::{Family, Packet, Set};
use super::{all_within, measured};
use picnic_control::{Launch, Registries};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_filter::{Action, Filter, FilterCode, Filters, filters::FilterChange};
use picnic_kernel::Trial;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_lab::workloads::tools;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Kernel {
    /// Numbers of filters, each up to 65000
    rules: Vec<u64>,
    /// Family of their five-tuples
    family: Family,
    /// Different packets
    #[schemars(range(min = 1, max = 4096))]
    packets: u32,
    /// Runs with each packet
    #[schemars(range(min = 1, max = 1_000_000))]
    runs: u32,
    /// Repeats, interleaved
    #[schemars(range(min = 1, max = 1000))]
    repeats: u32,
}

impl Default for Kernel {
    fn default() -> Self {
        Kernel {
            rules: vec![1, 16, 128, 1024, 4096],
            family: Family::Random,
            packets: 16,
            runs: 50_000,
            repeats: 9,
        }
    }
}

impl Benchmark for Kernel {
    const NAME: &'static str = "kernel";
    const HELP: &'static str = "programs of the kernel engine, per packet (root)";
    const QUICK: &'static str = "rules = [16]\npackets = 4\nruns = 100\nrepeats = 2";

    fn check(&self) -> Result<(), ConfigError> {
        all_within("rules", &self.rules, 1, 65_000)
    }

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

/// A program that only drops: the baseline of all others.
const DROP: &str = "function = \"drop\"";
const CHAINS: [(&str, &str); 6] = [
    ("drop", DROP),
    ("by-wire", "function = \"by-wire\""),
    ("rss jhash", "function = \"rss\"\nhash = \"jhash\""),
    ("rss toeplitz", "function = \"rss\""),
    ("vlan", "function = \"vlan\"\nuntagged = false"),
    (
        "flow-director",
        "function = \"flow-director\"\nrules = [\n\
         { protocol = \"tcp\", destination_port = 80, queue = 0 },\n\
         { source = \"10.0.0.0/8\", queue = 0 },\n{ destination = \"10.0.0.1\", drop = true }]",
    ),
];

fn measure(args: &Kernel, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    tools::need_kernel_engine(picnic_kernel::is_built())?;
    let set = |rules: u64| Set::new(args.family, run.seed, rules as usize, args.packets as usize);
    let mut ways = Vec::new();
    for (name, chain) in CHAINS {
        ways.push((name.to_owned(), load(chain, None)?, frames(&set(128)), Vec::new()));
    }
    for &rules in &args.rules {
        let set = set(rules);
        ways.push((format!("{rules} filters"), load(DROP, Some(&set))?, frames(&set), Vec::new()));
    }
    for round in 0..args.repeats {
        run.round(round.into(), args.repeats.into());
        for (_, trial, frames, times) in &mut ways {
            let mut sum = 0.0;
            for frame in frames.iter() {
                sum += trial.time(frame, args.runs)?;
            }
            times.push(sum / frames.len() as f64);
        }
    }
    let base = ways[0].3.clone();
    let mut outcome = measured();
    outcome.tell("family", args.family.name());
    let mut series = outcome.series("programs");
    for (name, _, _, times) in ways {
        let over = times.iter().zip(&base).map(|(time, base)| time - base).collect::<Vec<_>>();
        series.push(
            Point::at("program", name)
                .with(Figure::of("ns_per_packet", times).called("a packet"))
                .with(Figure::of("over_drop_ns", over).called("over drop")),
        );
    }
    Ok(outcome)
}

/// The program of a chain, after these filters.
fn load(chain: &str, set: Option<&Set>) -> anyhow::Result<Trial> {
    let text = format!(
        "[card]\nengine = \"kernel\"\n[[wire]]\nport = \"xdp\"\ninterface = \"eth0\"\n[[rx]]\n{chain}\n\
         [host]\nattachment = \"stack\"\nhandover = \"cpumap\"\nqueues = 1\ntarget_cores = [0]\n"
    );
    let card = CardFile::parse(&text, None)?;
    let filters = Filters::new(1);
    let rules = set.map(|set| &*set.rules).unwrap_or_default().iter();
    let changes = rules.map(|rule| {
        FilterChange::Add(Filter::new("rule", *rule, Action::Drop), FilterCode::default())
    });
    filters.apply(changes.collect())?;
    let registries = Registries { executors: &[], ..picnic_host::registries() };
    Ok(Trial::load(&Launch::new(&card, registries).filters(filters))?)
}

/// Packets of the set as frames of 64 bytes.
fn frames(set: &Set) -> Vec<Vec<u8>> {
    let frame = |packet: &Packet| {
        let mut frame = vec![0; 64];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[17] = 50;
        frame[22] = 64;
        frame[23] = packet.protocol;
        frame[26..30].copy_from_slice(&packet.source.to_be_bytes());
        frame[30..34].copy_from_slice(&packet.destination.to_be_bytes());
        frame[34..36].copy_from_slice(&packet.ports[0].to_be_bytes());
        frame[36..38].copy_from_slice(&packet.ports[1].to_be_bytes());
        (frame[39], frame[46]) = (30, 0x50);
        frame
    };
    set.packets.iter().map(frame).collect()
}
