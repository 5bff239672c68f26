//! Flows, and the queues whose applications sent packets of them.
//!
//! The tx chain stores a flow in reverse direction, with its packet's tx queue; the rx chain looks
//! it up unchanged. Answers to a packet with a pending route come from its final destination. A
//! flow is identified by a 64-bit hash over addresses and ports. Sets of four: a new flow takes a
//! free place of its set, an aged one, or the place of the flow that was silent for longest.
//!
//! Guarantees: a bounded number of steps, no allocation. Both chains run on one core.
//!
//! Source: Intel 82599 datasheet, 7.1.2.7.1 (Flow Director: signature filters, filled by the driver
//! from sent packets: application targeted routing).

use picnic_core::packet::layers::{Layers, Route};
use picnic_core::time::Time;
use picnic_hash::{lookup3_3words, lookup3_words};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WAYS: usize = 4;
const SETS: usize = 4096;

/// Most known flows.
pub const MAX_FLOWS: usize = SETS * WAYS;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Received,
    /// Its answer will be received.
    Sent,
}

/// The flow of a TCP packet parsed to `layers`, as received: never zero, which means none.
#[inline]
pub(super) fn flow_of(layers: &Layers, data: &[u8], way: Way, seed: u32) -> u64 {
    if !layers.packet_type.is_tcp() {
        return 0;
    }
    let Some(mut ports) = layers.ports(data) else { return 0 };
    let mut last = None;
    if way == Way::Sent {
        // Two bytes each, anywhere in the word.
        ports = ports.rotate_left(16);
        last = match layers.route(data) {
            Route::Done => None,
            Route::Pending(last) => Some(last),
            Route::Unknown => return 0,
        };
    }
    let halves = [seed, !seed];
    let [high, low] = if let Some((source, destination)) = layers.ipv4_addresses(data) {
        let (a, b) = match way {
            Way::Received => (source, destination),
            Way::Sent => match last {
                Some(IpAddr::V4(last)) => (u32::from_ne_bytes(last.octets()), source),
                _ => (destination, source),
            },
        };
        halves.map(|seed| lookup3_3words(a, b, ports, seed))
    } else if let Some(addresses) = layers.ipv6_addresses(data) {
        let mut words = [0; 9];
        for (word, bytes) in words.iter_mut().zip(addresses.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        if let Some(IpAddr::V6(last)) = last {
            for (word, bytes) in words[4..8].iter_mut().zip(last.octets().as_chunks::<4>().0) {
                *word = u32::from_ne_bytes(*bytes);
            }
        }
        if way == Way::Sent {
            words[..8].rotate_left(4);
        }
        words[8] = ports;
        halves.map(|seed| lookup3_words(&words, seed))
    } else {
        return 0;
    };
    u64::from(high) << 32 | u64::from(low) | 1
}

/// A flow and its queue.
#[derive(Debug, Default)]
struct LearntFlow {
    /// Zero if free.
    flow: AtomicU64,
    /// Time of its last packet, with the queue in the lowest eight bits.
    sent: AtomicU64,
}

/// The flows sent by hosts.
#[derive(Debug)]
pub(super) struct Learnt(Box<[[LearntFlow; WAYS]]>);

/// The result of noting a sent flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    Known,
    New,
    /// In place of a flow that had not aged.
    Replaced,
    /// From another queue than before.
    Moved,
}

impl Learnt {
    pub(super) fn new() -> Learnt {
        Learnt((0..SETS).map(|_| Default::default()).collect())
    }

    #[inline(always)]
    fn set(&self, flow: u64) -> &[LearntFlow; WAYS] {
        &self.0[(flow >> 32) as usize % SETS]
    }

    /// Notes a packet of a flow sent from a queue.
    #[inline]
    pub(super) fn note(&self, flow: u64, queue: u8, now: Time, age_ns: u64) -> Noted {
        let set = self.set(flow);
        let sent = now.as_nanos() << 8 | u64::from(queue);
        if let Some(place) = set.iter().find(|place| place.flow.load(Relaxed) == flow) {
            let before = place.sent.load(Relaxed);
            place.sent.store(sent, Relaxed);
            return if before as u8 == queue { Noted::Known } else { Noted::Moved };
        }
        let when = |place: &&LearntFlow| match place.flow.load(Relaxed) {
            0 => 0,
            _ => 1 + (place.sent.load(Relaxed) >> 8),
        };
        let oldest = set.iter().min_by_key(when).unwrap_or(&set[0]);
        let is_free = when(&oldest) == 0 || now.as_nanos() + 1 - when(&oldest) > age_ns;
        oldest.flow.store(flow, Relaxed);
        oldest.sent.store(sent, Relaxed);
        if is_free { Noted::New } else { Noted::Replaced }
    }

    /// The queue that sent packets of a flow at most `age_ns` ago.
    #[inline]
    pub(super) fn queue_of(&self, flow: u64, now: Time, age_ns: u64) -> Option<u8> {
        let place = self.set(flow).iter().find(|place| place.flow.load(Relaxed) == flow)?;
        let sent = place.sent.load(Relaxed);
        (now.as_nanos().saturating_sub(sent >> 8) <= age_ns).then_some(sent as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::packet::layers::parse;
    use picnic_engine::trial::frames::{ethernet, ipv4};

    fn flow(frame: &[u8], way: Way) -> u64 {
        flow_of(&parse(frame), frame, way, 5)
    }

    fn tcp(source: u16, destination: u16) -> Vec<u8> {
        let mut tcp = [source.to_be_bytes(), destination.to_be_bytes()].concat();
        tcp.resize(20, 0);
        tcp[12] = 0x50;
        tcp
    }

    #[test]
    fn answers_come_from_the_end_of_a_source_route() {
        let options = [1, 131, 7, 4, 10, 5, 5, 5];
        let mut sent = ethernet(&[], 0x0800, &ipv4(6, 0, &options, &tcp(1, 2)));
        let mut answer = ethernet(&[], 0x0800, &ipv4(6, 0, &[], &tcp(2, 1)));
        let own: [u8; 4] = sent[26..30].try_into().unwrap();
        answer[26..30].copy_from_slice(&[10, 5, 5, 5]);
        answer[30..34].copy_from_slice(&own);
        assert_eq!(flow(&sent, Way::Sent), flow(&answer, Way::Received));
        // Arrived: the header has the final destination.
        sent[37] = 8;
        sent[30..34].copy_from_slice(&[10, 5, 5, 5]);
        assert_eq!(flow(&sent, Way::Sent), flow(&answer, Way::Received));
        // With an odd length nothing is known.
        (sent[36], sent[37]) = (6, 4);
        assert_eq!(flow(&sent, Way::Sent), 0);
    }

    #[test]
    fn answers_come_from_the_last_segment() {
        let ip = |next: u8, payload: &[u8], source: [u8; 16], destination: [u8; 16]| {
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend((payload.len() as u16).to_be_bytes());
            packet.extend([next, 64]);
            packet.extend(source);
            packet.extend(destination);
            packet.extend(payload);
            ethernet(&[], 0x86dd, &packet)
        };
        let (own, hop, last) = ([1; 16], [2; 16], [3; 16]);
        let route = [&[6, 4, 4, 1, 1, 0, 0, 0][..], &last, &hop].concat();
        let sent = ip(43, &[route, tcp(1, 2)].concat(), own, hop);
        let answer = ip(6, &tcp(2, 1), last, own);
        assert_eq!(flow(&sent, Way::Sent), flow(&answer, Way::Received));
        let other = ip(6, &tcp(2, 1), hop, own);
        assert_ne!(flow(&sent, Way::Sent), flow(&other, Way::Received));
    }
}
