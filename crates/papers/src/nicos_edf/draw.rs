//! Random task sets and their work, from a seed.

use super::Settings;
use picnic_core::random;
use picnic_os::admission::Demand;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A task with the bounds of its segments.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) period_ns: Option<u64>,
    /// When it is first ready, in nanoseconds.
    pub(super) start_ns: u64,
    /// Bounds of an invocation's segments, in nanoseconds.
    pub(super) bounds_ns: Vec<u64>,
    /// Mean time between the end of an invocation and the next, in nanoseconds.
    pub(super) think_ns: f64,
    /// Whether each of these times is the mean; else they are exponentially distributed.
    pub(super) is_regular: bool,
    /// Its priority.
    pub(super) priority: u8,
}

impl Task {
    fn of(period_ns: Option<u64>, start_ns: u64, bounds_ns: Vec<u64>, think_ns: f64) -> Self {
        Task { period_ns, start_ns, bounds_ns, think_ns, is_regular: false, priority: 0 }
    }
}

/// A set of tasks, and the source of its random work.
#[derive(Clone, Debug)]
pub(super) struct TaskSet {
    pub(super) tasks: Vec<Task>,
    seed: u64,
    least_share: f64,
}

impl TaskSet {
    /// The `number`th set of these settings.
    pub(super) fn draw(settings: &Settings, number: u64) -> Self {
        let seed = mix(settings.seed, number);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let count = settings.tasks;
        // About half: a fifth of them may be of either kind.
        let periodic = random.random_range(count * 2 / 5..=(count * 3).div_ceil(5)).clamp(1, count);
        let load = random.random_range(settings.periodic_load_low..=settings.periodic_load_high);
        let mut tasks = Vec::new();
        let mut left = load;
        for index in 0..periodic {
            // UUniFast (Bini and Buttazzo, 2005): all divisions of the load are equally likely.
            let others = periodic - index - 1;
            let next = match others {
                0 => 0.0,
                others => left * random.random::<f64>().powf(1.0 / f64::from(others)),
            };
            let share = left - next;
            left = next;
            let (low, high) = (settings.period_low_us as f64, settings.period_high_us as f64);
            let period_us = low * (high / low).powf(random.random::<f64>());
            let period_ns = period_us.round() as u64 * 1000;
            let bound_ns = ((period_ns as f64 * share) as u64).max(1000);
            // Long invocations have yields too.
            let segments = bound_ns.div_ceil(settings.segment_high_us * 1000).clamp(1, 64);
            let bounds_ns = vec![(bound_ns / segments).max(1); segments as usize];
            let start_ns = random.random_range(0..period_ns);
            tasks.push(Task::of(Some(period_ns), start_ns, bounds_ns, 0.0));
        }
        for _ in periodic..count {
            let segments = random.random_range(settings.segments_low..=settings.segments_high);
            let segment_ns = settings.segment_low_us * 1000..=settings.segment_high_us * 1000;
            let bounds_ns =
                (0..segments).map(|_| random.random_range(segment_ns.clone())).collect();
            let start_ns = random.random_range(0..=settings.think_us * 1000);
            tasks.push(Task::of(None, start_ns, bounds_ns, settings.think_us as f64 * 1000.0));
        }
        TaskSet { tasks, seed, least_share: settings.least_share }
    }

    /// The tasks' demands for admission.
    pub(super) fn demands(&self) -> Vec<Demand> {
        let demand = |(index, task): (usize, &Task)| Demand {
            name: format!("task{index}"),
            period_ns: task.period_ns,
            invocation_ns: task.bounds_ns.iter().sum(),
            segment_ns: task.bounds_ns.iter().copied().max().unwrap_or(0),
            segments: task.bounds_ns.len() as u64,
        };
        self.tasks.iter().enumerate().map(demand).collect()
    }

    /// Actual nanoseconds of a segment: from the least share of its bound to all of it.
    pub(super) fn takes_ns(&self, task: usize, invocation: u64, segment: usize) -> u64 {
        let share = uniform(mix(mix(mix(self.seed, task as u64), invocation), segment as u64));
        let share = self.least_share + (1.0 - self.least_share) * share;
        let bound_ns = self.tasks[task].bounds_ns[segment];
        ((bound_ns as f64 * share) as u64).clamp(1, bound_ns)
    }

    /// Nanoseconds that a task thinks after an invocation.
    pub(super) fn thinks_ns(&self, task: usize, invocation: u64) -> u64 {
        let Task { think_ns, is_regular, .. } = self.tasks[task];
        if is_regular {
            return think_ns as u64;
        }
        let share = uniform(mix(mix(mix(self.seed, task as u64), invocation), u64::MAX));
        (-(1.0 - share).ln() * think_ns) as u64
    }
}

/// A number that depends on all bits of both.
fn mix(a: u64, b: u64) -> u64 {
    random::mix(a.wrapping_add(b.wrapping_add(1).wrapping_mul(random::GAMMA)))
}

/// From 0 to 1, without 1.
fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
