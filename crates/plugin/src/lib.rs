//! Functions loaded at run time: shared objects with the C interface `picnic_function.h`.
//!
//! ```toml
//! [[rx]]
//! plugin = "my.so"     # relative to the card file
//! rate = 10            # its own keys, by the schema that it gives
//! ```
//!
//! [`ENTRY`] is the line that a program's registry of functions has for all objects.
//! Objects are written against [`HEADER`]. How to write an object: docs/plugins.md.
//!
//! Guarantees: `exit` is called once for each `init` that succeeded, after the last packet and by
//! the thread that frees the function. The return values of the object are checked before use: a
//! target that means nothing, or a packet outside of its buffer, is a counted drop. The object is
//! copied before it is loaded, so a file that is replaced is loaded anew, and each instance has
//! separate static variables.
//!
//! A shared object is trusted code: nothing stands between it and the memory of the process. Its
//! mistakes are visible: [`guard`] names the object and the function that crashes, ends the
//! process, or does not return.
//!
//! Source: PICNIC, section 3.2.4 (`init`, `process_packet`, `exit`); dlopen(3).

#![deny(unsafe_code)]

mod call;
mod counts;
mod elf;
mod function;
pub mod guard;
mod object;
pub mod schema;

pub use call::{Answer, Call};
pub use counts::{Counted, Counts};
pub use function::{DescribedCounter, Description, ENTRY, Plugin, describe, linked};
pub use picnic_sdk::abi;

/// The header for writing shared objects.
pub const HEADER: &str = include_str!("../include/picnic_function.h");
