//! What a run came to, for people: a page, Markdown, or JSON.
//!
//! All three are made from a run's folder, each time anew: first PICNIC's own figures, then every
//! row of the papers' table with what became of it, then each experiment with its plots, numbers,
//! machine and how to run it again. The page is one file that needs no network.

mod diff;
mod html;
mod markdown;
mod svg;

pub use diff::{Diff, diff};

use crate::compare::{Finding, PaperVerdict};
use crate::distribution;
use crate::document::Document;
use crate::experiment::Effort;
use crate::facts::Facts;
use crate::folder::Folder;
use crate::meter::CoreShare;
use crate::outcome::{Figure, Source, Table};
use crate::paper::{PaperFigure, Row, SHARED_CORES};
use crate::plot::Drawing;
use crate::registry::papers;
use crate::runner::{Record, by_reason};
use crate::unit::Unit;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What became of a row of the papers' table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Answered, with figures of this kind.
    Answered(Source),
    /// It was tried here, and could not be.
    NotMeasured(String),
    /// There is an experiment, which was not asked for.
    NotAsked,
    /// There is none, and this is why.
    Unanswered(&'static str),
}

impl Status {
    /// A word or two.
    pub fn label(&self) -> &'static str {
        match self {
            Status::Answered(source) => source.label(),
            Status::NotMeasured(_) => "not measured",
            Status::NotAsked => "not in this run",
            Status::Unanswered(_) => "not yet",
        }
    }

    /// Why there is no answer; empty if there is.
    pub fn why(&self) -> &str {
        match self {
            Status::Answered(_) | Status::NotAsked => "",
            Status::NotMeasured(why) => why,
            Status::Unanswered(why) => why,
        }
    }
}

/// An experiment of the run.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its line of help.
    pub help: String,
    /// What came of it; none if no point was measured.
    pub document: Option<Document>,
    /// Its plots.
    pub drawings: Vec<Drawing>,
    /// Points that could not be measured, with the reason.
    pub missing: Vec<(String, String)>,
    /// Points that were measured, and those of them during which others ran.
    pub points: (usize, usize),
    /// What each core did meanwhile, by the kernel's counts; none if all is modelled.
    pub processor: Option<Table>,
    /// The command that runs it again.
    pub command: String,
}

/// A run, ready to be written.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the run.
    pub sections: Vec<Section>,
    /// Machines and builds that its points are of, each once.
    pub machines: Vec<Facts>,
    effort: Effort,
}

impl Report {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// A name or a setting that this program does not know.
    pub fn of(folder: &Folder) -> anyhow::Result<Report> {
        let effort = folder.manifest.effort;
        let mut sections = Vec::new();
        let failures = folder.failures();
        let documents = folder.documents()?;
        for ((job, document), asked) in documents.into_iter().zip(&folder.manifest.experiments) {
            let own = folder.records.iter().filter(|record| record.experiment == job.name);
            let good: Vec<_> = own.filter(|record| record.failure.is_none()).collect();
            let noisy = good.iter().filter(|record| record.noise().is_some()).count();
            let missing = failures.iter().filter(|(record, _)| record.experiment == job.name);
            let missing =
                missing.map(|(record, why)| (record.point.clone(), (*why).to_owned())).collect();
            let outcome = document.as_ref().map(|document| &document.outcome);
            let plots = job.experiment.plots();
            let settings = asked.settings.iter().map(|(k, v)| format!(" --set {k}={}", shell(v)));
            let option = effort.of(" --quick", "", " --full");
            sections.push(Section {
                help: asked.entry()?.help.into(),
                drawings: plots
                    .iter()
                    .filter_map(|plot| plot.draw(outcome?))
                    .chain(
                        outcome.and_then(|outcome| distribution::drawing(&outcome.distributions)),
                    )
                    .collect(),
                missing: by_reason(missing),
                points: (good.len(), noisy),
                processor: processor(&good),
                command: format!(
                    "picnic lab run {}{option}{}",
                    job.name,
                    settings.collect::<String>()
                ),
                name: job.name,
                document,
            });
        }
        let mut machines: Vec<Facts> = Vec::new();
        for record in &folder.records {
            let facts = &record.facts;
            let same =
                |other: &Facts| other.machine == facts.machine && other.revision == facts.revision;
            if !machines.iter().any(same) {
                machines.push(facts.clone());
            }
        }
        Ok(Report { sections, machines, effort })
    }

    /// What became of a row.
    pub fn status(&self, row: &Row) -> Status {
        if let Some(why) = row.unanswered {
            return Status::Unanswered(why);
        }
        let Some(section) = self.sections.iter().find(|section| section.name == row.name) else {
            return Status::NotAsked;
        };
        match &section.document {
            Some(document) => Status::Answered(document.outcome.source()),
            None => {
                let reasons = section.missing.iter().map(|(_, reason)| reason.as_str());
                Status::NotMeasured(reasons.collect::<Vec<_>>().join("; "))
            }
        }
    }

    /// Ours beside a paper's figure, for people; none if there is none.
    pub fn ours(&self, row: &Row, figure: &PaperFigure) -> Option<String> {
        let found = self.figure(row, figure)?;
        let mut text = match found.range_text() {
            range if range.is_empty() => found.text(),
            range => format!("{} ({range})", found.text()),
        };
        if found.key.starts_with(SHARED_CORES) {
            text += ", on shared cores";
        }
        Some(match figure.judge(&found) {
            Some(PaperVerdict { finding: Finding::Reproduced, .. }) => {
                format!("{text}: reproduced")
            }
            Some(PaperVerdict { finding, why }) => format!("{text}: {finding} ({why})"),
            None => text,
        })
    }

    fn figure(&self, row: &Row, figure: &PaperFigure) -> Option<Figure> {
        let section = self.sections.iter().find(|section| section.name == row.name)?;
        let (whole, key) = (&section.document.as_ref()?.outcome.whole, figure.ours?);
        let bare = whole.figure(key)?;
        let shared = || whole.figure(&format!("{SHARED_CORES}{key}"));
        if bare.values.is_empty() { shared().or(Some(bare)) } else { Some(bare) }
    }

    /// Rows of PICNIC's own figures, or all others.
    fn rows(&self, is_own: bool) -> impl Iterator<Item = &'static Row> {
        papers().iter().filter(move |row| row.source.starts_with("PICNIC") == is_own)
    }

    /// The page.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// The same as Markdown.
    pub fn markdown(&self) -> String {
        markdown::text(self)
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let rows = papers().iter().map(|row| {
            let status = self.status(row);
            let figures = row.figures.iter().map(|figure| {
                let mut value = serde_json::to_value(figure).unwrap_or_default();
                value["paper"] = figure.paper.text().into();
                value["ours"] = self.ours(row, figure).into();
                let judged = self.figure(row, figure).and_then(|ours| figure.judge(&ours));
                value["judged"] = serde_json::to_value(judged).unwrap_or_default();
                value
            });
            json!({
                "name": row.name, "source": row.source, "what": row.what,
                "correction": row.correction, "status": status.label(), "why": status.why(),
                "figures": figures.collect::<Vec<_>>(),
            })
        });
        let runs = self.sections.iter().map(|section| {
            json!({
                "name": section.name, "help": section.help, "command": section.command,
                "points": section.points.0, "noisy_points": section.points.1,
                "not_measured": section.missing, "processor": section.processor,
                "document": section.document.as_ref().map(Document::to_json),
            })
        });
        json!({
            "effort": self.effort, "machines": self.machines,
            "rows": rows.collect::<Vec<_>>(), "runs": runs.collect::<Vec<_>>(),
        })
    }

    fn effort_text(&self) -> &'static str {
        self.effort.of("a quick run", "a run", "a full run")
    }
}

/// Shares of each core's time over measured points, each by the time that it took.
fn processor(records: &[&Record]) -> Option<Table> {
    /// A kind of time, for people, and its share.
    type Kind = (&'static str, fn(&CoreShare) -> f64);
    const KINDS: [Kind; 6] = [
        ("user", |share| share.user),
        ("system", |share| share.system),
        ("interrupt", |share| share.interrupt),
        ("softirq", |share| share.softirq),
        ("idle", |share| share.idle),
        ("steal", |share| share.steal),
    ];
    let mut sums: BTreeMap<usize, (f64, [f64; KINDS.len()])> = BTreeMap::new();
    for record in records.iter().filter(|record| record.is_measured()) {
        for share in &record.load.cores {
            let (time, kinds) = sums.entry(share.core).or_default();
            *time += record.took_s;
            kinds
                .iter_mut()
                .zip(KINDS)
                .for_each(|(sum, (_, of))| *sum += of(share) * record.took_s);
        }
    }
    let rows: Vec<_> = sums
        .into_iter()
        .filter(|(_, (time, _))| *time > 0.0)
        .map(|(core, (time, kinds))| {
            let shares = kinds.iter().map(|sum| Unit::Fraction.text(sum / time));
            [core.to_string()].into_iter().chain(shares).collect()
        })
        .collect();
    let columns = ["core"].into_iter().chain(KINDS.map(|(name, _)| name));
    let (title, columns) = ("processor time".into(), columns.map(String::from).collect());
    (!rows.is_empty()).then_some(Table { title, columns, rows, words: 0 })
}

/// As a shell takes it.
fn shell(value: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.,/:=".contains(letter);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.into();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

/// Text that is not markup.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Facts of a machine as name and text.
fn facts_of(facts: &Facts) -> Vec<(&'static str, String)> {
    let distances = facts.distances.iter();
    let distances: Vec<_> =
        distances.map(|d| format!("core {} to {}: {:.0} ns", d.from, d.to, d.one_way_ns)).collect();
    let or_not = |words: Vec<String>| {
        if words.is_empty() { "unavailable".into() } else { words.join("; ") }
    };
    vec![
        ("machine", facts.machine.clone()),
        ("revision", facts.revision.clone()),
        ("processor", facts.processor.clone()),
        ("cores", format!("{} ({})", facts.cores, facts.topology)),
        ("caches", or_not(facts.caches.clone())),
        ("one way of a word", or_not(distances)),
        ("kernel", facts.kernel.clone()),
        ("hypervisor", if facts.virtual_machine { "yes" } else { "no" }.into()),
        ("governor", facts.governor.clone()),
        ("hardware counters", facts.counters.clone()),
        ("mitigations", or_not(facts.mitigations.clone())),
    ]
}

/// What PICNIC gives, for who reads no further.
const CONTRIBUTIONS: &str = "A NIC feature is software on a borrowed core; the rest of the machine \
    sees one multi-queue NIC and runs its programs unchanged, at full speed. So a feature is \
    tried under a real workload before anyone builds it. What the card itself costs in processor \
    time and latency, how many wires one core serves, and what receive-side scaling gives are the \
    questions of its paper.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_what_a_shell_takes() {
        assert_eq!(
            (shell("1,64"), shell("[1, 2]"), shell("a'b")),
            ("1,64".into(), "'[1, 2]'".into(), "'a'\\''b'".into())
        );
    }
}
