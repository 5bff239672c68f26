//! All tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod backlog;
mod burst;
mod config;
mod descriptor;
mod doors;
mod files;
mod moderation;
mod pool;
mod pool_threads;
mod ring;
