//! Hardware threads that share a pipeline: together they compute no faster than it does.
//!
//! Guarantee: waiting for registers, memory and locks does not use the pipeline.
//!
//! Source: INIC, "tied to the tested highly threaded Niagara2 processor".

use super::core::Parts;

/// The pipelines of a machine.
#[derive(Clone, Debug)]
pub struct Pipelines {
    /// Cores with consecutive numbers that share a pipeline.
    threads: usize,
    /// The share of a pipeline that one thread uses while it computes; 0: each has its own.
    share: f64,
    /// By core: nanoseconds of all work, and of that the part that stalled.
    worked: Vec<(u64, u64)>,
}

impl Pipelines {
    /// Those of `cores` cores.
    pub fn new(cores: usize, threads: usize, share: f64) -> Self {
        Pipelines { threads: threads.max(1), share, worked: vec![(0, 0); cores] }
    }

    /// Duration of a core's work beside the busy threads of its pipeline.
    pub fn run(&mut self, core: usize, parts: Parts, is_busy: impl Fn(usize) -> bool) -> Parts {
        let (worked, stalled) = &mut self.worked[core];
        *worked += parts.total();
        *stalled += parts.stalled();
        if self.share == 0.0 || self.threads == 1 {
            return parts;
        }
        let first = core / self.threads * self.threads;
        let all = first..(first + self.threads).min(self.worked.len());
        let busy = all.filter(|&thread| thread == core || is_busy(thread));
        let wanted: f64 = busy.map(|thread| self.computes(thread)).sum();
        parts.stretched((self.share * wanted).max(1.0))
    }

    /// The share of its work in which a core computes.
    fn computes(&self, core: usize) -> f64 {
        let (worked, stalled) = self.worked[core];
        1.0 - stalled as f64 / worked.max(1) as f64
    }

    /// Nanoseconds of computation by all cores.
    pub fn computed_ns(&self) -> u64 {
        self.worked.iter().map(|(worked, stalled)| worked - stalled).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::core::Component;
    use super::*;

    #[test]
    fn busy_threads_exceed_their_pipeline() {
        let mut pipelines = Pipelines::new(8, 4, 0.5);
        let work = || Parts::of(Component::Stack, 100);
        let mut takes =
            |core, busy: usize| pipelines.run(core, work(), |thread| thread < busy).total();
        assert_eq!([1, 2, 3, 4, 8].map(|busy| takes(0, busy)), [100, 100, 150, 200, 200]);
        // Those of another pipeline do not matter.
        assert_eq!(takes(4, 4), 100);
        assert_eq!(pipelines.computed_ns(), 600);
        let mut stalls = Parts::default();
        stalls.stall(Component::Registers, 100);
        assert_eq!(pipelines.run(1, stalls, |_| true).total(), 100);
        assert_eq!(pipelines.computed_ns(), 600);
        let mut own = Pipelines::new(8, 4, 0.0);
        assert_eq!(own.run(0, work(), |_| true).total(), 100);
    }
}
