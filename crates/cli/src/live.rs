//! The live table of `picnic run`: redrawn in place, on a terminal only.
//!
//! It only reads counters, so the card is not affected.

use crate::figures::{self, Show, Table};
use crate::output::{self, rate};
use picnic_control::Report;
use picnic_control::monitor::Monitor;
use rustix::termios::{isatty, tcgetwinsize};
use std::io::{self, Write};
use std::time::Duration;

/// The terminal for the table.
#[derive(Clone, Copy, Debug)]
enum Terminal {
    Stderr,
    Stdout,
}

impl Terminal {
    /// Standard error if it is a terminal; otherwise standard output, unless that is for JSON.
    fn find(json: bool) -> Option<Self> {
        if isatty(io::stderr()) {
            return Some(Terminal::Stderr);
        }
        (!json && isatty(io::stdout())).then_some(Terminal::Stdout)
    }

    /// Lines and columns.
    fn size(self) -> (usize, usize) {
        let size = match self {
            Terminal::Stderr => tcgetwinsize(io::stderr()),
            Terminal::Stdout => tcgetwinsize(io::stdout()),
        };
        match size {
            Ok(size) if size.ws_row != 0 && size.ws_col != 0 => {
                (usize::from(size.ws_row), usize::from(size.ws_col))
            }
            _ => (24, 80),
        }
    }

    /// Errors are ignored: a closed terminal is no reason to stop.
    fn write(self, text: &str) {
        let stream = match self {
            Terminal::Stderr => output::standard(io::stderr()),
            Terminal::Stdout => output::standard(io::stdout()),
        };
        let _ = stream.map(|mut stream| stream.write_all(text.as_bytes()));
    }
}

/// The live table.
#[derive(Debug)]
pub(crate) struct Live {
    terminal: Terminal,
    monitor: Monitor,
    previous: Report,
    /// Number of lines on the terminal.
    drawn: usize,
}

impl Live {
    /// A live table, if there is a terminal.
    pub(crate) fn new(monitor: &Monitor, json: bool) -> Option<Self> {
        let terminal = Terminal::find(json)?;
        let previous = counters(monitor, Duration::ZERO);
        Some(Live { terminal, monitor: monitor.clone(), previous, drawn: 0 })
    }

    /// Draws the figures since the last drawing.
    pub(crate) fn draw(&mut self, elapsed: Duration) {
        let now = counters(&self.monitor, elapsed);
        let (rows, columns) = self.terminal.size();
        let text = render(&self.monitor.view.name, &self.previous, &now);
        let lines = fit(&text, rows, columns);
        let mut frame = self.erased();
        for line in &lines {
            frame.push_str(line);
            frame.push_str("\r\n");
        }
        self.terminal.write(&frame);
        self.drawn = lines.len();
        self.previous = now;
    }

    /// Removes the table.
    pub(crate) fn erase(&mut self) {
        let text = self.erased();
        self.terminal.write(&text);
        self.drawn = 0;
    }

    /// Moves the cursor to the start of the table, and clears from there on.
    fn erased(&self) -> String {
        match self.drawn {
            0 => String::new(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }
}

/// The figures without latencies, which the target cores would have to copy.
fn counters(monitor: &Monitor, elapsed: Duration) -> Report {
    Report { latencies: None, ..monitor.report_over(elapsed.as_nanos() as u64, &[]) }
}

/// As many lines as fit on the terminal, cut to its width.
fn fit(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().map(|line| line.chars().take(columns).collect()).collect();
    // The cursor stands on the line below.
    let most = rows.saturating_sub(1).max(1);
    if lines.len() > most {
        let left_out = lines.len() - (most - 1);
        lines.truncate(most - 1);
        let more = format!(" ... and {left_out} lines more");
        lines.push(more.chars().take(columns).collect());
    }
    lines
}

fn render(name: &str, before: &Report, now: &Report) -> String {
    let window = now.since(before);
    let tables = [
        Some(figures::wires(&window, Show::Rates)),
        figures::parts(&window, Show::Rates),
        Some(figures::queues(&window, Show::Rates)),
        figures::drops(now, &window),
    ];
    let tables: String = tables.into_iter().flatten().map(Table::text).collect();
    let (name, core) = (output::name(name), now.borrowed_core.core);
    let drops = rate(window.ledger.dropped as f64 / window.duration_s);
    let elapsed = now.duration_s;
    format!(
        " {name}: {elapsed:.1} s on borrowed core {core}; {drops} drops/s; Ctrl-C stops\n{tables}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_control::report::{QueueReport, WireReport};

    fn report(seconds: u32, packets: u64, interrupts: u64) -> Report {
        let bytes = packets * 100;
        let wire = WireReport { rx_packets: packets, rx_bytes: bytes, ..WireReport::default() };
        let queue = QueueReport { core: 3, packets, bytes, interrupts, ..QueueReport::default() };
        Report {
            duration_s: seconds.into(),
            wires: vec![WireReport { name: "wire0".into(), ..wire }],
            queues: vec![QueueReport { ring_depth: 12, ring_size: 1024, ..queue }],
            ..Report::default()
        }
    }

    #[test]
    fn figures_are_of_the_interval_and_not_of_the_run() {
        let text = render("card", &report(10, 1_000_000, 500), &report(12, 3_000_000, 1500));
        let row = text.lines().last().unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        let interrupts = ["500", "2000.0"];
        let expected =
            [&["0", "3", "1.00", "M", "800.0"], &interrupts[..], &["0", "0", "12/1024"]].concat();
        assert_eq!(cells, expected);
    }

    #[test]
    fn without_interrupts_there_is_no_quotient() {
        let text = render("card", &report(1, 0, 9), &report(2, 10, 9));
        assert!(text.lines().last().unwrap().contains(" - "));
    }

    #[test]
    fn a_table_never_outgrows_its_terminal() {
        let text = "0123456789\n".repeat(50);
        let lines = fit(&text, 10, 6);
        assert_eq!(lines.len(), 9);
        assert!(lines.iter().all(|line| line.chars().count() <= 6));
        assert_eq!(fit("a\nb\n", 24, 80), ["a", "b"]);
        assert_eq!(fit("a\nb\n", 1, 80), [" ... and 2 lines more"]);
    }
}
