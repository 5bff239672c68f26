//! Makes the TAP device from the keys: queues, MAC, MTU, addresses, up.

use super::config::DeviceConfig;
use super::queue::Queue;
use crate::sys::link::InterfaceHandle;
use crate::sys::sysfs::Sysfs;
use crate::sys::{namespace, tun};
use picnic_core::error::ConfigError;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// Creates the device in its namespace, and opens its queues. On failure nothing of it remains,
/// unless it existed before.
///
/// # Errors
/// The key that cannot be applied and the system's error, as a message for the user.
pub(super) fn make(wanted: &DeviceConfig) -> Result<Vec<Queue>, ConfigError> {
    let Some(name) = &wanted.namespace else { return make_here(wanted) };
    let path = namespace::path(name);
    namespace::within(&path, || make_here(wanted)).map_err(|error| {
        let shown = path.display();
        let why = match error.kind() {
            io::ErrorKind::NotFound => format!("{shown} does not exist"),
            io::ErrorKind::PermissionDenied => {
                format!("{shown} may not be entered: root is needed")
            }
            io::ErrorKind::InvalidInput => format!("{shown} is not a network namespace"),
            _ => format!("{shown} cannot be entered: {error}"),
        };
        ConfigError::new("namespace", format!("found \"{name}\", but {why}"))
    })?
}

fn make_here(wanted: &DeviceConfig) -> Result<Vec<Queue>, ConfigError> {
    if wanted.persistent && is_in_use(&wanted.name) {
        return Err(taken(wanted));
    }
    let not_made = |error: io::Error| not_made(wanted, &error);
    let first = tun::open().map_err(not_made)?;
    let name = tun::attach(first.as_fd(), &wanted.name, !wanted.persistent).map_err(not_made)?;
    let wanted = Arc::new(DeviceConfig { name, ..wanted.clone() });
    let refused = |key: &str, what: &str, error: &dyn std::fmt::Display| {
        ConfigError::new(key, format!("interface {} refuses {what}: {error}", wanted.name))
    };
    let find = || {
        InterfaceHandle::find(&wanted.name)
            .map_err(|error| refused(wanted.name_key, "to be found", &error))
    };
    let link = find()?;
    let mut files = vec![first];
    for _ in 1..wanted.queues {
        let opened = tun::open().and_then(|queue| {
            tun::attach(queue.as_fd(), &wanted.name, false)?;
            Ok(queue)
        });
        let what = format!("{} queues", wanted.queues);
        files.push(opened.map_err(|error| refused("queues", &what, &error))?);
    }
    announce(&wanted.name);
    let sysfs = sysfs(&wanted)?.map(Arc::new);
    configure(files[0].as_fd(), &link, sysfs.as_deref(), &wanted)?;
    let mut queues = Vec::new();
    for file in files {
        queues.push(Queue::new(file, find()?, sysfs.clone(), wanted.clone()));
    }
    // Last, so that what failed before leaves nothing behind.
    if wanted.persistent {
        tun::set_persistent(queues[0].as_fd(), true)
            .map_err(|error| refused("persistent", "to stay", &error))?;
    }
    Ok(queues)
}

/// Applies the keys to the interface.
///
/// # Errors
/// The key that cannot be applied.
pub(super) fn configure(
    queue: BorrowedFd<'_>,
    link: &InterfaceHandle,
    sysfs: Option<&Sysfs>,
    wanted: &DeviceConfig,
) -> Result<(), ConfigError> {
    let refused = |key: &str, what: &str, error: &dyn std::fmt::Display| {
        ConfigError::new(key, format!("interface {} refuses {what}: {error}", wanted.name))
    };
    tun::set_offloads(queue, wanted.super_frames)
        .map_err(|error| refused("super_frames", "checksum offload", &error))?;
    link.set_mac(wanted.mac).map_err(|error| refused("mac", "this address", &error))?;
    let mtu = wanted.mtu;
    link.set_mtu(mtu).map_err(|error| refused("mtu", &format!("an MTU of {mtu}"), &error))?;
    link.set_queue_length(wanted.tx_queue_length)
        .map_err(|error| refused("tx_queue_length", "this length", &error))?;
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
    if wanted.up {
        link.set_up().map_err(|error| refused("up", "to come up", &error))?;
        // Earlier packets are lost. If the kernel cannot activate an address, that is no reason not
        // to start: it may be mended while the card runs.
        for (index, cidr) in wanted.addresses.iter().enumerate() {
            if let IpAddr::V6(address) = cidr.address {
                let waited = link.wait_until_in_use(address);
                waited.map_err(|error| {
                    refused(&format!("addresses[{index}]"), "to bring up this address", &error)
                })?;
            }
        }
    }
    let Some(sysfs) = sysfs else { return Ok(()) };
    (0..wanted.queues).try_for_each(|queue| {
        let steered = sysfs.steer(&wanted.name, queue, &wanted.rps_cores);
        steered.map_err(|error| refused("rps_cores", "receive packet steering", &error))
    })
}

/// Access to steering, if it must be set: on a persistent interface, an earlier card may have left
/// some.
///
/// # Errors
/// It is needed but not available.
fn sysfs(wanted: &DeviceConfig) -> Result<Option<Sysfs>, ConfigError> {
    if wanted.rps_cores.is_empty() && !wanted.persistent {
        return Ok(None);
    }
    match Sysfs::open() {
        Ok(sysfs) => Ok(Some(sysfs)),
        Err(_) if wanted.rps_cores.is_empty() => Ok(None),
        Err(error) => {
            let name = &wanted.name;
            let message =
                format!("found cores, but interface {name} has no attributes here: {error}");
            Err(ConfigError::new("rps_cores", message))
        }
    }
}

/// Makes the kernel announce the interface's addresses when it comes up, by gratuitous ARP and
/// unsolicited neighbour advertisement, so that neighbours need not wait for old entries to age.
fn announce(name: &str) {
    for setting in ["ipv4/conf/{}/arp_notify", "ipv6/conf/{}/ndisc_notify"] {
        // A kernel without one of the protocols has nothing to tell; without the setting,
        // neighbours find out by themselves.
        let _ = fs::write(Path::new("/proc/sys/net").join(setting.replace("{}", name)), "1");
    }
}

/// Whether a program has a queue of this device open.
fn is_in_use(name: &str) -> bool {
    InterfaceHandle::find(name).and_then(|link| link.has_carrier()).unwrap_or(false)
}

fn taken(wanted: &DeviceConfig) -> ConfigError {
    let message = format!("found \"{}\", but an interface of that name is in use", wanted.name);
    ConfigError::new(wanted.name_key, message)
}

fn not_made(wanted: &DeviceConfig, error: &io::Error) -> ConfigError {
    let (device, name) = (tun::DEVICE, &wanted.name);
    let message = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            format!("a TAP interface needs {device}, which is absent: try `modprobe tun`")
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "root (CAP_NET_ADMIN) is needed to make a TAP interface".into()
        }
        Some(Errno::BUSY) => return taken(wanted),
        Some(Errno::INVAL) => {
            let what = "but an interface of that name and another kind exists";
            format!("found \"{name}\", {what}")
        }
        _ => format!("interface \"{name}\" cannot be created: {error}"),
    };
    ConfigError::new(wanted.name_key, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tap::TapConfig;
    use picnic_core::registry::BuildContext;

    #[test]
    fn system_errors_become_messages() {
        let config = TapConfig { name: "web0".into(), ..TapConfig::default() };
        let wanted = config.read(&BuildContext::default(), 1).unwrap();
        let said = |error: Errno| not_made(&wanted, &io::Error::from(error)).to_string();
        assert!(said(Errno::PERM).contains("root (CAP_NET_ADMIN)"));
        assert!(said(Errno::NOENT).contains("/dev/net/tun, which is absent"));
        assert!(said(Errno::BUSY).contains("name: found \"web0\""));
        assert!(said(Errno::INVAL).contains("another kind"));
        assert!(said(Errno::MFILE).contains("cannot be created"));
    }
}
