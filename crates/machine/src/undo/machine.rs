//! The machine that is changed: where its files are, and who makes the changes.
//!
//! All of it can be replaced, so that a test can change a machine made of files,
//! with a kernel that refuses what a real one refuses.

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

/// Seconds that a process may take to end once it has been killed.
const PATIENCE_S: i64 = 5;

/// Where a machine's files are, and its kernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
    /// Where journals are kept.
    pub state: PathBuf,
    /// Where `ip netns` keeps its names, `/run/netns`.
    pub namespaces: PathBuf,
    /// Who makes the changes.
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

/// Where journals are kept, by what `PICNIC_STATE_DIR` is.
fn state(folder: Option<OsString>) -> PathBuf {
    let folder = folder.filter(|folder| !folder.is_empty());
    folder.map_or_else(|| "/run/picnic".into(), PathBuf::from)
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

    /// Removes a folder with all that is in it, following no links.
    ///
    /// # Errors
    /// What the system says.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;

    /// Ends a process at once, if `is_it` says that the number is still its own, and waits for
    /// its end.
    ///
    /// # Errors
    /// What the system says; it does not end.
    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> io::Result<()>;

    /// Says where a thread may run.
    ///
    /// # Errors
    /// What the system says.
    fn set_affinity(&self, thread: i32, cores: &CoreSet) -> io::Result<()>;

    /// Runs a command to its end. `lock` stays locked until then, even if this process
    /// is killed meanwhile: whoever takes it next finds the command's work done.
    ///
    /// # Errors
    /// It is not installed, or what it says.
    fn run(&self, lock: &File, words: &[&str]) -> io::Result<()>;
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

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> io::Result<()> {
        let process = Pid::from_raw(process).ok_or(io::ErrorKind::InvalidInput)?;
        // From here on the number means this process, whatever becomes of it.
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
    fn a_setting_is_written_whole_and_never_made() {
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
    fn folders_are_made_and_removed() {
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
    fn a_thread_is_moved_to_the_cores_that_are_said() {
        let mut child = sleeper();
        let thread = child.id() as i32;
        let allowed = || {
            crate::undo::process::allowed(Path::new("/proc"), thread, thread).unwrap().to_string()
        };
        let first = crate::topology::cores()[0];
        let list = |text: &str| CoreSet::parse_list(text).unwrap();
        ThisKernel.set_affinity(thread, &list(&first.to_string())).unwrap();
        assert_eq!(allowed(), first.to_string());
        // Cores beyond what the kernel can name are left out, and none is no place.
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
    fn a_process_is_ended_if_the_number_is_still_its_own() {
        let mut child = sleeper();
        let number = child.id() as i32;
        let error = ThisKernel.end(number, &|| false).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::SRCH));
        assert!(child.try_wait().unwrap().is_none());
        ThisKernel.end(number, &|| true).unwrap();
        use std::os::unix::process::ExitStatusExt;
        // Its end was waited for.
        assert_eq!(child.try_wait().unwrap().and_then(|status| status.signal()), Some(9));
        let error = ThisKernel.end(number, &|| true).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::SRCH));
        assert!(ThisKernel.end(0, &|| true).is_err());
    }

    #[test]
    fn what_ip_refuses_is_told() {
        let lock = tempfile::tempfile().unwrap();
        let error =
            ThisKernel.run(&lock, &["ip", "link", "del", "picnic-absent"]).unwrap_err().to_string();
        assert!(error.starts_with("`ip link del picnic-absent`: "), "{error}");
        ThisKernel.run(&lock, &["ip", "link", "show", "lo"]).unwrap();
    }

    #[test]
    fn this_machine_is_where_its_files_are() {
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
