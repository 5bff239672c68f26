//! The host world: a card on real cores, at wall-clock speed.
//!
//! ```no_run
//! use picnic_core::config::CardFile;
//! let card = CardFile::parse("", None)?;
//! let running = picnic_host::run::start(&card)?;
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! let report = running.stop()?;
//! println!("{} packets delivered", report.ledger.delivered);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`topology`]: which cores there are, what they share, and which the card takes;
//! * [`isolate`]: interrupts and processes kept off the borrowed core;
//! * [`undo`]: changes to the machine, written down and taken back;
//! * [`clock`], [`doorbell`]: what a world supplies;
//! * [`idle`]: what the borrowed core does without work;
//! * [`instrument`]: the tracer of `[trace]`;
//! * [`run`]: threads, start to clean stop;
//! * [`control`]: the socket of `picnic ctl`, `picnic top` and `picnic capture`;
//! * [`privileges`]: given up once they are no longer needed;
//! * [`monitor`]: the figures of a card while it runs;
//! * [`report`]: what a run came to;
//! * [`doctor`]: what this machine can do for a card.

#![forbid(unsafe_code)]

pub mod clock;
pub mod control;
pub mod doctor;
pub mod doorbell;
pub mod error;
pub mod idle;
pub mod instrument;
pub mod isolate;
pub mod monitor;
pub mod privileges;
pub mod report;
pub mod run;
pub mod threads;
pub mod topology;
pub mod undo;
