//! The machine that a card runs on: what there is, what is changed of it, and taken back.
//!
//! * [`topology`]: which cores there are, what they share, and which the card takes;
//! * [`threads`]: threads pinned to cores;
//! * [`testbed`]: namespaces, links and programs made for a while;
//! * [`command`]: commands of the system;
//! * [`config`]: `[isolation]` of a card file;
//! * [`net`]: `[net]` of a card file, namespaces and links made around the card;
//! * [`napi`]: interfaces polled by threads of the kernel, on a core of one's choice;
//! * [`isolate`]: interrupts and processes kept off the borrowed core;
//! * [`steering`]: the kernel's receive packet steering, off or to one core;
//! * [`relay`]: interfaces that packets are handed to, for a program there;
//! * [`veth`]: what the other end of a veth pair hands over;
//! * [`undo`]: changes to the machine, written down and taken back;
//! * [`signals`]: requests to stop, heard in time to take it back;
//! * [`doctor`]: what this machine can do for a card.

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
