//! Facts to be recorded with any figure: the machine, the kernel, the revision.

use picnic_machine::facts::{MachineFacts, first_word, unavailable};
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::{CacheKind, Topology, available, cores};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Facts of this machine and this build. What cannot be known reads "unavailable".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// The machine's name in its network.
    pub machine: String,
    /// The processor, as the kernel names it.
    pub processor: String,
    /// Cores this machine has online.
    pub cores: usize,
    /// Packages, threads of a core and nodes.
    pub topology: String,
    /// A core's caches, the nearest first, and how many cores share each.
    pub caches: Vec<String>,
    /// The distance of the last core from others.
    pub distances: Vec<Distance>,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's mitigations of processor vulnerabilities.
    pub mitigations: Vec<String>,
    /// The governor of the last core's frequency.
    pub governor: String,
    /// Hardware counters, or the reason for having none.
    #[serde(default = "unavailable")]
    pub counters: String,
    /// Whether a hypervisor runs below.
    pub virtual_machine: bool,
    /// The revision of the working tree, with `-dirty` if it has changes.
    pub revision: String,
    /// The system's load over the last minute.
    pub load_average: String,
}

/// The time that a word takes from one core to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Distance {
    /// From this core.
    pub from: usize,
    /// To this one.
    pub to: usize,
    /// Half of the shortest of many round trips.
    pub one_way_ns: f64,
}

/// Reads them; `revision` is the program's source revision.
pub fn facts(revision: &str) -> Facts {
    static MACHINE: OnceLock<Facts> = OnceLock::new();
    let machine = MACHINE.get_or_init(of_this_machine);
    let load_average = first_word("/proc/loadavg");
    Facts { revision: revision.to_owned(), load_average, ..machine.clone() }
}

fn of_this_machine() -> Facts {
    let MachineFacts { name, processor, cores: count, kernel, virtual_machine } =
        MachineFacts::read();
    let topology = available().topology;
    let last = cores().last().copied().unwrap_or(0);
    Facts {
        machine: name,
        processor,
        cores: count,
        topology: shape(&topology),
        caches: caches(&topology, last),
        distances: distances(),
        kernel,
        mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
        governor: first_word(&format!(
            "/sys/devices/system/cpu/cpu{last}/cpufreq/scaling_governor"
        )),
        counters: crate::counters::told(last),
        virtual_machine,
        revision: String::new(),
        load_average: String::new(),
    }
}

fn shape(topology: &Topology) -> String {
    let mut packages: Vec<_> = topology.cores.values().filter_map(|core| core.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let threads = topology.cores.values().map(|core| core.siblings.len()).max().unwrap_or(0);
    let many = |count: usize, what: &str| match count {
        0 => format!("{what}s unavailable"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let (packages, nodes) = (packages.len(), topology.nodes.len());
    format!(
        "{}, {} of a core, {}",
        many(packages, "package"),
        many(threads, "thread"),
        many(nodes, "node")
    )
}

fn caches(topology: &Topology, core: usize) -> Vec<String> {
    let caches = topology.cores.get(&core).map_or(&[][..], |core| &core.caches);
    let text = caches.iter().map(|cache| {
        let kind = match cache.kind {
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
            CacheKind::Unified => "",
        };
        let size =
            cache.size_bytes.map_or_else(unavailable, |bytes| format!("{} KiB", bytes >> 10));
        format!("L{}{kind} {size}, cores sharing it: {}", cache.level, cache.shared.len())
    });
    text.collect()
}

/// The mitigations, as `name: how`, without vulnerabilities that do not affect this processor.
fn mitigations(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder) else { return vec![unavailable()] };
    let mut found: Vec<_> = files
        .flatten()
        .filter_map(|file| {
            let text = read_to_string(file.path()).ok()?;
            let text = text.trim();
            let name = file.file_name().to_string_lossy().into_owned();
            (text != "Not affected").then(|| format!("{name}: {text}"))
        })
        .collect();
    found.sort();
    found
}

/// From the last core, which a card borrows by default, to up to three others.
fn distances() -> Vec<Distance> {
    let cores = cores();
    let Some((&last, others)) = cores.split_last() else { return Vec::new() };
    let others = others.iter().rev().take(2).chain(others.first());
    let mut found: Vec<Distance> = Vec::new();
    for &other in others {
        if found.iter().all(|distance| distance.to != other) {
            let one_way_ns = one_way_ns(last, other);
            found.extend(one_way_ns.map(|ns| Distance { from: last, to: other, one_way_ns: ns }));
        }
    }
    found
}

/// Half of the shortest of many round trips of a word between two cores; none if there are no
/// threads, or they did not run at the same time.
fn one_way_ns(from: usize, to: usize) -> Option<f64> {
    const TRIPS: u64 = 200;
    const MOMENT: Duration = Duration::from_millis(50);
    let word = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + MOMENT;
    // Odd numbers go one way and even ones the other.
    let answer = {
        let word = word.clone();
        move || {
            while Instant::now() < until {
                let at = word.load(Ordering::Acquire);
                if at % 2 == 1 {
                    word.store(at + 1, Ordering::Release);
                }
            }
        }
    };
    let ask = move || {
        let mut least = f64::INFINITY;
        while Instant::now() < until {
            let start = Instant::now();
            for _ in 0..TRIPS {
                let at = word.load(Ordering::Acquire) + 1;
                word.store(at, Ordering::Release);
                let mut looks = 0u32;
                while word.load(Ordering::Acquire) == at {
                    looks += 1;
                    // The other may have ended, or not have started.
                    if looks.is_multiple_of(1024) && Instant::now() >= until {
                        return least;
                    }
                }
            }
            least = least.min(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
        }
        least
    };
    let other = spawn_pinned("answer".into(), to, answer).ok()?;
    let one = spawn_pinned("ask".into(), from, ask);
    let (_, elsewhere) = other.join().ok()?;
    let (least, moved) = one.ok()?.join().ok()?;
    let is_told = least.is_finite() && elsewhere.is_none() && moved.is_none();
    is_told.then_some((least * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaffected_vulnerabilities_are_not_listed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("meltdown"), "Not affected\n").unwrap();
        std::fs::write(folder.path().join("spectre_v1"), "Mitigation: barriers\n").unwrap();
        assert_eq!(mitigations(folder.path()), ["spectre_v1: Mitigation: barriers"]);
        assert_eq!(mitigations(&folder.path().join("none")), ["unavailable"]);
    }

    #[test]
    fn facts_describe_a_machine_with_cores() {
        let facts = facts("r");
        assert!(facts.cores > 0 && facts.revision == "r");
        assert!(facts.topology.contains("node"), "{}", facts.topology);
        assert!(facts.distances.iter().all(|distance| distance.one_way_ns > 0.0));
    }
}
