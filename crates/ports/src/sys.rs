//! Direct system calls of ports: the only place of this crate with unsafe code.
//!
//! * [`bpf`]: the program that hands packets to sockets;
//! * [`bpf_map`]: maps of programs, as bytes;
//! * [`datagrams`]: UDP in batches, for programs beside the card;
//! * [`fault`]: faults in memory that another process shares;
//! * [`link`]: interfaces and their addresses;
//! * [`namespace`]: work done inside another network namespace;
//! * [`packet`]: packet sockets, their receive ring and batches;
//! * [`schedule`]: the priority of the calling thread;
//! * [`sysfs`]: attributes of interfaces in another network namespace;
//! * [`tun`]: TAP devices and their queues;
//! * [`xsk`]: AF_XDP sockets over the pool, of [`xsk_sockets`], [`xsk_queue`] and [`xsk_ring`];
//! * [`xsk_device`]: a driver's information about its interface.
//!
//! Guarantees: everything offered to the rest of the crate is safe for any arguments.

#![allow(unsafe_code)]

pub(crate) mod bpf;
pub mod bpf_map;
pub mod datagrams;
pub(crate) mod fault;
pub(crate) mod link;
pub(crate) mod namespace;
pub(crate) mod packet;
pub mod schedule;
pub(crate) mod sysfs;
pub(crate) mod tun;
pub(crate) mod xsk;
pub(crate) mod xsk_device;
mod xsk_queue;
mod xsk_ring;
mod xsk_sockets;
