//! The screen of `picnic top`: what is drawn where.

use super::rates::{Rates, WireRates};
use crate::output::{count, nanoseconds, percent, rate, ratio};
use crate::summary::{OWN_FIGURES, figures_of};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table};
use std::cmp::Reverse;
use std::time::Duration;

/// What queues are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Their numbers.
    #[default]
    Queue,
    /// Packets per second, most first.
    Rate,
    /// How full their rings are, fullest first.
    Ring,
    /// Packets dropped at full rings, most first.
    Lost,
}

/// What the user has chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) is_paused: bool,
    pub(crate) sort: Sort,
    /// For how long the card has been asked and has not answered, if it is worth telling.
    pub(crate) silence: Option<Duration>,
    /// Whether trouble is coloured.
    pub(crate) is_coloured: bool,
    /// Whether the help is shown in place of the figures.
    pub(crate) is_help: bool,
}

/// How good a figure is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Fine,
    /// It may be trouble soon.
    Warning,
    /// Packets are lost.
    Trouble,
}

impl Level {
    /// Trouble if there is any of it.
    fn of_loss(rate: f64) -> Self {
        if rate > 0.0 { Level::Trouble } else { Level::Fine }
    }

    /// Of a ring: a warning from three quarters on.
    fn of_ring(depth: u64, size: u64) -> Self {
        if size != 0 && depth * 4 >= size * 3 { Level::Warning } else { Level::Fine }
    }

    fn style(self) -> Style {
        match self {
            Level::Fine => Style::new(),
            Level::Warning => Style::new().fg(Color::Yellow),
            Level::Trouble => Style::new().fg(Color::Red),
        }
    }
}

/// Busy from here on is a warning: there is little left for more packets.
const BUSY: f64 = 0.95;

/// What `h` shows.
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
    "taken    time in which others had the borrowed core, and the",
    "         packets dropped right behind",
    "More figures are shown from 80 and from 120 columns on.",
    "",
    "yellow: ring three quarters full, core 95 % busy or taken",
    "red: packets are dropped, or the card does not answer",
    "Set NO_COLOR to disable colours.",
];

/// Lines above the first block: two of text and the keys.
const HEAD: u16 = 3;
/// Lines of a block beside its rows: an empty one and the heading.
const AROUND: usize = 2;

/// A heading and rows of text; the first column stands left, the others right.
struct Block {
    heading: Vec<&'static str>,
    widths: Vec<u16>,
    /// Columns to leave out where there is no room, the first first; then those at the right.
    least: &'static [&'static str],
    rows: Vec<Vec<Figure>>,
}

/// A cell.
#[derive(Clone, Debug, Default)]
struct Figure {
    text: String,
    level: Level,
}

impl From<String> for Figure {
    fn from(text: String) -> Self {
        Figure { text, level: Level::Fine }
    }
}

impl Figure {
    fn with(self, level: Level) -> Self {
        Figure { level, ..self }
    }
}

impl Screen {
    /// Lines that all of it takes.
    pub(crate) fn height(&self, rates: &Rates) -> u16 {
        let tables = self.blocks(rates).iter().map(Block::lines).sum::<usize>();
        u16::try_from(tables).unwrap_or(u16::MAX).saturating_add(HEAD)
    }

    /// Draws all that there is room for; of the longest lists the ends are left out first.
    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>, rates: &Rates) {
        let area = frame.area();
        if self.is_help {
            frame.render_widget(Text::from(HELP.join("\n")), area);
            return;
        }
        let mut blocks = self.blocks(rates);
        fit(&mut blocks, area.height.saturating_sub(HEAD).into());
        let head = self.head(rates, area.width);
        frame.render_widget(head, Rect { height: HEAD.min(area.height), ..area });
        let (mut top, end) = (area.y.saturating_add(HEAD), area.bottom());
        for block in blocks {
            let lines = u16::try_from(block.lines()).unwrap_or(u16::MAX);
            let height = lines.min(end.saturating_sub(top));
            if height > 0 {
                block.draw(frame, Rect { y: top, height, ..area }, self.is_coloured);
            }
            top = top.saturating_add(height);
        }
    }

    fn head(&self, rates: &Rates, width: u16) -> Text<'static> {
        // From 0.0 on: the sum of none would be -0.0.
        let dropped = rates.drops.iter().fold(0.0, |sum, drop| sum + drop.pps);
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
        let level = match (self.silence, dropped > 0.0, rates.busy_fraction >= BUSY) {
            (Some(_), ..) | (_, true, _) => Level::Trouble,
            (_, _, true) => Level::Warning,
            _ => Level::Fine,
        };
        let style = if self.is_coloured { level.style() } else { Style::new() };
        // What matters most stands first: a narrow terminal has no more of it.
        let start = format!("{}: {:.1} s; {} drops/s", rates.card, rates.elapsed_s, rate(dropped));
        let core = [
            format!(
                "; borrowed core {} busy {}",
                rates.borrowed_core,
                percent(rates.busy_fraction)
            ),
            format!(", asleep {}", percent(rates.asleep_fraction)),
        ];
        Text::from(vec![
            Line::styled(fitting(start, core, width), style.add_modifier(Modifier::BOLD)),
            self.times(rates, width),
            Line::from(format!("{state}q quit  h help  p pause  s sort (queues by {sort})")),
        ])
    }

    /// Latency, and how long the borrowed core was somebody else's: as much as fits.
    fn times(&self, rates: &Rates, width: u16) -> Line<'static> {
        let mut text = format!(
            "latency p50 {}, p99 {}",
            nanoseconds(rates.latency_p50_ns),
            nanoseconds(rates.latency_p99_ns),
        );
        let mut level = Level::Fine;
        if let Some(taken) = rates.taken_away {
            if taken.times != 0 {
                level = if taken.drops != 0 { Level::Trouble } else { Level::Warning };
            }
            let longest = taken.longest_ns.map(|ns| format!(", longest {}", nanoseconds(Some(ns))));
            let parts = [
                format!("; core taken {}", nanoseconds(Some(taken.total_ns))),
                format!(", {} drops behind", count(taken.drops)),
                format!(", {} times", count(taken.times)),
                longest.unwrap_or_default(),
            ];
            text = fitting(text, parts, width);
        }
        Line::styled(text, if self.is_coloured { level.style() } else { Style::new() })
    }

    fn blocks(&self, rates: &Rates) -> Vec<Block> {
        let mut blocks = vec![wires(rates)];
        if !rates.parts.is_empty() {
            blocks.push(parts(rates));
        }
        blocks.push(self.queues(rates));
        if !rates.functions.is_empty() {
            blocks.push(functions(rates));
        }
        if !rates.drops.is_empty() {
            blocks.push(drops(rates));
        }
        blocks
    }

    fn queues(&self, rates: &Rates) -> Block {
        let mut queues: Vec<_> = rates.queues.iter().collect();
        let by = |value: f64| Reverse((value * 1000.0) as u64);
        match self.sort {
            Sort::Queue => queues.sort_by_key(|queue| queue.queue),
            Sort::Rate => queues.sort_by_key(|queue| by(queue.pps)),
            Sort::Ring => queues.sort_by_key(|queue| Reverse(queue.ring_depth)),
            Sort::Lost => queues.sort_by_key(|queue| by(queue.ring_full_pps)),
        }
        let rows = queues.into_iter().map(|queue| {
            let ring = Figure::from(format!("{}/{}", queue.ring_depth, queue.ring_size));
            vec![
                queue.queue.to_string().into(),
                queue.core.to_string().into(),
                rate(queue.pps).into(),
                megabits(queue.bits_per_s).into(),
                rate(queue.interrupts_per_s).into(),
                ratio(queue.packets_per_interrupt).into(),
                ring.with(Level::of_ring(queue.ring_depth, queue.ring_size)),
                Figure::from(rate(queue.ring_full_pps)).with(Level::of_loss(queue.ring_full_pps)),
                nanoseconds(queue.latency_p50_ns).into(),
                nanoseconds(queue.latency_p99_ns).into(),
                rate(queue.tx_pps).into(),
            ]
        });
        Block {
            heading: vec![
                "queue",
                "core",
                "packets/s",
                "Mbit/s",
                "interrupts/s",
                "packets/int",
                "ring",
                "full/s",
                "latency p50",
                "latency p99",
                "tx packets/s",
            ],
            // 80 columns without the last three, with the spaces between; 117 with them.
            widths: vec![5, 4, 10, 10, 12, 11, 12, 9, 11, 11, 12],
            least: &[
                "tx packets/s",
                "latency p99",
                "latency p50",
                "interrupts/s",
                "packets/int",
                "core",
                "Mbit/s",
            ],
            rows: rows.collect(),
        }
    }
}

/// The text, and as many of these parts of it, in order, as fit.
fn fitting(mut text: String, parts: impl IntoIterator<Item = String>, width: u16) -> String {
    for part in parts {
        if text.chars().count() + part.chars().count() > width.into() {
            break;
        }
        text += &part;
    }
    text
}

fn megabits(bits_per_s: f64) -> String {
    format!("{:.1}", bits_per_s / 1e6)
}

fn wires(rates: &Rates) -> Block {
    let sum = |of: fn(&WireRates) -> f64| rates.wires.iter().map(of).sum();
    let all = WireRates {
        name: "all wires".into(),
        rx_pps: sum(|wire| wire.rx_pps),
        rx_bits_per_s: sum(|wire| wire.rx_bits_per_s),
        tx_pps: sum(|wire| wire.tx_pps),
        tx_bits_per_s: sum(|wire| wire.tx_bits_per_s),
        shed_pps: sum(|wire| wire.shed_pps),
    };
    let all = (rates.wires.len() > 1).then_some(&all);
    let rows = rates.wires.iter().chain(all).map(|wire| {
        vec![
            wire.name.clone().into(),
            rate(wire.rx_pps).into(),
            megabits(wire.rx_bits_per_s).into(),
            rate(wire.tx_pps).into(),
            megabits(wire.tx_bits_per_s).into(),
            Figure::from(rate(wire.shed_pps)).with(Level::of_loss(wire.shed_pps)),
        ]
    });
    Block {
        heading: vec!["wire", "rx packets/s", "rx Mbit/s", "tx packets/s", "tx Mbit/s", "shed/s"],
        widths: vec![16, 12, 12, 12, 12, 9],
        least: &["tx Mbit/s", "rx Mbit/s"],
        rows: rows.collect(),
    }
}

fn parts(rates: &Rates) -> Block {
    let rows = rates.parts.iter().map(|part| {
        vec![
            part.part.clone().into(),
            rate(part.rx_pps).into(),
            rate(part.delivered_pps).into(),
            Figure::from(rate(part.dropped_pps)).with(Level::of_loss(part.dropped_pps)),
        ]
    });
    Block {
        heading: vec!["part", "rx packets/s", "delivered/s", "dropped/s"],
        widths: vec![16, 12, 12, 12],
        least: &["delivered/s"],
        rows: rows.collect(),
    }
}

fn functions(rates: &Rates) -> Block {
    let rows = rates.functions.iter().map(|function| {
        vec![
            format!("{} {}", function.place, function.name).into(),
            rate(function.pps).into(),
            Figure::from(rate(function.dropped_pps)).with(Level::of_loss(function.dropped_pps)),
            ratio(function.ns_per_packet).into(),
            figures_of(&function.counters, &function.gauges).into(),
        ]
    });
    Block {
        heading: vec!["function", "packets/s", "dropped/s", "ns/packet", OWN_FIGURES],
        // The last takes what room is left: 120 columns with the spaces between.
        widths: vec![28, 12, 12, 9, 55],
        least: &[OWN_FIGURES, "ns/packet"],
        rows: rows.collect(),
    }
}

fn drops(rates: &Rates) -> Block {
    let mut drops: Vec<_> = rates.drops.iter().collect();
    drops.sort_by_key(|drop| Reverse((drop.pps as u64, drop.packets)));
    let rows = drops.into_iter().map(|drop| {
        vec![
            format!("{} @ {}", drop.reason, drop.stage).into(),
            Figure::from(rate(drop.pps)).with(Level::of_loss(drop.pps)),
            count(drop.packets).into(),
        ]
    });
    Block {
        heading: vec!["drops", "packets/s", "since start"],
        widths: vec![28, 12, 18],
        least: &[],
        rows: rows.collect(),
    }
}

/// Shortens the longest blocks until all fit into so many lines, as far as that goes.
fn fit(blocks: &mut [Block], lines: usize) {
    let whole: Vec<usize> = blocks.iter().map(|block| block.rows.len()).collect();
    let mut rows = whole.clone();
    let needed = |rows: &[usize]| rows.iter().map(|rows| rows + AROUND).sum::<usize>();
    while needed(&rows) > lines
        && let Some(longest) = rows.iter_mut().max()
        && *longest > 1
    {
        *longest -= 1;
    }
    for ((block, rows), whole) in blocks.iter_mut().zip(rows).zip(whole) {
        if rows < whole {
            // One more goes for the line that says so.
            block.rows.truncate(rows - 1);
            block.rows.push(vec![format!("+{}", whole + 1 - rows).into()]);
        }
    }
}

impl Block {
    fn lines(&self) -> usize {
        self.rows.len() + AROUND
    }

    /// Leaves out columns until the others fit.
    fn narrow(&mut self, width: u16) {
        let needed = |widths: &[u16]| widths.iter().map(|column| column + 1).sum::<u16>();
        let mut least = self.least.iter();
        while needed(&self.widths) > width.saturating_add(1) && self.widths.len() > 1 {
            let by_name = |name: &&str| self.heading.iter().position(|heading| heading == name);
            let place = least.next().and_then(by_name).unwrap_or(self.widths.len() - 1);
            self.widths.remove(place);
            self.heading.remove(place);
            self.rows.iter_mut().filter(|row| place < row.len()).for_each(|row| {
                row.remove(place);
            });
        }
    }

    fn draw(mut self, frame: &mut Frame<'_>, area: Rect, is_coloured: bool) {
        self.narrow(area.width);
        let wide = self.heading.iter().position(|heading| *heading == OWN_FIGURES);
        if let Some(place) = wide {
            let others = self.widths.iter().map(|width| width + 1).sum::<u16>();
            self.widths[place] += (area.width + 1).saturating_sub(others);
        }
        let cell = |(index, figure): (usize, Figure)| {
            let is_text = index == 0 || wide == Some(index);
            let alignment = if is_text { Alignment::Left } else { Alignment::Right };
            let style = if is_coloured { figure.level.style() } else { Style::new() };
            Cell::from(Text::from(figure.text).alignment(alignment)).style(style)
        };
        let heading = self.heading.into_iter().map(|text| Figure::from(text.to_owned()));
        let heading = Row::new(heading.enumerate().map(cell));
        let heading = heading.style(Style::new().add_modifier(Modifier::BOLD));
        let rows = self.rows.into_iter().map(|row| Row::new(row.into_iter().enumerate().map(cell)));
        let widths = self.widths.into_iter().map(Constraint::Length);
        let table = Table::new(rows, widths).header(heading.top_margin(1)).column_spacing(1);
        frame.render_widget(table, area);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::{DropRates, FunctionRates, PartRates, QueueRates};
    use super::*;
    use picnic_control::report::TakenAway;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::Map;

    fn rates() -> Rates {
        let queue = |number: u16, pps: f64, depth: u64| QueueRates {
            queue: number,
            core: 3,
            pps,
            bits_per_s: pps * 800.0,
            interrupts_per_s: pps / 50.0,
            packets_per_interrupt: Some(50.0),
            ring_depth: depth,
            ring_size: 1024,
            ring_full_pps: 0.0,
            tx_pps: 0.0,
            latency_p50_ns: Some(1_200),
            latency_p99_ns: Some(3_400),
        };
        Rates {
            card: "web".into(),
            elapsed_s: 12.5,
            interval_s: 1.0,
            wires: vec![WireRates {
                name: "eth1".into(),
                rx_pps: 3e6,
                rx_bits_per_s: 2.4e9,
                tx_pps: 0.0,
                tx_bits_per_s: 0.0,
                shed_pps: 0.0,
            }],
            parts: Vec::new(),
            queues: vec![queue(0, 1e6, 12), queue(1, 2e6, 7)],
            functions: vec![FunctionRates {
                place: "rx[0]".into(),
                name: "rss".into(),
                pps: 3e6,
                dropped_pps: 0.0,
                ns_per_packet: Some(41.25),
                counters: Map::from_iter([
                    ("unhashed".into(), 17.into()),
                    ("moved_entries".into(), 0.into()),
                ]),
                gauges: Map::from_iter([("queues".into(), 2.into())]),
            }],
            drops: vec![DropRates {
                reason: "ring_full".into(),
                stage: "steer".into(),
                pps: 10.0,
                packets: 12_345,
            }],
            borrowed_core: 5,
            busy_fraction: 0.875,
            asleep_fraction: 0.0,
            taken_away: Some(TakenAway {
                total_ns: 12_300_000,
                times: 4,
                longest_ns: Some(8_000_000),
                drops: 0,
                threshold_ns: 50_000,
            }),
            latency_p50_ns: Some(1_500),
            latency_p99_ns: None,
        }
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
            "latency p50 1.5 µs, p99 unavailable; core taken 12.3 ms, 0 drops behind, 4 times",
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
        assert_eq!(cells("eth1"), ["eth1", "3.00", "M", "2400.0", "0", "0.0", "0"]);
        let queue = ["1", "3", "2.00", "M", "1600.0", "40.0", "k", "50.0", "7/1024", "0"];
        assert_eq!(cells("1 "), queue);
        assert_eq!(cells("rx[0]"), ["rx[0]", "rss", "3.00", "M", "0", "41.2"]);
    }

    #[test]
    fn several_wires_have_their_sum_below() {
        let mut rates = rates();
        assert_eq!(wires(&rates).rows.len(), 1);
        let second = WireRates { name: "eth2".into(), tx_pps: 5e5, ..rates.wires[0].clone() };
        rates.wires.push(second);
        let rows = wires(&rates).rows;
        let cells: Vec<_> = rows[2].iter().map(|figure| figure.text.clone()).collect();
        assert_eq!(cells, ["all wires", "6.00 M", "4800.0", "500.0 k", "0.0", "0"]);
    }

    #[test]
    fn the_parts_of_a_shared_card_stand_below_its_wires() {
        let part = |part: &str, rx_pps| PartRates {
            part: part.into(),
            rx_pps,
            delivered_pps: rx_pps,
            dropped_pps: 0.0,
        };
        let parts = vec![part("kernel", 2e6), part("poll engine", 1e6), part("both", 3e6)];
        let shared = Rates { parts, ..rates() };
        let headings = |rates: &Rates| {
            let blocks = Screen::default().blocks(rates).into_iter();
            blocks.map(|block| (block.heading[0], block.rows.len())).collect::<Vec<_>>()
        };
        assert_eq!(headings(&shared)[..3], [("wire", 1), ("part", 3), ("queue", 2)]);
        assert_eq!(headings(&rates())[..2], [("wire", 1), ("queue", 2)]);
    }

    #[test]
    fn no_drops_at_all_are_zero_a_second() {
        let rates = Rates { drops: Vec::new(), ..rates() };
        let head = Screen::default().head(&rates, 80).to_string();
        assert!(head.contains("; 0 drops/s"), "{head}");
    }

    #[test]
    fn queues_stand_in_the_order_asked_for_and_a_pause_is_seen() {
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
        let words =
            ["core", "packets/s", "Mbit/s", "interrupts/s", "packets/int", "ring", "full/s"];
        let found: Vec<_> = headings[0].split_whitespace().skip(1).collect();
        assert_eq!(found, words);
    }

    #[test]
    fn a_hundred_and_twenty_columns_are_used() {
        let lines = drawn(&mut Screen::default(), 120, 24);
        let line = |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap();
        assert!(line("queue").trim_end().ends_with("full/s latency p50 latency p99 tx packets/s"));
        assert!(line("1 ").trim_end().ends_with("1.2 µs      3.4 µs            0"));
        assert!(line("function").contains("ns/packet its own figures"));
        // Those that are zero are left out.
        let counted = line("rx[0]").split("41.2 ").nth(1).unwrap().trim().split(", ");
        let counted: std::collections::BTreeSet<_> = counted.collect();
        assert_eq!(counted.into_iter().collect::<Vec<_>>(), ["queues 2", "unhashed 17"]);
        assert!(lines[1].contains("4 times, longest 8.0 ms"), "{}", lines[1]);
    }

    #[test]
    fn a_core_that_was_taken_away_is_trouble_if_packets_were_dropped_for_it() {
        let colour = |times, drops| {
            let mut rates = rates();
            let taken = rates.taken_away.unwrap();
            rates.taken_away = Some(TakenAway { times, drops, ..taken });
            let screen = Screen { is_coloured: true, ..Screen::default() };
            screen.times(&rates, 80).style.fg
        };
        let all = [colour(0, 0), colour(2, 0), colour(2, 5)];
        assert_eq!(all, [None, Some(Color::Yellow), Some(Color::Red)]);
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out_whole() {
        let lines = drawn(&mut Screen::default(), 45, 24);
        let heading = lines.iter().find(|line| line.starts_with("queue")).unwrap();
        let found: Vec<_> = heading.split_whitespace().collect();
        // Those that tell of trouble stay.
        assert_eq!(found, ["queue", "packets/s", "ring", "full/s"]);
    }

    #[test]
    fn sixty_columns_have_what_matters() {
        let lines = drawn(&mut Screen::default(), 60, 24);
        let words = |start: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("queue"), ["queue", "core", "packets/s", "Mbit/s", "ring", "full/s"]);
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
            rates.queues[1].ring_depth = 800;
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
        // The head, for there are drops, and its core was taken; the ring of queue 1; the drops.
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
    fn what_does_not_fit_is_cut_from_the_longest_list_and_counted() {
        let mut rates = rates();
        let queue = rates.queues[0].clone();
        rates.queues =
            (0..40).map(|number| QueueRates { queue: number, ..queue.clone() }).collect();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| Screen::default().draw(frame, &rates)).unwrap();
        let text = terminal.backend().to_string();
        // 3 of the head, 9 of three blocks of one row, 2 around the queues: 10 rows are left.
        for part in ["\"0  ", "\"8  ", "\"+31 ", "rx[0] rss", "ring_full @ steer"] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(!text.contains("\"9  "), "{text}");
    }

    #[test]
    fn a_card_that_does_not_answer_is_told_of() {
        let silence = Some(Duration::from_millis(4900));
        let lines = drawn(&mut Screen { silence, ..Screen::default() }, 80, 24);
        assert!(lines[2].starts_with("NO ANSWER FOR 4 s  q quit"), "{}", lines[2]);
    }

    #[test]
    fn any_size_will_do() {
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
