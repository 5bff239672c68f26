//! The cost of a doorbell that wakes a core, on the ringing side.
//!
//! A thread on another core sleeps on a doorbell of the host world; each run rings it when the
//! kernel reports the thread asleep. Context switches of this thread while it waited for that are
//! not a disturbance of a run, and are not counted.

use super::probe::Thread;
use picnic_core::doorbell::Doorbell;
use picnic_host::doorbell::FutexDoorbell;
use picnic_machine::threads::spawn_pinned;
use picnic_wcet::Class;
use picnic_wcet::calibrate::{Kernel, Probe};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Cores to wake, out of all: spread over them, since their distances differ.
const MOST_CORES: usize = 4;
/// A sleep ends after this time, and restarts.
const SLEEP: Duration = Duration::from_secs(60);

/// The cores to be woken by `core`.
pub(super) fn sleepers(core: usize, cores: &[usize]) -> Vec<usize> {
    let others: Vec<_> = cores.iter().copied().filter(|&other| other != core).collect();
    let step = others.len().div_ceil(MOST_CORES).max(1);
    others.into_iter().step_by(step).collect()
}

/// State shared by the sleeper and the waking thread.
struct Shared {
    began: Instant,
    bell: FutexDoorbell,
    /// When it ran again, in nanoseconds since the beginning.
    woken_ns: AtomicU64,
    /// Times it has been woken.
    wakes: AtomicU64,
    is_over: AtomicBool,
}

/// A doorbell with a sleeper on a core.
pub(super) struct Wakes {
    shared: Arc<Shared>,
    sleeper: Option<JoinHandle<((), Option<String>)>>,
    /// The kernel's state of the sleeper.
    state: File,
    rung: u64,
    probe: Thread,
    /// Context switches of the calling thread while it waited.
    waited: Rc<Cell<u64>>,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Wakes {
    /// One whose sleeper is on `core`.
    pub(super) fn new(core: usize) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            bell: FutexDoorbell::default(),
            woken_ns: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let (tell, told) = mpsc::channel();
        let theirs = shared.clone();
        let sleeper = spawn_pinned("sleeper".into(), core, move || {
            let _ = tell.send(File::open("/proc/thread-self/stat"));
            while !theirs.is_over.load(Ordering::Acquire) {
                theirs.bell.wait(SLEEP);
                theirs.woken_ns.store(theirs.now_ns(), Ordering::Relaxed);
                theirs.wakes.fetch_add(1, Ordering::Release);
            }
        })?;
        // From here on, an error ends the sleeper.
        let mut wakes = Wakes {
            shared,
            sleeper: Some(sleeper),
            state: File::open("/dev/null")?,
            rung: 0,
            probe: Thread::start(),
            waited: Rc::default(),
        };
        wakes.state = told.recv()??;
        Ok(wakes)
    }

    /// The clock of the measuring thread, without its waits for sleepers.
    pub(super) fn clock<'a>(&self, thread: &'a mut Thread) -> Clock<'a> {
        Clock { thread, waited: self.waited.clone() }
    }

    /// Wakes the sleeper once it has slept for `slept`: nanoseconds from before that until it runs.
    pub(super) fn way_ns(&mut self, slept: Duration) -> u64 {
        self.prepare();
        let asleep = Instant::now();
        while asleep.elapsed() < slept {
            std::hint::spin_loop();
        }
        let before = self.shared.now_ns();
        self.run();
        while self.shared.wakes.load(Ordering::Acquire) < self.rung {
            std::hint::spin_loop();
        }
        self.shared.woken_ns.load(Ordering::Relaxed).saturating_sub(before)
    }

    /// Whether the sleeper is off its core, by the third field of its `stat`.
    fn is_asleep(&self) -> bool {
        let mut text = [0; 128];
        let Ok(length) = self.state.read_at(&mut text, 0) else { return false };
        // Its name is in brackets, and may contain anything.
        let name_ends = text[..length].iter().rposition(|&byte| byte == b')');
        name_ends.and_then(|end| text.get(end + 2)) == Some(&b'S')
    }
}

impl Kernel for Wakes {
    fn class(&self) -> Option<Class> {
        None
    }
    fn name(&self) -> &'static str {
        "a doorbell that wakes a core"
    }
    fn operations(&self) -> u64 {
        1
    }
    fn prepare(&mut self) {
        let before = self.probe.switches();
        while self.shared.wakes.load(Ordering::Acquire) < self.rung || !self.is_asleep() {
            std::thread::yield_now();
        }
        self.waited.set(self.waited.get() + self.probe.switches().saturating_sub(before));
    }
    fn run(&mut self) {
        self.rung += 1;
        self.shared.bell.ring();
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.bell.ring();
        if let Some(sleeper) = self.sleeper.take() {
            let _ = sleeper.join();
        }
    }
}

/// See [`Wakes::clock`].
pub(super) struct Clock<'a> {
    thread: &'a mut Thread,
    waited: Rc<Cell<u64>>,
}

impl Probe for Clock<'_> {
    fn now_ns(&mut self) -> u64 {
        self.thread.now_ns()
    }

    fn switches(&mut self) -> u64 {
        self.thread.switches().saturating_sub(self.waited.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_wakes_the_sleeper() {
        let cores = picnic_machine::topology::cores();
        let mut wakes = Wakes::new(cores[0]).unwrap();
        for run in 0..50 {
            wakes.prepare();
            assert!(wakes.shared.wakes.load(Ordering::Acquire) >= run && wakes.is_asleep());
            wakes.run();
        }
        assert!(wakes.way_ns(Duration::from_micros(10)) > 0);
        wakes.prepare();
        assert!(wakes.shared.wakes.load(Ordering::Acquire) >= 50);
    }

    #[test]
    fn a_selection_of_other_cores_is_woken() {
        let all: Vec<_> = (0..9).collect();
        assert_eq!(sleepers(8, &all), [0, 2, 4, 6]);
        assert_eq!(sleepers(0, &[0, 1]), [1]);
        assert!(sleepers(0, &[0]).is_empty());
    }
}
