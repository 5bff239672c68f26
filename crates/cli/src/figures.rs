//! Tables of figures: for a run's summary, the live table, `picnic top` and `picnic ctl stats`.
//!
//! Columns are declared with the figures: see `picnic_control::figures`.

use crate::output::{self, STAYS, count, nanoseconds, percent, rate, ratio};
use picnic_control::figures::{Figure, Figures, Kind, Shown, Unit};
use picnic_control::report::{
    ClassReport, FilterGroupReport, FunctionReport, GuestReport, KernelReport, QueueReport, Report,
    WireReport,
};
use serde_json::{Map, Value};
use std::cmp::Reverse;

/// Most characters of a column that is widened for its cells.
const MOST_WIDTH: usize = 24;

/// Contents of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Counts, and rates of some.
    Totals,
    /// Rates over a window.
    Rates,
}

/// Level of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Level {
    #[default]
    Fine,
    /// Nearly at a limit.
    Warning,
    /// Packets are lost.
    Trouble,
}

impl Level {
    /// Trouble if packets are lost.
    pub(crate) fn of_loss(rate: f64) -> Self {
        if rate > 0.0 { Level::Trouble } else { Level::Fine }
    }

    /// A warning from three quarters of a ring on.
    fn of_ring(depth: u64, size: u64) -> Self {
        if size != 0 && depth * 4 >= size * 3 { Level::Warning } else { Level::Fine }
    }
}

/// A cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) level: Level,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, level: Level::Fine }
    }
}

/// A column.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) heading: String,
    /// Text is aligned left, numbers right.
    pub(crate) is_text: bool,
    /// Usual width of its widest cell, in characters.
    pub(crate) width: u16,
    /// Columns with lower weights are hidden first.
    pub(crate) weight: u8,
}

/// Headings and rows.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Column {
    fn text(heading: &str, width: u16) -> Self {
        Column { heading: heading.into(), is_text: true, width, weight: STAYS }
    }

    fn of(figure: &Figure, is_rate: bool, weight: u8) -> Self {
        let heading = match (is_rate, figure.unit) {
            (false, _) => figure.heading.to_owned(),
            (true, Unit::Bytes) => figure.heading.replace("bytes", "Mbit/s"),
            (true, _) => format!("{}/s", figure.heading),
        };
        let cells = match figure.kind {
            Kind::Label => 4,
            Kind::Latency => 11,
            Kind::Gauge => 12,
            _ => 9,
        };
        Column { width: cells.max(heading.len() as u16), heading, is_text: false, weight }
    }
}

impl Table {
    /// A row for each of these groups of figures.
    fn of<F: Figures + Default>(
        (what, width): (&str, u16),
        rows: &[(String, Vec<Shown>)],
        (show, seconds): (Show, f64),
        without: Option<Kind>,
    ) -> Self {
        let mut table = Table { columns: vec![Column::text(what, width)], rows: Vec::new() };
        // The figure and whether its rate is shown, by column.
        let mut sources = Vec::new();
        for (place, Shown { figure, .. }) in F::default().figures().iter().enumerate() {
            let grows = figure.kind.grows();
            let columns = match show {
                Show::Totals => [(figure.totals, false), (figure.pace, true)],
                Show::Rates => [(figure.rates, grows), (0, false)],
            };
            // A name that no row has.
            let is_absent = figure.kind == Kind::Label
                && rows.iter().all(|(_, figures)| figures[place].value.is_null());
            for (weight, is_rate) in columns {
                if weight != 0 && Some(figure.kind) != without && !is_absent {
                    table.columns.push(Column::of(figure, is_rate, weight));
                    sources.push((place, is_rate));
                }
            }
        }
        for (name, figures) in rows {
            let cells = sources.iter().map(|&(place, is_rate)| {
                cell(&figures[place], figures, is_rate.then_some(seconds))
            });
            table.rows.push([name.clone().into()].into_iter().chain(cells).collect());
        }
        // Names have any length.
        for (place, column) in table.columns.iter_mut().enumerate() {
            let cells = table.rows.iter().filter_map(|row| row.get(place));
            let longest = cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0);
            column.width = column.width.max(longest.min(MOST_WIDTH) as u16);
        }
        table
    }

    /// As text, with the columns that fit in a line of the terminal.
    pub(crate) fn text(self) -> String {
        let columns = self.columns.iter().map(|column| match column.is_text {
            true => (output::Column::Text(&column.heading), column.weight),
            false => (output::Column::Number(&column.heading), column.weight),
        });
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| cell.text.clone()).collect());
        output::narrow_table(columns, rows)
    }
}

/// A figure, or its rate over a number of seconds. `row` has all figures of its group.
fn cell(shown: &Shown, row: &[Shown], seconds: Option<f64>) -> Cell {
    let Shown { figure, value, .. } = shown;
    let number = value.as_f64();
    if let Some(seconds) = seconds {
        let per_second = number.unwrap_or(0.0) / seconds;
        let text = match figure.unit {
            Unit::Bytes => format!("{:.1}", per_second * 8.0 / 1e6),
            _ => rate(per_second),
        };
        let is_loss = figure.kind == Kind::Loss;
        let level = if is_loss { Level::of_loss(per_second) } else { Level::Fine };
        return Cell { text, level };
    }
    let whole = row.iter().find(|other| other.figure.key == figure.of);
    if let Some((part, whole)) = value.as_u64().zip(whole.and_then(|whole| whole.value.as_u64())) {
        let is_ring = figure.unit == Unit::Descriptors;
        let level = if is_ring { Level::of_ring(part, whole) } else { Level::Fine };
        return Cell { text: format!("{part}/{whole}"), level };
    }
    let text = match (figure.kind, value) {
        (Kind::Quotient, _) => ratio(number),
        (Kind::Share, _) => number.map_or_else(String::new, percent),
        (Kind::Latency, _) => nanoseconds(value.as_u64()),
        (_, Value::Null) => String::new(),
        (_, Value::String(text)) => text.clone(),
        (Kind::Label, other) => other.to_string(),
        _ => count(value.as_u64().unwrap_or(0)),
    };
    text.into()
}

/// The sums of figures that can be summed.
fn sum(rows: &[(String, Vec<Shown>)]) -> Vec<Shown> {
    let mut sums = rows.first().map_or_else(Vec::new, |(_, figures)| figures.clone());
    for (place, sum) in sums.iter_mut().enumerate() {
        let values = rows.iter().filter_map(|(_, figures)| figures[place].value.as_u64());
        sum.value = if sum.figure.kind.grows() { values.sum::<u64>().into() } else { Value::Null };
    }
    sums
}

/// Each wire and, if there are several, their sum.
pub(crate) fn wires(report: &Report, show: Show) -> Table {
    let mut rows: Vec<_> =
        report.wires.iter().map(|wire| (wire.name.clone(), wire.figures())).collect();
    if rows.len() > 1 {
        rows.push(("all wires".into(), sum(&rows)));
    }
    Table::of::<WireReport>(("wire", 16), &rows, (show, report.duration_s), None)
}

/// The shares of the kernel and the poll engine, and their sum, if both have packets.
pub(crate) fn parts(report: &Report, show: Show) -> Option<Table> {
    let rows = report.parts()?.map(|(name, part)| (name.to_owned(), part.figures()));
    Some(Table::of::<KernelReport>(("part", 16), &rows, (show, report.duration_s), None))
}

/// Each queue; without latencies in a table of rates that lacks them.
pub(crate) fn queues(report: &Report, show: Show) -> Table {
    let is_known = show == Show::Totals || report.latencies.is_some();
    let queues = report.queues.iter();
    let rows: Vec<_> = queues.map(|queue| (queue.queue.to_string(), queue.figures())).collect();
    let without = (!is_known).then_some(Kind::Latency);
    Table::of::<QueueReport>(("queue", 5), &rows, (show, report.duration_s), without)
}

/// Each guest and, if there are several, their sum; none without guests.
pub(crate) fn guests(report: &Report, show: Show) -> Option<Table> {
    let guests = report.guests.iter();
    let mut rows: Vec<_> = guests.map(|guest| (guest.guest.clone(), guest.figures())).collect();
    if rows.len() > 1 {
        rows.push(("all guests".into(), sum(&rows)));
    }
    let table = || Table::of::<GuestReport>(("guest", 16), &rows, (show, report.duration_s), None);
    (!rows.is_empty()).then(table)
}

/// Each function, with its own figures among rates; none if there is no function.
pub(crate) fn functions(report: &Report, show: Show) -> Option<Table> {
    let place = |(chain, position, function): (&str, usize, &FunctionReport)| {
        (format!("{chain}[{position}] {}", function.name), function.figures())
    };
    let rows: Vec<_> = report.places().map(place).collect();
    let mut table =
        Table::of::<FunctionReport>(("function", 28), &rows, (show, report.duration_s), None);
    if show == Show::Rates {
        // 120 columns with the spaces between.
        table.columns.push(Column { weight: 1, ..Column::text(OWN_FIGURES, 55) });
        for (row, (.., function)) in table.rows.iter_mut().zip(report.places()) {
            row.push(own(function).into());
        }
    }
    (!rows.is_empty()).then_some(table)
}

/// Each traffic class at each wire; none without classes.
pub(crate) fn classes(report: &Report, show: Show) -> Option<Table> {
    let name = |class: &ClassReport| format!("{} {}", class.wire, class.class);
    let rows: Vec<_> = report.classes.iter().map(|class| (name(class), class.figures())).collect();
    let table = || Table::of::<ClassReport>(("class", 20), &rows, (show, report.duration_s), None);
    (!rows.is_empty()).then(table)
}

/// Each group of filters; none without filters.
pub(crate) fn filter_groups(report: &Report, show: Show) -> Option<Table> {
    let groups = report.filter_groups.iter();
    let rows: Vec<_> = groups.map(|group| (group.group.clone(), group.figures())).collect();
    let seconds = report.duration_s;
    let table =
        || Table::of::<FilterGroupReport>(("filter group", 20), &rows, (show, seconds), None);
    (!rows.is_empty()).then(table)
}

/// The functions' own figures; none if no function has any.
pub(crate) fn own_figures(report: &Report) -> Option<Table> {
    let has_counted = |function: &FunctionReport| {
        function.counters.values().any(|count| count.as_u64() != Some(0))
    };
    let places = report.places().filter(|(.., function)| has_counted(function));
    let rows: Vec<Vec<Cell>> = places
        .map(|(chain, position, function)| {
            vec![format!("{chain}[{position}] {}", function.name).into(), own(function).into()]
        })
        .collect();
    let columns = vec![Column::text("function", 28), Column::text(OWN_FIGURES, 55)];
    (!rows.is_empty()).then_some(Table { columns, rows })
}

/// The heading of the functions' own figures.
pub(crate) const OWN_FIGURES: &str = "its own figures, since it was inserted";

/// A function's own figures that are not zero.
fn own(function: &FunctionReport) -> String {
    let all = function.counters.iter().chain(&function.gauges);
    let some = all.filter(|(_, value)| value.as_f64() != Some(0.0));
    some.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// Drops by reason and stage, highest rate first, with those since the start.
pub(crate) fn drops(now: &Report, window: &Report) -> Option<Table> {
    let mut drops: Vec<_> = drop_rates(now, window).collect();
    drops.sort_by_key(|&(_, pps, packets)| Reverse((pps as u64, packets)));
    let rows: Vec<_> = drops
        .into_iter()
        .map(|(place, pps, packets)| {
            let pps = Cell { text: rate(pps), level: Level::of_loss(pps) };
            vec![place.replace('@', " @ ").into(), pps, count(packets).into()]
        })
        .collect();
    let number = |heading: &str, width| Column { is_text: false, ..Column::text(heading, width) };
    let columns =
        vec![Column::text("drops", 28), number("packets/s", 12), number("since start", 18)];
    (!rows.is_empty()).then_some(Table { columns, rows })
}

/// Each `reason@stage` with its packets per second in the window and those since the start.
pub(crate) fn drop_rates<'r>(
    now: &'r Report,
    window: &'r Report,
) -> impl Iterator<Item = (&'r str, f64, u64)> {
    now.drops_by_stage.iter().map(|(place, &packets)| {
        let new = window.drops_by_stage.get(place).copied().unwrap_or(0);
        (&**place, new as f64 / window.duration_s, packets)
    })
}

/// The figures of a group by their names in `picnic top --json`.
pub(crate) fn live(figures: &[Shown], seconds: f64) -> Map<String, Value> {
    let named = figures.iter().filter(|shown| !shown.figure.live.is_empty());
    let entry = |Shown { figure, value, .. }: &Shown| {
        let bits = if figure.unit == Unit::Bytes { 8.0 } else { 1.0 };
        let value = match value.as_f64() {
            Some(number) if figure.kind.grows() => (bits * number / seconds).into(),
            _ => value.clone(),
        };
        (figure.live.to_owned(), value)
    };
    named.map(entry).collect()
}
