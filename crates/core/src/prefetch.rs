//! Prefetch hints: affect only speed, and are safe for any address.

#![allow(unsafe_code)]

/// Prefetches the line at `address` for reading.
#[inline(always)]
pub fn for_read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch neither reads nor faults, for any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Requests ownership of the line at `address`, so that a store to it does not wait.
#[inline(always)]
pub fn for_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHW neither writes nor faults, and is a no-op where it is not implemented.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
