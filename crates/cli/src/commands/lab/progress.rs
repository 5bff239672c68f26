//! A bar of progress with the time left, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
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
        let style = ProgressStyle::with_template("{percent:>3} % {bar:20} {eta} left, {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
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

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
