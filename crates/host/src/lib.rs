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
//! * [`clock`], [`doorbell`]: what a world supplies;
//! * [`idle`]: what the borrowed core does without work;
//! * [`run`]: threads, start to clean stop.

#![forbid(unsafe_code)]

pub mod clock;
pub mod doorbell;
pub mod idle;
mod preemption;
pub mod run;
