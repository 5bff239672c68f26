//! Temporary network namespaces, links and programs in them.
//!
//! ```no_run
//! use picnic_machine::testbed::Testbed;
//! let testbed = Testbed::build("demo")?;
//! testbed.add_namespace("client")?;
//! testbed.add_namespace("server")?;
//! testbed.add_veth(("client", "c0"), ("server", "s0"), "mtu 1500")?;
//! testbed.ip("server", "link set s0 up")?;
//! let mut server = testbed.start("server", &["iperf3", "-s"], &[])?;
//! server.wait_for_port(5201)?;
//! # Ok::<(), picnic_machine::error::MachineError>(())
//! ```
//!
//! Guarantees: everything is in a journal before it is made ([`crate::undo`]) and is removed when
//! the testbed is dropped. After a kill at any moment, `picnic cleanup` or the next testbed removes
//! the rest, including programs. Nothing outside the testbed's namespaces and directory is changed.
//!
//! Source: ip-netns(8), veth(4).

mod program;

pub use program::{Moved, Moves, Program};

use crate::error::MachineError;
use crate::signals;
use crate::undo::{Change, Journal, JournalSelection, Machine, process, restore_all};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest time for an interface to come up, and for a server to listen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(5);

/// Namespaces, known by the caller's short names, and a directory for files.
#[derive(Debug)]
pub struct Testbed {
    machine: Machine,
    name: String,
    folder: PathBuf,
    /// None while it is removed.
    journal: Mutex<Option<Journal>>,
}

impl Testbed {
    /// Makes an empty one, after removing what killed processes have left. `purpose` is a word for
    /// the journal.
    ///
    /// # Errors
    /// Not root; the journal or the directory cannot be created. Nothing is left then.
    pub fn build(purpose: &str) -> Result<Self, MachineError> {
        if !rustix::process::geteuid().is_root() {
            let message = "making network namespaces needs root: try it with `sudo`";
            return Err(MachineError::Refused(message.into()));
        }
        // Nothing stays behind when this process is asked to stop.
        signals::stop_flag()
            .map_err(|error| MachineError::system("signals cannot be handled", error))?;
        let machine = Machine::this();
        restore_all(&machine, JournalSelection::Stale)?;
        let mut journal = Journal::create(&machine, purpose)?;
        // Process numbers are not reused at the same time after boot.
        let me = std::process::id() as i32;
        let started = process::start_time(&machine.procfs, me, me).unwrap_or(0);
        let name = format!("picnic-{}-{started}", journal.name());
        let folder = std::env::temp_dir().join(&name);
        journal.record(Change::Folder { path: folder.clone() })?;
        // From here on, an error undoes everything.
        let testbed = Testbed { machine, name, folder, journal: Mutex::new(Some(journal)) };
        std::fs::create_dir(&testbed.folder).map_err(|error| {
            MachineError::system(format!("cannot make {}", testbed.folder.display()), error)
        })?;
        Ok(testbed)
    }

    /// A directory for files, readable for all.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The full name of a namespace, for `ip netns`.
    pub fn netns(&self, short: &str) -> String {
        format!("{}-{short}", self.name)
    }

    /// Makes a namespace, with its loopback interface up.
    ///
    /// # Errors
    /// The system's error; the name exists.
    pub fn add_namespace(&self, short: &str) -> Result<(), MachineError> {
        let name = self.netns(short);
        if self.machine.namespaces.join(&name).exists() {
            return Err(MachineError::Refused(format!("network namespace {name} exists")));
        }
        self.record([Change::Namespace { name: name.clone() }])?;
        self.run(&["ip", "netns", "add", &name])?;
        self.ip(short, "link set lo up").map(drop)
    }

    /// Makes a veth pair between two namespaces, each end given as namespace and interface;
    /// `options` as `ip link add` takes them, for both ends.
    ///
    /// # Errors
    /// The system's error.
    pub fn add_veth(
        &self,
        (near, near_link): (&str, &str),
        (far, far_link): (&str, &str),
        options: &str,
    ) -> Result<(), MachineError> {
        // The other end is removed with it.
        let namespace = Some(self.netns(near));
        self.record([Change::Interface { name: near_link.into(), namespace }])?;
        let far = self.netns(far);
        let add = format!(
            "link add {near_link} {options} type veth peer name {far_link} {options} netns {far}"
        );
        self.ip(near, &add).map(drop)
    }

    /// Waits until an interface is running: the kernel reports it a moment after both ends are up,
    /// and drops packets until then.
    ///
    /// # Errors
    /// It takes too long.
    pub fn wait_for_carrier(&self, short: &str, link: &str) -> Result<(), MachineError> {
        let start = Instant::now();
        while !self.ip(short, &format!("link show {link}"))?.contains("state UP") {
            if start.elapsed() >= PATIENCE {
                let message = format!("{link} in {} has no carrier", self.netns(short));
                return Err(MachineError::Refused(message));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Output of `ip -n NAMESPACE REST`.
    ///
    /// # Errors
    /// Its last line of output.
    pub fn ip(&self, short: &str, rest: &str) -> Result<String, MachineError> {
        let netns = self.netns(short);
        self.run(
            &["ip", "-n", &netns].into_iter().chain(rest.split_whitespace()).collect::<Vec<_>>(),
        )
    }

    /// Runs a command in a namespace to completion and returns its output.
    ///
    /// # Errors
    /// Its last line of output.
    pub fn within(&self, short: &str, command: &str) -> Result<String, MachineError> {
        let netns = self.netns(short);
        let words = ["ip", "netns", "exec", &netns].into_iter().chain(command.split_whitespace());
        self.run(&words.collect::<Vec<_>>())
    }

    /// Starts a program in a namespace, on these cores, or on all if the list is empty. Its output
    /// goes to files in the directory. To be called by a thread that lives as long as the program.
    ///
    /// # Errors
    /// It cannot be started or recorded.
    pub fn start(
        &self,
        short: &str,
        words: &[&str],
        cores: &[usize],
    ) -> Result<Program, MachineError> {
        Program::start(self, short, words, cores)
    }

    /// Records programs that wait at their gates.
    fn record_processes(&self, numbers: &[i32]) -> Result<(), MachineError> {
        let found = numbers.iter().filter_map(|&process| {
            let start_time = process::start_time(&self.machine.procfs, process, process)?;
            Some(Change::Process { process, start_time })
        });
        self.record(found)
    }

    fn record(&self, changes: impl IntoIterator<Item = Change>) -> Result<(), MachineError> {
        self.journal().as_mut().map_or(Ok(()), |journal| journal.record_all(changes))
    }

    fn run(&self, words: &[&str]) -> Result<String, MachineError> {
        let journal = self.journal();
        let Some(journal) = journal.as_ref() else { return Ok(String::new()) };
        journal.run(words).map_err(|error| MachineError::Refused(error.to_string()))
    }

    fn journal(&self) -> MutexGuard<'_, Option<Journal>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Some(journal) = self.journal().take() {
            // Changes that cannot be undone now stay in the journal, for the next start.
            let _ = journal.undo();
        }
    }
}

/// The children of a running process: none without `CONFIG_PROC_CHILDREN`.
fn children(of: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
