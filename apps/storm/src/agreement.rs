//! The body of a membership packet: what members tell each other to agree on a view.
//!
//! ```text
//!  0 step          1     a value of [`Step`]
//!  1 ballot        8     of the attempt: round << 8 | coordinator
//!  9 accepted      8     ballot of the proposal below, if it was accepted; else 0
//! 17 members       2     of the new view, one bit each
//! 19 clock         8     every message of the old view has a timestamp up to this
//! 27 for each member: position 8, incarnation 4, holder 1
//! ```

use crate::wire::{Malformed, Writer};

/// The step of the agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The sender is in no view and asks to join one.
    Join = 1,
    /// The coordinator of an attempt asks for promises.
    Prepare = 2,
    /// The sender accepts no more messages of the old view, and reports the positions it has reached.
    Promise = 3,
    /// The coordinator proposes a view and the end of the old one.
    Accept = 4,
    /// The sender has all messages up to the end of the old view.
    Accepted = 5,
    /// The view is agreed.
    Install = 6,
}

/// A view and the end of the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// The members of the view, one bit each.
    pub members: u16,
    /// Every message of the old view has a timestamp up to this.
    pub clock: u64,
    /// For each member: the end of its stream in the old view, its incarnation, and a holder.
    pub entries: Vec<Entry>,
}

impl Proposal {
    /// The same proposal, with `holder` as the member that has everything.
    pub(crate) fn held_by(mut self, holder: u8) -> Self {
        self.entries.iter_mut().for_each(|entry| entry.holder = holder);
        self
    }
}

/// A member's part of a [`Proposal`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The end of its stream.
    pub position: u64,
    /// Distinguishes this run of the member from earlier ones.
    pub incarnation: u32,
    /// A member that has the stream up to that end.
    pub holder: u8,
}

/// A membership packet's body.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agreement {
    /// The step.
    pub step: Step,
    /// The attempt.
    pub ballot: u64,
    /// The ballot under which the proposal was accepted; 0 if it was not.
    pub accepted: u64,
    /// The proposal, or the streams that the sender has.
    pub proposal: Proposal,
}

/// Bytes of a body in a group of this size.
pub const fn bytes(members: usize) -> usize {
    27 + 13 * members
}

impl Agreement {
    /// Reads a body.
    ///
    /// # Errors
    /// It does not belong to a group of this size.
    pub fn parse(body: &[u8], members: usize) -> Result<Self, Malformed> {
        if body.len() != bytes(members) {
            return Err(Malformed::Bytes);
        }
        let step = match body[0] {
            1 => Step::Join,
            2 => Step::Prepare,
            3 => Step::Promise,
            4 => Step::Accept,
            5 => Step::Accepted,
            6 => Step::Install,
            _ => return Err(Malformed::Bytes),
        };
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| body[at + byte]));
        let entry = |at: usize| Entry {
            position: u64_at(at),
            incarnation: u32::from_le_bytes(std::array::from_fn(|byte| body[at + 8 + byte])),
            holder: body[at + 12],
        };
        let proposal = Proposal {
            members: u16::from_le_bytes([body[17], body[18]]),
            clock: u64_at(19),
            entries: (0..members).map(|member| entry(27 + 13 * member)).collect(),
        };
        let agreement = Agreement { step, ballot: u64_at(1), accepted: u64_at(9), proposal };
        let Proposal { members: set, clock, entries } = &agreement.proposal;
        if entries.iter().any(|entry| usize::from(entry.holder) >= members)
            || u32::from(*set) >> members != 0
        {
            return Err(Malformed::Bytes);
        }
        let far = |number: u64| number >= crate::wire::LAST_TIMESTAMP;
        if far(*clock) || far(agreement.ballot) || entries.iter().any(|entry| far(entry.position)) {
            return Err(Malformed::Timestamp);
        }
        Ok(agreement)
    }

    /// Writes the body.
    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Option<()> {
        writer.put(&[self.step as u8])?;
        writer.number(self.ballot)?;
        writer.number(self.accepted)?;
        writer.put(&self.proposal.members.to_le_bytes())?;
        writer.number(self.proposal.clock)?;
        for entry in &self.proposal.entries {
            writer.number(entry.position)?;
            writer.put(&entry.incarnation.to_le_bytes())?;
            writer.put(&[entry.holder])?;
        }
        Some(())
    }
}
