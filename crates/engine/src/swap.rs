//! Changes to a running card, made by the borrowed core between bursts.
//!
//! The side that wants a change prepares it whole (a new chain, a new table) and
//! sends it over a ring; the borrowed core swaps it in and sends back what it
//! replaced, so that nothing is built or freed on the data path. Order within a
//! flow is kept: the old chain lets go of what it holds before the new one sees
//! a packet.

use crate::chain::ChainFunction;
use crate::poll::Card;
use crate::view::{FunctionView, Functions};
use picnic_core::command::Prepared;
use picnic_core::config::TxComplete;
use picnic_core::direction::Direction;
use picnic_core::doorbell::Doorbell;
use picnic_core::ring::gate::Gate;
use picnic_core::ring::moderation::ModerationMode;
use picnic_core::ring::spsc::{self, Consumer, Producer};
use picnic_core::time::Time;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A change to a running card.
pub enum Command {
    /// Put these functions in place of a whole chain.
    Swap(Direction, Vec<ChainFunction>),
    /// Have the function at a position of a chain obey an order; see `Function::obey`.
    Function(Direction, usize, Prepared),
    /// Have the wire of this number obey an order; see `WirePort::obey`.
    Wire(usize, Prepared),
    /// Have the host attachment obey an order; see `HostAttachment::obey`.
    Attachment(Prepared),
    /// Moderate all queues like this from now on.
    Moderate(ModerationMode),
    /// Have what lives beside the packets obey an order; see `Resident::obey`.
    Resident(Prepared),
    /// Have all targets poll on for this long without packets before they wait for an interrupt,
    /// in nanoseconds: `interrupt.poll_usecs`. One that waits already learns of it when it is
    /// next interrupted.
    Poll(u64),
    /// Interrupt targets at work as well, or only those that wait: `interrupt.gate`. A target
    /// learns of it when it next finds its ring empty, or is interrupted.
    Unmask(bool),
    /// Tell hosts that wait for room of it like this, or leave them to look again:
    /// `interrupt.tx_complete`.
    Complete(TxComplete),
    /// Have packets of hosts wait for others up to this long, in nanoseconds:
    /// `interrupt.tx_usecs`.
    TxPause(u64),
    /// Have wires interrupt at most every so many microseconds, 0 for no limit, or when so many
    /// frames wait: `interrupt.wire_usecs` and `interrupt.wire_frames`. For what waits by then they
    /// may interrupt at once. Who sends it has asked of each wire whether it can
    /// ([`rx::check_throttle`](crate::rx::check_throttle)).
    Throttle(u32, u32),
}

/// What became of a command: done or not, and what it replaced.
pub struct Answer {
    /// Whether the card did it.
    pub done: bool,
    /// The command, now holding what it replaced.
    pub replaced: Command,
}

impl Command {
    /// Not done: the card cannot.
    pub fn refused(self) -> Answer {
        Answer { done: false, replaced: self }
    }

    pub(crate) fn apply(self, now: Time, card: &mut Card) -> Answer {
        let Card {
            wires, rx, tx, tx_rings, doors, resident, attachment, pacing, completions, ..
        } = card;
        let chain = |direction| match direction {
            Direction::Rx => rx,
            Direction::Tx => tx,
        };
        match self {
            Command::Swap(direction, links) => {
                let chain = chain(direction);
                chain.release(now, doors);
                let old = chain.replace(links);
                Answer { done: true, replaced: Command::Swap(direction, old) }
            }
            Command::Function(direction, position, mut order) => {
                let function = chain(direction).function_mut(position);
                let done = function.is_some_and(|function| function.obey(&mut order, now));
                Answer { done, replaced: Command::Function(direction, position, order) }
            }
            Command::Wire(index, mut order) => {
                let wire = wires.get_mut(index);
                let done = wire.is_some_and(|wire| wire.port.obey(&mut order, now));
                Answer { done, replaced: Command::Wire(index, order) }
            }
            Command::Attachment(mut order) => {
                let done = attachment.obey(&mut order, now);
                Answer { done, replaced: Command::Attachment(order) }
            }
            Command::Moderate(mode) => {
                let old = doors.moderate(mode);
                // The borrowed core publishes behind all commands, under the new mode.
                Answer { done: true, replaced: Command::Moderate(old) }
            }
            Command::Resident(mut order) => {
                let done = resident.as_mut().is_some_and(|resident| resident.obey(&mut order, now));
                Answer { done, replaced: Command::Resident(order) }
            }
            Command::Poll(ns) => {
                let old = pacing.poll_ns.get();
                pacing.poll_ns.set(ns);
                Answer { done: true, replaced: Command::Poll(old) }
            }
            Command::Unmask(unmasked) => {
                let old = doors.set_unmasked(unmasked);
                pacing.unmasked.set(unmasked.into());
                Answer { done: true, replaced: Command::Unmask(old) }
            }
            Command::Complete(mode) => {
                let old = completions.change(now, mode, pacing, tx_rings, doors);
                Answer { done: true, replaced: Command::Complete(old) }
            }
            Command::TxPause(ns) => {
                let old = pacing.tx_ns.get();
                pacing.tx_ns.set(ns);
                Answer { done: true, replaced: Command::TxPause(old) }
            }
            Command::Throttle(usecs, frames) => {
                let mut old = (0, 0);
                wires.iter_mut().for_each(|wire| old = wire.throttle(now, usecs, frames));
                Answer { done: true, replaced: Command::Throttle(old.0, old.1) }
            }
        }
    }
}

/// Commands that may be under way at a time.
const COMMANDS: usize = 64;

/// The borrowed core's end.
pub struct Mailbox {
    commands: Consumer<Command>,
    answers: Producer<Answer>,
}

impl Mailbox {
    /// Whether no command waits.
    #[inline]
    pub(crate) fn is_empty(&mut self) -> bool {
        self.commands.available() == 0
    }

    /// The next command, if one waits.
    pub fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop();
        self.commands.release();
        command
    }

    /// Sends the answer to a command, in the order of the commands.
    pub fn answer(&mut self, answer: Answer) {
        // As many answers fit as commands, and the controller takes them in before it sends
        // more; should it not, the answer is freed here, which costs time but loses nothing.
        let _ = self.answers.push(answer);
    }
}

/// The controlling side's end: send commands from one thread, at any time.
pub struct Controller {
    commands: Producer<Command>,
    answers: Consumer<Answer>,
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
    under_way: usize,
    /// What readers are told of the chains, and what each swap under way will make of it.
    functions: Functions,
    swaps: VecDeque<(Direction, Vec<FunctionView>)>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

impl Controller {
    /// Sends a command; too many under way give it back.
    pub fn send(&mut self, command: Command) -> Result<(), Command> {
        if self.under_way == COMMANDS {
            return Err(command);
        }
        let swap = match &command {
            Command::Swap(direction, links) => Some((*direction, FunctionView::of(links))),
            _ => None,
        };
        self.commands.push(command)?;
        self.swaps.extend(swap);
        self.under_way += 1;
        Gate::order_publish();
        if self.gate.interrupt() {
            self.doorbell.ring();
        }
        Ok(())
    }

    /// The next answer, in the order of the commands, if there is one yet.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.pop();
        self.answers.release();
        if let Some(answer) = &answer {
            self.under_way -= 1;
            // Answers come in the order of the commands, so the oldest swap is this one.
            if matches!(answer.replaced, Command::Swap(..))
                && let Some((direction, functions)) = self.swaps.pop_front()
            {
                self.functions.replace(direction, functions);
            }
        }
        answer
    }
}

/// The two ends; `gate` and `doorbell` wake the borrowed core, `functions` is kept up to date.
pub fn channel(
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
    functions: Functions,
) -> (Controller, Mailbox) {
    let (command_sender, commands) = spsc::channel(COMMANDS);
    let (answers, answer_receiver) = spsc::channel(COMMANDS);
    let controller = Controller {
        commands: command_sender,
        answers: answer_receiver,
        gate,
        doorbell,
        under_way: 0,
        functions,
        swaps: VecDeque::with_capacity(COMMANDS),
    };
    (controller, Mailbox { commands, answers })
}
