//! The lab: experiments that say what a NIC feature gives.

#![forbid(unsafe_code)]
