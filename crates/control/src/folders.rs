//! The folders that sockets of running cards stand in, and their files' names.
//!
//! Guarantees: a card's name of any bytes makes a file's name without surprises, and can be read
//! back. The folder of a user is that user's alone.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a socket's file ends.
const SUFFIX: &str = ".sock";

/// Where this process puts the sockets of its cards: (folder, its mode).
pub(super) fn own_folder() -> (PathBuf, u32) {
    if let Some(folder) = std::env::var_os("PICNIC_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        return (folder.into(), 0o700);
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        // Others may see which cards there are, and be told that they may not use them.
        return ("/run/picnic".into(), 0o755);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|path| path.is_absolute()) {
        Some(runtime) => (runtime.join("picnic"), 0o700),
        None => (format!("/tmp/picnic-{}", uid.as_raw()).into(), 0o700),
    }
}

/// The folders where sockets of running cards may be.
pub fn folders() -> Vec<PathBuf> {
    let (own, _) = own_folder();
    let mut folders = vec![own];
    if std::env::var_os("PICNIC_RUNTIME_DIR").is_none_or(|path| path.is_empty()) {
        let system = PathBuf::from("/run/picnic");
        if !folders.contains(&system) {
            folders.push(system);
        }
    }
    folders
}

/// A card's name as that of a file: letters, digits, `.`, `_` and `-` stand for themselves.
pub(super) fn file_name(card: &str) -> String {
    let mut text = String::new();
    for (index, &byte) in card.as_bytes().iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => text.push(byte.into()),
            b'.' if index != 0 => text.push('.'),
            byte => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text + SUFFIX
}

/// The card's name that a file's name stands for.
pub(super) fn card_name(file: &str) -> Option<String> {
    let text = file.strip_suffix(SUFFIX)?;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// Makes the runtime folder, or makes sure that the one that is there is nobody else's.
pub(super) fn make_folder(folder: &Path, mode: u32) -> Result<(), String> {
    let shown = folder.display();
    let made = DirBuilder::new().mode(mode).recursive(true).create(folder);
    made.map_err(|error| format!("folder {shown} cannot be made: {error}"))?;
    own(folder)
}

/// Makes sure that a folder is this user's and nobody else's.
pub(super) fn own(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let metadata = std::fs::symlink_metadata(folder)
        .map_err(|error| format!("folder {shown} cannot be looked at: {error}"))?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{shown} is no folder of this user's"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(format!(
            "folder {shown} may be written to by others (mode {:o}): chmod 700 {shown}",
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}

pub(super) fn lock(folder: &Path, give_up: Instant) -> Result<File, String> {
    let shown = folder.display();
    let file = File::open(folder).map_err(|error| format!("folder {shown}: {error}"))?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(format!("folder {shown} cannot be locked: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_harmless_and_can_be_read_back() {
        for name in ["picnic0", "../../etc/x", "a b/c", ".", "..", "", "é", "%41", "a.b"] {
            let file = file_name(name);
            assert!(!file.contains('/') && !file[..file.len() - 5].starts_with('.'), "{file}");
            assert_eq!(card_name(&file).as_deref(), Some(name));
        }
        assert_eq!(card_name("x"), None);
        assert_eq!(card_name("%4.sock"), None);
        assert_eq!(card_name("%é.sock"), None);
    }
}
