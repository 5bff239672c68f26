//! Turns of a card's packet path, to be timed: without packets, and with a burst.
//!
//! The card has one wire, `rss` and one queue, whose host reads and releases each packet. The same
//! thread does the other core's part between runs. Its doorbell is rung, but nobody sleeps on it:
//! the cost of waking a core is measured separately (`doorbell.rs`).

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

/// A card whose turns are timed.
pub(super) struct PathTurns {
    card: Card,
    target: Target,
    packets: u64,
    now: Time,
}

impl PathTurns {
    /// Turns that take as many packets as a wire gives at a time, or none.
    pub(super) fn new(made_of: &PathCard, with_packets: bool) -> anyhow::Result<Self> {
        // The only packet of a card without packets goes ahead of the runs.
        let (most, packets) = if with_packets { (0, PACKETS) } else { (1, 0) };
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
        let mut turns = PathTurns { card, target, packets, now: Time::ZERO };
        turns.run();
        turns.prepare();
        Ok(turns)
    }
}

impl Kernel for PathTurns {
    fn class(&self) -> Option<Class> {
        None
    }
    fn name(&self) -> &'static str {
        if self.packets == 0 { "a turn without packets" } else { "a turn with a burst" }
    }
    fn operations(&self) -> u64 {
        self.packets.max(1)
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
    }
    fn run(&mut self) {
        self.card.poll(self.now);
    }
}

impl Drop for PathTurns {
    fn drop(&mut self) {
        self.card.stop_receiving(self.now);
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
        for (with_packets, expected) in [(true, PACKETS as usize), (false, 0)] {
            let mut turns = PathTurns::new(&card, with_packets).unwrap();
            for _ in 0..100 {
                turns.prepare();
                assert_eq!(turns.card.poll(turns.now).received, expected);
            }
        }
    }
}
