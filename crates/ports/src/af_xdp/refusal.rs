//! Error messages for refusals of the kernel: key, value found, fix.

use super::config::{CopyMode, FRAME_BYTES, Mode, XdpConfig};
use crate::sys::xsk::{SocketsError, Step, is_taken};
use picnic_core::error::ConfigError;
use std::io;

/// The error that something the interface's wire needs was refused.
pub(super) fn refuse(interface: &str, what: &str, error: &io::Error) -> ConfigError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return unprivileged(interface);
    }
    ConfigError::new("interface", format!("\"{interface}\": {what}: {error}"))
}

fn unprivileged(interface: &str) -> ConfigError {
    let message =
        format!("\"{interface}\": AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (root)");
    ConfigError::new("interface", message)
}

/// The error that no sockets could be opened.
pub(super) fn refused(interface: &str, trouble: &SocketsError, config: &XdpConfig) -> ConfigError {
    let SocketsError { step, error, pieces, longest, room } = trouble;
    if error.kind() == io::ErrorKind::PermissionDenied {
        return unprivileged(interface);
    }
    let code = error.raw_os_error().unwrap_or(0);
    let interface_says =
        |message: String| ConfigError::new("interface", format!("\"{interface}\": {message}"));
    match (step, code) {
        (Step::Socket, libc::EAFNOSUPPORT) => {
            interface_says("this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)".into())
        }
        (Step::Memory, libc::ENOBUFS) => interface_says(
            "the card's buffers may not be locked into memory: raise the limit (ulimit -l), or \
             give CAP_IPC_LOCK"
                .into(),
        ),
        (Step::Rings, libc::ENOPROTOOPT) => {
            interface_says("this kernel's AF_XDP is too old: 5.4 is needed".into())
        }
        (Step::Bind(queue), libc::EBUSY) => {
            interface_says(format!("queue {queue} has an AF_XDP socket already"))
        }
        (Step::Bind(_), libc::EOPNOTSUPP | libc::EINVAL) if *pieces => {
            let most = room.saturating_sub(FRAME_BYTES);
            interface_says(format!(
                "packets of up to {longest} bytes do not fit into one buffer, and this kernel or \
                 driver accepts no packets in pieces: set its MTU to {most} or less, or raise \
                 buffer_size in [pool], up to a page"
            ))
        }
        (Step::Bind(_), libc::EOPNOTSUPP | libc::EINVAL)
            if config.copy_mode == CopyMode::ZeroCopy =>
        {
            let message = format!("found \"zero-copy\", which \"{interface}\" cannot do: {error}");
            ConfigError::new("copy_mode", message)
        }
        (Step::Attach, _) if is_taken(error) => interface_says(
            "has an XDP program already; \"ip link show\" shows it, \"ip link set dev NAME xdp \
             off\" removes it if no process holds it"
                .into(),
        ),
        (Step::Attach, _) if config.mode == Mode::Native => {
            let message = match code {
                libc::EOPNOTSUPP => "its driver runs no XDP programs".into(),
                libc::ERANGE | libc::EINVAL => {
                    format!("its driver refuses ({error}): too large an MTU?")
                }
                libc::ENOSPC => format!(
                    "its driver refuses ({error}): veth needs as many receive \
                    queues as its peer has transmit queues"
                ),
                _ => error.to_string(),
            };
            ConfigError::new("mode", format!("found \"native\", but \"{interface}\": {message}"))
        }
        (Step::Socket, _) => refuse(interface, "no socket", error),
        (Step::Memory, _) => refuse(interface, "cannot share the card's buffers", error),
        (Step::Rings, _) => refuse(interface, "cannot create its rings", error),
        (Step::Bind(queue), _) => {
            refuse(interface, &format!("queue {queue} is not available"), error)
        }
        (Step::Program, _) => refuse(interface, "the kernel refuses the program", error),
        (Step::Attach, _) => refuse(interface, "cannot attach the program", error),
    }
}
