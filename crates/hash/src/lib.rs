//! Flow hashes, the indirection table, and randomness tests for both.
//!
//! Receive-side scaling: hash the addresses and ports of a
//! packet, take the result modulo the size of a table, find a queue there.
//!
//! ```
//! use picnic_hash::{IndirectionTable, Key, Toeplitz, V4Tuple};
//!
//! let toeplitz = Toeplitz::new(&Key::MICROSOFT);
//! let table = IndirectionTable::uniform(128, 4)?;
//!
//! let burst = [V4Tuple::new([66, 9, 149, 187], [161, 142, 100, 80], 2794, 1766)];
//! let mut hashes = [0u32; 1];
//! let mut queues = [0u16; 1];
//! toeplitz.hash_v4(&burst, &mut hashes);
//! table.lookup_burst(&hashes, &mut queues);
//!
//! assert_eq!(hashes, [0x51cc_c178]);
//! assert_eq!(queues, [0x51cc_c178_u32 as u16 % 128 % 4]);
//! # Ok::<(), picnic_hash::Error>(())
//! ```
//!
//! # Guarantees
//!
//! - Hashing and looking up never panic and never allocate, whatever the
//!   lengths given: a burst call works on the shorter of its two slices.
//! - Every form of a hash gives the same value: bit by bit, by table, by
//!   vector unit, alone or in a burst, on any machine.
//! - `unsafe` lives in one module, `avx512`.
//!
//! Source: PICNIC, section 5.1; the files name the specification of each part.

#![deny(unsafe_code)]

#[cfg_attr(not(target_arch = "x86_64"), path = "no_avx512.rs")]
#[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
mod avx512;
mod error;
pub mod indirection;
pub mod jhash;
mod key;
pub mod randomness;
pub mod toeplitz;
mod tuple;
#[cfg(any(test, target_arch = "x86_64"))]
mod vector;

pub use error::Error;
pub use indirection::IndirectionTable;
pub use jhash::{jhash_v4, jhash_v6, lookup2, lookup3, lookup3_3words, lookup3_words};
pub use key::Key;
pub use randomness::{Randomness, randomness};
pub use toeplitz::{Backend, Toeplitz, reference};
pub use tuple::{V4Tuple, V6Tuple};
