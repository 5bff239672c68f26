//! Opens and closes an interface's sockets, on its own thread.
//!
//! Both take milliseconds (memory is pinned, the kernel waits for its other cores), which the
//! borrowed core cannot spare while other wires are in use. The thread stays in the interface's
//! network namespace and keeps the necessary privileges, so the interface can be reopened.

use crate::sys::namespace;
use crate::sys::xsk::{Sockets, SocketsConfig, SocketsError, Supplies};
use picnic_confine::{Role, set_up};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

enum KeeperRequest {
    Open { index: u32, wanted: Box<SocketsConfig>, supplies: Supplies },
    Close(Box<Sockets>),
}

/// A finished request.
#[derive(Debug)]
pub(super) enum Done {
    Opened(Box<Result<Sockets, SocketsError>>),
    Closed,
    /// The thread is gone.
    Ended,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Keeper {
    /// None once it shall end.
    requests: Option<Sender<KeeperRequest>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// A thread in this namespace, or the caller's own.
    ///
    /// # Errors
    /// The namespace does not exist or may not be entered, or no thread can start.
    pub(super) fn start(namespace: Option<PathBuf>) -> io::Result<Self> {
        let (requests, received) = channel::<KeeperRequest>();
        let (answers, done) = channel();
        let (entered, ready) = channel();
        let body = move || {
            let inside = namespace.map_or(Ok(()), |path| namespace::enter(&path));
            let outside = inside.is_err();
            if entered.send(inside).is_err() || outside {
                return;
            }
            set_up(Role::Xdp, needed_to_open());
            for request in received {
                let answer = match request {
                    KeeperRequest::Open { index, wanted, supplies } => {
                        Done::Opened(Box::new(Sockets::open(index, &wanted, supplies)))
                    }
                    KeeperRequest::Close(sockets) => {
                        sockets.close();
                        Done::Closed
                    }
                };
                if answers.send(answer).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("xdp".into()).spawn(body)?;
        ready.recv().map_err(|_| io::Error::other("its thread has panicked"))??;
        Ok(Keeper { requests: Some(requests), done, thread: Some(thread) })
    }

    /// Has it open sockets on interface `index`.
    pub(super) fn open(&self, index: u32, wanted: &SocketsConfig, supplies: Supplies) {
        self.request(KeeperRequest::Open { index, wanted: Box::new(wanted.clone()), supplies });
    }

    /// Has it close sockets.
    pub(super) fn close(&self, sockets: Sockets) {
        self.request(KeeperRequest::Close(Box::new(sockets)));
    }

    fn request(&self, request: KeeperRequest) {
        if let Some(requests) = &self.requests {
            // An ended thread is noticed when its counts are requested.
            let _ = requests.send(request);
        }
    }

    /// The request finished since the last call, if any.
    pub(super) fn poll(&self) -> Option<Done> {
        match self.done.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Done::Ended),
        }
    }

    /// Waits for the next finished request.
    pub(super) fn wait(&self) -> Done {
        self.done.recv().unwrap_or(Done::Ended)
    }
}

/// Capabilities for opening sockets. The pool's pages count against the locked memory limit of a
/// process without IPC_LOCK, so that is kept if the limit cannot be raised.
fn needed_to_open() -> CapabilitySet {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF;
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    match getrlimit(Resource::Memlock).current {
        None => needed,
        Some(_) => needed | CapabilitySet::IPC_LOCK,
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
