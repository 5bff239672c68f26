//! The lab: measures the gain of a NIC feature.
//!
//! An experiment or a benchmark has typed settings with defaults, splits into points that the
//! [runner] measures, and returns an [`outcome::Outcome`]: figures with their units and repeats,
//! each measured or modelled. A run leaves a [folder] of raw points, from which everything else is
//! derived. The program registers the experiments: [`registry::set`].

#![forbid(unsafe_code)]

pub mod ab;
pub mod advise;
pub mod breakdown;
pub mod calibrate;
pub mod card;
pub mod chart;
pub mod compare;
pub mod counters;
pub mod distribution;
pub mod document;
pub mod experiment;
pub mod facts;
pub mod fit;
pub mod folder;
pub mod meter;
pub mod outcome;
pub mod paper;
pub mod plot;
pub mod registry;
pub mod report;
pub mod runner;
pub mod timeline;
pub mod traffic;
pub mod unit;
pub mod window;
pub mod workloads;
