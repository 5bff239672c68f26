//! Packets for a port of a host as an attacker would write them: chains of headers, fragments,
//! tags, routes.

use proptest::prelude::*;
use std::net::IpAddr;

/// An IPv6 header before another.
#[derive(Clone, Debug)]
pub(crate) struct Extension {
    pub(crate) kind: u8,
    pub(crate) units: u8,
    /// A routing header with segments left, in which the final destination is.
    pub(crate) left: bool,
}

/// A payload split into fragments.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    /// The cuts, in units of eight bytes.
    pub(crate) cuts: Vec<usize>,
    /// The next header in all fragments except the first, for IPv6.
    pub(crate) claims: Option<u8>,
    /// A fragment sent twice, the second time one unit later.
    pub(crate) overlaps: bool,
    pub(crate) order: u64,
}

/// A packet for a port of the host, as an attacker would write it.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) tags: Vec<u16>,
    pub(crate) v6: bool,
    pub(crate) source: u8,
    pub(crate) destination: u8,
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
    pub(crate) before: Vec<Extension>,
    pub(crate) behind: Vec<Extension>,
    pub(crate) pieces: Option<Pieces>,
    /// Options of IPv4: none, some, a source route.
    pub(crate) options: u8,
    /// The payload for the port.
    pub(crate) payload: [u8; 16],
}

pub(crate) fn address(v6: bool, number: u8) -> IpAddr {
    if v6 {
        IpAddr::from([0xfd, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number])
    } else {
        IpAddr::from([10, 88, 0, number])
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The hop of routes.
pub(crate) const ELSEWHERE: u8 = 9;

/// A chain of headers before a protocol: the number of the first header, and the bytes.
fn chain(extensions: &[Extension], protocol: u8) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (index, extension) in extensions.iter().enumerate() {
        let next = extensions.get(index + 1).map_or(protocol, |extension| extension.kind);
        let start = bytes.len();
        match extension.kind {
            43 if extension.left => {
                bytes.extend([next, 2, 4, 1, 0, 0, 0, 0]);
                bytes.extend(octets(address(true, ELSEWHERE)));
            }
            43 => {
                bytes.extend([next, extension.units, 0, 0]);
                bytes.resize(start + 8 + 8 * usize::from(extension.units), 0);
            }
            51 => {
                let units = extension.units % 100;
                bytes.extend([next, 2 + 2 * units]);
                bytes.resize(start + 16 + 8 * usize::from(units), 0);
            }
            // An atomic fragment, which cuts nothing.
            44 => bytes.extend([next, 0, 0, 0, 0, 0, 0, 1]),
            _ => {
                bytes.extend([next, extension.units]);
                // Options that a host skips.
                let end = start + 8 + 8 * usize::from(extension.units);
                while bytes.len() < end {
                    let length = (end - bytes.len() - 2).min(200);
                    bytes.extend([0x1e, length as u8]);
                    bytes.resize(bytes.len() + length, 0);
                    // A single byte of padding.
                    bytes.resize(bytes.len() + usize::from(end - bytes.len() == 1), 0);
                }
            }
        }
    }
    (extensions.first().map_or(protocol, |extension| extension.kind), bytes)
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

impl Written {
    /// The final address.
    pub(crate) fn reached(&self) -> IpAddr {
        let mut headers = self.before.iter().chain(&self.behind);
        let routed = headers.any(|header| header.kind == 43 && header.left);
        let routed = if self.v6 { routed } else { self.options == 2 };
        address(self.v6, if routed { ELSEWHERE } else { self.destination })
    }

    pub(crate) fn frames(&self, identification: u16) -> Vec<Vec<u8>> {
        let mut l4 = Vec::new();
        l4.extend(self.ports.0.to_be_bytes());
        l4.extend(self.ports.1.to_be_bytes());
        let checksum_at = match self.protocol {
            6 => {
                l4.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
                16
            }
            _ => {
                l4.extend([0, 24, 0, 0]);
                6
            }
        };
        l4.extend(self.payload);
        let mut covered = octets(address(self.v6, self.source));
        covered.extend(octets(self.reached()));
        covered.extend([0, self.protocol, 0, l4.len() as u8]);
        covered.extend(&l4);
        l4[checksum_at..checksum_at + 2].copy_from_slice(&checksum(&covered).to_be_bytes());
        let (next, payload) = if self.v6 {
            let (next, mut bytes) = chain(&self.behind, self.protocol);
            bytes.extend(l4);
            (next, bytes)
        } else {
            (self.protocol, l4)
        };
        let Some(pieces) = &self.pieces else {
            return vec![self.frame(next, &payload, None, identification)];
        };
        let units = payload.len().div_ceil(8);
        let mut cuts: Vec<_> = pieces.cuts.iter().map(|cut| cut % units).collect();
        cuts.extend([0, units]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut frames = Vec::new();
        for cut in cuts.windows(2) {
            let end = (cut[1] * 8).min(payload.len());
            let piece = &payload[cut[0] * 8..end];
            let more = u16::from(end != payload.len());
            let next = pieces.claims.filter(|_| cut[0] != 0 && self.v6).unwrap_or(next);
            let at = |unit: usize| {
                Some(if self.v6 { (unit as u16) << 3 | more } else { unit as u16 | more << 13 })
            };
            if pieces.overlaps && cut[0] != 0 {
                frames.push(self.frame(next, piece, at(cut[0] - 1), identification));
            }
            frames.push(self.frame(next, piece, at(cut[0]), identification));
        }
        let mut random = pieces.order | 1;
        for index in (1..frames.len()).rev() {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            frames.swap(index, (random >> 33) as usize % (index + 1));
        }
        frames
    }

    fn frame(&self, next: u8, payload: &[u8], fragment: Option<u16>, number: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0x88, 1, 2, 0, 0, 0, 0, 2];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 0]);
        }
        let (source, destination) =
            (address(self.v6, self.source), address(self.v6, self.destination));
        if self.v6 {
            let (next, mut bytes) = match fragment {
                None => chain(&self.before, next),
                Some(word) => {
                    let (first, mut bytes) = chain(&self.before, 44);
                    bytes.extend([next, 0]);
                    bytes.extend(word.to_be_bytes());
                    bytes.extend(u32::from(number).to_be_bytes());
                    (first, bytes)
                }
            };
            bytes.extend(payload);
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((bytes.len() as u16).to_be_bytes());
            frame.extend([next, 64]);
            frame.extend(octets(source));
            frame.extend(octets(destination));
            frame.extend(bytes);
        } else {
            let options: &[u8] = match self.options {
                0 => &[],
                1 => &[1, 1, 148, 4, 0, 0, 0, 0],
                _ => &[1, 131, 7, 4, 10, 88, 0, ELSEWHERE],
            };
            let length = 20 + options.len();
            let start = frame.len() + 2;
            frame.extend([0x08, 0x00, 0x40 | (length / 4) as u8, 0]);
            frame.extend(((length + payload.len()) as u16).to_be_bytes());
            frame.extend(number.to_be_bytes());
            frame.extend(fragment.unwrap_or(0).to_be_bytes());
            frame.extend([64, next, 0, 0]);
            frame.extend(octets(source));
            frame.extend(octets(destination));
            frame.extend(options);
            let sum = checksum(&frame[start..]);
            frame[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(payload);
        }
        frame
    }
}

fn extension() -> impl Strategy<Value = Extension> {
    let kind = prop_oneof![
        6 => Just(60_u8),
        2 => Just(0),
        2 => Just(43),
        1 => Just(44),
        1 => Just(51),
    ];
    let units = prop_oneof![12 => Just(0_u8), 3 => 0..4_u8, 1 => Just(130)];
    (kind, units, prop::bool::weighted(0.2)).prop_map(|(kind, units, left)| Extension {
        kind,
        units,
        left,
    })
}

fn extensions() -> impl Strategy<Value = Vec<Extension>> {
    let options =
        (0..=12_usize).prop_map(|count| vec![Extension { kind: 60, units: 0, left: false }; count]);
    prop_oneof![
        3 => Just(Vec::new()),
        2 => options,
        2 => proptest::collection::vec(extension(), 0..=12),
        1 => prop::sample::select(vec![135, 139, 140])
            .prop_map(|kind| vec![Extension { kind, units: 0, left: false }]),
    ]
}

pub(crate) fn written() -> impl Strategy<Value = Written> {
    let pieces = (
        proptest::collection::vec(0..40_usize, 0..6),
        proptest::option::of(prop::sample::select(vec![6_u8, 17, 58, 59, 60])),
        prop::bool::weighted(0.2),
        any::<u64>(),
    );
    let pieces =
        pieces.prop_map(|(cuts, claims, overlaps, order)| Pieces { cuts, claims, overlaps, order });
    let tag = prop::sample::select(vec![0x8100_u16, 0x88a8]);
    let tags = prop_oneof![4 => Just(Vec::new()), 2 => proptest::collection::vec(tag, 0..5)];
    let protocol = prop::sample::select(vec![6_u8, 17, 17]);
    (
        (tags, prop::bool::weighted(0.75), 1..4_u8, 1..4_u8),
        (protocol, (5..9_u16, 5..9_u16)),
        (extensions(), extensions(), proptest::option::weighted(0.4, pieces), 0..3_u8),
    )
        .prop_map(|((tags, v6, source, destination), (protocol, ports), rest)| {
            let (before, behind, pieces, options) = rest;
            Written {
                tags,
                v6,
                source,
                destination,
                protocol,
                ports,
                before,
                behind,
                pieces,
                options,
                payload: [0; 16],
            }
        })
}
