//! Hashes of packets' flows, a burst at a time.
//!
//! Most packets are IPv4 without options or tags: their addresses and ports are at known offsets,
//! and are hashed many at a time. All others are parsed and hashed one by one, to the same hash.
//!
//! Guarantees: the packets of a flow have one hash, whichever path computes it; no allocation.

use crate::rss::HashType;
use crate::rss::flow::{Hash, Types, flow_hash};
use picnic_core::packet::burst::BURST;
use picnic_core::packet::desc::Descriptor;
use picnic_hash::V4Tuple;

/// EtherType, version and header length of IPv4 without options; the type of service is ignored.
const PLAIN_V4: u32 = 0x0800_4500;
const PLAIN_V4_MASK: u32 = 0xffff_ff00;
/// No more fragments and an offset of zero; the protocol, TCP. The time to live is ignored.
const WHOLE_TCP: u32 = 0x0000_0006;
const WHOLE_TCP_MASK: u32 = 0x3fff_00ff;

/// Hashes flows: TCP by addresses and ports, other IP by addresses, without IP by MAC addresses.
pub(super) struct Flows {
    hash: Hash,
    types: Types,
    tuples: [V4Tuple; BURST],
    hashes: [u32; BURST],
}

impl Default for Flows {
    fn default() -> Self {
        Flows {
            hash: Hash::Lookup3(0),
            types: Types::new(|hash_type| HashType::DEFAULT.contains(&hash_type)),
            tuples: [V4Tuple::default(); BURST],
            hashes: [0; BURST],
        }
    }
}

impl Flows {
    /// The hash of a packet's flow.
    #[inline]
    pub(super) fn of(&self, packet: &mut Descriptor) -> u32 {
        let layers = packet.parse();
        flow_hash(&self.hash, &self.types, packet.data(), &layers)
    }

    /// The hashes of a burst, in its order.
    #[inline]
    pub(super) fn of_all(&mut self, packets: &mut [Descriptor]) -> &[u32] {
        let count = packets.len().min(BURST);
        let mut others = 0_u64;
        for (place, packet) in packets.iter().enumerate().take(count) {
            match plain_v4(packet.data()) {
                Some(tuple) => self.tuples[place % BURST] = tuple,
                None => others |= 1 << place,
            }
        }
        self.hash.hash_v4(&self.tuples[..count], &mut self.hashes[..count]);
        while others != 0 {
            let place = others.trailing_zeros() as usize;
            self.hashes[place % BURST] = self.of(&mut packets[place]);
            others &= others - 1;
        }
        &self.hashes[..count]
    }
}

/// The hash input of an IPv4 packet without tags and options.
#[inline(always)]
fn plain_v4(data: &[u8]) -> Option<V4Tuple> {
    let header: &[u8; 38] = data.first_chunk()?;
    let word = |at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if u32::from_be(word(12)) & PLAIN_V4_MASK != PLAIN_V4 {
        return None;
    }
    let is_whole_tcp = u32::from_be(word(20)) & WHOLE_TCP_MASK == WHOLE_TCP;
    Some(V4Tuple::from_words(word(26), word(30), if is_whole_tcp { word(34) } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::packet::pool::{Pool, PoolConfig};

    /// An IPv4 packet after these tags: header length in words, flags and offset, protocol.
    fn frame(tags: &[u8], words: u8, fragment: u16, protocol: u8, port: u8) -> Vec<u8> {
        let length = usize::from(words) * 4 + 20;
        let mut ip = vec![0; length];
        (ip[0], ip[8], ip[9]) = (0x40 | words, 64, protocol);
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let l4 = usize::from(words) * 4;
        ip[l4 + 1] = port;
        // UDP's length, where TCP has its sequence number.
        (ip[l4 + 5], ip[l4 + 12]) = (20, 0x50);
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], tags, &[8, 0], &ip].concat()
    }

    #[test]
    fn flow_hash_is_independent_of_the_path() {
        let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
        let mut flows = Flows::default();
        let mut frames = vec![
            vec![],
            vec![1; 13],
            vec![2; 40],
            [&[2; 12], &[0x86, 0xdd][..], &[0x60; 60]].concat(),
        ];
        for protocol in [1, 6, 17, 47] {
            for fragment in [0, 0x4000, 0x2000, 100] {
                for words in [5, 6] {
                    frames.push(frame(&[], words, fragment, protocol, 7));
                    frames.push(frame(&[0x81, 0, 0, 5], words, fragment, protocol, 7));
                }
            }
        }
        for frames in frames.chunks(BURST) {
            let mut packets: Vec<_> =
                frames.iter().map(|frame| pool.packet(frame).unwrap()).collect();
            let found = flows.of_all(&mut packets).to_vec();
            for (packet, found) in packets.iter_mut().zip(found) {
                assert_eq!(flows.of(packet), found, "{:x?}", packet.data());
            }
            packets.into_iter().for_each(|packet| pool.free(packet));
        }
        // Ports distinguish TCP flows, and no others.
        let mut of = |frame: Vec<u8>| {
            let mut packets = [pool.packet(&frame).unwrap()];
            let hash = flows.of_all(&mut packets)[0];
            packets.into_iter().for_each(|packet| pool.free(packet));
            hash
        };
        for (protocol, differ) in [(6, true), (17, false)] {
            let [one, other] = [1, 2].map(|port| of(frame(&[], 5, 0, protocol, port)));
            assert_eq!(one != other, differ, "{protocol}");
        }
    }
}
