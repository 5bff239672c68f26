//! Filters at the driver: the same code on the target core, next to the host.
//!
//! On rx they run before the host sees the packet, on tx before it is on the tx ring.
//!
//! Guarantees: as at the card; drops are counted at the stage `target`.

use super::reader::{Fate, Reader};
use picnic_core::attachment::QueueOut;
use picnic_core::guard::{QueueGuard, Screen};
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;

/// Filters on packets for the host; made by [`Filters`](super::Filters).
#[derive(Debug)]
pub struct FilterQueue(pub(super) Reader);

impl QueueGuard for FilterQueue {
    #[inline]
    fn receive(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) {
        if self.0.refresh() {
            // At the driver, dropping is the only way to stop a packet.
            self.0.judge(now, burst, |packet, fate| match fate {
                Fate::Unreadable => out.drop(packet, DropReason::Unreadable),
                Fate::Drop | Fate::Steer(_) | Fate::Refused => {
                    out.drop(packet, DropReason::Filtered);
                }
            });
        }
    }
}

/// Filters on packets from the host; made by [`Filters`](super::Filters).
#[derive(Debug)]
pub struct FilterScreen(pub(super) Reader);

impl Screen for FilterScreen {
    fn begin(&mut self) -> bool {
        self.0.refresh()
    }

    fn refuses(&mut self, packet: &mut Descriptor) -> Option<DropReason> {
        match self.0.fate(packet)? {
            Fate::Unreadable => Some(DropReason::Unreadable),
            Fate::Drop | Fate::Steer(_) | Fate::Refused => Some(DropReason::Filtered),
        }
    }
}
