//! Messages that crate `vhost` does not know, or not at any time.
//!
//! QEMU enables the rings of a multi-queue NIC before it sends the features, and the crate then ends
//! the connection; so it does at the messages of the protocol features MTU, STATUS and RARP, and at
//! SET_LOG_FD. These are handled here, and all others there.
//!
//! Source: QEMU, docs/interop/vhost-user.rst; hw/net/vhost_net.c, `vhost_net_start`.

use super::backend::Backend;
use rustix::net::{RecvFlags, recv};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures};

const SET_LOG_FD: u32 = 7;
const SET_VRING_ENABLE: u32 = 18;
const SEND_RARP: u32 = 19;
const NET_SET_MTU: u32 = 20;
const SET_STATUS: u32 = 39;
const GET_STATUS: u32 = 40;

/// Bytes of a message's header: request, flags, bytes of the body.
const HEADER: usize = 12;
/// Bytes of the longest body here.
const BODY: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;

fn word(bytes: &[u8], index: usize) -> u32 {
    let word = bytes.get(4 * index..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

/// The name of a message, for errors.
pub(super) fn name(request: u32) -> String {
    let known = FrontendReq::try_from(request);
    known.map_or("an unknown message".into(), |known| format!("{known:?}"))
}

/// Handles the next message, if it is one of these; `request` is its number.
///
/// # Errors
/// The message is wrong, or the connection is over.
pub(super) fn handle(
    mut stream: &UnixStream,
    backend: &Mutex<Backend>,
    request: &mut u32,
) -> Result<bool> {
    let mut message = [0; HEADER + BODY];
    let (header, _) = message.split_at_mut(HEADER);
    let seen = recv(stream, &mut *header, RecvFlags::PEEK);
    let (_, seen) = seen.map_err(|error| Error::SocketBroken(error.into()))?;
    *request = word(header, 0);
    let request = *request;
    let body = match request {
        _ if seen != HEADER => return Ok(false),
        SET_LOG_FD | GET_STATUS => 0,
        SET_VRING_ENABLE | SEND_RARP | NET_SET_MTU | SET_STATUS => BODY,
        _ => return Ok(false),
    };
    let (flags, size) = (word(header, 1), word(header, 2));
    if size as usize != body || flags & (VERSION | REPLY) != VERSION {
        return Err(Error::InvalidMessage);
    }
    // A descriptor that comes along is closed by the kernel: of SET_LOG_FD, too, since a signal for
    // each burst would cost a system call.
    stream.read_exact(&mut message[..HEADER + body]).map_err(Error::SocketBroken)?;
    let (ring, is_enabled) = (word(&message, 3), word(&message, 4));
    let value = u64::from(is_enabled) << 32 | u64::from(ring);
    let mut backend = backend.lock().unwrap_or_else(PoisonError::into_inner);
    let needed = match request {
        SEND_RARP => VhostUserProtocolFeatures::RARP,
        NET_SET_MTU => VhostUserProtocolFeatures::MTU,
        SET_STATUS | GET_STATUS => VhostUserProtocolFeatures::STATUS,
        _ => VhostUserProtocolFeatures::empty(),
    };
    if !backend.accepts(needed) {
        return Err(Error::InactiveOperation(needed));
    }
    let result = match request {
        SET_VRING_ENABLE if is_enabled > 1 => Err(Error::InvalidParam),
        SET_VRING_ENABLE => backend.set_vring_enable(ring, is_enabled == 1),
        SEND_RARP => backend.send_rarp(value),
        NET_SET_MTU => backend.set_mtu(value),
        SET_STATUS => backend.set_status(value),
        _ => Ok(()),
    };
    let answer = match request {
        GET_STATUS => Some(backend.status()),
        _ if flags & NEEDS_REPLY == 0 => None,
        _ => backend.accepts(VhostUserProtocolFeatures::REPLY_ACK).then(|| result.is_err().into()),
    };
    if let Some(answer) = answer {
        let words = [request, VERSION | REPLY, BODY as u32, answer as u32, (answer >> 32) as u32];
        let reply = words.map(u32::to_le_bytes);
        stream.write_all(reply.as_flattened()).map_err(Error::SocketBroken)?;
    }
    result.map(|()| true)
}
