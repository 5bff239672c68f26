//! The card: from wire to target queue, and back, on a borrowed core.
//!
//! Read in this order: [`poll`] (one turn of the borrowed core), [`rx`] (wire to
//! target ring), [`chain`] (a burst through the functions), [`target`] (the
//! target core's routine), `handover` (one core that receives for others), [`tx`]
//! (tx ring to wire), [`swap`] (changes while running), [`build`] (from a card file
//! to its parts), [`assemble`] (the parts connected).
//!
//! It names no concrete function or port, reads no clock and starts no thread:
//! `picnic-host` runs it on real cores, `picnic-sim` on virtual ones.

#![forbid(unsafe_code)]

pub mod assemble;
pub mod build;
pub mod chain;
mod handover;
pub mod poll;
pub mod rx;
pub mod swap;
pub mod target;
pub mod trial;
pub mod tx;
pub mod view;
