//! Programs in a namespace, which end with this process in any case.
//!
//! Each runs in a separate process namespace, whose first process gets a signal when this process
//! ends: so even a server's workers end when `picnic` is killed. That process starts as a gate,
//! which lets the program begin once it is in the journal, and ends if this process does before.
//!
//! Source: setpriv(1), unshare(1), pid_namespaces(7).

use super::{LOOK, PATIENCE, Testbed, children};
use crate::command::last_words;
use crate::error::MachineError;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{File, read_dir, read_to_string};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts of migrations of threads and of their wake-ups by other cores.
const MOVE_KEYS: [&str; 2] = ["nr_migrations", "nr_wakeups_remote"];

/// How long the processes of an ended program may take to end.
const LAST: Duration = Duration::from_secs(1);

/// Waits for a line, and becomes the program; ends without one.
const GATE: &str = r#"read -r _ && exec "$@" </dev/null"#;

/// A running program in a namespace; ended on drop.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

/// The kernel's counts of each thread.
#[derive(Clone, Debug, Default)]
pub struct Moves(BTreeMap<i32, [Option<u64>; MOVE_KEYS.len()]>);

/// Movements of threads between cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Migrations to another core; none if the kernel does not report them.
    pub migrations: Option<u64>,
    /// Wake-ups of a thread by a core other than its own; none without the kernel's
    /// `kernel.sched_schedstats`.
    pub remote_wakeups: Option<u64>,
}

impl Moves {
    /// The difference since `before`, without threads that have ended meanwhile.
    pub fn since(&self, before: &Moves) -> Moved {
        let count = |key: usize| {
            let counts = self.0.iter().map(|(thread, counts)| {
                let before = before.0.get(thread).and_then(|counts| counts[key]);
                Some(counts[key]?.saturating_sub(before.unwrap_or(0)))
            });
            counts.flatten().reduce(|sum, count| sum + count)
        };
        Moved { migrations: count(0), remote_wakeups: count(1) }
    }
}

/// A count in the kernel's report of a thread: `se.nr_migrations : 3`.
fn count_of(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, count) = lines.find(|(name, _)| name.trim().rsplit('.').next() == Some(key))?;
    count.trim().parse().ok()
}

impl Program {
    pub(super) fn start(
        testbed: &Testbed,
        short: &str,
        words: &[&str],
        cores: &[usize],
    ) -> Result<Self, MachineError> {
        let name = words.first().copied().unwrap_or_default().to_owned();
        let not_started = |error| MachineError::system(format!("cannot start {name}"), error);
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = |end: &str| testbed.folder().join(format!("{name}-{number}.{end}"));
        let (output, errors) = (path("out"), path("err"));
        let file = |path: &PathBuf| {
            let about =
                |error| MachineError::system(format!("cannot make {}", path.display()), error);
            File::create(path).map_err(about)
        };
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        let pinned = ["taskset".into(), "--cpu-list".into(), cores.join(",")];
        let child = Command::new("ip")
            .args(["netns", "exec", &testbed.netns(short), "setpriv", "--pdeathsig", "KILL"])
            .args(pinned.iter().filter(|_| !cores.is_empty()))
            .args(["unshare", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", GATE, "sh"])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(file(&output)?)
            .stderr(file(&errors)?)
            .process_group(0)
            .spawn()
            .map_err(not_started)?;
        let mut program = Program { name, child, output, errors };
        program.open_gate(testbed)?;
        Ok(program)
    }

    /// Records the program, and lets it begin.
    fn open_gate(&mut self, testbed: &Testbed) -> Result<(), MachineError> {
        let gate = self.child.stdin.take();
        let start = Instant::now();
        let first = loop {
            if let Some(&first) = children(self.child.id() as i32).first() {
                break first;
            }
            self.is_well(start, "does not start")?;
            std::thread::sleep(LOOK / 5);
        };
        testbed.record_processes(&[self.child.id() as i32, first])?;
        // The waiting thread notices a process that has ended meanwhile.
        let _ = gate.map(|mut gate| gate.write_all(b"\n"));
        Ok(())
    }

    /// Whether it runs, and not for too long.
    fn is_well(&mut self, since: Instant, what: &str) -> Result<(), MachineError> {
        let name = &self.name;
        if since.elapsed() >= PATIENCE {
            return Err(MachineError::Refused(format!("{name} {what}")));
        }
        if self.ended().is_some() {
            let message = format!("{} has ended: {}", self.name, self.last_words());
            return Err(MachineError::Refused(message));
        }
        Ok(())
    }

    /// Waits until the program listens on this TCP port.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn wait_for_port(&mut self, port: u16) -> Result<(), MachineError> {
        let start = Instant::now();
        while !self.listens(port) {
            self.is_well(start, &format!("does not listen on port {port}"))?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until a TCP port in the program's namespace is listening, or a UDP port is in use.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn wait_for_any_port(&mut self) -> Result<(), MachineError> {
        let start = Instant::now();
        while !self.has_socket("") && !self.has_datagrams() {
            self.is_well(start, "does not listen on any port")?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn listens(&self, port: u16) -> bool {
        self.has_socket(&format!(":{port:04X}"))
    }

    /// Whether a TCP socket listens on an address with this end.
    fn has_socket(&self, end: &str) -> bool {
        const LISTEN: &str = "0A";
        ["tcp", "tcp6"].iter().any(|family| {
            self.sockets(family).lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(end))
                    && fields.nth(1) == Some(LISTEN)
            })
        })
    }

    fn has_datagrams(&self) -> bool {
        // The first line is a heading.
        ["udp", "udp6"].iter().any(|family| self.sockets(family).lines().count() > 1)
    }

    fn sockets(&self, family: &str) -> String {
        read_to_string(format!("/proc/{}/net/{family}", self.child.id())).unwrap_or_default()
    }

    /// The run time of each thread of the program so far, including its children's.
    pub fn thread_times(&self) -> Vec<(i32, Duration)> {
        let ran = |(thread, folder): (i32, PathBuf)| {
            let text = read_to_string(folder.join("schedstat")).ok()?;
            let ran = text.split_whitespace().next()?.parse().ok()?;
            Some((thread, Duration::from_nanos(ran)))
        };
        self.threads().into_iter().filter_map(ran).collect()
    }

    /// The kernel's counts of each thread so far, including its children's.
    pub fn moves(&self) -> Moves {
        let found = self.threads().into_iter().filter_map(|(thread, folder)| {
            let text = read_to_string(folder.join("sched")).ok()?;
            Some((thread, MOVE_KEYS.map(|key| count_of(&text, key))))
        });
        Moves(found.collect())
    }

    /// All threads, including its children's, each with its directory.
    fn threads(&self) -> Vec<(i32, PathBuf)> {
        let (mut threads, mut left) = (Vec::new(), vec![self.child.id() as i32]);
        while let Some(process) = left.pop() {
            left.extend(children(process));
            let tasks = read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            threads.extend(
                tasks.filter_map(|task| {
                    Some((task.file_name().to_str()?.parse().ok()?, task.path()))
                }),
            );
        }
        threads
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end, however long; returns its output.
    ///
    /// # Errors
    /// It failed: its last line of output.
    pub fn finish(&mut self) -> Result<String, MachineError> {
        let waited = self.child.wait();
        let name = &self.name;
        let status = waited
            .map_err(|error| MachineError::system(format!("cannot wait for {name}"), error))?;
        if status.success() {
            return Ok(self.output());
        }
        Err(MachineError::Refused(format!("{name}: {}", self.last_words())))
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        read_to_string(&self.output).unwrap_or_default()
    }

    /// The last line of its output.
    pub fn last_words(&self) -> String {
        last_words(&read_to_string(&self.errors).unwrap_or_default(), &self.output())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // The first of its process namespace: all others there end with it. The child that was
        // started only waits for it.
        for child in children(self.child.id() as i32).into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(child, Signal::KILL);
        }
        let start = Instant::now();
        while self.ended().is_none() && start.elapsed() < LAST {
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_differences() {
        let text = "cat (1, #threads: 1)\n---\nse.nr_migrations   :     3\nnr_switches  :  8\n";
        assert_eq!(count_of(text, MOVE_KEYS[0]), Some(3));
        assert_eq!(count_of(text, MOVE_KEYS[1]), None);
        let moves = |list: &[(i32, u64)]| {
            Moves(list.iter().map(|&(thread, count)| (thread, [Some(count), None])).collect())
        };
        let (before, after) = (moves(&[(1, 3), (2, 7)]), moves(&[(1, 5), (3, 4)]));
        let moved = Moved { migrations: Some(6), remote_wakeups: None };
        assert_eq!(after.since(&before), moved);
        assert_eq!(Moves::default().since(&before).migrations, None);
    }
}
