//! The parts around a card that all worlds share: figures and control plane.
//!
//! * [`launch`]: the builder that starts a card;
//! * [`executor`]: what runs it;
//! * [`report`]: the result of a run, each figure declared once by [`figures`];
//! * [`monitor`]: the same while it runs;
//! * [`own`]: functions' own counters;
//! * [`timeline`]: what each core did and when, for a trace viewer;
//! * [`instrument`]: the tracer of `[trace]`;
//! * [`error`]: reasons why a card did not start, or failed.
//!
//! The control plane is a Unix socket that speaks JSON-RPC 2.0, and metrics:
//!
//! * [`config`]: `[control]` of a card file;
//! * [`protocol`]: the encoding; pure;
//! * [`request`]: the list of methods; pure;
//! * [`listing`]: the tables of their results;
//! * [`socket`]: the socket's place, one card per name;
//! * [`folders`]: the folders of sockets;
//! * [`server`]: the threads that serve clients;
//! * [`methods`]: the implementation of the methods;
//! * [`captures`]: captures that start and end while the card runs;
//! * [`metrics`]: the figures for Prometheus, over HTTP.
//!
//! Guarantees: its threads never touch the data path: they read counters and send commands, which
//! the borrowed core executes between bursts. A misbehaving client delays only itself. Reference:
//! docs/control.md.

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
pub mod timeline;
pub mod watch;
mod window;

pub use executor::{EnginePlan, Executor, Running};
pub use launch::{Launch, Registries, ServedCard};
pub use report::Report;
pub use server::{Access, Doors, Limits, PollPart, Server, SwapRx};
