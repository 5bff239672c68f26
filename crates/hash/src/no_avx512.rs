//! Stand-in for the vector forms on architectures without them.
//!
//! # Guarantees
//!
//! `Gfni` has no values here, so the portable forms always run.
//!
//! Source: none; the names are those of `avx512.rs`.

use crate::{Key, V4Tuple, V6Tuple};

#[derive(Clone)]
pub(crate) enum Gfni {}

impl Gfni {
    pub(crate) fn new(_key: &Key) -> Option<Gfni> {
        None
    }

    pub(crate) fn hash_v4(&self, _tuples: &[V4Tuple], _out: &mut [u32]) {
        match *self {}
    }

    pub(crate) fn hash_v6(&self, _tuples: &[V6Tuple], _out: &mut [u32]) {
        match *self {}
    }
}

#[inline]
pub(crate) fn jhash_v4(_tuples: &[V4Tuple], _start: u32, _out: &mut [u32]) -> bool {
    false
}

#[inline]
pub(crate) fn jhash_v6(_tuples: &[V6Tuple], _start: u32, _out: &mut [u32]) -> bool {
    false
}
