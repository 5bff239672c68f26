//! What a figure must be read with: the machine, the kernel, the revision.

use picnic_machine::topology::cores;
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// Facts of this machine and this build. What cannot be known reads "unavailable".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The processor, as the kernel names it.
    pub processor: String,
    /// Cores this machine has online.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether a hypervisor runs below.
    pub virtual_machine: bool,
    /// The revision of the working tree, with `-dirty` if it has changes.
    pub revision: String,
    /// The system's load over the last minute.
    pub load_average: String,
}

/// Reads them; `revision` is what this program was built from.
pub fn facts(revision: &str) -> Facts {
    let unavailable = || "unavailable".to_owned();
    let processor = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = processor.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let first = |path: &str| {
        let text = read_to_string(path).unwrap_or_default();
        text.split_whitespace().next().map_or_else(unavailable, str::to_owned)
    };
    Facts {
        processor: field("model name").unwrap_or_else(unavailable),
        cores: cores().len(),
        kernel: first("/proc/sys/kernel/osrelease"),
        virtual_machine: field("flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        revision: revision.to_owned(),
        load_average: first("/proc/loadavg"),
    }
}
