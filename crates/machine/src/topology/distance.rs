//! How far two cores are from each other, and the machine as a drawing.

use super::{CacheKind, CoreSet, Topology};
use serde::Serialize;

/// The nearest thing that two cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// They are the same.
    Same,
    /// A core: they are its SMT threads.
    Thread,
    /// An L2 cache.
    L2,
    /// A cache beyond the L2.
    Cache,
    /// A package.
    Package,
    /// The machine only.
    Machine,
}

impl Distance {
    /// All of them, nearest first.
    pub const ALL: [Distance; 6] = [
        Distance::Same,
        Distance::Thread,
        Distance::L2,
        Distance::Cache,
        Distance::Package,
        Distance::Machine,
    ];

    /// The shared resource, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Distance::Same => "the same core",
            Distance::Thread => "SMT siblings",
            Distance::L2 => "shared L2",
            Distance::Cache => "shared cache beyond the L2",
            Distance::Package => "same package",
            Distance::Machine => "another package",
        }
    }
}

impl Topology {
    /// How far two cores are from each other; none if unknown.
    pub fn distance(&self, one: usize, other: usize) -> Option<Distance> {
        let core = self.cores.get(&one)?;
        let shares = |is_level: fn(usize) -> bool| {
            let data = core.caches.iter().filter(|cache| cache.kind != CacheKind::Instruction);
            data.filter(|cache| is_level(cache.level)).any(|cache| cache.shared.contains(other))
        };
        if one == other {
            return Some(Distance::Same);
        }
        if core.siblings.contains(other) {
            return Some(Distance::Thread);
        }
        if shares(|level| level == 2) {
            return Some(Distance::L2);
        }
        if shares(|level| level > 2) {
            return Some(Distance::Cache);
        }
        let (package, its) = (core.package?, self.cores.get(&other)?.package?);
        Some(if package == its { Distance::Package } else { Distance::Machine })
    }

    /// The cores at each distance from one of them, nearest first, without empty classes; cores at
    /// unknown distance are left out.
    pub fn around(&self, core: usize) -> Vec<(Distance, CoreSet)> {
        let at = |distance| {
            let others = self.online.iter();
            others.filter(|other| self.distance(core, *other) == Some(distance)).collect()
        };
        let all = Distance::ALL[1..].iter().map(|&distance| (distance, at(distance)));
        all.filter(|(_, cores): &(_, CoreSet)| !cores.is_empty()).collect()
    }

    /// The machine as indented lines: packages, caches that several cores share, and cores with
    /// their SMT threads.
    pub fn drawing(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut packages: Vec<_> = self.cores.values().map(|core| core.package).collect();
        packages.sort_unstable();
        packages.dedup();
        for package in packages {
            let name = package.map_or("unknown".into(), |number| number.to_string());
            let of: CoreSet = self
                .cores
                .iter()
                .filter(|(_, core)| core.package == package)
                .map(|(n, _)| *n)
                .collect();
            lines.push(format!("package {name}: cores {of}"));
            let mut drawn: Vec<(usize, CoreSet)> = Vec::new();
            for number in of.iter() {
                let Some(core) = self.cores.get(&number) else { continue };
                let mut depth = 1;
                // The farthest first: it has the others in it.
                let caches = core.caches.iter().rev().filter(|cache| cache.level >= 2);
                for cache in caches.filter(|cache| cache.kind != CacheKind::Instruction) {
                    let key = (cache.level, cache.shared.clone());
                    if !drawn.contains(&key) {
                        let size = cache
                            .size_bytes
                            .map_or(String::new(), |bytes| format!(" {} KiB", bytes / 1024));
                        let (level, cores) = (cache.level, &cache.shared);
                        lines.push(format!("{}L{level}{size}: cores {cores}", "  ".repeat(depth)));
                        drawn.push(key);
                    }
                    depth += 1;
                }
                let threads = (0, core.siblings.clone());
                if core.siblings.len() > 1 && !drawn.contains(&threads) {
                    let threads_of = &core.siblings;
                    lines.push(format!("{}SMT threads: {threads_of}", "  ".repeat(depth)));
                    drawn.push(threads);
                }
            }
        }
        for (node, cores) in self.nodes.iter().filter(|_| self.nodes.len() > 1) {
            lines.push(format!("memory node {node}: cores {cores}"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cache, Core};
    use super::*;

    /// Two packages of two cores with two threads each; threads have an L2, packages an L3.
    fn machine() -> Topology {
        let mut topology = Topology { online: (0..8).collect(), ..Topology::default() };
        for number in 0..8_usize {
            let threads: CoreSet = [number & !1, number | 1].into_iter().collect();
            let package = number / 4;
            let cache = |level, shared, size: u64| Cache {
                level,
                kind: CacheKind::Unified,
                shared,
                size_bytes: Some(size << 10),
            };
            let whole = (4 * package..4 * package + 4).collect();
            let caches = vec![cache(2, threads.clone(), 1024), cache(3, whole, 8192)];
            let core = Core { package: Some(package), siblings: threads, caches };
            topology.cores.insert(number, core);
        }
        topology
    }

    #[test]
    fn cores_are_as_far_as_the_nearest_thing_that_they_share() {
        let topology = machine();
        let of = |other| topology.distance(1, other).unwrap();
        assert_eq!(
            [1, 0, 2, 4].map(of),
            [Distance::Same, Distance::Thread, Distance::Cache, Distance::Machine]
        );
        assert_eq!(topology.distance(9, 0), None);
        let around: Vec<_> =
            topology.around(1).into_iter().map(|(at, cores)| (at, cores.to_string())).collect();
        let wanted = [
            (Distance::Thread, "0".to_owned()),
            (Distance::Cache, "2-3".into()),
            (Distance::Machine, "4-7".into()),
        ];
        assert_eq!(around, wanted);
        let mut unknown = machine();
        unknown.cores.get_mut(&1).unwrap().caches.clear();
        assert_eq!(unknown.distance(1, 2), Some(Distance::Package));
        unknown.cores.get_mut(&1).unwrap().package = None;
        assert_eq!(unknown.distance(1, 2), None);
    }

    #[test]
    fn a_drawing_has_each_package_cache_and_core_once() {
        let lines = machine().drawing();
        let text = lines.join("\n");
        assert!(text.starts_with("package 0: cores 0-3\n  L3 8192 KiB: cores 0-3\n    L2 1024 KiB: cores 0-1\n      SMT threads: 0-1\n"), "{text}");
        assert_eq!(lines.len(), 2 * (1 + 1 + 2 + 2), "{text}");
        assert!(Topology::default().drawing().is_empty());
    }
}
