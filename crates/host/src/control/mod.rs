//! The control plane of a running card: a Unix socket that speaks JSON-RPC 2.0, and metrics.
//!
//! ```no_run
//! # use picnic_core::config::CardFile;
//! # use picnic_engine::build::NoInstrument;
//! # use picnic_host::{control, run};
//! let card = CardFile::parse("[card]\nname = \"web\"\n", None)?;
//! let doors = control::Doors::open(&card)?;
//! let captures = control::captures::Captures::default();
//! let mut running = run::start_with(&card, &mut captures.clone())?;
//! let instrument = Box::new(NoInstrument);
//! let server = control::Server::start(doors, &mut running, &card, instrument, captures)?;
//! while !server.stop_is_asked() && !running.is_finished() {
//!     std::thread::sleep(std::time::Duration::from_millis(50));
//! }
//! server.finish();
//! let report = running.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`protocol`]: what can be said; pure;
//! * [`socket`]: where the socket stands, one card to a name;
//! * [`server`]: the thread that serves clients;
//! * [`methods`]: what it does for them;
//! * [`captures`]: captures that begin and end while the card runs;
//! * [`tasks`]: what can be asked of its tasks; pure;
//! * [`metrics`]: the figures as Prometheus reads them, over HTTP.
//!
//! Guarantees: one thread of its own, which never touches the data path: it reads counters
//! and sends commands, which the borrowed core obeys between bursts. What a client sends, or
//! does not read, holds up that client alone. Reference: docs/control.md.

pub mod captures;
mod client;
mod http;
pub mod methods;
pub mod metrics;
pub mod protocol;
pub mod server;
mod sink;
pub mod socket;
pub mod tasks;

pub use server::{Doors, Limits, Server};
