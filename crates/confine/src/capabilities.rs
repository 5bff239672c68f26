//! Capabilities: dropped once they are no longer needed.
//!
//! Source: capabilities(7), PR_SET_NO_NEW_PRIVS(2const).

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

/// Forbids new privileges for all programs that this process starts. Call it before starting
/// threads, since it holds for the calling thread and threads it starts.
///
/// # Errors
/// The reason, in words.
pub fn forbid_new() -> Result<(), String> {
    set_no_new_privs(true).map_err(|error| format!("cannot set no_new_privs: {error}"))
}

/// Drops all capabilities of the calling thread except `keep`.
///
/// # Errors
/// The reason, in words.
pub fn give_up(keep: CapabilitySet) -> Result<(), String> {
    let refused = |error| format!("cannot drop capabilities: {error}");
    // Old kernels lack some.
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
    fn thread_drops_only_its_own_privileges() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(|| {
            give_up(CapabilitySet::empty()).unwrap();
            let sets = capabilities(None).unwrap();
            assert!(sets.effective.is_empty() && sets.permitted.is_empty());
            // Once more, without capabilities.
            give_up(CapabilitySet::SYS_NICE).unwrap();
            assert!(capabilities(None).unwrap().permitted.is_empty());
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap().permitted, before.permitted);
    }

    #[test]
    fn kept_capabilities_were_present_before() {
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
