//! Confinement of threads after set-up: dropped privileges and system calls.
//!
//! ```no_run
//! use picnic_confine::{Role, set_up};
//! use rustix::thread::CapabilitySet;
//! picnic_confine::forbid_new()?;
//! // From now on, for the threads of every card of this process.
//! picnic_confine::ask_for();
//! // Each thread, when it has opened its files:
//! set_up(Role::Target, CapabilitySet::empty());
//! // At the end: refused system calls, and unavailable protection.
//! for note in picnic_confine::notes() {
//!     println!("{note}");
//! }
//! # Ok::<(), String>(())
//! ```
//!
//! Interfaces are opened, cores taken and priorities set at the start. After that a card moves
//! packets through descriptors that are open, which needs no capability and few system calls;
//! anything else would only help an attacker who finds a hole in a parser. `picnic run` gives up
//! both; a program that uses this library keeps them unless it does the same.
//!
//! Guarantees: a call that is not on the thread's list is not made, returns EPERM and is
//! counted; it ends no thread. Threads started later inherit the restrictions, and add their
//! own. If the kernel has no seccomp, a note says so.
//!
//! Remaining privileges, with reasons: docs/decisions/012-control-plane.md and
//! 025-confined-threads.md.
//!
//! Source: capabilities(7) (they belong to threads, and are inherited by threads made later),
//! PR_SET_NO_NEW_PRIVS(2const), seccomp(2), seccomp_unotify(2).

mod calls;
mod capabilities;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod exits;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filter;
mod trap;

pub use capabilities::{forbid_new, give_up};

use rustix::thread::CapabilitySet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The role of a card's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Starts and stops the card.
    Main,
    /// Runs the card.
    Borrowed,
    /// Takes interrupts on a target core.
    Target,
    /// Serves clients.
    Control,
    /// Writes packets to a file.
    Capture,
    /// Opens and closes an xdp wire's sockets.
    Xdp,
    /// Reads the counters of kernel programs and changes their maps.
    Programs,
    /// Serves the socket of a guest.
    Guest,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 8] = [
        Role::Main,
        Role::Borrowed,
        Role::Target,
        Role::Control,
        Role::Capture,
        Role::Xdp,
        Role::Programs,
        Role::Guest,
    ];

    /// Its name in notes.
    pub fn name(self) -> &'static str {
        match self {
            Role::Main => "main",
            Role::Borrowed => "borrowed core",
            Role::Target => "target core",
            Role::Control => "control",
            Role::Capture => "capture",
            Role::Xdp => "xdp",
            Role::Programs => "kernel counters",
            Role::Guest => "guest",
        }
    }
}

/// Whether threads drop unneeded privileges.
static ASKED_FOR: AtomicBool = AtomicBool::new(false);
/// Whether control threads may load code.
static LOADING: AtomicBool = AtomicBool::new(false);
/// Whether control threads may load programs into the kernel.
static PROGRAMS: AtomicBool = AtomicBool::new(false);
/// Whether threads that change such programs may enter network namespaces.
static NAMESPACES: AtomicBool = AtomicBool::new(false);
/// Failures, each once.
static TROUBLES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Confines the threads of cards that are set up from now on. This holds for the rest of the
/// process.
pub fn ask_for() {
    trap::handle();
    let_libc_ask();
    ASKED_FOR.store(true, Ordering::Release);
}

/// Allows control threads that are set up from now on to load shared objects, from files that are
/// not written in memory. For cards whose functions from shared objects are replaced while the card
/// runs.
pub fn allow_loading() {
    LOADING.store(true, Ordering::Release);
}

/// Allows control threads that are set up from now on to load programs into the kernel: for cards
/// whose chain is in the kernel and is replaced while the card runs. If wires are `in_namespaces`,
/// these threads and those that read the programs' counters may enter network namespaces.
pub fn allow_programs(in_namespaces: bool) {
    PROGRAMS.store(true, Ordering::Release);
    NAMESPACES.store(in_namespaces, Ordering::Release);
}

/// Whether the control thread of a card may load shared objects.
pub fn may_load() -> bool {
    !ASKED_FOR.load(Ordering::Acquire) || LOADING.load(Ordering::Acquire)
}

/// Makes libc's one-time queries early, by opening a file: when libc first returns a thread's
/// memory, it asks whether it may. Otherwise a confined thread would ask later.
fn let_libc_ask() {
    /// Small enough for the thread's arena instead of a separate mapping.
    const PIECE: usize = 64 << 10;
    let asking = std::thread::Builder::new().name("confine".into()).spawn(|| {
        let pieces: Vec<Vec<u8>> = (0..32).map(|_| Vec::with_capacity(PIECE)).collect();
        drop(std::hint::black_box(pieces));
    });
    // Without it, one call is refused and counted.
    let _ = asking.map(std::thread::JoinHandle::join);
}

/// Confines a thread of a card after set-up to the calls of its role and the capabilities to
/// `keep`. Does nothing unless [asked for](ask_for).
pub fn set_up(role: Role, keep: CapabilitySet) {
    if !ASKED_FOR.load(Ordering::Acquire) {
        return;
    }
    for trouble in [give_up(keep), install(role)].into_iter().filter_map(Result::err) {
        let mut troubles = TROUBLES.lock().unwrap_or_else(PoisonError::into_inner);
        if !troubles.contains(&trouble) {
            troubles.push(trouble);
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn install(role: Role) -> Result<(), String> {
    let is_so = |asked: &AtomicBool| asked.load(Ordering::Acquire);
    let (is_control, is_programs) = (role == Role::Control, role == Role::Programs);
    let extras = calls::Extras {
        loads: is_control && is_so(&LOADING),
        programs: is_control && is_so(&PROGRAMS),
        namespaces: (is_control || is_programs) && is_so(&NAMESPACES),
    };
    filter::install(role, extras)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn install(_: Role) -> Result<(), String> {
    Err("system calls are not filtered: not supported on this processor".into())
}

/// From now on this thread calls `judge` before it ends the process, in a signal handler: for
/// threads that run foreign code. When `judge` returns, the process ends. The first judge is used
/// for all threads. Programs that the thread starts are not affected.
///
/// # Errors
/// The kernel lacks system call filters, or refuses this one.
pub fn watch_exits(judge: fn()) -> Result<(), String> {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    return exits::watch(judge);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Err(format!("not supported on this processor: {judge:p}"))
}

/// Ends the process at once, bypassing [`watch_exits`]: no exit handler runs, nothing is flushed.
pub fn end_process(status: u8) -> ! {
    trap::end_process(status)
}

/// Notes for the user: refused calls and failures.
pub fn notes() -> Vec<String> {
    let mut notes = TROUBLES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for role in Role::ALL {
        let refused: Vec<_> = trap::refused(role)
            .map(|(call, times)| format!("{} ({times} times)", calls::name(call)))
            .collect();
        if !refused.is_empty() {
            notes.push(format!(
                "system calls refused to the {} thread: {}; either this is a bug in picnic, or \
                 someone is trying to misuse the card",
                role.name(),
                refused.join(", ")
            ));
        }
    }
    notes
}
