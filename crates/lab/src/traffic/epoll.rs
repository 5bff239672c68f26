//! One thread that reads all connections, whichever has data, with epoll.
//!
//! Guarantee: each connection with data gets one read in turn; one that breaks is counted, and the
//! others go on.
//!
//! Source: epoll(7).

use super::receive::{LOOK, Part, Receive, SAMPLE, is_over};
use crate::meter::{CoreShare, Meter};
use anyhow::Context;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create, wait};
use rustix::net::sockopt::socket_recv_buffer_size;
use rustix::time::Timespec;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Events of one wait.
const EVENTS: usize = 64;
/// The socket that listens; connections have their number.
const LISTENER: u64 = u64::MAX;

/// A connection; without a stream once it has ended.
struct Connection {
    stream: Option<TcpStream>,
    part: Part,
    buffer_bytes: usize,
    sampled: Instant,
}

/// Reads until all connections have ended, or the time is up.
pub(super) fn streams(
    receive: Receive,
    listener: &TcpListener,
) -> anyhow::Result<(Vec<Part>, Vec<CoreShare>)> {
    let deadline = receive.limit.map(|limit| Instant::now() + limit);
    listener.set_nonblocking(true)?;
    let epoll = create(CreateFlags::CLOEXEC)?;
    add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let (mut connections, mut meter) = (Vec::<Connection>::new(), None);
    let mut buffer = vec![0; receive.read_bytes];
    let mut events = Vec::with_capacity(EVENTS);
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    let mut ended = 0;
    while ended < receive.connections && !is_over(deadline)? {
        events.clear();
        match wait(&epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for connections"),
        }
        for event in &events {
            let number = event.data.u64();
            if number != LISTENER {
                let connection = connections.get_mut(number as usize);
                ended += usize::from(connection.is_some_and(|of| of.read(&mut buffer)));
                continue;
            }
            let Ok((stream, _)) = listener.accept() else { continue };
            if connections.len() == receive.connections {
                // One too many: closed.
                continue;
            }
            meter.get_or_insert_with(Meter::start);
            stream.set_nonblocking(true)?;
            let number = EventData::new_u64(connections.len() as u64);
            add(&epoll, &stream, number, EventFlags::IN)?;
            let buffer_bytes = socket_recv_buffer_size(&stream)?;
            let (stream, part, sampled) = (Some(stream), Part::new()?, Instant::now());
            connections.push(Connection { stream, part, buffer_bytes, sampled });
        }
    }
    let cores = meter.map(|meter: Meter| meter.stop().cores).unwrap_or_default();
    Ok((connections.into_iter().map(|connection| connection.part).collect(), cores))
}

impl Connection {
    /// Reads once; whether it has ended.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            if let Ok(waiting) = rustix::io::ioctl_fionread(&*stream) {
                self.part.fill(waiting, self.buffer_bytes);
            }
        }
        match stream.read(buffer) {
            Ok(0) => {}
            Ok(bytes) => {
                self.part.add(bytes);
                return false;
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return false;
            }
            Err(_) => self.part.broke = true,
        }
        // Closed, and with that no longer waited for.
        self.stream = None;
        true
    }
}
