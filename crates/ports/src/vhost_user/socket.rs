//! The socket of a guest: who may connect, and what may be there already.

use picnic_core::error::ConfigError;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, chmod, chownat, fchmod, lstat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Front ends that may wait for the one before them to end.
const WAITING: i32 = 4;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Its owner and its group, if they are not those of the card.
    pub(super) owner: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) permissions: u32,
}

/// The number of a user or group, by name or number; `list` is the system's file of names.
pub(super) fn number(name: &str, list: &str) -> Option<u32> {
    // The highest number means "no change".
    let is_one = |number: &u32| *number != u32::MAX;
    if let Ok(number) = name.parse() {
        return Some(number).filter(is_one);
    }
    let names = std::fs::read_to_string(list).ok()?;
    // A name, a password, a number.
    let mut found = names.lines().filter_map(|line| {
        let mut fields = line.split(':');
        fields.next().filter(|first| *first == name)?;
        fields.nth(1)?.parse().ok()
    });
    found.next().filter(is_one)
}

fn new_socket(flags: SocketFlags) -> std::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A connection to a front end that listens.
pub(super) fn reach(path: &Path) -> std::io::Result<UnixStream> {
    let socket = new_socket(SocketFlags::empty())?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// A socket for those with access. One that was left over is replaced.
///
/// # Errors
/// Something else is there, or the access cannot be set.
pub(super) fn make(path: &Path, access: Access) -> Result<UnixListener, ConfigError> {
    let fault = |key: &str, error: &dyn std::fmt::Display| {
        ConfigError::new(key, format!("{}: {error}", path.display()))
    };
    remove_stale(path, access).map_err(|error| fault("socket", &error))?;
    let socket = (|| {
        let socket = new_socket(SocketFlags::NONBLOCK)?;
        // Before it has a name, so that it is never open to others.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        Ok::<_, std::io::Error>(socket)
    })();
    let socket = socket.map_err(|error| fault("socket", &error))?;
    let opened = (|| {
        let (owner, group) = (access.owner.map(Uid::from_raw), access.group.map(Gid::from_raw));
        if owner.is_some() || group.is_some() {
            let key = if owner.is_some() { "owner" } else { "group" };
            let changed = chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW);
            changed.map_err(|error| fault(key, &error))?;
        }
        let mode = Mode::from_raw_mode(access.permissions);
        chmod(path, mode).map_err(|error| fault("permissions", &error))?;
        listen(&socket, WAITING).map_err(|error| fault("socket", &error))
    })();
    if let Err(error) = opened {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket.into())
}

fn remove_stale(path: &Path, access: Access) -> std::io::Result<()> {
    let Ok(found) = lstat(path) else { return Ok(()) };
    let other = |why: String| Err(std::io::Error::other(why));
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return other("found a file that is no socket".into());
    }
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid != own && Some(found.st_uid) != access.owner {
        return other(format!("found a socket of user {}, who is not its owner", found.st_uid));
    }
    if reach(path).is_ok() {
        return other("found the socket of another program".into());
    }
    std::fs::remove_file(path)
}
