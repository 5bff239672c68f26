//! The files of a card: each output has one of its own, and an input is a file.
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
//! Whoever is about to use a file says so when it is built, before anything is opened for
//! writing. Files are compared by device and inode, through links; those that are not there yet,
//! by their folder and name. Devices (`/dev/null`) may be written by several.

use crate::error::ConfigError;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Links that are followed to a file that is not there.
const MOST_LINKS: usize = 40;

/// What tells one file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode.
    There(u64, u64),
    /// Device and inode of its folder, and its name.
    Missing(u64, u64, PathBuf),
    /// Its folder is not there either.
    Nowhere(PathBuf),
    /// Not to be destroyed by writing.
    Device,
}

impl Identity {
    fn of(path: &Path) -> Self {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            if let Ok(found) = fs::metadata(&path) {
                return match found.file_type().is_char_device() {
                    true => Identity::Device,
                    false => Identity::There(found.dev(), found.ino()),
                };
            }
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).to_owned();
            if let Ok(target) = fs::read_link(&path) {
                path = folder.join(target);
                continue;
            }
            return match (fs::metadata(&folder), path.file_name()) {
                (Ok(found), Some(name)) => Identity::Missing(found.dev(), found.ino(), name.into()),
                _ => Identity::Nowhere(path),
            };
        }
        Identity::Nowhere(path)
    }
}

#[derive(Debug)]
struct Use {
    identity: Identity,
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
    /// The same, for what a section's keys name.
    #[must_use]
    pub fn of(&self, section: &str) -> Self {
        Files { uses: self.uses.clone(), section: section.into() }
    }

    /// The section's `key` names a file that is read.
    ///
    /// # Errors
    /// Another key's output is that file.
    pub fn read(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        self.note(key, path, false)
    }

    /// The section's `key` names a file that is written.
    ///
    /// # Errors
    /// Another key names that file already.
    pub fn write(&self, key: &'static str, path: &Path) -> Result<(), ConfigError> {
        self.note(key, path, true)
    }

    fn note(&self, key: &'static str, path: &Path, writes: bool) -> Result<(), ConfigError> {
        let identity = Identity::of(path);
        let mut uses = self.uses.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A card may be built more than once: checked, then started.
        let user = (self.section.clone(), key);
        uses.retain(|other| other.user != user);
        let same = |other: &&Use| other.identity == identity && (writes || other.writes);
        if identity != Identity::Device
            && let Some(other) = uses.iter().find(same)
        {
            let verb = if other.writes { "is written" } else { "is read" };
            let (section, other) = &other.user;
            let dot = if section.is_empty() || other.is_empty() { "" } else { "." };
            let message = format!(
                "found \"{}\", which {verb} as {section}{dot}{other}; allowed: another file",
                path.display()
            );
            return Err(ConfigError::new(key, message));
        }
        uses.push(Use { identity, user, writes });
        Ok(())
    }
}

/// Opens a file to be read to its end. A FIFO, a socket or a device would have to be waited for.
///
/// # Errors
/// It cannot be read, or is no regular file.
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
    Err(io::Error::other(format!("found {found}, allowed: a file")))
}
