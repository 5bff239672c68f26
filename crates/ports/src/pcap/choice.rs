//! Selects the packets of a capture with several interfaces.
//!
//! A trace of a card has an interface for each wire, function and queue: copies of the same packets
//! at each stage. By default only the packets received by the wires are replayed, from its first
//! stage. Any other capture is replayed whole.

use crate::middleware::tracer::TraceStage;
use picnic_core::direction::Direction;
use std::collections::BTreeSet;

/// The word for all packets.
const ALL: &str = "all";

/// An interface that a capture describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Described {
    /// Its name; its number if it has none.
    pub(super) name: String,
    /// It belongs to a trace of a card.
    pub(super) is_of_card: bool,
    /// Link type: 1 for Ethernet.
    pub(super) link_type: u16,
    /// Packets that are marked as received, and the others.
    pub(super) received: u64,
    pub(super) others: u64,
}

impl Described {
    pub(super) fn count(&mut self, direction: Option<Direction>) {
        match direction {
            Some(Direction::Rx) => self.received += 1,
            _ => self.others += 1,
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.received + self.others
    }

    /// Its stage on a packet's way.
    fn place(&self) -> (u8, &str) {
        let (stage, position) = TraceStage::of_interface(&self.name);
        let before = match stage {
            TraceStage::Wire => 0,
            TraceStage::Rx => 1,
            TraceStage::Queue => 2,
            TraceStage::Tx => 3,
        };
        (before, position)
    }
}

/// The used part of each interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// By the interface's number in the file.
    used: Vec<Use>,
    /// A note about omitted packets, and the key that selects them.
    pub(super) note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    No,
    Received,
    Whole,
}

impl Chosen {
    /// The selection by the key `interface`.
    ///
    /// # Errors
    /// There is no interface of this name; lists those that exist.
    pub(super) fn of(described: &[Described], key: Option<&str>) -> Result<Self, String> {
        let with_packets = || described.iter().filter(|interface| interface.packets() != 0);
        let whole = Chosen { used: vec![Use::Whole; described.len()], note: None };
        let is_used: Box<dyn Fn(&Described) -> bool> = match key {
            Some(ALL) => return Ok(whole),
            Some(name) => {
                if !described.iter().any(|interface| interface.name == name) {
                    let names: BTreeSet<_> =
                        described.iter().map(|interface| format!("{:?}", interface.name)).collect();
                    let names: Vec<_> = names.into_iter().collect();
                    return Err(format!(
                        "found {name:?}, allowed: \"{ALL}\"{}{}",
                        if names.is_empty() { "" } else { ", " },
                        names.join(", ")
                    ));
                }
                Box::new(move |interface| interface.name == name)
            }
            None if !with_packets().all(|interface| interface.is_of_card) => return Ok(whole),
            None => {
                let first = with_packets().map(|interface| interface.place()).min();
                Box::new(move |interface| Some(interface.place()) == first)
            }
        };
        let mut left_out = 0;
        let used = described.iter().map(|interface| {
            let used = match is_used(interface) {
                false => Use::No,
                // Both directions of one wire: packets sent are mostly those received earlier.
                true if interface.is_of_card && interface.received != 0 => Use::Received,
                true => Use::Whole,
            };
            left_out += match used {
                Use::No => interface.packets(),
                Use::Received => interface.others,
                Use::Whole => 0,
            };
            used
        });
        let used: Vec<_> = used.collect();
        let note = (left_out != 0).then(|| {
            let names = used.iter().zip(described).filter(|(used, _)| **used != Use::No);
            let names: Vec<_> = names.map(|(_, interface)| &*interface.name).collect();
            format!(
                "omits {left_out} packets and uses those of {}. interface = \"{ALL}\" \
                 uses all",
                names.join(", ")
            )
        });
        Ok(Chosen { used, note })
    }

    /// Whether this packet is used.
    pub(super) fn takes(&self, interface: usize, direction: Option<Direction>) -> bool {
        match self.used.get(interface) {
            Some(Use::Whole) | None => true,
            Some(Use::Received) => direction == Some(Direction::Rx),
            Some(Use::No) => false,
        }
    }
}
