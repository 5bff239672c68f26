//! Interfaces and their addresses, set over rtnetlink.
//!
//! Guarantees: each change is acknowledged by the kernel before the call returns.
//!
//! Source: RFC 3549; linux/Documentation/userspace-api/netlink/intro.rst, rtnetlink(7).

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, recv, send, socket_with};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;

const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_CARRIER: u16 = 33;
/// Longest super-frames that are sent and received, over IPv6 and over IPv4.
const SUPER_FRAME_LIMITS: [u16; 4] =
    [IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE];
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// No duplicate address detection: the address can be used at once.
const IFA_F_NODAD: u8 = 2;
const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Bytes of `nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Bytes of `ifinfomsg`.
const LINK_BYTES: usize = 16;
/// Bytes of the longest answer.
const ANSWER_BYTES: usize = 16384;
/// How often the kernel is asked whether an address is in use, and how long after the last time:
/// two seconds at least.
const TRIES: usize = 10_000;
const PAUSE: Duration = Duration::from_micros(200);

/// Whether an interface is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Running,
    /// Down, or without a carrier.
    Down,
    /// Deleted, or moved elsewhere.
    Gone,
}

/// One interface of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct InterfaceHandle {
    /// Of the namespace that it was made in, wherever it is used.
    socket: OwnedFd,
    index: u32,
}

impl InterfaceHandle {
    /// The interface called `name`.
    pub(crate) fn find(name: &str) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        // Without a protocol a netlink socket is one of NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let index = netdevice::name_to_index(socket.as_fd(), name)?;
        Ok(InterfaceHandle { socket, index })
    }

    /// Looks for the interface called `name` again, where this one was found.
    pub(crate) fn find_again(&mut self, name: &str) -> Result<(), Errno> {
        self.index = netdevice::name_to_index(self.socket.as_fd(), name)?;
        Ok(())
    }

    /// Sets how many packets may wait in the interface's queue, or in each of them.
    pub(crate) fn set_queue_length(&self, packets: u32) -> Result<(), Errno> {
        let mut message = self.link_message(0, 0);
        attribute(&mut message, IFLA_TXQLEN, &packets.to_ne_bytes());
        self.ask(message)
    }

    /// Sets the MAC address.
    pub(crate) fn set_mac(&self, mac: [u8; 6]) -> Result<(), Errno> {
        let mut message = self.link_message(0, 0);
        attribute(&mut message, IFLA_ADDRESS, &mac);
        self.ask(message)
    }

    /// Sets the MTU, in bytes.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), Errno> {
        let mut message = self.link_message(0, 0);
        attribute(&mut message, IFLA_MTU, &mtu.to_ne_bytes());
        self.ask(message)
    }

    /// Takes the interface up.
    pub(crate) fn set_up(&self) -> Result<(), Errno> {
        self.ask(self.link_message(IFF_UP, IFF_UP))
    }

    /// Whether the interface has a carrier, up or not; of a TAP device, whether a queue is open.
    pub(crate) fn has_carrier(&self) -> Result<bool, Errno> {
        Ok(find(&self.attributes()?, IFLA_CARRIER).is_some_and(is_on))
    }

    /// Bytes of the longest super-frame that the kernel may send, or build from received packets,
    /// on the interface, without its Ethernet header; 0 if unknown.
    pub(crate) fn longest_super_frame(&self) -> Result<u32, Errno> {
        let attributes = self.attributes()?;
        let limits = SUPER_FRAME_LIMITS.iter().filter_map(|&kind| {
            find(&attributes, kind)?.first_chunk().copied().map(u32::from_ne_bytes)
        });
        Ok(limits.max().unwrap_or(0))
    }

    /// Whether packets of a TAP device have virtio-net headers for a queue attached now with a
    /// request for them. If another queue is open, its request decides.
    pub(crate) fn gives_headers(&self) -> Result<bool, Errno> {
        let attributes = self.attributes()?;
        let of_tun = find(&attributes, IFLA_LINKINFO).and_then(|info| find(info, IFLA_INFO_DATA));
        Ok(!find(&attributes, IFLA_CARRIER).is_some_and(is_on)
            || of_tun.and_then(|tun| find(tun, IFLA_TUN_VNET_HDR)).is_none_or(is_on))
    }

    /// The attributes of the interface.
    fn attributes(&self) -> Result<Vec<u8>, Errno> {
        let mut message = question(RTM_GETLINK);
        message.extend([0; 4]);
        message.extend(self.index.to_ne_bytes());
        message.extend([0; 8]);
        let mut answer = self.exchange(message)?;
        match answer.get(4..6) == Some(&RTM_NEWLINK.to_ne_bytes()) {
            true => Ok(answer.split_off((HEADER_BYTES + LINK_BYTES).min(answer.len()))),
            false => acknowledged(&answer).and(Err(Errno::PROTO)),
        }
    }

    /// Adds an address with its prefix length; an existing address stays.
    pub(crate) fn add_address(&self, address: IpAddr, prefix: u8) -> Result<(), Errno> {
        let (family, flags) = match address {
            IpAddr::V4(_) => (AF_INET, 0),
            IpAddr::V6(_) => (AF_INET6, IFA_F_NODAD),
        };
        let mut message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE);
        // ifaddrmsg: family, prefix length, flags, scope, index.
        message.extend([family, prefix, flags, 0]);
        message.extend(self.index.to_ne_bytes());
        for kind in [IFA_LOCAL, IFA_ADDRESS] {
            match address {
                IpAddr::V4(address) => attribute(&mut message, kind, &address.octets()),
                IpAddr::V6(address) => attribute(&mut message, kind, &address.octets()),
            }
        }
        self.ask(message)
    }

    /// Waits until packets for an address, added to an interface that is up, are for this host: the
    /// kernel activates IPv6 addresses later, mostly within 10 ms. Whether it
    /// has.
    pub(crate) fn wait_until_in_use(&self, address: Ipv6Addr) -> Result<bool, Errno> {
        for _ in 0..TRIES {
            let mut message = question(RTM_GETROUTE);
            // rtmsg: family, length of the destination's prefix, eight fields of no matter here.
            message.extend([AF_INET6, 128]);
            message.extend([0; 10]);
            attribute(&mut message, RTA_DST, &address.octets());
            let answer = self.exchange(message)?;
            let is_route = answer.get(4..6) == Some(&RTM_NEWROUTE.to_ne_bytes());
            // Until then another route leads there, or none.
            if is_route && answer.get(HEADER_BYTES + 7) == Some(&RTN_LOCAL) {
                return Ok(true);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(false)
    }

    /// A change of the interface itself: ifinfomsg.
    fn link_message(&self, flags: u32, change: u32) -> Vec<u8> {
        let mut message = message(RTM_NEWLINK, 0);
        message.extend([0; 4]);
        for word in [self.index, flags, change] {
            message.extend(word.to_ne_bytes());
        }
        message
    }

    /// Sends a message and waits for its acknowledgement.
    fn ask(&self, message: Vec<u8>) -> Result<(), Errno> {
        acknowledged(&self.exchange(message)?)
    }

    fn exchange(&self, mut message: Vec<u8>) -> Result<Vec<u8>, Errno> {
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        send(&self.socket, &message, SendFlags::empty())?;
        let mut answer = vec![0_u8; ANSWER_BYTES];
        let (length, _) = recv(&self.socket, &mut answer, RecvFlags::empty())?;
        answer.truncate(length);
        Ok(answer)
    }
}

fn message(kind: u16, flags: u16) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message
}

/// A message whose answer is the requested object: a later acknowledgement would remain in the
/// socket.
fn question(kind: u16) -> Vec<u8> {
    let mut message = message(kind, 0);
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message
}

/// Appends an attribute, padded to four bytes.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The value of an attribute among others, each padded to four bytes.
fn find(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// The value of an attribute of one byte.
fn is_on(value: &[u8]) -> bool {
    value.first() == Some(&1)
}

/// The result of an answer: nlmsgerr, whose error is zero in an acknowledgement.
fn acknowledged(answer: &[u8]) -> Result<(), Errno> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.first_chunk());
    let error = answer.get(HEADER_BYTES..).and_then(|bytes| bytes.first_chunk());
    match (kind.copied().map(u16::from_ne_bytes), error.copied().map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error)) => Err(Errno::from_raw_os_error(-error)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_answers_read() {
        let mut bytes = message(RTM_NEWLINK, 0);
        attribute(&mut bytes, IFLA_ADDRESS, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(bytes.len(), HEADER_BYTES + 12);
        assert_eq!(bytes[HEADER_BYTES], 10);
        let mut answer = message(NLMSG_ERROR, 0);
        assert_eq!(acknowledged(&answer), Err(Errno::PROTO));
        answer.extend((-1_i32).to_ne_bytes());
        assert_eq!(acknowledged(&answer), Err(Errno::PERM));
        answer[HEADER_BYTES..].fill(0);
        assert_eq!(acknowledged(&answer), Ok(()));
        assert_eq!(acknowledged(&[]), Err(Errno::PROTO));
        let mut link = Vec::new();
        attribute(&mut link, IFLA_ADDRESS, &[1, 2, 3]);
        attribute(&mut link, IFLA_CARRIER, &[1]);
        assert_eq!(find(&link, IFLA_CARRIER), Some(&[1][..]));
        assert_eq!(find(&link, IFLA_MTU), None);
        assert_eq!(find(&link[..link.len() - 4], IFLA_CARRIER), None);
        assert_eq!(find(&[0; 40], IFLA_CARRIER), None);
    }

    #[test]
    fn missing_interfaces_are_an_error() {
        assert_eq!(InterfaceHandle::find("no-such-link").map(drop), Err(Errno::NODEV));
        let lo = InterfaceHandle::find("lo").unwrap();
        assert_eq!((lo.has_carrier(), lo.gives_headers()), (Ok(true), Ok(true)));
        assert!(lo.longest_super_frame().is_ok_and(|bytes| bytes >= 65_536));
        // A surplus or missing answer would be taken for the answer to the next question.
        let host: std::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(lo.wait_until_in_use(host), Ok(false));
        assert_eq!(lo.has_carrier(), Ok(true));
    }
}
