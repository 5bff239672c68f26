//! Trapped system calls: refused calls are counted and fail with EPERM; the end of the process goes
//! to a judge.
//!
//! The kernel sends SIGSYS to the thread instead of making the call. The handler counts and sets
//! the call's result; it allocates, locks and calls nothing.
//!
//! Source: seccomp(2), SECCOMP_RET_TRAP; sigaction(2).

#![allow(unsafe_code)]

use crate::Role;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

/// Counted call numbers; higher numbers count as the last.
const CALLS: usize = 512;

static COUNTS: [[AtomicU32; CALLS]; Role::ALL.len()] =
    [const { [const { AtomicU32::new(0) }; CALLS] }; Role::ALL.len()];

/// The data of a role's traps.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
pub(crate) fn data(role: Role) -> u16 {
    role as u16
}

/// The data of a trap for the end of the process; no role has this number.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
pub(crate) const EXIT: u32 = 0xffff;
/// Mark above the 8 bits of a status, ignored by the kernel: this exit may proceed.
pub(crate) const LET_GO: u32 = 0x5049_4300;

static JUDGE: OnceLock<fn()> = OnceLock::new();

/// Sets the judge that runs before a watched thread ends the process.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
pub(crate) fn judge_exits(judge: fn()) {
    let _ = JUDGE.set(judge);
}

/// Ends the process at once, without exit handlers.
pub(crate) fn end_process(status: u8) -> ! {
    loop {
        // SAFETY: the call takes a number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, LET_GO | u32::from(status)) };
    }
}

/// The calls refused to threads of this role: number and count.
pub(crate) fn refused(role: Role) -> impl Iterator<Item = (usize, u32)> {
    let counts = COUNTS[role as usize].iter().map(|count| count.load(Ordering::Relaxed));
    counts.enumerate().filter(|(_, times)| *times != 0)
}

/// Starts to count refused calls.
pub(crate) fn handle() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: all zeros is a sigaction with no flags and an empty mask; the handler has the
            // type that SA_SIGINFO requires and may run at any point of any thread.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_refused as *const () as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
            }
        });
    }
}

/// The handler of SIGSYS.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn on_refused(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // `SYS_SECCOMP` of <asm-generic/siginfo.h>: not a signal sent by a process.
    const BY_FILTER: libc::c_int = 1;
    // SAFETY: the kernel hands a handler with SA_SIGINFO both, and they are this frame's alone.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    if info.si_code != BY_FILTER {
        return;
    }
    if info.si_errno as u32 == EXIT {
        #[cfg(target_arch = "x86_64")]
        let status = context.uc_mcontext.gregs[libc::REG_RDI as usize] as u8;
        #[cfg(target_arch = "aarch64")]
        let status = context.uc_mcontext.regs[0] as u8;
        if let Some(judge) = JUDGE.get() {
            judge();
        }
        end_process(status);
    }
    // The registers are as at the call: its number is read, its result is written.
    #[cfg(target_arch = "x86_64")]
    let (number, result) = {
        let register = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
        (*register as usize, register)
    };
    #[cfg(target_arch = "aarch64")]
    let (number, result) = {
        let [result, _, _, _, _, _, _, _, number, ..] = &mut context.uc_mcontext.regs;
        (*number as usize, result)
    };
    *result = -i64::from(libc::EPERM) as _;
    // The role's number, from the filter (SECCOMP_RET_DATA).
    if let Some(counts) = COUNTS.get(info.si_errno as usize) {
        counts[number.min(CALLS - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use crate::calls::{self, Allowed, MAKING_PROCESSES};
    use rustix::thread::CapabilitySet;
    use std::collections::BTreeSet;

    /// Above every number that a kernel knows: unknown calls are refused, too.
    const NUMBERS: i64 = 600;
    /// `uretprobe` and `uprobe`: for the kernel's own code in a process, not filtered and harmless;
    /// any other caller gets SIGILL.
    const PROBES: [i64; 2] = if cfg!(target_arch = "x86_64") { [335, 336] } else { [-1, -1] };

    /// The error of a call with all arguments equal to this; none if it succeeded.
    fn error_of(call: i64, argument: u64) -> Option<i32> {
        // SAFETY: a working filter refuses the call before it does anything. Otherwise no memory is
        // touched and no descriptor has this number.
        let result = unsafe {
            libc::syscall(call, argument, argument, argument, argument, argument, argument)
        };
        (result == -1).then(|| std::io::Error::last_os_error().raw_os_error().unwrap_or_default())
    }

    fn times(role: Role, call: i64) -> u32 {
        let counted = |number: usize| number == (call as usize).min(CALLS - 1);
        refused(role).filter(|(number, _)| counted(*number)).map(|(_, times)| times).sum()
    }

    #[test]
    fn every_call_that_a_role_has_not_is_refused_and_counted() {
        crate::ask_for();
        for role in Role::ALL {
            let thread = std::thread::spawn(move || {
                crate::set_up(role, CapabilitySet::empty());
                let listed: BTreeSet<i64> =
                    calls::of(role).into_iter().flatten().map(|&(_, call)| call).collect();
                let rules: Vec<_> = calls::rules(role).collect();
                // Calls that make processes fail without a trap: see `filter`.
                let fails = |call| MAKING_PROCESSES.iter().any(|&(_, other)| other == call);
                // Asserted outside: a confined thread could not report a failure.
                let mut found = Vec::new();
                let unlisted = |call: &i64| !listed.contains(call) && !PROBES.contains(call);
                for call in (0..NUMBERS).filter(unlisted) {
                    // No rule of the call allows this: an unknown, open-ended number.
                    let argument = match rules.iter().find(|rule| rule.call == call) {
                        Some(rule) => match rule.allowed {
                            Allowed::Without(bits) => bits,
                            Allowed::OneOf(_) | Allowed::ThisProcess => u64::MAX >> 33,
                        },
                        None => u64::MAX,
                    };
                    let before = times(role, call);
                    let error = error_of(call, argument);
                    let counted = times(role, call) - before;
                    found.push((call, error, counted, u32::from(!fails(call))));
                }
                found
            });
            let found = thread.join().unwrap();
            assert!(found.len() > 450, "{role:?}: {}", found.len());
            for (call, error, counted, expected) in found {
                let name = calls::name(call as usize);
                assert_eq!((error, counted), (Some(libc::EPERM), expected), "{role:?}: {name}");
            }
        }
    }
}
