//! The tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod bytes;
mod cards;
mod exhaustive;
mod hosts;
mod network;
mod order;
mod views;
