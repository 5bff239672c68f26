//! Interrupt moderation: when waiting packets warrant an interrupt.
//!
//! The modes have ethtool's names: per packet (one interrupt each, as in the paper), none (a burst
//! at once), static (`rx-usecs` after the first waiting packet, or `rx-frames` waiting packets,
//! whichever comes first) and adaptive, which adjusts the delay to the packet rate. A pure state
//! machine: time is an argument.

use crate::time::Time;

/// How a queue's interrupts are moderated; may change while running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModerationMode {
    /// An interrupt for every packet, each packet moved separately (PICNIC 3.2.2).
    PerPacket,
    /// An interrupt for every burst that finds the gate armed.
    None,
    /// An interrupt when either limit is reached. Zero `usecs` means at once;
    /// zero `frames` means no limit by count.
    Static {
        /// Microseconds a packet may wait.
        usecs: u32,
        /// Packets that may wait.
        frames: u32,
    },
    /// The delay follows the packet rate, between zero and `max_usecs`.
    Adaptive {
        /// The longest delay, in microseconds.
        max_usecs: u32,
    },
}

/// Adaptive: the length of the windows in which the rate is measured.
const WINDOW_NS: u64 = 1_000_000;
/// Adaptive: below this rate packets are not delayed.
const LOW_RATE_PPS: u64 = 20_000;
/// Adaptive: from this rate on, the longest delay is used.
const HIGH_RATE_PPS: u64 = 500_000;
/// Adaptive: the most packets that may wait, at any delay.
const ADAPTIVE_FRAMES: u32 = 64;

/// One queue's moderation state, kept on the borrowed core.
#[derive(Debug)]
pub struct Moderation {
    mode: ModerationMode,
    /// Packets published since the target was last interrupted or seen polling.
    waiting: u32,
    /// When the first of them was published.
    oldest: Time,
    /// Adaptive: the current window, and the delay that resulted from the last one.
    window_start: Time,
    window_packets: u64,
    delay_ns: u64,
}

impl Moderation {
    /// A queue's moderation, with nothing waiting.
    pub fn new(mode: ModerationMode) -> Self {
        Moderation {
            mode,
            waiting: 0,
            oldest: Time::ZERO,
            window_start: Time::ZERO,
            window_packets: 0,
            delay_ns: 0,
        }
    }

    /// The current mode.
    pub fn mode(&self) -> ModerationMode {
        self.mode
    }

    /// Changes the mode; waiting packets are judged by the new one.
    pub fn set_mode(&mut self, mode: ModerationMode) {
        self.mode = mode;
        self.delay_ns = 0;
    }

    /// Notes that `packets` more were published at `now`.
    #[inline]
    pub fn published(&mut self, now: Time, packets: u32) {
        if self.waiting == 0 {
            self.oldest = now;
        }
        self.waiting = self.waiting.saturating_add(packets);
        if let ModerationMode::Adaptive { max_usecs } = self.mode {
            self.adapt(now, packets, max_usecs);
        }
    }

    /// Packets published and not yet covered by an interrupt.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether any packets were published and not yet covered by an interrupt.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// Whether the waiting packets warrant an interrupt at `now`.
    #[inline]
    pub fn due(&self, now: Time) -> bool {
        self.waiting != 0
            && match self.mode {
                ModerationMode::PerPacket | ModerationMode::None => true,
                ModerationMode::Static { usecs, frames } => {
                    (frames != 0 && self.waiting >= frames)
                        || now.since(self.oldest) >= u64::from(usecs) * 1000
                }
                ModerationMode::Adaptive { .. } => {
                    self.waiting >= ADAPTIVE_FRAMES || now.since(self.oldest) >= self.delay_ns
                }
            }
    }

    /// The target was interrupted, or is polling and will find the packets.
    #[inline]
    pub fn served(&mut self) {
        self.waiting = 0;
    }

    /// When `due` next becomes true by time alone, if packets wait.
    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        (self.waiting != 0).then(|| match self.mode {
            ModerationMode::PerPacket | ModerationMode::None => self.oldest,
            ModerationMode::Static { usecs, .. } => self.oldest + u64::from(usecs) * 1000,
            ModerationMode::Adaptive { .. } => self.oldest + self.delay_ns,
        })
    }

    /// The delay adaptive moderation has chosen, in nanoseconds.
    pub fn adaptive_delay_ns(&self) -> u64 {
        self.delay_ns
    }

    fn adapt(&mut self, now: Time, packets: u32, max_usecs: u32) {
        self.window_packets += u64::from(packets);
        let elapsed = now.since(self.window_start);
        if elapsed < WINDOW_NS {
            return;
        }
        // Whole windows may have passed in silence, so the rate is taken over the time elapsed;
        // u128 because a long pause times 1e9 overflows 64 bits.
        let rate = (u128::from(self.window_packets) * 1_000_000_000 / u128::from(elapsed)) as u64;
        let span = rate.clamp(LOW_RATE_PPS, HIGH_RATE_PPS) - LOW_RATE_PPS;
        self.delay_ns = u64::from(max_usecs) * 1000 * span / (HIGH_RATE_PPS - LOW_RATE_PPS);
        self.window_start = now;
        self.window_packets = 0;
    }
}
