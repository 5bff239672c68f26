//! Threads pinned to cores.

use crate::isolate;
use crate::undo::Machine;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::thread::{Builder, JoinHandle};

/// The name of the thread on the borrowed core.
pub const BORROWED: &str = "borrowed";

/// Starts a thread called `name` on `core` only.
///
/// # Errors
/// The system gives no thread. If the core is not available, a warning is returned with the result:
/// the thread then runs where the kernel puts it.
pub fn spawn_pinned<R: Send + 'static>(
    name: String,
    core: usize,
    body: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<JoinHandle<(R, Option<String>)>> {
    Builder::new().name(name).spawn(move || {
        let mut set = CpuSet::new();
        set.set(core);
        let mut pinned = sched_setaffinity(None, &set);
        if pinned.is_err() && isolate::enter(&Machine::this(), core) {
            pinned = sched_setaffinity(None, &set);
        }
        let warning = pinned.err().map(|error| {
            format!("cannot be pinned to core {core} ({error}): measurements are unreliable")
        });
        (body(), warning)
    })
}
