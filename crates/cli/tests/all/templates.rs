//! What `picnic new` writes in Rust builds, and passes its own tests.

#![allow(dead_code, unreachable_pub)]

include!(concat!(env!("OUT_DIR"), "/templates.rs"));
