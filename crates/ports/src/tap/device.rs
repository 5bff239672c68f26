//! Makes the TAP device that the keys ask for: queues, MAC, MTU, addresses, up.

use super::config::Wanted;
use crate::sys::link::Link;
use crate::sys::{namespace, tun};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A device with all its queues open, by number.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) queues: Vec<Option<OwnedFd>>,
}

/// Makes the device, in its namespace. If anything goes wrong nothing is left of it, unless it
/// was there before.
///
/// # Errors
/// The key that cannot be met and what the system says, in words for the user.
pub(super) fn make(wanted: &Wanted) -> Result<Device, String> {
    let Some(name) = &wanted.namespace else { return make_here(wanted) };
    let path = namespace::path(name);
    namespace::within(&path, || make_here(wanted)).map_err(|error| {
        let shown = path.display();
        let why = match error.kind() {
            io::ErrorKind::NotFound => format!("{shown} is not there"),
            io::ErrorKind::PermissionDenied => {
                format!("{shown} may not be entered: root is needed")
            }
            io::ErrorKind::InvalidInput => format!("{shown} is no network namespace"),
            _ => format!("{shown} cannot be entered: {error}"),
        };
        format!("host.namespace: found \"{name}\", but {why}")
    })?
}

fn make_here(wanted: &Wanted) -> Result<Device, String> {
    if wanted.persistent && is_in_use(&wanted.name) {
        return Err(taken(&wanted.name));
    }
    let (first, name) = tun::open_queue(&wanted.name, !wanted.persistent)
        .map_err(|error| not_made(&wanted.name, &error))?;
    let refused = |key: &str, what: &str, error: &dyn std::fmt::Display| {
        format!("host.{key}: interface {name} refuses {what}: {error}")
    };
    tun::offload_checksums(first.as_fd())
        .map_err(|error| refused("attachment", "checksum offload", &error))?;
    let link = Link::find(&name).map_err(|error| refused("name", "to be found", &error))?;
    if let Some(mac) = wanted.mac {
        link.set_mac(mac).map_err(|error| refused("mac", "this address", &error))?;
    }
    let mtu = wanted.mtu;
    link.set_mtu(mtu).map_err(|error| refused("mtu", &format!("an MTU of {mtu}"), &error))?;
    let mut queues = vec![Some(first)];
    for _ in 1..wanted.queues {
        let (queue, _) = tun::open_queue(&name, false)
            .map_err(|error| refused("queues", &format!("{} queues", wanted.queues), &error))?;
        queues.push(Some(queue));
    }
    if wanted.up {
        link.set_up().map_err(|error| refused("up", "to come up", &error))?;
    }
    for (index, cidr) in wanted.addresses.iter().enumerate() {
        link.add_address(cidr.address, cidr.prefix).map_err(|error| {
            let what = match error {
                // IPv6 is switched off here (or not compiled in).
                Errno::ACCESS | Errno::OPNOTSUPP if cidr.address.is_ipv6() => "IPv6 addresses",
                _ => "this address",
            };
            refused(&format!("addresses[{index}]"), what, &error)
        })?;
    }
    // Last, so that what failed before leaves nothing behind.
    if wanted.persistent
        && let Some(Some(first)) = queues.first()
    {
        tun::set_persistent(first.as_fd(), true)
            .map_err(|error| refused("persistent", "to stay", &error))?;
    }
    Ok(Device { queues })
}

/// Whether somebody has a queue of this device open.
fn is_in_use(name: &str) -> bool {
    Link::find(name).and_then(|link| link.has_carrier()).unwrap_or(false)
}

fn taken(name: &str) -> String {
    format!("host.name: found \"{name}\", but an interface of that name is in use")
}

fn not_made(name: &str, error: &io::Error) -> String {
    let device = tun::DEVICE;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            format!("host.attachment: \"tap\" needs {device}, which is absent: try `modprobe tun`")
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "host.attachment: \"tap\" needs root (CAP_NET_ADMIN) to make an interface".into()
        }
        Some(Errno::BUSY) => taken(name),
        Some(Errno::INVAL) => format!(
            "host.name: found \"{name}\", but an interface of that name and another kind exists"
        ),
        _ => format!("host.name: interface \"{name}\" cannot be made: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_put_into_words() {
        let said = |error: Errno| not_made("web0", &io::Error::from(error));
        assert!(said(Errno::PERM).contains("needs root (CAP_NET_ADMIN)"));
        assert!(said(Errno::NOENT).contains("/dev/net/tun, which is absent"));
        assert!(said(Errno::BUSY).contains("host.name: found \"web0\""));
        assert!(said(Errno::INVAL).contains("another kind"));
        assert!(said(Errno::MFILE).contains("cannot be made"));
    }
}
