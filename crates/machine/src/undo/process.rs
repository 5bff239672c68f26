//! The threads of a machine, from procfs.
//!
//! Guarantees: threads that end while they are read, or have ended and wait for their parent, are
//! skipped.
//!
//! Source: proc_pid_stat(5), proc_pid_status(5).

use crate::topology::CoreSet;
use std::fs;
use std::io;
use std::path::Path;

/// A kernel thread.
const PF_KTHREAD: u32 = 0x0020_0000;
/// A worker of the kernel's work queues, which moves itself as needed.
const PF_WQ_WORKER: u32 = 0x20;
/// Its affinity cannot be changed.
const PF_NO_SETAFFINITY: u32 = 0x0400_0000;

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) process: i32,
    pub(crate) thread: i32,
    pub(crate) parent: i32,
    /// Clock ticks from boot to its start: identifies it together with its number.
    pub(crate) start_time: u64,
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    /// Bound to its cores for good: a kernel thread of one core.
    pub(crate) is_bound: bool,
    /// Of the kernel's work queues.
    pub(crate) is_worker: bool,
    /// Its allowed cores.
    pub(crate) allowed: CoreSet,
}

/// The content of `stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    state: char,
    parent: i32,
    flags: u32,
    start_time: u64,
}

fn parse(text: &str) -> Option<Stat> {
    // The name may contain anything, including brackets.
    let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    Some(Stat {
        name: name.into(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// All threads, by number.
pub(crate) fn threads(procfs: &Path) -> io::Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for process in numbered(procfs)? {
        let folder = procfs.join(process.to_string()).join("task");
        for thread in numbered(&folder).unwrap_or_default() {
            threads.extend(read(&folder.join(thread.to_string()), process, thread));
        }
    }
    Ok(threads)
}

fn read(folder: &Path, process: i32, thread: i32) -> Option<Thread> {
    let stat = parse(&fs::read_to_string(folder.join("stat")).ok()?)?;
    if matches!(stat.state, 'Z' | 'X') {
        return None;
    }
    Some(Thread {
        process,
        thread,
        parent: stat.parent,
        start_time: stat.start_time,
        name: stat.name,
        is_kernel: stat.flags & PF_KTHREAD != 0,
        is_worker: stat.flags & PF_WQ_WORKER != 0,
        is_bound: stat.flags & PF_NO_SETAFFINITY != 0,
        allowed: status_cores(&fs::read_to_string(folder.join("status")).ok()?)?,
    })
}

fn status_cores(status: &str) -> Option<CoreSet> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CoreSet::parse_list(line).ok()
}

/// A thread's start, in clock ticks from boot; none if it does not exist.
pub(crate) fn start_time(procfs: &Path, process: i32, thread: i32) -> Option<u64> {
    let path = procfs.join(format!("{process}/task/{thread}/stat"));
    let stat = parse(&fs::read_to_string(path).ok()?)?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.start_time)
}

/// A thread's allowed cores; none if it does not exist.
#[cfg(test)]
pub(crate) fn allowed(procfs: &Path, process: i32, thread: i32) -> Option<CoreSet> {
    let path = procfs.join(format!("{process}/task/{thread}/status"));
    status_cores(&fs::read_to_string(path).ok()?)
}

/// The entries of a directory that are numbers, in ascending order.
pub(crate) fn numbered(folder: &Path) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut numbers: Vec<_> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_brackets_and_blanks() {
        let text = "42 (a) R (b) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 0 0";
        let stat = parse(text).unwrap();
        assert_eq!((stat.name.as_str(), stat.state, stat.parent), ("a) R (b", 'S', 7));
        assert_eq!((stat.flags, stat.start_time), (4_194_560, 987));
        assert_eq!(parse("42 (cut off) S 1"), None);
    }

    #[test]
    fn this_process_is_found() {
        let procfs = Path::new("/proc");
        let me = std::process::id() as i32;
        let threads = threads(procfs).unwrap();
        let found = threads.iter().find(|thread| thread.thread == me).unwrap();
        assert_eq!(found.process, me);
        assert_eq!(Some(found.start_time), start_time(procfs, me, me));
        assert_eq!(Some(found.allowed.clone()), allowed(procfs, me, me));
        assert!(!found.is_kernel && !found.is_bound);
        assert_eq!(start_time(procfs, i32::MAX, i32::MAX), None);
    }

    #[test]
    fn threads_are_read_and_ended_ones_skipped() {
        use crate::undo::fixture::{BOUND, Fixture, KERNEL, WORKER};
        let fixture = Fixture::new();
        let procfs = &fixture.machine.procfs;
        for (thread, flags) in [(42, 0), (9, KERNEL), (10, BOUND), (11, WORKER), (43, 0), (44, 0)] {
            fixture.start(thread, thread, 1, flags, "0-3");
        }
        fixture.start(42, 7, 1, 0, "5");
        for (thread, state) in [(43, 'Z'), (44, 'X')] {
            let path = procfs.join(format!("{thread}/task/{thread}/stat"));
            let stat = fs::read_to_string(&path).unwrap();
            fs::write(&path, stat.replace(") S", &format!(") {state}"))).unwrap();
            assert_eq!(start_time(procfs, thread, thread), None);
        }
        let found: Vec<_> = threads(procfs)
            .unwrap()
            .iter()
            .map(|t| (t.process, t.thread, t.is_kernel, t.is_bound, t.is_worker))
            .collect();
        let expected = [
            (9, 9, true, false, false),
            (10, 10, true, true, false),
            (11, 11, true, true, true),
            (42, 7, false, false, false),
            (42, 42, false, false, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(start_time(procfs, 42, 7), Some(70));
        assert_eq!(threads(procfs).unwrap()[3].allowed.to_string(), "5");
        assert_eq!(numbered(procfs).unwrap(), [9, 10, 11, 42, 43, 44]);
    }
}
