//! A report as one page: works from disk, light and dark, on paper and on a phone.

use super::{CONTRIBUTIONS, Report, Section, Status, escape, facts_of, svg};
use crate::facts::Facts;
use crate::outcome::Table;
use crate::paper::Row;
use crate::registry::papers;

/// The page's style.
const STYLE: &str = include_str!("style.css");

pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>PICNIC lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>PICNIC lab</h1>\n<p class=\"lead\">{}</p>\n",
        escape(CONTRIBUTIONS)
    );
    page += &summary(report);
    page += "<section class=\"cards\">\n";
    report.rows(true).for_each(|row| page += &card(report, row));
    page += "</section>\n<section>\n<h2>All figures of the papers</h2>\n";
    page += "<p>Ratios and shapes are compared, figures of other hardware are not. \
             <em>Measured</em>: by this machine's clocks and counters. <em>Modelled</em>: by the \
             simulator's.</p>\n<div class=\"scroll\">\n<table class=\"papers\">\n\
             <thead><tr><th>experiment</th><th>of</th><th>paper</th><th>ours</th>\
             <th>status</th></tr></thead>\n<tbody>\n";
    report.rows(true).chain(report.rows(false)).for_each(|row| page += &line(report, row));
    page += "</tbody>\n</table>\n</div>\n</section>\n";
    report.sections.iter().for_each(|section| page += &one(report, section));
    page += "<section>\n<h2>Machines</h2>\n";
    report.machines.iter().for_each(|facts| page += &machine(facts));
    page + "</section>\n</main>\n</body>\n</html>\n"
}

fn summary(report: &Report) -> String {
    let answered = report.rows(true).chain(report.rows(false));
    let answered = answered.filter(|row| matches!(report.status(row), Status::Answered(_)));
    let machine = report.machines.first();
    let on = machine.map_or_else(String::new, |facts| {
        format!(
            " on {}, {} cores, kernel {}, revision {}",
            facts.processor, facts.cores, facts.kernel, facts.revision
        )
    });
    format!(
        "<p class=\"summary\">{} of {} figures answered by {}{}.</p>\n",
        answered.count(),
        papers().len(),
        report.effort_text(),
        escape(&on)
    )
}

fn badge(status: &Status) -> String {
    let kind = match status {
        Status::Answered(_) => "yes",
        Status::NotMeasured(_) => "no",
        Status::NotAsked | Status::Unanswered(_) => "later",
    };
    format!("<span class=\"badge {kind}\">{}</span>", escape(status.label()))
}

/// The experiment's name; a link to its section, if it has one here.
fn name(report: &Report, row: &Row) -> String {
    match report.sections.iter().any(|section| section.name == row.name) {
        true => format!("<a href=\"#{0}\">{0}</a>", row.name),
        false => row.name.to_owned(),
    }
}

fn card(report: &Report, row: &Row) -> String {
    let status = report.status(row);
    let mut text = format!(
        "<div class=\"card\">\n<h3>{} {}</h3>\n<p>{}</p>\n<ul>\n",
        name(report, row),
        badge(&status),
        escape(&format!("{}: {}", row.source, row.what))
    );
    for figure in row.figures {
        let ours = report.ours(row, figure);
        text += &format!(
            "<li>{}: <span class=\"paper\">{}</span>{}</li>\n",
            escape(figure.what),
            escape(&figure.paper.text()),
            ours.map_or_else(String::new, |ours| {
                format!(", ours <strong>{}</strong>", escape(&ours))
            })
        );
    }
    text += "</ul>\n";
    if !status.why().is_empty() {
        text += &format!("<p class=\"why\">{}</p>\n", escape(status.why()));
    }
    text + "</div>\n"
}

fn line(report: &Report, row: &Row) -> String {
    let status = report.status(row);
    let why = match status.why() {
        "" => String::new(),
        why => format!("<br><span class=\"why\">{}</span>", escape(why)),
    };
    let correction = row.correction.map_or_else(String::new, |correction| {
        format!("<br><span class=\"why\">{}</span>", escape(correction))
    });
    let count = row.figures.len();
    let mut text = String::new();
    for (index, figure) in row.figures.iter().enumerate() {
        text += "<tr>";
        if index == 0 {
            text += &format!(
                "<td rowspan=\"{count}\">{}<br><span class=\"why\">{}</span></td>",
                name(report, row),
                escape(row.source)
            );
        }
        text += &format!(
            "<td>{}</td><td>{}</td><td>{}</td>",
            escape(figure.what),
            escape(&figure.paper.text()),
            report.ours(row, figure).map_or_else(|| "-".into(), |ours| escape(&ours))
        );
        if index == 0 {
            text += &format!("<td rowspan=\"{count}\">{}{why}{correction}</td>", badge(&status));
        }
        text += "</tr>\n";
    }
    text
}

fn one(report: &Report, section: &Section) -> String {
    let (name, help) = (escape(&section.name), escape(&section.help));
    let mut text = format!("<section id=\"{name}\">\n<h2>{name}</h2>\n<p>{help}.</p>\n");
    let row = papers().iter().find(|row| row.name == section.name);
    if let Some(row) = row {
        text +=
            &format!("<p class=\"why\">{}</p>\n", escape(&format!("{}: {}", row.source, row.what)));
        text += "<div class=\"scroll\">\n<table>\n<thead><tr><th>figure</th><th>paper</th>\
                 <th>ours</th></tr></thead>\n<tbody>\n";
        for figure in row.figures {
            let ours = report.ours(row, figure).unwrap_or_else(|| "-".into());
            text += &format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escape(figure.what),
                escape(&figure.paper.text()),
                escape(&ours)
            );
        }
        text += "</tbody>\n</table>\n</div>\n";
        if let Some(correction) = row.correction {
            text += &format!("<p class=\"why\">Of the paper: {}.</p>\n", escape(correction));
        }
    }
    for drawing in &section.drawings {
        text += &format!(
            "<div class=\"plot\">\n<h3>{}</h3>\n<p class=\"axis-title\">{}</p>\n{}{}</div>\n",
            escape(&drawing.title),
            escape(&drawing.y_label),
            svg::svg(drawing),
            svg::legend(drawing)
        );
    }
    if let Some(document) = &section.document {
        document.outcome.tables().iter().for_each(|found| text += &table(found));
        if !document.outcome.notes.is_empty() {
            let notes = document.outcome.notes.iter();
            let items: Vec<_> = notes.map(|note| format!("<li>{}</li>\n", escape(note))).collect();
            text += &format!("<ul class=\"notes\">\n{}</ul>\n", items.concat());
        }
    } else {
        for (points, reason) in &section.missing {
            let words = format!("not measured: {points}: {reason}");
            text += &format!("<p class=\"missing\">{}</p>\n", escape(&words));
        }
    }
    text += &section.processor.as_ref().map(table).unwrap_or_default();
    let (points, noisy) = section.points;
    let machine = section.document.as_ref().map_or_else(String::new, |document| {
        format!(" on {}, revision {}", document.facts.machine, document.facts.revision)
    });
    let words = format!("{points} points measured, {noisy} of them noisy{machine}");
    text += &format!("<p class=\"why\">{}.</p>\n", escape(&words));
    text + &format!("<pre><code>{}</code></pre>\n</section>\n", escape(&section.command))
}

fn table(found: &Table) -> String {
    let cell = |tag: &str, place: usize, words: &str| {
        let class = if place < found.words { "" } else { " class=\"number\"" };
        format!("<{tag}{class}>{}</{tag}>", escape(words))
    };
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(place, words)| cell(tag, place, words));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let title = match found.title.as_str() {
        "" => String::new(),
        title => format!("<h3>{}</h3>\n", escape(title)),
    };
    let rows: String = found.rows.iter().map(|cells| row("td", cells)).collect();
    format!(
        "{title}<div class=\"scroll\">\n<table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n\
         </table>\n</div>\n",
        row("th", &found.columns).trim_end()
    )
}

fn machine(facts: &Facts) -> String {
    let rows = facts_of(facts).into_iter().map(|(name, words)| {
        format!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>\n", escape(&words))
    });
    let rows: String = rows.collect();
    format!(
        "<div class=\"scroll\">\n<table class=\"facts\">\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}
