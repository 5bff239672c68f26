//! What a packet is hashed over, and by what.
//!
//! Addresses and ports, as the switches of [`Types`] have it, put into the tuples that
//! the hashes take. Guarantees: no panic, also on layers of other bytes.
//! Source: Microsoft, "RSS hashing types" (NDIS).

use super::HashType;
use picnic_core::kernel::{FlowHash, Hashed, HashedOver};
use picnic_core::packet::desc::RssType;
use picnic_core::packet::layers::{L3Kind, L4Kind, Layers, PacketType};
use picnic_hash::{Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6, lookup2, lookup3};

/// The hash in use.
#[derive(Debug)]
pub(crate) enum Hash {
    Toeplitz(Box<Toeplitz>),
    Lookup3(u32),
    Lookup2(u32),
}

impl Hash {
    /// The same in the kernel.
    pub(super) fn in_kernel(&self) -> FlowHash {
        match self {
            Hash::Toeplitz(toeplitz) => FlowHash::Toeplitz(toeplitz.contributions().to_vec()),
            Hash::Lookup3(initial) => FlowHash::Lookup3(*initial),
            Hash::Lookup2(initial) => FlowHash::Lookup2(*initial),
        }
    }

    #[inline]
    pub(super) fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
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

/// What each of the 256 packet types is hashed over: the switches, applied once.
pub(crate) struct Types([RssType; 256]);

impl Types {
    pub(crate) fn new(is_on: impl Fn(HashType) -> bool) -> Types {
        Types(std::array::from_fn(|bits| {
            let packet_type = PacketType::from_bits(bits as u8);
            // Of a fragment L4 is `None`, so that all fragments of a packet are hashed alike.
            match (packet_type.l3(), packet_type.l4()) {
                (L3Kind::Ipv4, L4Kind::Tcp) if is_on(HashType::TcpIpv4) => RssType::Ipv4Tcp,
                (L3Kind::Ipv4, L4Kind::Udp) if is_on(HashType::UdpIpv4) => RssType::Ipv4Udp,
                (L3Kind::Ipv4, _) if is_on(HashType::Ipv4) => RssType::Ipv4,
                (L3Kind::Ipv6, L4Kind::Tcp) if is_on(HashType::TcpIpv6) => RssType::Ipv6Tcp,
                (L3Kind::Ipv6, L4Kind::Udp) if is_on(HashType::UdpIpv6) => RssType::Ipv6Udp,
                (L3Kind::Ipv6, _) if is_on(HashType::Ipv6) => RssType::Ipv6,
                _ => RssType::None,
            }
        }))
    }

    /// The same in the kernel, of one IP version.
    pub(super) fn in_kernel(&self, l3: L3Kind) -> HashedOver {
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
    pub(super) fn of(&self, packet_type: PacketType) -> RssType {
        self.0[usize::from(packet_type.bits())]
    }
}

pub(super) enum Family {
    V4,
    V6,
    None,
}

#[inline(always)]
pub(super) fn family(over: RssType) -> Family {
    match over {
        RssType::None => Family::None,
        RssType::Ipv4 | RssType::Ipv4Tcp | RssType::Ipv4Udp => Family::V4,
        RssType::Ipv6 | RssType::Ipv6Tcp | RssType::Ipv6Udp => Family::V6,
    }
}

/// A short path for most frames: no tag, IPv4 without options, TCP or UDP, hashed with ports or
/// without. The layers again, with offsets that the compiler knows, and the tuple, in one piece.
#[inline(always)]
pub(super) fn plain_v4(layers: &Layers, data: &[u8], over: RssType) -> Option<(Layers, V4Tuple)> {
    let &Layers { l3_offset, vlan_count, l4_offset, packet_type, protocol, vlan_tci } = layers;
    let is_plain = (l3_offset == 14) & (vlan_count == 0) & (l4_offset == 34) & (vlan_tci == 0);
    // Of a chained packet this says no more than that it goes on: to be parsed again, elsewhere.
    let is_plain = is_plain & !packet_type.is_malformed();
    let ports = match over {
        RssType::Ipv4Tcp | RssType::Ipv4Udp => u32::MAX,
        RssType::Ipv4 => 0,
        _ => return None,
    };
    if !is_plain {
        return None;
    }
    let flow: &[u8; 12] = data.get(26..)?.first_chunk()?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *flow;
    let word = u32::from_ne_bytes;
    let ports = word([i, j, k, l]) & ports;
    let tuple = V4Tuple::from_words(word([a, b, c, d]), word([e, f, g, h]), ports);
    let layers =
        Layers { l3_offset: 14, vlan_count: 0, l4_offset: 34, packet_type, protocol, vlan_tci: 0 };
    Some((layers, tuple))
}

/// Both ports as they lie in memory; zero if the hash is not over them.
#[inline(always)]
fn ports(layers: &Layers, data: &[u8], over: RssType) -> u32 {
    match over {
        RssType::None | RssType::Ipv4 | RssType::Ipv6 => 0,
        _ => layers.ports(data).unwrap_or_default(),
    }
}

// Layers that were parsed from `data` have their addresses and ports in it, so the zeros
// below stand for nothing that occurs.

#[inline(always)]
pub(super) fn tuple_v4(layers: &Layers, data: &[u8], over: RssType) -> V4Tuple {
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

/// The hash of one packet that was parsed to `layers`, and what it is over.
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
