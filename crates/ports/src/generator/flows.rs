//! Flows: the header bytes of each, built once and then only copied.
//!
//! Guarantees: no two flows have the same addresses, ports and protocol; the same seed
//! gives the same flows; header and checksums are right for a payload of zeros, and stay
//! right through `lengthen` and `stamp`.
//!
//! Source: RFC 2544 (198.18.0.0/15), RFC 5180 (2001:2::/48), RFC 4814 (random ports),
//! RFC 1624 (checksums by difference).

use super::config::GeneratorConfig;
use super::random::Random;
use super::stamp::Stamp;
use picnic_core::packet::wire::{
    EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, MacAddress, PseudoHeader, Tcp, TcpFlags,
    Truncated, Udp, Vlan, checksum,
};
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The first `N` bytes of a flow's frames, on cache lines of their own.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Template<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Template<N> {
    /// Fills a frame: the template's bytes, then zeros; of a shorter frame, what fits.
    ///
    /// A frame of `HEAD` to `HEAD + TAIL` bytes (at most `N`) is written as two copies that
    /// overlap: a copy of a size not known to the compiler costs several times more.
    #[inline(always)]
    pub(crate) fn write<const HEAD: usize, const TAIL: usize>(&self, frame: &mut [u8]) {
        let length = frame.len();
        if let Some((head, rest)) = frame.split_first_chunk_mut::<N>() {
            *head = self.0;
            if !rest.is_empty() {
                rest.fill(0);
            }
            return;
        }
        let Some(template) = self.0.get(..length) else { return };
        match (template.first_chunk::<HEAD>(), template.last_chunk::<TAIL>()) {
            (Some(template_head), Some(template_tail)) if length <= HEAD + TAIL => {
                if let Some(head) = frame.first_chunk_mut::<HEAD>() {
                    *head = *template_head;
                }
                if let Some(tail) = frame.last_chunk_mut::<TAIL>() {
                    *tail = *template_tail;
                }
            }
            _ => frame.copy_from_slice(template),
        }
    }
}

/// One line if the headers of every flow fit, else two.
#[derive(Debug)]
pub(crate) enum Templates {
    /// Headers of up to 64 bytes.
    One(Vec<Template<64>>),
    /// Headers of up to 128 bytes.
    Two(Vec<Template<128>>),
}

/// Where the fields of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    ipv6: bool,
    udp: bool,
    vlan: bool,
}

impl Shape {
    fn l3(self) -> usize {
        Ethernet::HEADER_LENGTH + if self.vlan { Vlan::HEADER_LENGTH } else { 0 }
    }

    fn l4(self) -> usize {
        let length = if self.ipv6 { Ipv6::HEADER_LENGTH } else { Ipv4::MINIMUM_HEADER_LENGTH };
        self.l3() + length
    }

    /// Bytes of all headers.
    #[inline]
    pub(crate) fn headers(self) -> usize {
        let length = if self.udp { Udp::HEADER_LENGTH } else { Tcp::MINIMUM_HEADER_LENGTH };
        self.l4() + length
    }

    /// Makes a frame that ends behind its headers one with `payload` zeros more. `frame` must
    /// hold the headers.
    #[inline]
    pub(crate) fn lengthen(self, frame: &mut [u8], payload: u16) {
        let l3 = self.l3();
        if self.ipv6 {
            raise(frame, l3 + 4, payload);
        } else {
            raise(frame, l3 + 2, payload);
            cover(frame, l3 + 10, payload, 0);
        }
        // The pseudo-header has the length too.
        self.cover_l4(frame, payload);
        if self.udp {
            raise(frame, self.l4() + 4, payload);
            self.cover_l4(frame, payload);
        }
    }

    /// Puts a stamp in place of the payload's first zeros; a frame without room stays as it is.
    #[inline]
    pub(crate) fn stamp(self, frame: &mut [u8], stamp: Stamp) {
        let bytes = stamp.to_bytes();
        let Some(place) = frame.get_mut(self.headers()..).and_then(|rest| rest.first_chunk_mut())
        else {
            return;
        };
        *place = bytes;
        self.cover_l4(frame, checksum::sum(&bytes));
    }

    fn cover_l4(self, frame: &mut [u8], sum: u16) {
        if self.udp {
            // Zero means "no checksum"; in ones' complement it equals 0xffff.
            cover(frame, self.l4() + 6, sum, 0xffff);
        } else {
            cover(frame, self.l4() + 16, sum, 0);
        }
    }
}

/// Lets the checksum at `at` cover words that add up to `sum` more; zero is written as `zero`.
fn cover(frame: &mut [u8], at: usize, sum: u16, zero: u16) {
    if let Some(field) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        let value = checksum::update_u16(u16::from_be_bytes(*field), 0, sum);
        *field = if value == 0 { zero } else { value }.to_be_bytes();
    }
}

fn raise(frame: &mut [u8], at: usize, by: u16) {
    if let Some(field) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *field = u16::from_be_bytes(*field).wrapping_add(by).to_be_bytes();
    }
}

/// What tells a flow from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tuple {
    ipv6: bool,
    udp: bool,
    source: u64,
    destination: u64,
    ports: [u16; 2],
}

/// All flows of a generator.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) templates: Templates,
    pub(crate) shapes: Vec<Shape>,
}

impl Flows {
    /// Draws the flows that a config asks for.
    pub(crate) fn draw(config: &GeneratorConfig, random: &mut Random) -> Result<Self, Truncated> {
        let mut known = HashSet::with_capacity(config.flows as usize);
        let mut shapes = Vec::with_capacity(config.flows as usize);
        let mut frames = Vec::with_capacity(config.flows as usize);
        while shapes.len() < config.flows as usize {
            let tuple = draw_tuple(config, random);
            if !known.insert(tuple) {
                continue;
            }
            let vlan = random.chance(config.vlan_share);
            let shape = Shape { ipv6: tuple.ipv6, udp: tuple.udp, vlan };
            let mut template = Template([0; 128]);
            write_headers(&mut template.0[..shape.headers()], shape, &tuple, random)?;
            shapes.push(shape);
            frames.push(template);
        }
        let templates = if shapes.iter().all(|shape| shape.headers() <= 64) {
            let first_line = |template: &Template<128>| {
                let mut line = Template([0; 64]);
                line.0.copy_from_slice(&template.0[..64]);
                line
            };
            Templates::One(frames.iter().map(first_line).collect())
        } else {
            Templates::Two(frames)
        };
        Ok(Flows { templates, shapes })
    }

    /// Bytes of the longest headers.
    pub(crate) fn longest_headers(&self) -> usize {
        self.shapes.iter().map(|shape| shape.headers()).max().unwrap_or(0)
    }

    /// Bytes copied for each packet.
    pub(crate) fn template_bytes(&self) -> usize {
        match self.templates {
            Templates::One(_) => 64,
            Templates::Two(_) => 128,
        }
    }

    /// Makes all frames `size` bytes long, for good.
    pub(crate) fn lengthen_all(&mut self, size: u16) {
        for (flow, shape) in self.shapes.iter().enumerate() {
            let frame: &mut [u8] = match &mut self.templates {
                Templates::One(templates) => &mut templates[flow].0,
                Templates::Two(templates) => &mut templates[flow].0,
            };
            shape.lengthen(frame, size.saturating_sub(shape.headers() as u16));
        }
    }
}

fn draw_tuple(config: &GeneratorConfig, random: &mut Random) -> Tuple {
    let ipv6 = random.chance(config.ipv6_share);
    let udp = !random.chance(config.tcp_share);
    let mask = if ipv6 { u64::MAX } else { 0xffff };
    Tuple {
        ipv6,
        udp,
        source: random.next() & mask,
        destination: random.next() & mask,
        ports: [random.within(1024, 65_535), random.within(1, 49_151)],
    }
}

/// Writes the headers of a frame that ends with them.
fn write_headers(
    frame: &mut [u8],
    shape: Shape,
    tuple: &Tuple,
    random: &mut Random,
) -> Result<(), Truncated> {
    let ether_type = if shape.ipv6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let [_, _, _, a, b, c, d, e] = random.next().to_be_bytes();
    let mut ethernet = Ethernet::new_checked(&mut *frame)?;
    // Locally administered (IEEE 802): no vendor's card has such an address.
    ethernet.set_destination(MacAddress([0x02, 0x50, 0x49, 0x43, 0x4e, 0x01]));
    ethernet.set_source(MacAddress([0x02, a, b, c, d, e]));
    ethernet.set_ether_type(if shape.vlan { EtherType::VLAN } else { ether_type });
    if shape.vlan {
        let mut vlan = Vlan::new_checked(ethernet.payload_mut())?;
        vlan.set_tci(random.within(1, 4094));
        vlan.set_ether_type(ether_type);
    }
    let l4_length = shape.headers() - shape.l4();
    let protocol = if shape.udp { IpProtocol::UDP } else { IpProtocol::TCP };
    let (l3, l4) = frame[shape.l3()..].split_at_mut(shape.l4() - shape.l3());
    let pseudo_header = if shape.ipv6 {
        let address = |subnet, host: u64| {
            let [a, b, c, d] = [host >> 48, host >> 32, host >> 16, host].map(|word| word as u16);
            Ipv6Addr::new(0x2001, 2, 0, subnet, a, b, c, d)
        };
        let (source, destination) = (address(1, tuple.source), address(2, tuple.destination));
        let mut ip = Ipv6::new_blank(l3)?;
        ip.set_payload_length(l4_length as u16);
        ip.set_next_header(protocol);
        ip.set_hop_limit(64);
        ip.set_source(source);
        ip.set_destination(destination);
        PseudoHeader::v6(source, destination)
    } else {
        let address = |subnet, host: u64| Ipv4Addr::new(198, subnet, (host >> 8) as u8, host as u8);
        let (source, destination) = (address(18, tuple.source), address(19, tuple.destination));
        let mut ip = Ipv4::new_blank(l3)?;
        ip.set_total_length((Ipv4::MINIMUM_HEADER_LENGTH + l4_length) as u16);
        ip.set_dont_fragment(true);
        ip.set_time_to_live(64);
        ip.set_protocol(protocol);
        ip.set_source(source);
        ip.set_destination(destination);
        ip.fill_checksum();
        PseudoHeader::v4(source, destination)
    };
    if shape.udp {
        let mut udp = Udp::new_blank(l4)?;
        udp.set_source_port(tuple.ports[0]);
        udp.set_destination_port(tuple.ports[1]);
        udp.fill_checksum(pseudo_header);
    } else {
        let numbers = random.next();
        let mut tcp = Tcp::new_blank(l4)?;
        tcp.set_source_port(tuple.ports[0]);
        tcp.set_destination_port(tuple.ports[1]);
        tcp.set_sequence_number(numbers as u32);
        tcp.set_acknowledgment_number((numbers >> 32) as u32);
        tcp.set_flags(TcpFlags::ACK);
        tcp.set_window(u16::MAX);
        tcp.fill_checksum(pseudo_header);
    }
    Ok(())
}
