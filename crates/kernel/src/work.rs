//! How a core spends its time, by kernel events: tasks, network softirqs, interrupts.
//!
//! ```no_run
//! use picnic_kernel::WorkMeter;
//! let meter = WorkMeter::start(&["nginx", "cpumap/0/"])?;
//! // ...
//! println!("core 0: {} ns", meter.of(0)?.total_ns());
//! # Ok::<(), picnic_control::error::RunError>(())
//! ```
//!
//! The kernel's own accounting samples at clock ticks, or charges a softirq to the task it
//! interrupts. Here each task switch, softirq and interrupt is recorded at its start and end.
//!
//! Guarantees: nothing is counted twice. Work of other programs on the core does not count, except
//! the interrupts that they cause and their received packets. Ends when dropped, or with the
//! process.
//!
//! Source: Documentation/trace/events.rst.

use crate::object::{missing, refused, without_clang};
use aya::maps::{MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfLoader};
use picnic_control::error::RunError;

/// The programs as compiled by clang; empty without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/work.bpf.o"));

/// As in the programs (`bpf/work.bpf.c`).
const MOST_NAMES: usize = 4;
/// Bytes of a task's name in the kernel; the last is zero.
const NAME_BYTES: usize = 16;

/// The kernel's tracepoints, with their programs.
const TRACED: [(&str, &str); 11] = [
    ("enter_device", "irq_handler_entry"),
    ("leave_device", "irq_handler_exit"),
    ("enter_call", "call_function_single_entry"),
    ("leave_call", "call_function_single_exit"),
    ("enter_wake", "reschedule_entry"),
    ("leave_wake", "reschedule_exit"),
    ("enter_timer", "local_timer_entry"),
    ("leave_timer", "local_timer_exit"),
    ("enter_softirq", "softirq_entry"),
    ("leave_softirq", "softirq_exit"),
    ("switched", "sched_switch"),
];

/// `struct name`: the start of a task's name, and a mask of the bytes that count.
fn start_of(name: &str) -> [[u8; NAME_BYTES]; 2] {
    let mut found = [[0; NAME_BYTES]; 2];
    let [start, mask] = &mut found;
    // The kernel truncates it too.
    for ((place, mask), byte) in start.iter_mut().zip(mask).zip(name.bytes().take(NAME_BYTES - 1)) {
        (*place, *mask) = (byte, u8::MAX);
    }
    found
}

/// Work of a core so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nanoseconds in the tasks of each name, without softirqs and interrupts.
    pub tasks_ns: [u64; 4],
    /// Nanoseconds in softirqs of the network.
    pub softirqs_ns: u64,
    /// Nanoseconds in interrupts from devices and other cores. Those of the core's own timer are
    /// not counted.
    pub interrupts_ns: u64,
    /// Times that one of the tasks left the core.
    pub turns: u64,
    /// Softirqs for packets received.
    pub softirqs: u64,
    /// Interrupts.
    pub interrupts: u64,
}

impl Work {
    /// All nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.tasks_ns.iter().sum::<u64>() + self.softirqs_ns + self.interrupts_ns
    }

    /// The difference from an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Work) -> Work {
        Work {
            tasks_ns: std::array::from_fn(|name| self.tasks_ns[name] - before.tasks_ns[name]),
            softirqs_ns: self.softirqs_ns - before.softirqs_ns,
            interrupts_ns: self.interrupts_ns - before.interrupts_ns,
            turns: self.turns - before.turns,
            softirqs: self.softirqs - before.softirqs,
            interrupts: self.interrupts - before.interrupts,
        }
    }
}

/// Counts the work of cores.
pub struct WorkMeter {
    work: PerCpuArray<MapData, CoreWork>,
    _object: Ebpf,
}

/// `struct work`, word by word; the last two are internal.
type CoreWork = [u64; MOST_NAMES + 7];

impl WorkMeter {
    /// Starts to count. Counts tasks whose name starts with one of these; up to four.
    ///
    /// # Errors
    /// No permission, or it was built without clang.
    pub fn start(names: &[&str]) -> Result<Self, RunError> {
        if OBJECT.is_empty() {
            return Err(without_clang());
        }
        let mut chosen = [[[0; NAME_BYTES]; 2]; MOST_NAMES];
        chosen.iter_mut().zip(names).for_each(|(place, name)| *place = start_of(name));
        let mut loader = EbpfLoader::new();
        let mut object = loader
            .override_global("NAMES", &chosen, true)
            .load(OBJECT)
            .map_err(|error| refused("loaded", &error))?;
        for (program, tracepoint) in TRACED {
            let traced = object.program_mut(program).ok_or_else(|| missing(program))?;
            let traced: Result<&mut RawTracePoint, ProgramError> = traced.try_into();
            let attached = traced.and_then(|traced| {
                traced.load()?;
                traced.attach(tracepoint).map(drop)
            });
            attached.map_err(|error| refused(&format!("attached to {tracepoint}"), &error))?;
        }
        let work = object.take_map("WORK").ok_or_else(|| missing("WORK"))?;
        let work = work.try_into().map_err(|error: MapError| refused("read", &error))?;
        Ok(WorkMeter { work, _object: object })
    }

    /// Work of a core since the start.
    ///
    /// # Errors
    /// The kernel does not report it; there is no such core.
    pub fn of(&self, core: usize) -> Result<Work, RunError> {
        let all = self.work.get(&0, 0).map_err(|error| refused("read", &error))?;
        let words = all.get(core).ok_or_else(|| missing(&format!("core {core}")))?;
        let [a, b, c, d, softirqs_ns, interrupts_ns, turns, softirqs, interrupts, ..] = *words;
        let tasks_ns = [a, b, c, d];
        Ok(Work { tasks_ns, softirqs_ns, interrupts_ns, turns, softirqs, interrupts })
    }
}

impl std::fmt::Debug for WorkMeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkMeter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    #[test]
    fn task_names_are_truncated_like_the_kernels() {
        let [start, mask] = start_of("napi/w0-");
        assert_eq!(
            (&start[..9], mask[..9].to_vec()),
            (&b"napi/w0-\0"[..], [[255; 8].as_slice(), &[0]].concat())
        );
        assert_eq!(start_of("a-name-of-more-than-15")[1], {
            let mut mask = [u8::MAX; NAME_BYTES];
            mask[NAME_BYTES - 1] = 0;
            mask
        });
        assert_eq!(start_of(""), [[0; NAME_BYTES]; 2]);
    }

    /// Runs on a thread of this name.
    fn named<R: Send + 'static>(name: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
        std::thread::Builder::new().name(name.into()).spawn(body).unwrap().join().unwrap()
    }

    #[test]
    fn the_time_of_chosen_tasks_and_of_packets_is_counted() {
        if !crate::tests::can_load("the_time_of_chosen_tasks_and_of_packets_is_counted") {
            return;
        }
        const SLEEPS: u64 = 20;
        const PACKETS: u32 = 1000;
        let meter = WorkMeter::start(&["work-other", "work-chosen"]).unwrap();
        let cores = std::thread::available_parallelism().unwrap().get();
        let all = || (0..cores).map(|core| meter.of(core).unwrap()).collect::<Vec<_>>();
        let before = all();
        let started = Instant::now();
        let work = || {
            for _ in 0..SLEEPS {
                std::thread::sleep(Duration::from_micros(100));
            }
            let turn = Instant::now();
            while turn.elapsed() < Duration::from_millis(20) {}
            // To itself: each packet is received in a softirq of the sender's core.
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in 0..PACKETS {
                socket.send_to(b"picnic", socket.local_addr().unwrap()).unwrap();
                socket.recv(&mut [0; 8]).unwrap();
            }
        };
        named("work-chosen-one", work);
        // Another name, which was not chosen.
        named("work-not-chosen", work);
        let most_ns = started.elapsed().as_nanos() as u64;
        let sum = |of: &dyn Fn(&Work) -> u64| {
            all().iter().zip(&before).map(|(now, before)| of(&now.since(before))).sum::<u64>()
        };
        let chosen = sum(&|work| work.tasks_ns[1]);
        assert!(chosen > 1_000_000 && chosen < most_ns, "{chosen} of {most_ns}");
        assert_eq!([0, 2, 3].map(|name| sum(&|work| work.tasks_ns[name])), [0; 3]);
        assert!(sum(&|work| work.turns) >= SLEEPS);
        assert!(sum(&|work| work.softirqs) >= u64::from(PACKETS));
        assert!(sum(&|work| work.softirqs_ns) > 0);
        assert!(meter.of(100_000).is_err());
    }
}
