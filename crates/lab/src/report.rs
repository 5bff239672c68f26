//! The results of a run for people: a page, Markdown, or JSON.
//!
//! All three are derived from a run's directory: first PICNIC's own figures, then every row of the
//! papers' table with its status, then each experiment with plots, numbers, machine and command.
//! The page is a single file that needs no network.

mod diff;
mod html;
mod markdown;
mod svg;

pub use diff::{Diff, diff};
use html::Answer;

use crate::ab;
use crate::breakdown::{Kept, kept};
use crate::compare::{Finding, PaperVerdict, Verdict};
use crate::distribution;
use crate::document::Document;
use crate::experiment::Effort;
use crate::facts::Facts;
use crate::folder::Folder;
use crate::meter::CoreShare;
use crate::outcome::{Figure, Outcome, Source, Table};
use crate::paper::{PaperFigure, Row, SHARED_CORES};
use crate::plot::Drawing;
use crate::registry::papers;
use crate::runner::{Record, by_reason};
use crate::unit::Unit;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The status of a row of the papers' table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Answered, with figures of this source.
    Answered(Source),
    /// It could not be measured here.
    NotMeasured(String),
    /// There is an experiment, which was not requested.
    NotAsked,
    /// There is no experiment, with the reason.
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
    /// Its result; none if no point was measured.
    pub document: Option<Document>,
    /// Its plots.
    pub drawings: Vec<Drawing>,
    /// Points that could not be measured, with the reason.
    pub missing: Vec<(String, String)>,
    /// Measured points, and points during which other programs ran.
    pub points: (usize, usize),
    /// The load of each core, from the kernel's counts; none if everything is modelled.
    pub processor: Option<Table>,
    /// The command that runs it again.
    pub command: String,
    /// Whether it is a user's own question, whose answer is in its notes.
    pub is_question: bool,
}

/// Rows of a table that people read; longer ones are only in the data file.
const LONGEST_TABLE: usize = 12;

/// A run, ready to be reported.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the run.
    pub sections: Vec<Section>,
    /// Machines and builds of its points, each once.
    pub machines: Vec<Facts>,
    effort: Effort,
    breakdowns: Vec<Kept>,
}

impl Report {
    /// Reads a run's directory.
    ///
    /// # Errors
    /// A name or a setting unknown to this program.
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
                is_question: false,
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
        Ok(Report { sections, machines, effort, breakdowns: Vec::new() })
    }

    /// A report on the answer to a user's own question, with the command to repeat it.
    pub fn of_answer(document: &Document, command: &str) -> Report {
        let text =
            |key: &str| document.outcome.settings[key].as_str().unwrap_or_default().to_owned();
        let under = match text("workload") {
            none if none.is_empty() => String::new(),
            workload => format!(" under {workload}"),
        };
        let section = Section {
            name: document.name.clone(),
            help: format!(
                "{} of two or more cards, the baseline twice in each round{under}",
                text("figure")
            ),
            drawings: ab::drawing(&document.outcome)
                .into_iter()
                .chain(distribution::drawing(&document.outcome.distributions))
                .collect(),
            missing: Vec::new(),
            points: (1, 0),
            processor: None,
            command: command.into(),
            is_question: true,
            document: Some(document.clone()),
        };
        let machines = vec![document.facts.clone()];
        let breakdowns = Vec::new();
        Report { sections: vec![section], machines, effort: Effort::Usual, breakdowns }
    }

    /// With the breakdowns that `picnic lab breakdown --out` wrote into folders of this one.
    ///
    /// # Errors
    /// A file of one is wrong or cannot be read.
    pub fn with_breakdowns(mut self, folder: &Path) -> anyhow::Result<Report> {
        self.breakdowns = kept(folder)?;
        Ok(self)
    }

    /// The row of the papers' table that a section belongs to, if any.
    fn row(&self, section: &Section) -> Option<&'static Row> {
        papers().find(|row| row.name == section.name)
    }

    /// Whether the run has a section for a row of the papers' table.
    fn has_rows(&self) -> bool {
        self.sections.iter().any(|section| self.row(section).is_some())
    }

    /// The answer to each question, as a number if possible; the most certain first, those without
    /// a verdict last.
    fn answers(&self) -> Vec<(&Section, Answer)> {
        let answers = self.sections.iter().map(|section| (section, self.answer(section)));
        let mut answers: Vec<_> = answers.collect();
        answers.sort_by_key(|(_, answer)| answer.rank);
        answers
    }

    fn answer(&self, section: &Section) -> Answer {
        let Some(document) = &section.document else {
            let reasons = section.missing.iter().map(|(_, reason)| reason.as_str());
            return Answer {
                rank: 4,
                verdict: "not measured".into(),
                is_good: Some(false),
                figure: None,
                paper: None,
                why: reasons.collect::<Vec<_>>().join("; "),
            };
        };
        let source = document.outcome.source().label();
        let Some(row) = self.row(section) else { return of_own(&document.outcome, source) };
        let figures = row.figures.iter().filter_map(|figure| {
            let ours = self.figure(row, figure)?;
            let judged = figure.judge(&ours);
            let finding = judged.as_ref().map(|judged| judged.finding);
            let rank = match finding {
                _ if ours.values.is_empty() => 3,
                Some(Finding::Reproduced | Finding::NotReproduced) => 0,
                Some(Finding::DependsOnWhatWasFitted) | None => 1,
                Some(Finding::NotMeasurableHere | Finding::Fitted) => 2,
            };
            let [number, range] = match (figure.holds, &ours.basis) {
                (None, None) => [ours.text(), ours.range_text()],
                _ => [figure.value_text(&ours), String::new()],
            };
            let why = match judged {
                Some(PaperVerdict { finding: Finding::Reproduced, .. }) | None => String::new(),
                Some(judged) => judged.why,
            };
            Some(Answer {
                rank,
                verdict: match finding {
                    Some(finding) => format!("{finding}, {}", ours.source.label()),
                    None => source.into(),
                },
                is_good: finding.and_then(|finding| match finding {
                    Finding::Reproduced => Some(true),
                    Finding::NotReproduced => Some(false),
                    _ => None,
                }),
                figure: (rank < 3).then(|| [figure.what.into(), number, range]),
                paper: Some(figure.paper.text()),
                why,
            })
        });
        let none = of_own(&document.outcome, source);
        figures.min_by_key(|answer| answer.rank).unwrap_or(none)
    }

    /// At most ten lines: each question's answer; for a single one, its figures and the paper's.
    pub fn summary(&self) -> Vec<String> {
        const LINES: usize = 10;
        let mut lines: Vec<String> = match &self.sections[..] {
            [section] if self.row(section).is_some() => {
                let row = self.row(section);
                let figures =
                    row.iter().flat_map(|row| row.figures.iter().map(move |of| (row, of)));
                let line = |(row, figure): (&&'static Row, &PaperFigure)| {
                    let ours = self.ours(row, figure);
                    let ours = ours.unwrap_or_else(|| "not measured".into());
                    format!("{}: {ours}; the paper: {}", figure.what, figure.paper.text())
                };
                figures.map(line).collect()
            }
            _ => {
                let answers = self.answers().into_iter();
                answers.map(|(section, answer)| answer.line(&section.name)).collect()
            }
        };
        if let Some(more @ 1..) = lines.len().checked_sub(LINES) {
            lines.truncate(LINES - 1);
            lines.push(format!("{} more on the page", more + 1));
        }
        lines
    }

    /// The status of a row.
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

    /// Ours for a paper's figure, for people, if there is one.
    pub fn ours(&self, row: &Row, figure: &PaperFigure) -> Option<String> {
        self.figure(row, figure).map(|found| figure.text(&found))
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
        papers().filter(move |row| row.source.starts_with("PICNIC") == is_own)
    }

    /// A picture (SVG) and the points (CSV) of each plot, by the name of the file.
    pub fn plots(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        for section in &self.sections {
            for drawing in &section.drawings {
                let title = drawing.title.replace(|letter: char| !letter.is_alphanumeric(), "-");
                let words: Vec<_> = title.split('-').filter(|word| !word.is_empty()).collect();
                let name = format!("{}-{}", section.name, words.join("-").to_lowercase());
                files.push((format!("{name}.svg"), svg::file(drawing, html::STYLE)));
                files.push((format!("{name}.csv"), drawing.csv()));
            }
        }
        files
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
        let rows = papers().map(|row| {
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

/// The first figure of a run that is in no paper.
fn of_own(outcome: &Outcome, source: &str) -> Answer {
    let none = Answer {
        rank: 1,
        verdict: source.into(),
        is_good: None,
        figure: None,
        paper: None,
        why: String::new(),
    };
    let sweep = outcome.series.iter().find(|series| series.name == "sweep");
    let swept = sweep.iter().flat_map(|series| &series.points).flat_map(|point| &point.comparisons);
    if let Some(comparison) = outcome.whole.comparisons.iter().chain(swept).next() {
        let judgement = comparison.judgement();
        let verdict = judgement.map(|judgement| judgement.verdict);
        let number = comparison.estimate().map(|of| Unit::Change.text(of.ratio - 1.0));
        let interval = judgement.and_then(|judgement| judgement.interval);
        let range = interval.map(|of| Unit::Change.range(of.low - 1.0, of.high - 1.0));
        let range = range.map_or_else(String::new, |range| format!("95 %: {range}"));
        let what = format!("{}, candidate against baseline", comparison.label());
        return Answer {
            rank: u8::from(matches!(verdict, None | Some(Verdict::TooNoisy))),
            verdict: verdict.map_or_else(|| source.into(), |verdict| verdict.to_string()),
            is_good: verdict.and_then(|verdict| match verdict {
                Verdict::Better => Some(true),
                Verdict::Worse => Some(false),
                _ => None,
            }),
            figure: number.map(|number| [what, number, range]),
            why: outcome.notes.first().cloned().unwrap_or_default(),
            ..none
        };
    }
    let shown = outcome.whole.figures.iter().find(|figure| !figure.detail);
    let figure = shown.map(|figure| [figure.label(), figure.text(), figure.range_text()]);
    Answer { figure, ..none }
}

/// Each core's load over measured points, weighted by duration.
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

/// A word quoted for a shell.
pub fn shell(value: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.,/:=".contains(letter);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.into();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

/// Text with markup escaped.
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
        ("core-to-core latency", or_not(distances)),
        ("kernel", facts.kernel.clone()),
        ("hypervisor", if facts.virtual_machine { "yes" } else { "no" }.into()),
        ("governor", facts.governor.clone()),
        ("hardware counters", facts.counters.clone()),
        ("mitigations", or_not(facts.mitigations.clone())),
    ]
}

/// PICNIC's contribution, in short.
const CONTRIBUTIONS: &str = "A NIC feature is software on a borrowed core; the rest of the machine \
    sees one multi-queue NIC and runs its programs unchanged, at full speed. So a feature can be \
    tried under a real workload before it is built in hardware. The paper asks three questions: the \
    cost of the card itself in processor time and latency, the number of wires that one core can \
    serve, and the gain from receive-side scaling.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(
            (shell("1,64"), shell("[1, 2]"), shell("a'b")),
            ("1,64".into(), "'[1, 2]'".into(), "'a'\\''b'".into())
        );
    }
}
