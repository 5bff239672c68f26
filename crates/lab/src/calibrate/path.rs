//! Turns of a card's packet path, to be timed: without packets, with a burst of them, and the target
//! routine's look at such a burst.
//!
//! The card has one wire, `rss` and one queue, whose host reads and releases each packet. The same
//! thread does the other core's part between runs. Its doorbell is rung, but no thread sleeps on
//! it: the cost of waking a core is measured separately (`doorbell.rs`).

use picnic_control::launch::Built;
use picnic_control::{Launch, Registries};
use picnic_core::config::Sections;
use picnic_core::doorbell::Doorbell;
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_engine::poll::Card;
use picnic_engine::target::Target;
use picnic_host::doorbell::FutexDoorbell;
use picnic_wcet::Class;
use picnic_wcet::calibrate::Kernel;
use std::sync::Arc;

/// Packets of a turn with packets.
pub(super) const PACKETS: u64 = 64;

/// The registries of the card.
pub(super) struct PathCard {
    pub(super) registries: Registries,
    pub(super) sections: Sections,
}

/// The timed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// A turn of the card that finds no packet.
    Idle,
    /// A turn of the card with a burst.
    Card,
    /// The target routine's look at a burst.
    Target,
    /// Its next look, which finds the ring empty.
    Empty,
}

/// A card whose turns are timed.
pub(super) struct PathTurns {
    card: Card,
    target: Target,
    side: Side,
    now: Time,
}

impl PathTurns {
    /// One whose turns take as many packets as a wire gives at a time, or none.
    pub(super) fn new(made_of: &PathCard, side: Side) -> anyhow::Result<Self> {
        // A card without packets handles its only packet before the runs.
        let most = u64::from(side == Side::Idle);
        let text = format!(
            "[card]\nburst = {PACKETS}\n[[wire]]\nport = \"generator\"\npackets = {most}\n\
             [[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"app\"\nqueues = 1\n\
             [interrupt]\npoll_usecs = 0\n"
        );
        let file = made_of.sections.parse(&text, None)?;
        let Built { parts, .. } = Launch::new(&file, made_of.registries).build()?;
        let bell: Arc<dyn Doorbell> = Arc::new(FutexDoorbell::default());
        let Assembled { card, queues, .. } =
            assemble(&file, parts, std::slice::from_ref(&bell), bell.clone())?;
        let target = Target::new(0, queues);
        let mut turns = PathTurns { card, target, side, now: Time::ZERO };
        turns.card.poll(turns.now);
        turns.prepare();
        Ok(turns)
    }
}

impl Kernel for PathTurns {
    fn class(&self) -> Option<Class> {
        None
    }
    fn name(&self) -> &'static str {
        match self.side {
            Side::Idle => "a turn without packets",
            Side::Card => "a turn with a burst",
            Side::Target => "the target's look at a burst",
            Side::Empty => "the target's look at an empty ring",
        }
    }
    fn operations(&self) -> u64 {
        match self.side {
            Side::Idle | Side::Empty => 1,
            Side::Card | Side::Target => PACKETS,
        }
    }
    fn prepare(&mut self) {
        self.now = self.now + 1_000;
        // The gate is armed when the queue is empty, so that every turn with packets rings.
        while !self.target.is_resting() {
            self.target.poll(self.now);
        }
        self.target.poll(self.now);
        while !self.target.is_resting() {
            self.target.poll(self.now);
        }
        if matches!(self.side, Side::Target | Side::Empty) {
            self.card.poll(self.now);
        }
        if self.side == Side::Empty {
            self.target.poll(self.now);
        }
    }
    fn run(&mut self) {
        match self.side {
            Side::Target | Side::Empty => {
                self.target.poll(self.now);
            }
            Side::Idle | Side::Card => {
                self.card.poll(self.now);
            }
        }
    }
}

impl Drop for PathTurns {
    fn drop(&mut self) {
        self.card.stop_receiving(self.now);
        self.side = Side::Card;
        self.prepare();
        self.card.finish(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_take_a_burst_or_nothing() {
        let card =
            PathCard { registries: picnic_host::registries(), sections: picnic_host::sections() };
        for (side, expected) in [(Side::Card, PACKETS as usize), (Side::Idle, 0)] {
            let mut turns = PathTurns::new(&card, side).unwrap();
            for _ in 0..100 {
                turns.prepare();
                assert_eq!(turns.card.poll(turns.now).received, expected);
            }
        }
        let mut turns = PathTurns::new(&card, Side::Target).unwrap();
        for _ in 0..100 {
            turns.prepare();
            assert_eq!(turns.target.poll(turns.now).packets, PACKETS as usize);
        }
    }
}
