//! The receiver: reads until all connections have ended, and counts missing messages.

use super::socket::Diagnosis;
use super::{Header, Protocol, epoll, join, sized, spawn};
use crate::meter::{CoreShare, Meter};
use anyhow::Context;
use hdrhistogram::Histogram;
use picnic_machine::signals;
use rustix::fd::AsFd;
use rustix::net::sockopt::{set_socket_recv_buffer_size, socket_recv_buffer_size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two checks for the end.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Time between two samples of the bytes waiting to be read.
pub(super) const SAMPLE: Duration = Duration::from_millis(1);
/// Bytes of the longest datagram.
const LONGEST: usize = 65_536;

/// A receiver's settings.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// The address to listen at.
    pub at: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The core of all threads; none for any.
    pub core: Option<usize>,
    /// Bytes of a read of TCP.
    pub read_bytes: usize,
    /// Connections until it is done.
    pub connections: usize,
    /// Whether one thread reads all connections of TCP, with epoll, instead of a thread each.
    pub epoll: bool,
    /// Bytes of each socket's receive buffer; none for the system's choice.
    pub buffer_bytes: Option<usize>,
    /// The longest duration.
    pub limit: Option<Duration>,
}

/// Bytes waiting to be read, as a share of the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fill {
    /// The mean over samples, a millisecond apart or more.
    pub mean_fraction: f64,
    /// The 99th percentile.
    pub p99_fraction: f64,
    /// The maximum.
    pub max_fraction: f64,
}

/// A receiver's results.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    /// The protocol.
    pub protocol: Protocol,
    /// Connections that sent something.
    pub connections: usize,
    /// Connections that ended by an error: what they sent before counts.
    pub broken_connections: usize,
    /// From the first byte to the last.
    pub duration_s: f64,
    /// Datagrams, or reads of TCP that returned data.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bits per second.
    pub goodput_bps: f64,
    /// Lost datagrams; null for TCP.
    pub lost: Option<u64>,
    /// Datagrams that arrived after a later one; null for TCP.
    pub reordered: Option<u64>,
    /// Bytes waiting to be read; null if the kernel does not report them.
    pub receive_buffer: Option<Fill>,
    /// Load of each core, from the first byte on.
    pub cores: Vec<CoreShare>,
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listening {
    receive: Receive,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

/// The results of one connection.
pub(super) struct Part {
    first: Instant,
    last: Instant,
    messages: u64,
    bytes: u64,
    fill: Histogram<u64>,
    /// It ended by an error.
    pub(super) broke: bool,
}

impl Part {
    pub(super) fn new() -> anyhow::Result<Self> {
        let now = Instant::now();
        let fill = Histogram::new(3)?;
        Ok(Part { first: now, last: now, messages: 0, bytes: 0, fill, broke: false })
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.last = Instant::now();
        if self.messages == 0 {
            self.first = self.last;
        }
        self.messages += 1;
        self.bytes += bytes as u64;
    }

    /// Records the bytes waiting, in ten-thousandths of the buffer.
    pub(super) fn fill(&mut self, waiting: u64, buffer: usize) {
        self.fill.saturating_record(waiting * 10_000 / buffer.max(1) as u64);
    }
}

/// The datagrams of one connection.
#[derive(Default)]
struct Stream {
    came: u64,
    /// One above the highest number received.
    next: u64,
    reordered: u64,
    /// The number sent, as reported by the sender at its end.
    sent: Option<u64>,
}

impl Stream {
    fn add(&mut self, header: Header) {
        if header.is_end {
            self.sent = Some(header.number);
            return;
        }
        self.came += 1;
        if header.number < self.next {
            self.reordered += 1;
        } else {
            self.next = header.number + 1;
        }
    }

    fn lost(&self) -> u64 {
        self.sent.unwrap_or(self.next).saturating_sub(self.came)
    }
}

impl Receive {
    /// One connection of TCP.
    pub fn at(at: SocketAddr) -> Self {
        let (protocol, core, limit) = (Protocol::Tcp, None, None);
        let (connections, epoll, buffer_bytes) = (1, false, None);
        Receive { at, protocol, core, read_bytes: 65_536, connections, epoll, buffer_bytes, limit }
    }

    /// Listens: from now on senders can connect.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(self) -> anyhow::Result<Listening> {
        let about = || format!("cannot listen at {}", self.at);
        let socket = match self.protocol {
            Protocol::Tcp => Socket::Tcp(TcpListener::bind(self.at).with_context(about)?),
            Protocol::Udp => Socket::Udp(UdpSocket::bind(self.at).with_context(about)?),
        };
        if let Some(bytes) = self.buffer_bytes {
            // Sockets of connections inherit it.
            let of = match &socket {
                Socket::Tcp(socket) => socket.as_fd(),
                Socket::Udp(socket) => socket.as_fd(),
            };
            set_socket_recv_buffer_size(of, bytes)?;
            sized("rmem", bytes, socket_recv_buffer_size(of)?)?;
        }
        Ok(Listening { receive: self, socket })
    }
}

impl Listening {
    /// The local address.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
    }

    /// Reads until all connections have ended, or the time is up.
    ///
    /// # Errors
    /// A stop was requested.
    pub fn run(&self) -> anyhow::Result<Received> {
        match &self.socket {
            Socket::Tcp(listener) if self.receive.epoll => {
                let (receive, listener) = (self.receive, listener.try_clone()?);
                let reading = spawn(receive.core, move || epoll::streams(receive, &listener))?;
                let (parts, cores) = join(reading)?;
                receive.received(&parts, parts.len(), cores)
            }
            Socket::Tcp(listener) => self.receive.streams(listener),
            Socket::Udp(socket) => {
                let (receive, socket) = (self.receive, socket.try_clone()?);
                join(spawn(receive.core, move || receive.datagrams(&socket))?)
            }
        }
    }
}

impl Receive {
    fn streams(self, listener: &TcpListener) -> anyhow::Result<Received> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        listener.set_nonblocking(true)?;
        let (mut parts, mut meter) = (Vec::new(), None);
        while parts.len() < self.connections && !is_over(deadline)? {
            match listener.accept() {
                Ok((stream, _)) => {
                    meter.get_or_insert_with(Meter::start);
                    stream.set_nonblocking(false)?;
                    parts.push(spawn(self.core, move || self.stream(stream, deadline))?);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    signals::sleep(SAMPLE)?;
                }
                Err(error) => return Err(error).context("cannot take a connection"),
            }
        }
        let parts: Vec<Part> = parts.into_iter().map(join).collect::<Result<_, _>>()?;
        let cores = meter.map(|meter| meter.stop().cores).unwrap_or_default();
        self.received(&parts, parts.len(), cores)
    }

    fn stream(self, mut stream: TcpStream, deadline: Option<Instant>) -> anyhow::Result<Part> {
        let (mut part, mut buffer) = (Part::new()?, vec![0; self.read_bytes]);
        let size = socket_recv_buffer_size(&stream)?;
        stream.set_read_timeout(Some(LOOK))?;
        let mut sampled = Instant::now();
        loop {
            if sampled.elapsed() >= SAMPLE {
                sampled = Instant::now();
                // SIOCINQ by another name.
                part.fill(rustix::io::ioctl_fionread(&stream)?, size);
            }
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(part),
                Ok(bytes) => part.add(bytes),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => {
                    part.broke = true;
                    return Ok(part);
                }
            }
            if is_over(deadline)? {
                return Ok(part);
            }
        }
    }

    fn datagrams(self, socket: &UdpSocket) -> anyhow::Result<Received> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        let (mut part, mut buffer) = (Part::new()?, vec![0; LONGEST]);
        let size = socket_recv_buffer_size(socket)?;
        let local = socket.local_addr()?;
        let any = SocketAddr::new(if local.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
        let diagnosis = Diagnosis::open();
        let (mut streams, mut meter) = (BTreeMap::<u32, Stream>::new(), None);
        socket.set_read_timeout(Some(LOOK))?;
        let mut sampled = Instant::now();
        loop {
            if sampled.elapsed() >= 10 * SAMPLE {
                sampled = Instant::now();
                let state = diagnosis.as_ref().and_then(|d| d.state(Protocol::Udp, local, any));
                if let Some(state) = state {
                    part.fill(state.waiting_bytes.into(), size);
                }
            }
            match socket.recv(&mut buffer) {
                Ok(bytes) => {
                    let Some(header) = Header::read(&buffer[..bytes]) else { continue };
                    meter.get_or_insert_with(Meter::start);
                    streams.entry(header.connection).or_default().add(header);
                    if !header.is_end {
                        part.add(bytes);
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
            let ended = streams.values().filter(|stream| stream.sent.is_some()).count();
            if ended >= self.connections || is_over(deadline)? {
                break;
            }
        }
        let cores = meter.map(|meter| meter.stop().cores).unwrap_or_default();
        let mut received = self.received(&[part], streams.len(), cores)?;
        received.lost = Some(streams.values().map(Stream::lost).sum());
        received.reordered = Some(streams.values().map(|stream| stream.reordered).sum());
        Ok(received)
    }

    fn received(
        self,
        parts: &[Part],
        connections: usize,
        cores: Vec<CoreShare>,
    ) -> anyhow::Result<Received> {
        let mut fill = Histogram::<u64>::new(3)?;
        for part in parts {
            fill.add(&part.fill)?;
        }
        let busy = || parts.iter().filter(|part| part.messages != 0);
        let first = busy().map(|part| part.first).min();
        let last = busy().map(|part| part.last).max();
        let duration_s = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let share = |parts: u64| parts as f64 / 10_000.0;
        Ok(Received {
            protocol: self.protocol,
            connections,
            broken_connections: parts.iter().filter(|part| part.broke).count(),
            duration_s,
            messages: parts.iter().map(|part| part.messages).sum(),
            bytes,
            goodput_bps: if duration_s > 0.0 { bytes as f64 * 8.0 / duration_s } else { 0.0 },
            lost: None,
            reordered: None,
            receive_buffer: (!fill.is_empty()).then(|| Fill {
                mean_fraction: fill.mean() / 10_000.0,
                p99_fraction: share(fill.value_at_quantile(0.99)),
                max_fraction: share(fill.max()),
            }),
            cores,
        })
    }
}

/// Whether the time is up.
pub(super) fn is_over(deadline: Option<Instant>) -> anyhow::Result<bool> {
    if signals::stop_flag()?.load(Ordering::Acquire) {
        return Err(signals::Interrupted.into());
    }
    Ok(deadline.is_some_and(|deadline| Instant::now() >= deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_late_datagrams_are_counted() {
        let mut stream = Stream::default();
        let number = |number| Header { connection: 1, is_end: false, number };
        [0, 1, 4, 3].map(number).into_iter().for_each(|header| stream.add(header));
        assert_eq!((stream.lost(), stream.reordered), (1, 1));
        stream.add(Header { is_end: true, ..number(10) });
        assert_eq!(stream.lost(), 6);
    }
}
