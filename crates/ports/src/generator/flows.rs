//! Flows: the header bytes of each, built once and then only copied.
//!
//! Guarantees: no two flows have the same addresses, ports and protocol; the same seed
//! gives the same flows; header and checksums are right for a payload of zeros, and stay
//! right through `lengthen` and `stamp`.
//!
//! Source: RFC 2544 (198.18.0.0/15), RFC 5180 (2001:2::/48), RFC 4814 (random ports),
//! RFC 1624 (checksums by difference).

use super::config::{GeneratorConfig, Size};
use super::flow::Plan;
use super::random::Random;
use super::stamp::Stamp;
use picnic_core::packet::wire::{
    EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, MacAddress, PseudoHeader, Tcp, TcpFlags,
    Truncated, Udp, Vlan, checksum,
};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes that a frame has of its template, at most.
pub(crate) const LONGEST_TEMPLATE: usize = 128;

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

/// The offsets of fields in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    ipv6: bool,
    udp: bool,
    vlan: bool,
    /// Bytes of payload that the template has after the headers.
    payload: u8,
    /// Whether bytes after the template are padding and no payload.
    pads: bool,
}

impl Shape {
    pub(crate) fn new(ipv6: bool, udp: bool, vlan: bool) -> Self {
        Shape { ipv6, udp, vlan, payload: 0, pads: false }
    }

    pub(crate) fn with_payload(self, payload: u8, pads: bool) -> Self {
        Shape { payload, pads, ..self }
    }

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

    /// Bytes of a frame as its template has them: headers and payload.
    #[inline]
    pub(crate) fn end(self) -> usize {
        self.headers() + usize::from(self.payload)
    }

    /// Makes a frame that ends where its template ends one with `payload` zeros more. `frame` must
    /// hold the headers.
    #[inline]
    pub(crate) fn lengthen(self, frame: &mut [u8], payload: u16) {
        if !self.pads {
            self.add_payload(frame, payload);
        }
    }

    #[inline]
    fn add_payload(self, frame: &mut [u8], payload: u16) {
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

    /// Replaces the first zeros after the template by a stamp; a frame without room is unchanged.
    #[inline]
    pub(crate) fn stamp(self, frame: &mut [u8], stamp: Stamp) {
        let bytes = stamp.to_bytes();
        let Some(place) = frame.get_mut(self.end()..).and_then(|rest| rest.first_chunk_mut())
        else {
            return;
        };
        *place = bytes;
        self.cover_l4(frame, checksum::sum(&bytes));
    }

    /// Puts a payload after the headers of a frame that has none.
    fn fill(self, frame: &mut [u8], payload: &[u8]) {
        let Some(place) = frame.get_mut(self.headers()..self.end()) else { return };
        if place.len() != payload.len() || payload.is_empty() {
            return;
        }
        place.copy_from_slice(payload);
        self.add_payload(frame, payload.len() as u16);
        self.cover_l4(frame, checksum::sum(payload));
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

/// The fields that distinguish flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    pub(crate) udp: bool,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) ports: [u16; 2],
}

/// All flows of a generator.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) templates: Templates,
    pub(crate) shapes: Vec<Shape>,
    /// The share of each; empty if the card file names none.
    pub(crate) shares: Vec<f64>,
    /// The frame size of each; empty if the card file names none.
    pub(crate) sizes: Vec<Size>,
}

impl Flows {
    /// Draws the flows that a config asks for.
    pub(crate) fn draw(
        config: &GeneratorConfig,
        plans: &[Plan],
        random: &mut Random,
    ) -> Result<Self, Truncated> {
        if !plans.is_empty() {
            return Self::planned(plans, random);
        }
        let mut known = HashSet::with_capacity(config.flows as usize);
        let mut shapes = Vec::with_capacity(config.flows as usize);
        let mut frames = Vec::with_capacity(config.flows as usize);
        while shapes.len() < config.flows as usize {
            let tuple = draw_tuple(config, random);
            if !known.insert(tuple) {
                continue;
            }
            let vlan = random.chance(config.vlan_share);
            let shape = Shape::new(tuple.source.is_ipv6(), tuple.udp, vlan);
            let mut template = Template([0; LONGEST_TEMPLATE]);
            let headers = &mut template.0[..shape.headers()];
            write_headers(headers, shape, &tuple, TcpFlags::ACK, random)?;
            shapes.push(shape);
            frames.push(template);
        }
        Ok(Self::of(shapes, frames))
    }

    /// Draws the flows of a card file's sections.
    fn planned(plans: &[Plan], random: &mut Random) -> Result<Self, Truncated> {
        let (mut shapes, mut frames) = (Vec::new(), Vec::new());
        let (mut shares, mut sizes) = (Vec::new(), Vec::new());
        for plan in plans {
            let shape = plan.shape();
            for tuple in plan.draw(random) {
                let mut template = Template([0; LONGEST_TEMPLATE]);
                let headers = &mut template.0[..shape.headers()];
                write_headers(headers, shape, &tuple, plan.flags(), random)?;
                shape.fill(&mut template.0, plan.payload());
                shapes.push(shape);
                frames.push(template);
                shares.push(plan.share / f64::from(plan.flows));
                sizes.push(plan.size);
            }
        }
        Ok(Flows { shares, sizes, ..Self::of(shapes, frames) })
    }

    fn of(shapes: Vec<Shape>, frames: Vec<Template<LONGEST_TEMPLATE>>) -> Self {
        let templates = if shapes.iter().all(|shape| shape.end() <= 64) {
            let first_line = |template: &Template<LONGEST_TEMPLATE>| {
                let mut line = Template([0; 64]);
                line.0.copy_from_slice(&template.0[..64]);
                line
            };
            Templates::One(frames.iter().map(first_line).collect())
        } else {
            Templates::Two(frames)
        };
        Flows { templates, shapes, shares: Vec::new(), sizes: Vec::new() }
    }

    /// Bytes of the longest template: its headers, and its payload if it has one.
    pub(crate) fn longest(&self) -> usize {
        self.shapes.iter().map(|shape| shape.end()).max().unwrap_or(0)
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
            shape.lengthen(frame, size.saturating_sub(shape.end() as u16));
        }
    }
}

fn draw_tuple(config: &GeneratorConfig, random: &mut Random) -> Tuple {
    let ipv6 = random.chance(config.ipv6_share);
    let udp = !random.chance(config.tcp_share);
    let mut address = |subnet: u8| -> IpAddr {
        let host = random.next();
        if ipv6 {
            let [a, b, c, d] = [host >> 48, host >> 32, host >> 16, host].map(|word| word as u16);
            return Ipv6Addr::new(0x2001, 2, 0, subnet.into(), a, b, c, d).into();
        }
        Ipv4Addr::new(198, 17 + subnet, (host >> 8) as u8, host as u8).into()
    };
    Tuple {
        udp,
        source: address(1),
        destination: address(2),
        ports: [random.within(1024, 65_535), random.within(1, 49_151)],
    }
}

/// Writes the headers of a frame that ends with them.
fn write_headers(
    frame: &mut [u8],
    shape: Shape,
    tuple: &Tuple,
    flags: TcpFlags,
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
    let pseudo_header =
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (tuple.source, tuple.destination) {
            let mut ip = Ipv6::new_blank(l3)?;
            ip.set_payload_length(l4_length as u16);
            ip.set_next_header(protocol);
            ip.set_hop_limit(64);
            ip.set_source(source);
            ip.set_destination(destination);
            PseudoHeader::v6(source, destination)
        } else {
            let v4 = |address| match address {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
            };
            let (source, destination) = (v4(tuple.source), v4(tuple.destination));
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
        let acknowledged = if flags.contains(TcpFlags::ACK) { (numbers >> 32) as u32 } else { 0 };
        tcp.set_acknowledgment_number(acknowledged);
        tcp.set_flags(flags);
        tcp.set_window(u16::MAX);
        tcp.fill_checksum(pseudo_header);
    }
    Ok(())
}
