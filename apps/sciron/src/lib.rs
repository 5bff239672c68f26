//! SCIRON: a stateless firewall of NIC OS filters.
//!
//! ```
//! use picnic_sciron::{Installation, Rules};
//! use picnic_filter::Filters;
//!
//! let rules: Rules = "
//!     ## protocol, source, destination, source ports, destination ports, action
//!     tcp      any             10.0.0.1/32  any    22       accept
//!     udp      192.168.0.0/16  any          any    1-1023   drop
//!     default  drop
//! ".parse().unwrap();
//! let filters = Filters::new(4); // those of a card
//! rules.install(&filters, &Installation::default()).unwrap();
//! // Changed later, while packets pass: no gap, and rules that stay keep their counters.
//! rules.install(&filters, &Installation::default()).unwrap();
//! ```
//!
//! * [`rules`]: the file of rules, its grammar;
//! * [`check`]: rules that never apply, and rules in conflict;
//! * [`install`]: rules as filters, on the card or at the driver;
//! * [`report`]: what `picnic sciron check` prints;
//! * [`card`]: `[sciron]` of a card file.
//!
//! Source: NICOS 4.7.

#![forbid(unsafe_code)]

pub mod card;
pub mod check;
pub mod install;
pub mod report;
pub mod rules;

pub use check::{Findings, Pair};
pub use install::{GROUP, Installation, Sides};
pub use rules::{Fault, Faults, Rule, Rules, Verdict};
