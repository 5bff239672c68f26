//! The sections of a card file about the machine, and the keys of `[isolation]`.

use crate::net::{LinkSection, NetSection};
use picnic_core::config::{SectionConfig, SectionEntry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The sections of a card file about the machine.
pub const SECTIONS: &[SectionEntry] = &[
    SectionEntry::of::<IsolationSection>(),
    SectionEntry::of::<NetSection>(),
    SectionEntry::of::<LinkSection>(),
];

/// `[isolation]`: keeping other work off the borrowed core.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationSection {
    /// While the card runs, keep interrupts and other processes off the borrowed core; needs root.
    pub apply: bool,
    /// What target cores do not share with the borrowed core: "none", "smt", "l2" or "llc".
    pub level: IsolationLevel,
    /// How processes are kept off: "auto", "cpuset" (a partition) or "affinity" (one by one).
    pub method: IsolationMethod,
}

impl SectionConfig for IsolationSection {
    const NAME: &'static str = "isolation";
    const HELP: &'static str = "What to keep off the borrowed core. See `picnic isolate`.";
}

/// What target cores do not share with the borrowed core; each level includes those before it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum IsolationLevel {
    /// They may share everything.
    None,
    /// No core: SMT siblings are excluded.
    Smt,
    /// No L2 cache.
    #[default]
    L2,
    /// No last-level cache, as in the paper.
    Llc,
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IsolationLevel::None => "none",
            IsolationLevel::Smt => "smt",
            IsolationLevel::L2 => "l2",
            IsolationLevel::Llc => "llc",
        })
    }
}

/// How processes are kept off the borrowed core.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum IsolationMethod {
    /// By a cpuset partition if possible, otherwise by affinity.
    #[default]
    Auto,
    /// By a cpuset partition of control groups, version 2.
    Cpuset,
    /// By setting the affinity of every thread.
    Affinity,
}
