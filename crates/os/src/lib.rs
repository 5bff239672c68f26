//! NIC OS: runs tasks on the borrowed core beside the packet path.
//!
//! Tasks are Rust `async` functions; a yield is an await, and between two of them
//! a task runs a *segment* that nothing interrupts. A [`schedulers::Scheduler`]
//! picks the next one by the tasks' [`ticket::Ticket`]s.
//!
//! Read in this order: [`task`] (tasks), [`context`] (a task's view of the
//! card), [`executor`] (a turn of the borrowed core), [`ticket`] and [`schedulers`],
//! [`mailbox`] and [`net`] (packets to and from tasks), [`channel`] (messages to and from host
//! processes), [`control`] (orders from
//! outside), [`figures`] (recorded figures), [`memory`] and [`alloc`], [`keys`] and
//! [`config`] (building it from a card file).
//!
//! Source: NICOS, section 4.

#![forbid(unsafe_code)]

pub mod admission;
pub mod alloc;
pub mod channel;
pub mod config;
pub mod context;
pub mod control;
pub mod doorbells;
pub mod executor;
pub mod figures;
mod installed;
pub mod keys;
pub mod mailbox;
pub mod memory;
pub mod net;
pub mod path;
mod reply;
pub mod report;
pub mod roster;
pub mod schedulers;
mod shared;
pub mod task;
pub mod ticket;
mod timers;

pub use reply::Reply;
pub use shared::Services;

/// The README's examples, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
