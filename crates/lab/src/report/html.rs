//! A report as one page: works from disk, in light and dark mode, on paper and on a phone.
//!
//! The first screen has the answers: for each question a sentence, a number with its interval, a
//! verdict and a small plot. Details are folded; very long tables are in the data files.

use super::{CONTRIBUTIONS, LONGEST_TABLE, Report, Section, Status, escape, facts_of, svg};
use crate::breakdown::Kept;
use crate::document::Document;
use crate::facts::Facts;
use crate::outcome::{Source, Table};
use crate::paper::Row;
use std::collections::BTreeMap;

/// The page's style.
pub(super) const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Report) -> String {
    let repeated = repeated_notes(report);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>PICNIC lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}<main>\n\
         <h1>PICNIC lab</h1>\n{}",
        contents(report, !repeated.is_empty()),
        summary(report)
    );
    page += "<section id=\"answers\" class=\"cards\">\n";
    report.answers().iter().for_each(|(section, answer)| page += &card(report, section, answer));
    page += "</section>\n";
    page += &paper_colour(report);
    report.sections.iter().for_each(|section| page += &one(report, section, &repeated));
    report.breakdowns.iter().for_each(|kept| page += &breakdown(kept));
    if !repeated.is_empty() {
        page +=
            "<section id=\"several\">\n<h2>Notes on several questions</h2>\n<ul class=\"notes\">\n";
        for (note, names) in &repeated {
            page += &format!("<li>{}: {}</li>\n", escape(&names.join(", ")), escape(note));
        }
        page += "</ul>\n</section>\n";
    }
    if report.has_rows() {
        page += &papers(report);
    }
    page += "<section id=\"machines\">\n<h2>Machines</h2>\n";
    report.machines.iter().for_each(|facts| page += &machine(facts));
    page += &format!("</section>\n<p class=\"why\">{}</p>\n", escape(CONTRIBUTIONS));
    page + "</main>\n</body>\n</html>\n"
}

/// Where is what.
fn contents(report: &Report, has_repeated: bool) -> String {
    let own = report.sections.iter().map(|section| (section.name.as_str(), section.name.as_str()));
    let parts: Vec<_> = report.breakdowns.iter().map(|kept| (part(kept), &kept.name)).collect();
    let parts = parts.iter().map(|(id, name)| (id.as_str(), name.as_str()));
    let several = has_repeated.then_some(("several", "Notes on several questions"));
    let papers = report.has_rows().then_some(("papers", "Figures of the papers"));
    let all = [("answers", "Answers")].into_iter().chain(own).chain(parts);
    let all = all.chain(several).chain(papers).chain([("machines", "Machines")]);
    let items: String = all
        .map(|(id, name)| format!("<li><a href=\"#{}\">{}</a></li>\n", escape(id), escape(name)))
        .collect();
    format!("<nav aria-label=\"Contents\">\n<ul>\n{items}</ul>\n</nav>\n")
}

fn summary(report: &Report) -> String {
    let machine = report.machines.first();
    let on = machine.map_or_else(String::new, |facts| {
        format!(
            " on {}, {} cores, kernel {}, revision {}",
            facts.processor, facts.cores, facts.kernel, facts.revision
        )
    });
    let count = report.sections.iter().filter(|section| section.document.is_some()).count();
    let questions = if report.sections.len() == 1 { "question" } else { "questions" };
    format!(
        "<p class=\"summary\">{count} of {} {questions} answered by {}{}.</p>\n",
        report.sections.len(),
        report.effort_text(),
        escape(&on)
    )
}

/// A question's answer on the first screen.
pub(super) struct Answer {
    /// Its certainty: the most certain first.
    pub(super) rank: u8,
    /// The verdict in a word or two.
    pub(super) verdict: String,
    /// Whether the verdict is good or bad, if either.
    pub(super) is_good: Option<bool>,
    /// The figure's name, value and range.
    pub(super) figure: Option<[String; 3]>,
    /// The paper's value.
    pub(super) paper: Option<String>,
    /// Why there is no more.
    pub(super) why: String,
}

impl Answer {
    /// As a line, with the question's name.
    pub(super) fn line(&self, name: &str) -> String {
        let verdict = &self.verdict;
        let Some([what, number, range]) = &self.figure else {
            let why = if self.why.is_empty() { String::new() } else { format!(": {}", self.why) };
            return format!("{name}: {verdict}{why}");
        };
        let range = if range.is_empty() { String::new() } else { format!(" ({range})") };
        let paper = self.paper.as_ref().map(|paper| format!("; the paper: {paper}"));
        format!("{name}: {what}: {number}{range}, {verdict}{}", paper.unwrap_or_default())
    }
}

fn badge(text: &str, is_good: Option<bool>) -> String {
    let kind = match is_good {
        Some(true) => "yes",
        Some(false) => "no",
        None => "later",
    };
    format!("<span class=\"badge {kind}\">{}</span>", escape(text))
}

fn card(report: &Report, section: &Section, answer: &Answer) -> String {
    let question = report.row(section).map_or(section.help.as_str(), |row| row.what);
    let name = escape(&section.name);
    let mut text = format!(
        "<div class=\"card\">\n<h3><a href=\"#{name}\">{name}</a> {}</h3>\n<p>{}</p>\n",
        badge(&answer.verdict, answer.is_good),
        escape(question)
    );
    if let Some([what, number, range]) = &answer.figure {
        let range = match range.as_str() {
            "" => String::new(),
            range => format!(" <span class=\"why\">{}</span>", escape(range)),
        };
        text += &format!(
            "<p class=\"answer\"><strong>{}</strong>{range}<br>{}{}</p>\n",
            escape(number),
            escape(what),
            answer.paper.as_ref().map_or_else(String::new, |paper| {
                format!("; the paper: <span class=\"paper\">{}</span>", escape(paper))
            })
        );
    }
    if !answer.why.is_empty() {
        text += &format!("<p class=\"why\">{}</p>\n", escape(&answer.why));
    }
    if let Some(drawing) = section.drawings.first() {
        text += &svg::small(drawing);
    }
    text + "</div>\n"
}

/// The place of a breakdown in the page.
fn part(kept: &Kept) -> String {
    format!("breakdown-{}", kept.name)
}

/// Where the cores' time goes: the components, and the stacks as a flame graph.
fn breakdown(kept: &Kept) -> String {
    format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>Time of the host's cores by component, by samples \
         of {}.</p>\n{}<details>\n<summary>Flame graph</summary>\n<p class=\"why\">A function is as wide as its share of \
         the samples, above the function that called it; the lowest row has the cores. \
         <span class=\"flame-key k\"></span> kernel, <span class=\"flame-key u\"></span> programs.</p>\n\
         <div class=\"scroll\">\n{}</div>\n</details>\n</section>\n",
        escape(&part(kept)),
        escape(&kept.name),
        escape(&kept.title),
        table(&kept.table),
        kept.graph
    )
}

/// The meaning of a colour, if it is used.
fn paper_colour(report: &Report) -> String {
    match report.has_rows() {
        true => "<p class=\"why\">In <span class=\"paper\">this colour</span>: the papers' figures. \
                 Ratios and shapes are compared, figures of other hardware are not. \
                 <em>Measured</em>: by this machine's clocks and counters. <em>Modelled</em>: by the \
                 simulator's. <em>Predicted</em>: modelled at the costs of the paper's machine. \
                 <em>Fitted</em>: a cost was chosen for this figure.</p>\n"
            .into(),
        false => String::new(),
    }
}

/// Notes shared by several questions, with their names.
fn repeated_notes(report: &Report) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for section in &report.sections {
        for note in section.document.iter().flat_map(|document| &document.outcome.notes) {
            found.entry(note).or_default().push(&section.name);
        }
    }
    found.retain(|_, names| names.len() > 1);
    found
}

fn papers(report: &Report) -> String {
    let mut text = String::from(
        "<section id=\"papers\">\n<h2>Figures of the papers</h2>\n<details>\n<summary>Answered in \
         this run</summary>\n<div class=\"scroll\">\n<table class=\"papers\">\n<thead><tr>\
         <th>experiment</th><th>of</th><th>paper</th><th>ours</th></tr></thead>\n<tbody>\n",
    );
    let all: Vec<_> = report.rows(true).chain(report.rows(false)).collect();
    let of =
        |wanted: fn(&Status) -> bool| all.iter().filter(move |row| wanted(&report.status(row)));
    let is_here = |status: &Status| matches!(status, Status::Answered(_) | Status::NotMeasured(_));
    of(is_here).for_each(|row| text += &line(report, row));
    text += "</tbody>\n</table>\n</div>\n</details>\n";
    let others: Vec<_> =
        of(|status| matches!(status, Status::NotAsked)).map(|row| row.name).collect();
    if !others.is_empty() {
        text += &format!(
            "<details>\n<summary>{} not in this run</summary>\n<p>{}</p>\n</details>\n",
            others.len(),
            escape(&others.join(", "))
        );
    }
    // A reason shared by several rows is shown once.
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in of(|status| matches!(status, Status::Unanswered(_))) {
        let why = row.unanswered.unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(row.name),
            None => reasons.push((why, vec![row.name])),
        }
    }
    if !reasons.is_empty() {
        let items: String = reasons
            .iter()
            .map(|(why, names)| {
                format!("<li>{}: {}</li>\n", escape(&names.join(", ")), escape(why))
            })
            .collect();
        let count: usize = reasons.iter().map(|(_, names)| names.len()).sum();
        text += &format!(
            "<details>\n<summary>{count} not answered yet</summary>\n<ul>\n{items}</ul>\n</details>\n"
        );
    }
    text + "</section>\n"
}

/// The row's figures, a line each.
fn line(report: &Report, row: &Row) -> String {
    let status = report.status(row);
    let mut text = String::new();
    for (index, figure) in row.figures.iter().enumerate() {
        text += "<tr>";
        if index == 0 {
            text += &format!(
                "<td rowspan=\"{}\"><a href=\"#{1}\">{1}</a><br><span class=\"why\">{2}; {3}</span></td>",
                row.figures.len(),
                escape(row.name),
                escape(row.source),
                escape(status.label())
            );
        }
        text += &figure_cells(
            figure.what,
            &figure.paper.text(),
            report.ours(row, figure).as_deref().unwrap_or("-"),
        );
        text += "</tr>\n";
    }
    text
}

fn figure_cells(what: &str, paper: &str, ours: &str) -> String {
    format!(
        "<td data-label=\"of\">{}</td><td data-label=\"paper\" class=\"paper\">{}</td>\
         <td data-label=\"ours\">{}</td>",
        escape(what),
        escape(paper),
        escape(ours)
    )
}

fn one(report: &Report, section: &Section, repeated: &BTreeMap<&str, Vec<&str>>) -> String {
    let (name, help) = (escape(&section.name), escape(&section.help));
    let mut text = format!("<section id=\"{name}\">\n<h2>{name}</h2>\n<p>{help}.</p>\n");
    if let Some(row) = report.row(section) {
        text +=
            &format!("<p class=\"why\">{}</p>\n", escape(&format!("{}: {}", row.source, row.what)));
        text += "<div class=\"scroll\">\n<table>\n<thead><tr><th>figure</th><th>paper</th>\
                 <th>ours</th></tr></thead>\n<tbody>\n";
        for figure in row.figures {
            let ours = report.ours(row, figure);
            let cells =
                figure_cells(figure.what, &figure.paper.text(), ours.as_deref().unwrap_or("-"));
            text += &format!("<tr>{cells}</tr>\n");
        }
        text += "</tbody>\n</table>\n</div>\n";
        if let Some(correction) = row.correction {
            text += &format!("<p class=\"why\">Of the paper: {}.</p>\n", escape(correction));
        }
    }
    let mut drawings = section.drawings.iter();
    if let Some(first) = drawings.next() {
        text += &plot(first);
    }
    let more: Vec<_> = drawings.map(plot).collect();
    text += &folded(&counted(more.len(), "more plot"), &more.concat());
    match &section.document {
        Some(document) => text += &details(section, document, repeated),
        None => {
            for (points, reason) in &section.missing {
                let words = format!("not measured: {points}: {reason}");
                text += &format!("<p class=\"missing\">{}</p>\n", escape(&words));
            }
        }
    }
    text + "</section>\n"
}

/// Tables, notes, and how it was measured.
fn details(section: &Section, document: &Document, repeated: &BTreeMap<&str, Vec<&str>>) -> String {
    let outcome = &document.outcome;
    let tables = outcome.tables();
    let shown: String = tables.iter().map(table).collect();
    let notes = outcome.notes.iter().filter(|note| !repeated.contains_key(note.as_str()));
    let notes: Vec<_> = notes.map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    let mut text = folded(&counted(tables.len(), "table"), &shown);
    let list = format!("<ul class=\"notes\">\n{}</ul>\n", notes.concat());
    // The answer to a user's own question is in its notes.
    text += &match section.is_question {
        true => list,
        false => folded(&counted(notes.len(), "note"), &list),
    };
    let (points, noisy) = section.points;
    let on = format!("on {}, revision {}", document.facts.machine, document.facts.revision);
    let how = match outcome.source() {
        Source::Modelled => format!("Modelled {on}: all times are the simulator's."),
        Source::Predicted | Source::Fitted => format!(
            "Modelled {on}: costs of the paper's machine, its fitted costs chosen for the figures \
             marked so, all others predicted."
        ),
        Source::Measured if section.is_question => format!("Measured {on}."),
        Source::Measured => {
            let points = counted(points, "point");
            format!("{points} measured {on}, {noisy} of them while other programs ran.")
        }
    };
    let how = format!(
        "<p class=\"why\">{}</p>\n{}<pre><code>{}</code></pre>\n",
        escape(&how),
        section.processor.as_ref().map(table).unwrap_or_default(),
        escape(&section.command)
    );
    text + &folded("Measurement, and command to repeat it", &how)
}

/// A count with its noun; empty for zero.
fn counted(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// Folded text; nothing without a summary.
fn folded(summary: &str, text: &str) -> String {
    match summary {
        "" => String::new(),
        _ => format!("<details>\n<summary>{}</summary>\n{text}</details>\n", escape(summary)),
    }
}

fn plot(drawing: &crate::plot::Drawing) -> String {
    format!(
        "<div class=\"plot\">\n<h3>{}</h3>\n<p class=\"axis-title\">{}</p>\n{}{}</div>\n",
        escape(&drawing.title),
        escape(&drawing.y_label),
        svg::svg(drawing),
        svg::legend(drawing)
    )
}

fn table(found: &Table) -> String {
    let title = match found.title.as_str() {
        "" => String::new(),
        title => format!("<h3>{}</h3>\n", escape(title)),
    };
    if found.rows.len() > LONGEST_TABLE {
        let rows = found.rows.len();
        return format!(
            "{title}<p class=\"why\">{rows} rows: in <a href=\"points.csv\">points.csv</a></p>\n"
        );
    }
    let class = |place: usize| if place < found.words { "" } else { " class=\"number\"" };
    let heads = found.columns.iter().enumerate();
    let heads = heads.map(|(place, name)| format!("<th{}>{}</th>", class(place), escape(name)));
    let rows = found.rows.iter().map(|cells| {
        let cells = found.columns.iter().zip(cells).enumerate().map(|(place, (name, words))| {
            format!("<td data-label=\"{}\"{}>{}</td>", escape(name), class(place), escape(words))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    format!(
        "{title}<div class=\"scroll\">\n<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n\
         </table>\n</div>\n",
        heads.collect::<String>(),
        rows.collect::<String>()
    )
}

fn machine(facts: &Facts) -> String {
    let rows = facts_of(facts).into_iter().map(|(name, words)| {
        format!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>\n", escape(&words))
    });
    let rows: String = rows.collect();
    let table = format!(
        "<div class=\"scroll\">\n<table class=\"facts\">\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    );
    folded(&format!("{}, {} cores, kernel {}", facts.processor, facts.cores, facts.kernel), &table)
}
