//! The screen of `picnic top`: what is drawn where.

use super::rates::Rates;
use crate::output::{count, nanoseconds, percent, rate, ratio};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Modifier, Style};
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
}

/// Lines above the first block: two of text and the keys.
const HEAD: u16 = 3;
/// Lines of a block beside its rows: an empty one and the heading.
const AROUND: usize = 2;

/// A heading and rows of text; the first column stands left, the others right.
struct Block {
    heading: Vec<&'static str>,
    widths: Vec<u16>,
    rows: Vec<Vec<String>>,
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
        let mut blocks = self.blocks(rates);
        fit(&mut blocks, area.height.saturating_sub(HEAD).into());
        frame.render_widget(self.head(rates), Rect { height: HEAD.min(area.height), ..area });
        let (mut top, end) = (area.y.saturating_add(HEAD), area.bottom());
        for block in blocks {
            let lines = u16::try_from(block.lines()).unwrap_or(u16::MAX);
            let height = lines.min(end.saturating_sub(top));
            if height > 0 {
                block.draw(frame, Rect { y: top, height, ..area });
            }
            top = top.saturating_add(height);
        }
    }

    fn head(&self, rates: &Rates) -> Text<'static> {
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
        Text::from(vec![
            Line::styled(
                format!(
                    "{}: {:.1} s; borrowed core {} busy {}, asleep {}; {} drops/s",
                    rates.card,
                    rates.elapsed_s,
                    rates.borrowed_core,
                    percent(rates.busy_fraction),
                    percent(rates.asleep_fraction),
                    rate(dropped),
                ),
                Style::new().add_modifier(Modifier::BOLD),
            ),
            Line::from(format!(
                "latency p50 {}, p99 {} since the start",
                nanoseconds(rates.latency_p50_ns),
                nanoseconds(rates.latency_p99_ns),
            )),
            Line::from(format!("{state}q quit  p pause  s sort (queues by {sort})")),
        ])
    }

    fn blocks(&self, rates: &Rates) -> Vec<Block> {
        let mut blocks = vec![wires(rates), self.queues(rates)];
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
            vec![
                queue.queue.to_string(),
                queue.core.to_string(),
                rate(queue.pps),
                megabits(queue.bits_per_s),
                rate(queue.interrupts_per_s),
                ratio(queue.packets_per_interrupt),
                format!("{}/{}", queue.ring_depth, queue.ring_size),
                rate(queue.ring_full_pps),
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
            ],
            // 80 columns with the spaces between.
            widths: vec![5, 4, 10, 10, 12, 11, 12, 9],
            rows: rows.collect(),
        }
    }
}

fn megabits(bits_per_s: f64) -> String {
    format!("{:.1}", bits_per_s / 1e6)
}

fn wires(rates: &Rates) -> Block {
    let rows = rates.wires.iter().map(|wire| {
        vec![
            wire.name.clone(),
            rate(wire.rx_pps),
            megabits(wire.rx_bits_per_s),
            rate(wire.tx_pps),
            megabits(wire.tx_bits_per_s),
        ]
    });
    Block {
        heading: vec!["wire", "rx packets/s", "rx Mbit/s", "tx packets/s", "tx Mbit/s"],
        widths: vec![16, 12, 12, 12, 12],
        rows: rows.collect(),
    }
}

fn functions(rates: &Rates) -> Block {
    let rows = rates.functions.iter().map(|function| {
        vec![
            format!("{} {}", function.place, function.name),
            rate(function.pps),
            rate(function.dropped_pps),
        ]
    });
    Block {
        heading: vec!["function", "packets/s", "dropped/s"],
        widths: vec![28, 12, 12],
        rows: rows.collect(),
    }
}

fn drops(rates: &Rates) -> Block {
    let mut drops: Vec<_> = rates.drops.iter().collect();
    drops.sort_by_key(|drop| Reverse((drop.pps as u64, drop.packets)));
    let rows = drops.into_iter().map(|drop| {
        vec![format!("{} @ {}", drop.reason, drop.stage), rate(drop.pps), count(drop.packets)]
    });
    Block {
        heading: vec!["drops", "packets/s", "since start"],
        widths: vec![28, 12, 18],
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
            block.rows.push(vec![format!("+{}", whole + 1 - rows)]);
        }
    }
}

impl Block {
    fn lines(&self) -> usize {
        self.rows.len() + AROUND
    }

    /// Columns that do not fit are left out, from the right.
    fn draw(mut self, frame: &mut Frame<'_>, area: Rect) {
        let mut width = 0;
        let mut fits = |column: &&u16| {
            width += **column + 1;
            width <= area.width + 1
        };
        let columns = self.widths.iter().take_while(&mut fits).count().max(1);
        self.widths.truncate(columns);
        self.heading.truncate(columns);
        self.rows.iter_mut().for_each(|row| row.truncate(columns));
        let cell = |(index, text): (usize, String)| {
            let alignment = if index == 0 { Alignment::Left } else { Alignment::Right };
            Cell::from(Text::from(text).alignment(alignment))
        };
        let heading = self.heading.into_iter().map(str::to_owned).enumerate().map(cell);
        let heading = Row::new(heading).style(Style::new().add_modifier(Modifier::BOLD));
        let rows = self.rows.into_iter().map(|row| Row::new(row.into_iter().enumerate().map(cell)));
        let widths = self.widths.into_iter().map(Constraint::Length);
        let table = Table::new(rows, widths).header(heading.top_margin(1)).column_spacing(1);
        frame.render_widget(table, area);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::{DropRates, FunctionRates, QueueRates, WireRates};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

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
            }],
            queues: vec![queue(0, 1e6, 12), queue(1, 2e6, 7)],
            functions: vec![FunctionRates {
                place: "rx[0]".into(),
                name: "rss".into(),
                pps: 3e6,
                dropped_pps: 0.0,
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
            "web: 12.5 s; borrowed core 5 busy 87.5 %, asleep 0.0 %; 10 drops/s",
            "latency p50 1.5 µs, p99 unavailable since the start",
            "q quit  p pause  s sort (queues by number)",
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
        assert_eq!(cells("eth1"), ["eth1", "3.00", "M", "2400.0", "0", "0.0"]);
        let queue = ["1", "3", "2.00", "M", "1600.0", "40.0", "k", "50.0", "7/1024", "0"];
        assert_eq!(cells("1 "), queue);
    }

    #[test]
    fn no_drops_at_all_are_zero_a_second() {
        let rates = Rates { drops: Vec::new(), ..rates() };
        let head = Screen::default().head(&rates).to_string();
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
    fn columns_that_do_not_fit_are_left_out_whole() {
        let lines = drawn(&mut Screen::default(), 45, 24);
        let heading = lines.iter().find(|line| line.starts_with("queue")).unwrap();
        let found: Vec<_> = heading.split_whitespace().collect();
        assert_eq!(found, ["queue", "core", "packets/s", "Mbit/s", "interrupts/s"]);
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
        for (width, height) in [(1, 1), (10, 3), (40, 8), (90, 2), (300, used as u16)] {
            let lines = drawn(&mut Screen::default(), width, height);
            // What there is room for is there: of the first line as much as it is wide.
            let begins = |line: &str| line.chars().take(usize::from(width)).collect::<String>();
            assert_eq!(lines[0], begins(&whole[0]), "{width} x {height}");
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
