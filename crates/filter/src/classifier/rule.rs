//! Rules and packets' keys as the classifier compares them.

use super::{Address, NONE};
use crate::hidden::Hidden;
use crate::matching::{FiveTuple, PortRange};
use picnic_core::packet::layers::Layers;
use std::net::IpAddr;

/// Set in a key's protocol for each part that the packet lacks or hides. A rule with a condition on
/// that part has the bit in its mask, and so does not match.
const NO_PORTS: u16 = 0x100;
const NO_PROTOCOL: u16 = 0x200;
const NO_SOURCE: u16 = 0x400;
const NO_DESTINATION: u16 = 0x800;

/// The key of a packet.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Key<A> {
    /// Both addresses.
    pub(super) address: A,
    /// Source port in the lower half, destination port in the upper; 0 without ports.
    pub(super) ports: u32,
    /// The protocol, with `NO_PORTS` and the like.
    pub(super) protocol: u16,
}

/// Fields that are compared by order: both addresses, both ports.
pub(super) const FIELDS: usize = 4;

impl<A: Address> Key<A> {
    /// An empty key, to fill arrays.
    pub const EMPTY: Self = Key { address: A::ZERO, ports: 0, protocol: 0 };

    /// From addresses, protocol and ports; `None` if an address is of another family.
    pub fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        ports: Option<(u16, u16)>,
    ) -> Option<Self> {
        let address = A::of(source, destination)?;
        let (source, destination) = ports.unwrap_or_default();
        let flag = if ports.is_none() { NO_PORTS } else { 0 };
        let ports = u32::from(source) | u32::from(destination) << 16;
        Some(Key { address, ports, protocol: u16::from(protocol) | flag })
    }

    /// From a packet; `None` if it is of another family.
    #[inline(always)]
    pub fn of_packet(layers: &Layers, data: &[u8]) -> Option<Self> {
        let address = A::of_packet(layers, data)?;
        let (ports, flag) = match layers.ports(data) {
            Some(ports) => {
                let ports = u32::from_be(ports);
                (ports.rotate_left(16), 0)
            }
            None => (0, NO_PORTS),
        };
        Some(Key { address, ports, protocol: u16::from(layers.protocol) | flag })
    }
}

impl<A: Address> Key<A> {
    /// The same addresses with this protocol, and no ports.
    pub fn with_protocol(&self, protocol: u8) -> Self {
        let flags = self.protocol & (NO_SOURCE | NO_DESTINATION) | NO_PORTS;
        Key { address: self.address, ports: 0, protocol: u16::from(protocol) | flags }
    }

    /// The same key without its hidden parts.
    #[must_use]
    pub fn without(&self, hidden: Hidden) -> Self {
        let flags = match hidden {
            Hidden::Nothing | Hidden::Ports | Hidden::Protocol => 0,
            Hidden::Destination => NO_DESTINATION,
            Hidden::Chain => NO_DESTINATION | NO_PROTOCOL | NO_PORTS,
            Hidden::Addresses | Hidden::Everything => {
                NO_SOURCE | NO_DESTINATION | NO_PROTOCOL | NO_PORTS
            }
        };
        Key { protocol: self.protocol | flags, ..*self }
    }

    /// Its fields as numbers.
    #[inline(always)]
    pub(super) fn values(&self) -> [u64; FIELDS] {
        let [source, destination] = self.address.numbers();
        [source, destination, u64::from(self.ports as u16), u64::from(self.ports >> 16)]
    }
}

/// A compiled rule, with its place in the list and in its slot.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rule<A> {
    pub(super) value: A,
    pub(super) mask: A,
    /// The lowest ports, as in a key.
    pub(super) low: u32,
    /// Width of each port range.
    pub(super) span: u32,
    pub(super) protocol: u16,
    pub(super) protocol_mask: u16,
    /// Its place in the list; `NONE` if it is in no list.
    pub(super) position: u16,
    /// The next rule of the slot, in the order of the list; 0 for the last.
    pub(super) next: u16,
}

impl<A: Address> Rule<A> {
    /// Matches nothing.
    pub(super) const NEVER: Self = Rule {
        value: A::ZERO,
        mask: A::ZERO,
        low: 0,
        span: 0,
        // A bit that no key has.
        protocol: 0x8000,
        protocol_mask: 0x8000,
        position: NONE,
        next: 0,
    };

    /// From a five-tuple; `None` if it is only for the other family.
    pub fn new(tuple: &FiveTuple) -> Option<Self> {
        let part = |prefix: Option<super::super::Prefix>| {
            prefix.map(|prefix| (prefix.address(), prefix.length()))
        };
        let source = part(tuple.source);
        let destination = part(tuple.destination);
        // A missing condition means any address of the rule's family; of this family if it has
        // none.
        let any = source.or(destination).map(|(address, _)| address);
        let any = match (any, A::BITS) {
            (Some(IpAddr::V4(_)), _) | (None, 32) => IpAddr::from([0; 4]),
            _ => IpAddr::from([0; 16]),
        };
        let (source, source_length) = source.unwrap_or((any, 0));
        let (destination, destination_length) = destination.unwrap_or((any, 0));
        let value = A::of(source, destination)?;
        let span = |range: PortRange| u32::from(range.high() - range.low());
        let ports = (tuple.source_ports, tuple.destination_ports);
        let protocol = tuple.protocol.map_or(0, |protocol| protocol.0);
        let asks = |asks: bool, mask: u16| if asks { mask } else { 0 };
        Some(Rule {
            value,
            mask: A::mask(source_length, destination_length),
            low: u32::from(ports.0.low()) | u32::from(ports.1.low()) << 16,
            span: span(ports.0) | span(ports.1) << 16,
            protocol: u16::from(protocol),
            protocol_mask: asks(tuple.protocol.is_some(), NO_PROTOCOL | 0xff)
                | asks(tuple.has_ports(), NO_PORTS)
                | asks(source_length != 0, NO_SOURCE)
                | asks(destination_length != 0, NO_DESTINATION),
            position: NONE,
            next: 0,
        })
    }

    /// Whether a key matches, without a branch.
    #[inline(always)]
    pub(super) fn matches(&self, key: &Key<A>) -> bool {
        let differs = self.value.differ(key.address, self.mask);
        let protocol = (self.protocol ^ key.protocol) & self.protocol_mask != 0;
        let source = (key.ports as u16).wrapping_sub(self.low as u16) > self.span as u16;
        let high = |ports: u32| (ports >> 16) as u16;
        let destination = high(key.ports).wrapping_sub(high(self.low)) > high(self.span);
        !(differs | protocol | source | destination)
    }

    /// The protocol that it requires, if any.
    pub(super) fn asked_protocol(&self) -> Option<u8> {
        (self.protocol_mask & 0xff != 0).then_some(self.protocol as u8)
    }

    /// The ports of both ranges, lowest and highest.
    fn ports(&self) -> [(u16, u16); 2] {
        [0, 16].map(|shift| {
            let low = (self.low >> shift) as u16;
            (low, low + (self.span >> shift) as u16)
        })
    }

    /// The lowest and the highest number of a field, as in [`Key::values`].
    pub(super) fn range(&self, field: usize) -> (u64, u64) {
        if field < 2 {
            let (low, mask) = (self.value.numbers()[field], self.mask.numbers()[field]);
            (low, low | !mask)
        } else {
            let (low, high) = self.ports()[field - 2];
            (low.into(), high.into())
        }
    }

    /// How much of the five-tuple it fixes.
    pub(super) fn lengths(&self) -> Lengths {
        let [source, destination] = self.mask.ones();
        // Leading bits common to all ports of a range.
        let [a, b] = self.ports().map(|(low, high)| (low ^ high).leading_zeros() as u8);
        let protocol = if self.asked_protocol().is_some() { 8 } else { 0 };
        Lengths([source, destination, a, b, protocol])
    }

    /// A packet in the middle of the matching range; its source belongs to another rule.
    pub(super) fn inside(&self, source: &Self) -> Key<A> {
        let address = |rule: &Self| rule.value.blend(A::MIXED, rule.mask);
        let [a, b] = self.ports().map(|(low, high)| u32::from(low) + u32::from(high - low) / 3);
        Key {
            address: address(source).blend(address(self), A::mask(A::BITS, 0)),
            ports: a | b << 16,
            protocol: self.protocol,
        }
    }

    /// Its slot in a table.
    pub(super) fn hash(&self, key: &TableKey<A>) -> u64 {
        key.hash(&Key { address: self.value, ports: self.low, protocol: self.protocol })
    }
}

/// Leading bits that are fixed: source, destination, source port, destination port, protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths(pub(super) [u8; 5]);

impl Lengths {
    /// Whether a rule that fixes this much fits a table with the key `table`.
    pub(super) fn fits(&self, table: &Lengths) -> bool {
        self.0.iter().zip(&table.0).all(|(rule, table)| rule >= table)
    }
}

/// The part of a key that a table uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableKey<A> {
    pub(super) address: A,
    /// Over ports and, above them, the protocol.
    pub(super) rest: u64,
}

impl<A: Address> TableKey<A> {
    pub(super) fn new(lengths: &Lengths) -> Self {
        let [source, destination, source_port, destination_port, protocol] = lengths.0;
        let port =
            |length: u8| u64::from(!0xffff_u32.checked_shr(length.into()).unwrap_or(0) as u16);
        let protocol: u64 = if protocol == 8 { 0xff } else { 0 };
        TableKey {
            address: A::mask(source, destination),
            rest: port(source_port) | port(destination_port) << 16 | protocol << 32,
        }
    }

    /// Equal for keys that agree in the part.
    #[inline(always)]
    pub(super) fn hash(&self, key: &Key<A>) -> u64 {
        let rest = u64::from(key.ports) | u64::from(key.protocol) << 32;
        key.address.hash(self.address, rest & self.rest)
    }
}
