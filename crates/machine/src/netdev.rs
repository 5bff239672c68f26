//! Facts about an interface's driver from the kernel, over generic netlink: its NAPI instances and
//! its XDP features.
//!
//! Source: Documentation/netlink/specs/netdev.yaml, `napi-get` (Linux 6.7) and `dev-get` (6.3);
//! genetlink(7).

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::netlink::GENERIC;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netdevice, recv, send, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// The controller family.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_BASIC` and `NETDEV_XDP_ACT_REDIRECT`: needed by every program of a card.
const XDP: u64 = 0b11;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_PID: u16 = 4;
/// Bytes of `nlmsghdr`, and with `genlmsghdr`.
const HEADER_BYTES: usize = 16;
const HEADERS_BYTES: usize = 20;
/// The most bytes of one answer: many messages.
const ANSWER_BYTES: usize = 65_536;

/// The threads that poll an interface of a namespace (a name of `ip netns`; default: the current
/// one). `None` if the kernel does not report them.
///
/// # Errors
/// The namespace or the interface does not exist, or the namespace may not be entered.
pub(crate) fn napi_threads(
    interface: &str,
    namespace: Option<&str>,
) -> io::Result<Option<BTreeSet<i32>>> {
    Ok(instances(interface, namespace)?.map(|all| all.into_iter().flatten().collect()))
}

/// Whether an interface has NAPI instances that can have threads; `None` if unknown.
pub(crate) fn has_napi(interface: &str, namespace: Option<&str>) -> Option<bool> {
    instances(interface, namespace).ok().flatten().map(|all| !all.is_empty())
}

/// Whether the driver of an interface runs XDP programs, and redirects for them; `None` if unknown.
pub(crate) fn has_xdp(interface: &str, namespace: Option<&str>) -> Option<bool> {
    let asked = (NETDEV_CMD_DEV_GET, NLM_F_REQUEST, NETDEV_A_DEV_IFINDEX);
    let told = answers(interface, namespace, asked).ok().flatten()?;
    told.iter().flat_map(|body| attributes(body)).find_map(|(kind, value)| {
        let is_features = kind == NETDEV_A_DEV_XDP_FEATURES;
        is_features.then_some(u64::from_ne_bytes(*value.first_chunk()?) & XDP == XDP)
    })
}

/// The thread of each NAPI instance of an interface, if it has one.
fn instances(interface: &str, namespace: Option<&str>) -> io::Result<Option<Vec<Option<i32>>>> {
    let asked = (NETDEV_CMD_NAPI_GET, NLM_F_REQUEST | NLM_F_DUMP, NETDEV_A_NAPI_IFINDEX);
    let told = answers(interface, namespace, asked)?;
    let thread = |body: &Vec<u8>| {
        attributes(body).find_map(|(kind, value)| {
            let is_thread = kind == NETDEV_A_NAPI_PID;
            is_thread.then_some(i32::from_ne_bytes(*value.first_chunk()?))
        })
    };
    Ok(told.map(|told| told.iter().map(thread).collect()))
}

/// A command, its flags, and the attribute that names the interface.
type Asked = (u8, u16, u16);

/// The answers about an interface of a namespace; `None` if the kernel does not know the command.
fn answers(
    interface: &str,
    namespace: Option<&str>,
    of: Asked,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(namespace) = namespace else { return asked(interface, of) };
    let namespace = File::open(Path::new("/run/netns").join(namespace))?;
    // A separate thread, which is used for nothing else afterwards.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            asked(interface, of)
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
    })
}

fn asked(interface: &str, (command, flags, key): Asked) -> io::Result<Option<Vec<Vec<u8>>>> {
    let is_dump = flags & NLM_F_DUMP == NLM_F_DUMP;
    let closed = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, closed, Some(GENERIC))?;
    let index = netdevice::name_to_index(socket.as_fd(), interface)?;
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    send(
        &socket,
        &request(GENL_ID_CTRL, NLM_F_REQUEST, CTRL_CMD_GETFAMILY, &name),
        SendFlags::empty(),
    )?;
    let answer = received(&socket)?;
    let family = messages(&answer).find_map(|(_, body)| {
        let (_, value) = attributes(body).find(|&(kind, _)| kind == CTRL_ATTR_FAMILY_ID)?;
        Some(u16::from_ne_bytes(*value.first_chunk()?))
    });
    let Some(family) = family else { return Ok(None) };
    let of_interface = attribute(key, &index.to_ne_bytes());
    send(&socket, &request(family, flags, command, &of_interface), SendFlags::empty())?;
    let mut told = Vec::new();
    loop {
        let answer = received(&socket)?;
        for (kind, body) in messages(&answer) {
            match kind {
                NLMSG_DONE => return Ok(Some(told)),
                // The kernel's family has no such command, or not for this interface.
                NLMSG_ERROR => return Ok(None),
                _ => told.push(body.to_vec()),
            }
        }
        if !is_dump {
            return Ok(Some(told));
        }
    }
}

/// One or more messages; an error if there is none.
fn received(socket: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0_u8; ANSWER_BYTES];
    let (length, _) = recv(socket, &mut answer, RecvFlags::empty())?;
    answer.truncate(length);
    if messages(&answer).next().is_none() { Err(Errno::PROTO) } else { Ok(answer) }
}

fn request(kind: u16, flags: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(((HEADERS_BYTES + attributes.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(attributes);
    message
}

/// One attribute, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kind and content of the messages of an answer, up to a truncated one.
fn messages(mut answer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
        let body = answer.get(HEADER_BYTES..length)?;
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Kind and value of the attributes of a generic message, up to a truncated one.
fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(HEADERS_BYTES - HEADER_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_and_attributes_round_trip() {
        let two = [attribute(1, &[1, 2, 3]), attribute(4, &7_i32.to_ne_bytes())].concat();
        let bytes = [request(20, 1, 11, &two), request(3, 0, 0, &[])].concat();
        let read: Vec<_> = messages(&bytes).collect();
        assert_eq!(read.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [20, 3]);
        let found: Vec<_> = attributes(read[0].1).collect();
        assert_eq!(found, [(1, &[1, 2, 3][..]), (4, &[7, 0, 0, 0][..])]);
        assert_eq!(attributes(read[1].1).count(), 0);
    }

    #[test]
    fn missing_interfaces_are_errors() {
        let not_found = |result: io::Result<_>| result.map(drop).unwrap_err().raw_os_error();
        let no_device = Some(Errno::NODEV.raw_os_error());
        assert_eq!(not_found(napi_threads("no-such-link", None)), no_device);
        let no_file = Some(Errno::NOENT.raw_os_error());
        assert_eq!(not_found(napi_threads("lo", Some("no-such-namespace"))), no_file);
    }

    proptest! {
        #[test]
        fn any_bytes_terminate(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(messages(&bytes).take(1000).count() < 1000);
            prop_assert!(attributes(&bytes).take(1000).count() < 1000);
        }
    }
}
