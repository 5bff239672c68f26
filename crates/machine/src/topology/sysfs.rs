//! The machine's cores, caches, packages and nodes, from sysfs.
//!
//! Guarantees: reading never fails. Facts missing in sysfs are unknown, wrong ones are unknown too
//! and listed in [`Topology::problems`].
//!
//! Source: Documentation/admin-guide/cputopology.rst,
//! Documentation/ABI/testing/sysfs-devices-system-cpu.

use super::CoreSet;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The cores of a machine and their shared caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Cores that are online.
    pub online: CoreSet,
    /// Cores that are present and offline.
    pub offline: CoreSet,
    /// The facts about each online core.
    pub cores: BTreeMap<usize, Core>,
    /// The cores of each NUMA node.
    pub nodes: BTreeMap<usize, CoreSet>,
    /// Files with unexpected content.
    pub problems: Vec<String>,
}

/// One core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its package (socket); none if unknown.
    pub package: Option<usize>,
    /// All SMT threads of its core, including itself; empty if unknown.
    pub siblings: CoreSet,
    /// Its caches, the nearest first; empty if unknown.
    pub caches: Vec<Cache>,
}

/// One cache of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1 for the nearest.
    pub level: usize,
    /// Its kind.
    pub kind: CacheKind,
    /// The cores that share it.
    pub shared: CoreSet,
    /// Its size; none if unknown.
    pub size_bytes: Option<u64>,
}

/// The content of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

impl Topology {
    /// Reads the topology below `sysfs`, which is `/sys` except in tests.
    pub fn read(sysfs: &Path) -> Topology {
        let mut topology = Topology::default();
        let folder = sysfs.join("devices/system/cpu");
        let present: CoreSet = numbered(&folder, "cpu").into_iter().collect();
        let online = topology.list(&folder.join("online"));
        // A kernel without hotplug has no such file: all present cores are online.
        topology.online = if online.is_empty() { present.clone() } else { online };
        topology.offline = present.without(&topology.online);
        for core in topology.online.clone().iter() {
            let known = topology.core(&folder.join(format!("cpu{core}")));
            topology.cores.insert(core, known);
        }
        let folder = sysfs.join("devices/system/node");
        for node in numbered(&folder, "node") {
            let cores = topology.list(&folder.join(format!("node{node}/cpulist")));
            topology.nodes.insert(node, cores);
        }
        topology
    }

    /// The NUMA node of a core; none if unknown.
    pub fn node_of(&self, core: usize) -> Option<usize> {
        self.nodes.iter().find(|(_, cores)| cores.contains(core)).map(|(node, _)| *node)
    }

    /// The other SMT threads of a core.
    pub fn siblings(&self, core: usize) -> CoreSet {
        let known = self.cores.get(&core);
        known.map(|known| others(&known.siblings, core)).unwrap_or_default()
    }

    /// The other cores that share the core's cache of a level; none if unknown.
    pub fn sharing(&self, core: usize, level: usize) -> Option<CoreSet> {
        let caches = self.cores.get(&core)?.caches.iter().filter(|cache| {
            // Instruction caches do not matter for data.
            cache.level == level && cache.kind != CacheKind::Instruction
        });
        caches.map(|cache| others(&cache.shared, core)).reduce(|all, more| all.or(&more))
    }

    /// The level of the core's last cache before memory; none if unknown.
    pub fn last_level(&self, core: usize) -> Option<usize> {
        self.cores.get(&core)?.caches.iter().map(|cache| cache.level).max()
    }

    fn core(&mut self, folder: &Path) -> Core {
        let topology = folder.join("topology");
        let mut siblings = self.list(&topology.join("core_cpus_list"));
        if siblings.is_empty() {
            siblings = self.list(&topology.join("thread_siblings_list"));
        }
        // -1 if the firmware does not report it.
        let package = read(&topology.join("physical_package_id")).and_then(|id| id.parse().ok());
        let folder = folder.join("cache");
        let mut caches: Vec<_> = numbered(&folder, "index")
            .into_iter()
            .filter_map(|index| self.cache(&folder.join(format!("index{index}"))))
            .collect();
        caches.sort_by_key(|cache| cache.level);
        Core { package, siblings, caches }
    }

    fn cache(&mut self, folder: &Path) -> Option<Cache> {
        let level = read(&folder.join("level"))?;
        let kind = match read(&folder.join("type"))?.as_str() {
            "Data" => CacheKind::Data,
            "Instruction" => CacheKind::Instruction,
            "Unified" => CacheKind::Unified,
            other => {
                self.problem(&folder.join("type"), &format!("found \"{other}\""));
                return None;
            }
        };
        let Some(level) = level.parse().ok().filter(|level| (1..=9).contains(level)) else {
            self.problem(&folder.join("level"), &format!("found \"{level}\", allowed: 1 to 9"));
            return None;
        };
        let shared = self.list(&folder.join("shared_cpu_list"));
        let size_bytes = read(&folder.join("size")).and_then(|size| bytes(&size));
        Some(Cache { level, kind, shared, size_bytes })
    }

    /// The list of cores in a file; empty if there is no such file.
    fn list(&mut self, path: &Path) -> CoreSet {
        let text = read(path).unwrap_or_default();
        CoreSet::parse_list(&text).unwrap_or_else(|error| {
            self.problem(path, &error.to_string());
            CoreSet::new()
        })
    }

    fn problem(&mut self, path: &Path, what: &str) {
        self.problems.push(format!("{}: {what}", path.display()));
    }
}

fn others(cores: &CoreSet, core: usize) -> CoreSet {
    cores.iter().filter(|&other| other != core).collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The numbers in a directory's entries `prefixNUMBER`, in ascending order.
fn numbered(folder: &Path, prefix: &str) -> Vec<usize> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<_> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
        .filter(|&number| number <= 8191)
        .collect();
    numbers.sort_unstable();
    numbers
}

/// A size such as `1024K`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
