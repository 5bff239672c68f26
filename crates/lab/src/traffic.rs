//! A sender and a receiver of TCP and UDP, with their measurements.
//!
//! ```no_run
//! use picnic_lab::traffic::{Protocol, Receive, Send};
//! use std::time::Duration;
//! let listening = Receive { connections: 1, ..Receive::at("0.0.0.0:5300".parse()?) }.listen()?;
//! let send = Send { rate_bps: Some(10_000_000), ..Send::to("127.0.0.1:5300".parse()?) };
//! let sent = std::thread::spawn(move || send.run());
//! println!("{:.0} b/s", listening.run()?.goodput_bps);
//! # drop(sent); Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each connection has a thread, or one thread reads them all (`epoll.rs`). A sender with a rate schedules each message and reports the
//! deviation (`pace.rs`); a UDP message has the number of its connection and its own, so that the
//! receiver detects losses and reordering.
//!
//! Source: tcp(7), udp(7), sock_diag(7).

mod epoll;
mod pace;
mod receive;
mod send;
mod socket;

pub use pace::PacingError;
pub use receive::{Fill, Listening, Receive, Received};
pub use send::{Send, Sent};

use crate::meter::CoreShare;
use serde::Serialize;
use std::thread::JoinHandle;

/// The protocol of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A stream; a message is a fixed number of its bytes.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

/// Bytes before a UDP message.
pub const HEADER_BYTES: usize = 16;

/// The header of a UDP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    connection: u32,
    is_end: bool,
    /// From 0; after the last message, their number.
    number: u64,
}

impl Header {
    fn bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.connection.to_be_bytes());
        bytes[4..8].copy_from_slice(&u32::from(self.is_end).to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn read(message: &[u8]) -> Option<Self> {
        let (first, rest) = message.split_first_chunk()?;
        let (second, rest) = rest.split_first_chunk()?;
        Some(Header {
            connection: u32::from_be_bytes(*first),
            is_end: u32::from_be_bytes(*second) == 1,
            number: u64::from_be_bytes(*rest.first_chunk()?),
        })
    }
}

/// A core's busy time, for tables: `core 0 85 %`.
pub fn busy_text(cores: &[CoreShare]) -> String {
    let text = |core: &CoreShare| format!("core {} {:.0} %", core.core, (1.0 - core.idle) * 100.0);
    cores.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A thread on a core, or on any.
fn spawn<R: std::marker::Send + 'static>(
    core: Option<usize>,
    body: impl FnOnce() -> R + std::marker::Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<R>>> {
    let name = "traffic".to_owned();
    let handle = std::thread::Builder::new().name(name).spawn(move || {
        if let Some(core) = core {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set)
                .map_err(|error| anyhow::anyhow!("cannot stay on core {core}: {error}"))?;
        }
        Ok(body())
    });
    Ok(handle?)
}

fn join<R>(handle: JoinHandle<anyhow::Result<anyhow::Result<R>>>) -> anyhow::Result<R> {
    handle.join().map_err(|_| anyhow::anyhow!("a thread of the traffic panicked"))??
}

/// Checks that a socket's buffer has the size asked for; the kernel counts its own share as much again.
fn sized(key: &str, asked: usize, found: usize) -> anyhow::Result<()> {
    let most = found / 2;
    anyhow::ensure!(
        most >= asked,
        "buffer: found {asked} bytes, allowed: up to {most}; try: sysctl net.core.{key}_max={asked}"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
