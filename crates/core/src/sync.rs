//! The few synchronisation types of the rings, replaced by loom's in models.
//!
//! The models in `ring/models.rs` explore every interleaving of the code that uses this module;
//! that file explains how to run them.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use self::real::UnsafeCell;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
mod real {
    /// `std::cell::UnsafeCell` with the closure interface that loom's has.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, body: impl FnOnce(*const T) -> R) -> R {
            body(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, body: impl FnOnce(*mut T) -> R) -> R {
            body(self.0.get())
        }
    }
}

/// Puts data written by different cores on separate cache lines.
///
/// 128 bytes, not 64: the processor's adjacent-line prefetcher moves pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);
