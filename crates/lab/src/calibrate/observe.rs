//! Runs a task on a core of this machine and measures its segments.

use super::card::OneTask;
use picnic_machine::threads::spawn_pinned;
use picnic_os::task::Program;
use serde::Serialize;
use std::time::Instant;

/// Measured durations of a segment, including the executor's turn.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observed {
    /// Number of runs.
    pub runs: usize,
    /// The median.
    pub median_ns: Option<u64>,
    /// The 99th percentile.
    pub p99_ns: Option<u64>,
    /// The maximum.
    pub max_ns: Option<u64>,
    /// Runs longer than the bound under the profile.
    pub over_bound: usize,
}

/// Runs a number of segments of a task without waiting in between; returns durations by segment, in
/// the order of `bounds`, and a warning if the measuring thread lacks something.
///
/// # Errors
/// A card for the task cannot be built.
pub fn observe(
    program: Program,
    segments: usize,
    bounds: &[u64],
) -> anyhow::Result<(Vec<Observed>, Option<String>)> {
    let count = bounds.len();
    let core = picnic_machine::topology::cores().last().copied().unwrap_or(0);
    let running = spawn_pinned("observe".into(), core, move || times(count, segments, program))?;
    let (times, warning) =
        running.join().map_err(|_| anyhow::anyhow!("the observing thread panicked"))?;
    let observed = times?.into_iter().zip(bounds).map(|(mut times, &bound_ns)| {
        times.sort_unstable();
        let at = |percent: usize| {
            let last = times.len().checked_sub(1)?;
            times.get((times.len() * percent / 100).min(last)).copied()
        };
        Observed {
            runs: times.len(),
            median_ns: at(50),
            p99_ns: at(99),
            max_ns: times.last().copied(),
            over_bound: times.iter().filter(|&&time| time > bound_ns).count(),
        }
    });
    Ok((observed.collect(), warning))
}

/// Consecutive turns without a segment after which nothing is due any more.
const MOST_IDLE: usize = 1_000;

fn times(count: usize, segments: usize, program: Program) -> anyhow::Result<Vec<Vec<u64>>> {
    let mut card = OneTask::new(count, program)?;
    let mut times = vec![Vec::with_capacity(segments); count];
    let (mut ran, mut idle) = (0, 0);
    while ran < segments && idle < MOST_IDLE {
        let Some(segment) = card.next_segment() else { break };
        let start = Instant::now();
        let work_ns = card.turn();
        let took = start.elapsed();
        let Some(work_ns) = work_ns else {
            idle += 1;
            continue;
        };
        card.settle();
        (ran, idle) = (ran + 1, 0);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_add(work_ns);
        if let Some(times) = times.get_mut(segment) {
            times.push(took);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_run_in_an_order_of_the_graph() {
        for task in picnic_tasks::registry::graphs() {
            let mut card = OneTask::new(task.graph.segments.len(), (task.program)()).unwrap();
            let mut before = None;
            for _ in 0..1_000 {
                let Some(segment) = card.next_segment() else { break };
                if card.turn().is_none() {
                    continue;
                }
                card.settle();
                let segment = segment as u16;
                if let Some(before) = before.replace(segment) {
                    let next = task.graph.after(before);
                    assert!(next.contains(&segment), "{}: {before} to {segment}", task.name);
                } else {
                    assert_eq!(segment, 0);
                }
            }
            assert!(before.is_some_and(|segment| segment != 0), "{} went on", task.name);
        }
    }

    #[test]
    fn segments_are_distinguished_as_in_the_graph() {
        let scrub = picnic_tasks::registry::graphs().find(|task| task.name == "scrub").unwrap();
        let (observed, _) =
            observe((scrub.program)(), 65 * 4 + 4, &[u64::MAX, u64::MAX, 0]).unwrap();
        let runs: Vec<_> = observed.iter().map(|observed| observed.runs).collect();
        // Each release has one segment from the start or the wait, and 64 from a yield: the last of
        // them continues to the next wait. Four releases, and four segments of a fifth.
        assert_eq!(runs, [1, 4 * 64 + 3, 4]);
        assert_eq!(observed[2].over_bound, 4);
        assert_eq!(observed[1].over_bound, 0);
        assert!(observed[1].median_ns <= observed[1].p99_ns);
        assert!(observed[1].p99_ns <= observed[1].max_ns);
    }
}
