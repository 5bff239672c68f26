//! The control thread, from outside: its services, limits, start and end.

use crate::captures::Captures;
use crate::config::{ControlSection, HttpAddress};
use crate::error::RunError;
use crate::http::{Http, Site};
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

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections, in addition to one that may read the card's state and stop it.
    pub clients: usize,
    /// A silent connection is closed after this time.
    pub idle: Duration,
    /// Time limit for completing a line and for reading an answer; also the longest silence of the
    /// reserved connection.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { clients: 7, idle: Duration::from_secs(600), stalled: Duration::from_secs(10) }
    }
}

/// The services of `[control]`, opened but not yet served: before the card starts, so that a name
/// in use stops it in time.
#[derive(Debug)]
pub struct Doors {
    pub(super) socket: Option<Socket>,
    pub(super) http: Vec<Http>,
    pub(super) limits: Limits,
}

impl Doors {
    /// Opens the services of the card file.
    ///
    /// # Errors
    /// A card of this name is running, the socket cannot be created, or a port is in use.
    pub fn open(file: &CardFile) -> Result<Self, SocketError> {
        let http = listen(file)?;
        Ok(Doors { socket: socket::open(file)?, http, limits: Limits::default() })
    }

    /// No services, regardless of the card file.
    pub fn none() -> Self {
        Doors { socket: None, http: Vec::new(), limits: Limits::default() }
    }

    /// Checks whether [`Doors::open`] would open them, without changing anything. A card of this
    /// name may run: the file and the metrics' address may be its own.
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
        self.socket.is_some() || !self.http.is_empty()
    }

    /// The address of the metrics; none without metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.address(Site::Metrics)
    }

    pub(super) fn address(&self, site: Site) -> Option<SocketAddr> {
        self.http.iter().find(|http| http.site() == site).and_then(Http::address)
    }
}

/// Listens for readers of metrics and of the live page, at the addresses in the card file.
fn listen(file: &CardFile) -> Result<Vec<Http>, ConfigError> {
    let ControlSection { metrics, web, .. } = file.section::<ControlSection>().keys;
    let mut listening = Vec::new();
    for (key, wanted, site) in [("metrics", metrics, Site::Metrics), ("web", web, Site::Page)] {
        let HttpAddress::Address(address) = wanted else { continue };
        let http = Http::bind(address, site).map_err(|error| {
            let message = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    format!("found {address}, which another program listens on")
                }
                std::io::ErrorKind::AddrNotAvailable => {
                    format!("found {address}, which is not an address of this machine")
                }
                _ => format!("cannot listen on {address}: {error}"),
            };
            file.locate(ConfigError::new(format!("control.{key}"), message))
        })?;
        listening.push(http);
    }
    Ok(listening)
}

/// The control plane's access to a running card.
pub struct Access {
    /// Reads its figures.
    pub monitor: Monitor,
    /// Changes it.
    pub controller: Controller,
    /// Registries of its card file: components with commands, functions to swap in.
    pub registries: Registries,
    /// Observers, also of functions that are swapped in.
    pub hooks: Hooks,
    /// Its filters.
    pub filters: Filters,
    /// The builder of its tasks; none without NIC OS.
    pub tasks: Option<Factory>,
    /// The reason why chains, filters, moderation and captures cannot change, if they cannot: then
    /// only components take commands.
    pub fixed: Option<&'static str>,
    /// For an engine that swaps its rx chain itself, even if the rest cannot change.
    pub swap_rx: Option<Box<dyn SwapRx>>,
    /// The poll engine's part of a shared card.
    pub beside: Option<PollPart>,
    /// Privileges needed to change it.
    pub keeps: CapabilitySet,
}

/// Changes the poll engine's part of a card shared with the kernel. Both parts have the functions
/// of the rx chain, except a few; everything else is only in this part.
#[derive(Debug)]
pub struct PollPart {
    /// Changes it.
    pub controller: Controller,
    /// Positions of functions of the rx chain that only this part has.
    pub alone: Vec<usize>,
    /// Its current functions.
    pub functions: Functions,
}

/// An engine that swaps the rx chain instead of the poll engine, or together with it.
pub trait SwapRx: Send {
    /// Replaces the functions with the ones of these sections, and updates the card's view. Returns
    /// the positions that only the poll engine has.
    ///
    /// After all checks, `exchange` installs the new functions in the poll engine's part; called
    /// again, the old ones.
    ///
    /// # Errors
    /// A section is wrong, or the change is impossible. Then the chain stays as it was.
    fn swap(
        &mut self,
        sections: &[Section],
        base: &BuildContext,
        exchange: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<Vec<usize>, RunError>;
}

/// A card's control thread. Dropping it removes the socket: clients should see that after the card
/// has stopped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    /// Set when a client, or somebody else, requests the card's stop.
    stop: Stop,
    /// Set when the card stops, so that changes are pointless.
    pub(super) stopping: AtomicBool,
    /// Set when the thread shall end.
    pub(super) end: AtomicBool,
    pub(super) wake: OwnedFd,
    /// Messages about watched files, for the starter of the card.
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
    /// Serves a running card. `captures` is a hook of the card, if clients may capture.
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
        let addresses = [doors.metrics(), doors.address(Site::Page)];
        let methods = Methods::new(file, about, addresses, access, captures, stop.clone());
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

    /// Whether a client, or somebody else, has requested the card's end.
    pub fn stop_is_asked(&self) -> bool {
        self.shared.stop.is_asked()
    }

    /// Messages about watched files since the last call.
    pub fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Refuses changes from now on, as the card is about to stop.
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
    fn default_limits() {
        let limits = Limits::default();
        assert_eq!(limits.clients, 7);
        assert_eq!([limits.idle, limits.stalled].map(|time| time.as_secs()), [600, 10]);
    }

    #[test]
    fn single_service_is_enough() {
        assert!(!Doors::none().are_any());
        let http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let doors = Doors { http: vec![http], ..Doors::none() };
        assert!(doors.are_any() && doors.metrics().is_some() && doors.socket.is_none());
    }

    /// Signals that a swap has begun, and ends it when its other channel closes.
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
    fn ending_servers_make_no_changes() {
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
