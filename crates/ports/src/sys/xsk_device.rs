//! Properties of an interface from its driver: queues, bus, MTU.
//!
//! Source: include/uapi/linux/ethtool.h; netdevice(7).

use super::link::LinkState;
use super::packet::Name;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::ffi::c_void;
use std::io;
use std::mem::zeroed;

const ETHTOOL_GSET: u32 = 1;
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GLINK: u32 = 0xa;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`: the most that are possible, then how many there are.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_cmd`, up to its speed; newer-style answers are stored here, too.
#[repr(C)]
#[derive(Default)]
struct EthtoolSettings {
    command: u32,
    modes: [u32; 2],
    speed: u16,
    ways: [u8; 6],
    frames: [u32; 2],
    speed_high: u16,
    more: [u8; 14],
}

/// The value for a link without a speed.
const SPEED_UNKNOWN: u32 = u32::MAX;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    /// Driver, its version, firmware.
    names: [[u8; 32]; 3],
    bus: [u8; 32],
    more: [u8; 64],
}

/// # Safety
/// The request reads and writes an `ifreq` and the data it points to.
unsafe fn ask(
    socket: BorrowedFd<'_>,
    request: libc::Ioctl,
    ifreq: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut *ifreq) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ifreq(name: &Name) -> libc::ifreq {
    // SAFETY: zero is a value of the name and of every reading of the union.
    let mut ifreq: libc::ifreq = unsafe { zeroed() };
    for (to, &from) in ifreq.ifr_name.iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
    ifreq
}

/// Receive and transmit queues in use; one each of a driver that does not say.
pub(crate) fn queues(socket: BorrowedFd<'_>, name: &Name) -> (u32, u32) {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut ifreq = ifreq(name);
    ifreq.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: this command writes a `struct ethtool_channels`, which is there.
    match unsafe { ask(socket, libc::SIOCETHTOOL as libc::Ioctl, &mut ifreq) } {
        Ok(()) => {
            let Channels { receive, transmit, combined, .. } = channels;
            ((receive + combined).max(1), (transmit + combined).max(1))
        }
        Err(_) => (1, 1),
    }
}

/// The speed of the link in Mb/s, if its driver tells one.
pub(crate) fn speed(socket: BorrowedFd<'_>, name: &Name) -> Option<u32> {
    let mut settings = EthtoolSettings { command: ETHTOOL_GSET, ..EthtoolSettings::default() };
    let mut ifreq = ifreq(name);
    ifreq.ifr_ifru.ifru_data = (&raw mut settings).cast();
    // SAFETY: this command writes a `struct ethtool_cmd`, 44 bytes, which are there.
    unsafe { ask(socket, libc::SIOCETHTOOL as libc::Ioctl, &mut ifreq).ok()? };
    let speed = u32::from(settings.speed_high) << 16 | u32::from(settings.speed);
    // Half of "unknown" is what older drivers say.
    (speed != 0 && speed != u32::from(u16::MAX) && speed != SPEED_UNKNOWN).then_some(speed)
}

/// Whether the interface has no device, as its driver names no bus: another part of
/// the kernel is at the other end.
pub(crate) fn is_virtual(socket: BorrowedFd<'_>, name: &Name) -> bool {
    // SAFETY: integers alone.
    let mut info: DriverInfo = unsafe { zeroed() };
    info.command = ETHTOOL_GDRVINFO;
    let mut ifreq = ifreq(name);
    ifreq.ifr_ifru.ifru_data = (&raw mut info).cast::<c_void>().cast();
    // SAFETY: this command writes a `struct ethtool_drvinfo`, which is there.
    match unsafe { ask(socket, libc::SIOCETHTOOL as libc::Ioctl, &mut ifreq) } {
        Ok(()) => info.bus[0] == 0,
        Err(_) => true,
    }
}

/// Whether interface `index` exists; none while that is unknown because it is being renamed.
pub(crate) fn link(socket: BorrowedFd<'_>, index: libc::c_int) -> Option<LinkState> {
    let mut named = ifreq(&[0; libc::IFNAMSIZ]);
    named.ifr_ifru.ifru_ifindex = index;
    let mut flags = named;
    // SAFETY: the first request reads an index and writes a name, the second reads that name and
    // writes flags, all within an `ifreq`; then it holds flags.
    let flags = unsafe {
        if ask(socket, libc::SIOCGIFNAME as libc::Ioctl, &mut named).is_err() {
            return Some(LinkState::Gone);
        }
        flags.ifr_name = named.ifr_name;
        ask(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut flags).ok()?;
        libc::c_int::from(flags.ifr_ifru.ifru_flags)
    };
    let up = flags & libc::IFF_UP != 0;
    // "Running" is up to a second late. The other question takes the kernel's lock of all
    // interfaces, so it is asked only if that could be so.
    let running = up && (flags & libc::IFF_RUNNING != 0 || has_carrier(socket, named));
    Some(if running { LinkState::Running } else { LinkState::Down })
}

/// How an interface stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Nobody has taken it up.
    Down,
    /// Up, and nothing at the other end.
    NoCarrier,
    /// The kernel does not say: it has gone.
    Unknown,
}

/// The current state of the interface with this name.
pub(crate) fn state(socket: BorrowedFd<'_>, name: &Name) -> State {
    let mut flags = ifreq(name);
    // SAFETY: the request reads the name and writes flags, within an `ifreq`; then it holds flags.
    let flags = unsafe {
        if ask(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut flags).is_err() {
            return State::Unknown;
        }
        libc::c_int::from(flags.ifr_ifru.ifru_flags)
    };
    match (flags & libc::IFF_UP != 0, flags & libc::IFF_RUNNING != 0) {
        (false, _) => State::Down,
        (true, true) => State::Running,
        (true, false) if has_carrier(socket, ifreq(name)) => State::Running,
        (true, false) => State::NoCarrier,
    }
}

/// Whether an interface has a carrier at this moment.
fn has_carrier(socket: BorrowedFd<'_>, mut named: libc::ifreq) -> bool {
    let mut value = [ETHTOOL_GLINK, 0];
    named.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: this command writes a `struct ethtool_value`, two words, which are there.
    let asked = unsafe { ask(socket, libc::SIOCETHTOOL as libc::Ioctl, &mut named) };
    asked.is_ok() && value[1] != 0
}

/// Bytes of the longest packet without its Ethernet header.
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &Name) -> io::Result<u32> {
    let mut ifreq = ifreq(name);
    // SAFETY: this request writes an `ifreq`; then it holds an MTU.
    unsafe {
        ask(socket, libc::SIOCGIFMTU as libc::Ioctl, &mut ifreq)?;
        Ok(ifreq.ifr_ifru.ifru_mtu.try_into().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet;
    use rustix::fd::AsFd;

    #[test]
    fn layouts_match_the_kernels() {
        assert_eq!((size_of::<Channels>(), size_of::<DriverInfo>()), (36, 196));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let name = packet::name("lo").unwrap();
        assert!(is_virtual(socket.as_fd(), &name) && has_carrier(socket.as_fd(), ifreq(&name)));
        assert_eq!(link(socket.as_fd(), i32::MAX), Some(LinkState::Gone));
        assert!(mtu(socket.as_fd(), &name).unwrap() >= 1500);
        assert_eq!(queues(socket.as_fd(), &name), (1, 1));
        assert!(mtu(socket.as_fd(), &packet::name("no-such-link").unwrap()).is_err());
    }
}
