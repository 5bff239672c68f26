//! `picnic top`: shows a running card on the terminal, second by second.
//!
//! It calls `card.stats` over the control socket and shows the difference from the last call; the
//! card is not affected.

mod rates;
mod screen;

use crate::control::{CardChoice, Connection, SilentCore};
use crate::failure::Usage;
use crate::output;
use anyhow::Context;
use clap::Args;
use picnic_control::report::Report;
use picnic_machine::signals;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rates::Rates;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{isatty, tcgetwinsize};
use rustix::time::Timespec;
use screen::{Screen, Sort};
use serde_json::{Value, json};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Shortest and longest interval.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Longest wait for a key, so that a stop request is noticed.
const PATIENCE: Duration = Duration::from_millis(200);
/// Interval for checking for an answer: keys are read in between.
const LOOK: Duration = Duration::from_millis(50);
/// Silence of the card that is shown on the screen.
const SILENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quit, h help, p pause, s sort the queues by the next column. NO_COLOR is respected.

Examples:
  picnic top                       the only card that runs
  picnic top --card web --interval 0.2
  picnic top --once --json         the rates of a second, for programs"
)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    choice: CardChoice,
    /// Refresh interval, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1")]
    interval: Duration,
    /// Print one frame as text: the rates of one interval
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = "allowed: a number of seconds, 0.1 to 3600";
    let seconds: f64 = text.parse().map_err(|_| allowed)?;
    match INTERVALS.contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(allowed.into()),
    }
}

pub(crate) fn run(args: &TopArgs, json: bool) -> anyhow::Result<()> {
    if json && !args.once {
        return Err(Usage("--json needs --once".into()).into());
    }
    let is_terminal = isatty(io::stdout()) && isatty(io::stdin());
    if !args.once && !is_terminal {
        let message = "standard output is not a terminal; --once prints one frame as text";
        return Err(Usage(message.into()).into());
    }
    let mut connection = args.choice.connect()?;
    let info = connection.call("card.info", json!({}))?;
    let name = info["name"].as_str().unwrap_or("card").to_owned();
    let before = stats(&mut connection)?;
    if args.once {
        std::thread::sleep(args.interval);
        let rates = Rates::between(&name, &before, &stats(&mut connection)?);
        return match json {
            true => output::print_json(&rates.json()),
            false => output::print(&text(&rates, width())?),
        };
    }
    // A polite kill also restores the terminal.
    let stop = signals::stop_flag()?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be drawn on")?;
    let input = Input::start();
    let mut watch = Watch { connection, name: name.clone(), interval: args.interval, stop, input };
    let outcome = watch.run(&mut terminal, before);
    ratatui::restore();
    if outcome? {
        output::tell(format_args!("{name} has ended"));
    }
    Ok(())
}

/// Parameters of `card.stats`.
fn wanted() -> Value {
    json!({ "latencies": true, "counters": true })
}

fn stats(connection: &mut Connection) -> anyhow::Result<Report> {
    report(connection.call("card.stats", wanted())?)
}

fn report(stats: Value) -> anyhow::Result<Report> {
    serde_json::from_value(stats).context("the card runs another version with other figures")
}

fn width() -> u16 {
    tcgetwinsize(io::stdout()).map_or(100, |size| if size.ws_col >= 60 { size.ws_col } else { 100 })
}

/// One frame as text, as high as it needs.
fn text(rates: &Rates, width: u16) -> anyhow::Result<String> {
    let mut screen = Screen::default();
    let height = screen.height(rates);
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| screen.draw(frame, rates));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..height {
        let line: String = (0..width).map(|column| buffer[(column, row)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

/// A screen that follows a card.
struct Watch {
    connection: Connection,
    name: String,
    interval: Duration,
    stop: Arc<AtomicBool>,
    input: Input,
}

/// The user's keys, read by a separate thread: on a closed terminal, `event::read` and
/// `event::poll` never return (crossterm 0.29 reads on after the end).
struct Input {
    events: Receiver<io::Result<Event>>,
}

impl Input {
    /// Starts the thread, which ends with the process.
    fn start() -> Self {
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || while sender.send(event::read()).is_ok() {});
        Input { events }
    }

    /// The next event, waiting at most `patience`.
    ///
    /// # Errors
    /// The terminal has been closed or cannot be read.
    fn next(&self, patience: Duration) -> io::Result<Option<Event>> {
        match self.events.recv_timeout(patience) {
            Ok(event) => event.map(Some),
            Err(_) if is_closed(&io::stdin())? => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Ok(None),
        }
    }
}

/// Whether the other end of a terminal was closed.
fn is_closed(terminal: &impl AsFd) -> io::Result<bool> {
    let mut look = [PollFd::new(terminal, PollFlags::empty())];
    poll(&mut look, Some(&Timespec::default()))?;
    Ok(look[0].revents().contains(PollFlags::HUP))
}

impl Watch {
    /// Draws until the user quits. True if the card has ended before. Keys also work while the card
    /// is silent.
    fn run(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        mut before: Report,
    ) -> anyhow::Result<bool> {
        // https://no-color.org: present and not empty.
        let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Screen { is_coloured, ..Screen::default() };
        let mut rates = Rates::between(&self.name, &before, &before);
        let mut next = Instant::now() + self.interval;
        // The unanswered call, and when it was sent.
        let mut asked: Option<(u64, Instant)> = None;
        while !self.stop.load(Ordering::Relaxed) {
            let silence = asked.map(|(_, since)| since.elapsed());
            screen.silence = silence.filter(|silence| *silence >= SILENCE);
            terminal.draw(|frame| screen.draw(frame, &rates))?;
            let left = match asked {
                Some(_) => Duration::ZERO,
                None => next.saturating_duration_since(Instant::now()),
            };
            if let Some(event) = self.input.next(left.min(PATIENCE))? {
                match event {
                    Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                        KeyCode::Esc if screen.is_help => screen.is_help = false,
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(false),
                        KeyCode::Char('h' | '?') => screen.is_help = !screen.is_help,
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                            return Ok(false);
                        }
                        KeyCode::Char('p') => screen.is_paused = !screen.is_paused,
                        KeyCode::Char('s') => screen.sort = screen.sort.next(),
                        _ => {}
                    },
                    // Redrawn at once, for the current size.
                    _ => {}
                }
                continue;
            }
            let Some((id, since)) = asked else {
                if Instant::now() < next {
                    continue;
                }
                // After a silence, missed intervals are skipped.
                next = Instant::now().max(next + self.interval);
                let Ok(id) = self.connection.send("card.stats", wanted()) else { return Ok(true) };
                asked = Some((id, Instant::now()));
                continue;
            };
            let answer = match self.connection.poll(id, LOOK) {
                Ok(Some(answer)) => answer,
                Ok(None) => continue,
                Err(error) if error.is::<SilentCore>() => {
                    // The card goes on: its silence is shown until it answers.
                    let Ok(id) = self.connection.send("card.stats", wanted()) else {
                        return Ok(true);
                    };
                    asked = Some((id, since));
                    continue;
                }
                Err(_) => return Ok(true),
            };
            asked = None;
            let now = report(answer)?;
            if !screen.is_paused {
                rates = Rates::between(&self.name, &before, &now);
            }
            before = now;
        }
        Ok(false)
    }
}

impl Sort {
    /// The next order for the key `s`.
    fn next(self) -> Self {
        match self {
            Sort::Queue => Sort::Rate,
            Sort::Rate => Sort::Ring,
            Sort::Ring => Sort::Lost,
            Sort::Lost => Sort::Queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.2"), Ok(Duration::from_millis(200)));
        for text in ["0", "0.05", "3601", "nan", "soon", "-1"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sort_orders_cycle() {
        let mut sort = Sort::default();
        for _ in 0..4 {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
    }
}
