//! The time that a line of memory needs from one core to another.
//!
//! Two threads take turns to write one line; half of a round trip is one move.

use picnic_machine::threads::spawn_pinned;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Round trips of a sample: far fewer than fit between two interrupts.
const ROUND_TRIPS: u64 = 200;

/// A separate line: processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Nanoseconds of a move between the calling core and `other`: the median of some samples.
pub(super) fn line_ns(other: usize, samples: usize) -> anyhow::Result<f64> {
    let (line, is_over) = (Arc::new(Line::default()), Arc::new(AtomicBool::new(false)));
    let (theirs, ends) = (line.clone(), is_over.clone());
    // Odd numbers are the other core's to answer.
    let answering = spawn_pinned("line".into(), other, move || {
        while !ends.load(Ordering::Relaxed) {
            let number = theirs.0.load(Ordering::Acquire);
            if number % 2 == 1 {
                theirs.0.store(number + 1, Ordering::Release);
            }
            std::hint::spin_loop();
        }
    })?;
    let mut times = Vec::new();
    let mut number = 0;
    for _ in 0..samples.max(1) {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            line.0.store(number + 1, Ordering::Release);
            number += 2;
            while line.0.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
        }
        times.push(start.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64);
    }
    is_over.store(true, Ordering::Relaxed);
    answering.join().map_err(|_| anyhow::anyhow!("the answering thread panicked"))?;
    Ok(crate::compare::median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_moves_in_some_time() {
        let cores = picnic_machine::topology::cores();
        let [one, other] = [cores[0], cores[cores.len() - 1]];
        let timing = spawn_pinned("line".into(), one, move || line_ns(other, 3)).unwrap();
        assert!(timing.join().unwrap().0.unwrap() > 0.5);
    }
}
