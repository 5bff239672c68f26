//! `picnic wcet calibrate`: what operations cost on one core of this machine.

use super::card::OneTask;
use super::doorbell::{Wakes, sleepers};
use super::path::PathTurns;
use super::probe::{Thread, date};
use crate::failure::Usage;
use crate::output::{self, Column};
use anyhow::Context as _;
use clap::Args;
use picnic_machine::threads::spawn_pinned;
use picnic_os::task::program;
use picnic_wcet::calibrate::{CalibrationSettings, Kernel, RUNS, cost_ps, kernels, measure};
use picnic_wcet::{Class, CostProfile, Machine, Measured, Method, PathCosts};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// File to write the profile to; without it, the profile goes to standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Core to measure on [default: the highest-numbered this process may use]
    #[arg(long)]
    core: Option<usize>,
    /// Samples of each kernel, the shortest of three runs each, 100 to 10000000
    #[arg(long, default_value_t = CalibrationSettings::default().samples)]
    samples: usize,
    /// Which of the sorted samples counts, in percent, 50 to 100
    #[arg(long, default_value_t = CalibrationSettings::default().percentile)]
    percentile: f64,
    /// By what its cost is multiplied, 1 to 100
    #[arg(long, default_value_t = CalibrationSettings::default().margin)]
    margin: f64,
    /// KiB that loads and stores go over, 4 to 1048576: what tasks touch, all of them together
    #[arg(long, default_value_t = CalibrationSettings::default().working_set_bytes >> 10)]
    working_set_kib: usize,
}

impl CalibrateArgs {
    fn settings(&self) -> Result<CalibrationSettings, Usage> {
        let check = |name: &str, good: bool, found: &dyn std::fmt::Display, allowed: &str| {
            let message = || format!("--{name}: found {found}, allowed: {allowed}");
            if good { Ok(()) } else { Err(Usage(message())) }
        };
        let samples = (100..=10_000_000).contains(&self.samples);
        check("samples", samples, &self.samples, "100 to 10000000")?;
        let percentile = (50.0..=100.0).contains(&self.percentile);
        check("percentile", percentile, &self.percentile, "50 to 100")?;
        check("margin", (1.0..=100.0).contains(&self.margin), &self.margin, "1 to 100")?;
        let working_set = (4..=1 << 20).contains(&self.working_set_kib);
        check("working-set-kib", working_set, &self.working_set_kib, "4 to 1048576")?;
        Ok(CalibrationSettings {
            samples: self.samples,
            percentile: self.percentile,
            margin: self.margin,
            working_set_bytes: self.working_set_kib << 10,
        })
    }
}

pub(super) fn run(args: &CalibrateArgs, json: bool) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let cores = picnic_machine::topology::cores();
    let core = match args.core {
        Some(core) if cores.contains(&core) => core,
        Some(core) => {
            let allowed: Vec<_> = cores.iter().map(ToString::to_string).collect();
            let allowed = allowed.join(", ");
            return Err(Usage(format!("--core: found {core}, allowed: {allowed}")).into());
        }
        None => cores.last().copied().unwrap_or(0),
    };
    // Told from here: on its own core, a thread knows of no other.
    let woken = sleepers(core, &cores);
    let measuring =
        spawn_pinned("calibrate".into(), core, move || profile(&settings, core, &woken))?;
    let (profile, warning) =
        measuring.join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?;
    let Calibrated { profile, dearest, no_doorbell } = profile?;
    if let Some(warning) = &warning {
        output::tell(format_args!("warning: {warning}"));
    }
    if let Some(why) = &no_doorbell {
        output::tell(format_args!(
            "warning: the cost of a doorbell that wakes a core was not measured, and is the built-in one: {why}"
        ));
    }
    if cfg!(debug_assertions) {
        output::tell("warning: this binary is a debug build: costs are not those of a release");
    }
    let text = profile.to_toml();
    if let Some(path) = &args.output {
        std::fs::write(path, &text).with_context(|| format!("{}: cannot write", path.display()))?;
    }
    if json {
        return output::print_json(&as_json(&profile, &dearest, args, warning.as_deref()));
    }
    match &args.output {
        None => output::print(&text),
        Some(path) => output::print(&format!(
            "{}\nwritten to {}\n",
            table(&profile, &dearest),
            path.display()
        )),
    }
}

/// By class, the name of its dearest kernel.
type Dearest = BTreeMap<Class, &'static str>;

/// What was measured.
struct Calibrated {
    profile: CostProfile,
    dearest: Dearest,
    /// Why the doorbell's cost is the built-in one, if it is.
    no_doorbell: Option<String>,
}

/// What ringing costs that wakes a core: the dearest of several.
fn doorbell_ps(
    settings: &CalibrationSettings,
    probe: &mut Thread,
    cores: &[usize],
) -> anyhow::Result<u64> {
    // A run takes as long as its sleeper needs to sleep again.
    let samples = settings.samples.div_ceil(10);
    let settings = CalibrationSettings { samples, ..*settings };
    let mut dearest_ps = 0;
    for &core in cores {
        let mut wakes = Wakes::new(core)?;
        let mut clock = wakes.clock(probe);
        let found = measure(&mut wakes, &settings, &mut clock)?;
        dearest_ps = dearest_ps.max(cost_ps(&found, settings.margin));
    }
    anyhow::ensure!(dearest_ps != 0, "there is no other core to wake");
    Ok(dearest_ps)
}

fn profile(
    settings: &CalibrationSettings,
    core: usize,
    woken: &[usize],
) -> anyhow::Result<Calibrated> {
    let mut probe = Thread::start();
    let mut measured: BTreeMap<Class, Measured> = BTreeMap::new();
    let mut dearest = Dearest::new();
    let mut all = kernels(settings);
    all.push(Box::new(Turns::new(Class::Segment)?));
    all.push(Box::new(Turns::new(Class::Service)?));
    for kernel in &mut all {
        let found = measure(&mut **kernel, settings, &mut probe)?;
        let Some(class) = kernel.class() else { continue };
        if measured.get(&class).is_none_or(|known| known.percentile_ps < found.percentile_ps) {
            measured.insert(class, found);
            dearest.insert(class, kernel.name());
        }
    }
    let costs: Vec<_> =
        measured.iter().map(|(class, found)| (*class, cost_ps(found, settings.margin))).collect();
    let mut profile = CostProfile::of("calibrated", &costs);
    profile.measured = measured;
    let mut path_ps = |with_packets| -> anyhow::Result<u64> {
        let found = measure(&mut PathTurns::new(with_packets)?, settings, &mut probe)?;
        Ok(cost_ps(&found, settings.margin))
    };
    let (turn_ps, packet_ps) = (path_ps(false)?, path_ps(true)?);
    let (doorbell_ps, no_doorbell) = match doorbell_ps(settings, &mut probe, woken) {
        Ok(doorbell_ps) => (doorbell_ps, None),
        Err(why) => (PathCosts::BUILT_IN.doorbell_ps, Some(why.to_string())),
    };
    profile.path = Some(PathCosts { turn_ps, packet_ps, doorbell_ps });
    let facts = picnic_lab::facts::facts(env!("PICNIC_REVISION"));
    profile.machine = Some(Machine {
        cpu: facts.processor,
        kernel: facts.kernel,
        date: date(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
    });
    profile.method = Some(Method {
        description: format!(
            "kernels of a few hundred dependent operations on core {core}, by the monotonic clock; a \
             sample is the shortest of {RUNS} runs, which leaves out what hits one of them \
             (interrupts); {}; per class, the dearest kernel's sample at the percentile, times the \
             margin; a doorbell wakes each of cores {woken:?}, with a tenth of the samples",
            probe.description()
        ),
        samples: settings.samples as u64,
        percentile: settings.percentile,
        margin: settings.margin,
        working_set_bytes: settings.working_set_bytes as u64,
    });
    Ok(Calibrated { profile, dearest, no_doorbell })
}

/// Turns of NIC OS with one task that yields, or that sends the longest frame and yields.
struct Turns {
    class: Class,
    card: OneTask,
}

/// Bytes of the longest frame without a checksum: what the dearest service copies.
const LONGEST_FRAME: usize = 1514;

impl Turns {
    fn new(class: Class) -> anyhow::Result<Self> {
        let sends = class == Class::Service;
        let body = program(move |nic| async move {
            let frame = [0x5a; LONGEST_FRAME];
            loop {
                if sends {
                    let _ = nic.post(0, &frame);
                }
                nic.next_segment(0);
                nic.yield_now().await;
            }
        });
        Ok(Turns { class, card: OneTask::new(1, body)? })
    }
}

impl Kernel for Turns {
    fn class(&self) -> Option<Class> {
        Some(self.class)
    }
    fn name(&self) -> &'static str {
        match self.class {
            Class::Service => "a turn that posts the longest frame",
            _ => "a turn of NIC OS with one task",
        }
    }
    fn operations(&self) -> u64 {
        1
    }
    fn prepare(&mut self) {
        self.card.settle();
    }
    fn run(&mut self) {
        self.card.turn();
    }
}

fn table(profile: &CostProfile, dearest: &Dearest) -> String {
    let columns = [
        Column::Text("class"),
        Column::Number("median"),
        Column::Number("percentile"),
        Column::Number("worst"),
        Column::Number("cost"),
        Column::Number("discarded"),
        Column::Text("dearest kernel"),
    ];
    let rows = Class::ALL.iter().map(|class| {
        let found = profile.measured.get(class).copied().unwrap_or_default();
        vec![
            class.name().into(),
            nanoseconds(found.median_ps),
            nanoseconds(found.percentile_ps),
            nanoseconds(found.worst_ps),
            nanoseconds(profile.cost_ps(*class)),
            output::count(found.discarded),
            dearest.get(class).copied().unwrap_or_default().into(),
        ]
    });
    let mut text = output::table(&columns, rows);
    if let Some(PathCosts { turn_ps, packet_ps, doorbell_ps }) = profile.path {
        text.push_str(&format!(
            "\npacket path with rss: {} ns a turn, {} ns a packet; {} ns a doorbell that wakes a core\n",
            nanoseconds(turn_ps),
            nanoseconds(packet_ps),
            nanoseconds(doorbell_ps)
        ));
    }
    if let (Some(machine), Some(method)) = (&profile.machine, &profile.method) {
        text.push_str(&format!(
            "\n{}, Linux {}, {} build, {}\nns for one operation; cost = percentile {} times {}\n",
            machine.cpu,
            machine.kernel,
            machine.build,
            machine.date,
            method.percentile,
            method.margin
        ));
    }
    text
}

/// Picoseconds as nanoseconds.
fn nanoseconds(ps: u64) -> String {
    format!("{:.2}", ps as f64 / 1000.0)
}

fn as_json(
    profile: &CostProfile,
    dearest: &Dearest,
    args: &CalibrateArgs,
    warning: Option<&str>,
) -> Value {
    let classes: Vec<_> = Class::ALL
        .iter()
        .map(|class| {
            let found = profile.measured.get(class).copied().unwrap_or_default();
            json!({
                "class": class.name(),
                "help": class.help(),
                "cost_ps": profile.cost_ps(*class),
                "median_ps": found.median_ps,
                "percentile_ps": found.percentile_ps,
                "worst_ps": found.worst_ps,
                "samples": found.samples,
                "discarded": found.discarded,
                "dearest_kernel": dearest.get(class),
            })
        })
        .collect();
    json!({
        "output": args.output,
        "machine": profile.machine,
        "method": profile.method,
        "classes": classes,
        "path": profile.path,
        "warning": warning,
    })
}
