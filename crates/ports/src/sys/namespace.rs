//! Work done inside another network namespace.
//!
//! A thread enters the namespace, does the work and ends, so that no other thread is ever in
//! it. Sockets made there stay there.
//!
//! Source: setns(2), network_namespaces(7).

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of namespaces named by `ip netns`.
const NAMED: &str = "/run/netns";

/// The file of a namespace: a name of `ip netns`, or a path if it has a slash.
pub(crate) fn path(namespace: &str) -> PathBuf {
    if namespace.contains('/') { namespace.into() } else { Path::new(NAMED).join(namespace) }
}

/// Runs `work` in the namespace of the file.
///
/// # Errors
/// The namespace is not there, or may not be entered.
pub(crate) fn within<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into());
        let work = thread.spawn_scoped(scope, move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })?;
        work.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
    })
}

/// Moves the calling thread, made for the purpose, into the namespace for good.
///
/// # Errors
/// As [`within`].
pub(crate) fn enter(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
