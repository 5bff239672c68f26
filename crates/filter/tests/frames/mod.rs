//! Frames of all kinds: VLAN tags, IPv4, IPv6, fragments, ARP, truncated.

pub(crate) mod hidden;

use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The parts of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) tags: usize,
    pub(crate) ether_type: u16,
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) protocol: u8,
    /// Of IPv4, and of fragment headers of IPv6.
    pub(crate) fragment: u16,
    /// Extension headers of IPv6, by their numbers.
    pub(crate) extensions: Vec<u8>,
    /// Segments left, in routing headers.
    pub(crate) left: u8,
    pub(crate) ports: (u16, u16),
    /// Its length after truncation.
    pub(crate) cut: usize,
}

impl Default for Frame {
    fn default() -> Self {
        Frame {
            tags: 0,
            ether_type: 0x0800,
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
            protocol: 17,
            fragment: 0,
            extensions: Vec::new(),
            left: 0,
            ports: (1000, 2000),
            cut: usize::MAX,
        }
    }
}

/// An IPv6 address that holds an IPv4 one, first and last.
pub(crate) fn wide(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
}

impl Frame {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut l4 = [0_u8; 28];
        l4[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        l4[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        match self.protocol {
            6 => l4[12] = 0x50,
            17 => l4[5] = 28,
            _ => {}
        }
        let mut frame = vec![0x11; 12];
        for _ in 0..self.tags {
            frame.extend([0x81, 0x00, 0x00, 0x05]);
        }
        frame.extend(self.ether_type.to_be_bytes());
        match self.ether_type {
            0x0800 => {
                let mut header = [0_u8; 20];
                header[0] = 0x45;
                header[3] = 48;
                header[6..8].copy_from_slice(&self.fragment.to_be_bytes());
                header[8] = 64;
                header[9] = self.protocol;
                header[12..16].copy_from_slice(&self.source.to_be_bytes());
                header[16..20].copy_from_slice(&self.destination.to_be_bytes());
                frame.extend(header);
            }
            0x86dd => {
                let mut chain = Vec::new();
                for (index, kind) in self.extensions.iter().enumerate() {
                    let next = self.extensions.get(index + 1).unwrap_or(&self.protocol);
                    let [high, low] = self.fragment.to_be_bytes();
                    chain.extend(match kind {
                        43 => [*next, 0, 0, self.left, 0, 0, 0, 0],
                        44 => [*next, 0, high, low, 0, 0, 0, 1],
                        51 => [*next, 2, 0, 0, 0, 0, 0, 0],
                        _ => [*next, 0, 1, 4, 0, 0, 0, 0],
                    });
                    chain.resize(chain.len() + if *kind == 51 { 8 } else { 0 }, 0);
                }
                let mut header = [0_u8; 40];
                header[0] = 0x60;
                header[5] = 28 + chain.len() as u8;
                header[6] = self.extensions.first().copied().unwrap_or(self.protocol);
                header[7] = 64;
                header[8..24].copy_from_slice(&wide(self.source.into()).octets());
                header[24..40].copy_from_slice(&wide(self.destination.into()).octets());
                frame.extend(header);
                frame.extend(chain);
            }
            _ => {}
        }
        frame.extend(l4);
        frame.truncate(self.cut.max(1));
        frame
    }
}

/// Addresses close together, so that prefixes overlap.
pub(crate) fn address() -> impl Strategy<Value = Ipv4Addr> {
    (any::<u32>(), 0..3_u8).prop_map(|(bits, how)| {
        Ipv4Addr::from(match how {
            0 => bits & 0x8001_0003,
            1 => bits & 3,
            _ => bits,
        })
    })
}

pub(crate) fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ether_type = prop_oneof![5 => Just(0x0800), 4 => Just(0x86dd), 1 => Just(0x0806)];
    let protocol = prop_oneof![3 => Just(6), 3 => Just(17), 1 => Just(1), 1 => any::<u8>()];
    let cut = prop_oneof![6 => Just(usize::MAX), 1 => 1..90_usize];
    let fragment = prop_oneof![6 => Just(0), 1 => Just(0x2000), 1 => Just(0x0010), 1 => Just(1)];
    let tags = prop_oneof![3 => Just(0), 2 => Just(1), 2 => Just(2), 1 => Just(3), 1 => Just(4)];
    let extension = prop::sample::select(vec![0_u8, 43, 44, 51, 60, 60, 135, 139, 140]);
    let extensions = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec(extension, 1..4),
        1 => (6..12_usize).prop_map(|count| vec![60; count]),
    ];
    let ip = (ether_type, address(), address(), protocol, fragment, extensions, 0..2_u8);
    (tags, ip, (0..8_u16, 0..8_u16), cut).prop_map(|(tags, ip, ports, cut)| {
        let (ether_type, source, destination, protocol, fragment, extensions, left) = ip;
        Frame {
            tags,
            ether_type,
            source: source.into(),
            destination: destination.into(),
            protocol,
            fragment,
            extensions,
            left,
            ports,
            cut,
        }
        .bytes()
    })
}
