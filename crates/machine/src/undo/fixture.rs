//! A machine made of files, for tests: it refuses the same operations as a real one, and can be
//! killed.

use super::machine::{Kernel, Machine};
use super::process;
use crate::topology::CoreSet;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A kernel thread, and one bound to its core.
pub(crate) const KERNEL: u32 = 0x0020_0000;
pub(crate) const BOUND: u32 = 0x0420_0040;
/// One of the work queues' threads.
pub(crate) const WORKER: u32 = 0x0420_0060;

#[derive(Debug)]
pub(crate) struct FakeKernel {
    root: PathBuf,
    /// Changes until the process that makes them is killed.
    left: Mutex<Option<u32>>,
    /// Files that cannot be written.
    refused: Mutex<BTreeSet<PathBuf>>,
    /// Times that a directory is busy when it should be removed.
    pub(crate) busy: Mutex<u32>,
    /// The calls of `ip`.
    pub(crate) ip_calls: Mutex<Vec<String>>,
    /// Locks held by commands that outlive the process that ran them.
    pub(crate) running: Mutex<Vec<File>>,
}

/// The machine; removed on drop.
#[derive(Debug)]
pub(crate) struct Fixture {
    _folder: TempDir,
    pub(crate) root: PathBuf,
    pub(crate) machine: Machine,
    pub(crate) kernel: Arc<FakeKernel>,
}

pub(crate) fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// A core's part of sysfs. Caches are `level`, `type`, `shared_cpu_list`.
pub(crate) fn put_core(sysfs: &Path, core: usize, siblings: &str, caches: &[(u32, &str, &str)]) {
    let folder = sysfs.join(format!("devices/system/cpu/cpu{core}"));
    put(&folder.join("topology/thread_siblings_list"), siblings);
    put(&folder.join("topology/physical_package_id"), "0");
    for (index, (level, kind, shared)) in caches.iter().enumerate() {
        let folder = folder.join(format!("cache/index{index}"));
        put(&folder.join("level"), &level.to_string());
        put(&folder.join("type"), kind);
        put(&folder.join("shared_cpu_list"), shared);
        put(&folder.join("size"), "1024K");
    }
}

pub(crate) fn put_online(sysfs: &Path, cores: &str) {
    put(&sysfs.join("devices/system/cpu/online"), cores);
}

impl Fixture {
    /// Eight cores, in pairs of SMT siblings with an L2 of their own, all with one L3.
    pub(crate) fn new() -> Self {
        // In memory if possible: journals are synchronised at each change.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = folder.path().canonicalize().unwrap();
        let kernel = Arc::new(FakeKernel {
            root: root.clone(),
            left: Mutex::default(),
            refused: Mutex::default(),
            busy: Mutex::default(),
            ip_calls: Mutex::default(),
            running: Mutex::default(),
        });
        let machine = Machine {
            sysfs: root.join("sys"),
            procfs: root.join("proc"),
            state: root.join("state"),
            namespaces: root.join("netns"),
            kernel: kernel.clone(),
        };
        let fixture = Fixture { _folder: folder, root, machine, kernel };
        for core in 0..8 {
            let pair = format!("{}-{}", core / 2 * 2, core / 2 * 2 + 1);
            let caches = [
                (1, "Data", pair.as_str()),
                (1, "Instruction", &pair),
                (2, "Unified", &pair),
                (3, "Unified", "0-7"),
            ];
            put_core(&fixture.machine.sysfs, core, &pair, &caches);
        }
        put_online(&fixture.machine.sysfs, "0-7");
        put(&fixture.machine.procfs.join("sys/kernel/random/boot_id"), "this-boot");
        fixture
    }

    /// The same with everything that isolation changes: interrupts, masks, threads, control groups.
    pub(crate) fn busy() -> Self {
        let fixture = Fixture::new();
        let Machine { sysfs, procfs, .. } = &fixture.machine;
        put(&procfs.join("irq/default_smp_affinity"), "ff");
        for (number, handler, cores) in [
            (1, "i8042", "0-7"),
            (24, "virtio0-config", "7"),
            (25, "virtio0-input.0", "2"),
            (26, "virtio1-input.0", "4-7"),
            (27, "nvme0q7", "6-7"),
        ] {
            let folder = procfs.join(format!("irq/{number}"));
            put(&folder.join("smp_affinity_list"), cores);
            fs::create_dir(folder.join(handler)).unwrap();
        }
        fixture.kernel.refuse(&procfs.join("irq/27/smp_affinity_list"));
        put(&sysfs.join("devices/virtual/workqueue/cpumask"), "ff");
        put(&sysfs.join("class/net/eth0/queues/rx-0/rps_cpus"), "c0");
        put(&sysfs.join("class/net/eth0/queues/rx-1/rps_cpus"), "00");
        for number in [25, 26] {
            let device = format!("devices/pci0/virtio{}", number - 25);
            fs::create_dir_all(sysfs.join(&device)).unwrap();
        }
        put(&sysfs.join("devices/pci0/0000:00:03.0/msi_irqs/25"), "msix");
        fs::create_dir_all(sysfs.join("devices/pci0/0000:00:03.0/virtio0")).unwrap();
        std::os::unix::fs::symlink(
            sysfs.join("devices/pci0/0000:00:03.0/virtio0"),
            sysfs.join("class/net/eth0/device"),
        )
        .unwrap();
        for (thread, parent, flags, cores) in [
            (1, 0, 0, "0-7"),
            (2, 0, KERNEL, "0-7"),
            (15, 2, BOUND, "7"),
            (16, 2, WORKER, "0"),
            (17, 2, KERNEL, "0-7"),
            (100, 1, 0, "0-7"),
            (101, 100, 0, "3"),
            (102, 100, 0, "6-7"),
            (103, 100, 0, "5-6"),
            (104, 1, 0, "7"),
        ] {
            fixture.start(thread, thread, parent, flags, cores);
        }
        fixture.call(15, "ksoftirqd/7");
        fixture.call(16, "rcu_gp");
        // A second thread of 100, elsewhere.
        fixture.start(100, 110, 1, 0, "2,7");
        fixture
    }

    /// Gives the machine control groups of version 2.
    pub(crate) fn with_groups(self) -> Self {
        let root = self.machine.sysfs.join("fs/cgroup");
        put(&root.join("cgroup.controllers"), "cpuset cpu io memory");
        put(&root.join("cgroup.subtree_control"), "cpu memory");
        put(&root.join("cgroup.procs"), "");
        put(&root.join("cgroup.threads"), "");
        self
    }

    pub(crate) fn start(&self, process: i32, thread: i32, parent: i32, flags: u32, cores: &str) {
        let folder = self.machine.procfs.join(format!("{process}/task/{thread}"));
        let start_time = thread * 10;
        let stat = format!(
            "{thread} (worker) S {parent} 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start_time} 0"
        );
        put(&folder.join("stat"), &stat);
        put(&folder.join("status"), &format!("Name:\tworker\nCpus_allowed_list:\t{cores}"));
    }

    /// Gives a process a name.
    pub(crate) fn call(&self, process: i32, name: &str) {
        let path = self.machine.procfs.join(format!("{process}/task/{process}/stat"));
        let stat = fs::read_to_string(&path).unwrap().replace("(worker)", &format!("({name})"));
        fs::write(&path, stat).unwrap();
    }

    pub(crate) fn end(&self, process: i32) {
        fs::remove_dir_all(self.machine.procfs.join(process.to_string())).unwrap();
    }

    /// The allowed cores of a process' first thread.
    pub(crate) fn cores(&self, process: i32) -> String {
        process::allowed(&self.machine.procfs, process, process).unwrap().to_string()
    }

    pub(crate) fn interrupt(&self, number: i32) -> String {
        let path = self.machine.procfs.join(format!("irq/{number}/smp_affinity_list"));
        self.machine.read(&path).unwrap()
    }

    /// Every file of the machine with its text, without journals.
    pub(crate) fn all(&self) -> BTreeMap<PathBuf, String> {
        fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if entry.file_type().unwrap().is_dir() {
                    walk(&path, found);
                } else if let Ok(text) = fs::read_to_string(&path) {
                    found.insert(path, text.trim().to_owned());
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.machine.sysfs, &mut found);
        walk(&self.machine.procfs, &mut found);
        found
    }

    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.machine.state).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "journal")).collect()
    }

    /// Kills the process that makes changes after this number of them.
    pub(crate) fn kill_after(&self, changes: u32) {
        *self.kernel.left.lock().unwrap() = Some(changes);
    }

    /// Lets the next process make changes; journals are as the killed one left them. False if none
    /// was killed.
    pub(crate) fn revive(&self) -> bool {
        *self.kernel.left.lock().unwrap() = None;
        let (state, killed) = (&self.machine.state, self.root.join("killed"));
        let was_killed = killed.exists();
        if was_killed {
            for entry in fs::read_dir(state).unwrap().flatten() {
                if !killed.join(entry.file_name()).exists() {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
            // Into the existing files: commands of the killed one may hold them locked.
            for entry in fs::read_dir(&killed).unwrap().flatten() {
                fs::copy(entry.path(), state.join(entry.file_name())).unwrap();
            }
            fs::remove_dir_all(killed).unwrap();
        }
        was_killed
    }
}

impl FakeKernel {
    pub(crate) fn refuse(&self, path: &Path) {
        self.refused.lock().unwrap().insert(path.into());
    }

    /// An error once the calling process was killed: nothing it does counts then, and the current
    /// content of its journals is kept.
    fn count(&self) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        match &mut *left {
            Some(0) => {
                let (state, killed) = (self.root.join("state"), self.root.join("killed"));
                if !killed.exists() {
                    fs::create_dir(&killed).unwrap();
                    for entry in fs::read_dir(state).unwrap().flatten() {
                        fs::copy(entry.path(), killed.join(entry.file_name())).unwrap();
                    }
                }
                Err(io::Error::other("killed"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn procfs(&self) -> PathBuf {
        self.root.join("proc")
    }

    fn online(&self) -> CoreSet {
        let path = self.root.join("sys/devices/system/cpu/online");
        CoreSet::parse_list(&fs::read_to_string(path).unwrap()).unwrap()
    }

    /// The cores that a partition has taken from others.
    fn taken(&self) -> CoreSet {
        let group = self.root.join("sys/fs/cgroup/picnic");
        let state = fs::read_to_string(group.join("cpuset.cpus.partition")).unwrap_or_default();
        let cores = fs::read_to_string(group.join("cpuset.cpus")).unwrap_or_default();
        match state.trim() {
            "isolated" | "root" => CoreSet::parse_list(&cores).unwrap(),
            _ => CoreSet::new(),
        }
    }

    /// Gives all threads all remaining cores, as Linux 6.1 does.
    fn move_all(&self) {
        let cores = self.online().without(&self.taken());
        for thread in process::threads(&self.procfs()).unwrap() {
            if !thread.is_bound {
                self.put_cores(thread.process, thread.thread, &cores);
            }
        }
    }

    fn put_cores(&self, process: i32, thread: i32, cores: &CoreSet) {
        let path = self.procfs().join(format!("{process}/task/{thread}/status"));
        put(&path, &format!("Name:\tworker\nCpus_allowed_list:\t{cores}"));
    }
}

impl FakeKernel {
    /// A machine of files is changed only below its root, for any change: the code under
    /// test runs as root, and may be wrong.
    fn is_inside(&self, path: &Path) -> bool {
        let is_below = |path: &Path| path.starts_with(self.root.canonicalize().unwrap());
        let is_plain = path.components().all(|part| !matches!(part, Component::ParentDir));
        let folder = path.parent().map(Path::canonicalize);
        is_plain && path.starts_with(&self.root) && path != self.root
            // Without such a directory, there is nothing to change.
            && folder.is_some_and(|folder| folder.map_or(true, |folder| is_below(&folder)))
    }

    #[track_caller]
    fn check(&self, path: &Path) {
        assert!(self.is_inside(path), "{} is not on this machine", path.display());
    }
}

impl Kernel for FakeKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.check(path);
        self.count()?;
        if self.refused.lock().unwrap().contains(path) {
            return Err(Errno::IO.into());
        }
        let was = fs::read_to_string(path)?;
        match path.file_name().and_then(|name| name.to_str()) {
            Some("cgroup.subtree_control") => {
                let (sign, name) = text.split_at(1);
                let mut words: Vec<_> =
                    was.split_whitespace().filter(|word| *word != name).collect();
                if sign == "+" {
                    words.insert(0, name);
                }
                put(path, &words.join(" "));
            }
            Some("cgroup.threads") => {
                // Only the partition's processes are known; all others are in the root group.
                let group = self.root.join("sys/fs/cgroup/picnic/cgroup.threads");
                let members = fs::read_to_string(&group).unwrap_or_default();
                let others = members.split_whitespace().filter(|member| *member != text);
                let enters = (*path == group).then_some(text);
                let members: Vec<_> = others.chain(enters).collect();
                if group.exists() {
                    put(&group, &members.join("\n"));
                }
            }
            Some("cgroup.procs") => {}
            _ => put(path, text),
        }
        if path.ends_with("cpuset.cpus.partition") {
            self.move_all();
        }
        Ok(())
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.check(path);
        self.count()?;
        fs::create_dir(path)?;
        for (file, text) in [
            ("cgroup.type", "domain"),
            ("cgroup.threads", ""),
            ("cpuset.cpus", ""),
            ("cpuset.cpus.partition", "member"),
        ] {
            put(&path.join(file), text);
        }
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.check(path);
        self.count()?;
        let mut busy = self.busy.lock().unwrap();
        if *busy != 0 {
            *busy -= 1;
            return Err(Errno::BUSY.into());
        }
        fs::remove_dir_all(path)?;
        self.move_all();
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.check(path);
        self.count()?;
        fs::remove_dir_all(path)
    }

    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> io::Result<()> {
        self.count()?;
        if !is_it() {
            return Err(Errno::SRCH.into());
        }
        fs::remove_dir_all(self.procfs().join(process.to_string()))
    }

    fn set_affinity(&self, thread: i32, cores: &CoreSet) -> io::Result<()> {
        self.count()?;
        let threads = process::threads(&self.procfs()).unwrap();
        let found = threads.iter().find(|found| found.thread == thread);
        let found = found.ok_or(Errno::SRCH)?;
        let (cores, taken) = (cores.and(&self.online()), self.taken());
        let members = self.root.join("sys/fs/cgroup/picnic/cgroup.threads");
        let members = fs::read_to_string(members).unwrap_or_default();
        let is_member = members.lines().any(|member| member == thread.to_string());
        let cores = if is_member { cores.and(&taken) } else { cores.without(&taken) };
        if cores.is_empty() || found.is_bound {
            return Err(Errno::INVAL.into());
        }
        self.put_cores(found.process, thread, &cores);
        Ok(())
    }

    fn run(&self, lock: &File, words: &[&str]) -> io::Result<()> {
        let arguments = words.strip_prefix(&["ip"]).unwrap_or(words);
        self.running.lock().unwrap().push(lock.try_clone()?);
        self.count()?;
        self.running.lock().unwrap().pop();
        self.ip_calls.lock().unwrap().push(arguments.join(" "));
        let absent = || Err(io::Error::other("Cannot find device"));
        let name = arguments.last().unwrap();
        match arguments {
            ["netns", "del", _] => {
                let path = self.root.join("netns").join(name);
                self.check(&path);
                fs::remove_file(path)
            }
            ["link", "del", _] => {
                let path = self.root.join("sys/class/net").join(name);
                self.check(&path);
                fs::remove_dir(path)
            }
            _ if *name == "absent" => absent(),
            _ => Ok(()),
        }
    }
}

#[test]
fn nothing_outside_of_the_machine_is_changed() {
    let (fixture, other) = (Fixture::new(), tempfile::tempdir().unwrap());
    let kernel = &fixture.kernel;
    put(&other.path().join("file"), "x");
    let link = fixture.root.join("link");
    std::os::unix::fs::symlink(other.path(), &link).unwrap();
    let up = fixture.root.join("sys/../..");
    for path in [other.path().join("file"), link.join("file"), up, "file".into(), "/".into()] {
        assert!(!kernel.is_inside(&path), "{}", path.display());
    }
    assert!(!kernel.is_inside(&fixture.root));
    for path in [link, fixture.root.join("sys"), fixture.root.join("absent/file")] {
        assert!(kernel.is_inside(&path), "{}", path.display());
    }
}
