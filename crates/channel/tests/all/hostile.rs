//! A side that writes anything anywhere in the memory, at any time.

use crate::{Pair, pair};
use picnic_channel::{Awaits, End, SendError};
use picnic_testing::PATIENCE;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The card's use of a channel; returns whether it found the channel broken. Nothing here may
/// panic.
fn use_once(card: &End) -> bool {
    let mut into = [0xaa; 16];
    let mut broken = match card.take(&mut into) {
        Ok(bytes) => {
            assert!(bytes.unwrap_or(0) <= 12);
            false
        }
        Err(_) => true,
    };
    match card.stage(b"twelve bytes") {
        Ok(()) | Err(SendError::Full) => {}
        Err(SendError::Broken(_)) => broken = true,
        Err(error) => panic!("{error}"),
    }
    card.flush();
    card.rest(Awaits::Any);
    card.has_news(Awaits::Any);
    card.wake();
    assert!(card.in_flight() <= 2 * card.shape().messages() as u64);
    broken
}

proptest! {
    #[test]
    fn scribbling_hurts_only_the_channel(
        writes in vec((0_usize..1024, prop_oneof![any::<u64>(), 0_u64..20, u64::MAX - 9..=u64::MAX]), 1..80),
    ) {
        let Pair { card, host, bells: [_, bell] } = pair(12, 4);
        let words = card.region().words();
        for (index, (word, value)) in writes.iter().enumerate() {
            words[word % words.len()].store(*value, Ordering::Relaxed);
            use_once(&card);
            prop_assert!(bell.count() <= index + 1, "more than one ring for a batch");
        }
        // The host's own end survives as well.
        let _ = host.take(&mut [0; 16]);
        let _ = host.stage(b"more");
    }
}

/// Wrong indices and lengths are noticed, not only survived.
#[test]
fn wrong_indices_and_lengths_are_noticed() {
    // To the card: tail and the first slot's length; to the host: head.
    for (word, value, is_sent) in [(48, 5, false), (48, u64::MAX, false), (160, 13, true)] {
        let Pair { card, host, .. } = pair(12, 4);
        if is_sent {
            host.stage(b"short").unwrap();
            host.flush();
        }
        card.region().words()[word].store(value, Ordering::Relaxed);
        assert!(card.take(&mut [0; 16]).is_err(), "word {word}");
    }
    for head in [5, 1 << 40, u64::MAX] {
        let Pair { card, .. } = pair(12, 4);
        card.region().words()[96].store(head, Ordering::Relaxed);
        let sent = (0..5).map(|_| card.stage(b"x")).collect::<Vec<_>>();
        assert!(matches!(sent[4], Err(SendError::Broken(_))), "{head}: {sent:?}");
    }
}

/// While another thread writes: no torn length leads out of a slot.
#[test]
fn concurrent_scribbling_is_survived() {
    let Pair { card, .. } = pair(12, 4);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words = card.region().words();
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            while !is_over.load(Ordering::Relaxed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let value = [state, state % 16, 12, u64::MAX][(state >> 60) as usize % 4];
                words[(state >> 33) as usize % words.len()].store(value, Ordering::Relaxed);
            }
        });
        let (mut broken, began) = (0, Instant::now());
        // The scribbler may start late.
        while broken == 0 && began.elapsed() < PATIENCE {
            broken += (0..200_000).filter(|_| use_once(&card)).count();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(broken > 0, "the scribbler scribbled nothing");
    });
}
