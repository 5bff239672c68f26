//! The machine to be changed: its files, and the calls that change it.
//!
//! All of it can be replaced, so that a test can change a machine made of files, with a kernel that
//! refuses the same operations as a real one.

use crate::command;
use crate::topology::CoreSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::Timespec;
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Seconds that a killed process may take to end, on a machine whose cores have no time for it.
const PATIENCE_S: i64 = 60;

/// A machine's files and its kernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
    /// The directory of journals.
    pub state: PathBuf,
    /// Where `ip netns` keeps its names, `/run/netns`.
    pub namespaces: PathBuf,
    /// Makes the changes.
    pub kernel: Arc<dyn Kernel>,
}

impl Machine {
    /// This machine; journals in `$PICNIC_STATE_DIR`, or `/run/picnic`.
    pub fn this() -> Self {
        Machine {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            state: state(std::env::var_os("PICNIC_STATE_DIR")),
            namespaces: "/run/netns".into(),
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

/// The directory of journals, given `PICNIC_STATE_DIR`.
fn state(folder: Option<OsString>) -> PathBuf {
    let folder = folder.filter(|folder| !folder.is_empty());
    folder.map_or_else(|| "/run/picnic".into(), PathBuf::from)
}

/// The calls that change a machine.
pub trait Kernel: Debug + Send + Sync {
    /// Writes a setting: one write of the whole text to an existing file.
    ///
    /// # Errors
    /// The system's error.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Makes a directory (a control group).
    ///
    /// # Errors
    /// The system's error.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory (a control group without members).
    ///
    /// # Errors
    /// The system's error.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with all its content, following no links.
    ///
    /// # Errors
    /// The system's error.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;

    /// Kills a process, if `is_it` confirms that the number is still its own, and waits for its
    /// end.
    ///
    /// # Errors
    /// The system's error; it does not end.
    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> io::Result<()>;

    /// Sets the allowed cores of a thread.
    ///
    /// # Errors
    /// The system's error.
    fn set_affinity(&self, thread: i32, cores: &CoreSet) -> io::Result<()>;

    /// Runs a command to completion. `lock` stays locked until then, even if this process is killed
    /// meanwhile: the next holder finds the command's work done.
    ///
    /// # Errors
    /// It is not installed, or its error.
    fn run(&self, lock: &File, words: &[&str]) -> io::Result<()>;
}

/// The kernel this process runs on.
#[derive(Debug)]
struct ThisKernel;

impl Kernel for ThisKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // Never created: a setting that does not exist is not one.
        fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> io::Result<()> {
        let process = Pid::from_raw(process).ok_or(io::ErrorKind::InvalidInput)?;
        // From here on the number refers to this process, even after its end.
        let process = pidfd_open(process, PidfdFlags::empty())?;
        if !is_it() {
            return Err(Errno::SRCH.into());
        }
        pidfd_send_signal(&process, Signal::KILL)?;
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
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

    fn run(&self, lock: &File, words: &[&str]) -> io::Result<()> {
        command::run_with(words, lock.try_clone()?.into()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use tempfile::tempdir;

    fn sleeper() -> std::process::Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn settings_are_written_and_never_created() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("setting");
        let error = ThisKernel.write(&path, "1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!path.exists());
        fs::write(&path, "0\n").unwrap();
        ThisKernel.write(&path, "12").unwrap();
        assert_eq!(Machine::this().read(&path).unwrap(), "12");
    }

    #[test]
    fn directories_are_made_and_removed() {
        let folder = tempdir().unwrap();
        let path = folder.path().join("group");
        ThisKernel.make_folder(&path).unwrap();
        assert!(path.is_dir() && ThisKernel.make_folder(&path).is_err());
        fs::write(path.join("file"), "x").unwrap();
        // As a control group with members.
        assert!(ThisKernel.remove_folder(&path).is_err() && path.is_dir());
        ThisKernel.remove_tree(&path).unwrap();
        assert!(!path.exists());
        ThisKernel.make_folder(&path).unwrap();
        ThisKernel.remove_folder(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn threads_move_to_the_given_cores() {
        let mut child = sleeper();
        let thread = child.id() as i32;
        let allowed = || {
            crate::undo::process::allowed(Path::new("/proc"), thread, thread).unwrap().to_string()
        };
        let first = crate::topology::cores()[0];
        let list = |text: &str| CoreSet::parse_list(text).unwrap();
        ThisKernel.set_affinity(thread, &list(&first.to_string())).unwrap();
        assert_eq!(allowed(), first.to_string());
        // Cores beyond the kernel's limit are ignored, and an empty set is an error.
        let most = CpuSet::MAX_CPU;
        ThisKernel.set_affinity(thread, &list(&format!("{first},{most},8000"))).unwrap();
        assert_eq!(allowed(), first.to_string());
        let nowhere = ThisKernel.set_affinity(thread, &list("8000")).unwrap_err();
        assert_eq!(Errno::from_io_error(&nowhere), Some(Errno::INVAL));
        // Zero would be this thread.
        let error = ThisKernel.set_affinity(0, &list(&first.to_string())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ThisKernel.set_affinity(thread, &list("0")).is_err());
    }

    #[test]
    fn processes_are_ended_only_if_the_number_is_theirs() {
        let mut child = sleeper();
        let number = child.id() as i32;
        let error = ThisKernel.end(number, &|| false).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::SRCH));
        assert!(child.try_wait().unwrap().is_none());
        ThisKernel.end(number, &|| true).unwrap();
        use std::os::unix::process::ExitStatusExt;
        // It waited for the end.
        assert_eq!(child.try_wait().unwrap().and_then(|status| status.signal()), Some(9));
        let error = ThisKernel.end(number, &|| true).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::SRCH));
        assert!(ThisKernel.end(0, &|| true).is_err());
    }

    #[test]
    fn errors_of_ip_are_reported() {
        let lock = tempfile::tempfile().unwrap();
        let error =
            ThisKernel.run(&lock, &["ip", "link", "del", "picnic-absent"]).unwrap_err().to_string();
        assert!(error.starts_with("`ip link del picnic-absent`: "), "{error}");
        ThisKernel.run(&lock, &["ip", "link", "show", "lo"]).unwrap();
    }

    #[test]
    fn this_machine_has_the_usual_paths() {
        let machine = Machine::this();
        assert!(machine.is_this() && machine.sysfs.join("devices/system/cpu").exists());
        assert_eq!(machine.namespaces, Path::new("/run/netns"));
        assert_eq!(state(None), Path::new("/run/picnic"));
        assert_eq!(state(Some("".into())), Path::new("/run/picnic"));
        assert_eq!(state(Some("/a".into())), Path::new("/a"));
        let elsewhere = Machine { procfs: "/elsewhere".into(), ..machine };
        assert!(!elsewhere.is_this());
        assert!(elsewhere.read(Path::new("/nowhere")).is_err());
    }
}
