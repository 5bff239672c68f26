//! Disturbed samples on invented clocks, and the real kernels.

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
    let found = measure(&mut nothing(), &settings(96, 100.0), &mut Script::new(&times)).unwrap();
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
    let mut kernels =
        kernels(&CalibrationSettings { working_set_bytes: 4096, ..CalibrationSettings::default() });
    for class in Class::ALL {
        let wanted = !matches!(class, Class::Service | Class::Segment);
        assert_eq!(kernels.iter().any(|kernel| kernel.class() == Some(class)), wanted, "{class:?}");
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
