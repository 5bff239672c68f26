//! Measures the cost of one operation of each class with timed runs of small kernels.
//!
//! A kernel does a few hundred operations of one class. Each operation depends on the previous one,
//! and the compiler can remove none. The cost of a kernel is a percentile of its samples times a
//! margin; the cost of a class is the cost of its most expensive kernel.
//!
//! Interrupts are not the cost of an operation. A kernel runs for about a microsecond, and a sample
//! is the shortest of three consecutive runs, so a disturbance of one run (an interrupt, a
//! hypervisor's pause) is excluded and a disturbance of all three is kept. Samples during which the
//! thread was switched out are discarded. The profile records, with each cost, the longest single
//! run and the number of discarded samples.
//!
//! Time is an argument: the probe is the caller's clock.

use crate::class::Class;
use crate::profile::{Interruptions, Measured};
use std::hint::black_box;

/// The caller's clock, which also detects disturbances.
pub trait Probe {
    /// Nanoseconds since some point.
    fn now_ns(&mut self) -> u64;
    /// A number that changes whenever the thread is switched out.
    fn switches(&mut self) -> u64;
}

/// Operations of one class, to be timed.
pub trait Kernel {
    /// The class; none if the kernel measures no class.
    fn class(&self) -> Option<Class>;
    /// The kernel's name, in a word or two.
    fn name(&self) -> &'static str;
    /// Operations of one run.
    fn operations(&self) -> u64;
    /// Factor on a run's time, for kernels in which only a part of the operations is the worst
    /// case.
    fn scale(&self) -> u64 {
        1
    }
    /// Prepares a run; not timed.
    fn prepare(&mut self) {}
    /// Runs the kernel once.
    fn run(&mut self);
}

/// Settings of a calibration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationSettings {
    /// Samples of each kernel: each the shortest of three runs.
    pub samples: usize,
    /// The percentile of the samples that becomes the cost, in percent.
    pub percentile: f64,
    /// Factor on the measured cost.
    pub margin: f64,
    /// Size of the memory that loads and stores access, in bytes.
    pub working_set_bytes: usize,
}

impl Default for CalibrationSettings {
    fn default() -> Self {
        CalibrationSettings {
            samples: 20_000,
            percentile: 99.9,
            margin: 1.5,
            working_set_bytes: 256 << 10,
        }
    }
}

/// Every batch of samples was disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kernel}: {discarded} of {samples} samples were disturbed by other threads: free this core, or name \
     another"
)]
pub struct Disturbed {
    /// The kernel.
    pub kernel: &'static str,
    /// Number of discarded samples.
    pub discarded: u64,
    /// Number of all samples.
    pub samples: u64,
}

/// Samples between two checks for disturbances, at most. A disturbed batch is discarded whole, and
/// the next batch is shorter, so a busy core still yields samples.
const BATCH: usize = 16;
/// Runs per sample.
pub const RUNS: usize = 3;

/// Times a kernel.
///
/// # Errors
/// Four times as many samples as requested were disturbed.
pub fn measure(
    kernel: &mut dyn Kernel,
    settings: &CalibrationSettings,
    probe: &mut dyn Probe,
) -> Result<Measured, Disturbed> {
    let samples = settings.samples.max(BATCH);
    let mut times = Vec::with_capacity(samples + BATCH);
    let (mut discarded, mut worst, mut batch) = (0, 0, BATCH);
    for _ in 0..BATCH {
        // Warms caches, branch predictor and page tables.
        kernel.prepare();
        kernel.run();
    }
    while times.len() < samples {
        let (kept, before) = (times.len(), probe.switches());
        let mut longest = 0;
        for _ in 0..batch {
            let mut shortest = u64::MAX;
            for _ in 0..RUNS {
                kernel.prepare();
                let start = probe.now_ns();
                kernel.run();
                let took = probe.now_ns().saturating_sub(start);
                shortest = shortest.min(took);
                longest = longest.max(took);
            }
            times.push(shortest);
        }
        if probe.switches() == before {
            worst = worst.max(longest);
            batch = (2 * batch).min(BATCH);
        } else {
            times.truncate(kept);
            discarded += batch as u64;
            batch = (batch / 2).max(1);
            if discarded > 4 * samples as u64 {
                let samples = discarded + kept as u64;
                return Err(Disturbed { kernel: kernel.name(), discarded, samples });
            }
        }
    }
    times.sort_unstable();
    let per_operation = |ns: u64| {
        let ps = ns.saturating_mul(1000).saturating_mul(kernel.scale());
        ps.div_ceil(kernel.operations().max(1)).max(1)
    };
    let at = |percent: f64| {
        // The sample at the percentile.
        let place = (percent / 100.0 * times.len() as f64).ceil() as usize;
        per_operation(times[place.clamp(1, times.len()) - 1])
    };
    Ok(Measured {
        median_ps: at(50.0),
        percentile_ps: at(settings.percentile),
        worst_ps: per_operation(worst),
        samples: times.len() as u64,
        discarded,
    })
}

/// Watches for interruptions of this core for a time, in nanoseconds: longer ones than `shortest_ns`
/// between two readings of the clock.
pub fn interruptions(watched_ns: u64, shortest_ns: u64, probe: &mut dyn Probe) -> Interruptions {
    let start_ns = probe.now_ns();
    let mut found = Interruptions { shortest_ns, ..Interruptions::default() };
    let mut before_ns = start_ns;
    while found.watched_ns < watched_ns {
        let now_ns = probe.now_ns();
        let gap_ns = now_ns.saturating_sub(before_ns);
        if gap_ns > shortest_ns {
            found.times += 1;
            found.total_ns += gap_ns;
            found.longest_ns = found.longest_ns.max(gap_ns);
        }
        before_ns = now_ns;
        found.watched_ns = now_ns.saturating_sub(start_ns);
    }
    found
}

/// The cost to charge: the measured cost with its margin, at least one picosecond.
pub fn cost_ps(measured: &Measured, margin: f64) -> u64 {
    let cost = (measured.percentile_ps as f64 * margin).ceil();
    // A cost beyond 64 bits cannot be measured.
    (cost as u64).max(1)
}

/// Kernels of all classes except the executor's, whose kernels the caller provides.
pub fn kernels(settings: &CalibrationSettings) -> Vec<Box<dyn Kernel>> {
    let mut kernels: Vec<Box<dyn Kernel>> = Vec::new();
    let mut add = |class, name, operations, run: fn()| {
        kernels.push(Box::new(Plain { class, name, operations, run }));
    };
    add(Class::Arithmetic, "64-bit integers", 4 * ROUNDS, || {
        let mut value = black_box(1u64);
        for _ in 0..ROUNDS {
            value = black_box(value.wrapping_add(black_box(3)));
            value = black_box(value ^ black_box(5));
            value = black_box(value >> black_box(1));
            value = black_box(u64::from(value > black_box(7)));
        }
    });
    add(Class::Arithmetic, "128-bit integers", 2 * ROUNDS, || {
        let mut value = black_box(1u128);
        for _ in 0..ROUNDS {
            value = black_box(value.wrapping_sub(black_box(3)));
            value = black_box(value << black_box(9u32));
        }
    });
    add(Class::Arithmetic, "floating point", 2 * ROUNDS, || {
        let mut value = black_box(1.0f64);
        for _ in 0..ROUNDS {
            value = black_box(value + black_box(3.5));
            value = black_box(black_box(value as u32) as f64);
        }
    });
    add(Class::Bitwise, "64-bit integers", 4 * ROUNDS, || {
        let mut value = black_box(0x5555u64);
        for _ in 0..ROUNDS {
            value = black_box(value ^ black_box(5));
            value = black_box(value | black_box(0x10));
            value = black_box(value >> black_box(1u32));
            value = black_box(!value);
        }
    });
    add(Class::Bitwise, "128-bit integers", 2 * ROUNDS, || {
        let mut value = black_box(1u128);
        for _ in 0..ROUNDS {
            value = black_box(value ^ black_box(3));
            value = black_box(value << black_box(9u32));
        }
    });
    add(Class::Multiply, "64-bit integers", ROUNDS, || {
        let mut value = black_box(3u64);
        for _ in 0..ROUNDS {
            value = black_box(value.wrapping_mul(black_box(0x9e37_79b9_7f4a_7c15)));
        }
    });
    add(Class::Multiply, "128-bit integers", ROUNDS, || {
        let mut value = black_box(3u128);
        for _ in 0..ROUNDS {
            value = black_box(value.wrapping_mul(black_box(0x9e37_79b9_7f4a_7c15_f39c)));
        }
    });
    add(Class::Divide, "64-bit integers", ROUNDS, || {
        let mut value = black_box(u64::MAX);
        for _ in 0..ROUNDS {
            value = black_box(u64::MAX - value / black_box(3) - value % black_box(7));
        }
    });
    add(Class::Divide, "128-bit integers", ROUNDS, || {
        let mut value = black_box(u128::MAX);
        for _ in 0..ROUNDS {
            value = black_box(u128::MAX - value / black_box(0x1_0000_0001_0000_0001));
        }
    });
    add(Class::Divide, "floating point", ROUNDS, || {
        let mut value = black_box(1e300f64);
        for _ in 0..ROUNDS {
            value = black_box(1e300 - value / black_box(3.7));
        }
    });
    add(Class::Call, "a function by its address", ROUNDS, || {
        let mut value = black_box(3u64);
        for _ in 0..ROUNDS {
            value = black_box(called as fn(u64, u64, u64) -> u64)(value, 1, 2);
        }
    });
    kernels.push(Box::new(Branches::new()));
    kernels.push(Box::new(Loads::new(settings.working_set_bytes)));
    kernels.push(Box::new(Stores::new(settings.working_set_bytes)));
    kernels
}

/// Rounds of one run: a few microseconds at most.
const ROUNDS: u64 = 128;

struct Plain {
    class: Class,
    name: &'static str,
    operations: u64,
    run: fn(),
}

impl Kernel for Plain {
    fn class(&self) -> Option<Class> {
        Some(self.class)
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn operations(&self) -> u64 {
        self.operations
    }
    fn run(&mut self) {
        (self.run)();
    }
}

#[inline(never)]
fn called(one: u64, other: u64, third: u64) -> u64 {
    black_box(one ^ other).wrapping_add(third)
}

/// Pseudo-random numbers that a branch predictor cannot learn.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Unpredictable branches: half are mispredicted, so each costs twice the mean.
struct Branches {
    random: u64,
    outcomes: [u8; ROUNDS as usize],
    /// The sum of both arms in the last run.
    sums: (u32, u32),
}

impl Branches {
    fn new() -> Self {
        Branches { random: 0x9e37_79b9, outcomes: [0; ROUNDS as usize], sums: (0, 0) }
    }
}

impl Kernel for Branches {
    fn class(&self) -> Option<Class> {
        Some(Class::Branch)
    }
    fn name(&self) -> &'static str {
        "outcomes at random"
    }
    fn operations(&self) -> u64 {
        ROUNDS
    }
    fn scale(&self) -> u64 {
        2
    }
    fn prepare(&mut self) {
        for outcome in &mut self.outcomes {
            *outcome = (random(&mut self.random) >> 40) as u8 & 1;
        }
    }
    fn run(&mut self) {
        let mut sums = (0u32, 0u32);
        for outcome in &self.outcomes {
            // Different work in both arms, so that the compiler keeps the jump.
            if black_box(*outcome) == 0 {
                sums.0 = black_box(sums.0 + 1);
            } else {
                sums.1 = black_box(sums.1 + 3);
            }
        }
        self.sums = sums;
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// A pointer chase through the cache lines of the working set.
struct Loads {
    lines: Vec<[u32; LINE / 4]>,
    at: u32,
}

impl Loads {
    fn new(bytes: usize) -> Self {
        let count = (bytes / LINE).max(2);
        let mut order: Vec<u32> = (0..count as u32).collect();
        let mut state = 0x5bd1_e995;
        for place in (1..count).rev() {
            order.swap(place, (random(&mut state) % (place as u64 + 1)) as usize);
        }
        let mut lines = vec![[0; LINE / 4]; count];
        for (place, &line) in order.iter().enumerate() {
            lines[line as usize][0] = order[(place + 1) % count];
        }
        Loads { lines, at: 0 }
    }
}

impl Kernel for Loads {
    fn class(&self) -> Option<Class> {
        Some(Class::Load)
    }
    fn name(&self) -> &'static str {
        "line to line at random"
    }
    fn operations(&self) -> u64 {
        ROUNDS
    }
    fn run(&mut self) {
        let mut at = self.at;
        for _ in 0..ROUNDS {
            at = black_box(self.lines[at as usize][0]);
        }
        self.at = at;
    }
}

/// Writes to words all over the working set.
struct Stores {
    lines: Vec<[u32; LINE / 4]>,
    random: u64,
}

impl Stores {
    fn new(bytes: usize) -> Self {
        Stores { lines: vec![[0; LINE / 4]; (bytes / LINE).max(2)], random: 0x2545_f491 }
    }
}

impl Kernel for Stores {
    fn class(&self) -> Option<Class> {
        Some(Class::Store)
    }
    fn name(&self) -> &'static str {
        "lines at random"
    }
    fn operations(&self) -> u64 {
        ROUNDS
    }
    fn run(&mut self) {
        let count = self.lines.len() as u64;
        for _ in 0..ROUNDS {
            let place = (random(&mut self.random) >> 20) % count;
            self.lines[place as usize][1] = black_box(place as u32);
            black_box(&mut self.lines);
        }
    }
}

#[cfg(test)]
mod tests;
