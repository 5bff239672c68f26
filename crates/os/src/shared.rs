//! State shared by tasks and the executor: a task's way to the card.
//!
//! Tasks run on the borrowed core between two steps of the executor, so nothing here is ever
//! contended: taking or releasing a lock is one atomic instruction, and never waits. Requests of a
//! task are handled after its segment.

use crate::channel::{Channels, Directory};
use crate::installed::Installed;
use crate::mailbox::{self, Mailbox, MailboxSender};
use crate::memory::{CARD, Charge, Kind, Memory, MemoryError};
use crate::net::Outbox;
use crate::task::TaskRequest;
use picnic_core::resident::Attention;
use picnic_core::time::Time;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Takes a lock that only the borrowed core takes. A panic of a task that held it leaves no state
/// that would prevent the card from continuing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) struct Shared {
    pub(crate) attention: Arc<Attention>,
    /// One bit for each task that was woken.
    pub(crate) woken: Box<[AtomicU64]>,
    /// When the running segment began.
    now: AtomicU64,
    pub(crate) outbox: Mutex<Outbox>,
    /// Whether the outbox holds anything for the card.
    pub(crate) outbox_used: AtomicBool,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) requests: Mutex<Vec<TaskRequest>>,
    pub(crate) requested: AtomicBool,
    pub(crate) installed: Installed,
    pub(crate) channels: Arc<Directory>,
}

impl Shared {
    pub(crate) fn new(tasks: usize, memory: Arc<Mutex<Memory>>, outbox: Outbox) -> Self {
        let attention = Arc::<Attention>::default();
        Shared {
            channels: Arc::new(Directory::new(attention.clone())),
            attention,
            woken: (0..tasks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            now: AtomicU64::new(0),
            outbox: Mutex::new(outbox),
            outbox_used: AtomicBool::new(false),
            memory,
            requests: Mutex::new(Vec::with_capacity(tasks)),
            requested: AtomicBool::new(false),
            installed: Installed::default(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn set_now(&self, now: Time) {
        self.now.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Wakes the task in this place; from any thread.
    pub(crate) fn wake(&self, slot: u32) {
        if let Some(word) = self.woken.get(slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::AcqRel);
            self.attention.raise();
        }
    }

    /// Passes a request to the executor, to be handled after the segment.
    pub(crate) fn request(&self, request: TaskRequest) {
        lock(&self.requests).push(request);
        self.requested.store(true, Ordering::Release);
        self.attention.raise();
    }

    /// Makes the executor check the outbox.
    pub(crate) fn mark_outbox(&self) {
        self.outbox_used.store(true, Ordering::Release);
        self.attention.raise_here();
    }
}

/// Services of NIC OS for code other than tasks, such as filters. Cheap to clone.
#[derive(Clone)]
pub struct Services(pub(crate) Arc<Shared>);

impl Services {
    /// A mailbox for `capacity` packets, rounded up to a power of two, and its sending end.
    ///
    /// # Errors
    /// Card memory has no room.
    pub fn mailbox(&self, capacity: usize) -> Result<(MailboxSender, Mailbox), MemoryError> {
        mailbox::channel(&self.0, CARD, capacity)
    }

    /// Reserves card memory for an object of this size that lives elsewhere.
    ///
    /// # Errors
    /// There is no room.
    pub fn charge(&self, kind: Kind, bytes: usize) -> Result<Charge, MemoryError> {
        lock(&self.0.memory).charge(CARD, kind, bytes)
    }

    /// The channels of tasks, for host processes.
    pub fn channels(&self) -> Channels {
        Channels(Some(self.0.channels.clone()))
    }

    /// The attention of NIC OS, with the count of packets held.
    pub fn attention(&self) -> &Arc<Attention> {
        &self.0.attention
    }

    /// When the running segment began, or the last one.
    pub fn now(&self) -> Time {
        self.0.now()
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}
