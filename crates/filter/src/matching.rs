//! The condition of a filter: a five-tuple, a static pattern, or a predicate.
//!
//! Guarantees: matching reads no byte past the packet's end. A pattern that would does not match,
//! and is counted (`short_packets`).
//!
//! A five-tuple matches only IP packets of the family of its prefixes, after up to two VLAN tags.
//! Ports restrict it to TCP and UDP packets with readable ports: no fragment, not even the first,
//! matches a filter with ports, since all fragments of a packet must share one fate. Packets that
//! cannot be read may still [match](FiveTuple::could_match).
//!
//! Source: NICOS 4.4 and Program 1.

use super::hidden::{self, Headers, Hidden};
use super::text::{self, Reason};
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::{L3Kind, Layers};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The longest pattern, in bytes.
pub const LONGEST_PATTERN: usize = 64;
/// Most values of one pattern.
pub const MOST_VALUES: usize = 256;

/// The condition of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Match {
    /// Every packet, IP or not.
    #[default]
    Any,
    /// By addresses, ports and protocol.
    FiveTuple(FiveTuple),
    /// By bytes at a fixed place.
    Pattern(Pattern),
    /// By the filter's predicate.
    Predicate,
}

impl From<FiveTuple> for Match {
    fn from(tuple: FiveTuple) -> Self {
        Match::FiveTuple(tuple)
    }
}

impl From<Pattern> for Match {
    fn from(pattern: Pattern) -> Self {
        Match::Pattern(pattern)
    }
}

/// An IP protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP.
    pub const ICMP: Self = Protocol(1);
    /// TCP.
    pub const TCP: Self = Protocol(6);
    /// UDP.
    pub const UDP: Self = Protocol(17);
    /// The authentication header: a protocol in IPv4, an extension header in IPv6.
    pub const AUTHENTICATION: Self = Protocol(51);
    /// ICMPv6.
    pub const ICMPV6: Self = Protocol(58);

    /// Names of protocols, and their numbers.
    const NAMES: [(&'static str, u8); 9] = [
        ("icmp", 1),
        ("igmp", 2),
        ("tcp", 6),
        ("udp", 17),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("icmpv6", 58),
        ("sctp", 132),
    ];
}

impl FromStr for Protocol {
    type Err = Reason;
    fn from_str(text: &str) -> Result<Self, Reason> {
        let named = Protocol::NAMES.iter().find(|(name, _)| *name == text);
        if let Some(&(_, number)) = named {
            return Ok(Protocol(number));
        }
        text::number(text).map(Protocol).ok_or_else(|| {
            let names: Vec<_> = Protocol::NAMES.iter().map(|(name, _)| *name).collect();
            Reason::new(text, format!("{}, or a number from 0 to 255", names.join(", ")))
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Protocol::NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// An IP prefix; the bits after its length are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The prefix of an address; later bits are cleared. `None` if the length exceeds the address.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Option<Self> {
        let address = match address.into() {
            IpAddr::V4(address) if length <= 32 => {
                IpAddr::V4((u32::from(address) & mask32(length)).into())
            }
            IpAddr::V6(address) if length <= 128 => {
                IpAddr::V6((u128::from(address) & mask128(length)).into())
            }
            _ => return None,
        };
        Some(Prefix { address, length })
    }

    /// The first address of the prefix.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits of the prefix.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether it is of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether every address of `other` is also in this prefix.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.length <= other.length && Prefix::new(other.address, self.length) == Some(*self)
    }

    /// Whether it contains an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        Prefix::new(address, self.length) == Some(*self)
    }
}

/// The first `length` of 32 bits.
pub(super) fn mask32(length: u8) -> u32 {
    !u32::MAX.checked_shr(length.into()).unwrap_or(0)
}

/// The first `length` of 128 bits.
pub(super) fn mask128(length: u8) -> u128 {
    !u128::MAX.checked_shr(length.into()).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = Reason;
    fn from_str(text: &str) -> Result<Self, Reason> {
        const ALLOWED: &str = "an address, or a prefix such as 10.0.0.0/8 or 2001:db8::/32";
        let (address, length) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| Reason::new(text, ALLOWED))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(length) => text::number(length)
                .filter(|length| *length <= most)
                .ok_or_else(|| Reason::new(text, format!("a length of 0 to {most} bits")))?,
        };
        let prefix = Prefix::new(address, length).ok_or_else(|| Reason::new(text, ALLOWED))?;
        if prefix.address != address {
            return Err(Reason::new(
                text,
                format!("{prefix}: the bits after the prefix must be zero"),
            ));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Ports from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    low: u16,
    high: u16,
}

impl Default for PortRange {
    fn default() -> Self {
        PortRange::ANY
    }
}

impl PortRange {
    /// All ports, and packets without ports.
    pub const ANY: Self = PortRange { low: 0, high: u16::MAX };

    /// From `low` to `high`; `None` if there is no such port.
    pub const fn new(low: u16, high: u16) -> Option<Self> {
        if low <= high { Some(PortRange { low, high }) } else { None }
    }

    /// One port.
    pub const fn one(port: u16) -> Self {
        PortRange { low: port, high: port }
    }

    /// The lowest port.
    pub fn low(&self) -> u16 {
        self.low
    }

    /// The highest port.
    pub fn high(&self) -> u16 {
        self.high
    }

    /// Whether it has all ports, and so is no condition.
    pub fn is_any(&self) -> bool {
        *self == PortRange::ANY
    }

    /// Whether it contains a port.
    pub fn contains(&self, port: u16) -> bool {
        (self.low..=self.high).contains(&port)
    }

    /// Whether it contains all of `other`.
    pub fn covers(&self, other: &PortRange) -> bool {
        self.low <= other.low && other.high <= self.high
    }

    /// Whether they overlap.
    pub fn meets(&self, other: &PortRange) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

impl FromStr for PortRange {
    type Err = Reason;
    fn from_str(text: &str) -> Result<Self, Reason> {
        if text == "any" {
            return Ok(PortRange::ANY);
        }
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let range = text::number(low).zip(text::number(high));
        range.and_then(|(low, high)| PortRange::new(low, high)).ok_or_else(|| {
            Reason::new(
                text,
                "any, a port, or a range such as 1024-2047, from 0 to 65535, low first",
            )
        })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PortRange::ANY => f.write_str("any"),
            PortRange { low, high } if low == high => write!(f, "{low}"),
            PortRange { low, high } => write!(f, "{low}-{high}"),
        }
    }
}

/// Conditions on addresses, ports and protocol; a missing condition matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// The IP protocol, after extension headers; `ah` also matches among them.
    pub protocol: Option<Protocol>,
    /// The source address.
    pub source: Option<Prefix>,
    /// The destination address.
    pub destination: Option<Prefix>,
    /// The source port.
    pub source_ports: PortRange,
    /// The destination port.
    pub destination_ports: PortRange,
}

impl FiveTuple {
    /// Whether one prefix is IPv4 and the other IPv6, so that no packet can match.
    pub fn mixes_families(&self) -> bool {
        match (self.source, self.destination) {
            (Some(source), Some(destination)) => source.is_ipv4() != destination.is_ipv4(),
            _ => false,
        }
    }

    /// The family of the prefixes: `Some(true)` for IPv4, `None` for both.
    pub fn is_ipv4(&self) -> Option<bool> {
        self.source.or(self.destination).map(|prefix| prefix.is_ipv4())
    }

    /// Whether it has conditions on ports.
    pub fn has_ports(&self) -> bool {
        !self.source_ports.is_any() || !self.destination_ports.is_any()
    }

    /// Whether a packet certainly matches: every condition could be read.
    pub fn matches(&self, packet: &Tuple) -> bool {
        // A hidden address is all zeros, in its family.
        let meets = |prefix: Option<Prefix>, address, is_read| {
            let is_met =
                |prefix: Prefix| prefix.contains(address) && (is_read || prefix.length() == 0);
            prefix.is_none_or(is_met)
        };
        if packet.hidden == Hidden::Everything
            || !meets(self.source, packet.source, packet.hidden < Hidden::Addresses)
            || !meets(self.destination, packet.destination, packet.hidden < Hidden::Destination)
        {
            return false;
        }
        let is_read = packet.hidden < Hidden::Chain;
        let (source, destination) = match (self.protocol, packet.ports) {
            (None, Some(ports)) => ports,
            (Some(protocol), Some(ports)) if is_read && protocol == packet.protocol => ports,
            (None, None) => return !self.has_ports(),
            (Some(protocol), _) => {
                let is_protocol = is_read && protocol == packet.protocol
                    || packet.authenticated && protocol == Protocol::AUTHENTICATION;
                return is_protocol && !self.has_ports();
            }
        };
        self.source_ports.contains(source) && self.destination_ports.contains(destination)
    }

    /// Whether a packet matches, or could match once the host has read it in full.
    pub fn could_match(&self, packet: &Tuple) -> bool {
        let meets =
            |prefix: Option<Prefix>, address| prefix.is_none_or(|prefix| prefix.contains(address));
        let meets_addresses =
            || meets(self.source, packet.source) && meets(self.destination, packet.destination);
        self.matches(packet)
            || match packet.hidden {
                Hidden::Nothing => false,
                Hidden::Ports => {
                    self.protocol.is_none_or(|protocol| protocol == packet.protocol)
                        && meets_addresses()
                }
                Hidden::Protocol => meets_addresses(),
                Hidden::Destination | Hidden::Chain | Hidden::Addresses => {
                    self.is_ipv4().is_none_or(|is_ipv4| is_ipv4 == packet.source.is_ipv4())
                }
                Hidden::Everything => true,
            }
    }
}

/// The five-tuple of an IP packet, as far as it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol.
    pub protocol: Protocol,
    /// Source and destination port, for unfragmented TCP and UDP.
    pub ports: Option<(u16, u16)>,
    /// The hidden part; hidden addresses are all zeros.
    pub hidden: Hidden,
    /// Whether `ah` also counts as its protocol.
    pub authenticated: bool,
}

impl Tuple {
    /// From a frame; `None` if it is not IP.
    pub fn of(layers: &Layers, data: &[u8]) -> Option<Self> {
        let Headers { hidden, authenticated } = Headers::of(layers, data);
        let zeros = match hidden::is_ipv4(layers, data) {
            Some(false) => IpAddr::from([0; 16]),
            _ => IpAddr::from([0; 4]),
        };
        let (source, mut destination) = match layers.packet_type.l3() {
            _ if hidden >= Hidden::Addresses => (zeros, zeros),
            L3Kind::Ipv4 => {
                let (source, destination) = layers.ipv4_addresses(data)?;
                (IpAddr::from(source.to_ne_bytes()), IpAddr::from(destination.to_ne_bytes()))
            }
            L3Kind::Ipv6 => {
                let (halves, _) = layers.ipv6_addresses(data)?.as_chunks::<16>();
                (IpAddr::from(halves[0]), IpAddr::from(halves[1]))
            }
            _ => return None,
        };
        if hidden >= Hidden::Destination {
            destination = zeros;
        }
        let ports = layers.ports(data).map(|ports| {
            let [a, b, c, d] = ports.to_ne_bytes();
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
        });
        let protocol = Protocol(layers.protocol);
        Some(Tuple { source, destination, protocol, ports, hidden, authenticated })
    }
}

/// Start of the count of a pattern's position.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The first byte of the frame.
    #[default]
    Frame,
    /// The network header, after VLAN tags.
    L3,
    /// The transport header; for packets that have one and are not fragments.
    L4,
}

/// Bytes at a fixed place that match if, under the mask, they equal one of the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    base: Base,
    start: u16,
    mask: Vec<u8>,
    /// Consecutive values, each as long as the mask, with bits outside it zero.
    values: Vec<u8>,
}

fn check_length(bytes: usize) -> Result<(), (&'static str, Reason)> {
    if (1..=LONGEST_PATTERN).contains(&bytes) {
        return Ok(());
    }
    let allowed = format!("1 to {LONGEST_PATTERN} bytes");
    Err(("mask", Reason::new(format!("{bytes} bytes"), allowed)))
}

impl Pattern {
    /// Matches bytes from `start` on, as many as the mask has, that equal one of the values under
    /// the mask.
    ///
    /// # Errors
    /// The wrong key (`mask`, `values`), the value found and the values allowed.
    pub fn new(
        base: Base,
        start: u16,
        mask: &[u8],
        values: &[&[u8]],
    ) -> Result<Self, (&'static str, Reason)> {
        check_length(mask.len())?;
        if values.is_empty() || values.len() > MOST_VALUES {
            let allowed = format!("1 to {MOST_VALUES} values");
            return Err(("values", Reason::new(format!("{} values", values.len()), allowed)));
        }
        if let Some(value) = values.iter().find(|value| value.len() != mask.len()) {
            let allowed = format!("{}, like the mask", mask.len());
            return Err(("values", Reason::new(format!("{} bytes", value.len()), allowed)));
        }
        let masked = values
            .iter()
            .flat_map(|value| value.iter().zip(mask).map(|(value, mask)| value & mask))
            .collect();
        Ok(Pattern { base, start, mask: mask.into(), values: masked })
    }

    /// A pattern as in Program 1 of the paper: bit `n` of the mask selects byte `n` of the value.
    ///
    /// # Errors
    /// As [`Pattern::new`].
    pub fn by_byte(
        start: u16,
        length: usize,
        bit_mask: u64,
        values: &[&[u8]],
    ) -> Result<Self, (&'static str, Reason)> {
        check_length(length)?;
        let counts = |byte: usize| bit_mask.checked_shr(byte as u32).unwrap_or(0) & 1 != 0;
        let mask: Vec<_> = (0..length).map(|byte| if counts(byte) { 0xff } else { 0 }).collect();
        Pattern::new(Base::Frame, start, &mask, values)
    }

    /// Start of the count of its position.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Offset of its first byte from there.
    pub fn start(&self) -> u16 {
        self.start
    }

    /// The mask.
    pub fn mask(&self) -> &[u8] {
        &self.mask
    }

    /// The values; bits outside the mask are zero.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.values.chunks_exact(self.mask.len())
    }

    /// Whether a packet could match whose layer, from which the pattern is counted, is hidden.
    pub fn could_match(&self, layers: &Layers, hidden: Hidden) -> bool {
        match self.base {
            Base::Frame => false,
            Base::L3 => hidden == Hidden::Everything,
            Base::L4 => hidden >= Hidden::Ports && layers.l4_offset == 0,
        }
    }

    /// Whether a packet matches; `None` if the pattern goes past the packet's end.
    pub fn matches(&self, packet: &Descriptor, layers: &Layers) -> Option<bool> {
        let base = match self.base {
            Base::Frame => 0,
            // For a packet without that layer, the pattern is past its end.
            Base::L3 if layers.l3_offset == 0 => return None,
            Base::L3 => usize::from(layers.l3_offset),
            Base::L4 if layers.l4_offset == 0 => return None,
            Base::L4 => usize::from(layers.l4_offset),
        };
        let start = base + usize::from(self.start);
        let end = start + self.mask.len();
        if let Some(bytes) = packet.data().get(start..end) {
            return Some(self.is_one_of(bytes));
        }
        if !packet.is_chained() || end > packet.length() as usize {
            return None;
        }
        let mut bytes = [0; LONGEST_PATTERN];
        let wanted = packet.segments().flatten().skip(start).take(self.mask.len());
        let mut count = 0;
        for (to, from) in bytes.iter_mut().zip(wanted) {
            *to = *from;
            count += 1;
        }
        (count == self.mask.len()).then(|| self.is_one_of(&bytes[..count]))
    }

    fn is_one_of(&self, bytes: &[u8]) -> bool {
        self.values().any(|value| {
            let under_mask = bytes.iter().zip(&self.mask).map(|(byte, mask)| byte & mask);
            under_mask.eq(value.iter().copied())
        })
    }
}
