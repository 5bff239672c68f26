//! The folders of running cards' sockets, and the sockets' file names.
//!
//! Guarantees: any card name becomes a harmless file name that can be read back. A user's folder
//! belongs to that user alone.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Uid;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Suffix of a socket's file name.
const SUFFIX: &str = ".sock";

/// The folder of root's sockets.
const SYSTEM: &str = "/run/picnic";

/// Folders for sockets of cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// The folder for sockets of this process.
    pub(super) own: PathBuf,
    /// The mode of that folder.
    pub(super) mode: u32,
    /// All folders that may have sockets.
    pub(super) all: Vec<PathBuf>,
}

impl Places {
    /// The folders of this process.
    pub(super) fn of_this_process() -> Self {
        Places::of(|name| std::env::var_os(name), rustix::process::geteuid())
    }

    /// The folders of a user with these environment variables.
    fn of(variable: impl Fn(&str) -> Option<OsString>, user: Uid) -> Self {
        let stated = variable("PICNIC_RUNTIME_DIR").filter(|path| !path.is_empty());
        if let Some(own) = stated.map(PathBuf::from) {
            return Places { all: vec![own.clone()], own, mode: 0o700 };
        }
        if user.is_root() {
            // Others may list the cards, and learn that they may not use them.
            return Places { own: SYSTEM.into(), mode: 0o755, all: vec![SYSTEM.into()] };
        }
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = match runtime.filter(|path| path.is_absolute()) {
            Some(runtime) => runtime.join("picnic"),
            None => format!("/tmp/picnic-{}", user.as_raw()).into(),
        };
        let mut all = vec![own.clone()];
        if own != Path::new(SYSTEM) {
            all.push(SYSTEM.into());
        }
        Places { own, mode: 0o700, all }
    }
}

/// The folders where sockets of running cards may be.
pub fn folders() -> Vec<PathBuf> {
    Places::of_this_process().all
}

/// A card's name as a file name: letters, digits, `.`, `_` and `-` stay unchanged.
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

/// The card's name in a file name.
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

/// Makes the runtime folder, or checks that the existing one belongs to this user alone, and locks
/// it. An ending card removes the empty folder: then it is made again.
pub(super) fn make_and_lock(folder: &Path, mode: u32, give_up: Instant) -> Result<File, String> {
    let shown = folder.display();
    loop {
        let made = DirBuilder::new().mode(mode).recursive(true).create(folder);
        made.map_err(|error| format!("folder {shown} cannot be created: {error}"))?;
        let locked = own(folder).and_then(|()| lock(folder, give_up));
        if locked.is_ok() || folder.exists() {
            return locked;
        }
    }
}

/// Checks that a folder belongs to this user alone.
pub(super) fn own(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    let metadata = std::fs::symlink_metadata(folder)
        .map_err(|error| format!("folder {shown} cannot be inspected: {error}"))?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("{shown} is not a folder of this user"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(format!(
            "others can write to folder {shown} (mode {:o}): chmod 700 {shown}",
            metadata.mode() & 0o7777
        ));
    }
    Ok(())
}

/// Locks the folder that exists when the lock is acquired: while waiting, the folder may have been
/// replaced.
pub(super) fn lock(folder: &Path, give_up: Instant) -> Result<File, String> {
    let shown = folder.display();
    let open = || File::open(folder).map_err(|error| format!("folder {shown}: {error}"));
    let mut file = open()?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, folder) => return Ok(file),
            Ok(()) => file = open()?,
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(format!("folder {shown} cannot be locked: {error}")),
        }
    }
}

/// Whether a path still leads to the opened file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let found = std::fs::metadata(path).map(identity);
    file.metadata().map(identity).is_ok_and(|own| found.is_ok_and(|found| found == own))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A card of this process is in the first folder that clients of this user search.
    #[test]
    fn clients_search_the_cards_folder() {
        assert_eq!(folders().first(), Some(&Places::of_this_process().own));
    }

    #[test]
    fn socket_folder_follows_the_environment() {
        let of = |picnic: Option<&str>, xdg: Option<&str>, user| {
            let variable = |name: &str| match name {
                "PICNIC_RUNTIME_DIR" => picnic.map(OsString::from),
                "XDG_RUNTIME_DIR" => xdg.map(OsString::from),
                _ => None,
            };
            let Places { own, mode, all } = Places::of(variable, Uid::from_raw(user));
            assert_eq!(all[0], own);
            (own.to_str().unwrap().to_owned(), mode, all.len() == 2 && all[1] == Path::new(SYSTEM))
        };
        let place = |own: &str, mode, and_system| (own.to_owned(), mode, and_system);
        for user in [0, 7] {
            assert_eq!(of(Some("/x"), Some("/y"), user), place("/x", 0o700, false));
        }
        for picnic in [None, Some("")] {
            assert_eq!(of(picnic, Some("/y"), 0), place(SYSTEM, 0o755, false));
            assert_eq!(of(picnic, Some("/y"), 7), place("/y/picnic", 0o700, true));
            assert_eq!(of(picnic, Some("y"), 7), place("/tmp/picnic-7", 0o700, true));
            assert_eq!(of(picnic, None, 7), place("/tmp/picnic-7", 0o700, true));
            assert_eq!(of(picnic, Some("/run"), 7), place(SYSTEM, 0o700, false));
        }
    }

    #[test]
    fn runtime_folders_belong_to_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let make = || make_and_lock(&path, 0o700, Instant::now()).map(drop);
        make().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        make().unwrap();
        let mode = |mode| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            own(&path)
        };
        assert_eq!(mode(0o755), Ok(()));
        for open in [0o720, 0o702] {
            let error = mode(open).unwrap_err();
            assert!(error.contains(&format!("(mode {open:o}): chmod 700")), "{error}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(own(&link).unwrap_err().ends_with("is not a folder of this user"));
        assert!(own(&folder.path().join("c")).unwrap_err().contains("cannot be inspected"));
    }

    /// The folder may be removed with the card that holds its lock, and another may be made.
    #[test]
    fn locks_hold_the_current_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("cards");
        let give_up = || Instant::now() + Duration::from_secs(60);
        let are_open = || {
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            descriptors
                .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path == folder))
                .count()
        };
        for is_made_anew in [false, true] {
            let first = make_and_lock(&folder, 0o700, give_up()).unwrap();
            let second = std::thread::scope(|scope| {
                let second = scope.spawn(|| make_and_lock(&folder, 0o700, give_up()).unwrap());
                picnic_testing::wait_until("it waits for the lock", || are_open() == 2);
                std::fs::remove_dir(&folder).unwrap();
                if is_made_anew {
                    std::fs::create_dir(&folder).unwrap();
                }
                drop(first);
                second.join().unwrap()
            });
            assert!(is_at(&second, &folder));
            let other = lock(&folder, Instant::now());
            assert!(other.unwrap_err().contains("cannot be locked"), "{is_made_anew}");
        }
        std::fs::remove_dir(&folder).unwrap();
        assert!(lock(&folder, give_up()).unwrap_err().contains("No such file"));
        // If none can be made, it gives up after a while.
        std::fs::write(&folder, "").unwrap();
        let error = make_and_lock(&folder, 0o700, give_up()).unwrap_err();
        assert!(error.contains("cannot be created"), "{error}");
    }

    #[test]
    fn file_names_are_harmless_and_read_back() {
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
