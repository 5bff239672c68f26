//! A NIC function in Rust as a shared object: no program to link, and few crates to build.
//!
//! ```
//! use picnic_sdk::{ConfigError, Context, Function, Packet, Time, Verdict};
//!
//! /// Steers name service to a separate queue.
//! struct Names {
//!     queue: u16,
//! }
//!
//! #[derive(Default, serde::Deserialize, schemars::JsonSchema)]
//! #[serde(deny_unknown_fields, default)]
//! struct Keys {
//!     /// The queue that name service goes to.
//!     queue: u16,
//! }
//!
//! impl Function for Names {
//!     type Config = Keys;
//!     const NAME: &'static str = "names";
//!     const HELP: &'static str = "steer name service to a separate queue";
//!
//!     fn new(keys: Keys, _: &Context) -> Result<Self, ConfigError> {
//!         Ok(Names { queue: keys.queue })
//!     }
//!
//!     fn process_packet(&mut self, _now: Time, packet: &mut Packet<'_>) -> Verdict {
//!         match packet.udp() {
//!             Some(udp) if udp.destination_port() == 53 => Verdict::Steer(self.queue),
//!             _ => Verdict::Next,
//!         }
//!     }
//! }
//!
//! picnic_sdk::export!(Names);
//! ```
//!
//! In Cargo.toml, `crate-type = ["cdylib", "rlib"]`; in the card file, `plugin = "libnames.so"`.
//! `picnic new function NAME --lang rust` writes both, with tests.
//!
//! The object keeps to `picnic_function.h`, so every picnic with this version of the interface
//! loads it, with any compilers for both. Commands, functions that work on whole bursts or make
//! packets, and kernel forms need a program of one's own: docs/plugins.md.
//!
//! Guarantees: a packet's bytes are lent by picnic for the call; the return value of a function
//! is checked by picnic. A panic ends the process: the data path must not.

#![deny(unsafe_code)]

pub mod abi;
mod object;
mod packet;

pub use object::Exported;
#[doc(hidden)]
pub use object::table;
pub use packet::Packet;
pub use picnic_core::error::ConfigError;
pub use picnic_core::time::Time;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the next function; after the last, to the default queue or wire.
    Next,
    /// To a target queue.
    Steer(u16),
    /// Out on a wire.
    Transmit(u8),
    /// Dropped, counted as `filtered`.
    Drop,
    /// Kept by the function for good.
    Consume,
    /// Held back until [`Function::flush`]; for functions with [`Function::HOLDS`].
    Hold,
}

impl Verdict {
    /// Its number in the C interface.
    #[inline(always)]
    fn number(self) -> i32 {
        match self {
            Verdict::Next => abi::NEXT,
            Verdict::Steer(queue) => queue.into(),
            Verdict::Transmit(wire) => abi::TRANSMIT - i32::from(wire),
            Verdict::Drop => abi::DROP,
            Verdict::Consume => abi::CONSUME,
            Verdict::Hold => abi::HOLD,
        }
    }
}

/// The card of an instance.
#[derive(Clone, Debug)]
pub struct Context {
    /// Target queues.
    pub queues: u16,
    /// Wires.
    pub wires: u8,
    /// Its place in the chain, from 0.
    pub position: usize,
    /// The longest packet that one buffer holds, in bytes.
    pub buffer_size: usize,
    /// The run's seed.
    pub seed: u64,
    /// Relative paths start here: the folder of the card file.
    pub directory: PathBuf,
}

/// A NIC function. [`new`](Function::new) and drop may allocate and take time; all else runs on
/// the borrowed core: no panic, no allocation, no lock, no system call. Time is an argument.
pub trait Function: Send + Sized + 'static {
    /// Its keys in a card file: types, defaults and, as help, their comments.
    type Config: DeserializeOwned + JsonSchema;
    /// Lower case, digits and dashes, up to 32 characters.
    const NAME: &'static str;
    /// One line of help.
    const HELP: &'static str;
    /// Its counters: names (lower case, digits and `_`) with help. They only grow.
    const COUNTERS: &'static [(&'static str, &'static str)] = &[];
    /// Whether it holds packets back.
    const HOLDS: bool = false;

    /// Makes an instance.
    ///
    /// # Errors
    /// The wrong key, with the value found and the values allowed.
    fn new(config: Self::Config, context: &Context) -> Result<Self, ConfigError>;

    /// Judges one packet. [`Packet::data`] has its headers if its first buffer has room.
    fn process_packet(&mut self, now: Time, packet: &mut Packet<'_>) -> Verdict;

    /// Time of the next [`flush`](Function::flush); called only while packets are held.
    fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// Judges a held packet, oldest first. At [`Time::MAX`] it must not be held again.
    fn flush(&mut self, _now: Time, _packet: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    /// Writes the value of each counter, in the order of [`COUNTERS`](Function::COUNTERS).
    fn count(&self, _values: &mut [u64]) {}
}

/// Exports a function to picnic; use it once per crate.
#[macro_export]
macro_rules! export {
    ($function:ty) => {
        /// The symbol that picnic loads, see `picnic_function.h`.
        #[allow(non_upper_case_globals)]
        #[unsafe(no_mangle)]
        pub static picnic_function: $crate::Exported = $crate::table::<$function>();
    };
}
