//! The live table of `picnic run`: redrawn in place, on a terminal only.
//!
//! It reads counters and nothing else, so the card does not notice it.

use crate::output::{self, Column, count, rate, ratio};
use picnic_control::monitor::{queue_reports, wire_reports};
use picnic_control::report::{QueueReport, WireReport};
use picnic_core::stats::SteerCounters;
use picnic_engine::view::View;
use picnic_machine::topology::Placement;
use rustix::termios::{isatty, tcgetwinsize};
use std::io::{self, Write};
use std::time::Duration;

/// The terminal that the table is drawn on.
#[derive(Clone, Copy, Debug)]
enum Terminal {
    Stderr,
    Stdout,
}

impl Terminal {
    /// Standard error if it is a terminal; else standard output, unless that is for JSON.
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

    /// What cannot be drawn is not drawn: a terminal that has gone is no reason to stop.
    fn write(self, text: &str) {
        let stream = match self {
            Terminal::Stderr => output::standard(io::stderr()),
            Terminal::Stdout => output::standard(io::stdout()),
        };
        let _ = stream.map(|mut stream| stream.write_all(text.as_bytes()));
    }
}

/// The counters at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    at: Duration,
    wires: Vec<WireReport>,
    queues: Vec<QueueReport>,
    depths: Vec<(u64, usize)>,
    drops: Vec<u64>,
    dropped: u64,
}

impl Snapshot {
    fn take(view: &View, placement: &Placement, at: Duration) -> Self {
        let depth = |steer: &SteerCounters, size| (steer.depth.get(), size);
        let targets = view.ledger.queues.iter().map(|queue| queue.drops.total());
        let full = view.queues.iter().map(|queue| queue.steer.ring_full.get());
        Snapshot {
            at,
            wires: wire_reports(view),
            queues: queue_reports(view, placement),
            depths: view.queues.iter().map(|queue| depth(&queue.steer, queue.ring_size)).collect(),
            drops: targets.zip(full).map(|(target, full)| target + full).collect(),
            dropped: view.ledger.read().dropped,
        }
    }
}

/// The live table.
#[derive(Debug)]
pub(crate) struct Live {
    terminal: Terminal,
    view: View,
    placement: Placement,
    previous: Snapshot,
    /// Lines that stand on the terminal.
    drawn: usize,
}

impl Live {
    /// A live table, if there is a terminal for it.
    pub(crate) fn new(view: &View, placement: &Placement, json: bool) -> Option<Self> {
        let terminal = Terminal::find(json)?;
        let previous = Snapshot::take(view, placement, Duration::ZERO);
        let (view, placement) = (view.clone(), placement.clone());
        Some(Live { terminal, view, placement, previous, drawn: 0 })
    }

    /// Draws the figures of the time since it was last drawn.
    pub(crate) fn draw(&mut self, elapsed: Duration) {
        let now = Snapshot::take(&self.view, &self.placement, elapsed);
        let (rows, columns) = self.terminal.size();
        let core = self.placement.borrowed_core;
        let text = render(&self.view.name, core, &self.previous, &now);
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

    /// Takes the table away.
    pub(crate) fn erase(&mut self) {
        let text = self.erased();
        self.terminal.write(&text);
        self.drawn = 0;
    }

    /// What brings the cursor back to where the table starts, and clears from there on.
    fn erased(&self) -> String {
        match self.drawn {
            0 => String::new(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }
}

/// As many lines as the terminal has room for, none longer than it is wide.
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

fn render(name: &str, core: usize, before: &Snapshot, now: &Snapshot) -> String {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64().max(1e-9);
    let pace = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let megabits = |now: u64, before: u64| format!("{:.1}", pace(now, before) * 8.0 / 1e6);
    let wires = now.wires.iter().zip(&before.wires).map(|(now, before)| {
        vec![
            now.name.clone(),
            rate(pace(now.rx_packets, before.rx_packets)),
            megabits(now.rx_bytes, before.rx_bytes),
            rate(pace(now.tx_packets, before.tx_packets)),
            megabits(now.tx_bytes, before.tx_bytes),
        ]
    });
    let queues = now.queues.iter().zip(&before.queues).enumerate().map(|(index, (now_q, was))| {
        let packets = now_q.packets.saturating_sub(was.packets);
        let interrupts = now_q.interrupts.saturating_sub(was.interrupts);
        let (depth, size) = now.depths[index];
        vec![
            now_q.queue.to_string(),
            now_q.core.to_string(),
            rate(pace(now_q.packets, was.packets)),
            megabits(now_q.bytes, was.bytes),
            ratio((interrupts != 0).then(|| packets as f64 / interrupts as f64)),
            format!("{depth}/{size}"),
            count(now.drops[index]),
        ]
    });
    let wires = output::table(
        &[
            Column::Text("wire"),
            Column::Number("rx packets/s"),
            Column::Number("rx Mbit/s"),
            Column::Number("tx packets/s"),
            Column::Number("tx Mbit/s"),
        ],
        wires,
    );
    let queues = output::table(
        &[
            Column::Number("queue"),
            Column::Number("core"),
            Column::Number("packets/s"),
            Column::Number("Mbit/s"),
            Column::Number("packets/interrupt"),
            Column::Number("ring"),
            Column::Number("drops"),
        ],
        queues,
    );
    let elapsed = now.at.as_secs_f64();
    let drops = rate(pace(now.dropped, before.dropped));
    let name = output::name(name);
    format!(
        " {name}: {elapsed:.1} s on borrowed core {core}; {drops} drops/s; Ctrl-C stops\n\
         {wires}{queues}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_control::report::{LatencyReport, Stamp};

    fn snapshot(seconds: u64, packets: u64, interrupts: u64) -> Snapshot {
        Snapshot {
            at: Duration::from_secs(seconds),
            wires: vec![WireReport {
                name: "wire0".into(),
                rx_packets: packets,
                rx_bytes: packets * 100,
                rx_shed: 0,
                tx_packets: 0,
                tx_bytes: 0,
                stamp: Stamp::Taken,
                interrupts: 0,
                stamps_ahead: 0,
            }],
            queues: vec![QueueReport {
                queue: 0,
                core: 3,
                packets,
                bytes: packets * 100,
                interrupts,
                packets_per_interrupt: None,
                polls: 0,
                empty_polls: 0,
                doorbells: 0,
                doorbells_coalesced: 0,
                tx_completed: 0,
                tx_completed_bytes: 0,
                tx_in_flight_bytes: 0,
                tx_limited: 0,
                transmitted: 0,
                ring_full: 0,
                ring_depth: 0,
                ring_size: 1024,
                latency_ns: LatencyReport::default(),
            }],
            depths: vec![(12, 1024)],
            drops: vec![7],
            dropped: 7,
        }
    }

    #[test]
    fn figures_are_of_the_interval_and_not_of_the_run() {
        let text = render("card", 5, &snapshot(10, 1_000_000, 500), &snapshot(12, 3_000_000, 1500));
        let row = text.lines().last().unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["0", "3", "1.00", "M", "800.0", "2000.0", "12/1024", "7"]);
    }

    #[test]
    fn without_interrupts_there_is_no_quotient() {
        let text = render("card", 5, &snapshot(1, 0, 9), &snapshot(2, 10, 9));
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
