//! Target rings: the ring itself, its gate and its interrupt moderation.

pub mod gate;
pub mod moderation;
pub mod spsc;

#[cfg(all(test, loom))]
mod models;
