//! The cost of operations on one core of this machine, and the duration of a task's segments there.

mod card;
mod doorbell;
pub mod here;
mod line;
pub mod observe;
mod path;
mod probe;

use crate::experiment::LabError;
use crate::facts::facts;
use card::OneTask;
use doorbell::{Wakes, sleepers};
use path::{PathCard, PathTurns, Side};
use picnic_control::Registries;
use picnic_core::config::Sections;
use picnic_core::error::ConfigError;
use picnic_machine::threads::spawn_pinned;
use picnic_os::task::program;
use picnic_wcet::calibrate::{
    CalibrationSettings, Kernel, RUNS, cost_ps, interruptions, kernels, measure,
};
use picnic_wcet::{Class, CostProfile, Machine, Measured, Method, PathCosts};
use probe::{Thread, date};
use std::collections::BTreeMap;
use std::time::Instant;

/// The name of the dearest kernel of each class.
pub type Dearest = BTreeMap<Class, &'static str>;

/// The results of the measurement.
#[derive(Debug)]
pub struct Calibrated {
    /// The costs.
    pub profile: CostProfile,
    /// The kernel that determined the cost of each class.
    pub dearest: Dearest,
    /// Why the doorbell's cost is the built-in one, if it is.
    pub no_doorbell: Option<String>,
    /// Missing privileges of the measuring thread, if any.
    pub warning: Option<String>,
}

/// How long a core is watched for interruptions, and the shortest that counts, in nanoseconds: longer
/// than a timer interrupt.
const WATCHED_NS: u64 = 500_000_000;
const SHORTEST_NS: u64 = 20_000;

/// Longest time for the first few dozen wake-ups of a core, in milliseconds: with slower ones, the
/// measurement would take minutes.
const LONGEST_TRIAL_MS: u128 = 100;

/// Measures on a core, or on the last that this process may use, for cards with the names of these
/// registries. `revision` is the source revision of the program.
///
/// # Errors
/// The core is not one of this process's, or a card for the measurement cannot be built.
pub fn calibrate(
    settings: &CalibrationSettings,
    core: Option<usize>,
    registries: Registries,
    sections: &Sections,
    revision: &str,
) -> Result<Calibrated, LabError> {
    let cores = picnic_machine::topology::cores();
    let core = match core {
        Some(core) if cores.contains(&core) => core,
        Some(core) => {
            let allowed: Vec<_> = cores.iter().map(ToString::to_string).collect();
            let message = format!("found {core}, allowed: {}", allowed.join(", "));
            return Err(ConfigError::new("core", message).into());
        }
        None => cores.last().copied().unwrap_or(0),
    };
    // Determined here: on its own core, a thread knows of no other.
    let woken = sleepers(core, &cores);
    let card = PathCard { registries, sections: sections.clone() };
    let (settings, revision) = (*settings, revision.to_owned());
    let measure = move || profile(&settings, core, &woken, &card, &revision);
    let measuring = spawn_pinned("calibrate".into(), core, measure).map_err(anyhow::Error::from)?;
    let (found, warning) =
        measuring.join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?;
    Ok(Calibrated { warning, ..found? })
}

/// The cost of a ring that wakes a core, for the dearest of several, in picoseconds: the longest,
/// and one among many.
fn doorbell_ps(
    settings: &CalibrationSettings,
    probe: &mut Thread,
    cores: &[usize],
) -> anyhow::Result<(u64, u64)> {
    // A run lasts until its sleeper sleeps again.
    let samples = settings.samples.div_ceil(10);
    let settings = CalibrationSettings { samples, ..*settings };
    let (mut longest_ps, mut typical_ps) = (0, 0);
    for &core in cores {
        let mut wakes = Wakes::new(core)?;
        let mut clock = wakes.clock(probe);
        let trial = CalibrationSettings { samples: 1, ..settings };
        let began = Instant::now();
        measure(&mut wakes, &trial, &mut clock)?;
        let took_ms = began.elapsed().as_millis();
        anyhow::ensure!(took_ms <= LONGEST_TRIAL_MS, "core {core} is busy, and wakes late");
        let found = measure(&mut wakes, &settings, &mut clock)?;
        longest_ps = longest_ps.max(cost_ps(&found, settings.margin));
        let median = Measured { percentile_ps: found.median_ps, ..found };
        typical_ps = typical_ps.max(cost_ps(&median, settings.margin));
    }
    anyhow::ensure!(longest_ps != 0, "there is no other core to wake");
    Ok((longest_ps, typical_ps))
}

fn profile(
    settings: &CalibrationSettings,
    core: usize,
    woken: &[usize],
    card: &PathCard,
    revision: &str,
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
    let mut path_ps = |side| -> anyhow::Result<u64> {
        let found = measure(&mut PathTurns::new(card, side)?, settings, &mut probe)?;
        Ok(cost_ps(&found, settings.margin))
    };
    let (turn_ps, packet_ps) = (path_ps(Side::Idle)?, path_ps(Side::Card)?);
    let mut path = PathCosts { turn_ps, packet_ps, ..PathCosts::BUILT_IN };
    let mut no_doorbell = None;
    match doorbell_ps(settings, &mut probe, woken) {
        Ok((longest_ps, typical_ps)) => {
            (path.doorbell_ps, path.typical_doorbell_ps) = (longest_ps, Some(typical_ps));
        }
        Err(why) => no_doorbell = Some(why.to_string()),
    }
    profile.path = Some(path);
    profile.interruptions = Some(interruptions(WATCHED_NS, SHORTEST_NS, &mut probe));
    let facts = facts(revision);
    profile.machine = Some(Machine {
        cpu: facts.processor,
        kernel: facts.kernel,
        date: date(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
    });
    profile.method = Some(Method {
        description: format!(
            "kernels of a few hundred dependent operations on core {core}, timed with the monotonic \
             clock; a sample is the shortest of {RUNS} runs, which excludes an interrupt during one \
             of them; {}; per class, the most expensive kernel's sample at the percentile, times the \
             margin; a doorbell wakes each of cores {woken:?}, with a tenth of the samples: the \
             longest at the percentile, the typical one at the median",
            probe.description()
        ),
        samples: settings.samples as u64,
        percentile: settings.percentile,
        margin: settings.margin,
        working_set_bytes: settings.working_set_bytes as u64,
    });
    Ok(Calibrated { profile, dearest, no_doorbell, warning: None })
}

/// Turns of NIC OS with one task that yields, or that sends the longest frame and yields.
struct Turns {
    class: Class,
    card: OneTask,
}

/// Bytes of the longest frame without a checksum: copied by the dearest service.
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
