//! Network namespaces, links and programs in them, made for a while.
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
//! Guarantees: everything is in a journal before it is made ([`crate::undo`]) and is gone once the
//! testbed is dropped. After a kill at any moment, `picnic cleanup` or the next testbed removes
//! what is left, programs included. Nothing outside the testbed's namespaces and folder is
//! changed.
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

/// How long an interface may take to come up, and a server to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Namespaces, known by short names of the caller's, and a folder for files.
#[derive(Debug)]
pub struct Testbed {
    machine: Machine,
    name: String,
    folder: PathBuf,
    /// None once it is being taken down.
    journal: Mutex<Option<Journal>>,
}

impl Testbed {
    /// Makes an empty one, after what killed processes have left is removed. `purpose` is a word
    /// for the journal.
    ///
    /// # Errors
    /// Not root; the journal or the folder cannot be created. Nothing is left then.
    pub fn build(purpose: &str) -> Result<Self, MachineError> {
        if !rustix::process::geteuid().is_root() {
            let message = "making network namespaces needs root: try it with `sudo`";
            return Err(MachineError::Refused(message.into()));
        }
        // What is built does not stay behind when this process is asked to stop.
        signals::stop_flag()
            .map_err(|error| MachineError::system("signals cannot be handled", error))?;
        let machine = Machine::this();
        restore_all(&machine, JournalSelection::Stale)?;
        let mut journal = Journal::create(&machine, purpose)?;
        // No number of a process is given twice at the same time after boot.
        let me = std::process::id() as i32;
        let started = process::start_time(&machine.procfs, me, me).unwrap_or(0);
        let name = format!("picnic-{}-{started}", journal.name());
        let folder = std::env::temp_dir().join(&name);
        journal.record(Change::Folder { path: folder.clone() })?;
        // From here on, an error takes everything back.
        let testbed = Testbed { machine, name, folder, journal: Mutex::new(Some(journal)) };
        std::fs::create_dir(&testbed.folder).map_err(|error| {
            MachineError::system(format!("cannot make {}", testbed.folder.display()), error)
        })?;
        Ok(testbed)
    }

    /// A folder for files, which everybody may read.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The full name of a namespace, for `ip netns`.
    pub fn netns(&self, short: &str) -> String {
        format!("{}-{short}", self.name)
    }

    /// Makes a namespace, its loopback interface up.
    ///
    /// # Errors
    /// What the system says; there is one of that name.
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
    /// What the system says.
    pub fn add_veth(
        &self,
        (near, near_link): (&str, &str),
        (far, far_link): (&str, &str),
        options: &str,
    ) -> Result<(), MachineError> {
        // The other end goes with it.
        let namespace = Some(self.netns(near));
        self.record([Change::Interface { name: near_link.into(), namespace }])?;
        let far = self.netns(far);
        let add = format!(
            "link add {near_link} {options} type veth peer name {far_link} {options} netns {far}"
        );
        self.ip(near, &add).map(drop)
    }

    /// Waits until an interface is running: the kernel says so a moment after both ends are up,
    /// and what is sent until then is dropped.
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

    /// `ip -n NAMESPACE REST`; what it printed.
    ///
    /// # Errors
    /// Its last words.
    pub fn ip(&self, short: &str, rest: &str) -> Result<String, MachineError> {
        let netns = self.netns(short);
        self.run(
            &["ip", "-n", &netns].into_iter().chain(rest.split_whitespace()).collect::<Vec<_>>(),
        )
    }

    /// Runs a command in a namespace to its end; what it printed.
    ///
    /// # Errors
    /// Its last words.
    pub fn within(&self, short: &str, command: &str) -> Result<String, MachineError> {
        let netns = self.netns(short);
        let words = ["ip", "netns", "exec", &netns].into_iter().chain(command.split_whitespace());
        self.run(&words.collect::<Vec<_>>())
    }

    /// Starts a program in a namespace, on these cores or, if there are none, on all. What it
    /// prints goes to files in the folder. To be called by a thread that lives as long as the
    /// program is to.
    ///
    /// # Errors
    /// It cannot be started, or not be written down.
    pub fn start(
        &self,
        short: &str,
        words: &[&str],
        cores: &[usize],
    ) -> Result<Program, MachineError> {
        Program::start(self, short, words, cores)
    }

    /// Writes down programs that wait at their gates.
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
            // What cannot be taken back now stays in the journal, for the next start.
            let _ = journal.undo();
        }
    }
}

/// The children of a process that runs: none without `CONFIG_PROC_CHILDREN`.
fn children(of: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
