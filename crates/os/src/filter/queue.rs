//! Filters at the driver: the same code on the target core, before the host sees the packet.
//!
//! Guarantees: as at the card; what is dropped is counted at the stage `target`.

use super::reader::Reader;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::time::Time;
use std::os::fd::BorrowedFd;

/// A host queue behind filters; see [`Filters::queue`](super::Filters::queue).
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

impl std::fmt::Debug for FilteredQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilteredQueue").field("reader", &self.reader).finish_non_exhaustive()
    }
}
