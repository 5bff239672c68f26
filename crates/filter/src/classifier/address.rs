//! Both addresses of a packet, IPv4 or IPv6, in the form that the classifier compares and hashes.

use crate::matching::{mask32, mask128};
use picnic_core::packet::layers::Layers;
use std::net::IpAddr;

/// Both addresses of a packet, source first, as in memory.
pub trait Address: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// Bits of one address.
    const BITS: u8;
    /// No bit set.
    const ZERO: Self;
    /// Number of words of both addresses.
    const WORDS: usize;
    /// Number of words of a rule in an image: a power of two.
    const RULE: usize;
    /// A value with some bits set and others clear.
    const MIXED: Self;

    /// Both addresses as words.
    fn words(&self) -> impl AsRef<[u64]>;

    /// Whether two differ where the mask has a one.
    fn differ(self, other: Self, mask: Self) -> bool;

    /// A hash of the bits under the mask, and of a word.
    fn hash(self, mask: Self, word: u64) -> u64;

    /// The bits under a mask.
    #[must_use]
    fn and(self, mask: Self) -> Self;

    /// The leading 64 bits of both addresses as numbers; shorter addresses are padded with zeros.
    fn numbers(self) -> [u64; 2];

    /// Number of bits set in each of both addresses.
    fn ones(self) -> [u8; 2];

    /// These bits under the mask, the other's elsewhere.
    #[must_use]
    fn blend(self, other: Self, mask: Self) -> Self;

    /// The first bits of both addresses set.
    fn mask(source: u8, destination: u8) -> Self;

    /// Two addresses of the family; `None` if either is of the other family.
    fn of(source: IpAddr, destination: IpAddr) -> Option<Self>;

    /// A packet's addresses; `None` if they are of the other family or cut off.
    fn of_packet(layers: &Layers, data: &[u8]) -> Option<Self>;
}

/// Multipliers without a pattern: digits of pi's fraction, made odd.
const K: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// Multiplies and folds both halves: every bit of either number affects the low bits.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Address for u64 {
    const BITS: u8 = 32;
    const ZERO: Self = 0;
    const WORDS: usize = 1;
    const RULE: usize = 4;
    const MIXED: Self = 0x5a5a_5a5a_5a5a_5a5a;

    fn words(&self) -> impl AsRef<[u64]> {
        [*self]
    }

    #[inline(always)]
    fn differ(self, other: Self, mask: Self) -> bool {
        (self ^ other) & mask != 0
    }

    #[inline(always)]
    fn hash(self, mask: Self, word: u64) -> u64 {
        mix(self & mask ^ K[0], word ^ K[1])
    }

    #[inline(always)]
    fn and(self, mask: Self) -> Self {
        self & mask
    }

    #[inline(always)]
    fn numbers(self) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h] = self.to_ne_bytes();
        [[a, b, c, d], [e, f, g, h]].map(|address| u64::from(u32::from_be_bytes(address)) << 32)
    }

    fn ones(self) -> [u8; 2] {
        self.numbers().map(|address| address.count_ones() as u8)
    }

    fn blend(self, other: Self, mask: Self) -> Self {
        self & mask | other & !mask
    }

    fn mask(source: u8, destination: u8) -> Self {
        pair4(mask32(source).to_be_bytes(), mask32(destination).to_be_bytes())
    }

    fn of(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Some(pair4(source.octets(), destination.octets()))
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn of_packet(layers: &Layers, data: &[u8]) -> Option<Self> {
        let (source, destination) = layers.ipv4_addresses(data)?;
        Some(pair4(source.to_ne_bytes(), destination.to_ne_bytes()))
    }
}

#[inline(always)]
fn pair4([a, b, c, d]: [u8; 4], [e, f, g, h]: [u8; 4]) -> u64 {
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

impl Address for [u64; 4] {
    const BITS: u8 = 128;
    const ZERO: Self = [0; 4];
    const WORDS: usize = 4;
    const RULE: usize = 16;
    const MIXED: Self = [0x5a5a_5a5a_5a5a_5a5a; 4];

    fn words(&self) -> impl AsRef<[u64]> {
        *self
    }

    #[inline(always)]
    fn differ(self, other: Self, mask: Self) -> bool {
        let word = |n: usize| (self[n] ^ other[n]) & mask[n];
        word(0) | word(1) | word(2) | word(3) != 0
    }

    #[inline(always)]
    fn hash(self, mask: Self, word: u64) -> u64 {
        let [a, b, c, d] = self.and(mask);
        mix(a ^ K[0], b ^ K[1])
            ^ mix(c ^ K[2], d.rotate_left(32) ^ K[3]).rotate_left(17)
            ^ mix(word ^ K[3], K[2])
    }

    #[inline(always)]
    fn and(self, mask: Self) -> Self {
        std::array::from_fn(|n| self[n] & mask[n])
    }

    #[inline(always)]
    fn numbers(self) -> [u64; 2] {
        [u64::from_be(self[0]), u64::from_be(self[2])]
    }

    fn ones(self) -> [u8; 2] {
        [[self[0], self[1]], [self[2], self[3]]]
            .map(|[a, b]| (a.count_ones() + b.count_ones()) as u8)
    }

    fn blend(self, other: Self, mask: Self) -> Self {
        std::array::from_fn(|n| self[n] & mask[n] | other[n] & !mask[n])
    }

    fn mask(source: u8, destination: u8) -> Self {
        pair6(mask128(source).to_be_bytes(), mask128(destination).to_be_bytes())
    }

    fn of(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Some(pair6(source.octets(), destination.octets()))
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn of_packet(layers: &Layers, data: &[u8]) -> Option<Self> {
        let (words, _) = layers.ipv6_addresses(data)?.as_chunks::<8>();
        Some(std::array::from_fn(|n| u64::from_ne_bytes(words[n])))
    }
}

fn pair6(source: [u8; 16], destination: [u8; 16]) -> [u64; 4] {
    let (source, destination) = (source.as_chunks::<8>().0, destination.as_chunks::<8>().0);
    [source[0], source[1], destination[0], destination[1]].map(u64::from_ne_bytes)
}
