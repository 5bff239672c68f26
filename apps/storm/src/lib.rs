//! STORM: messages in one order at every member of a group.
//!
//! * [`member`]: the protocol, without sockets and without a clock;
//! * [`settings`]: what the members agree on;
//! * [`wire`]: the packets;
//! * [`store`]: the messages that a member keeps.
//!
//! Source: NICOS 4.7.

#![forbid(unsafe_code)]

pub mod member;
pub mod settings;
pub mod store;
pub mod wire;

pub use member::{Counts, Delivery, Member, Refusal, SubmitError, To};
pub use settings::{Fault, Settings};

// The README's example is built along with the documentation's other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
