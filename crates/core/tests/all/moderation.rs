//! Interrupt moderation: limits hold for any traffic.

use picnic_core::ring::moderation::{Moderation, ModerationMode};
use picnic_core::time::Time;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn at(nanoseconds: u64) -> Time {
    Time::from_nanos(nanoseconds)
}

fn mode() -> impl Strategy<Value = ModerationMode> {
    prop_oneof![
        Just(ModerationMode::PerPacket),
        Just(ModerationMode::None),
        (0..=2000_u32, 0..=300_u32)
            .prop_map(|(usecs, frames)| ModerationMode::Static { usecs, frames }),
        (0..=2000_u32).prop_map(|max_usecs| ModerationMode::Adaptive { max_usecs }),
    ]
}

/// Adaptive moderation's expected measure of the rate: once a millisecond, over the time elapsed;
/// no delay up to 20 000 packets a second, the longest from 500 000 on.
#[derive(Default)]
struct Rate {
    since: u64,
    packets: u64,
    delay: u64,
}

impl Rate {
    fn count(&mut self, now: u64, packets: u32, max_usecs: u32) {
        self.packets += u64::from(packets);
        let elapsed = now - self.since;
        if elapsed >= MS {
            let above = (self.packets * 1_000_000_000 / elapsed).saturating_sub(20_000);
            self.delay = u64::from(max_usecs) * 1000 * above.min(480_000) / 480_000;
            (self.since, self.packets) = (now, 0);
        }
    }
}

/// Packets, the pause before them in nanoseconds, and what happens after.
#[derive(Clone, Debug)]
enum Event {
    Published(u32),
    Looked,
    Served,
    Mode(ModerationMode),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => (1..=64_u32).prop_map(Event::Published),
        5 => Just(Event::Looked),
        3 => Just(Event::Served),
        1 => mode().prop_map(Event::Mode),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_packet_waits_past_its_limit(
        first in mode(),
        events in prop::collection::vec((0..3_000_000_u64, event()), 1..100),
    ) {
        let mut moderation = Moderation::new(first);
        let (mut now, mut waiting, mut oldest) = (0, 0_u32, 0);
        let mut rate = Rate::default();
        for (pause, event) in events {
            now += pause;
            match event {
                Event::Published(packets) => {
                    if waiting == 0 {
                        oldest = now;
                    }
                    waiting += packets;
                    if let ModerationMode::Adaptive { max_usecs } = moderation.mode() {
                        rate.count(now, packets, max_usecs);
                    }
                    moderation.published(at(now), packets);
                }
                Event::Looked => {}
                Event::Served => {
                    waiting = 0;
                    moderation.served();
                }
                Event::Mode(mode) => {
                    rate.delay = 0;
                    moderation.set_mode(mode);
                    prop_assert_eq!(moderation.mode(), mode);
                }
            }
            let waited = now - oldest;
            let due = moderation.due(at(now));
            prop_assert_eq!(moderation.is_waiting(), waiting != 0);
            prop_assert_eq!(moderation.next_deadline().is_some(), waiting != 0);
            if waiting == 0 {
                prop_assert!(!due);
                continue;
            }
            match moderation.mode() {
                ModerationMode::PerPacket | ModerationMode::None => prop_assert!(due),
                ModerationMode::Static { usecs, frames } => {
                    let by_time = waited >= u64::from(usecs) * 1000;
                    let by_count = frames != 0 && waiting >= frames;
                    prop_assert_eq!(due, by_time || by_count);
                }
                ModerationMode::Adaptive { max_usecs } => {
                    let delay = moderation.adaptive_delay_ns();
                    prop_assert!(delay <= u64::from(max_usecs) * 1000);
                    prop_assert_eq!(delay, rate.delay);
                    prop_assert_eq!(due, waiting >= 64 || waited >= delay);
                }
            }
            // The deadline is where `due` becomes true by time alone, to the nanosecond.
            let deadline = moderation.next_deadline().unwrap();
            prop_assert!(moderation.due(deadline));
            if !due {
                prop_assert!(deadline > at(now));
                prop_assert!(!moderation.due(deadline - 1));
            }
        }
    }

    #[test]
    fn adaptive_delay_grows_with_the_rate(
        max_usecs in 1..=1_000_000_u32,
        slow in 1..=2_000_u64,
        faster_by in 0..=2_000_u64,
    ) {
        // Packets per millisecond, steadily.
        let delay = |per_ms: u64| {
            let mut moderation = Moderation::new(ModerationMode::Adaptive { max_usecs });
            for ms in 0..20 {
                moderation.published(at(ms * MS), per_ms as u32);
                moderation.served();
            }
            moderation.adaptive_delay_ns()
        };
        prop_assert!(delay(slow) <= delay(slow + faster_by));
        prop_assert!(delay(slow + faster_by) <= u64::from(max_usecs) * 1000);
    }
}

/// The delay after a steady second at `rate` packets per second.
fn delay_at(rate: u64, max_usecs: u32) -> u64 {
    let mut moderation = Moderation::new(ModerationMode::Adaptive { max_usecs });
    for packet in 0..rate {
        moderation.published(at(packet * 1_000_000_000 / rate), 1);
        moderation.served();
    }
    moderation.adaptive_delay_ns()
}

#[test]
fn adaptive_delay_spans_none_to_the_longest() {
    assert_eq!(delay_at(10_000, 100), 0);
    assert_eq!(delay_at(1_000_000, 100), 100_000);
    let middle = delay_at(260_000, 100);
    assert!((40_000..=60_000).contains(&middle), "{middle}");
}

#[test]
fn delay_follows_the_rate_exactly() {
    // A nanosecond for each whole packet a second above the lowest rate.
    let mode = ModerationMode::Adaptive { max_usecs: 480 };
    for (packets, nanoseconds) in (1..=600).flat_map(|n| (MS..MS + 200).map(move |ns| (n, ns))) {
        let mut moderation = Moderation::new(mode);
        moderation.published(at(nanoseconds), packets);
        let rate = u64::from(packets) * 1_000_000_000 / nanoseconds;
        let delay = rate.clamp(20_000, 500_000) - 20_000;
        assert_eq!(moderation.adaptive_delay_ns(), delay, "{packets} in {nanoseconds} ns");
    }
}

#[test]
fn a_pause_brings_the_delay_down() {
    let mut moderation = Moderation::new(ModerationMode::Adaptive { max_usecs: 100 });
    for ms in 0..10 {
        moderation.published(at(ms * MS), 2000);
    }
    assert_eq!(moderation.adaptive_delay_ns(), 100_000);
    // The packet after a long pause ends the window and is not delayed.
    moderation.served();
    moderation.published(at(5_000 * MS), 1);
    assert_eq!(moderation.adaptive_delay_ns(), 0);
    assert!(moderation.due(at(5_000 * MS)));
}

#[test]
fn zero_usecs_is_at_once_and_zero_frames_no_limit() {
    let mut at_once = Moderation::new(ModerationMode::Static { usecs: 0, frames: 0 });
    at_once.published(at(5), 1);
    assert!(at_once.due(at(5)));

    let mut by_time = Moderation::new(ModerationMode::Static { usecs: 50, frames: 0 });
    by_time.published(at(0), u32::MAX);
    by_time.published(at(1), u32::MAX);
    assert!(!by_time.due(at(49_999)));
    assert!(by_time.due(at(50_000)));
}

#[test]
fn the_ends_of_time_are_safe() {
    for mode in [
        ModerationMode::None,
        ModerationMode::Static { usecs: u32::MAX, frames: 1 },
        ModerationMode::Adaptive { max_usecs: u32::MAX },
    ] {
        let mut moderation = Moderation::new(mode);
        moderation.published(Time::MAX, u32::MAX);
        assert!(moderation.due(Time::MAX));
        assert!(moderation.next_deadline().is_some());
        // A clock that steps back blocks nothing and breaks nothing.
        moderation.published(Time::ZERO, 1);
        let _ = moderation.due(Time::ZERO);
    }
}
