//! The files of a card: outputs do not collide with each other or with inputs, and inputs are
//! regular files.
//!
//! ```
//! use picnic_core::files::Files;
//! let files = Files::default();
//! let wire = files.of("wire[0]");
//! wire.read("path", "web.pcap".as_ref()).unwrap();
//! let error = wire.write("output", "./web.pcap".as_ref()).unwrap_err();
//! assert!(error.to_string().contains("wire[0].path"));
//! ```
//!
//! A component registers its files when it is built, before anything is opened for writing, and
//! gets an error if one cannot be created. Files are compared by device and inode, through links,
//! and by directory and name, since they may be created in between. Devices (`/dev/null`) may be
//! written by several. An output is `NAME.part` until complete, so that name is reserved, too.

use crate::error::ConfigError;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Links followed to a file.
const MOST_LINKS: usize = 40;

/// The target of a link, whether the file exists or not.
pub fn follow(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// The name of an incomplete output; links must be followed before.
pub fn part_of(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// The directory of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether such a file exists or could be created.
fn check(path: &Path) -> Result<(), String> {
    let is_folder = path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/");
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err("found a folder, allowed: a file".into()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot be created: {error}"))
        }
        Err(_) if is_folder => Err("found a folder, allowed: a file".into()),
        Err(_) if !folder_of(path).is_dir() => {
            Err("cannot be created: its folder does not exist".into())
        }
        Err(_) => Ok(()),
    }
}

/// What distinguishes files.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    There(u64, u64),
    /// Device and inode of its folder, and its name.
    Named(u64, u64, PathBuf),
    /// Its directory does not exist either.
    Nowhere(PathBuf),
}

impl Identity {
    /// A device has none: writing does not destroy it.
    fn of(path: &Path) -> Vec<Self> {
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| found.file_type().is_char_device()) {
            return Vec::new();
        }
        let path = follow(path);
        let named = match (fs::metadata(folder_of(&path)), path.file_name()) {
            (Ok(found), Some(name)) => Identity::Named(found.dev(), found.ino(), name.into()),
            _ => Identity::Nowhere(path),
        };
        let there = found.map(|found| Identity::There(found.dev(), found.ino()));
        there.into_iter().chain([named]).collect()
    }
}

#[derive(Debug)]
struct Use {
    /// The file, and for an output its part.
    identities: Vec<Identity>,
    /// The section, and the key in it.
    user: (String, &'static str),
    writes: bool,
}

/// The files that a card uses. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Files {
    uses: Arc<Mutex<Vec<Use>>>,
    section: String,
}

impl Files {
    /// The same, for files named by a section's keys.
    #[must_use]
    pub fn of(&self, section: &str) -> Self {
        Files { uses: self.uses.clone(), section: section.into() }
    }

    /// Registers a file that the section's `key` names and that is read.
    ///
    /// # Errors
    /// Another key's output is that file.
    pub fn read(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        self.note(key, &[path], false)
    }

    /// Registers a file that the section's `key` names and that is written.
    ///
    /// # Errors
    /// Another key names that file already, or it cannot be created.
    pub fn write(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        let part = part_of(&follow(path));
        // Anything but a regular file is written in place.
        let is_stream = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        let paths = if is_stream { vec![path] } else { vec![path, &part] };
        paths.iter().try_for_each(|path| self.check(key, path))?;
        self.note(key, &paths, true)
    }

    /// Registers a socket that the section's `key` names and that is created.
    ///
    /// # Errors
    /// Another key names that file already, or it cannot be created.
    pub fn bind(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        self.check(key, path)?;
        self.note(key, &[path], true)
    }

    fn check(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        check(path)
            .map_err(|message| ConfigError::new(key, format!("{}: {message}", path.display())))
    }

    fn note(&self, key: &'static str, paths: &[&Path], writes: bool) -> Result<(), ConfigError> {
        let mut uses = self.uses.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A card may be built more than once: to check, then to start.
        let user = (self.section.clone(), key);
        uses.retain(|other| other.user != user);
        let mut identities = Vec::new();
        for path in paths {
            let own = Identity::of(path);
            let same = |other: &&Use| {
                (writes || other.writes) && own.iter().any(|own| other.identities.contains(own))
            };
            if let Some(other) = uses.iter().find(same) {
                let verb = if other.writes { "is written" } else { "is read" };
                let (section, other) = &other.user;
                let dot = if section.is_empty() || other.is_empty() { "" } else { "." };
                let message = format!(
                    "found \"{}\", which {verb} as {section}{dot}{other}; allowed: another file",
                    path.display()
                );
                return Err(ConfigError::new(key, message));
            }
            identities.extend(own);
        }
        uses.push(Use { identities, user, writes });
        Ok(())
    }
}

/// Opens a regular file to be read to its end. A FIFO, a socket or a device could block.
///
/// # Errors
/// It cannot be read, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() {
        return File::open(path);
    }
    let found = match kind {
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_dir() => "a folder",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(NoFile(found)))
}

/// The kind of a path that is not a regular file, inside the error of [`open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFile(pub &'static str);

impl fmt::Display for NoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {}, allowed: a file", self.0)
    }
}

impl std::error::Error for NoFile {}
