//! A report as Markdown.

use super::{CONTRIBUTIONS, LONGEST_TABLE, Report, Section, facts_of};
use crate::outcome::Table;
use crate::paper::Row;

pub(super) fn text(report: &Report) -> String {
    let mut text = format!("# PICNIC lab\n\n{CONTRIBUTIONS}\n\n## Figures of the papers\n\n");
    let columns = ["experiment", "source", "of", "paper", "ours", "status"].map(String::from);
    let rows = report.rows(true).chain(report.rows(false));
    let rows: Vec<_> = rows.flat_map(|row| lines(report, row)).collect();
    text += &table(&columns, &rows, columns.len());
    report.sections.iter().for_each(|section| text += &one(section));
    text += "\n## Machines\n";
    for facts in &report.machines {
        let columns = ["fact", ""].map(String::from);
        let rows: Vec<_> =
            facts_of(facts).into_iter().map(|(name, words)| vec![name.to_owned(), words]).collect();
        text += &format!("\n{}", table(&columns, &rows, 2));
    }
    text
}

fn lines(report: &Report, row: &Row) -> Vec<Vec<String>> {
    let status = report.status(row);
    let notes = [status.why(), row.correction.unwrap_or("")];
    let notes = notes.into_iter().filter(|note| !note.is_empty());
    let status = [status.label()].into_iter().chain(notes).collect::<Vec<_>>().join("; ");
    let lines = row.figures.iter().enumerate().map(|(index, figure)| {
        let first = |words: &str| if index == 0 { words.to_owned() } else { String::new() };
        vec![
            first(row.name),
            first(row.source),
            figure.what.into(),
            figure.paper.text(),
            report.ours(row, figure).unwrap_or_else(|| "-".into()),
            first(&status),
        ]
    });
    lines.collect()
}

fn one(section: &Section) -> String {
    let mut text =
        format!("\n## {}\n\n{}.\n\n    {}\n", section.name, section.help, section.command);
    let tables = section.document.iter().flat_map(|document| document.outcome.tables());
    for found in tables.chain(section.processor.clone()) {
        let Table { title, columns, rows, words } = &found;
        if !title.is_empty() {
            text += &format!("\n### {title}\n");
        }
        text += &match rows.len() > LONGEST_TABLE {
            true => format!("\n{} rows: in points.csv\n", rows.len()),
            false => format!("\n{}", table(columns, rows, *words)),
        };
    }
    if let Some(document) = &section.document {
        text += "\n";
        document.outcome.notes.iter().for_each(|note| text += &format!("- {note}\n"));
    } else {
        text += "\n";
        for (points, reason) in &section.missing {
            text += &format!("- not measured: {points}: {reason}\n");
        }
    }
    text
}

fn table(columns: &[String], rows: &[Vec<String>], words: usize) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = |place: usize| if place < words { "---" } else { "---:" };
    let rules: Vec<_> = (0..columns.len()).map(|place| rule(place).to_owned()).collect();
    let rows: String = rows.iter().map(|cells| line(cells)).collect();
    format!("{}{}{rows}", line(columns), line(&rules))
}
