//! Memory that another process shares and may take away: a fault there ends no process.
//!
//! A program that maps a file gets SIGBUS at pages that the file no longer has, or for which there
//! is no memory. The handler puts pages of zeros in place of the whole mapping and rings a
//! bell; the access then goes on, with zeros. Faults elsewhere go to the handler that was
//! there before.
//!
//! Guarantees: the handler allocates and locks nothing. A mapping is watched as long as its
//! [`Guard`] lives, which belongs beside the mapping.
//!
//! Source: sigaction(2), mmap(2), "Use of a mapped region".

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use vm_memory::bitmap::Bitmap;
use vm_memory::mmap::MmapRegion;

/// Most mappings: 16 guests with all their regions.
const SLOTS: usize = 4096 + 64;

/// A watched mapping.
struct Slot {
    /// Its first address; 0 if the slot is free, 1 while it is being filled.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The bell's descriptor.
    bell: AtomicI32,
}

static WATCHED: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), bell: AtomicI32::new(-1) }
}; SLOTS];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The handler before; 0 for none.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// The watch over a mapping.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: usize,
    /// Open as long as the handler may write to it.
    _bell: Arc<OwnedFd>,
}

impl Guard {
    /// Watches the mapping of a file; `bell` is an event descriptor that does not block.
    ///
    /// # Errors
    /// Too many mappings are watched, or the mapping is no whole number of the file's pages.
    pub(crate) fn over<B: Bitmap>(
        region: &MmapRegion<B>,
        file: &File,
        bell: &Arc<OwnedFd>,
    ) -> std::io::Result<Self> {
        /// `HUGETLBFS_MAGIC` of <linux/magic.h>.
        const HUGE: u64 = 0x9584_58f6;
        install();
        let system = rustix::fs::fstatfs(file)?;
        let page = if system.f_type as u64 == HUGE { system.f_bsize as usize } else { 4096 };
        let bytes = region.size().checked_next_multiple_of(page).unwrap_or(usize::MAX);
        if page != 4096 && bytes != region.size() {
            return Err(std::io::Error::other("it is no whole number of huge pages"));
        }
        let start = region.as_ptr() as usize;
        for (slot, watched) in WATCHED.iter().enumerate() {
            let taken = watched.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            watched.end.store(start.saturating_add(bytes), Ordering::Relaxed);
            watched.bell.store(bell.as_raw_fd(), Ordering::Relaxed);
            watched.start.store(start, Ordering::Release);
            USED.fetch_max(slot + 1, Ordering::Release);
            return Ok(Guard { slot, _bell: bell.clone() });
        }
        Err(std::io::Error::other("too many regions of guests are mapped"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        WATCHED[self.slot].start.store(0, Ordering::Release);
    }
}

fn set(handler: usize) -> libc::sigaction {
    // SAFETY: all zeros is a sigaction without flags and with an empty mask; `handler` is SIG_DFL,
    // or has the type that SA_SIGINFO requires and may run at any point of any thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        // On the thread's signal stack, if it has one: it may be another fault, of a full stack.
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        action.sa_flags |= if handler == libc::SIG_DFL { 0 } else { libc::SA_SIGINFO };
        libc::sigaction(libc::SIGBUS, &raw const action, &raw mut old);
        old
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let old = set(on_fault as *const () as usize);
        let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&old.sa_sigaction)
            && old.sa_flags & libc::SA_SIGINFO != 0;
        BEFORE.store(if is_handler { old.sa_sigaction } else { 0 }, Ordering::Release);
    });
}

/// The mapping with this address is replaced by zeros; whether there is one.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire).min(SLOTS);
    let mut is_found = false;
    // A mapping goes shortly before its guard, so two may have an address for a moment.
    for slot in &WATCHED[..used] {
        let start = slot.start.load(Ordering::Acquire);
        let end = slot.end.load(Ordering::Relaxed);
        if start <= 1 || !(start..end).contains(&address) {
            continue;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the addresses are those of a mapping of another process's file, which its owner
        // keeps for as long as it is watched, and which is accessed by volatile copies alone.
        let mapped = unsafe { mmap_anonymous(start as *mut _, end - start, protection, flags) };
        if mapped.is_err() {
            continue;
        }
        is_found = true;
        // SAFETY: the guard of this slot keeps the descriptor open.
        let bell = unsafe { BorrowedFd::borrow_raw(slot.bell.load(Ordering::Relaxed)) };
        let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
    }
    is_found
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the signal's data, with an address if an instruction raised it.
    let (is_raised, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    if is_raised && replace(address) {
        // A handler that was installed later, and called this one, may have been for one signal.
        set(on_fault as *const () as usize);
        return;
    }
    // The instruction faults again, now with the handler before this one, or the default.
    set(libc::SIG_DFL);
    let before = BEFORE.load(Ordering::Acquire);
    if before != 0 {
        // SAFETY: it was installed with SA_SIGINFO, which defines its type.
        let before: Handler = unsafe { std::mem::transmute(before) };
        before(signal, info, context);
    }
}
