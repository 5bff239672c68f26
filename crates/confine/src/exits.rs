//! The end of the process, asked for by code that is not ours: somebody is asked before.
//!
//! A function of a shared object that calls `_exit` ends the card with that status, and a script
//! takes the end for a success. A thread that runs such code asks first: the kernel traps its
//! exit_group(2) as libc makes it.
//!
//! Guarantees: programs that the thread starts later inherit the filter, and are not trapped: their
//! libc lies elsewhere.
//!
//! Source: seccomp(2), exit_group(2).

use crate::trap;
use seccompiler::{apply_filter, sock_filter};
use std::ops::Range;
use std::sync::OnceLock;

/// `AUDIT_ARCH_...` of <linux/audit.h>.
const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

/// From now on `judge` is called on this thread before it ends the process, in a signal handler.
/// When `judge` returns, the process ends. The first judge is that of all threads.
///
/// # Errors
/// The kernel has no filters, or refuses this one.
pub(crate) fn watch(judge: fn()) -> Result<(), String> {
    static LIBC: OnceLock<Option<Range<u64>>> = OnceLock::new();
    let Some(libc) = LIBC.get_or_init(|| code_of(libc::_exit as *const () as u64)) else {
        return Err("the C library's code is not found".into());
    };
    trap::judge_exits(judge);
    trap::handle();
    apply_filter(&program(libc)).map_err(|error| error.to_string())
}

/// The mapping of code that an address is in.
fn code_of(address: u64) -> Option<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    });
    ranges.into_iter().find(|range| range.contains(&address))
}

/// Traps exit_group from these addresses, unless its status is marked as let go.
fn program(code: &Range<u64>) -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    // Of `struct seccomp_data`.
    let [number, architecture, pointer, status]: [u32; 4] = [0, 4, 8, 16];
    let high = |address: u64| (address >> 32) as u32;
    // A library's code that crosses 4 GiB is cut there.
    let end = match high(code.start) == high(code.end) {
        true => code.end as u32,
        false => u32::MAX,
    };
    let steps = [
        (LOAD, architecture, 0, 0),
        (EQUAL, ARCH, 0, 11),
        (LOAD, number, 0, 0),
        (EQUAL, libc::SYS_exit_group as u32, 0, 9),
        (LOAD, status, 0, 0),
        (AND, !0xff, 0, 0),
        (EQUAL, trap::LET_GO, 6, 0),
        (LOAD, pointer + 4, 0, 0),
        (EQUAL, high(code.start), 0, 4),
        (LOAD, pointer, 0, 0),
        (AT_LEAST, code.start as u32, 0, 2),
        (AT_LEAST, end, 1, 0),
        (RETURN, libc::SECCOMP_RET_TRAP | trap::EXIT, 0, 0),
        (RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    steps.map(|(code, k, jt, jf)| sock_filter { code: code as u16, jt, jf, k }).to_vec()
}
