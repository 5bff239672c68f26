//! `[[wire.flow]]`: your own flows, with addresses, ports and payload.
//!
//! Guarantees: no two flows of a section have the same addresses and ports; the same seed gives the
//! same flows.
//!
//! Source: RFC 1035 for the query, RFC 9112 for the request, RFC 4987 for the flood.

use super::config::{MAX_FLOWS, MIN_FRAME_BYTES, Size, check_size};
use super::flows::{LONGEST_TEMPLATE, Shape, Tuple};
use super::random::Random;
use picnic_core::error::ConfigError;
use picnic_core::packet::wire::TcpFlags;
use schemars::JsonSchema;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Predefined kinds of packets.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FlowKind {
    /// Queries for the address of example.com, over UDP to port 53.
    Dns,
    /// Requests for the first page of example.com, over TCP to port 80.
    HttpGet,
    /// TCP segments that open connections to port 80, of 4096 flows.
    SynFlood,
}

/// The protocol above IP.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port, or a range from which each flow has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports(pub u16, pub u16);

/// Flows of one kind.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct FlowConfig {
    /// "dns" (queries, UDP to port 53), "http-get" (requests, TCP to port 80) or "syn-flood" (SYN
    /// segments of 4096 flows to port 80); default: packets as the other keys describe.
    pub kind: Option<FlowKind>,
    /// "tcp" or "udp"; default: the protocol of its kind, "udp" without a kind.
    pub protocol: Option<Protocol>,
    /// Source address, such as 10.0.0.1 or fd00::1, or a prefix such as 10.0.0.0/24, from which
    /// each flow draws its own; default: 198.18.0.0/16 or 2001:2:0:1::/64.
    pub source: Option<String>,
    /// Destination address or prefix; default: 198.19.0.0/16 or 2001:2:0:2::/64.
    pub destination: Option<String>,
    /// Source port, or a range such as [1024, 65535] (the default), from which each flow draws its
    /// own.
    pub source_port: Option<Ports>,
    /// Destination port, or a range; default: the port of its kind, or [1, 49151].
    pub destination_port: Option<Ports>,
    /// Flows, each with its own addresses and ports; default: 1, or 4096 for a flood.
    #[schemars(range(min = 1, max = MAX_FLOWS))]
    pub flows: Option<u32>,
    /// Text of each packet's payload, instead of the payload of its kind; up to the 128th byte of
    /// the frame.
    pub payload: Option<String>,
    /// Frame size in bytes without FCS, zeros after the payload: as `size` of the wire, which is
    /// the default of flows without kind and payload.
    pub size: Option<Size>,
    /// Share of the packets, relative to the other sections' shares.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub share: f64,
}

impl Default for FlowConfig {
    fn default() -> Self {
        FlowConfig {
            kind: None,
            protocol: None,
            source: None,
            destination: None,
            source_port: None,
            destination_port: None,
            flows: None,
            payload: None,
            size: None,
            share: 1.0,
        }
    }
}

/// Flows of one section, checked.
#[derive(Debug)]
pub(crate) struct Plan {
    udp: bool,
    flags: TcpFlags,
    source: Prefix,
    destination: Prefix,
    ports: [Ports; 2],
    pub(crate) flows: u32,
    payload: Vec<u8>,
    /// Whether Ethernet pads short frames.
    pads: bool,
    pub(crate) size: Size,
    pub(crate) share: f64,
}

impl FlowConfig {
    /// The flows that the keys ask for.
    pub(crate) fn plan(&self, wire_size: Size, largest: u16) -> Result<Plan, ConfigError> {
        let wrong = |key: &str, message: String| Err(ConfigError::new(key, message));
        let of_kind = match self.kind {
            None => None,
            Some(FlowKind::Dns) => Some(Protocol::Udp),
            Some(FlowKind::HttpGet | FlowKind::SynFlood) => Some(Protocol::Tcp),
        };
        let protocol = self.protocol.or(of_kind).unwrap_or(Protocol::Udp);
        if of_kind.is_some_and(|of_kind| of_kind != protocol) {
            let message = "found a protocol that contradicts its kind, allowed: no key";
            return wrong("protocol", message.into());
        }
        let udp = protocol == Protocol::Udp;
        let is_ipv6 = [&self.source, &self.destination]
            .into_iter()
            .flatten()
            .any(|address| address.contains(':'));
        let defaults = match is_ipv6 {
            false => ["198.18.0.0/16", "198.19.0.0/16"],
            true => ["2001:2:0:1::/64", "2001:2:0:2::/64"],
        };
        let prefix = |key: &str, given: &Option<String>, default: &str| {
            let text = given.as_deref().unwrap_or(default);
            let family = if is_ipv6 { "IPv6, as the other's" } else { "IPv4" };
            let example = if is_ipv6 { "fd00::1 or fd00::/64" } else { "10.0.0.1 or 10.0.0.0/24" };
            Prefix::parse(text).filter(|prefix| prefix.is_ipv6 == is_ipv6).ok_or_else(|| {
                let allowed = format!("an address or prefix of {family}: {example}");
                ConfigError::new(key, format!("found \"{text}\", allowed: {allowed}"))
            })
        };
        let source = prefix("source", &self.source, defaults[0]);
        let destination = prefix("destination", &self.destination, defaults[1]);
        let (source, destination) = ConfigError::both(source, destination)?;
        let to = match self.kind {
            None => Ports(1, 49_151),
            Some(FlowKind::Dns) => Ports(53, 53),
            Some(FlowKind::HttpGet | FlowKind::SynFlood) => Ports(80, 80),
        };
        let ports =
            [self.source_port.unwrap_or(Ports(1024, 65_535)), self.destination_port.unwrap_or(to)];
        for (key, Ports(low, high)) in ["source_port", "destination_port"].into_iter().zip(ports) {
            if low > high {
                let message = format!("found [{low}, {high}], allowed: the lower bound first");
                return wrong(key, message);
            }
        }
        let is_flood = self.kind == Some(FlowKind::SynFlood);
        let room = source.count().saturating_mul(destination.count());
        let room = ports.iter().fold(room, |room, ports| room.saturating_mul(ports.count()));
        let most = room.min(MAX_FLOWS.into()) as u32;
        let flows = self.flows.unwrap_or(if is_flood { most.min(4096) } else { 1 });
        if !(1..=most).contains(&flows) {
            let message = format!(
                "found {flows}, allowed: 1 to {most} (these addresses and ports allow no more)"
            );
            return wrong("flows", message);
        }
        let payload = match (&self.payload, self.kind) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(FlowKind::Dns)) => QUERY.to_vec(),
            (None, Some(FlowKind::HttpGet)) => REQUEST.to_vec(),
            (None, Some(FlowKind::SynFlood) | None) => Vec::new(),
        };
        let headers = Shape::new(is_ipv6, udp, false).headers();
        if headers + payload.len() > LONGEST_TEMPLATE {
            let (found, most) = (payload.len(), LONGEST_TEMPLATE - headers);
            return wrong("payload", format!("found {found} bytes, allowed: up to {most}"));
        }
        if let Some(size) = self.size {
            check_size(size, largest)?;
        }
        let flags = match self.kind {
            Some(FlowKind::SynFlood) => TcpFlags::SYN,
            Some(FlowKind::HttpGet) => TcpFlags::PSH | TcpFlags::ACK,
            _ => TcpFlags::ACK,
        };
        let pads = self.size.is_none() && (self.kind.is_some() || self.payload.is_some());
        let own = if pads { Size::Fixed(MIN_FRAME_BYTES) } else { wire_size };
        let (size, share) = (self.size.unwrap_or(own), self.share);
        Ok(Plan { udp, flags, source, destination, ports, flows, payload, pads, size, share })
    }
}

/// A query for the address of example.com, and a request for its first page.
const QUERY: &[u8] =
    b"\x50\x49\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";

impl Plan {
    /// The offsets of fields in its frames.
    pub(crate) fn shape(&self) -> Shape {
        let shape = Shape::new(self.source.is_ipv6, self.udp, false);
        shape.with_payload(self.payload.len() as u8, self.pads)
    }

    /// The payload of its packets.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Its packets' flags, if they are TCP's.
    pub(crate) fn flags(&self) -> TcpFlags {
        self.flags
    }

    /// Draws its flows.
    pub(crate) fn draw(&self, random: &mut Random) -> Vec<Tuple> {
        let counts = [
            self.source.count(),
            self.destination.count(),
            self.ports[0].count(),
            self.ports[1].count(),
        ];
        let room = counts.iter().fold(1_u128, |room, &count| room.saturating_mul(count));
        let tuple = |[source, destination, from, to]: [u128; 4]| Tuple {
            udp: self.udp,
            source: self.source.address(source),
            destination: self.destination.address(destination),
            ports: [self.ports[0].0 + from as u16, self.ports[1].0 + to as u16],
        };
        if room < u128::from(self.flows) * 2 {
            // Most of those there are: in order, as drawing would take long to find the last.
            let numbered = |mut number: u128| {
                tuple(counts.map(|count| {
                    let place = number % count;
                    number /= count;
                    place
                }))
            };
            return (0..u128::from(self.flows)).map(numbered).collect();
        }
        let mut known = HashSet::with_capacity(self.flows as usize);
        let mut flows = Vec::with_capacity(self.flows as usize);
        while flows.len() < self.flows as usize {
            let tuple = tuple(counts.map(|count| u128::from(random.next()) % count));
            if known.insert(tuple) {
                flows.push(tuple);
            }
        }
        flows
    }
}

/// Addresses that have their first bits in common.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    is_ipv6: bool,
    first: u128,
    /// Bits that differ; of more than 64, the last 64 do.
    bits: u32,
}

impl Prefix {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let (is_ipv6, first, whole) = match address.parse().ok()? {
            IpAddr::V4(address) => (false, u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (true, u128::from(address), 128),
        };
        let length = length.map_or(Some(whole), |length| length.parse().ok())?;
        let bits = u32::checked_sub(whole, length)?;
        let mask = 1_u128.checked_shl(bits).map_or(u128::MAX, |first| first - 1);
        Some(Prefix { is_ipv6, first: first & !mask, bits: bits.min(64) })
    }

    fn count(self) -> u128 {
        1 << self.bits
    }

    fn address(self, number: u128) -> IpAddr {
        let address = self.first + number;
        match self.is_ipv6 {
            true => Ipv6Addr::from(address).into(),
            false => Ipv4Addr::from(address as u32).into(),
        }
    }
}

impl Ports {
    fn count(self) -> u128 {
        u128::from(self.1.saturating_sub(self.0)) + 1
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortsVisitor;
        impl<'de> Visitor<'de> for PortsVisitor {
            type Value = Ports;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port, 0 to 65535, or a range such as [1024, 65535]")
            }

            fn visit_i64<E: de::Error>(self, port: i64) -> Result<Ports, E> {
                let port = u16::try_from(port)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(port), &self))?;
                Ok(Ports(port, port))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ports, A::Error> {
                let mut next = |index| {
                    list.next_element::<u16>()?
                        .ok_or_else(|| de::Error::invalid_length(index, &PortsVisitor))
                };
                let ports = Ports(next(0)?, next(1)?);
                match list.next_element::<de::IgnoredAny>()? {
                    None => Ok(ports),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(PortsVisitor)
    }
}

impl JsonSchema for Ports {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Ports".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [
            { "type": "integer" },
            { "type": "array", "items": { "type": "integer" } },
        ] })
    }

    fn inline_schema() -> bool {
        true
    }
}
