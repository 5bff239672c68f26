//! `checksum`: verifies received checksums and completes the checksums of sent packets.
//!
//! ```toml
//! [[rx]]
//! function = "checksum"
//! drop_bad = true          # default: bad packets are marked and continue
//! ```
//!
//! In the rx chain it marks each packet's checksums in its descriptor as *good*, *bad*, or *none*
//! (unknown). Covered are the IPv4 header, TCP, UDP, ICMP and ICMPv6 with
//! their pseudo-headers, after up to two VLAN tags, in any number of buffers:
//!
//! | packet                                             | is     |
//! |----------------------------------------------------|--------|
//! | IPv4 header with a wrong checksum, fragments too    | bad    |
//! | TCP, UDP, ICMP, ICMPv6                              | good or bad |
//! | UDP with a checksum of zero                         | none over IPv4, bad over IPv6 |
//! | fragments, other protocols, headers or data cut off | none   |
//! | with a route that is not used up (IPv6 routing header, IPv4 source route) | by its last destination; none if that is not known |
//! | left unfinished by its sender (virtio-net header)   | good, and stays unfinished |
//!
//! A tunnel over IPv6 may omit the UDP checksum (RFC 6935): `tunnel` decapsulates it all the same.
//! With `drop_bad` it is dropped here, so put `checksum` after `tunnel`.
//!
//! In the tx chain it completes partial checksums. Super-frames stay unchanged: `tso` completes
//! the segments it cuts. If a wire takes no partial checksums, the card completes them without this
//! function; use it for later functions that need the final bytes.
//!
//! Guarantees: verified packets are not changed. Source: RFC 1071 (sum), RFC 791, RFC 9293, RFC 768
//! (zero is none), RFC 792, RFC 4443, RFC 8200 8.1 (no zero over IPv6); virtio 1.2, 5.1.6.

use crate::bytes::get;
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::layers::{L4Kind, Layers, PacketType};
use picnic_core::packet::offload::{self, pseudo_header};
use picnic_core::packet::wire::{IpProtocol, Ipv4, PseudoHeader, checksum};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verifies or completes checksums.
#[derive(Debug)]
pub struct Checksum {
    config: Config,
    counts: Counts,
}

/// The keys of `checksum`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Action; "auto": verify in the rx chain, complete in the tx chain.
    pub mode: Mode,
    /// Whether packets with a bad checksum are dropped, counted as bad_checksum.
    pub drop_bad: bool,
    /// Whether packets that their wire reports as good are trusted without verifying.
    pub trust: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { mode: Mode::Auto, drop_bad: false, trust: true }
    }
}

/// Action on checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Depends on the chain.
    Auto,
    /// Verify received checksums.
    Verify,
    /// Complete partial checksums.
    Complete,
}

/// Counters of `checksum`, in packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Verified, good.
    pub good: u64,
    /// Verified, bad.
    pub bad: u64,
    /// Without a verifiable checksum.
    pub none: u64,
    /// Accepted because the wire reported them good.
    pub trusted: u64,
    /// Left partial by the sender, if known.
    pub partial: u64,
    /// Completed.
    pub completed: u64,
    /// Partial, but not TCP or UDP, so not completed.
    pub not_completed: u64,
}

impl Component for Checksum {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "checksum";
    const HELP: &'static str = "verify checksums on receive, complete them on transmit";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Checksum>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        if config.drop_bad && config.mode == Mode::Complete {
            let message = "allowed only with mode = \"auto\" or \"verify\"";
            return Err(ConfigError::new("drop_bad", message));
        }
        Ok(Box::new(Checksum { config, counts: Counts::default() }))
    }
}

impl Checksum {
    #[inline]
    fn verify(&mut self, packet: &mut Descriptor) -> ChecksumState {
        match packet.checksum() {
            ChecksumState::Partial => {
                self.counts.partial += 1;
                return ChecksumState::Partial;
            }
            ChecksumState::Good if self.config.trust => {
                self.counts.trusted += 1;
                return ChecksumState::Good;
            }
            _ => {}
        }
        let state = verify(packet);
        match state {
            ChecksumState::Good => self.counts.good += 1,
            ChecksumState::Bad => self.counts.bad += 1,
            _ => self.counts.none += 1,
        }
        packet.set_checksum(state);
        state
    }

    #[inline]
    fn complete(&mut self, packet: &mut Descriptor) {
        if packet.checksum() != ChecksumState::Partial || packet.gso_type() != GsoType::None {
            return;
        }
        offload::finish_checksum(packet);
        match packet.checksum() {
            ChecksumState::Partial => self.counts.not_completed += 1,
            _ => self.counts.completed += 1,
        }
    }
}

impl Inspect for Checksum {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Checksum {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let complete = match self.config.mode {
            Mode::Auto => out.stage() == Stage::Tx,
            Mode::Verify => false,
            Mode::Complete => true,
        };
        if complete {
            burst.as_mut_slice().iter_mut().for_each(|packet| self.complete(packet));
            return;
        }
        if !self.config.drop_bad {
            let packets = burst.as_mut_slice();
            for place in 0..packets.len() {
                if let Some(next) = packets.get(place + 1) {
                    next.prefetch_all();
                }
                self.verify(&mut packets[place]);
            }
            return;
        }
        burst.retain(|mut packet| match self.verify(&mut packet) {
            ChecksumState::Bad => {
                out.drop(packet, DropReason::BadChecksum);
                None
            }
            _ => Some(packet),
        });
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// The state of a packet's checksums: `Good`, `Bad`, or `Unknown` if there is no verifiable one.
/// Ignores the descriptor's state. The packet must be parsed.
#[inline]
pub fn verify(packet: &mut Descriptor) -> ChecksumState {
    let layers = packet.parse();
    match verify_plain(packet, &layers) {
        Some(state) => state,
        None => verify_other(packet, &layers),
    }
}

/// A fast path for most packets: TCP over IPv4 without options or tags, in one buffer.
#[inline(always)]
fn verify_plain(packet: &Descriptor, layers: &Layers) -> Option<ChecksumState> {
    const L3: usize = 14;
    const L4: usize = L3 + Ipv4::MINIMUM_HEADER_LENGTH;
    let is_plain = (usize::from(layers.l3_offset) == L3)
        & (usize::from(layers.l4_offset) == L4)
        & (layers.packet_type == PacketType::IPV4_TCP);
    if !is_plain || packet.is_chained() || packet.gso_type() != GsoType::None {
        return None;
    }
    let data = packet.data();
    let header: &[u8; Ipv4::MINIMUM_HEADER_LENGTH] = data.get(L3..L4)?.first_chunk()?;
    if checksum::sum(header) != 0xffff {
        return Some(ChecksumState::Bad);
    }
    let [_, _, high, low, _, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] = *header;
    let covered = data.get(L4..L3 + usize::from(u16::from_be_bytes([high, low])))?;
    let pseudo = PseudoHeader::v4([a, b, c, d].into(), [e, f, g, h].into());
    let pseudo = pseudo.sum(IpProtocol::TCP, covered.len());
    Some(state(checksum::add(pseudo, checksum::sum(covered))))
}

/// The same for any packet.
#[inline(never)]
fn verify_other(packet: &Descriptor, layers: &Layers) -> ChecksumState {
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let kind = layers.packet_type;
    let data = packet.data();
    let Some(behind) = data.get(l3..) else { return ChecksumState::Unknown };
    if kind.is_ipv4() {
        let Ok(ip) = Ipv4::new_header(behind) else { return ChecksumState::Unknown };
        if !ip.verify_checksum() {
            return ChecksumState::Bad;
        }
    }
    let Some(length) = packet.ip_length(layers) else { return ChecksumState::Unknown };
    // A super-frame's checksum belongs to no packet.
    if kind.is_malformed() || l4 == 0 || packet.gso_type() != GsoType::None {
        return ChecksumState::Unknown;
    }
    let mut end = l3 + length;
    let protocol = match kind.l4() {
        L4Kind::Tcp => IpProtocol::TCP,
        L4Kind::Udp => {
            let Some([a, b, c, d]) = get(data, l4 + 4) else { return ChecksumState::Unknown };
            if [c, d] == [0; 2] {
                return if kind.is_ipv6() { ChecksumState::Bad } else { ChecksumState::Unknown };
            }
            // Bytes after the datagram in the IP packet are not covered.
            match u16::from_be_bytes([a, b]) {
                // A jumbogram's length.
                0 => {}
                length => end = l4 + usize::from(length),
            }
            IpProtocol::UDP
        }
        L4Kind::Icmp if kind.is_ipv4() => {
            return state(offload::sum(packet, l4..end));
        }
        L4Kind::Icmp => IpProtocol::ICMPV6,
        L4Kind::None | L4Kind::Other => return ChecksumState::Unknown,
    };
    let Some(pseudo) = pseudo_header(data, layers) else { return ChecksumState::Unknown };
    state(checksum::add(pseudo.sum(protocol, end - l4), offload::sum(packet, l4..end)))
}

#[inline]
fn state(sum: u16) -> ChecksumState {
    if sum == 0xffff { ChecksumState::Good } else { ChecksumState::Bad }
}
