//! The foundation of PICNIC: packets, rings, doors, and the card file.
//!
//! PICNIC is a programmable NIC made from a borrowed CPU core. This crate has the types that all
//! other crates share:
//!
//! * [`packet`]: the buffer pool, descriptors, bursts and header views;
//! * [`ring`]: the target ring, its gate and its moderation;
//! * [`function`], [`port`], [`attachment`]: the three interfaces that users implement;
//! * [`kernel`]: the forms of those three in the kernel engine;
//! * [`hook`]: observers of packets;
//! * [`command`]: queries and changes of running components;
//! * [`resident`]: programs on the borrowed core beside the packet path;
//! * [`fill`]: empty buffers for a host that transmits;
//! * [`cores`]: sets of cores, as the kernel writes them; [`device`]: register and bus times of a
//!   device;
//! * [`backlog`]: packets that wait for wires, fair between tx queues; [`turns`]: deficit round
//!   robin;
//! * [`out`]: the doors a packet leaves by, and [`ledger`], which counts them;
//! * [`config`] and [`registry`]: the card file and the names in it; [`shared`]: state that its
//!   entries share;
//! * [`stop`]: a request that the card stop.
//!
//! It reads no clock and starts no thread: time is an argument.

#![deny(unsafe_code)]

pub mod attachment;
pub mod backlog;
pub mod classes;
pub mod command;
pub mod config;
pub mod cores;
pub mod device;
pub mod direction;
pub mod doorbell;
pub mod error;
pub mod files;
pub mod fill;
pub mod function;
pub mod guard;
pub mod hook;
pub mod json;
pub mod kernel;
pub mod ledger;
pub mod out;
pub mod packet;
pub mod port;
pub mod prefetch;
pub mod random;
pub mod registry;
pub mod resident;
pub mod ring;
pub mod shared;
pub mod stats;
pub mod stop;
mod sync;
pub mod time;
pub mod turns;
