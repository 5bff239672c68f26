//! STORM: totally ordered messages in a group.
//!
//! * [`member`]: the protocol, without sockets and without a clock;
//! * [`settings`]: the settings that all members share;
//! * [`wire`], [`agreement`]: the packets;
//! * [`store`]: the messages that a member keeps;
//! * [`node`]: a member as a program, over UDP;
//! * [`log`], [`check`]: the log of a member, and the check of several logs;
//! * [`card`]: a member on a card;
//! * [`mod@bench`], [`cards`]: latency and throughput of a group.
//!
//! Source: NICOS 4.7.

#![forbid(unsafe_code)]

pub mod agreement;
pub mod bench;
pub mod card;
pub mod cards;
pub mod check;
pub mod log;
pub mod member;
pub mod node;
pub mod settings;
pub mod store;
pub mod wire;

pub use member::{Counts, Delivery, Member, Refusal, State, SubmitError, To};
pub use settings::{Fault, Settings};

// The README's example is built along with the documentation's other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
