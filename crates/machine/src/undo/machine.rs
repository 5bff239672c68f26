//! The machine that is changed: where its files are, and who makes the changes.
//!
//! All of it can be replaced, so that a test can change a machine made of files,
//! with a kernel that refuses what a real one refuses.

use crate::topology::CoreSet;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fmt::Debug;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Where a machine's files are, and its kernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
    /// Where journals are kept.
    pub state: PathBuf,
    /// Who makes the changes.
    pub kernel: Arc<dyn Kernel>,
}

impl Machine {
    /// This machine; journals in `$PICNIC_STATE_DIR`, or `/run/picnic`.
    pub fn this() -> Self {
        let state = std::env::var_os("PICNIC_STATE_DIR").filter(|folder| !folder.is_empty());
        Machine {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            state: state.map_or_else(|| "/run/picnic".into(), PathBuf::from),
            kernel: Arc::new(ThisKernel),
        }
    }

    /// Whether it is the machine this process runs on.
    pub(crate) fn is_this(&self) -> bool {
        self.procfs == Path::new("/proc")
    }

    /// The text of a small file, without blanks around it.
    pub(crate) fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path).map(|text| text.trim().to_owned())
    }
}

/// What changes a machine.
pub trait Kernel: Debug + Send + Sync {
    /// Writes a setting: one write of the whole text to a file that is there.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Makes a folder (a control group).
    ///
    /// # Errors
    /// What the system says.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder (a control group without members).
    ///
    /// # Errors
    /// What the system says.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Says where a thread may run.
    ///
    /// # Errors
    /// What the system says.
    fn set_affinity(&self, thread: i32, cores: &CoreSet) -> io::Result<()>;

    /// Runs a command of iproute2 to its end.
    ///
    /// # Errors
    /// It is not installed, or what it says.
    fn ip(&self, arguments: &[&str]) -> io::Result<()>;
}

/// The kernel this process runs on.
#[derive(Debug)]
struct ThisKernel;

impl Kernel for ThisKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // Never made anew: a setting that is not there is none.
        fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn set_affinity(&self, thread: i32, cores: &CoreSet) -> io::Result<()> {
        let mut set = CpuSet::new();
        for core in cores.iter().filter(|&core| core < CpuSet::MAX_CPU) {
            set.set(core);
        }
        // Zero would be the calling thread.
        let thread = Pid::from_raw(thread).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(sched_setaffinity(Some(thread), &set)?)
    }

    fn ip(&self, arguments: &[&str]) -> io::Result<()> {
        let output = Command::new("ip").args(arguments).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().lines().next_back().unwrap_or("it failed").to_owned();
        Err(io::Error::other(format!("ip {}: {said}", arguments.join(" "))))
    }
}
