//! What `picnic new` writes in Rust builds, and passes its own tests.

#![allow(dead_code, unreachable_pub)]
// Each is a crate of its own for its user, with the shared tests in it.
#![allow(clippy::duplicate_mod)]

include!(concat!(env!("OUT_DIR"), "/templates.rs"));
