//! Timelines of measured cards: one file for each side.
//!
//! A side is run once more for its timeline, before its measurements: recording costs time.

use anyhow::Context;
use picnic_control::timeline::Timeline;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Events kept of each thread: some 4 MB of the file.
const EVENTS: usize = 1 << 15;

/// Runs `body` and writes a timeline of the cards that it starts to `FOLDER/NAME.json`.
///
/// # Errors
/// `body`'s, or the file cannot be written.
pub fn record<R, E: From<anyhow::Error>>(
    folder: &Path,
    name: &str,
    body: impl FnOnce() -> Result<R, E>,
) -> Result<(), E> {
    let timeline = Timeline::keeping(EVENTS);
    timeline.during(body)?;
    let write = || -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be written", folder.display()))?;
        let name: String = name
            .chars()
            .map(
                |letter| {
                    if letter.is_alphanumeric() || "-_.=".contains(letter) { letter } else { '-' }
                },
            )
            .collect();
        let path = folder.join(name + ".json");
        let about = || format!("{}: cannot be written", path.display());
        let mut out = BufWriter::new(File::create(&path).with_context(about)?);
        timeline.write(&mut out).and_then(|()| out.flush()).with_context(about)
    };
    Ok(write()?)
}
