//! Privileges: given up once they are no longer needed.
//!
//! Interfaces are opened, cores taken and priorities set at the start. After that a card moves
//! packets through descriptors that are open, which needs no capability; what is left would
//! serve nobody but whoever finds a hole in a parser. `picnic run` asks for that by
//! [`forbid_new`] and [`threads_give_up`] before the start and by [`give_up`] after it; a
//! program that uses this library keeps what it has unless it does the same.
//!
//! What stays, and why: docs/decisions/012-control-plane.md.
//!
//! Source: capabilities(7) (they belong to threads, and are inherited by threads made later),
//! PR_SET_NO_NEW_PRIVS(2const).

use picnic_core::config::CardFile;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the threads of cards give up what they have, once they are set up.
static THREADS_GIVE_UP: AtomicBool = AtomicBool::new(false);

/// From now on, nothing that this process starts gains privileges. Before any thread is
/// started, as it holds for the calling thread and those it starts.
///
/// # Errors
/// Why not, for people.
pub fn forbid_new() -> Result<(), String> {
    set_no_new_privs(true).map_err(|error| format!("new privileges cannot be ruled out: {error}"))
}

/// The threads of cards that are started from now on give up all privileges when they are set
/// up. Once asked for, this holds for the process.
pub fn threads_give_up() {
    THREADS_GIVE_UP.store(true, Ordering::Release);
}

/// For a thread of a card: it is set up.
pub fn thread_is_set_up() {
    if THREADS_GIVE_UP.load(Ordering::Acquire) {
        // The same call by the thread that started the card says why, should it fail.
        let _ = give_up(CapabilitySet::empty());
    }
}

/// What the thread that started a card still needs, for the end: to give other processes back
/// the cores that they were moved away from, and to remove the control group they were kept out
/// of, whose parent root itself may not write without DAC_OVERRIDE.
pub fn needed_to_stop(file: &CardFile) -> CapabilitySet {
    match file.isolation.apply {
        true => CapabilitySet::SYS_NICE | CapabilitySet::DAC_OVERRIDE,
        false => CapabilitySet::empty(),
    }
}

/// The calling thread gives up all capabilities that it has, but those to `keep`.
///
/// # Errors
/// Why not, for people.
pub fn give_up(keep: CapabilitySet) -> Result<(), String> {
    let refused = |error| format!("privileges cannot be given up: {error}");
    // Old kernels have none.
    let _ = clear_ambient_capability_set();
    let CapabilitySets { permitted, .. } = capabilities(None).map_err(refused)?;
    let kept = permitted & keep;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_up_its_own_and_no_other_threads() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(|| {
            give_up(CapabilitySet::empty()).unwrap();
            let sets = capabilities(None).unwrap();
            assert!(sets.effective.is_empty() && sets.permitted.is_empty());
            // Once more, with nothing left.
            give_up(CapabilitySet::SYS_NICE).unwrap();
            assert!(capabilities(None).unwrap().permitted.is_empty());
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap().permitted, before.permitted);
    }

    #[test]
    fn what_is_kept_is_what_was_there() {
        std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            give_up(CapabilitySet::SYS_NICE).unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(after.permitted, before & CapabilitySet::SYS_NICE);
            assert_eq!(after.effective, after.permitted);
        })
        .join()
        .unwrap();
    }
}
