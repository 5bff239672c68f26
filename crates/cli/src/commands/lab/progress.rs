//! A bar of progress with the time left, on a terminal only.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;

/// Parts of the whole.
const PARTS: u64 = 10_000;
/// How often it is drawn without news.
const TICK: Duration = Duration::from_secs(1);

/// The bar; gone when it is dropped.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new() -> Self {
        // Standard error that is no terminal is drawn nothing on.
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
        Progress(bar)
    }

    pub(super) fn tell(&self, share: f64, what: &str) {
        self.0.set_position((share * PARTS as f64) as u64);
        self.0.set_message(what.to_owned());
    }
}

/// The time left, as soon as some of the work is done to judge it by.
fn left(done: u64, eta: Duration) -> String {
    match done {
        0 => String::new(),
        _ => format!("{} left, ", HumanDuration(eta)),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_left_before_there_is_anything_to_judge_it_by() {
        assert_eq!(left(0, Duration::ZERO), "");
        assert_eq!(left(1, Duration::from_secs(30)), "30 seconds left, ");
    }
}
