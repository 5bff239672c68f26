//! What a figure must be read with: the machine, the kernel, the revision.

use serde::Serialize;
use std::fs::read_to_string;
use std::path::Path;
use std::process::Command;

/// Facts of this machine and this build. What cannot be known reads "unavailable".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
}

/// Reads them.
pub fn facts() -> Facts {
    let unavailable = || "unavailable".to_owned();
    let processor = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = processor.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = read_to_string("/proc/sys/kernel/osrelease");
    Facts {
        processor: field("model name").unwrap_or_else(unavailable),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: kernel.map_or_else(|_| unavailable(), |release| release.trim().to_owned()),
        virtual_machine: field("flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        revision: revision().unwrap_or_else(unavailable),
    }
}

fn revision() -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    git(&["describe", "--always", "--dirty", "--abbrev=10"])
}
