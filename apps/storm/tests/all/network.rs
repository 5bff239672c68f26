//! A network of members in virtual time, by seed: latency, loss, duplication, reordering.

use picnic_core::time::Time;
use picnic_storm::{Member, Settings, To};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The faults of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Latency in nanoseconds: at least, and at random on top.
    pub(crate) latency_ns: (u64, u64),
    /// Of a hundred packets, how many are lost.
    pub(crate) loss_percent: u32,
    /// Of a hundred packets, how many arrive twice.
    pub(crate) twice_percent: u32,
}

/// A message as a member delivered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) sender: u8,
    pub(crate) position: u64,
    pub(crate) timestamp: u64,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Network {
    pub(crate) members: Vec<Member>,
    /// What each has delivered.
    pub(crate) logs: Vec<Vec<Delivered>>,
    /// Deliveries that a member's application takes at a time; 0 while it takes none.
    pub(crate) appetite: Vec<usize>,
    pub(crate) weather: Weather,
    /// Members that do not run.
    pub(crate) is_down: Vec<bool>,
    /// Members that can reach each other have the same number.
    pub(crate) island: Vec<u8>,
    /// Membership packets that members have taken.
    pub(crate) membership_packets: u64,
    pub(crate) now: Time,
    pub(crate) random: ChaCha8Rng,
    under_way: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    packets: u64,
    trace: DefaultHasher,
}

pub(crate) fn settings(count: usize) -> Settings {
    Settings {
        members: (0..count).map(|member| format!("m{member}")).collect(),
        window_bytes: 4096,
        payload_bytes: 200,
        packet_bytes: 600,
        repeat_after_ns: 50_000,
        ..Settings::default()
    }
}

impl Network {
    pub(crate) fn new(seed: u64, settings: &Settings, weather: Weather) -> Self {
        let count = settings.members.len();
        let member = |me| Member::new(Settings { me, ..settings.clone() }).unwrap();
        Network {
            members: (0..count as u8).map(member).collect(),
            logs: vec![Vec::new(); count],
            appetite: vec![usize::MAX; count],
            weather,
            is_down: vec![false; count],
            island: vec![0; count],
            membership_packets: 0,
            now: Time::ZERO,
            random: ChaCha8Rng::seed_from_u64(seed),
            under_way: BTreeMap::new(),
            packets: 0,
            trace: DefaultHasher::new(),
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.random.random_range(0..100) < percent
    }

    fn send(&mut self, to: usize, packet: &[u8]) {
        if self.chance(self.weather.loss_percent) {
            return;
        }
        let copies = 1 + usize::from(self.chance(self.weather.twice_percent));
        for _ in 0..copies {
            let (least, more) = self.weather.latency_ns;
            let at = self.now + least + self.random.random_range(0..=more);
            self.packets += 1;
            self.under_way.insert((at, self.packets), (to, packet.to_vec()));
        }
    }

    /// The driver's work after a batch: deliver, then transmit.
    pub(crate) fn serve(&mut self, member: usize) {
        for _ in 0..self.appetite[member] {
            let Some(delivery) = self.members[member].deliver() else { break };
            let delivered = Delivered {
                sender: delivery.sender,
                position: delivery.position,
                timestamp: delivery.timestamp,
                payload: delivery.payload.to_vec(),
            };
            (member, &delivered.payload, delivered.timestamp).hash(&mut self.trace);
            self.logs[member].push(delivered);
        }
        let mut buffer = [0; 2048];
        while let Some((to, length)) = self.members[member].transmit(self.now, &mut buffer) {
            (self.now, member, &buffer[..length]).hash(&mut self.trace);
            for receiver in 0..self.members.len() {
                let is_near = self.island[receiver] == self.island[member];
                if is_near && receiver != member && (to == To::All || to == To::One(receiver as u8))
                {
                    self.send(receiver, &buffer[..length]);
                }
            }
        }
    }

    /// The next event: a packet or a deadline. False if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let up = self.members.iter().enumerate().filter(|(member, _)| !self.is_down[*member]);
        let deadlines = up.map(|(place, member)| (member.next_deadline(), place));
        let (deadline, late) = deadlines.min().unwrap_or((Time::MAX, 0));
        let arrival = self.under_way.first_key_value().map_or(Time::MAX, |((at, _), _)| *at);
        if arrival.min(deadline) == Time::MAX {
            return false;
        }
        if arrival <= deadline {
            let ((at, _), (to, packet)) = self.under_way.pop_first().unwrap();
            self.now = self.now.max(at);
            if self.is_down[to] {
                return true;
            }
            self.membership_packets += u64::from(packet[3] & 15 == 4);
            let _ = self.members[to].receive(self.now, &packet);
            // Sometimes a batch of several packets.
            if self.random.random_range(0..4) > 0 || !self.under_way.values().any(|(t, _)| *t == to)
            {
                self.serve(to);
            }
        } else {
            self.now = self.now.max(deadline);
            self.serve(late);
        }
        true
    }

    /// Runs until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for member in 0..self.members.len() {
            self.serve(member);
        }
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 200_000, "the group does not come to rest");
        }
    }

    /// Runs for this many nanoseconds.
    pub(crate) fn settle_for(&mut self, nanoseconds: u64) {
        for member in 0..self.members.len() {
            self.serve(member);
        }
        let end = self.now + nanoseconds;
        while self.now < end && self.step() {}
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }
}
