//! A client of web servers that uses a new connection for each request: back to back, or at a rate
//! independent of the answers.
//!
//! At a rate, each request has its own time, however late the previous answer was, so that the load
//! keeps growing beyond the server's capacity. Requests without a free connection are counted, and
//! so are those that begin late or never: then the client is at its limit, and the result says
//! nothing about the server.
//!
//! Source: Banga and Druschel, "Measuring the Capacity of a Web Server", 1997; RFC 1945 (HTTP/1.0,
//! whose servers end an answer by closing).

use super::kind::Workload;
use anyhow::Context;
use hdrhistogram::Histogram;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Bytes of a read.
const READ_BYTES: usize = 64 << 10;
const EVENTS: usize = 512;
/// The longest sleep between two checks of due requests.
const SLEEP: Duration = Duration::from_millis(1);
/// Requests begun at a time, so that answers are read in between.
const BEGUN: u64 = 256;
/// Delay after which a request counts as late. The server does not cause it.
const LATE: Duration = Duration::from_millis(50);
/// The share of late requests above which a client is at its limit.
const LATE_SHARE: f64 = 0.01;

/// A client's plan.
#[derive(Clone, Debug)]
pub(super) struct ClientPlan {
    pub(super) workload: Workload,
    pub(super) server: SocketAddrV4,
    /// The first of the clients' addresses.
    pub(super) first: Ipv4Addr,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    /// This client has one of this many parts of all connections.
    pub(super) parts: u32,
}

/// A client's results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientResult {
    /// Requests that were to be made.
    pub offered: u64,
    /// Late requests for which the client had no free connection.
    pub client_full: u64,
    /// Of those, requests that the client began more than 50 ms late, or never.
    pub client_late: u64,
    /// Requests answered correctly.
    pub answered: u64,
    /// Bytes of complete answers; with wrk, of answers with their headers.
    pub bytes: u64,
    /// Connections refused, or broken before the answer was complete.
    pub broken: u64,
    /// The first such error.
    pub first_broken: Option<String>,
    /// Answers other than 200.
    pub refused: u64,
    /// Requests without an answer in time.
    pub timeouts: u64,
    /// Requests in progress at the end.
    pub unfinished: u64,
    /// Its duration in seconds.
    pub seconds: f64,
    /// From the connection to the end of the answer, in nanoseconds: the median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Share of time that the client's busiest thread ran; none if it is not reported.
    pub busy_fraction: Option<f64>,
}

impl ClientResult {
    /// Requests answered per second.
    pub fn per_second(&self) -> f64 {
        self.answered as f64 / self.seconds.max(1e-6)
    }

    /// Whether the client could not send all requests: it had no connection left, or no time.
    pub fn is_at_limit(&self) -> bool {
        self.client_full > 0 || self.client_late as f64 > self.offered as f64 * LATE_SHARE
    }

    /// Requests that failed.
    pub fn errors(&self) -> u64 {
        self.broken + self.refused + self.timeouts
    }

    /// Adds the results of another client; the worse latencies are kept.
    pub(super) fn add(&mut self, other: &ClientResult) {
        self.offered += other.offered;
        self.client_full += other.client_full;
        self.client_late += other.client_late;
        self.answered += other.answered;
        self.bytes += other.bytes;
        self.broken += other.broken;
        self.first_broken = self.first_broken.take().or_else(|| other.first_broken.clone());
        self.refused += other.refused;
        self.timeouts += other.timeouts;
        self.unfinished += other.unfinished;
        self.seconds = self.seconds.max(other.seconds);
        self.p50_ns = self.p50_ns.max(other.p50_ns);
        self.p99_ns = self.p99_ns.max(other.p99_ns);
        let busiest = self.busy_fraction.into_iter().chain(other.busy_fraction);
        self.busy_fraction = busiest.reduce(f64::max);
    }
}

/// A connection with its request.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    file: usize,
    since: Instant,
    is_sent: bool,
    got: u64,
    is_good: bool,
}

struct Client<'a> {
    asked: &'a ClientPlan,
    epoll: OwnedFd,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Open connections by age; some have ended since.
    by_age: VecDeque<(usize, Instant)>,
    requests: Vec<Vec<u8>>,
    shares: Vec<f64>,
    random: ChaCha8Rng,
    latencies: Histogram<u64>,
    found: ClientResult,
    buffer: Vec<u8>,
}

/// Sends requests until the time is up.
///
/// # Errors
/// The system's error, other than for a single connection.
pub(super) fn ask(asked: &ClientPlan) -> anyhow::Result<ClientResult> {
    let most = (asked.workload.connections / asked.parts).max(1) as usize;
    let request = |place| {
        format!("GET {} HTTP/1.0\r\nHost: server\r\n\r\n", asked.workload.path(place)).into_bytes()
    };
    let mut client = Client {
        asked,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot wait for answers")?,
        connections: (0..most).map(|_| None).collect(),
        free: (0..most).rev().collect(),
        by_age: VecDeque::new(),
        requests: (0..asked.workload.file.len()).map(request).collect(),
        shares: asked.workload.shares(),
        random: ChaCha8Rng::seed_from_u64(asked.seed),
        latencies: Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?,
        found: ClientResult::default(),
        buffer: vec![0; READ_BYTES],
    };
    let start = thread_time();
    client.run()?;
    let ran = thread_time() - start;
    let mut found = client.found;
    found.busy_fraction = Some(ran.as_secs_f64() / found.seconds.max(1e-6));
    found.p50_ns = client.latencies.value_at_quantile(0.5);
    found.p99_ns = client.latencies.value_at_quantile(0.99);
    Ok(found)
}

/// Run time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Client<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        let (start, rate) = (Instant::now(), self.asked.workload.requests_per_second);
        let rate = rate / f64::from(self.asked.parts);
        let think = Duration::from_millis(self.asked.workload.think_ms.into());
        let length = Duration::from_secs_f64(self.asked.seconds);
        // When answered connections send their next request; at first, all at once.
        let mut again: VecDeque<Instant> = self.connections.iter().map(|_| start).collect();
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            let passed = now - start;
            if passed >= length {
                let due = (length.saturating_sub(LATE).as_secs_f64() * rate) as u64;
                let never = due.saturating_sub(self.found.offered);
                self.found.offered += never;
                self.found.client_late += never;
                self.found.unfinished = self.connections.iter().flatten().count() as u64;
                self.found.seconds = passed.as_secs_f64();
                return Ok(());
            }
            let due = (passed.as_secs_f64() * rate) as u64;
            if rate > 0.0 {
                for number in self.found.offered..due.min(self.found.offered + BEGUN) {
                    let late = passed.as_secs_f64() - (number + 1) as f64 / rate;
                    self.found.client_late += u64::from(late > LATE.as_secs_f64());
                    self.begin(now)?;
                }
            } else {
                while again.front().is_some_and(|&due| due <= now) {
                    again.pop_front();
                    if !self.begin(now)? {
                        again.push_back(now + think.max(SLEEP));
                    }
                }
            }
            events.clear();
            let sleep = if rate > 0.0 && self.found.offered < due { Duration::ZERO } else { SLEEP };
            let timeout = Timespec { tv_sec: 0, tv_nsec: sleep.as_nanos() as _ };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for answers"),
            }
            let before = self.free.len();
            for event in &events {
                self.serve(event.data.u64() as usize);
            }
            self.give_up();
            let ended = self.free.len() - before;
            let due = Instant::now() + think;
            again.extend((0..ended).map(|_| due));
        }
    }

    /// Begins a request over a new connection; false if none is free, or if it is refused at once.
    fn begin(&mut self, now: Instant) -> anyhow::Result<bool> {
        self.found.offered += 1;
        let Some(place) = self.free.pop() else {
            self.found.client_full += 1;
            return Ok(false);
        };
        let drawn: f64 = self.random.random();
        let file = self.shares.partition_point(|&end| end < drawn).min(self.shares.len() - 1);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .context("cannot make a socket: try fewer connections")?;
        if self.asked.workload.addresses > 1 {
            let number = self.random.random_range(0..self.asked.workload.addresses);
            let address = Ipv4Addr::from(u32::from(self.asked.first) + number);
            bind(&socket, &SocketAddrV4::new(address, 0))
                .with_context(|| format!("cannot send requests from {address}"))?;
        }
        match connect(&socket, &self.asked.server) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => {
                self.broke(&error);
                self.free.push(place);
                return Ok(false);
            }
        }
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(place as u64);
        epoll::add(&self.epoll, &socket, data, wanted).context("cannot wait for answers")?;
        self.by_age.push_back((place, now));
        self.connections[place] =
            Some(Connection { socket, file, since: now, is_sent: false, got: 0, is_good: false });
        Ok(true)
    }

    /// Continues a connection.
    fn serve(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        if !connection.is_sent {
            match write(&connection.socket, &self.requests[connection.file]) {
                Ok(_) => connection.is_sent = true,
                Err(Errno::AGAIN | Errno::NOTCONN) => return,
                Err(error) => {
                    self.broke(&error);
                    return self.end(place);
                }
            }
        }
        loop {
            match read(&connection.socket, &mut self.buffer[..]) {
                Ok(0) => break,
                Ok(bytes) => {
                    if connection.got == 0 {
                        let is_good = |version: &[u8]| self.buffer[..bytes].starts_with(version);
                        connection.is_good = is_good(b"HTTP/1.1 200") || is_good(b"HTTP/1.0 200");
                    }
                    connection.got += bytes as u64;
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.broke(&error);
                    return self.end(place);
                }
            }
        }
        let least = self.asked.workload.file[connection.file].bytes;
        if connection.got == 0 {
            self.broke(&"closed without an answer");
        } else if connection.is_good && connection.got < least {
            let found = connection.got;
            self.broke(&format!("closed after {found} bytes of an answer of {least} and more"));
        } else if !connection.is_good {
            self.found.refused += 1;
        } else {
            self.found.answered += 1;
            self.found.bytes += least;
            self.latencies.saturating_record(connection.since.elapsed().as_nanos() as u64);
        }
        self.end(place);
    }

    fn broke(&mut self, how: &dyn Display) {
        self.found.broken += 1;
        self.found.first_broken.get_or_insert_with(|| how.to_string());
    }

    fn end(&mut self, place: usize) {
        self.connections[place] = None;
        self.free.push(place);
    }

    /// Gives up requests that take too long.
    fn give_up(&mut self) {
        let patience = Duration::from_millis(self.asked.workload.patience_ms.into());
        while let Some(&(place, since)) = self.by_age.front() {
            let is_open = self.connections[place].as_ref().is_some_and(|open| open.since == since);
            if is_open && since.elapsed() < patience {
                return;
            }
            self.by_age.pop_front();
            if is_open {
                self.found.timeouts += 1;
                self.end(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_testing::PATIENCE;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that answers every other request with half of the bytes.
    fn server(bytes: usize) -> SocketAddrV4 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!() };
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut request = [0; 200];
                let length = stream.read(&mut request).unwrap();
                assert!(request[..length].starts_with(b"GET /0.bin HTTP/1.0\r\n"));
                let body = vec![0; if number % 2 == 0 { bytes } else { bytes / 2 }];
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                let _ = stream.write_all(&body);
            }
        });
        address
    }

    /// The result of a second in which the client has had its core for long enough.
    fn ask_until(
        plan: impl Fn() -> ClientPlan,
        is_enough: impl Fn(&ClientResult) -> bool,
    ) -> ClientResult {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = ask(&plan()).unwrap();
            if is_enough(&found) {
                return found;
            }
            assert!(Instant::now() < end, "never enough: {found:?}");
        }
    }

    fn asked(server: SocketAddrV4, keys: &str) -> ClientPlan {
        let text = format!(
            "workload = \"test\"\naddresses = 16\n{keys}\n[[file]]\nbytes = 50000\nweight = 1\n"
        );
        let first = Ipv4Addr::new(127, 0, 1, 1);
        let workload = Workload::parse(&text).unwrap();
        ClientPlan { workload, server, first, seconds: 1.0, seed: 1, parts: 1 }
    }

    #[test]
    fn only_complete_answers_are_counted() {
        let keys = "connections = 2\nthink_ms = 5\npatience_ms = 60000";
        let found = ask_until(|| asked(server(50_000), keys), |found| found.answered > 0);
        assert!(found.answered.abs_diff(found.broken) <= 2, "{found:?}");
        assert!(found.bytes == found.answered * 50_000 && found.p99_ns >= found.p50_ns);
        assert_eq!((found.refused, found.timeouts, found.client_full), (0, 0, 0));
    }

    #[test]
    fn refused_and_empty_answers_are_broken_and_retried() {
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = bind().local_addr().unwrap();
        let silent = bind();
        let closing = silent.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in silent.incoming() {
                let _ = stream.unwrap().read(&mut [0; 200]);
            }
        });
        for (address, how) in [(nobody, "refused"), (closing, "closed without an answer")] {
            let std::net::SocketAddr::V4(address) = address else { panic!() };
            let keys = "connections = 2\nthink_ms = 10\npatience_ms = 60000";
            let found = ask_until(|| asked(address, keys), |found| found.broken > 10);
            assert_eq!((found.answered, found.bytes, found.refused), (0, 0, 0), "{found:?}");
            assert!(found.broken.abs_diff(found.offered) <= 2, "{found:?}");
            assert!(found.first_broken.as_ref().unwrap().contains(how), "{found:?}");
        }
    }

    #[test]
    fn rates_are_independent_of_answers() {
        // Nobody accepts these connections: they wait in the kernel.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!() };
        let impatient = "requests_per_second = 300\nconnections = 300\npatience_ms = 100";
        let found = ask_until(|| asked(address, impatient), |found| found.timeouts > 200);
        assert_eq!(found.client_full, 0, "{found:?}");
        let keys = "requests_per_second = 300\nconnections = 50\npatience_ms = 60000";
        let are_most = |found: &ClientResult| found.unfinished == 50 && found.offered >= 250;
        let found = ask_until(|| asked(address, keys), are_most);
        assert!(found.offered <= 300, "{found:?}");
        assert_eq!(found.answered, 0);
        // It reports being full itself; or late, if it had no time at the end.
        let others = found.offered - 50;
        let least = others.saturating_sub(found.client_late);
        assert!((least..=others).contains(&found.client_full), "{found:?}");
        assert!(found.is_at_limit());
    }

    #[test]
    fn unreachable_rates_are_reported() {
        let nobody = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
        let found = ask(&asked(nobody, "requests_per_second = 1000000\nconnections = 50")).unwrap();
        assert_eq!(found.offered, 950_000, "{found:?}");
        assert!(found.client_late > 100_000 && found.is_at_limit(), "{found:?}");
        let found = ClientResult { offered: 1000, client_late: 10, ..ClientResult::default() };
        assert!(!found.is_at_limit());
        assert!(ClientResult { client_late: 11, ..found }.is_at_limit());
    }
}
