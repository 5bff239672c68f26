//! The sender: a thread for each connection, with paced messages.

use super::pace::{Pacer, PacingError, now_ns};
use super::socket::Diagnosis;
use super::{HEADER_BYTES, Header, Protocol, join, sized, spawn};
use crate::meter::{CoreShare, Meter};
use anyhow::Context;
use hdrhistogram::Histogram;
use picnic_machine::signals;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest wait for a receiver to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// Repetitions of the final datagram, which may be lost.
const ENDS: usize = 5;
/// Time between two of these, and between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// A sender's settings.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// The receiver.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The core of all threads; none for any.
    pub core: Option<usize>,
    /// Bits of messages per second, over all connections; none for the maximum.
    pub rate_bps: Option<u64>,
    /// Bytes of a message.
    pub bytes: usize,
    /// Parallel connections.
    pub connections: usize,
    /// Bytes of each socket's send buffer; none for the system's choice.
    pub buffer_bytes: Option<usize>,
    /// The duration.
    pub duration: Duration,
}

/// A sender's results.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    /// The protocol.
    pub protocol: Protocol,
    /// Parallel connections.
    pub connections: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Until the last message was sent and, for TCP, has been read by the receiver.
    pub duration_s: f64,
    /// Messages sent.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bits per second.
    pub goodput_bps: f64,
    /// The configured bits per second; null without a rate.
    pub target_bps: Option<u64>,
    /// Delay of messages; null without a rate.
    pub pacing_error: Option<PacingError>,
    /// TCP retransmissions; null if the kernel does not report them.
    pub retransmits: Option<u64>,
    /// Load of each core.
    pub cores: Vec<CoreShare>,
}

/// The results of one connection.
struct Part {
    messages: u64,
    late: Option<Histogram<u64>>,
    retransmits: Option<u64>,
}

impl Send {
    /// A connection of TCP at full speed for ten seconds.
    pub fn to(to: SocketAddr) -> Self {
        Send {
            to,
            protocol: Protocol::Tcp,
            core: None,
            rate_bps: None,
            bytes: 1448,
            connections: 1,
            buffer_bytes: None,
            duration: Duration::from_secs(10),
        }
    }

    /// Sends all messages.
    ///
    /// # Errors
    /// Nobody listens, a connection broke, or a stop was requested.
    pub fn run(self) -> anyhow::Result<Sent> {
        let meter = Meter::start();
        let started = Instant::now();
        let parts: Vec<_> = (0..self.connections)
            .map(|number| spawn(self.core, move || self.connection(number)))
            .collect::<Result<_, _>>()?;
        let parts: Vec<Part> = parts.into_iter().map(join).collect::<Result<_, _>>()?;
        let duration_s = started.elapsed().as_secs_f64();
        let messages: u64 = parts.iter().map(|part| part.messages).sum();
        let bytes = messages * self.bytes as u64;
        let mut late = Histogram::new(3)?;
        for part in parts.iter().filter_map(|part| part.late.as_ref()) {
            late.add(part)?;
        }
        Ok(Sent {
            protocol: self.protocol,
            connections: self.connections,
            message_bytes: self.bytes,
            duration_s,
            messages,
            bytes,
            goodput_bps: bytes as f64 * 8.0 / duration_s,
            target_bps: self.rate_bps,
            pacing_error: PacingError::of(&late),
            retransmits: parts.iter().map(|part| part.retransmits).sum(),
            cores: meter.stop().cores,
        })
    }

    fn connection(self, number: usize) -> anyhow::Result<Part> {
        let mut message = vec![b'p'; self.bytes];
        match self.protocol {
            Protocol::Tcp => {
                let mut stream = connect(self.to)?;
                stream.set_nodelay(true)?;
                if let Some(bytes) = self.buffer_bytes {
                    set_socket_send_buffer_size(&stream, bytes)?;
                    sized("wmem", bytes, socket_send_buffer_size(&stream)?)?;
                }
                let lost = || format!("the connection to {} broke", self.to);
                let (messages, late) = self.each(number, |_| {
                    stream.write_all(&message).with_context(lost).map(|()| true)
                })?;
                let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
                stream.shutdown(Shutdown::Write).with_context(lost)?;
                // The receiver closes when it has read everything.
                stream.read_to_end(&mut Vec::new()).with_context(lost)?;
                let state = Diagnosis::open()
                    .and_then(|diagnosis| diagnosis.state(Protocol::Tcp, local, remote));
                let retransmits = state.and_then(|state| state.retransmits).map(u64::from);
                Ok(Part { messages, late, retransmits })
            }
            Protocol::Udp => {
                let any = if self.to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(self.to)?;
                let header = |number, is_end| Header { connection: 0, is_end, number };
                let connection = number as u32;
                let (messages, late) = self.each(number, |number| {
                    let header = Header { connection, ..header(number, false) };
                    message[..HEADER_BYTES].copy_from_slice(&header.bytes());
                    sent(socket.send(&message), self.to)
                })?;
                let end = Header { connection, ..header(messages, true) };
                for _ in 0..ENDS {
                    sent(socket.send(&end.bytes()), self.to)?;
                    signals::sleep(PAUSE)?;
                }
                Ok(Part { messages, late, retransmits: None })
            }
        }
    }

    /// Sends each message at its time, until the time is up; returns the number sent and the
    /// delays. `send` returns whether its message was sent.
    fn each(
        self,
        connection: usize,
        mut send: impl FnMut(u64) -> anyhow::Result<bool>,
    ) -> anyhow::Result<(u64, Option<Histogram<u64>>)> {
        let stop = signals::stop_flag()?;
        let start_ns = now_ns();
        let end_ns = start_ns + self.duration.as_nanos() as u64;
        let mut pacer = match self.rate_bps {
            Some(rate) => {
                // Connections are staggered, not simultaneous.
                let gap = self.bytes as u64 * 8 * 1_000_000_000 / rate.max(1);
                let first = start_ns + gap * connection as u64;
                Some(Pacer::new(first, self.bytes, rate / self.connections as u64)?)
            }
            None => None,
        };
        let (mut turn, mut number) = (0, 0);
        loop {
            if stop.load(Ordering::Acquire) {
                return Err(signals::Interrupted.into());
            }
            let due = pacer.as_ref().map_or_else(now_ns, |pacer| pacer.due(turn));
            if due >= end_ns {
                return Ok((number, pacer.map(Pacer::into_late)));
            }
            if let Some(pacer) = &mut pacer {
                pacer.wait(turn)?;
            }
            number += u64::from(send(number)?);
            turn += 1;
        }
    }
}

/// Connects as soon as the receiver listens.
fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let started = Instant::now();
    loop {
        match TcpStream::connect(to) {
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused && started.elapsed() < PATIENCE =>
            {
                signals::sleep(PAUSE)?;
            }
            result => return result.with_context(|| format!("cannot connect to {to}")),
        }
    }
}

/// Whether a datagram was sent. An error about a missing receiver of an earlier one is left to the
/// receiver; a full device is waited for by the pacer.
fn sent(result: std::io::Result<usize>, to: SocketAddr) -> anyhow::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| format!("cannot send to {to}")),
    }
}
