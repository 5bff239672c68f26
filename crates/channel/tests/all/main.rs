//! Both sides of a channel in one process: properties, and a side that breaks the protocol.

mod hostile;
mod order;
mod sleep;

use picnic_channel::{End, Region, Shape, Side};
use picnic_core::doorbell::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts its rings.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Doorbell for Counting {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Both sides, and the doorbells that wake card and host.
struct Pair {
    card: End,
    host: End,
    bells: [Arc<Counting>; 2],
}

fn pair(message_bytes: usize, messages: usize) -> Pair {
    let shape = Shape::new(message_bytes, messages).unwrap();
    let region = Arc::new(Region::private(shape.bytes()).unwrap());
    let bells = [Arc::<Counting>::default(), Arc::default()];
    let [for_card, for_host] = bells.clone();
    let card = End::new(region.clone(), shape, Side::Card, for_host);
    let host = End::new(region, shape, Side::Host, for_card);
    Pair { card, host, bells }
}
