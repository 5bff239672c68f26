//! Wire ports and host attachments: both ends of a card.
//!
//! * [`registry`]: the list of wire ports and host attachments;
//! * [`generator`]: a wire that makes its own packets, by seed;
//! * [`pcap`]: a wire that replays a capture;
//! * [`af_packet`]: a wire that is an interface of the kernel, by packet socket;
//! * [`af_xdp`]: a wire that is queues of an interface, by AF_XDP sockets over the pool;
//! * [`cable`]: a wire to another card of this process;
//! * [`app`]: a host inside this process;
//! * [`tap`]: a host, or a wire, that is a TAP interface of the kernel;
//! * [`vhost_user`]: a host that is virtual machines;
//! * [`stack`]: a host that is the kernel's own network stack, for the kernel engine;
//! * [`interface`]: an interface taken as a wire, and work done in its namespace;
//! * [`middleware`]: tracer, links and fault injector, between card and ports;
//! * [`capture`], [`pcapng`]: packets written to a file, off the data path;
//! * [`stream`]: a file that may be a pipe with a slow reader;
//! * [`bpf_map`]: maps of BPF programs, as bytes;
//! * [`datagrams`]: UDP in batches, for programs beside the card;
//! * [`schedule`]: real-time priority for the threads that write to the kernel;
//! * [`virtio`]: the header that keeps offloads across the kernel's border.

#![deny(unsafe_code)]

pub mod af_packet;
pub mod af_xdp;
pub mod app;
pub mod cable;
pub mod capture;
pub mod generator;
#[cfg(test)]
mod harness;
pub mod interface;
pub mod middleware;
mod output;
pub mod pcap;
pub mod pcapng;
pub mod registry;
mod sys;
pub use sys::{bpf_map, datagrams, schedule};
pub mod stack;
pub mod stream;
pub mod tap;
pub mod vhost_user;
pub mod virtio;
