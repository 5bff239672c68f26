//! What all worlds share around a card: its figures, and the control plane that serves them.
//!
//! * [`launch`]: the builder that starts a card;
//! * [`executor`]: what runs it;
//! * [`report`]: the result of a run, each figure declared once by [`figures`];
//! * [`monitor`]: the same while it runs;
//! * [`own`]: what functions count themselves;
//! * [`instrument`]: the tracer of `[trace]`;
//! * [`error`]: why a card did not start, or did not end well.
//!
//! The control plane is a Unix socket that speaks JSON-RPC 2.0, and metrics:
//!
//! * [`config`]: `[control]` of a card file;
//! * [`protocol`]: how it is said; pure;
//! * [`request`]: what can be asked for: the list of methods; pure;
//! * [`listing`]: the tables of their results;
//! * [`socket`]: where the socket stands, one card to a name;
//! * [`folders`]: the folders that sockets stand in;
//! * [`server`]: the threads that serve clients;
//! * [`methods`]: what it does for them;
//! * [`captures`]: captures that begin and end while the card runs;
//! * [`metrics`]: the figures as Prometheus reads them, over HTTP.
//!
//! Guarantees: threads of its own, which never touch the data path: they read counters
//! and send commands, which the borrowed core obeys between bursts. What a client sends, or
//! does not read, holds up that client alone. Reference: docs/control.md.

#![forbid(unsafe_code)]

#[cfg(test)]
mod bench;
pub mod captures;
mod client;
pub mod config;
pub mod error;
pub mod executor;
pub mod figures;
pub mod folders;
mod http;
pub mod instrument;
pub mod latency;
pub mod launch;
pub mod listing;
pub mod methods;
pub mod metrics;
pub mod monitor;
pub mod own;
mod path;
pub mod protocol;
pub mod report;
pub mod request;
pub mod server;
mod service;
pub mod socket;
pub mod watch;
mod window;

pub use executor::{EnginePlan, Executor, Running};
pub use launch::{Launch, Registries, ServedCard};
pub use report::Report;
pub use server::{Access, Doors, Limits, PollPart, Server, SwapRx};
