//! Wire ports and host attachments: what a card is plugged into at both ends.
//!
//! * [`registry`]: THE LIST of wire ports and host attachments;
//! * [`generator`]: a wire that makes its own packets, by seed;
//! * [`pcap`]: a wire that replays a capture;
//! * [`app`]: a host that is a function in this process;
//! * [`middleware`]: tracer and fault injector, between card and ports;
//! * [`capture`], [`pcapng`]: packets written to a file, off the data path.

#![forbid(unsafe_code)]

pub mod app;
pub mod capture;
pub mod generator;
#[cfg(test)]
mod harness;
pub mod middleware;
pub mod pcap;
pub mod pcapng;
pub mod registry;
