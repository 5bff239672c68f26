//! Bounds the number of doorbells that the packet path rings under moderation.
//!
//! Moderation rings a queue when `frames` of its packets wait, or when one has waited for *U*
//! (`every_ns`). Ringing takes time itself, *b* each. Consider turns of a whole burst, each of
//! which costs *c* without doorbells, one wire, and *Q* queues:
//!
//! - Packets that wait by number ring once for each `frames`: *a* = *b burst / frames* a turn.
//! - Between two doorbells of a queue by time lie turns of *U* at least, so that within a time *x*
//!   there are *(x + U + c) / (U + c + b)* of them. A turn is *y = c + a + b Q y / (U + c + b)*
//!   long, and so spends *a + Q b (c + a) / (c + U - (Q - 1) b)* on doorbells.
//! - A turn that rings a queue because time has passed follows one that did not, so a turn spends
//!   at most *(Q b + a) / 2*; and never more than *Q b*.
//!
//! The least of the three holds. With several wires, a turn publishes after each wire, and a queue
//! that was rung after one may be due in the next turn: then *Q b (c + a) / (U - Q b)*, and half
//! becomes whole.
//!
//! A single doorbell may take much longer than most, so one turn is bounded by the longest
//! (`longest_ns`), many by a high percentile (`each_ns`).
//!
//! Source: PICNIC 3.2.2; KNET, per-queue interrupt activation.

use crate::path::Costs;
use picnic_core::config::InterruptSection;
use picnic_core::ring::moderation::ModerationMode;

/// The cost of doorbells, and when they are rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doorbells {
    /// Queues that may be rung.
    pub queues: u64,
    /// Nanoseconds of one among many.
    pub each_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_ns: u64,
    /// Nanoseconds that a packet waits before it rings, unless `frames` wait; 0: every burst rings.
    pub every_ns: u64,
    /// Packets that ring; 0 for no limit by count.
    pub frames: u64,
}

/// The packet path's time for doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rung {
    /// Nanoseconds of a single turn, at most.
    pub(crate) turn_ns: u64,
    /// Picoseconds of each turn of a whole burst, of many.
    pub(crate) each_turn_ps: u128,
    /// Picoseconds on top, however many turns.
    pub(crate) before_ps: u128,
}

impl Doorbells {
    /// For a number of queues moderated as in a card file; nanoseconds for one among many, and for
    /// the longest.
    pub fn of(section: &InterruptSection, queues: u16, each_ns: u64, longest_ns: u64) -> Self {
        let (every_ns, frames) = match section.moderation() {
            ModerationMode::Static { usecs, frames } => (u64::from(usecs) * 1_000, frames.into()),
            // With an adaptive delay, the delay may be zero.
            ModerationMode::PerPacket | ModerationMode::None | ModerationMode::Adaptive { .. } => {
                (0, 0)
            }
        };
        // A packet moved separately rings only its own queue.
        let queues = if section.per_packet { queues.min(1) } else { queues };
        Doorbells { queues: queues.into(), each_ns, longest_ns, every_ns, frames }
    }

    /// The time spent by a path with these costs, with turns of `full_ns` for a whole burst
    /// without doorbells.
    pub(crate) fn rung(&self, costs: &Costs, full_ns: u64) -> Rung {
        let wide = u128::from;
        let (queues, wires) = (wide(self.queues), wide(costs.wires.max(1)));
        let burst = wide(costs.burst.max(1));
        let bell_ps = wide(self.each_ns) * 1_000;
        // Of all queues, once.
        let all_ps = queues.saturating_mul(bell_ps);
        let by_number = |packets: u128| match self.frames {
            0 => 0,
            frames => packets.saturating_mul(bell_ps).div_ceil(wide(frames)),
        };
        let most_ps = all_ps.saturating_mul(wires);
        let (each_turn_ps, before_ps) = if self.every_ns == 0 {
            (most_ps, most_ps)
        } else {
            let (every_ps, full_ps) = (wide(self.every_ns) * 1_000, wide(full_ns) * 1_000);
            let number_ps = by_number(burst);
            let is_one = wires == 1;
            // Between two doorbells of a queue: the turns, without those that ring others.
            let apart_ps = if is_one {
                full_ps + every_ps.saturating_sub(all_ps.saturating_sub(bell_ps))
            } else {
                every_ps.saturating_sub(all_ps)
            };
            let own_ps = if is_one { full_ps } else { 0 };
            let share = |of_ps: u128| {
                let product = all_ps.checked_mul(of_ps)?;
                (apart_ps != 0).then(|| product.div_ceil(apart_ps))
            };
            let by_turn_ps = match is_one {
                true => all_ps.saturating_add(number_ps).div_ceil(2),
                false => all_ps.saturating_add(number_ps),
            };
            let by_time = share(full_ps + number_ps).map(|ps| ps.saturating_add(number_ps));
            match by_time.filter(|&ps| ps < by_turn_ps) {
                Some(ps) => (ps.min(most_ps), share(every_ps + own_ps).unwrap_or(all_ps)),
                None => (by_turn_ps.min(most_ps), all_ps),
            }
        };
        let in_turn = queues.saturating_mul(wires);
        let in_turn = match self.frames {
            0 if self.every_ns != 0 => queues,
            0 => in_turn,
            frames => in_turn.min(queues + wires.saturating_mul(burst) / wide(frames)),
        };
        let turn_ns = in_turn.saturating_mul(wide(self.longest_ns.max(self.each_ns)));
        Rung { turn_ns: u64::try_from(turn_ns).unwrap_or(u64::MAX), each_turn_ps, before_ps }
    }
}
