//! The control thread, from outside: what it serves, what it is held to, its start and its end.

use crate::captures::Captures;
use crate::config::{ControlSection, MetricsAddress};
use crate::error::RunError;
use crate::http::Http;
use crate::launch::Registries;
use crate::methods::Methods;
use crate::monitor::Monitor;
use crate::report::RunInfo;
use crate::service::Service;
use crate::socket::{self, Socket, SocketError};
use crate::watch::{Watch, Watcher};
use picnic_confine::{Role, set_up};
use picnic_core::config::{CardFile, Section};
use picnic_core::error::ConfigError;
use picnic_core::hook::Hooks;
use picnic_core::registry::BuildContext;
use picnic_core::stop::Stop;
use picnic_engine::swap::Controller;
use picnic_engine::view::Functions;
use picnic_filter::Filters;
use picnic_os::config::Factory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::thread::CapabilitySet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What clients are held to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time, beside one that may look at the card and stop it.
    pub clients: usize,
    /// A silent connection is closed after this time.
    pub idle: Duration,
    /// A line must end, and an answer be read, within this time; the reserved connection may be
    /// silent for it.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { clients: 7, idle: Duration::from_secs(600), stalled: Duration::from_secs(10) }
    }
}

/// What `[control]` asks for, opened but not yet served: before the card starts, so that a
/// name that is taken stops it in time.
#[derive(Debug)]
pub struct Doors {
    pub(super) socket: Option<Socket>,
    pub(super) http: Option<Http>,
    pub(super) limits: Limits,
}

impl Doors {
    /// Opens what the card file asks for.
    ///
    /// # Errors
    /// A card of this name is running, the socket cannot be created, or the metrics' port is in
    /// use.
    pub fn open(file: &CardFile) -> Result<Self, SocketError> {
        let http = listen(file)?;
        Ok(Doors { socket: socket::open(file)?, http, limits: Limits::default() })
    }

    /// None at all, whatever the card file asks for.
    pub fn none() -> Self {
        Doors { socket: None, http: None, limits: Limits::default() }
    }

    /// Whether [`Doors::open`] would open them. Nothing is changed. A card of this name may run:
    /// the file may be its own, and so may the address that metrics are served at.
    ///
    /// # Errors
    /// As [`Doors::open`].
    pub fn check(file: &CardFile) -> Result<(), SocketError> {
        if !socket::check(file)? {
            listen(file)?;
        }
        Ok(())
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
}

/// Listens for whoever reads metrics, if the card file says where.
fn listen(file: &CardFile) -> Result<Option<Http>, ConfigError> {
    let MetricsAddress::Address(address) = file.section::<ControlSection>().metrics else {
        return Ok(None);
    };
    let listening = Http::bind(address).map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("found {address}, which another program listens on")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("found {address}, which is not an address of this machine")
            }
            _ => format!("cannot listen on {address}: {error}"),
        };
        file.locate(ConfigError::new("control.metrics", message))
    });
    listening.map(Some)
}

/// What the control plane needs of a card that runs.
pub struct Access {
    /// Reads its figures.
    pub monitor: Monitor,
    /// Changes it.
    pub controller: Controller,
    /// What its card file could name: components with commands, functions that are swapped in.
    pub registries: Registries,
    /// Who looks on, at functions that are swapped in too.
    pub hooks: Hooks,
    /// Its filters.
    pub filters: Filters,
    /// What makes its tasks; none if it has no NIC OS.
    pub tasks: Option<Factory>,
    /// Why chains, filters, moderation and captures stay as they are, if they do: only components
    /// can be told something then.
    pub fixed: Option<&'static str>,
    /// Of an engine that puts another rx chain in force by itself, also if the rest stays as it is.
    pub swap_rx: Option<Box<dyn SwapRx>>,
    /// The poll engine's part of a card that the kernel shares with it.
    pub beside: Option<PollPart>,
    /// Privileges that changing it takes, if there are any.
    pub keeps: CapabilitySet,
}

/// What changes the part of a card that the poll engine has beside the kernel. The functions of
/// the rx chain are in both, but for some; all else is there alone.
#[derive(Debug)]
pub struct PollPart {
    /// Changes it.
    pub controller: Controller,
    /// Functions of the rx chain that are there alone, by position.
    pub alone: Vec<usize>,
    /// Its functions, as it has them.
    pub functions: Functions,
}

/// Who puts another rx chain in force in place of the poll engine, or beside it.
pub trait SwapRx: Send {
    /// Puts the functions of these sections in place of those that are there, and tells the card's
    /// view of it. Returns those that the poll engine has alone, by position.
    ///
    /// When all that can be refused beforehand has been, `exchange` has the poll engine's part put in
    /// its functions; called again, those that they have replaced.
    ///
    /// # Errors
    /// What is wrong with a section; what cannot be done. The chain stays as it is then.
    fn swap(
        &mut self,
        sections: &[Section],
        base: &BuildContext,
        exchange: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<Vec<usize>, RunError>;
}

/// A card's control thread. When it is dropped the socket goes: clients are to see that after
/// the card has stopped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    /// A client, or somebody else, wants the card to stop.
    stop: Stop,
    /// The card stops, so that changes have no sense any more.
    pub(super) stopping: AtomicBool,
    /// The thread is to end.
    pub(super) end: AtomicBool,
    pub(super) wake: OwnedFd,
    /// About watched files, for whoever started the card.
    pub(super) said: Mutex<Vec<String>>,
}

impl Shared {
    pub(super) fn new(stop: Stop) -> Result<Self, RunError> {
        // Written once, never read.
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| {
            RunError::system("cannot make the control thread's doorbell", error)
        })?;
        let (stopping, end) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Shared { stop, stopping, end, wake, said: Mutex::default() })
    }
}

impl Server {
    /// Serves a card that runs. `captures` are a hook of
    /// the card, if clients are to capture.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn start(
        doors: Doors,
        access: Access,
        file: &CardFile,
        about: RunInfo,
        captures: Captures,
        watch: Option<Watch>,
        stop: Stop,
    ) -> Result<Self, RunError> {
        let keeps = access.keeps;
        let methods = Methods::new(file, about, doors.metrics(), access, captures, stop.clone());
        let shared = Arc::new(Shared::new(stop)?);
        let watcher = watch.map(|watch| Watcher::new(watch, file));
        let for_thread = shared.clone();
        let body = move || {
            set_up(Role::Control, keeps);
            // Functions begin and end here while clients wait.
            picnic_plugin::guard::hurry();
            Service::new(doors, methods, for_thread, watcher).run();
        };
        let thread = std::thread::Builder::new().name("control".into()).spawn(body);
        let thread =
            thread.map_err(|error| RunError::system("cannot start the control thread", error))?;
        Ok(Server { shared, thread: Some(thread) })
    }

    /// Whether a client, or somebody else, has asked for the card's end.
    pub fn stop_is_asked(&self) -> bool {
        self.shared.stop.is_asked()
    }

    /// What has been said of watched files since the last look.
    pub fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells that the card is about to stop: from now on changes are refused.
    pub fn card_stops(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    fn end(&mut self) {
        self.card_stops();
        self.shared.end.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there prints its own message, and does not fail the run.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use picnic_testing::{PATIENCE, wait_until};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{self, Receiver, Sender};

    #[test]
    fn a_card_serves_so_many_for_so_long() {
        let limits = Limits::default();
        assert_eq!(limits.clients, 7);
        assert_eq!([limits.idle, limits.stalled].map(|time| time.as_secs()), [600, 10]);
    }

    #[test]
    fn one_door_is_enough_to_serve() {
        assert!(!Doors::none().are_any());
        let http = Http::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let doors = Doors { http: Some(http), ..Doors::none() };
        assert!(doors.are_any() && doors.metrics().is_some() && doors.socket.is_none());
    }

    /// Says that a swap has begun, and ends it when its other channel has gone.
    struct Waiting(Sender<()>, Receiver<()>);

    impl SwapRx for Waiting {
        fn swap(
            &mut self,
            _: &[Section],
            _: &BuildContext,
            _: &mut dyn FnMut() -> Result<(), RunError>,
        ) -> Result<Vec<usize>, RunError> {
            self.0.send(()).unwrap();
            let _ = self.1.recv();
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_server_that_ends_makes_no_more_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let file = bench::card(&format!("[control]\nsocket = \"{}\"\n", path.display()));
        let bench::Parts { monitor, controller, .. } = bench::parts(&file);
        let ((begun, begins), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        let swap_rx: Option<Box<dyn SwapRx>> = Some(Box::new(Waiting(begun, ended)));
        let access = Access { swap_rx, ..bench::access(monitor, controller, None) };
        let (doors, about) = (Doors::open(&file).unwrap(), bench::about(&file));
        let captures = Captures::default();
        let server =
            Server::start(doors, access, &file, about, captures, None, Stop::default()).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"chain.swap\",\
                    \"params\":{\"chain\":\"rx\",\"functions\":[]}}\n";
        client.write_all(call.repeat(2).as_bytes()).unwrap();
        begins.recv_timeout(PATIENCE).unwrap();
        let shared = server.shared.clone();
        let ending = std::thread::spawn(move || drop(server));
        wait_until("it is to end", || shared.end.load(Ordering::Acquire));
        drop(ends);
        ending.join().unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        let [first, second] = answers.lines().collect::<Vec<_>>()[..] else { panic!("{answers}") };
        assert!(first.contains("\"result\""), "{first}");
        assert!(second.contains("the card is stopping"), "{second}");
    }
}
