//! The queues of one target core, polled together.

use super::{Polled, TargetQueue};
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::time::Time;
use std::os::fd::BorrowedFd;

/// The queues of one target core.
pub struct Target {
    /// The core.
    pub core: usize,
    queues: Vec<TargetQueue>,
    burst: Burst,
}

impl Target {
    /// The routine of core `core` for these queues.
    pub fn new(core: usize, queues: Vec<TargetQueue>) -> Self {
        Target { core, queues, burst: Burst::new() }
    }

    /// Polls each queue once.
    pub fn poll(&mut self, now: Time) -> Polled {
        self.look(now, true)
    }

    /// Polls each queue once without an interrupt: a sent interrupt has not arrived yet.
    pub fn go_on(&mut self, now: Time) -> Polled {
        self.look(now, false)
    }

    /// As [`Target::poll`], or [`Target::go_on`] if no interrupt has `arrived`, for interrupts of a
    /// core that hands packets over in software: its own share is left for a later look.
    pub fn hand_over(&mut self, now: Time, arrived: bool) -> Polled {
        self.queues.iter_mut().for_each(|queue| queue.state.hands_over = true);
        let polled = self.look(now, arrived);
        self.queues.iter_mut().for_each(|queue| queue.state.hands_over = false);
        polled
    }

    #[inline(always)]
    fn look(&mut self, now: Time, arrived: bool) -> Polled {
        let mut sum = Polled::default();
        for queue in &mut self.queues {
            let polled = queue.look(now, &mut self.burst, arrived);
            sum.interrupts += polled.interrupts;
            sum.moved += polled.moved;
            sum.handed += polled.handed;
            sum.packets += polled.packets;
            sum.transmitted += polled.transmitted;
            sum.work_ns += polled.work_ns;
        }
        sum
    }

    /// Lets the hosts of all queues send; returns packets sent.
    pub fn transmit(&mut self, now: Time) -> usize {
        self.queues.iter_mut().map(|queue| queue.transmit(now)).sum()
    }

    /// Packets that the hosts of all queues have sent so far.
    pub fn sent(&self) -> u64 {
        self.queues.iter().map(|queue| queue.counters.transmitted.get()).sum()
    }

    /// Limits the packets taken off a queue in one poll.
    pub fn limit_bursts(&mut self, packets: usize) {
        self.queues.iter_mut().for_each(|queue| queue.state.limit = packets.clamp(1, BURST));
    }

    /// Whether all queues wait for their doorbell, so that the core may sleep.
    pub fn is_resting(&self) -> bool {
        self.queues.iter().all(TargetQueue::is_resting)
    }

    /// Whether interrupts of a queue stay unmasked while it is busy.
    pub fn is_unmasked(&self) -> bool {
        self.queues.iter().any(|queue| queue.pacing.unmasked.get() != 0)
    }

    /// Whether all rings are empty now, see [`TargetQueue::is_empty`].
    pub fn is_empty(&mut self) -> bool {
        // All are asked, since the first may have to tell the others.
        self.queues.iter_mut().fold(true, |all, queue| queue.is_empty() & all)
    }

    /// Stops the sending of all hosts; see [`TargetQueue::stop_transmitting`].
    pub fn stop_transmitting(&mut self) {
        self.queues.iter_mut().for_each(TargetQueue::stop_transmitting);
    }

    /// Whether a host waits for buffers or for room on its tx ring.
    pub fn is_starved(&self) -> bool {
        self.queues.iter().any(|queue| queue.state.starved)
    }

    /// Whether a host waits for buffers or room without an interrupt from the borrowed core: then
    /// the core sleeps at most [`LOOKS_AGAIN_NS`](super::LOOKS_AGAIN_NS).
    pub fn looks_again_soon(&self) -> bool {
        self.queues.iter().any(|queue| queue.state.starved && !queue.state.asked)
    }

    /// When a host has something to send by time alone.
    pub fn next_deadline(&self) -> Option<Time> {
        let able = self.queues.iter().filter(|queue| queue.fill.is_some());
        able.filter_map(|queue| queue.host.next_deadline()).min()
    }

    /// How many nanoseconds the core, about to sleep, may ignore its hosts, because some have sent
    /// since it last slept and their next packets may wait for more. `None`: the next packet wakes
    /// it.
    ///
    /// It is interrupt moderation for sending: a wake-up per packet would cost more than the
    /// packet, and take the core from the programs that send.
    pub fn tx_pause_ns(&mut self) -> Option<u64> {
        let mut pause = None;
        for queue in &mut self.queues {
            if std::mem::take(&mut queue.state.sent) {
                pause = Some(queue.pacing.tx_ns.get());
            }
        }
        pause.filter(|&ns| ns != 0 && !self.is_starved())
    }

    /// The descriptors that become readable when a host has packets to send.
    pub fn readiness(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let able = self.queues.iter().filter(|queue| queue.fill.is_some() && !queue.state.starved);
        able.filter_map(|queue| queue.host.readiness())
    }

    /// The queues.
    pub fn queues(&self) -> &[TargetQueue] {
        &self.queues
    }
}
