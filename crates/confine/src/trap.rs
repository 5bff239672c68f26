//! Refused system calls: counted where they are made, and ended with EPERM.
//!
//! The kernel sends SIGSYS to the thread in place of the call. The handler counts and gives the
//! call its result; it allocates, locks and calls nothing.
//!
//! Source: seccomp(2), SECCOMP_RET_TRAP; sigaction(2).

#![allow(unsafe_code)]

use crate::Role;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers of calls that are told apart; all above count as the last.
const CALLS: usize = 512;

static COUNTS: [[AtomicU32; CALLS]; Role::ALL.len()] =
    [const { [const { AtomicU32::new(0) }; CALLS] }; Role::ALL.len()];

/// What a role's filter sends along with a trap.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
pub(crate) fn data(role: Role) -> u16 {
    role as u16
}

/// The calls that threads of this role were refused: number and times.
pub(crate) fn refused(role: Role) -> impl Iterator<Item = (usize, u32)> {
    let counts = COUNTS[role as usize].iter().map(|count| count.load(Ordering::Relaxed));
    counts.enumerate().filter(|(_, times)| *times != 0)
}

/// Refused calls are counted from now on.
pub(crate) fn handle() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: all zeros is a sigaction with no flags and an empty mask; the handler has
            // the type that SA_SIGINFO asks for and may run at any point of any thread.
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
    // `SYS_SECCOMP` of <asm-generic/siginfo.h>: not a signal that somebody has sent.
    const BY_FILTER: libc::c_int = 1;
    // SAFETY: the kernel hands a handler with SA_SIGINFO both, and they are this frame's alone.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    if info.si_code != BY_FILTER {
        return;
    }
    // The registers are as they were at the call: its number is read, its result put there.
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
    // The role's number: what the filter sends along (SECCOMP_RET_DATA).
    if let Some(counts) = COUNTS.get(info.si_errno as usize) {
        counts[number.min(CALLS - 1)].fetch_add(1, Ordering::Relaxed);
    }
}
