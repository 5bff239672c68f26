//! Progress with the time left: a bar on a terminal, otherwise a line now and then.

use crate::output;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Parts of the whole.
const PARTS: u64 = 10_000;
/// Interval for redrawing the bar without progress.
const TICK: Duration = Duration::from_secs(1);
/// Interval between lines.
const LINE: Duration = Duration::from_secs(10);

/// The bar, removed when dropped; or the lines.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    /// When the last line was written.
    written: Mutex<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        // Nothing is drawn if standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(PARTS), ProgressDrawTarget::stderr_with_hz(5));
        let style = ProgressStyle::with_template("{percent:>3} % {bar:20} {left}{wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("left", |state: &ProgressState, text: &mut dyn Write| {
            // Writing to the bar's text does not fail.
            let _ = text.write_str(&left(state.pos(), state.eta()));
        }));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        let started = Instant::now();
        Progress { bar, started, written: Mutex::new(started) }
    }

    pub(crate) fn tell(&self, share: f64, what: &str) {
        let done = (share * PARTS as f64) as u64;
        if !self.bar.is_hidden() {
            self.bar.set_position(done);
            self.bar.set_message(what.to_owned());
            return;
        }
        let Ok(mut written) = self.written.lock() else { return };
        if is_due(&mut written, Instant::now()) {
            let eta = self.started.elapsed().mul_f64(1.0 / share.clamp(1e-4, 1.0) - 1.0);
            output::tell(format!("{:3.0} % {}{what}", share * 100.0, left(done, eta)));
        }
    }
}

/// Whether a line is due.
fn is_due(written: &mut Instant, now: Instant) -> bool {
    let is_due = now.saturating_duration_since(*written) >= LINE;
    if is_due {
        *written = now;
    }
    is_due
}

/// The time left, once enough is done to estimate it.
fn left(done: u64, eta: Duration) -> String {
    match done {
        0 => String::new(),
        _ => format!("{} left, ", HumanDuration(eta)),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_ten_seconds_apart() {
        let start = Instant::now();
        let mut written = start;
        let mut due = |seconds| is_due(&mut written, start + Duration::from_secs(seconds));
        assert_eq!([0, 9, 10, 11, 19, 21].map(&mut due), [false, false, true, false, false, true]);
    }

    #[test]
    fn time_left_is_shown_once_it_can_be_estimated() {
        assert_eq!(left(0, Duration::ZERO), "");
        assert_eq!(left(1, Duration::from_secs(30)), "30 seconds left, ");
    }
}
