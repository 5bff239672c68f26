//! Changes to a running card, made by the borrowed core between bursts.
//!
//! The other side prepares the change whole (a new chain, a new table) and sends it through a ring;
//! the borrowed core swaps it in and returns the replaced part, so nothing is built or freed on the
//! data path. Order within a flow is kept: the old chain releases its packets before the new one
//! sees any.

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
    /// Replace a whole chain with these functions.
    Swap(Direction, Vec<ChainFunction>),
    /// Send an order to the function at a position of a chain; see `Function::obey`.
    Function(Direction, usize, Prepared),
    /// Send an order to the wire of this number; see `WirePort::obey`.
    Wire(usize, Prepared),
    /// Send an order to the host attachment; see `HostAttachment::obey`.
    Attachment(Prepared),
    /// Change the moderation of all queues.
    Moderate(ModerationMode),
    /// Send an order to the resident; see `Resident::obey`.
    Resident(Prepared),
    /// Change how long targets keep polling without packets before they wait for an interrupt, in
    /// nanoseconds: `interrupt.poll_usecs`. A waiting target learns of it at its next interrupt.
    Poll(u64),
    /// Interrupt busy targets as well, or only waiting ones: `interrupt.gate`. A target learns of
    /// it when it next finds its ring empty, or is interrupted.
    Unmask(bool),
    /// Change how hosts that wait for room are interrupted, or let them poll:
    /// `interrupt.tx_complete`.
    Complete(TxComplete),
    /// Let packets of hosts wait for others up to this long, in nanoseconds: `interrupt.tx_usecs`.
    TxPause(u64),
    /// Let wires interrupt at most once in this many microseconds, 0 for no limit, or when this
    /// many frames wait: `interrupt.wire_usecs` and `interrupt.wire_frames`. Packets waiting now
    /// may interrupt at once. The sender has checked each wire
    /// ([`rx::check_throttle`](crate::rx::check_throttle)).
    Throttle(u32, u32),
}

/// The result of a command: done or not, and the replaced part.
pub struct Answer {
    /// Whether the card did it.
    pub done: bool,
    /// The command, which now holds the replaced part.
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
                // The borrowed core publishes after all commands, in the new mode.
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

/// Most commands in progress.
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

    /// The next command, if there is one.
    pub fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop();
        self.commands.release();
        command
    }

    /// Sends the answer to a command, in the order of the commands.
    pub fn answer(&mut self, answer: Answer) {
        // As many answers fit as commands, and the controller takes them before it sends more.
        // Otherwise the answer is freed here, which costs time but is safe.
        let _ = self.answers.push(answer);
    }
}

/// The controlling side's end: sends commands from one thread, at any time.
pub struct Controller {
    commands: Producer<Command>,
    answers: Consumer<Answer>,
    gate: Arc<Gate>,
    doorbell: Arc<dyn Doorbell>,
    under_way: usize,
    /// The readers' list of functions, and its state after each swap in progress.
    functions: Functions,
    swaps: VecDeque<(Direction, Vec<FunctionView>)>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

impl Controller {
    /// Sends a command; returns it if too many are in progress.
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

    /// The next answer, in the order of the commands, if there is one.
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

/// Both ends; `gate` and `doorbell` wake the borrowed core, `functions` is kept up to date.
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
