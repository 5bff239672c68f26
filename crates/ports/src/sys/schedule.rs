//! How the kernel schedules the calling thread: as the others, or ahead of them.
//!
//! Guarantees: only the calling thread is touched; threads and processes that it starts begin as
//! ordinary ones.
//!
//! Source: sched(7), sched_setscheduler(2).

#![allow(unsafe_code)]

use std::io;

/// The lowest of the real-time priorities: ahead of every ordinary thread, behind every other
/// real-time one, including the kernel's own.
pub const REAL_TIME_PRIORITY: u8 = 1;

/// Schedules the calling thread ahead of all ordinary ones, from the moment it wakes.
///
/// # Errors
/// The system's error; `EPERM` without CAP_SYS_NICE or a resource limit that allows it.
pub fn real_time() -> io::Result<()> {
    set(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, REAL_TIME_PRIORITY.into())
}

/// Schedules the calling thread as an ordinary one again.
///
/// # Errors
/// The system's error.
pub fn ordinary() -> io::Result<()> {
    set(libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: only integers (some systems have more fields), for which zero is a value.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: 0 is the calling thread; the kernel reads the parameters and keeps no pointer.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
