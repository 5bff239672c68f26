//! An output file: written next to its place, and renamed when complete.
//!
//! Readers find the old file until the end, also if the program is killed; `NAME.part` then has the
//! part written so far. It belongs to the user, so no cleanup removes it; the next writer of NAME
//! overwrites it. A link is followed: its target is replaced, not the link. Only for regular files:
//! renaming would replace a FIFO, a terminal or `/dev/null`.

use picnic_core::files::{follow, part_of};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// A file being written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    /// Its current path.
    part: PathBuf,
    /// Its final path.
    path: PathBuf,
}

impl OutputFile {
    /// Creates the file next to its place.
    ///
    /// # Errors
    /// It cannot be created, or another program is writing it.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let before = fs::metadata(path);
        let path = follow(path);
        let part = part_of(&path);
        let mut options = OpenOptions::new();
        // Not cut before it is this one's.
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&part)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("it is being written already"),
            TryLockError::Error(error) => error,
        })?;
        file.set_len(0)?;
        if let Ok(before) = before {
            // As a file that is written anew: whose it was, it is.
            let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
            let _ = file.set_permissions(before.permissions());
        }
        Ok(OutputFile { file, part, path })
    }

    /// Whether renaming it needs privileges: its folder is not this user's to write.
    pub(crate) fn needs_privileges(&self) -> bool {
        let folder = self.part.parent().filter(|folder| !folder.as_os_str().is_empty());
        let user = rustix::process::geteuid().as_raw();
        let metadata = fs::metadata(folder.unwrap_or(Path::new(".")));
        !metadata.is_ok_and(|folder| folder.uid() == user && folder.mode() & 0o300 == 0o300)
    }

    /// Renames it to its place.
    pub(crate) fn finish(self) -> io::Result<()> {
        fs::rename(self.part, self.path)
    }

    /// Discards it: the old file stays.
    pub(crate) fn abandon(self) -> io::Result<()> {
        fs::remove_file(self.part)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn old_file_stays_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("out", &link).unwrap();
        let mut file = OutputFile::create(&link).unwrap();
        file.write_all(b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read(folder.path().join("out.part")).unwrap(), b"after");
        let error = OutputFile::create(&path).unwrap_err();
        assert_eq!(error.to_string(), "it is being written already");
        assert_eq!(fs::read(folder.path().join("out.part")).unwrap(), b"after");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        OutputFile::create(&path).unwrap().abandon().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
