//! The channels of a card: by name for host processes, and in one list for the borrowed core.
//!
//! Memory is mapped and unmapped here, on the threads that serve host processes. The borrowed core
//! takes only locks without other users, and only tries the others.

use super::{ChannelCounters, ChannelError, ChannelReport};
use crate::shared::lock;
use crate::task::TaskId;
use picnic_channel::{Awaits, Bell, End, Region, SendError, Shape, Side};
use picnic_core::doorbell::Doorbell;
use picnic_core::error::not_among;
use picnic_core::resident::{Attention, Watch};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

/// Ended channels whose figures are kept.
const MOST_ENDED: usize = 64;

/// A host process's time with a channel.
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) end: Arc<End>,
}

impl Session {
    /// Ends a session that the task never began; returns the messages that it loses.
    pub(super) fn unnoticed(&self) -> u64 {
        let lost = self.end.in_flight();
        self.end.close();
        lost
    }
}

/// A host process that has a channel open, for the thread that serves it.
struct Host {
    session: u64,
    client: u64,
    pid: Option<i32>,
    /// Keeps the memory mapped until the borrowed core has dropped it.
    end: Arc<End>,
}

/// A channel, for all its users.
pub(super) struct Link {
    pub(super) name: Box<str>,
    task: TaskId,
    pub(super) shape: Shape,
    pub(super) counters: ChannelCounters,
    /// A process has come or gone; set by others, cleared by the task.
    pub(super) changed: AtomicBool,
    pub(super) offer: Mutex<Option<Session>>,
    /// The task's session, the last one that it ended, and the last one with an ended process.
    pub(super) session: AtomicU64,
    pub(super) ended: AtomicU64,
    gone: AtomicU64,
    /// The task's end has been dropped.
    pub(super) closed: AtomicBool,
    pub(super) waker: Mutex<Option<Waker>>,
    /// The events that the task waits for, as bits; only the borrowed core uses it.
    awaits: AtomicU8,
    /// Only the borrowed core locks it.
    pub(super) end: Mutex<Option<Arc<End>>>,
    host: Mutex<Option<Host>>,
    /// Messages of processes that went before the task looked.
    unseen: AtomicU64,
}

impl Link {
    pub(super) fn new(name: &str, task: TaskId, shape: Shape) -> Self {
        Link {
            name: name.into(),
            task,
            shape,
            counters: ChannelCounters::default(),
            changed: AtomicBool::new(false),
            offer: Mutex::default(),
            session: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            waker: Mutex::default(),
            awaits: AtomicU8::new(0),
            end: Mutex::default(),
            host: Mutex::default(),
            unseen: AtomicU64::new(0),
        }
    }

    pub(super) fn host_has_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) >= self.session.load(Ordering::Relaxed)
    }

    /// Replaces a session that the task has not noticed, and closes it: its process may still wait.
    pub(super) fn offer(&self, session: Option<Session>) {
        let before = std::mem::replace(&mut *lock(&self.offer), session);
        let lost = before.map_or(0, |before| before.unnoticed());
        self.unseen.fetch_add(lost, Ordering::Relaxed);
    }

    fn is_alive(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Makes the task check for processes that arrived or ended.
    fn tell(&self) {
        self.changed.store(true, Ordering::Release);
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn awaited(&self) -> Option<Awaits> {
        match self.awaits.load(Ordering::Relaxed) {
            1 => Some(Awaits::Message),
            2 => Some(Awaits::Room),
            3 => Some(Awaits::Any),
            _ => None,
        }
    }

    /// Calls `body` if the task waits for something, and a process has the channel open.
    fn if_waiting<R>(&self, body: impl FnOnce(&End, Awaits) -> R) -> Option<R> {
        let awaits = self.awaited()?;
        lock(&self.end).as_deref().map(|end| body(end, awaits))
    }

    fn report(&self) -> ChannelReport {
        let counters = &self.counters;
        let is_there = |host: &&Host| self.is_current(host);
        ChannelReport {
            channel: self.name.to_string(),
            task: self.task.0,
            is_alive: self.is_alive(),
            pid: lock(&self.host).as_ref().filter(is_there).and_then(|host| host.pid),
            message_bytes: self.shape.message_bytes() as u64,
            messages: self.shape.messages() as u64,
            memory_bytes: self.shape.bytes() as u64,
            openings: counters.openings.get(),
            sent_messages: counters.sent.get(),
            received_messages: counters.received.get(),
            full_messages: counters.full.get(),
            too_long_messages: counters.too_long.get(),
            lost_messages: counters.lost.get() + self.unseen.load(Ordering::Relaxed),
            broken_hosts: counters.broken.get(),
            host_wakeups: counters.host_wakeups.get(),
        }
    }

    /// Whether this process still has the channel.
    fn is_current(&self, host: &Host) -> bool {
        let gone = self.gone.load(Ordering::Acquire).max(self.ended.load(Ordering::Acquire));
        self.is_alive() && host.session > gone
    }
}

/// The channels that host processes have open, for the borrowed core.
#[derive(Default)]
struct Open(Mutex<Vec<Arc<Link>>>);

impl Open {
    fn each(&self, mut body: impl FnMut(&Link)) {
        lock(&self.0).iter().for_each(|link| body(link));
    }
}

impl Watch for Open {
    fn has_news(&self) -> bool {
        let has_news = |link: &Arc<Link>| link.if_waiting(End::has_news) == Some(true);
        lock(&self.0).iter().any(has_news)
    }

    fn rest(&self) {
        self.each(|link| _ = link.if_waiting(End::rest));
    }

    fn wake(&self) {
        self.each(|link| _ = link.if_waiting(|end, _| end.wake()));
    }
}

/// All channels of a card.
pub(crate) struct Directory {
    attention: Arc<Attention>,
    open: Arc<Open>,
    /// A task has used a channel since the last flush.
    used: AtomicBool,
    links: Mutex<Vec<Arc<Link>>>,
    /// Memory that the borrowed core may still have.
    retired: Mutex<Vec<Arc<End>>>,
    sessions: AtomicU64,
}

// ------------------------------------------------------------ for the borrowed core

impl Directory {
    pub(crate) fn new(attention: Arc<Attention>) -> Self {
        let open = Arc::<Open>::default();
        attention.watched_by(open.clone());
        Directory {
            attention,
            open,
            used: AtomicBool::new(false),
            links: Mutex::default(),
            retired: Mutex::default(),
            sessions: AtomicU64::new(0),
        }
    }

    /// Adds a channel; none if another thread has the list at this moment.
    pub(super) fn try_add(&self, link: &Arc<Link>) -> Option<Result<(), ChannelError>> {
        let mut links = self.links.try_lock().ok()?;
        let mut living = links.iter().filter(|other| other.is_alive());
        if let Some(other) = living.find(|other| other.name == link.name) {
            let (name, task) = (link.name.to_string(), other.task.0);
            return Some(Err(ChannelError::Taken { name, task }));
        }
        links.push(link.clone());
        Some(Ok(()))
    }

    /// Notes that a task has used a channel.
    #[inline(always)]
    pub(super) fn mark(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn opened(&self, link: &Arc<Link>) {
        lock(&self.open.0).push(link.clone());
    }

    pub(super) fn ended(&self, link: &Arc<Link>) {
        link.awaits.store(0, Ordering::Relaxed);
        lock(&self.open.0).retain(|other| !Arc::ptr_eq(other, link));
        self.update_watching();
    }

    pub(super) fn wait(&self, link: &Link, awaits: Awaits) {
        link.awaits.store(awaits as u8, Ordering::Relaxed);
        self.update_watching();
    }

    fn update_watching(&self) {
        let is_waiting = |link: &Arc<Link>| link.awaits.load(Ordering::Relaxed) != 0;
        self.attention.set_watching(lock(&self.open.0).iter().any(is_waiting));
    }

    /// A segment has ended: its messages become visible, and processes that wait for them are
    /// woken.
    #[inline]
    pub(crate) fn flush(&self) {
        if self.used.load(Ordering::Relaxed) {
            self.used.store(false, Ordering::Relaxed);
            self.open.each(|link| {
                if lock(&link.end).as_ref().is_some_and(|end| end.flush()) {
                    link.counters.host_wakeups.add(1);
                }
            });
        }
    }

    /// Wakes the tasks whose wait has ended.
    #[inline]
    pub(crate) fn wake_tasks(&self) {
        if self.attention.is_watching() {
            self.wake_those_with_news();
        }
    }

    #[cold]
    fn wake_those_with_news(&self) {
        self.open.each(|link| {
            if link.if_waiting(End::has_news) == Some(true) {
                link.awaits.store(0, Ordering::Relaxed);
                if let Some(waker) = lock(&link.waker).as_ref() {
                    waker.wake_by_ref();
                }
            }
        });
        self.update_watching();
    }

    /// The figures of all channels, ended ones first.
    pub(crate) fn report(&self) -> Vec<ChannelReport> {
        let mut reports: Vec<_> = lock(&self.links).iter().map(|link| link.report()).collect();
        reports.sort_by_key(|report| report.is_alive);
        reports
    }
}

// ------------------------------------------------------------ for those who serve host processes

/// Why a host process was refused a channel.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no channel of this name; the text names those that are there.
    #[error("{0}")]
    Unknown(String),
    /// Another process has it open.
    #[error("found \"{name}\", which {holder} has open")]
    Busy {
        /// The channel.
        name: String,
        /// The other process.
        holder: String,
    },
    /// This card's borrowed core cannot be rung by other processes.
    #[error("other processes cannot ring the card's doorbell: it does not run on real cores")]
    NoDoorbell,
    /// The system refused memory or a descriptor.
    #[error("cannot make the memory: {0}")]
    System(#[from] io::Error),
}

/// The parts of a channel that a host process needs, in sending order.
#[derive(Debug)]
pub struct Opened {
    /// The memory, the process's doorbell, the card's doorbell.
    pub files: [OwnedFd; 3],
    /// Bytes of the longest message.
    pub message_bytes: usize,
    /// Messages each way.
    pub messages: usize,
}

/// The channels of a card, for the threads that serve host processes. Cheap to clone.
#[derive(Clone, Default)]
pub struct Channels(pub(crate) Option<Arc<Directory>>);

impl Channels {
    /// Opens a channel for a process, which its connection `client` identifies.
    ///
    /// # Errors
    /// There is no such channel, another process has it open, or the system has nothing left.
    pub fn open(&self, name: &str, client: u64, pid: Option<i32>) -> Result<Opened, OpenError> {
        let (directory, link) = self.find(name)?;
        let card = directory.attention.doorbell().and_then(|bell| bell.descriptor());
        let card = card.ok_or(OpenError::NoDoorbell)?.try_clone_to_owned()?;
        let (region, memory) = Region::create(link.shape.bytes())?;
        let bell = Bell::new()?;
        let files = [memory, bell.share()?, card];
        directory.offer(&link, client, pid, region, Arc::new(bell))?;
        let (message_bytes, messages) = (link.shape.message_bytes(), link.shape.messages());
        Ok(Opened { files, message_bytes, messages })
    }

    /// Opens a channel for code of this process, which `bell` wakes: for virtual cores and tests.
    ///
    /// # Errors
    /// As [`Channels::open`].
    pub fn open_here(&self, name: &str, bell: Arc<dyn Doorbell>) -> Result<HostEnd, OpenError> {
        let (directory, link) = self.find(name)?;
        let region = Region::private(link.shape.bytes())?;
        // No connection has such a number.
        let client = u64::MAX - directory.sessions.load(Ordering::Relaxed);
        let region = directory.offer(&link, client, None, region, bell)?;
        let card = Arc::new(CardBell(directory.attention.clone()));
        let end = End::new(region, link.shape, Side::Host, card);
        Ok(HostEnd { end, client, channels: self.clone() })
    }

    /// A connection has ended: closes the channels that the process had open.
    pub fn client_has_gone(&self, client: u64) {
        let Some(directory) = &self.0 else { return };
        for link in lock(&directory.links).iter() {
            let mut host = lock(&link.host);
            let Some(Host { session, end, .. }) = host.take_if(|host| host.client == client) else {
                continue;
            };
            drop(host);
            link.gone.store(session, Ordering::Release);
            lock(&directory.retired).push(end);
            link.tell();
        }
        directory.sweep();
    }

    /// Unmaps memory that the borrowed core no longer has, and forgets the oldest ended channels;
    /// called now and then.
    pub fn tick(&self) {
        if let Some(directory) = &self.0 {
            directory.sweep();
        }
    }

    /// The figures of all channels, ended ones first.
    pub fn list(&self) -> Vec<ChannelReport> {
        self.0.as_ref().map(|directory| directory.report()).unwrap_or_default()
    }

    fn find(&self, name: &str) -> Result<(&Arc<Directory>, Arc<Link>), OpenError> {
        let Some(directory) = &self.0 else {
            return Err(OpenError::Unknown("this card has no NIC OS, so no channels".into()));
        };
        let links = lock(&directory.links);
        let living = || links.iter().filter(|link| link.is_alive());
        match living().find(|link| *link.name == *name) {
            Some(link) => Ok((directory, link.clone())),
            None if living().next().is_none() => {
                let message = format!("found \"{name}\", but no task of this card has a channel");
                Err(OpenError::Unknown(message))
            }
            None => {
                let names = living().map(|link| &*link.name);
                Err(OpenError::Unknown(not_among("", name, names)))
            }
        }
    }
}

impl Directory {
    /// Gives the task a session with a process.
    fn offer(
        &self,
        link: &Link,
        client: u64,
        pid: Option<i32>,
        region: Region,
        bell: Arc<dyn Doorbell>,
    ) -> Result<Arc<Region>, OpenError> {
        let mut host = lock(&link.host);
        if let Some(holder) = host.as_ref().filter(|host| link.is_current(host)) {
            let holder = holder.pid.map(|pid| format!("process {pid}"));
            let holder = holder.unwrap_or_else(|| "another process".into());
            return Err(OpenError::Busy { name: link.name.to_string(), holder });
        }
        let region = Arc::new(region);
        let end = Arc::new(End::new(region.clone(), link.shape, Side::Card, bell));
        let number = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let before = host.replace(Host { session: number, client, pid, end: end.clone() });
        drop(host);
        lock(&self.retired).extend(before.map(|before| before.end));
        link.offer(Some(Session { number, end }));
        if !link.is_alive() {
            // The task ended at this moment, and will not see the offer.
            link.offer(None);
        }
        link.tell();
        Ok(region)
    }

    fn sweep(&self) {
        let mut links = lock(&self.links);
        for link in links.iter().filter(|link| !link.is_alive()) {
            lock(&self.retired).extend(lock(&link.host).take().map(|host| host.end));
            // Never taken, as the task has ended.
            link.offer(None);
        }
        let mut surplus = links.iter().filter(|link| !link.is_alive()).count();
        surplus = surplus.saturating_sub(MOST_ENDED);
        links.retain(|link| {
            let is_surplus = surplus != 0 && !link.is_alive();
            surplus -= usize::from(is_surplus);
            !is_surplus
        });
        drop(links);
        lock(&self.retired).retain(|end| Arc::strong_count(end) != 1);
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

/// Wakes the borrowed core from within its process.
struct CardBell(Arc<Attention>);

impl Doorbell for CardBell {
    fn ring(&self) {
        self.0.raise();
    }
}

/// The host's side of a channel, for code of the card's own process. Dropping it closes it.
#[derive(Debug)]
pub struct HostEnd {
    end: End,
    client: u64,
    channels: Channels,
}

impl HostEnd {
    /// Sends a message.
    ///
    /// # Errors
    /// The channel is full, or the message too long.
    pub fn send(&mut self, message: &[u8]) -> Result<(), SendError> {
        let staged = self.end.stage(message);
        self.end.flush();
        staged
    }

    /// The oldest message, if there is one: copies it, up to the length of `into`, and returns the
    /// number of bytes copied.
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        let bytes = self.end.take(into).ok().flatten();
        self.end.flush();
        bytes
    }

    /// The memory.
    pub fn region(&self) -> &Arc<Region> {
        self.end.region()
    }

    /// From now on news rings its doorbell; false if there are some already.
    pub fn rest(&mut self, awaits: Awaits) -> bool {
        self.end.rest(awaits);
        let rests = !self.end.has_news(awaits) && !self.end.is_closed();
        if !rests {
            self.end.wake();
        }
        rests
    }

    /// It is awake: news need not ring.
    pub fn wake(&mut self) {
        self.end.wake();
    }

    /// Whether the task has closed the channel.
    pub fn is_closed(&self) -> bool {
        self.end.is_closed()
    }
}

impl Drop for HostEnd {
    fn drop(&mut self) {
        self.channels.client_has_gone(self.client);
    }
}
