//! The control thread: takes clients, reads their calls, answers.
//!
//! One thread, one poll, and nothing in it waits for a client. Few calls are served
//! from one client at a time, so that none keeps the others waiting.

use crate::captures::Captures;
use crate::client::Client;
use crate::config::{ControlSection, MetricsAddress};
use crate::error::RunError;
use crate::http::Http;
use crate::methods::{Methods, Outcome};
use crate::monitor::Monitor;
use crate::protocol::{
    Call, INVALID_REQUEST, LIMIT, Message, NOT_PERMITTED, REFUSED, RpcError, answer, parse,
};
use crate::socket::{self, Socket, SocketError};
use picnic_confine::{Role, set_up};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::hook::Hooks;
use picnic_engine::build::Registries;
use picnic_engine::swap::Controller;
use picnic_filter::Filters;
use picnic_os::config::Factory;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SocketFlags, accept_with, sockopt::socket_peercred};
use rustix::thread::CapabilitySet;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls served from one client before the next has its turn.
const TURN: usize = 8;
/// The longest sleep, so that idle clients are noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// While captures run: between two looks whether they have ended.
const CAPTURE_LOOK: Duration = Duration::from_millis(20);
/// How long captures may take to end when the card has ended.
const LAST_CAPTURES: Duration = Duration::from_secs(3);

/// What clients are held to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub clients: usize,
    /// A connection without a word is closed after this long.
    pub idle: Duration,
    /// A line that was begun must end, and an answer be read, within this long.
    pub stalled: Duration,
    /// Bytes of answers that may wait to be read before no more calls are taken.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            clients: 16,
            idle: Duration::from_secs(600),
            stalled: Duration::from_secs(10),
            output_bytes: 1 << 20,
        }
    }
}

/// What `[control]` asks for, opened but not yet served: before the card starts, so that a
/// name that is taken stops it in time.
#[derive(Debug)]
pub struct Doors {
    socket: Option<Socket>,
    http: Option<Http>,
    limits: Limits,
}

impl Doors {
    /// Opens what the card file asks for.
    ///
    /// # Errors
    /// A card of this name is running, the socket cannot be made, or the metrics' port is in
    /// use.
    pub fn open(file: &CardFile) -> Result<Self, SocketError> {
        let http = match file.section::<ControlSection>().metrics {
            MetricsAddress::Off => None,
            MetricsAddress::Address(address) => Some(Http::bind(address).map_err(|error| {
                let message = match error.kind() {
                    std::io::ErrorKind::AddrInUse => {
                        format!("found {address}, which another program listens at")
                    }
                    std::io::ErrorKind::AddrNotAvailable => {
                        format!("found {address}, which is no address of this machine")
                    }
                    _ => format!("{address}: cannot be listened at: {error}"),
                };
                file.locate(ConfigError::new("control.metrics", message))
            })?),
        };
        Ok(Doors { socket: socket::open(file)?, http, limits: Limits::default() })
    }

    /// The same, with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Doors { limits, ..self }
    }

    /// Whether there is anything to serve.
    pub fn are_any(&self) -> bool {
        self.socket.is_some() || self.http.is_some()
    }

    /// Where metrics are served; none if they are not.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(Http::address)
    }

    /// Where the socket stands; none if it is off.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(|socket| &*socket.path)
    }
}

/// What the control plane needs of a card that runs.
pub struct Access {
    /// Reads its figures.
    pub monitor: Monitor,
    /// Changes it.
    pub controller: Controller,
    /// What its card file could name, for functions that are swapped in.
    pub registries: Registries,
    /// Who looks on, at functions that are swapped in too.
    pub hooks: Hooks,
    /// Its filters.
    pub filters: Filters,
    /// What makes its tasks; none if it has no NIC OS.
    pub tasks: Option<Factory>,
}

/// A card's control thread.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// A client wants the card to stop.
    stop: Arc<AtomicBool>,
    /// The card stops, so that changes have no sense any more.
    stopping: AtomicBool,
    /// The thread is to end.
    end: AtomicBool,
    wake: OwnedFd,
}

impl Server {
    /// Serves a card that runs, until [`Server::finish`]. `captures` are a hook of
    /// the card, if clients are to capture.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn start(
        doors: Doors,
        access: Access,
        file: &CardFile,
        captures: Captures,
    ) -> Result<Self, RunError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|error| {
            RunError::system("cannot make the control thread's doorbell", error)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let methods = Methods::new(file, doors.metrics(), access, captures, stop.clone());
        let (stopping, end) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { stop, stopping, end, wake });
        let for_thread = shared.clone();
        let body = move || {
            set_up(Role::Control, CapabilitySet::empty());
            Service::new(doors, methods, for_thread).run();
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(body);
        let thread =
            thread.map_err(|error| RunError::system("cannot start the control thread", error))?;
        Ok(Server { shared, thread: Some(thread) })
    }

    /// Whether a client has asked for the card's end.
    pub fn stop_is_asked(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Tells that the card is about to stop: from now on changes are refused.
    pub fn card_stops(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Ends the thread and removes the socket. To be called when the card has stopped, so that
    /// clients see its end.
    pub fn finish(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.card_stops();
        self.shared.end.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there is told by its own message, and no reason to fail the run.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread's own.
struct Service {
    doors: Doors,
    methods: Methods,
    shared: Arc<Shared>,
    clients: Vec<Client>,
    next_client: u64,
    /// Calls that are answered when a capture has ended: by connection and call.
    deferred: Vec<(u64, Value, u32)>,
}

impl Service {
    fn new(doors: Doors, methods: Methods, shared: Arc<Shared>) -> Self {
        let (clients, deferred) = (Vec::new(), Vec::new());
        Service { doors, methods, shared, clients, next_client: 1, deferred }
    }

    fn run(mut self) {
        while !self.shared.end.load(Ordering::Acquire) {
            self.wait();
            self.turn();
        }
        self.methods.captures().stop_all();
        let give_up = Instant::now() + LAST_CAPTURES;
        while self.methods.captures().are_any() && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(2));
            self.end_captures();
        }
        self.end_captures();
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.accept(now);
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            client.write(Some(now));
            client.read(now);
            self.serve(index);
        }
        self.end_captures();
        if let Some(http) = &mut self.doors.http {
            http.turn(now, || self.methods.metrics());
        }
        let (limits, deferred) = (&self.doors.limits, &mut self.deferred);
        let captures = self.methods.captures();
        self.clients.retain(|client| {
            let is_awaiting = deferred.iter().any(|(number, ..)| *number == client.number);
            let is_kept =
                !client.is_done(is_awaiting) && !client.is_overdue(now, limits, is_awaiting);
            if !is_kept {
                deferred.retain(|(number, ..)| *number != client.number);
                captures.client_has_gone(client.number);
            }
            is_kept
        });
    }

    /// Takes in captures that have ended, and tells those who wait for it.
    fn end_captures(&mut self) {
        let captures = self.methods.captures();
        captures.tick();
        let clients = &mut self.clients;
        self.deferred.retain(|(number, id, capture)| {
            let Some(outcome) = captures.outcome(*capture) else { return true };
            if let Some(client) = clients.iter_mut().find(|client| client.number == *number) {
                client.answer(&answer(id, &Ok(outcome)));
            }
            false
        });
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) {
        let mut sources = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if let Some(socket) = &self.doors.socket {
            sources.push(PollFd::new(&socket.listener, PollFlags::IN));
        }
        if let Some(http) = &self.doors.http {
            sources.extend(http.sources().map(|(source, writes)| {
                let wants = if writes { PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(source, wants)
            }));
        }
        let limits = &self.doors.limits;
        sources.extend(
            self.clients
                .iter()
                .map(|client| PollFd::from_borrowed_fd(client.as_fd(), client.wants(limits))),
        );
        let is_busy = self.clients.iter().any(|client| client.has_line(limits));
        let longest = match () {
            () if is_busy => Duration::ZERO,
            () if self.methods.captures().are_any() => CAPTURE_LOOK,
            () => LONGEST_SLEEP.min(limits.stalled),
        };
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        // An error means "look again", as a signal does.
        let _ = poll(&mut sources, Some(&timeout));
        let first = sources.len() - self.clients.len();
        let gone =
            |source: &PollFd<'_>| source.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let gone: Vec<_> = sources[first..].iter().map(gone).collect();
        for (client, _) in self.clients.iter_mut().zip(gone).filter(|(_, gone)| *gone) {
            client.hung_up();
        }
    }

    /// Takes the clients that wait.
    fn accept(&mut self, now: Instant) {
        let Some(socket) = &self.doors.socket else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Any number may wait; those beyond the limit are told so.
        while let Ok(stream) = accept_with(&socket.listener, flags) {
            let mut client = Client::new(self.next_client, stream, now);
            self.next_client += 1;
            let most = self.doors.limits.clients;
            if let Err(error) = permitted(client.as_fd()) {
                client.refuse(error);
            } else if self.clients.len() >= most {
                let message = format!("{most} clients are connected, which is the most");
                client.refuse(RpcError::new(LIMIT, message));
            } else {
                self.clients.push(client);
            }
        }
    }

    /// Serves some calls of one client.
    fn serve(&mut self, index: usize) {
        for _ in 0..TURN {
            let client = &mut self.clients[index];
            match client.line(&self.doors.limits) {
                None => return,
                Some(Err(error)) => return client.refuse(error),
                Some(Ok(line)) if line.trim_ascii().is_empty() => {}
                Some(Ok(line)) => self.answer(index, parse(&line)),
            }
        }
    }

    fn answer(&mut self, index: usize, message: Message) {
        match message {
            Message::One(call) => {
                let (id, outcome) = self.call(index, call);
                let client = &mut self.clients[index];
                match (id, outcome) {
                    (None, _) => {}
                    (Some(id), Ok(Outcome::WhenEnded(capture))) => {
                        self.deferred.push((client.number, id, capture));
                    }
                    (Some(id), Ok(Outcome::Now(result))) => {
                        client.answer(&answer(&id, &Ok(result)))
                    }
                    (Some(id), Err(error)) => client.answer(&answer(&id, &Err(error))),
                }
            }
            Message::Many(calls) => {
                let answers = calls.into_iter().filter_map(|call| {
                    let (id, outcome) = self.call(index, call);
                    let outcome = outcome.and_then(|outcome| match outcome {
                        Outcome::Now(result) => Ok(result),
                        Outcome::WhenEnded(_) => {
                            let message = "this method is answered later: not in a batch";
                            Err(RpcError::new(INVALID_REQUEST, message))
                        }
                    });
                    id.map(|id| answer(&id, &outcome))
                });
                let answers: Vec<_> = answers.collect();
                // To notifications alone there is no answer, not even an empty list.
                if !answers.is_empty() {
                    self.clients[index].answer(&Value::Array(answers));
                }
            }
        }
    }

    fn call(&mut self, index: usize, call: Call) -> (Option<Value>, Result<Outcome, RpcError>) {
        let outcome = call.request.and_then(|request| {
            if self.shared.stopping.load(Ordering::Acquire) && request.needs_the_card() {
                return Err(RpcError::new(REFUSED, "the card is stopping"));
            }
            let client = &mut self.clients[index];
            let number = client.number;
            self.methods.call(request, number, || client.take_file())
        });
        (call.id, outcome)
    }
}

/// Whether the process at the other end may speak to this card: its user's, or root's.
fn permitted(stream: impl AsFd) -> Result<(), RpcError> {
    let own = rustix::process::geteuid();
    match socket_peercred(&stream) {
        Ok(peer) if peer.uid == own || peer.uid.is_root() => Ok(()),
        Ok(peer) => {
            let (found, own) = (peer.uid.as_raw(), own.as_raw());
            let message = format!("found user {found}, allowed is user {own} or root");
            Err(RpcError::new(NOT_PERMITTED, message))
        }
        Err(error) => {
            let message = format!("the kernel does not say who this is: {error}");
            Err(RpcError::new(NOT_PERMITTED, message))
        }
    }
}
