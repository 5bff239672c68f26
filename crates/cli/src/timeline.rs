//! `--timeline`: a file for a trace viewer.

use anyhow::Context;
use picnic_control::timeline::Timeline;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Events kept of each thread: 16 MiB of memory, some 80 MB of the file.
const EVENTS: usize = 1 << 19;

/// An empty timeline.
pub(crate) fn timeline() -> Timeline {
    Timeline::keeping(EVENTS)
}

/// A timeline and its file.
pub(crate) struct Recording {
    path: PathBuf,
    file: File,
    timeline: Timeline,
}

impl Recording {
    /// Creates the file: a path that cannot be written is an error before the card has run.
    pub(crate) fn create(path: &Path, timeline: Timeline) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| place(path))?;
        Ok(Recording { path: path.into(), file, timeline })
    }

    /// Writes what was recorded; returns a note if some events were not kept.
    pub(crate) fn write(self) -> anyhow::Result<Option<String>> {
        let mut out = BufWriter::new(self.file);
        let written = self.timeline.write(&mut out).and_then(|()| out.flush());
        written.with_context(|| place(&self.path))?;
        Ok(self.timeline.note())
    }
}

fn place(path: &Path) -> String {
    format!("--timeline: {}", path.display())
}
