//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod header;
mod objects;
mod random;
mod sdk;
