//! Middleware: what stands between the card and its ports, unseen by both.
//!
//! [`tracer`] writes the packets at any stage to a pcapng file; [`probe`] lets captures
//! begin and end while the card runs; [`fault`] loses,
//! doubles, reorders and damages packets, by seed. Each wraps a port, an
//! attachment's queue or a function, and is one itself, so they can be stacked.

pub mod fault;
pub mod probe;
pub mod tracer;
mod watch;
