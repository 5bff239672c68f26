//! Hash and hash type of a packet.
//!
//! Addresses and ports, as selected by [`Types`], become the tuples that the hashes take.
//! Guarantees: no panic, even for layers of other bytes. Source: Microsoft, "RSS hashing types"
//! (NDIS).

use super::HashType;
use picnic_core::packet::desc::{Descriptor, RssFunction, RssType};
use picnic_core::packet::layers::{L3Kind, L4Kind, Layers, PacketType, PlainV4};
use picnic_forms::{FlowHash, Hashed, HashedOver};
use picnic_hash::{Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6, lookup2, lookup3};

/// The hash.
#[derive(Debug)]
pub(crate) enum Hash {
    Toeplitz(Box<Toeplitz>),
    Lookup3(u32),
    Lookup2(u32),
}

impl Hash {
    /// Marks packets as having another hash than Toeplitz's, if this is one.
    #[inline(always)]
    pub(super) fn name_in(&self, packets: &mut [Descriptor]) {
        if !matches!(self, Hash::Toeplitz(_)) {
            packets.iter_mut().for_each(|packet| packet.set_rss_function(RssFunction::Jenkins));
        }
    }

    /// The kernel form.
    pub(crate) fn in_kernel(&self) -> FlowHash {
        match self {
            Hash::Toeplitz(toeplitz) => FlowHash::Toeplitz(toeplitz.contributions().to_vec()),
            Hash::Lookup3(initial) => FlowHash::Lookup3(*initial),
            Hash::Lookup2(initial) => FlowHash::Lookup2(*initial),
        }
    }

    #[inline]
    pub(crate) fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        match self {
            Hash::Toeplitz(toeplitz) => toeplitz.hash_v4(tuples, out),
            Hash::Lookup3(init) => jhash_v4(tuples, *init, out),
            Hash::Lookup2(init) => {
                for (tuple, hash) in tuples.iter().zip(out) {
                    *hash = lookup2(tuple.input(), *init);
                }
            }
        }
    }

    #[inline]
    pub(super) fn hash_v6(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        match self {
            Hash::Toeplitz(toeplitz) => toeplitz.hash_v6(tuples, out),
            Hash::Lookup3(init) => jhash_v6(tuples, *init, out),
            Hash::Lookup2(init) => {
                for (tuple, hash) in tuples.iter().zip(out) {
                    *hash = lookup2(tuple.input(), *init);
                }
            }
        }
    }
}

/// The hash type of each of the 256 packet types: the switches, applied once.
pub(crate) struct Types {
    by_packet_type: [RssType; 256],
    /// For plain UDP and TCP over IPv4, and the mask of their hashed ports.
    plain_v4: [(RssType, u32); 2],
}

impl Types {
    pub(crate) fn new(is_on: impl Fn(HashType) -> bool) -> Types {
        let by_packet_type = std::array::from_fn(|bits| {
            let packet_type = PacketType::from_bits(bits as u8);
            // A fragment has no L4, so all fragments of a packet get the same hash.
            match (packet_type.l3(), packet_type.l4()) {
                (L3Kind::Ipv4, L4Kind::Tcp) if is_on(HashType::TcpIpv4) => RssType::Ipv4Tcp,
                (L3Kind::Ipv4, L4Kind::Udp) if is_on(HashType::UdpIpv4) => RssType::Ipv4Udp,
                (L3Kind::Ipv4, _) if is_on(HashType::Ipv4) => RssType::Ipv4,
                (L3Kind::Ipv6, L4Kind::Tcp) if is_on(HashType::TcpIpv6) => RssType::Ipv6Tcp,
                (L3Kind::Ipv6, L4Kind::Udp) if is_on(HashType::UdpIpv6) => RssType::Ipv6Udp,
                (L3Kind::Ipv6, _) if is_on(HashType::Ipv6) => RssType::Ipv6,
                _ => RssType::None,
            }
        });
        let plain_v4 = [PacketType::IPV4_UDP, PacketType::IPV4_TCP].map(|packet_type| {
            let over = by_packet_type[usize::from(packet_type.bits())];
            (over, if over == RssType::Ipv4 { 0 } else { u32::MAX })
        });
        Types { by_packet_type, plain_v4 }
    }

    /// The kernel form for one IP version.
    pub(crate) fn in_kernel(&self, l3: L3Kind) -> HashedOver {
        let hashed = |l4| match self.of(PacketType::new(l3, l4)) {
            RssType::None => Hashed::Nothing,
            RssType::Ipv4 | RssType::Ipv6 => Hashed::Addresses,
            RssType::Ipv4Tcp | RssType::Ipv4Udp | RssType::Ipv6Tcp | RssType::Ipv6Udp => {
                Hashed::Ports
            }
        };
        HashedOver {
            tcp: hashed(L4Kind::Tcp),
            udp: hashed(L4Kind::Udp),
            other: hashed(L4Kind::None),
        }
    }

    #[inline(always)]
    pub(crate) fn of(&self, packet_type: PacketType) -> RssType {
        self.by_packet_type[usize::from(packet_type.bits())]
    }

    /// Hash type and tuple of a plain frame: a fast path for most packets.
    #[inline(always)]
    pub(crate) fn of_plain_v4(&self, plain: &PlainV4<'_>) -> (RssType, V4Tuple) {
        let (over, hashed) = self.plain_v4[usize::from(plain.is_tcp())];
        let (source, destination) = plain.addresses();
        (over, V4Tuple::from_words(source, destination, plain.ports() & hashed))
    }
}

pub(crate) enum Family {
    V4,
    V6,
    None,
}

#[inline(always)]
pub(crate) fn family(over: RssType) -> Family {
    match over {
        RssType::None => Family::None,
        RssType::Ipv4 | RssType::Ipv4Tcp | RssType::Ipv4Udp => Family::V4,
        RssType::Ipv6 | RssType::Ipv6Tcp | RssType::Ipv6Udp => Family::V6,
    }
}

/// Both ports in memory order; zero if they are not hashed.
#[inline(always)]
fn ports(layers: &Layers, data: &[u8], over: RssType) -> u32 {
    match over {
        RssType::None | RssType::Ipv4 | RssType::Ipv6 => 0,
        _ => layers.ports(data).unwrap_or_default(),
    }
}

// Layers parsed from `data` have their addresses and ports in it, so the zeros below never occur.

#[inline(always)]
pub(crate) fn tuple_v4(layers: &Layers, data: &[u8], over: RssType) -> V4Tuple {
    let (source, destination) = layers.ipv4_addresses(data).unwrap_or_default();
    V4Tuple::from_words(source, destination, ports(layers, data, over))
}

#[inline(always)]
pub(super) fn tuple_v6(layers: &Layers, data: &[u8], over: RssType) -> V6Tuple {
    let addresses = layers.ipv6_addresses(data).and_then(|addresses| {
        Some((addresses.first_chunk::<16>()?, addresses.last_chunk::<16>()?))
    });
    let (source, destination) = addresses.unwrap_or((&[0; 16], &[0; 16]));
    V6Tuple::from_words(source, destination, ports(layers, data, over))
}

/// Hash and hash type of a packet parsed to `layers`.
#[inline]
pub(crate) fn hash_of(hash: &Hash, types: &Types, layers: &Layers, data: &[u8]) -> (u32, RssType) {
    let over = types.of(layers.packet_type);
    let mut value = [0];
    match family(over) {
        Family::V4 => hash.hash_v4(&[tuple_v4(layers, data, over)], &mut value),
        Family::V6 => hash.hash_v6(&[tuple_v6(layers, data, over)], &mut value),
        Family::None => {}
    }
    (value[0], over)
}

/// A hash over a packet's flow; without IP, over its MAC addresses.
#[inline]
pub(crate) fn flow_hash(hash: &Hash, types: &Types, data: &[u8], layers: &Layers) -> u32 {
    match hash_of(hash, types, layers, data) {
        (_, RssType::None) => lookup3(&data[..data.len().min(12)], 0),
        (value, _) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::packet::layers;
    use picnic_hash::Key;

    /// UDP over IPv4, with tags and words of options.
    fn frame(tags: usize, options: usize) -> Vec<u8> {
        let mut frame = vec![2; 12];
        (0..tags).for_each(|tag| frame.extend([0x81, 0, 0, tag as u8]));
        frame.extend([
            8,
            0,
            0x45 + options as u8,
            0,
            0,
            28 + 4 * options as u8,
            0,
            0,
            0,
            0,
            64,
            17,
        ]);
        frame.extend([0, 0, 10, 1, 2, 3, 10, 4, 5, 6]);
        frame.extend(vec![1; 4 * options]);
        frame.extend([0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
        frame
    }

    fn all_types() -> Types {
        Types::new(|_| true)
    }

    #[test]
    fn fast_path_equals_slow_path() {
        let padded = |tags, options| {
            let mut frame = frame(tags, options);
            frame.resize(80, 0);
            frame
        };
        let frame = padded(0, 0);
        let layers = layers::parse(&frame);
        let plain = layers::plain_v4(&frame).unwrap();
        for on in [&[HashType::Ipv4, HashType::UdpIpv4][..], &[HashType::Ipv4], &[]] {
            let types = Types::new(|hash_type| on.contains(&hash_type));
            let (over, tuple) = types.of_plain_v4(&plain);
            assert_eq!(over, types.of(layers.packet_type));
            if over != RssType::None {
                assert_eq!(tuple.input(), tuple_v4(&layers, &frame, over).input());
                let ports: &[u8] =
                    if over == RssType::Ipv4 { &[0; 4] } else { &[0x12, 0x34, 0x56, 0x78] };
                assert_eq!(tuple.input(), &[&[10, 1, 2, 3, 10, 4, 5, 6], ports].concat()[..]);
            }
        }
        for (tags, options) in [(1, 0), (2, 0), (0, 1), (1, 3)] {
            assert!(layers::plain_v4(&padded(tags, options)).is_none(), "{tags}, {options}");
        }
        assert!(layers::plain_v4(&frame[..37]).is_none());
    }

    #[test]
    fn a_flow_without_ip_is_its_addresses() {
        let hash = Hash::Toeplitz(Box::new(Toeplitz::new(&Key::MICROSOFT)));
        let of = |data: &[u8]| flow_hash(&hash, &all_types(), data, &layers::parse(data));
        let frame = frame(0, 0);
        let (value, over) = hash_of(&hash, &all_types(), &layers::parse(&frame), &frame);
        assert_eq!((of(&frame), over), (value, RssType::Ipv4Udp));
        let tuple = tuple_v4(&layers::parse(&frame), &frame, over);
        assert_eq!(value, picnic_hash::reference(&Key::MICROSOFT, tuple.input()));
        let arp: Vec<u8> = (0..12).chain([8, 6]).chain(100..146).collect();
        assert_eq!(of(&arp), lookup3(&arp[..12], 0));
        assert_eq!(of(&arp[..5]), lookup3(&arp[..5], 0));
    }
}
