//! `storm node --place card`: the member is a task on a card of this process.
//!
//! The card has the interface as its wire; this program opens the channel of the card's member. It
//! only prints and submits: order, repeats and time-outs are the card's.

use super::{Input, NodeArgs, SUSPECT_AFTER_NS, incarnation};
use crate::output;
use anyhow::{Context, bail};
use picnic_channel::{Awaits, Bell, SendError};
use picnic_control::{Launch, Running};
use picnic_machine::signals;
use picnic_os::channel::{Channels, HostEnd};
use picnic_storm::card::records::{RECORD, Record};
use picnic_storm::card::task::CHANNEL;
use picnic_storm::cards;
use picnic_storm::log::Log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the card's task may take to make its channel.
const PATIENCE: Duration = Duration::from_secs(10);

/// Output of a member on a card at its end with `--json`.
#[derive(Serialize)]
pub(super) struct Left {
    member: String,
    counts: Counts,
}

#[derive(Default, Serialize)]
struct Counts {
    submitted: u64,
    delivered: u64,
    views: u64,
}

pub(super) fn run(
    args: &NodeArgs,
    interface: &str,
    names: &[String],
    log: Log<Box<dyn Write>>,
    quiet: bool,
) -> anyhow::Result<Left> {
    let members: Vec<String> =
        args.members.iter().map(|(name, address)| format!("{name}={address}")).collect();
    let mut text = format!(
        "[card]\nname = \"storm\"\n[[wire]]\nport = \"packet\"\ninterface = {interface:?}\n\
         [host]\nqueues = 1\n\
         [os]\nadmission = \"override\"\narena_bytes = 8388608\n[[task]]\ntask = \"storm\"\nmembers = {members:?}\n"
    );
    let _ = writeln!(
        text,
        "me = {:?}\ngroup = {}\nsuspect_us = {}\nincarnation = {}",
        args.name,
        args.group,
        SUSPECT_AFTER_NS / 1_000,
        incarnation()
    );
    let file = picnic_host::sections().parse(&text, None)?;
    let mut running = Launch::new(&file, cards::registries()).start_alone()?;
    let tasks = running.control().and_then(|access| access.tasks);
    let channels = tasks.map(|tasks| tasks.channels().clone()).unwrap_or_default();
    let bell = Arc::new(Bell::new()?);
    let ended = open(&channels, &bell, running.as_ref()).and_then(|end| {
        let session = Session {
            end,
            bell,
            message: vec![0; RECORD + usize::from(cards::PAYLOAD_BYTES)],
            log,
            names,
            input: Input::default(),
            counts: Counts::default(),
        };
        session.run(args.messages, quiet)
    });
    let report = running.stop()?;
    if !report.ledger.balanced() {
        bail!("the card's ledger does not balance: {:?}", report.ledger);
    }
    Ok(Left { member: args.name.clone(), counts: ended? })
}

/// Opens the channel, as soon as the task has made it.
fn open(channels: &Channels, bell: &Arc<Bell>, card: &dyn Running) -> anyhow::Result<HostEnd> {
    let start = Instant::now();
    loop {
        match channels.open_here(CHANNEL, bell.clone()) {
            Ok(end) => return Ok(end),
            Err(_) if card.is_alive() && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("the member on the card is not at work"),
        }
    }
}

struct Session<'a> {
    end: HostEnd,
    bell: Arc<Bell>,
    message: Vec<u8>,
    log: Log<Box<dyn Write>>,
    names: &'a [String],
    input: Input,
    counts: Counts,
}

impl Session<'_> {
    fn run(mut self, messages: Option<u64>, quiet: bool) -> anyhow::Result<Counts> {
        let mut active = Instant::now();
        let mut text = String::new();
        while !signals::is_asked() {
            let before = (self.counts.delivered, self.counts.submitted);
            let any_received = self.receive(&mut text)?;
            if !text.is_empty() && !quiet {
                output::print(&text)?;
            }
            text.clear();
            let submitted = self.submit()?;
            self.log.flush()?;
            if before != (self.counts.delivered, self.counts.submitted) || submitted {
                active = Instant::now();
            }
            let is_done = messages.is_some_and(|messages| self.counts.delivered >= messages);
            if is_done && active.elapsed() > Duration::from_secs(1) {
                break;
            }
            if !any_received && !submitted {
                self.wait()?;
            }
        }
        self.log.end()?;
        Ok(self.counts)
    }

    /// Takes the card's records; whether there were any.
    fn receive(&mut self, text: &mut String) -> anyhow::Result<bool> {
        let Session { end, message, log, names, counts, .. } = self;
        let mut any = false;
        while let Some(bytes) = end.receive(message) {
            any = true;
            match Record::read(&message[..bytes]) {
                Some(Record::Delivered(delivery)) => {
                    counts.delivered += 1;
                    let name = names.get(usize::from(delivery.sender));
                    *text += name.map_or("", String::as_str);
                    text.push('\t');
                    *text += &String::from_utf8_lossy(delivery.payload);
                    text.push('\n');
                    log.delivered(&delivery)?;
                }
                Some(Record::Submitted(position)) => {
                    counts.submitted += 1;
                    log.submitted(position)?;
                }
                Some(Record::View { number, members, joined }) => {
                    counts.views += 1;
                    let is_in = |place: &usize| members >> place & 1 != 0;
                    let list = (0..names.len()).filter(is_in).map(|place| names[place].as_str());
                    let list: Vec<&str> = list.collect();
                    output::tell(format!("view {number}: {}", list.join(", ")));
                    if joined {
                        log.joined()?;
                    }
                }
                None => {}
            }
        }
        if !any && end.is_closed() {
            bail!("the member on the card has ended");
        }
        Ok(any)
    }

    /// Gives arrived lines to the card while it has room; returns whether there were any.
    fn submit(&mut self) -> io::Result<bool> {
        self.input.read()?;
        let mut any = false;
        while let Some(line) = self.input.line() {
            let (length, most) = (line.len(), usize::from(cards::PAYLOAD_BYTES));
            let sent = match length > most {
                true => Err(SendError::TooLong { found: length, most }),
                false => self.end.send(line),
            };
            match sent {
                Ok(()) => any = true,
                Err(SendError::Full) => break,
                Err(error) => output::tell(format!("a line was not sent: {error}")),
            }
            self.input.used(length);
        }
        Ok(any)
    }

    fn wait(&mut self) -> io::Result<()> {
        let awaits = if self.input.line().is_some() { Awaits::Any } else { Awaits::Message };
        if !self.end.rest(awaits) {
            return Ok(());
        }
        let stdin = io::stdin();
        let mut sources = vec![PollFd::new(&self.bell, PollFlags::IN)];
        if self.input.wants_more() {
            sources.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        let longest = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let polled = poll(&mut sources, Some(&longest));
        drop(sources);
        self.end.wake();
        self.bell.quiet();
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
