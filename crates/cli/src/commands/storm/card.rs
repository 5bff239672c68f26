//! `storm node --place card`: the member is a task on a card of this process.
//!
//! The card has the interface as one wire, and a cable to this program as the other. The program
//! only prints and submits: order, repeats and time-outs are the card's.

use super::{Input, NodeArgs, SUSPECT_AFTER_NS, incarnation};
use crate::output;
use anyhow::bail;
use picnic_control::Launch;
use picnic_machine::signals;
use picnic_ports::cable::{Cables, Plug};
use picnic_storm::card::records::{self, LONGEST, Record};
use picnic_storm::cards;
use picnic_storm::log::Log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Messages given to the card that it has not submitted yet: fewer than it has room for.
const MOST_UNCONFIRMED: usize = 32;
/// Frames that wait for this program, or for the card.
const FRAMES: usize = 4096;

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
    let cable = format!("storm-{}", std::process::id());
    let members: Vec<String> =
        args.members.iter().map(|(name, address)| format!("{name}={address}")).collect();
    let mut text = format!(
        "[card]\nname = \"storm\"\n[[wire]]\nport = \"packet\"\ninterface = {interface:?}\n\
         [[wire]]\nport = \"cable\"\ncable = {cable:?}\nframes = {FRAMES}\n[host]\nqueues = 1\n\
         [os]\nadmission = \"override\"\narena_bytes = 8388608\n[[task]]\ntask = \"storm\"\nmembers = {members:?}\n"
    );
    let _ = writeln!(
        text,
        "me = {:?}\ngroup = {}\nhost_wire = 1\nsuspect_us = {}\nincarnation = {}",
        args.name,
        args.group,
        SUSPECT_AFTER_NS / 1_000,
        incarnation()
    );
    let file = picnic_host::sections().parse(&text, None)?;
    let running = Launch::new(&file, cards::registries()).start_alone()?;
    let plug = Cables::default().plug_as_other(&cable)?;
    let session = Session {
        plug,
        log,
        names,
        input: Input::default(),
        unconfirmed: 0,
        next_frame: 0,
        counts: Counts::default(),
    };
    let ended = session.run(args.messages, quiet);
    let report = running.stop()?;
    if !report.ledger.balanced() {
        bail!("the card's ledger does not balance: {:?}", report.ledger);
    }
    Ok(Left { member: args.name.clone(), counts: ended? })
}

struct Session<'a> {
    plug: Plug,
    log: Log<Box<dyn Write>>,
    names: &'a [String],
    input: Input,
    unconfirmed: usize,
    next_frame: u32,
    counts: Counts,
}

impl Session<'_> {
    fn run(mut self, messages: Option<u64>, quiet: bool) -> anyhow::Result<Counts> {
        let mut active = Instant::now();
        let mut text = String::new();
        while !signals::is_asked() {
            let before = (self.counts.delivered, self.counts.submitted);
            let received = self.receive(&mut text)?;
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
            if received == 0 && !submitted {
                self.wait()?;
            }
        }
        self.log.end()?;
        Ok(self.counts)
    }

    /// Takes the card's records; how many frames there were.
    fn receive(&mut self, text: &mut String) -> anyhow::Result<usize> {
        let Session { plug, log, names, unconfirmed, next_frame, counts, .. } = self;
        let (mut written, mut missing) = (Ok(()), 0);
        let received = plug.receive(|frame| {
            let Some((number, found)) = records::to_host(frame) else { return };
            missing += number.wrapping_sub(*next_frame);
            *next_frame = number.wrapping_add(1);
            for record in found {
                let wrote = match record {
                    Record::Delivered(delivery) => {
                        counts.delivered += 1;
                        let name = names.get(usize::from(delivery.sender));
                        *text += name.map_or("", String::as_str);
                        text.push('\t');
                        *text += &String::from_utf8_lossy(delivery.payload);
                        text.push('\n');
                        log.delivered(&delivery)
                    }
                    Record::Submitted(position) => {
                        counts.submitted += 1;
                        *unconfirmed = unconfirmed.saturating_sub(1);
                        log.submitted(position)
                    }
                    Record::View { number, members, joined } => {
                        counts.views += 1;
                        let is_in = |place: &usize| members >> place & 1 != 0;
                        let list =
                            (0..names.len()).filter(is_in).map(|place| names[place].as_str());
                        let list: Vec<&str> = list.collect();
                        output::tell(format!("view {number}: {}", list.join(", ")));
                        if joined { log.joined() } else { Ok(()) }
                    }
                };
                if wrote.is_err() {
                    written = wrote;
                }
            }
        });
        written?;
        if missing != 0 {
            bail!("{missing} frames of the card were lost: this program is too slow");
        }
        Ok(received)
    }

    /// Gives arrived lines to the card while it has room; returns whether there were any.
    fn submit(&mut self) -> io::Result<bool> {
        self.input.read()?;
        let mut any = false;
        while let Some(line) = self.input.line()
            && self.unconfirmed < MOST_UNCONFIRMED
        {
            let length = line.len();
            let mut frame = [0; LONGEST];
            match records::to_card(&mut frame, std::iter::once(line)) {
                Some((1, bytes)) if length <= usize::from(cards::PAYLOAD_BYTES) => {
                    if !self.plug.send(&frame[..bytes]) {
                        break;
                    }
                    self.unconfirmed += 1;
                    any = true;
                }
                _ => output::tell(format!(
                    "a line was not sent: found {length} bytes, allowed: {}",
                    cards::PAYLOAD_BYTES
                )),
            }
            self.input.used(length);
        }
        Ok(any)
    }

    fn wait(&mut self) -> io::Result<()> {
        if !self.plug.arm() {
            return Ok(());
        }
        let stdin = io::stdin();
        let mut sources: Vec<PollFd<'_>> = Vec::new();
        if let Some(readiness) = self.plug.readiness() {
            sources.push(PollFd::from_borrowed_fd(readiness, PollFlags::IN));
        }
        if self.input.wants_more() {
            sources.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
        }
        let longest = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match poll(&mut sources, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
