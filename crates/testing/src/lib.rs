//! What tests share: waiting for an event, having the machine, saying what cannot run here.
//!
//! ```
//! use picnic_testing::{wait_for, wait_until};
//!
//! let answer = std::thread::spawn(|| 42);
//! wait_until("the thread has ended", || answer.is_finished());
//! let first = wait_for("a file", || std::fs::read_dir("/").ok()?.next());
//! ```
//!
//! A test waits for an event, never for a time in which the event should have happened, so the
//! speed of a busy machine does not matter. [`let_pass`] is for the other kind: a time in which
//! something must *not* happen, or that is itself the subject of a test.
//!
//! Guarantees: waits end after [`PATIENCE`], with a message that names the event.
//!
//! Source: none.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

/// The machine, reserved for one test of one program. Dropping it releases the machine.
#[derive(Debug)]
#[must_use]
pub struct Machine {
    _lock: File,
}

/// Reserves the machine. A test that runs a card holds it: two cards at a time would take the cores
/// from each other. Test programs run side by side, so it is the lock of a file.
///
/// # Panics
/// The file in the temporary folder cannot be opened or locked.
pub fn machine() -> Machine {
    let path = std::env::temp_dir().join("picnic-tests.lock");
    let file = OpenOptions::new().read(true).append(true).create(true).open(&path);
    let lock = file.and_then(|file| file.lock().map(|()| file));
    Machine { _lock: lock.unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
}

/// The full name of the current test, as for `--exact`.
///
/// # Panics
/// The calling thread is not a test's own.
pub fn this_test() -> String {
    std::thread::current().name().expect("a test's thread has its name").to_owned()
}

/// Longest wait: a test waits this long only if it fails, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `is_so` returns true.
///
/// # Panics
/// It is still false after [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until `look` returns something.
///
/// # Panics
/// It still returns nothing after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not in {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(PAUSE);
    }
}

/// Lets milliseconds pass, during which nothing should happen, or to act at an arbitrary moment. To
/// wait for an event, use [`wait_until`].
pub fn let_pass(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Reports that a test, or a part of it, cannot run here. `make test` collects these lines from
/// `$PICNIC_SKIPS`, because cargo hides the output of passing tests.
pub fn skip(name: &str, reason: &str) {
    let line = format!("skipped: {name}, because {reason}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("PICNIC_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        // If the file cannot be written, the line above must do.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
