//! The place of the vector form on machines that have none.
//!
//! # Guarantees
//!
//! `Gfni` has no values here, so the table form is always the one that runs.
//!
//! Source: none; see `gfni.rs`.

use crate::{Key, V4Tuple, V6Tuple};

#[derive(Clone)]
pub(super) enum Gfni {}

impl Gfni {
    pub(super) fn new(_key: &Key) -> Option<Gfni> {
        None
    }

    pub(super) fn hash_v4(&self, _tuples: &[V4Tuple], _out: &mut [u32]) {
        match *self {}
    }

    pub(super) fn hash_v6(&self, _tuples: &[V6Tuple], _out: &mut [u32]) {
        match *self {}
    }
}
