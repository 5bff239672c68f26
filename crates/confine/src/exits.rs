//! Intercepts the end of the process when foreign code asks for it.
//!
//! If a function of a shared object calls `_exit`, the card would end with that status, and a
//! script could take it for success. A thread that runs such code calls a judge first: the kernel
//! traps exit_group(2) as made by libc.
//!
//! Guarantees: programs that the thread starts later inherit the filter but are not trapped,
//! because their libc has another address.
//!
//! Source: seccomp(2), exit_group(2).

use crate::trap;
use seccompiler::{apply_filter, sock_filter};
use std::ops::Range;
use std::sync::OnceLock;

/// `AUDIT_ARCH_...` of <linux/audit.h>.
const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

/// From now on this thread calls `judge` before it ends the process, in a signal handler. When
/// `judge` returns, the process ends. The first judge is used for all threads.
///
/// # Errors
/// The kernel lacks filters, or refuses this one.
pub(crate) fn watch(judge: fn()) -> Result<(), String> {
    static LIBC: OnceLock<Option<Range<u64>>> = OnceLock::new();
    let Some(libc) = LIBC.get_or_init(|| code_of(libc::_exit as *const () as u64)) else {
        return Err("cannot find the code of the C library".into());
    };
    trap::judge_exits(judge);
    trap::handle();
    apply_filter(&program(libc)).map_err(|error| error.to_string())
}

/// The code mapping that contains an address.
fn code_of(address: u64) -> Option<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(start)?..number(end)?)
    });
    ranges.into_iter().find(|range| range.contains(&address))
}

/// Traps exit_group from these addresses, unless its status carries the mark.
fn program(code: &Range<u64>) -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    // Offsets in `struct seccomp_data`.
    let [number, architecture, pointer, status]: [u32; 4] = [0, 4, 8, 16];
    let high = |address: u64| (address >> 32) as u32;
    // A library whose code crosses 4 GiB is covered up to there.
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
