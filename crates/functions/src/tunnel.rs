//! `tunnel`: decapsulates, encapsulates or exposes VXLAN, GENEVE, GRE and IP in IP.
//!
//! ```toml
//! [[rx]]
//! function = "tunnel"
//! mode = "decapsulate"     # or "expose": packets stay unchanged, rss may hash the inner headers
//! local = "10.0.0.1"       # only packets addressed to this host
//!
//! [[tx]]
//! function = "tunnel"
//! mode = "encapsulate"
//! kinds = ["vxlan"]
//! network = 42
//! local = "10.0.0.1"
//! remote = "10.0.0.2"
//! source_mac = "02:00:00:00:00:01"
//! destination_mac = "02:00:00:00:00:02"
//! ```
//!
//! *Decapsulate*: the outer headers are removed, with their VLAN tags if a whole frame was inside.
//! With an IP packet inside, the outer Ethernet header stays and its type changes. Padding after the
//! outer packet is removed, unless the packet lies in several buffers. TTL and DSCP inside stay;
//! ECN follows RFC 6040. The descriptor's checksum state and hash are cleared. Packets that are no
//! tunnel, not for `local` or from `remote`, of another `network`, or a fragment, continue
//! unchanged; so does a packet with a pending routing header or source route. Sequence numbers of
//! GRE are skipped: packets keep the order of arrival.
//!
//! *Expose*: the packet stays unchanged; its descriptor keeps the start of the inner IP header, and
//! `rss` with `inner = true` hashes that header. A truncated packet, as in a capture of the first
//! bytes of each packet, is read like any other.
//!
//! *Encapsulate*: every packet, or those with `mark`. Unfinished checksums inside are finished
//! first. Super-frames are dropped: put `tso` before it. The outer TTL is `ttl`, DSCP the packet's
//! or `dscp`, ECN the packet's; over IPv4, "don't fragment" is the packet's, and set for IPv6
//! inside. The source port of UDP, and the flow label of IPv6, are a hash of the inner flow. A VLAN
//! tag that is kept beside the packet is one of the outer frame.
//!
//! Guarantees: order is kept; encapsulated and decapsulated, a packet has the same bytes, except
//! for ECN and Ethernet padding. UDP over IPv6 without a checksum is decapsulated, regardless of
//! an earlier verdict on it (RFC 6935). A packet that cannot be read as its kind of tunnel is
//! dropped by decapsulation and continues after exposing; both are counted.
//!
//! Source: RFC 7348, RFC 8926, RFC 2784, RFC 2890, RFC 2003, RFC 4213, RFC 6040, RFC 9601.

mod headers;
mod outer;

use crate::bytes::{get_u16, put_u16};
use crate::checksum;
use crate::rss::flow::{Hash, Types, flow_hash};
use headers::{Inside, Reading, SoughtTunnels, Tunnel as Found};
use outer::{Ends, Outer};
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType, RssType};
use picnic_core::packet::layers::{self, L3Kind, LONGEST_HEADERS, Layers};
use picnic_core::packet::offload;
use picnic_core::packet::wire::MacAddress;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Decapsulates, encapsulates or exposes tunnels.
pub struct Tunnel {
    mode: Mode,
    sought: SoughtTunnels,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    network: Option<u32>,
    mark_network: bool,
    /// The mark of packets to encapsulate; all, if none.
    mark: Option<u32>,
    outer: Option<Outer>,
    hash: Hash,
    types: Types,
    counts: Counts,
}

/// The keys of `tunnel`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The action.
    pub mode: Mode,
    /// The tunnels to decapsulate or expose; to encapsulate, the one to use.
    pub kinds: Vec<Kind>,
    /// This end's address. Mandatory to encapsulate; otherwise, tunnels to another address are left
    /// alone.
    pub local: Option<IpAddr>,
    /// The other end's address. Mandatory to encapsulate; otherwise, tunnels from another address
    /// are left alone.
    pub remote: Option<IpAddr>,
    /// VNI of VXLAN and GENEVE, 0 to 16777215, or key of GRE. Mandatory to encapsulate in VXLAN and
    /// GENEVE; otherwise, tunnels with another are left alone.
    pub network: Option<u32>,
    /// UDP port of VXLAN.
    pub vxlan_port: u16,
    /// UDP port of GENEVE.
    pub geneve_port: u16,
    /// Whether the network of a decapsulated or exposed tunnel becomes the packet's mark.
    pub mark_network: bool,
    /// To encapsulate: only packets with this mark; default: all.
    pub mark: Option<u32>,
    /// To encapsulate: whether GRE and GENEVE carry whole frames or IP packets; default: GRE
    /// carries IP, GENEVE frames.
    pub inner: Option<Inner>,
    /// To encapsulate: MAC address of this end; default: the packet's, if IP packets are carried.
    pub source_mac: Option<String>,
    /// To encapsulate: MAC address of the other end or of the router to it; default as for
    /// `source_mac`.
    pub destination_mac: Option<String>,
    /// To encapsulate: the outer TTL or hop limit; default: 64.
    #[schemars(range(min = 1))]
    pub ttl: Option<u8>,
    /// To encapsulate: the outer DSCP; default: the packet's.
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// To encapsulate: whether the outer header declares no support for congestion marks, for a
    /// decapsulator without it (RFC 6040, compatibility mode).
    #[schemars(extend("x-advanced" = true))]
    pub legacy_ecn: bool,
    /// To encapsulate: whether UDP or GRE has a checksum; default: only UDP over IPv6.
    pub checksum: Option<bool>,
    /// To encapsulate: whether GRE has sequence numbers.
    #[schemars(extend("x-advanced" = true))]
    pub sequence: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Expose,
            kinds: Kind::ALL.to_vec(),
            local: None,
            remote: None,
            network: None,
            vxlan_port: 4789,
            geneve_port: 6081,
            mark_network: false,
            mark: None,
            inner: None,
            source_mac: None,
            destination_mac: None,
            ttl: None,
            dscp: None,
            legacy_ecn: false,
            checksum: None,
            sequence: false,
        }
    }
}

/// The action on tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Leave packets unchanged and note the place of the inner headers.
    Expose,
    /// Remove the outer headers.
    Decapsulate,
    /// Add outer headers.
    Encapsulate,
}

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Frames over UDP (RFC 7348).
    Vxlan,
    /// Frames or IP packets over UDP, with options (RFC 8926).
    Geneve,
    /// IP packets or frames over IP (RFC 2784).
    Gre,
    /// IPv4 or IPv6 packets over IP (RFC 2003, RFC 4213).
    Ipip,
}

impl Kind {
    const ALL: [Kind; Kind::COUNT] = [Kind::Vxlan, Kind::Geneve, Kind::Gre, Kind::Ipip];
    const COUNT: usize = 4;
}

/// The payload of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Inner {
    /// Whole frames.
    Ethernet,
    /// IP packets.
    Ip,
}

/// Counters of `tunnel`, in packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Decapsulated.
    pub decapsulated: u64,
    /// Encapsulated.
    pub encapsulated: u64,
    /// Exposed, with an IP header inside.
    pub exposed: u64,
    /// Left alone: not a tunnel, or not a matching one.
    pub others: u64,
    /// Left alone: fragments of a possible tunnel.
    pub fragments: u64,
    /// With truncated or wrong tunnel headers.
    pub malformed: u64,
    /// GENEVE with a critical option; no options are known here.
    pub critical: u64,
    /// Dropped for the outer checksum.
    pub bad_checksum: u64,
    /// Marked inside for congestion on the outer path.
    pub congestion_marked: u64,
    /// Dropped for congestion on the outer path, since the inner sender does not support marks.
    pub congestion_dropped: u64,
    /// Dropped: not carried by this tunnel, a super-frame, or too long.
    pub not_carried: u64,
    /// Dropped for lack of room for the outer headers.
    pub no_room: u64,
}

impl Component for Tunnel {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "tunnel";
    const HELP: &'static str = "decapsulate, encapsulate or expose VXLAN, GENEVE, GRE, IP in IP";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Tunnel>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Tunnel::new(&config)?))
    }
}

impl Tunnel {
    fn new(config: &Config) -> Result<Tunnel, ConfigError> {
        if config.kinds.is_empty() {
            return Err(ConfigError::new("kinds", "missing, expected one or more"));
        }
        let outer = match config.mode {
            Mode::Encapsulate => Some(config.outer()?),
            Mode::Expose | Mode::Decapsulate => {
                config.check_unused()?;
                None
            }
        };
        let mut kinds = [false; Kind::COUNT];
        config.kinds.iter().for_each(|&kind| kinds[kind as usize] = true);
        let (vxlan_port, geneve_port) = (config.vxlan_port, config.geneve_port);
        let both = [Kind::Vxlan, Kind::Geneve].iter().all(|&kind| kinds[kind as usize]);
        if both && vxlan_port == geneve_port {
            let message = format!("found {geneve_port}, allowed: a port other than `vxlan_port`");
            return Err(ConfigError::new("geneve_port", message));
        }
        Ok(Tunnel {
            mode: config.mode,
            sought: SoughtTunnels { kinds, vxlan_port, geneve_port },
            local: config.local,
            remote: config.remote,
            network: config.network,
            mark_network: config.mark_network,
            mark: config.mark,
            outer,
            hash: Hash::Lookup3(0),
            types: Types::new(|_| true),
            counts: Counts::default(),
        })
    }
}

impl Config {
    /// Refuses keys that only encapsulation uses.
    fn check_unused(&self) -> Result<(), ConfigError> {
        let given = [
            ("mark", self.mark.is_some()),
            ("inner", self.inner.is_some()),
            ("source_mac", self.source_mac.is_some()),
            ("destination_mac", self.destination_mac.is_some()),
            ("ttl", self.ttl.is_some()),
            ("dscp", self.dscp.is_some()),
            ("legacy_ecn", self.legacy_ecn),
            ("checksum", self.checksum.is_some()),
            ("sequence", self.sequence),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some(&(key, _)) => {
                Err(ConfigError::new(key, "allowed only with mode = \"encapsulate\""))
            }
            None => Ok(()),
        }
    }

    /// The headers from the keys.
    fn outer(&self) -> Result<Outer, ConfigError> {
        let &[kind] = &self.kinds[..] else {
            let message = format!(
                "found {}, allowed with mode = \"encapsulate\": one kind",
                self.kinds.len()
            );
            return Err(ConfigError::new("kinds", message));
        };
        if self.mark_network {
            let message = "allowed only with mode = \"expose\" or \"decapsulate\"";
            return Err(ConfigError::new("mark_network", message));
        }
        let needed = |key| ConfigError::new(key, "missing, mandatory with mode = \"encapsulate\"");
        let local = self.local.ok_or_else(|| needed("local"))?;
        let remote = self.remote.ok_or_else(|| needed("remote"))?;
        let ends = Ends::new(local, remote).ok_or_else(|| {
            let message =
                format!("found {remote}, allowed: an address of the same family as {local}");
            ConfigError::new("remote", message)
        })?;
        let carries_ethernet = match (kind, self.inner) {
            (Kind::Vxlan, Some(Inner::Ip)) => {
                return Err(ConfigError::new("inner", "VXLAN carries \"ethernet\" only"));
            }
            (Kind::Ipip, Some(Inner::Ethernet)) => {
                return Err(ConfigError::new("inner", "IP in IP carries \"ip\" only"));
            }
            (_, Some(inner)) => inner == Inner::Ethernet,
            (Kind::Vxlan | Kind::Geneve, None) => true,
            (Kind::Gre | Kind::Ipip, None) => false,
        };
        let mac = |key, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => text.parse::<MacAddress>().ok().map(Some).ok_or_else(|| {
                let message = format!("found \"{text}\", allowed: six bytes in hex, with colons");
                ConfigError::new(key, message)
            }),
        };
        let source_mac = mac("source_mac", &self.source_mac)?;
        let macs = match (source_mac, mac("destination_mac", &self.destination_mac)?) {
            (Some(source), Some(destination)) => Some((destination.0, source.0)),
            (None, None) if !carries_ethernet => None,
            (None, _) => return Err(needed("source_mac")),
            (_, None) => return Err(needed("destination_mac")),
        };
        let is_udp = matches!(kind, Kind::Vxlan | Kind::Geneve);
        match self.network {
            None if is_udp => return Err(needed("network")),
            Some(found) if is_udp && found >> 24 != 0 => {
                let message = format!("found {found}, allowed: 0 to 16777215");
                return Err(ConfigError::new("network", message));
            }
            Some(_) if kind == Kind::Ipip => {
                return Err(ConfigError::new("network", "IP in IP has none"));
            }
            _ => {}
        }
        if self.sequence && kind != Kind::Gre {
            return Err(ConfigError::new("sequence", "allowed only with kinds = [\"gre\"]"));
        }
        if self.checksum == Some(true) && kind == Kind::Ipip {
            return Err(ConfigError::new("checksum", "IP in IP has none"));
        }
        let ttl = self.ttl.unwrap_or(64);
        Ok(Outer {
            kind,
            carries_ethernet,
            ends,
            macs,
            network: self.network,
            ttl,
            dscp: self.dscp,
            legacy_ecn: self.legacy_ecn,
            has_checksum: self.checksum.unwrap_or(is_udp && matches!(ends, Ends::V6(..))),
            sequence: self.sequence.then_some(0),
            port: if kind == Kind::Vxlan { self.vxlan_port } else { self.geneve_port },
            identification: 0,
        })
    }
}

impl Tunnel {
    /// The packet's tunnel, if it matches; otherwise it is counted. An error means that it cannot
    /// be decapsulated.
    #[inline]
    fn read(&mut self, packet: &mut Descriptor) -> Result<Option<Found>, DropReason> {
        // Never received in one piece: it belongs to a host, whose tunnels are its own.
        let reading = match packet.gso_type() {
            GsoType::None => {
                let layers = packet.parse();
                let reading = self.sought.read(packet, &layers, self.only_reads());
                // Its payload may begin in another buffer.
                let wanted = match &reading {
                    Reading::Other | Reading::Fragment => 0,
                    Reading::Tunnel(found) => found.start + LONGEST_HEADERS,
                    Reading::Malformed | Reading::Critical => headers::LONGEST_OUTER,
                };
                if packet.is_chained() && packet.data().len() < wanted {
                    self.read_gathered(packet, &layers)
                } else {
                    reading
                }
            }
            _ => Reading::Other,
        };
        let count = match reading {
            Reading::Tunnel(found) if self.means(packet, &found) => return Ok(Some(found)),
            Reading::Tunnel(_) | Reading::Other => &mut self.counts.others,
            Reading::Fragment => &mut self.counts.fragments,
            Reading::Malformed => &mut self.counts.malformed,
            Reading::Critical => &mut self.counts.critical,
        };
        *count += 1;
        match reading {
            Reading::Malformed | Reading::Critical => Err(DropReason::Malformed),
            _ => Ok(None),
        }
    }

    /// The reading of a packet whose tunnel continues after its first buffer.
    #[cold]
    fn read_gathered(&self, packet: &mut Descriptor, layers: &Layers) -> Reading {
        packet.gather_front((headers::LONGEST_OUTER + LONGEST_HEADERS) as u16);
        self.sought.read(packet, layers, self.only_reads())
    }

    fn only_reads(&self) -> bool {
        self.mode == Mode::Expose
    }

    /// Whether a tunnel matches the keys.
    #[inline]
    fn means(&self, packet: &Descriptor, found: &Found) -> bool {
        if self.network.is_some() && self.network != found.network {
            return false;
        }
        if self.local.is_none() && self.remote.is_none() {
            return true;
        }
        headers::addresses(packet.data(), &found.outer).is_some_and(|(source, destination)| {
            self.local.is_none_or(|local| local == destination)
                && self.remote.is_none_or(|remote| remote == source)
        })
    }

    /// Notes the place of the inner headers.
    fn expose(&mut self, packet: &mut Descriptor) {
        // Unreadable packets are counted, and passed to the host.
        let Ok(Some(found)) = self.read(packet) else { return };
        self.mark(packet, &found);
        match inner_l3(packet.data(), &found).map(u16::try_from) {
            Some(Ok(offset)) => {
                packet.set_inner_l3(offset);
                self.counts.exposed += 1;
            }
            _ => self.counts.others += 1,
        }
    }

    fn mark(&self, packet: &mut Descriptor, found: &Found) {
        if let Some(network) = found.network.filter(|_| self.mark_network) {
            packet.mark = network;
        }
    }

    /// Removes the outer headers; returns a reason to drop the packet, if any.
    fn decapsulate(&mut self, packet: &mut Descriptor) -> Result<(), DropReason> {
        let Some(found) = self.read(packet)? else { return Ok(()) };
        if is_bad(packet, &found) {
            self.counts.bad_checksum += 1;
            return Err(DropReason::BadChecksum);
        }
        let l3 = usize::from(found.outer.l3_offset);
        let outer = headers::traffic_class(packet.data(), l3).unwrap_or_default() & 3;
        if let Some(place) = inner_l3(packet.data(), &found)
            && let Some(inner) = headers::traffic_class(packet.data(), place)
        {
            let Some(ecn) = headers::decapsulated_ecn(inner, outer) else {
                self.counts.congestion_dropped += 1;
                return Err(DropReason::Filtered);
            };
            if ecn != inner & 3 {
                headers::set_ecn(packet.data_mut(), place, ecn);
                self.counts.congestion_marked += u64::from(ecn == 3);
            }
        }
        self.mark(packet, &found);
        // A packet is no longer than its descriptor can express; for a chain, this does nothing.
        packet.truncate(found.end as u16);
        let kept = if found.inside == Inside::Ethernet { 0 } else { l3 };
        let cut = found.start - kept;
        packet.data_mut().copy_within(..kept, cut);
        packet.pull_front(cut as u16);
        if kept == 0 {
            packet.set_vlan_aside(None);
        } else {
            put_u16(packet.data_mut(), kept - 2, found.inside.ether_type().0);
        }
        packet.set_checksum(ChecksumState::Unknown);
        packet.set_rss(0, RssType::None);
        packet.forget_inner_l3();
        packet.parse();
        self.counts.decapsulated += 1;
        Ok(())
    }

    /// Adds outer headers; returns a reason to drop the packet, if any.
    fn encapsulate(&mut self, packet: &mut Descriptor) -> Result<(), DropReason> {
        let Some(outer) = self.outer.as_mut() else { return Ok(()) };
        if self.mark.is_some_and(|mark| mark != packet.mark) {
            self.counts.others += 1;
            return Ok(());
        }
        offload::finish_checksum(packet);
        let done = if packet.gso_type() != GsoType::None {
            Err(DropReason::SuperFrame)
        } else if packet.checksum() == ChecksumState::Partial {
            Err(DropReason::Malformed)
        } else {
            let inner = packet.parse();
            let hash = flow_hash(&self.hash, &self.types, packet.data(), &inner);
            outer.put_on(packet, &inner, hash)
        };
        match done {
            Ok(()) => {
                packet.set_checksum(ChecksumState::Unknown);
                packet.forget_inner_l3();
                packet.parse();
                self.counts.encapsulated += 1;
            }
            Err(DropReason::NoRoom) => self.counts.no_room += 1,
            Err(_) => self.counts.not_carried += 1,
        }
        done
    }
}

/// Bytes before the inner IP header, if there is one.
#[inline]
fn inner_l3(data: &[u8], found: &Found) -> Option<usize> {
    if found.inside != Inside::Ethernet {
        return Some(found.start);
    }
    let inner = layers::parse(data.get(found.start..)?);
    let is_ip = matches!(inner.packet_type.l3(), L3Kind::Ipv4 | L3Kind::Ipv6);
    is_ip.then_some(found.start + usize::from(inner.l3_offset))
}

/// Whether the outer checksums are wrong, if not verified already.
fn is_bad(packet: &mut Descriptor, found: &Found) -> bool {
    let l4 = usize::from(found.outer.l4_offset);
    if found.has_gre_checksum && offload::sum(packet, l4..found.end) != 0xffff {
        return true;
    }
    // Tunnels may omit it over IPv6 too (RFC 6935), where otherwise it would be bad.
    let is_udp = matches!(found.kind, Kind::Vxlan | Kind::Geneve);
    if is_udp && found.outer.packet_type.is_ipv6() && get_u16(packet.data(), l4 + 6) == Some(0) {
        return false;
    }
    match packet.checksum() {
        ChecksumState::Good | ChecksumState::Partial => false,
        ChecksumState::Bad => true,
        ChecksumState::Unknown => checksum::verify(packet) == ChecksumState::Bad,
    }
}

impl Inspect for Tunnel {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Tunnel {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let handle = match self.mode {
            Mode::Expose => {
                burst.as_mut_slice().iter_mut().for_each(|packet| self.expose(packet));
                return;
            }
            Mode::Decapsulate => Tunnel::decapsulate,
            Mode::Encapsulate => Tunnel::encapsulate,
        };
        burst.retain(|mut packet| match handle(self, &mut packet) {
            Ok(()) => Some(packet),
            Err(reason) => {
                out.drop(packet, reason);
                None
            }
        });
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

#[cfg(test)]
mod tests;
