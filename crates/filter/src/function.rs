//! Filters at the card: a function at the head of the rx or the tx chain.
//!
//! Guarantees: without filters a burst costs one load and one comparison.

use super::reader::{Fate, Reader};
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::time::Time;

/// The filters of one chain; see [`Filters::head`](super::Filters::head).
#[derive(Debug)]
pub struct FilterFunction(pub(super) Reader);

impl Function for FilterFunction {
    #[inline]
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        if !self.0.refresh() {
            return;
        }
        self.0.judge(now, burst, |packet, fate| match fate {
            Fate::Drop => out.drop(packet, DropReason::Filtered),
            Fate::Unreadable => out.drop(packet, DropReason::Unreadable),
            Fate::Steer(queue) => out.steer(packet, queue),
            Fate::Refused => out.drop(packet, DropReason::MailboxFull),
        });
    }

    fn held(&self) -> usize {
        self.0.held()
    }
}
