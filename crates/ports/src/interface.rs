//! A kernel interface as a wire: the parts common to all such ports.
//!
//! Guarantees: an interface is the wire of one card at a time, for any port.

use crate::sys::namespace;
use crate::sys::packet::Name;
use crate::sys::xsk_device::{self, State};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::port::Transmitter;
use rustix::io::Errno;
use rustix::net::netdevice;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Interval for checking the interface and the kernel's loss counters.
pub(crate) const CHECK_NS: u64 = 20_000_000;

/// Attempts to reserve an interface, and the pause between them: a second while its card may be
/// running, and ten seconds once that has ended, as its child may have no core for seconds.
const LOCK_ATTEMPTS: u32 = 200;
const CHILD_ATTEMPTS: u32 = 2000;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Drops the oldest packet, which cannot be sent.
#[cold]
pub(crate) fn drop_oldest(tx: &mut Transmitter<'_>, reason: DropReason) {
    if let Some(packet) = tx.next() {
        tx.drop(packet, reason);
    }
}

/// The error that a namespace cannot be entered.
pub(crate) fn no_namespace(namespace: &str, error: &io::Error) -> ConfigError {
    let path = namespace::path(namespace);
    let shown = path.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => format!("found \"{namespace}\", but {shown} does not exist"),
        io::ErrorKind::PermissionDenied => {
            format!("{shown} may not be entered: CAP_SYS_ADMIN is needed (root)")
        }
        io::ErrorKind::InvalidInput => format!("{shown} is not a network namespace"),
        _ => format!("{shown}: {error}"),
    };
    ConfigError::new("namespace", message)
}

/// A warning about an interface that receives nothing; none if it is running.
pub(crate) fn down(
    socket: BorrowedFd<'_>,
    interface: &str,
    name: &Name,
    namespace: Option<&str>,
) -> Option<String> {
    match xsk_device::state(socket, name) {
        State::Running | State::Unknown => None,
        State::Down => {
            let ip = ip_in(namespace);
            Some(format!("interface {interface} is down: {ip} link set {interface} up"))
        }
        State::NoCarrier => Some(format!(
            "interface {interface} has no carrier: connect its cable, or take the other end of its \
             veth pair up (ip link set PEER up)"
        )),
    }
}

/// The program `ip`, for a namespace.
fn ip_in(namespace: Option<&str>) -> String {
    match namespace {
        None => "ip".to_owned(),
        Some(path) if path.contains('/') => format!("nsenter --net={path} ip"),
        Some(namespace) => format!("ip -n {namespace}"),
    }
}

/// A warning about an interface whose super-frames of up to `found` bytes exceed a port's limit;
/// none if they do not.
pub(crate) fn long_super_frames(
    interface: &str,
    found: u32,
    taken: usize,
    namespace: Option<&str>,
) -> Option<String> {
    (found as usize > taken).then(|| {
        format!(
            "interface {interface} lets super-frames have {found} bytes, and the card takes no packet \
             of more than {taken}: {}",
            shorten(interface, namespace)
        )
    })
}

/// The command that limits an interface's super-frames to 64 KiB: the kernel applies the same
/// limits to IPv4.
pub(crate) fn shorten(interface: &str, namespace: Option<&str>) -> String {
    format!(
        "{} link set {interface} gso_max_size 65536 gro_max_size 65536, also at the other end of \
         a veth",
        ip_in(namespace)
    )
}

/// Runs `work` in a namespace of `ip netns`, or in the thread's own.
///
/// # Errors
/// The namespace does not exist, or may not be entered: an error about the key `namespace`.
pub fn within<T: Send>(
    namespace: Option<&str>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, ConfigError> {
    let Some(name) = namespace else { return Ok(work()) };
    namespace::within(&namespace::path(name), work).map_err(|error| no_namespace(name, &error))
}

/// The number of an interface in the calling thread's namespace.
///
/// # Errors
/// `NotFound`: no interface has this name.
pub fn number(interface: &str) -> io::Result<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    name_to_index(&socket, interface).map_err(|error| match error {
        Errno::NODEV => io::ErrorKind::NotFound.into(),
        error => error.into(),
    })
}

/// The name of an interface, given one of its alternative names.
fn own_name(interface: &str) -> io::Result<String> {
    let socket = UnixDatagram::unbound()?;
    let index = netdevice::name_to_index(&socket, interface)?;
    Ok(netdevice::index_to_name(&socket, index)?)
}

/// An interface that is reserved for a card, until it is dropped.
#[derive(Debug)]
pub struct WireLock(UnixDatagram);

impl Drop for WireLock {
    fn drop(&mut self) {
        // A child that was just being started has the address, too, until it has become another
        // program. Others can tell, because the socket is shut down for both.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Reserves the interface for this card, by its name or an alternative name in the calling thread's
/// namespace, until the result is dropped.
///
/// # Errors
/// `AddrInUse`: another card has it.
pub fn lock(interface: &str) -> io::Result<WireLock> {
    let name = own_name(interface).unwrap_or_else(|_| interface.into());
    let address = SocketAddr::from_abstract_name(format!("picnic/wire/{name}"))?;
    bind(&address, || std::thread::sleep(LOCK_PAUSE))
}

/// Binds an address, after a pause if another socket has it: of a card, or of its child.
fn bind(address: &SocketAddr, mut pause: impl FnMut()) -> io::Result<WireLock> {
    let mut attempts = 1;
    loop {
        let error = match UnixDatagram::bind_addr(address) {
            Ok(socket) => return Ok(WireLock(socket)),
            Err(error) => error,
        };
        // The child of a killed card has a socket that was not shut down.
        let most = if has_ended(address) { CHILD_ATTEMPTS } else { LOCK_ATTEMPTS };
        if error.kind() != io::ErrorKind::AddrInUse || attempts >= most {
            return Err(error);
        }
        attempts += 1;
        pause();
    }
}

/// Whether the card that had this address has dropped its lock.
fn has_ended(address: &SocketAddr) -> bool {
    let ask = || {
        let socket = UnixDatagram::unbound()?;
        // The card reads nothing: its socket may be full.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(&[], address)
    };
    ask().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> SocketAddr {
        let name = format!("picnic/{name}-{}", std::process::id());
        SocketAddr::from_abstract_name(name).unwrap()
    }

    #[test]
    fn an_address_is_asked_for_until_it_is_free() {
        let address = address("held");
        let mut held = Some(bind(&address, || {}).unwrap());
        let mut pauses = 0;
        let error = bind(&address, || pauses += 1).unwrap_err();
        assert_eq!((error.kind(), pauses), (io::ErrorKind::AddrInUse, LOCK_ATTEMPTS - 1));
        // A child that is being started may have it longer.
        let free = || {
            drop(held.take());
            std::thread::sleep(20 * LOCK_PAUSE);
        };
        bind(&address, free).expect("free after a while");
    }

    /// As after a fork: two descriptors of one socket.
    #[test]
    fn children_of_ended_cards_are_waited_for() {
        let address = address("child");
        let held = bind(&address, || {}).unwrap();
        let mut child = Some(held.0.try_clone().unwrap());
        assert!(!has_ended(&address), "the card still has it");
        drop(held);
        assert!(has_ended(&address));
        let mut pauses = 0;
        let starts = || {
            pauses += 1;
            if pauses == CHILD_ATTEMPTS - 1 {
                child = None;
            }
        };
        bind(&address, starts).expect("free once the child is another program");
    }
}
