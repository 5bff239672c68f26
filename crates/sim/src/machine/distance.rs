//! Memory by distance: the cost of lines by the core that last had them.
//!
//! Guarantees: lines that stay on their core cost nothing; with equal distances, placement makes no
//! difference; each line that moves is counted once, by its distance.
//!
//! Source: PICNIC 5.2, "the network data must move between the cores"; PLACEMENT's latencies; INIC,
//! "Injecting packets directly into CPU caches".

use std::ops::{Index, IndexMut};

/// Bytes of a line.
pub const LINE_BYTES: u32 = 64;

/// How far lines are from the core that touches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The core has them.
    Own,
    /// A core of the same cache has them, or the cache itself.
    SharedCache,
    /// Another core of the package.
    Package,
    /// Another package.
    Remote,
    /// Memory.
    Memory,
}

impl Distance {
    /// All of them, nearest first.
    pub const ALL: [Distance; 5] = [
        Distance::Own,
        Distance::SharedCache,
        Distance::Package,
        Distance::Remote,
        Distance::Memory,
    ];

    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Distance::Own => "own core",
            Distance::SharedCache => "shared cache",
            Distance::Package => "same package",
            Distance::Remote => "other package",
            Distance::Memory => "memory",
        }
    }
}

/// Lines that moved to a core, by distance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved([f64; Distance::ALL.len()]);

impl Moved {
    /// Lines that the core did not have.
    pub fn misses(&self) -> f64 {
        self.0[1..].iter().sum()
    }

    /// Lines that no cache had.
    pub fn from_memory(&self) -> f64 {
        self[Distance::Memory]
    }

    /// Those since an earlier state of the same counts.
    #[must_use]
    pub fn since(&self, earlier: &Moved) -> Moved {
        Moved(std::array::from_fn(|place| self.0[place] - earlier.0[place]))
    }
}

impl Index<Distance> for Moved {
    type Output = f64;

    fn index(&self, distance: Distance) -> &f64 {
        &self.0[distance as usize]
    }
}

impl IndexMut<Distance> for Moved {
    fn index_mut(&mut self, distance: Distance) -> &mut f64 {
        &mut self.0[distance as usize]
    }
}

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
    /// From memory, one line after the other.
    pub in_sequence_ns: f64,
    /// Lines in sequence that are fetched at a time.
    pub in_flight: f64,
}

/// The place of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// Memory.
    #[default]
    Memory,
    /// A cache that all cores of the package share.
    Cache,
    /// A core's own.
    Core(u16),
}

impl Lines {
    /// Lines that are in a core's cache.
    pub fn at(core: usize) -> Self {
        Lines::Core(core as u16)
    }

    /// The core that last had them.
    pub fn owner(&self) -> Option<usize> {
        match self {
            Lines::Core(core) => Some(usize::from(*core)),
            Lines::Memory | Lines::Cache => None,
        }
    }
}

impl Distances {
    /// A core touches `count` lines and then owns them: nanoseconds.
    pub fn touch(&self, core: usize, lines: &mut Lines, count: f64, moved: &mut Moved) -> u64 {
        let distance = self.between(core, *lines);
        *lines = Lines::at(core);
        moved[distance] += count;
        (self.ns(distance) * count).round() as u64
    }

    /// A core reads `bytes` in sequence, as a copy does: nanoseconds.
    pub fn stream(&self, core: usize, lines: Lines, bytes: u32, moved: &mut Moved) -> u64 {
        let (distance, count) = (self.between(core, lines), f64::from(bytes.div_ceil(LINE_BYTES)));
        let ns = match distance {
            Distance::Memory => self.in_sequence_ns,
            near => self.ns(near),
        };
        moved[distance] += count;
        (ns * count / self.in_flight.max(1.0)).round() as u64
    }

    /// How far lines are from `core`.
    pub fn between(&self, core: usize, lines: Lines) -> Distance {
        let same = |owner: usize, cores: usize| owner / cores.max(1) == core / cores.max(1);
        match lines {
            Lines::Memory => Distance::Memory,
            Lines::Cache => Distance::SharedCache,
            Lines::Core(owner) => match usize::from(owner) {
                owner if owner == core => Distance::Own,
                owner if same(owner, self.cores_per_cache) => Distance::SharedCache,
                owner if same(owner, self.cores_per_package) => Distance::Package,
                _ => Distance::Remote,
            },
        }
    }

    fn ns(&self, distance: Distance) -> f64 {
        match distance {
            Distance::Own => 0.0,
            Distance::SharedCache => self.shared_cache_ns,
            Distance::Package => self.package_ns,
            Distance::Remote => self.remote_ns,
            Distance::Memory => self.memory_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances() -> Distances {
        Distances {
            cores_per_cache: 2,
            cores_per_package: 4,
            shared_cache_ns: 7.0,
            package_ns: 100.0,
            remote_ns: 200.0,
            memory_ns: 150.0,
            in_sequence_ns: 80.0,
            in_flight: 4.0,
        }
    }

    #[test]
    fn lines_cost_by_the_distance_of_their_last_owner() {
        let (distances, mut moved) = (distances(), Moved::default());
        let mut cost = |mut lines| distances.touch(1, &mut lines, 3.0, &mut moved);
        let core = Lines::at;
        assert_eq!(
            [Lines::Memory, core(1), core(0), core(2), core(3), core(4), Lines::Cache]
                .map(&mut cost),
            [450, 0, 21, 300, 300, 600, 21]
        );
        assert_eq!(Distance::ALL.map(|distance| moved[distance]), [3.0, 6.0, 6.0, 3.0, 3.0]);
        assert_eq!((moved.misses(), moved.from_memory()), (18.0, 3.0));
        assert_eq!(moved.since(&moved), Moved::default());
        let mut lines = Lines::default();
        distances.touch(5, &mut lines, 1.0, &mut moved);
        let again = distances.touch(5, &mut lines, 1.0, &mut moved);
        assert_eq!((lines.owner(), again), (Some(5), 0));
    }

    #[test]
    fn a_copy_has_several_lines_in_flight() {
        let (distances, mut moved) = (distances(), Moved::default());
        // 1448 bytes are 23 lines.
        assert_eq!(distances.stream(1, Lines::Memory, 1448, &mut moved), 460);
        assert_eq!(distances.stream(1, Lines::Cache, 1448, &mut moved), 40);
        assert_eq!(distances.stream(1, Lines::at(1), 1448, &mut moved), 0);
        assert_eq!((moved.from_memory(), moved.misses()), (23.0, 46.0));
        let one = Distances { in_flight: 0.0, ..distances };
        assert_eq!(one.stream(1, Lines::Memory, 64, &mut moved), 80);
    }

    #[test]
    fn equal_distances_make_no_difference() {
        let (distances, mut moved) = (Distances::default(), Moved::default());
        assert!((0..8).all(|core| distances.touch(core, &mut Lines::at(7), 9.0, &mut moved) == 0));
    }
}
