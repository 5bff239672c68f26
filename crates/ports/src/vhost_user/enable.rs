//! The message SET_VRING_ENABLE, before features are negotiated.
//!
//! QEMU enables the rings of a multi-queue NIC before it sends the features, and crate `vhost` ends
//! the connection at that. So this message is handled here, and all others there.
//!
//! Source: QEMU, docs/interop/vhost-user.rst; hw/net/vhost_net.c, `vhost_net_start`.

use super::backend::Backend;
use rustix::net::{RecvFlags, recv};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};

const SET_VRING_ENABLE: u32 = 18;
/// Bytes of a message's header: request, flags, bytes of the body.
const HEADER: usize = 12;
/// Bytes of this message's body: ring, and whether to enable it.
const BODY: usize = 8;
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;

fn word(bytes: &[u8], index: usize) -> u32 {
    let word = bytes.get(4 * index..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

/// Handles the next message, if it is this one.
///
/// # Errors
/// The message is wrong, or the connection is over.
pub(super) fn handle(mut stream: &UnixStream, backend: &Mutex<Backend>) -> Result<bool> {
    let mut message = [0; HEADER + BODY];
    let (header, _) = message.split_at_mut(HEADER);
    let seen = recv(stream, &mut *header, RecvFlags::PEEK);
    let (_, seen) = seen.map_err(|error| Error::SocketBroken(error.into()))?;
    if seen != HEADER || word(header, 0) != SET_VRING_ENABLE {
        return Ok(false);
    }
    let (flags, size) = (word(header, 1), word(header, 2));
    if size as usize != BODY || flags & (VERSION | REPLY) != VERSION {
        return Err(Error::InvalidMessage);
    }
    stream.read_exact(&mut message).map_err(Error::SocketBroken)?;
    let (ring, is_enabled) = (word(&message, 3), word(&message, 4));
    let mut backend = backend.lock().unwrap_or_else(PoisonError::into_inner);
    let result = match is_enabled {
        0 | 1 => backend.set_vring_enable(ring, is_enabled == 1),
        _ => Err(Error::InvalidParam),
    };
    if backend.acknowledges() && flags & NEEDS_REPLY != 0 {
        let words = [SET_VRING_ENABLE, VERSION | REPLY, BODY as u32, result.is_err().into(), 0];
        let reply = words.map(u32::to_le_bytes);
        stream.write_all(reply.as_flattened()).map_err(Error::SocketBroken)?;
    }
    result.map(|()| true)
}
