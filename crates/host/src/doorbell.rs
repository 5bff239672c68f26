//! Doorbells of real cores: a futex for targets, an eventfd for sleeping with descriptors.
//!
//! A doorbell is rung only through an armed gate, so neither costs a system call while the other
//! side is busy.

use crate::absence::Presence;
use crate::clock::Clock;
use picnic_core::doorbell::Doorbell;
use picnic_engine::rx::Wire;
use picnic_engine::target::{LOOKS_AGAIN_NS, Target};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const QUIET: u32 = 0;
const RUNG: u32 = 1;
const WAITING: u32 = 2;

/// Wakes a target core's thread.
#[derive(Debug, Default)]
pub struct FutexDoorbell {
    state: AtomicU32,
}

impl FutexDoorbell {
    /// Sleeps until it is rung, or for `timeout`. Returns at once if it was already rung.
    pub fn wait(&self, timeout: Duration) {
        let waiting =
            self.state.compare_exchange(QUIET, WAITING, Ordering::Acquire, Ordering::Acquire);
        if waiting.is_ok() {
            let timeout = timespec(timeout);
            // A wake-up, a timeout, a signal, a changed value: all mean "check again".
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, WAITING, Some(&timeout));
        }
        self.state.store(QUIET, Ordering::Release);
    }
}

impl Doorbell for FutexDoorbell {
    fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == WAITING {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

fn timespec(duration: Duration) -> rustix::time::Timespec {
    rustix::time::Timespec {
        tv_sec: duration.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Wakes the borrowed core, which sleeps on it together with the wires, or a target core whose host
/// has descriptors to sleep on.
#[derive(Debug)]
pub struct CardDoorbell {
    event: OwnedFd,
}

impl CardDoorbell {
    /// A new doorbell.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(CardDoorbell { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Sleeps until it is rung or a wire is readable, or for `timeout`.
    pub fn wait(&self, wires: &[Wire], timeout: Duration) {
        self.wait_with(wires.iter().filter_map(|wire| wire.port.status().readiness), timeout);
    }

    /// Sleeps until it is rung or one of `readiness` is readable, or for `timeout`.
    pub fn wait_with<'a>(
        &self,
        readiness: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Duration,
    ) {
        let mut sources = vec![PollFd::new(&self.event, PollFlags::IN)];
        sources.extend(readiness.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
        self.sleep(&mut sources, timeout);
    }

    /// Sleeps until it is rung, or for `timeout`.
    pub fn wait_rung(&self, timeout: Duration) {
        self.sleep(&mut [PollFd::new(&self.event, PollFlags::IN)], timeout);
    }

    /// Sleeps on these descriptors; the first is the doorbell's.
    fn sleep(&self, sources: &mut [PollFd<'_>], timeout: Duration) {
        let _ = poll(sources, Some(&timespec(timeout)));
        if !sources[0].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.event, &mut count);
        }
    }
}

impl Doorbell for CardDoorbell {
    fn ring(&self) {
        // A full counter has been rung often enough.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
}

/// Wakes a target core by the cheaper way that its host allows.
#[derive(Debug)]
pub struct TargetDoorbell {
    bell: Bell,
    /// Whether the core is there; a core that is rung and is not has been taken away.
    presence: Arc<Presence>,
    clock: OnceLock<Clock>,
}

#[derive(Debug)]
enum Bell {
    /// The host sends nothing on its own.
    Futex(FutexDoorbell),
    /// The host has descriptors that become readable when it has packets to send.
    Event(CardDoorbell),
}

impl TargetDoorbell {
    /// A new doorbell, for a host that sends on its own or not.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new(host_transmits: bool) -> std::io::Result<Self> {
        let bell = match host_transmits {
            true => Bell::Event(CardDoorbell::new()?),
            false => Bell::Futex(FutexDoorbell::default()),
        };
        Ok(TargetDoorbell { bell, presence: Arc::default(), clock: OnceLock::new() })
    }

    /// Tells when it is rung by this clock from now on. Once; later calls change nothing.
    pub(crate) fn set_clock(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    /// Whether its core is there.
    pub(crate) fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// Sleeps until it is rung, or for `timeout`.
    pub fn wait_rung(&self, timeout: Duration) {
        self.presence.rests();
        match &self.bell {
            Bell::Futex(bell) => bell.wait(timeout),
            Bell::Event(bell) => bell.wait_rung(timeout),
        }
    }

    /// Sleeps until it is rung or `target`'s host has packets to send, or for `timeout`.
    pub fn wait(&self, target: &Target, timeout: Duration) {
        self.presence.rests();
        match &self.bell {
            Bell::Futex(bell) => bell.wait(timeout),
            Bell::Event(bell) => {
                let soon = Duration::from_nanos(LOOKS_AGAIN_NS);
                let timeout = if target.looks_again_soon() { soon } else { timeout };
                bell.wait_with(target.readiness(), timeout);
            }
        }
    }
}

impl Doorbell for TargetDoorbell {
    fn ring(&self) {
        if let Some(clock) = self.clock.get() {
            self.presence.is_rung(clock.now());
        }
        match &self.bell {
            Bell::Futex(bell) => bell.ring(),
            Bell::Event(bell) => bell.ring(),
        }
    }
}
