//! NIC OS: what runs on the borrowed core beside the packet path.
//!
//! Tasks are Rust `async` functions; a yield is an await, and between two of them
//! a task runs a *segment* that nothing interrupts. A [`schedulers::Scheduler`]
//! picks the next one by the tasks' [`ticket::Ticket`]s.
//!
//! Source: NICOS, section 4.

#![forbid(unsafe_code)]

pub mod admission;
pub mod filter;
pub mod schedulers;
pub mod ticket;
