//! Memory by distance: the cost of lines by the core that last had them.
//!
//! Guarantees: lines that stay on their core cost nothing; with equal distances, placement makes no
//! difference.
//!
//! Source: PICNIC 5.2, "the network data must move between the cores"; PLACEMENT's latencies.

/// Distances between cores, and to memory, in nanoseconds per line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distances {
    /// Cores that share a cache, and cores of one package.
    pub cores_per_cache: usize,
    /// Cores that share a bus or a package.
    pub cores_per_package: usize,
    /// From another core of the same cache.
    pub shared_cache_ns: f64,
    /// From another core of the same package.
    pub package_ns: f64,
    /// From another package.
    pub remote_ns: f64,
    /// From memory.
    pub memory_ns: f64,
}

/// Lines owned by one core, or in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines(Option<u16>);

impl Lines {
    /// Lines that are in a core's cache.
    pub fn at(core: usize) -> Self {
        Lines(Some(core as u16))
    }

    /// The core that last had them.
    pub fn owner(&self) -> Option<usize> {
        self.0.map(usize::from)
    }
}

impl Distances {
    /// A core touches `count` lines and then owns them: nanoseconds.
    pub fn touch(&self, core: usize, lines: &mut Lines, count: f64) -> u64 {
        let ns = self.of(core, *lines);
        *lines = Lines::at(core);
        (ns * count).round() as u64
    }

    /// Nanoseconds per line from its place to `core`.
    pub fn of(&self, core: usize, lines: Lines) -> f64 {
        let same = |owner: usize, cores: usize| owner / cores.max(1) == core / cores.max(1);
        match lines.owner() {
            None => self.memory_ns,
            Some(owner) if owner == core => 0.0,
            Some(owner) if same(owner, self.cores_per_cache) => self.shared_cache_ns,
            Some(owner) if same(owner, self.cores_per_package) => self.package_ns,
            Some(_) => self.remote_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cost_by_the_distance_of_their_last_owner() {
        let distances = Distances {
            cores_per_cache: 2,
            cores_per_package: 4,
            shared_cache_ns: 7.0,
            package_ns: 100.0,
            remote_ns: 200.0,
            memory_ns: 150.0,
        };
        let cost = |owner| distances.touch(1, &mut Lines(owner), 3.0);
        assert_eq!(
            [None, Some(1), Some(0), Some(2), Some(3), Some(4)].map(cost),
            [450, 0, 21, 300, 300, 600]
        );
        let mut lines = Lines::default();
        distances.touch(5, &mut lines, 1.0);
        assert_eq!((lines.owner(), distances.touch(5, &mut lines, 1.0)), (Some(5), 0));
    }

    #[test]
    fn equal_distances_make_no_difference() {
        let distances = Distances::default();
        assert!((0..8).all(|core| distances.touch(core, &mut Lines::at(7), 9.0) == 0));
    }
}
