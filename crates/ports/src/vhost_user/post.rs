//! Between the thread of a guest's socket and the target core: a pair of rings changes hands.
//!
//! Guarantees: a pair has one owner at a time. The target core takes the lock only when there is
//! something to exchange, and the other side holds it for no longer than an assignment. After
//! [`Post::exchange`] the target core does not touch what it had before.

use super::pair::{Pair, Ring};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One queue's place of exchange.
#[derive(Debug)]
pub(super) struct Post {
    /// Exchanges that were asked for.
    asked: AtomicU64,
    tray: Mutex<Tray>,
    changed: Condvar,
    /// Wakes the target core.
    bell: OwnedFd,
    /// What the target core sleeps on: the bell, and the kicks of its guest.
    sources: OwnedFd,
}

#[derive(Debug, Default)]
struct Tray {
    pair: Option<Box<Pair>>,
    /// Exchanges that were made.
    made: u64,
    /// Why the target core has stopped using the rings: packets for the guest, and of it.
    broken: [Option<&'static str>; 2],
    /// No target core will come any more.
    is_closed: bool,
}

impl Post {
    /// # Errors
    /// The system has no descriptors left.
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let sources = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&sources, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Post {
            asked: AtomicU64::new(0),
            tray: Mutex::default(),
            changed: Condvar::new(),
            bell,
            sources,
        })
    }

    /// Nobody panics with the tray in hand; if so, it is as good as before.
    fn tray(&self) -> MutexGuard<'_, Tray> {
        self.tray.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the target core sleeps on.
    pub(super) fn sources(&self) -> BorrowedFd<'_> {
        self.sources.as_fd()
    }

    /// Gives the target core another pair, or none, and returns the one that it had.
    pub(super) fn exchange(&self, pair: Option<Box<Pair>>) -> Option<Box<Pair>> {
        let mut tray = self.tray();
        tray.pair = pair;
        let wanted = self.asked.load(Ordering::Relaxed) + 1;
        self.asked.store(wanted, Ordering::Release);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        while tray.made != wanted && !tray.is_closed {
            tray = self.changed.wait(tray).unwrap_or_else(PoisonError::into_inner);
        }
        tray.pair.take()
    }

    /// Why the target core has stopped using the rings, if it has.
    pub(super) fn broken(&self) -> [Option<&'static str>; 2] {
        self.tray().broken
    }

    /// The end of the card: the target core no longer works, so nobody need wait for it.
    pub(super) fn close(&self) {
        self.tray().is_closed = true;
        self.changed.notify_all();
    }

    /// Has the target core sleep on a guest's kicks, too.
    ///
    /// # Errors
    /// That is no descriptor to wait for.
    pub(super) fn watch(&self, kick: &File) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(1);
        Ok(epoll::add(&self.sources, kick, data, epoll::EventFlags::IN)?)
    }

    /// Ends that.
    pub(super) fn unwatch(&self, kick: &File) {
        // What was not watched is not watched afterwards.
        let _ = epoll::delete(&self.sources, kick);
    }
}

/// The target core's end.
#[derive(Debug)]
pub(super) struct Receiver {
    post: std::sync::Arc<Post>,
    made: u64,
    pub(super) pair: Option<Box<Pair>>,
    /// The rings that are known to be broken.
    known: [bool; 2],
}

fn broken(pair: Option<&Pair>) -> [Option<&'static str>; 2] {
    let ring = |ring: &Option<Ring>| ring.as_ref()?.broken.map(|why| why.0);
    pair.map_or([None; 2], |pair| [ring(&pair.rx), ring(&pair.tx)])
}

impl Receiver {
    pub(super) fn new(post: std::sync::Arc<Post>) -> Self {
        Receiver { post, made: 0, pair: None, known: [false; 2] }
    }

    pub(super) fn post(&self) -> &Post {
        &self.post
    }

    /// Makes the exchange that was asked for, if one was.
    #[inline]
    pub(super) fn look(&mut self) {
        let asked = self.post.asked.load(Ordering::Acquire);
        if asked != self.made {
            self.exchange(asked);
        }
    }

    #[cold]
    fn exchange(&mut self, asked: u64) {
        let _ = rustix::io::read(&self.post.bell, &mut [0; 8]);
        let mut tray = self.post.tray();
        std::mem::swap(&mut self.pair, &mut tray.pair);
        (self.made, tray.made) = (asked, asked);
        tray.broken = broken(self.pair.as_deref());
        self.known = tray.broken.map(|why| why.is_some());
        self.post.changed.notify_all();
    }

    /// After a burst: passes on which rings it has broken.
    #[inline]
    pub(super) fn note_broken(&mut self) {
        let broken = broken(self.pair.as_deref());
        if broken.map(|why| why.is_some()) != self.known {
            self.tell(broken);
        }
    }

    #[cold]
    fn tell(&mut self, broken: [Option<&'static str>; 2]) {
        self.known = broken.map(|why| why.is_some());
        self.post.tray().broken = broken;
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut tray = self.post.tray();
        tray.is_closed = true;
        // An exchange that is under way gets what was here, if this had not yet taken part in it.
        if self.post.asked.load(Ordering::Relaxed) != self.made {
            tray.pair = self.pair.take();
        }
        self.post.changed.notify_all();
    }
}
