//! The kernel's state of a socket: TCP's retransmissions, bytes waiting to be read.
//!
//! Queried over netlink, which needs no privilege and has the same data as `TCP_INFO`.
//!
//! Source: sock_diag(7), linux/inet_diag.h, linux/tcp.h (`struct tcp_info`).

use super::Protocol;
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

const NETLINK_SOCK_DIAG: NonZeroU32 = NonZeroU32::new(4).unwrap();
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// `INET_DIAG_INFO`, and the bit that requests it.
const INFO: u16 = 2;
const ASK_INFO: u8 = 1 << (INFO - 1);
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of `nlmsghdr` and of `inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const ANSWER_BYTES: usize = 72;
/// Offsets of `idiag_rqueue` and, in `tcp_info`, of `tcpi_total_retrans`.
const WAITING_AT: usize = 56;
const RETRANSMITS_AT: usize = 100;

/// Queries sockets of this namespace.
pub(super) struct Diagnosis(OwnedFd);

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Bytes received and not read yet.
    pub(super) waiting_bytes: u32,
    /// Segments of TCP retransmitted so far.
    pub(super) retransmits: Option<u32>,
}

impl Diagnosis {
    /// None if the kernel does not support it.
    pub(super) fn open() -> Option<Self> {
        let protocol = net::Protocol::from_raw(NETLINK_SOCK_DIAG);
        let flags = SocketFlags::CLOEXEC;
        let socket =
            net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol));
        socket.ok().map(Diagnosis)
    }

    /// The state of the socket between these addresses; none without a socket, or if the kernel
    /// does not support this protocol.
    pub(super) fn state(
        &self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<State> {
        net::send(&self.0, &question(protocol, local, remote), SendFlags::empty()).ok()?;
        let mut answer = [0; 4096];
        let (length, _) = net::recv(&self.0, &mut answer[..], RecvFlags::empty()).ok()?;
        state(answer.get(..length)?)
    }
}

fn question(protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let number = if protocol == Protocol::Tcp { TCP } else { UDP };
    message.extend([family, number, ASK_INFO, 0]);
    // In any state.
    message.extend([0xff; 4]);
    message.extend(local.port().to_be_bytes());
    message.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes = address.octets(),
        }
        message.extend(bytes);
    }
    // Any interface, no cookie.
    message.extend([0; 4]);
    message.extend([0xff; 8]);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn state(answer: &[u8]) -> Option<State> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let waiting_bytes = word(answer.get(HEADER_BYTES..)?, WAITING_AT)?;
    let mut rest = answer.get(HEADER_BYTES + ANSWER_BYTES..)?;
    let mut retransmits = None;
    while let Some(length) = rest.first_chunk().map(|bytes| usize::from(u16::from_ne_bytes(*bytes)))
    {
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == INFO {
            retransmits = word(value, RETRANSMITS_AT);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(State { waiting_bytes, retransmits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn waiting_bytes_and_retransmits_are_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, from) = listener.accept().unwrap();
        let Some(diagnosis) = Diagnosis::open() else {
            return picnic_testing::skip("sock_diag", "the kernel tells nothing of sockets");
        };
        sender.write_all(&[7; 1000]).unwrap();
        let local = receiver.local_addr().unwrap();
        let at_sender = diagnosis.state(Protocol::Tcp, from, local);
        if at_sender.is_none() {
            return picnic_testing::skip("sock_diag", "the kernel tells nothing of TCP sockets");
        }
        assert_eq!(at_sender.unwrap().retransmits, Some(0));
        picnic_testing::wait_until("1000 bytes wait", || {
            let state = diagnosis.state(Protocol::Tcp, local, from);
            state.is_some_and(|state| state.waiting_bytes == 1000)
        });
    }

    #[test]
    fn truncated_answers_and_errors_give_nothing() {
        assert_eq!(state(&[]), None);
        assert_eq!(state(&[0; 200]), None);
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let state = Diagnosis::open().and_then(|d| d.state(Protocol::Tcp, nowhere, nowhere));
        assert_eq!(state, None);
    }
}
