//! Interrupt moderation: when packets that wait are worth an interrupt.
//!
//! Modes, named as ethtool names them: per packet (one interrupt for each, as the
//! paper did), none (a burst at once), static (`rx-usecs` after the first waiting packet, or `rx-frames`
//! waiting packets, whichever comes first) and adaptive, which moves the delay
//! with the packet rate. A pure state machine: time is an argument.

use crate::time::Time;

/// How a queue's interrupts are moderated; may be changed while running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModerationMode {
    /// An interrupt for every packet, each packet moved by itself (PICNIC 3.2.2).
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
    /// The delay follows the packet rate, between none and `max_usecs`.
    Adaptive {
        /// The longest delay it may choose, in microseconds.
        max_usecs: u32,
    },
}

/// Adaptive: the rate is judged over windows of this length.
const WINDOW_NS: u64 = 1_000_000;
/// Adaptive: below this rate a packet is not held back at all.
const LOW_RATE_PPS: u64 = 20_000;
/// Adaptive: from this rate on, the longest delay is used.
const HIGH_RATE_PPS: u64 = 500_000;
/// Adaptive: never let more than this many packets wait, whatever the delay.
const ADAPTIVE_FRAMES: u32 = 64;

/// One queue's moderation state, kept on the borrowed core.
#[derive(Debug)]
pub struct Moderation {
    mode: ModerationMode,
    /// Packets published since the target was last interrupted or seen polling.
    waiting: u32,
    /// When the first of them was published.
    oldest: Time,
    /// Adaptive: the window being counted, and the delay the last one gave.
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

    /// The mode in force.
    pub fn mode(&self) -> ModerationMode {
        self.mode
    }

    /// Changes the mode; what waits is judged by the new one from now on.
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

    /// Packets published that no interrupt has covered yet.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Whether packets were published that no interrupt has covered yet.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// Whether the packets that wait are worth an interrupt at `now`.
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

    /// The target was interrupted, or is polling and will find the packets itself.
    #[inline]
    pub fn served(&mut self) {
        self.waiting = 0;
    }

    /// When `due` will next become true by time alone, if packets wait.
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
        // Whole windows may have passed in silence, so the rate is taken over the time
        // that really went by; u128 because a long pause times 1e9 overflows 64 bits.
        let rate = (u128::from(self.window_packets) * 1_000_000_000 / u128::from(elapsed)) as u64;
        let span = rate.clamp(LOW_RATE_PPS, HIGH_RATE_PPS) - LOW_RATE_PPS;
        self.delay_ns = u64::from(max_usecs) * 1000 * span / (HIGH_RATE_PPS - LOW_RATE_PPS);
        self.window_start = now;
        self.window_packets = 0;
    }
}
