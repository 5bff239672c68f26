//! A flow rule: its conditions as comparable words, and its action.
//!
//! Guarantees: a key is five words without padding; for IPv4 the last three are zero.

use crate::settings::vlan_of;
use picnic_core::command::CommandError;
use picnic_core::error::ConfigError;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::{self, Layers};
use picnic_core::registry::BuildContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A flow rule. Missing fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Source address or prefix, such as "10.0.0.0/8" or "2001:db8::1".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Destination address or prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// IP protocol: "tcp", "udp", "icmp", "icmpv6", "sctp", "gre", or a number in quotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Source port of TCP or UDP. Fragments have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Mask of the source port; default: all bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_port_mask: Option<u16>,
    /// Destination port of TCP or UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// Mask of the destination port; default: all bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port_mask: Option<u16>,
    /// Outer VLAN.
    #[schemars(range(max = 4095))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Number of the wire it arrived on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<u8>,
    /// Among matching rules the highest priority wins, then the lowest number.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u16,
    /// The target queue for matching packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
    /// The mark for matching packets; without `queue` they continue with the next function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
    /// Whether they are dropped, counted as filtered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drop: bool,
}

fn is_zero(priority: &u16) -> bool {
    *priority == 0
}

/// A packet's words for comparing: one word of `wire 8 | ports 1 | family 2 | protocol 8 | tag 1 |
/// VLAN 12 | both ports 32`, then addresses in memory order: for IPv4 `destination 32 | source 32`,
/// for IPv6 the source's two words and the destination's.
pub(super) type Key = [u64; 5];

/// A key or a mask from words with addresses at family-independent places: source, destination, the
/// word of all other fields.
fn packed([a, b, c, d, fields]: [u64; 5], is_v4: bool) -> Key {
    if is_v4 { [fields, a | c << 32, 0, 0, 0] } else { [fields, a, b, c, d] }
}

/// The inverse of [`packed`].
fn unpacked([fields, a, b, c, d]: Key, is_v4: bool) -> [u64; 5] {
    if is_v4 { [a & 0xffff_ffff, 0, a >> 32, 0, fields] } else { [a, b, c, d, fields] }
}

const TAGGED: u64 = 1 << 44;
const PROTOCOL_SHIFT: u32 = 45;
const FAMILY_SHIFT: u32 = 53;
const HAS_PORTS: u64 = 1 << 55;
const WIRE_SHIFT: u32 = 56;
const FAMILY_MASK: u64 = 3 << FAMILY_SHIFT;
const V4: u64 = 1 << FAMILY_SHIFT;
const V6: u64 = 2 << FAMILY_SHIFT;

/// Parses a packet and writes its key.
#[inline(always)]
pub(super) fn parse(packet: &mut Descriptor, key: &mut Key) {
    // A fast path for most packets, with all of it in registers.
    if let Some(plain) = layers::plain_v4(packet.data())
        && packet.vlan_aside().is_none()
    {
        let layers = plain.layers();
        let (source, destination) = plain.addresses();
        let fields = u64::from(packet.wire) << WIRE_SHIFT
            | u64::from(layers.protocol) << PROTOCOL_SHIFT
            | HAS_PORTS
            | V4
            | u64::from(plain.ports());
        packet.set_layers(&layers);
        *key = [fields, u64::from(source) | u64::from(destination) << 32, 0, 0, 0];
        return;
    }
    parse_other(packet, key);
}

#[inline(never)]
fn parse_other(packet: &mut Descriptor, key: &mut Key) {
    let layers = packet.parse();
    *key = key_of(&layers, packet);
}

/// The key of a packet parsed to `layers`.
fn key_of(layers: &Layers, packet: &Descriptor) -> Key {
    let (data, wire) = (packet.data(), packet.wire);
    let mut last = u64::from(wire) << WIRE_SHIFT | u64::from(layers.protocol) << PROTOCOL_SHIFT;
    if let Some(vlan) = vlan_of(packet, layers) {
        last |= TAGGED | u64::from(vlan) << 32;
    }
    if let Some(ports) = layers.ports(data) {
        last |= HAS_PORTS | u64::from(ports);
    }
    if let Some((source, destination)) = layers.ipv4_addresses(data) {
        return [last | V4, u64::from(source) | u64::from(destination) << 32, 0, 0, 0];
    }
    if let Some(addresses) = layers.ipv6_addresses(data) {
        let (words, _) = addresses.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
        return [last | V6, word(0), word(1), word(2), word(3)];
    }
    [last, 0, 0, 0, 0]
}

/// The action on a matching packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Action {
    pub queue: Option<u16>,
    pub mark: Option<u32>,
    pub drop: bool,
}

/// A compiled rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compiled {
    /// Zero where the mask is.
    pub key: Key,
    pub mask: Key,
    pub priority: u16,
    pub action: Action,
}

/// The wrong field, the value found and the values allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrongRule {
    pub field: &'static str,
    pub message: String,
}

impl WrongRule {
    fn new(field: &'static str, found: impl std::fmt::Display, allowed: &str) -> Self {
        WrongRule { field, message: format!("found {found}, allowed: {allowed}") }
    }

    /// As an error of a card file; `place` is the rule's.
    pub(super) fn in_config(self, place: &str) -> ConfigError {
        ConfigError::new(format!("{place}.{}", self.field), self.message)
    }

    /// As an error of a command; `place` is the rule's with a dot, or nothing.
    pub(super) fn in_command(self, place: &str) -> CommandError {
        CommandError::argument(format!("{place}{}", self.field), self.message)
    }
}

/// Address, prefix length, and whether it is IPv4.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None => most,
    };
    (length <= most).then_some((address, length))
}

/// Sixteen bytes as two words, in memory order.
fn words(bytes: [u8; 16]) -> [u64; 2] {
    let (halves, _) = bytes.as_chunks::<8>();
    [0, 1].map(|at| halves.get(at).map_or(0, |half| u64::from_ne_bytes(*half)))
}

fn protocol(text: &str) -> Option<u8> {
    Some(match text {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "gre" => 47,
        "icmpv6" => 58,
        "sctp" => 132,
        // Zero marks a packet without a known protocol.
        number if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            number.parse().ok().filter(|&number| number != 0)?
        }
        _ => return None,
    })
}

impl Rule {
    /// The rule in the table's form.
    pub(super) fn compile(&self, context: &BuildContext) -> Result<Compiled, WrongRule> {
        let (mut key, mut mask) = ([0; 5], [0; 5]);
        for (field, text, at) in
            [("source", &self.source, 0), ("destination", &self.destination, 2)]
        {
            let Some(text) = text else { continue };
            let allowed = "an address, or a prefix such as 10.0.0.0/8 or 2001:db8::/32";
            let (address, length) = prefix(text)
                .ok_or_else(|| WrongRule::new(field, format_args!("\"{text}\""), allowed))?;
            let family = if address.is_ipv4() { V4 } else { V6 };
            if mask[4] & FAMILY_MASK != 0 && key[4] & FAMILY_MASK != family {
                let allowed = "an address of the same family as `source`";
                return Err(WrongRule::new(field, format_args!("\"{text}\""), allowed));
            }
            (key[4], mask[4]) = (key[4] | family, mask[4] | FAMILY_MASK);
            let mut bytes = [0; 16];
            match address {
                IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes = address.octets(),
            }
            let ones = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0).to_be_bytes();
            mask[at..at + 2].copy_from_slice(&words(ones));
            key[at..at + 2].copy_from_slice(&words(bytes));
        }
        if let Some(text) = &self.protocol {
            let allowed = "tcp, udp, icmp, icmpv6, sctp, gre, or 1 to 255 in quotes";
            let number = protocol(text)
                .ok_or_else(|| WrongRule::new("protocol", format_args!("\"{text}\""), allowed))?;
            key[4] |= u64::from(number) << PROTOCOL_SHIFT;
            mask[4] |= 0xff << PROTOCOL_SHIFT;
        }
        let mut ports = [[0; 2]; 4];
        let of_source = (self.source_port, self.source_port_mask, "source_port_mask");
        let of_destination =
            (self.destination_port, self.destination_port_mask, "destination_port_mask");
        for (side, (port, bits, field)) in [of_source, of_destination].into_iter().enumerate() {
            match (port, bits) {
                (Some(port), bits) => {
                    ports[side] = port.to_be_bytes();
                    ports[side + 2] = bits.unwrap_or(u16::MAX).to_be_bytes();
                    (key[4], mask[4]) = (key[4] | HAS_PORTS, mask[4] | HAS_PORTS);
                }
                (None, Some(bits)) => {
                    return Err(WrongRule::new(field, bits, "a mask together with its port"));
                }
                (None, None) => {}
            }
        }
        let word = |[[a, b], [c, d]]: [[u8; 2]; 2]| u64::from(u32::from_ne_bytes([a, b, c, d]));
        let [source, destination, source_mask, destination_mask] = ports;
        key[4] |= word([source, destination]);
        mask[4] |= word([source_mask, destination_mask]);
        if let Some(vlan) = self.vlan {
            key[4] |= TAGGED | u64::from(vlan & 0xfff) << 32;
            mask[4] |= TAGGED | 0xfff << 32;
        }
        if let Some(wire) = self.wire {
            if wire >= context.wires {
                let last = context.wires.saturating_sub(1);
                return Err(WrongRule::new("wire", wire, &format!("0 to {last}")));
            }
            key[4] |= u64::from(wire) << WIRE_SHIFT;
            mask[4] |= 0xff << WIRE_SHIFT;
        }
        let key = std::array::from_fn(|at| key[at] & mask[at]);
        let is_v4 = key[4] & FAMILY_MASK == V4;
        let (key, mask) = (packed(key, is_v4), packed(mask, is_v4));
        Ok(Compiled { key, mask, priority: self.priority, action: self.action(context)? })
    }

    fn action(&self, context: &BuildContext) -> Result<Action, WrongRule> {
        let &Rule { queue, mark, drop, .. } = self;
        if let Some(mark) = mark.filter(|_| context.in_kernel) {
            let allowed = "none with engine = \"kernel\", where marks are not kept";
            return Err(WrongRule::new("mark", mark, allowed));
        }
        if let Some(queue) = queue
            && queue >= context.queues
        {
            let last = context.queues.saturating_sub(1);
            return Err(WrongRule::new(
                "queue",
                format_args!("queue {queue}"),
                &format!("0 to {last}"),
            ));
        }
        match (drop, queue.is_some() || mark.is_some()) {
            (false, false) => {
                let message = "missing, expected a queue, a mark or drop = true".into();
                Err(WrongRule { field: "queue", message })
            }
            (true, true) => {
                let message = "found together with a queue or a mark, allowed: one of them".into();
                Err(WrongRule { field: "drop", message })
            }
            _ => Ok(Action { queue, mark, drop }),
        }
    }
}

impl Compiled {
    fn is_v4(&self) -> bool {
        self.key[0] & FAMILY_MASK == V4
    }

    /// Key and mask with addresses at family-independent places: two words of the source, two of
    /// the destination, one of all other fields.
    pub(super) fn words(&self) -> ([u64; 5], [u64; 5]) {
        (unpacked(self.key, self.is_v4()), unpacked(self.mask, self.is_v4()))
    }

    /// The rule as text, as given to [`Rule::compile`] except for notation.
    pub(super) fn rule(&self) -> Rule {
        let Compiled { priority, action, .. } = self;
        let (key, mask) = &self.words();
        let has = |bits: u64| mask[4] & bits == bits;
        let is_v4 = self.is_v4();
        let bytes = |words: &[u64; 5], at: usize| -> [u8; 16] {
            let halves = [words[at].to_ne_bytes(), words[at + 1].to_ne_bytes()];
            std::array::from_fn(|byte| halves[byte / 8][byte % 8])
        };
        let address = |at: usize| {
            let length = u128::from_be_bytes(bytes(mask, at)).leading_ones();
            let address: IpAddr = match bytes(key, at) {
                [a, b, c, d, ..] if is_v4 => [a, b, c, d].into(),
                octets => octets.into(),
            };
            match length {
                32 if is_v4 => address.to_string(),
                128 => address.to_string(),
                length => format!("{address}/{length}"),
            }
        };
        // A prefix of length zero cannot be distinguished from none, except for the family.
        let is_set = |at: usize| mask[at] != 0 || mask[at + 1] != 0;
        let of_family = has(FAMILY_MASK) && !is_set(0) && !is_set(2);
        let side = |words: &[u64; 5], at: usize| {
            let ports = (words[4] as u32).to_ne_bytes();
            u16::from_be_bytes([ports[at], ports[at + 1]])
        };
        let port = |at: usize| {
            let bits = side(mask, at);
            (bits != 0).then_some((side(key, at), (bits != u16::MAX).then_some(bits)))
        };
        let (source, destination) = (port(0), port(2));
        Rule {
            source: (is_set(0) || of_family).then(|| address(0)),
            destination: is_set(2).then(|| address(2)),
            protocol: has(0xff << PROTOCOL_SHIFT).then(|| match key[4] >> PROTOCOL_SHIFT & 0xff {
                1 => "icmp".into(),
                6 => "tcp".into(),
                17 => "udp".into(),
                47 => "gre".into(),
                58 => "icmpv6".into(),
                132 => "sctp".into(),
                number => number.to_string(),
            }),
            source_port: source.map(|(port, _)| port),
            source_port_mask: source.and_then(|(_, mask)| mask),
            destination_port: destination.map(|(port, _)| port),
            destination_port_mask: destination.and_then(|(_, mask)| mask),
            vlan: has(TAGGED).then_some((key[4] >> 32 & 0xfff) as u16),
            wire: has(0xff << WIRE_SHIFT).then_some((key[4] >> WIRE_SHIFT) as u8),
            priority: *priority,
            queue: action.queue,
            mark: action.mark,
            drop: action.drop,
        }
    }
}
