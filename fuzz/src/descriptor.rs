//! Descriptor operations in any order, compared with a plain model of each packet.
//!
//! Packets never overlap, offsets stay within the buffer, and all buffers return.

use arbitrary::{Result, Unstructured};
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType, RssType};
use picnic_core::packet::pool::{Pool, PoolConfig, ReturnSender};
use picnic_core::time::Time;

/// A packet and its expected contents.
struct Held {
    packet: Descriptor,
    /// All bytes, over all segments.
    bytes: Vec<u8>,
    /// Bytes in the first segment.
    first: usize,
    headroom: usize,
    time: u64,
    rss: (u32, RssType),
}

impl Held {
    fn new(mut packet: Descriptor, bytes: Vec<u8>) -> Held {
        packet.set_received_at(Time::ZERO);
        let (first, headroom) = (packet.data().len(), packet.headroom().into());
        Held { packet, bytes, first, headroom, time: 0, rss: (0, RssType::None) }
    }

    fn check(&self) {
        let Held { packet, bytes, .. } = self;
        assert_eq!(packet.length() as usize, bytes.len());
        assert_eq!(packet.data(), &bytes[..self.first]);
        assert!(packet.segments().flatten().eq(bytes), "segments differ");
        assert_eq!(usize::from(packet.headroom()), self.headroom);
        assert_eq!(packet.received_at(), Time::from_nanos(self.time));
        assert_eq!((packet.rss_hash, packet.rss_type()), self.rss);
    }

    /// Applies one operation to both.
    fn apply(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let packet = &mut self.packet;
        let count: u16 = u.arbitrary()?;
        let size = usize::from(count);
        let was_chained = packet.is_chained();
        match u.int_in_range(0..=10)? {
            0 => {
                let fits = size <= self.headroom && self.first + size <= 0xffff;
                assert_eq!(packet.push_front(count), fits);
                if fits {
                    // The content is unspecified, so both are set to the same.
                    packet.data_mut()[..size].fill(count as u8);
                    self.bytes.splice(..0, vec![count as u8; size]);
                    (self.first, self.headroom) = (self.first + size, self.headroom - size);
                }
            }
            1 => {
                let fits = size <= self.first;
                assert_eq!(packet.pull_front(count), fits);
                if fits {
                    self.bytes.drain(..size);
                    (self.first, self.headroom) = (self.first - size, self.headroom + size);
                }
            }
            2 => {
                if packet.push_back(count) {
                    assert!(!was_chained, "a chain has no end to push to");
                    packet.data_mut()[self.first..].fill(count as u8);
                    self.bytes.extend(vec![count as u8; size]);
                    self.first += size;
                }
            }
            3 => {
                packet.truncate(count);
                if !was_chained {
                    self.bytes.truncate(size);
                    self.first = self.bytes.len();
                }
            }
            4 => {
                if self.first != 0 {
                    let place = size % self.first;
                    packet.data_mut()[place] ^= 0x55;
                    self.bytes[place] ^= 0x55;
                }
            }
            5 => {
                let parsed = packet.parse();
                let kept = packet.layers();
                assert_eq!(kept.packet_type, parsed.packet_type);
                assert_eq!((kept.l3_offset, kept.vlan_tci), (parsed.l3_offset, parsed.vlan_tci));
                assert!(kept.l4_offset == parsed.l4_offset || kept.l4_offset == 0);
                self.has_gathered(usize::MAX);
            }
            6 => {
                self.time = u.arbitrary::<u64>()? & ((1 << 48) - 1);
                packet.set_received_at(Time::from_nanos(self.time));
                let age = u64::from(count);
                assert_eq!(packet.age(Time::from_nanos(self.time) + age), age);
            }
            7 => {
                let types = [RssType::None, RssType::Ipv4Tcp, RssType::Ipv6, RssType::Ipv6Udp];
                self.rss = (u.arbitrary()?, types[size % types.len()]);
                packet.set_rss(self.rss.0, self.rss.1);
            }
            8 => {
                let states = [ChecksumState::Unknown, ChecksumState::Good, ChecksumState::Partial];
                let state = states[size % states.len()];
                packet.set_checksum(state);
                assert_eq!(packet.checksum(), state);
            }
            9 => {
                packet.gather_front(count);
                self.has_gathered(size);
            }
            _ => {
                let kinds = [GsoType::None, GsoType::Tcp4, GsoType::Tcp6, GsoType::Udp];
                let kind = kinds[size % kinds.len()];
                packet.set_gso(kind, count);
                assert_eq!((packet.gso_type(), packet.gso_size()), (kind, count));
            }
        }
        assert_eq!(self.packet.is_chained(), was_chained, "an operation changed what is chained");
        Ok(())
    }

    /// Bytes may have moved to the first segment, up to `most` or all bytes present.
    fn has_gathered(&mut self, most: usize) {
        let (first, headroom) = (self.packet.data().len(), self.packet.headroom().into());
        assert!((self.first..=most.max(self.first)).contains(&first));
        // It moves forward only for lack of room, and no more than it gains.
        assert!(headroom <= self.headroom && self.headroom - headroom <= first - self.first);
        (self.first, self.headroom) = (first, headroom);
    }
}

/// Makes, changes and drops packets as the bytes direct.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let config = PoolConfig {
        buffers: 64,
        buffer_size: u.int_in_range(64..=512).unwrap_or(64),
        headroom: u.int_in_range(0..=4).unwrap_or(0) * 64,
    };
    let (mut pool, mut returns) = Pool::new(&config, 1).expect("a small pool");
    let mut held = Vec::new();
    // Ends when the bytes do.
    let _ = operate(&mut u, &mut pool, &mut returns[0], &mut held);
    held.iter().for_each(Held::check);
    for held in held {
        pool.free(held.packet);
    }
    assert_eq!(pool.outstanding(), 0, "buffers are missing");
    assert_eq!(pool.available(), pool.buffers());
}

fn operate(
    u: &mut Unstructured<'_>,
    pool: &mut Pool,
    returns: &mut ReturnSender,
    held: &mut Vec<Held>,
) -> Result<()> {
    while !u.is_empty() {
        let chosen = if held.is_empty() { 0 } else { u.choose_index(held.len())? };
        match u.int_in_range(0..=15)? {
            0..=2 => {
                let bytes = vec![u.arbitrary()?; u.int_in_range(0..=2048)?];
                let needed = bytes.len().div_ceil(pool.buffer_size()).max(1);
                let room = pool.ensure(needed);
                let packet = pool.packet(&bytes);
                assert_eq!(packet.is_some(), room, "exhaustion is when buffers are out");
                held.extend(packet.map(|packet| Held::new(packet, bytes)));
            }
            _ if held.is_empty() => {}
            3 => pool.free(held.swap_remove(chosen).packet),
            4 => {
                returns.give_back(held.swap_remove(chosen).packet);
                returns.publish();
            }
            5 => {
                let other = u.choose_index(held.len())?;
                if other != chosen {
                    let [one, two] =
                        held.get_disjoint_mut([chosen, other]).expect("two places of the list");
                    one.packet.copy_metadata(&two.packet);
                    (one.time, one.rss) = (two.time, two.rss);
                }
            }
            _ => {
                held[chosen].apply(u)?;
                held[chosen].check();
            }
        }
    }
    Ok(())
}

/// Initial inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    (0..4u32)
        .map(|seed| {
            let byte = |index: u32| (index.wrapping_mul(2_654_435_761) >> (8 + seed)) as u8;
            (0..256).map(byte).collect()
        })
        .collect()
}
