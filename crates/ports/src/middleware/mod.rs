//! Middleware: what stands between the card and its ports, unseen by both.
//!
//! [`tracer`] writes the packets at any stage to a pcapng file; [`probe`] lets captures
//! begin and end while the card runs; both look on by hooks ([`picnic_core::hook`]).
//! [`fault`] loses, doubles, reorders and damages packets, by seed: it changes
//! them, so it wraps the wire and is one itself.

pub mod fault;
pub mod probe;
pub mod tracer;
