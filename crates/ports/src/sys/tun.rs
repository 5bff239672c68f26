//! TUN/TAP: the ioctls that make a TAP device and attach queues to it.
//!
//! Guarantees: a descriptor made here is one queue of a TAP device, non-blocking and closed
//! on exec; every packet that is read or written has a virtio-net header of
//! [`HEADER_BYTES`](crate::virtio::HEADER_BYTES) in native order in front. A device that is
//! not persistent disappears with its last descriptor.
//!
//! Source: linux/Documentation/networking/tuntap.rst, include/uapi/linux/if_tun.h.

#![allow(unsafe_code)]

use crate::virtio::HEADER_BYTES;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device file for TAP devices.
pub(crate) const DEVICE: &str = "/dev/net/tun";

/// Bytes of an interface's name, including the final zero.
const NAME_BYTES: usize = libc::IFNAMSIZ;

/// A queue of no device yet. It belongs to the calling thread's network namespace for good.
///
/// # Errors
/// The system's error: TUN is missing or not permitted.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let queue = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(DEVICE)?;
    Ok(queue.into())
}

/// Makes `queue` one of the TAP device `name` ("%d" in it becomes a free number), which is made
/// if it does not exist; with `exclusive` it must not. A queue whose device was deleted can be
/// attached again. Returns the device's name.
///
/// # Errors
/// The system's error; `EBUSY` if the device exists but must not, `EINVAL` if its kind differs.
pub(crate) fn attach(queue: BorrowedFd<'_>, name: &str, exclusive: bool) -> io::Result<String> {
    match attach_as(queue, name, exclusive, libc::IFF_MULTI_QUEUE) {
        // One that was made for a single queue wants to be asked so.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !exclusive => {
            attach_as(queue, name, false, 0)
        }
        result => result,
    }
}

fn attach_as(
    queue: BorrowedFd<'_>,
    name: &str,
    exclusive: bool,
    kind: libc::c_int,
) -> io::Result<String> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | kind;
    if exclusive {
        flags |= libc::IFF_TUN_EXCL;
    }
    let mut request = [0_u8; size_of::<libc::ifreq>()];
    let length = name.len().min(NAME_BYTES - 1);
    request[..length].copy_from_slice(&name.as_bytes()[..length]);
    request[NAME_BYTES..NAME_BYTES + 2].copy_from_slice(&(flags as u16).to_ne_bytes());
    // SAFETY: the descriptor is open, and the request points to as many bytes as the `ifreq`
    // that the kernel reads and writes here; any bytes are a valid one, and none is a pointer.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) })?;
    let size = HEADER_BYTES as libc::c_int;
    // SAFETY: this request reads one `int`, which lives longer than the call.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let given = &request[..NAME_BYTES];
    let end = given.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
    Ok(String::from_utf8_lossy(&given[..end]).into_owned())
}

/// Says that the reader of the device's queues takes partial checksums, and super-frames of TCP
/// and UDP or not.
pub(crate) fn set_offloads(queue: BorrowedFd<'_>, super_frames: bool) -> io::Result<()> {
    let set = |features: libc::c_uint| {
        let features = libc::c_ulong::from(features);
        // SAFETY: this request takes its argument by value.
        check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, features) })
    };
    if !super_frames {
        return set(libc::TUN_F_CSUM);
    }
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // Kernels before 6.2 do not know the UDP ones.
    set(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| set(tcp))
}

/// Has the device stay when its last descriptor is closed, or not.
pub(crate) fn set_persistent(queue: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    let argument = libc::c_ulong::from(persistent);
    // SAFETY: this request takes its argument by value.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST, argument) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
