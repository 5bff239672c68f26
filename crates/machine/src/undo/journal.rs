//! The journal: a file of changes, its owner, and restoring all of them.

use super::change::{Change, UndoResult};
use super::machine::Machine;
use super::network::{self, Home};
use super::process;
use super::threads::Threads;
use crate::command;
use crate::error::MachineError;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The version of the file's format.
const VERSION: u32 = 1;
const SUFFIX: &str = ".journal";
/// The longest file that is read, in bytes: some hundred thousand threads.
pub(super) const LONGEST: u64 = 64 << 20;
/// The longest wait for a command of a killed process.
const PATIENCE: Duration = Duration::from_secs(10);

/// A journal that cannot be read, and why.
type Unreadable = (PathBuf, io::Error);

/// The first line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    journal: u32,
    purpose: String,
    boot_id: String,
    process: i32,
    start_time: u64,
    /// The number of the process' network namespace; none if it is not known.
    #[serde(default)]
    network: Option<u64>,
}

/// Every other line.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Change(Change),
    Held { held: bool },
}

/// Changes for one purpose, made by this process.
#[derive(Debug)]
pub struct Journal {
    machine: Machine,
    purpose: String,
    path: PathBuf,
    file: File,
    changes: Vec<Change>,
    network: Option<u64>,
}

/// A journal in the state directory.
#[derive(Clone, Debug, Serialize)]
pub struct JournalInfo {
    /// Its file.
    pub path: PathBuf,
    /// The purpose of the changes.
    pub purpose: String,
    /// The process that made it.
    pub process: i32,
    /// Whether that process runs.
    pub is_owned: bool,
    /// Whether it outlives its process on purpose.
    pub is_held: bool,
    /// Whether its changes are from an earlier boot.
    pub is_past: bool,
    /// The changes, in the order they were made.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// The number of the network namespace of changes without a namespace's name.
    #[serde(skip)]
    pub(crate) network: Option<u64>,
}

impl JournalInfo {
    /// Whether no process is responsible for the changes any more.
    pub fn is_stale(&self) -> bool {
        self.is_past || !self.is_owned && !self.is_held
    }

    /// Whether changes without a namespace's name are of the current network namespace.
    pub(crate) fn is_of_this_network(&self, machine: &Machine) -> bool {
        Home::find(machine, self.network) == Home::Here
    }
}

/// A selection of journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSelection<'a> {
    /// Those whose process has ended.
    Stale,
    /// Those, and the held ones of a purpose.
    Held(&'a str),
    /// Those, and all held ones.
    AllHeld,
}

/// The result of restoring a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The purpose of the changes.
    pub purpose: String,
    /// The process that had made them; 0 if the journal cannot be read.
    pub process: i32,
    /// Changes restored.
    pub restored: usize,
    /// Changes that needed nothing.
    pub unchanged: usize,
    /// Changes to objects that no longer exist.
    pub gone: usize,
    /// Network namespaces that no longer exist.
    pub gone_networks: BTreeSet<String>,
    /// Changes that the machine refuses to restore, each with the reason.
    pub refused: Vec<String>,
    /// Changes that may be tried again, each with the reason; the journal is kept for them.
    pub failed: Vec<String>,
}

/// One line, such as `isolate of process 42: 17 restored, 3 unchanged, 2 gone`.
impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restored { purpose, process, restored, unchanged, gone, .. } = self;
        let Restored { gone_networks, refused, failed, .. } = self;
        f.write_str(purpose)?;
        if *process != 0 {
            write!(f, " of process {process}")?;
        }
        write!(f, ": {restored} restored, {unchanged} unchanged, {gone} gone")?;
        if !gone_networks.is_empty() {
            let names: Vec<_> = gone_networks.iter().map(String::as_str).collect();
            write!(f, " ({})", names.join(", "))?;
        }
        for (list, word) in [(refused, "refused"), (failed, "failed")] {
            if let Some(first) = list.first() {
                write!(f, ", {} {word} ({first}", list.len())?;
                f.write_str(if list.len() > 1 { ", ...)" } else { ")" })?;
            }
        }
        Ok(())
    }
}

impl Restored {
    /// Whether everything that still exists has been restored.
    pub fn is_whole(&self) -> bool {
        self.refused.is_empty() && self.failed.is_empty()
    }

    pub(super) fn count(&mut self, what: &dyn fmt::Display, undone: UndoResult) {
        match undone {
            UndoResult::Restored => self.restored += 1,
            UndoResult::Unchanged => self.unchanged += 1,
            UndoResult::Gone => self.gone += 1,
            UndoResult::NetworkGone(network) => {
                self.gone += 1;
                self.gone_networks.insert(network);
            }
            UndoResult::Refused(why) => self.refused.push(format!("{what}: {why}")),
            UndoResult::Failed(why) => self.failed.push(format!("{what}: {why}")),
        }
    }
}

impl Journal {
    /// Makes a journal that belongs to this process. `purpose` is a word for its file's name.
    ///
    /// # Errors
    /// The state directory cannot be created or written.
    pub fn create(machine: &Machine, purpose: &str) -> Result<Self, MachineError> {
        let _lock = lock(machine)?;
        let me = std::process::id() as i32;
        let header = Header {
            journal: VERSION,
            purpose: purpose.into(),
            boot_id: boot_id(machine),
            process: me,
            start_time: process::start_time(&machine.procfs, me, me).unwrap_or(0),
            network: network::current(machine),
        };
        let (path, file) = (0..u32::MAX)
            .find_map(|number| {
                let name = format!("{purpose}-{me}-{number}{SUFFIX}");
                let path = machine.state.join(name);
                let mut options = OpenOptions::new();
                let file = options.append(true).create_new(true).mode(0o600).open(&path);
                let is_taken =
                    file.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists);
                (!is_taken).then_some((path, file))
            })
            .ok_or_else(|| written(&machine.state, io::ErrorKind::AlreadyExists.into()))?;
        let file = file.map_err(|error| written(&path, error))?;
        file.lock().map_err(|error| written(&path, error))?;
        let (machine, purpose) = (machine.clone(), purpose.to_owned());
        let (changes, network) = (Vec::new(), header.network);
        let mut journal = Journal { machine, purpose, path, file, changes, network };
        journal.append(&[serde_json::to_string(&header)])?;
        let state = &journal.machine.state;
        File::open(state)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| written(state, error))?;
        Ok(journal)
    }

    /// Continues a held journal.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn reopen(machine: &Machine, journal: JournalInfo) -> Result<Self, MachineError> {
        let JournalInfo { path, purpose, changes, network, .. } = journal;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|error| written(&path, error))?;
        file.lock().map_err(|error| written(&path, error))?;
        Ok(Journal { machine: machine.clone(), purpose, path, file, changes, network })
    }

    /// Records a change. It must not be made before this returns.
    ///
    /// # Errors
    /// The file cannot be written: then the change must not be made.
    pub fn record(&mut self, change: Change) -> Result<(), MachineError> {
        self.record_all([change])
    }

    /// Records several changes at once.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn record_all(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
    ) -> Result<(), MachineError> {
        let changes: Vec<_> = changes.into_iter().collect();
        if changes.is_empty() {
            return Ok(());
        }
        let lines: Vec<_> = changes.iter().map(serde_json::to_string).collect();
        self.append(&lines)?;
        self.changes.extend(changes);
        Ok(())
    }

    /// Runs a command to completion that makes changes recorded here; returns its output. If this
    /// process is killed meanwhile, the journal is restored only after the command has ended, too.
    ///
    /// # Errors
    /// It cannot be started or fails: its last line of output.
    pub fn run(&self, words: &[&str]) -> io::Result<String> {
        // Standard input is the journal, and holds its lock.
        command::run_with(words, self.file.try_clone()?.into())
    }

    /// Its file's name without the suffix, such as `lab-42-0`.
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The recorded changes.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Keeps the changes when this process ends, until they are restored explicitly.
    ///
    /// # Errors
    /// The file cannot be written; the changes still belong to this process.
    pub fn hold(&mut self) -> Result<(), MachineError> {
        self.append(&[serde_json::to_string(&Line::Held { held: true })])
    }

    /// Restores all changes, and removes the journal unless some may be tried again.
    ///
    /// # Errors
    /// The state directory cannot be locked. Changes that cannot be restored are in the result.
    pub fn undo(self) -> Result<Restored, MachineError> {
        let _lock = lock(&self.machine)?;
        let process = std::process::id() as i32;
        let mut restored = Restored { purpose: self.purpose, process, ..Restored::default() };
        let home = Home::find(&self.machine, self.network);
        revert(&self.machine, (&self.file, &home), &self.changes, &mut restored);
        remove(&self.path, &mut restored);
        Ok(restored)
    }

    fn append(&mut self, lines: &[serde_json::Result<String>]) -> Result<(), MachineError> {
        let mut text = String::new();
        for line in lines {
            match line {
                Ok(line) => text.push_str(line),
                Err(error) => return Err(written(&self.path, io::Error::other(error.to_string()))),
            }
            text.push('\n');
        }
        let result = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        result.map_err(|error| written(&self.path, error))
    }
}

/// The journals, by name; for an unreadable one, its path and the reason.
///
/// # Errors
/// The state directory exists and cannot be read.
pub fn journals(machine: &Machine) -> Result<Vec<Result<JournalInfo, Unreadable>>, MachineError> {
    let unreadable =
        |error| MachineError::system(format!("cannot read {}", machine.state.display()), error);
    let entries = match fs::read_dir(&machine.state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unreadable)?,
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.to_str().is_some_and(|name| name.ends_with(SUFFIX)))
        .collect();
    paths.sort();
    let boot_id = boot_id(machine);
    let mut found = Vec::new();
    for path in paths {
        let (header, lines) = match read(&path) {
            Ok(Some(contents)) => contents,
            Ok(None) => continue,
            Err(error) => {
                found.push(Err((path, error)));
                continue;
            }
        };
        let mut is_held = false;
        let mut changes = Vec::new();
        for line in lines {
            match line {
                Line::Change(change) => changes.push(change),
                Line::Held { held } => is_held = held,
            }
        }
        let started = process::start_time(&machine.procfs, header.process, header.process);
        found.push(Ok(JournalInfo {
            path,
            purpose: header.purpose,
            process: header.process,
            is_owned: started == Some(header.start_time),
            is_held,
            is_past: header.boot_id != boot_id,
            changes,
            network: header.network,
        }));
    }
    Ok(found)
}

/// Restores the changes of journals, the latest first.
///
/// # Errors
/// The state directory cannot be read. Changes that cannot be restored are in the result, as are
/// unreadable journals: they stay, and the others are restored.
pub fn restore_all(
    machine: &Machine,
    which: JournalSelection<'_>,
) -> Result<Vec<Restored>, MachineError> {
    let wanted = |journal: &JournalInfo| {
        journal.is_stale()
            || journal.is_held
                && match which {
                    JournalSelection::Stale => false,
                    JournalSelection::Held(purpose) => journal.purpose == purpose,
                    JournalSelection::AllHeld => true,
                }
    };
    // If there is nothing to do, nothing is created and no privilege is needed.
    let is_wanted = |journal: &Result<JournalInfo, _>| journal.as_ref().map_or(true, wanted);
    if !journals(machine)?.iter().any(is_wanted) {
        return Ok(Vec::new());
    }
    let _lock = lock(machine)?;
    let mut all = Vec::new();
    // Read again: another process may have been faster.
    for journal in journals(machine)?.into_iter().filter(is_wanted).rev() {
        let journal = match journal {
            Ok(journal) => journal,
            Err((path, error)) => {
                let purpose = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let failed = vec![format!("journal {}: {error}", path.display())];
                all.push(Restored { purpose, failed, ..Restored::default() });
                continue;
            }
        };
        let mut restored =
            Restored { purpose: journal.purpose, process: journal.process, ..Restored::default() };
        if journal.is_past {
            restored.gone = journal.changes.len();
        } else {
            // Its process has ended; a command that it ran may still be running.
            match wait_for(&journal.path) {
                Ok(lock) => {
                    let home = Home::find(machine, journal.network);
                    revert(machine, (&lock, &home), &journal.changes, &mut restored);
                }
                Err(error) => restored.failed.push(format!("{}: {error}", journal.path.display())),
            }
        }
        remove(&journal.path, &mut restored);
        all.push(restored);
    }
    Ok(all)
}

/// Restores changes, the latest first, and threads last of all. `lock` is the journal's, and `home`
/// the namespace of its process.
fn revert(
    machine: &Machine,
    (lock, home): (&File, &Home),
    changes: &[Change],
    restored: &mut Restored,
) {
    // Before anything is restored: the end of a partition moves threads.
    let threads = Threads::of(machine, changes);
    for change in changes.iter().rev() {
        if !matches!(change, Change::Affinity { .. } | Change::Isolation { .. }) {
            restored.count(change, change.undo(machine, lock, home));
        }
    }
    if let Some(threads) = threads {
        threads.revert(machine, restored);
    }
}

/// Takes the lock of a journal, which its commands hold until they end.
fn wait_for(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("a command that makes its changes is still running"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Removes a journal if all its changes have been restored, as far as possible.
fn remove(path: &Path, restored: &mut Restored) {
    if restored.failed.is_empty()
        && let Err(error) = fs::remove_file(path)
    {
        restored.failed.push(format!("journal {} away: {error}", path.display()));
    }
}

/// Whether a file of `owner` is trusted by user `me`: root's own, or one's own.
pub(super) fn is_trusted(owner: u32, me: u32) -> bool {
    owner == 0 || owner == me
}

/// Header and lines of a journal; none if it no longer exists.
fn read(path: &Path) -> io::Result<Option<(Header, Vec<Line>)>> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    let not_obeyed = || invalid("others could have written it, so it is ignored".into());
    // Not through a link, and without waiting for a writer if it is a pipe.
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err(not_obeyed());
        }
        file => file?,
    };
    let metadata = file.metadata()?;
    let owner = metadata.uid();
    let me = rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !is_trusted(owner, me) || metadata.mode() & 0o022 != 0 {
        return Err(not_obeyed());
    }
    if metadata.len() > LONGEST {
        return Err(invalid(format!("{} bytes are too many for a journal", metadata.len())));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    // A line without an end was being written when the process was killed, so its change was not
    // made.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines().enumerate();
    let wrong =
        |index: usize, error: serde_json::Error| invalid(format!("line {}: {error}", index + 1));
    let Some((index, first)) = lines.next() else {
        // The holder of the lock is creating it, or its process was killed meanwhile, and
        // it has no owner.
        return Ok(Some((Header::default(), Vec::new())));
    };
    let header: Header = serde_json::from_str(first).map_err(|error| wrong(index, error))?;
    if header.journal != VERSION {
        return Err(invalid(format!("found version {}, allowed: {VERSION}", header.journal)));
    }
    let lines: io::Result<_> = lines
        .map(|(index, line)| serde_json::from_str(line).map_err(|error| wrong(index, error)))
        .collect();
    Ok(Some((header, lines?)))
}

fn boot_id(machine: &Machine) -> String {
    machine.read(&machine.procfs.join("sys/kernel/random/boot_id")).unwrap_or_default()
}

fn written(path: &Path, error: io::Error) -> MachineError {
    MachineError::system(format!("cannot write {}", path.display()), error)
}

/// Creates the state directory if necessary, and locks it against changes of journals.
fn lock(machine: &Machine) -> Result<File, MachineError> {
    let state = &machine.state;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .map_err(|error| MachineError::system(format!("cannot make {}", state.display()), error))?;
    let path = state.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|error| written(&path, error))?;
    file.lock().map_err(|error| written(&path, error))?;
    Ok(file)
}
