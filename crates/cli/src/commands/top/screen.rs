//! The screen of `picnic top`: contents and layout.

use super::rates::Rates;
use crate::figures::{self, Cell, Column, Level, OWN_FIGURES, Show, Table};
use crate::output::{count, nanoseconds, percent, rate};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{self, Row};
use std::cmp::Reverse;
use std::time::Duration;

/// Sort order of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By number.
    #[default]
    Queue,
    /// Packets per second, most first.
    Rate,
    /// How full their rings are, fullest first.
    Ring,
    /// Packets dropped at full rings, most first.
    Lost,
}

/// The user's choices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) is_paused: bool,
    pub(crate) sort: Sort,
    /// How long the card has not answered, if worth showing.
    pub(crate) silence: Option<Duration>,
    /// Whether warnings are coloured.
    pub(crate) is_coloured: bool,
    /// Whether the help is shown instead of the figures.
    pub(crate) is_help: bool,
}

/// The colour of a level.
fn style(level: Level) -> Style {
    match level {
        Level::Fine => Style::new(),
        Level::Warning => Style::new().fg(Color::Yellow),
        Level::Trouble => Style::new().fg(Color::Red),
    }
}

/// Busy share from which on it is a warning: little is left for more packets.
const BUSY: f64 = 0.95;

/// The text for `h`.
const HELP: &[&str] = &[
    "q, Esc   quit",
    "p        pause: the figures freeze, the card keeps running",
    "s        sort the queues: number, rate, ring, ring full",
    "h, ?     this help, and back",
    "",
    "ring     descriptors in a queue's target ring, and its size",
    "full/s   packets dropped because that ring was full",
    "busy     share of the borrowed core's time spent working",
    "drops    by reason and stage, since the start",
    "taken    time in which the borrowed core was preempted, and",
    "         packets dropped right after",
    "More figures are shown from 80 and from 120 columns on.",
    "",
    "yellow: ring three quarters full, core 95 % busy or taken",
    "red: packets are dropped, or the card does not answer",
    "Set NO_COLOR to disable colours.",
];

/// Lines above the first table: two of text and the keys.
const HEAD: u16 = 3;
/// Lines of a table besides its rows: an empty line and the heading.
const AROUND: usize = 2;

impl Screen {
    /// Total number of lines.
    pub(crate) fn height(&self, rates: &Rates) -> u16 {
        let tables = self.tables(rates).iter().map(lines_of).sum::<usize>();
        u16::try_from(tables).unwrap_or(u16::MAX).saturating_add(HEAD)
    }

    /// Draws everything that fits; the ends of the longest lists are cut first.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, rates: &Rates) {
        let area = frame.area();
        if self.is_help {
            frame.render_widget(Text::from(HELP.join("\n")), area);
            return;
        }
        let mut tables = self.tables(rates);
        fit(&mut tables, area.height.saturating_sub(HEAD).into());
        let head = self.head(rates, area.width);
        frame.render_widget(head, Rect { height: HEAD.min(area.height), ..area });
        let (mut top, end) = (area.y.saturating_add(HEAD), area.bottom());
        for table in tables {
            let lines = u16::try_from(lines_of(&table)).unwrap_or(u16::MAX);
            let height = lines.min(end.saturating_sub(top));
            if height > 0 {
                draw(table, frame, Rect { y: top, height, ..area }, self.is_coloured);
            }
            top = top.saturating_add(height);
        }
    }

    fn head(&self, rates: &Rates, width: u16) -> Text<'static> {
        let (core, drops) = (&rates.window.borrowed_core, rates.window.drops_by_stage.values());
        let dropped = drops.sum::<u64>() as f64 / rates.window.duration_s;
        let sort = match self.sort {
            Sort::Queue => "number",
            Sort::Rate => "rate",
            Sort::Ring => "ring",
            Sort::Lost => "ring full",
        };
        let state = match (self.silence, self.is_paused) {
            (Some(silence), _) => format!("NO ANSWER FOR {} s  ", silence.as_secs()),
            (None, true) => "PAUSED  ".to_owned(),
            (None, false) => String::new(),
        };
        let level = match (self.silence, dropped > 0.0, core.busy_fraction >= BUSY) {
            (Some(_), ..) | (_, true, _) => Level::Trouble,
            (_, _, true) => Level::Warning,
            _ => Level::Fine,
        };
        let style = if self.is_coloured { style(level) } else { Style::new() };
        // The most important parts come first, for narrow terminals.
        let elapsed_s = rates.now.duration_s;
        let start = format!("{}: {elapsed_s:.1} s; {} drops/s", rates.card, rate(dropped));
        let core = [
            format!("; borrowed core {} busy {}", core.core, percent(core.busy_fraction)),
            format!(", asleep {}", percent(core.asleep_fraction)),
        ];
        Text::from(vec![
            Line::styled(fitting(start, core, width), style.add_modifier(Modifier::BOLD)),
            self.times(rates, width),
            Line::from(format!("{state}q quit  h help  p pause  s sort (queues by {sort})")),
        ])
    }

    /// Latency, and preemption of the borrowed core if it fits.
    fn times(&self, rates: &Rates, width: u16) -> Line<'static> {
        let mut text = format!(
            "latency p50 {}, p99 {}",
            nanoseconds(rates.window.latency_ns.p50),
            nanoseconds(rates.window.latency_ns.p99),
        );
        let mut level = Level::Fine;
        if let Some(taken) = &rates.window.borrowed_core.taken_away {
            if taken.times != 0 {
                level = if taken.drops != 0 { Level::Trouble } else { Level::Warning };
            }
            let longest = taken.longest_ns.map(|ns| format!(", longest {}", nanoseconds(Some(ns))));
            let parts = [
                format!("; core preempted {}", nanoseconds(Some(taken.total_ns))),
                format!(", {} drops after", count(taken.drops)),
                format!(", {} times", count(taken.times)),
                longest.unwrap_or_default(),
            ];
            text = fitting(text, parts, width);
        }
        Line::styled(text, if self.is_coloured { style(level) } else { Style::new() })
    }

    fn tables(&self, rates: &Rates) -> Vec<Table> {
        let mut window = rates.window.clone();
        match self.sort {
            Sort::Queue => {}
            Sort::Rate => window.queues.sort_by_key(|queue| Reverse(queue.packets)),
            Sort::Ring => window.queues.sort_by_key(|queue| Reverse(queue.ring_depth)),
            Sort::Lost => window.queues.sort_by_key(|queue| Reverse(queue.ring_full)),
        }
        let tables = [
            Some(figures::wires(&window, Show::Rates)),
            figures::parts(&window, Show::Rates),
            Some(figures::queues(&window, Show::Rates)),
            figures::guests(&window, Show::Rates),
            figures::functions(&window, Show::Rates),
            figures::classes(&window, Show::Rates),
            figures::filter_groups(&window, Show::Rates),
            figures::drops(&rates.now, &window),
        ];
        tables.into_iter().flatten().collect()
    }
}

/// The text, followed by the first of these parts that fit.
fn fitting(mut text: String, parts: impl IntoIterator<Item = String>, width: u16) -> String {
    for part in parts {
        if text.chars().count() + part.chars().count() > width.into() {
            break;
        }
        text += &part;
    }
    text
}

/// Shortens the longest tables until all fit into these lines, if possible.
fn fit(tables: &mut [Table], lines: usize) {
    let whole: Vec<usize> = tables.iter().map(|table| table.rows.len()).collect();
    let mut rows = whole.clone();
    let needed = |rows: &[usize]| rows.iter().map(|rows| rows + AROUND).sum::<usize>();
    while needed(&rows) > lines
        && let Some(longest) = rows.iter_mut().max()
        && *longest > 1
    {
        *longest -= 1;
    }
    for ((table, rows), whole) in tables.iter_mut().zip(rows).zip(whole) {
        if rows < whole {
            // One more row goes for the line about hidden rows.
            table.rows.truncate(rows - 1);
            table.rows.push(vec![format!("+{}", whole + 1 - rows).into()]);
        }
    }
}

fn lines_of(table: &Table) -> usize {
    table.rows.len() + AROUND
}

/// Hides columns until the others fit: lowest weight first, then from the right.
fn narrow(table: &mut Table, width: u16) {
    let needed = |columns: &[Column]| columns.iter().map(|column| column.width + 1).sum::<u16>();
    while needed(&table.columns) > width.saturating_add(1) && table.columns.len() > 1 {
        let least = table.columns.iter().enumerate().skip(1);
        let least = least.min_by_key(|(place, column)| (column.weight, Reverse(*place)));
        let place = least.map_or(1, |(place, _)| place);
        table.columns.remove(place);
        table.rows.iter_mut().filter(|row| place < row.len()).for_each(|row| {
            row.remove(place);
        });
    }
}

fn draw(mut table: Table, frame: &mut Frame<'_>, area: Rect, is_coloured: bool) {
    narrow(&mut table, area.width);
    let wide = table.columns.iter().position(|column| column.heading == OWN_FIGURES);
    if let Some(place) = wide {
        let others = table.columns.iter().map(|column| column.width + 1).sum::<u16>();
        table.columns[place].width += (area.width + 1).saturating_sub(others);
    }
    let are_text: Vec<_> = table.columns.iter().map(|column| column.is_text).collect();
    let cell = |(index, cell): (usize, Cell)| {
        let alignment = if are_text[index] { Alignment::Left } else { Alignment::Right };
        let style = if is_coloured { style(cell.level) } else { Style::new() };
        widgets::Cell::from(Text::from(cell.text).alignment(alignment)).style(style)
    };
    let heading = table.columns.iter().map(|column| Cell::from(column.heading.clone()));
    let heading = Row::new(heading.enumerate().map(cell));
    let heading = heading.style(Style::new().add_modifier(Modifier::BOLD));
    let rows = table.rows.into_iter().map(|row| Row::new(row.into_iter().enumerate().map(cell)));
    let widths = table.columns.iter().map(|column| Constraint::Length(column.width));
    let table = widgets::Table::new(rows, widths).header(heading.top_margin(1)).column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_control::Report;
    use picnic_control::report::{
        CoreReport, FunctionReport, KernelReport, LatencyReport, PollReport, QueueReport,
        TakenAway, WireReport,
    };
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::Map;

    fn rates() -> Rates {
        let queue = |queue: u16, packets: u64, ring_depth: u64| QueueReport {
            queue,
            core: 3,
            packets,
            bytes: packets * 100,
            interrupts: packets / 50,
            packets_per_interrupt: Some(50.0),
            ring_depth,
            ring_size: 1024,
            latency_ns: LatencyReport {
                p50: Some(1_200),
                p99: Some(3_400),
                ..LatencyReport::default()
            },
            ..QueueReport::default()
        };
        let window = Report {
            duration_s: 1.0,
            wires: vec![WireReport {
                name: "eth1".into(),
                rx_packets: 3_000_000,
                rx_bytes: 300_000_000,
                ..WireReport::default()
            }],
            queues: vec![queue(0, 1_000_000, 12), queue(1, 2_000_000, 7)],
            functions: vec![FunctionReport {
                name: "rss".into(),
                packets: 3_000_000,
                ns_per_packet: Some(41.25),
                counters: Map::from_iter([
                    ("unhashed".into(), 17.into()),
                    ("moved_entries".into(), 0.into()),
                ]),
                gauges: Map::from_iter([("queues".into(), 2.into())]),
                ..FunctionReport::default()
            }],
            drops_by_stage: [("ring_full@steer".into(), 10)].into(),
            latencies: Some(Vec::new()),
            latency_ns: LatencyReport { p50: Some(1_500), ..LatencyReport::default() },
            borrowed_core: CoreReport {
                core: 5,
                busy_fraction: 0.875,
                taken_away: Some(TakenAway {
                    total_ns: 12_300_000,
                    times: 4,
                    longest_ns: Some(8_000_000),
                    drops: 0,
                    threshold_ns: 50_000,
                }),
                ..CoreReport::default()
            },
            ..Report::default()
        };
        let drops_by_stage = [("ring_full@steer".into(), 12_345)].into();
        let now = Report { duration_s: 12.5, drops_by_stage, ..Report::default() };
        Rates { card: "web".into(), now, window, interval_s: 1.0 }
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &rates())).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row| (0..width).map(|column| buffer[(column, row)].symbol()).collect();
        (0..height).map(|row: u16| -> String { line(row) }).collect()
    }

    #[test]
    fn all_figures_are_on_the_screen() {
        let lines = drawn(&mut Screen::default(), 90, 24);
        let text = lines.join("\n");
        for part in [
            "web: 12.5 s; 10 drops/s; borrowed core 5 busy 87.5 %, asleep 0.0 %",
            "latency p50 1.5 µs, p99 unavailable; core preempted 12.3 ms, 0 drops after, 4 times",
            "q quit  h help  p pause  s sort (queues by number)",
            "rx[0] rss",
            "ring_full @ steer",
            "12,345",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        let cells = |start: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(cells("eth1"), ["eth1", "3.00", "M", "2400.0", "0", "0", "0.0"]);
        let queue = ["1", "3", "2.00", "M", "1600.0", "40.0", "k", "50.0", "0", "7/1024"];
        assert_eq!(cells("1 "), queue);
        assert_eq!(cells("rx[0]"), ["rx[0]", "rss", "3.00", "M", "0", "41.2"]);
    }

    #[test]
    fn several_wires_have_their_sum_below() {
        let mut rates = rates();
        let rows = |rates: &Rates| Screen::default().tables(rates)[0].rows.clone();
        assert_eq!(rows(&rates).len(), 1);
        let wire = rates.window.wires[0].clone();
        rates.window.wires.push(WireReport { name: "eth2".into(), tx_packets: 500_000, ..wire });
        let cells: Vec<_> = rows(&rates)[2].iter().map(|cell| cell.text.clone()).collect();
        assert_eq!(cells, ["all wires", "6.00 M", "4800.0", "0", "500.0 k", "0.0"]);
    }

    #[test]
    fn the_parts_of_a_shared_card_stand_below_its_wires() {
        let mut shared = rates();
        shared.window.kernel = Some(KernelReport { packets: 2, ..KernelReport::default() });
        shared.window.poll = Some(PollReport { packets: 1, ..PollReport::default() });
        let headings = |rates: &Rates| {
            let tables = Screen::default().tables(rates).into_iter();
            tables.map(|table| (table.columns[0].heading.clone(), table.rows.len())).collect()
        };
        let starts = |rates: &Rates, expected: &[(&str, usize)]| {
            let found: Vec<_> = headings(rates);
            let expected = expected.iter().map(|&(heading, rows)| (heading.to_owned(), rows));
            assert_eq!(found[..expected.len()], expected.collect::<Vec<_>>());
        };
        starts(&shared, &[("wire", 1), ("part", 3), ("queue", 2)]);
        starts(&rates(), &[("wire", 1), ("queue", 2)]);
    }

    #[test]
    fn missing_drops_show_zero() {
        let mut rates = rates();
        rates.window.drops_by_stage.clear();
        let head = Screen::default().head(&rates, 80).to_string();
        assert!(head.contains("; 0 drops/s"), "{head}");
    }

    #[test]
    fn queues_are_sorted_and_a_pause_is_shown() {
        let first = |sort| {
            let mut screen = Screen { sort, is_paused: true, ..Screen::default() };
            let lines = drawn(&mut screen, 90, 24);
            assert!(lines[2].starts_with("PAUSED"), "{}", lines[2]);
            let heading = lines.iter().position(|line| line.starts_with("queue")).unwrap();
            lines[heading + 1].split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!(first(Sort::Queue), "0");
        assert_eq!(first(Sort::Rate), "1");
        assert_eq!(first(Sort::Ring), "0");
    }

    #[test]
    fn eighty_columns_are_enough() {
        let lines = drawn(&mut Screen::default(), 80, 24);
        let headings: Vec<_> = lines.iter().filter(|line| line.starts_with("queue")).collect();
        let words = [
            "core",
            "packets/s",
            "Mbit/s",
            "interrupts/s",
            "packets/int",
            "ring",
            "full/s",
            "ring",
        ];
        let found: Vec<_> = headings[0].split_whitespace().skip(1).collect();
        assert_eq!(found, words);
    }

    #[test]
    fn a_hundred_and_twenty_columns_are_used() {
        let lines = drawn(&mut Screen::default(), 120, 24);
        let line = |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap();
        assert!(line("queue").trim_end().ends_with("         ring         p50         p99"));
        assert!(line("1 ").trim_end().ends_with("7/1024      1.2 µs      3.4 µs"));
        assert!(line("function").contains("ns/packet its own figures"));
        // Figures that are zero are hidden.
        let counted = line("rx[0]").split("41.2 ").nth(1).unwrap().trim().split(", ");
        let counted: std::collections::BTreeSet<_> = counted.collect();
        assert_eq!(counted.into_iter().collect::<Vec<_>>(), ["queues 2", "unhashed 17"]);
        assert!(lines[1].contains("4 times, longest 8.0 ms"), "{}", lines[1]);
    }

    #[test]
    fn preempted_core_with_drops_is_trouble() {
        let colour = |times, drops| {
            let mut rates = rates();
            let taken = rates.window.borrowed_core.taken_away.as_mut().unwrap();
            (taken.times, taken.drops) = (times, drops);
            let screen = Screen { is_coloured: true, ..Screen::default() };
            screen.times(&rates, 80).style.fg
        };
        let all = [colour(0, 0), colour(2, 0), colour(2, 5)];
        assert_eq!(all, [None, Some(Color::Yellow), Some(Color::Red)]);
    }

    #[test]
    fn columns_that_do_not_fit_are_hidden() {
        let lines = drawn(&mut Screen::default(), 45, 24);
        let heading = lines.iter().find(|line| line.starts_with("queue")).unwrap();
        let found: Vec<_> = heading.split_whitespace().collect();
        // Columns with warnings stay.
        assert_eq!(found, ["queue", "packets/s", "ring", "full/s", "ring"]);
    }

    #[test]
    fn sixty_columns_show_the_essentials() {
        let lines = drawn(&mut Screen::default(), 60, 24);
        let words = |start: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(
            words("queue"),
            ["queue", "core", "packets/s", "Mbit/s", "ring", "full/s", "ring"]
        );
        assert_eq!(words("drops"), ["drops", "packets/s", "since", "start"]);
        // Whole words: the share asleep would not fit.
        assert_eq!(lines[0].trim_end(), "web: 12.5 s; 10 drops/s; borrowed core 5 busy 87.5 %");
        assert!(lines[2].contains("s sort (queues by number)"), "{}", lines[2]);
        assert!(HELP.iter().all(|line| line.chars().count() <= 60));
    }

    #[test]
    fn trouble_is_coloured_and_only_where_colours_are_wanted() {
        let colours = |is_coloured| {
            let mut rates = rates();
            rates.window.queues[1].ring_depth = 800;
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let mut screen = Screen { is_coloured, ..Screen::default() };
            terminal.draw(|frame| screen.draw(frame, &rates)).unwrap();
            let mut found: Vec<_> = Vec::new();
            let buffer = terminal.backend().buffer();
            for row in 0..24 {
                let cells = (0..80).map(|column| &buffer[(column, row)]);
                let shown = cells.filter(|cell| cell.symbol() != " ");
                for colour in shown.map(|cell| cell.fg) {
                    if colour != Color::Reset && !found.contains(&(row, colour)) {
                        found.push((row, colour));
                    }
                }
            }
            found
        };
        // The head, because of drops and a preempted core; the ring of queue 1; the drops.
        assert_eq!(
            colours(true),
            [(0, Color::Red), (1, Color::Yellow), (9, Color::Yellow), (15, Color::Red)]
        );
        assert_eq!(colours(false), []);
    }

    #[test]
    fn the_help_takes_the_place_of_the_figures() {
        let lines = drawn(&mut Screen { is_help: true, ..Screen::default() }, 80, 24);
        assert!(lines[0].starts_with("q, Esc   quit"), "{}", lines[0]);
        assert!(!lines.join("").contains("eth1"));
    }

    #[test]
    fn longest_list_is_cut_and_counted() {
        let mut rates = rates();
        let first = rates.window.queues[0].clone();
        let queues = (0..40).map(|queue| QueueReport { queue, ..first.clone() });
        rates.window.queues = queues.collect();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| Screen::default().draw(frame, &rates)).unwrap();
        let text = terminal.backend().to_string();
        // 3 of the head, 9 of three tables of one row, 2 around the queues: 10 rows are left.
        for part in ["\"0  ", "\"8  ", "\"+31 ", "rx[0] rss", "ring_full @ steer"] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(!text.contains("\"9  "), "{text}");
    }

    #[test]
    fn silent_cards_are_shown() {
        let silence = Some(Duration::from_millis(4900));
        let lines = drawn(&mut Screen { silence, ..Screen::default() }, 80, 24);
        assert!(lines[2].starts_with("NO ANSWER FOR 4 s  q quit"), "{}", lines[2]);
    }

    #[test]
    fn screens_of_any_size_work() {
        let whole = drawn(&mut Screen::default(), 300, 100);
        let used = whole.iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0) + 1;
        let (start, core) = ("web: 12.5 s; 10 drops/s", "; borrowed core 5 busy 87.5 %");
        let all = format!("{start}{core}, asleep 0.0 %");
        for (width, height, first) in [
            (1, 1, "w"),
            (10, 3, "web: 12.5"),
            (40, 8, start),
            (all.len() as u16 - 1, 8, &format!("{start}{core}")),
            (90, 2, &all),
            (300, used as u16, &all),
        ] {
            let lines = drawn(&mut Screen::default(), width, height);
            assert_eq!(lines[0].trim_end(), first, "{width} x {height}");
            assert!(lines.iter().all(|line| line.chars().count() == usize::from(width)));
        }
        // All of it, and no more than there is.
        assert!((11..whole.len()).contains(&used), "{used}");
    }

    #[test]
    fn one_frame_as_text_is_as_high_as_it_needs() {
        let text = super::super::text(&rates(), 90).unwrap();
        assert!(text.trim_end().ends_with("12,345"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()));
    }
}
