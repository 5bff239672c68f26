//! Little's law on the queues of a run: packets that wait are their rate times their wait.
//!
//! The wait is what packets' own time stamps say, at both ends; how many wait is counted at every
//! step. A packet that is lost, counted twice or stamped wrongly sets the two apart.

use super::micros;
use picnic_core::direction::Direction;
use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::Descriptor;
use picnic_core::time::Time;
use picnic_sim::Simulation;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Packets that have passed a point, the sum of their ages there, and the sum of the times.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    packets: u64,
    age_ns: u64,
    time_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    /// Into the first function, which is `rss`.
    entered: Passed,
    /// By queue.
    left: BTreeMap<usize, Passed>,
}

impl Counts {
    fn left(&self) -> Passed {
        self.left.values().fold(Passed::default(), |sum, passed| Passed {
            packets: sum.packets + passed.packets,
            age_ns: sum.age_ns + passed.age_ns,
            time_ns: sum.time_ns + passed.time_ns,
        })
    }
}

/// Packets that entered the card, and left each queue.
#[derive(Clone, Default)]
pub struct Waits(Arc<Mutex<Counts>>);

/// Counts of one ring.
#[derive(Clone, Copy, Default)]
struct Ring {
    published: u64,
    /// The sum of the times of that, and the time that packets have waited, all of them together.
    published_ns: u64,
    waiting_ns: u64,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs for so long, and asserts the law for the card as a whole, and for each target ring
    /// unless a core hands their packets over in software.
    #[track_caller]
    pub fn assert_littles_law(&self, simulation: &mut Simulation, run_us: u64, by_ring: bool) {
        let (began, before) = (simulation.now(), self.lock().clone());
        let published = |simulation: &Simulation, ring: usize| {
            let steer = &simulation.view().queues[ring].steer;
            assert_eq!(steer.ring_full.get(), 0);
            steer.packets.get()
        };
        let count = simulation.view().queues.len();
        let start = |ring| Ring { published: published(simulation, ring), ..Ring::default() };
        let mut rings: Vec<Ring> = (0..count).map(start).collect();
        let mut waiting_ns = 0;
        let until = began + micros(run_us).as_nanos();
        while simulation.now() < until {
            let (at, counts) = (simulation.now(), self.lock().clone());
            assert!(simulation.step(), "nothing more happens");
            let passed = simulation.now().since(at);
            waiting_ns += (counts.entered.packets - counts.left().packets) * passed;
            for (place, ring) in rings.iter_mut().enumerate().filter(|_| by_ring) {
                let left = counts.left.get(&place).copied().unwrap_or_default();
                ring.waiting_ns += (ring.published - left.packets) * passed;
                let now = published(simulation, place);
                ring.published_ns += (now - ring.published) * simulation.now().since(began);
                ring.published = now;
            }
        }
        let (elapsed, after) = (simulation.now().since(began), self.lock().clone());
        let mean = |is: Passed, was: Passed| {
            (is.age_ns - was.age_ns) as f64 / (is.packets - was.packets) as f64
        };
        let wait_ns = mean(after.left(), before.left()) - mean(after.entered, before.entered);
        let packets = after.left().packets - before.left().packets;
        assert!(packets > 1000, "{packets} packets");
        let wanted = packets as f64 / elapsed as f64 * wait_ns;
        let found = waiting_ns as f64 / elapsed as f64;
        // Those at both ends of the run are in one of the two.
        let allowed = 0.02 + 2.0 * wanted / packets as f64;
        assert!((found / wanted - 1.0).abs() < allowed, "{found} wait, rate times wait: {wanted}");
        for (place, ring) in rings.iter().enumerate().filter(|_| by_ring) {
            let [left, was_left] = [&after, &before].map(|counts| counts.left[&place]);
            // To the nanosecond: those that still wait have waited until now.
            let waits = ring.published - left.packets;
            let since = |passed: Passed| passed.time_ns - passed.packets * began.as_nanos();
            let left_ns = since(Passed {
                packets: left.packets - was_left.packets,
                time_ns: left.time_ns - was_left.time_ns,
                age_ns: 0,
            });
            let wanted = left_ns + waits * elapsed - ring.published_ns;
            assert_eq!(ring.waiting_ns, wanted, "ring {place}: {} packets", left.packets);
        }
    }
}

struct Counting {
    waits: Waits,
    /// Where they leave; none where they enter.
    leaves: Option<u16>,
}

impl Observer for Counting {
    fn observe(&mut self, now: Time, _: Stage, packets: &[Descriptor]) {
        let mut counts = self.waits.lock();
        let passed = match self.leaves {
            Some(queue) => counts.left.entry(queue.into()).or_default(),
            None => &mut counts.entered,
        };
        passed.packets += packets.len() as u64;
        passed.time_ns += packets.len() as u64 * now.as_nanos();
        passed.age_ns += packets.iter().map(|packet| packet.age(now)).sum::<u64>();
    }
}

impl Hook for Waits {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        let leaves = match *point {
            HookPoint::Function { direction: Direction::Rx, name: "rss", .. } => None,
            HookPoint::Queue { index, .. } => Some(index),
            _ => return None,
        };
        Some(Box::new(Counting { waits: self.clone(), leaves }))
    }
}

/// When each packet of queue 0 arrived, and when the target routine was given it, in nanoseconds.
#[derive(Clone, Default)]
pub struct Times(Arc<Mutex<Vec<(u64, u64)>>>);

impl Times {
    pub fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Observer for Times {
    fn observe(&mut self, now: Time, _: Stage, packets: &[Descriptor]) {
        let mut times = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        times.extend(packets.iter().map(|p| (p.received_at().as_nanos(), now.as_nanos())));
    }
}

impl Hook for Times {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        matches!(point, HookPoint::Queue { index: 0, .. }).then(|| Box::new(self.clone()) as _)
    }
}
