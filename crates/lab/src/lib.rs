//! The lab: experiments that say what a NIC feature gives.
//!
//! An experiment is one file (or folder) under `experiments/` and one line in
//! [`registry::EXPERIMENTS`]; a benchmark one under `benchmarks/` and one line in
//! [`registry::BENCHMARKS`]. Both get typed settings with defaults, split into points that
//! the [runner] measures, and return an [`outcome::Outcome`]: figures with their units and
//! repeats, and which of them were measured and which modelled. A run leaves a [folder]
//! of raw points, from which everything else is made.

#![forbid(unsafe_code)]

pub mod ab;
mod benchmarks;
pub mod card;
pub mod compare;
pub mod counters;
pub mod distribution;
pub mod document;
pub mod experiment;
pub mod experiments;
pub mod facts;
pub mod folder;
pub mod meter;
pub mod outcome;
pub mod papers;
pub mod plot;
pub mod registry;
pub mod report;
pub mod runner;
pub mod traffic;
pub mod unit;
mod window;
pub mod workloads;
