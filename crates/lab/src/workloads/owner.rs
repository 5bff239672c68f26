//! Names that say who made a thing, so that what a killed process left is found.
//!
//! A name is `picnic-lab-PID-START` with START the process's start time: a process that got the
//! number of a dead one does not keep its things alive.

use std::path::{Path, PathBuf};

/// What all names begin with.
const PREFIX: &str = "picnic-lab-";
/// Where named network namespaces are.
const NAMESPACES: &str = "/run/netns";

/// The name of this process's things.
pub fn name() -> String {
    let id = std::process::id();
    format!("{PREFIX}{id}-{}", started(id).unwrap_or(0))
}

/// When a process started, in clock ticks after boot; none if there is no such process.
fn started(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the program's name in brackets, and may hold anything.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether `name` is that of a thing whose maker is no more.
fn is_stale(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let mut parts = rest.split('-');
    let id = parts.next().and_then(|part| part.parse().ok());
    let start = parts.next().and_then(|part| part.parse().ok());
    match (id, start) {
        (Some(id), Some(start)) => started(id) != Some(start),
        _ => false,
    }
}

/// The stale things in a folder.
fn stale_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_stale))
        .collect()
}

/// The names of the stale network namespaces.
pub fn stale_namespaces() -> Vec<String> {
    let names = stale_in(Path::new(NAMESPACES)).into_iter();
    names.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
}

/// Removes the folders that killed processes left.
pub fn remove_stale_folders() {
    for folder in stale_in(&std::env::temp_dir()) {
        // Somebody else may be removing it.
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_made_is_stale() {
        let own = name();
        assert!(!is_stale(&own) && !is_stale(&format!("{own}-client")));
        let (before, start) = own.rsplit_once('-').unwrap();
        let other = start.parse::<u64>().unwrap() + 1;
        assert!(is_stale(&format!("{before}-{other}-client")), "its number was given again");
        assert!(is_stale(&format!("{PREFIX}4294967295-1-server")), "no such process");
        for name in ["server", "picnic-lab-", "picnic-lab-x-1", "picnic-lab-1", "my-picnic-lab-1-1"]
        {
            assert!(!is_stale(name), "{name}");
        }
    }
}
