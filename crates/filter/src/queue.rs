//! Filters at the driver: the same code on the target core, next to the host.
//!
//! On rx before the host sees the packet, on tx before it is on the tx ring.
//!
//! Guarantees: as at the card; what is dropped is counted at the stage `target`.

use super::reader::Reader;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::guard::Screen;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use std::os::fd::BorrowedFd;

/// A host queue behind filters; made by [`Filters`](super::Filters).
pub struct FilteredQueue {
    pub(super) host: Box<dyn HostQueue>,
    pub(super) reader: Reader,
}

impl HostQueue for FilteredQueue {
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        if self.reader.refresh() {
            // At the driver a filter can do nothing else than drop.
            self.reader.judge(now, burst, |packet, _| out.drop(packet, DropReason::Filtered));
            if burst.is_empty() {
                return 0;
            }
        }
        self.host.deliver(now, burst, out)
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        self.host.transmit(now, out)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.host.readiness()
    }

    fn report(&self) -> Vec<String> {
        self.host.report()
    }
}

/// Filters on what a host sends; made by [`Filters`](super::Filters).
#[derive(Debug)]
pub struct FilterScreen(pub(super) Reader);

impl Screen for FilterScreen {
    fn begin(&mut self) -> bool {
        self.0.refresh()
    }

    fn passes(&mut self, packet: &mut Descriptor) -> bool {
        self.0.passes(packet)
    }
}

impl std::fmt::Debug for FilteredQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilteredQueue").field("reader", &self.reader).finish_non_exhaustive()
    }
}
