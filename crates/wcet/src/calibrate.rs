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
mod tests {
    use super::*;

    /// A clock on which consecutive runs take the given times.
    struct Script {
        times: Vec<u64>,
        place: usize,
        now: u64,
        within: bool,
    }

    impl Script {
        fn new(times: &[u64]) -> Self {
            Script { times: times.to_vec(), place: 0, now: 0, within: false }
        }
    }

    impl Probe for Script {
        fn now_ns(&mut self) -> u64 {
            if self.within {
                self.now += self.times[self.place % self.times.len()];
                self.place += 1;
            }
            self.within = !self.within;
            self.now
        }
        fn switches(&mut self) -> u64 {
            0
        }
    }

    fn nothing() -> Plain {
        Plain { class: Class::Load, name: "nothing", operations: 10, run: || {} }
    }

    fn settings(samples: usize, percentile: f64) -> CalibrationSettings {
        CalibrationSettings { samples, percentile, ..CalibrationSettings::default() }
    }

    #[test]
    fn interruptions_are_gaps_of_the_clock() {
        /// Gaps, alternating.
        struct Gaps(u64, Vec<u64>);
        impl Probe for Gaps {
            fn now_ns(&mut self) -> u64 {
                self.1.rotate_left(1);
                self.0 += self.1[0];
                self.0
            }
            fn switches(&mut self) -> u64 {
                0
            }
        }
        let mut gaps = Gaps(7, vec![100, 20_000, 20_001, 100, 70_000]);
        let found = interruptions(1_000_000, 20_000, &mut gaps);
        // Nine rounds of 110,201 ns, and one gap more.
        assert_eq!((found.times, found.longest_ns), (19, 70_000));
        assert_eq!(found.total_ns, 9 * 90_001 + 20_001);
        assert_eq!(found.watched_ns, 9 * 110_201 + 20_001);
        let none = interruptions(1_000_000, 70_000, &mut gaps);
        assert_eq!((none.times, none.longest_ns, none.total_ns), (0, 0, 0));
    }

    #[test]
    fn disturbance_of_one_run_is_excluded_and_recorded() {
        let mut times = vec![100; 300];
        times[151] = 50_000;
        let found =
            measure(&mut nothing(), &settings(96, 100.0), &mut Script::new(&times)).unwrap();
        assert_eq!((found.median_ps, found.percentile_ps), (10_000, 10_000));
        assert_eq!(found.worst_ps, 5_000_000);
        assert_eq!(cost_ps(&found, 1.5), 15_000);
    }

    #[test]
    fn disturbance_of_all_runs_counts_up_to_the_percentile() {
        let mut times = vec![100; 300];
        times[150..153].fill(2_000);
        let at = |percent| {
            let settings = settings(96, percent);
            measure(&mut nothing(), &settings, &mut Script::new(&times)).unwrap().percentile_ps
        };
        assert_eq!((at(100.0), at(98.0)), (200_000, 10_000));
    }

    #[test]
    fn disturbed_samples_are_discarded() {
        // The switch count changes at every second check.
        struct Restless(u64);
        impl Probe for Restless {
            fn now_ns(&mut self) -> u64 {
                self.0 += 1;
                self.0
            }
            fn switches(&mut self) -> u64 {
                self.0 / 192
            }
        }
        let found = measure(&mut nothing(), &settings(160, 50.0), &mut Restless(0)).unwrap();
        assert!((160..176).contains(&found.samples), "{}", found.samples);
        // 16 samples read the clock 96 times: the count changes every 32 samples and spoils at most
        // 16.
        assert!((24..=160).contains(&found.discarded), "{}", found.discarded);
        struct Hopeless(u64);
        impl Probe for Hopeless {
            fn now_ns(&mut self) -> u64 {
                0
            }
            fn switches(&mut self) -> u64 {
                self.0 += 1;
                self.0
            }
        }
        let error = measure(&mut nothing(), &settings(160, 50.0), &mut Hopeless(0)).unwrap_err();
        assert!(error.discarded > 640 && error.to_string().contains("disturbed"), "{error}");
    }

    #[test]
    fn between_frequent_disturbances_single_samples_are_kept() {
        // The count changes at every fourth sample: no batch of 16 is undisturbed.
        struct Busy(u64);
        impl Probe for Busy {
            fn now_ns(&mut self) -> u64 {
                self.0 += 1;
                self.0
            }
            fn switches(&mut self) -> u64 {
                self.0 / 24
            }
        }
        let found = measure(&mut nothing(), &settings(160, 50.0), &mut Busy(0)).unwrap();
        assert!((160..176).contains(&found.samples), "{}", found.samples);
        assert!(found.discarded > 40, "{}", found.discarded);
    }

    #[test]
    fn every_class_but_the_executors_has_a_kernel_that_runs() {
        let mut kernels = kernels(&CalibrationSettings {
            working_set_bytes: 4096,
            ..CalibrationSettings::default()
        });
        for class in Class::ALL {
            let wanted = !matches!(class, Class::Service | Class::Segment);
            assert_eq!(
                kernels.iter().any(|kernel| kernel.class() == Some(class)),
                wanted,
                "{class:?}"
            );
        }
        for kernel in &mut kernels {
            kernel.prepare();
            kernel.run();
            assert!(kernel.operations() >= ROUNDS);
        }
    }

    #[test]
    fn loads_go_over_the_whole_working_set() {
        for count in 2..=300 {
            let mut loads = Loads::new(LINE * count);
            let mut seen = vec![false; count];
            for _ in 0..count {
                seen[loads.at as usize] = true;
                loads.at = loads.lines[loads.at as usize][0];
            }
            assert!(seen.iter().all(|seen| *seen) && loads.at == 0, "of {count} lines");
        }
    }

    /// Counts its runs and checks that each was prepared.
    struct Counting {
        operations: u64,
        scale: u64,
        prepared: usize,
        runs: usize,
    }

    impl Counting {
        fn new(operations: u64, scale: u64) -> Self {
            Counting { operations, scale, prepared: 0, runs: 0 }
        }
    }

    impl Kernel for Counting {
        fn class(&self) -> Option<Class> {
            None
        }
        fn name(&self) -> &'static str {
            "counting"
        }
        fn operations(&self) -> u64 {
            self.operations
        }
        fn scale(&self) -> u64 {
            self.scale
        }
        fn prepare(&mut self) {
            self.prepared += 1;
        }
        fn run(&mut self) {
            self.runs += 1;
            assert_eq!(self.prepared, self.runs);
        }
    }

    #[test]
    fn a_kernel_is_warmed_up_and_run_three_times_for_each_sample() {
        let mut kernel = Counting::new(1, 1);
        let found = measure(&mut kernel, &settings(1, 0.0), &mut Script::new(&[0])).unwrap();
        assert_eq!((kernel.runs, found.samples, found.discarded), (16 + 3 * 16, 16, 0));
        // At least a picosecond, for any clock.
        assert_eq!((found.median_ps, found.percentile_ps, found.worst_ps), (1, 1, 1));
        let mut times = [7; 48];
        times[9..12].fill(3);
        let found = measure(&mut kernel, &settings(16, 0.0), &mut Script::new(&times)).unwrap();
        assert_eq!((found.percentile_ps, found.median_ps, found.worst_ps), (3_000, 7_000, 7_000));
    }

    #[test]
    fn kernels_report_their_operations_per_run() {
        let settings = CalibrationSettings::default();
        assert_eq!((settings.samples, settings.working_set_bytes), (20_000, 262_144));
        let told: Vec<_> = kernels(&settings)
            .iter()
            .map(|kernel| (kernel.class().unwrap(), kernel.operations() / 128, kernel.scale()))
            .collect();
        let expected = [
            (Class::Arithmetic, 4, 1),
            (Class::Arithmetic, 2, 1),
            (Class::Arithmetic, 2, 1),
            (Class::Bitwise, 4, 1),
            (Class::Bitwise, 2, 1),
            (Class::Multiply, 1, 1),
            (Class::Multiply, 1, 1),
            (Class::Divide, 1, 1),
            (Class::Divide, 1, 1),
            (Class::Divide, 1, 1),
            (Class::Call, 1, 1),
            (Class::Branch, 1, 2),
            (Class::Load, 1, 1),
            (Class::Store, 1, 1),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn runs_touch_the_reported_range() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let run = || _ = RUNS.fetch_add(1, Ordering::Relaxed);
        let mut plain = Plain { run, ..nothing() };
        measure(&mut plain, &settings(1, 50.0), &mut Script::new(&[1])).unwrap();
        assert_eq!(RUNS.load(Ordering::Relaxed), 16 + 3 * 16);

        let mut loads = Loads::new(LINE * 256);
        loads.run();
        let next = |at: &u32| Some(loads.lines[*at as usize][0]);
        assert_eq!(std::iter::successors(Some(0), next).nth(128), Some(loads.at));

        let mut stores = Stores::new(LINE * 8);
        stores.run();
        let found: Vec<_> = stores.lines.iter().map(|line| line[1]).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7], "each line is written sooner or later");

        let mut branches = Branches::new();
        branches.prepare();
        branches.run();
        let of = |outcome| branches.outcomes.iter().filter(|found| **found == outcome).count();
        assert_eq!(of(0) + of(1), 128);
        assert!((32..=96).contains(&of(0)), "{}", of(0));
        assert_eq!(branches.sums, (of(0) as u32, 3 * of(1) as u32));
    }

    #[test]
    fn working_sets_have_the_set_size_and_no_access_pattern() {
        for (bytes, lines) in [(0, 2), (LINE - 1, 2), (3 * LINE, 3), (4 * LINE + 9, 4)] {
            assert_eq!(Loads::new(bytes).lines.len(), lines);
            assert_eq!(Stores::new(bytes).lines.len(), lines);
        }
        let loads = Loads::new(LINE * 256);
        let follows = |(at, line): &(usize, &[u32; LINE / 4])| line[0] as usize == at + 1;
        let in_turn = loads.lines.iter().enumerate().filter(follows).count();
        assert!(in_turn < 16, "{in_turn} lines are followed by the next");
        let mut stores = Stores::new(LINE * 8);
        let mut state = stores.random;
        stores.run();
        (0..ROUNDS).for_each(|_| _ = random(&mut state));
        assert_eq!(stores.random, state, "as many words as operations");
    }

    /// All runs take the same time; `disturbed` lists which batches are disturbed.
    struct Disturbing {
        took: u64,
        is_end: bool,
        disturbed: Vec<bool>,
        looks: usize,
        switches: u64,
    }

    impl Disturbing {
        fn new(took: u64, disturbed: &[bool]) -> Self {
            let disturbed = disturbed.to_vec();
            Disturbing { took, is_end: false, disturbed, looks: 0, switches: 0 }
        }
    }

    impl Probe for Disturbing {
        fn now_ns(&mut self) -> u64 {
            self.is_end = !self.is_end;
            if self.is_end { 0 } else { self.took }
        }
        fn switches(&mut self) -> u64 {
            // The count is read before and after a batch; batches past the list repeat its last
            // entry.
            let batch = (self.looks / 2).min(self.disturbed.len() - 1);
            self.switches += u64::from(self.looks % 2 == 1 && self.disturbed[batch]);
            self.looks += 1;
            self.switches
        }
    }

    /// The measurement of a run-counting kernel, and the number of its runs.
    fn measured(samples: usize, disturbed: &[bool]) -> (usize, Result<Measured, Disturbed>) {
        let mut kernel = Counting::new(1, 1);
        let mut probe = Disturbing::new(5, disturbed);
        let found = measure(&mut kernel, &settings(samples, 50.0), &mut probe);
        (kernel.runs, found)
    }

    #[test]
    fn batches_are_halved_by_a_disturbance_and_doubled_without() {
        let runs = |batches: &[usize]| 16 + 3 * batches.iter().sum::<usize>();
        let (ran, found) = measured(16, &[true, true, false]);
        let found = found.unwrap();
        assert_eq!((found.samples, found.discarded), (4 + 8 + 16, 16 + 8));
        assert_eq!(ran, runs(&[16, 8, 4, 8, 16]));
        let (ran, found) = measured(16, &[true, true, true, true, true, true, false]);
        let found = found.unwrap();
        assert_eq!((found.samples, found.discarded), (31, 32));
        assert_eq!(ran, runs(&[16, 8, 4, 2, 1, 1, 1, 2, 4, 8, 16]));
        assert_eq!((found.median_ps, found.worst_ps), (5_000, 5_000));
    }

    #[test]
    fn four_times_as_many_disturbed_as_wanted_are_too_many() {
        let (_, error) = measured(16, &[true]);
        let expected = Disturbed { kernel: "counting", discarded: 65, samples: 65 };
        assert_eq!(error, Err(expected));
        let (_, error) = measured(17, &[false, true]);
        let expected = Disturbed { kernel: "counting", discarded: 69, samples: 69 + 16 };
        assert_eq!(error, Err(expected));
        // 64 samples are not enough: 16, 8, 4, 2 and then one at a time.
        let mut disturbed = vec![true; 4 + 34];
        disturbed.push(false);
        let (_, found) = measured(16, &disturbed);
        assert_eq!(found.unwrap().discarded, 64);
    }

    #[test]
    fn a_cost_is_rounded_up_scaled_and_never_small_for_being_large() {
        let of = |took, operations, scale| {
            let mut kernel = Counting::new(operations, scale);
            let mut probe = Disturbing::new(took, &[false]);
            measure(&mut kernel, &settings(16, 50.0), &mut probe).unwrap().median_ps
        };
        assert_eq!(of(7, 3, 1), 2_334);
        assert_eq!(of(7, 3, 2), 4_667);
        assert_eq!(of(7, 0, 1), 7_000);
        assert_eq!(of(u64::MAX / 2, 1, 1), u64::MAX);
        assert_eq!(of(u64::MAX / 1500, 1, 3), u64::MAX);
        assert_eq!(cost_ps(&Measured::default(), 1.5), 1);
        // A clock that runs backwards measures nothing.
        struct Back(u64);
        impl Probe for Back {
            fn now_ns(&mut self) -> u64 {
                self.0 -= 1;
                self.0
            }
            fn switches(&mut self) -> u64 {
                0
            }
        }
        let found = measure(&mut Counting::new(1, 1), &settings(16, 50.0), &mut Back(1 << 20));
        assert_eq!(found.unwrap().worst_ps, 1);
    }
}
