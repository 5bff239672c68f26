//! Output as text and JSON, and the format of figures.

use anyhow::anyhow;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use picnic_control::listing::{self, Form, Listing};
use picnic_core::error::brief;
use picnic_machine::signals;
use picnic_ports::stream::Stream;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Standard output or standard error. Its reader is waited for until this process shall stop.
///
/// # Errors
/// It is not open for writing, or no descriptor is left.
pub(crate) fn standard(stream: impl AsFd) -> anyhow::Result<Stream> {
    let file = stream.as_fd().try_clone_to_owned()?;
    Stream::new(file, signals::stop()).map_err(|message| anyhow!("the output {message}"))
}

/// Writes all of a text to standard output.
///
/// # Errors
/// The system's error; for a lost reader, see [`is_broken_pipe`].
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(&printable(text, &['\n', '\t']))
}

fn write(text: &str) -> anyhow::Result<()> {
    Ok(standard(io::stdout())?.write_all(text.as_bytes())?)
}

/// Text with control characters escaped, including line ends, so that a name cannot control the
/// terminal.
pub(crate) fn name(text: &str) -> String {
    printable(text, &[]).into_owned()
}

/// Text with control characters escaped, except `save`.
fn printable<'t>(text: &'t str, save: &[char]) -> Cow<'t, str> {
    let is_control = |letter: char| letter.is_control() && !save.contains(&letter);
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_control(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// Writes one JSON object and a line end to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    let mut shown = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        match letter {
            // JSON does not escape these, but terminals obey them. They only occur in strings.
            '\u{7f}'..='\u{9f}' => shown += &format!("\\u{:04x}", u32::from(letter)),
            letter => shown.push(letter),
        }
    }
    shown.push('\n');
    write(&shown)
}

/// Writes a result: one JSON object for programs, or this text for people.
pub(crate) fn show(
    result: &impl Serialize,
    json: bool,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if json { print_json(result) } else { print(&text()) }
}

/// Writes a message to standard error as one line: line ends in it belong to names. Errors are
/// ignored if it is closed.
pub(crate) fn tell(message: impl std::fmt::Display) {
    let message = message.to_string();
    let line = format!("{}\n", printable(&brief(&message), &['\t']));
    let _ = match standard(io::stderr()) {
        Ok(mut stderr) => stderr.write_all(line.as_bytes()),
        // The message may be that no descriptor is left.
        Err(_) => io::stderr().write_all(line.as_bytes()),
    };
}

/// Whether the reader of standard output has left.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column<'a> {
    /// Words.
    Text(&'a str),
    /// Figures.
    Number(&'a str),
}

impl<'a> Column<'a> {
    /// Its heading.
    fn name(self) -> &'a str {
        match self {
            Column::Text(name) | Column::Number(name) => name,
        }
    }
}

/// Columns by their headings, with `#` before headings of figures: `queue|#packets`.
pub(crate) fn columns(headings: &str) -> Vec<Column<'_>> {
    let column = |heading| match str::strip_prefix(heading, "#") {
        Some(heading) => Column::Number(heading),
        None => Column::Text(heading),
    };
    headings.split('|').map(column).collect()
}

/// A table without lines: a heading, then the rows, as wide as needed.
pub(crate) fn table(columns: &[Column<'_>], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled);
    written(table, columns, rows, [])
}

/// Columns of this weight stay.
pub(crate) const STAYS: u8 = 9;

/// The same, without the columns of least weight until it fits the terminal. Omitted
/// columns are named below it.
pub(crate) fn narrow_table<'a>(
    columns: impl IntoIterator<Item = (Column<'a>, u8)>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    narrowed(columns.into_iter().collect(), rows.into_iter().collect(), terminal_width())
}

fn narrowed(
    mut columns: Vec<(Column<'_>, u8)>,
    mut rows: Vec<Vec<String>>,
    most: Option<usize>,
) -> String {
    let mut without = Vec::new();
    loop {
        let shown: Vec<_> = columns.iter().map(|(column, _)| *column).collect();
        let text = table(&shown, rows.iter().cloned());
        let width = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let light = columns.iter().enumerate().filter(|(_, (_, weight))| *weight < STAYS);
        let least = light.min_by_key(|(_, (_, weight))| *weight);
        let Some((place, _)) = least.filter(|_| most.is_some_and(|most| width > most)) else {
            return match without.is_empty() {
                true => text,
                false => format!("{text} (no room for: {})\n", without.join(", ")),
            };
        };
        without.push(columns.remove(place).0.name());
        rows.iter_mut().filter(|row| place < row.len()).for_each(|row| drop(row.remove(place)));
    }
}

/// The table of a method's result, or of one of its rows.
pub(crate) fn listing(listing: &Listing, result: &Value) -> String {
    let rows = match result[listing.list].as_array() {
        Some(rows) => rows.as_slice(),
        None => std::slice::from_ref(result),
    };
    if rows.is_empty() {
        return format!("no {}\n", listing.name);
    }
    let columns = listing.columns.iter().map(|column| match column.is_number {
        true => (Column::Number(column.heading), column.weight),
        false => (Column::Text(column.heading), column.weight),
    });
    let value = |row: &Value, key: &str| row.pointer(&format!("/{key}")).cloned();
    let cell = |row: &Value, column: &listing::Column| match (
        column.form,
        value(row, column.key).unwrap_or_default(),
    ) {
        (Form::Own(text), _) => text(row),
        (Form::Words(none), Value::Null) => none.to_owned(),
        (Form::Words(_), value) => listing::text(&value),
        (Form::Count, value) => count(value.as_u64().unwrap_or(0)),
        (Form::Time, value) => time(&value),
    };
    let rows =
        rows.iter().map(|row| listing.columns.iter().map(|column| cell(row, column)).collect());
    narrow_table(columns, rows)
}

/// Nanoseconds, with fractions for means; a dash if missing.
pub(crate) fn time(value: &Value) -> String {
    let ns = value.as_u64().or_else(|| value.as_f64().map(|ns| ns.round() as u64));
    ns.map_or_else(|| "-".into(), |ns| nanoseconds(Some(ns)))
}

/// The same, with cells broken between words so that it fits the terminal. The first column stays
/// whole. If a word would not fit, each row becomes a paragraph.
pub(crate) fn fitting_table(
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    fitted(columns, rows.into_iter().collect(), width())
}

fn fitted(columns: &[Column<'_>], rows: Vec<Vec<String>>, width: u16) -> String {
    let length = |text: &str| text.chars().count();
    let longest = |text: &str| text.split_whitespace().map(length).max().unwrap_or(0);
    let least: Vec<usize> = (columns.iter().enumerate())
        .map(|(place, column)| {
            let needed: &dyn Fn(&str) -> usize = if place == 0 { &length } else { &longest };
            let cells = rows.iter().filter_map(|row| row.get(place));
            cells.map(|cell| needed(cell)).chain([needed(column.name())]).max().unwrap_or(0)
        })
        .collect();
    // A blank on either side.
    if least.iter().map(|word| word + 2).sum::<usize>() > usize::from(width) {
        return paragraphs(columns, &rows, usize::from(width));
    }
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    let least = least.iter().map(|&word| word as u16 + 2).map(Width::Fixed);
    written(table, columns, rows, least.map(ColumnConstraint::LowerBoundary))
}

/// Each row as its first cell and, below it, the others by name.
fn paragraphs(columns: &[Column<'_>], rows: &[Vec<String>], width: usize) -> String {
    let mut text = String::new();
    for row in rows {
        let mut cells = columns.iter().zip(row);
        if let Some((_, first)) = cells.next() {
            text.push_str(&format!(" {}\n", name(first)));
        }
        for (column, cell) in cells.filter(|(_, cell)| !cell.is_empty()) {
            let heading = match column.name() {
                "" => String::new(),
                heading => format!("{heading}: "),
            };
            text.push_str(&wrapped(&format!("   {heading}"), &name(cell), 5, Some(width)));
        }
    }
    text
}

/// A line with a name and a text that fits the terminal: broken between words, with further lines
/// indented to the text.
pub(crate) fn hanging(name: &str, text: &str) -> String {
    wrapped(name, text, name.chars().count(), terminal_width())
}

fn wrapped(start: &str, text: &str, indent: usize, most: Option<usize>) -> String {
    let Some(most) = most else { return format!("{start}{text}\n") };
    let (mut lines, mut line) = (String::new(), start.to_owned());
    for (place, word) in text.split_whitespace().enumerate() {
        let is_full = line.chars().count() + 1 + word.chars().count() > most;
        if place != 0 && is_full {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(indent);
        } else if place != 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &line + "\n"
}

/// The same with headings broken to the width of their cells.
pub(crate) fn page_table(columns: &[Column<'_>], rows: &[Vec<String>]) -> String {
    let heading = |place: usize, words: &str| {
        let cells = rows.iter().filter_map(|row| row.get(place));
        let width = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        let mut lines: Vec<String> = Vec::new();
        for word in words.split(' ') {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.into()),
            }
        }
        lines.join("\n")
    };
    let broken: Vec<String> =
        (columns.iter().enumerate()).map(|(place, column)| heading(place, column.name())).collect();
    let columns = columns.iter().zip(&broken).map(|(column, words)| match column {
        Column::Text(_) => Column::Text(words),
        Column::Number(_) => Column::Number(words),
    });
    table(&columns.collect::<Vec<_>>(), rows.iter().cloned())
}

/// Columns of the terminal on standard output, or `$COLUMNS`; none if it is not a terminal.
fn terminal_width() -> Option<usize> {
    let said = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns != 0);
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col != 0 => Some(size.ws_col.into()),
        _ => said(),
    }
}

/// The same for text that is always broken: a page's width without a terminal.
fn width() -> u16 {
    terminal_width().map_or(100, |columns| columns.clamp(60, 1000) as u16)
}

fn written(
    mut table: Table,
    columns: &[Column<'_>],
    rows: impl IntoIterator<Item = Vec<String>>,
    constraints: impl IntoIterator<Item = ColumnConstraint>,
) -> String {
    table.load_preset(presets::NOTHING);
    table.set_header(columns.iter().map(|column| column.name()));
    for row in rows {
        table.add_row(row.iter().map(|cell| name(cell)));
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(place) = table.column_mut(index) {
            let alignment = match column {
                Column::Text(_) => CellAlignment::Left,
                Column::Number(_) => CellAlignment::Right,
            };
            place.set_cell_alignment(alignment);
        }
    }
    for (index, constraint) in constraints.into_iter().enumerate().skip(1) {
        if let Some(column) = table.column_mut(index) {
            column.set_constraint(constraint);
        }
    }
    if let Some(first) = table.column_mut(0) {
        first.set_constraint(ColumnConstraint::ContentWidth);
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A count with thousands separators: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate to three or four figures: `12.35 M`, `987`.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 999_950_000.0 => format!("{:.2} G", rate / 1e9),
        rate if rate >= 999_950.0 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 999.5 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// Nanoseconds in a suitable unit.
pub(crate) fn nanoseconds(value: Option<u64>) -> String {
    match value {
        None => "unavailable".into(),
        Some(ns) if ns < 1_000 => format!("{ns} ns"),
        Some(ns) if ns < 1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        Some(ns) if ns < 1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        Some(ns) => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// A ratio with one decimal; a dash if missing.
pub(crate) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

/// A share in percent.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        let texts = [0, 12, 999, 1_000, 123_456, 1_234_567].map(count);
        assert_eq!(texts, ["0", "12", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(name("a\x1b[2Jb\nc\u{9b}31m"), "a\\u{1b}[2Jb\\nc\\u{9b}31m");
        assert_eq!(name("caf\u{e9} \u{2192}"), "caf\u{e9} \u{2192}");
        assert_eq!(printable("a\n\tb\r", &['\n', '\t']), "a\n\tb\\r");
        let text = table(&[Column::Text("wire")], [vec!["a\nb\x07".into()]]);
        assert_eq!(text, " wire\n a\\nb\\u{7}\n");
    }

    #[test]
    fn rates_never_show_a_thousand_of_a_smaller_unit() {
        let texts = [0.0, 999.0, 999.6, 12_340.0, 999_960.0, 12_345_678.0, 2e9].map(rate);
        assert_eq!(texts, ["0", "999", "1.0 k", "12.3 k", "1.00 M", "12.35 M", "2.00 G"]);
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let texts = [None, Some(999), Some(1_500), Some(2_000_000), Some(3_000_000_000)];
        assert_eq!(texts.map(nanoseconds), ["unavailable", "999 ns", "1.5 µs", "2.0 ms", "3.00 s"]);
    }

    #[test]
    fn headings_are_broken_and_cells_are_not() {
        let columns = [Column::Text("a long heading"), Column::Number("p50 of it")];
        let text = page_table(&columns, &[vec!["x y z".into(), "12.0 µs".into()]]);
        let lines = [" a         p50 of", " long          it", " heading", " x y z    12.0 µs"];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn columns_of_least_weight_make_room_for_the_others() {
        let [wire, bytes, packets] = ["wire", "bytes", "packets"];
        let columns =
            [(Column::Text(wire), 9), (Column::Number(bytes), 1), (Column::Number(packets), 2)];
        let rows = vec![vec!["a".into(), "123,456".into(), "1".into()]];
        let narrow = |most| narrowed(columns.to_vec(), rows.clone(), most);
        let whole = " wire    bytes  packets\n a     123,456        1\n";
        assert_eq!(narrow(None), whole);
        assert_eq!(narrow(Some(23)), whole);
        let some = " wire  packets\n a           1\n (no room for: bytes)\n";
        assert_eq!(narrow(Some(22)), some);
        // Only columns of lower weight are hidden.
        assert_eq!(narrow(Some(3)), " wire\n a\n (no room for: bytes, packets)\n");
    }

    #[test]
    fn words_stay_whole_however_narrow_the_terminal_is() {
        let columns = ["key", "type", "default", "help"].map(Column::Text);
        let help = "Microseconds between two invocations, indistinguishable from nothing if 0";
        let rows = vec![["pause_us", "integer", "1000", help].map(str::to_owned).to_vec()];
        for width in 20..120 {
            let text = fitted(&columns, rows.clone(), width);
            for word in help.split(' ').chain(["pause_us", "integer", "1000"]) {
                let is_whole = text.split_whitespace().any(|found| found == word);
                assert!(is_whole, "{word} at {width}:\n{text}");
            }
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width).max(24), "at {width}:\n{text}");
        }
        let wanted = " pause_us\n   type: integer\n   default: 1000\n   help: Microseconds between\n     \
                      two invocations,\n     indistinguishable from\n     nothing if 0\n";
        assert_eq!(fitted(&columns, rows, 30), wanted);
    }

    #[test]
    fn a_line_is_broken_between_words_and_hangs_from_its_name() {
        let line = |most| wrapped("note  ", "a bc  def", 6, most);
        assert_eq!(line(None), "note  a bc  def\n");
        assert_eq!(line(Some(11)), "note  a bc\n      def\n");
        assert_eq!(line(Some(3)), "note  a\n      bc\n      def\n");
    }

    #[test]
    fn tables_align_figures_right_and_end_without_blanks() {
        let columns = [Column::Text("wire"), Column::Number("packets")];
        let text = table(&columns, [vec!["a".into(), "1".into()], vec!["bb".into(), "".into()]]);
        assert_eq!(text, " wire  packets\n a           1\n bb\n");
    }
}
