//! Adds a tunnel's headers to a packet.
//!
//! Guarantees: lengths and checksums are right; a packet that cannot be carried stays unchanged.
//!
//! Source: RFC 7348 5, RFC 8926 3, RFC 2784, RFC 2890, RFC 2003 3.1, RFC 4213 3.1; RFC 6040 4.1
//! (ECN), RFC 6864 (identification), RFC 6438 (flow label), RFC 6935 (UDP without checksum over
//! IPv6).

use super::Kind;
use super::headers::{GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE, Inside, traffic_class};
use crate::bytes::{get_u16, put, put_u16};
use picnic_core::ledger::DropReason;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::packet::offload;
use picnic_core::packet::pool::MAX_PACKET_BYTES;
use picnic_core::packet::wire::{EtherType, IpProtocol, Ipv4, PseudoHeader, checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Source and destination, of one family.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    /// `None` if they are of different families.
    pub(super) fn new(source: IpAddr, destination: IpAddr) -> Option<Ends> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Ends::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Ends::V6(source, destination)),
            _ => None,
        }
    }

    /// Bytes of the IP header.
    fn header_length(&self) -> usize {
        match self {
            Ends::V4(..) => 20,
            Ends::V6(..) => 40,
        }
    }
}

/// The headers of one tunnel.
#[derive(Clone, Debug)]
pub(super) struct Outer {
    pub(super) kind: Kind,
    /// Whether whole frames are carried rather than IP packets.
    pub(super) carries_ethernet: bool,
    pub(super) ends: Ends,
    /// Destination and source; `None`: the packet's own.
    pub(super) macs: Option<([u8; 6], [u8; 6])>,
    /// VNI, or key of GRE.
    pub(super) network: Option<u32>,
    pub(super) ttl: u8,
    /// `None`: the packet's own.
    pub(super) dscp: Option<u8>,
    /// The outer header declares no support for congestion marks.
    pub(super) legacy_ecn: bool,
    /// Of UDP or GRE.
    pub(super) has_checksum: bool,
    /// The next sequence number of GRE.
    pub(super) sequence: Option<u32>,
    /// Destination port of VXLAN or GENEVE.
    pub(super) port: u16,
    /// Of the next outer packet that may be fragmented.
    pub(super) identification: u16,
}

impl Outer {
    /// Bytes between the IP header and the payload.
    fn shim_length(&self) -> usize {
        match self.kind {
            Kind::Vxlan | Kind::Geneve => 16,
            Kind::Gre => {
                let parts = [self.has_checksum, self.network.is_some(), self.sequence.is_some()];
                4 + 4 * parts.iter().filter(|&&part| part).count()
            }
            Kind::Ipip => 0,
        }
    }

    /// Adds the headers to a packet parsed to `inner`, whose flow has the hash `hash`.
    ///
    /// # Errors
    /// The reason why it cannot be carried; it stays unchanged.
    pub(super) fn put_on(
        &mut self,
        packet: &mut Descriptor,
        inner: &Layers,
        hash: u32,
    ) -> Result<(), DropReason> {
        let kind = inner.packet_type;
        let inside = match (self.carries_ethernet, kind.is_ipv4(), kind.is_ipv6()) {
            (true, ..) if packet.data().len() >= 14 => Inside::Ethernet,
            (false, true, _) if !kind.is_malformed() => Inside::Ipv4,
            (false, _, true) if !kind.is_malformed() => Inside::Ipv6,
            _ => return Err(DropReason::Malformed),
        };
        let l3 = usize::from(inner.l3_offset);
        let class = traffic_class(packet.data(), l3).filter(|_| kind.is_ipv4() || kind.is_ipv6());
        let may_fragment = !kind.is_ipv4() && !kind.is_ipv6()
            || get_u16(packet.data(), l3 + 6).is_some_and(|flags| flags & 0x4000 == 0)
                && kind.is_ipv4();
        if inside != Inside::Ethernet {
            cut_padding(packet, inner);
        }
        // Bytes before L3 stay there, if only the IP packet is carried.
        let kept = if self.carries_ethernet { 0 } else { l3 };
        let ethernet = if self.carries_ethernet { 14 } else { 0 };
        let (ip, shim) = (self.ends.header_length(), self.shim_length());
        let carried = (packet.length() as usize).saturating_sub(kept);
        let total = ip + shim + carried;
        let longest = if ip == 20 { 65_535 } else { 65_535 + 40 };
        if total > longest || kept + ethernet + total > MAX_PACKET_BYTES {
            return Err(DropReason::Oversize);
        }
        let added = ethernet + ip + shim;
        if !packet.push_front(added as u16) {
            return Err(DropReason::NoRoom);
        }
        let data = packet.data_mut();
        data.copy_within(added..added + kept, 0);
        if let Some((destination, source)) = self.macs {
            put(data, 0, destination);
            put(data, 6, source);
        }
        let place = kept + ethernet;
        let ether_type = if ip == 20 { EtherType::IPV4 } else { EtherType::IPV6 };
        put_u16(data, place - 2, ether_type.0);
        let class = class.unwrap_or_default();
        let class = self.dscp.map_or(class & 0xfc, |dscp| dscp << 2)
            | if self.legacy_ecn { 0 } else { class & 3 };
        self.put_ip(data, place, total, class, may_fragment, hash, inside);
        self.put_shim(packet, place + ip, shim + carried, hash, inside);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one header")]
    fn put_ip(
        &mut self,
        data: &mut [u8],
        place: usize,
        total: usize,
        class: u8,
        may_fragment: bool,
        hash: u32,
        inside: Inside,
    ) {
        let protocol = match (self.kind, inside) {
            (Kind::Vxlan | Kind::Geneve, _) => IpProtocol::UDP,
            (Kind::Gre, _) => IpProtocol::GRE,
            (Kind::Ipip, Inside::Ipv6) => IpProtocol::IPV6,
            (Kind::Ipip, _) => IpProtocol::IPV4,
        };
        match self.ends {
            Ends::V4(source, destination) => {
                let mut header = [0; Ipv4::MINIMUM_HEADER_LENGTH];
                header[..2].copy_from_slice(&[0x45, class]);
                put_u16(&mut header, 2, total as u16);
                if may_fragment {
                    put_u16(&mut header, 4, self.identification);
                    self.identification = self.identification.wrapping_add(1);
                } else {
                    put_u16(&mut header, 6, 0x4000);
                }
                header[8..10].copy_from_slice(&[self.ttl, protocol.0]);
                put(&mut header, 12, source.octets());
                put(&mut header, 16, destination.octets());
                let sum = checksum::checksum(&header);
                put_u16(&mut header, 10, sum);
                put(data, place, header);
            }
            Ends::V6(source, destination) => {
                // The flow label serves as the source port of UDP does.
                let first = 6 << 28 | u32::from(class) << 20 | hash & 0xf_ffff;
                let mut header = [0; 40];
                put(&mut header, 0, first.to_be_bytes());
                put_u16(&mut header, 4, (total - 40) as u16);
                header[6..8].copy_from_slice(&[protocol.0, self.ttl]);
                put(&mut header, 8, source.octets());
                put(&mut header, 24, destination.octets());
                put(data, place, header);
            }
        }
    }

    /// Writes the headers at L4, `length` bytes before the packet's end.
    fn put_shim(
        &mut self,
        packet: &mut Descriptor,
        l4: usize,
        length: usize,
        hash: u32,
        inside: Inside,
    ) {
        let network = self.network.unwrap_or_default();
        let ether_type = inside.ether_type().0;
        let data = packet.data_mut();
        let first = match self.kind {
            Kind::Ipip => return,
            Kind::Gre => return self.put_gre(packet, l4, ether_type),
            Kind::Vxlan => 0x0800_0000,
            Kind::Geneve => u32::from(ether_type),
        };
        // A dynamic port from the flow, for routers on the path to spread flows by.
        put_u16(data, l4, 0xc000 | (hash ^ hash >> 16) as u16 & 0x3fff);
        put_u16(data, l4 + 2, self.port);
        put_u16(data, l4 + 4, length as u16);
        put_u16(data, l4 + 6, 0);
        put(data, l4 + 8, first.to_be_bytes());
        put(data, l4 + 12, (network << 8).to_be_bytes());
        if self.has_checksum {
            let pseudo = match self.ends {
                Ends::V4(source, destination) => PseudoHeader::v4(source, destination),
                Ends::V6(source, destination) => PseudoHeader::v6(source, destination),
            };
            let sum = offload::sum(packet, l4..usize::MAX);
            // Zero would mean none.
            let sum = match !checksum::add(pseudo.sum(IpProtocol::UDP, length), sum) {
                0 => 0xffff,
                sum => sum,
            };
            put_u16(packet.data_mut(), l4 + 6, sum);
        }
    }

    fn put_gre(&mut self, packet: &mut Descriptor, l4: usize, ether_type: u16) {
        let data = packet.data_mut();
        let (mut flags, mut place) = (0, l4 + 4);
        if self.has_checksum {
            flags |= GRE_CHECKSUM;
            put(data, place, [0; 4]);
            place += 4;
        }
        if let Some(key) = self.network {
            flags |= GRE_KEY;
            put(data, place, key.to_be_bytes());
            place += 4;
        }
        if let Some(sequence) = &mut self.sequence {
            flags |= GRE_SEQUENCE;
            put(data, place, sequence.to_be_bytes());
            *sequence = sequence.wrapping_add(1);
        }
        put_u16(data, l4, flags);
        put_u16(data, l4 + 2, ether_type);
        if self.has_checksum {
            let sum = !offload::sum(packet, l4..usize::MAX);
            put_u16(packet.data_mut(), l4 + 4, sum);
        }
    }
}

/// Cuts the padding after an IP packet in its frame: it is not carried.
fn cut_padding(packet: &mut Descriptor, inner: &Layers) {
    let end = packet.ip_length(inner).map(|length| usize::from(inner.l3_offset) + length);
    if let Some(end) = end.and_then(|end| u16::try_from(end).ok()) {
        packet.truncate(end);
    }
}
