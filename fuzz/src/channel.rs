//! A channel whose host writes anywhere in the memory.
//!
//! Each step is four bytes: an operation, a place, a value. Claims: the card's side never panics, no
//! message is longer than allowed or than the card's buffer, a break is reported as such, and a
//! batch wakes the host at most once. Before the first write, the channel is a queue.

use picnic_channel::{Awaits, End, Region, SendError, Shape, Side};
use picnic_core::doorbell::Doorbell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LONGEST: usize = 20;
const MESSAGES: usize = 4;

/// Initial inputs: traffic, traffic with writes, and writes alone.
pub fn seeds() -> Vec<Vec<u8>> {
    let steps = |kinds: &[u8]| -> Vec<u8> {
        let each = (0..120_usize).map(|number| [kinds[number % kinds.len()], number as u8, 3, 9]);
        each.flatten().collect()
    };
    vec![steps(&[0, 0, 1, 2, 3, 1]), steps(&[0, 1, 4, 2, 3, 5]), steps(&[4, 5, 6, 1, 2, 7])]
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Doorbell for Counting {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes the steps.
///
/// # Panics
/// A claim does not hold.
pub fn run(data: &[u8]) {
    let shape = Shape::new(LONGEST, MESSAGES).expect("a small channel");
    let region = Arc::new(Region::private(shape.bytes()).expect("a page of memory"));
    let bell = Arc::new(Counting::default());
    let card = End::new(region.clone(), shape, Side::Card, bell.clone());
    let host = End::new(region.clone(), shape, Side::Host, Arc::new(Counting::default()));
    let (mut is_spoilt, mut batches, mut sent) = (false, 0, VecDeque::new());
    for step in data.as_chunks::<4>().0 {
        let [kind, place, value, high] = *step;
        let message = vec![value; usize::from(place) % (LONGEST + 2)];
        match kind % 8 {
            0 => match host.stage(&message) {
                Ok(()) => sent.push_back(message),
                Err(SendError::TooLong { .. }) => assert!(message.len() > LONGEST),
                Err(SendError::Full) => assert!(is_spoilt || sent.len() == MESSAGES),
                Err(SendError::Broken(_)) => assert!(is_spoilt),
            },
            1 => {
                host.flush();
                let mut into = [0xee; LONGEST + 8];
                let room = usize::from(high) % into.len();
                let taken = card.take(&mut into[..room]);
                assert!(into[room..].iter().all(|&byte| byte == 0xee));
                assert!(taken.is_ok() || is_spoilt);
                if !is_spoilt {
                    let expected = sent.pop_front();
                    let taken = taken.ok().flatten();
                    assert_eq!(taken, expected.as_ref().map(|sent| sent.len().min(room)));
                    let expected = expected.unwrap_or_default();
                    assert_eq!(into[..taken.unwrap_or(0)], expected[..taken.unwrap_or(0)]);
                    card.flush();
                    batches += 1;
                } else if let Ok(Some(bytes)) = taken {
                    assert!(bytes <= LONGEST.min(room));
                }
            }
            2 => match card.stage(&message) {
                Ok(()) => assert!(message.len() <= LONGEST),
                Err(SendError::TooLong { .. }) => assert!(message.len() > LONGEST),
                Err(SendError::Full) => {}
                Err(SendError::Broken(_)) => assert!(is_spoilt),
            },
            3 => {
                card.flush();
                batches += 1;
                assert!(bell.0.load(Ordering::Relaxed) <= batches);
                assert!(card.in_flight() <= 2 * MESSAGES as u64);
            }
            4 | 5 => {
                let words = region.words();
                // The control words more often than the slots.
                let range = if kind % 8 == 4 { 176 } else { words.len() };
                let at = (usize::from(place) | usize::from(value) << 8) % range;
                let few = u64::from(high) % 24;
                words[at].store(if high > 200 { u64::MAX - few } else { few }, Ordering::Relaxed);
                is_spoilt = true;
            }
            6 => {
                host.rest(if high > 100 { Awaits::Message } else { Awaits::Any });
                host.has_news(Awaits::Any);
            }
            _ => {
                card.rest(Awaits::Any);
                card.has_news(Awaits::Any);
                card.wake();
            }
        }
    }
    card.close();
    assert!(card.is_closed());
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
