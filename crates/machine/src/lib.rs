//! The machine that a card runs on: its features, changes to it, and restoring them.
//!
//! * [`topology`]: the cores, their shared caches, and the cores of a card;
//! * [`threads`]: threads pinned to cores;
//! * [`testbed`]: temporary namespaces, links and programs;
//! * [`command`]: commands of the system;
//! * [`config`]: `[isolation]` of a card file;
//! * [`net`]: `[net]` of a card file, namespaces and links around the card;
//! * [`napi`]: interfaces polled by kernel threads, on a chosen core;
//! * [`isolate`]: interrupts and processes kept off the borrowed core;
//! * [`steering`]: the kernel's receive packet steering, off or to one core;
//! * [`relay`]: interfaces that receive packets for a program;
//! * [`veth`]: the other end of a veth pair and its offloads;
//! * [`undo`]: changes to the machine, recorded and restored;
//! * [`signals`]: requests to stop, handled in time to restore changes;
//! * [`doctor`]: what this machine offers to a card.

#![forbid(unsafe_code)]

pub mod command;
pub mod config;
pub mod doctor;
pub mod error;
pub mod facts;
pub mod isolate;
pub mod napi;
pub mod net;
mod netdev;
pub mod relay;
pub mod signals;
pub mod steering;
pub mod testbed;
pub mod threads;
pub mod topology;
pub mod undo;
pub mod veth;
pub mod xdp;
