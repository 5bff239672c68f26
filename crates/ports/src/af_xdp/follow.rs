//! The interface of a wire over time: losses, removal and return.

use super::config::{CopyMode, SENT_FRAME_BYTES};
use super::keeper::{Done, Keeper};
use super::refusal::refused;
use super::{Phase, RETRY_NS, XdpPort};
use crate::interface::CHECK_NS;
use crate::sys::link::LinkState;
use crate::sys::xsk::Umem;
use crate::sys::xsk_device;
use picnic_core::ledger::DropReason;
use picnic_core::packet::pool::Pool;
use picnic_core::port::Receiver;
use picnic_core::time::Time;
use std::os::fd::AsFd;

impl XdpPort {
    /// Counts the kernel's losses, and checks whether the interface still exists.
    #[cold]
    pub(super) fn check(&mut self, now: Time, rx: &mut Receiver<'_>) {
        self.next_check = now + CHECK_NS;
        let Some(umem) = &mut self.umem else { return };
        let lost = umem.sockets().map(|sockets| sockets.lost()).unwrap_or_default();
        for (count, packets, reason) in [
            (&mut self.counts.overruns, lost.overruns, DropReason::WireOverrun),
            (&mut self.counts.oversize, lost.oversize, DropReason::Oversize),
        ] {
            if packets != 0 {
                *count += packets;
                rx.shed(reason, packets);
            }
        }
        self.counts.unusable += lost.unusable;
        self.follow_up(now, rx.pool());
        let found = xsk_device::link(self.control.as_fd(), self.index).unwrap_or(self.link);
        match (self.link, found) {
            (LinkState::Running, LinkState::Down) => self.counts.downs += 1,
            (LinkState::Down, LinkState::Running) => self.counts.returns += 1,
            (LinkState::Running | LinkState::Down, LinkState::Gone) => self.counts.losses += 1,
            _ => {}
        }
        if let (Some(umem), true) = (&self.umem, found != self.link || found != LinkState::Running)
        {
            // They say the same as has just been found, and would wake the card again and again.
            umem.take_errors();
        }
        // Gone it is until there are sockets again, though one of its name may be there by now.
        if self.link != LinkState::Gone {
            self.link = found;
        }
        if self.link == LinkState::Running {
            self.longest = (self.mtu() + SENT_FRAME_BYTES) as u32;
        }
        let unusable = lost.unusable != 0 && self.config.copy_mode == CopyMode::Auto;
        if self.phase == Phase::Open && (found == LinkState::Gone || unusable) {
            if let (true, Some(wanted)) = (unusable, &mut self.wanted) {
                wanted.zero_copy = Some(false);
            }
            self.close();
        } else if self.phase == Phase::Closed && now >= self.next_attempt {
            self.reopen(rx.pool());
        }
    }

    /// Has the sockets closed.
    pub(super) fn close(&mut self) {
        let sockets = self.umem.as_mut().and_then(Umem::remove);
        if let (Some(sockets), Some(keeper)) = (sockets, &self.keeper) {
            keeper.close(sockets);
            self.phase = Phase::Closing;
        }
    }

    /// Has sockets opened on the interface, if one of its name exists.
    fn reopen(&mut self, pool: &mut Pool) {
        let Ok(index) = self.control.index_of(&self.name) else { return };
        let (Some(umem), Some(keeper), Some(wanted)) = (&mut self.umem, &self.keeper, &self.wanted)
        else {
            return;
        };
        if self.config.promiscuous && index != self.index {
            // Without it the wire is better than none.
            let _ = self.control.set_promiscuous(index);
        }
        self.index = index;
        keeper.open(index as u32, wanted, umem.supplies(pool, wanted));
        self.phase = Phase::Opening;
    }

    /// Continues after the keeper has finished a request.
    pub(super) fn follow_up(&mut self, now: Time, pool: &mut Pool) {
        while let Some(done) = self.keeper.as_ref().and_then(Keeper::poll) {
            self.take_up(now, done, pool);
            if self.phase == Phase::Ended {
                return;
            }
        }
    }

    pub(super) fn take_up(&mut self, now: Time, done: Done, pool: &mut Pool) {
        let Some(umem) = &mut self.umem else { return };
        match done {
            Done::Opened(opened) => match *opened {
                Ok(sockets) => {
                    umem.install(sockets);
                    self.phase = Phase::Open;
                    if self.link == LinkState::Gone {
                        self.link = LinkState::Running;
                        self.counts.returns += 1;
                    }
                    return;
                }
                Err(trouble) => {
                    let error = refused(&self.interface, &trouble, &self.config);
                    self.notes = vec![format!("{}: not reattached: {error}", self.interface)];
                    self.next_attempt = now + RETRY_NS;
                    self.phase = Phase::Closed;
                }
            },
            Done::Closed => self.phase = Phase::Closed,
            Done::Ended => self.phase = Phase::Ended,
        }
        self.lost += umem.recall(pool).unwrap_or(0) as u64;
    }
}
