//! Facts about this machine to be recorded with any measurement, read cheaply from kernel files.

use crate::topology::{CoreSet, cores};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// This machine, in short. Unknown facts read "unavailable".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineFacts {
    /// Its name in its network.
    pub name: String,
    /// The processor, as the kernel names it.
    pub processor: String,
    /// Cores it has online.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether a hypervisor runs below.
    pub virtual_machine: bool,
}

/// The text for an unknown fact.
pub fn unavailable() -> String {
    "unavailable".to_owned()
}

/// The first word of a file.
pub fn first_word(path: &str) -> String {
    let text = read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().map_or_else(unavailable, str::to_owned)
}

impl MachineFacts {
    /// The facts of this machine.
    pub fn read() -> Self {
        let processor = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = processor.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        MachineFacts {
            name: first_word("/proc/sys/kernel/hostname"),
            processor: field("model name").unwrap_or_else(unavailable),
            // Online cores, not only those that this thread may use; from a single file.
            cores: CoreSet::parse_list(&first_word("/sys/devices/system/cpu/online"))
                .map_or_else(|_| cores().len(), |online| online.len()),
            kernel: first_word("/proc/sys/kernel/osrelease"),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_and_a_kernel() {
        let facts = MachineFacts::read();
        assert!(facts.cores > 0 && !facts.kernel.is_empty(), "{facts:?}");
        assert_eq!(first_word("/no/such/file"), "unavailable");
    }
}
