//! One file per command.

pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod card;
pub(crate) mod check;
pub(crate) mod cleanup;
pub(crate) mod completions;
pub(crate) mod components;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod isolate;
pub(crate) mod keyed;
pub(crate) mod lab;
pub(crate) mod later;
pub(crate) mod man;
pub(crate) mod net;
pub(crate) mod new;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sciron;
pub(crate) mod storm;
pub(crate) mod top;
pub(crate) mod traffic;
pub(crate) mod try_function;
pub(crate) mod wcet;
pub(crate) mod workload;
