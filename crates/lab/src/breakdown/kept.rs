//! Breakdowns in the folder of a run, for its report.

use super::Breakdown;
use super::flame::{inline, unfolded};
use crate::outcome::Table;
use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The answer, and the stacks.
pub(super) const FILE: &str = "breakdown.json";
pub(super) const STACKS: &str = "stacks.folded";

/// A breakdown in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The folder's name.
    pub(crate) name: String,
    /// The card and its cores.
    pub(crate) title: String,
    /// Its components.
    pub(crate) table: Table,
    /// Its flame graph, for a page.
    pub(crate) graph: String,
}

pub(super) fn text(found: &Breakdown, title: &str) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(found)?;
    value["title"] = json!(title);
    Ok(format!("{value:#}\n"))
}

/// The breakdowns in the folders of a folder, by name.
///
/// # Errors
/// A file cannot be read, or is not of a breakdown.
pub(crate) fn kept(folder: &Path) -> anyhow::Result<Vec<Kept>> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut folders: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.retain(|path| path.join(FILE).exists());
    folders.sort();
    folders.iter().map(|path| of(path)).collect()
}

fn of(folder: &Path) -> anyhow::Result<Kept> {
    let read = |name: &str| {
        let path = folder.join(name);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("{}: cannot be read", path.display()))?;
        anyhow::Ok((path.display().to_string(), text))
    };
    let (file, answer) = read(FILE)?;
    let answer: Value = serde_json::from_str(&answer)
        .map_err(|error| anyhow!("{file}:{}: {error}", error.line()))?;
    let components = answer["components"].as_array();
    let components = components.with_context(|| format!("{file}: components: missing"))?;
    let rows = components.iter().filter(|part| part["fraction"] != 0.0).map(|part| {
        let number = |key: &str, scale: f64, digits: usize| {
            let value = part[key].as_f64();
            value.map_or("unavailable".into(), |value| format!("{:.digits$}", value * scale))
        };
        let name = part["component"].as_str().unwrap_or_default().to_owned();
        vec![name, number("fraction", 100.0, 1), number("ns_per_packet", 1.0, 0)]
    });
    let table = Table {
        title: String::new(),
        columns: ["component", "% of time", "ns per packet"].map(str::to_owned).into(),
        rows: rows.collect(),
        words: 1,
    };
    let (file, stacks) = read(STACKS)?;
    let stacks = unfolded(&stacks).map_err(|(line, why)| anyhow!("{file}:{line}: {why}"))?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let title = answer["title"].as_str().unwrap_or_default().to_owned();
    Ok(Kept { name, title, table, graph: inline(&stacks) })
}

#[cfg(test)]
mod tests {
    use super::super::of_samples;
    use super::super::perf::{Frame, Sample, Samples};
    use super::*;

    #[test]
    fn a_breakdown_is_read_again_and_errors_name_file_and_line() {
        let run = tempfile::tempdir().unwrap();
        let own = run.path().join("with-rss");
        let frames = vec![Frame { function: "tcp_v4_rcv".into(), is_kernel: true }];
        let sample =
            |core| Sample { core, process: 1, command: "x".into(), frames: frames.clone() };
        let samples = Samples(vec![sample(0), sample(1)]);
        let found = of_samples(&samples, 8, (vec![0], Some(1), 2.0, 10), [].into_iter(), None);
        found.unwrap().draw(&own, "a card").unwrap();
        fs::create_dir(run.path().join("plots")).unwrap();
        let all = kept(run.path()).unwrap();
        let [Kept { name, title, table, graph }] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&name[..], &title[..]), ("with-rss", "a card"));
        assert_eq!(table.rows, [["stack", "100.0", "200000000"]]);
        assert!(graph.contains(">borrowed core 1: 1 samples, 50.00 %<"), "{graph}");
        for (file, text, wanted) in [
            (STACKS, "a;b 1\na;b\n", "stacks.folded:2: found \"a;b\""),
            (FILE, "{\n1", "breakdown.json:2: "),
            (FILE, "{}", "breakdown.json: components: missing"),
        ] {
            let good = fs::read_to_string(own.join(file)).unwrap();
            fs::write(own.join(file), text).unwrap();
            let error = format!("{:#}", kept(run.path()).unwrap_err());
            assert!(error.contains(wanted), "{error}");
            fs::write(own.join(file), good).unwrap();
        }
        fs::remove_file(own.join(STACKS)).unwrap();
        let error = format!("{:#}", kept(run.path()).unwrap_err());
        assert!(error.contains("stacks.folded: cannot be read"), "{error}");
    }
}
