//! The lab: experiments that say what a NIC feature gives.
//!
//! An experiment is one file (or folder) under `experiments/` and one line in
//! [`registry::EXPERIMENTS`]. It gets typed settings with defaults, tells of its
//! progress, and returns an [`experiment::Outcome`]: figures for programs, a table
//! for people, and which of them were measured and which modelled.

#![forbid(unsafe_code)]

pub mod benchmarks;
pub mod card;
pub mod compare;
pub mod experiment;
pub mod experiments;
pub mod facts;
pub mod registry;
pub mod workloads;
