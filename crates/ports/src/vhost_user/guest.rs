//! The thread of a guest's socket.
//!
//! Guarantees: one front end at a time; the next is served when it is gone. When a connection ends,
//! however it does, the guest's memory is unmapped and its queues are without a guest.

use super::backend::Backend;
use super::config::{GuestConfig, Mode};
use super::extra;
use super::pair::Terms;
use super::post::Post;
use super::socket::{make, reach};
use super::state::{self, Negotiated};
use picnic_confine::{Role, set_up};
use picnic_core::attachment::{self, GuestState};
use picnic_core::error::ConfigError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::CapabilitySet;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use vhost::vhost_user::{BackendReqHandler, Error};

/// Interval at which a client tries to connect, in nanoseconds.
const RETRY_NS: i64 = 50_000_000;
/// The longest that a card waits at its end for a thread of a guest, which has nothing left to do.
const ENDING: Duration = Duration::from_secs(10);

/// A guest, as its queues and figures see it.
#[derive(Debug)]
pub(super) struct Guest {
    name: String,
    queues: Range<u16>,
    /// Its socket.
    path: PathBuf,
    pub(super) posts: Vec<Arc<Post>>,
    /// Readable when the thread is to end.
    stop: OwnedFd,
    /// Readable when memory that the front end shares was taken away.
    lost: Arc<OwnedFd>,
    log: Mutex<Log>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Log {
    connections: u64,
    is_connected: bool,
    /// Its thread is to end: the state stays as it is.
    is_ending: bool,
    /// Its thread has ended, and its socket is gone.
    is_over: bool,
    negotiated: Negotiated,
    /// Those of connections that have ended.
    faults: Vec<String>,
    /// The connection, so that it can be ended.
    stream: Option<UnixStream>,
}

impl Guest {
    /// A guest with these queues, one for each post.
    pub(super) fn new(
        name: String,
        first_queue: u16,
        path: PathBuf,
        posts: Vec<Arc<Post>>,
    ) -> std::io::Result<Self> {
        let queues = first_queue..first_queue + posts.len() as u16;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let lost = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (log, ended) = (Mutex::default(), Condvar::new());
        Ok(Guest { name, queues, path, posts, stop, lost, log, ended })
    }

    fn log<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        change(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends its thread. For use when the target cores no longer work.
    pub(super) fn stop(&self) {
        self.log(|log| log.is_ending = true);
        self.posts.iter().for_each(|post| post.close());
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        // A front end may be in the middle of a message.
        if let Some(stream) = self.log(|log| log.stream.take()) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that hangs is left behind.
        drop(self.ended.wait_timeout_while(log, ENDING, |log| !log.is_over));
    }

    /// Waits until one of `awaited` is readable, or for a time; false if the thread is to end.
    fn goes_on(&self, awaited: &[&dyn AsFd], timeout: Option<&Timespec>) -> bool {
        let mut sources = vec![PollFd::new(&self.stop, PollFlags::IN)];
        let awaited = awaited.iter().map(|source| source.as_fd());
        sources.extend(awaited.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        // A signal means "look again".
        let _ = poll(&mut sources, timeout);
        sources[0].revents().is_empty()
    }

    /// Serves a front end to its end.
    fn serve(&self, stream: UnixStream, terms: Terms) {
        // Of the connection before.
        let _ = rustix::io::read(&self.lost, &mut [0; 8]);
        let backend = Arc::new(Mutex::new(Backend::new(terms, self.posts.clone(), &self.lost)));
        let Ok(copy) = stream.try_clone() else { return };
        let negotiated = lock(&backend).negotiated();
        self.log(|log| {
            log.connections += 1;
            log.is_connected = true;
            log.negotiated = negotiated;
            log.stream = stream.try_clone().ok();
        });
        let mut handler = BackendReqHandler::from_stream(stream, backend.clone());
        let mut request = 0;
        let ended = loop {
            if !self.goes_on(&[&copy, &self.lost], None) {
                break None;
            }
            if rustix::io::read(&self.lost, &mut [0; 8]).is_ok() {
                break Some(": its memory was taken away".into());
            }
            let handled = match extra::handle(&copy, &backend, &mut request) {
                Ok(false) => handler.handle_request(),
                handled => handled.map(|_| ()),
            };
            match handled {
                Ok(()) => {}
                Err(Error::Disconnected) => break None,
                Err(error) => break Some(format!(" at {}: {error}", extra::name(request))),
            }
            let negotiated = lock(&backend).negotiated();
            self.log(|log| log.negotiated = negotiated);
        };
        lock(&backend).close();
        let faults = lock(&backend).negotiated().faults;
        self.log(|log| {
            log.stream = None;
            let ended = ended.map(|why: String| format!("the connection was ended{why}"));
            for fault in faults.into_iter().chain(ended) {
                state::keep(&mut log.faults, fault);
            }
            if !log.is_ending {
                (log.is_connected, log.negotiated.ready_queues) = (false, 0);
            }
        });
    }
}

impl attachment::Guest for Guest {
    fn name(&self) -> &str {
        &self.name
    }

    fn queues(&self) -> Range<u16> {
        self.queues.clone()
    }

    fn state(&self) -> GuestState {
        let (is_connected, connections, negotiated, mut faults) = self.log(|log| {
            (log.is_connected, log.connections, log.negotiated.clone(), log.faults.clone())
        });
        let state = negotiated.state();
        let broken = self.posts.iter().flat_map(|post| post.broken()).enumerate();
        let broken: Vec<_> =
            broken.filter_map(|(ring, why)| Some(state::of_ring(ring, why?))).collect();
        let broken_rings = broken.len() as u64;
        for fault in negotiated.faults.into_iter().chain(broken) {
            state::keep(&mut faults, fault);
        }
        GuestState { is_connected, connections, broken_rings, faults, ..state }
    }
}

fn lock(backend: &Mutex<Backend>) -> std::sync::MutexGuard<'_, Backend> {
    backend.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread of a guest.
///
/// # Errors
/// The socket cannot be made.
pub(super) fn start(
    guest: &Arc<Guest>,
    config: &GuestConfig,
    terms: Terms,
) -> Result<(), ConfigError> {
    let fault = |error: &dyn std::fmt::Display| {
        ConfigError::new("socket", format!("{}: {error}", guest.path.display()))
    };
    let listener = match config.mode {
        Mode::Server => Some(make(&guest.path, config.access()?)?),
        Mode::Client => None,
    };
    let guest = guest.clone();
    let body = move || {
        set_up(Role::Guest, CapabilitySet::empty());
        match listener {
            Some(listener) => {
                while guest.goes_on(&[&listener], None) {
                    if let Ok((stream, _)) = listener.accept() {
                        guest.serve(stream, terms);
                    }
                }
                // It may have been removed by hand.
                let _ = std::fs::remove_file(&guest.path);
            }
            None => {
                let pause = Timespec { tv_sec: 0, tv_nsec: RETRY_NS };
                while guest.goes_on(&[], Some(&pause)) {
                    if let Ok(stream) = reach(&guest.path) {
                        guest.serve(stream, terms);
                    }
                }
            }
        }
        guest.log(|log| log.is_over = true);
        guest.ended.notify_all();
    };
    let thread = std::thread::Builder::new().name("guest".into()).spawn(body);
    thread.map(drop).map_err(|error| fault(&error))
}
