//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod conformance;
mod interrupts;
mod nicos_edf;
mod nicos_firewall;
