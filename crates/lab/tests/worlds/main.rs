//! All tests of this crate in one program: each further program would cost a link.
#![allow(missing_docs)]

mod cluster;
